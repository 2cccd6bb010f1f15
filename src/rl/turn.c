/* Owns the way from prompts to samples of one rollout or evaluation: where groups come from, with
 * which parameters they are sampled, who of the user's functions looks at them, what is measured.
 */
#include "rl/turn.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/conf.h"
#include "base/mem.h"
#include "base/metric.h"
#include "base/patience.h"
#include "base/rng.h"
#include "base/status.h"
#include "base/world.h"
#include "rl/buffer.h"
#include "rl/details.h"
#include "rl/dump.h"
#include "rl/evalset.h"
#include "rl/extend.h"
#include "rl/filter.h"
#include "rl/journal.h"
#include "rl/loop.h"
#include "rl/prompts.h"
#include "rl/rollmetric.h"
#include "rl/rollout.h"
#include "rl/sftdata.h"
#include "rl/stream.h"

static double turn_now(const struct turn *t)
{
    return t->c->world->now(t->c->world->self);
}

int turn_record(const struct loop_cfg *c, int event, int64_t rollout, json_t *data, struct err *e)
{
    int rc = STATUS_OK;
    if (c->journal) {
        rc = c->journal->record(c->journal->self, (enum journal_event)event, rollout, data, e);
    }
    json_decref(data);
    return rc;
}

/* ---- parameters ---- */

/* Sampling parameters of the training rollout or of an evaluation, and the rules of it. */
static void turn_cfg(struct turn *t, struct rollout_cfg *r)
{
    const struct evalset *eval = t->eval >= 0 ? t->c->evals[t->eval].set : NULL;
    const struct train_opts *o = t->c->o;
    struct batch_cfg *b = &r->batch;
    memset(r, 0, sizeof *r);
    b->port = t->c->rollout;
    b->hub = eval ? t->c->eval_hub : t->c->hub;
    b->world = t->c->world;
    b->journal = t->c->journal;
    b->scored = t->c->scored;
    b->enc = t->c->enc;
    b->skip_special = o->rollout_skip_special_tokens;
    b->group_rm = o->group_rm;
    b->n = (int)(eval ? eval->n : o->n_samples_per_prompt);
    b->max_context = o->rollout_max_context_len == CONF_UNSET ? 0 : (int)o->rollout_max_context_len;
    b->proto.max_new = (int)(eval ? eval->max_response_len : o->rollout_max_response_len);
    b->proto.temperature = (float)(eval ? eval->temperature : o->rollout_temperature);
    b->proto.top_p = (float)(eval ? eval->top_p : o->rollout_top_p);
    b->proto.top_k = (int)(eval ? eval->top_k : o->rollout_top_k);
    b->proto.ignore_eos = eval ? 0 : o->rollout_ignore_eos;
    b->proto.seed = (uint64_t)o->rollout_seed;
    b->proto.stream = eval ? RNG_EVAL : RNG_TRAIN;
    b->proto.rollout = t->id;
    b->proto.version = t->c->engines_have;
    b->proto.set = t->eval + 1;
    for (int64_t i = 0; !eval && i < o->rollout_stop_token_ids.n && i < 16; i++) {
        b->proto.stop[b->proto.nstop++] = (int32_t)o->rollout_stop_token_ids.v[i];
    }
    b->proto.texts = (const char *const *)o->rollout_stop.v;
    b->proto.ntexts = (int)o->rollout_stop.n;
    if (eval) {
        memcpy(b->proto.stop, eval->stop, sizeof eval->stop);
        b->proto.nstop = eval->nstop;
    }
    r->id = t->id;
    r->world = t->c->world;
    r->arg = t;
    r->concurrency = o->rollout_logical_concurrency;
    r->keep_failed = eval != NULL;
    if (!eval) {
        b->mask_old = o->mask_offpolicy_in_partial_rollout;
        r->target = o->rollout_batch_size;
        r->wave = o->over_sampling_batch_size;
        r->by_sample = o->rollout_submission_granularity == TRAIN_BY_SAMPLE;
        r->partial = o->partial_rollout;
        r->filter = t->c->dynamic;
        r->keep_dropped = t->c->all_samples != NULL;
    }
}

