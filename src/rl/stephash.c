/* Owns what goes into the hash of a step, and in which order. All hashes are xxh3 of 64 bits over
 * the bytes that the step was computed with; they are a means of comparison, no proof against
 * malice. */
#include "rl/stephash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* a state on the stack */
#include <xxhash.h>

#include "base/mem.h"
#include "base/metric.h"
#include "base/span.h"
#include "base/status.h"
#include "rl/sample.h"
#include "train/statesum.h"
#include "train/trainer.h"

enum stephash_field {
    STEPHASH_PROMPTS,
    STEPHASH_TOKENS,
    STEPHASH_ROLL,
    STEPHASH_REWARDS,
    STEPHASH_OLD,
    STEPHASH_REF,
    STEPHASH_ADVANTAGES,
    STEPHASH_FIELDS
};

static const char *const stephash_names[] = {"prompts",   "tokens",        "rollout_log_probs",
                                             "rewards",   "old_log_probs", "ref_log_probs",
                                             "advantages"};

static json_t *stephash_hex(uint64_t v)
{
    char text[17];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)v);
    return json_string(text);
}

static void stephash_json(XXH3_state_t *x, const json_t *j)
{
    char *text = json_dumps(j, JSON_SORT_KEYS | JSON_COMPACT | JSON_ENCODE_ANY);
    if (text) {
        XXH3_64bits_update(x, text, strlen(text));
    }
    free(text);
}

static void stephash_floats(XXH3_state_t *x, const float *v, int n)
{
    XXH3_64bits_update(x, &n, sizeof n);
    if (v && n) {
        XXH3_64bits_update(x, v, sizeof *v * (size_t)n);
    }
}

/* 0: the sample has no such thing. */
static int stephash_sample(const struct stephash_rollout *r, int i, enum stephash_field f,
                           uint64_t *out)
{
    const struct sample *s = r->s[i];
    const struct train_sample *t = r->t ? &r->t[i] : NULL;
    const float *v = f == STEPHASH_ROLL  ? s->logps
                     : !t                ? NULL
                     : f == STEPHASH_OLD ? t->old
                     : f == STEPHASH_REF ? t->ref
                                         : t->adv;
    XXH3_state_t x;

    XXH3_64bits_reset(&x);
    if (f == STEPHASH_PROMPTS) {
        XXH3_64bits_update(&x, &s->index, sizeof s->index);
        XXH3_64bits_update(&x, &s->group_index, sizeof s->group_index);
        XXH3_64bits_update(&x, s->tokens, sizeof *s->tokens * (size_t)s->prompt_len);
        stephash_json(&x, s->label);
    } else if (f == STEPHASH_TOKENS) {
        XXH3_64bits_update(&x, s->tokens + s->prompt_len,
                           sizeof *s->tokens * (size_t)s->response_len);
        if (s->mask) {
            XXH3_64bits_update(&x, s->mask, (size_t)s->response_len);
        }
        XXH3_64bits_update(&x, &s->status, sizeof s->status);
    } else if (f == STEPHASH_REWARDS) {
        XXH3_64bits_update(&x, &s->reward, sizeof s->reward);
        if (t) {
            XXH3_64bits_update(&x, &r->raw[i], sizeof r->raw[i]);
            XXH3_64bits_update(&x, &r->shaped[i], sizeof r->shaped[i]);
        }
    } else if (!v) {
        return 0;
    } else {
        stephash_floats(&x, v, s->response_len);
    }
    *out = XXH3_64bits_digest(&x);
    return 1;
}

