/* The policy loss: value, gradient with respect to each token's log-prob, and metric sums (rl-math
 * 4, 7, 8, 8b, 10, 11). One call handles one sample; nothing in it depends on the other samples,
 * and the sums are exact, so micro-batching and order never change a bit (contract C4).
 *
 *     struct loss_step st = {.rollouts = 32, .tokens = loss_tokens_of_all_samples};
 *     struct loss_sums sums; loss_sums_init(&sums);
 *     for each sample: loss_sample(&opts, &st, &sample, &sums, &e);   fills dlogp, dentropy
 *     for (m = 0; m < LOSS_NMETRICS; m++)
 *         if (loss_metric(&opts, &st, &sums, m, &value)) report(loss_metric_name(m), value);
 *
 * dlogp[t] is dJ/dlogp_t with the batch scaling in it: the trainer sends it straight into the
 * log-softmax backward. dentropy[t] is dJ/dH_t (negative entropy_coef times the token's weight). */
#ifndef TRAIN_LOSS_H
#define TRAIN_LOSS_H

#include <stdint.h>

#include "num/exact.h"
#include "train/mis.h"

struct err;

enum loss_kl { LOSS_K1, LOSS_K2, LOSS_K3, LOSS_LOW_VAR_KL }; /* order of --kl-loss-type */
#define LOSS_KL_CHOICES "k1|k2|k3|low_var_kl"
enum loss_type {
    LOSS_POLICY,
    LOSS_SFT,
    LOSS_CUSTOM,
    LOSS_VALUE /* the critic's own, no choice of --loss-type: logp are values, old those before the
                  step, adv the returns, dlogp the gradient in the values */
};
#define LOSS_TYPE_CHOICES "policy_loss|sft_loss|custom_loss"
/* Correction for tokens that the rollout sampled with other probabilities than the trainer's. */
enum loss_tis {
    LOSS_TIS_OFF,
    LOSS_TIS_TRUNCATE, /* the ratio of each token, between tis_clip_low and tis_clip */
    LOSS_TIS_ICEPOP,   /* the ratio of each token between them, 0 outside */
    LOSS_TIS_MIS       /* as loss_opts.mis says */
};

struct loss_opts {
    enum loss_type type;
    int gspo;  /* sequence-level ratio */
    int cispo; /* the clipped ratio is a constant weight of logp */
    float eps_clip, eps_clip_high;
    float eps_clip_c; /* dual clip; 0 is off, else > 1 */
    float value_clip; /* of LOSS_VALUE */
    int use_kl_loss;
    float kl_loss_coef;
    enum loss_kl kl_loss_type;
    int unbiased_kl;
    float entropy_coef;
    int entropy;    /* H is given: log it even with a zero coefficient */
    int per_token;  /* calculate_per_token_loss */
    double divisor; /* of a sample's policy terms instead of its length (Dr. GRPO); 0: the length */
    enum loss_tis tis;
    int tis_observe; /* its metrics only: the loss stays as it is */
    float tis_clip, tis_clip_low;
    struct mis_opts mis; /* of LOSS_TIS_MIS */
    int opsm;
    float opsm_delta;
};

/* What the whole optimizer step knows before the first sample. */
struct loss_step {
    int64_t rollouts; /* GBS: rollouts in this step, >= 1 */
    int64_t tokens;   /* per-token mode: sum over samples of max(n_i, 1), see loss_norm_tokens */
    double mis_mean;  /* mis_mean_value of all samples; 0: weights are not normalised */
};

/* One sample; arrays of `len` response tokens. */
struct loss_sample {
    int64_t len;
    const uint8_t *mask; /* NULL is all ones */
    int64_t denom;       /* N_i: active tokens of the sample's whole rollout; 0 takes n_i */
    const float *logp;   /* current policy */
    const float *old;    /* old policy; NULL: the current one, detached (skip_actor_forward_only) */
    const float *ref;    /* needed by the KL loss */
    const float *roll;   /* log-probs of the rollout engine; needed by TIS, else may be NULL */
    const float *train;  /* what the trainer computed for the tokens of roll; NULL: old */
    int on_policy;       /* roll comes from the weights that logp comes from: where nothing else was
                            computed by the trainer, logp is held against roll */
    const float *adv;    /* NULL for sft */
    const float *entropy;
    /* A custom off-policy correction's result: weights and modified mask; NULL where none. */
    const float *weight;
    const uint8_t *weight_mask;
    const float *coef; /* a custom reducer's weight of each policy term, instead of 1 over the
                          length; NULL: none */
    /* LOSS_CUSTOM: derivatives of the sum over all samples, which is divided here; dentropy may be
     * NULL. */
    const float *given_dlogp, *given_dentropy;
    float *dlogp;    /* out, len */
    float *dentropy; /* out, len; may be NULL when entropy_coef is 0 */
};