/* ---- where groups come from ---- */

/* A prompt that is taken from the data, or (g NULL) a group that goes on. */
static int turn_record_prompt(const struct turn *t, const struct prompts_group *g, int64_t group,
                              int64_t index, struct err *e)
{
    return turn_record(t->c, JOURNAL_PROMPTS, t->id,
                       json_pack("{s:I,s:I,s:I,s:b}", "row", g ? (json_int_t)g->row_index : -1,
                                 "group", (json_int_t)group, "index", (json_int_t)index, "resumed",
                                 !g),
                       e);
}

/* Recorded, then submitted. */
static int turn_submit(struct turn *t, struct rollout *r, const struct prompts_group *g,
                       struct sample **old, struct err *e)
{
    struct batch_item it = {g ? g->row : NULL, g ? g->group_index : 0, g ? g->index : 0};
    int rc = turn_record_prompt(t, g, g ? g->group_index : old[0]->group_index,
                                g ? g->index : old[0]->index, e);
    if (rc == STATUS_OK) {
        return g ? rollout_add(r, &it, e) : rollout_resume(r, old, e);
    }
    for (int64_t i = 0; old && i < t->c->o->n_samples_per_prompt; i++) {
        sample_free(old[i]);
    }
    return rc;
}

/* The next n groups of the user's data source. */
static int turn_source(struct turn *t, struct rollout *r, int64_t n, struct err *e)
{
    json_t *groups = NULL;
    int rc = extend_source_get(t->c->extend, t->id, t->gets++, n, &groups, e);

    if (rc == STATUS_OK && (int64_t)json_array_size(groups) != n) {
        rc = ERR(e, STATUS_CHILD, "--data-source-path: get_samples(%lld) gave %zu groups",
                 (long long)n, json_array_size(groups));
    }
    for (size_t i = 0; rc == STATUS_OK && i < (size_t)n; i++) {
        const json_t *list = json_array_get(groups, i), *first = json_array_get(list, 0);
        json_t *empty = json_object(), *metadata = json_object_get(first, "metadata");
        struct prompts_row row = {.prompt = json_object_get(first, "prompt"),
                                  .label = json_object_get(first, "label"),
                                  .metadata = json_is_object(metadata) ? metadata : empty};
        struct prompts_group g = {.row = &row,
                                  .row_index = -1,
                                  .group_index =
                                      json_integer_value(json_object_get(first, "group_index")),
                                  .index = json_integer_value(json_object_get(first, "index"))};
        if ((int64_t)json_array_size(list) != t->c->o->n_samples_per_prompt ||
            !json_is_integer(json_object_get(first, "index"))) {
            rc =
                ERR(e, STATUS_CHILD,
                    "--data-source-path: a group has %zu samples, not --n-samples-per-prompt %lld, "
                    "or they have no index",
                    json_array_size(list), (long long)t->c->o->n_samples_per_prompt);
        } else {
            rc = turn_submit(t, r, &g, NULL, e);
        }
        json_decref(empty);
    }
    json_decref(groups);
    return rc;
}

/* Unfinished groups go first, then the next prompts. */
static int turn_more(void *arg, struct rollout *r, int64_t n, struct err *e)
{
    struct turn *t = arg;
    struct sample ***old = NULL;
    int nold = 0;
    int rc = t->buffer ? buffer_take(t->buffer, t->id, n, &old, &nold, e) : STATUS_OK;

    for (int i = 0; i < nold; i++) {
        if (rc == STATUS_OK) {
            rc = turn_submit(t, r, NULL, old[i], e);
        } else {
            for (int64_t k = 0; k < t->c->o->n_samples_per_prompt; k++) {
                sample_free(old[i][k]);
            }
        }
        mem_free(old[i]);
    }
    mem_free(old);
    if (rc == STATUS_OK && nold < n && extend_has(t->c->extend, "data-source-path")) {
        return turn_source(t, r, n - nold, e);
    }
    for (int64_t i = nold; rc == STATUS_OK && i < n; i++) {
        struct prompts_group g;
        rc = prompts_next(t->c->data, 1, &g, e);
        rc = rc == STATUS_OK ? turn_submit(t, r, &g, NULL, e) : rc;
    }
    return rc;
}

