/* Owns the policy-gradient objective: each formula stands here once, with its derivative beside it.
 *
 * A token's contribution depends on its own sample and on the step's divisor only. Each is divided
 * first and summed exactly afterwards, so neither the micro-batch nor the rank it ran on shows in
 * the loss, the gradient or a metric. Masked tokens are left out rather than multiplied by zero: a
 * NaN there reaches nothing. */
#include "train/loss.h"

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/status.h"
#include "num/vmath.h"

#define LOG_RATIO_MAX 20.0f
#define LOW_VAR_MAX   10.0f

static float clampf(float x, float lo, float hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

static int on(const uint8_t *mask, int64_t t)
{
    return !mask || mask[t];
}

static int64_t count_active(const uint8_t *mask, int64_t len)
{
    int64_t n = 0;
    for (int64_t t = 0; t < len; t++) {
        n += on(mask, t);
    }
    return n;
}

int64_t loss_norm_tokens(const uint8_t *mask, int64_t len)
{
    int64_t n = count_active(mask, len);
    return n > 1 ? n : 1;
}

void loss_sums_init(struct loss_sums *s)
{
    memset(s, 0, sizeof *s);
}

void loss_sums_merge(struct loss_sums *s, const struct loss_sums *other)
{
    for (int i = 0; i < LOSS_NMETRICS; i++) {
        exact_merge(&s->sum[i], &other->sum[i]);
    }
    s->max_diff = other->max_diff > s->max_diff ? other->max_diff : s->max_diff;
    s->compared += other->compared;
    s->samples += other->samples;
    s->tokens += other->tokens;
    s->sanitised += other->sanitised;
    s->has_roll |= other->has_roll;
}

/* --- formulas --- */

/* nan -> 0, then into [-20, 20]; *inside tells whether the derivative passes. */
static float clamp_log_ratio(float x, int *inside)
{
    if (isnan(x)) {
        *inside = 0;
        return 0;
    }
    *inside = x >= -LOG_RATIO_MAX && x <= LOG_RATIO_MAX;
    return clampf(x, -LOG_RATIO_MAX, LOG_RATIO_MAX);
}

/* Value w * k(d); *d_const is its derivative in d with w constant, *d_ratio its derivative in log w
 * (w itself grows with logp when the ratio is not detached). */
static float kl_core(enum loss_kl type, float d, float w, float *d_const, float *d_ratio)
{
    float k = d, dk = 1, u, value;
    int inside;

    switch (type) {
    case LOSS_K1: break;
    case LOSS_K2:
        k = 0.5f * (d * d);
        dk = d;
        break;
    case LOSS_K3:
        u = vmath_expf(-d);
        k = u - 1.0f + d;
        dk = 1.0f - u;
        break;
    case LOSS_LOW_VAR_KL: {
        float t = clamp_log_ratio(-d, &inside);
        u = vmath_expf(t);
        k = u - 1.0f - t;
        dk = inside ? 1.0f - u : 0.0f;
        value = clampf(w * k, -LOW_VAR_MAX, LOW_VAR_MAX);
        inside = value == w * k;
        *d_const = inside ? w * dk : 0.0f;
        *d_ratio = inside ? w * k : 0.0f;
        return value;
    }
    }
    *d_const = w * dk;
    *d_ratio = w * k;
    return w * k;
}

float loss_kl(enum loss_kl type, float logp, float base, float ratio, float *dlogp)
{
    float d_const, d_ratio;
    float v = kl_core(type, logp - base, ratio, &d_const, &d_ratio);
    if (dlogp) {
        *dlogp = d_const;
    }
    return v;
}

/* In doubles: at differences of 1e-4, which matter here, e^x - 1 - x is less than a float's
 * rounding of 1. */
double loss_k3(double x)
{
    double k;
    if (isnan(x) || x > 709.0) {
        return isnan(x) ? x : HUGE_VAL;
    }
    k = vmath_exp(x) - 1.0 - x;
    return k < 0.0 ? 0.0 : k;
}

double loss_rollout_kl(float train, float roll)
{
    int inside;
    double k = loss_k3((double)clamp_log_ratio(train - roll, &inside));
    return k > (double)LOW_VAR_MAX ? (double)LOW_VAR_MAX : k;
}

float loss_ppo_token(const struct loss_opts *o, float k, float adv, float *ratio, int *clipped,
                     float *d)
{
    int inside;
    float r = vmath_expf(clamp_log_ratio(-k, &inside));
    float l1 = -r * adv;
    float l2 = -clampf(r, 1.0f - o->eps_clip, 1.0f + o->eps_clip_high) * adv;
    float l = l1 > l2 ? l1 : l2;
    float grad = l1 >= l2 && inside ? l1 : 0.0f; /* d r / d logp = r */

    if (o->eps_clip_c > 0 && adv < 0 && -o->eps_clip_c * adv < l) {
        l = -o->eps_clip_c * adv;
        grad = 0;
    }
    if (ratio) {
        *ratio = r;
    }
    if (clipped) {
        *clipped = l2 > l1;
    }
    if (d) {
        *d = grad;
    }
    return l;
}

float loss_cispo_token(const struct loss_opts *o, float k, float logp, float adv, int *clipped,
                       float *d)
{
    int inside;
    float r = vmath_expf(clamp_log_ratio(-k, &inside));
    float w = clampf(r, 1.0f - o->eps_clip, 1.0f + o->eps_clip_high);

    if (clipped) {
        *clipped = w != r;
    }
    if (d) {
        *d = -w * adv;
    }
    return -w * adv * logp;
}

float loss_value_token(float v, float u, float g, float clip, int *clipped, float *d)
{
    float plain = (v - g) * (v - g), near, held;

    *clipped = fabsf(v - u) > clip;
    *d = 2.0f * (v - g);
    if (!*clipped) { /* u + (v - u) need not be v in floats: nothing is held back here */
        return plain;
    }
    near = u + clampf(v - u, -clip, clip);
    held = (near - g) * (near - g);
    if (plain >= held) {
        return plain;
    }
    *d = 0.0f; /* the held value stands still */
    return held;
}

/* --- one sample --- */

/* What a sample's loop needs beside its arrays. */
struct frame {
    const struct loss_opts *o;
    const struct loss_sample *s;
    struct loss_sums *sums;
    const uint8_t *mask; /* original */
    const float *old;    /* old policy: given, or the current one detached */
    const float *train;  /* the trainer's side of the correction */
    const float *seen;   /* the trainer's side of the mismatch; NULL: nothing to compare */
    struct mis_seq mis;
    int64_t n;       /* active tokens, at least 1 */
    double denom;    /* divisor of this sample's metric terms */
    double pg_denom; /* the same of its policy loss */
    float a;         /* dJ / d(term of an active token) */
    float pg_a;      /* the same for the policy loss */
    double per_step; /* 1 over the step's rollouts or tokens */
    float seq_k;     /* token-averaged log-ratio of the sequence */
    int seq_ok;      /* 0 when it was not finite and counts as zero */
    float drift;     /* the same as it is: infinite where it is, NaN where it is undefined */
};

static void add_term(struct frame *f, enum loss_metric m, float x)
{
    exact_add(&f->sums->sum[m], (double)x / f->denom);
}

/* A ratio's term: one that no float holds counts as the largest, which makes the figure huge and
 * never null. */
static void add_ratio(struct frame *f, enum loss_metric m, float x)
{
    add_term(f, m, x > FLT_MAX ? FLT_MAX : x);
}

/* Mean of old - logp over the active tokens. */
static void sequence_ratio(struct frame *f)
{
    struct exact x;
    float odd = 0; /* sum of the terms that are not finite */
    exact_init(&x);
    for (int64_t t = 0; t < f->s->len; t++) {
        float k = f->old[t] - f->s->logp[t];
        if (on(f->mask, t) && isfinite(k)) {
            exact_add_f32(&x, k);
        } else if (on(f->mask, t)) {
            odd += k;
        }
    }
    f->drift = (float)(exact_value(&x) / (double)f->n) + odd;
    f->seq_ok = isfinite(f->drift) != 0;
    f->seq_k = f->seq_ok ? f->drift : 0.0f;
}

/* Log-ratio of an active token, sanitised; *ok is 0 where the input was not finite. */
static float token_k(const struct frame *f, int64_t t, int *ok)
{
    float k;
    if (f->o->gspo) {
        *ok = f->seq_ok;
        return f->seq_k;
    }
    k = f->old[t] - f->s->logp[t];
    *ok = isfinite(k) != 0;
    return *ok ? k : 0.0f;
}

/* Importance weight of one token and its metrics (original masks). */
static float tis_weight(struct frame *f, int64_t t)
{
    const struct loss_opts *o = f->o;
    float x = f->train[t] - f->s->roll[t], q, w;

    if (isnan(x)) {
        f->sums->sanitised++;
        return 0;
    }
    q = vmath_expf(x);
    w = clampf(q, o->tis_clip_low, o->tis_clip);
    if (o->tis == LOSS_TIS_ICEPOP && w != q) {
        w = 0;
    }
    add_ratio(f, LOSS_TIS, q);
    add_term(f, LOSS_TIS_CLIPFRAC, w != q);
    add_ratio(f, LOSS_TIS_ABS, fabsf(q - 1.0f));
    return w;
}

/* The weight that the correction gives an active token; *keep is 0 when it rejects it. */
static float correction(struct frame *f, int64_t t, int *keep)
{
    const struct loss_sample *s = f->s;
    float w = 1;

    *keep = on(s->weight_mask, t);
    if (s->weight) {
        return s->weight[t];
    }
    if (f->o->tis == LOSS_TIS_MIS) {
        f->sums->sanitised += isnan(f->train[t] - s->roll[t]);
        return mis_seq_weight(&f->mis, t, keep);
    }
    if (f->o->tis) {
        w = tis_weight(f, t);
    }
    return f->o->tis_observe ? 1.0f : w;
}

/* The KL term of one token: adds its metric and returns its derivative in logp. */
static float kl_term(struct frame *f, int64_t t)
{
    const struct loss_opts *o = f->o;
    float logp = f->s->logp[t], w = 1, d_const, d_ratio, v, d;

    if (o->unbiased_kl) {
        w = vmath_expf(logp - f->old[t]);
    }
    v = kl_core(o->kl_loss_type, logp - f->s->ref[t], w, &d_const, &d_ratio);
    d = d_const + (o->unbiased_kl ? d_ratio : 0.0f);
    if (!isfinite(v) || !isfinite(d)) {
        f->sums->sanitised++;
        return 0;
    }
    add_term(f, LOSS_KL_LOSS, v);
    return d;
}

static void rollout_terms(struct frame *f, int64_t t)
{
    float diff = fabsf(f->old[t] - f->s->roll[t]);
    if (!isnan(diff)) {
        add_ratio(f, LOSS_LOGPROB_ABS_DIFF, diff);
    }
    exact_add(&f->sums->sum[LOSS_ROLLOUT_KL], loss_rollout_kl(f->old[t], f->s->roll[t]) / f->denom);
}

/* The mismatch of one token, before any correction. */
static void mismatch_terms(struct frame *f, int64_t t)
{
    float d = fabsf(f->seen[t] - f->s->roll[t]);
    if (isnan(d)) {
        d = INFINITY;
    }
    f->sums->max_diff = d > f->sums->max_diff ? d : f->sums->max_diff;
    f->sums->compared++;
    exact_add(&f->sums->sum[LOSS_MISMATCH_KL], loss_rollout_kl(f->seen[t], f->s->roll[t]));
}

/* Metrics of an active token (original mask) that no correction touches. */
static void plain_terms(struct frame *f, int64_t t, float k)
{
    if (f->o->tis || f->s->weight) {
        add_ratio(f, LOSS_OIS, vmath_expf(-k));
    }
    if (f->seen) {
        mismatch_terms(f, t);
    }
}

/* Effective sample size of one sample: (sum w)^2 / (n sum w^2). */
static void ess_term(struct frame *f)
{
    struct exact w1, w2;
    double a, b, ess;

    exact_init(&w1);
    exact_init(&w2);
    for (int64_t t = 0; t < f->s->len; t++) {
        if (on(f->mask, t)) {
            int ok, inside;
            float w = vmath_expf(clamp_log_ratio(-token_k(f, t, &ok), &inside));
            exact_add_f32(&w1, w);
            exact_add_mul_f32(&w2, w, w);
        }
    }
    a = exact_value(&w1);
    b = exact_value(&w2);
    ess = a * a / ((double)f->n * (b > 1e-8 ? b : 1e-8));
    exact_add(&f->sums->sum[LOSS_ESS_RATIO], f->o->per_token ? ess * (double)f->n : ess);
}

/* OPSM: drops tokens of a sequence that drifted too far against a negative advantage. */
static int opsm_drop(const struct frame *f, int64_t t)
{
    return f->o->opsm && f->s->adv[t] < 0 && f->drift > f->o->opsm_delta;
}

/* dJ / d(policy term of token t). */
static float pg_scale(const struct frame *f, int64_t t)
{
    return f->s->coef ? (float)((double)f->s->coef[t] * f->per_step) : f->pg_a;
}

/* One active token: metrics, and d(objective term)/d logp without the scale a. *keep is 0 when a
 * correction rejected it: it has no part in the objective. */
static float policy_token(struct frame *f, int64_t t, int *keep)
{
    const struct loss_sample *s = f->s;
    int ok, clipped;
    float k = token_k(f, t, &ok);
    float adv = s->adv[t], w, l, d;

    if (!isfinite(adv)) {
        adv = 0;
        ok = 0;
    }
    f->sums->sanitised += !ok;
    plain_terms(f, t, k);
    w = correction(f, t, keep);
    if (!*keep) {
        return 0;
    }
    if (opsm_drop(f, t)) {
        w = 0;
    }
    l = f->o->cispo ? loss_cispo_token(f->o, k, ok ? s->logp[t] : 0.0f, adv, &clipped, &d)
                    : loss_ppo_token(f->o, k, adv, NULL, &clipped, &d);
    exact_add(&f->sums->sum[LOSS_PG_LOSS],
              s->coef ? (double)(l * w) * (double)s->coef[t] : (double)(l * w) / f->pg_denom);
    add_term(f, LOSS_PG_CLIPFRAC, (float)clipped);
    add_term(f, LOSS_PPO_KL, k);
    if (s->roll) {
        rollout_terms(f, t);
    }
    return ok ? d * w : 0.0f;
}

/* dJ/dH and the entropy's sum. */
static void entropy_token(struct frame *f, int64_t t)
{
    const struct loss_sample *s = f->s;
    if (s->entropy) {
        add_term(f, LOSS_ENTROPY_LOSS, s->entropy[t]);
    }
    if (s->dentropy) {
        s->dentropy[t] = -f->o->entropy_coef * f->a;
    }
}

static void policy_sample(struct frame *f)
{
    const struct loss_sample *s = f->s;
    const struct loss_opts *o = f->o;
    struct exact seq; /* gspo: all tokens move the one ratio */
    int64_t dropped = 0;

    exact_init(&seq);
    if (o->gspo || o->opsm) {
        sequence_ratio(f);
    }
    for (int64_t t = 0; t < s->len; t++) {
        float d;
        int keep;
        dropped += opsm_drop(f, t);
        if (!on(f->mask, t)) {
            continue;
        }
        d = policy_token(f, t, &keep);
        if (o->gspo) {
            exact_add_mul_f32(&seq, d, pg_scale(f, t));
        } else {
            s->dlogp[t] = d * pg_scale(f, t);
        }
        if (keep) {
            entropy_token(f, t);
        }
        if (keep && o->use_kl_loss) {
            s->dlogp[t] += o->kl_loss_coef * kl_term(f, t) * f->a;
        }
    }
    if (o->gspo) {
        float each = (float)(exact_value(&seq) / (double)f->n);
        for (int64_t t = 0; t < s->len; t++) {
            s->dlogp[t] += on(f->mask, t) ? each : 0.0f;
        }
    }
    if (o->tis == LOSS_TIS_MIS && !s->weight) {
        mis_seq_terms(&f->mis, f->denom, &f->sums->sum[LOSS_MIS]);
    }
    if (o->opsm) {
        exact_add(&f->sums->sum[LOSS_OPSM_CLIPFRAC], (double)dropped / (double)f->n);
    }
    ess_term(f);
}

static void sft_sample(struct frame *f)
{
    const struct loss_sample *s = f->s;
    for (int64_t t = 0; t < s->len; t++) {
        if (on(f->mask, t)) {
            add_term(f, LOSS_LOSS, -s->logp[t]);
            s->dlogp[t] = -f->a;
        }
    }
}

static void value_sample(struct frame *f)
{
    const struct loss_sample *s = f->s;
    for (int64_t t = 0; t < s->len; t++) {
        int clipped;
        float l, d;
        if (!on(f->mask, t)) {
            continue;
        }
        l = loss_value_token(s->logp[t], s->old[t], s->adv[t], f->o->value_clip, &clipped, &d);
        if (!isfinite(l)) {
            f->sums->sanitised++;
            continue;
        }
        add_term(f, LOSS_VALUE_LOSS, l);
        add_term(f, LOSS_VALUE_CLIPFRAC, (float)clipped);
        s->dlogp[t] = d * f->a;
    }
}

/* The derivatives that a function of the user's gave, with the step's divisor. */
static void custom_sample(struct frame *f)
{
    const struct loss_sample *s = f->s;
    for (int64_t t = 0; t < s->len; t++) {
        s->dlogp[t] = (float)((double)s->given_dlogp[t] * f->per_step);
        if (s->dentropy && s->given_dentropy) {
            s->dentropy[t] = (float)((double)s->given_dentropy[t] * f->per_step);
        }
    }
}

static int check(const struct loss_opts *o, const struct loss_step *st, const struct loss_sample *s,
                 struct err *e)
{
    if (st->rollouts < 1 || (o->per_token && st->tokens < 1)) {
        return ERR(e, STATUS_INPUT, "a step of %lld rollouts and %lld tokens",
                   (long long)st->rollouts, (long long)st->tokens);
    }
    if (s->len < 0 || s->denom < 0 || (s->len && (!s->logp || !s->dlogp))) {
        return ERR(e, STATUS_INPUT, "a sample of %lld tokens without log-probs", (long long)s->len);
    }
    if (o->type == LOSS_SFT || s->len == 0) {
        return 0;
    }
    if (o->type == LOSS_CUSTOM) {
        return s->given_dlogp ? 0 : ERR(e, STATUS_INPUT, "the custom loss gave no derivatives");
    }
    if (o->type == LOSS_VALUE) {
        return s->old && s->adv
                   ? 0
                   : ERR(e, STATUS_INPUT, "the value loss needs returns and the values before");
    }
    if (!s->adv) {
        return ERR(e, STATUS_INPUT, "the policy loss needs advantages");
    }
    if (o->use_kl_loss && !s->ref) {
        return ERR(e, STATUS_INPUT, "the kl loss needs the reference's log-probs");
    }
    if (o->tis && !s->roll) {
        return ERR(e, STATUS_INPUT, "tis needs the rollout's log-probs");
    }
    if (o->entropy_coef != 0 && (!s->entropy || !s->dentropy)) {
        return ERR(e, STATUS_INPUT,
                   "the entropy bonus needs entropies and room for their gradient");
    }
    return 0;
}

/* What the rollout's log-probs are held against, and the sample's weights. */
static void rollout_side(struct frame *f, const struct loss_step *st)
{
    const struct loss_sample *s = f->s;

    f->train = s->train ? s->train : f->old;
    if (s->roll && s->len) {
        f->seen = f->train != s->roll ? f->train : s->on_policy ? s->logp : NULL;
    }
    if (f->o->tis == LOSS_TIS_MIS) {
        mis_seq_init(&f->mis, &f->o->mis, s->len, s->mask, f->train, s->roll,
                     st->mis_mean > 0 ? st->mis_mean : 1.0);
    }
}

int loss_sample(const struct loss_opts *o, const struct loss_step *st, const struct loss_sample *s,
                struct loss_sums *sums, struct err *e)
{
    struct frame f = {.o = o, .s = s, .sums = sums, .mask = s->mask};
    int64_t n, divisor;
    int rc = check(o, st, s, e);

    if (rc) {
        return rc;
    }
    n = count_active(s->mask, s->len);
    f.n = n > 1 ? n : 1;
    f.old = s->old ? s->old : s->logp;
    divisor = s->denom ? s->denom : f.n;
    f.denom = o->per_token ? 1.0 : (double)divisor;
    f.pg_denom = !o->per_token && o->divisor > 0 ? o->divisor : f.denom;
    f.a = (float)(1.0 / (f.denom * (double)(o->per_token ? st->tokens : st->rollouts)));
    f.per_step = 1.0 / (double)(o->per_token ? st->tokens : st->rollouts);
    f.pg_a = (float)(1.0 / (f.pg_denom * (double)(o->per_token ? st->tokens : st->rollouts)));
    if (s->len) {
        memset(s->dlogp, 0, (size_t)s->len * sizeof *s->dlogp);
        if (s->dentropy) {
            memset(s->dentropy, 0, (size_t)s->len * sizeof *s->dentropy);
        }
    }
    if (o->type == LOSS_SFT) {
        sft_sample(&f);
    } else if (o->type == LOSS_VALUE) {
        value_sample(&f);
    } else if (o->type == LOSS_CUSTOM) {
        custom_sample(&f);
    } else {
        sums->has_roll |= s->roll != NULL;
        rollout_side(&f, st);
        policy_sample(&f);
    }
    sums->samples++;
    sums->tokens += n;
    return 0;
}

/* --- metrics --- */

const char *loss_metric_name(enum loss_metric m)
{
    static const char *const names[LOSS_MIS] = {"loss",
                                                "pg_loss",
                                                "entropy_loss",
                                                "pg_clipfrac",
                                                "ppo_kl",
                                                "ess_ratio",
                                                "train_rollout_logprob_abs_diff",
                                                "train_rollout_kl",
                                                "kl_loss",
                                                "ois",
                                                "tis",
                                                "tis_clipfrac",
                                                "tis_abs",
                                                "opsm_clipfrac",
                                                "value_loss",
                                                "value_clipfrac",
                                                "mismatch_kl",
                                                "forward_logp_max_diff_inexact"};
    return m >= LOSS_MIS ? mis_metric_name((enum mis_metric)(m - LOSS_MIS)) : names[m];
}

static int present(const struct loss_opts *o, const struct loss_sums *s, enum loss_metric m)
{
    if (o->type == LOSS_SFT) {
        return m == LOSS_LOSS;
    }
    if (o->type == LOSS_CUSTOM) {
        return 0; /* the function has its own */
    }
    if (o->type == LOSS_VALUE) {
        return m == LOSS_VALUE_LOSS || m == LOSS_VALUE_CLIPFRAC;
    }
    if (m >= LOSS_MIS) {
        return o->tis == LOSS_TIS_MIS &&
               mis_metric_present(&o->mis, (enum mis_metric)(m - LOSS_MIS));
    }
    switch (m) {
    case LOSS_LOGPROB_ABS_DIFF:
    case LOSS_ROLLOUT_KL: return s->has_roll;
    case LOSS_MISMATCH_KL:
    case LOSS_MAX_DIFF: return s->compared > 0;
    case LOSS_KL_LOSS: return o->use_kl_loss;
    case LOSS_OIS: return o->tis != LOSS_TIS_OFF;
    case LOSS_TIS:
    case LOSS_TIS_CLIPFRAC:
    case LOSS_TIS_ABS: return o->tis == LOSS_TIS_TRUNCATE || o->tis == LOSS_TIS_ICEPOP;
    case LOSS_OPSM_CLIPFRAC: return o->opsm;
    case LOSS_VALUE_LOSS:
    case LOSS_VALUE_CLIPFRAC: return 0;
    default: return 1;
    }
}

int loss_metric(const struct loss_opts *o, const struct loss_step *st, const struct loss_sums *s,
                enum loss_metric m, double *value)
{
    double norm = (double)(o->per_token ? st->tokens : st->rollouts);
    double v;

    if (!present(o, s, m)) {
        return 0;
    }
    if (m == LOSS_MAX_DIFF) {
        *value = (double)s->max_diff;
        return 1;
    }
    if (m == LOSS_MISMATCH_KL) {
        *value = exact_value(&s->sum[m]) / (double)s->compared;
        return 1;
    }
    if (m == LOSS_LOSS && o->type != LOSS_SFT) {
        v = exact_value(&s->sum[LOSS_PG_LOSS]);
        if (o->entropy_coef != 0) {
            v -= (double)o->entropy_coef * exact_value(&s->sum[LOSS_ENTROPY_LOSS]);
        }
        if (o->use_kl_loss) {
            v += (double)o->kl_loss_coef * exact_value(&s->sum[LOSS_KL_LOSS]);
        }
    } else {
        v = exact_value(&s->sum[m]);
    }
    *value = v / norm;
    return 1;
}
