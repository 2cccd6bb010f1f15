/* Owns OpenAI's API: /v1/models, /v1/completions and /v1/chat/completions. Both kinds of completion
 * are one request here, with two spellings; events of a stream tell what is new. */
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "base/status.h"
#include "net/http_req.h"
#include "serve/api.h"
#include "serve/chatmsg.h"
#include "serve/front.h"
#include "serve/gencall.h"
#include "serve/jfield.h"
#include "serve/outparse.h"
#include "text/chat.h"
#include "text/tokenizer.h"

enum { OPENAI_API_MAX_TOP = 20 };

/* Fields that are not known are not looked at, as SGLang does it. These ask for something that this
 * server cannot do, and are refused when they do. */
static const char *const openai_api_undone[] = {"return_hidden_states",
                                                "return_routed_experts",
                                                "return_prompt_token_ids",
                                                "return_token_ids",
                                                "return_meta_info",
                                                "return_sampling_mask",
                                                "lora_path",
                                                "json_schema",
                                                "regex",
                                                "ebnf",
                                                "stop_regex",
                                                "suffix",
                                                "audio",
                                                "functions",
                                                "function_call",
                                                "continue_final_message",
                                                "custom_logit_processor",
                                                "custom_params",
                                                "session_params",
                                                "input_ids",
                                                "watermark",
                                                NULL};

static const struct gencall_names openai_api_text_names = {
    {"max_tokens", NULL}, "min_tokens", "seed", 16, 0};
static const struct gencall_names openai_api_chat_names = {
    {"max_completion_tokens", "max_tokens"}, "min_tokens", "seed", 0, 0};

/* What a stream has told of one sample. */
struct openai_api_told {
    int begun, tokens, calls;
    size_t content, reasoning, offset;
};

struct openai_api {
    int chat;
    int logprobs; /* 1: with `top` candidates */
    int top;
    int echo;
    int usage, usages; /* 1: at the end of a stream; in each event */
    const char *id, *model;
    const json_t *tools;
    struct outparse_rules rules;
    struct openai_api_told *told; /* (samples) */
    const char **echoed;          /* (prompts) texts to be said first */
};

/* ---- pieces of answers ---- */

static void openai_api_head(const struct gencall *g, struct buf *b, const char *object)
{
    const struct openai_api *x = g->user;

    buf_printf(b, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", x->id, object,
               (long long)time(NULL));
    jfield_put_text(b, x->model, strlen(x->model));
}

static void openai_api_usage(const struct gencall *g, struct buf *b)
{
    buf_printf(b,
               "\"usage\":{\"prompt_tokens\":%lld,\"total_tokens\":%lld,\"completion_tokens\":%lld,"
               "\"prompt_tokens_details\":{\"cached_tokens\":%lld},\"reasoning_tokens\":0}",
               (long long)g->prompt_tokens, (long long)(g->prompt_tokens + g->new_tokens),
               (long long)g->new_tokens, (long long)g->cached_tokens);
}

static const char *openai_api_finish(const struct service_event *ev, int calls)
{
    switch (ev->r->finish) {
    case ENGINE_LENGTH: return "length";
    case ENGINE_STOP: return calls ? "tool_calls" : "stop";
    default: return "abort";
    }
}

static void openai_api_put_finish(struct buf *b, const struct service_event *ev, int calls)
{
    buf_printf(b, ",\"finish_reason\":\"%s\",\"matched_stop\":", openai_api_finish(ev, calls));
    if (ev->matched) {
        jfield_put_text(b, ev->matched, strlen(ev->matched));
    } else if (ev->matched_token >= 0) {
        buf_printf(b, "%d", ev->matched_token);
    } else {
        buf_str(b, "null");
    }
}

/* A token's text, and its bytes. Free with mem_free. */
static char *openai_api_token(const struct gencall *g, int32_t id, size_t *n)
{
    char *text = NULL;
    struct err e;

    if (tokenizer_decode(service_model(g->api->service)->tok, &id, 1, 0, &text, n, &e) != 0) {
        *n = 0;
        return mem_strdup("");
    }
    return text;
}

