/* How a rollout is cut into optimizer steps (rl-math 13.1, 13.2): by rollouts, not samples, in the
 * order in which they appear, and never through the samples of one.
 *
 *     struct steps s;
 *     steps_cut(&opts, rollout_id, n, &mem, &s, &e);
 *     for (k = 0; k < s.n; k++) train on samples s.order[s.start[k]] .. s.order[s.start[k + 1] - 1]
 */
#ifndef RL_STEPS_H
#define RL_STEPS_H

#include <stdint.h>

struct arena;
struct err;

struct steps_opts {
    int64_t global_batch; /* rollouts of a step */
    int whole;            /* 1: one step of everything (--use-dynamic-global-batch-size) */
    int partial;          /* 1: what does not fill the last step is a smaller one */
};

struct steps {
    int n;
    int *start; /* (n + 1) */
    int *order; /* (samples) */
    int left;   /* samples that no step takes */
};

/* STATUS_INPUT when no step comes about. Memory is of `mem`. */
int steps_cut(const struct steps_opts *o, const int64_t *rollout, int n, struct arena *mem,
              struct steps *out, struct err *e);

#endif
