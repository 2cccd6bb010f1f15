/* Owns the first and the last steps of a run's record: whose it is, where it goes on, what has
 * changed since, and how it ended. */
#include "run/durable.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/patience.h"
#include "base/status.h"
#include "base/world.h"
#include "rl/keeper.h"
#include "rl/port_record.h"
#include "rl/train_opts.h"
#include "run/ledger.h"
#include "run/replay.h"
#include "run/runlock.h"
#include "run/secret.h"
#include "train/ckpt.h"

/* Words of the command, with keys left out, and the folder it was given in. */
static json_t *durable_command(int argc, char *const *argv)
{
    json_t *words = json_array();
    char *cwd = getcwd(NULL, 0);
    json_t *all;

    for (int i = 1; i < argc; i++) {
        int secret = strncmp(argv[i - 1], "--", 2) == 0 &&
                     secret_name(argv[i - 1] + 2, strlen(argv[i - 1] + 2));
        json_array_append_new(words, json_string_nocheck(secret ? "..." : argv[i]));
    }
    all = json_pack("{s:s,s:o,s:s}", "command", argv[0], "words", words, "cwd", cwd ? cwd : "");
    free(cwd);
    return all;
}

/* Options that may differ between two starts of one run without a word. */
static int durable_may_differ(const char *name)
{
    static const char *const free_ones[] = {"run_dir",
                                            "num_rollout",
                                            "num_epoch",
                                            "load",
                                            "save",
                                            "save_interval",
                                            "save_keep",
                                            "save_keep_bytes",
                                            "disk_wait",
                                            "stop_timeout",
                                            "debug_fail_io",
                                            "debug_kill_at",
                                            "debug_asked_log",
                                            "debug_exit_after_rollout"};
    for (size_t i = 0; i < sizeof free_ones / sizeof free_ones[0]; i++) {
        if (strcmp(name, free_ones[i]) == 0) {
            return 1;
        }
    }
    return 0;
}

static void durable_text(const json_t *v, char *out, size_t size)
{
    char *s = v ? json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    snprintf(out, size, "%.100s", s ? s : "unset");
    free(s);
}

/* Says what this start does otherwise than the last. Another model is another run. */
static int durable_compare(struct durable *d, const char *run_dir, const json_t *options,
                           struct err *e)
{
    json_t *command = NULL, *before = NULL, *now;
    const char *name;
    int rc = ledger_last(d->ledger, &command, &before, e);

    if (rc != STATUS_OK) {
        return rc == STATUS_NOTFOUND ? STATUS_OK : rc;
    }
    json_object_foreach((json_t *)(uintptr_t)options, name, now)
    {
        const json_t *was = json_object_get(before, name);
        char a[104], b[104];
        if (!was || json_equal(was, now) || durable_may_differ(name)) {
            continue;
        }
        durable_text(was, a, sizeof a);
        durable_text(now, b, sizeof b);
        if (strcmp(name, "hf_checkpoint") == 0) {
            rc = ERR(e, STATUS_INPUT,
                     "%s holds a run of the model %s, this one is of %s: give another --save, or "
                     "remove that folder",
                     run_dir, a, b);
            break;
        }
        log_warn(LEDGER, "this start has %s = %s, the last had %s", name, b, a);
    }
    json_decref(command);
    json_decref(before);
    return rc;
}

/* A checkpoint that was in --save before the run began is not its own. */
static int durable_note_foreign(struct durable *d, struct err *e)
{
    char text[32], *noted = ledger_get(d->ledger, "foreign_checkpoint");
    int64_t it = -1;
    int rc = STATUS_OK, known = noted != NULL;

    mem_free(noted);
    if (known) {
        return STATUS_OK;
    }
    rc = ckpt_latest(d->o->save, &it, e);
    if (rc != STATUS_OK && rc != STATUS_NOTFOUND) {
        return rc;
    }
    if (rc == STATUS_OK && !d->o->load) {
        log_warn(LEDGER,
                 "%s has checkpoints of another run, up to rollout %lld: this one begins anew and "
                 "writes over them; --load goes on from them",
                 d->o->save, (long long)it);
    }
    snprintf(text, sizeof text, "%lld", (long long)(rc == STATUS_OK ? it : -1));
    return ledger_set(d->ledger, "foreign_checkpoint", text, e);
}

static char *durable_take(char **s)
{
    char *p = *s;
    *s = NULL;
    return p;
}

/* The ledger of a run that is replayed. What would write is taken out of the options. */
static int durable_open_replay(struct durable *d, struct err *e)
{
    struct train_opts *o = d->o;
    struct ledger_opts lo = {.dir = o->debug_replay, .closed = 1};
    int rc = ledger_open(&lo, &d->ledger, e);

    d->save = durable_take(&o->save);
    d->critic_save = durable_take(&o->critic_save);
    mem_free(durable_take(&o->save_hf));
    mem_free(durable_take(&o->save_debug_rollout_data));
    o->save_interval = CONF_UNSET;
    rc = rc == STATUS_OK ? ledger_first(d->ledger, &d->first, e) : rc;
    if (rc == STATUS_NOTFOUND) {
        rc = ERR(e, STATUS_INPUT, "%s has no rollout recorded", lo.dir);
    }
    if (rc == STATUS_OK && o->debug_replay_from != CONF_UNSET) {
        if (o->debug_replay_from + 1 < d->first) {
            return ERR(e, STATUS_INPUT, "nothing is recorded before rollout %lld",
                       (long long)d->first);
        }
        d->first = o->debug_replay_from + 1;
    }
    return rc == STATUS_OK ? replay_open(o->debug_replay, d->save, d->first, &d->replay, e) : rc;
}

