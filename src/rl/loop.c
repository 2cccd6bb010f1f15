/* Owns the order of a run: which phase follows which, and what each needs. It knows no engine, no
 * process and no file format but through the ports it was given. */
#include "rl/loop.h"

#include <dirent.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/metric.h"
#include "base/patience.h"
#include "base/span.h"
#include "base/status.h"
#include "base/world.h"
#include "rl/buffer.h"
#include "rl/evalset.h"
#include "rl/extend.h"
#include "rl/journal.h"
#include "rl/keeper.h"
#include "rl/learn.h"
#include "rl/promptenc.h"
#include "rl/prompts.h"
#include "rl/rollmetric.h"
#include "rl/sample.h"
#include "rl/stream.h"
#include "rl/trainjob.h"
#include "rl/turn.h"

#define LOOP_FEED_MAX 1000000 /* groups that a function may take at once */

enum loop_state_id {
    LOOP_START,
    LOOP_SYNC,
    LOOP_QUIET, /* with a stream: what is in flight is awaited before an evaluation */
    LOOP_EVAL_BEGIN,
    LOOP_EVAL_RUN,
    LOOP_ROLLOUT_BEGIN,
    LOOP_ROLLOUT_RUN,
    LOOP_TRAIN_BEGIN,
    LOOP_TRAIN_RUN,
    LOOP_SAVE,
    LOOP_DONE
};

struct loop {
    struct loop_cfg c;
    enum loop_state_id state, after_sync, after_eval;
    int64_t rollout;       /* that is trained next, or now */
    struct turn turn;      /* sampled, or whole and not yet trained */
    struct turn train;     /* trained */
    struct turn eval;      /* the evaluation in work */
    struct buffer *buffer; /* unfinished groups, with --partial-rollout */
    struct stream *stream; /* samples all the time, with --fully-async */
    json_t *flight;        /* what it had in flight at the checkpoint, until engines can have it */
    struct turn_feed source;
    int sync_part; /* of a weight sync under running samples: pause, publish, continue */
    struct learn learn;
    struct extend_feed feed;
    struct trainjob *job; /* trains while the next rollout is sampled; NULL: one after the other */
    int job_runs;
    struct learn_in in;
    atomic_int steps, nsteps; /* of the training, as the thread tells */
    double t_step, t_phase, t_sync, t_trained;
    double sync_s;  /* seconds of the last weight sync */
    int64_t synced; /* version of the weights that the engines have; -1: none of ours */
    struct keeper keeper;
    int told_stop;                  /* that the stop was heard */
    int64_t ref_rollout, ref_saved; /* that the reference is of; that --save has; -1: none */
    struct span_lane phase;
};

static double loop_now(const struct loop *l)
{
    return l->c.world->now(l->c.world->self);
}

static void loop_say(struct loop *l, const char *phase, int done, int total, const json_t *row)
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

/* The checkpoint of a rollout is on disk. */
static int loop_saved(void *arg, int64_t rollout, struct err *e)
{
    const struct loop *l = arg;
    char name[32], *ckpt, *hf = NULL;
    int rc;

    snprintf(name, sizeof name, "iter_%07lld", (long long)rollout);
    ckpt = fsio_join(l->c.o->save, name);
    snprintf(name, sizeof name, "%lld", (long long)rollout);
    hf = l->c.o->save_hf ? conf_expand(l->c.o->save_hf, name) : NULL;
    rc = extend_saved(l->c.extend, rollout, ckpt, hf, e);
    mem_free(ckpt);
    mem_free(hf);
    return rc;
}

/* ---- the data, for functions that ask for it ---- */

