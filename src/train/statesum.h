/* Sums (xxh3, 64 bits) of a trainer's gradient, weights and optimizer state, tensor by tensor, by
 * which two runs find the first step and the first tensor in which they differ.
 *
 *     struct statesum s;
 *     statesum_take(o, STATESUM_WEIGHT, &s, &e);
 *     for (int i = 0; i < s.n; i++) ... s.name[i], s.sum[i] ...
 *     statesum_fini(&s);
 *
 * Sums do not depend on threads or the instruction set. A torch device's are of other bytes than
 * those of the cpu: only runs of one kind of device can be compared. That of a gradient is one of
 * its exact sum of squares, which the step computes anyway; the gradient itself is gone after the
 * step. Weights, masters and moments have the names that a checkpoint gives them; gradients those
 * of the parameters, in which layers that share an input are one
 * (model.layers.0.self_attn.qkv_proj.weight). */
#ifndef TRAIN_STATESUM_H
#define TRAIN_STATESUM_H

#include <stdint.h>

struct err;
struct optim;

enum statesum_part {
    STATESUM_GRAD,   /* of the last step; no tensors before the first */
    STATESUM_WEIGHT, /* the bf16 values that the forward pass reads */
    STATESUM_MASTER, /* what the f32 masters have beyond them */
    STATESUM_M,
    STATESUM_V
};

struct statesum {
    int n;
    char (*name)[112];
    uint64_t *sum;
};

int statesum_take(struct optim *o, enum statesum_part part, struct statesum *out, struct err *e);
void statesum_fini(struct statesum *s);

#endif
