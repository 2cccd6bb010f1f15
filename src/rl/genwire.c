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

/* ---- the answer ---- */

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

static int genwire_tokens(const json_t *o, const json_t *meta, const struct genwire_ask *q,
                          struct genwire_sample *s, struct err *e)
{
    const json_t *ids = json_object_get(o, "output_ids");
    const json_t *lps = json_object_get(meta, "output_token_logprobs");
    size_t n = json_array_size(ids);

    if (!json_is_array(ids) || (n && json_array_size(lps) != n)) {
        return ERR(e, STATUS_FORMAT, "%zu tokens with %zu log-probs", n, json_array_size(lps));
    }
    if (n > (size_t)q->g->max_new) {
        return ERR(e, STATUS_FORMAT, "%zu tokens, %d were asked for", n, q->g->max_new);
    }
    if (n == 0 && s->finish != PORT_ABORT && q->g->max_new > 0) {
        return ERR(e, STATUS_FORMAT, "no tokens, and the sample was not aborted");
    }
    s->tokens = mem_alloc(sizeof *s->tokens * (n + 1));
    s->logps = mem_alloc(sizeof *s->logps * (n + 1));
    s->ntokens = (int)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(ids, i), *lp = json_array_get(lps, i);
        const json_t *x = json_array_get(lp, 0), *y = json_array_get(lp, 1);
        float v = (float)json_number_value(x);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) > INT32_MAX) {
            return ERR(e, STATUS_FORMAT, "token %zu is none", i);
        }
        if (!json_is_number(x) || !isfinite(v) || json_integer_value(y) != json_integer_value(id)) {
            return ERR(e, STATUS_FORMAT, "token %zu has no log-prob", i);
        }
        s->tokens[i] = (int32_t)json_integer_value(id);
        s->logps[i] = v;
    }
    return STATUS_OK;
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

static int genwire_one(const json_t *o, const struct genwire_ask *q, struct genwire_sample *s,
                       struct err *e)
{
    const json_t *meta = json_object_get(o, "meta_info");
    int rc;

    if (!json_is_object(o) || !json_is_object(meta)) {
        return ERR(e, STATUS_FORMAT, "a sample without meta_info");
    }
    rc = genwire_finish(json_object_get(meta, "finish_reason"), &s->finish, e);
    if (rc == STATUS_OK) {
        rc = genwire_tokens(o, meta, q, s, e);
    }
    if (rc == STATUS_OK) {
        genwire_versions(meta, s);
        rc = genwire_experts(meta, s, e);
    }
    return rc;
}

int genwire_parse(const char *text, size_t len, const struct genwire_ask *q,
                  struct genwire_sample *out, struct err *e)
{
    json_error_t at;
    json_t *all = json_loadb(text, len, 0, &at);
    int rc = STATUS_OK, list = json_is_array(all);

    memset(out, 0, sizeof *out * (size_t)q->count);
    if (!all) {
        return ERR(e, STATUS_FORMAT, "the answer is not JSON: %s at line %d, column %d", at.text,
                   at.line, at.column);
    }
    if ((list ? json_array_size(all) : 1) != (size_t)q->count) {
        rc = ERR(e, STATUS_FORMAT, "%zu samples, %d were asked for",
                 list ? json_array_size(all) : 1, q->count);
    }
    for (int i = 0; rc == STATUS_OK && i < q->count; i++) {
        rc = genwire_one(list ? json_array_get(all, (size_t)i) : all, q, &out[i], e);
    }
    for (int i = 0; rc != STATUS_OK && i < q->count; i++) {
        genwire_fini(&out[i]);
    }
    json_decref(all);
    return rc;
}

void genwire_fini(struct genwire_sample *s)
{
    mem_free(s->tokens);
    mem_free(s->logps);
    mem_free(s->experts);
    memset(s, 0, sizeof *s);
}
