/* Owns requests from their start to the event that ends them. Each ends in exactly one, whatever
 * happens on the way; what comes later for it finds it gone. */
#include "sim/simnet.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "net/http_client.h"
#include "net/http_net.h"
#include "sim/sim.h"

struct simnet_call {
    struct simnet_call *next; /* of the events that wait */
    uint64_t id;
    int engine, ended, arrived;
    char *path, *body;
    struct http_client_event ev;
    char *text; /* of the answer */
};

struct simnet {
    struct sim *s;
    struct http_net table;
    simnet_arrive_fn *arrive;
    simnet_gone_fn *gone;
    void *arg;
    simnet_watch_fn *watch;
    void *watch_arg;
    struct simnet_call **calls; /* not released */
    size_t ncalls, cap_calls;
    struct simnet_call *first, **last; /* ended, and not taken */
    uint64_t next_id;
};

static struct simnet_call *simnet_find(const struct simnet *n, uint64_t id)
{
    for (size_t i = 0; i < n->ncalls; i++) {
        if (n->calls[i]->id == id) {
            return n->calls[i]->ended ? NULL : n->calls[i];
        }
    }
    return NULL;
}

static void simnet_end(struct simnet *n, struct simnet_call *c, enum http_client_outcome outcome,
                       int status)
{
    static const char *const said[] = {[HTTP_CLIENT_OK] = "",
                                       [HTTP_CLIENT_REFUSED] = "simulated refusal",
                                       [HTTP_CLIENT_CONNECT_LATE] = "simulated silence",
                                       [HTTP_CLIENT_LATE] = "simulated silence",
                                       [HTTP_CLIENT_CUT] = "simulated cut",
                                       [HTTP_CLIENT_CANCELLED] = "cancelled"};
    c->ended = 1;
    c->ev = (struct http_client_event){.kind = HTTP_CLIENT_END,
                                       .id = c->id,
                                       .user = c->ev.user,
                                       .status = status,
                                       .data = c->text ? c->text : "",
                                       .len = c->text ? strlen(c->text) : 0,
                                       .outcome = outcome,
                                       .error = said[outcome],
                                       .tries = 1,
                                       .reached = c->arrived};
    *n->last = c;
    n->last = &c->next;
    sim_event(n->s, "net: %llu to engine %d %s: %s, status %d", (unsigned long long)c->id,
              c->engine, c->path, http_client_outcome_name(outcome), status);
    if (c->arrived && outcome != HTTP_CLIENT_OK) {
        n->gone(n->arg, c->id);
    }
}

/* ---- on the way there ---- */

static void simnet_arrives(void *arg, int64_t id)
{
    struct simnet *n = arg;
    struct simnet_call *c = simnet_find(n, (uint64_t)id);
    struct simnet_request r;

    if (!c) {
        return;
    }
    r = (struct simnet_request){c->id, c->engine, c->path, c->body};
    c->arrived = 1;
    if (!n->arrive(n->arg, &r)) {
        c->arrived = 0;
        simnet_end(n, c, HTTP_CLIENT_REFUSED, 0);
    }
}

static void simnet_late(void *arg, int64_t id)
{
    struct simnet_call *c = simnet_find(arg, (uint64_t)id);
    if (c) {
        simnet_end(arg, c, HTTP_CLIENT_LATE, 0);
    }
}

static void simnet_connect_late(void *arg, int64_t id)
{
    struct simnet_call *c = simnet_find(arg, (uint64_t)id);
    if (c && !c->arrived) {
        simnet_end(arg, c, HTTP_CLIENT_CONNECT_LATE, 0);
    }
}

static void simnet_refused(void *arg, int64_t id)
{
    struct simnet_call *c = simnet_find(arg, (uint64_t)id);
    if (c) {
        simnet_end(arg, c, HTTP_CLIENT_REFUSED, 0);
    }
}

static double simnet_delay(struct simnet *n)
{
    double d = sim_between(n->s, 0.0005, 0.004);
    return sim_fault(n->s, SIM_DELAYED) ? d + sim_between(n->s, 0.05, 6) : d;
}

static void simnet_send(struct simnet *n, struct simnet_call *c,
                        const struct http_client_request *q)
{
    struct sim *s = n->s;
    int64_t id = (int64_t)c->id;

    sim_at(s, s->now + q->total_s, simnet_late, n, id);
    if (sim_fault(s, SIM_REFUSED)) {
        sim_at(s, s->now + 0.001, simnet_refused, n, id);
    } else if (sim_fault(s, SIM_CONNECT_LATE)) {
        sim_at(s, s->now + q->connect_s, simnet_connect_late, n, id);
    } else if (!sim_fault(s, SIM_LOST)) {
        sim_at(s, s->now + simnet_delay(n), simnet_arrives, n, id);
        if (sim_fault(s, SIM_TWICE)) {
            sim_at(s, s->now + simnet_delay(n), simnet_arrives, n, id);
        }
    }
}

/* ---- on the way back ---- */

static void simnet_comes(void *arg, int64_t id)
{
    struct simnet *n = arg;
    struct simnet_call *c = simnet_find(n, (uint64_t)id);

    if (c) {
        simnet_end(n, c, HTTP_CLIENT_OK, c->ev.status);
    }
}

static void simnet_cuts(void *arg, int64_t id)
{
    struct simnet *n = arg;
    struct simnet_call *c = simnet_find(n, (uint64_t)id);

    if (c) {
        mem_free(c->text);
        c->text = NULL;
        simnet_end(n, c, HTTP_CLIENT_CUT, 0);
    }
}

