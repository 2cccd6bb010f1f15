/* Owns the way from rewards to per-token advantages. Sums over groups and over the batch are exact,
 * so that who holds which sample never shows; recursions over one response run in token order. */
#include "train/adv.h"

#include <math.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/status.h"
#include "num/exact.h"

/* Samples by group: order[start[g] .. start[g+1]) are the rows of group g, ascending. */
struct groups {
    int64_t n;
    int64_t *start, *order;
};

static void groups_fini(struct groups *g)
{
    mem_free(g->start);
    mem_free(g->order);
}

/* Dense group ids by first appearance. */
static int64_t group_ids(int64_t n, const int64_t *group_index, int64_t block, int64_t *ids)
{
    struct map m;
    int64_t count;

    if (!group_index) {
        for (int64_t i = 0; i < n; i++) {
            ids[i] = i / block;
        }
        return n ? ids[n - 1] + 1 : 0;
    }
    map_init(&m);
    for (int64_t i = 0; i < n; i++) {
        if (!map_get(&m, (const char *)&group_index[i], sizeof group_index[i], &ids[i])) {
            ids[i] = (int64_t)m.count;
            map_put(&m, (const char *)&group_index[i], sizeof group_index[i], ids[i]);
        }
    }
    count = (int64_t)m.count;
    map_fini(&m);
    return count;
}

static void groups_init(struct groups *g, const struct adv_reward_opts *o, int64_t n,
                        const int64_t *group_index)
{
    int64_t *ids = mem_alloc((size_t)(n + 1) * sizeof *ids);
    int64_t block = n;

    if (o->n_samples_per_prompt > 0 && n % o->n_samples_per_prompt == 0 &&
        n / o->n_samples_per_prompt == o->rollout_batch_size) {
        block = o->n_samples_per_prompt;
    }
    g->n = group_ids(n, group_index, block ? block : 1, ids);
    g->start = mem_alloc((size_t)(g->n + 2) * sizeof *g->start);
    g->order = mem_alloc((size_t)(n + 1) * sizeof *g->order);
    for (int64_t i = 0; i < n; i++) {
        g->start[ids[i] + 2]++;
    }
    for (int64_t k = 0; k < g->n; k++) {
        g->start[k + 2] += g->start[k + 1];
    }
    for (int64_t i = 0; i < n; i++) {
        g->order[g->start[ids[i] + 1]++] = i;
    }
    mem_free(ids);
}

/* Does the estimator divide by the group's spread? */
static int divides(const struct adv_reward_opts *o)
{
    int can = o->estimator == ADV_GRPO || o->estimator == ADV_GSPO || o->estimator == ADV_CISPO;
    return can && o->std;
}

/* rep[j] is the first row of row j's rollout. */
static int one_rollout_each(const int64_t *rows, int64_t n, const float *raw,
                            const int64_t *rollout_id, int64_t *rep, struct err *e)
{
    struct map m;
    int rc = 0;

    map_init(&m);
    for (int64_t j = 0; j < n && rc == 0; j++) {
        int64_t first = j;
        if (rollout_id) {
            const char *key = (const char *)&rollout_id[rows[j]];
            if (!map_get(&m, key, sizeof *rollout_id, &first)) {
                map_put(&m, key, sizeof *rollout_id, j);
            }
        }
        rep[j] = first;
        if (raw[rows[first]] != raw[rows[j]]) {
            rc = ERR(e, STATUS_INPUT,
                     "samples %lld and %lld belong to rollout %lld but have rewards %g and %g",
                     (long long)rows[first], (long long)rows[j], (long long)rollout_id[rows[j]],
                     (double)raw[rows[first]], (double)raw[rows[j]]);
        }
    }
    map_fini(&m);
    return rc;
}

/* One group: rollouts counted once, mean subtracted, divided by the spread when asked. */
static int one_group(const struct adv_reward_opts *o, const int64_t *rows, int64_t n,
                     const float *raw, const int64_t *rollout_id, float *out, int64_t *rep,
                     struct err *e)
{
    struct exact sum, sq;
    int64_t count = 0;
    float mean, sd = 0;
    double others = 1; /* r - mean of the others = (r - mean) n / (n - 1) */
    int rc = one_rollout_each(rows, n, raw, rollout_id, rep, e);

