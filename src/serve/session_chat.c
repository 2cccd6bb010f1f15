/* Owns a chat completion of a session: OpenAI's request into tokens for /generate, and what was
 * sampled back into OpenAI's answer. Of the engines' answer nothing is believed: tokens that do not
 * have a log-prob each are no turn. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "net/http_req.h"
#include "serve/chatmsg.h"
#include "serve/jfield.h"
#include "serve/outparse.h"
#include "serve/session_api_int.h"
#include "text/tokenizer.h"

/* ---- the request ---- */

/* What would change what is sampled, and is not done. */
static const char *const undone[] = {"json_schema", "regex",         "ebnf",
                                     "functions",   "function_call", "continue_final_message",
                                     "input_ids",   "audio",         NULL};
/* Passed on under their own names. */
static const char *const passed[] = {"temperature",
                                     "top_p",
                                     "top_k",
                                     "min_p",
                                     "frequency_penalty",
                                     "presence_penalty",
                                     "repetition_penalty",
                                     "stop",
                                     "stop_token_ids",
                                     "ignore_eos",
                                     "logit_bias",
                                     "skip_special_tokens",
                                     "min_new_tokens",
                                     "no_stop_trim",
                                     NULL};

/* A seed for each turn, so that one that is asked for again is drawn anew. */
static int64_t turn_seed(uint64_t seed, int turn)
{
    const uint32_t ctr[4] = {(uint32_t)turn, 0, 0, 0x73657373};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t out[4];

    rng_philox(ctr, key, out);
    return (int64_t)(((uint64_t)out[1] << 32 | out[0]) & INT64_MAX);
}

static int check_format(const json_t *body, struct err *e)
{
    const json_t *f = jfield_get(body, "response_format");
    const char *type = json_string_value(json_object_get(f, "type"));

    return f && !(type && strcmp(type, "text") == 0)
               ? ERR(e, STATUS_INPUT, "response_format: only text is supported")
               : STATUS_OK;
}

/* Fields of the body that are not tokens. */
static int read_fields(struct session_api_call *c, struct err *e)
{
    const json_t *b = c->body, *so = jfield_get(b, "stream_options");
    int64_t n = 1;
    int rc;

    if ((rc = jfield_undone(b, undone, e)) || (rc = check_format(b, e)) ||
        (rc = jfield_int(b, "n", 1, 1, &n, e)) || (rc = jfield_bool(b, "stream", &c->stream, e)) ||
        (rc = so ? jfield_bool(so, "include_usage", &c->usage, e) : STATUS_OK)) {
        return rc;
    }
    return STATUS_OK;
}

/* The request's parameters over the session's. *exact: the temperature is the session's. */
static int sampling(const struct session_api_call *c, int64_t seed, int seeded, int *exact,
                    json_t **out, struct err *e)
{
    json_t *p = c->in->params ? json_deep_copy(c->in->params) : json_object();
    const json_t *had = jfield_get(c->in->params, "temperature"), *now;
    int64_t room = c->ask.room, most = -1;
    const char *name;
    int rc;

    for (int i = 0; (name = passed[i]); i++) {
        if (jfield_get(c->body, name)) {
            json_object_set(p, name, (json_t *)jfield_get(c->body, name));
        }
    }
    if ((rc = jfield_int(p, "max_new_tokens", 1, INT32_MAX, &most, e)) ||
        (rc = jfield_int(c->body, "max_tokens", 1, INT32_MAX, &most, e)) ||
        (rc = jfield_int(c->body, "max_completion_tokens", 1, INT32_MAX, &most, e)) ||
        (rc = jfield_int(c->body, "seed", INT64_MIN, INT64_MAX, &seed, e))) {
        json_decref(p);
        return rc;
    }
    json_object_set_new(p, "max_new_tokens", json_integer(most > 0 && most < room ? most : room));
    if (seeded || jfield_get(c->body, "seed")) {
        json_object_set_new(p, "sampling_seed", json_integer(seed & INT64_MAX));
    }
    now = jfield_get(p, "temperature");
    *exact = had && now && json_number_value(had) == json_number_value(now);
    *out = p;
    return STATUS_OK;
}