static void openai_api_put_token(const struct gencall *g, struct buf *b, int32_t id, float logp)
{
    size_t n, len;
    char *text = openai_api_token(g, id, &n);
    const char *bytes = tokenizer_token_bytes(service_model(g->api->service)->tok, id, &len);

    buf_str(b, "{\"token\":");
    jfield_put_text(b, text, n);
    buf_str(b, ",\"logprob\":");
    jfield_put_float(b, logp);
    buf_str(b, ",\"bytes\":[");
    for (size_t i = 0; bytes && i < len; i++) {
        buf_printf(b, "%s%u", i ? "," : "", (unsigned char)bytes[i]);
    }
    buf_char(b, ']');
    mem_free(text);
}

/* Log-probs of tokens [from, n) as chat completions tell them. */
static void openai_api_chat_logps(const struct gencall *g, struct buf *b,
                                  const struct engine_result *r, int from)
{
    buf_str(b, "{\"content\":[");
    for (int i = from; i < r->ntokens; i++) {
        if (i > from) {
            buf_char(b, ',');
        }
        openai_api_put_token(g, b, r->tokens[i], r->logps[i]);
        buf_str(b, ",\"top_logprobs\":[");
        for (int k = 0; k < r->top; k++) {
            size_t at = (size_t)i * (size_t)r->top + (size_t)k;
            if (k) {
                buf_char(b, ',');
            }
            openai_api_put_token(g, b, r->top_ids[at], r->top_logps[at]);
            buf_char(b, '}');
        }
        buf_str(b, "]}");
    }
    buf_str(b, "],\"refusal\":null}");
}

static void openai_api_top_map(const struct gencall *g, struct buf *b, const int32_t *ids,
                               const float *logps, int top)
{
    buf_char(b, '{');
    for (int k = 0; k < top; k++) {
        size_t n;
        char *text = openai_api_token(g, ids[k], &n);
        if (k) {
            buf_char(b, ',');
        }
        jfield_put_text(b, text, n);
        buf_char(b, ':');
        jfield_put_float(b, logps[k]);
        mem_free(text);
    }
    buf_char(b, '}');
}

/* One of the four lists of a text completion's log-probs: of the echoed prompt, when there is one,
 * and of tokens [from, n). which: 0 texts, 1 log-probs, 2 candidates, 3 offsets. */
static void openai_api_text_list(const struct gencall *g, struct buf *b,
                                 const struct service_event *ev, int from, size_t offset, int which)
{
    const struct openai_api *x = g->user;
    const struct engine_result *r = ev->r;
    const struct engine_group *q = &g->call.groups[ev->group];
    int echo = x->echo && from == 0 ? q->ntokens : 0, first = 1;

    for (int i = -echo; i < r->ntokens; i++) {
        int32_t id = i < 0 ? q->tokens[echo + i] : i >= from ? r->tokens[i] : 0;
        int at = echo + i - r->prompt_from;
        size_t n;
        char *text;
        if (i >= 0 && i < from) {
            continue;
        }
        buf_char(b, first ? '[' : ',');
        first = 0;
        text = openai_api_token(g, id, &n);
        if (which == 0) {
            jfield_put_text(b, text, n);
        } else if (which == 3) {
            buf_printf(b, "%zu", offset);
        } else if (i < 0 && (at < 0 || at >= r->nprompt)) { /* aborted before it was known */
            buf_str(b, "null");
        } else if (which == 1) {
            jfield_put_float(b, i < 0 ? r->prompt_logps[at] : r->logps[i]);
        } else if (r->top == 0) {
            buf_str(b, "{}");
        } else if (i < 0) {
            openai_api_top_map(g, b, r->prompt_top_ids + at * r->top,
                               r->prompt_top_logps + at * r->top, r->top);
        } else {
            openai_api_top_map(g, b, r->top_ids + i * r->top, r->top_logps + i * r->top, r->top);
        }
        offset += n;
        mem_free(text);
    }
    buf_str(b, first ? "[]" : "]");
}

