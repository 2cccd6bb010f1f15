/* Owns groups from their submission to the rollout that takes them, when sampling does not wait for
 * training. Groups are in flight (the batch has them), in the queue, or taken.
 *
 * What the engines do is heard at any time and acted on in the order of the events. So the state
 * after event k is a function of the state before and of the event. */
#include "rl/stream.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/metric.h"
#include "base/status.h"
#include "rl/buffer.h"
#include "rl/filter.h"

#define STREAM_STARVED      10000 /* looks without an event after which a replay is stuck */
#define STREAM_MAX_LEFT_OUT 1024  /* batches' worth of groups left out before a rollout is there */

/* An event is 4 x what it is about + its kind. */
enum stream_kind {
    STREAM_GROUP,  /* a group is finished and scored: its first sample's index */
    STREAM_SAMPLE, /* a sample is answered: its index; only where samples make room */
    STREAM_TRAINED /* training on a rollout is done */
};

struct stream_group {
    int64_t index;
    uint8_t *told; /* (n) samples whose event has been acted on */
    int open;      /* in flight */
};

struct stream {
    struct stream_cfg c;
    struct batch *b;
    struct stream_group *groups; /* as the batch numbers them */
    int ngroups, groups_cap;
    int64_t *heard; /* events that were heard and not acted on, in order */
    int nheard, heard_cap;
    struct buffer *queue, *again; /* finished groups; those that are sampled once more */
    struct sample ***taken;
    int64_t ntaken, want;
    int64_t number;  /* of the next event */
    int64_t starved; /* looks of a replay that found no event */
    int64_t version; /* of the engines' weights */
    int64_t trained; /* rollout whose training is done and not yet acted on; -1: none */
    int64_t known;   /* the last that was acted on; -1: none */
    int64_t open_groups, open_samples;
    int hold, full; /* full: the wanted groups are there */
    int answers_before;
    /* counts for the report */
    int64_t stale, failed, left_out, stale_sum, stale_max, judged;
    json_t *reasons;
};

struct stream *stream_new(const struct stream_cfg *cfg)
{
    struct stream *s = mem_alloc(sizeof *s);
    s->c = *cfg;
    s->b = batch_new(&cfg->batch);
    s->queue = buffer_new(cfg->batch.n, NULL);
    s->again = buffer_new(cfg->batch.n, NULL);
    s->trained = s->known = -1;
    s->reasons = json_object();
    log_info(TRAIN,
             "Continuous async rollout worker started: %lld groups in flight, a buffer of %lld",
             (long long)cfg->flight, (long long)cfg->capacity);
    return s;
}

static void stream_free_taken(struct stream *s)
{
    for (int64_t i = 0; i < s->ntaken; i++) {
        for (int k = 0; k < s->c.batch.n; k++) {
            sample_free(s->taken[i][k]);
        }
        mem_free(s->taken[i]);
    }
    mem_free(s->taken);
    s->taken = NULL;
    s->ntaken = 0;
}

void stream_free(struct stream *s)
{
    if (!s) {
        return;
    }
    stream_free_taken(s);
    batch_free(s->b);
    buffer_free(s->queue);
    buffer_free(s->again);
    for (int i = 0; i < s->ngroups; i++) {
        mem_free(s->groups[i].told);
    }
    mem_free(s->groups);
    mem_free(s->heard);
    json_decref(s->reasons);
    mem_free(s);
}

/* ---- groups come in ---- */

static void stream_enter(struct stream *s)
{
    struct stream_group *q;

    s->groups = mem_room(s->groups, sizeof *s->groups, s->ngroups, &s->groups_cap);
    q = &s->groups[s->ngroups];
    *q = (struct stream_group){.index = batch_group(s->b, s->ngroups)[0]->index, .open = 1};
    q->told = mem_alloc((size_t)s->c.batch.n);
    s->ngroups++;
    s->open_groups++;
    s->open_samples += s->c.batch.n;
}

int stream_add(struct stream *s, const struct batch_item *item, struct err *e)
{
    int rc = batch_add(s->b, item, e);
    if (rc == STATUS_OK) {
        stream_enter(s);
    }
    return rc;
}

int stream_resume(struct stream *s, struct sample *const *group, struct err *e)
{
    int rc = batch_resume(s->b, group, e);
    if (rc == STATUS_OK) {
        stream_enter(s);
    }
    return rc;
}

