/* Owns samples on their way: which wait, which are where, and what becomes of them when an answer
 * is no good or none comes. A sample is never given up in silence: it ends in an answer, or the
 * port ends with an error that names it.
 *
 * Samples are sent when the port is polled, not when they are submitted: what was submitted
 * together can then be spread over the engines knowing all of it. */
#include "rl/port_http.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/backoff.h"
#include "base/buf.h"
#include "base/conf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/metric.h"
#include "base/proc.h"
#include "base/world.h"
#include "net/http_client.h"
#include "rl/port_http_int.h"

#define PORT_HTTP_MAX_OPEN  65536 /* samples submitted and not handed out */
#define PORT_HTTP_WAIT_S    0.1   /* a call that has nothing to tell waits so long */
#define PORT_HTTP_TICK_S    0.02  /* between two looks at the engines */
#define PORT_HTTP_ABORT_S   30.0  /* for an aborted sample to come back */
#define PORT_HTTP_CUTS      4     /* connections may end under a sample so many times its tries */
#define PORT_HTTP_MAX_BODY  (256u << 20)
#define PORT_HTTP_FIRST_S   0.2 /* first and longest wait before samples are asked for again */
#define PORT_HTTP_BACKOFF_S 5.0
#define PORT_HTTP_LANE      16 /* engines that share one of the client's lanes */

/* ---- small things ---- */

static void port_http_ring(struct port_http_link *r)
{
    r->prev = r->next = r;
}

static void port_http_unlink(struct port_http_link *x)
{
    x->prev->next = x->next;
    x->next->prev = x->prev;
}

/* Puts x before `at`; at a ring's head that is its end. */
static void port_http_put(struct port_http_link *x, struct port_http_link *at)
{
    x->next = at;
    x->prev = at->prev;
    at->prev->next = x;
    at->prev = x;
}

double port_http_now(const struct port_http *p)
{
    return p->o.world->now(p->o.world->self);
}

void port_http_fail(struct port_http *p, int code, const char *fmt, ...)
{
    char text[sizeof p->fatal.msg];
    va_list ap;

    if (p->fatal.code) {
        return;
    }
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    ERR(&p->fatal, code, "%s", text);
}

static int port_http_failed(const struct port_http *p, struct err *e)
{
    if (p->fatal.code && e) {
        *e = p->fatal;
    }
    return p->fatal.code;
}

struct port_http_call *port_http_send(struct port_http *p, enum port_http_ask kind, int engine,
                                      const char *method, const char *base, const char *path,
                                      const char *body, size_t len, double total_s)
{
    struct http_header headers[2] = {{"Content-Type", "application/json"}, {"Authorization", NULL}};
    struct port_http_call *k = mem_alloc(sizeof *k);
    struct http_client_request q = {.method = method,
                                    .body = body,
                                    .len = len,
                                    .headers = headers,
                                    .nheaders = 1,
                                    .total_s = total_s,
                                    .connect_s = total_s < 10.0 ? total_s : 10.0,
                                    .max_response = PORT_HTTP_MAX_BODY,
                                    .user = k};
    struct buf url, auth;
    struct err e = {0};
    int rc;

    buf_init(&url, 8192);
    buf_init(&auth, 8192);
    buf_printf(&url, "%s%s", base, path);
    if (p->o.api_key) {
        buf_printf(&auth, "Bearer %s", p->o.api_key);
        headers[q.nheaders++].value = auth.data;
    }
    q.url = url.data;
    k->kind = kind;
    k->engine = engine;
    k->version = p->version;
    rc = p->net.start(p->net.self, &q, &k->id, &e);
    if (rc == STATUS_OK) {
        port_http_put(&k->link, &p->calls);
    } else {
        if (rc < 0) {
            port_http_fail(p, rc, "%s%s: %s", base, path, e.msg);
        }
        mem_free(k);
        k = NULL;
    }
    buf_fini(&url);
    buf_fini(&auth);
    return k;
}

void port_http_drop(struct port_http *p, struct port_http_call **call)
{
    if (*call) {
        (*call)->stale = 1;
        p->net.cancel(p->net.self, (*call)->id);
        *call = NULL;
    }
}

/* ---- answers ---- */

static void port_http_hand(struct port_http *p, struct port_http_unit *u, int i,
                           struct genwire_sample *s, int64_t version, int exact)
{
    struct port_http_ready *r = mem_alloc(sizeof *r);

    r->s = *s;
    memset(s, 0, sizeof *s);
    r->a = (struct port_answer){.group = u->set->g.id,
                                .sample = u->first + i,
                                .tokens = r->s.tokens,
                                .logps = r->s.logps,
                                .ntokens = r->s.ntokens,
                                .finish = r->s.finish,
                                .version = version,
                                .exact = exact,
                                .experts = r->s.experts,
                                .nexperts = r->s.nexperts};
    *p->ready_end = r;
    p->ready_end = &r->next;
    if (--u->set->open == 0) {
        port_http_unlink(&u->set->link);
        mem_free(u->set->tokens);
        mem_free(u->set);
    }
}

