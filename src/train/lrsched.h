/* Learning rate and weight decay over the run (rl-math 16), in doubles without libm: the same bits
 * everywhere. Positions count trained rollouts.
 *
 *     struct lrsched s = {.max_lr = 1e-6, .style = LRSCHED_COSINE, .decay = 1000 * 32, .warmup =
 * 320}; lr = lrsched_lr(&s, rollouts_trained_so_far);      before each step */
#ifndef TRAIN_LRSCHED_H
#define TRAIN_LRSCHED_H

#include <stdint.h>

enum lrsched_style { /* order of --lr-decay-style */
                     LRSCHED_CONSTANT,
                     LRSCHED_LINEAR,
                     LRSCHED_COSINE,
                     LRSCHED_INVERSE_SQRT,
                     LRSCHED_WSD
};
#define LRSCHED_CHOICES "constant|linear|cosine|inverse-square-root|WSD"
enum lrsched_wsd {
    LRSCHED_WSD_EXPONENTIAL,
    LRSCHED_WSD_LINEAR,
    LRSCHED_WSD_COSINE,
    LRSCHED_WSD_MINUS_SQRT
};
#define LRSCHED_WSD_CHOICES "exponential|linear|cosine|minus_sqrt"
enum lrsched_wd { LRSCHED_WD_CONSTANT, LRSCHED_WD_LINEAR, LRSCHED_WD_COSINE };
#define LRSCHED_WD_CHOICES "constant|linear|cosine"

struct lrsched {
    double max_lr, min_lr, init_lr;
    enum lrsched_style style;
    enum lrsched_wsd wsd;
    int64_t warmup, decay; /* rollouts */
    int64_t wsd_decay;     /* length of the WSD tail, rollouts */
    double wd_start, wd_end;
    enum lrsched_wd wd_style;
    int64_t wd_steps; /* rollouts over which the decay ramps */
};

double lrsched_lr(const struct lrsched *s, int64_t pos);
double lrsched_wd_at(const struct lrsched *s, int64_t pos);

#endif
