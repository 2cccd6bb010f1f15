/* Owns the questions that only algebra decides: a grader leaves one with its sample, sympy answers
 * it in processes of its own (mathsym.h), opened with the first question. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "reward/hub_int.h"
#include "reward/mathsym.h"

static const char NAME[] = "sympy";

static int hear(struct hub *h, void *self, double wait_s, struct err *e)
{
    struct mathsym_result m;
    struct hub_result r = {0};
    struct hub_flight *f;
    char text[512];
    int rc = mathsym_poll(self, wait_s, &m, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    f = (struct hub_flight *)(intptr_t)m.id;
    r.id = f->id;
    snprintf(text, sizeof text, "%s: %s", f->type->name, m.v.reason);
    if (m.v.right < 0) {
        hub_failed(&r, strstr(m.v.reason, "within") ? HUB_LATE : HUB_BROKEN, text);
    } else {
        r.reward = m.v.right;
        r.why = m.v.right ? HUB_RIGHT : HUB_WRONG;
        hub_line(r.reason, sizeof r.reason, text, strlen(text));
    }
    hub_push(h, &r);
    mathverdict_fini(&m.v);
    hub_flight_end(h, f);
    return STATUS_OK;
}

static int pending(const void *self)
{
    return mathsym_pending(self);
}

static int restarts(const void *self)
{
    return mathsym_restarts(self);
}

static void close_self(void *self)
{
    mathsym_close(self);
}

/* The source, opened at first use; NULL when sympy is not to be had, with the reason in e. */
static struct hub_source *open_source(struct hub *h, struct err *e)
{
    struct mathsym_opts o = {.python = h->python, .workers = h->nworkers > 2 ? 2 : h->nworkers};
    struct hub_source *s = hub_source_find(h, NAME, 1, e);
    struct mathsym *m = NULL;

    if (s) {
        return s->self ? s : NULL;
    }
    s = hub_source_add(h, NAME, 1, e);
    if (!s) {
        return NULL;
    }
    if (mathsym_open(&o, &m, e) != STATUS_OK) {
        hub_line(s->error, sizeof s->error, e->msg, strlen(e->msg));
        log_warn(REWARD, "answers that only algebra can compare will have no reward: %s", e->msg);
        return NULL;
    }
    s->self = m;
    s->hear = hear;
    s->pending = pending;
    s->restarts = restarts;
    s->close = close_self;
    return s;
}

int hub_math_ask(struct hub *h, const struct hub_type *g, const struct hub_result *r,
                 const char *ask)
{
    struct err e = {0};
    struct hub_source *s = open_source(h, &e);
    struct hub_flight *f = NULL;
    char text[1400];
    int rc = s ? STATUS_OK : e.code;

    if (s) {
        f = hub_flight_new(h, &(struct hub_request){.id = r->id}, 1);
        f->type = g;
        rc = mathsym_submit(s->self, (int64_t)(intptr_t)f, ask, &e);
    }
    if (rc != STATUS_OK && f) {
        hub_flight_end(h, f);
    }
    if (rc != STATUS_OK && rc != STATUS_AGAIN) {
        snprintf(text, sizeof text, "%.120s (%s)", r->reason, e.msg);
        hub_push_failed(h, r->id, 0, HUB_BAD_TYPE, text);
        rc = STATUS_OK;
    }
    return rc;
}
