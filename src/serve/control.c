/* Owns what SGLang's API offers beside generation: health, information, pausing and metrics
 * (weights and memory: control_weights.c). What touches the engine runs on the service's thread,
 * between two steps; the rest is answered at once from the last step's figures. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "model/weights.h"
#include "net/http_req.h"
#include "serve/control_int.h"
#include "serve/front.h"
#include "serve/gencall.h"
#include "serve/jfield.h"

/* ---- work on the service's thread ---- */

static void control_free(void *arg)
{
    struct control_op *op = arg;
    json_decref(op->body);
    mem_free(op);
}

void control_finish(struct control_op *op, int rc, struct buf *out, const struct err *e)
{
    if (rc == STATUS_OK) {
        reply_whole(&op->rp, 200, op->type, out);
    } else if (op->failed_json) {
        buf_clear(out);
        buf_str(out, "{\"success\":false,\"message\":");
        jfield_put_text(out, e->msg, strlen(e->msg));
        buf_char(out, '}');
        reply_whole(&op->rp, reply_status(rc), "application/json", out);
    } else {
        reply_fail(&op->rp, reply_status(rc), e->msg);
    }
}

static void control_run(void *arg, struct service *s)
{
    struct control_op *op = arg;
    struct err e = {0};
    struct buf out;
    int rc;

    buf_init(&out, 1u << 28);
    rc = op->fn(op, &out, &e);
    service_show(s); /* who has the answer sees what it did */
    if (rc != STATUS_END) {
        control_finish(op, rc, &out, &e);
    }
    buf_fini(&out);
}

static void control_prepare(void *arg)
{
    struct control_op *op = arg;
    struct err e = {0};
    int rc = jfield_body(op->r, 1, &op->body, &e);

    if (rc == STATUS_OK) {
        service_run(op->a->service, control_run, op);
    } else {
        reply_fail(&op->rp, reply_status(rc), e.msg);
    }
}

static struct control_op *control_op(struct api *a, struct http_req *r, control_fn *fn)
{
    struct control_op *op = mem_alloc(sizeof *op);

    op->a = a;
    op->r = r;
    op->fn = fn;
    op->type = "application/json";
    reply_init(&op->rp, r, a->service, control_free, op);
    return op;
}

void control_start(struct api *a, struct http_req *r, control_fn *fn)
{
    front_run(a->front, control_prepare, control_op(a, r, fn));
}

void control_start_success(struct api *a, struct http_req *r, control_fn *fn)
{
    struct control_op *op = control_op(a, r, fn);
    op->failed_json = 1;
    front_run(a->front, control_prepare, op);
}

/* ---- health and information ---- */

void control_health(void *arg, struct http_req *r)
{
    struct api *a = arg;
    struct service_stats st;

    service_get_stats(a->service, &st);
    if (st.failed[0]) {
        http_req_fail(r, 503, "%s", st.failed);
    } else {
        http_req_reply(r, 200, "text/plain", "", 0);
    }
}

static void control_health_event(void *arg, const struct service_event *ev)
{
    struct gencall *g = arg;
    struct buf b;

    if (ev->kind == SERVICE_END) {
        if (ev->error) {
            reply_fail(&g->rp, 503, ev->error->msg);
        } else {
            buf_init(&b, 16);
            reply_whole(&g->rp, 200, "text/plain", &b);
            buf_fini(&b);
        }
    }
}

/* One token of one sample goes through the engine. */
void control_health_generate(void *arg, struct http_req *r)
{
    struct gencall *g = gencall_new(arg, r);
    struct err e = {0};
    int rc;

    g->base.n = 1;
    g->base.max_new = 1;
    g->base.sampling = (struct sampler_params){.top_p = 1.0f, .top_k = -1};
    g->base.forget = 1;
    g->max_given = 1;
    rc = gencall_add(g, (const int32_t[]){0}, 1, gencall_name(g, "HEALTH_CHECK_"), &e);
    if (rc == STATUS_OK) {
        rc = gencall_go(g, control_health_event, &e);
    }
    if (rc != STATUS_OK) {
        gencall_fail(g, rc, &e);
    }
}

static json_t *control_config(const struct api *a)
{
    json_t *o = a->m.config_json ? json_loads(a->m.config_json, 0, NULL) : NULL;
    return o ? o : json_object();
}

void control_model_info(void *arg, struct http_req *r)
{
    struct api *a = arg;
    json_t *config = control_config(a), *o;
    const json_t *archs = json_object_get(config, "architectures");
    struct service_stats st;

    service_get_stats(a->service, &st);
    o = json_pack("{s:s,s:s,s:s,s:b,s:n,s:s,s:s,s:s?,s:s?,s:s,s:b,s:b,s:s,s:o}", "model_path",
                  a->m.path, "served_model_name", a->m.name, "tokenizer_path", a->m.path,
                  "is_generation", 1, "preferred_sampling_params", "weight_version",
                  st.weight_version, "load_format", "auto", "reasoning_parser",
                  a->o.reasoning_parser, "tool_call_parser", a->o.tool_parser,
                  "disaggregation_mode", "null", "has_image_understanding", 0,
                  "has_audio_understanding", 0, "model_type", a->m.served.w->arch.family,
                  "architectures", archs ? json_incref((json_t *)(uintptr_t)archs) : json_null());
    json_decref(config);
    jfield_reply(r, 200, o);
}