static int turn_dropped(void *arg, const struct sample *first, const char *reason, struct err *e)
{
    struct turn *t = arg;
    return turn_record(t->c, JOURNAL_DROP, t->id,
                       json_pack("{s:i,s:I,s:I,s:s}", "groups", 1, "group",
                                 (json_int_t)first->group_index, "index", (json_int_t)first->index,
                                 "reason", reason),
                       e);
}

/* The next prompt of a stream. */
static int turn_feed_more(void *arg, struct stream *s, struct err *e)
{
    const struct turn_feed *f = arg;
    const struct turn t = {.c = f->c, .id = *f->rollout};
    struct prompts_group g;
    struct batch_item it;
    int rc = prompts_next(f->c->data, 1, &g, e);

    rc = rc == STATUS_OK ? turn_record_prompt(&t, &g, g.group_index, g.index, e) : rc;
    if (rc != STATUS_OK) {
        return rc;
    }
    it = (struct batch_item){g.row, g.group_index, g.index};
    return stream_add(s, &it, e);
}

static int turn_feed_dropped(void *arg, const struct sample *first, const char *reason,
                             struct err *e)
{
    const struct turn_feed *f = arg;
    struct turn t = {.c = f->c, .id = *f->rollout};
    return turn_dropped(&t, first, reason, e);
}

static struct journal_key turn_feed_key(const struct turn_feed *f, int64_t number)
{
    return (struct journal_key){.rollout = *f->rollout, .sample = number};
}

static int turn_feed_find(void *arg, int64_t number, int64_t *event, struct err *e)
{
    const struct turn_feed *f = arg;
    const struct journal *j = f->c->journal;
    struct journal_key key = turn_feed_key(f, number);
    void *data = NULL;
    size_t n = 0;
    int rc;

    if (!j || !j->find) {
        return STATUS_NOTFOUND;
    }
    rc = j->find(j->self, JOURNAL_DECISION, &key, &data, &n, e);
    if (rc == STATUS_OK) { /* digits, for those who look into the ledger */
        char *text = mem_strndup(data, n);
        if (conf_parse_int(text, event) != STATUS_OK || *event < 0) {
            rc =
                ERR(e, STATUS_FORMAT, "event %lld is %.40s, not a number", (long long)number, text);
        }
        mem_free(text);
    }
    mem_free(data);
    return rc;
}

/* It is on disk before it is acted on. */
static int turn_feed_put(void *arg, int64_t number, int64_t event, struct err *e)
{
    const struct turn_feed *f = arg;
    const struct journal *j = f->c->journal;
    struct journal_key key = turn_feed_key(f, number);
    char text[24];
    int rc, len = snprintf(text, sizeof text, "%lld", (long long)event);

    if (j && j->closed) {
        return ERR(e, STATUS_END, "the ledger ends before event %lld of rollout %lld",
                   (long long)number, (long long)key.rollout);
    }
    rc = turn_record(
        f->c, JOURNAL_DECISION, *f->rollout,
        json_pack("{s:I,s:I}", "number", (json_int_t)number, "event", (json_int_t)event), e);
    if (rc == STATUS_OK && j && j->put) {
        rc = j->put(j->self, JOURNAL_DECISION, &key, text, (size_t)len, e);
    }
    return rc == STATUS_OK && j && j->commit ? j->commit(j->self, e) : rc;
}

