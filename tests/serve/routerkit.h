/* Workers that do as they are told, and a router in front of them. */
#ifndef TESTS_SERVE_ROUTERKIT_H
#define TESTS_SERVE_ROUTERKIT_H

#include "support.h"

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/proc.h"
#include "base/status.h"
#include "net/http_server.h"
#include "net/netpeer.h"
#include "serve/router.h"

enum routerkit_mode {
    ROUTERKIT_ANSWER, /* {"worker": number, "path": ..., "body": ...} */
    ROUTERKIT_STATUS, /* an error of status `status` */
    ROUTERKIT_CUT,    /* the connection is closed without an answer */
    ROUTERKIT_HOLD,   /* until the test takes it */
    ROUTERKIT_STREAM  /* three pieces of a stream */
};

enum { ROUTERKIT_WORKERS = 4, ROUTERKIT_HELD = 512 };

struct routerkit_worker {
    struct http_server *s;
    int number, port;
    char url[64];
    atomic_int mode, status, sick; /* sick: /health says 503 */
    atomic_int asked, checked, controlled, gone, done;
    pthread_mutex_t mu;
    struct http_req *held[ROUTERKIT_HELD];
    int nheld;
    char key[64]; /* of the last request's Authorization */
    char version[32];
};

static struct routerkit_worker routerkit_w[ROUTERKIT_WORKERS];
static struct router *routerkit_rt;
static int routerkit_port;
static struct buf routerkit_head, routerkit_body;

static void routerkit_health(void *arg, struct http_req *r)
{
    struct routerkit_worker *w = arg;
    atomic_fetch_add(&w->checked, 1);
    if (atomic_load(&w->sick)) {
        http_req_fail(r, 503, "sick");
    } else {
        http_req_reply(r, 200, "text/plain", "", 0);
    }
}

static void routerkit_done(void *arg, struct http_req *r, enum http_req_end how)
{
    struct routerkit_worker *w = arg;
    (void)r;
    atomic_fetch_add(&w->gone, how == HTTP_REQ_GONE);
    atomic_fetch_add(&w->done, 1);
}

static void routerkit_answer(struct routerkit_worker *w, struct http_req *r)
{
    size_t n;
    const char *body = http_req_body(r, &n), *x = http_req_header(r, "X-Thing");
    json_t *o =
        json_pack("{s:i,s:s,s:s,s:s#,s:s}", "worker", w->number, "method", http_req_method(r),
                  "target", http_req_target(r), "body", body, (int)n, "thing", x ? x : "");
    char *text = json_dumps(o, JSON_COMPACT);
    struct http_header h = {"X-Of-Worker", "yes"};
    struct http_req_answer a = {
        .status = 200, .type = "application/json", .headers = &h, .nheaders = 1};
    struct buf b;
    buf_init(&b, 64u << 20);
    buf_str(&b, text);
    http_req_reply_buf(r, &a, &b);
    buf_fini(&b);
    free(text);
    json_decref(o);
}

static void routerkit_stream(struct http_req *r)
{
    struct http_req_answer a = {.status = 200, .type = "text/event-stream"};
    http_req_begin(r, &a, HTTP_REQ_CUT_FULL, NULL, NULL);
    http_req_push(r, "data: 1\n\n", 9);
    http_req_push(r, "data: 2\n\n", 9);
    http_req_push(r, "data: [DONE]\n\n", 14);
    http_req_end(r);
}

static void routerkit_any(void *arg, struct http_req *r)
{
    struct routerkit_worker *w = arg;
    const char *key = http_req_header(r, "Authorization");
    atomic_fetch_add(&w->asked, 1);
    http_req_on_done(r, routerkit_done, w);
    pthread_mutex_lock(&w->mu);
    snprintf(w->key, sizeof w->key, "%s", key ? key : "-");
    pthread_mutex_unlock(&w->mu);
    switch (atomic_load(&w->mode)) {
    case ROUTERKIT_STATUS: http_req_fail(r, atomic_load(&w->status), "as told"); break;
    case ROUTERKIT_CUT: http_req_cut(r); break;
    case ROUTERKIT_HOLD:
        pthread_mutex_lock(&w->mu);
        assert_true(w->nheld < ROUTERKIT_HELD);
        w->held[w->nheld++] = r;
        pthread_mutex_unlock(&w->mu);
        break;
    case ROUTERKIT_STREAM: routerkit_stream(r); break;
    default: routerkit_answer(w, r); break;
    }
}

