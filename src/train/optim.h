/* AdamW. Gradients come as exact integer sums, so the step is the same bits for every way the batch
 * was cut.
 *
 *     struct optim *o; optim_open(w, NULL, &o, &e);       masters start as the weights' values
 *     optim_step(o, b->grad, &hyper, &norm, &e);          new weights, new version, grad zero again
 *     optim_close(o);
 *
 * Masters are f32 in value. Where the device can, only the 16 bits are kept that the bf16 weight
 * lacks (dtype_split): the step's bits are the same. Moments are f32, or bf16 for half the memory,
 * rounded up or down by a counter so that their mean is kept. */
#ifndef TRAIN_OPTIM_H
#define TRAIN_OPTIM_H

#include <stdint.h>

#include "num/device.h"

struct err;
struct weights;

struct optim_opts {
    int m_bf16, v_bf16; /* moments in bf16 */
    int f32_master;     /* 1: whole masters also where the device could split them */
};

struct optim {
    struct weights *w;
    struct tensor *master, *m, *v; /* one per parameter; master f32, or i16 when split */
    int64_t step;                  /* updates made */
    struct tensor rows;            /* plain rows of a packed weight, while one is read */
    int alone;                     /* 1: a view of optim_reader */
    /* Sums of the last gradient, one per parameter (train/statesum.h); of none before the first
     * step. */
    uint64_t *grad_sum;
    int64_t step_sums; /* steps that have left sums here */
};

struct optim_hyper {
    double lr, beta1, beta2, eps, weight_decay;
    double clip; /* global norm; 0 is off */
};

/* opts NULL: f32 moments. STATUS_UNSUPPORTED when the device has no bf16 moments. */
int optim_open(struct weights *w, const struct optim_opts *opts, struct optim **out, struct err *e);
void optim_close(struct optim *o);
/* Bytes that optim_open will take. */
int64_t optim_bytes(const struct weights *w, const struct optim_opts *opts);
/* One update; grad is zero afterwards. *norm is the gradient's norm before clipping. STATUS_NUMERIC
 * (and no update) when it is not finite. */
int optim_step(struct optim *o, struct tensor *grad, const struct optim_hyper *h, double *norm,
               struct err *e);

/* Moments are zero and no update was made; masters and weights stay. */
void optim_reset(struct optim *o);

enum optim_part { OPTIM_MASTER, OPTIM_M, OPTIM_V, OPTIM_WEIGHT };

/* Rows [row0, row0 + n) of parameter i as f32 (n, cols); n <= OPTIM_ROWS. */
#define OPTIM_ROWS 64
int optim_read(struct optim *o, enum optim_part part, int i, int64_t row0, int64_t n, float *x,
               struct err *e);
/* A view of o for one other thread, which may call optim_read with it beside all that only reads
 * weights, until the next step. It owns nothing. STATUS_UNSUPPORTED when the device cannot. */
int optim_reader(const struct optim *o, struct optim *out, struct err *e);
/* Sets a whole parameter's masters (and so its weights) or moments from f32 (rows, cols). The
 * version stays. Nobody may hold the weights. */
int optim_write(struct optim *o, enum optim_part part, int i, const float *x, struct err *e);

#endif
