/* What makes a run one that cannot be lost: its ledger, the port that records, and where the same
 * command goes on (contract C5).
 *
 *     struct durable d;
 *     durable_open(&d, &o, run_dir, argc, argv, options, world, &e);
 *     durable_from(&d, &from, &e);                     the checkpoint to go on from
 *     durable_port(&d, &engines, &port, &e);
 *     loop_cfg.journal = durable_journal(&d);
 *     while (loop_tick(...) == STATUS_AGAIN && durable_status(&d, &e) == 0) { }
 *     durable_close(&d, rc);
 *
 * With --debug-replay it is a run again: nothing is saved, nobody is asked, all is compared.
 *
 * A run without --save, or with --ledger-mode off, has no ledger: then all of this does nothing but
 * hold the locks of its folders. */
#ifndef RUN_DURABLE_H
#define RUN_DURABLE_H

#include <jansson.h>
#include <stdint.h>

struct err;
struct journal;
struct ledger;
struct optim;
struct port_record;
struct replay;
struct rollout_port;
struct runlock;
struct train_opts;
struct world;

struct durable {
    struct train_opts *o;
    const struct world *world;
    struct ledger *ledger;
    struct runlock *lock;      /* of the run folder, where no ledger has it */
    struct runlock *save_lock; /* of --save, where it is another folder */
    struct port_record *port;
    int own; /* the run goes on from a checkpoint of its own */
    struct replay *replay;
    char *save, *critic_save; /* of a run that is replayed */
    int64_t first;            /* rollout that a replay begins with */
};

struct durable_from {
    const char *dir, *critic; /* folders of checkpoints; dir NULL: there is none */
    int64_t iteration;
};

/* o and world are borrowed; a replay takes out of it what would save. argv are the command's name
 * and its words; options the resolved ones without secrets. STATUS_INPUT when another process has
 * the run folder, or it holds a run of another model. */
int durable_open(struct durable *d, struct train_opts *o, const char *run_dir, int argc,
                 char *const *argv, const json_t *options, const struct world *world,
                 struct err *e);
/* A folder for checkpoints, without what a killed run left; NULL: none. A full disk is waited for.
 */
int durable_folder(const char *dir, struct err *e);
/* The run's own checkpoint when it has left one in --save, else that of --load. */
int durable_from(struct durable *d, struct durable_from *from, struct err *e);
int durable_replays(const struct durable *d); /* 1: it is a replay */
/* A port around `inner` that records; `inner` itself without a ledger. */
int durable_port(struct durable *d, const struct rollout_port *inner,
                 const struct rollout_port **out, struct err *e);
struct journal *durable_journal(struct durable *d); /* NULL: none */
/* The run begins with this rollout, and the state of the checkpoint before it, if any; optim is the
 * actor's, or NULL. */
int durable_started(struct durable *d, int64_t rollout, const json_t *state, struct optim *optim,
                    struct err *e);
/* 0: go on. STATUS_END: a replay is at its end; another status: it differs. */
int durable_status(struct durable *d, struct err *e);
void durable_close(struct durable *d, int rc); /* zeroed ones are fine */

#endif