    if (rc) {
        return rc;
    }
    exact_init(&sum);
    for (int64_t j = 0; j < n; j++) {
        if (rep[j] == j) {
            exact_add_f32(&sum, raw[rows[j]]);
            count++;
        }
    }
    mean = (float)(exact_value(&sum) / (double)count);
    if (o->estimator == ADV_RLOO && count > 1) {
        others = (double)count / (double)(count - 1);
    }
    if (divides(o) && count > 1) {
        exact_init(&sq);
        for (int64_t j = 0; j < n; j++) {
            if (rep[j] == j) {
                float c = raw[rows[j]] - mean;
                exact_add_mul_f32(&sq, c, c);
            }
        }
        sd = (float)exact_sqrt(exact_value(&sq) / (double)(count - 1));
    }
    for (int64_t j = 0; j < n; j++) {
        float c = (float)(others * (double)(raw[rows[j]] - mean));
        out[rows[j]] = sd > 0 ? c / (sd + 1e-6f) : c;
    }
    return 0;
}

int adv_rewards(const struct adv_reward_opts *o, int64_t n, const float *raw,
                const int64_t *group_index, const int64_t *rollout_id, float *out, struct err *e)
{
    struct groups g;
    float *shaped;
    int64_t *rep;
    int rc = 0;

    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(raw[i])) {
            return ERR(e, STATUS_INPUT, "the reward of sample %lld is not finite", (long long)i);
        }
    }
    if (!o->normalize || o->estimator == ADV_REINFORCE_PP || o->estimator == ADV_PPO) {
        memmove(out, raw, (size_t)n * sizeof *out);
        return 0;
    }
    groups_init(&g, o, n, group_index);
    shaped = mem_alloc((size_t)(n + 1) * sizeof *shaped);
    rep = mem_alloc((size_t)(n + 1) * sizeof *rep);
    for (int64_t k = 0; k < g.n && rc == 0; k++) {
        rc = one_group(o, g.order + g.start[k], g.start[k + 1] - g.start[k], raw, rollout_id,
                       shaped, rep, e);
    }
    if (rc == 0) {
        memcpy(out, shaped, (size_t)n * sizeof *out);
    }
    mem_free(rep);
    mem_free(shaped);
    groups_fini(&g);
    return rc;
}

static int active(const struct adv_sample *s, int64_t t)
{
    return !s->mask || s->mask[t];
}

static float shaping(const struct adv_opts *o, const struct adv_sample *s, int64_t t)
{
    return s->kl && o->kl_coef != 0 ? -o->kl_coef * s->kl[t] : 0.0f;
}

/* Discounted returns over the whole response; the reward sits on the last active token. */
static int fill_reinforce_pp(const struct adv_opts *o, const struct adv_sample *s, struct err *e)
{
    int64_t last = s->len - 1;
    float g = 0;

    while (last >= 0 && !active(s, last)) {
        last--;
    }
    if (last < 0) {
        return ERR(e, STATUS_INPUT,
                   "reinforce_plus_plus needs an active token in every sample, one has none");
    }
    for (int64_t t = s->len - 1; t >= 0; t--) {
        float q = shaping(o, s, t);
        if (t == last) {
            q += s->reward;
        }
        g = q + o->gamma * g;
        s->adv[t] = g;
    }
    return 0;
}

/* Generalised advantage estimation over the active tokens only: a masked gap of any length costs
 * one factor gamma * lambda, and nothing is bootstrapped behind the last token. */
