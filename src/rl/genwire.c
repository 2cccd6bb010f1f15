/* Owns both directions of /generate. Requests are written straight into the buffer, because a
 * prompt's tokens are most of them. Of an answer nothing is believed: an engine that tells fewer
 * log-probs than tokens, or a token that is none, must not reach the trainer. */
#include "rl/genwire.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "model/jtext.h"
#include "text/jscan.h"

int64_t genwire_seed(uint64_t seed, uint32_t stream, uint64_t sample)
{
    const uint32_t ctr[4] = {(uint32_t)sample, (uint32_t)(sample >> 32), stream, 0x67656e77};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t out[4];

    rng_philox(ctr, key, out);
    return (int64_t)(((uint64_t)out[1] << 32 | out[0]) & INT64_MAX);
}

/* ---- the request ---- */

static void genwire_ids(struct buf *b, const int32_t *ids, int n)
{
    char text[16];

    buf_char(b, '[');
    for (int i = 0; i < n; i++) {
        int k = snprintf(text, sizeof text, i ? ",%d" : "%d", ids[i]);
        buf_add(b, text, (size_t)k);
    }
    buf_char(b, ']');
}

void genwire_request(struct buf *b, const struct genwire_ask *q)
{
    const struct port_group *g = q->g;
    uint64_t sample = (uint64_t)g->sample + (uint64_t)q->first;

    buf_printf(b, "{\"rid\":\"%s\",\"input_ids\":", q->rid);
    genwire_ids(b, g->tokens, g->ntokens);
    buf_printf(b,
               ",\"return_logprob\":true,\"logprob_start_len\":-1,\"stream\":false,"
               "\"sampling_params\":{\"max_new_tokens\":%d,\"temperature\":%.9g,\"top_p\":%.9g,"
               "\"top_k\":%d,\"skip_special_tokens\":false,\"ignore_eos\":%s",
               g->max_new, (double)g->temperature, (double)g->top_p, g->top_k > 0 ? g->top_k : -1,
               g->ignore_eos ? "true" : "false");
    if (g->nstop) {
        buf_str(b, ",\"stop_token_ids\":");
        genwire_ids(b, g->stop, g->nstop);
    }
    if (g->ntexts) {
        for (int i = 0; i < g->ntexts; i++) {
            buf_str(b, i ? "," : ",\"stop\":[");
            jtext_string(b, g->texts[i], strlen(g->texts[i]));
        }
        buf_str(b, "],\"no_stop_trim\":true");
    }
    if (q->miles) {
        buf_printf(b,
                   ",\"n\":%d},\"miles_key\":{\"seed\":\"%llu\",\"stream\":%u,\"sample\":\"%llu\"",
                   q->count, (unsigned long long)g->seed, g->stream, (unsigned long long)sample);
        if (g->position) {
            buf_printf(b, ",\"position\":%d", g->position);
        }
        buf_str(b, "},\"miles_ids_only\":true,\"miles_forget\":true");
    } else {
        buf_printf(b, ",\"sampling_seed\":%lld}",
                   (long long)genwire_seed(g->seed, g->stream, sample));
    }
    buf_str(b, q->experts ? ",\"return_routed_experts\":true}" : "}");
}

/* ---- the answer ----
 *
 * Tokens and log-probs are most of an answer, and one controller reads those of a thousand engines:
 * they are read in place. Of the rest a tree is made, of what is needed. */

/* What has been read of a sample; the arrays serve all samples of an answer. */
struct genwire_scan {
    struct jscan j;
    json_t *meta; /* what is needed of meta_info; NULL: there is none */
    int32_t *ids; /* of output_ids */
    size_t nids, cap_ids;
    struct genwire_logp {
        float v;
        int32_t id;
    } * lps; /* of output_token_logprobs */
    size_t nlps, cap_lps;
    int has_ids;           /* output_ids is there, and a list */
    size_t bad_id, bad_lp; /* the first that is none; SIZE_MAX: all are */
};

