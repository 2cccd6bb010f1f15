/* A run again, from its record alone, held against what it left: rows of metrics.jsonl and
 * checkpoints. Events are compared by the ledger itself (run/ledger.h).
 *
 *     replay_open(run_dir, save_dir, first, &r, &e);      registers a sink with base/metric
 *     ...
 *     replay_status(r, &e);                 0: go on; STATUS_END: all is compared; else what
 * differs replay_close(r);
 */
#ifndef RUN_REPLAY_H
#define RUN_REPLAY_H

#include <stdint.h>

struct err;
struct optim;
struct replay;

struct replay_counts {
    int64_t rows, rollouts, checkpoints;
};

/* first: the rollout that the replay begins with; rows before it are not compared. save may be
 * NULL. */
int replay_open(const char *run, const char *save, int64_t first, struct replay **out,
                struct err *e);
void replay_close(struct replay *r); /* NULL is fine */
/* The optimizer whose state is that of the checkpoints; borrowed. */
void replay_watch(struct replay *r, struct optim *o);
int replay_status(struct replay *r, struct err *e);
struct replay_counts replay_counts(const struct replay *r);

/* 1: the column is a time, or counts what an attempt did: two runs of the same bits differ in it.
 */
int replay_ignores(const char *column);

#endif
