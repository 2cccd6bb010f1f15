/* Owns when a checkpoint counts: not before it is on disk, and recorded after that. Until the next
 * optimizer step the trainer's state is the checkpoint's, so one that failed can be written again.
 */
#include "rl/keeper.h"

#include <stdio.h>
#include <string.h>

#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/patience.h"
#include "base/status.h"
#include "base/world.h"
#include "rl/journal.h"
#include "rl/port.h"
#include "rl/train_opts.h"
#include "train/ckpt.h"

char *keeper_ref(const char *save, int64_t rollout)
{
    char name[48];
    snprintf(name, sizeof name, "ref_%07lld", (long long)rollout);
    return fsio_join(save, name);
}

json_t *keeper_event(int64_t rollout, const json_t *state)
{
    const json_t *flight = json_object_get(json_object_get(state, "stream"), "flight"), *group;
    json_t *ev = json_pack("{s:I}", "iteration", (json_int_t)rollout);
    json_int_t needs = rollout + 1;
    size_t i;

    json_array_foreach(flight, i, group)
    {
        json_int_t since = json_integer_value(json_object_get(group, "rollout"));
        needs = since < needs ? since : needs;
    }
    if (flight) {
        json_object_set_new(ev, "needs", json_integer(needs));
    }
    return ev;
}

void keeper_init(struct keeper *k, const struct keeper_cfg *cfg)
{
    memset(k, 0, sizeof *k);
    k->c = *cfg;
    k->rollout = k->saved = -1;
}

void keeper_fini(struct keeper *k)
{
    struct err e = {0};
    if (keeper_poll(k, 1, &e) != STATUS_OK) {
        log_error(CKPT, "%s", e.msg);
    }
    json_decref(k->state);
    k->state = NULL;
}

void keeper_trained(struct keeper *k, int64_t rollout, json_t *state)
{
    json_decref(k->state);
    k->state = state;
    k->rollout = rollout;
}

static double keeper_now(const struct keeper *k)
{
    return k->c.world->now(k->c.world->self);
}

/* Writes both, and returns when they are on disk or, where the port can, while the actor's is being
 * written. The critic's first: a run goes on where the actor's is. */
static int keeper_write(struct keeper *k, struct err *e)
{
    const struct train_opts *o = k->c.o;
    const struct trainer_port *critic = k->c.critic, *actor = k->c.actor;
    int rc = STATUS_OK;

    if (critic) {
        rc = critic->save(critic->self, o->critic_save, k->rollout, !o->no_save_optim, k->state, e);
        if (rc == STATUS_OK && critic->saved) {
            rc = critic->saved(critic->self, 1, e);
        }
    }
    return rc == STATUS_OK
               ? actor->save(actor->self, o->save, k->rollout, !o->no_save_optim, k->state, e)
               : rc;
}

int keeper_save(struct keeper *k, struct err *e)
{
    struct patience wait = {0};
    struct journal *j = k->c.journal;
    int rc;

    if (!k->c.o->save || !k->c.actor || k->rollout < 0 || k->rollout == k->saved) {
        return STATUS_OK;
    }
    rc = keeper_poll(k, 1, e);
    /* a run that goes on from it comes to none of the events before it again */
    rc = rc == STATUS_OK && j && j->commit ? j->commit(j->self, e) : rc;
    if (rc != STATUS_OK) {
        return rc;
    }
    k->began = keeper_now(k);
    do {
        rc = keeper_write(k, e);
    } while (patience_again(&wait, rc, k->c.o->save, e));
    k->blocked_s = keeper_now(k) - k->began;
    k->saved = k->rollout;
    k->writing = rc == STATUS_OK;
    return rc;
}

/* What a full disk kept from being written is written again. */
static int keeper_again(struct keeper *k, int rc, struct err *e)
{
    const struct trainer_port *actor = k->c.actor;
    struct patience wait = {0};

    while (patience_again(&wait, rc, k->c.o->save, e)) {
        rc = keeper_write(k, e);
        rc = rc == STATUS_OK && actor->saved ? actor->saved(actor->self, 1, e) : rc;
    }
    return rc;
}

/* The rollout of a reference's folder; -1: another name. */
static int64_t keeper_ref_of(const char *name)
{
    long long it;
    int used = 0;
    return sscanf(name, "ref_%lld%n", &it, &used) == 1 && !name[used] ? it : -1;
}

/* References that no checkpoint from `oldest` on was trained with: all before the last that was
 * made up to it. */
static int keeper_drop_refs(const struct keeper *k, int64_t oldest, struct err *e)
{
    struct fsio_names l;
    int64_t needed = -1;
    int rc = STATUS_OK;

    fsio_list(k->c.o->save, &l, NULL); /* a missing folder has none */
    for (size_t i = 0; i < l.n; i++) {
        int64_t it = keeper_ref_of(l.name[i]);
        needed = it <= oldest && it > needed ? it : needed;
    }
    for (size_t i = 0; rc == STATUS_OK && i < l.n; i++) {
        int64_t it = keeper_ref_of(l.name[i]);
        if (it >= 0 && it < needed) {
            char *dir = keeper_ref(k->c.o->save, it);
            rc = fsio_remove_tree(dir, e);
            mem_free(dir);
        }
    }
    fsio_names_fini(&l);
    return rc;
}

/* Old checkpoints go, their references, and what the ledger has of the rollouts before the oldest
 * that a run may go on from. */
static int keeper_retain(struct keeper *k, struct err *e)
{
    const struct train_opts *o = k->c.o;
    int64_t keep = o->save_keep == CONF_UNSET ? 0 : o->save_keep;
    int64_t bytes = o->save_keep_bytes == CONF_UNSET ? 0 : o->save_keep_bytes;
    struct journal *j = k->c.journal;
    int64_t oldest = -1;
    int rc;

    if (!keep && !bytes) {
        return STATUS_OK;
    }
    rc = ckpt_retain(o->save, keep, bytes, o->update_weights_interval, &oldest, e);
    if (rc == STATUS_OK && k->c.critic) {
        int64_t other;
        rc = ckpt_retain(o->critic_save, keep, bytes, o->update_weights_interval, &other, e);
    }
    rc = rc == STATUS_OK && oldest >= 0 ? keeper_drop_refs(k, oldest, e) : rc;
    return rc == STATUS_OK && j && j->prune && oldest >= 0 ? j->prune(j->self, oldest, e) : rc;
}

int keeper_poll(struct keeper *k, int wait, struct err *e)
{
    const struct trainer_port *actor = k->c.actor;
    struct journal *j = k->c.journal;
    json_t *data;
    double t0;
    int rc;

    if (!k->writing) {
        return STATUS_OK;
    }
    t0 = keeper_now(k);
    rc = actor->saved ? actor->saved(actor->self, wait, e) : STATUS_OK;
    k->blocked_s += keeper_now(k) - t0;
    if (rc == STATUS_AGAIN) {
        return rc;
    }
    k->writing = 0;
    rc = keeper_again(k, rc, e);
    if (rc == STATUS_OK && j) {
        data = keeper_event(k->saved, k->state);
        rc = j->record(j->self, JOURNAL_SAVED, k->saved, data, e);
        json_decref(data);
    }
    if (rc == STATUS_OK && k->c.saved) {
        rc = k->c.saved(k->c.arg, k->saved, e);
    }
    return rc == STATUS_OK ? keeper_retain(k, e) : rc;
}