/* n groups of samples with their prompts' tokens, as the run itself would take them. */
static int loop_feed_get(void *self, int64_t n, json_t **groups, struct err *e)
{
    struct loop *l = self;
    int rc = l->c.data ? STATUS_OK : ERR(e, STATUS_INPUT, "the run has no --prompt-data");

    if (rc == STATUS_OK && (n < 0 || n > LOOP_FEED_MAX)) {
        rc = ERR(e, STATUS_INPUT, "get_samples(%lld)", (long long)n);
    }
    *groups = json_array();
    for (int64_t i = 0; rc == STATUS_OK && i < n; i++) {
        struct prompts_group g;
        json_t *list = json_array();
        int32_t *ids = NULL;
        int len = 0;
        rc = prompts_next(l->c.data, 1, &g, e);
        rc = rc == STATUS_OK
                 ? turn_record(&l->c, JOURNAL_PROMPTS, l->rollout,
                               json_pack("{s:I,s:I,s:I,s:b}", "row", (json_int_t)g.row_index,
                                         "group", (json_int_t)g.group_index, "index",
                                         (json_int_t)g.index, "resumed", 0),
                               e)
                 : rc;
        rc = rc == STATUS_OK
                 ? promptenc_encode(l->c.enc, g.row->prompt, g.row->tools, &ids, &len, e)
                 : rc;
        for (int64_t k = 0; rc == STATUS_OK && k < l->c.o->n_samples_per_prompt; k++) {
            struct sample *s = sample_new();
            s->index = s->rollout_id = g.index + k;
            s->group_index = g.group_index;
            s->prompt = json_incref(g.row->prompt);
            s->label = json_incref(g.row->label);
            s->metadata = json_incref(g.row->metadata);
            sample_set(s, ids, len, NULL, NULL, 0, -1, 0);
            json_array_append_new(list, sample_to_json(s));
            sample_free(s);
        }
        mem_free(ids);
        json_array_append_new(*groups, list);
    }
    if (rc != STATUS_OK) {
        json_decref(*groups);
        *groups = NULL;
    }
    return rc;
}

static int loop_feed_add(void *self, const json_t *groups, struct err *e)
{
    (void)self, (void)groups;
    return ERR(e, STATUS_UNSUPPORTED, "add_samples: this run keeps no groups for later");
}