static int fill_ppo(const struct adv_opts *o, const struct adv_sample *s, struct err *e)
{
    float carry = 0, next_value = 0;
    int last = 1;

    if (!s->values && s->len) {
        return ERR(e, STATUS_INPUT, "ppo advantages need values");
    }
    for (int64_t t = s->len - 1; t >= 0; t--) {
        float q, delta;
        if (!active(s, t)) {
            s->adv[t] = 0;
            if (s->returns) {
                s->returns[t] = 0;
            }
            continue;
        }
        q = shaping(o, s, t) + (last ? s->reward : 0.0f);
        last = 0;
        delta = q + o->gamma * next_value - s->values[t];
        carry = delta + o->gamma * o->lambd * carry;
        next_value = s->values[t];
        s->adv[t] = carry;
        if (s->returns) {
            s->returns[t] = carry + s->values[t];
        }
    }
    return 0;
}

int adv_fill(const struct adv_opts *o, const struct adv_sample *s, struct err *e)
{
    int rc = 0;

    switch (o->estimator) {
    case ADV_GRPO:
    case ADV_GSPO:
    case ADV_DR_GRPO:
    case ADV_RLOO:
    case ADV_CISPO:
        for (int64_t t = 0; t < s->len; t++) {
            s->adv[t] = s->reward;
        }
        break;
    case ADV_REINFORCE_PP_BASELINE:
        for (int64_t t = 0; t < s->len; t++) {
            s->adv[t] = s->reward + shaping(o, s, t);
        }
        break;
    case ADV_REINFORCE_PP: rc = fill_reinforce_pp(o, s, e); break;
    case ADV_PPO: return fill_ppo(o, s, e);
    }
    if (rc == 0 && s->returns && s->len) {
        memcpy(s->returns, s->adv, (size_t)s->len * sizeof *s->returns);
    }
    return rc;
}

int adv_distil(const struct adv_sample *s, const float *own, const float *teacher, float coef,
               double *mean, struct err *e)
{
    struct exact sum;
    int64_t n = 0;

    exact_init(&sum);
    for (int64_t t = 0; t < s->len; t++) {
        float d = own[t] - teacher[t];
        if (!isfinite(d)) {
            return ERR(e, STATUS_NUMERIC,
                       "a log-prob of the teacher or of the policy is not finite");
        }
        s->adv[t] -= coef * d;
        if (active(s, t)) {
            exact_add_f32(&sum, d);
            n++;
        }
    }
    *mean = n ? exact_value(&sum) / (double)n : 0.0;
    return 0;
}

/* The variance comes from exact sums in doubles; what rounding leaves below zero is zero. */
int adv_whiten(const struct adv_sample *s, int64_t n, struct err *e)
{
    struct exact s1, s2;
    int64_t count = 0;
    double mean, var, sd;

    exact_init(&s1);
    exact_init(&s2);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t t = 0; t < s[i].len; t++) {
            if (active(&s[i], t)) {
                exact_add_f32(&s1, s[i].adv[t]);
                exact_add_mul_f32(&s2, s[i].adv[t], s[i].adv[t]);
                count++;
            }
        }
    }
    if (count == 0) {
        return ERR(e, STATUS_INPUT, "no active token in the batch: advantages cannot be whitened");
    }
    if (exact_status(&s1) || exact_status(&s2)) {
        return ERR(e, STATUS_NUMERIC, "an advantage is not finite");
    }
    mean = exact_value(&s1) / (double)count;
    var = exact_value(&s2) / (double)count - mean * mean;
    if (count >= 2) {
        var = var * (double)count / (double)(count - 1);
    }
    sd = exact_sqrt((var > 0 ? var : 0) + 1e-8);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t t = 0; t < s[i].len; t++) {
            s[i].adv[t] = (float)(((double)s[i].adv[t] - mean) / sd);
        }
    }
    return 0;
}

float adv_overlong(int64_t len, int64_t max, int64_t buffer, float factor)
{
    int64_t over = len - (max - buffer);
    if (over <= 0 || buffer <= 0) {
        return 0;
    }
    return over >= buffer ? -factor : -(float)((double)over / (double)buffer * (double)factor);
}

int adv_zero_std(const float *reward, int64_t n)
{
    for (int64_t i = 1; i < n; i++) {
        if (reward[i] != reward[0]) {
            return 0;
        }
    }
    return 1;
}