static int genwire_finish(const json_t *v, enum port_finish *out, struct err *e)
{
    static const char *const names[] = {"stop", "length", "abort"};
    const char *type = json_string_value(json_object_get(v, "type"));

    for (int i = 0; type && i < 3; i++) {
        if (strcmp(type, names[i]) == 0) {
            *out = (enum port_finish)i;
            return STATUS_OK;
        }
    }
    return ERR(e, STATUS_FORMAT, "finish_reason is %.40s, not stop, length or abort",
               type ? type : "none");
}

/* The name of the weights, and whether all tokens are of it. SGLang tells several versions of a
 * sample as a list, one entry for each run of tokens. */
static void genwire_versions(const json_t *meta, struct genwire_sample *s)
{
    const char *name = json_string_value(json_object_get(meta, "weight_version"));
    const json_t *list = json_object_get(meta, "weight_versions"), *v;
    size_t i;

    snprintf(s->version, sizeof s->version, "%s", name ? name : "");
    json_array_foreach(list, i, v)
    {
        const char *other = json_string_value(json_object_get(v, "version"));
        s->many_versions |= other && strcmp(other, s->version) != 0;
    }
    s->many_versions |= json_integer_value(json_object_get(meta, "miles_mixed_tokens")) > 0;
}

/* A value that is none of what is expected is passed over: it is no reason to refuse the text. */
static int genwire_token(struct jscan *j, int32_t *out)
{
    const char *at = j->p;
    int64_t v;

    if (jscan_int(j, &v)) {
        *out = (int32_t)v;
        return v >= 0 && v <= INT32_MAX;
    }
    j->p = at;
    j->bad = NULL;
    jscan_skip(j);
    return 0;
}

static void genwire_ids_in(struct genwire_scan *c)
{
    if (jscan_peek(&c->j) != '[') {
        jscan_skip(&c->j);
        return;
    }
    c->has_ids = jscan_open(&c->j, '[');
    while (jscan_more(&c->j, ']')) {
        if (c->nids == c->cap_ids) {
            ASSERT(mem_grow((void **)&c->ids, &c->cap_ids, 256, sizeof *c->ids));
        }
        if (!genwire_token(&c->j, &c->ids[c->nids]) && c->bad_id == SIZE_MAX) {
            c->bad_id = c->nids;
        }
        c->nids++;
    }
}

/* [log-prob, token, ...]; 0: it is something else. */
static int genwire_logp(struct jscan *j, struct genwire_logp *out)
{
    const char *at = j->p;
    double v;
    int good;

    if (jscan_peek(j) != '[') {
        jscan_skip(j);
        return 0;
    }
    good = jscan_open(j, '[') && jscan_more(j, ']') && jscan_number(j, &v) && jscan_more(j, ']') &&
           genwire_token(j, &out->id);
    if (!good) {
        j->p = at;
        j->bad = NULL;
        jscan_skip(j);
        return 0;
    }
    out->v = (float)v;
    while (jscan_more(j, ']')) {
        jscan_skip(j);
    }
    return isfinite(out->v);
}

static void genwire_logps_in(struct genwire_scan *c)
{
    if (jscan_peek(&c->j) != '[') {
        jscan_skip(&c->j);
        return;
    }
    jscan_open(&c->j, '[');
    while (jscan_more(&c->j, ']')) {
        if (c->nlps == c->cap_lps) {
            ASSERT(mem_grow((void **)&c->lps, &c->cap_lps, 256, sizeof *c->lps));
        }
        if (!genwire_logp(&c->j, &c->lps[c->nlps]) && c->bad_lp == SIZE_MAX) {
            c->bad_lp = c->nlps;
        }
        c->nlps++;
    }
}

