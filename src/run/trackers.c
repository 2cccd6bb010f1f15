/* Owns the processes that hand metrics on. Each is a pool of one worker (reward/worker.h) that runs
 * our Python text; its pipe is moved on whenever a row comes. */
#include "run/trackers.h"

#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/metric.h"
#include "base/proc.h"
#include "base/status.h"
#include "reward/worker.h"
#include "run/trackside.h"

#define TRACKERS_QUEUE   1024
#define TRACKERS_CALL_S  86400.0 /* a package that waits for its network is not killed for it */
#define TRACKERS_CLOSE_S 20.0

struct trackers {
    const char *name;
    struct worker_pool *pool; /* NULL: given up */
    json_t *options;
    int64_t lost;
    double close_s;
};

static void trackers_give_up(struct trackers *t, const char *why)
{
    log_warn(TRACK, "%s: %s; the run goes on without it", t->name, why);
    worker_close(t->pool);
    t->pool = NULL;
}

/* Takes what has come back, for at most wait_s. 1: something had. */
static int trackers_pump(struct trackers *t, double wait_s)
{
    struct worker_result r = {0};
    struct err e = {0};
    int rc, any = 0;

    while (t->pool && (rc = worker_poll(t->pool, any ? 0.0 : wait_s, &r, &e)) == STATUS_OK) {
        any = 1;
        json_decref(r.value);
        if (r.failed) {
            trackers_give_up(t, r.reason);
        }
    }
    if (t->pool && rc < 0) {
        trackers_give_up(t, e.msg);
    }
    return any;
}

static void trackers_send(struct trackers *t, json_t *message)
{
    struct err e = {0};
    int rc = t->pool ? worker_submit(t->pool, 0, message, &e) : STATUS_OK;

    json_decref(message);
    if (rc == STATUS_AGAIN) {
        if (t->lost++ == 0) {
            log_warn(TRACK, "%s does not keep up: rows of metrics are left out for it", t->name);
        }
    } else if (rc != STATUS_OK) {
        trackers_give_up(t, e.msg);
    }
    trackers_pump(t, 0.0);
}

static void trackers_row(void *arg, const json_t *row)
{
    struct trackers *t = arg;
    trackers_send(t, json_pack("{s:s,s:O,s:O}", "kind", "row", "options", t->options, "row",
                               (json_t *)(uintptr_t)row));
}

struct trackers *trackers_open(const struct trackers_opts *o)
{
    int wandb = o->kind == TRACKERS_WANDB;
    struct worker_opts w = {.path = wandb ? "the wandb tracker" : "the MLflow tracker",
                            .source = wandb ? trackside_wandb : trackside_mlflow,
                            .python = o->python,
                            .count = 1,
                            .timeout_s = TRACKERS_CALL_S,
                            .start_timeout_s = 60.0,
                            .queue_max = TRACKERS_QUEUE};
    struct trackers *t = mem_alloc(sizeof *t);
    struct err e = {0};

    t->name = wandb ? "wandb" : "mlflow";
    t->close_s = o->close_s > 0 ? o->close_s : TRACKERS_CLOSE_S;
    t->options = json_deep_copy(o->options);
    if (worker_open(&w, &t->pool, &e) != STATUS_OK) {
        trackers_give_up(t, e.msg);
    } else if (metric_add_sink(trackers_row, t) != STATUS_OK) {
        trackers_give_up(t, "too many places for metrics");
    }
    if (!t->pool) {
        json_decref(t->options);
        mem_free(t);
        return NULL;
    }
    trackers_send(t, json_pack("{s:s,s:O,s:O}", "kind", "init", "options", t->options, "config",
                               (json_t *)(uintptr_t)o->config));
    return t;
}

void trackers_close(struct trackers *t)
{
    double until;

    if (!t) {
        return;
    }
    metric_remove_sink(trackers_row, t);
    if (t->pool) {
        trackers_send(t, json_pack("{s:s,s:O}", "kind", "finish", "options", t->options));
        until = proc_now() + t->close_s;
        while (t->pool && worker_pending(t->pool) && proc_now() < until) {
            trackers_pump(t, 0.2);
        }
        if (t->pool && worker_pending(t->pool)) {
            log_warn(TRACK, "%s did not take %d messages within %.0f s", t->name,
                     worker_pending(t->pool), t->close_s);
        }
        if (t->lost) {
            log_warn(TRACK, "%s: %lld rows of metrics were left out", t->name, (long long)t->lost);
        }
    }
    worker_close(t->pool);
    json_decref(t->options);
    mem_free(t);
}