/* A control request; a stable answer with its own number. */
static void routerkit_control(void *arg, struct http_req *r)
{
    struct routerkit_worker *w = arg;
    char text[256];
    atomic_fetch_add(&w->controlled, 1);
    if (atomic_load(&w->mode) == ROUTERKIT_STATUS) {
        http_req_fail(r, atomic_load(&w->status), "as told");
        return;
    }
    snprintf(text, sizeof text,
             "{\"success\":true,\"message\":\"done\",\"of\":%d,\"internal_states\":[{\"of\":%d}]}",
             w->number, w->number);
    http_req_reply(r, 200, "application/json", text, strlen(text));
}

static void routerkit_info(void *arg, struct http_req *r)
{
    struct routerkit_worker *w = arg;
    char text[128];
    pthread_mutex_lock(&w->mu);
    snprintf(text, sizeof text, "{\"weight_version\":\"%s\"}", w->version);
    pthread_mutex_unlock(&w->mu);
    http_req_reply(r, 200, "application/json", text, strlen(text));
}

static void routerkit_metrics(void *arg, struct http_req *r)
{
    static const char text[] =
        "# HELP a An a.\n# TYPE a gauge\na{m=\"x\"} 1\na 2\n"
        "# HELP h An h.\n# TYPE h histogram\nh_bucket{le=\"1\"} 3\nh_sum 4\n";
    (void)arg;
    http_req_reply(r, 200, "text/plain", text, strlen(text));
}

static void routerkit_worker_start(struct routerkit_worker *w, int number, int port)
{
    static const struct http_server_route routes[] = {
        {"GET", "/health", routerkit_health, HTTP_SERVER_OPEN},
        {"GET", "/metrics", routerkit_metrics, 0},
        {"GET", "/get_model_info", routerkit_info, 0},
        {"*", "/get_server_info", routerkit_control, 0},
        {"*", "/flush_cache", routerkit_control, 0},
        {"*", "/abort_request", routerkit_control, 0},
        {"*", "/pause_generation", routerkit_control, 0},
        {"*", "/update_weights_from_disk", routerkit_control, 0},
        {"*", "/...", routerkit_any, 0}};
    struct http_server_opts o = {.routes = routes,
                                 .nroutes = sizeof routes / sizeof routes[0],
                                 .arg = w,
                                 .port = port,
                                 .stream_buffer = 64 << 10};
    struct err e = {0};
    memset(w, 0, sizeof *w);
    pthread_mutex_init(&w->mu, NULL);
    w->number = number;
    atomic_store(&w->status, 503);
    assert_ok(http_server_start(&w->s, &o, &e), &e);
    w->port = http_server_port(w->s);
    snprintf(w->url, sizeof w->url, "http://127.0.0.1:%d", w->port);
}

static inline void routerkit_version(struct routerkit_worker *w, const char *version)
{
    pthread_mutex_lock(&w->mu);
    snprintf(w->version, sizeof w->version, "%s", version);
    pthread_mutex_unlock(&w->mu);
}

static inline int routerkit_held(struct routerkit_worker *w)
{
    int n;
    pthread_mutex_lock(&w->mu);
    n = w->nheld;
    pthread_mutex_unlock(&w->mu);
    return n;
}

/* As if it was killed: connections break, nobody listens. */
static void routerkit_worker_kill(struct routerkit_worker *w)
{
    http_server_free(w->s);
    w->s = NULL;
    for (int i = 0; i < w->nheld; i++) {
        http_req_cut(w->held[i]);
    }
    w->nheld = 0;
}

static inline struct http_req *routerkit_take(struct routerkit_worker *w)
{
    for (double end = proc_now() + 20; proc_now() < end;) {
        struct http_req *r = NULL;
        pthread_mutex_lock(&w->mu);
        if (w->nheld > 0) {
            r = w->held[0];
            memmove(w->held, w->held + 1, sizeof r * (size_t)--w->nheld);
        }
        pthread_mutex_unlock(&w->mu);
        if (r) {
            return r;
        }
        netpeer_sleep(0.001);
    }
    fail_msg("no request came");
    return NULL;
}