/* What was aborted and has no tokens. The unit is in no ring, and is gone after it. */
static void port_http_hand_nothing(struct port_http *p, struct port_http_unit *u)
{
    for (int i = 0; i < u->count; i++) {
        struct genwire_sample s = {.finish = PORT_ABORT};
        s.tokens = mem_alloc(sizeof *s.tokens);
        s.logps = mem_alloc(sizeof *s.logps);
        port_http_hand(p, u, i, &s, p->version, 0);
    }
    mem_free(u);
}

static const char *port_http_who(const struct port_http *p, int engine)
{
    return engine < 0 ? p->router : port_engine_name(&p->engines[engine]);
}

/* The unit, which is in no ring, is sent again: at once and before all others, or after a while. */
static void port_http_again(struct port_http *p, struct port_http_unit *u, double wait)
{
    if (u->set->aborted) {
        port_http_hand_nothing(p, u);
        return;
    }
    if (wait > 0.0) {
        u->not_before = port_http_now(p) + wait;
        port_http_put(&u->link, &p->later);
    } else {
        port_http_put(&u->link, p->waiting.next);
        p->nwaiting++;
    }
}

/* Before it is asked for the n-th time more. */
static double port_http_backoff(struct port_http *p, int n)
{
    return backoff_s(PORT_HTTP_FIRST_S, n - 1, PORT_HTTP_BACKOFF_S, port_pace_chance(p));
}

/* An answer that is no good; the cause is in u->cause. */
static void port_http_retry(struct port_http *p, struct port_http_unit *u, int engine)
{
    p->stats.retries++;
    if (++u->tries >= p->o.tries && !u->set->aborted) {
        port_http_fail(p, STATUS_CHILD,
                       "samples %d to %d of group %lld failed %d times, last at %s: %s", u->first,
                       u->first + u->count - 1, (long long)u->set->g.id, u->tries,
                       port_http_who(p, engine), u->cause);
    } else {
        log_warn(ENGINE, "%s: samples %d to %d of group %lld are asked for again: %s",
                 port_http_who(p, engine), u->first, u->first + u->count - 1,
                 (long long)u->set->g.id, u->cause);
    }
    if (engine >= 0) {
        port_pace_failed(p, &p->engines[engine], u->cause);
    }
    port_http_again(p, u, port_http_backoff(p, u->tries));
}

/* The connection or the engine ended under it. That is the engine's fault until it happens too
 * often: a sample that ends every engine it comes to must not do so for ever. */
static void port_http_count_cut(struct port_http *p, struct port_http_unit *u, int engine)
{
    p->stats.retries++;
    if (++u->cuts > PORT_HTTP_CUTS * p->o.tries && !u->set->aborted) {
        port_http_fail(
            p, STATUS_CHILD,
            "connections ended %d times under samples %d to %d of group %lld, last at %s: %s",
            u->cuts, u->first, u->first + u->count - 1, (long long)u->set->g.id,
            port_http_who(p, engine), u->cause);
    }
}

static void port_http_cut(struct port_http *p, struct port_http_unit *u, int engine)
{
    port_http_count_cut(p, u, engine);
    log_debug(ENGINE, "%s: %s", port_http_who(p, engine), u->cause);
    if (engine >= 0) {
        port_pace_failed(p, &p->engines[engine], u->cause);
        port_engine_suspect(p, &p->engines[engine]);
    }
    port_http_again(p, u, engine < 0 ? port_http_backoff(p, u->cuts) : 0.0);
}

/* It said to come later. */
static void port_http_postpone(struct port_http *p, struct port_http_unit *u, int engine)
{
    p->stats.retries++;
    if (port_http_now(p) > u->deadline && !u->set->aborted) {
        port_http_fail(p, STATUS_TIMEOUT, "%s did not take samples of group %lld within %.0f s: %s",
                       port_http_who(p, engine), (long long)u->set->g.id, p->o.request_s, u->cause);
    }
    if (u->busy++ == 0) {
        log_warn(ENGINE, "%s takes no samples now: %s", port_http_who(p, engine), u->cause);
    }
    port_http_again(p, u, port_http_backoff(p, u->busy));
}

/* The version that a name stands for; -1: none of ours. */
static int64_t port_http_version(const char *name)
{
    int64_t v;
    return conf_parse_int(name, &v) == STATUS_OK && v >= 0 ? v : -1;
}

static int port_http_promises(const struct port_http *p, int engine)
{
    int all = 1;

    if (p->o.kind != PORT_HTTP_MILES || !p->o.sync) {
        return 0;
    }
    for (int i = engine < 0 ? 0 : engine; i < p->o.nengines && (engine < 0 || i == engine); i++) {
        all &= p->engines[i].row_exact || !port_engine_is_up(&p->engines[i]);
    }
    return all;
}

/* An engine, or one behind the router, has finished samples. */
static void port_http_proved(struct port_http *p, int engine)
{
    if (engine >= 0) {
        p->engines[engine].failures = p->engines[engine].sick = 0;
    }
    for (int i = 0; engine < 0 && i < p->o.nengines; i++) {
        if (p->engines[i].state == PORT_ENGINE_READY) {
            p->engines[i].failures = p->engines[i].sick = 0;
        }
    }
}

/* Whether the samples are of weights that were current while they were on their way. One of several
 * versions whose last is older than what its engine has proven was sampled while the engine fell
 * back. */
