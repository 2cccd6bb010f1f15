/* Owns the order of a run: which phase follows which, and what each needs. It knows no engine, no
 * process and no file format but through the ports it was given. */
#include "rl/loop_int.h"

#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/metric.h"
#include "base/status.h"
#include "base/world.h"
#include "rl/buffer.h"
#include "rl/journal.h"
#include "rl/prompts.h"
#include "rl/rollmetric.h"
#include "rl/stream.h"
#include "rl/trainjob.h"

double loop_now(const struct loop *l)
{
    return l->c.world->now(l->c.world->self);
}

void loop_say(struct loop *l, const char *phase, int done, int total, const json_t *row)
{
    struct loop_progress p = {l->rollout, l->c.num_rollout, phase, done, total, row};
    if (l->c.progress) {
        l->c.progress(l->c.progress_arg, &p);
    }
}

/* Called while training, maybe by its thread: then the loop's own says and records it. */
static void loop_trained(void *arg, int done, int total)
{
    struct loop *l = arg;
    atomic_store(&l->nsteps, total);
    if (!l->job) {
        loop_say(l, "train", done, total, NULL);
    }
}

static int loop_record_step(struct loop *l, int64_t step, struct err *e)
{
    return turn_record(&l->c, JOURNAL_STEP, l->train.id,
                       json_pack("{s:I}", "step", (json_int_t)step), e);
}

static int loop_stepped(void *arg, int64_t step, struct err *e)
{
    struct loop *l = arg;
    atomic_store(&l->steps, (int)step + 1);
    return l->job ? STATUS_OK : loop_record_step(l, step, e);
}

void loop_close(struct loop *l)
{
    if (l) {
        trainjob_close(l->job);
        keeper_fini(&l->keeper);
        turn_fini(&l->turn);
        turn_fini(&l->train);
        turn_fini(&l->eval);
        stream_free(l->stream);
        json_decref(l->flight);
        buffer_free(l->buffer);
        span_enter(&l->phase, "loop", NULL, -1);
        stephash_fini(&l->learn.hash);
        mem_free(l);
    }
}

int loop_open(const struct loop_cfg *cfg, struct loop **out, struct err *e)
{
    struct loop *l = mem_alloc(sizeof *l);
    struct learn_cfg c = {
        cfg->o,         cfg->train,      cfg->critic,  cfg->extend,  cfg->world, cfg->num_rollout,
        cfg->sched_pos, cfg->critic_pos, loop_trained, loop_stepped, l,          cfg->teacher};
    int rc = STATUS_OK;
    l->c = *cfg;
    l->rollout = cfg->start_rollout;
    l->synced = -1;
    l->ref_rollout = l->ref_saved = cfg->ref_rollout;
    learn_init(&l->learn, &c);
    keeper_init(&l->keeper, &(struct keeper_cfg){cfg->o, cfg->train, cfg->critic, cfg->journal,
                                                 cfg->world, loop_saved, l});
    loop_feed(l);
    l->learn.first.enc = cfg->enc;
    l->learn.hash.emit = cfg->hashes;
    l->learn.hash.arg = cfg->hashes_arg;
    if (cfg->o->partial_rollout) {
        l->buffer = buffer_new((int)cfg->o->n_samples_per_prompt, cfg->buffer_filter);
        rc = buffer_restore(l->buffer, cfg->buffer, e);
    }
    if (rc == STATUS_OK && cfg->o->fully_async) {
        l->source = (struct turn_feed){&l->c, &l->rollout};
        l->stream = turn_open_stream(&l->source);
        l->flight = json_incref((json_t *)(uintptr_t)cfg->stream);
    }
    if (rc == STATUS_OK && cfg->waiting && !json_is_null(cfg->waiting)) {
        rc = turn_restore(&l->turn, &l->c, cfg->waiting, e);
    }
    if (rc == STATUS_OK && cfg->ahead && cfg->overlap) {
        rc = trainjob_open(&l->job, e);
    }
    if (rc != STATUS_OK) {
        loop_close(l);
        return rc;
    }
    *out = l;
    return STATUS_OK;
}

int64_t loop_version(const struct loop *l)
{
    return l->c.train ? l->c.train->version(l->c.train->self) : 0;
}

