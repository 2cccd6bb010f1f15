/* Checkpoints that do not depend on how a run was laid out: f32 masters and moments under their
 * Hugging Face names, and one JSON state.
 *
 *     SAVE/iter_0000012/model.safetensors     masters, f32
 *     SAVE/iter_0000012/optim.safetensors     exp_avg.NAME, exp_avg_sq.NAME, f32 or bf16
 *     SAVE/iter_0000012/state.json            iteration, optimizer step, numeric manifest, and the
 *                                             caller's state
 *     SAVE/iter_0000012/sums.json             xxh3 of the files before, in hexadecimal digits
 *     SAVE/latest_checkpointed_iteration.txt  "12"
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

/* The same beside other work. What is saved is the optimizer's state when this is called: nobody
 * may step it or write the weights before ckpt_poll is done. A device whose memory one thread only
 * may read is saved at once, by this call. */
struct ckpt_writer;
int ckpt_begin(const char *dir, int64_t iteration, struct optim *o, int with_optim,
               const json_t *state, struct ckpt_writer **out, struct err *e);
/* STATUS_AGAIN: still writing, and wait is 0. Anything else is how it ended, and w is gone. */
int ckpt_poll(struct ckpt_writer *w, int wait, struct err *e);

/* How a checkpoint gets its name: `fill` writes its files into a folder that is renamed when all of
 * it is on disk; the text file follows. */
int ckpt_place(const char *dir, int64_t iteration,
               int (*fill)(void *arg, const char *tmp, struct err *e), void *arg, struct err *e);

/* Removes old checkpoints: keeps at most `keep` of them and those that fit into `bytes` (0: any),
 * the newest first; the newest itself and what follows it always stay, and so do the newest ones up
 * to one that a run may go on from, which is every `stride`-th (1: each). *oldest is the oldest
 * such that is left, -1 when there is none. */
int ckpt_retain(const char *dir, int64_t keep, int64_t bytes, int64_t stride, int64_t *oldest,
                struct err *e);

/* The newest iteration in dir: STATUS_NOTFOUND when dir is missing or has no checkpoint. */
int ckpt_latest(const char *dir, int64_t *iteration, struct err *e);
/* The same among every `stride`-th: those with (iteration + 1) % stride 0. */
int ckpt_latest_of(const char *dir, int64_t stride, int64_t *iteration, struct err *e);
/* Loads masters and moments into o (and the masters, rounded, into the weights); *state is the
 * caller's to decref. Moments in f32 are refused by an optimizer that keeps them in bf16. A
 * different numeric manifest is refused with both values, and so is a file that is not what was
 * written (a checkpoint without sums.json is taken as it is, with a warning). Without optimizer
 * state in the checkpoint the moments start at zero and *with_optim is 0. */
int ckpt_load(const char *dir, int64_t iteration, struct optim *o, int *with_optim, json_t **state,
              struct err *e);

/* 0 when o has the values of the checkpoint, bit for bit; STATUS_NUMERIC names the first that
 * differs. */
int ckpt_compare(const char *dir, int64_t iteration, struct optim *o, struct err *e);

/* Removes iter_*.tmp left by a run that was killed while saving. */
int ckpt_clean(const char *dir, struct err *e);

#endif