static void openai_api_text_logps(const struct gencall *g, struct buf *b,
                                  const struct service_event *ev, int from, size_t offset)
{
    static const char *const names[] = {
        "{\"tokens\":", ",\"token_logprobs\":", ",\"top_logprobs\":", ",\"text_offset\":"};
    for (int i = 0; i < 4; i++) {
        buf_str(b, names[i]);
        openai_api_text_list(g, b, ev, from, offset, i);
    }
    buf_char(b, '}');
}

/* ---- whole answers ---- */

static void openai_api_put_calls(const struct outparse *o, struct buf *b, int from, int indexed)
{
    for (int i = from; i < o->ncalls; i++) {
        if (i > from) {
            buf_char(b, ',');
        }
        buf_char(b, '{');
        if (indexed) {
            buf_printf(b, "\"index\":%d,", i);
        }
        buf_printf(b,
                   "\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", o->calls[i].id);
        jfield_put_text(b, o->calls[i].name, strlen(o->calls[i].name));
        buf_str(b, ",\"arguments\":");
        jfield_put_text(b, o->calls[i].arguments, strlen(o->calls[i].arguments));
        buf_str(b, "}}");
    }
}

static void openai_api_choice(struct gencall *g, struct buf *b, const struct service_event *ev)
{
    const struct openai_api *x = g->user;
    struct outparse o;

    outparse_split(&o, &x->rules, x->id, gencall_index(g, ev), ev->text, ev->len, 1);
    buf_printf(b, "{\"index\":%d,", gencall_index(g, ev));
    if (x->chat) {
        buf_str(b, "\"message\":{\"role\":\"assistant\",\"content\":");
        if (o.ncalls && !o.content.len) {
            buf_str(b, "null");
        } else {
            jfield_put_text(b, o.content.data, o.content.len);
        }
        buf_str(b, ",\"reasoning_content\":");
        if (o.reasoning.len) {
            jfield_put_text(b, o.reasoning.data, o.reasoning.len);
        } else {
            buf_str(b, "null");
        }
        buf_str(b, ",\"tool_calls\":");
        if (o.ncalls) {
            buf_char(b, '[');
            openai_api_put_calls(&o, b, 0, 0);
            buf_char(b, ']');
        } else {
            buf_str(b, "null");
        }
        buf_char(b, '}');
    } else {
        buf_str(b, "\"text\":");
        if (x->echo) {
            struct buf all;
            buf_init(&all, 1u << 30);
            buf_str(&all, x->echoed[ev->group]);
            buf_add(&all, ev->text, ev->len);
            jfield_put_text(b, all.data, all.len);
            buf_fini(&all);
        } else {
            jfield_put_text(b, ev->text, ev->len);
        }
    }
    buf_str(b, ",\"logprobs\":");
    if (!x->logprobs) {
        buf_str(b, "null");
    } else if (x->chat) {
        openai_api_chat_logps(g, b, ev->r, 0);
    } else {
        openai_api_text_logps(g, b, ev, 0, 0);
    }
    openai_api_put_finish(b, ev, o.ncalls);
    buf_char(b, '}');
    outparse_fini(&o);
}

static void openai_api_whole(struct gencall *g)
{
    const struct openai_api *x = g->user;
    struct service_stats st;
    struct buf b;

    service_get_stats(g->api->service, &st);
    buf_init(&b, 1u << 30);
    openai_api_head(g, &b, x->chat ? "chat.completion" : "text_completion");
    buf_str(&b, ",\"choices\":[");
    for (int i = 0; i < g->nout; i++) {
        if (i) {
            buf_char(&b, ',');
        }
        buf_add(&b, g->out[i].data, g->out[i].len);
    }
    buf_str(&b, "],");
    openai_api_usage(g, &b);
    buf_str(&b, ",\"metadata\":{\"weight_version\":");
    jfield_put_text(&b, st.weight_version, strlen(st.weight_version));
    buf_str(&b, "}}");
    reply_whole(&g->rp, 200, "application/json", &b);
    buf_fini(&b);
}