json_t *loop_state(struct loop *l)
{
    return json_pack(
        "{s:I,s:I,s:I,s:I,s:o?,s:I,s:o*,s:o*,s:o*}", "ref_rollout", (json_int_t)l->ref_rollout,
        "rollout_id", (json_int_t)l->rollout, "sched_pos", (json_int_t)l->learn.sched_pos,
        "critic_sched_pos", (json_int_t)l->learn.critic_pos, "dataset",
        l->c.data ? prompts_state(l->c.data) : NULL, "weight_version", (json_int_t)loop_version(l),
        "buffer", l->buffer ? buffer_state(l->buffer) : NULL, "waiting",
        l->turn.whole ? turn_state(&l->turn) : NULL, "stream",
        l->stream ? stream_state(l->stream) : NULL);
}

/* ---- weights ------------------------------------------------------------------------------------
 */

/* Goes on with a phase that samples, by way of a weight sync when one is due: before the first, and
 * behind every --update-weights-interval-th rollout. Not so many behind the last one: a run that
 * goes on from such a rollout's checkpoint must do as one that was never stopped. */
static void loop_sample(struct loop *l, enum loop_state_id next)
{
    const struct rollout_port *p = l->c.rollout;
    int due = p && (p->publish || l->c.away) && l->synced != loop_version(l) &&
              (l->synced < 0 || (l->rollout % l->c.o->update_weights_interval == 0 &&
                                 !l->c.o->debug_skip_weight_update));

    l->after_sync = next;
    l->t_sync = loop_now(l);
    l->state = due ? LOOP_SYNC : next;
}

/* --keep-old-actor: what engines sample with from here on is kept. */
static int loop_keep(struct loop *l, int due, struct err *e)
{
    const struct trainer_port *t = l->c.train;
    return due && t && l->c.o->keep_old_actor ? t->refresh(t->self, PORT_KEEP, e) : STATUS_OK;
}

/* Under running samples: they rest while the weights change, and go on under the new ones. */
static int loop_publish(struct loop *l, int64_t version, struct err *e)
{
    const struct rollout_port *p = l->c.rollout;
    int rc = STATUS_OK;

    if (l->stream && l->sync_part == 0) {
        rc = p->control(p->self, PORT_PAUSE, e);
        l->sync_part += rc == STATUS_OK;
    }
    if (rc == STATUS_OK && (!l->stream || l->sync_part == 1)) {
        rc = p->publish ? p->publish(p->self, version, e) : STATUS_OK;
        l->sync_part += rc == STATUS_OK;
    }
    if (rc == STATUS_OK && l->stream) {
        rc = p->control(p->self, PORT_CONTINUE, e);
    }
    if (rc == STATUS_OK) {
        l->sync_part = 0;
    }
    return rc;
}

static int loop_sync(struct loop *l, struct err *e)
{
    int64_t version = loop_version(l);
    int rc = loop_publish(l, version, e);

    loop_say(l, "sync", 0, 1, NULL);
    if (rc != STATUS_OK) {
        return rc == STATUS_AGAIN
                   ? rc
                   : err_prefix(e, "weight_sync of version %lld", (long long)version);
    }
    l->sync_s = loop_now(l) - l->t_sync;
    if (l->stream) {
        stream_version(l->stream, version);
    }
    l->synced = version;
    log_info(TRAIN, "weight_sync: the engines have version %lld, proven, after %.3f s",
             (long long)version, l->sync_s);
    l->state = l->after_sync;
    rc = rc == STATUS_OK ? loop_keep(l, 1, e) : rc;
    return rc == STATUS_OK ? STATUS_AGAIN : rc;
}

/* ---- evaluation --------------------------------------------------------------------------------
 */

/* What was in flight at the checkpoint goes on, as soon as engines have their weights. */
static int loop_restore_flight(struct loop *l, struct err *e)
{
    int rc = STATUS_OK;

    l->c.engines_have = l->synced >= 0 ? l->synced : loop_version(l);
    if (l->flight) {
        rc = stream_restore(l->stream, l->flight, e);
        json_decref(l->flight);
        l->flight = NULL;
    }
    return rc;
}

