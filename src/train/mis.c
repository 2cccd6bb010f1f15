/* Owns the weights of masked importance sampling, their rejection rules and their metrics. A
 * response is looked at once for its sums; each token's weight follows from these, so no array of
 * weights is kept and a micro-batch needs no memory for them. */
#include "train/mis.h"

#include <float.h>
#include <math.h>
#include <stddef.h>

#include "num/vmath.h"
#include "train/loss.h"

#define MIS_LOG_MAX  20.0f /* bound of a log-ratio before exp */
#define MIS_MEAN_MIN 1e-8  /* a smaller mean does not divide */

const char *mis_metric_name(enum mis_metric m)
{
    static const char *const names[MIS_NMETRICS] = {"mis_training_log_ppl",
                                                    "mis_training_ppl",
                                                    "mis_rollout_log_ppl",
                                                    "mis_rollout_ppl",
                                                    "mis_kl",
                                                    "mis_k3_kl",
                                                    "mis_log_ppl_diff",
                                                    "mis_log_ppl_abs_diff",
                                                    "mis_ppl_ratio",
                                                    "mis_chi2_token",
                                                    "mis_chi2_seq",
                                                    "mis_tis_weight_before_bound",
                                                    "mis_tis_truncate_fraction",
                                                    "mis_tis_clip_fraction_low",
                                                    "mis_tis_clip_fraction_high",
                                                    "mis_tis_mask_fraction_low",
                                                    "mis_tis_mask_fraction_high",
                                                    "mis_tis_weight_after_bound",
                                                    "mis_rs_mask_fraction_low",
                                                    "mis_rs_mask_fraction_high",
                                                    "mis_rs_catastrophic_token_fraction",
                                                    "mis_rs_catastrophic_seq_fraction",
                                                    "mis_is_ratio_mean_after_tis_rs",
                                                    "mis_batch_norm_factor",
                                                    "mis_is_ratio_mean_final",
                                                    "mis_is_ratio_min_final",
                                                    "mis_is_ratio_max_final"};
    return names[m];
}

int mis_metric_present(const struct mis_opts *o, enum mis_metric m)
{
    if (o->observe) {
        return m <= MIS_CHI2_SEQ;
    }
    switch (m) {
    case MIS_TRUNCATE_FRACTION: return o->mode == MIS_TRUNCATE;
    case MIS_CLIP_LOW:
    case MIS_CLIP_HIGH: return o->mode == MIS_CLIP;
    case MIS_MASK_LOW:
    case MIS_MASK_HIGH: return o->mode == MIS_MASK;
    case MIS_RS_LOW:
    case MIS_RS_HIGH: return o->rs;
    case MIS_VETO_TOKEN:
    case MIS_VETO_SEQ: return o->rs && o->veto > 0;
    case MIS_NORM_FACTOR: return o->normalize;
    default: return 1;
    }
}

/* ---- one response ---- */

static int mis_on(const struct mis_seq *q, int64_t t)
{
    return !q->mask || q->mask[t];
}

/* A sum that knows infinities: exact for finite terms, else what adding in any order gives. */
struct mis_sum {
    struct exact x;
    int64_t up, down, undefined;
};

static void mis_sum_add(struct mis_sum *s, float v)
{
    if (isnan(v)) {
        s->undefined++;
    } else if (isinf(v)) {
        s->up += v > 0;
        s->down += v < 0;
    } else {
        exact_add_f32(&s->x, v);
    }
}

static double mis_sum_value(const struct mis_sum *s)
{
    if (s->undefined || (s->up && s->down)) {
        return NAN;
    }
    return s->up ? INFINITY : s->down ? -INFINITY : exact_value(&s->x);
}

void mis_seq_init(struct mis_seq *q, const struct mis_opts *o, int64_t len, const uint8_t *mask,
                  const float *train, const float *roll, double mean)
{
    struct mis_sum diff = {0}, a = {0}, b = {0};

    *q = (struct mis_seq){.o = o,
                          .mask = mask,
                          .train = train,
                          .roll = roll,
                          .len = len,
                          .mean = mean,
                          .veto_log = o->veto > 0 ? vmath_logf(o->veto) : -INFINITY};
    exact_init(&diff.x);
    exact_init(&a.x);
    exact_init(&b.x);
    for (int64_t t = 0; t < len; t++) {
        float x;
        if (!mis_on(q, t)) {
            continue;
        }
        x = train[t] - roll[t];
        q->n++;
        q->vetoes += x < q->veto_log;
        mis_sum_add(&diff, x);
        mis_sum_add(&a, train[t]);
        mis_sum_add(&b, roll[t]);
    }
    q->undefined = diff.undefined;
    q->sum = mis_sum_value(&diff);
    q->train_mean = mis_sum_value(&a) / (double)(q->n ? q->n : 1);
    q->roll_mean = mis_sum_value(&b) / (double)(q->n ? q->n : 1);
}

