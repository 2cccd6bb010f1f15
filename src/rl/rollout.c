/* Owns what a rollout keeps, drops, asks for and cuts. The batch below tells what is known, in the
 * order in which it happened; everything here is decided in the order of the virtual clock, which
 * waits until enough is known. So a run's bits do not depend on the speed or number of engines. */
#include "rl/rollout.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/metric.h"
#include "base/status.h"
#include "base/world.h"
#include "rl/filter.h"
#include "rl/vclock.h"

#define ROLLOUT_MAX_FAILED  8   /* targets' worth of groups that may fail in one rollout */
#define ROLLOUT_MAX_DROPPED 256 /* and that the filter may drop */

enum rollout_fate {
    ROLLOUT_OPEN,
    ROLLOUT_KEPT,
    ROLLOUT_DROPPED, /* by the filter */
    ROLLOUT_FAILED,  /* without rewards */
    ROLLOUT_LEFT     /* unfinished at the end */
};

enum rollout_phase { ROLLOUT_RUN, ROLLOUT_SETTLE, ROLLOUT_DRAIN, ROLLOUT_DONE };

struct rollout_group {
    int64_t index;   /* of its first sample */
    int job;         /* of its first sample that is sampled; the others follow */
    int njobs, left; /* samples that are sampled, and are not finished on the clock */
    enum rollout_fate fate;
    int scored;
    double scored_at; /* on the wall's clock */
};

struct rollout_job {
    int group, sample;
};

struct rollout {
    struct rollout_cfg c;
    struct batch *b;
    struct vclock *v;
    enum rollout_phase phase;
    struct rollout_group *groups;
    int ngroups, groups_cap;
    struct rollout_job *jobs;
    int njobs, jobs_cap;
    int judging;            /* complete on the clock and not judged; -1: none */
    int whole, *whole_list; /* groups that came complete */
    int whole_cap;
    int64_t open_groups, open_samples; /* in flight on the clock */
    int64_t kept, failed, dropped, waves;
    json_t *reasons; /* of the filter: counts */
    int64_t wasted;  /* tokens that were sampled on the clock for nothing */
    int64_t left_groups, left_samples, left_tokens, resumed_groups, thrown;
    int at; /* of rollout_leftover */
    struct sample **sorted, **sorted_dropped;
    double began, ended;
    int64_t surplus; /* tokens beyond the clock's */
};

static double rollout_time(const struct rollout *r)
{
    return r->c.world ? r->c.world->now(r->c.world->self) : 0.0;
}

struct rollout *rollout_new(const struct rollout_cfg *cfg)
{
    struct rollout *r = mem_alloc(sizeof *r);
    r->c = *cfg;
    r->b = batch_new(&cfg->batch);
    r->v = vclock_new(cfg->concurrency > 0 ? cfg->concurrency : INT64_MAX);
    r->judging = -1;
    r->reasons = json_object();
    r->began = rollout_time(r);
    return r;
}

void rollout_free(struct rollout *r)
{
    if (r) {
        batch_free(r->b);
        vclock_free(r->v);
        json_decref(r->reasons);
        mem_free(r->groups);
        mem_free(r->jobs);
        mem_free(r->whole_list);
        mem_free(r->sorted);
        mem_free(r->sorted_dropped);
        mem_free(r);
    }
}

/* ---- groups come in ---- */

/* The batch has one more group: its samples wait on the clock, but for those that are finished. */
static void rollout_enter(struct rollout *r)
{
    int group = batch_groups(r->b) - 1;
    struct sample **s = batch_group(r->b, group);
    struct rollout_group *q;

    r->groups = mem_room(r->groups, sizeof *r->groups, r->ngroups, &r->groups_cap);
    q = &r->groups[r->ngroups++];
    *q = (struct rollout_group){.index = s[0]->index, .job = r->njobs};
    for (int i = 0; i < r->c.batch.n; i++) {
        if (batch_answered(r->b, group, i)) {
            continue;
        }
        r->jobs = mem_room(r->jobs, sizeof *r->jobs, r->njobs, &r->jobs_cap);
        r->jobs[r->njobs] = (struct rollout_job){group, i};
        ASSERT(vclock_add(r->v, s[i]->index) == r->njobs);
        r->njobs++;
        q->njobs++;
    }
    q->left = q->njobs;
    r->open_groups++;
    r->open_samples += q->left;
    if (!q->left) {
        r->whole_list = mem_room(r->whole_list, sizeof *r->whole_list, r->whole, &r->whole_cap);
        r->whole_list[r->whole++] = group;
    }
}

