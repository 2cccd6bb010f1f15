/* Owns the order of a run: which phase follows which, and what each needs. It knows no engine, no
 * process and no file format but through the ports it was given. */
#include "rl/loop.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/metric.h"
#include "base/rng.h"
#include "base/status.h"
#include "base/world.h"
#include "reward/hub.h"
#include "rl/batch.h"
#include "rl/dump.h"
#include "rl/journal.h"
#include "rl/learn.h"
#include "rl/prompts.h"
#include "rl/rollmetric.h"

#define LOOP_MAX_REPLACED 8 /* batches' worth of groups that may fail in one rollout */

enum loop_state_id {
    LOOP_START,
    LOOP_SYNC,
    LOOP_EVAL_BEGIN,
    LOOP_EVAL_RUN,
    LOOP_ROLLOUT_BEGIN,
    LOOP_ROLLOUT_RUN,
    LOOP_TRAIN,
    LOOP_SAVE,
    LOOP_DONE
};

struct loop {
    struct loop_cfg c;
    enum loop_state_id state, after_sync, after_eval;
    int64_t rollout;
    struct batch *batch;
    int eval_at; /* evaluation set in work */
    json_t *row; /* metrics of the rollout */
    double t_step, t_phase, t_sync;
    double sync_s;        /* seconds of the last weight sync */
    int64_t synced;       /* version of the weights that the engines have; -1: none of ours */
    int64_t since_synced; /* rollouts trained since */
    int64_t failed_groups;
    double save_s; /* seconds of the last checkpoint */
    struct learn learn;
    int told_stop;          /* that the stop was heard */
    struct sample **loaded; /* from --load-debug-rollout-data */
    int nloaded;
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

static int loop_record(struct loop *l, enum journal_event ev, json_t *data, struct err *e)
{
    int rc = STATUS_OK;
    if (l->c.journal) {
        rc = l->c.journal->record(l->c.journal->self, ev, l->rollout, data, e);
    }
    json_decref(data);
    return rc;
}

static void loop_trained(void *arg, int done, int total)
{
    loop_say(arg, "train", done, total, NULL);
}

static int loop_stepped(void *arg, int64_t step, struct err *e)
{
    return loop_record(arg, JOURNAL_STEP, json_pack("{s:I}", "step", (json_int_t)step), e);
}

int loop_open(const struct loop_cfg *cfg, struct loop **out, struct err *e)
{
    struct loop *l = mem_alloc(sizeof *l);
    struct learn_cfg c = {
        cfg->o,         cfg->train,      cfg->critic,  cfg->shape,   cfg->world, cfg->num_rollout,
        cfg->sched_pos, cfg->critic_pos, loop_trained, loop_stepped, l};
    (void)e;
    l->c = *cfg;
    l->rollout = cfg->start_rollout;
    l->synced = -1;
    learn_init(&l->learn, &c);
    *out = l;
    return STATUS_OK;
}

static void loop_drop_loaded(struct loop *l)
{
    for (int i = 0; i < l->nloaded; i++) {
        sample_free(l->loaded[i]);
    }
    mem_free(l->loaded);
    l->loaded = NULL;
    l->nloaded = 0;
}

void loop_close(struct loop *l)
{
    if (l) {
        batch_free(l->batch);
        json_decref(l->row);
        loop_drop_loaded(l);
        mem_free(l);
    }
}

json_t *loop_state(const struct loop *l)
{
    return json_pack("{s:I,s:I,s:I,s:o?,s:I}", "rollout_id", (json_int_t)l->rollout, "sched_pos",
                     (json_int_t)l->learn.sched_pos, "critic_sched_pos",
                     (json_int_t)l->learn.critic_pos, "dataset",
                     l->c.data ? prompts_state(l->c.data) : NULL, "weight_version",
                     (json_int_t)(l->c.train ? l->c.train->version(l->c.train->self) : 0));
}

/* Sampling parameters of the training rollout or of an evaluation. */
static void loop_batch_cfg(const struct loop *l, int eval, struct batch_cfg *b)
{
    const struct train_opts *o = l->c.o;
    memset(b, 0, sizeof *b);
    b->port = l->c.rollout;
    b->hub = eval ? l->c.eval_hub : l->c.hub;
    b->enc = l->c.enc;
    b->skip_special = o->rollout_skip_special_tokens;
    b->drop_failed = !eval;
    b->group_rm = o->group_rm;
    b->n = (int)(eval ? o->n_samples_per_eval_prompt : o->n_samples_per_prompt);
    b->max_context = o->rollout_max_context_len == CONF_UNSET ? 0 : (int)o->rollout_max_context_len;
    b->proto.max_new = (int)(eval ? o->eval_max_response_len : o->rollout_max_response_len);
    b->proto.temperature = (float)(eval ? o->eval_temperature : o->rollout_temperature);
    b->proto.top_p = (float)(eval ? o->eval_top_p : o->rollout_top_p);
    b->proto.top_k = (int)(eval ? o->eval_top_k : o->rollout_top_k);
    b->proto.ignore_eos = eval ? 0 : o->rollout_ignore_eos;
    b->proto.seed = (uint64_t)o->rollout_seed;
    b->proto.stream = eval ? RNG_EVAL : RNG_TRAIN;
    for (int64_t i = 0; i < o->rollout_stop_token_ids.n && i < 16; i++) {
        b->proto.stop[b->proto.nstop++] = (int32_t)o->rollout_stop_token_ids.v[i];
    }
}

/* ---- weights ------------------------------------------------------------------------------------
 */

static int64_t loop_version(const struct loop *l)
{
    return l->c.train ? l->c.train->version(l->c.train->self) : 0;
}

/* Goes on with a phase that samples, by way of a weight sync when one is due: before the first, and
 * when --update-weights-interval rollouts have moved the weights. */
static void loop_sample(struct loop *l, enum loop_state_id next)
{
    const struct rollout_port *p = l->c.rollout;
    int due = p && p->publish && l->synced != loop_version(l) &&
              (l->synced < 0 || l->since_synced >= l->c.o->update_weights_interval);

    l->after_sync = next;
    l->t_sync = loop_now(l);
    l->state = due ? LOOP_SYNC : next;
}

static int loop_sync(struct loop *l, struct err *e)
{
    int64_t version = loop_version(l);
    int rc = l->c.rollout->publish(l->c.rollout->self, version, e);

    loop_say(l, "sync", 0, 1, NULL);
    if (rc != STATUS_OK) {
        return rc == STATUS_AGAIN
                   ? rc
                   : err_prefix(e, "weight_sync of version %lld", (long long)version);
    }
    l->sync_s = loop_now(l) - l->t_sync;
    l->synced = version;
    l->since_synced = 0;
    log_info(TRAIN, "weight_sync: the engines have version %lld, proven, after %.3f s",
             (long long)version, l->sync_s);
    l->state = l->after_sync;
    return STATUS_AGAIN;
}

/* ---- evaluation --------------------------------------------------------------------------------
 */

static int loop_eval_begin(struct loop *l, struct err *e)
{
    struct loop_eval_set *set = &l->c.evals[l->eval_at];
    struct batch_cfg cfg;
    int64_t n = prompts_count(set->data);
    int rc = STATUS_OK;

    if (l->eval_at == 0) {
        l->t_phase = loop_now(l);
    }
    loop_batch_cfg(l, 1, &cfg);
    l->batch = batch_new(&cfg);
    for (int64_t i = 0; rc == STATUS_OK && i < n; i++) {
        struct batch_item it = {NULL, i, i * cfg.n};
        rc = prompts_row(set->data, i, &it.row, e);
        rc = rc == STATUS_OK ? batch_add(l->batch, &it, e) : rc;
    }
    if (rc != STATUS_OK) {
        return err_prefix(e, "evaluation set %s", set->name);
    }
    l->state = LOOP_EVAL_RUN;
    return STATUS_AGAIN;
}

static int loop_eval_run(struct loop *l, struct err *e)
{
    struct loop_eval_set *set = &l->c.evals[l->eval_at];
    int n, rc = batch_tick(l->batch, e);
    struct sample **s;
    json_t *row;

    loop_say(l, "eval", batch_done_samples(l->batch), (int)prompts_count(set->data), NULL);
    if (rc != STATUS_OK) {
        return rc;
    }
    s = batch_samples(l->batch, &n);
    row = json_object();
    metric_put_int(row, "eval/step", l->rollout);
    rollmetric_eval(row, set->name, s, n);
    metric_put(row, "eval/duration_seconds", loop_now(l) - l->t_phase);
    if (l->c.o->save_debug_rollout_data) {
        char id[80], *path;
        snprintf(id, sizeof id, "eval_%s_%lld", set->name, (long long)l->rollout);
        path = conf_expand(l->c.o->save_debug_rollout_data, id);
        rc = dump_write(path, l->rollout, s, n, e);
        mem_free(path);
    }
    loop_say(l, "eval", n, n, row);
    metric_emit(row);
    batch_free(l->batch);
    l->batch = NULL;
    if (++l->eval_at < l->c.nevals) {
        l->state = LOOP_EVAL_BEGIN;
    } else {
        l->eval_at = 0;
        l->state = l->after_eval;
    }
    return rc == STATUS_OK ? STATUS_AGAIN : rc;
}

static int loop_eval_due(const struct loop *l, int64_t done)
{
    const struct train_opts *o = l->c.o;
    return l->c.nevals && l->c.rollout && o->eval_interval != CONF_UNSET &&
           (done % o->eval_interval == 0 || done == l->c.num_rollout);
}

/* ---- rollout -----------------------------------------------------------------------------------
 */

/* Takes n groups from the data source and submits them. */
static int loop_submit(struct loop *l, int64_t n, struct err *e)
{
    for (int64_t i = 0; i < n; i++) {
        struct prompts_group g;
        struct batch_item it;
        int rc = prompts_next(l->c.data, 1, &g, e);
        if (rc == STATUS_OK) {
            rc = loop_record(l, JOURNAL_PROMPTS,
                             json_pack("{s:I,s:I,s:I}", "row", (json_int_t)g.row_index, "group",
                                       (json_int_t)g.group_index, "index", (json_int_t)g.index),
                             e);
        }
        if (rc == STATUS_OK) {
            it.row = g.row;
            it.group_index = g.group_index;
            it.index = g.index;
            rc = batch_add(l->batch, &it, e);
        }
        if (rc != STATUS_OK) {
            return rc;
        }
    }
    return STATUS_OK;
}

static int loop_rollout_begin(struct loop *l, struct err *e)
{
    struct batch_cfg cfg;
    int rc;

    l->t_step = l->t_phase = loop_now(l);
    l->failed_groups = 0;
    l->row = json_object();
    metric_put_int(l->row, "rollout/step", l->rollout);
    if (l->sync_s > 0.0) {
        metric_put(l->row, "perf/update_weights_time", l->sync_s);
        l->sync_s = 0.0;
    }
    if (l->c.o->load_debug_rollout_data) {
        char id[32], *path;
        snprintf(id, sizeof id, "%lld", (long long)l->rollout);
        path = conf_expand(l->c.o->load_debug_rollout_data, id);
        rc = dump_read(path, &l->loaded, &l->nloaded, e);
        mem_free(path);
        l->state = LOOP_TRAIN;
        return rc == STATUS_OK ? STATUS_AGAIN : rc;
    }
    loop_batch_cfg(l, 0, &cfg);
    l->batch = batch_new(&cfg);
    rc = loop_submit(l, l->c.o->rollout_batch_size, e);
    l->state = LOOP_ROLLOUT_RUN;
    return rc == STATUS_OK ? STATUS_AGAIN : rc;
}

static int loop_rollout_end(struct loop *l, struct err *e)
{
    int n, rc = STATUS_OK;
    struct sample **s = batch_samples(l->batch, &n);
    double dt = loop_now(l) - l->t_phase, tokens = 0.0;

    for (int i = 0; i < n; i++) {
        tokens += s[i]->response_len;
    }
    metric_put(l->row, "perf/rollout_time", dt);
    metric_put(l->row, "perf/tokens_per_gpu_per_sec", dt > 0 ? tokens / dt : 0.0);
    rollmetric_lengths(l->row, "rollout", s, n);
    if (l->c.hub) {
        rollmetric_zero_std(l->row, s, n);
    }
    metric_put_int(l->row, "rollout/reward_failed_groups", l->failed_groups);
    if (l->c.rollout->report) {
        l->c.rollout->report(l->c.rollout->self, l->row);
    }
    if (l->c.o->save_debug_rollout_data) {
        char id[32], *path;
        snprintf(id, sizeof id, "%lld", (long long)l->rollout);
        path = conf_expand(l->c.o->save_debug_rollout_data, id);
        rc = dump_write(path, l->rollout, s, n, e);
        mem_free(path);
    }
    l->state = l->c.train ? LOOP_TRAIN : LOOP_SAVE;
    if (!l->c.train) {
        float *zero = mem_alloc(sizeof(float) * (size_t)(n + 1));
        rollmetric_rollout(l->row, s, n, zero);
        mem_free(zero);
    }
    return rc == STATUS_OK ? STATUS_AGAIN : rc;
}

static int loop_rollout_run(struct loop *l, struct err *e)
{
    const char *reason;
    int rc = batch_tick(l->batch, e), failed;
    int64_t limit = LOOP_MAX_REPLACED * l->c.o->rollout_batch_size;

    if (rc < 0) {
        return rc;
    }
    failed = batch_failed(l->batch, &reason);
    if (failed) {
        l->failed_groups += failed;
        if (l->failed_groups > limit) {
            return ERR(e, STATUS_CHILD,
                       "rewards failed for %lld groups in one rollout; the last: %s",
                       (long long)l->failed_groups, reason);
        }
        log_warn(REWARD, "%d group%s left out, the next prompt takes its place: %s", failed,
                 failed > 1 ? "s" : "", reason);
        rc = loop_record(l, JOURNAL_DROP,
                         json_pack("{s:i,s:s}", "groups", failed, "reason", reason), e);
        if (rc == STATUS_OK) {
            rc = loop_submit(l, failed, e);
        }
        return rc == STATUS_OK ? STATUS_AGAIN : rc;
    }
    loop_say(l, "rollout", batch_done_samples(l->batch),
             (int)(l->c.o->rollout_batch_size * l->c.o->n_samples_per_prompt), NULL);
    return rc == STATUS_OK ? loop_rollout_end(l, e) : rc;
}

/* ---- training ----------------------------------------------------------------------------------
 */

static int loop_train(struct loop *l, struct err *e)
{
    struct learn_in in = {l->loaded, l->nloaded, l->rollout, l->batch != NULL};
    int rc;

    if (l->batch) {
        in.s = batch_samples(l->batch, &in.n);
    }
    rc = learn_rollout(&l->learn, &in, l->row, e);
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
            known |= strcmp(de->d_name, names[i]) == 0;
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

/* Writes the rollout's export and metrics, and its checkpoint last: a run that is killed behind the
 * checkpoint has lost nothing of what came before it. */
static int loop_write(struct loop *l, int due, struct err *e)
{
    const struct train_opts *o = l->c.o;
    int rc = STATUS_OK;
    double t0 = loop_now(l);

    if (l->c.train && due && o->save_hf) {
        loop_say(l, "save", 0, 1, NULL);
        rc = loop_export(l, e);
        metric_put(l->row, "perf/export_hf_time", loop_now(l) - t0);
    }
    if (l->save_s > 0.0) {
        metric_put(l->row, "perf/save_model_time", l->save_s); /* of the checkpoint before */
        l->save_s = 0.0;
    }
    metric_put(l->row, "perf/peak_memory_gib", (double)mem_peak() / 1073741824.0);
    metric_put(l->row, "perf/step_time", loop_now(l) - l->t_step);
    loop_say(l, "step", 1, 1, l->row);
    metric_emit(l->row);
    l->row = NULL;
    if (rc == STATUS_OK && l->c.train && due && o->save) {
        json_t *state = loop_state(l);
        loop_say(l, "save", 0, 1, NULL);
        t0 = loop_now(l);
        if (l->c.critic) { /* first: a run goes on where the actor's checkpoint is */
            rc = l->c.critic->save(l->c.critic->self, o->critic_save, l->rollout, !o->no_save_optim,
                                   state, e);
        }
        rc = rc != STATUS_OK ? rc
                             : l->c.train->save(l->c.train->self, o->save, l->rollout,
                                                !o->no_save_optim, state, e);
        json_decref(state);
        l->save_s = loop_now(l) - t0;
        if (rc == STATUS_OK) {
            rc = loop_record(l, JOURNAL_SAVED,
                             json_pack("{s:I}", "iteration", (json_int_t)l->rollout), e);
        }
    }
    return rc;
}

/* What follows a rollout, or the start: an evaluation where one is due, then the next rollout. */
static void loop_next(struct loop *l, int last, int eval)
{
    l->after_eval = last ? LOOP_DONE : LOOP_ROLLOUT_BEGIN;
    if (eval || !last) {
        loop_sample(l, eval ? LOOP_EVAL_BEGIN : LOOP_ROLLOUT_BEGIN);
    } else {
        l->state = LOOP_DONE;
    }
}

static int loop_save(struct loop *l, struct err *e)
{
    const struct train_opts *o = l->c.o;
    int64_t done = l->rollout + 1;
    int stop = l->c.world->stopping(l->c.world->self);
    int last = done == l->c.num_rollout || stop ||
               (o->debug_exit_after_rollout != CONF_UNSET &&
                done - l->c.start_rollout >= o->debug_exit_after_rollout);
    int due = last || (o->save_interval != CONF_UNSET && done % o->save_interval == 0);
    int rc = loop_write(l, due, e);

    batch_free(l->batch);
    l->batch = NULL;
    loop_drop_loaded(l);
    l->rollout = done;
    l->since_synced++;
    loop_next(l, last, rc == STATUS_OK && !stop && loop_eval_due(l, done));
    return rc == STATUS_OK ? STATUS_AGAIN : rc;
}

static int loop_start(struct loop *l)
{
    const struct train_opts *o = l->c.o;
    /* a resumed run makes the evaluation that its checkpoint was followed by */
    int eval = l->rollout > 0 ? loop_eval_due(l, l->rollout)
                              : l->c.nevals && l->c.rollout && o->eval_interval != CONF_UNSET &&
                                    !o->skip_eval_before_train;
    loop_next(l, l->rollout >= l->c.num_rollout, eval);
    return STATUS_AGAIN;
}

int loop_tick(struct loop *l, struct err *e)
{
    if (!l->told_stop && l->c.world->stopping(l->c.world->self)) {
        l->told_stop = 1;
        log_warn(TRAIN,
                 "asked to stop: rollout %lld is finished and saved first; a second signal "
                 "ends the run at once",
                 (long long)l->rollout);
    }
    switch (l->state) {
    case LOOP_START: return loop_start(l);
    case LOOP_SYNC: return loop_sync(l, e);
    case LOOP_EVAL_BEGIN: return loop_eval_begin(l, e);
    case LOOP_EVAL_RUN: return loop_eval_run(l, e);
    case LOOP_ROLLOUT_BEGIN: return loop_rollout_begin(l, e);
    case LOOP_ROLLOUT_RUN: return loop_rollout_run(l, e);
    case LOOP_TRAIN: return loop_train(l, e);
    case LOOP_SAVE: return loop_save(l, e);
    default: return STATUS_OK;
    }
}