/* Fills what may be in flight. */
static int stream_submit(struct stream *s, struct err *e)
{
    int64_t n = s->c.batch.n;

    while (
        !s->hold && buffer_groups(s->queue) < s->c.capacity &&
        (s->c.by_sample ? s->open_samples + n <= s->c.flight * n : s->open_groups < s->c.flight)) {
        struct sample ***old;
        int nold, rc = buffer_take(s->again, 0, 1, &old, &nold, e);
        batch_now(s->b, *s->c.rollout, s->version);
        if (rc == STATUS_OK && nold) {
            rc = stream_resume(s, old[0], e);
            mem_free(old[0]);
        } else if (rc == STATUS_OK) {
            rc = s->c.more(s->c.arg, s, e);
        }
        if (rc != STATUS_OK) {
            return rc;
        }
        mem_free(old);
    }
    return STATUS_OK;
}

/* ---- groups leave ---- */

static int stream_leave_out(struct stream *s, const struct sample *first, const char *reason,
                            struct err *e)
{
    int64_t batch = s->want > 0 ? s->want : s->c.flight;
    if (++s->left_out > STREAM_MAX_LEFT_OUT * batch) {
        return ERR(e, STATUS_INPUT, "%lld groups were left out and none is kept; the last: %s",
                   (long long)s->left_out, reason);
    }
    return s->c.dropped ? s->c.dropped(s->c.arg, first, reason, e) : STATUS_OK;
}

/* Forgets what was sampled; prompt, label and numbers stay. */
static void stream_reset(struct sample *x)
{
    sample_cut(x, 0);
    mem_free(x->mask);
    mem_free(x->response);
    x->mask = NULL;
    x->response = NULL;
    x->status = SAMPLE_ABORTED;
    x->remove = 0;
}

static int64_t stream_staleness(const struct stream *s, struct sample *const *group)
{
    int64_t oldest = s->version;
    for (int i = 0; i < s->c.batch.n; i++) {
        for (int k = 0; k < group[i]->nsegments; k++) {
            int64_t v = group[i]->segments[k].version;
            oldest = v >= 0 && v < oldest ? v : oldest;
        }
    }
    return s->version - oldest;
}

/* The rollout takes the oldest groups of the queue that are fresh enough. */
static int stream_collect(struct stream *s, struct err *e)
{
    while (s->ntaken < s->want && buffer_groups(s->queue)) {
        struct sample ***got, **group;
        int n, rc = buffer_take(s->queue, 0, 1, &got, &n, e);
        int64_t behind;
        if (rc != STATUS_OK) {
            return rc;
        }
        group = got[0];
        mem_free(got);
        behind = stream_staleness(s, group);
        s->judged++;
        s->stale_sum += behind;
        s->stale_max = behind > s->stale_max ? behind : s->stale_max;
        if (s->c.max_staleness < 0 || behind <= s->c.max_staleness) {
            s->taken[s->ntaken++] = group;
            s->left_out = 0;
            continue;
        }
        s->stale++;
        rc = stream_leave_out(s, group[0], "stale", e);
        if (s->c.retry) {
            for (int i = 0; i < s->c.batch.n; i++) {
                stream_reset(group[i]);
            }
            buffer_put(s->again, group);
        } else {
            for (int i = 0; i < s->c.batch.n; i++) {
                sample_free(group[i]);
            }
            mem_free(group);
        }
        if (rc != STATUS_OK) {
            return rc;
        }
    }
    s->full = s->want > 0 && s->ntaken == s->want;
    return STATUS_OK;
}

/* A finished group: into the queue, or left out. */
static int stream_judge(struct stream *s, int group, struct err *e)
{
    struct sample **x = batch_group(s->b, group);
    const char *failure = batch_failure(s->b, group);
    struct filter_verdict v = {1, ""};
    int rc = STATUS_OK;

    s->groups[group].open = 0;
    s->open_groups--;
    for (int i = 0; i < s->c.batch.n; i++) {
        s->open_samples -= !s->groups[group].told[i];
    }
    mem_free(s->groups[group].told);
    s->groups[group].told = NULL;
    if (!failure && s->c.filter) {
        rc = filter_group(s->c.filter, x, s->c.batch.n, &v, e);
    }
    if (rc == STATUS_OK && !failure && v.keep) {
        buffer_put(s->queue, batch_hand_over(s->b, group));
        batch_release(s->b, group);
        return STATUS_OK;
    }
    if (rc == STATUS_OK && failure) {
        s->failed++;
        log_warn(REWARD, "a group left out, the next prompt takes its place: %s", failure);
        rc = stream_leave_out(s, x[0], failure, e);
    } else if (rc == STATUS_OK) {
        json_int_t n = json_integer_value(json_object_get(s->reasons, v.reason));
        json_object_set_new(s->reasons, v.reason, json_integer(n + 1));
        rc = stream_leave_out(s, x[0], v.reason, e);
    }
    batch_release(s->b, group);
    return rc;
}