/* ---- streams ---- */

/* What is new of a chat: the delta object's fields. 1 when there is anything. */
static int openai_api_delta(struct gencall *g, struct buf *b, const struct outparse *o,
                            struct openai_api_told *t)
{
    int any = 0;

    (void)g;
    if (!t->begun) {
        buf_str(b, "\"role\":\"assistant\"");
        any = 1;
    }
    if (o->reasoning.len > t->reasoning) {
        buf_str(b, any ? ",\"reasoning_content\":" : "\"reasoning_content\":");
        jfield_put_text(b, o->reasoning.data + t->reasoning, o->reasoning.len - t->reasoning);
        any = 1;
    }
    if (o->content.len > t->content || !t->begun) {
        buf_str(b, any ? ",\"content\":" : "\"content\":");
        jfield_put_text(b, o->content.data + t->content, o->content.len - t->content);
        any = 1;
    }
    if (o->ncalls > t->calls) {
        buf_str(b, any ? ",\"tool_calls\":[" : "\"tool_calls\":[");
        openai_api_put_calls(o, b, t->calls, 1);
        buf_char(b, ']');
        any = 1;
    }
    t->begun = 1;
    t->reasoning = o->reasoning.len;
    t->content = o->content.len;
    t->calls = o->ncalls;
    return any;
}

static void openai_api_chunk(struct gencall *g, const struct service_event *ev)
{
    struct openai_api *x = g->user;
    int index = gencall_index(g, ev), last = ev->kind == SERVICE_SAMPLE, any = 1;
    struct openai_api_told *t = &x->told[index];
    struct outparse o;
    struct buf b;

    buf_init(&b, 1u << 30);
    outparse_split(&o, &x->rules, x->id, index, ev->text, ev->len, last);
    openai_api_head(g, &b, x->chat ? "chat.completion.chunk" : "text_completion");
    buf_printf(&b, ",\"choices\":[{\"index\":%d,", index);
    if (x->chat) {
        buf_str(&b, "\"delta\":{");
        any = openai_api_delta(g, &b, &o, t);
        buf_char(&b, '}');
    } else {
        const char *say = x->echo && !t->begun ? x->echoed[ev->group] : "";
        struct buf text;
        buf_init(&text, 1u << 30);
        buf_str(&text, say);
        buf_add(&text, ev->text + t->content, ev->len - t->content);
        any = text.len > 0;
        buf_str(&b, "\"text\":");
        jfield_put_text(&b, text.data, text.len);
        buf_fini(&text);
        t->begun = 1;
        t->content = ev->len;
    }
    buf_str(&b, ",\"logprobs\":");
    if (!x->logprobs) {
        buf_str(&b, "null");
    } else if (x->chat) {
        openai_api_chat_logps(g, &b, ev->r, t->tokens);
    } else {
        openai_api_text_logps(g, &b, ev, t->tokens, t->offset);
    }
    if (last) {
        openai_api_put_finish(&b, ev, o.ncalls);
    } else {
        buf_str(&b, ",\"finish_reason\":null");
    }
    buf_str(&b, "}]");
    if (x->usages) {
        int n = ev->r->prompt_tokens, k = ev->r->ntokens;
        buf_printf(&b,
                   ",\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%d,"
                   "\"completion_tokens\":%d,\"reasoning_tokens\":0}",
                   n, n + k, k);
    }
    buf_char(&b, '}');
    if (any || last || x->logprobs) {
        reply_event(&g->rp, b.data, b.len, 0);
        t->tokens = ev->r->ntokens;
        t->offset = ev->len;
    }
    outparse_fini(&o);
    buf_fini(&b);
}