static void put_request(const struct session_api_call *c, const json_t *params, struct buf *b)
{
    char *text = json_dumps(params, JSON_COMPACT);

    buf_str(b, "{\"input_ids\":[");
    for (int i = 0; i < c->ask.n; i++) {
        buf_printf(b, i ? ",%d" : "%d", c->ask.ids[i]);
    }
    buf_printf(b,
               "],\"return_logprob\":true,\"logprob_start_len\":-1,\"stream\":false,"
               "\"sampling_params\":%s}",
               text ? text : "{}");
    free(text);
}

/* Finds the place in the session, and its tokens. The status of HTTP. */
static int place(struct session_api_call *c, const json_t *messages, const json_t *tools,
                 const json_t *kwargs, int64_t *seed, struct err *e)
{
    struct session_api_entry *in = c->in;
    int http;

    pthread_mutex_lock(&in->mu);
    if (in->deleted) {
        ERR(e, STATUS_NOTFOUND, "the session was deleted");
        http = 404;
    } else if (in->busy && !c->a->o.env.tree) {
        ERR(e, STATUS_INPUT, "another request of this session is running");
        http = 409;
    } else {
        http = session_ask(in->s, messages, tools, kwargs, &c->ask, e);
    }
    if (http == 200) {
        in->busy++;
        *seed = turn_seed(in->seed, in->asked++);
        snprintf(c->name, sizeof c->name, "chatcmpl-%.32s-%d", in->id, in->asked);
    }
    pthread_mutex_unlock(&in->mu);
    return http;
}

static void release(struct session_api_call *c)
{
    pthread_mutex_lock(&c->in->mu);
    c->in->busy--;
    pthread_mutex_unlock(&c->in->mu);
}

/* 1: the prompt itself opens the reasoning, so what is sampled begins inside it. */
static int prompt_opens(const struct session_api_call *c)
{
    int from = c->ask.n > 16 ? c->ask.n - 16 : 0, opens = 0;
    char *text = NULL;
    size_t len = 0;

    if (c->a->o.reasoning_parser &&
        tokenizer_decode(c->a->o.env.tok, c->ask.ids + from, (size_t)(c->ask.n - from), 0, &text,
                         &len, NULL) == STATUS_OK) {
        opens = outparse_opens(text, len);
    }
    mem_free(text);
    return opens;
}

/* From the body to the engines. The status of HTTP, 200 when it is on its way. */
static int prepare(struct session_api_call *c, struct err *e)
{
    json_t *messages = NULL, *kwargs = NULL, *params = NULL;
    const json_t *tools;
    struct buf b;
    int64_t seed = 0;
    int http = 400;

    buf_init(&b, (size_t)1 << 30);
    if (jfield_body(c->r, 0, &c->body, e) || read_fields(c, e) ||
        chatmsg_tools(c->body, &tools, e) || chatmsg_kwargs(c->body, &kwargs, e) ||
        chatmsg_messages(c->body, &messages, e)) {
        goto out;
    }
    http = place(c, messages, tools, json_object_size(kwargs) ? kwargs : NULL, &seed, e);
    if (http != 200) {
        goto out;
    }
    c->tools = tools && c->a->o.tool_parser;
    c->opens = prompt_opens(c);
    http = sampling(c, seed, c->in->seeded, &c->exact, &params, e) == STATUS_OK ? 200 : 400;
    if (http == 200) {
        put_request(c, params, &b);
        http = session_api_send(c, "POST", "/generate", b.data, b.len, e) == STATUS_OK ? 200 : 502;
    }
    if (http != 200) {
        release(c);
    }
out:
    json_decref(params);
    json_decref(messages);
    json_decref(kwargs);
    buf_fini(&b);
    return http;
}