static int64_t loop_feed_length(void *self)
{
    const struct loop *l = self;
    return l->buffer ? buffer_groups(l->buffer) : 0;
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
    l->feed = (struct extend_feed){loop_feed_get, loop_feed_add, loop_feed_length, l};
    extend_set_feed(cfg->extend, &l->feed);
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

static int64_t loop_version(const struct loop *l)
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

/* Mean reward and shares of one set, from what a function of the user's told of it. */
static void loop_eval_row(json_t *row, const char *set, const json_t *data)
{
    const json_t *rewards = json_object_get(data, "rewards"), *v;
    double sum = 0, cut = 0, none = 0, n = (double)json_array_size(rewards);
    char name[160];
    size_t i;

    json_array_foreach(rewards, i, v)
    {
        sum += json_number_value(v);
        none += !json_is_number(v) && !json_is_boolean(v);
    }
    json_array_foreach(json_object_get(data, "truncated"), i, v)
    {
        cut += json_is_true(v);
    }
    snprintf(name, sizeof name, "eval/%.100s", set);
    metric_put(row, name, n > 0 ? sum / n : NAN);
    snprintf(name, sizeof name, "eval/%.100s-truncated_ratio", set);
    metric_put(row, name, n > 0 ? cut / n : 0);
    snprintf(name, sizeof name, "eval/%.100s-none_reward_ratio", set);
    metric_put(row, name, n > 0 ? none / n : 0);
}

static int loop_eval_set(struct loop *l)
{
    int set = l->eval.c ? l->eval.eval + 1 : 0;

    if (set == 0) {
        l->t_phase = loop_now(l);
    }
    turn_fini(&l->eval);
    l->c.engines_have = l->synced >= 0 ? l->synced : loop_version(l);
    turn_begin_eval(&l->eval, &l->c, set, l->rollout);
    l->state = LOOP_EVAL_RUN;
    return STATUS_AGAIN;
}

static int loop_eval_begin(struct loop *l, struct err *e)
{
    int rc;

    if (extend_has(l->c.extend, "eval-function-path")) {
        l->t_phase = loop_now(l);
        l->state = LOOP_EVAL_RUN;
        l->c.engines_have = l->synced >= 0 ? l->synced : loop_version(l);
        rc = extend_rollout_begin(l->c.extend, l->rollout, l->c.engines_have, 1, e);
        return rc == STATUS_OK ? STATUS_AGAIN : rc;
    }
    return loop_eval_set(l);
}

/* The user's own log of an evaluation; *quiet is 1 when it stands for ours. */
static int loop_log_eval(struct loop *l, const char *name, struct sample **s, int n,
                         const json_t *row, int *quiet, struct err *e)
{
    json_t *rewards, *truncated, *samples, *data;
    int rc;

    if (!extend_has(l->c.extend, "custom-eval-rollout-log-function-path")) {
        return STATUS_OK;
    }
    rewards = json_array();
    truncated = json_array();
    samples = json_array();
    for (int i = 0; i < n; i++) {
        json_array_append_new(rewards,
                              isfinite(s[i]->reward) ? json_real(s[i]->reward) : json_null());
        json_array_append_new(truncated, json_boolean(s[i]->status == SAMPLE_TRUNCATED));
        json_array_append_new(samples, sample_to_json(s[i]));
    }
    data = json_pack("{s:{s:o,s:o,s:o}}", name, "rewards", rewards, "truncated", truncated,
                     "samples", samples);
    rc = extend_log_eval(l->c.extend, l->rollout, data, row, quiet, e);
    json_decref(data);
    return rc;
}

/* An evaluation that a function of the user's makes: all sets at once. */
static int loop_eval_asked(struct loop *l, struct err *e)
{
    struct extend_rolled r;
    const char *name;
    json_t *row, *value;
    int quiet = 0, rc = extend_rollout_poll(l->c.extend, 1, 0.2, &r, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    row = json_object();
    metric_put_int(row, "eval/step", l->rollout);
    metric_put(row, "eval/duration_seconds", loop_now(l) - l->t_phase);
    json_object_foreach(r.data, name, value)
    {
        loop_eval_row(row, name, value);
    }
    json_object_foreach(r.metrics, name, value)
    {
        char full[160];
        snprintf(full, sizeof full, "%s%.140s", strchr(name, '/') ? "" : "eval/", name);
        metric_put(row, full, json_number_value(value));
    }
    if (r.skip) {
        log_info(TRAIN, "no evaluation: %s", r.skip);
        metric_put_int(row, "eval/skipped", 1);
    } else {
        rc = extend_log_eval(l->c.extend, l->rollout, r.data, row, &quiet, e);
    }
    extend_rolled_free(&r);
    loop_say(l, "eval", 1, 1, row);
    if (quiet) {
        json_decref(row);
    } else {
        metric_emit(row);
    }
    l->state = l->after_eval;
    return rc == STATUS_OK ? STATUS_AGAIN : rc;
}

static int loop_eval_run(struct loop *l, struct err *e)
{
    struct sample **s;
    int n, quiet = 0, rc;

    if (extend_has(l->c.extend, "eval-function-path")) {
        return loop_eval_asked(l, e);
    }
    rc = turn_tick(&l->eval, e);

    loop_say(l, "eval", turn_done_samples(&l->eval),
             (int)prompts_count(l->c.evals[l->eval.eval].data), NULL);
    if (rc != STATUS_OK) {
        return rc;
    }
    s = turn_samples(&l->eval, &n);
    metric_put(l->eval.row, "eval/duration_seconds", loop_now(l) - l->t_phase);
    rc = loop_log_eval(l, l->c.evals[l->eval.eval].set->name, s, n, l->eval.row, &quiet, e);
    loop_say(l, "eval", n, n, l->eval.row);
    if (quiet) {
        json_decref(l->eval.row);
    } else {
        metric_emit(l->eval.row);
    }
    l->eval.row = NULL;
    if (rc != STATUS_OK) {
        return rc;
    }
    if (l->eval.eval + 1 < l->c.nevals) {
        l->state = LOOP_EVAL_BEGIN;
    } else {
        turn_fini(&l->eval);
        l->state = l->after_eval;
        if (l->stream) {
            stream_hold(l->stream, 0);
        }
    }
    return STATUS_AGAIN;
}

static int loop_has_eval(const struct loop *l)
{
    return (l->c.nevals && l->c.rollout) || extend_has(l->c.extend, "eval-function-path");
}

static int loop_eval_due(const struct loop *l, int64_t done)
{
    const struct train_opts *o = l->c.o;
    return loop_has_eval(l) && o->eval_interval != CONF_UNSET &&
           (done % o->eval_interval == 0 || done == l->c.num_rollout);
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

/* 1 when every file of the folder is one that an export writes: such a folder may be replaced. Else
 * the first other name is put into `other` ("" when there is none). */
static int loop_is_export(const char *dir, char *other, size_t size)
{
    static const char *const names[] = {"config.json",
                                        "generation_config.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "chat_template.jinja",
                                        ".",
                                        ".."};
    DIR *d = opendir(dir);
    struct dirent *de;
    int all = d != NULL, found = 0;

    while (d && all && (de = readdir(d))) {
        int known = strncmp(de->d_name, "model", 5) == 0 && strstr(de->d_name, ".safetensors");
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
            size_t k = strlen(names[i]); /* a killed run may have left one half written */
            known |= strncmp(de->d_name, names[i], k) == 0 &&
                     (!de->d_name[k] || strcmp(de->d_name + k, ".tmp") == 0);
        }
        found |= strstr(de->d_name, ".safetensors") != NULL;
        all = known;
        if (!known) {
            snprintf(other, size, "%s", de->d_name);
        }
    }
    if (d) {
        closedir(d);
    }
    return all && found;
}

static int loop_export(struct loop *l, struct err *e)
{
    char id[32], *dir;
    char other[256] = "";
    int rc = STATUS_OK;
    snprintf(id, sizeof id, "%lld", (long long)l->rollout);
    dir = conf_expand(l->c.o->save_hf, id);
    if (loop_is_export(dir, other, sizeof other)) {
        char *model = realpath(l->c.o->hf_checkpoint ? l->c.o->hf_checkpoint : dir, NULL);
        char *here = realpath(dir, NULL);
        if (l->c.o->hf_checkpoint && model && here && strcmp(model, here) == 0) {
            rc = ERR(e, STATUS_INPUT, "--save-hf %s is the model the run started from", dir);
        } else {
            rc = fsio_remove_tree(dir, e); /* an earlier export */
        }
        free(model);
        free(here);
    } else if (other[0]) {
        rc = ERR(e, STATUS_INPUT, "--save-hf %s holds %s: give a new folder", dir, other);
    }
    if (rc == STATUS_OK) {
        rc = l->c.train->export_hf(l->c.train->self, dir, e);
    }
    mem_free(dir);
    return rc;
}

/* The user's own log of a rollout: our metrics of it are left out when it says so. */
static int loop_log(struct loop *l, struct err *e)
{
    int n, quiet, rc;
    struct sample **s = turn_samples(&l->train, &n);
    const char *name;
    json_t *value;
    void *next;

    rc = extend_log_rollout(l->c.extend, l->rollout, s, n, l->train.row, loop_now(l) - l->t_step,
                            &quiet, e);
    json_object_foreach_safe(l->train.row, next, name, value)
    {
        if (quiet && strncmp(name, "rollout/", 8) == 0 && strcmp(name, "rollout/step") != 0) {
            json_object_del(l->train.row, name);
        }
    }
    return rc;
}

/* The reference beside the checkpoint, when it has changed since the last. */
static int loop_save_ref(struct loop *l, struct err *e)
{
    char *dir;
    int rc;

    if (l->ref_rollout == l->ref_saved) {
        return STATUS_OK;
    }
    dir = keeper_ref(l->c.o->save, l->ref_rollout);
    rc = fsio_remove_tree(dir, e); /* of a run that went on from an earlier checkpoint */
    rc = rc == STATUS_OK ? l->c.train->export_ref(l->c.train->self, dir, e) : rc;
    mem_free(dir);
    l->ref_saved = rc == STATUS_OK ? l->ref_rollout : l->ref_saved;
    return rc;
}

/* The reference first: a checkpoint is whole when it is there. */
static int loop_checkpoint(struct loop *l, struct err *e)
{
    struct patience wait = {0};
    int rc = STATUS_OK;

    if (!l->c.train || !l->c.o->save) {
        return STATUS_OK;
    }
    do {
        rc = loop_save_ref(l, e);
    } while (patience_again(&wait, rc, l->c.o->save, e));
    rc = rc == STATUS_OK ? extend_source_save(l->c.extend, l->rollout, e) : rc;
    return rc == STATUS_OK ? keeper_save(&l->keeper, e) : rc;
}

/* Writes the rollout's export and metrics, and its checkpoint last: a run that is killed behind the
 * checkpoint has lost nothing of what came before it. */
static int loop_write(struct loop *l, int due, struct err *e)
{
    const struct train_opts *o = l->c.o;
    struct patience wait = {0};
    int rc = STATUS_OK;
    double t0 = loop_now(l);

    if (l->c.train && due && o->save_hf) {
        loop_say(l, "save", 0, 1, NULL);
        do {
            rc = loop_export(l, e);
        } while (patience_again(&wait, rc, o->save_hf, e));
        metric_put(l->train.row, "perf/export_hf_time", loop_now(l) - t0);
    }
    if (l->keeper.blocked_s > 0.0) { /* by the checkpoint before */
        metric_put(l->train.row, "perf/save_model_time", l->keeper.blocked_s);
        l->keeper.blocked_s = 0.0;
    }
    metric_put(l->train.row, "perf/peak_memory_gib", (double)mem_peak() / 1073741824.0);
    metric_put(l->train.row, "perf/step_time", loop_now(l) - l->t_step);
    rc = rc == STATUS_OK ? loop_log(l, e) : rc;
    loop_say(l, "step", 1, 1, l->train.row);
    metric_emit(l->train.row);
    l->train.row = NULL;
    keeper_trained(&l->keeper, l->rollout, loop_state(l));
    if (rc == STATUS_OK && due) {
        loop_say(l, "save", 0, 1, NULL);
        rc = loop_checkpoint(l, e);
    }
    return rc;
}

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