static int port_http_right(const struct port_http *p, struct port_http_unit *u,
                           const struct port_http_call *k, const struct genwire_sample *s)
{
    int64_t held = k->engine < 0 ? -1 : p->engines[k->engine].version;

    for (int i = 0; p->o.sync && i < u->count; i++) {
        int64_t v = port_http_version(s[i].version);
        int empty = s[i].finish == PORT_ABORT && s[i].ntokens == 0;
        if (!empty && (v < k->version || v > p->version || (s[i].many_versions && v < held))) {
            snprintf(u->cause, sizeof u->cause, "its weights are %s, those asked for are %lld",
                     s[i].version[0] ? s[i].version : "of no version", (long long)p->version);
            return 0;
        }
    }
    return 1;
}

static int port_http_longest(const struct genwire_sample *s, int n)
{
    int most = 0;

    for (int i = 0; i < n; i++) {
        most = s[i].ntokens > most ? s[i].ntokens : most;
    }
    return most;
}

/* A whole answer of status 200. */
static void port_http_take_answer(struct port_http *p, struct port_http_unit *u,
                                  const struct port_http_call *k,
                                  const struct http_client_event *ev)
{
    struct genwire_ask q = {.g = &u->set->g, .first = u->first, .count = u->count};
    struct genwire_sample *s = mem_alloc(sizeof *s * (size_t)u->count);
    struct err e = {0};
    int rc = genwire_parse(ev->data, ev->len, &q, s, &e), good = rc == STATUS_OK, right = 1;
    int exact = port_http_promises(p, k->engine);

    if (!good) {
        snprintf(u->cause, sizeof u->cause, "%.250s", e.msg);
    }
    for (int i = 0; good && i < u->count; i++) {
        if (s[i].finish == PORT_ABORT && !u->set->aborted) {
            good = 0;
            snprintf(u->cause, sizeof u->cause, "the engine gave the sample up");
        }
    }
    if (good) {
        right = port_http_right(p, u, k, s);
        p->stats.wrong += right ? 0 : u->count;
    }
    if (!right && k->engine >= 0 && !u->set->aborted) {
        port_engine_doubt(p, &p->engines[k->engine]);
    }
    if (good && (right || p->o.policy == PORT_HTTP_MARK)) {
        port_http_proved(p, k->engine);
        if (k->engine >= 0 && !u->set->aborted) {
            port_pace_answered(p, &p->engines[k->engine], port_http_longest(s, u->count),
                               port_pace_clock(p) - u->sent);
        }
        for (int i = 0; i < u->count; i++) {
            int64_t v = p->o.sync ? port_http_version(s[i].version) : p->version;
            port_http_hand(p, u, i, &s[i], v, exact && right && !s[i].many_versions);
        }
        mem_free(u);
    } else {
        for (int i = 0; rc == STATUS_OK && i < u->count; i++) {
            genwire_fini(&s[i]);
        }
        port_http_retry(p, u, k->engine);
    }
    mem_free(s);
}

/* The engine's samples have changed, or whether it may get some. */
static void port_http_placed(struct port_http *p, struct port_engine *en)
{
    int usable = port_pace_usable(p, en, port_http_now(p));

    port_pick_set(&p->pick, en->index, usable ? en->load : -1);
}

/* Takes the unit off the network's books. */
static void port_http_land(struct port_http *p, struct port_http_unit *u)
{
    struct port_http_call *k = u->call;

    port_http_unlink(&u->link);
    p->nflying--;
    p->aborting -= u->abort_end > 0.0;
    if (k->engine < 0) {
        p->router_load -= u->count;
    } else {
        p->engines[k->engine].load -= u->count;
        port_http_placed(p, &p->engines[k->engine]);
    }
    k->unit = NULL;
    u->call = NULL;
}

static void port_http_answered(struct port_http *p, struct port_http_call *k,
                               const struct http_client_event *ev)
{
    struct port_http_unit *u = k->unit;
    int ok = ev->outcome == HTTP_CLIENT_OK, st = ev->status;

    if (!u) {
        return; /* its samples went elsewhere */
    }
    port_http_land(p, u);
    if (ok && st == 200) {
        port_http_take_answer(p, u, k, ev);
        return;
    }
    port_engine_told(ev, u->cause, sizeof u->cause);
    if (ev->outcome == HTTP_CLIENT_CANCELLED) { /* only what was aborted is cancelled */
        port_http_hand_nothing(p, u);
    } else if (ok && (st == 408 || st == 429 || st == 503 || (k->engine < 0 && st >= 500))) {
        port_http_postpone(p, u, k->engine);
    } else if (ok && st >= 400 && st < 500 && !u->set->aborted) {
        port_http_fail(p, STATUS_INPUT, "%s refuses group %lld: %s", port_http_who(p, k->engine),
                       (long long)u->set->g.id, u->cause);
        port_http_again(p, u, 0.0);
    } else if (ok || ev->outcome == HTTP_CLIENT_TOO_LARGE) {
        port_http_retry(p, u, k->engine);
    } else if (ev->outcome == HTTP_CLIENT_LATE) {
        if (!u->set->aborted) {
            port_http_fail(p, STATUS_TIMEOUT,
                           "%s: samples %d to %d of group %lld took longer than %.0f s",
                           port_http_who(p, k->engine), u->first, u->first + u->count - 1,
                           (long long)u->set->g.id, p->o.request_s);
        }
        port_http_again(p, u, 0.0);
    } else if (k->engine < 0 &&
               (ev->outcome == HTTP_CLIENT_REFUSED || ev->outcome == HTTP_CLIENT_CONNECT_LATE)) {
        port_http_postpone(p, u, k->engine);
    } else {
        port_http_cut(p, u, k->engine);
    }
}

