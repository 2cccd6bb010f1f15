/* Sampling that never stops (--fully-async): so many groups are in flight at any time, finished
 * ones go into a buffer, and each rollout takes the oldest that are fresh enough (rl-math 14.6).
 *
 *     struct stream *s = stream_new(&cfg);
 *     stream_want(s, 16);                           the next rollout: sixteen groups
 *     while ((rc = stream_tick(s, &e)) == STATUS_AGAIN) { }       0: they are there
 *     stream_take(s, &n)                            samples in ascending index, the caller's
 *     stream_trained(s, 7, &e)                      STATUS_AGAIN until the others have their turn
 *     stream_version(s, 8)                          engines have these weights now
 *     stream_free(s);
 *
 * Here the order of arrival decides, so it is written down before it is acted on (contract C5):
 * every group that arrives, and when training was done between them, is an event with a number. A
 * run that goes on from a checkpoint follows the events that are written, and makes its own from
 * there on. Everything else follows from them. */
#ifndef RL_STREAM_H
#define RL_STREAM_H

#include <jansson.h>
#include <stdint.h>

#include "rl/batch.h"

struct err;
struct filter;
struct stream;

struct stream_cfg {
    struct batch_cfg batch;
    int64_t flight;         /* groups in flight at most */
    int64_t capacity;       /* finished groups that wait at most; with more, nothing is submitted */
    int by_sample;          /* 1: finished samples make room for the next group */
    int64_t max_staleness;  /* versions that a group may be behind the engines; -1: any */
    int retry;              /* 1: groups that are too old are sampled again; 0: dropped */
    struct filter *filter;  /* of finished groups, or NULL */
    const int64_t *rollout; /* that is trained next, or now */
    int closed; /* 1: a replay: what is not written down did not happen before the run ended */
    /* Adds one group: stream_add or stream_resume. */
    int (*more)(void *arg, struct stream *s, struct err *e);
    /* Told of each group that is left out. */
    int (*dropped)(void *arg, const struct sample *first, const char *reason, struct err *e);
    /* The event of that number when it is written down, else STATUS_NOTFOUND; and writes it. */
    int (*find)(void *arg, int64_t number, int64_t *event, struct err *e);
    int (*put)(void *arg, int64_t number, int64_t event, struct err *e);
    void *arg;
};

struct stream *stream_new(const struct stream_cfg *cfg);
void stream_free(struct stream *s); /* NULL is fine; what is in flight is the port's to forget */
int stream_add(struct stream *s, const struct batch_item *item, struct err *e);
int stream_resume(struct stream *s, struct sample *const *group, struct err *e);

/* The next rollout takes so many groups. */
void stream_want(struct stream *s, int64_t groups);
/* Does a piece of work. 0: the groups that were wanted are there, or none are wanted; what is in
 * flight goes on. */
int stream_tick(struct stream *s, struct err *e);
/* The samples of the wanted groups; list and samples are the caller's. */
struct sample **stream_take(struct stream *s, int *n);
/* Training on that rollout is done. STATUS_AGAIN: tick first, arrivals were written before it. */
int stream_trained(struct stream *s, int64_t rollout, struct err *e);
void stream_version(struct stream *s, int64_t version);

/* 1: nothing is submitted any more, 0: again. stream_idle: nothing is in flight, and all that was
 * has been acted on: when that is must not depend on how often somebody looked. */
void stream_hold(struct stream *s, int hold);
int stream_idle(const struct stream *s);

int stream_done_samples(const struct stream *s); /* answers since stream_want, for progress */
/* rollout/fully_async/...; counts begin anew. */
void stream_report(struct stream *s, json_t *row);

/* Everything but the unfinished tokens of what is in flight: those are sampled again. */
json_t *stream_state(const struct stream *s);
int stream_restore(struct stream *s, const json_t *state, struct err *e);

#endif