int rollout_add(struct rollout *r, const struct batch_item *item, struct err *e)
{
    int rc = batch_add(r->b, item, e);
    if (rc == STATUS_OK) {
        rollout_enter(r);
    }
    return rc;
}

int rollout_resume(struct rollout *r, struct sample *const *s, struct err *e)
{
    int rc = batch_resume(r->b, s, e);
    if (rc == STATUS_OK) {
        r->resumed_groups++;
        rollout_enter(r);
    }
    return rc;
}

/* Asks for waves as long as less is in flight than may be kept. */
static int rollout_ask(struct rollout *r, struct err *e)
{
    int64_t n = r->c.batch.n;

    for (;;) {
        int64_t want = r->c.target - r->kept;
        int had = r->ngroups, rc;
        if (r->c.by_sample ? r->open_samples + n > want * n : r->open_groups >= want) {
            return STATUS_OK;
        }
        r->waves++;
        rc = r->c.more(r->c.arg, r, r->c.wave, e);
        if (rc != STATUS_OK || r->ngroups == had) {
            return rc;
        }
    }
}

/* ---- judging ---- */

static int64_t rollout_group_tokens(const struct rollout *r, int group)
{
    const struct rollout_group *q = &r->groups[group];
    int64_t sum = 0;
    for (int i = 0; i < q->njobs; i++) {
        sum += vclock_tokens(r->v, q->job + i);
    }
    return sum;
}

static int rollout_tell(struct rollout *r, int group, const char *reason, struct err *e)
{
    return r->c.dropped ? r->c.dropped(r->c.arg, batch_group(r->b, group)[0], reason, e)
                        : STATUS_OK;
}

/* A group without its rewards: the next prompt takes its place. */
static int rollout_replace(struct rollout *r, int group, struct err *e)
{
    const char *reason = batch_failure(r->b, group);
    int rc;

    r->groups[group].fate = ROLLOUT_FAILED;
    r->wasted += rollout_group_tokens(r, group);
    if (++r->failed > ROLLOUT_MAX_FAILED * r->c.target) {
        return ERR(e, STATUS_CHILD, "rewards failed for %lld groups in one rollout; the last: %s",
                   (long long)r->failed, reason);
    }
    log_warn(REWARD, "a group left out, the next prompt takes its place: %s", reason);
    rc = rollout_tell(r, group, reason, e);
    batch_forget(r->b, group);
    return rc == STATUS_OK ? r->c.more(r->c.arg, r, 1, e) : rc;
}

static int rollout_drop(struct rollout *r, int group, const char *reason, struct err *e)
{
    json_int_t n = json_integer_value(json_object_get(r->reasons, reason));
    int rc;

    r->groups[group].fate = ROLLOUT_DROPPED;
    r->wasted += rollout_group_tokens(r, group);
    json_object_set_new(r->reasons, reason, json_integer(n + 1));
    if (++r->dropped > ROLLOUT_MAX_DROPPED * r->c.target) {
        return ERR(e, STATUS_INPUT,
                   "--dynamic-sampling-filter-path dropped %lld groups of one rollout and kept "
                   "%lld of %lld; the last: %s",
                   (long long)r->dropped, (long long)r->kept, (long long)r->c.target, reason);
    }
    rc = rollout_tell(r, group, reason, e);
    if (!r->c.keep_dropped) {
        batch_forget(r->b, group);
    }
    return rc;
}

/* 0: judged; STATUS_AGAIN: its rewards are not all there. */
static int rollout_judge(struct rollout *r, struct err *e)
{
    struct filter_verdict v = {1, ""};
    int group = r->judging, rc = STATUS_OK;

    if (!r->groups[group].scored) {
        return STATUS_AGAIN;
    }
    r->judging = -1;
    r->open_groups--;
    if (batch_failure(r->b, group) && !r->c.keep_failed) {
        return rollout_replace(r, group, e);
    }
    if (r->c.filter) {
        rc = filter_group(r->c.filter, batch_group(r->b, group), r->c.batch.n, &v, e);
    }
    if (rc == STATUS_OK && v.keep) {
        r->groups[group].fate = ROLLOUT_KEPT;
        r->kept++;
    } else if (rc == STATUS_OK) {
        rc = rollout_drop(r, group, v.reason, e);
    }
    return rc;
}

