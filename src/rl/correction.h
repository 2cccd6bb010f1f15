/* The options of the correction for the mismatch of rollout and trainer: --use-tis,
 * --get-mismatch-metrics, --custom-tis-function-path and the keys of the correction "mis", which
 * are flags and, as in Miles, keys of the file of --custom-config-path. Part of train_opts; call
 * that. */
#ifndef RL_CORRECTION_H
#define RL_CORRECTION_H

struct err;
struct loss_opts;
struct train_opts;

/* Derives tis_function and the bounds, refuses what contradicts itself. */
int correction_check(struct train_opts *o, struct err *e);
/* The fields of loss_opts that are about the correction, from checked options. */
void correction_loss(const struct train_opts *o, struct loss_opts *out);

#endif
