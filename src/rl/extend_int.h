/* Inside rl/extend: the hooks, by number. */
#ifndef RL_EXTEND_INT_H
#define RL_EXTEND_INT_H

#include <jansson.h>

#include "rl/extend.h"
#include "rl/journal.h"

enum extend_hook {
    EXTEND_LOSS,
    EXTEND_TIS,
    EXTEND_REDUCE,
    EXTEND_INIT,
    EXTEND_BEFORE_SCORES,
    EXTEND_BEFORE_STEP,
    EXTEND_SAVED,
    EXTEND_ROLLOUT_LOG,
    EXTEND_EVAL_LOG,
    EXTEND_POSTPROCESS,
    EXTEND_CONVERT,
    EXTEND_SHAPE,
    EXTEND_ROLLOUT, /* from here on: opened when the engines are up */
    EXTEND_EVAL,
    EXTEND_SOURCE,
    EXTEND_NHOOKS
};

struct hookcall;
struct optim;

struct extend {
    const struct train_opts *o;
    struct hookcall *hook[EXTEND_NHOOKS]; /* NULL: none */
    struct optim *optim;
    const struct extend_feed *feed; /* or NULL */
    struct journal *journal;        /* or NULL */
    int named[EXTEND_NHOOKS];       /* 1: not opened, its answers are recorded */
    struct journal_key key;         /* of the rollout that is being made */
    json_t *known;                  /* it is recorded: {"answer", "taken"} */
    int64_t taken;                  /* groups of the run's prompts that its function took */
    int told;                       /* that a data source does not repeat */
};

/* Calls hook i with argv (taken over) and gives its answer; *out NULL without a hook. */
int extend_call(struct extend *x, enum extend_hook i, json_t *argv, json_t **out, struct err *e);

/* Answers a function's questions about the run's data (extend_rollout.c). */
int extend_answer(void *x, int64_t id, const char *what, const json_t *argv, json_t **out,
                  struct err *e);
/* Adds the loss over rows of logits, where the user's loss has one (extend_loss.c). */
int extend_rows(struct extend *x, struct trainer *t, struct err *e);

#endif
