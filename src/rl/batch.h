/* A batch on its way: groups are submitted to the rollout port, answers come back in any order,
 * each goes to the reward hub, and the batch is complete when every kept group is scored.
 *
 *     struct batch *b = batch_new(&cfg);
 *     batch_add(b, &item, &e);                  a group: prompt row, numbers, sampling
 *     while ((rc = batch_tick(b, &e)) == STATUS_AGAIN) { }
 *     batch_samples(b, &n)                      in ascending index
 *     batch_free(b);
 *
 * A group with a failed reward is taken out; the owner sees it in batch_failed and adds the next
 * prompt (contract C7). */
#ifndef RL_BATCH_H
#define RL_BATCH_H

#include <stdint.h>

#include "rl/port.h"
#include "rl/sample.h"

struct err;
struct hub;
struct promptenc;
struct prompts_row;

struct batch_cfg {
    const struct rollout_port *port;
    struct hub *hub; /* NULL: no rewards */
    const struct promptenc *enc;
    int n;                   /* samples per group */
    struct port_group proto; /* sampling parameters, seed and stream */
    int max_context;         /* 0: no bound beside the engine's */
    int skip_special;
    int group_rm;    /* 1: a group goes to the hub as one request, when it is answered whole */
    int drop_failed; /* 1: a failed reward takes its group out; 0: the sample stays, unscored */
};

struct batch_item {
    const struct prompts_row *row; /* needed during batch_add only */
    int64_t group_index, index;    /* of the first sample */
};

struct batch;
struct batch *batch_new(const struct batch_cfg *cfg);
void batch_free(struct batch *b);
int batch_add(struct batch *b, const struct batch_item *item, struct err *e);
/* Does a piece of work. STATUS_AGAIN: more to do; 0: all groups are complete. */
int batch_tick(struct batch *b, struct err *e);
/* Groups taken out since the last call; the reason of the last one. */
int batch_failed(struct batch *b, const char **reason);
/* Scored samples in ascending index; owned by the batch. */
struct sample **batch_samples(struct batch *b, int *n);
int batch_done_samples(const struct batch *b); /* answers so far, for progress */

#endif
