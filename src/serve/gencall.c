/* Owns a request's memory and the meaning of sampling parameters, which both APIs spell alike. */
#include "serve/gencall.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/conf.h"
#include "model/weights.h"
#include "net/http_req.h"
#include "serve/api.h"
#include "serve/jfield.h"
#include "text/tokenizer.h"

enum { GENCALL_MAX_N = 4096, GENCALL_MAX_STOPS = 64 };
#define GENCALL_MAX_STOP_BYTES 4096
#define GENCALL_MAX_ANSWER     (1u << 30)

static void gencall_free(void *arg)
{
    struct gencall *g = arg;

    for (int i = 0; i < g->nout; i++) {
        buf_fini(&g->out[i]);
    }
    json_decref(g->body);
    arena_fini(&g->mem);
    mem_free(g);
}

struct gencall *gencall_new(struct api *api, struct http_req *r)
{
    struct gencall *g = mem_alloc(sizeof *g);

    g->api = api;
    g->r = r;
    arena_init(&g->mem, 4096);
    reply_init(&g->rp, r, api->service, gencall_free, g);
    return g;
}

void gencall_fail(struct gencall *g, int rc, const struct err *e)
{
    reply_fail(&g->rp, reply_status(rc), e->msg);
}

const char *gencall_name(struct gencall *g, const char *prefix)
{
    uint64_t v[2] = {0};
    char text[96];

    if (getrandom(v, sizeof v, 0) != sizeof v) {
        v[0] = http_req_id(g->r);
    }
    snprintf(text, sizeof text, "%s%016llx%016llx", prefix, (unsigned long long)v[0],
             (unsigned long long)v[1]);
    return arena_strdup(&g->mem, text);
}

/* ---- sampling ---- */

static int gencall_stop_text(struct gencall *g, const json_t *v, struct stoptext_stop *out,
                             struct err *e)
{
    (void)g;
    if (!json_is_string(v) || json_string_length(v) < 1 ||
        json_string_length(v) > GENCALL_MAX_STOP_BYTES) {
        return ERR(e, STATUS_INPUT, "stop: each must be a text of 1 to %d bytes",
                   GENCALL_MAX_STOP_BYTES);
    }
    out->s = json_string_value(v);
    out->n = json_string_length(v);
    return STATUS_OK;
}

static int gencall_stops(struct gencall *g, const json_t *o, struct err *e)
{
    const json_t *v = jfield_get(o, "stop");
    int rc = STATUS_OK, n = json_is_array(v) ? (int)json_array_size(v) : v != NULL;
    struct stoptext_stop *s;

    if (!n) {
        return STATUS_OK;
    }
    if (n > GENCALL_MAX_STOPS) {
        return ERR(e, STATUS_INPUT, "stop has %d texts, at most %d are taken", n,
                   GENCALL_MAX_STOPS);
    }
    if (!service_model(g->api->service)->tok) {
        return ERR(e, STATUS_INPUT, "stop needs a tokenizer, the model has none");
    }
    s = arena_alloc(&g->mem, sizeof *s * (size_t)n);
    for (int i = 0; rc == STATUS_OK && i < n; i++) {
        rc = gencall_stop_text(g, json_is_array(v) ? json_array_get(v, (size_t)i) : v, &s[i], e);
    }
    g->ask.stops = s;
    g->ask.nstops = rc == STATUS_OK ? n : 0;
    return rc;
}

static int gencall_stop_ids(struct gencall *g, const json_t *o, struct err *e)
{
    const json_t *v = jfield_get(o, "stop_token_ids"), *x;
    size_t i;

    if (!v) {
        return STATUS_OK;
    }
    if (!json_is_array(v) || json_array_size(v) > ENGINE_MAX_STOP) {
        return ERR(e, STATUS_INPUT, "stop_token_ids is not a list of at most %d tokens",
                   ENGINE_MAX_STOP);
    }
    json_array_foreach(v, i, x)
    {
        if (!json_is_integer(x) || json_integer_value(x) < 0 ||
            json_integer_value(x) >= service_model(g->api->service)->w->arch.vocab) {
            return ERR(e, STATUS_INPUT, "stop_token_ids: entry %zu is no token", i);
        }
        g->base.stop[g->base.nstop++] = (int32_t)json_integer_value(x);
    }
    return STATUS_OK;
}