/* The ratio of token t at a level, its logarithm bounded; NaN where it is undefined. */
static float mis_ratio(const struct mis_seq *q, enum mis_level level, int64_t t)
{
    float x = level == MIS_TOKEN      ? q->train[t] - q->roll[t]
              : level == MIS_SEQUENCE ? (float)q->sum
                                      : (float)(q->sum / (double)(q->n ? q->n : 1));
    if (isnan(x)) {
        return x;
    }
    return vmath_expf(x < -MIS_LOG_MAX ? -MIS_LOG_MAX : x > MIS_LOG_MAX ? MIS_LOG_MAX : x);
}

/* The weight that the bounds make of a ratio. */
static float mis_bound(const struct mis_opts *o, float ratio)
{
    if (isnan(ratio)) {
        return 0;
    }
    if (o->mode != MIS_MASK && ratio > o->hi) {
        return o->hi;
    }
    return o->mode == MIS_CLIP && ratio < o->lo ? o->lo : ratio;
}

static int mis_within(float x, float lo, float hi)
{
    return x >= lo && x <= hi; /* false for a NaN */
}

static float mis_final(const struct mis_seq *q, int64_t t)
{
    return (float)((double)mis_bound(q->o, mis_ratio(q, q->o->level, t)) / q->mean);
}

float mis_seq_weight(const struct mis_seq *q, int64_t t, int *keep)
{
    const struct mis_opts *o = q->o;
    float ratio;

    *keep = 1;
    if (o->observe) {
        return 1;
    }
    ratio = mis_ratio(q, o->level, t);
    if (isnan(ratio) || (o->mode == MIS_MASK && !mis_within(ratio, o->lo, o->hi))) {
        *keep = 0;
    }
    if (o->rs && (q->vetoes || !mis_within(mis_ratio(q, o->rs_level, t), o->rs_lo, o->rs_hi))) {
        *keep = 0;
    }
    return mis_final(q, t);
}

/* ---- metrics ---- */

/* Adds a term. What is no number is left out (loss counts it); what no float holds counts as the
 * largest, so that one token makes a figure huge and never null. */
static void mis_put_times(struct exact *sum, double v, double times, double divisor)
{
    if (!isnan(v)) {
        v = v > (double)FLT_MAX ? (double)FLT_MAX : v < -(double)FLT_MAX ? -(double)FLT_MAX : v;
        exact_add(sum, v * times / divisor);
    }
}

static void mis_put(struct exact *sum, double v, double divisor)
{
    mis_put_times(sum, v, 1, divisor);
}

/* A response's own figure: as if each of its active tokens had it. */
static void mis_put_seq(const struct mis_seq *q, struct exact *sum, double v, double divisor)
{
    mis_put_times(sum, v, (double)q->n, divisor);
}

static double mis_exp(double x)
{
    return isnan(x) ? x : vmath_exp(x);
}

/* e^(2 x) - 1 with x bounded. */
static double mis_chi2(double x)
{
    double max = (double)MIS_LOG_MAX;
    return mis_exp(2.0 * (x < -max ? -max : x > max ? max : x)) - 1.0;
}

static void mis_mismatch_terms(const struct mis_seq *q, double divisor, struct exact *sums)
{
    double diff = q->roll_mean - q->train_mean;
    struct exact chi2;

    exact_init(&chi2);
    for (int64_t t = 0; t < q->len; t++) {
        if (mis_on(q, t)) {
            float x = q->train[t] - q->roll[t];
            mis_put(&sums[MIS_KL], (double)-x, divisor);
            mis_put(&sums[MIS_K3_KL], loss_k3((double)x), divisor);
            mis_put(&chi2, mis_chi2((double)x), 1);
        }
    }
    mis_put_seq(q, &sums[MIS_TRAINING_LOG_PPL], -q->train_mean, divisor);
    mis_put_seq(q, &sums[MIS_TRAINING_PPL], mis_exp(-q->train_mean), divisor);
    mis_put_seq(q, &sums[MIS_ROLLOUT_LOG_PPL], -q->roll_mean, divisor);
    mis_put_seq(q, &sums[MIS_ROLLOUT_PPL], mis_exp(-q->roll_mean), divisor);
    mis_put_seq(q, &sums[MIS_LOG_PPL_DIFF], diff, divisor);
    mis_put_seq(q, &sums[MIS_LOG_PPL_ABS_DIFF], fabs(diff), divisor);
    mis_put_seq(q, &sums[MIS_PPL_RATIO], mis_exp(diff), divisor);
    mis_put_seq(q, &sums[MIS_CHI2_TOKEN], exact_value(&chi2) / (double)(q->n ? q->n : 1), divisor);
    mis_put_seq(q, &sums[MIS_CHI2_SEQ], mis_chi2(q->sum), divisor);
}