static int genwire_digit(char c)
{
    if (c >= 'A' && c <= 'Z') {
        return c - 'A';
    }
    if (c >= 'a' && c <= 'z') {
        return c - 'a' + 26;
    }
    if (c >= '0' && c <= '9') {
        return c - '0' + 52;
    }
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Base64 into bytes; their number, -1 when it is none. */
static int64_t genwire_base64(const char *text, size_t len, uint8_t *out)
{
    uint32_t bits = 0;
    int64_t n = 0;
    int have = 0;

    while (len && text[len - 1] == '=') {
        len--;
    }
    for (size_t i = 0; i < len; i++) {
        int d = genwire_digit(text[i]);
        if (d < 0) {
            return -1;
        }
        bits = bits << 6 | (uint32_t)d;
        have += 6;
        if (have >= 8) {
            have -= 8;
            out[n++] = (uint8_t)(bits >> have);
        }
    }
    return n;
}

/* Numbers of experts: (tokens, layers, chosen) of 32 bits, little end first. */
static int genwire_experts(const json_t *meta, struct genwire_sample *s, struct err *e)
{
    const json_t *v = json_object_get(meta, "routed_experts");
    size_t len = json_string_length(v);
    int64_t n;

    if (!v || json_is_null(v)) {
        return STATUS_OK;
    }
    if (!json_is_string(v)) {
        return ERR(e, STATUS_FORMAT, "routed_experts is not a text");
    }
    s->experts = mem_try(len / 4 * 3 + 8);
    if (!s->experts) {
        return ERR(e, STATUS_NOMEM, "no memory for routed_experts of %zu bytes", len);
    }
    n = genwire_base64(json_string_value(v), len, (uint8_t *)s->experts);
    if (n < 0 || n % 4) {
        return ERR(e, STATUS_FORMAT, "routed_experts is not base64 of whole numbers of 32 bits");
    }
    s->nexperts = n / 4;
    return STATUS_OK;
}

/* The tokens that were read, and their log-probs. */
static int genwire_tokens(const struct genwire_scan *c, const struct genwire_ask *q,
                          struct genwire_sample *s, struct err *e)
{
    size_t n = c->nids;

    if (!c->has_ids || (n && c->nlps != n)) {
        return ERR(e, STATUS_FORMAT, "%zu tokens with %zu log-probs", n, c->nlps);
    }
    if (n > (size_t)q->g->max_new) {
        return ERR(e, STATUS_FORMAT, "%zu tokens, %d were asked for", n, q->g->max_new);
    }
    if (n == 0 && s->finish != PORT_ABORT && q->g->max_new > 0) {
        return ERR(e, STATUS_FORMAT, "no tokens, and the sample was not aborted");
    }
    if (c->bad_id < n) {
        return ERR(e, STATUS_FORMAT, "token %zu is none", c->bad_id);
    }
    s->tokens = mem_alloc(sizeof *s->tokens * (n + 1));
    s->logps = mem_alloc(sizeof *s->logps * (n + 1));
    s->ntokens = (int)n;
    for (size_t i = 0; i < n; i++) {
        if (c->bad_lp == i || c->lps[i].id != c->ids[i]) {
            return ERR(e, STATUS_FORMAT, "token %zu has no log-prob", i);
        }
        s->tokens[i] = c->ids[i];
        s->logps[i] = c->lps[i].v;
    }
    return STATUS_OK;
}

/* The value that comes next as a tree; NULL when it is none. */
static json_t *genwire_value(struct jscan *j)
{
    const char *from;

    jscan_peek(j);
    from = j->p;
    return jscan_skip(j) ? json_loadb(from, (size_t)(j->p - from), JSON_DECODE_ANY, NULL) : NULL;
}

/* One of the keys that are read as trees. */
static int genwire_wanted(const char *key, size_t n)
{
    static const char *const names[] = {"finish_reason", "weight_version", "weight_versions",
                                        "miles_mixed_tokens", "routed_experts"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strlen(names[i]) == n && memcmp(names[i], key, n) == 0) {
            return 1;
        }
    }
    return 0;
}

static int genwire_is(const char *key, size_t n, const char *name)
{
    return strlen(name) == n && memcmp(key, name, n) == 0;
}

static void genwire_meta_in(struct genwire_scan *c)
{
    struct jscan *j = &c->j;
    const char *key;
    size_t n;

    if (jscan_peek(j) != '{') {
        jscan_skip(j);
        return;
    }
    json_decref(c->meta);
    c->meta = json_object();
    jscan_open(j, '{');
    while (jscan_more(j, '}') && jscan_string(j, &key, &n)) {
        int logps = genwire_is(key, n, "output_token_logprobs"), wanted = genwire_wanted(key, n);
        char name[32] = "";
        if (wanted) {
            memcpy(name, key, n);
        }
        if (!jscan_colon(j)) {
            break;
        }
        if (logps) {
            genwire_logps_in(c);
        } else if (wanted) {
            json_t *v = genwire_value(j);
            if (!v || json_object_set_new(c->meta, name, v) != 0) {
                jscan_fail(j, "a value of meta_info is none");
            }
        } else {
            jscan_skip(j);
        }
    }
}

