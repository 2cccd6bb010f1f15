/* From the samples of a rollout to optimizer steps: rewards are normalised, log-probs that the
 * algorithm needs are scored, advantages made, the steps taken (rl-math 5 to 8).
 *
 *     struct learn l;
 *     learn_init(&l, &cfg);
 *     learn_rollout(&l, &in, row, &e);        once per rollout; metrics go into row
 *
 * With a critic (ppo) its values are taken first, then it learns from the returns, and then the
 * actor, unless the rollout is one of the first --num-critic-only-steps. */
#ifndef RL_LEARN_H
#define RL_LEARN_H

#include <jansson.h>
#include <stdint.h>

#include "rl/firststep.h"
#include "rl/mismatch.h"
#include "rl/port.h"
#include "rl/sample.h"
#include "rl/stephash.h"
#include "rl/train_opts.h"

struct err;
struct extend;
struct teacher;
struct world;

struct learn_cfg {
    const struct train_opts *o;
    const struct trainer_port *actor, *critic; /* critic: NULL but for ppo */
    struct extend *extend;                     /* the user's functions, or NULL */
    const struct world *world;
    int64_t num_rollout;
    int64_t sched_pos, critic_pos; /* rollouts that actor and critic were trained on before */
    void (*progress)(void *arg, int done, int total);
    /* Called behind each optimizer step of the actor; an error ends the run. */
    int (*stepped)(void *arg, int64_t step, struct err *e);
    void *arg;
    struct teacher *teacher; /* behind HTTP, or NULL */
};

struct learn {
    struct learn_cfg c;
    struct lrsched sched, critic_sched;
    int64_t sched_pos, critic_pos;
    struct mismatch mismatch;
    struct firststep first;
    struct stephash hash; /* its listener is set by the owner, who also ends it */
};

struct learn_in {
    struct sample **s;
    int n;
    int64_t rollout;
    int drawn; /* 1: by this run's engines just now; 0: read from a file */
};

void learn_init(struct learn *l, const struct learn_cfg *cfg);
int learn_rollout(struct learn *l, const struct learn_in *in, json_t *row, struct err *e);

#endif
