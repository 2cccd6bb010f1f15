/* Owns SGLang's /generate: its fields, its answers and its streams, in the shape of SGLang 0.5.
 * Events of a stream tell the whole response so far, as SGLang's do: a slow reader may be spared
 * all but the newest.
 *
 * Fields that are this server's own begin with miles_: the key of a sample's randomness, which lets
 * a training run have the tokens it would have sampled itself, and what spares work for somebody
 * who reads tokens only. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "net/http_req.h"
#include "serve/api.h"
#include "serve/front.h"
#include "serve/gencall.h"
#include "serve/jfield.h"
#include "text/tokenizer.h"

/* Fields of the body that are not here are not looked at, as SGLang does it: clients send what
 * newer servers know. Those that ask for something this server cannot do are refused. */
static const char *const sglang_api_undone[] = {"input_embeds",
                                                "image_data",
                                                "video_data",
                                                "audio_data",
                                                "modalities",
                                                "session_params",
                                                "lora_path",
                                                "lora_id",
                                                "custom_logit_processor",
                                                "return_hidden_states",
                                                "return_routed_experts",
                                                "return_indexer_topk",
                                                "return_entropy",
                                                "return_bytes",
                                                "return_sampling_mask",
                                                "return_flat_raw_top_logprobs",
                                                "return_flat_raw_output_top_logprobs",
                                                "positional_embed_overrides",
                                                "max_thinking_tokens",
                                                "watermark",
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
                                                  "watermark",
                                                  "choice",
                                                  NULL};
static const char *const sglang_api_sampling_undone[] = {
    "json_schema", "regex",  "ebnf", "structural_tag", "stop_regex", "custom_params",
    "watermark",   "choice", NULL};
/* Each may be a list with one for each prompt. */
static const char *const sglang_api_listed[] = {"return_logprob", "logprob_start_len",
                                                "top_logprobs_num", NULL};
static const struct gencall_names sglang_api_names = {
    {"max_new_tokens", NULL}, "min_new_tokens", "sampling_seed", 128, 1};

/* What a prompt wants to know of log-probs. */
struct sglang_api_ask {
    int logprob, start, top;
};

struct sglang_api {
    struct sglang_api_ask *asks; /* (prompts) */
    int texts;
    int prompt_ids; /* 1: the prompt's tokens are told */
    int ids_only;   /* 1: no text is made */
    int forget;     /* 1: nobody will go on from these prompts */
    int list;       /* 1: the answer is a list */
    int indexed;    /* 1: events tell which sample they speak of */
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
    const struct sglang_api_ask *ask = &x->asks[ev->group];
    const struct engine_group *q = &g->call.groups[ev->group];
    const struct engine_result *r = ev->r;
    int first = q->prompt_from - 1;
    int any = ask->start >= 0 && ask->start < q->ntokens;