/* Reads one sample; what is no object has no meta_info. */
static void genwire_scan(struct genwire_scan *c)
{
    struct jscan *j = &c->j;
    const char *key;
    size_t n;

    json_decref(c->meta);
    c->meta = NULL;
    c->has_ids = 0;
    c->nids = c->nlps = 0;
    c->bad_id = c->bad_lp = SIZE_MAX;
    if (jscan_peek(j) != '{') {
        jscan_skip(j);
        return;
    }
    jscan_open(j, '{');
    while (jscan_more(j, '}') && jscan_string(j, &key, &n)) {
        int ids = genwire_is(key, n, "output_ids"), meta = genwire_is(key, n, "meta_info");
        if (!jscan_colon(j)) {
            break;
        }
        if (ids) {
            genwire_ids_in(c);
        } else if (meta) {
            genwire_meta_in(c);
        } else {
            jscan_skip(j);
        }
    }
}

static int genwire_one(const struct genwire_scan *c, const struct genwire_ask *q,
                       struct genwire_sample *s, struct err *e)
{
    int rc;

    if (!c->meta) {
        return ERR(e, STATUS_FORMAT, "a sample without meta_info");
    }
    rc = genwire_finish(json_object_get(c->meta, "finish_reason"), &s->finish, e);
    if (rc == STATUS_OK) {
        rc = genwire_tokens(c, q, s, e);
    }
    if (rc == STATUS_OK) {
        genwire_versions(c->meta, s);
        rc = genwire_experts(c->meta, s, e);
    }
    return rc;
}

/* All samples of the text. The first that is wrong is told, but only of a text that is JSON and has
 * as many as were asked for. */
static int genwire_all(struct genwire_scan *c, const struct genwire_ask *q,
                       struct genwire_sample *out, struct err *e)
{
    struct jscan *j = &c->j;
    struct err first = {0};
    int list = jscan_peek(j) == '[', n = 0;

    if (list) {
        jscan_open(j, '[');
    } else if (jscan_peek(j) != '{') {
        jscan_fail(j, "an object or a list was expected");
    }
    while (list ? jscan_more(j, ']') : !j->bad && n == 0) {
        genwire_scan(c);
        if (n < q->count && !first.code && !j->bad) {
            genwire_one(c, q, &out[n], &first);
        }
        n++;
    }
    jscan_peek(j);
    if (j->p < j->end) {
        jscan_fail(j, "something follows the value");
    }
    if (j->bad) {
        return ERR(e, STATUS_FORMAT, "the answer is not JSON: %s at byte %zu", j->bad,
                   (size_t)(j->p - j->start));
    }
    if (n != q->count) {
        return ERR(e, STATUS_FORMAT, "%d samples, %d were asked for", n, q->count);
    }
    if (first.code && e) {
        *e = first;
    }
    return first.code;
}

int genwire_parse(const char *text, size_t len, const struct genwire_ask *q,
                  struct genwire_sample *out, struct err *e)
{
    struct genwire_scan c = {0};
    int rc;

    memset(out, 0, sizeof *out * (size_t)q->count);
    jscan_init(&c.j, text, len);
    rc = genwire_all(&c, q, out, e);
    for (int i = 0; rc != STATUS_OK && i < q->count; i++) {
        genwire_fini(&out[i]);
    }
    jscan_fini(&c.j);
    json_decref(c.meta);
    mem_free(c.ids);
    mem_free(c.lps);
    return rc;
}

void genwire_fini(struct genwire_sample *s)
{
    mem_free(s->tokens);
    mem_free(s->logps);
    mem_free(s->experts);
    memset(s, 0, sizeof *s);
}