/* What this server's numbers depend on: who compares them with its own knows whether the bits of
 * its answers are those it would have computed itself. */
static json_t *control_numbers(const struct api *a)
{
    const struct weights *w = a->m.served.w;
    json_t *manifest = plan_manifest(&w->dev->plan);

    json_object_set_new(manifest, "positions", json_integer(w->positions));
    return json_pack("{s:o,s:b,s:s,s:s}", "manifest", manifest, "row_exact",
                     (w->dev->caps & DEVICE_ROW_EXACT) != 0, "device", w->dev->name, "isa",
                     w->dev->isa);
}

void control_server_info(void *arg, struct http_req *r)
{
    struct api *a = arg;
    json_t *o = a->o.args ? json_deep_copy(a->o.args) : json_object(), *more, *state;
    struct service_stats st;
    int context = service_context(a->service);

    service_get_stats(a->service, &st);
    state = json_pack(
        "[{s:f,s:i,s:i,s:i,s:{s:I,s:I},s:{s:i,s:i,s:i}}]", "last_gen_throughput", st.tokens_per_s,
        "num_running_reqs", st.engine.running, "num_waiting_reqs", st.engine.waiting,
        "effective_max_running_requests_per_dp", a->o.service.engine.max_running, "memory_usage",
        "resident", (json_int_t)mem_resident(), "peak", (json_int_t)mem_peak(), "kv_pages", "total",
        st.engine.pages, "free", st.engine.pages_free, "cached", st.engine.pages_cached);
    more = json_pack("{s:s,s:s,s:s,s:i,s:i,s:i,s:i,s:i,s:s,s:s,s:s,s:b,s:o,s:o}", "model_path",
                     a->m.path, "tokenizer_path", a->m.path, "served_model_name", a->m.name,
                     "context_length", context, "max_total_num_tokens", st.engine.pages * 64,
                     "max_req_input_len", context - 1, "tp_size", 1, "dp_size", 1, "weight_version",
                     st.weight_version, "status", st.failed[0] ? "failed" : "ready", "version",
                     MILES_VERSION, "paused", st.paused, "internal_states", state, "miles",
                     control_numbers(a));
    json_object_update(o, more);
    json_decref(more);
    jfield_reply(r, 200, o);
}

/* ---- generation ---- */

static int control_do_flush(struct control_op *op, struct buf *out, struct err *e)
{
    (void)e;
    service_flush(op->a->service);
    op->type = "text/plain";
    buf_str(out, "Cache flushed.\n");
    return STATUS_OK;
}

void control_flush(void *arg, struct http_req *r)
{
    control_start(arg, r, control_do_flush);
}

static int control_do_abort(struct control_op *op, struct buf *out, struct err *e)
{
    const char *rid = NULL, *unused = NULL;
    int all = 0, rc;

    (void)out;
    if ((rc = jfield_text(op->body, "rid", &rid, e)) ||
        (rc = jfield_text(op->body, "abort_message", &unused, e)) ||
        (rc = jfield_bool(op->body, "abort_all", &all, e))) {
        return rc;
    }
    if (all || (rid && *rid)) { /* who names nobody ends nobody */
        service_abort(op->a->service, all ? NULL : rid);
    }
    return STATUS_OK;
}

void control_abort(void *arg, struct http_req *r)
{
    control_start(arg, r, control_do_abort);
}

static int control_pause_mode(const json_t *o, enum engine_pause *how, struct err *e)
{
    static const char *const names[] = {"abort", "retract", "in_place"};
    static const enum engine_pause modes[] = {ENGINE_PAUSE_ABORT, ENGINE_PAUSE_RETRACT,
                                              ENGINE_PAUSE_IN_PLACE};
    const char *mode = "abort";
    int rc = jfield_text(o, "mode", &mode, e);

    for (int i = 0; rc == STATUS_OK && i < 3; i++) {
        if (strcmp(mode, names[i]) == 0) {
            *how = modes[i];
            return STATUS_OK;
        }
    }
    return rc ? rc : ERR(e, STATUS_INPUT, "mode is %.40s, not abort, retract or in_place", mode);
}

static int control_do_pause(struct control_op *op, struct buf *out, struct err *e)
{
    enum engine_pause how = ENGINE_PAUSE_ABORT;
    int rc = control_pause_mode(op->body, &how, e);

    if (rc == STATUS_OK) {
        service_pause(op->a->service, how);
        buf_str(out, "{\"status\":\"ok\",\"message\":\"Generation paused successfully.\"}");
    }
    return rc;
}

void control_pause(void *arg, struct http_req *r)
{
    control_start(arg, r, control_do_pause);
}

