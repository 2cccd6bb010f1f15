/* Owns SGLang's /generate: its fields, its answers and its streams, in the shape of SGLang 0.5.
 * Events of a stream tell the whole response so far, as SGLang's do: a slow reader may be spared
 * all but the newest. */
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "net/http_req.h"
#include "serve/api.h"
#include "serve/front.h"
#include "serve/gencall.h"
#include "serve/jfield.h"
#include "text/tokenizer.h"

static const char *const sglang_api_fields[] = {
    "text", "input_ids", "sampling_params", "rid", "return_logprob", "logprob_start_len",
    "top_logprobs_num", "return_text_in_logprobs", "stream",
    /* taken, and without a meaning here */
    "log_metrics", "background", "conversation_id", "priority", "extra_key", "routing_key",
    "no_logs", "bootstrap_host", "bootstrap_port", "bootstrap_room", "custom_labels",
    "data_parallel_rank", "routed_dp_rank", "validation_time", "external_trace_header",
    "received_time", "disagg_prefill_dp_rank", "require_reasoning",
    /* refused when they ask for something */
    "input_embeds", "image_data", "video_data", "audio_data", "modalities", "token_ids_logprob",
    "session_params", "lora_path", "lora_id", "custom_logit_processor", "return_hidden_states",
    "return_routed_experts", "return_indexer_topk", "return_entropy", "return_bytes",
    "max_dynamic_patch", "min_dynamic_patch", "image_max_dynamic_patch", "video_max_dynamic_patch",
    NULL};
static const char *const sglang_api_undone[] = {"input_embeds",
                                                "image_data",
                                                "video_data",
                                                "audio_data",
                                                "modalities",
                                                "token_ids_logprob",
                                                "session_params",
                                                "lora_path",
                                                "lora_id",
                                                "custom_logit_processor",
                                                "return_hidden_states",
                                                "return_routed_experts",
                                                "return_indexer_topk",
                                                "return_entropy",
                                                "return_bytes",
                                                NULL};
static const char *const sglang_api_sampling[] = {"max_new_tokens",
                                                  "min_new_tokens",
                                                  "temperature",
                                                  "top_p",
                                                  "top_k",
                                                  "min_p",
                                                  "frequency_penalty",
                                                  "presence_penalty",
                                                  "repetition_penalty",
                                                  "stop",
                                                  "stop_token_ids",
                                                  "ignore_eos",
                                                  "skip_special_tokens",
                                                  "spaces_between_special_tokens",
                                                  "no_stop_trim",
                                                  "n",
                                                  "logit_bias",
                                                  "sampling_seed",
                                                  "stream_interval",
                                                  "custom_params",
                                                  "json_schema",
                                                  "regex",
                                                  "ebnf",
                                                  "structural_tag",
                                                  "stop_regex",
                                                  "beam_width",
                                                  NULL};
static const char *const sglang_api_sampling_undone[] = {
    "json_schema", "regex", "ebnf", "structural_tag", "stop_regex", "custom_params", NULL};
static const struct gencall_names sglang_api_names = {
    {"max_new_tokens", NULL}, "min_new_tokens", "sampling_seed", 128};

struct sglang_api {
    int logprob, start, top, texts;
    int list;    /* 1: the answer is a list */
    int indexed; /* 1: events tell which sample they speak of */
};

/* ---- the answer ---- */

/* [log-prob, token, text], as SGLang has them. */
static void sglang_api_triple(const struct gencall *g, struct buf *b, const float *logp, int32_t id)
{
    const struct sglang_api *x = g->user;
    size_t n;

    buf_char(b, '[');
    if (logp) {
        jfield_put_float(b, *logp);
    } else {
        buf_str(b, "null");
    }
    buf_printf(b, ",%d,", id);
    if (x->texts && service_model(g->api->service)->tok) {
        char *text = NULL;
        struct err e;
        if (tokenizer_decode(service_model(g->api->service)->tok, &id, 1, 0, &text, &n, &e) == 0) {
            jfield_put_text(b, text, n);
        } else {
            buf_str(b, "null");
        }
        mem_free(text);
    } else {
        buf_str(b, "null");
    }
    buf_char(b, ']');
}

