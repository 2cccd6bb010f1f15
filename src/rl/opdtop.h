/* Top-k distillation (--opd-log-prob-top-k): what the model and a teacher behind HTTP say of each
 * other's candidates, and what comes of it for every token (train/opd.h).
 *
 *     opdtop_delta(&cfg, samples, train_samples, n, out, &e);       out[i]: (response)
 *
 * Two passes of the model at most: one for its own candidates, one for its log-probs of the
 * teacher's. */
#ifndef RL_OPDTOP_H
#define RL_OPDTOP_H

#include "train/opd.h"

struct err;
struct sample;
struct teacher;
struct train_sample;
struct trainer_port;

struct opdtop {
    struct opd_opts o;
    int k;
    int per_position; /* 1: the teacher is asked for the candidates of each position alone */
    const struct trainer_port *actor;
    struct teacher *teacher;
};

int opdtop_delta(const struct opdtop *c, struct sample *const *s, struct train_sample *t, int n,
                 float *const *out, struct err *e);

#endif