static int control_do_continue(struct control_op *op, struct buf *out, struct err *e)
{
    (void)e;
    service_resume(op->a->service);
    buf_str(out, "{\"status\":\"ok\",\"message\":\"Generation continued successfully.\"}");
    return STATUS_OK;
}

void control_continue(void *arg, struct http_req *r)
{
    control_start(arg, r, control_do_continue);
}

/* ---- metrics ---- */

static void control_metric(struct buf *b, const struct api *a, const char *name, const char *type,
                           const char *help, double v)
{
    buf_printf(b, "# HELP sglang:%s %s\n# TYPE sglang:%s %s\nsglang:%s{model_name=\"%s\"} %.17g\n",
               name, help, name, type, name, a->m.name, v);
}

static void control_hist(struct buf *b, const struct api *a, const char *name, const char *help,
                         const struct service_hist *h)
{
    uint64_t n = 0;

    buf_printf(b, "# HELP sglang:%s %s\n# TYPE sglang:%s histogram\n", name, help, name);
    for (int i = 0; i < SERVICE_BUCKETS; i++) {
        n += h->n[i];
        buf_printf(b, "sglang:%s_bucket{le=\"%g\",model_name=\"%s\"} %llu\n", name,
                   service_bounds[i], a->m.name, (unsigned long long)n);
    }
    n += h->n[SERVICE_BUCKETS];
    buf_printf(b,
               "sglang:%s_bucket{le=\"+Inf\",model_name=\"%s\"} %llu\n"
               "sglang:%s_sum{model_name=\"%s\"} %.9g\nsglang:%s_count{model_name=\"%s\"} %llu\n",
               name, a->m.name, (unsigned long long)n, name, a->m.name, h->sum, name, a->m.name,
               (unsigned long long)n);
}

void control_metrics(void *arg, struct http_req *r)
{
    struct api *a = arg;
    struct service_stats st;
    struct http_req_answer answer = {.status = 200, .type = "text/plain; version=0.0.4"};
    struct buf b;
    double used, pages;

    service_get_stats(a->service, &st);
    used = st.engine.pages - st.engine.pages_free - st.engine.pages_cached;
    pages = st.engine.pages > 0 ? st.engine.pages : 1;
    buf_init(&b, 1 << 20);
    control_metric(&b, a, "num_running_reqs", "gauge", "Samples that are computed.",
                   st.engine.running);
    control_metric(&b, a, "num_queue_reqs", "gauge", "Samples that wait.", st.engine.waiting);
    control_metric(&b, a, "num_used_tokens", "gauge", "Tokens' room in use.", used * 64);
    control_metric(&b, a, "kv_pages", "gauge", "Pages of the key-value cache.", st.engine.pages);
    control_metric(&b, a, "kv_pages_free", "gauge", "Pages that hold nothing.",
                   st.engine.pages_free);
    control_metric(&b, a, "kv_pages_cached", "gauge", "Pages that only the prefix cache holds.",
                   st.engine.pages_cached);
    control_metric(&b, a, "prompt_rows_total", "counter",
                   "Rows computed to read tokens, those that gave a new token left out.",
                   (double)st.engine.prompt_rows);
    control_metric(&b, a, "decode_rows_total", "counter", "Rows computed that gave a new token.",
                   (double)st.engine.decode_rows);
    control_metric(&b, a, "token_usage", "gauge", "Share of the key-value cache in use.",
                   used / pages);
    control_metric(&b, a, "gen_throughput", "gauge", "New tokens a second.", st.tokens_per_s);
    control_metric(&b, a, "cache_hit_rate", "gauge", "Share of prompt tokens found in the cache.",
                   st.prompt_tokens ? (double)st.cached_tokens / (double)st.prompt_tokens : 0.0);
    control_metric(&b, a, "prompt_tokens_total", "counter", "Prompt tokens.",
                   (double)st.prompt_tokens);
    control_metric(&b, a, "generation_tokens_total", "counter", "New tokens.",
                   (double)st.new_tokens);
    control_metric(&b, a, "cached_tokens_total", "counter", "Prompt tokens found in the cache.",
                   (double)st.cached_tokens);
    control_metric(&b, a, "num_requests_total", "counter", "Samples that have finished.",
                   (double)st.finished);
    control_metric(&b, a, "num_aborted_requests_total", "counter", "Samples that were aborted.",
                   (double)st.aborted);
    control_metric(&b, a, "num_retracted_requests_total", "counter",
                   "Times a sample was taken back for want of memory.",
                   (double)st.engine.preempted);
    control_metric(&b, a, "evicted_pages_total", "counter", "Pages that the cache gave up.",
                   (double)st.engine.evicted);
    control_metric(&b, a, "is_paused", "gauge", "1 between pause and continue.", st.paused);
    control_hist(&b, a, "time_to_first_token_seconds", "Until a request's first token.", &st.first);
    control_hist(&b, a, "inter_token_latency_seconds", "Between two tokens of a sample.",
                 &st.between);
    control_hist(&b, a, "e2e_request_latency_seconds", "Until a sample's end.", &st.total);
    http_req_reply_buf(r, &answer, &b);
    buf_fini(&b);
}
