/* Owns what is trained of a session: lines of turns as tokens with a mask, and the audit that
 * compares them with what the conversation would be if it were tokenised anew. */
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "serve/session_int.h"
#include "text/chat.h"
#include "text/tokenizer.h"

/* ---- which lines ---- */

static int has_child(const struct session *s, int i)
{
    for (int k = i + 1; k < s->n; k++) {
        if (s->turns[k].parent == i) {
            return 1;
        }
    }
    return 0;
}

/* 1 when a later turn answers the same messages. */
static int asked_again(const struct session *s, int i)
{
    for (int k = i + 1; k < s->n; k++) {
        if (s->turns[k].parent == s->turns[i].parent &&
            json_equal(s->turns[k].added, s->turns[i].added)) {
            return 1;
        }
    }
    return 0;
}

/* ---- the audit ---- */

struct run {
    const int32_t *ids;
    const uint8_t *sampled; /* or NULL */
    size_t n;
};

/* The next special token from `at` on; n when there is none. */
static size_t next_special(const struct session_env *env, const struct run *r, size_t at)
{
    while (at < r->n && !tokenizer_is_special(env->tok, r->ids[at])) {
        at++;
    }
    return at;
}

static size_t count_special(const struct session_env *env, const struct run *r)
{
    size_t n = 0;
    for (size_t at = next_special(env, r, 0); at < r->n; at = next_special(env, r, at + 1)) {
        n++;
    }
    return n;
}

/* Text behind the last special token belongs to no message. */
static void trim(const struct session_env *env, struct run *r)
{
    while (r->n && !tokenizer_is_special(env->tok, r->ids[r->n - 1])) {
        r->n--;
    }
}

/* Compares the texts between special tokens. NULL: no difference. */
static const char *compare(const struct session_env *env, struct run rec, struct run canon)
{
    size_t a = 0, b = 0;

    trim(env, &rec);
    trim(env, &canon);
    if (count_special(env, &rec) != count_special(env, &canon)) {
        return "special_token_count";
    }
    while (a < rec.n) {
        size_t x = next_special(env, &rec, a), y = next_special(env, &canon, b);
        if (rec.ids[x] != canon.ids[y]) {
            return "special_token_type";
        }
        if (x - a != y - b || memcmp(rec.ids + a, canon.ids + b, sizeof *rec.ids * (x - a)) != 0) {
            int sampled = 0;
            for (size_t i = a; i < x; i++) {
                sampled |= rec.sampled[i];
            }
            return sampled ? "assistant_text" : "non_assistant_text";
        }
        a = x + 1;
        b = y + 1;
    }
    return NULL;
}

/* The conversation of a line, rendered and tokenised at once, against its tokens. A line that was
 * cut has no end to compare. */
static json_t *audit(const struct session *s, int leaf, const struct session_sample *x,
                     const json_t *segments)
{
    const struct session_turn *t = &s->turns[leaf];
    json_t *messages = session_line_messages(s, leaf), *out = json_null();
    uint8_t *sampled = mem_alloc((size_t)(x->prompt + x->response) + 1);
    struct chat_text text = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    struct err e;

    for (size_t i = 0; i < json_array_size(segments); i++) {
        const json_t *g = json_array_get(segments, i);
        memset(sampled + x->prompt + json_integer_value(json_object_get(g, "start")),
               !json_integer_value(json_object_get(g, "origin")),
               (size_t)json_integer_value(json_object_get(g, "len")));
    }
    if (t->finish == SESSION_STOP &&
        session_render(s->env, messages, t->tools, t->kwargs, 0, &text, &e) == STATUS_OK &&
        tokenizer_encode(s->env->tok, text.text, text.len, 0, &ids, &n, &e) == STATUS_OK) {
        struct run rec = {x->ids, sampled, (size_t)(x->prompt + x->response)};
        struct run canon = {ids, NULL, n};
        const char *why = compare(s->env, rec, canon);
        out = why ? json_string(why) : out;
    }
    mem_free(ids);
    mem_free(sampled);
    chat_text_fini(&text);
    json_decref(messages);
    return out;
}

/* ---- one sample ---- */