struct stream *turn_open_stream(const struct turn_feed *f)
{
    const struct train_opts *o = f->c->o;
    struct turn t = {.c = f->c, .eval = -1};
    int64_t n = o->n_samples_per_prompt, most = o->async_max_concurrent_samples;
    struct rollout_cfg r;
    struct stream_cfg c;

    turn_cfg(&t, &r);
    memset(&c, 0, sizeof c);
    c.batch = r.batch;
    c.flight = most == CONF_UNSET ? o->rollout_batch_size : most / n > 1 ? most / n : 1;
    c.capacity = (int64_t)(o->async_data_buffer_capacity_factor * (double)o->rollout_batch_size);
    c.capacity = c.capacity > 1 ? c.capacity : 1;
    c.by_sample = r.by_sample;
    c.max_staleness = o->max_weight_staleness == CONF_UNSET ? -1 : o->max_weight_staleness;
    c.retry = o->async_unused_samples_handler == TRAIN_UNUSED_RETRY;
    c.filter = f->c->dynamic;
    c.more = turn_feed_more;
    c.dropped = turn_feed_dropped;
    c.find = turn_feed_find;
    c.put = turn_feed_put;
    c.rollout = f->rollout;
    c.closed = f->c->journal && f->c->journal->closed;
    c.arg = (void *)(uintptr_t)f;
    return stream_new(&c);
}

/* The whole set, which is asked for once. */
static int turn_eval_more(void *arg, struct rollout *r, int64_t n, struct err *e)
{
    struct turn *t = arg;
    const struct loop_eval_set *set = &t->c->evals[t->eval];
    int rc = STATUS_OK;

    for (int64_t i = 0; rc == STATUS_OK && i < n; i++) {
        const struct prompts_row *found;
        struct prompts_row row;
        struct batch_item it = {&row, i, i * set->set->n};
        rc = prompts_row(set->data, i, &found, e);
        if (rc != STATUS_OK) {
            break;
        }
        row = *found;
        if (set->set->metadata) { /* what the set says of all its samples */
            row.metadata = json_copy(found->metadata);
            json_object_update(row.metadata, set->set->metadata);
        } else {
            json_incref(row.metadata);
        }
        rc = rollout_add(r, &it, e);
        json_decref(row.metadata);
    }
    return rc;
}

/* ---- from the beginning to the end ---- */

static char *turn_path(const struct turn *t, const char *template_)
{
    char id[240];
    if (t->eval >= 0) {
        snprintf(id, sizeof id, "eval_%.200s_%lld", t->c->evals[t->eval].set->name,
                 (long long)t->id);
    } else {
        snprintf(id, sizeof id, "%lld", (long long)t->id);
    }
    return conf_expand(template_, id);
}

/* A rollout of conversations as they are in the data: nothing is sampled. */
static int turn_take_sft(struct turn *t, struct err *e)
{
    struct sftdata d = {t->c->enc, t->c->o->loss_mask_type, t->id > t->c->start_rollout};
    int64_t n = t->c->o->rollout_batch_size;
    int rc = STATUS_OK;

    t->given = mem_alloc(sizeof *t->given * (size_t)n);
    while (rc == STATUS_OK && t->ngiven < n) {
        struct prompts_group g;
        struct sample *s = NULL;
        rc = prompts_next(t->c->data, 1, &g, e);
        rc = rc == STATUS_OK ? turn_record_prompt(t, &g, g.group_index, g.index, e) : rc;
        rc = rc == STATUS_OK ? sftdata_sample(&d, g.row, &s, e) : rc;
        if (rc == STATUS_OK) {
            s->index = s->rollout_id = g.index;
            s->group_index = g.group_index;
            t->given[t->ngiven++] = s;
        }
    }
    rollmetric_lengths(t->row, "rollout", t->given, t->ngiven);
    t->drawn = 0;
    t->whole = 1;
    return rc;
}

int turn_begin(struct turn *t, const struct loop_cfg *c, struct buffer *buffer, int64_t id,
               struct err *e)
{
    struct rollout_cfg cfg;