/* What follows from the events so far. */
static int stream_settle(struct stream *s, struct err *e)
{
    int rc = stream_collect(s, e);
    return rc == STATUS_OK ? stream_submit(s, e) : rc;
}

/* ---- events ---- */

static void stream_note(struct stream *s, int64_t about, enum stream_kind kind)
{
    s->heard = mem_room(s->heard, sizeof *s->heard, s->nheard, &s->heard_cap);
    s->heard[s->nheard++] = about * 4 + (int64_t)kind;
}

static void stream_hear(struct stream *s)
{
    struct batch_event ev;

    while (batch_event(s->b, &ev)) {
        const struct stream_group *q = &s->groups[ev.group];
        if (ev.kind == BATCH_SCORED) {
            stream_note(s, q->index, STREAM_GROUP);
        } else if (s->c.by_sample && !q->told[ev.sample]) { /* told: before a checkpoint */
            stream_note(s, q->index + ev.sample, STREAM_SAMPLE);
        }
    }
}

/* The open group that has the sample; -1: none. */
static int stream_find(const struct stream *s, int64_t index)
{
    for (int i = s->ngroups - 1; i >= 0; i--) {
        const struct stream_group *q = &s->groups[i];
        if (q->open && index >= q->index && index < q->index + s->c.batch.n) {
            return i;
        }
    }
    return -1;
}

static int stream_act(struct stream *s, int64_t event, struct err *e)
{
    enum stream_kind kind = (enum stream_kind)(event % 4);
    int group = kind == STREAM_TRAINED ? -1 : stream_find(s, event / 4);

    s->number++;
    s->starved = 0;
    if (kind == STREAM_TRAINED) {
        s->known = s->trained;
        s->trained = -1;
        return STATUS_OK;
    }
    if (kind == STREAM_SAMPLE) {
        int i = (int)(event / 4 - s->groups[group].index);
        s->open_samples -= !s->groups[group].told[i];
        s->groups[group].told[i] = 1;
    } else {
        int rc = stream_judge(s, group, e);
        if (rc != STATUS_OK) {
            return rc;
        }
    }
    return stream_settle(s, e);
}

/* Acts on the events that can be acted on. 0: no more now. */
static int stream_advance(struct stream *s, struct err *e)
{
    /* who takes acts next, before any other event: that too must not be chance. On hold nobody does
     */
    while (!s->full || s->hold) {
        int64_t event = -1;
        int at = 0, rc = s->c.find ? s->c.find(s->c.arg, s->number, &event, e) : STATUS_NOTFOUND;
        int known = rc == STATUS_OK;

        if (rc != STATUS_OK && rc != STATUS_NOTFOUND) {
            return rc;
        }
        if (!known) {
            if (s->trained >= 0) {
                event = s->trained * 4 + STREAM_TRAINED;
            } else if (s->c.closed && s->starved++ < STREAM_STARVED) {
                return STATUS_OK;
            } else if (s->nheard) {
                event = s->heard[0];
            } else {
                return STATUS_OK;
            }
        } else if (event % 4 == STREAM_TRAINED && s->trained != event / 4) {
            return STATUS_OK; /* it is not done yet */
        }
        if (event % 4 != STREAM_TRAINED) {
            if (stream_find(s, event / 4) < 0) {
                if (s->hold && !s->open_groups) {
                    return STATUS_OK; /* of a group that is submitted when the hold ends */
                }
                return ERR(e, STATUS_FORMAT,
                           "event %lld speaks of sample %lld, which is not in flight",
                           (long long)s->number, (long long)(event / 4));
            }
            while (at < s->nheard && s->heard[at] != event) {
                at++;
            }
            if (at == s->nheard) {
                return STATUS_OK; /* it has not arrived yet */
            }
        }
        if (!known && s->c.put) {
            rc = s->c.put(s->c.arg, s->number, event, e);
            if (rc != STATUS_OK) {
                return rc;
            }
        }
        if (event % 4 != STREAM_TRAINED) {
            memmove(s->heard + at, s->heard + at + 1,
                    sizeof *s->heard * (size_t)(--s->nheard - at));
        }
        rc = stream_act(s, event, e);
        if (rc != STATUS_OK || event % 4 == STREAM_TRAINED) { /* who trains acts next, too */
            return rc;
        }
    }
    return STATUS_OK;
}

