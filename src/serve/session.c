/* Owns the turns of a session: which of them a request goes on from, the tokens of its prompt, and
 * the samples that are made of them. Turns never move, and a parent stands before its children. */
#include "serve/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "serve/session_int.h"
#include "text/chat.h"
#include "text/tokenizer.h"

struct session *session_new(const struct session_env *env)
{
    struct session *s = mem_alloc(sizeof *s);
    s->env = env;
    return s;
}

static void turn_fini(struct session_turn *t)
{
    json_decref(t->added);
    json_decref(t->answer);
    json_decref(t->tools);
    json_decref(t->kwargs);
    mem_free(t->ids);
    mem_free(t->logps);
    memset(t, 0, sizeof *t);
}

void session_free(struct session *s)
{
    if (s) {
        for (int i = 0; i < s->n; i++) {
            turn_fini(&s->turns[i]);
        }
        mem_free(s->turns);
        mem_free(s);
    }
}

int session_turns(const struct session *s)
{
    return s->n;
}

int session_tokens(const struct session *s)
{
    int most = 0;
    for (int i = 0; i < s->n; i++) {
        most = s->turns[i].tokens > most ? s->turns[i].tokens : most;
    }
    return most;
}

/* ---- messages that were seen before ---- */

static int blank(const json_t *v)
{
    return !v || json_is_null(v) || (json_is_string(v) && json_string_length(v) == 0) ||
           (json_is_array(v) && json_array_size(v) == 0);
}

static int same_field(const json_t *a, const json_t *b, const char *name)
{
    const json_t *x = json_object_get(a, name), *y = json_object_get(b, name);
    return blank(x) ? blank(y) : json_equal(x, y);
}

/* Every field of a that is not null is one of b. */
static int fields_within(const json_t *a, const json_t *b)
{
    const char *name;
    json_t *v;

    json_object_foreach((json_t *)a, name, v)
    {
        if (!blank(v) && !json_equal(v, json_object_get(b, name))) {
            return 0;
        }
    }
    return 1;
}

/* Names and arguments of calls, which are objects in both. */
static int same_calls(const json_t *a, const json_t *b)
{
    const json_t *x = json_object_get(a, "tool_calls"), *y = json_object_get(b, "tool_calls");

    if (json_array_size(x) != json_array_size(y)) {
        return 0;
    }
    for (size_t i = 0; i < json_array_size(x); i++) {
        const json_t *f = json_object_get(json_array_get(x, i), "function");
        const json_t *g = json_object_get(json_array_get(y, i), "function");
        if (!same_field(f, g, "name") || !same_field(f, g, "arguments")) {
            return 0;
        }
    }
    return 1;
}

int session_same(enum session_match how, const json_t *a, const json_t *b)
{
    if (how == SESSION_STRICT) {
        return fields_within(a, b) && fields_within(b, a);
    }
    return same_field(a, b, "role") && same_field(a, b, "content") &&
           (how == SESSION_ROLE_CONTENT || same_calls(a, b));
}

static int same_run(const struct session *s, const json_t *messages, size_t at, const json_t *run)
{
    for (size_t i = 0; i < json_array_size(run); i++) {
        const json_t *m = json_array_get(messages, at + i);
        if (!m || !session_same(s->env->match, json_array_get(run, i), m)) {
            return 0;
        }
    }
    return 1;
}

/* The longest line of turns that the messages begin with, and that leaves some of them; -1: none.
 * Of equals the newest. */
static int deepest(const struct session *s, const json_t *messages)
{
    size_t total = json_array_size(messages);
    char fits[SESSION_MAX_TURNS];
    int best = -1;

    for (int i = 0; i < s->n; i++) {
        const struct session_turn *t = &s->turns[i];
        size_t at = t->parent < 0 ? 0 : (size_t)s->turns[t->parent].depth;
        const json_t *answer = json_array_get(messages, (size_t)t->depth - 1);
        fits[i] = (char)((size_t)t->depth < total && (t->parent < 0 || fits[t->parent]) &&
                         same_run(s, messages, at, t->added) &&
                         session_same(s->env->match, t->answer, answer));
        if (fits[i] && (best < 0 || t->depth >= s->turns[best].depth)) {
            best = i;
        }
    }
    return best;
}

static const char *role_of(const json_t *m)
{
    const char *role = json_string_value(json_object_get(m, "role"));
    return role ? role : "";
}

