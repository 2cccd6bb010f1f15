/* Owns the sources that are calls: Python workers, for the user's functions and for types of ours,
 * and the service of remote_rm. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/plugin.h"
#include "base/status.h"
#include "reward/hookcall.h"
#include "reward/hub_int.h"
#include "reward/ifbench.h"
#include "reward/remote.h"
#include "reward/worker.h"

/* ---- values ---- */

/* Takes a function's or service's value (counted anew where it is kept) as the result. */
static void take_value(const struct hub *h, struct hub_result *r, json_t *value, const char *who)
{
    const char *reason = json_string_value(json_object_get(value, "reason"));

    r->why = HUB_SCORED;
    if (json_is_object(value)) {
        r->raw = json_incref(value);
        hub_pick_key(h, r);
    } else {
        r->reward = json_is_boolean(value) ? json_is_true(value) : json_number_value(value);
    }
    if (!r->failed && reason) {
        hub_line(r->reason, sizeof r->reason, reason, strlen(reason));
    } else if (!r->failed) {
        snprintf(r->reason, sizeof r->reason, "%s gave %g", who, r->reward);
    }
    if (!isfinite(r->reward)) {
        hub_failed(r, HUB_BAD_VALUE, "the reward is not finite");
    }
}

/* {"value", "reason"} of a type of ours. */
static void take_verdict(struct hub_result *r, const json_t *value)
{
    const char *reason = json_string_value(json_object_get(value, "reason"));

    r->reward = json_number_value(json_object_get(value, "value"));
    r->why = r->reward == 1 ? HUB_RIGHT : r->reward == 0 ? HUB_WRONG : HUB_PARTIAL;
    hub_line(r->reason, sizeof r->reason, reason ? reason : "", reason ? strlen(reason) : 0);
}

/* ---- workers ---- */

static void land_worker(struct hub *h, const struct worker_result *w)
{
    struct hub_flight *f = (struct hub_flight *)(intptr_t)w->id;

    if (w->failed) {
        hub_push_failed(h, f->id, f->group, w->late ? HUB_LATE : HUB_BROKEN, w->reason);
    }
    for (int i = 0; !w->failed && i < (f->group ? f->group : 1); i++) {
        struct hub_result r = {.id = f->id + i};
        if (f->internal) {
            take_verdict(&r, w->value);
        } else {
            take_value(h, &r, f->group ? json_array_get(w->value, (size_t)i) : w->value,
                       "the function");
        }
        hub_push(h, &r);
    }
    json_decref(w->value);
    hub_flight_end(h, f);
}

static int hear_workers(struct hub *h, void *self, double wait_s, struct err *e)
{
    struct worker_result w;
    int rc = worker_poll(self, wait_s, &w, e);

    if (rc == STATUS_OK) {
        land_worker(h, &w);
    }
    return rc;
}

static int pending_workers(const void *self)
{
    return worker_pending(self);
}

static int restarts_workers(const void *self)
{
    return worker_restarts(self);
}

static void close_workers(void *self)
{
    worker_close(self);
}

/* ---- shared objects and services of the user's ---- */

static int hear_hook(struct hub *h, void *self, double wait_s, struct err *e)
{
    struct worker_result w;
    int rc = hookcall_poll(self, wait_s, &w, e);
    struct hub_flight *f;

    if (rc != STATUS_OK) {
        return rc;
    }
    f = (struct hub_flight *)(intptr_t)w.id;
    for (int i = 0; !w.failed && i < (f->group ? f->group : 1); i++) {
        const json_t *v = f->group ? json_array_get(w.value, (size_t)i) : w.value;
        if (!json_is_number(v) && !json_is_boolean(v) && !json_is_object(v)) {
            w.failed = 1;
            snprintf(w.reason, sizeof w.reason, "the function gave no reward for %s%d",
                     f->group ? "sample " : "sample number ", i);
        }
    }
    if (w.failed) {
        json_decref(w.value);
        w.value = NULL;
    }
    land_worker(h, &w);
    return STATUS_OK;
}

static int pending_hook(const void *self)
{
    return hookcall_pending(self);
}

static void close_hook(void *self)
{
    hookcall_close(self);
}

struct hub_source *hub_calls_hook(struct hub *h, const char *path, struct err *e)
{
    struct hookcall_opts o = {
        .flag = "custom-rm-path", .path = path, .timeout_s = h->timeout_s, .args = h->args};
    struct hub_source *s = hub_source_find(h, path, 0, e);
    struct hookcall *c;

