/* Rewards that are a pure function of the answer, late, or a failure, as struct hub_scorer
 * (reward/hub.h).
 *
 *     struct simreward *r = simreward_new(&sim, &opts);
 *     hub_open(&(struct hub_opts){.rm_type = "f1", .scorer = simreward_scorer(r)}, &hub, &e);
 *     simreward_reset(r);                          the controller has ended
 *     simreward_free(r); */
#ifndef SIM_SIMREWARD_H
#define SIM_SIMREWARD_H

#include <stdint.h>

struct hub_scorer;
struct sim;
struct simreward;

struct simreward_opts {
    int some_fail; /* 1: those of some answers always fail: a property of the answer */
    int chance;    /* 1: others fail by chance, which a run without faults does not see */
    /* Told of each question: sample, and a hash of its tokens as rl/recall.h makes it. Or NULL. */
    void (*asked)(void *arg, int64_t sample, uint64_t ask);
    void *arg;
};

struct simreward *simreward_new(struct sim *s, const struct simreward_opts *o);
void simreward_free(struct simreward *r); /* NULL is fine */
const struct hub_scorer *simreward_scorer(struct simreward *r);
void simreward_reset(struct simreward *r);

#endif