/* Where the request goes on from. */
static int find_place(const struct session *s, const json_t *messages, struct session_ask *q,
                      struct err *e)
{
    size_t total = json_array_size(messages);
    int last = s->n - 1, at = deepest(s, messages);

    q->drop = -1;
    q->parent = at;
    if (strcmp(role_of(json_array_get(messages, total - 1)), "assistant") == 0) {
        ERR(e, STATUS_INPUT, "the last message is the assistant's: there is nothing to answer");
        return 400;
    }
    if (!s->env->tree && last >= 0 && at != last) {
        const struct session_turn *t = &s->turns[last];
        if (at != t->parent || (at < 0 && !session_same(s->env->match, json_array_get(t->added, 0),
                                                        json_array_get(messages, 0)))) {
            ERR(e, STATUS_INPUT,
                "the messages do not go on from the session's history of %d turns: send it as it "
                "was, or without its last answer; --use-session-server v2 allows branches",
                s->n);
            return 409;
        }
        q->drop = last;
    }
    if (at >= 0 && s->turns[at].finish != SESSION_STOP) {
        ERR(e, STATUS_INPUT, "turn %d was cut before its end and cannot be gone on from", at);
        return 409;
    }
    if (s->n - (q->drop >= 0) >= SESSION_MAX_TURNS) {
        ERR(e, STATUS_INPUT, "a session has at most %d turns", SESSION_MAX_TURNS);
        return 409;
    }
    return 200;
}

/* ---- tokens of new messages ---- */

int session_render(const struct session_env *env, const json_t *messages, const json_t *tools,
                   const json_t *kwargs, int generate, struct chat_text *out, struct err *e)
{
    struct chat_opts o = {.tools = tools,
                          .kwargs = kwargs ? kwargs : env->kwargs,
                          .special = env->special,
                          .add_generation_prompt = generate};
    return chat_apply(tools && env->tooled ? env->tooled : env->chat, messages, &o, out, e);
}

/* A word that is in none of the messages. */
static void marker_for(const json_t *messages, char *word, size_t size)
{
    char *text = json_dumps(messages, JSON_COMPACT);
    int n = 0;

    do {
        snprintf(word, size, "MILESMARK%dEND", n++);
    } while (text && strstr(text, word));
    free(text);
}

/* What the template writes behind an answer that `added` follows: the end of the answer's turn, the
 * messages, and with `generate` the opening of the next turn. */
static int text_behind(const struct session_env *env, const struct session_ask *q,
                       const json_t *added, int generate, char **out, struct err *e)
{
    char word[40];
    json_t *chat = json_array();
    struct chat_text x = {0};
    const char *at;
    int rc;

    marker_for(added, word, sizeof word);
    json_array_append_new(chat, json_pack("{s:s,s:s}", "role", "user", "content", "x"));
    json_array_append_new(chat, json_pack("{s:s,s:s}", "role", "assistant", "content", word));
    json_array_extend(chat, (json_t *)added);
    rc = session_render(env, chat, q->tools, q->kwargs, generate, &x, e);
    json_decref(chat);
    if (rc != STATUS_OK) {
        return 422;
    }
    at = strstr(x.text, word);
    if (at) {
        *out = mem_strdup(at + strlen(word));
    } else {
        ERR(e, STATUS_UNSUPPORTED, "the chat template does not show answers of earlier turns");
    }
    chat_text_fini(&x);
    return at ? 200 : 422;
}

static int encode(const struct session_env *env, const char *text, int32_t **ids, size_t *n,
                  struct err *e)
{
    return tokenizer_encode(env->tok, text, strlen(text), 0, ids, n, e) == STATUS_OK ? 200 : 500;
}

/* 1 when the template ends an answer with that token, whatever follows. */
static int is_end(const struct session_env *env, const struct session_ask *q, int32_t id)
{
    json_t *none = json_array();
    char *text = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    struct err e;
    int end = 1; /* a template that wants something to follow says nothing of it */

    if (text_behind(env, q, none, 0, &text, &e) == 200 && encode(env, text, &ids, &n, &e) == 200) {
        end = n && ids[0] == id;
    }
    json_decref(none);
    mem_free(text);
    mem_free(ids);
    return end;
}

/* Where the answer's last token and the first behind it are both special, one of them goes: the end
 * of turn that the policy sampled stands for the template's. */