static void sglang_api_tops(const struct gencall *g, struct buf *b, const int32_t *ids,
                            const float *logps, int n, int top)
{
    for (int i = 0; i < n; i++) {
        buf_char(b, i ? ',' : '[');
        for (int k = 0; k < top; k++) {
            size_t at = (size_t)i * (size_t)top + (size_t)k;
            buf_char(b, k ? ',' : '[');
            sglang_api_triple(g, b, &logps[at], ids[at]);
        }
        buf_char(b, ']');
    }
    buf_str(b, n ? "]" : "[]");
}

/* Log-probs of the prompt from token `start` on. That of the first is never told: it is the one
 * that the tokens before `start` would be needed for. */
static void sglang_api_prompt_logps(const struct gencall *g, struct buf *b,
                                    const struct service_event *ev)
{
    const struct sglang_api *x = g->user;
    const struct engine_group *q = &g->call.groups[ev->group];
    const struct engine_result *r = ev->r;
    int first = q->prompt_from - 1;

    buf_str(b, ",\"input_token_logprobs\":[");
    if (x->start >= 0 && q->prompt_logps && first < q->ntokens) {
        sglang_api_triple(g, b, NULL, q->tokens[first]);
        for (int i = 0; i < r->nprompt; i++) {
            buf_char(b, ',');
            sglang_api_triple(g, b, &r->prompt_logps[i], q->tokens[r->prompt_from + i]);
        }
    }
    buf_char(b, ']');
    if (x->top) {
        buf_str(b, ",\"input_top_logprobs\":[");
        if (x->start >= 0 && q->prompt_logps && first < q->ntokens) {
            buf_str(b, "null");
            for (int i = 0; i < r->nprompt; i++) {
                size_t at = (size_t)i * (size_t)r->top;
                buf_char(b, ',');
                for (int k = 0; k < r->top; k++) {
                    buf_char(b, k ? ',' : '[');
                    sglang_api_triple(g, b, &r->prompt_top_logps[at + (size_t)k],
                                      r->prompt_top_ids[at + (size_t)k]);
                }
                buf_char(b, ']');
            }
        }
        buf_char(b, ']');
    }
}

static void sglang_api_logps(const struct gencall *g, struct buf *b, const struct service_event *ev)
{
    const struct sglang_api *x = g->user;
    const struct engine_result *r = ev->r;

    sglang_api_prompt_logps(g, b, ev);
    buf_str(b, ",\"output_token_logprobs\":[");
    for (int i = 0; i < r->ntokens; i++) {
        if (i) {
            buf_char(b, ',');
        }
        sglang_api_triple(g, b, &r->logps[i], r->tokens[i]);
    }
    buf_printf(b, "],\"output_token_logprobs_length\":%d", r->ntokens);
    if (x->top) {
        buf_str(b, ",\"output_top_logprobs\":");
        sglang_api_tops(g, b, r->top_ids, r->top_logps, r->ntokens, r->top);
    }
}

static void sglang_api_finish(struct buf *b, const struct service_event *ev)
{
    switch (ev->r->finish) {
    case ENGINE_RUNNING: buf_str(b, "null"); break;
    case ENGINE_LENGTH: buf_printf(b, "{\"type\":\"length\",\"length\":%d}", ev->r->ntokens); break;
    case ENGINE_STOP:
        buf_str(b, "{\"type\":\"stop\",\"matched\":");
        if (ev->matched) {
            jfield_put_text(b, ev->matched, strlen(ev->matched));
        } else {
            buf_printf(b, "%d", ev->matched_token);
        }
        buf_char(b, '}');
        break;
    default:
        buf_str(b, "{\"type\":\"abort\",\"message\":");
        jfield_put_text(b, ev->why, strlen(ev->why));
        buf_char(b, '}');
    }
}

/* Versions of the weights that tokens were sampled with, when there was more than one: where each
 * run of tokens begins. */
static void sglang_api_versions(struct buf *b, const struct engine_result *r)
{
    int mixed = 0;

    for (int i = 1; i < r->ntokens; i++) {
        mixed |= r->versions[i] != r->versions[0];
    }
    if (!mixed) {
        return;
    }
    buf_str(b, ",\"token_versions\":[");
    for (int i = 0; i < r->ntokens; i++) {
        if (i == 0 || r->versions[i] != r->versions[i - 1]) {
            buf_printf(b, "%s[%d,%lld]", i ? "," : "", i, (long long)r->versions[i]);
        }
    }
    buf_char(b, ']');
}

