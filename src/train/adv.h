/* Rewards to advantages (rl-math 5 and 6). All of it runs once per rollout on constants.
 *
 *     adv_rewards(&ro, n, raw, group_index, rollout_id, shaped, &e);       per sample
 *     for each sample: adv_fill(&ao, &sample, &e);                         per token
 *     if (ao.whiten) adv_whiten(samples, n, &e);
 *
 * f32 values; sums over the batch are exact, so nothing depends on order or split. */
#ifndef TRAIN_ADV_H
#define TRAIN_ADV_H

#include <stddef.h>
#include <stdint.h>

struct err;

enum adv_estimator { /* order of --advantage-estimator's choices */
                     ADV_GRPO,
                     ADV_GSPO,
                     ADV_REINFORCE_PP,
                     ADV_REINFORCE_PP_BASELINE,
                     ADV_PPO,
                     ADV_DR_GRPO, /* the group's mean, without its spread */
                     ADV_RLOO,    /* the mean of the others in the group */
                     ADV_CISPO    /* as grpo: the loss differs */
};
#define ADV_CHOICES                                                                                \
    "grpo|gspo|reinforce_plus_plus|reinforce_plus_plus_baseline|ppo|dr_grpo|rloo|cispo"

struct adv_reward_opts {
    enum adv_estimator estimator;
    int normalize;                                    /* rewards_normalization */
    int std;                                          /* grpo_std_normalization */
    int64_t n_samples_per_prompt, rollout_batch_size; /* for grouping without group_index */
};

/* What a response of len tokens gets on top of its reward for nearing the longest allowed, max:
 * nothing up to max - buffer, then down to -factor at max (DAPO's soft punishment). */
float adv_overlong(int64_t len, int64_t max, int64_t buffer, float factor);

/* Reward post-processing of n samples. group_index: NULL, or per sample (grouped by value, need not
 * be contiguous); NULL falls back to blocks of n_samples_per_prompt when n is their product with
 * rollout_batch_size, else to one group. rollout_id: NULL, or per sample: samples of one rollout in
 * a group must carry the same reward (else STATUS_INPUT) and count once. out may be raw. */
int adv_rewards(const struct adv_reward_opts *o, int64_t n, const float *raw,
                const int64_t *group_index, const int64_t *rollout_id, float *out, struct err *e);

struct adv_opts {
    enum adv_estimator estimator;
    float kl_coef, gamma, lambd;
};

/* One sample's response; arrays of `len` tokens. */
struct adv_sample {
    int64_t len;
    const uint8_t *mask; /* loss mask; NULL is all ones */
    float reward;        /* after adv_rewards (raw for reinforce_plus_plus and ppo) */
    const float *kl;     /* shaping KL per token (detached), NULL is zeros */
    const float *values; /* ppo only */
    float *adv;          /* out */
    float *returns;      /* out; may be NULL */
};

int adv_fill(const struct adv_opts *o, const struct adv_sample *s, struct err *e);

/* On-policy distillation (rl-math 6.5), behind adv_fill and before whitening: what the policy that
 * sampled has over the teacher, token by token, is taken from the advantages. Returns the mean of
 * it over the active tokens, 0 without any; STATUS_NUMERIC when a log-prob is not finite. */
int adv_distil(const struct adv_sample *s, const float *own, const float *teacher, float coef,
               double *mean, struct err *e);

/* Whitens adv of all samples in place with mask-weighted mean and Bessel variance; every position
 * is written. No active token anywhere is STATUS_INPUT. */
int adv_whiten(const struct adv_sample *s, int64_t n, struct err *e);

/* Normal form used by the metric and filter: 1 when all rewards of the group are equal. */
int adv_zero_std(const float *reward, int64_t n);

#endif