/* ---- the calls ---- */

void stream_want(struct stream *s, int64_t groups)
{
    s->want = groups;
    s->full = 0;
    s->answers_before = batch_done_samples(s->b);
    s->taken = mem_realloc(s->taken, sizeof *s->taken * (size_t)s->ntaken,
                           sizeof *s->taken * (size_t)(groups > s->ntaken ? groups : s->ntaken));
}

int stream_tick(struct stream *s, struct err *e)
{
    int rc = stream_settle(s, e);

    if (rc == STATUS_OK) {
        rc = batch_tick(s->b, e);
        rc = rc == STATUS_AGAIN ? STATUS_OK : rc;
    }
    if (rc == STATUS_OK) {
        stream_hear(s);
        rc = stream_advance(s, e);
    }
    if (rc != STATUS_OK) {
        return rc;
    }
    return s->full || !s->want ? STATUS_OK : STATUS_AGAIN;
}

int stream_trained(struct stream *s, int64_t rollout, struct err *e)
{
    int rc = STATUS_OK;

    if (s->known != rollout) {
        s->trained = rollout;
        rc = stream_advance(s, e);
    }
    if (rc != STATUS_OK) {
        return rc;
    }
    return s->known == rollout ? STATUS_OK : STATUS_AGAIN;
}

void stream_version(struct stream *s, int64_t version)
{
    s->version = version;
}

void stream_hold(struct stream *s, int hold)
{
    s->hold = hold;
}

int stream_idle(const struct stream *s)
{
    return !s->open_groups && batch_idle(s->b);
}

int stream_done_samples(const struct stream *s)
{
    return batch_done_samples(s->b) - s->answers_before;
}

static int stream_order(const void *x, const void *y)
{
    const struct sample *a = *(struct sample *const *)x, *b = *(struct sample *const *)y;
    return (a->index > b->index) - (a->index < b->index);
}

struct sample **stream_take(struct stream *s, int *n)
{
    size_t size = (size_t)s->c.batch.n;
    struct sample **out = mem_alloc(sizeof *out * ((size_t)s->ntaken * size + 1));

    *n = 0;
    for (int64_t i = 0; i < s->ntaken; i++) {
        memcpy(out + *n, s->taken[i], sizeof *out * size);
        *n += (int)size;
        mem_free(s->taken[i]);
    }
    qsort(out, (size_t)*n, sizeof *out, stream_order);
    s->ntaken = s->want = 0;
    s->full = 0;
    return out;
}

void stream_report(struct stream *s, json_t *row)
{
    const char *reason;
    json_t *n;

    metric_put_int(row, "rollout/reward_failed_groups", s->failed);
    json_object_foreach(s->reasons, reason, n)
    {
        char name[160];
        snprintf(name, sizeof name, "rollout/dynamic_filter/drop_%s", reason);
        metric_put_int(row, name, json_integer_value(n));
    }
    metric_put_int(row, "rollout/fully_async/queue_size", buffer_groups(s->queue));
    metric_put_int(row, "rollout/fully_async/stale_groups_filtered", s->stale);
    metric_put(row, "rollout/fully_async/avg_staleness",
               s->judged ? (double)s->stale_sum / (double)s->judged : 0.0);
    metric_put_int(row, "rollout/fully_async/max_staleness", s->stale_max);
    json_object_clear(s->reasons);
    s->failed = s->stale = s->stale_sum = s->stale_max = s->judged = 0;
}

/* ---- in a checkpoint ---- */

/* What the next report will tell. */
static json_t *stream_counts(const struct stream *s)
{
    return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:o}", "stale", (json_int_t)s->stale, "failed",
                     (json_int_t)s->failed, "left_out", (json_int_t)s->left_out, "stale_sum",
                     (json_int_t)s->stale_sum, "stale_max", (json_int_t)s->stale_max, "judged",
                     (json_int_t)s->judged, "reasons", json_copy(s->reasons));
}