static void sglang_api_body(const struct gencall *g, struct buf *b, const struct service_event *ev)
{
    const struct sglang_api *x = g->user;
    const struct engine_result *r = ev->r;

    buf_char(b, '{');
    if (service_model(g->api->service)->tok) {
        buf_str(b, "\"text\":");
        jfield_put_text(b, ev->text, ev->len);
        buf_char(b, ',');
    }
    buf_str(b, "\"output_ids\":[");
    for (int i = 0; i < r->ntokens; i++) {
        buf_printf(b, "%s%d", i ? "," : "", r->tokens[i]);
    }
    buf_str(b, "],\"meta_info\":{\"id\":");
    jfield_put_text(b, g->rids[ev->group], strlen(g->rids[ev->group]));
    if (g->base.n > 1) { /* before the closing quote */
        b->len--;
        buf_printf(b, "_%d\"", ev->sample);
    }
    buf_str(b, ",\"finish_reason\":");
    sglang_api_finish(b, ev);
    buf_printf(b, ",\"prompt_tokens\":%d,\"weight_version\":", r->prompt_tokens);
    jfield_put_text(b, ev->weight_version, strlen(ev->weight_version));
    buf_printf(b, ",\"num_retractions\":0");
    if (x->logprob) {
        sglang_api_logps(g, b, ev);
    }
    sglang_api_versions(b, r);
    buf_printf(b, ",\"completion_tokens\":%d,\"cached_tokens\":%d,\"e2e_latency\":%.6f}",
               r->ntokens, r->cached_tokens, ev->total_s);
    if (x->indexed) {
        buf_printf(b, ",\"index\":%d", gencall_index(g, ev));
    }
    buf_char(b, '}');
}

static void sglang_api_whole(struct gencall *g)
{
    const struct sglang_api *x = g->user;
    struct buf all;

    if (!x->list) {
        reply_whole(&g->rp, 200, "application/json", &g->out[0]);
        return;
    }
    buf_init(&all, g->out[0].max);
    for (int i = 0; i < g->nout; i++) {
        buf_char(&all, i ? ',' : '[');
        buf_add(&all, g->out[i].data, g->out[i].len);
        buf_fini(&g->out[i]);
        buf_init(&g->out[i], 1);
    }
    buf_char(&all, ']');
    reply_whole(&g->rp, 200, "application/json", &all);
    buf_fini(&all);
}

static void sglang_api_event(void *arg, const struct service_event *ev)
{
    struct gencall *g = arg;
    struct buf *b;

    if (ev->kind == SERVICE_END) {
        if (ev->error) {
            gencall_fail(g, ev->error->code, ev->error);
        } else if (g->stream) {
            reply_event(&g->rp, "[DONE]", 6, 0);
            reply_end(&g->rp);
        } else {
            sglang_api_whole(g);
        }
        return;
    }
    b = &g->out[gencall_index(g, ev)];
    buf_clear(b);
    sglang_api_body(g, b, ev);
    if (g->stream) {
        reply_event(&g->rp, b->data, b->len, g->nout == 1);
    }
}

/* ---- the request ---- */

static int sglang_api_options(struct gencall *g, struct sglang_api *x, struct err *e)
{
    const json_t *o = g->body, *sp = jfield_get(o, "sampling_params");
    json_t *empty = NULL;
    int64_t start = -1, top = 0, interval = g->api->o.stream_interval;
    int rc;

    if (sp && !json_is_object(sp)) {
        return ERR(e, STATUS_INPUT, "sampling_params is not an object");
    }
    if (!sp) {
        sp = empty = json_object();
    }
    if ((rc = jfield_known(o, "generate", sglang_api_fields, e)) ||
        (rc = jfield_undone(o, sglang_api_undone, e)) ||
        (rc = jfield_known(sp, "sampling_params", sglang_api_sampling, e)) ||
        (rc = jfield_undone(sp, sglang_api_sampling_undone, e)) ||
        (rc = gencall_sampling(g, sp, &sglang_api_names, e)) ||
        (rc = jfield_int(sp, "stream_interval", 1, 1 << 20, &interval, e)) ||
        (rc = jfield_bool(o, "stream", &g->stream, e)) ||
        (rc = jfield_bool(o, "return_logprob", &x->logprob, e)) ||
        (rc = jfield_bool(o, "return_text_in_logprobs", &x->texts, e)) ||
        (rc = jfield_int(o, "logprob_start_len", -1, INT32_MAX, &start, e)) ||
        (rc = jfield_int(o, "top_logprobs_num", 0, ENGINE_MAX_TOP, &top, e))) {
        json_decref(empty);
        return rc;
    }
    json_decref(empty);
    x->start = x->logprob ? (int)start : -1;
    x->top = x->logprob ? (int)top : 0;
    g->base.top = x->top;
    g->base.prompt_logps = x->start >= 0;
    g->base.prompt_temperature = 1.0f;
    g->base.prompt_from = x->start + 1;
    g->call.progress = g->stream ? (int)interval : 0;
    return STATUS_OK;
}

