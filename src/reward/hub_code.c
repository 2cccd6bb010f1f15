/* Owns the source of type code: programs of responses, run in sandboxes by codegrade. */
#include <string.h>

#include "base/status.h"
#include "reward/codegrade.h"
#include "reward/hub_int.h"

static void land(struct hub *h, const struct codegrade_result *c)
{
    static const enum hub_class classes[] = {[CODEGRADE_RIGHT] = HUB_RIGHT,
                                             [CODEGRADE_WRONG] = HUB_WRONG,
                                             [CODEGRADE_PARTIAL] = HUB_PARTIAL,
                                             [CODEGRADE_NO_PROGRAM] = HUB_NO_ANSWER};
    struct hub_flight *f = c->user;
    struct hub_result r = {.id = f->id};

    if (c->failed) {
        hub_failed(&r, HUB_BROKEN, c->reason);
    } else {
        r.reward = c->reward;
        r.why = classes[c->why];
        hub_line(r.reason, sizeof r.reason, c->reason, strlen(c->reason));
    }
    hub_push(h, &r);
    hub_flight_end(h, f);
}

static int hear(struct hub *h, void *self, double wait_s, struct err *e)
{
    struct codegrade_result c;
    int rc = codegrade_poll(self, wait_s, &c, e);

    if (rc == STATUS_OK) {
        land(h, &c);
    }
    return rc;
}

static int pending(const void *self)
{
    return codegrade_pending(self);
}

static void end(void *self)
{
    codegrade_close(self);
}

/* The pool of sandboxes, opened at its first use. NULL with the reason in e. */
static struct codegrade *pool(struct hub *h, const struct hub_type *g, struct err *e)
{
    struct codegrade_opts o = {.python = h->python,
                               .workers = h->nworkers,
                               .share = h->code_share,
                               .queue_max = HUB_QUEUE,
                               .limits = {.cpu_s = h->code_timeout_s,
                                          .wall_s = 2 * h->code_timeout_s,
                                          .memory = (int64_t)(h->code_memory_mb * 1048576)}};
    struct hub_source *s = hub_source_find(h, g->name, 1, e);
    struct codegrade *c = NULL;

    if (s) {
        return s->self;
    }
    s = hub_source_add(h, g->name, 1, e);
    if (!s) {
        return NULL;
    }
    if (codegrade_open(&o, &c, e) != STATUS_OK) {
        hub_line(s->error, sizeof s->error, e->msg, strlen(e->msg));
        return NULL;
    }
    s->self = c;
    s->hear = hear;
    s->pending = pending;
    s->close = end;
    return c;
}

int hub_code_open(struct hub *h, const struct hub_type *g, struct err *e)
{
    if (pool(h, g, e)) {
        return STATUS_OK;
    }
    e->code = STATUS_INPUT;
    return err_prefix(e, "--rm-type code");
}

int hub_code_send(struct hub *h, const struct hub_type *g, const struct hub_request *r,
                  struct err *e)
{
    struct codegrade *c = pool(h, g, e);
    struct hub_flight *f;
    int rc;

    if (!c) {
        return e->code;
    }
    f = hub_flight_new(h, r, 1);
    rc = codegrade_submit(c, f, r->sample, e);
    if (rc != STATUS_OK) {
        hub_flight_end(h, f);
    }
    if (rc == STATUS_INPUT) {
        hub_push_failed(h, r->id, 0, HUB_BAD_SAMPLE, e->msg);
        rc = STATUS_OK;
    }
    h->pending += rc == STATUS_OK;
    return rc;
}
