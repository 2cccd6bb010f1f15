/* The checkpoints of a run: which are due, written beside the next rollout, recorded when they are
 * on disk, and which old ones go.
 *
 *     struct keeper k;
 *     keeper_init(&k, &cfg);
 *     keeper_trained(&k, rollout, state);        a rollout is trained; state is what it leaves
 *     keeper_save(&k, &e);                       begins to write it
 *     keeper_poll(&k, 0, &e);                    now and then
 *     keeper_poll(&k, 1, &e);                    before the weights move again, and at the end
 *     keeper_fini(&k);
 *
 * At most one is in flight. A full disk is waited for (base/patience.h). */
#ifndef RL_KEEPER_H
#define RL_KEEPER_H

#include <jansson.h>
#include <stdint.h>

struct err;
struct journal;
struct train_opts;
struct trainer_port;
struct world;

struct keeper_cfg {
    const struct train_opts *o;
    const struct trainer_port *actor, *critic; /* actor NULL: there is nothing to keep */
    struct journal *journal;                   /* or NULL */
    const struct world *world;
    /* Told of each checkpoint that is on disk; an error ends the run. Or NULL. */
    int (*saved)(void *arg, int64_t rollout, struct err *e);
    void *arg;
};

struct keeper {
    struct keeper_cfg c;
    int64_t rollout; /* the last that was trained; -1: none */
    json_t *state;   /* that it left */
    int64_t saved;   /* the last whose checkpoint was begun; -1: none */
    int writing;
    double began, blocked_s; /* blocked_s: that the loop waited for the last checkpoint */
};

/* Where in --save a reference is that --ref-update-interval made behind that rollout; free with
 * mem_free. Checkpoints name theirs; one that none needs is removed with old checkpoints. */
char *keeper_ref(const char *save, int64_t rollout);
/* The event that says that a rollout's checkpoint is on disk: {"iteration"}, and "needs" where
 * samples were in flight: the first rollout whose answers it still needs. */
json_t *keeper_event(int64_t rollout, const json_t *state);
void keeper_init(struct keeper *k, const struct keeper_cfg *cfg);
void keeper_fini(struct keeper *k); /* waits for what is being written */
void keeper_trained(struct keeper *k, int64_t rollout, json_t *state); /* takes state */
/* Nothing without --save, and nothing when it was saved already. */
int keeper_save(struct keeper *k, struct err *e);
/* 0: nothing is being written. STATUS_AGAIN: it is, and wait is 0. */
int keeper_poll(struct keeper *k, int wait, struct err *e);

#endif