/* ---- the clock ---- */

/* The earliest of the groups that came complete. */
static int rollout_take_whole(struct rollout *r)
{
    int best = 0, group;
    for (int i = 1; i < r->whole; i++) {
        if (r->groups[r->whole_list[i]].index < r->groups[r->whole_list[best]].index) {
            best = i;
        }
    }
    group = r->whole_list[best];
    r->whole_list[best] = r->whole_list[--r->whole];
    return group;
}

/* The next group that is complete on the clock becomes r->judging. STATUS_AGAIN: it is not known
 * which; STATUS_END: none is in flight. */
static int rollout_step_clock(struct rollout *r)
{
    /* where all of what is in flight is wanted, answers come soon enough */
    int hurry = r->c.filter || r->c.by_sample || r->kept + r->open_groups > r->c.target;
    int job, rc;

    if (r->whole) {
        r->judging = rollout_take_whole(r);
        return STATUS_OK;
    }
    while ((rc = vclock_next(r->v, &job)) == STATUS_AGAIN) {
        if (job < 0 || !hurry ||
            !vclock_reach(r->v, job,
                          batch_progress(r->b, r->jobs[job].group, r->jobs[job].sample))) {
            return STATUS_AGAIN;
        }
    }
    if (rc == STATUS_OK) {
        r->open_samples--;
        if (--r->groups[r->jobs[job].group].left == 0) {
            r->judging = r->jobs[job].group;
        }
    }
    return rc;
}

/* Decides what is known. 0: enough is kept. */
static int rollout_decide(struct rollout *r, struct err *e)
{
    int rc;

    for (;;) {
        if (r->judging >= 0) {
            rc = rollout_judge(r, e);
            if (rc != STATUS_OK) {
                return rc;
            }
        }
        if (r->kept == r->c.target) {
            return STATUS_OK;
        }
        rc = rollout_ask(r, e);
        if (rc != STATUS_OK) {
            return rc;
        }
        rc = rollout_step_clock(r);
        if (rc == STATUS_END) {
            return ERR(e, STATUS_FAIL, "the rollout stopped with %lld groups of %lld",
                       (long long)r->kept, (long long)r->c.target);
        }
        if (rc != STATUS_OK) {
            return rc;
        }
    }
}

/* Tells the clock what the batch has seen. */
static void rollout_hear(struct rollout *r)
{
    struct batch_event ev;

    while (batch_event(r->b, &ev)) {
        struct rollout_group *q = &r->groups[ev.group];
        if (ev.kind == BATCH_SCORED) {
            q->scored = 1;
            q->scored_at = rollout_time(r);
            continue;
        }
        for (int i = 0; i < q->njobs; i++) {
            if (r->jobs[q->job + i].sample == ev.sample) {
                vclock_finish(r->v, q->job + i, ev.ntokens > 0 ? ev.ntokens : 1);
            }
        }
    }
}

/* ---- the end ---- */

/* 1 when of every sample in flight the tokens that it has on the clock are there, and the rewards
 * of those that are finished. */
static int rollout_settled(struct rollout *r)
{
    for (int g = 0; g < r->ngroups; g++) {
        const struct rollout_group *q = &r->groups[g];
        for (int i = 0; q->fate == ROLLOUT_OPEN && i < q->njobs; i++) {
            int job = q->job + i, sample = r->jobs[job].sample;
            if (!vclock_known(r->v, job)) {
                vclock_reach(r->v, job, batch_progress(r->b, g, sample));
            }
            if (!vclock_known(r->v, job) || (vclock_done(r->v, job) && !r->c.batch.group_rm &&
                                             !batch_is_scored(r->b, g, sample))) {
                return 0;
            }
        }
    }
    return 1;
}

/* Notes once in which rollout a sample began. */
static void rollout_mark(const struct rollout *r, struct sample *s)
{
    json_t *m;
    if (!s->response_len || json_object_get(s->metadata, "start_rollout_id")) {
        return;
    }
    m = s->metadata ? json_copy(s->metadata) : json_object(); /* it is shared */
    json_object_set_new(m, "start_rollout_id", json_integer((json_int_t)r->c.id));
    json_decref(s->metadata);
    s->metadata = m;
}