static void add_segment(json_t *list, int start, int len, const struct session_turn *t, int sampled)
{
    if (len) {
        json_array_append_new(list, json_pack("{s:i,s:i,s:I,s:i,s:b}", "start", start, "len", len,
                                              "version", (json_int_t)t->version, "origin",
                                              sampled ? 0 : 1, "exact", t->exact));
    }
}

/* Puts turn i and those before it into the sample, without its last `trim` tokens; where they end.
 * `trained` says which are in an earlier one. */
static int fill(const struct session *s, int i, int trim, struct session_sample *x, char *trained,
                json_t *segments, json_t *ids)
{
    const struct session_turn *t = &s->turns[i];
    int at = t->parent < 0 ? 0 : fill(s, t->parent, t->trim, x, trained, segments, ids);
    int first = t->parent < 0, from = at + t->ninserted - x->prompt, n = t->nsampled - trim;

    memcpy(x->ids + at, t->ids, sizeof *x->ids * (size_t)(t->ninserted + n));
    memcpy(x->logps + from, t->logps, sizeof *x->logps * (size_t)n);
    memset(x->mask + from, !trained[i], (size_t)n);
    add_segment(segments, at - x->prompt, first ? 0 : t->ninserted, t, 0);
    add_segment(segments, from, n, t, 1);
    json_array_append_new(ids, json_string(t->id));
    trained[i] = 1;
    return at + t->ninserted + n;
}

static int root_of(const struct session *s, int i)
{
    while (s->turns[i].parent >= 0) {
        i = s->turns[i].parent;
    }
    return i;
}

static json_t *versions_of(const json_t *segments)
{
    json_t *out = json_array();
    for (size_t i = 0; i < json_array_size(segments); i++) {
        json_int_t v = json_integer_value(json_object_get(json_array_get(segments, i), "version"));
        json_array_append_new(out, json_sprintf("%lld", (long long)v));
    }
    return out;
}

static int line_sample(const struct session *s, int leaf, int branch, char *trained,
                       struct session_sample *x, struct err *e)
{
    static const char *const status[] = {"completed", "truncated", "aborted"};
    const struct session_turn *t = &s->turns[leaf];
    json_t *segments = json_array(), *ids = json_array();
    char *text = NULL;
    size_t len = 0;
    int rc;

    x->prompt = s->turns[root_of(s, leaf)].ninserted;
    x->response = t->tokens - x->prompt;
    x->ids = mem_alloc(sizeof *x->ids * (size_t)(t->tokens + 1));
    x->mask = mem_alloc((size_t)x->response + 1);
    x->logps = mem_alloc(sizeof *x->logps * ((size_t)x->response + 1));
    fill(s, leaf, 0, x, trained, segments, ids);
    rc = tokenizer_decode(s->env->tok, x->ids + x->prompt, (size_t)x->response, 1, &text, &len, e);
    x->meta = json_pack(
        "{s:i,s:i,s:s,s:s,s:i,s:I,s:i,s:o,s:o,s:o,s:o,s:o}", "prompt_length", x->prompt,
        "response_length", x->response, "status", status[t->finish], "response", text ? text : "",
        "branch", branch, "turns", (json_int_t)json_array_size(ids), "cached_tokens", t->cached,
        "response_ids", ids, "weight_versions", versions_of(segments), "segments", segments,
        "messages", session_line_messages(s, leaf), "mismatch", audit(s, leaf, x, segments));
    mem_free(text);
    return rc == STATUS_OK && x->meta ? 200 : 500;
}

int session_samples(const struct session *s, int all, struct session_sample **out, int *n,
                    struct err *e)
{
    struct session_sample *list = mem_alloc(sizeof *list * (size_t)(s->n + 1));
    char trained[SESSION_MAX_TURNS] = {0};
    int count = 0, http = 200;

    for (int i = 0; http == 200 && i < s->n; i++) {
        if (has_child(s, i) || (!all && asked_again(s, i))) {
            continue;
        }
        http = line_sample(s, i, count, trained, &list[count], e);
        count++;
    }
    if (http != 200) {
        session_samples_free(list, count);
        return http;
    }
    *out = list;
    *n = count;
    return 200;
}

void session_samples_free(struct session_sample *list, int n)
{
    for (int i = 0; list && i < n; i++) {
        mem_free(list[i].ids);
        mem_free(list[i].mask);
        mem_free(list[i].logps);
        json_decref(list[i].meta);
    }
    mem_free(list);
}