static void openai_api_stream_end(struct gencall *g)
{
    const struct openai_api *x = g->user;
    struct buf b;

    if (x->usage) {
        buf_init(&b, 1 << 16);
        openai_api_head(g, &b, x->chat ? "chat.completion.chunk" : "text_completion");
        buf_str(&b, ",\"choices\":[],");
        openai_api_usage(g, &b);
        buf_char(&b, '}');
        reply_event(&g->rp, b.data, b.len, 0);
        buf_fini(&b);
    }
    reply_event(&g->rp, "[DONE]", 6, 0);
    reply_end(&g->rp);
}

static void openai_api_event(void *arg, const struct service_event *ev)
{
    struct gencall *g = arg;

    if (ev->kind == SERVICE_END) {
        if (ev->error) {
            gencall_fail(g, ev->error->code, ev->error);
        } else if (g->stream) {
            openai_api_stream_end(g);
        } else {
            openai_api_whole(g);
        }
        return;
    }
    if (ev->kind == SERVICE_SAMPLE) {
        gencall_count(g, ev);
    }
    if (g->stream) {
        openai_api_chunk(g, ev);
    } else {
        openai_api_choice(g, &g->out[gencall_index(g, ev)], ev);
    }
}

/* ---- requests ---- */

static int openai_api_options(struct gencall *g, struct openai_api *x, struct err *e)
{
    const json_t *o = g->body, *v, *so = jfield_get(o, "stream_options");
    int64_t top = 0;
    int rc;

    if ((rc = jfield_undone(o, openai_api_undone, e)) ||
        (rc = gencall_sampling(g, o, x->chat ? &openai_api_chat_names : &openai_api_text_names,
                               e)) ||
        (rc = jfield_bool(o, "stream", &g->stream, e)) ||
        (rc = jfield_text(o, "model", &x->model, e)) ||
        (rc = jfield_bool(o, "echo", &x->echo, e))) {
        return rc;
    }
    if (!x->chat && g->max_given && g->base.max_new == 0) {
        return ERR(e, STATUS_INPUT, "max_tokens must be positive");
    }
    v = jfield_get(o, "response_format");
    if (v && strcmp(json_is_string(json_object_get(v, "type"))
                        ? json_string_value(json_object_get(v, "type"))
                        : "?",
                    "text") != 0) {
        return ERR(e, STATUS_INPUT, "response_format: only {\"type\": \"text\"} is supported");
    }
    if (so) {
        if (!json_is_object(so)) {
            return ERR(e, STATUS_INPUT, "stream_options is not an object");
        }
        if ((rc = jfield_bool(so, "include_usage", &x->usage, e)) ||
            (rc = jfield_bool(so, "continuous_usage_stats", &x->usages, e))) {
            return rc;
        }
    }
    if (x->chat) {
        rc = jfield_bool(o, "logprobs", &x->logprobs, e);
        if (rc == STATUS_OK) {
            rc = jfield_int(o, "top_logprobs", 0, OPENAI_API_MAX_TOP, &top, e);
        }
        if (rc == STATUS_OK && top && !x->logprobs) {
            rc = ERR(e, STATUS_INPUT, "top_logprobs needs logprobs to be true");
        }
    } else {
        x->logprobs = jfield_get(o, "logprobs") != NULL;
        rc = jfield_int(o, "logprobs", 0, OPENAI_API_MAX_TOP, &top, e);
    }
    x->top = (int)top;
    g->base.top = x->top;
    if (x->echo && x->logprobs) {
        g->base.prompt_logps = 1;
        g->base.prompt_from = 1;
        g->base.prompt_temperature = 1.0f;
    }
    g->call.progress = g->stream ? g->api->o.stream_interval : 0;
    return rc;
}

/* The id that the client gave, or one made up. */
static int openai_api_id(struct gencall *g, struct openai_api *x, const char **rid, struct err *e)
{
    const char *s = NULL;
    int rc = jfield_text(g->body, "rid", &s, e);

    if (rc == STATUS_OK && s && (!*s || strlen(s) > 128 || strpbrk(s, "\"\\\n\r\t"))) {
        rc = ERR(e, STATUS_INPUT, "rid is not a plain text of 1 to 128 bytes");
    }
    x->id = s ? s : gencall_name(g, x->chat ? "chatcmpl-" : "cmpl-");
    *rid = x->id;
    return rc;
}