static void stream_restore_counts(struct stream *s, const json_t *o)
{
    s->stale = json_integer_value(json_object_get(o, "stale"));
    s->failed = json_integer_value(json_object_get(o, "failed"));
    s->left_out = json_integer_value(json_object_get(o, "left_out"));
    s->stale_sum = json_integer_value(json_object_get(o, "stale_sum"));
    s->stale_max = json_integer_value(json_object_get(o, "stale_max"));
    s->judged = json_integer_value(json_object_get(o, "judged"));
    json_object_update(s->reasons, json_object_get(o, "reasons"));
}

static json_t *stream_flight(const struct stream *s)
{
    json_t *all = json_array();

    for (int i = 0; i < s->ngroups; i++) {
        const struct stream_group *q = &s->groups[i];
        int64_t rollout, version;
        json_t *told;
        if (!q->open) {
            continue;
        }
        batch_when(s->b, i, &rollout, &version);
        told = json_array();
        for (int k = 0; k < s->c.batch.n; k++) {
            json_array_append_new(told, json_integer(q->told[k]));
        }
        json_array_append_new(all,
                              json_pack("{s:I,s:I,s:o,s:o}", "rollout", (json_int_t)rollout,
                                        "version", (json_int_t)version, "told", told, "samples",
                                        buffer_group_state(batch_group(s->b, i), s->c.batch.n)));
    }
    return all;
}

json_t *stream_state(const struct stream *s)
{
    json_t *taken = json_array();

    for (int64_t i = 0; i < s->ntaken; i++) {
        json_array_append_new(taken, buffer_group_state(s->taken[i], s->c.batch.n));
    }
    return json_pack("{s:o,s:I,s:I,s:I,s:o,s:o,s:o,s:o}", "counts", stream_counts(s), "number",
                     (json_int_t)s->number, "version", (json_int_t)s->version, "want",
                     (json_int_t)s->want, "taken", taken, "queue", buffer_state(s->queue), "again",
                     buffer_state(s->again), "flight", stream_flight(s));
}

static int stream_restore_flight(struct stream *s, const json_t *flight, struct err *e)
{
    const json_t *o;
    size_t i;

    json_array_foreach(flight, i, o)
    {
        struct sample **group;
        int rc = buffer_group_restore(json_object_get(o, "samples"), s->c.batch.n, &group, e);
        if (rc != STATUS_OK) {
            return rc;
        }
        for (int k = 0; k < s->c.batch.n; k++) {
            /* its failed reward, or the answer that an engine gave up, is asked for once more: the
             * record has it */
            if (group[k]->status == SAMPLE_FAILED || group[k]->status == SAMPLE_ABORTED) {
                stream_reset(group[k]);
            }
        }
        batch_now(s->b, json_integer_value(json_object_get(o, "rollout")),
                  json_integer_value(json_object_get(o, "version")));
        rc = stream_resume(s, group, e);
        if (rc == STATUS_OK) {
            struct stream_group *q = &s->groups[s->ngroups - 1];
            for (int k = 0; k < s->c.batch.n; k++) {
                q->told[k] =
                    json_integer_value(json_array_get(json_object_get(o, "told"), (size_t)k)) != 0;
                s->open_samples -= q->told[k];
                if (s->c.by_sample && !q->told[k] && batch_answered(s->b, s->ngroups - 1, k)) {
                    stream_note(s, q->index + k, STREAM_SAMPLE);
                }
            }
        }
        mem_free(group);
        if (rc != STATUS_OK) {
            return rc;
        }
    }
    return STATUS_OK;
}

int stream_restore(struct stream *s, const json_t *state, struct err *e)
{
    const json_t *taken = json_object_get(state, "taken"), *x;
    int rc;
    size_t i;

    s->number = json_integer_value(json_object_get(state, "number"));
    stream_restore_counts(s, json_object_get(state, "counts"));
    stream_want(s, json_integer_value(json_object_get(state, "want")));
    rc = buffer_restore(s->queue, json_object_get(state, "queue"), e);
    rc = rc == STATUS_OK ? buffer_restore(s->again, json_object_get(state, "again"), e) : rc;
    json_array_foreach(taken, i, x)
    {
        if (rc == STATUS_OK && s->ntaken < s->want) {
            rc = buffer_group_restore(x, s->c.batch.n, &s->taken[s->ntaken], e);
            s->ntaken += rc == STATUS_OK;
        }
    }
    rc = rc == STATUS_OK ? stream_restore_flight(s, json_object_get(state, "flight"), e) : rc;
    return rc == STATUS_OK ? rc : err_prefix(e, "groups in flight of the checkpoint");
}