int port_http_take_back(struct port_http *p, int engine, const char *why)
{
    struct port_http_link *x = p->flying.prev, *prev;
    int n = 0;

    for (; x != &p->flying; x = prev) { /* from the newest, so that the oldest is first again */
        struct port_http_unit *u = (struct port_http_unit *)x;
        prev = x->prev;
        if (u->call->engine == engine) {
            p->net.cancel(p->net.self, u->call->id);
            port_http_land(p, u);
            n += u->count;
            snprintf(u->cause, sizeof u->cause, "%.250s", why);
            port_http_count_cut(p, u, engine);
            port_http_again(p, u, 0.0);
        }
    }
    return n;
}

/* ---- sending ---- */

/* The engine that gets the next samples: the least loaded with room for some; NULL: none has. One
 * that has become unusable is found out here, one that has become usable by the next tick. */
static struct port_engine *port_http_pick(struct port_http *p)
{
    double now = port_http_now(p);
    int i;

    while ((i = port_pick_least(&p->pick)) >= 0 && !port_pace_usable(p, &p->engines[i], now)) {
        port_pick_set(&p->pick, i, -1);
    }
    return i < 0 ? NULL : &p->engines[i];
}

/* How many samples of the unit go out now: all, unless they would not fit, or engines had nothing
 * to do. 0: they wait until there is room. */
static int port_http_share(const struct port_http *p, const struct port_http_unit *u, int room,
                           int idle, int empty)
{
    int n = u->count;

    if (idle > p->nwaiting) {
        int parts = idle - p->nwaiting + 1;
        n = (n + parts - 1) / parts;
    }
    if (n > room) {
        n = empty ? room : 0;
    }
    return n;
}

/* Leaves the first n samples to u; the others become a unit that waits before all others. */
static void port_http_split(struct port_http *p, struct port_http_unit *u, int n)
{
    struct port_http_unit *rest = mem_alloc(sizeof *rest);

    *rest = *u;
    rest->first += n;
    rest->count -= n;
    u->count = n;
    port_http_put(&rest->link, p->waiting.next);
    p->nwaiting++;
}

static int port_http_fly(struct port_http *p, struct port_http_unit *u, int engine)
{
    double now = port_http_now(p);
    struct port_http_call *k;
    char rid[48];
    struct genwire_ask q = {.g = &u->set->g,
                            .first = u->first,
                            .count = u->count,
                            .rid = rid,
                            .miles = p->o.kind == PORT_HTTP_MILES,
                            .experts = p->o.experts};
    struct buf body;

    if (u->deadline <= 0.0) {
        u->deadline = now + p->o.request_s;
    }
    u->sent = port_pace_clock(p);
    snprintf(rid, sizeof rid, "miles-%s-%012llx", p->tag, (unsigned long long)p->serial++);
    buf_init(&body, PORT_HTTP_MAX_BODY);
    genwire_request(&body, &q);
    k = port_http_send(p, PORT_HTTP_GENERATE, engine, "POST",
                       engine < 0 ? p->router : p->engines[engine].url, "/generate", body.data,
                       body.len, u->deadline > now + 0.1 ? u->deadline - now : 0.1);
    buf_fini(&body);
    if (!k) {
        return 0;
    }
    memcpy(k->rid, rid, sizeof rid);
    k->unit = u;
    u->call = k;
    port_http_put(&u->link, &p->flying);
    p->nflying++;
    p->stats.requests++;
    if (engine < 0) {
        p->router_load += u->count;
    } else {
        p->engines[engine].load += u->count;
        port_http_placed(p, &p->engines[engine]);
    }
    return 1;
}

static void port_http_dispatch(struct port_http *p)
{
    int router = p->router[0] != 0;

    while (p->waiting.next != &p->waiting && p->nflying < p->max_flying && !p->fatal.code &&
           !p->paused && !p->released && !p->publishing && !p->controlling) {
        struct port_http_unit *u = (struct port_http_unit *)p->waiting.next;
        struct port_engine *en = router ? NULL : port_http_pick(p);
        int ready = p->pick.count, room, idle, n;
        if (router ? ready == 0 : en == NULL) {
            return;
        }
        room = router ? ready * p->o.concurrency - p->router_load : p->o.concurrency - en->load;
        idle = router ? ready - p->nflying : p->pick.idle;
        n = port_http_share(p, u, room, idle, router ? p->router_load == 0 : en->load == 0);
        if (n < 1) {
            return;
        }
        port_http_unlink(&u->link);
        p->nwaiting--;
        if (n < u->count) {
            port_http_split(p, u, n);
        }
        if (!port_http_fly(p, u, router ? -1 : en->index)) {
            port_http_again(p, u, 0.0);
            return;
        }
    }
}

/* ---- aborting ---- */