static int loop_quiet(struct loop *l, struct err *e)
{
    int rc;

    stream_hold(l->stream, 1);
    rc = loop_restore_flight(l, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    if (stream_idle(l->stream)) {
        l->state = LOOP_EVAL_BEGIN;
        return STATUS_AGAIN;
    }
    rc = stream_tick(l->stream, e);
    return rc < 0 ? rc : STATUS_AGAIN;
}

/* ---- rollout -----------------------------------------------------------------------------------
 */

static int loop_sample_next(struct loop *l, int64_t id, struct err *e)
{
    int rc = STATUS_OK;

    l->c.engines_have = l->synced >= 0 ? l->synced : loop_version(l);
    if (l->stream) {
        rc = loop_restore_flight(l, e);
        turn_begin_stream(&l->turn, &l->c, l->stream, id);
    } else {
        rc = turn_begin(&l->turn, &l->c, l->buffer, id, e);
    }
    if (l->sync_s > 0.0) {
        metric_put(l->turn.row, "perf/update_weights_time", l->sync_s);
        l->sync_s = 0.0;
    }
    return rc;
}

static int loop_rollout_begin(struct loop *l, struct err *e)
{
    int rc;

    l->t_step = loop_now(l);
    rc = loop_sample_next(l, l->rollout, e);
    l->state = l->turn.whole ? LOOP_TRAIN_BEGIN : LOOP_ROLLOUT_RUN;
    return rc == STATUS_OK ? STATUS_AGAIN : rc;
}

static int loop_tick_turn(struct loop *l, struct err *e)
{
    int rc = turn_tick(&l->turn, e);

    if (rc >= 0) {
        loop_say(l, "rollout", turn_done_samples(&l->turn),
                 (int)(l->c.o->rollout_batch_size * l->c.o->n_samples_per_prompt), NULL);
    }
    return rc;
}

static int loop_rollout_run(struct loop *l, struct err *e)
{
    int rc = loop_tick_turn(l, e);

    if (rc == STATUS_OK) {
        l->state = LOOP_TRAIN_BEGIN;
        rc = STATUS_AGAIN;
    }
    return rc;
}

/* ---- training ----------------------------------------------------------------------------------
 */

/* --ref-update-interval: the reference becomes what the model is now. */
static int loop_update_ref(struct loop *l, struct err *e)
{
    int64_t every = l->c.o->ref_update_interval;
    double t0 = loop_now(l);
    int rc;

    if (every == CONF_UNSET || (l->train.id + 1) % every != 0) {
        return STATUS_OK;
    }
    rc = l->c.train->refresh(l->c.train->self, PORT_REF, e);
    l->ref_rollout = l->train.id;
    metric_put(l->train.row, "perf/ref_model_update_time", loop_now(l) - t0);
    return rc;
}

static int loop_learn(void *arg, struct err *e)
{
    struct loop *l = arg;
    int rc = loop_keep(l, !l->c.rollout || (!l->c.rollout->publish && !l->c.away), e);

    if (rc == STATUS_OK) {
        rc = learn_rollout(&l->learn, &l->in, l->train.row, e);
    }
    return rc == STATUS_OK ? loop_update_ref(l, e) : rc;
}

/* The turn is trained from here on; ahead of it the next one is sampled, with the weights that the
 * engines have now. */
/* The hashes of a rollout that nobody trains on. */
static int loop_hash(struct loop *l, struct err *e)
{
    struct stephash_rollout r = {.rollout = l->in.rollout, .s = l->in.s, .n = l->in.n};
    int rc = stephash_data(&l->learn.hash, &r, e);
    return rc == STATUS_OK ? stephash_step(&l->learn.hash, 0, l->train.row, e) : rc;
}

static int loop_train_begin(struct loop *l, struct err *e)
{
    int64_t next = l->turn.id + 1;
    int rc = keeper_poll(&l->keeper, 1, e); /* the weights move: what is written must be there */

    if (rc != STATUS_OK) {
        return rc;
    }
    if (l->c.ahead) {
        l->t_step = loop_now(l);
    }
    l->train = l->turn;
    memset(&l->turn, 0, sizeof l->turn);
    l->in = (struct learn_in){.rollout = l->train.id, .drawn = l->train.drawn};
    l->in.s = turn_samples(&l->train, &l->in.n);
    l->t_trained = 0.0;
    l->state = LOOP_TRAIN_RUN;
    if (!l->c.train) {
        float *zero = mem_alloc(sizeof(float) * (size_t)(l->in.n + 1));
        rollmetric_rollout(l->train.row, l->in.s, l->in.n, zero);
        mem_free(zero);
        l->state = LOOP_SAVE;
        rc = loop_hash(l, e);
        return rc == STATUS_OK ? STATUS_AGAIN : rc;
    }
    if (l->c.ahead && next < l->c.num_rollout) {
        rc = loop_sample_next(l, next, e);
    } else if (l->stream) {
        stream_hold(l->stream, 1); /* nobody will take more */
        rc = loop_restore_flight(l, e);
    }
    if (rc == STATUS_OK && l->job) {
        atomic_store(&l->steps, 0);
        trainjob_start(l->job, loop_learn, l);
        l->job_runs = 1;
    }
    return rc == STATUS_OK ? STATUS_AGAIN : rc;
}

/* What the thread has done is recorded by the loop's own. */
static int loop_train_told(struct loop *l, struct err *e)
{
    int rc = STATUS_OK, n = atomic_load(&l->steps);

    for (int i = 0; rc == STATUS_OK && i < n; i++) {
        rc = loop_record_step(l, i, e);
    }
    return rc;
}

/* One more look at the training thread. STATUS_AGAIN: it is not done. */
static int loop_look(struct loop *l, double wait_s, struct err *e)
{
    int rc = trainjob_wait(l->job, wait_s, e);

    loop_say(l, "train", atomic_load(&l->steps), atomic_load(&l->nsteps), NULL);
    if (rc != STATUS_AGAIN) {
        l->job_runs = 0;
        l->t_trained = loop_now(l);
        rc = rc == STATUS_OK ? loop_train_told(l, e) : rc;
    }
    return rc;
}

/* With a stream the next rollout need not be there when training is done; that it is done has its
 * place among the arrivals. */
static int loop_train_stream(struct loop *l, struct err *e)
{
    int rc = l->turn.c && !l->turn.whole ? loop_tick_turn(l, e) : stream_tick(l->stream, e);

    if (rc < 0) {
        return rc;
    }
    if (l->job_runs) {
        rc = loop_look(l, 0.0, e);
    } else if (!l->job && l->t_trained <= 0.0) {
        rc = loop_learn(l, e);
        l->t_trained = loop_now(l);
    } else {
        rc = STATUS_OK;
    }
    if (rc != STATUS_OK) {
        return rc;
    }
    rc = stream_trained(l->stream, l->train.id, e);
    if (rc == STATUS_OK) {
        l->state = LOOP_SAVE;
        rc = STATUS_AGAIN;
    }
    return rc;
}

/* Training and the rollout ahead of it: side by side, or the rollout first, which is the same for
 * the bits of both. */
static int loop_train_run(struct loop *l, struct err *e)
{
    int sampling = l->turn.c && !l->turn.whole;
    int rc;

    if (l->stream) {
        return loop_train_stream(l, e);
    }
    rc = sampling ? loop_tick_turn(l, e) : STATUS_OK;
    if (rc < 0) {
        return rc;
    }
    if (l->job_runs) {
        int done = loop_look(l, sampling ? 0.0 : 0.1, e);
        if (done < 0) {
            return done;
        }
        rc = done == STATUS_AGAIN ? done : rc;
    }
    if (rc != STATUS_OK) {
        return rc;
    }
    if (l->job) {
        metric_put(l->train.row, "perf/train_wait_time", loop_now(l) - l->t_trained);
    } else {
        rc = loop_learn(l, e);
    }
    l->state = LOOP_SAVE;
    return rc == STATUS_OK ? STATUS_AGAIN : rc;
}

/* ---- saving and the next step ------------------------------------------------------------------
 */

/* What follows a rollout, or the start: an evaluation where one is due, then the next rollout. */
static void loop_next(struct loop *l, int last, int eval)
{
    l->after_eval = last            ? LOOP_DONE
                    : l->turn.whole ? LOOP_TRAIN_BEGIN
                    : l->turn.c     ? LOOP_ROLLOUT_RUN
                                    : LOOP_ROLLOUT_BEGIN;
    if (eval || !last) {
        loop_sample(l, !eval ? l->after_eval : l->stream ? LOOP_QUIET : LOOP_EVAL_BEGIN);
    } else {
        l->state = LOOP_DONE;
    }
}

/* --save-trigger-sentinel: the file asks for one checkpoint, so it goes when it was seen. */
static int loop_sentinel(const struct loop *l)
{
    const char *path = l->c.o->save_trigger_sentinel;

    if (!path || !l->c.train || unlink(path) != 0) {
        return 0;
    }
    log_info(TRAIN, "%s was there: rollout %lld is saved", path, (long long)l->rollout);
    return 1;
}

static int loop_save(struct loop *l, struct err *e)
{
    const struct train_opts *o = l->c.o;
    int64_t done = l->rollout + 1;
    int stop = l->c.world->stopping(l->c.world->self);
    int last = done == l->c.num_rollout || stop ||
               (o->debug_exit_after_rollout != CONF_UNSET &&
                done - l->c.start_rollout >= o->debug_exit_after_rollout);
    int due = loop_sentinel(l) || last ||
              (o->save_interval != CONF_UNSET && done % o->save_interval == 0);
    int rc = loop_write(l, due, e);

    turn_fini(&l->train);
    mem_trim(); /* else rollouts of many samples leave the heap in holes, more with each */
    l->rollout = done;
    loop_next(l, last, rc == STATUS_OK && !stop && loop_eval_due(l, done));
    return rc == STATUS_OK ? STATUS_AGAIN : rc;
}

static int loop_start(struct loop *l)
{
    const struct train_opts *o = l->c.o;
    /* a resumed run makes the evaluation that its checkpoint was followed by */
    int eval = l->rollout > 0 ? loop_eval_due(l, l->rollout)
                              : loop_has_eval(l) && o->eval_interval != CONF_UNSET &&
                                    !o->skip_eval_before_train;
    loop_next(l, l->rollout >= l->c.num_rollout, eval);
    return STATUS_AGAIN;
}

/* 1 when nothing is lost by ending here: the answers so far are recorded, the weights do not move.
 */
static int loop_may_end(const struct loop *l)
{
    return l->c.journal && l->c.journal->find && l->state != LOOP_TRAIN_BEGIN &&
           l->state != LOOP_TRAIN_RUN && l->state != LOOP_SAVE && l->state != LOOP_DONE;
}

/* The user asks for the end. */
static int loop_stop(struct loop *l, struct err *e)
{
    int rc;

    if (!l->told_stop) {
        l->told_stop = 1;
        log_warn(TRAIN, "asked to stop: rollout %lld is %s; a second signal ends the run at once",
                 (long long)l->rollout,
                 loop_may_end(l) ? "left, what it has is recorded" : "finished and saved first");
    }
    if (!loop_may_end(l)) {
        return STATUS_OK;
    }
    rc = loop_checkpoint(l, e);
    l->state = LOOP_DONE;
    return rc;
}

/* The end: what is being written must be there. */
static int loop_end(struct loop *l, struct err *e)
{
    struct journal *j = l->c.journal;
    int rc = keeper_poll(&l->keeper, 1, e);
    return rc == STATUS_OK && j && j->commit ? j->commit(j->self, e) : rc;
}

/* Phases of the loop as a picture shows them. */
static void loop_phase(struct loop *l)
{
    static const char *const names[] = {[LOOP_START] = "start",
                                        [LOOP_SYNC] = "weight_sync",
                                        [LOOP_EVAL_BEGIN] = "eval",
                                        [LOOP_EVAL_RUN] = "eval",
                                        [LOOP_ROLLOUT_BEGIN] = "rollout",
                                        [LOOP_ROLLOUT_RUN] = "rollout",
                                        [LOOP_TRAIN_BEGIN] = "train",
                                        [LOOP_TRAIN_RUN] = "train",
                                        [LOOP_SAVE] = "save",
                                        [LOOP_DONE] = NULL};
    span_enter(&l->phase, "loop", names[l->state], l->rollout);
}

int loop_tick(struct loop *l, struct err *e)
{
    int rc = l->job_runs ? STATUS_OK : keeper_poll(&l->keeper, 0, e);

    loop_phase(l);
    if (rc >= 0 && l->c.world->stopping(l->c.world->self)) {
        rc = loop_stop(l, e);
    }
    if (rc < 0) {
        return rc;
    }
    switch (l->state) {
    case LOOP_START: return loop_start(l);
    case LOOP_SYNC: return loop_sync(l, e);
    case LOOP_QUIET: return loop_quiet(l, e);
    case LOOP_EVAL_BEGIN: return loop_eval_begin(l, e);
    case LOOP_EVAL_RUN: return loop_eval_run(l, e);
    case LOOP_ROLLOUT_BEGIN: return loop_rollout_begin(l, e);
    case LOOP_ROLLOUT_RUN: return loop_rollout_run(l, e);
    case LOOP_TRAIN_BEGIN: return loop_train_begin(l, e);
    case LOOP_TRAIN_RUN: return loop_train_run(l, e);
    case LOOP_SAVE: return loop_save(l, e);
    default: return loop_end(l, e);
    }
}