    *t = (struct turn){.c = c, .buffer = buffer, .id = id, .eval = -1, .drawn = 1};
    t->row = json_object();
    t->began = turn_now(t);
    metric_put_int(t->row, "rollout/step", id);
    if (c->o->load_debug_rollout_data) {
        char *path = turn_path(t, c->o->load_debug_rollout_data);
        int rc = dump_read(path, &t->given, &t->ngiven, e);
        mem_free(path);
        if (rc == STATUS_OK && !isnan(c->o->load_debug_rollout_data_subsample)) {
            t->ngiven =
                details_subsample(t->given, t->ngiven, c->o->load_debug_rollout_data_subsample);
        }
        t->drawn = 0;
        t->whole = 1;
        return rc;
    }
    if (extend_has(c->extend, "rollout-function-path")) {
        t->asked = 1;
        t->drawn = 0;
        return extend_rollout_begin(c->extend, id, c->engines_have, 0, e);
    }
    if (c->o->loss_type == LOSS_SFT) {
        return turn_take_sft(t, e);
    }
    turn_cfg(t, &cfg);
    cfg.more = turn_more;
    cfg.dropped = turn_dropped;
    t->roll = rollout_new(&cfg);
    return STATUS_OK;
}

void turn_begin_stream(struct turn *t, const struct loop_cfg *c, struct stream *s, int64_t id)
{
    *t = (struct turn){.c = c, .stream = s, .id = id, .eval = -1, .drawn = 1};
    t->row = json_object();
    t->began = turn_now(t);
    metric_put_int(t->row, "rollout/step", id);
    stream_want(s, c->o->rollout_batch_size);
}

void turn_begin_eval(struct turn *t, const struct loop_cfg *c, int set, int64_t id)
{
    struct rollout_cfg cfg;

    *t = (struct turn){.c = c, .id = id, .eval = set, .drawn = 1};
    t->row = json_object();
    t->began = turn_now(t);
    metric_put_int(t->row, "eval/step", id);
    turn_cfg(t, &cfg);
    cfg.target = cfg.wave = prompts_count(c->evals[set].data);
    cfg.more = turn_eval_more;
    t->roll = rollout_new(&cfg);
}

/* What goes on in the next rollout, and what the user's functions do with the samples. */
static int turn_hand_on(struct turn *t, struct sample **s, int n, struct err *e)
{
    struct sample **left, **dropped, **all;
    int ndropped, rc = STATUS_OK;

    while (t->buffer && (left = rollout_leftover(t->roll))) {
        buffer_put(t->buffer, left);
    }
    if (t->buffer) {
        metric_put_int(t->row, "rollout/partial/buffer_groups", buffer_groups(t->buffer));
        metric_put_int(t->row, "rollout/partial/thrown_groups", buffer_thrown(t->buffer));
    }
    if (t->c->sample_filter) {
        rc = filter_samples(t->c->sample_filter, s, n, e);
    }
    if (rc == STATUS_OK && t->c->all_samples) {
        dropped = rollout_dropped(t->roll, &ndropped);
        all = mem_alloc(sizeof *all * (size_t)(n + ndropped + 1));
        memcpy(all, s, sizeof *all * (size_t)n);
        memcpy(all + n, dropped, sizeof *all * (size_t)ndropped);
        rc = filter_samples(t->c->all_samples, all, n + ndropped, e);
        mem_free(all);
    }
    return rc;
}

/* Which samples the rollout is trained on. */
static int turn_record_kept(const struct turn *t, struct sample *const *s, int n, struct err *e)
{
    json_t *list = json_array();
    XXH64_hash_t sum = 0;
    char hex[20];

    for (int i = 0; t->c->journal && i < n; i++) {
        json_array_append_new(list, json_integer(s[i]->index));
        sum = XXH3_64bits_withSeed(
            s[i]->tokens, sizeof *s[i]->tokens * (size_t)(s[i]->prompt_len + s[i]->response_len),
            sum);
    }
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)sum);
    return turn_record(t->c, JOURNAL_KEPT, t->id,
                       json_pack("{s:o,s:s}", "samples", list, "tokens", hex), e);
}