static void port_http_ask_abort(struct port_http *p, int engine, const char *rid)
{
    char body[128];
    int n = rid ? snprintf(body, sizeof body, "{\"rid\":\"%s\"}", rid)
                : snprintf(body, sizeof body, "{\"rid\":\"\",\"abort_all\":true}");

    for (int i = 0; i < p->o.nengines; i++) {
        if ((engine < 0 || engine == i) && port_engine_is_up(&p->engines[i])) {
            port_http_send(p, PORT_HTTP_ABORT, i, "POST", p->engines[i].url, "/abort_request", body,
                           (size_t)n, PORT_HTTP_ABORT_S);
        }
    }
}

/* An abort may overtake the request it is about: it is sent until the samples are back. */
static void port_http_abort_flying(struct port_http *p, double now)
{
    struct port_http_link *x = p->flying.next;

    for (; p->aborting && x != &p->flying; x = x->next) {
        struct port_http_unit *u = (struct port_http_unit *)x;
        if (u->abort_end > 0.0 && now > u->abort_end) {
            p->net.cancel(p->net.self, u->call->id);
        } else if (u->abort_end > 0.0 && now >= u->abort_next) {
            u->abort_next = now + 1.0;
            port_http_ask_abort(p, u->call->engine, u->call->rid);
        }
    }
}

static void port_http_abort_ring(struct port_http *p, struct port_http_link *ring, int *count)
{
    struct port_http_link *x = ring->next, *next;

    for (; x != ring; x = next) {
        next = x->next;
        if (((struct port_http_unit *)x)->set->aborted) {
            port_http_unlink(x);
            *count -= 1;
            port_http_hand_nothing(p, (struct port_http_unit *)x);
        }
    }
}

static void port_http_abort(void *self, int64_t group)
{
    struct port_http *p = self;
    double now = port_http_now(p);
    int unused = 0;

    for (struct port_http_link *x = p->sets.next; x != &p->sets; x = x->next) {
        struct port_http_set *s = (struct port_http_set *)x;
        s->aborted |= group < 0 || s->g.id == group;
    }
    if (group < 0 && p->nflying) {
        port_http_ask_abort(p, -1, NULL);
    }
    for (struct port_http_link *x = p->flying.next; x != &p->flying; x = x->next) {
        struct port_http_unit *u = (struct port_http_unit *)x;
        if (u->set->aborted && u->abort_end <= 0.0) {
            u->abort_next = now + (group < 0 ? 1.0 : 0.0);
            u->abort_end = now + PORT_HTTP_ABORT_S;
            p->aborting++;
        }
    }
    port_http_abort_ring(p, &p->waiting, &p->nwaiting);
    port_http_abort_ring(p, &p->later, &unused);
    port_http_abort_flying(p, now);
}

/* ---- the calls ---- */

static void port_http_event(struct port_http *p, const struct http_client_event *ev)
{
    struct port_http_call *k = ev->user;

    if (ev->kind != HTTP_CLIENT_END) {
        return;
    }
    port_http_unlink(&k->link);
    if (k->kind == PORT_HTTP_GENERATE) {
        port_http_answered(p, k, ev);
    } else if (!k->stale) {
        port_engine_event(p, k, ev);
        p->look = 1;
    }
    mem_free(k);
}

static void port_http_tick(struct port_http *p)
{
    double now = port_http_now(p), away = now - p->last_tick;
    struct port_http_link *x, *next;
    int up = 0;

    if (away < PORT_HTTP_TICK_S && !p->look) {
        return;
    }
    p->look = 0;
    /* The caller was busy with something else: that is no engine's fault. */
    for (int i = 0; away > 1.0 && i < p->o.nengines; i++) {
        p->engines[i].deadline += away;
    }
    p->last_up += away > 1.0 ? away : 0.0;
    p->away += away > 1.0 ? away : 0.0;
    p->last_tick = now;
    for (int i = 0; i < p->o.nengines && !p->fatal.code; i++) {
        port_engine_tick(p, &p->engines[i], now);
        port_http_placed(p, &p->engines[i]);
        up |= port_engine_is_up(&p->engines[i]);
    }
    if (up) {
        p->last_up = now;
    } else if (now - p->last_up > p->o.start_s && p->started) {
        port_http_fail(p, STATUS_TIMEOUT, "no engine has answered for %.0f s; %s: %s", p->o.start_s,
                       port_engine_name(&p->engines[0]), p->engines[0].why);
    }
    for (x = p->later.next; x != &p->later; x = next) {
        struct port_http_unit *u = (struct port_http_unit *)x;
        next = x->next;
        if (now >= u->not_before) {
            port_http_unlink(x);
            port_http_put(x, p->waiting.next);
            p->nwaiting++;
        }
    }
    port_http_abort_flying(p, now);
    port_pace_tick(p, now);
    if (p->o.attend) {
        p->o.attend(p->o.attend_self);
    }
}

/* Takes the events that are there; waits for the first at most wait_s. */
static void port_http_run(struct port_http *p, double wait_s)
{
    struct http_client_event *ev;

    port_http_tick(p);
    port_http_dispatch(p);
    wait_s = p->look ? 0.0 : wait_s;
    while ((ev = p->net.take(p->net.self, wait_s))) {
        port_http_event(p, ev);
        p->net.release(p->net.self, ev);
        wait_s = 0.0;
    }
    port_http_tick(p);
    port_http_dispatch(p);
}

