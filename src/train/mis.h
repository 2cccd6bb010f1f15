/* Masked importance sampling: how a token that another program sampled counts in the loss (rl-math
 * 10.3). The weight is the trainer's probability over the engine's, of the token, of the whole
 * response or of its geometric mean; it is bounded, and rejection may take tokens or responses out.
 *
 *     struct mis_seq q;
 *     mis_seq_init(&q, &o, len, mask, train, roll, mean);
 *     for each active token t: w = mis_seq_weight(&q, t, &keep);
 *     mis_seq_terms(&q, divisor, sums);              metrics
 *
 * Nothing is allocated and nothing depends on another response, but for the mean that all weights
 * of an optimizer step are divided by when they are to average 1. It is an exact sum over the whole
 * step, made before the first micro-batch, so that micro-batches never show in it (contract C4):
 *
 *     struct mis_mean m; mis_mean_init(&m);
 *     for each sample of the step: mis_mean_add(&m, &o, len, mask, train, roll);
 *     mean = mis_mean_value(&m);
 *
 * Log-probs that are not finite: an infinite difference is one beyond the bounds; a token (at the
 * level of sequences, a response) whose difference is no number has weight 0 and is rejected. */
#ifndef TRAIN_MIS_H
#define TRAIN_MIS_H

#include <stdint.h>

#include "num/exact.h"

enum mis_level { MIS_TOKEN, MIS_SEQUENCE, MIS_GEOMETRIC }; /* order of --tis-level, --rs-level */
#define MIS_LEVEL_CHOICES "token|sequence|geometric"
enum mis_mode { MIS_TRUNCATE, MIS_CLIP, MIS_MASK }; /* order of --tis-mode */
#define MIS_MODE_CHOICES "truncate|clip|mask"

struct mis_opts {
    enum mis_level level;
    enum mis_mode mode;
    float lo, hi; /* bounds of the weight; truncate has no use for lo */
    int rs;       /* rejection: tokens whose ratio at rs_level leaves [rs_lo, rs_hi] do not count */
    enum mis_level rs_level;
    float rs_lo, rs_hi;
    float veto;    /* with rs: one token of a smaller ratio rejects its response; 0: off */
    int normalize; /* the step's weights average 1; not at the level MIS_GEOMETRIC */
    int observe;   /* figures of the mismatch only: weights are 1 and nothing is rejected */
};

enum mis_metric {
    MIS_TRAINING_LOG_PPL,
    MIS_TRAINING_PPL,
    MIS_ROLLOUT_LOG_PPL,
    MIS_ROLLOUT_PPL,
    MIS_KL,
    MIS_K3_KL,
    MIS_LOG_PPL_DIFF,
    MIS_LOG_PPL_ABS_DIFF,
    MIS_PPL_RATIO,
    MIS_CHI2_TOKEN,
    MIS_CHI2_SEQ, /* the last one of mis_opts.observe */
    MIS_WEIGHT_BEFORE,
    MIS_TRUNCATE_FRACTION,
    MIS_CLIP_LOW,
    MIS_CLIP_HIGH,
    MIS_MASK_LOW,
    MIS_MASK_HIGH,
    MIS_WEIGHT_AFTER,
    MIS_RS_LOW,
    MIS_RS_HIGH,
    MIS_VETO_TOKEN,
    MIS_VETO_SEQ,
    MIS_RATIO_MEAN,
    MIS_NORM_FACTOR,
    MIS_FINAL_MEAN,
    MIS_FINAL_MIN, /* of a response, averaged over responses; the same for the largest */
    MIS_FINAL_MAX,
    MIS_NMETRICS
};

/* "mis_kl", ...: the name behind "train/". */
const char *mis_metric_name(enum mis_metric m);
/* 1 when these options give the metric. */
int mis_metric_present(const struct mis_opts *o, enum mis_metric m);

/* One response; the arrays are the caller's and of `len` tokens. */
struct mis_seq {
    const struct mis_opts *o;
    const uint8_t *mask; /* NULL is all ones */
    const float *train, *roll;
    int64_t len, n;    /* tokens, active ones */
    double sum;        /* of train - roll over the active tokens */
    double train_mean; /* of the log-probs */
    double roll_mean;  /* the same */
    double mean;       /* that weights are divided by */
    int64_t undefined; /* active tokens whose difference is no number */
    int64_t vetoes;    /* active tokens below the veto's threshold */
    float veto_log;    /* its logarithm */
};

/* mean: from mis_mean_value; 1 when weights are not normalised. */
void mis_seq_init(struct mis_seq *q, const struct mis_opts *o, int64_t len, const uint8_t *mask,
                  const float *train, const float *roll, double mean);
/* The weight of active token t; *keep is 0 when it is rejected: it leaves the numerators of the
 * loss, the denominators stay (rl-math 10.4). */
float mis_seq_weight(const struct mis_seq *q, int64_t t, int *keep);
/* Adds the response's terms, each divided by `divisor`, to the sums of the metrics. */
void mis_seq_terms(const struct mis_seq *q, double divisor, struct exact sums[MIS_NMETRICS]);

struct mis_mean {
    struct exact sum;
    int64_t count;
};

void mis_mean_init(struct mis_mean *m);
void mis_mean_add(struct mis_mean *m, const struct mis_opts *o, int64_t len, const uint8_t *mask,
                  const float *train, const float *roll);
/* The mean weight: over tokens, at the level of sequences over responses. 1 when it is too small to
 * divide by. */
double mis_mean_value(const struct mis_mean *m);

#endif