static struct router_opts routerkit_opts(void)
{
    return (struct router_opts){.http = {.max_body = 16 << 20},
                                .worker = {.health_failures = 2,
                                           .health_successes = 2,
                                           .check_s = 0.1,
                                           .startup_check_s = 0.05,
                                           .startup_s = 60,
                                           .cb_failures = 3,
                                           .cb_successes = 2,
                                           .cb_open_s = 0.4,
                                           .cb_window_s = 60},
                                .policy = {.kind = ROUTER_POLICY_ROUND_ROBIN,
                                           .cache_threshold = 0.3,
                                           .balance_abs = 64,
                                           .balance_rel = 1.5,
                                           .max_bytes = 1 << 20,
                                           .max_idle_s = 100,
                                           .seed = 1},
                                .health_path = "/health",
                                .check_timeout_s = 2,
                                .connect_s = 2,
                                .request_s = 100,
                                .max_running = -1,
                                .queue_size = 4,
                                .queue_s = 5,
                                .max_retries = 5,
                                .backoff_s = 0.01,
                                .backoff_max_s = 0.05,
                                .backoff_factor = 1.5,
                                .jitter = 0.2};
}

/* One request on a connection of its own: the status; the answer is in routerkit_body. */
static int routerkit_ask_with(const char *method, const char *target, const char *headers,
                              const char *body)
{
    struct buf b;
    int status;
    buf_init(&b, 64u << 20);
    buf_printf(&b, "%s %s HTTP/1.1\r\nHost: x\r\n%sContent-Length: %zu\r\n\r\n", method, target,
               headers, strlen(body));
    buf_str(&b, body);
    status = netpeer_ask(routerkit_port, b.data, b.len, &routerkit_head, &routerkit_body);
    buf_fini(&b);
    return status;
}

static int routerkit_ask(const char *method, const char *target, const char *body)
{
    return routerkit_ask_with(method, target, "", body);
}

/* The answer as JSON; the caller owns it. */
static inline json_t *routerkit_json(void)
{
    json_error_t e;
    json_t *o = json_loadb(routerkit_body.data, routerkit_body.len, 0, &e);
    if (!o) {
        fail_msg("%s: %s", e.text, routerkit_body.data);
    }
    return o;
}

/* The number of the worker that answered. */
static inline int routerkit_who(void)
{
    json_t *o = routerkit_json();
    int n = (int)json_integer_value(json_object_get(o, "worker"));
    json_decref(o);
    return n;
}

/* A figure of /metrics. */
static inline double routerkit_metric(const char *name)
{
    char *at, line[256];
    assert_int_equal(routerkit_ask("GET", "/metrics", ""), 200);
    snprintf(line, sizeof line, "\nsgl_router_%s ", name);
    at = strstr(routerkit_body.data, line);
    if (!at) {
        fail_msg("no metric %s", name);
    }
    return strtod(at + strlen(line), NULL);
}

static inline void routerkit_wait(const char *metric, double value)
{
    double end = proc_now() + 15;
    while (routerkit_metric(metric) != value && proc_now() < end) {
        netpeer_sleep(0.01);
    }
    assert_true(routerkit_metric(metric) == value);
}

/* n workers, and a router that has found all of them healthy. */
static void routerkit_start(const struct router_opts *opts, int n)
{
    struct router_opts o = *opts;
    const char *urls[ROUTERKIT_WORKERS];
    struct err e = {0};
    for (int i = 0; i < n; i++) {
        routerkit_worker_start(&routerkit_w[i], i, 0);
        urls[i] = routerkit_w[i].url;
    }
    o.urls = urls;
    o.nurls = n;
    assert_ok(router_start(&o, &routerkit_rt, &e), &e);
    routerkit_port = router_port(routerkit_rt);
    if (!o.http.nkeys) {
        routerkit_wait("active_workers", n);
    }
}

static void routerkit_stop(int n)
{
    assert_int_equal(router_drain(routerkit_rt, 10), STATUS_OK);
    router_stop(routerkit_rt);
    for (int i = 0; i < n; i++) {
        if (routerkit_w[i].s) {
            struct http_server_stats st;
            for (double end = proc_now() + 5; proc_now() < end; netpeer_sleep(0.005)) {
                http_server_stats(routerkit_w[i].s, &st);
                if (st.held == 0) {
                    break;
                }
            }
            assert_int_equal(st.held, 0);
            http_server_free(routerkit_w[i].s);
        }
        pthread_mutex_destroy(&routerkit_w[i].mu);
    }
}

static inline int routerkit_setup(void **state)
{
    (void)state;
    buf_init(&routerkit_head, 1 << 20);
    buf_init(&routerkit_body, 256u << 20);
    return 0;
}

static inline int routerkit_teardown(void **state)
{
    (void)state;
    buf_fini(&routerkit_head);
    buf_fini(&routerkit_body);
    return 0;
}

#endif