static int port_http_submit(void *self, const struct port_group *g, struct err *e)
{
    struct port_http *p = self;
    struct port_http_set *s;
    int one = p->o.kind == PORT_HTTP_MILES ? g->n : 1;

    if (p->fatal.code) {
        return port_http_failed(p, e);
    }
    if (g->n < 1 || g->ntokens < 1 || g->max_new < 1) {
        return ERR(e, STATUS_INPUT, "a group of %d samples, %d tokens and %d new ones", g->n,
                   g->ntokens, g->max_new);
    }
    if (p->open_samples + g->n > PORT_HTTP_MAX_OPEN && p->open_samples) {
        return STATUS_AGAIN;
    }
    s = mem_alloc(sizeof *s);
    s->g = *g;
    s->tokens = mem_alloc(sizeof *s->tokens * (size_t)g->ntokens);
    memcpy(s->tokens, g->tokens, sizeof *s->tokens * (size_t)g->ntokens);
    s->g.tokens = s->tokens;
    s->open = g->n;
    port_http_put(&s->link, &p->sets);
    for (int i = 0; i < g->n; i += one) {
        struct port_http_unit *u = mem_alloc(sizeof *u);
        u->set = s;
        u->first = i;
        u->count = one;
        port_http_put(&u->link, &p->waiting);
        p->nwaiting++;
    }
    p->open_samples += g->n;
    return STATUS_OK;
}

static void port_http_forget(struct port_http_ready *r)
{
    if (r) {
        genwire_fini(&r->s);
        mem_free(r);
    }
}

static int port_http_hand_out(struct port_http *p, struct port_answer *a)
{
    struct port_http_ready *r = p->ready;

    if (!r) {
        return 0;
    }
    p->ready = r->next;
    if (!p->ready) {
        p->ready_end = &p->ready;
    }
    p->handed = r;
    p->open_samples--;
    *a = r->a;
    return 1;
}

static int port_http_poll(void *self, struct port_answer *a, struct err *e)
{
    struct port_http *p = self;
    double t0;

    port_http_forget(p->handed);
    p->handed = NULL;
    if (p->fatal.code) {
        return port_http_failed(p, e);
    }
    port_http_run(p, 0.0);
    if (p->fatal.code || port_http_hand_out(p, a)) {
        return port_http_failed(p, e);
    }
    if (p->open_samples == 0) {
        return STATUS_END;
    }
    t0 = port_http_now(p);
    port_http_run(p, PORT_HTTP_WAIT_S);
    p->stats.wait_s += port_http_now(p) - t0;
    if (p->fatal.code || port_http_hand_out(p, a)) {
        return port_http_failed(p, e);
    }
    return STATUS_AGAIN;
}

static int port_http_control(void *self, enum port_control what, struct err *e)
{
    struct port_http *p = self;
    int left = 0;

    if (!p->controlling) {
        if (what == PORT_RELEASE && p->open_samples) {
            return ERR(e, STATUS_INPUT, "%d samples are on their way: memory cannot be released",
                       p->open_samples);
        }
        p->controlling = 1 + (int)what;
        p->control_end = port_http_now(p) + p->o.sync_s;
        memset(&p->refused, 0, sizeof p->refused);
        p->paused = what == PORT_PAUSE || p->paused;
        p->released = what == PORT_RELEASE || p->released;
        for (int i = 0; i < p->o.nengines; i++) {
            p->engines[i].control = port_engine_is_up(&p->engines[i]);
        }
    }
    if (p->controlling != 1 + (int)what) {
        return ERR(e, STATUS_INPUT, "the engines are still busy with another request");
    }
    port_http_run(p, 0.0);
    for (int i = 0; i < p->o.nengines; i++) {
        left |= p->engines[i].control == 1 || p->engines[i].control == 2;
    }
    if (left && !p->fatal.code) {
        port_http_run(p, PORT_HTTP_WAIT_S);
        return p->fatal.code ? port_http_failed(p, e) : STATUS_AGAIN;
    }
    p->controlling = 0;
    p->paused = p->paused && what != PORT_CONTINUE;
    p->released = p->released && what != PORT_RESTORE;
    if (p->refused.code && !p->fatal.code) {
        *e = p->refused;
        return p->refused.code;
    }
    return port_http_failed(p, e);
}

/* 1 when an engine may get samples and none is busy with its weights. */
static int port_http_all_have(const struct port_http *p)
{
    int ready = 0;

    for (int i = 0; i < p->o.nengines; i++) {
        const struct port_engine *en = &p->engines[i];
        if (port_engine_is_up(en) && en->state != PORT_ENGINE_READY) {
            return 0;
        }
        ready += en->state == PORT_ENGINE_READY;
    }
    return ready > 0;
}