static int openai_api_prompts(struct gencall *g, struct openai_api *x, const char *rid,
                              struct err *e)
{
    const json_t *v = jfield_get(g->body, "prompt"), *first = json_array_get(v, 0);
    int many = json_is_array(v) && !json_is_integer(first), rc = STATUS_OK;
    size_t n = many ? json_array_size(v) : 1;

    if (!v || (!json_is_string(v) && !json_is_array(v)) || n == 0 ||
        (json_is_array(v) && json_array_size(v) == 0)) {
        return ERR(e, STATUS_INPUT, "prompt is neither a text, nor tokens, nor a list of these");
    }
    if (n > GENCALL_MAX_PROMPTS) {
        return ERR(e, STATUS_INPUT, "more than %d prompts in one request", GENCALL_MAX_PROMPTS);
    }
    x->echoed = arena_alloc(&g->mem, sizeof *x->echoed * n);
    for (size_t i = 0; rc == STATUS_OK && i < n; i++) {
        const json_t *one = many ? json_array_get(v, i) : v;
        x->echoed[i] = "";
        if (json_is_string(one)) {
            x->echoed[i] = json_string_value(one);
            rc = gencall_add_text(g, json_string_value(one), json_string_length(one), 1, rid, e);
        } else if (json_is_array(one)) {
            rc = gencall_add_ids(g, one, rid, e);
            if (rc == STATUS_OK && x->echo) {
                const struct engine_group *q = &g->call.groups[i];
                char *text;
                size_t len;
                rc = tokenizer_decode(service_model(g->api->service)->tok, q->tokens,
                                      (size_t)q->ntokens, 0, &text, &len, e);
                if (rc == STATUS_OK) {
                    x->echoed[i] = arena_strdup(&g->mem, text);
                    mem_free(text);
                }
            }
        } else {
            rc =
                ERR(e, STATUS_INPUT, "prompt: entry %zu is neither a text nor a list of tokens", i);
        }
    }
    return rc;
}

static int openai_api_chat_prompt(struct gencall *g, struct openai_api *x, const char *rid,
                                  struct err *e)
{
    const struct api_model *m = &g->api->m;
    json_t *messages = NULL, *kwargs = NULL;
    char *text;
    size_t len;
    int generate = 1, separate = 1, rc;

    if (!m->tmpl || !m->served.tok) {
        return ERR(e, STATUS_INPUT, "the model has no chat template");
    }
    if ((rc = jfield_bool(g->body, "add_generation_prompt", &generate, e)) ||
        (rc = jfield_bool(g->body, "separate_reasoning", &separate, e)) ||
        (rc = chatmsg_tools(g->body, &x->tools, e)) || (rc = chatmsg_kwargs(g->body, &kwargs, e)) ||
        (rc = chatmsg_messages(g->body, &messages, e))) {
        json_decref(kwargs);
        return rc;
    }
    x->rules.tools = x->tools && g->api->o.tool_parser != NULL;
    x->rules.reasoning = g->api->o.reasoning_parser != NULL && separate;
    rc = chat_render(m->tmpl, messages, x->tools, kwargs, generate, m->bos, m->eos, &text, &len, e);
    json_decref(messages);
    json_decref(kwargs);
    if (rc == STATUS_OK) {
        /* a prompt that opens the reasoning itself: what comes begins inside it */
        x->rules.inside = x->rules.reasoning && outparse_opens(text, len);
        rc = gencall_add_text(g, text, len, 0, rid, e);
        mem_free(text);
    } else if (rc != STATUS_NOMEM) {
        rc = STATUS_INPUT; /* the template refuses these messages */
    }
    return rc;
}