static void join(const struct session *s, struct session_ask *q, int32_t *ids, size_t *n)
{
    const struct session_turn *t = &s->turns[q->parent];
    const struct tokenizer *tok = s->env->tok;
    int32_t last = t->nsampled ? t->ids[t->ninserted + t->nsampled - 1] : -1;

    if (!*n || last < 0 || !tokenizer_is_special(tok, ids[0]) || !tokenizer_is_special(tok, last)) {
        return;
    }
    if (last == ids[0] || is_end(s->env, q, ids[0])) {
        memmove(ids, ids + 1, sizeof *ids * --*n);
    } else {
        q->trim = 1; /* it opened another sort of message */
    }
}

/* Tokens of the new part. */
static int new_ids(const struct session *s, struct session_ask *q, int32_t **ids, size_t *n,
                   struct err *e)
{
    const struct session_turn *t = q->parent < 0 ? NULL : &s->turns[q->parent];
    struct chat_text x = {0};
    char *text = NULL;
    int http;

    if (!t) {
        http = session_render(s->env, q->added, q->tools, q->kwargs, 1, &x, e) ? 422 : 200;
        text = x.text;
        x.text = NULL;
        chat_text_fini(&x);
    } else {
        http = text_behind(s->env, q, q->added, 1, &text, e);
    }
    http = http == 200 ? encode(s->env, text, ids, n, e) : http;
    mem_free(text);
    if (http == 200 && t) {
        join(s, q, *ids, n);
    }
    return http;
}

/* The tokens of a line up to the end of turn i, but for the last `trim`; room for `more` is left
 * behind them. */
static int32_t *line_ids(const struct session *s, int i, int trim, size_t more)
{
    size_t total = i < 0 ? 0 : (size_t)s->turns[i].tokens;
    int32_t *ids = mem_alloc(sizeof *ids * (total + more + 1));

    for (; i >= 0; i = s->turns[i].parent) {
        const struct session_turn *t = &s->turns[i];
        int n = t->ninserted + t->nsampled;
        memcpy(ids + t->tokens - n, t->ids, sizeof *ids * (size_t)(n - trim));
        trim = t->trim;
    }
    return ids;
}

static json_t *messages_from(const json_t *messages, size_t at)
{
    json_t *out = json_array();
    for (size_t i = at; i < json_array_size(messages); i++) {
        json_array_append_new(out, json_deep_copy(json_array_get(messages, i)));
    }
    return out;
}

/* Tokens of the prompt that the line begins with. */
static int first_prompt(const struct session *s, const struct session_ask *q)
{
    int i = q->parent;

    while (i >= 0 && s->turns[i].parent >= 0) {
        i = s->turns[i].parent;
    }
    return i < 0 ? q->n : s->turns[i].ninserted;
}

static int check_size(const struct session *s, struct session_ask *q, struct err *e)
{
    const struct session_env *env = s->env;
    int left = env->max_response - (q->n - first_prompt(s, q));
    size_t bytes = json_dumpb(q->added, NULL, 0, JSON_COMPACT);

    if (s->bytes + bytes > s->env->max_bytes) {
        ERR(e, STATUS_INPUT, "the messages of the session have more than %zu bytes",
            s->env->max_bytes);
        return 400;
    }
    q->room = env->max_tokens - q->n;
    q->room = env->max_response && left < q->room ? left : q->room;
    if (q->room < 1) {
        ERR(e, STATUS_INPUT,
            "the conversation has %d tokens, which leaves no room: there may be %d, and %d behind "
            "the first prompt",
            q->n, env->max_tokens, env->max_response ? env->max_response : env->max_tokens);
        return 400;
    }
    return 200;
}

int session_ask(const struct session *s, const json_t *messages, const json_t *tools,
                const json_t *kwargs, struct session_ask *q, struct err *e)
{
    int32_t *fresh = NULL;
    size_t n = 0;
    int http;

    memset(q, 0, sizeof *q);
    http = find_place(s, messages, q, e);
    if (http == 200) {
        q->added = messages_from(messages, q->parent < 0 ? 0 : (size_t)s->turns[q->parent].depth);
        q->tools = json_deep_copy(tools);
        q->kwargs = json_deep_copy(kwargs);
        http = new_ids(s, q, &fresh, &n, e);
    }
    if (http == 200) {
        q->ids = line_ids(s, q->parent, q->trim, n);
        q->from = q->parent < 0 ? 0 : s->turns[q->parent].tokens - q->trim;
        memcpy(q->ids + q->from, fresh, sizeof *fresh * n);
        q->n = q->from + (int)n;
        http = check_size(s, q, e);
    }
    mem_free(fresh);
    if (http != 200) {
        session_ask_fini(q);
    }
    return http;
}

