/* What a run must record before it acts on it (contract C5). The loop calls these; who writes them
 * where is the run's business. A journal that returns an error stops the run: nothing is acted on
 * that was not recorded. The journal may be NULL: then the checkpoint alone is the record. */
#ifndef RL_JOURNAL_H
#define RL_JOURNAL_H

#include <jansson.h>
#include <stdint.h>

struct err;

enum journal_event {
    JOURNAL_PROMPTS, /* groups taken from the data source: their rows and numbers */
    JOURNAL_ANSWER,  /* a finished sample */
    JOURNAL_REWARD,  /* a reward, or its failure */
    JOURNAL_DROP,    /* a group left out, and why */
    JOURNAL_STEP,    /* an optimizer step done */
    JOURNAL_PUBLISH, /* a weight version in force */
    JOURNAL_SAVED    /* a checkpoint on disk */
};

struct journal {
    int (*record)(void *self, enum journal_event ev, int64_t rollout, const json_t *data,
                  struct err *e);
    void *self;
};

#endif