static int turn_end_rollout(struct turn *t, struct sample **s, int n, struct err *e)
{
    double dt = turn_now(t) - t->began, tokens = 0.0;
    int rewarded = t->c->hub || t->c->scored || t->c->o->custom_agent_function_path;
    int rc;

    for (int i = 0; i < n; i++) {
        tokens += s[i]->response_len;
    }
    metric_put(t->row, "perf/rollout_time", dt);
    metric_put(t->row, "perf/tokens_per_gpu_per_sec", dt > 0 ? tokens / dt : 0.0);
    rollmetric_lengths(t->row, "rollout", s, n);
    rollmetric_sessions(t->row, t->c->o->use_session_server == 1 ? "v2" : "v1", s, n);
    if (t->c->o->log_multi_turn) {
        rollmetric_turns(t->row, s, n, t->c->o->rollout_max_response_len);
    }
    if (rewarded) {
        rollmetric_zero_std(t->row, s, n);
    }
    if (rewarded && t->c->o->log_reward_category) {
        rollmetric_category(t->row, t->c->o->log_reward_category, s, n);
    }
    if (rewarded && t->c->o->log_passrate) {
        rollmetric_passrate(t->row, "passrate/", s, n, (int)t->c->o->n_samples_per_prompt);
    }
    if (t->roll) {
        rollout_report(t->roll, t->row);
    } else {
        stream_report(t->stream, t->row);
    }
    if (t->c->rollout->report) {
        t->c->rollout->report(t->c->rollout->self, t->row);
    }
    rc = turn_record_kept(t, s, n, e);
    return rc == STATUS_OK ? turn_hand_on(t, s, n, e) : rc;
}

static void turn_end_eval(struct turn *t, struct sample **s, int n)
{
    const struct evalset *set = t->c->evals[t->eval].set;
    char prefix[160];

    rollmetric_eval(t->row, set->name, s, n);
    if (t->c->o->log_passrate && set->n > 1) {
        snprintf(prefix, sizeof prefix, "eval/%s-", set->name);
        rollmetric_passrate(t->row, prefix, s, n, (int)set->n);
    }
}

/* --save-debug-rollout-data. */
static int turn_dump(const struct turn *t, struct sample *const *s, int n, struct err *e)
{
    const char *template_ = t->c->o->save_debug_rollout_data;
    char *path = template_ ? turn_path(t, template_) : NULL;
    struct patience wait = {0};
    int rc = STATUS_OK;

    if (path) {
        do {
            rc = dump_write(path, t->id, s, n, e);
        } while (patience_again(&wait, rc, path, e));
        mem_free(path);
    }
    return rc;
}

/* --save-debug-trajectory-data. */
static int turn_talk(const struct turn *t, struct sample *const *s, int n, struct err *e)
{
    struct patience wait = {0};
    int rc;

    do {
        rc = details_trajectory(t->c->o, t->id, s, n, e);
    } while (patience_again(&wait, rc, t->c->o->save_debug_trajectory_data, e));
    return rc;
}