static int gencall_bias(struct gencall *g, const json_t *o, struct err *e)
{
    const json_t *v = jfield_get(o, "logit_bias"), *x;
    struct sampler_bias *b;
    const char *name;
    int64_t id;
    int n = 0;

    if (!v) {
        return STATUS_OK;
    }
    if (!json_is_object(v)) {
        return ERR(e, STATUS_INPUT, "logit_bias is not an object");
    }
    b = arena_alloc(&g->mem, sizeof *b * (json_object_size(v) + 1));
    json_object_foreach((json_t *)(uintptr_t)v, name, x)
    {
        if (conf_parse_int(name, &id) != STATUS_OK || id < 0 ||
            id >= service_model(g->api->service)->w->arch.vocab || !json_is_number(x) ||
            !(fabs(json_number_value(x)) <= 1e30)) {
            return ERR(e, STATUS_INPUT, "logit_bias: %.32s is no token with a number", name);
        }
        b[n++] = (struct sampler_bias){(int32_t)id, (float)json_number_value(x)};
    }
    g->base.sampling.bias = b;
    g->base.sampling.nbias = n;
    return STATUS_OK;
}

static int gencall_numbers(struct gencall *g, const json_t *o, struct err *e)
{
    double t = 1.0, top_p = 1.0, min_p = 0.0, rep = 1.0, freq = 0.0, pres = 0.0;
    int64_t top_k = -1, n = 1;
    struct sampler_params *p = &g->base.sampling;
    int skip = 1, ignore = 0, trim_off = 0, spaces = 1, rc;

    if ((rc = jfield_real(o, "temperature", 0.0, 1e6, &t, e)) ||
        (rc = jfield_real(o, "top_p", 0.0, 1.0, &top_p, e)) ||
        (rc = jfield_real(o, "min_p", 0.0, 1.0, &min_p, e)) ||
        (rc = jfield_int(o, "top_k", -1, INT32_MAX, &top_k, e)) ||
        (rc = jfield_real(o, "repetition_penalty", 0.0, 2.0, &rep, e)) ||
        (rc = jfield_real(o, "frequency_penalty", -2.0, 2.0, &freq, e)) ||
        (rc = jfield_real(o, "presence_penalty", -2.0, 2.0, &pres, e)) ||
        (rc = jfield_int(o, "n", 1, GENCALL_MAX_N, &n, e)) ||
        (rc = jfield_bool(o, "skip_special_tokens", &skip, e)) ||
        (rc = jfield_bool(o, "ignore_eos", &ignore, e)) ||
        (rc = jfield_bool(o, "spaces_between_special_tokens", &spaces, e)) ||
        (rc = jfield_bool(o, "no_stop_trim", &trim_off, e))) {
        return rc;
    }
    if (!(top_p > 0.0)) {
        return ERR(e, STATUS_INPUT, "top_p is 0, it must be in (0, 1]");
    }
    if (!(rep > 0.0)) {
        return ERR(e, STATUS_INPUT, "repetition_penalty is 0, it must be in (0, 2]");
    }
    if (top_k == 0) {
        return ERR(e, STATUS_INPUT, "top_k is 0, it must be -1 (off) or at least 1");
    }
    p->temperature = t < 1e-6 ? 0.0f : (float)t;
    p->top_p = (float)top_p;
    p->min_p = (float)min_p;
    p->top_k = (int)(top_k < 1 << 30 ? top_k : 1 << 30);
    p->repetition_penalty = (float)rep;
    p->frequency_penalty = (float)freq;
    p->presence_penalty = (float)pres;
    g->base.n = (int)n;
    g->base.ignore_eos = ignore;
    g->ask.skip_special = skip;
    g->ask.no_stop_trim = trim_off;
    return STATUS_OK;
}

