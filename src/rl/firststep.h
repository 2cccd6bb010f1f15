/* What a person would look at after the first training step of a run, looked at by itself: each
 * check says one sentence, as a warning with the remedy where something is wrong.
 *
 *     struct firststep f = {.o = opts, .enc = enc, .fresh = 1};
 *     firststep_run(&f, &in);                   after a step; only the first of a run is looked at
 *
 * The checks: log-probs of actor and reference are the same weights' (KL 0); the gradient's norm is
 * in range; rewards tell answers apart, and labels are there; prompts are what the chat template
 * makes of them; responses end by themselves and are not empty. Whether the rollout's log-probs are
 * the trainer's is said by rl/mismatch.h. */
#ifndef RL_FIRSTSTEP_H
#define RL_FIRSTSTEP_H

#include <stddef.h>

struct promptenc;
struct sample;
struct train_opts;
struct train_sample;
struct trainer_report;

enum firststep_check {
    FIRSTSTEP_REFERENCE,
    FIRSTSTEP_EXACT,
    FIRSTSTEP_GRADIENT,
    FIRSTSTEP_REWARD,
    FIRSTSTEP_LABEL,
    FIRSTSTEP_TEMPLATE,
    FIRSTSTEP_TRUNCATED,
    FIRSTSTEP_EMPTY,
    FIRSTSTEP_CHECKS
};

struct firststep {
    const struct train_opts *o;
    const struct promptenc *enc; /* NULL: prompts are not looked at */
    int fresh;                   /* 1: the run began from the reference's weights */
    int done;
};

/* Borrowed; of the step's samples. */
struct firststep_in {
    struct sample *const *s;
    const struct train_sample *t;
    int n;
    const struct trainer_report *r;
};

#define FIRSTSTEP_GRAD  100.0 /* a norm above this is none of a first step */
#define FIRSTSTEP_TRUNC 0.25  /* share of responses that were cut */

/* One check. 0: nothing to say (out is ""); 1: as it should be; -1: wrong. */
int firststep_words(const struct firststep *f, const struct firststep_in *in,
                    enum firststep_check which, char *out, size_t size);
/* All of them, into the log. */
void firststep_run(struct firststep *f, const struct firststep_in *in);

#endif
