/* AdamW over f32 master weights. Gradients come as exact integer sums, so the step is the same bits
 * for every way the batch was cut.
 *
 *     struct optim *o; optim_open(w, &o, &e);             masters start as the weights' values
 *     optim_step(o, b->grad, &hyper, &norm, &e);          writes w16 and publishes a new version
 *     optim_close(o); */
#ifndef TRAIN_OPTIM_H
#define TRAIN_OPTIM_H

#include <stdint.h>

#include "num/device.h"

struct err;
struct weights;

struct optim {
    struct weights *w;
    struct tensor *master, *m, *v; /* one f32 tensor per parameter */
    int64_t step;                  /* updates made */
};

struct optim_hyper {
    double lr, beta1, beta2, eps, weight_decay;
    double clip; /* global norm; 0 is off */
};

int optim_open(struct weights *w, struct optim **out, struct err *e);
void optim_close(struct optim *o);
int64_t optim_bytes(const struct weights *w);
/* One update. *norm is the gradient's norm before clipping. STATUS_NUMERIC (and no update) when it
 * is not finite. */
int optim_step(struct optim *o, struct tensor *grad, const struct optim_hyper *h, double *norm,
               struct err *e);
/* Rounds the masters into the weights again (after loading a checkpoint). */
int optim_push(struct optim *o, struct err *e);

#endif