/* What a rollout function of the user's has made. */
static int turn_tick_asked(struct turn *t, struct err *e)
{
    struct extend_rolled r;
    const char *name;
    json_t *value;
    char full[160];
    int rc = extend_rollout_poll(t->c->extend, 0, 0.2, &r, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    t->given = r.s;
    t->ngiven = r.n;
    r.s = NULL;
    r.n = 0;
    metric_put(t->row, "perf/rollout_time", turn_now(t) - t->began);
    rollmetric_lengths(t->row, "rollout", t->given, t->ngiven);
    json_object_foreach(r.metrics, name, value)
    {
        snprintf(full, sizeof full, "%s%.140s", strchr(name, '/') ? "" : "rollout/", name);
        metric_put(t->row, full, json_number_value(value));
    }
    extend_rolled_free(&r);
    t->whole = 1;
    rc = turn_record_kept(t, t->given, t->ngiven, e);
    return rc == STATUS_OK ? turn_dump(t, t->given, t->ngiven, e) : rc;
}

int turn_tick(struct turn *t, struct err *e)
{
    struct sample **s;
    int rc, n;

    if (t->whole) {
        return STATUS_OK;
    }
    if (t->asked) {
        return turn_tick_asked(t, e);
    }
    rc = t->roll ? rollout_tick(t->roll, e) : stream_tick(t->stream, e);
    if (rc != STATUS_OK) {
        return rc == STATUS_AGAIN || t->eval < 0
                   ? rc
                   : err_prefix(e, "evaluation set %s", t->c->evals[t->eval].set->name);
    }
    if (t->stream) {
        t->given = stream_take(t->stream, &t->ngiven);
    }
    s = turn_samples(t, &n);
    if (t->eval >= 0) {
        turn_end_eval(t, s, n);
    } else {
        rc = turn_end_rollout(t, s, n, e);
    }
    rc = rc == STATUS_OK ? turn_dump(t, s, n, e) : rc;
    if (rc == STATUS_OK && t->eval < 0 && t->c->o->debug_rollout_print_every > 0 &&
        t->id % t->c->o->debug_rollout_print_every == 0) {
        dump_print(t->id, s, n);
    }
    rc = rc == STATUS_OK && t->eval < 0 ? turn_talk(t, s, n, e) : rc;
    t->whole = 1;
    return rc;
}

struct sample **turn_samples(struct turn *t, int *n)
{
    if (t->roll) {
        return rollout_samples(t->roll, n);
    }
    *n = t->ngiven;
    return t->given;
}

int turn_done_samples(const struct turn *t)
{
    return t->roll                  ? rollout_done_samples(t->roll)
           : t->stream && !t->whole ? stream_done_samples(t->stream)
                                    : t->ngiven;
}

void turn_fini(struct turn *t)
{
    rollout_free(t->roll);
    for (int i = 0; i < t->ngiven; i++) {
        sample_free(t->given[i]);
    }
    mem_free(t->given);
    json_decref(t->row);
    memset(t, 0, sizeof *t);
}

/* ---- in a checkpoint ---- */

json_t *turn_state(struct turn *t)
{
    json_t *list = json_array();
    int n;
    struct sample **s = turn_samples(t, &n);

    for (int i = 0; i < n; i++) {
        json_t *j = sample_to_json(s[i]);
        json_object_set_new(j, "segments", sample_segments_json(s[i]));
        json_array_append_new(list, j);
    }
    return json_pack("{s:I,s:b,s:O,s:o}", "rollout_id", (json_int_t)t->id, "drawn", t->drawn,
                     "metrics", t->row, "samples", list);
}

int turn_restore(struct turn *t, const struct loop_cfg *c, const json_t *state, struct err *e)
{
    const json_t *list = json_object_get(state, "samples"),
                 *row = json_object_get(state, "metrics");
    size_t n = json_array_size(list);

    *t = (struct turn){.c = c, .eval = -1, .whole = 1};
    t->id = json_integer_value(json_object_get(state, "rollout_id"));
    t->drawn = json_is_true(json_object_get(state, "drawn"));
    t->row = json_is_object(row) ? json_deep_copy(row) : json_object();
    t->began = turn_now(t);
    t->given = mem_alloc(sizeof *t->given * (n + 1));
    for (size_t i = 0; i < n; i++) {
        int rc = sample_from_json(json_array_get(list, i), &t->given[i], e);
        if (rc != STATUS_OK) {
            turn_fini(t);
            return err_prefix(e, "rollout that waits in the checkpoint");
        }
        t->ngiven++;
    }
    return STATUS_OK;
}