/* 1 when a sample that is finished on the clock has no reward: the group cannot be completed. What
 * a group is scored as a whole is not known before it is whole. */
static int rollout_is_lost(struct rollout *r, int group)
{
    const struct rollout_group *q = &r->groups[group];
    struct sample **s = batch_group(r->b, group);
    int lost = 0;

    for (int i = 0; i < q->njobs && !r->c.batch.group_rm; i++) {
        lost |=
            vclock_done(r->v, q->job + i) && s[r->jobs[q->job + i].sample]->status == SAMPLE_FAILED;
    }
    return lost;
}

/* A group in flight keeps what it has on the clock. */
static int rollout_leave(struct rollout *r, int group, struct err *e)
{
    struct rollout_group *q = &r->groups[group];
    struct sample **s = batch_group(r->b, group);
    int rc = STATUS_OK;

    for (int i = 0; rc == STATUS_OK && i < q->njobs; i++) {
        int job = q->job + i, k = r->jobs[job].sample;
        int n = (int)vclock_tokens(r->v, job);
        if (!vclock_done(r->v, job)) {
            rc = batch_cut(r->b, group, k, n, e);
            r->left_samples += s[k]->response_len > 0;
        }
        r->left_tokens += n;
    }
    for (int i = 0; i < r->c.batch.n; i++) {
        if (r->c.batch.group_rm && batch_answered(r->b, group, i) &&
            s[i]->status != SAMPLE_ABORTED) {
            batch_unscore(r->b, group, i);
        }
        rollout_mark(r, s[i]);
    }
    q->fate = ROLLOUT_LEFT;
    r->left_groups++;
    return rc;
}

static int rollout_finish(struct rollout *r, struct err *e)
{
    int rc = STATUS_OK;

    r->ended = rollout_time(r);
    for (int g = 0; rc == STATUS_OK && g < r->ngroups; g++) {
        struct rollout_group *q = &r->groups[g];
        for (int i = 0; i < q->njobs; i++) {
            r->surplus +=
                batch_fresh(r->b, g, r->jobs[q->job + i].sample) - vclock_tokens(r->v, q->job + i);
        }
        if (q->fate != ROLLOUT_OPEN) {
            continue;
        }
        if (r->c.partial && !rollout_is_lost(r, g)) {
            rc = rollout_leave(r, g, e);
        } else {
            r->wasted += rollout_group_tokens(r, g);
            r->thrown++;
            batch_forget(r->b, g);
        }
    }
    r->phase = ROLLOUT_DONE;
    return rc;
}

static int rollout_run(struct rollout *r, struct err *e)
{
    int rc = r->ngroups ? batch_tick(r->b, e) : STATUS_OK;

    if (rc < 0) {
        return rc;
    }
    rollout_hear(r);
    if (r->phase == ROLLOUT_RUN) {
        rc = rollout_decide(r, e);
        if (rc != STATUS_OK) {
            return rc;
        }
        r->phase = r->c.partial ? ROLLOUT_SETTLE : ROLLOUT_DRAIN;
        if (!r->c.partial) {
            batch_abort(r->b);
        }
    }
    if (r->phase == ROLLOUT_SETTLE && rollout_settled(r)) {
        batch_abort(r->b);
        r->phase = ROLLOUT_DRAIN;
    }
    return STATUS_AGAIN;
}

int rollout_tick(struct rollout *r, struct err *e)
{
    int rc;

    if (r->phase < ROLLOUT_DRAIN) {
        return rollout_run(r, e);
    }
    if (r->phase == ROLLOUT_DRAIN) {
        rc = batch_tick(r->b, e);
        return rc == STATUS_OK ? rollout_finish(r, e) : rc;
    }
    return STATUS_OK;
}

/* ---- what came of it ---- */

static int rollout_order(const void *x, const void *y)
{
    const struct sample *a = *(struct sample *const *)x, *b = *(struct sample *const *)y;
    int by = (a->index > b->index) - (a->index < b->index);
    return by ? by : (a->branch > b->branch) - (a->branch < b->branch);
}

