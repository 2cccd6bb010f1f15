/* Owns evaluations: the sets of the run one after the other, or what a function of the user's makes
 * of all of them. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/metric.h"
#include "base/status.h"
#include "rl/evalset.h"
#include "rl/loop_int.h"
#include "rl/prompts.h"
#include "rl/sample.h"
#include "rl/stream.h"

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

int loop_eval_begin(struct loop *l, struct err *e)
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

int loop_eval_run(struct loop *l, struct err *e)
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

int loop_has_eval(const struct loop *l)
{
    return (l->c.nevals && l->c.rollout) || extend_has(l->c.extend, "eval-function-path");
}

int loop_eval_due(const struct loop *l, int64_t done)
{
    const struct train_opts *o = l->c.o;
    return loop_has_eval(l) && o->eval_interval != CONF_UNSET &&
           (done % o->eval_interval == 0 || done == l->c.num_rollout);
}