static int stephash_sums(struct stephash *h, enum statesum_part part, json_t *row, const char *key,
                         const char *names, struct err *e)
{
    struct statesum s;
    json_t *list, *name;
    int rc = h->actor->sums(h->actor->self, part, &s, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    list = json_array();
    name = names ? json_array() : NULL;
    for (int i = 0; i < s.n; i++) {
        json_array_append_new(list, stephash_hex(s.sum[i]));
        if (name) {
            json_array_append_new(name, json_string(s.name[i]));
        }
    }
    if (name) {
        json_object_set_new(row, names, name);
    }
    json_object_set_new(row, key, list);
    statesum_fini(&s);
    return STATUS_OK;
}

/* What the run begins with. */
static int stephash_head(struct stephash *h, int64_t rollout, struct err *e)
{
    json_t *row = json_pack("{s:s,s:i,s:I}", "format", "miles-hashes", "version", 1, "rollout",
                            (json_int_t)rollout);
    int rc = STATUS_OK;

    if (h->actor && h->actor->sums) {
        rc = stephash_sums(h, STATESUM_WEIGHT, row, "weights", "tensors", e);
        rc = rc != STATUS_OK || !h->full
                 ? rc
                 : stephash_sums(h, STATESUM_MASTER, row, "masters", NULL, e);
        rc = rc != STATUS_OK || !h->full ? rc
                                         : stephash_sums(h, STATESUM_M, row, "exp_avg", NULL, e);
        rc = rc != STATUS_OK || !h->full ? rc
                                         : stephash_sums(h, STATESUM_V, row, "exp_avg_sq", NULL, e);
    }
    if (rc != STATUS_OK) {
        json_decref(row);
        return rc;
    }
    h->emit(h->arg, row);
    h->told = 1;
    return STATUS_OK;
}

int stephash_data(struct stephash *h, const struct stephash_rollout *r, struct err *e)
{
    double t0 = span_now();
    json_t *by = json_object();
    int rc = STATUS_OK;

    if (!h->emit) {
        json_decref(by);
        return STATUS_OK;
    }
    if (!h->told) {
        rc = stephash_head(h, r->rollout, e);
    }
    json_decref(h->data);
    h->data =
        json_pack("{s:I,s:i,s:i}", "rollout", (json_int_t)r->rollout, "step", 0, "samples", r->n);
    for (int f = 0; f < STEPHASH_FIELDS; f++) {
        json_t *list = json_array();
        XXH3_state_t all;
        int any = 0;
        XXH3_64bits_reset(&all);
        for (int i = 0; i < r->n; i++) {
            uint64_t one = 0;
            any |= stephash_sample(r, i, (enum stephash_field)f, &one);
            XXH3_64bits_update(&all, &one, sizeof one);
            if (h->full) {
                json_array_append_new(list, stephash_hex(one));
            }
        }
        if (any) {
            json_object_set_new(h->data, stephash_names[f], stephash_hex(XXH3_64bits_digest(&all)));
            json_object_set(by, stephash_names[f], list);
        }
        json_decref(list);
    }
    if (h->full) {
        json_object_set(h->data, "by_sample", by);
    }
    json_decref(by);
    h->spent += span_now() - t0;
    return rc;
}

int stephash_step(struct stephash *h, int64_t step, json_t *row, struct err *e)
{
    static const struct {
        enum statesum_part part;
        const char *key;
        int full;
    } parts[] = {{STATESUM_GRAD, "gradient", 0},
                 {STATESUM_WEIGHT, "weights", 0},
                 {STATESUM_MASTER, "masters", 1},
                 {STATESUM_M, "exp_avg", 1},
                 {STATESUM_V, "exp_avg_sq", 1}};
    double t0 = span_now();
    json_t *out;
    int rc = STATUS_OK;

    if (!h->emit || !h->data) {
        return STATUS_OK;
    }
    out = json_copy(h->data);
    json_object_set_new(out, "step", json_integer(step));
    for (size_t i = 0;
         h->actor && h->actor->sums && rc == STATUS_OK && i < sizeof parts / sizeof parts[0]; i++) {
        if (parts[i].full <= h->full) {
            /* the parameters of gradients are told once */
            rc = stephash_sums(h, parts[i].part, out, parts[i].key,
                               i == 0 && h->told == 1 ? "gradients" : NULL, e);
        }
    }
    if (rc != STATUS_OK) {
        json_decref(out);
        return rc;
    }
    h->told = 2;
    h->emit(h->arg, out);
    h->spent += span_now() - t0;
    metric_put(row, "perf/hash_time", h->spent);
    h->spent = 0.0;
    return STATUS_OK;
}

void stephash_fini(struct stephash *h)
{
    json_decref(h->data);
    h->data = NULL;
}
