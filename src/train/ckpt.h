/* Checkpoints that do not depend on how a run was laid out: f32 masters and moments under their
 * Hugging Face names, and one JSON state.
 *
 *     SAVE/iter_0000012/model.safetensors     masters, f32
 *     SAVE/iter_0000012/optim.safetensors     exp_avg.NAME, exp_avg_sq.NAME, f32 or bf16
 *     SAVE/iter_0000012/state.json            iteration, optimizer step, numeric manifest, caller's
 * state SAVE/latest_checkpointed_iteration.txt  "12"
 *
 * A checkpoint is built as iter_N.tmp and renamed when all of it is on disk; the text file follows.
 */
#ifndef TRAIN_CKPT_H
#define TRAIN_CKPT_H

#include <jansson.h>
#include <stdint.h>

struct err;
struct optim;

/* state: the caller's own object (data cursor, schedule position), stored as it is. */
int ckpt_save(const char *dir, int64_t iteration, struct optim *o, int with_optim,
              const json_t *state, struct err *e);

/* The newest iteration in dir: STATUS_NOTFOUND when dir is missing or has no checkpoint. */
int ckpt_latest(const char *dir, int64_t *iteration, struct err *e);
/* Loads masters and moments into o (and the masters, rounded, into the weights); *state is the
 * caller's to decref. Moments in f32 are refused by an optimizer that keeps them in bf16. A
 * different numeric manifest is refused with both values. Without optimizer state in the checkpoint
 * the moments start at zero and *with_optim is 0. */
int ckpt_load(const char *dir, int64_t iteration, struct optim *o, int *with_optim, json_t **state,
              struct err *e);

/* Removes iter_*.tmp left by a run that was killed while saving. */
int ckpt_clean(const char *dir, struct err *e);

#endif