static int port_http_publish(void *self, int64_t version, struct err *e)
{
    struct port_http *p = self;
    int rc;

    if (p->fatal.code) {
        return port_http_failed(p, e);
    }
    if (version < 0) {
        return ERR(e, STATUS_INPUT, "weights of version %lld", (long long)version);
    }
    if (p->version != version) {
        rc = p->o.sync->prepare(p->o.sync->self, version, e);
        if (rc != STATUS_OK) {
            return rc;
        }
        p->version = version;
        p->publishing = p->look = 1;
        for (int i = 0; i < p->o.nengines; i++) {
            if (p->engines[i].state == PORT_ENGINE_READY) {
                p->engines[i].state = PORT_ENGINE_UP;
                p->engines[i].suspect = 0;
            }
        }
    }
    port_http_run(p, 0.0);
    if (!port_http_all_have(p) && !p->fatal.code) {
        port_http_run(p, PORT_HTTP_WAIT_S);
        return p->fatal.code ? port_http_failed(p, e) : STATUS_AGAIN;
    }
    p->publishing = 0;
    if (!p->fatal.code && p->o.sync->settled) {
        p->o.sync->settled(p->o.sync->self, version);
    }
    return port_http_failed(p, e);
}

static void port_http_report(void *self, json_t *row)
{
    struct port_http *p = self;
    const struct port_http_stats *s = &p->stats;

    metric_put_int(row, "rollout/engines_ready", p->pick.count);
    metric_put_int(row, "rollout/engine_requests", s->requests);
    metric_put_int(row, "rollout/engine_retries", s->retries);
    metric_put_int(row, "rollout/engines_lost", s->lost);
    metric_put_int(row, "rollout/engines_drained", s->drained);
    metric_put_int(row, "rollout/wrong_version_answers", s->wrong);
    metric_put(row, "perf/engine_wait_time", s->wait_s);
    if (p->o.sync && p->o.sync->report) {
        p->o.sync->report(p->o.sync->self, row);
    }
    memset(&p->stats, 0, sizeof p->stats);
}

/* ---- beginning and end ---- */

static void port_http_defaults(struct port_http_opts *o)
{
    const struct port_http_opts d = {.concurrency = 512,
                                     .start_s = 1800.0,
                                     .request_s = 14400.0,
                                     .sync_s = 600.0,
                                     .check_s = 30.0,
                                     .check_timeout_s = 30.0,
                                     .slow_s = 60.0,
                                     .restarts = 3,
                                     .tries = 5};
    o->world = o->world ? o->world : world_system();
    o->concurrency = o->concurrency > 0 ? o->concurrency : d.concurrency;
    o->start_s = o->start_s > 0.0 ? o->start_s : d.start_s;
    o->request_s = o->request_s > 0.0 ? o->request_s : d.request_s;
    o->sync_s = o->sync_s > 0.0 ? o->sync_s : d.sync_s;
    o->check_s = o->check_s > 0.0 ? o->check_s : d.check_s;
    o->check_timeout_s = o->check_timeout_s > 0.0 ? o->check_timeout_s : d.check_timeout_s;
    o->slow_s = o->slow_s > 0.0 ? o->slow_s : d.slow_s;
    o->restarts = o->restarts > 0 ? o->restarts : d.restarts;
    o->tries = o->tries > 0 ? o->tries : d.tries;
}

int port_http_open(const struct port_http_opts *o, struct port_http **out, struct err *e)
{
    struct port_http *p;
    struct http_client_opts co = {0};
    int64_t files = proc_raise_files(0), most;
    int rc = STATUS_OK, places = o->nengines + o->room;

    if (places < 1 || (o->nengines > 0 && (!o->urls) == (!o->host))) {
        return ERR(e, STATUS_INPUT,
                   "a port needs engines, and either their addresses or somebody "
                   "who starts them");
    }
    p = mem_alloc(sizeof *p);
    p->o = *o;
    port_http_defaults(&p->o);
    p->port = (struct rollout_port){.submit = port_http_submit,
                                    .poll = port_http_poll,
                                    .abort = port_http_abort,
                                    .control = port_http_control,
                                    .publish = o->sync ? port_http_publish : NULL,
                                    .report = port_http_report,
                                    .self = p};
    snprintf(p->router, sizeof p->router, "%s", o->router ? o->router : "");
    snprintf(p->tag, sizeof p->tag, "%08x", (unsigned)(world_random(p->o.world) >> 32));
    port_http_ring(&p->sets);
    port_http_ring(&p->waiting);
    port_http_ring(&p->later);
    port_http_ring(&p->flying);
    port_http_ring(&p->calls);
    p->ready_end = &p->ready;
    p->version = -1;
    p->opened = p->last_up = p->last_tick = port_http_now(p);
    p->last_tick -= PORT_HTTP_TICK_S;
    p->engines = mem_alloc(sizeof *p->engines * (size_t)places);
    port_pick_init(&p->pick, places);
    for (int i = 0; i < o->nengines; i++) {
        port_engine_place(p, &p->engines[i], o->host, o->urls ? o->urls[i] : NULL);
    }
    /* Half of the files are the run's own; what asks about engines never waits for samples. */
    most = (int64_t)places * p->o.concurrency;
    p->max_flying = (int)(most < files / 2 ? most : files / 2);
    co.max_inflight = p->max_flying + 8 * places + 64;
    co.max_calls = co.max_inflight + p->max_flying;
    co.lanes = p->router[0] ? 1 : places / PORT_HTTP_LANE; /* all samples go to one router */
    if (!o->net) {
        rc = http_client_new(&p->c, &co, e);
    }
    if (rc != STATUS_OK) {
        port_http_close(p);
        return rc;
    }
    p->net = o->net ? *o->net : http_client_net(p->c);
    *out = p;
    return STATUS_OK;
}