    buf_str(b, ",\"input_token_logprobs\":[");
    if (any) {
        sglang_api_triple(g, b, NULL, q->tokens[first]);
        for (int i = 0; i < r->nprompt; i++) {
            buf_char(b, ',');
            sglang_api_triple(g, b, &r->prompt_logps[i], q->tokens[r->prompt_from + i]);
        }
    }
    buf_char(b, ']');
    if (ask->top) {
        buf_str(b, ",\"input_top_logprobs\":[");
        if (any) {
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
    if (q->nwanted) {
        buf_str(b, any ? ",\"input_token_ids_logprobs\":[null" : ",\"input_token_ids_logprobs\":[");
        for (int i = 0; any && i < r->nprompt; i++) {
            const int32_t *ids = q->wanted + (q->wanted_each ? (size_t)i * (size_t)q->nwanted : 0);
            buf_char(b, ',');
            for (int k = 0; k < q->nwanted; k++) {
                buf_char(b, k ? ',' : '[');
                sglang_api_triple(g, b, &r->prompt_wanted[i * q->nwanted + k], ids[k]);
            }
            buf_char(b, ']');
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
    if (x->asks[ev->group].top) {
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

/* The names of the weights that tokens were sampled with, and which tokens. */
static void sglang_api_versions(const struct gencall *g, struct buf *b,
                                const struct service_event *ev)
{
    const struct engine_result *r = ev->r;

    buf_str(b, ",\"weight_versions\":[");
    for (int i = 0, end; i < r->ntokens || i == 0; i = end) {
        const char *name =
            r->ntokens ? service_name_of(g->api->service, r->versions[i]) : ev->weight_version;
        for (end = i + 1; end < r->ntokens && r->versions[end] == r->versions[i]; end++) {
        }
        buf_str(b, i ? ",{\"version\":" : "{\"version\":");
        jfield_put_text(b, name, strlen(name));
        buf_printf(b, ",\"start\":%d,\"end\":%d}", i, r->ntokens ? end : 0);
    }
    buf_char(b, ']');
}

/* Tokens for which rows of other weights were read: after a pause in place. */
static int sglang_api_mixed(const struct engine_result *r)
{
    int n = 0;
    for (int i = 0; i < r->ntokens; i++) {
        n += r->mixed[i];
    }
    return n;
}

static void sglang_api_body(const struct gencall *g, struct buf *b, const struct service_event *ev)
{
    const struct sglang_api *x = g->user;
    const struct engine_result *r = ev->r;
    int mixed = sglang_api_mixed(r);

    buf_char(b, '{');
    if (service_model(g->api->service)->tok && !x->ids_only) {
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
    if (x->asks[ev->group].logprob) {
        sglang_api_logps(g, b, ev);
    }
    sglang_api_versions(g, b, ev);
    if (mixed) {
        buf_printf(b, ",\"miles_mixed_tokens\":%d", mixed);
    }
    buf_printf(b, ",\"reasoning_tokens\":0,\"completion_tokens\":%d,\"cached_tokens\":%d",
               r->ntokens, r->cached_tokens);
    if (r->finish != ENGINE_RUNNING) {
        buf_printf(b, ",\"e2e_latency\":%.6f", ev->total_s);
    }
    buf_char(b, '}');
    if (x->prompt_ids) {
        const struct engine_group *q = &g->call.groups[ev->group];
        buf_str(b, ",\"prompt_token_ids\":[");
        for (int i = 0; i < q->ntokens; i++) {
            buf_printf(b, "%s%d", i ? "," : "", q->tokens[i]);
        }
        buf_char(b, ']');
    }
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
    const json_t *o = g->body;
    int rc;

    if ((rc = jfield_undone(o, sglang_api_undone, e)) ||
        (rc = jfield_bool(o, "stream", &g->stream, e)) ||
        (rc = jfield_bool(o, "return_prompt_token_ids", &x->prompt_ids, e)) ||
        (rc = jfield_bool(o, "miles_ids_only", &x->ids_only, e)) ||
        (rc = jfield_bool(o, "miles_forget", &x->forget, e))) {
        return rc;
    }
    return jfield_bool(o, "return_text_in_logprobs", &x->texts, e);
}

/* Entry i of a field that may be a list with one for each of n prompts; n is 0 for a request of one
 * prompt that is no list. */
static int sglang_api_entry(const json_t *v, const char *name, size_t i, size_t n,
                            const json_t **out, struct err *e)
{
    *out = v;
    if (json_is_array(v) && n == 0) {
        return ERR(e, STATUS_INPUT, "%s is a list, the prompt is none", name);
    }
    if (json_is_array(v) && json_array_size(v) != n) {
        return ERR(e, STATUS_INPUT, "%s is a list of %zu, the request has %zu prompts", name,
                   json_array_size(v), n);
    }
    if (json_is_array(v)) {
        *out = json_array_get(v, i);
    }
    return STATUS_OK;
}

static int sglang_api_sampled(struct gencall *g, const json_t *sp, struct err *e)
{
    int64_t interval = g->api->o.stream_interval, beams = 1;
    json_t *empty = NULL;
    int rc;

    if (json_is_null(sp)) {
        sp = NULL;
    }
    if (sp && !json_is_object(sp)) {
        return ERR(e, STATUS_INPUT, "sampling_params is neither an object nor a list of them");
    }
    if (!sp) {
        sp = empty = json_object();
    }
    if ((rc = jfield_known(sp, "sampling_params", sglang_api_sampling, e)) ||
        (rc = jfield_undone(sp, sglang_api_sampling_undone, e)) ||
        (rc = jfield_int(sp, "beam_width", 1, 1, &beams, e)) ||
        (rc = jfield_int(sp, "stream_interval", 1, 1 << 20, &interval, e))) {
        json_decref(empty);
        return rc;
    }
    rc = gencall_sampling(g, sp, &sglang_api_names, e);
    json_decref(empty);
    g->call.progress = g->stream ? (int)interval : 0;
    return rc;
}

/* Whether one prompt asks for other things than the one before it. */
static int sglang_api_varies(const struct gencall *g)
{
    int lists = json_is_array(jfield_get(g->body, "sampling_params")) ||
                json_is_array(jfield_get(g->body, "miles_key"));

    for (int i = 0; sglang_api_listed[i]; i++) {
        lists |= json_is_array(jfield_get(g->body, sglang_api_listed[i]));
    }
    return lists;
}

/* A number of 64 bits without sign: an integer, or its digits where it may be larger than JSON's.
 */
static int sglang_api_u64(const json_t *o, const char *name, uint64_t *out, struct err *e)
{
    const json_t *v = json_object_get(o, name);
    const char *text = json_string_value(v);
    char *end = NULL;

    if (json_is_integer(v) && json_integer_value(v) >= 0) {
        *out = (uint64_t)json_integer_value(v);
        return STATUS_OK;
    }
    errno = 0;
    if (text && *text >= '0' && *text <= '9') {
        *out = strtoull(text, &end, 10);
    }
    if (!end || *end || errno) {
        return ERR(e, STATUS_INPUT, "miles_key: %s is not a number of 64 bits", name);
    }
    return STATUS_OK;
}

/* What names the randomness of the next prompt's samples: sample i of it has `sample` + i. */
static int sglang_api_key(struct gencall *g, const json_t *v, struct err *e)
{
    static const char *const known[] = {"seed", "stream", "sample", "position", NULL};
    struct engine_key *key = &g->base.key;
    int64_t stream = RNG_TRAIN, position = 0;
    int rc;

    if (!v || json_is_null(v)) {
        return STATUS_OK;
    }
    if (!json_is_object(v)) {
        return ERR(e, STATUS_INPUT, "miles_key is neither an object nor a list of them");
    }
    if ((rc = jfield_known(v, "miles_key", known, e)) ||
        (rc = sglang_api_u64(v, "seed", &key->seed, e)) ||
        (rc = sglang_api_u64(v, "sample", &key->sample, e))) {
        return rc;
    }
    if (jfield_int(v, "stream", RNG_TRAIN, RNG_EVAL, &stream, e) != STATUS_OK ||
        jfield_int(v, "position", 0, INT32_MAX, &position, e) != STATUS_OK) {
        return err_prefix(e, "miles_key");
    }
    key->stream = (uint32_t)stream;
    key->position = (uint32_t)position;
    g->ask.own_key = 1;
    return STATUS_OK;
}

/* What prompt i of n asks for: into g for the next that is added, and into *ask. */
static int sglang_api_of(struct gencall *g, const struct sglang_api *x, struct sglang_api_ask *ask,
                         size_t i, size_t n, struct err *e)
{
    const json_t *v;
    json_t *o = json_object();
    int64_t start = -1, top = 0;
    int logprob = 0;
    int rc =
        sglang_api_entry(jfield_get(g->body, "sampling_params"), "sampling_params", i, n, &v, e);

    rc = rc ? rc : sglang_api_sampled(g, v, e);
    rc = rc ? rc : sglang_api_entry(jfield_get(g->body, "miles_key"), "miles_key", i, n, &v, e);
    rc = rc ? rc : sglang_api_key(g, v, e);
    for (int k = 0; rc == STATUS_OK && sglang_api_listed[k]; k++) {
        const json_t *all = jfield_get(g->body, sglang_api_listed[k]);
        rc = sglang_api_entry(all, sglang_api_listed[k], i, n, &v, e);
        if (rc == STATUS_OK && json_is_array(all) && g->base.n > 1) {
            rc = ERR(e, STATUS_INPUT, "%s cannot be a list with n above 1", sglang_api_listed[k]);
        }
        if (rc == STATUS_OK && v) {
            json_object_set(o, sglang_api_listed[k], (json_t *)(uintptr_t)v);
        }
    }
    rc = rc ? rc : jfield_bool(o, "return_logprob", &logprob, e);
    rc = rc ? rc : jfield_int(o, "logprob_start_len", -1, INT32_MAX - 1, &start, e);
    rc = rc ? rc : jfield_int(o, "top_logprobs_num", 0, ENGINE_MAX_TOP, &top, e);
    json_decref(o);
    ask->logprob = logprob;
    ask->start = logprob ? (int)start : -1;
    ask->top = logprob ? (int)top : 0;
    g->base.top = ask->top;
    g->base.prompt_logps = ask->start >= 0;
    g->base.prompt_temperature = 1.0f;
    g->base.prompt_from = ask->start + 1;
    g->base.forget = x->forget;
    g->ask.no_text = x->ids_only;
    return rc;
}

/* The name of prompt i, and whether the client gave it. */
static int sglang_api_rid(struct gencall *g, size_t i, int many, const char **rid, struct err *e)
{
    const json_t *v = jfield_get(g->body, "rid");

    *rid = NULL;
    if (json_is_array(v) && many) {
        v = json_array_get(v, i);
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

/* A list of names has one for each prompt, and no name twice. */
static int sglang_api_check_rids(const json_t *v, size_t n, struct err *e)
{
    json_t *seen;
    const json_t *x;
    size_t i;
    int rc = STATUS_OK;

    if (!json_is_array(v)) {
        return STATUS_OK;
    }
    if (json_array_size(v) != n) {
        return ERR(e, STATUS_INPUT, "rid has %zu names, the request has %zu prompts",
                   json_array_size(v), n);
    }
    seen = json_object();
    json_array_foreach(v, i, x)
    {
        const char *name = json_string_value(x);
        if (rc == STATUS_OK && name && json_object_get(seen, name)) {
            rc = ERR(e, STATUS_INPUT, "rid: the name %.80s is there twice", name);
        }
        if (name) {
            json_object_set_new(seen, name, json_true());
        }
    }
    json_decref(seen);
    return rc;
}

static int sglang_api_token_list(const json_t *v, int32_t *out, int n, struct err *e)
{
    for (int k = 0; k < n; k++) {
        const json_t *id = json_array_get(v, (size_t)k);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) > INT32_MAX) {
            return ERR(e, STATUS_INPUT, "token_ids_logprob: entry %d is no token", k);
        }
        out[k] = (int32_t)json_integer_value(id);
    }
    return STATUS_OK;
}

/* token_ids_logprob: a list of tokens; or, as an extension, one list for each token of the prompt
 * behind logprob_start_len, all of one length. Of prompts only, and of one in a request. */
static int sglang_api_wanted(struct gencall *g, struct engine_group *q, int told, int many,
                             struct err *e)
{
    const json_t *v = jfield_get(g->body, "token_ids_logprob");
    const json_t *first = json_array_get(v, 0);
    int each = json_is_array(first), rows = each ? (int)json_array_size(v) : 1, rc = STATUS_OK;
    int n = (int)json_array_size(each ? first : v), from = q->prompt_from > 0 ? q->prompt_from : 1;
    int32_t *ids;

    if (!v) {
        return STATUS_OK;
    }
    if (many || !json_is_array(v) || q->max_new > 0 || !told) {
        return ERR(e, STATUS_INPUT,
                   "token_ids_logprob is supported for one prompt with return_logprob, "
                   "logprob_start_len and max_new_tokens 0");
    }
    if (each && rows != q->ntokens - from) {
        return ERR(e, STATUS_INPUT, "token_ids_logprob has %d lists for %d tokens of the prompt",
                   rows, q->ntokens - from);
    }
    ids = arena_alloc(&g->mem, sizeof *ids * ((size_t)rows * (size_t)n + 1));
    for (int i = 0; rc == STATUS_OK && i < rows; i++) {
        const json_t *row = each ? json_array_get(v, (size_t)i) : v;
        if (!json_is_array(row) || (int)json_array_size(row) != n) {
            return ERR(e, STATUS_INPUT, "token_ids_logprob: list %d is not of %d tokens", i, n);
        }
        rc = sglang_api_token_list(row, ids + (size_t)i * (size_t)n, n, e);
    }
    q->wanted = ids;
    q->nwanted = n;
    q->wanted_each = each;
    return rc;
}

/* Prompt i of n, whose field is `one`. */
static int sglang_api_add(struct gencall *g, struct sglang_api *x, const json_t *one, size_t i,
                          int many, struct err *e)
{
    const struct sglang_api_ask *ask = &x->asks[i];
    const char *rid;
    int rc = sglang_api_rid(g, i, many, &rid, e);

    if (rc == STATUS_OK && json_is_string(one)) {
        rc = gencall_add_text(g, json_string_value(one), json_string_length(one), 1, rid, e);
    } else if (rc == STATUS_OK) {
        rc = gencall_add_ids(g, one, rid, e);
    }
    if (rc == STATUS_OK && ask->start >= 0) {
        struct engine_group *q = &g->call.groups[i];
        if (ask->start > q->ntokens) {
            rc = ERR(e, STATUS_INPUT, "logprob_start_len is %d, the prompt has %d tokens",
                     ask->start, q->ntokens);
        } else if (ask->start == q->ntokens) { /* none of them, but computed when nothing else is */
            q->prompt_logps = q->max_new == 0;
            q->prompt_from = q->ntokens;
        }
    }
    return rc == STATUS_OK ? sglang_api_wanted(g, &g->call.groups[i], ask->start >= 0, many, e)
                           : rc;
}

static int sglang_api_prompts(struct gencall *g, struct sglang_api *x, struct err *e)
{
    const json_t *text = jfield_get(g->body, "text"), *ids = jfield_get(g->body, "input_ids");
    const json_t *v = ids ? ids : text; /* with both, the tokens are those of the text */
    int many, vary = sglang_api_varies(g), samples = 1, rc = STATUS_OK;
    size_t n;

    if (!v) {
        return ERR(e, STATUS_INPUT, "Either text or input_ids should be provided.");
    }
    if (!json_is_array(v) && !(v == text && json_is_string(v))) {
        return ERR(e, STATUS_INPUT,
                   ids ? "input_ids is not a list" : "text is neither a text nor a list of texts");
    }
    many = json_is_array(v) && (v == text || json_is_array(json_array_get(v, 0)));
    n = many ? json_array_size(v) : 1;
    if (n == 0 || n > GENCALL_MAX_PROMPTS) {
        return ERR(e, STATUS_INPUT, "%zu prompts in one request, not 1 to %d", n,
                   GENCALL_MAX_PROMPTS);
    }
    rc = many ? sglang_api_check_rids(jfield_get(g->body, "rid"), n, e) : STATUS_OK;
    if (rc == STATUS_OK && n > 1 && json_is_object(jfield_get(g->body, "miles_key"))) {
        rc = ERR(e, STATUS_INPUT, "miles_key: %zu prompts need one each", n);
    }
    x->asks = arena_alloc(&g->mem, sizeof *x->asks * n);
    for (size_t i = 0; rc == STATUS_OK && i < n; i++) {
        const json_t *one = many ? json_array_get(v, i) : v;
        if (i == 0 || vary) {
            rc = sglang_api_of(g, x, &x->asks[i], i, many ? n : 0, e);
        } else {
            x->asks[i] = x->asks[0];
        }
        samples = i ? samples : g->base.n;
        if (rc == STATUS_OK && g->base.n != samples) {
            rc = ERR(e, STATUS_INPUT, "n must be the same for all prompts of a request");
        }
        if (rc == STATUS_OK && v == text && !json_is_string(one)) {
            rc = ERR(e, STATUS_INPUT, "text: entry %zu is not a text", i);
        }
        rc = rc ? rc : sglang_api_add(g, x, one, i, many, e);
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
