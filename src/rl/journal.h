/* What a run must record before it acts on it, and asks for again when it is started again
 * (contract C5). The loop, the port of rl/port_record.h and the rewards of rl/recall.h call these;
 * who writes them where is the run's business. A journal that returns an error stops the run:
 * nothing is acted on that was not recorded. The journal may be NULL: then the checkpoint alone is
 * the record.
 *
 * Two kinds of things are recorded. Events tell what happened, in the order in which the loop came
 * to it: rollout r's k-th group of prompts, its k-th step. A run that goes on from a checkpoint
 * comes to the same events once more. Entries hold what came from outside under a key: answers of
 * engines, rewards, decisions by the wall clock. A run that goes on finds them and does not ask
 * again. Keys are logical: never a time, a process or an order of arrival. All calls may come from
 * several threads: training goes on beside the loop. */
#ifndef RL_JOURNAL_H
#define RL_JOURNAL_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct err;

enum journal_event {
    JOURNAL_PROMPTS,  /* groups taken from the data source: their rows and numbers */
    JOURNAL_ANSWER,   /* a finished sample */
    JOURNAL_REWARD,   /* a reward, or its failure */
    JOURNAL_DROP,     /* a group left out, and why */
    JOURNAL_STEP,     /* an optimizer step done */
    JOURNAL_PUBLISH,  /* a weight version in force */
    JOURNAL_SAVED,    /* a checkpoint on disk */
    JOURNAL_DECISION, /* what the wall clock or the order of arrival decided */
    JOURNAL_KEPT      /* the samples that a rollout is trained on, and a hash of their tokens */
};
#define JOURNAL_NEVENTS 9

#define JOURNAL_TEACHER (-1) /* the set of an answer that a teacher gave on a trained sample */
/* The `sample` of what a function answered for no single one (rl/memo.h): a rollout or evaluation,
 * groups of a data source. */
#define JOURNAL_WHOLE  (-1)
#define JOURNAL_GROUPS (-2)

/* The key of an entry. Those of answers and rewards name the sample; a decision uses of these what
 * it needs, so that no two of one rollout are the same. */
struct journal_key {
    int64_t rollout;
    int64_t sample;  /* number of the sample in its stream */
    int64_t version; /* of the weights in force when it was asked */
    uint64_t ask;    /* hash of the question: prompt and sampling; the answer that is scored */
    int32_t set;     /* 0 training, 1 + number of the evaluation set, JOURNAL_TEACHER */
    int32_t start;   /* tokens of the response that were there before */
};

struct journal {
    /* An event. Recorded with the next commit at the latest. data is borrowed. */
    int (*record)(void *self, enum journal_event ev, int64_t rollout, const json_t *data,
                  struct err *e);
    /* An entry of kind ANSWER, REWARD or DECISION. It is not to be acted on before commit. */
    int (*put)(void *self, enum journal_event kind, const struct journal_key *k, const void *data,
               size_t n, struct err *e);
    /* A committed entry, *data to be freed with mem_free; STATUS_NOTFOUND, with e untouched. A
     * sample of the training has one reward, under whichever rollout and version. */
    int (*find)(void *self, enum journal_event kind, const struct journal_key *k, void **data,
                size_t *n, struct err *e);
    /* Everything so far is on disk when this returns 0. */
    int (*commit)(void *self, struct err *e);
    /* Entries and events of rollouts up to this one will not be asked for again: they may go. */
    int (*prune)(void *self, int64_t rollout, struct err *e);
    void *self;
    /* 1: a replay. What is not recorded is an error; nothing outside may be asked. */
    int closed;
};

#endif