void session_chat_prepare(void *call)
{
    struct session_api_call *c = call;
    struct err e = {0};
    int http = prepare(c, &e);

    if (http != 200) {
        session_api_fail(c, http, e.msg);
    }
}

/* ---- the answer ---- */

struct sampled {
    int32_t *ids;
    float *logps;
    int n, cached;
    enum session_finish finish;
    json_t *finish_reason; /* borrowed, as text and version are */
    const char *text, *version;
    size_t len;
    int mixed; /* 1: not all of one version */
};

static int read_tokens(const json_t *list, struct sampled *x, struct err *e)
{
    size_t n = json_array_size(list);

    x->ids = mem_alloc(sizeof *x->ids * (n + 1));
    x->logps = mem_alloc(sizeof *x->logps * (n + 1));
    for (size_t i = 0; i < n; i++) {
        const json_t *logp = json_array_get(json_array_get(list, i), 0);
        const json_t *id = json_array_get(json_array_get(list, i), 1);
        if (!json_is_number(logp) || !isfinite((float)json_number_value(logp)) ||
            !json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) > INT32_MAX) {
            return ERR(e, STATUS_FORMAT, "token %zu of the engines' answer has no log-prob or id",
                       i);
        }
        x->ids[i] = (int32_t)json_integer_value(id);
        x->logps[i] = (float)json_number_value(logp);
    }
    x->n = (int)n;
    return n ? STATUS_OK : ERR(e, STATUS_FORMAT, "the engines answered without a token");
}

static int read_finish(json_t *meta, struct sampled *x, struct err *e)
{
    const char *type;

    x->finish_reason = json_object_get(meta, "finish_reason");
    type = json_string_value(json_object_get(x->finish_reason, "type"));
    for (int i = SESSION_STOP; type && i <= SESSION_ABORT; i++) {
        static const char *const names[] = {"stop", "length", "abort"};
        if (strcmp(type, names[i]) == 0) {
            x->finish = (enum session_finish)i;
            return STATUS_OK;
        }
    }
    return ERR(e, STATUS_FORMAT, "the engines' answer has no finish_reason");
}

static int read_sampled(json_t *answer, struct sampled *x, struct err *e)
{
    json_t *meta = json_object_get(answer, "meta_info"), *text = json_object_get(answer, "text");
    const json_t *versions = json_object_get(meta, "weight_versions");
    int rc = read_finish(meta, x, e);

    rc = rc ? rc : read_tokens(json_object_get(meta, "output_token_logprobs"), x, e);
    if (rc == STATUS_OK && !json_is_string(text)) {
        rc = ERR(e, STATUS_FORMAT, "the engines' answer has no text");
    }
    x->text = json_string_value(text);
    x->len = json_string_length(text);
    x->version = json_string_value(json_object_get(meta, "weight_version"));
    x->cached = (int)json_integer_value(json_object_get(meta, "cached_tokens"));
    for (size_t i = 1; i < json_array_size(versions); i++) {
        x->mixed |= !json_equal(json_array_get(versions, 0), json_array_get(versions, i));
    }
    x->mixed |= json_integer_value(json_object_get(meta, "miles_mixed_tokens")) > 0;
    return rc;
}

static json_t *calls_json(const struct outparse *o)
{
    json_t *list = json_array();
    for (int i = 0; i < o->ncalls; i++) {
        const struct outparse_call *k = &o->calls[i];
        json_array_append_new(list,
                              json_pack("{s:s,s:s,s:{s:s,s:s}}", "id", k->id, "type", "function",
                                        "function", "name", k->name, "arguments", k->arguments));
    }
    return list;
}