/* Checkpoints of two runs must not meet, also when their run folders differ. */
static int durable_lock_save(struct durable *d, const char *run_dir, struct err *e)
{
    const char *save = d->o->save;
    char *a, *b;
    int rc = save ? patience_mkdirs(save, e) : STATUS_OK, same;

    if (!save || rc != STATUS_OK) {
        return rc;
    }
    a = realpath(save, NULL);
    b = realpath(run_dir, NULL);
    same = strcmp(a ? a : save, b ? b : run_dir) == 0;
    free(a);
    free(b);
    return same ? STATUS_OK : runlock_take(save, &d->save_lock, e);
}

int durable_open(struct durable *d, struct train_opts *o, const char *run_dir, int argc,
                 char *const *argv, const json_t *options, const struct world *world, struct err *e)
{
    struct ledger_opts lo = {.dir = run_dir,
                             .mode = (enum ledger_mode)o->ledger_mode,
                             .options = options,
                             .kill_at = o->debug_kill_at == CONF_UNSET ? 0 : o->debug_kill_at};
    json_t *command;
    int rc = STATUS_OK;

    memset(d, 0, sizeof *d);
    d->o = o;
    d->world = world;
    if (o->debug_replay) {
        return durable_open_replay(d, e);
    }
    patience_set(world, o->disk_wait);
    world_stop_within(o->stop_timeout, "miles: not ended within --stop-timeout: ended now. What is "
                                       "recorded is kept, the same command goes on\n");
    if (o->debug_fail_io) {
        rc = fsio_fail_parse(o->debug_fail_io, e);
        rc = rc == STATUS_OK ? rc : err_prefix(e, "--debug-fail-io");
    }
    rc = rc ? rc : patience_mkdirs(run_dir, e);
    rc = rc ? rc : durable_lock_save(d, run_dir, e);
    if (rc != STATUS_OK || !o->save || o->load_debug_rollout_data || lo.mode == LEDGER_OFF) {
        return rc ? rc : runlock_take(run_dir, &d->lock, e);
    }
    lo.command = command = durable_command(argc, argv);
    rc = ledger_open(&lo, &d->ledger, e);
    json_decref(command);
    rc = rc == STATUS_OK ? durable_note_foreign(d, e) : rc;
    return rc == STATUS_OK ? durable_compare(d, run_dir, options, e) : rc;
}

int durable_folder(const char *dir, struct err *e)
{
    int rc = dir ? patience_mkdirs(dir, e) : STATUS_OK;
    return rc == STATUS_OK && dir ? ckpt_clean(dir, e) : rc;
}

int durable_replays(const struct durable *d)
{
    return d->replay != NULL;
}

/* 1: the newest checkpoint of --save is this run's. */
static int durable_is_own(struct durable *d)
{
    char *foreign = d->ledger ? ledger_get(d->ledger, "foreign_checkpoint") : NULL;
    int64_t it, saved;
    int own = 0;

    if (foreign && ledger_attempt(d->ledger) > 1 &&
        ckpt_latest(d->o->save, &it, NULL) == STATUS_OK) {
        own = it != atoll(foreign) || ledger_saved(d->ledger, &saved, NULL) == STATUS_OK;
    }
    mem_free(foreign);
    return own;
}

/* The checkpoint before the first rollout that is replayed. */
static void durable_from_replay(struct durable *d, struct durable_from *f)
{
    char name[40], *dir;
    int own;

    f->iteration = d->first - 1;
    snprintf(name, sizeof name, "iter_%07lld", (long long)f->iteration);
    dir = fsio_join(d->save ? d->save : ".", name);
    own = fsio_is_dir(dir);
    f->dir = d->first == 0 ? NULL : own ? d->save : d->o->load;
    f->critic = own ? d->critic_save : d->o->critic_load;
    d->own = own;
    mem_free(dir);
}

/* Engines get weights behind every so-manieth rollout, and have older ones behind the others: a run
 * goes on where they got some. What was trained since is trained again, from the record.
 * STATUS_NOTFOUND: there is no such checkpoint. */
static int durable_from_own(const struct durable *d, struct durable_from *f, struct err *e)
{
    int64_t every = d->o->update_weights_interval, latest = -1;
    int rc = ckpt_latest_of(d->o->save, every, &f->iteration, e);

    f->dir = d->o->save;
    f->critic = d->o->critic_save;
    if (rc == STATUS_OK && ckpt_latest(f->dir, &latest, e) == STATUS_OK && latest > f->iteration) {
        log_info(LEDGER,
                 "going on behind rollout %lld and not %lld: engines got weights there "
                 "(--update-weights-interval %lld)",
                 (long long)f->iteration, (long long)latest, (long long)every);
    }
    return rc;
}