/* What becomes of an answer of status 200 under way. */
static void simnet_spoil(struct simnet *n, struct simnet_call *c)
{
    struct sim *s = n->s;
    size_t len = strlen(c->text);

    if (sim_fault(s, SIM_GARBAGE)) {
        for (size_t i = 0; i < len; i++) {
            c->text[i] = (char)(1 + sim_below(s, 126));
        }
    } else if (len > 1 && sim_fault(s, SIM_TRUNCATED)) {
        c->text[1 + sim_below(s, (int64_t)len - 1)] = 0;
    } else if (sim_fault(s, SIM_STATUS_500)) {
        c->ev.status = 500;
    } else if (sim_fault(s, SIM_STATUS_503)) {
        c->ev.status = 503;
    } else if (sim_fault(s, SIM_STATUS_429)) {
        c->ev.status = 429;
    }
}

void simnet_answer(struct simnet *n, uint64_t id, int status, const char *text)
{
    struct simnet_call *c = simnet_find(n, id);
    struct sim *s = n->s;

    if (!c || c->text) {
        return; /* gone, or answered: it was delivered twice */
    }
    c->text = mem_strdup(text);
    c->ev.status = status;
    if (status == 200) {
        simnet_spoil(n, c);
    }
    if (sim_fault(s, SIM_CUT)) {
        sim_at(s, s->now + simnet_delay(n), simnet_cuts, n, (int64_t)id);
    } else if (!sim_fault(s, SIM_ANSWER_LOST)) {
        sim_at(s, s->now + simnet_delay(n), simnet_comes, n, (int64_t)id);
    }
}

void simnet_break(struct simnet *n, uint64_t id, int silent)
{
    if (!silent) {
        sim_at(n->s, n->s->now + 0.001, simnet_cuts, n, (int64_t)id);
    }
}

/* ---- the controller's side ---- */

static int simnet_start(void *self, const struct http_client_request *q, uint64_t *id,
                        struct err *e)
{
    struct simnet *n = self;
    struct simnet_call *c;
    const char *path;

    if (n->s->dead) {
        return ERR(e, STATUS_IO, "the controller has ended");
    }
    if (n->ncalls == n->cap_calls) {
        ASSERT(mem_grow((void **)&n->calls, &n->cap_calls, 64, sizeof *n->calls));
    }
    c = mem_alloc(sizeof *c);
    n->calls[n->ncalls++] = c;
    c->id = ++n->next_id;
    c->ev.user = q->user;
    c->engine = atoi(q->url + strlen("http://engine-"));
    path = strchr(q->url + strlen("http://"), '/');
    c->path = mem_strdup(path ? path : "/");
    c->body = q->body ? mem_strndup(q->body, q->len) : mem_strdup("");
    *id = c->id;
    sim_event(n->s, "net: %llu to engine %d %s", (unsigned long long)c->id, c->engine, c->path);
    if (n->watch) {
        n->watch(n->watch_arg, c->engine, c->path);
    }
    simnet_send(n, c, q);
    return STATUS_OK;
}

static void simnet_cancel(void *self, uint64_t id)
{
    struct simnet_call *c = simnet_find(self, id);
    if (c) {
        simnet_end(self, c, HTTP_CLIENT_CANCELLED, 0);
    }
}

static int simnet_has(void *arg)
{
    return ((struct simnet *)arg)->first != NULL;
}

static struct http_client_event *simnet_take(void *self, double wait_s)
{
    struct simnet *n = self;
    struct simnet_call *c;

    sim_wait(n->s, wait_s, simnet_has, n);
    c = n->first;
    if (!c || n->s->dead) {
        return NULL;
    }
    n->first = c->next;
    if (!n->first) {
        n->last = &n->first;
    }
    return &c->ev;
}

static void simnet_drop(struct simnet_call *c)
{
    mem_free(c->path);
    mem_free(c->body);
    mem_free(c->text);
    mem_free(c);
}

static void simnet_release(void *self, struct http_client_event *ev)
{
    struct simnet *n = self;

    for (size_t i = 0; i < n->ncalls; i++) {
        if (&n->calls[i]->ev == ev) {
            simnet_drop(n->calls[i]);
            n->calls[i] = n->calls[--n->ncalls];
            return;
        }
    }
}

/* ---- beginning and end ---- */

void simnet_serve(struct simnet *n, simnet_arrive_fn *arrive, simnet_gone_fn *gone, void *arg)
{
    n->arrive = arrive;
    n->gone = gone;
    n->arg = arg;
}

void simnet_watch(struct simnet *n, simnet_watch_fn *watch, void *arg)
{
    n->watch = watch;
    n->watch_arg = arg;
}

void simnet_reset(struct simnet *n)
{
    for (size_t i = 0; i < n->ncalls; i++) {
        if (n->calls[i]->arrived && !n->calls[i]->ended) {
            n->gone(n->arg, n->calls[i]->id);
        }
        simnet_drop(n->calls[i]);
    }
    n->ncalls = 0;
    n->first = NULL;
    n->last = &n->first;
}

int simnet_open(const struct simnet *n)
{
    return (int)n->ncalls;
}

int64_t simnet_started(const struct simnet *n)
{
    return (int64_t)n->next_id;
}

struct simnet *simnet_new(struct sim *s)
{
    struct simnet *n = mem_alloc(sizeof *n);

    n->s = s;
    n->last = &n->first;
    n->table = (struct http_net){simnet_start, simnet_cancel, simnet_take, simnet_release, n};
    return n;
}

void simnet_free(struct simnet *n)
{
    if (n) {
        simnet_reset(n);
        mem_free(n->calls);
        mem_free(n);
    }
}

const struct http_net *simnet_table(struct simnet *n)
{
    return &n->table;
}
