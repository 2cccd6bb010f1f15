/* Owns the parts of the server and the order in which they begin and end: the service before the
 * network, so that no request finds it missing; the network first at the end, then the threads that
 * prepare requests or fetch weights, then the service with what is left. */
#include "serve/api.h"

#include <string.h>
#include <time.h>

#include "base/map.h"
#include "base/mem.h"
#include "serve/front.h"
#include "serve/reply.h"

enum { API_FRONT_THREADS = 2 };

static const struct http_server_route api_routes[] = {
    {"POST", "/generate", sglang_api_generate, 0},
    {"PUT", "/generate", sglang_api_generate, 0},
    {"POST", "/v1/chat/completions", openai_api_chat, 0},
    {"POST", "/v1/completions", openai_api_completions, 0},
    {"GET", "/v1/models", openai_api_models, 0},
    {"GET", "/v1/models/...", openai_api_models, 0},
    {"GET", "/health", control_health, HTTP_SERVER_OPEN},
    {"GET", "/ping", control_health, HTTP_SERVER_OPEN},
    {"GET", "/health_generate", control_health_generate, HTTP_SERVER_OPEN},
    {"GET", "/get_model_info", control_model_info, 0},
    {"GET", "/model_info", control_model_info, 0},
    {"GET", "/get_server_info", control_server_info, 0},
    {"GET", "/server_info", control_server_info, 0},
    {"GET", "/flush_cache", control_flush, 0},
    {"POST", "/flush_cache", control_flush, 0},
    {"POST", "/abort_request", control_abort, 0},
    {"POST", "/pause_generation", control_pause, 0},
    {"POST", "/continue_generation", control_continue, 0},
    {"POST", "/update_weights_from_disk", control_update_from_disk, 0},
    {"POST", "/update_weights_from_shared", control_update_from_shared, 0},
    {"POST", "/update_weights_from_delta", control_update_from_delta, 0},
    {"POST", "/update_weight_version", control_update_version, 0},
    {"GET", "/get_weight_version", control_get_version, 0},
    {"GET", "/get_weights_by_name", control_get_weights, 0},
    {"POST", "/get_weights_by_name", control_get_weights, 0},
    {"POST", "/weights_checker", control_checker, 0},
    {"GET", "/weights_checker", control_checker, 0},
    {"POST", "/release_memory_occupation", control_release, 0},
    {"GET", "/release_memory_occupation", control_release, 0},
    {"POST", "/resume_memory_occupation", control_resume, 0},
    {"GET", "/resume_memory_occupation", control_resume, 0},
    {"GET", "/metrics", control_metrics, HTTP_SERVER_OPEN},
};

static const char *api_error(void *arg, int status, const char *msg, struct buf *out)
{
    (void)arg;
    reply_error(out, status, msg);
    return "application/json";
}

/* The sampling parameters of a model's generation_config.json. */
static json_t *api_chat_defaults(const char *text)
{
    static const char *const names[] = {"temperature", "top_p", "top_k", "min_p",
                                        "repetition_penalty"};
    json_t *all = text ? json_loads(text, 0, NULL) : NULL, *o = json_object();

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        json_t *v = json_object_get(all, names[i]);
        int off = strcmp(names[i], "top_k") == 0 && json_number_value(v) < 1.0; /* 0 turns it off */
        if (json_is_number(v) && !off) {
            json_object_set(o, names[i], v);
        }
    }
    json_decref(all);
    return o;
}

int api_start(const struct api_model *m, const struct api_opts *o, struct api **out, struct err *e)
{
    struct api *a = mem_alloc(sizeof *a);
    int rc;

    a->m = *m;
    a->o = *o;
    a->m.name = m->name ? m->name : m->path;
    a->o.stream_interval = o->stream_interval > 0 ? o->stream_interval : 1;
    a->o.http.routes = api_routes;
    a->o.http.nroutes = sizeof api_routes / sizeof api_routes[0];
    a->o.http.arg = a;
    a->o.http.error_fn = api_error;
    a->started = (int64_t)time(NULL);
    a->path = mem_strdup(m->path);
    a->chat = api_chat_defaults(m->generation_json);
    rc = service_open(&m->served, &o->service, &a->service, e);
    if (rc == STATUS_OK) {
        a->front = front_new(API_FRONT_THREADS);
        a->puller = front_new(1);
        rc = http_server_start(&a->http, &a->o.http, e);
    }
    if (rc != STATUS_OK) {
        api_stop(a);
        return rc;
    }
    *out = a;
    return STATUS_OK;
}

int api_port(const struct api *a)
{
    return http_server_port(a->http);
}

int api_drain(struct api *a, double wait_s)
{
    return http_server_drain(a->http, wait_s);
}

static void api_drop_sums(struct map **m)
{
    if (*m) {
        map_fini(*m);
    }
    mem_free(*m);
    *m = NULL;
}

void api_stop(struct api *a)
{
    if (!a) {
        return;
    }
    http_server_free(a->http);
    front_free(a->front);
    atomic_store(&a->stopping, 1);
    front_free(a->puller);
    service_close(a->service);
    wpatch_held_fini(&a->held);
    api_drop_sums(&a->sums);
    api_drop_sums(&a->kept);
    json_decref(a->chat);
    mem_free(a->path);
    mem_free(a);
}