/* As the run's first start: --load, and not what the run itself has put there since. */
static int durable_from_load(const struct durable *d, struct durable_from *f, struct err *e)
{
    const struct train_opts *o = d->o;
    char *before = d->ledger ? ledger_get(d->ledger, "foreign_checkpoint") : NULL;
    char *load = o->load ? realpath(o->load, NULL) : NULL;
    char *save = o->save ? realpath(o->save, NULL) : NULL;
    int rc;

    f->dir = o->load;
    f->critic = o->critic_load;
    rc = f->dir ? ckpt_latest(f->dir, &f->iteration, e) : STATUS_OK;
    if (rc == STATUS_OK && before && load && save && strcmp(load, save) == 0) {
        f->iteration = atoll(before);
        rc = f->iteration < 0 ? STATUS_NOTFOUND : STATUS_OK;
    }
    if (rc == STATUS_OK && o->ckpt_step != CONF_UNSET) {
        f->iteration = o->ckpt_step;
    }
    free(load);
    free(save);
    mem_free(before);
    return rc;
}

int durable_from(struct durable *d, struct durable_from *f, struct err *e)
{
    int rc = STATUS_NOTFOUND;

    memset(f, 0, sizeof *f);
    if (d->replay) {
        durable_from_replay(d, f);
        return STATUS_OK;
    }
    d->own = durable_is_own(d);
    rc = d->own ? durable_from_own(d, f, e) : rc;
    if (rc == STATUS_NOTFOUND) {
        d->own = 0;
        rc = durable_from_load(d, f, e);
    }
    if (rc == STATUS_NOTFOUND) {
        log_info(TRAIN, "no checkpoint in %s: starting from the model", f->dir);
        f->dir = NULL;
        rc = STATUS_OK;
    }
    return rc;
}

int durable_port(struct durable *d, const struct rollout_port *inner,
                 const struct rollout_port **out, struct err *e)
{
    int rc = STATUS_OK;

    *out = inner;
    if (d->ledger && (inner || d->replay)) {
        rc = port_record_open(d->replay ? NULL : inner, ledger_journal(d->ledger), d->world,
                              d->replay ? NULL : d->o->debug_asked_log, &d->port, e);
        *out = rc == STATUS_OK ? port_record_port(d->port) : NULL;
    }
    return rc;
}

struct journal *durable_journal(struct durable *d)
{
    return d->ledger ? ledger_journal(d->ledger) : NULL;
}

int durable_started(struct durable *d, int64_t rollout, const json_t *state, struct optim *optim,
                    struct err *e)
{
    struct ledger_counts n;
    int rc = STATUS_OK;

    if (!d->ledger) {
        return STATUS_OK;
    }
    if (d->replay) {
        replay_watch(d->replay, optim);
        return STATUS_OK;
    }
    rc = ledger_started(d->ledger, rollout, e);
    if (rc == STATUS_OK && d->own) { /* it may have been killed between the two */
        struct journal *j = ledger_journal(d->ledger);
        json_t *data = keeper_event(rollout - 1, state);
        rc = j->record(j->self, JOURNAL_SAVED, rollout - 1, data, e);
        json_decref(data);
    }
    if (rc == STATUS_OK && ledger_attempt(d->ledger) > 1) {
        rc = ledger_count(d->ledger, &n, e);
        log_info(LEDGER,
                 "start %lld of this run, from rollout %lld: %lld answers and %lld rewards are "
                 "recorded and not asked again",
                 (long long)ledger_attempt(d->ledger), (long long)rollout, (long long)n.answers,
                 (long long)n.rewards);
    }
    return rc;
}

int durable_status(struct durable *d, struct err *e)
{
    return d->replay ? replay_status(d->replay, e) : STATUS_OK;
}

static void durable_close_replay(struct durable *d, int rc)
{
    struct replay_counts n = replay_counts(d->replay);

    printf("replay=%s rollouts=%lld rows=%lld checkpoints=%lld first_rollout=%lld\n",
           rc == STATUS_OK ? "equal" : "differs", (long long)n.rollouts, (long long)n.rows,
           (long long)n.checkpoints, (long long)d->first);
    replay_close(d->replay);
}

void durable_close(struct durable *d, int rc)
{
    if (d->replay) {
        durable_close_replay(d, rc);
    } else if (d->port) {
        struct port_record_stats s = port_record_stats(d->port);
        log_info(LEDGER, "%lld samples were asked of the engines, %lld came from the ledger",
                 (long long)s.asked, (long long)s.recalled);
    }
    port_record_close(d->port);
    ledger_close(d->ledger, rc == STATUS_OK ? "done" : status_name(rc));
    runlock_drop(d->lock);
    runlock_drop(d->save_lock);
    patience_set(NULL, 0);
    mem_free(d->save);
    mem_free(d->critic_save);
    memset(d, 0, sizeof *d);
}