/* What the client does not say of sampling, the model's own configuration says. */
static void openai_api_defaults(struct gencall *g)
{
    const char *name;
    json_t *v;

    json_object_foreach(g->api->chat, name, v)
    {
        if (!jfield_get(g->body, name)) {
            json_object_set_new(g->body, name, json_copy(v)); /* other threads read it, too */
        }
    }
}

static void openai_api_prepare(struct gencall *g, int chat)
{
    struct openai_api *x = arena_alloc(&g->mem, sizeof *x);
    struct err e = {0};
    const char *rid = NULL;
    int rc = jfield_body(g->r, 0, &g->body, &e);

    g->user = x;
    x->chat = chat;
    x->model = g->api->m.name;
    if (rc == STATUS_OK && !service_model(g->api->service)->tok) {
        rc = ERR(&e, STATUS_INPUT, "the model has no tokenizer: only /generate with tokens works");
    }
    if (rc == STATUS_OK && chat) {
        openai_api_defaults(g);
    }
    if (rc == STATUS_OK) {
        rc = openai_api_options(g, x, &e);
    }
    if (rc == STATUS_OK) {
        rc = openai_api_id(g, x, &rid, &e);
    }
    if (rc == STATUS_OK) {
        rc = chat ? openai_api_chat_prompt(g, x, rid, &e) : openai_api_prompts(g, x, rid, &e);
    }
    if (rc == STATUS_OK) {
        x->told =
            arena_alloc(&g->mem, sizeof *x->told * (size_t)g->call.ngroups * (size_t)g->base.n);
        rc = gencall_go(g, openai_api_event, &e);
    }
    if (rc != STATUS_OK) {
        gencall_fail(g, rc, &e);
    }
}

static void openai_api_prepare_text(void *arg)
{
    openai_api_prepare(arg, 0);
}

static void openai_api_prepare_chat(void *arg)
{
    openai_api_prepare(arg, 1);
}

void openai_api_completions(void *arg, struct http_req *r)
{
    struct api *a = arg;
    front_run(a->front, openai_api_prepare_text, gencall_new(a, r));
}

void openai_api_chat(void *arg, struct http_req *r)
{
    struct api *a = arg;
    front_run(a->front, openai_api_prepare_chat, gencall_new(a, r));
}

static void openai_api_no_model(struct buf *b, const char *name)
{
    char msg[256];

    snprintf(msg, sizeof msg, "The model '%.200s' does not exist", name);
    buf_str(b, "{\"error\":{\"message\":");
    jfield_put_text(b, msg, strlen(msg));
    buf_str(b, ",\"type\":\"invalid_request_error\",\"param\":\"model\","
               "\"code\":\"model_not_found\"}}");
}

void openai_api_models(void *arg, struct http_req *r)
{
    struct api *a = arg;
    const char *path = http_req_path(r), *name = path + strlen("/v1/models");
    struct buf b, one;
    struct http_req_answer answer = {.status = 200, .type = "application/json"};

    buf_init(&one, 1 << 16);
    if (*name && strcmp(name + 1, a->m.name) != 0) {
        answer.status = 404;
        openai_api_no_model(&one, name + 1);
        http_req_reply_buf(r, &answer, &one);
        buf_fini(&one);
        return;
    }
    buf_str(&one, "{\"id\":");
    jfield_put_text(&one, a->m.name, strlen(a->m.name));
    buf_printf(&one, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"miles\",\"root\":",
               (long long)a->started);
    jfield_put_text(&one, a->m.name, strlen(a->m.name));
    buf_printf(&one, ",\"parent\":null,\"max_model_len\":%d}", service_context(a->service));
    buf_init(&b, 1 << 17);
    if (*name) {
        buf_add(&b, one.data, one.len);
    } else {
        buf_str(&b, "{\"object\":\"list\",\"data\":[");
        buf_add(&b, one.data, one.len);
        buf_str(&b, "]}");
    }
    http_req_reply_buf(r, &answer, &b);
    buf_fini(&one);
    buf_fini(&b);
}