    if (s) {
        return s->self ? s : NULL;
    }
    s = hub_source_add(h, path, 0, e);
    if (!s || hookcall_open(&o, &c, e) != STATUS_OK) {
        if (s) {
            hub_line(s->error, sizeof s->error, e->msg, strlen(e->msg));
        }
        return NULL;
    }
    s->self = c;
    s->hook = 1;
    s->hear = hear_hook;
    s->pending = pending_hook;
    s->close = close_hook;
    return s;
}

struct hub_source *hub_calls_pool(struct hub *h, const char *path, const char *source,
                                  struct err *e)
{
    struct worker_opts o = {.path = path,
                            .source = source,
                            .python = h->python,
                            .count = h->nworkers,
                            .timeout_s = h->timeout_s,
                            .queue_max = 2 * HUB_QUEUE,
                            .args = h->args};
    struct hub_source *s = hub_source_find(h, path, source != NULL, e);
    struct worker_pool *w = NULL;

    if (s) {
        return s->self ? s : NULL;
    }
    s = hub_source_add(h, path, source != NULL, e);
    if (!s || worker_open(&o, &w, e) != STATUS_OK) {
        if (s) {
            hub_line(s->error, sizeof s->error, e->msg, strlen(e->msg));
        }
        return NULL;
    }
    s->self = w;
    s->hear = hear_workers;
    s->pending = pending_workers;
    s->restarts = restarts_workers;
    s->close = close_workers;
    return s;
}

int hub_calls_submit(struct hub *h, struct hub_source *s, const struct hub_request *r,
                     struct err *e)
{
    struct hub_flight *f = hub_flight_new(h, r, s->internal);
    int rc;

    if (s->hook) {
        json_t *argv = json_pack("[O]", r->sample);
        rc = hookcall_submit(s->self, (int64_t)(intptr_t)f, argv, e);
        json_decref(argv);
    } else {
        rc = worker_submit(s->self, (int64_t)(intptr_t)f, r->sample, e);
    }
    if (rc != STATUS_OK) {
        hub_flight_end(h, f);
        return rc;
    }
    h->pending += f->group ? f->group : 1;
    return STATUS_OK;
}

int hub_calls_open_ifbench(struct hub *h, const struct hub_type *g, struct err *e)
{
    return hub_calls_pool(h, g->name, ifbench_script, e) ? STATUS_OK : e->code;
}

int hub_calls_ifbench(struct hub *h, const struct hub_type *g, const struct hub_request *r,
                      struct err *e)
{
    return hub_calls_submit(h, hub_source_find(h, g->name, 1, e), r, e);
}

/* ---- the service ---- */

static void land_remote(struct hub *h, const struct remote_result *v)
{
    struct hub_flight *f = v->user;
    struct hub_result r = {.id = f->id};

    if (v->failed) {
        hub_failed(&r, v->late ? HUB_LATE : v->broken ? HUB_BROKEN : HUB_BAD_VALUE, v->reason);
    } else {
        take_value(h, &r, v->value, "the service");
    }
    hub_push(h, &r);
    json_decref(v->value);
    hub_flight_end(h, f);
}

static int hear_remote(struct hub *h, void *self, double wait_s, struct err *e)
{
    struct remote_result v;
    int rc = remote_poll(self, wait_s, &v, e);

    if (rc == STATUS_OK) {
        land_remote(h, &v);
    }
    return rc;
}

static int pending_remote(const void *self)
{
    return remote_pending(self);
}

static void close_remote(void *self)
{
    remote_close(self);
}

int hub_calls_open_remote(struct hub *h, const struct hub_type *g, struct err *e)
{
    struct remote_opts o = {.url = h->rm_url,
                            .timeout_s = h->timeout_s,
                            .inflight = h->rm_inflight,
                            .metadata = h->rm_metadata};
    struct hub_source *s = hub_source_find(h, g->name, 1, e);
    struct remote *r;
    int rc;

    if (s) {
        return STATUS_OK;
    }
    if (!h->rm_url || !*h->rm_url) {
        return ERR(e, STATUS_INPUT, "the reward type remote_rm needs --rm-url");
    }
    rc = remote_open(&o, &r, e);
    if (rc != STATUS_OK) {
        return err_prefix(e, "--rm-url");
    }
    s = hub_source_add(h, g->name, 1, e);
    if (!s) {
        remote_close(r);
        return e->code;
    }
    s->self = r;
    s->hear = hear_remote;
    s->pending = pending_remote;
    s->close = close_remote;
    return STATUS_OK;
}

int hub_calls_remote(struct hub *h, const struct hub_type *g, const struct hub_request *r,
                     struct err *e)
{
    struct hub_flight *f = hub_flight_new(h, r, 0);
    int rc = remote_submit(hub_source_find(h, g->name, 1, e)->self, f, r->sample, e);

    if (rc != STATUS_OK) {
        hub_flight_end(h, f);
    } else {
        h->pending++;
    }
    return rc;
}