/* Branches of a session have the reward of the whole, where they have none of their own. */
static int rollout_put(struct sample *s, struct sample **out)
{
    for (int i = 0; i < s->nsiblings; i++) {
        if (!isfinite(s->siblings[i]->reward)) {
            s->siblings[i]->reward = s->reward;
        }
        if (out) {
            out[1 + i] = s->siblings[i];
        }
    }
    if (out) {
        out[0] = s;
    }
    return 1 + s->nsiblings;
}

static struct sample **rollout_of(struct rollout *r, enum rollout_fate fate, struct sample **old,
                                  int *n)
{
    struct sample **out = NULL;
    int total = 0;

    mem_free(old);
    for (int pass = 0; pass < 2; pass++) { /* counted first */
        total = 0;
        for (int g = 0; g < r->ngroups; g++) {
            struct sample **s = batch_group(r->b, g);
            for (int i = 0; s && r->groups[g].fate == fate && i < r->c.batch.n; i++) {
                total += rollout_put(s[i], out ? out + total : NULL);
            }
        }
        out = out ? out : mem_alloc(sizeof *out * ((size_t)total + 1));
    }
    *n = total;
    qsort(out, (size_t)*n, sizeof *out, rollout_order);
    return out;
}

struct sample **rollout_samples(struct rollout *r, int *n)
{
    return r->sorted = rollout_of(r, ROLLOUT_KEPT, r->sorted, n);
}

struct sample **rollout_dropped(struct rollout *r, int *n)
{
    return r->sorted_dropped = rollout_of(r, ROLLOUT_DROPPED, r->sorted_dropped, n);
}

struct sample **rollout_leftover(struct rollout *r)
{
    int best = -1;
    for (int g = 0; g < r->ngroups; g++) {
        if (r->groups[g].fate == ROLLOUT_LEFT && batch_group(r->b, g) &&
            (best < 0 || r->groups[g].index < r->groups[best].index)) {
            best = g;
        }
    }
    return best < 0 ? NULL : batch_hand_over(r->b, best);
}

static int rollout_by_time(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* The share of the rollout's time that came after the moment when the order of arrival would have
 * had its groups: those that were kept, or that came and were never judged. */
static double rollout_overhead(const struct rollout *r)
{
    double *at = mem_alloc(sizeof *at * (size_t)(r->ngroups + 1)), out = 0.0;
    int n = 0;

    for (int g = 0; g < r->ngroups; g++) {
        enum rollout_fate f = r->groups[g].fate;
        if (r->groups[g].scored && (f == ROLLOUT_KEPT || f == ROLLOUT_LEFT || f == ROLLOUT_OPEN)) {
            at[n++] = r->groups[g].scored_at;
        }
    }
    qsort(at, (size_t)n, sizeof *at, rollout_by_time);
    if (n >= r->c.target && r->c.target > 0 && r->ended > r->began) {
        out = (r->ended - at[r->c.target - 1]) / (r->ended - r->began);
    }
    mem_free(at);
    return out;
}

void rollout_report(const struct rollout *r, json_t *row)
{
    const char *reason;
    json_t *n;

    metric_put_int(row, "rollout/reward_failed_groups", r->failed);
    json_object_foreach(r->reasons, reason, n)
    {
        char name[160];
        snprintf(name, sizeof name, "rollout/dynamic_filter/drop_%s", reason);
        metric_put_int(row, name, json_integer_value(n));
    }
    metric_put_int(row, "rollout/waves", r->waves);
    metric_put_int(row, "rollout/logical_ticks", vclock_now(r->v));
    metric_put_int(row, "rollout/aborted_groups", r->thrown + r->left_groups);
    metric_put_int(row, "rollout/wasted_tokens", r->wasted);
    if (r->c.partial) {
        metric_put_int(row, "rollout/partial/resumed_groups", r->resumed_groups);
        metric_put_int(row, "rollout/partial/groups", r->left_groups);
        metric_put_int(row, "rollout/partial/samples", r->left_samples);
        metric_put_int(row, "rollout/partial/tokens", r->left_tokens);
    }
    metric_put_int(row, "perf/surplus_tokens", r->surplus);
    metric_put(row, "perf/logical_time_overhead", rollout_overhead(r));
}

int rollout_done_samples(const struct rollout *r)
{
    return batch_done_samples(r->b);
}