/* The name of prompt i, and whether the client gave it. */
static int sglang_api_rid(struct gencall *g, size_t i, int many, const char **rid, struct err *e)
{
    const json_t *v = jfield_get(g->body, "rid");

    *rid = NULL;
    if (json_is_array(v) && many) {
        v = json_array_get(v, i);
        if (!v) {
            return ERR(e, STATUS_INPUT, "rid has fewer entries than there are prompts");
        }
    }
    if (!v) {
        return STATUS_OK;
    }
    if (!json_is_string(v) || json_string_length(v) > 512 || json_string_length(v) < 1 ||
        strlen(json_string_value(v)) != json_string_length(v)) {
        return ERR(e, STATUS_INPUT, "rid is not a text of 1 to 512 bytes");
    }
    *rid = json_string_value(v);
    if (many && !json_is_array(jfield_get(g->body, "rid"))) {
        size_t n = json_string_length(v) + 24;
        char *one = arena_alloc(&g->mem, n);
        snprintf(one, n, "%s_%zu", *rid, i);
        *rid = one;
    }
    return STATUS_OK;
}

static int sglang_api_prompts(struct gencall *g, struct sglang_api *x, struct err *e)
{
    const json_t *text = jfield_get(g->body, "text"), *ids = jfield_get(g->body, "input_ids");
    const json_t *v = text ? text : ids;
    int many, rc = STATUS_OK;
    size_t n;

    if (!text == !ids) {
        return ERR(e, STATUS_INPUT, "Either text or input_ids should be provided, and not both.");
    }
    if (!json_is_array(v) && !(text && json_is_string(v))) {
        return ERR(e, STATUS_INPUT,
                   text ? "text is neither a text nor a list of texts" : "input_ids is not a list");
    }
    many = json_is_array(v) && (text || json_is_array(json_array_get(v, 0)));
    n = many ? json_array_size(v) : 1;
    if (n == 0) {
        return ERR(e, STATUS_INPUT, "no prompts");
    }
    for (size_t i = 0; rc == STATUS_OK && i < n; i++) {
        const json_t *one = many ? json_array_get(v, i) : v;
        const char *rid;
        rc = sglang_api_rid(g, i, many, &rid, e);
        if (rc == STATUS_OK && text && !json_is_string(one)) {
            rc = ERR(e, STATUS_INPUT, "text: entry %zu is not a text", i);
        } else if (rc == STATUS_OK && text) {
            rc = gencall_add_text(g, json_string_value(one), json_string_length(one), 1, rid, e);
        } else if (rc == STATUS_OK) {
            rc = gencall_add_ids(g, one, rid, e);
        }
        if (rc == STATUS_OK && x->start >= 0 && x->start >= g->call.groups[i].ntokens) {
            rc = ERR(e, STATUS_INPUT, "logprob_start_len is %d, the prompt has %d tokens", x->start,
                     g->call.groups[i].ntokens);
        }
    }
    x->list = many || g->base.n > 1;
    x->indexed = g->stream && x->list;
    return rc;
}

static void sglang_api_prepare(void *arg)
{
    struct gencall *g = arg;
    struct sglang_api *x = arena_alloc(&g->mem, sizeof *x);
    struct err e = {0};
    int rc = jfield_body(g->r, 0, &g->body, &e);

    g->user = x;
    if (rc == STATUS_OK) {
        rc = sglang_api_options(g, x, &e);
    }
    if (rc == STATUS_OK) {
        rc = sglang_api_prompts(g, x, &e);
    }
    if (rc == STATUS_OK) {
        rc = gencall_go(g, sglang_api_event, &e);
    }
    if (rc != STATUS_OK) {
        gencall_fail(g, rc, &e);
    }
}

void sglang_api_generate(void *arg, struct http_req *r)
{
    struct api *a = arg;
    front_run(a->front, sglang_api_prepare, gencall_new(a, r));
}