void session_ask_fini(struct session_ask *q)
{
    mem_free(q->ids);
    json_decref(q->added);
    json_decref(q->tools);
    json_decref(q->kwargs);
    memset(q, 0, sizeof *q);
}

/* ---- a turn comes in ---- */

/* The turn gets what the request has: JSON that a session has is nobody else's, because its counts
 * of references are no business of two threads. */
static void take_over(struct session_turn *t, struct session_ask *q)
{
    t->added = q->added;
    t->tools = q->tools;
    t->kwargs = q->kwargs;
    q->added = q->tools = q->kwargs = NULL;
}

int session_commit(struct session *s, struct session_ask *q, const struct session_answer *a,
                   struct err *e)
{
    struct session_turn *t;
    int fresh = q->n - q->from;

    if (!s->env->tree && (q->drop >= 0 ? q->drop : q->parent) != s->n - 1) {
        ERR(e, STATUS_FAIL, "the session went on while this turn was sampled");
        return 409;
    }
    if (s->n == SESSION_MAX_TURNS && q->drop < 0) {
        ERR(e, STATUS_FAIL, "a session has at most %d turns", SESSION_MAX_TURNS);
        return 409;
    }
    if (q->drop >= 0) {
        turn_fini(&s->turns[--s->n]);
    }
    if ((size_t)s->n == s->cap) {
        ASSERT(mem_grow((void **)&s->turns, &s->cap, 16, sizeof *s->turns));
    }
    t = &s->turns[s->n++];
    memset(t, 0, sizeof *t);
    t->parent = q->parent;
    t->trim = q->trim;
    t->depth = (q->parent < 0 ? 0 : s->turns[q->parent].depth) + (int)json_array_size(q->added) + 1;
    take_over(t, q);
    t->answer = json_deep_copy(a->message);
    t->ninserted = fresh;
    t->nsampled = a->n;
    t->tokens = q->n + a->n;
    t->ids = mem_alloc(sizeof *t->ids * (size_t)(fresh + a->n + 1));
    memcpy(t->ids, q->ids + q->from, sizeof *t->ids * (size_t)fresh);
    memcpy(t->ids + fresh, a->ids, sizeof *t->ids * (size_t)a->n);
    t->logps = mem_alloc(sizeof *t->logps * (size_t)(a->n + 1));
    memcpy(t->logps, a->logps, sizeof *t->logps * (size_t)a->n);
    t->finish = a->finish;
    t->version = a->version;
    t->exact = a->exact;
    t->cached = a->cached;
    snprintf(t->id, sizeof t->id, "%s", a->id);
    s->bytes += json_dumpb(t->added, NULL, 0, JSON_COMPACT);
    return 200;
}

/* ---- looking at it ---- */

json_t *session_line_messages(const struct session *s, int i)
{
    json_t *out = i < 0 ? json_array() : session_line_messages(s, s->turns[i].parent);

    if (i >= 0) {
        json_t *added = json_deep_copy(s->turns[i].added);
        json_array_extend(out, added);
        json_array_append_new(out, json_deep_copy(s->turns[i].answer));
        json_decref(added);
    }
    return out;
}

const char *session_finish_name(enum session_finish f)
{
    static const char *const names[] = {"stop", "length", "abort"};
    return names[f];
}

json_t *session_show(const struct session *s)
{
    json_t *turns = json_array();

    for (int i = 0; i < s->n; i++) {
        const struct session_turn *t = &s->turns[i];
        json_array_append_new(turns, json_pack("{s:s,s:i,s:i,s:i,s:s,s:I}", "id", t->id, "parent",
                                               t->parent, "prompt_tokens", t->tokens - t->nsampled,
                                               "completion_tokens", t->nsampled, "finish_reason",
                                               session_finish_name(t->finish), "weight_version",
                                               (json_int_t)t->version));
    }
    return json_pack("{s:o,s:o}", "turns", turns, "messages", session_line_messages(s, s->n - 1));
}