int gencall_sampling(struct gencall *g, const json_t *o, const struct gencall_names *names,
                     struct err *e)
{
    int64_t max = -1, min = 0, seed = 0;
    const char *max_name = jfield_get(o, names->max_new[0]) ? names->max_new[0] : names->max_new[1];
    int fits = names->null_fits && json_is_null(json_object_get(o, names->max_new[0])), rc;

    memset(&g->base, 0, sizeof g->base);
    memset(&g->ask, 0, sizeof g->ask);
    rc = gencall_numbers(g, o, e);

    if (rc == STATUS_OK && max_name) {
        rc = jfield_int(o, max_name, 0, INT32_MAX, &max, e);
    }
    if (rc == STATUS_OK) {
        rc = jfield_int(o, names->min_new, 0, INT32_MAX, &min, e);
    }
    if (rc == STATUS_OK) {
        rc = jfield_int(o, names->seed, INT64_MIN, INT64_MAX, &seed, e);
    }
    if (rc == STATUS_OK && max >= 0 && min > max) {
        rc = ERR(e, STATUS_INPUT, "%s is %lld, more than %s, %lld", names->min_new, (long long)min,
                 max_name, (long long)max);
    }
    if (rc == STATUS_OK) {
        rc = gencall_stops(g, o, e);
    }
    if (rc == STATUS_OK) {
        rc = gencall_stop_ids(g, o, e);
    }
    if (rc == STATUS_OK) {
        rc = gencall_bias(g, o, e);
    }
    g->max_given = max >= 0;
    g->base.max_new = (int)(max >= 0 ? max : fits ? 0 : names->default_max);
    g->base.min_new = (int)min;
    if (g->base.ignore_eos) { /* as SGLang has it, no token ends such a response */
        g->base.nstop = 0;
    }
    if (jfield_get(o, names->seed)) {
        g->ask.own_key = 1;
        g->base.key.seed = (uint64_t)seed;
    }
    return rc;
}

/* ---- prompts ---- */

/* Room for new tokens after a prompt of n. */
static int gencall_fit(const struct gencall *g, struct engine_group *q, struct err *e)
{
    int context = service_context(g->api->service), room = context - q->ntokens;

    if (room < 1 && !(room == 0 && q->max_new == 0 && g->max_given)) {
        return ERR(e, STATUS_INPUT,
                   "The input (%d tokens) is longer than the model's context length (%d tokens).",
                   q->ntokens, context);
    }
    if (g->max_given && q->max_new > room) {
        return ERR(e, STATUS_INPUT,
                   "Requested token count exceeds the model's maximum context length of %d tokens: "
                   "%d of the input and %d new ones.",
                   context, q->ntokens, q->max_new);
    }
    if (!g->max_given && (q->max_new == 0 || q->max_new > room)) {
        q->max_new = room;
    }
    q->min_new = q->min_new < q->max_new ? q->min_new : q->max_new;
    if (q->max_new == 0 && !q->prompt_logps) { /* nothing is asked for but that it be computed */
        q->prompt_logps = 1;
        q->prompt_from = q->ntokens;
    }
    return STATUS_OK;
}

