/* Inside rl/loop: its state, and what its files call of each other. */
#ifndef RL_LOOP_INT_H
#define RL_LOOP_INT_H

#include <jansson.h>
#include <stdatomic.h>

#include "base/span.h"
#include "rl/extend.h"
#include "rl/keeper.h"
#include "rl/learn.h"
#include "rl/loop.h"
#include "rl/turn.h"

enum loop_state_id {
    LOOP_START,
    LOOP_SYNC,
    LOOP_QUIET, /* with a stream: what is in flight is awaited before an evaluation */
    LOOP_EVAL_BEGIN,
    LOOP_EVAL_RUN,
    LOOP_ROLLOUT_BEGIN,
    LOOP_ROLLOUT_RUN,
    LOOP_TRAIN_BEGIN,
    LOOP_TRAIN_RUN,
    LOOP_SAVE,
    LOOP_DONE
};

struct loop {
    struct loop_cfg c;
    enum loop_state_id state, after_sync, after_eval;
    int64_t rollout;       /* that is trained next, or now */
    struct turn turn;      /* sampled, or whole and not yet trained */
    struct turn train;     /* trained */
    struct turn eval;      /* the evaluation in work */
    struct buffer *buffer; /* unfinished groups, with --partial-rollout */
    struct stream *stream; /* samples all the time, with --fully-async */
    json_t *flight;        /* what it had in flight at the checkpoint, until engines can have it */
    struct turn_feed source;
    int sync_part; /* of a weight sync under running samples: pause, publish, continue */
    struct learn learn;
    struct extend_feed feed;
    struct trainjob *job; /* trains while the next rollout is sampled; NULL: one after the other */
    int job_runs;
    struct learn_in in;
    atomic_int steps, nsteps; /* of the training, as the thread tells */
    double t_step, t_phase, t_sync, t_trained;
    double sync_s;  /* seconds of the last weight sync */
    int64_t synced; /* version of the weights that the engines have; -1: none of ours */
    struct keeper keeper;
    int told_stop;                  /* that the stop was heard */
    int64_t ref_rollout, ref_saved; /* that the reference is of; that --save has; -1: none */
    struct span_lane phase;
};

double loop_now(const struct loop *l);
void loop_say(struct loop *l, const char *phase, int done, int total, const json_t *row);
int64_t loop_version(const struct loop *l); /* of the trainer's weights */

/* ---- evaluation: loop_eval.c ---- */

int loop_has_eval(const struct loop *l);
int loop_eval_due(const struct loop *l, int64_t done); /* behind so many rollouts */
int loop_eval_begin(struct loop *l, struct err *e);
int loop_eval_run(struct loop *l, struct err *e);

/* ---- what is written: loop_save.c ---- */

int loop_saved(void *arg, int64_t rollout, struct err *e); /* a keeper's: arg is the loop */
int loop_checkpoint(struct loop *l, struct err *e);
/* The rollout's export and metrics, and its checkpoint last: a run that is killed behind it has
 * lost nothing of what came before. due 0: the metrics alone. */
int loop_write(struct loop *l, int due, struct err *e);

/* ---- the run's prompts, for functions that ask for them: loop_feed.c ---- */

void loop_feed(struct loop *l);

#endif
