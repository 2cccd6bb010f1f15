/* A rollout: groups are asked for in waves, sampled, scored and judged until enough are kept; what
 * is in flight then ends, and may go on in the next rollout (rl-math 14).
 *
 *     struct rollout *r = rollout_new(&cfg);
 *     while ((rc = rollout_tick(r, &e)) == STATUS_AGAIN) { }
 *     rollout_samples(r, &n)                    in ascending index
 *     while ((s = rollout_leftover(r))) { ... } groups that go on, with --partial-rollout
 *     rollout_free(r);
 *
 * All of it is decided in logical time (contract C6, rl/vclock.h): by which sample has how many
 * tokens when every running one gains one a tick, never by which engine was faster. A group with a
 * failed reward is taken out, and the next prompt takes its place (contract C7). An evaluation is a
 * rollout that keeps everything. */
#ifndef RL_ROLLOUT_H
#define RL_ROLLOUT_H

#include <jansson.h>
#include <stdint.h>

#include "rl/batch.h"

struct err;
struct filter;
struct rollout;
struct world;

struct rollout_cfg {
    struct batch_cfg batch;
    int64_t target;        /* groups to keep */
    int64_t wave;          /* groups asked for at a time */
    int by_sample;         /* 1: a finished sample makes room for others, 0: a finished group */
    int64_t concurrency;   /* samples that run at once on the virtual clock; 0: all */
    int keep_failed;       /* 1: a group stays without its rewards (evaluation) */
    int partial;           /* 1: unfinished groups are left over, 0: they are thrown away */
    int64_t id;            /* of the rollout: noted in samples that are left over */
    struct filter *filter; /* of finished groups, or NULL */
    int keep_dropped;      /* 1: groups that the filter drops can be looked at */
    const struct world *world;
    /* Wants n more groups: it calls rollout_add or rollout_resume, n times at most. */
    int (*more)(void *arg, struct rollout *r, int64_t n, struct err *e);
    /* Told of each group that is left out, in logical order; or NULL. */
    int (*dropped)(void *arg, const struct sample *first, const char *reason, struct err *e);
    void *arg;
};

struct rollout *rollout_new(const struct rollout_cfg *cfg);
void rollout_free(struct rollout *r);
int rollout_add(struct rollout *r, const struct batch_item *item, struct err *e);
/* A group that was left over: as batch_resume. */
int rollout_resume(struct rollout *r, struct sample *const *s, struct err *e);
/* Does a piece of work. STATUS_AGAIN: more to do; 0: done. */
int rollout_tick(struct rollout *r, struct err *e);

/* When done: the kept samples in ascending index, owned by the rollout; those of groups that the
 * filter dropped, with keep_dropped. */
struct sample **rollout_samples(struct rollout *r, int *n);
struct sample **rollout_dropped(struct rollout *r, int *n);
/* The next group that goes on, in ascending index; list and samples are the caller's. NULL: none.
 */
struct sample **rollout_leftover(struct rollout *r);
/* rollout/dynamic_filter/..., what was thrown away, and what logical time cost. */
void rollout_report(const struct rollout *r, json_t *row);
int rollout_done_samples(const struct rollout *r); /* answers so far, for progress */

#endif
