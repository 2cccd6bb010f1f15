/* Hashes of every step: of what was sampled, what it earned, what it was trained on and what became
 * of the weights. Two runs that agree in a row agree in that step; where they do not, the first
 * field that differs names the phase in which they parted (run/rundiff.h reads them).
 *
 *     struct stephash h = {.actor = port, .emit = write_row, .arg = file};
 *     stephash_data(&h, &rollout);               before the first step of a rollout
 *     stephash_step(&h, step, row, &e);          behind each step of the actor
 *     stephash_fini(&h);
 *
 * The first row tells the tensors' names, and the weights that the run began with:
 *     {"format": "miles-hashes", "version": 1, "rollout": R, "tensors": [...],
 *      "weights": ["16 hex digits", ...]}
 * Each other one is a step; the first of them also has "gradients", the names of these:
 *     {"rollout": R, "step": S, "samples": N, "prompts": "...", "tokens": "...",
 *      "rollout_log_probs": "...", "rewards": "...", "old_log_probs": "...",
 *      "ref_log_probs": "...", "advantages": "...", "gradient": [...], "weights": [...]}
 * With `full` also "masters", "exp_avg", "exp_avg_sq" and, for each of the hashes over samples, a
 * list of one for each sample under "by_sample". */
#ifndef RL_STEPHASH_H
#define RL_STEPHASH_H

#include <jansson.h>
#include <stdint.h>

#include "rl/port.h"

struct err;
struct sample;
struct train_sample;

struct stephash {
    const struct trainer_port *actor;     /* NULL: only samples are hashed */
    int full;                             /* --debug-determinism */
    void (*emit)(void *arg, json_t *row); /* takes the row; NULL: nothing is hashed */
    void *arg;
    /* its own */
    json_t *data; /* of the rollout in work */
    int told;     /* 1: the first row was emitted; 2: a step was */
    double spent; /* seconds since the last stephash_step */
};

struct stephash_rollout {
    int64_t rollout;
    struct sample *const *s;
    const struct train_sample *t; /* with advantages and log-probs; NULL: there is no training */
    const float *raw, *shaped;    /* rewards; NULL as well */
    int n;
};

/* Nothing happens in either when nobody listens. */
int stephash_data(struct stephash *h, const struct stephash_rollout *r, struct err *e);
/* Puts perf/hash_time into row. */
int stephash_step(struct stephash *h, int64_t step, json_t *row, struct err *e);
void stephash_fini(struct stephash *h);

#endif