int port_http_start(struct port_http *p, struct err *e)
{
    int up = 0, missing = 0;

    port_http_run(p, PORT_HTTP_WAIT_S);
    for (int i = 0; i < p->o.nengines && !p->fatal.code; i++) {
        const struct port_engine *en = &p->engines[i];
        int is = p->o.sync ? port_engine_is_up(en) : en->state == PORT_ENGINE_READY;
        if (en->state == PORT_ENGINE_GONE && !en->added) {
            port_http_fail(p, STATUS_CHILD, "%s: %s", port_engine_name(en), en->why);
        }
        up += is;
        missing += !is && !en->added;
    }
    if (up == 0 && port_http_now(p) - p->opened > p->o.start_s) {
        port_http_fail(p, STATUS_TIMEOUT, "no engine is there after %.0f s", p->o.start_s);
    }
    if (p->fatal.code) {
        return port_http_failed(p, e);
    }
    p->started = up > 0 && missing == 0;
    return p->started ? STATUS_OK : STATUS_AGAIN;
}

int port_http_ready(const struct port_http *p, char *said, size_t size)
{
    size_t at = 0;
    int up = 0;

    said[0] = 0;
    for (int i = 0; i < p->o.nengines; i++) {
        const struct port_engine *en = &p->engines[i];
        if (port_engine_is_up(en)) {
            up++;
        } else if (at < size) {
            at +=
                (size_t)snprintf(said + at, size - at, "%sengine %d waits for %s since %.0f s%s%s",
                                 at ? ", " : "", i, port_engine_waits(en),
                                 port_http_now(p) - en->since, en->said[0] ? ": " : "", en->said);
        }
    }
    return up;
}

const struct rollout_port *port_http_port(struct port_http *p)
{
    return &p->port;
}

int port_http_find(const struct port_http *p, const char *url)
{
    for (int i = 0; i < p->o.nengines; i++) {
        const struct port_engine *en = &p->engines[i];
        if (en->at && !en->removed && strcmp(en->at, url) == 0) {
            return i;
        }
    }
    return -1;
}

int port_http_add(struct port_http *p, const char *url, int *engine, struct err *e)
{
    int i = 0;

    if (port_http_find(p, url) >= 0) {
        return ERR(e, STATUS_INPUT, "%s is an engine already", url);
    }
    while (i < p->o.nengines && p->engines[i].state != PORT_ENGINE_FREE) {
        i++;
    }
    if (i == p->o.nengines) {
        if (p->o.room < 1) {
            return ERR(e, STATUS_AGAIN, "there is no room for another engine than the %d",
                       p->o.nengines);
        }
        p->o.nengines++;
        p->o.room--;
    }
    port_engine_place(p, &p->engines[i], NULL, url);
    p->engines[i].added = 1;
    p->look = 1;
    log_info(ENGINE, "%s is added as engine %d", url, i);
    if (engine) {
        *engine = i;
    }
    return STATUS_OK;
}

int port_http_remove(struct port_http *p, int engine, struct err *e)
{
    if (engine < 0 || engine >= p->o.nengines || p->engines[engine].removed) {
        return ERR(e, STATUS_NOTFOUND, "there is no engine %d", engine);
    }
    port_engine_remove(p, &p->engines[engine]);
    return STATUS_OK;
}

json_t *port_http_tell(const struct port_http *p)
{
    json_t *all = json_array();
    double now = port_http_now(p);

    for (int i = 0; i < p->o.nengines; i++) {
        const struct port_engine *en = &p->engines[i];
        if (en->state != PORT_ENGINE_FREE) {
            json_array_append_new(
                all,
                json_pack("{s:i,s:s?,s:b,s:s,s:f,s:s,s:I,s:i,s:s,s:f,s:f,s:b,s:s}", "engine", i,
                          "url", en->url ? en->url : en->at, "own", en->host != NULL, "state",
                          port_engine_state_name(en), "since_s", now - en->since, "waits_for",
                          port_engine_waits(en), "weight_version", (json_int_t)en->version,
                          "samples", en->load, "breaker", breaker_name(&en->gate), "behind",
                          port_pace_behind(en), "answer_s", port_pace_mean(en), "leaving",
                          en->removed, "lost_last_by", en->why));
        }
    }
    return all;
}

static void port_http_free_ring(struct port_http_link *r)
{
    while (r->next && r->next != r) {
        struct port_http_link *x = r->next;
        port_http_unlink(x);
        mem_free(x);
    }
}

void port_http_close(struct port_http *p)
{
    if (!p) {
        return;
    }
    http_client_free(p->c);
    for (struct port_http_link *x = p->sets.next; x != &p->sets; x = x->next) {
        mem_free(((struct port_http_set *)x)->tokens);
    }
    port_http_free_ring(&p->sets);
    port_http_free_ring(&p->waiting);
    port_http_free_ring(&p->later);
    port_http_free_ring(&p->flying);
    port_http_free_ring(&p->calls);
    port_http_forget(p->handed);
    while (p->ready) {
        struct port_http_ready *r = p->ready;
        p->ready = r->next;
        port_http_forget(r);
    }
    for (int i = 0; i < p->o.nengines; i++) {
        mem_free(p->engines[i].url);
        mem_free(p->engines[i].at);
    }
    port_pick_fini(&p->pick);
    mem_free(p->engines);
    mem_free(p);
}