/* Shares of ratios outside the bounds, as the mode has them. */
static void mis_bound_terms(const struct mis_seq *q, int64_t t, double divisor, struct exact *sums)
{
    const struct mis_opts *o = q->o;
    float ratio = mis_ratio(q, o->level, t);
    int low = ratio<o->lo, high = ratio> o->hi;

    mis_put(&sums[MIS_WEIGHT_BEFORE], (double)ratio, divisor);
    mis_put(&sums[MIS_WEIGHT_AFTER], (double)mis_bound(o, ratio), divisor);
    mis_put(&sums[MIS_RATIO_MEAN], (double)mis_bound(o, ratio), divisor);
    if (o->mode == MIS_TRUNCATE) {
        mis_put(&sums[MIS_TRUNCATE_FRACTION], high, divisor);
    } else {
        mis_put(&sums[o->mode == MIS_CLIP ? MIS_CLIP_LOW : MIS_MASK_LOW], low, divisor);
        mis_put(&sums[o->mode == MIS_CLIP ? MIS_CLIP_HIGH : MIS_MASK_HIGH], high, divisor);
    }
    if (o->rs) {
        ratio = mis_ratio(q, o->rs_level, t);
        mis_put(&sums[MIS_RS_LOW], ratio < o->rs_lo, divisor);
        mis_put(&sums[MIS_RS_HIGH], ratio > o->rs_hi, divisor);
    }
}

void mis_seq_terms(const struct mis_seq *q, double divisor, struct exact sums[MIS_NMETRICS])
{
    struct exact final;
    float min = INFINITY, max = -INFINITY;

    mis_mismatch_terms(q, divisor, sums);
    if (q->o->observe || !q->n) {
        return;
    }
    exact_init(&final);
    for (int64_t t = 0; t < q->len; t++) {
        if (mis_on(q, t)) {
            float w = mis_final(q, t);
            mis_bound_terms(q, t, divisor, sums);
            exact_add_f32(&final, w);
            min = w < min ? w : min;
            max = w > max ? w : max;
        }
    }
    if (q->o->rs && q->o->veto > 0) {
        mis_put(&sums[MIS_VETO_TOKEN], (double)q->vetoes, divisor);
        mis_put_seq(q, &sums[MIS_VETO_SEQ], q->vetoes > 0, divisor);
    }
    if (q->o->normalize) {
        mis_put_seq(q, &sums[MIS_NORM_FACTOR], q->mean, divisor);
    }
    mis_put(&sums[MIS_FINAL_MEAN], exact_value(&final), divisor);
    mis_put_seq(q, &sums[MIS_FINAL_MIN], (double)min, divisor);
    mis_put_seq(q, &sums[MIS_FINAL_MAX], (double)max, divisor);
}

/* ---- the mean of a step ---- */

void mis_mean_init(struct mis_mean *m)
{
    exact_init(&m->sum);
    m->count = 0;
}

void mis_mean_add(struct mis_mean *m, const struct mis_opts *o, int64_t len, const uint8_t *mask,
                  const float *train, const float *roll)
{
    struct mis_seq q;

    mis_seq_init(&q, o, len, mask, train, roll, 1);
    if (o->level != MIS_TOKEN) {
        exact_add(&m->sum, q.n ? (double)mis_final(&q, 0) : 0.0);
        m->count++;
        return;
    }
    for (int64_t t = 0; t < len; t++) {
        if (mis_on(&q, t)) {
            exact_add_f32(&m->sum, mis_final(&q, t));
        }
    }
    m->count += q.n;
}

double mis_mean_value(const struct mis_mean *m)
{
    double mean = exact_value(&m->sum) / (double)(m->count ? m->count : 1);
    return mean > MIS_MEAN_MIN ? mean : 1.0;
}