static int gencall_take(struct gencall *g, int32_t *ids, size_t n, const char *rid, struct err *e)
{
    struct engine_group *q;

    if (g->call.ngroups == GENCALL_MAX_PROMPTS) {
        return ERR(e, STATUS_INPUT, "more than %d prompts in one request", GENCALL_MAX_PROMPTS);
    }
    if (n < 1 || n > INT32_MAX / 2) {
        return ERR(e, STATUS_INPUT, "a prompt of %zu tokens", n);
    }
    if (g->call.ngroups == g->prompts_cap) {
        int cap = g->prompts_cap ? g->prompts_cap * 2 : 4;
        struct engine_group *groups = arena_alloc(&g->mem, sizeof *groups * (size_t)cap);
        const char **rids = arena_alloc(&g->mem, sizeof *rids * (size_t)cap);
        struct service_ask *asks = arena_alloc(&g->mem, sizeof *asks * (size_t)cap);
        if (g->prompts_cap) {
            memcpy(asks, g->asks, sizeof *asks * (size_t)g->prompts_cap);
            memcpy(groups, g->call.groups, sizeof *groups * (size_t)g->prompts_cap);
            memcpy(rids, g->rids, sizeof *rids * (size_t)g->prompts_cap);
        }
        g->call.groups = groups;
        g->rids = rids;
        g->asks = asks;
        g->prompts_cap = cap;
    }
    q = &g->call.groups[g->call.ngroups];
    *q = g->base;
    g->asks[g->call.ngroups] = g->ask;
    q->tokens = ids;
    q->ntokens = (int)n;
    g->rids[g->call.ngroups++] = rid ? rid : gencall_name(g, "");
    return gencall_fit(g, q, e);
}

int gencall_add(struct gencall *g, const int32_t *ids, size_t n, const char *rid, struct err *e)
{
    int32_t *copy = arena_alloc(&g->mem, sizeof *copy * (n + 1));
    if (n) {
        memcpy(copy, ids, sizeof *copy * n);
    }
    return gencall_take(g, copy, n, rid, e);
}

int gencall_add_ids(struct gencall *g, const json_t *list, const char *rid, struct err *e)
{
    int vocab = service_model(g->api->service)->w->arch.vocab;
    size_t n = json_array_size(list);
    int32_t *ids = arena_alloc(&g->mem, sizeof *ids * (n + 1));

    if (!json_is_array(list)) {
        return ERR(e, STATUS_INPUT, "a prompt of tokens is not a list");
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id >= vocab) {
            return ERR(e, STATUS_INPUT, "prompt token %zu is none of the vocabulary of %d", i,
                       vocab);
        }
        ids[i] = (int32_t)id;
    }
    return gencall_take(g, ids, n, rid, e);
}

int gencall_add_text(struct gencall *g, const char *text, size_t len, int special, const char *rid,
                     struct err *e)
{
    const struct tokenizer *tok = service_model(g->api->service)->tok;
    int32_t *ids;
    size_t n;
    int rc;

    if (!tok) {
        return ERR(e, STATUS_INPUT, "the model has no tokenizer: give tokens");
    }
    rc = tokenizer_encode(tok, text, len, special, &ids, &n, e);
    if (rc == STATUS_OK) {
        rc = gencall_add(g, ids, n, rid, e);
        mem_free(ids);
    }
    return rc;
}

int gencall_go(struct gencall *g, service_event_fn *fn, struct err *e)
{
    int samples = g->call.ngroups * g->base.n, rc;

    g->call.rids = g->rids;
    g->call.asks = g->asks;
    g->call.fn = fn;
    g->call.arg = g;
    g->out = arena_alloc(&g->mem, sizeof *g->out * (size_t)samples);
    for (g->nout = 0; g->nout < samples; g->nout++) {
        buf_init(&g->out[g->nout], GENCALL_MAX_ANSWER);
    }
    reply_watch(&g->rp, &g->call);
    rc = service_submit(g->api->service, &g->call, e);
    if (rc != STATUS_OK) { /* else g is no longer ours */
        reply_watch(&g->rp, NULL);
    }
    return rc;
}

int gencall_index(const struct gencall *g, const struct service_event *ev)
{
    return ev->group * g->base.n + ev->sample;
}

void gencall_count(struct gencall *g, const struct service_event *ev)
{
    g->done++;
    g->new_tokens += ev->r->ntokens;
    if (ev->sample == 0) {
        g->prompt_tokens += ev->r->prompt_tokens;
        g->cached_tokens += ev->r->cached_tokens;
    }
}