/* Text of the answer. A NUL, which a client could not send back, is shown as U+FFFD. */
static json_t *text_json(const struct buf *b)
{
    struct buf out;
    json_t *v;

    buf_init(&out, (size_t)1 << 30);
    for (size_t i = 0; i < b->len; i++) {
        if (b->data[i]) {
            buf_char(&out, b->data[i]);
        } else {
            buf_str(&out, "\xef\xbf\xbd");
        }
    }
    v = json_stringn(out.data, out.len);
    buf_fini(&out);
    return v ? v : json_string("");
}

/* The assistant's message as the agent gets it. */
static json_t *message_of(const struct session_api_call *c, const struct sampled *x)
{
    struct outparse_rules rules = {
        .tools = c->tools, .reasoning = c->a->o.reasoning_parser, .inside = c->opens};
    struct outparse o;
    json_t *m;

    outparse_split(&o, &rules, c->name, 0, x->text, x->len, 1);
    m = json_pack("{s:s,s:o}", "role", "assistant", "content",
                  o.ncalls && !o.content.len ? json_null() : text_json(&o.content));
    if (o.reasoning.len) {
        json_object_set_new(m, "reasoning_content", text_json(&o.reasoning));
    }
    if (o.ncalls) {
        json_object_set_new(m, "tool_calls", calls_json(&o));
    }
    outparse_fini(&o);
    return m;
}

static int64_t version_of(const char *text)
{
    char *end;
    long long v = text && *text ? strtoll(text, &end, 10) : -1;
    return text && *text && !*end ? v : -1;
}

/* The status of HTTP. */
static int commit(struct session_api_call *c, const struct sampled *x, json_t *message,
                  struct err *e)
{
    struct session_answer a = {.ids = x->ids,
                               .logps = x->logps,
                               .n = x->n,
                               .finish = x->finish,
                               .version = version_of(x->version),
                               .exact = c->exact && c->a->o.exact && !x->mixed,
                               .cached = x->cached,
                               .id = c->name};
    json_t *body = json_pack("{s:[O]}", "messages", message), *list = NULL;
    int http = chatmsg_messages(body, &list, e) == STATUS_OK ? 200 : 500;

    pthread_mutex_lock(&c->in->mu);
    if (http == 200 && c->in->deleted) {
        ERR(e, STATUS_NOTFOUND, "the session was deleted");
        http = 404;
    }
    if (http == 200) { /* kept in the form in which it comes back */
        a.message = json_array_get(list, 0);
        http = session_commit(c->in->s, &c->ask, &a, e);
    }
    pthread_mutex_unlock(&c->in->mu);
    json_decref(list);
    json_decref(body);
    return http;
}

static json_t *logps_json(const struct session_api_call *c, const struct sampled *x)
{
    json_t *list = json_array();

    for (int i = 0; i < x->n; i++) {
        char *text = NULL;
        size_t n = 0;
        struct err e;
        tokenizer_decode(c->a->o.env.tok, &x->ids[i], 1, 0, &text, &n, &e);
        json_array_append_new(list, json_pack("{s:s,s:f,s:i,s:[]}", "token", text ? text : "",
                                              "logprob", (double)x->logps[i], "token_id", x->ids[i],
                                              "top_logprobs"));
        mem_free(text);
    }
    return json_pack("{s:o}", "content", list);
}

static json_t *choice_json(const struct session_api_call *c, const struct sampled *x,
                           json_t *message)
{
    const json_t *matched = json_object_get(x->finish_reason, "matched");
    int calls = json_object_get(message, "tool_calls") != NULL;
    const char *finish = x->finish == SESSION_LENGTH  ? "length"
                         : x->finish == SESSION_ABORT ? "abort"
                         : calls                      ? "tool_calls"
                                                      : "stop";
    json_t *meta =
        json_pack("{s:s,s:i,s:i,s:i,s:s,s:O}", "id", c->name, "prompt_tokens", c->ask.n,
                  "completion_tokens", x->n, "cached_tokens", x->cached, "weight_version",
                  x->version ? x->version : "", "finish_reason", x->finish_reason);
    json_t *o = json_pack("{s:i,s:o,s:s,s:o}", "index", 0, "logprobs", logps_json(c, x),
                          "finish_reason", finish, "meta_info", meta);

    json_object_set_new(o, "matched_stop", matched ? json_incref((json_t *)matched) : json_null());
    json_object_set(o, c->stream ? "delta" : "message", message);
    return o;
}

