/* The training loop: an event state machine over ports, a reward hub and a world.
 *
 *     struct loop *l;
 *     loop_open(&cfg, &l, &e);
 *     while ((rc = loop_tick(l, &e)) == STATUS_AGAIN) { }       0: finished
 *     loop_close(l);
 *
 * One rollout: take prompts, sample, score, normalise, train, save, evaluate. A tick does a bounded
 * piece of it, so a caller may look at the clock or stop between ticks. */
#ifndef RL_LOOP_H
#define RL_LOOP_H

#include <jansson.h>
#include <stdint.h>

#include "rl/port.h"
#include "rl/train_opts.h"

struct err;
struct evalset;
struct extend;
struct filter;
struct hub;
struct journal;
struct promptenc;
struct prompts;
struct teacher;
struct world;

struct loop_eval_set {
    const struct evalset *set;
    struct prompts *data;
};

/* What a step looked like, for progress lines. */
struct loop_progress {
    int64_t rollout, num_rollout;
    const char *phase; /* "sync", "rollout", "train", "eval", "save", "step": the last ends one */
    int done, total;   /* samples of the phase */
    const json_t
        *row; /* metrics of the rollout at "step", of the evaluation at "eval" end; or NULL */
};

struct loop_cfg {
    const struct train_opts *o;
    const struct rollout_port *rollout; /* NULL: --debug-train-only */
    const struct trainer_port *train;   /* NULL: --debug-rollout-only */
    const struct trainer_port *critic;  /* NULL but for ppo */
    struct hub *hub, *eval_hub;
    struct extend *extend; /* the user's functions, or NULL */
    /* functions of the user's, each may be NULL (rl/filter.h) */
    struct filter *dynamic, *sample_filter, *all_samples, *buffer_filter;
    /* Of the checkpoint, read by open only, or NULL: unfinished groups, a rollout that is sampled
     * and not yet trained. */
    const json_t *buffer, *waiting, *stream; /* the last: what was in flight, --fully-async */
    const struct promptenc *enc;
    struct prompts *data; /* NULL with --load-debug-rollout-data */
    struct loop_eval_set *evals;
    int nevals;
    const struct world *world;
    struct journal *journal; /* or NULL */
    int scored;              /* 1: a replay: rewards come from the journal, there is no hub */
    int64_t engines_have;    /* weight version that is sampled with; the loop sets it */
    int ahead;   /* 1: a rollout is sampled before the one before it is trained (train-async) */
    int away;    /* 1: in a replay: the engines were elsewhere, and were given weights */
    int overlap; /* 1: at the same time, in two threads; the engines are not in this process */
    int64_t start_rollout, num_rollout;
    int64_t sched_pos, critic_pos; /* rollouts that actor and critic were trained on before */
    void (*progress)(void *arg, const struct loop_progress *p);
    void *progress_arg;
    struct teacher *teacher; /* behind HTTP, or NULL */
    int64_t ref_rollout;     /* that the reference is of (--ref-update-interval); -1: as given */
    /* Takes the hashes of each step (rl/stephash.h); NULL: none are made. */
    void (*hashes)(void *arg, json_t *row);
    void *hashes_arg;
};

struct loop;
int loop_open(const struct loop_cfg *cfg, struct loop **out, struct err *e);
int loop_tick(struct loop *l, struct err *e);
void loop_close(struct loop *l);
/* State for a checkpoint after rollout `done`; the caller owns it. */
json_t *loop_state(struct loop *l);

#endif