enum loss_metric {
    LOSS_LOSS,
    LOSS_PG_LOSS,
    LOSS_ENTROPY_LOSS,
    LOSS_PG_CLIPFRAC,
    LOSS_PPO_KL,
    LOSS_ESS_RATIO,
    LOSS_LOGPROB_ABS_DIFF, /* train_rollout_logprob_abs_diff */
    LOSS_ROLLOUT_KL,       /* train_rollout_kl */
    LOSS_KL_LOSS,
    LOSS_OIS,
    LOSS_TIS,
    LOSS_TIS_CLIPFRAC,
    LOSS_TIS_ABS,
    LOSS_OPSM_CLIPFRAC,
    LOSS_VALUE_LOSS,
    LOSS_VALUE_CLIPFRAC,
    /* The mismatch as it is, by tokens: of all active ones, rejected or not, of samples whose
     * log-probs were computed a second time by the trainer. */
    LOSS_MISMATCH_KL, /* mismatch_kl: mean of loss_rollout_kl */
    LOSS_MAX_DIFF,    /* forward_logp_max_diff_inexact: largest |trainer - rollout| */
    LOSS_MIS,         /* the first of MIS_NMETRICS */
    LOSS_NMETRICS = LOSS_MIS + MIS_NMETRICS
};

struct loss_sums {
    struct exact sum[LOSS_NMETRICS];
    float max_diff;          /* infinite when a difference was no number */
    int64_t compared;        /* tokens in LOSS_MISMATCH_KL and max_diff */
    int64_t samples, tokens; /* seen; tokens are active ones */
    int64_t sanitised;       /* active tokens whose NaN or infinite input counted as zero */
    int has_roll;
};

void loss_sums_init(struct loss_sums *s);
void loss_sums_merge(struct loss_sums *s, const struct loss_sums *other);

/* max(n_i, 1) of one sample: what it adds to loss_step.tokens. */
int64_t loss_norm_tokens(const uint8_t *mask, int64_t len);

int loss_sample(const struct loss_opts *o, const struct loss_step *st, const struct loss_sample *s,
                struct loss_sums *sums, struct err *e);

/* The name in metrics.jsonl behind "train/". */
const char *loss_metric_name(enum loss_metric m);
/* 1 and *value when the options and data give this metric, else 0. */
int loss_metric(const struct loss_opts *o, const struct loss_step *st, const struct loss_sums *s,
                enum loss_metric m, double *value);

/* --- the formulas, one definition each; also used by adv's callers for shaping KL --- */

/* KL estimate of (logp, base) per rl-math 4. ratio multiplies it before the final clamp (1 for
 * none); *dlogp (may be NULL) is the derivative with ratio held constant. */
float loss_kl(enum loss_kl type, float logp, float base, float ratio, float *dlogp);

/* e^x - 1 - x, never negative: the k3 estimate of a KL by x = log(p / q) at a token drawn from q.
 */
double loss_k3(double x);
/* KL of the rollout against the trainer at one token: k3 with x in [-20, 20], at most 10. */
double loss_rollout_kl(float train, float roll);

/* One token of the clipped objective: k = old - logp, sanitised; *d (may be NULL) is dL/dlogp,
 * *ratio and *clipped (may be NULL) are for metrics. CISPO's is loss_cispo_token. */
float loss_ppo_token(const struct loss_opts *o, float k, float adv, float *ratio, int *clipped,
                     float *d);
/* The critic's loss at one token (rl-math 9.1): value v, u before the step, its return g. */
float loss_value_token(float v, float u, float g, float clip, int *clipped, float *d);
/* CISPO: -clip(ratio) adv logp, the clipped ratio held constant: clipped tokens still learn. */
float loss_cispo_token(const struct loss_opts *o, float k, float logp, float adv, int *clipped,
                       float *d);

#endif