static json_t *usage_json(const struct session_api_call *c, const struct sampled *x)
{
    return json_pack("{s:i,s:i,s:i,s:{s:i}}", "prompt_tokens", c->ask.n, "completion_tokens", x->n,
                     "total_tokens", c->ask.n + x->n, "prompt_tokens_details", "cached_tokens",
                     x->cached);
}

static void put_json(struct buf *b, const json_t *o, const char *before, const char *after)
{
    char *text = json_dumps(o, JSON_COMPACT);
    buf_str(b, before);
    buf_str(b, text ? text : "");
    buf_str(b, after);
    free(text);
}

/* Whole, or as the one event of a stream. */
static void answer(struct session_api_call *c, const struct sampled *x, json_t *message)
{
    struct http_req_answer to = {.status = 200,
                                 .type = c->stream ? "text/event-stream" : "application/json"};
    json_t *o = json_pack("{s:s,s:s,s:I,s:s,s:[o]}", "id", c->name, "object",
                          c->stream ? "chat.completion.chunk" : "chat.completion", "created",
                          (json_int_t)time(NULL), "model", c->a->model, "choices",
                          choice_json(c, x, message));
    struct buf b;

    buf_init(&b, (size_t)1 << 30);
    if (!c->stream || c->usage) {
        json_object_set_new(o, "usage", usage_json(c, x));
    }
    put_json(&b, o, c->stream ? "data: " : "", c->stream ? "\n\ndata: [DONE]\n\n" : "");
    http_req_reply_buf(c->r, &to, &b);
    session_api_done(c);
    buf_fini(&b);
    json_decref(o);
}

/* The engines' own words for what they refuse. */
static void upstream_error(const struct session_api_call *c, struct err *e)
{
    json_t *o = json_loadb(c->reply.data, c->reply.len, 0, NULL);
    const char *msg = json_string_value(json_object_get(json_object_get(o, "error"), "message"));

    ERR(e, STATUS_CHILD, "the engines answer %d: %.300s", c->status,
        msg            ? msg
        : c->reply.len ? c->reply.data
        : c->error     ? c->error
                       : "");
    json_decref(o);
}

void session_chat_finish(struct session_api_call *c)
{
    json_t *o = NULL, *message = NULL;
    struct sampled x = {0};
    struct err e = {0};
    int http = 502;

    if (c->failed) {
        ERR(&e, STATUS_CHILD, "no answer of the engines: %s", c->error);
    } else if (c->status != 200) {
        upstream_error(c, &e);
        http = c->status >= 400 && c->status < 500 ? 400 : 502;
    } else if (!(o = json_loadb(c->reply.data, c->reply.len, JSON_ALLOW_NUL, NULL))) {
        ERR(&e, STATUS_FORMAT, "the engines' answer is not JSON");
    } else if (read_sampled(o, &x, &e) == STATUS_OK) {
        if (x.finish == SESSION_ABORT) {
            ERR(&e, STATUS_CHILD, "the engines gave the answer up");
        } else {
            message = message_of(c, &x);
            http = commit(c, &x, message, &e);
        }
    }
    release(c);
    if (http == 200) {
        pthread_mutex_lock(&c->a->mu);
        c->a->turns++;
        c->a->sampled += (uint64_t)x.n;
        pthread_mutex_unlock(&c->a->mu);
        answer(c, &x, message);
    } else {
        session_api_fail(c, http, e.msg);
    }
    mem_free(x.ids);
    mem_free(x.logps);
    json_decref(message);
    json_decref(o);
}
