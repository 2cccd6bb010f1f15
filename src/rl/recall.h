/* Rewards with a memory: a hub (reward/hub.h) whose results are recorded before anyone sees them,
 * and that answers from the journal what it has answered before, without asking again (contract
 * C5). Failures and time-outs are results like others: they are decisions.
 *
 *     struct recall *r = recall_new(hub, journal, world);     journal NULL: nothing is recorded
 *     recall_submit(r, id, &key, &sample, 1, 0, &e);
 *     while (recall_poll(r, 0.1, &result, &e) == 0) { ... json_decref(result.raw); }
 *     recall_free(r);
 *
 * ids are the caller's as in the hub; those of a group are id, id + 1, ... */
#ifndef RL_RECALL_H
#define RL_RECALL_H

#include <stdint.h>

#include "reward/hub.h"
#include "rl/journal.h"

struct err;
struct recall;
struct sample;
struct world;

/* hub NULL: a replay, which has no one to ask. world NULL: the system's. All are borrowed. */
struct recall *recall_new(struct hub *hub, struct journal *j, const struct world *w);
void recall_free(struct recall *r); /* NULL is fine */
/* Asks for the rewards of n samples: each by itself, or as one group (the function gets a list).
 * rollout and set are those of the key; the rest comes from the samples. STATUS_AGAIN: the hub is
 * full; poll first. Of a group all rewards are recalled or none. */
int recall_submit(struct recall *r, int64_t id, int64_t rollout, int set, struct sample *const *s,
                  int n, int group, struct err *e);
/* As hub_poll; the result is on disk. */
int recall_poll(struct recall *r, double wait_s, struct hub_result *out, struct err *e);

#endif
