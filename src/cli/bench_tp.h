/* Tensor parallelism inside one process: a device whose split contractions are computed rank by
 * rank, each rank with its own leaves only, and joined as ranks join their partial sums. The
 * model's code runs on it as it is, so its bits can be held against those of one rank.
 *
 *     struct bench_tp *t = bench_tp_new(w, 4, &kv);
 *     bench_tp_on(t, b->grad);
 *     forward_run(...); backward_run(...);
 *     bad = bench_tp_off(t);               sums over the vocabulary that differed
 *     bench_tp_free(t);
 *
 * What a rank owns: leaves [r R / T, (r + 1) R / T) of every leafset, that is its query heads, MLP
 * columns and vocabulary rows; attention and KV pages are cut at whole KV heads, among as many
 * ranks as there are; the heads' norms among all ranks, a key head with the first that reads it. */
#ifndef CLI_BENCH_TP_H
#define CLI_BENCH_TP_H

#include "num/device.h"

struct bench_tp;
struct weights;

/* ranks divides the plan's leaves. The weights are trainable. */
struct bench_tp *bench_tp_new(struct weights *w, int ranks, const struct kv_store *kv);
void bench_tp_free(struct bench_tp *t); /* NULL is fine */
/* grad: one tensor per parameter, or NULL without a backward pass. */
void bench_tp_on(struct bench_tp *t, const struct tensor *grad);
int bench_tp_off(struct bench_tp *t);
/* Fills every rank's pages with values that are no numbers. */
void bench_tp_poison(struct bench_tp *t);

#endif
