/* Where two runs part: the first step, the phase of it, the tensor or sample, and the element where
 * both kept what it takes to see it. Runs are compared by their hashes.jsonl (rl/stephash.h); the
 * values come from checkpoints (--save) and dumps (--save-debug-rollout-data, --dump-details).
 *
 *     struct rundiff_opts o = {.a = "runs/1", .b = "runs/2"};
 *     rc = rundiff_run(&o, stdout, &equal, &e);
 *
 * What it prints ends with a line of figures: `equal=1 steps=N`, or
 * `equal=0 rollout=R step=S phase=P tensor=NAME element=I`, with - for what is not known. Phases,
 * in the order in which a step passes them: data, tokens, rewards, log_probs, advantages, gradient,
 * weights, optimizer. */
#ifndef RUN_RUNDIFF_H
#define RUN_RUNDIFF_H

#include <stdint.h>
#include <stdio.h>

struct err;

struct rundiff_opts {
    const char *a, *b; /* run folders, or files of hashes */
    int64_t steps;     /* only so many; 0: all */
};

/* *equal: 0 when the runs differ, also when one has more steps than the other. */
int rundiff_run(const struct rundiff_opts *o, FILE *out, int *equal, struct err *e);

#endif
