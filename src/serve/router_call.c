/* Owns a request from the client's first byte to the last one sent back to it: the wait for its
 * turn, the choice of a worker, the passing on of the answer, and the next worker when one was
 * lost.
 *
 * A call is held by the router's thread until it has ended the client's request, by the server's
 * thread until that has told its end, by each request to a worker until its end was told, and by
 * the inbox while it is in it. Events of a worker that the call has left carry another number than
 * the call's own and are dropped.
 *
 * Answers whose length is known and not large are passed on when they are whole: so a worker that
 * dies in the middle of one costs nothing but time. All others (streams, above all) are passed on
 * piece by piece; a piece that finds no room is held, and the worker's window with it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/proc.h"
#include "base/status.h"
#include "serve/router_int.h"

enum {
    WHOLE_MAX = 4 << 20, /* larger answers are not kept until they are whole */
    WINDOW = 256 << 10,  /* bytes of an answer held for a slow reader */
    TRIED_MAX = 8        /* workers that a call remembers to have tried */
};

/* What the server's thread tells. */
enum { CALL_FRESH = 1, CALL_ROOM = 2, CALL_GONE = 4 };

struct router_call {
    struct router_task task;
    atomic_int refs;
    struct router *rt;

    /* Under the router's lock. */
    struct router_call *next_in;
    int posted, news;

    struct http_req *r; /* NULL once it was ended */
    struct router_list *list;
    struct router_call *next, *prev;
    struct router_key key;
    int idempotent;
    double start, deadline, due;

    struct router_worker *w; /* that has it; NULL when none has */
    uint64_t id;             /* of the request to it; 0 when there is none */
    uint64_t tried[TRIED_MAX];
    int ntried, again, pauses;

    int status;                     /* told to the client; 0: nothing yet */
    int begun;                      /* something was passed on */
    int discard;                    /* this answer is not passed on: another worker will be asked */
    struct http_client_event *head; /* of an answer that is kept until it is whole */
    struct buf body;
    struct http_client_event **held; /* pieces without room, in order */
    int nheld, held_cap;
};

/* ---- lists and references ---- */

static void list_add(struct router_list *l, struct router_call *c)
{
    ASSERT(!c->list);
    c->list = l;
    c->next = NULL;
    c->prev = l->last;
    *(l->last ? &l->last->next : &l->first) = c;
    l->last = c;
    l->n++;
}

static void list_drop(struct router_call *c)
{
    struct router_list *l = c->list;

    if (l) {
        *(c->prev ? &c->prev->next : &l->first) = c->next;
        *(c->next ? &c->next->prev : &l->last) = c->prev;
        l->n--;
        c->list = NULL;
    }
}

static void call_drop(struct router_call *c)
{
    if (atomic_fetch_sub(&c->refs, 1) == 1) {
        router_key_fini(&c->key);
        buf_fini(&c->body);
        mem_free(c->held);
        mem_free(c);
    }
}

/* ---- what the server's thread tells ---- */

static void post(struct router_call *c, int news)
{
    struct router *rt = c->rt;
    int first = 0;

    pthread_mutex_lock(&rt->mu);
    c->news |= news;
    if (!c->posted) {
        c->posted = 1;
        c->next_in = NULL;
        atomic_fetch_add(&c->refs, 1);
        first = rt->inbox == NULL;
        *rt->inbox_end = c;
        rt->inbox_end = &c->next_in;
    }
    pthread_mutex_unlock(&rt->mu);
    if (first) {
        router_nudge(rt);
    }
}

static void on_done(void *arg, struct http_req *r, enum http_req_end how)
{
    struct router_call *c = arg;

    (void)r;
    if (how != HTTP_REQ_SENT) {
        post(c, CALL_GONE);
    }
    call_drop(c);
}

static void on_room(void *arg, struct http_req *r)
{
    (void)r;
    post(arg, CALL_ROOM);
}

/* 1 when asking twice does no harm: what reads, and what generates. */
static int is_idempotent(const struct http_req *r)
{
    static const char *const paths[] = {"/generate",      "/v1/completions", "/v1/chat/completions",
                                        "/v1/embeddings", "/v1/rerank",      "/v1/score",
                                        "/v1/classify",   "/v1/tokenize",    "/v1/detokenize",
                                        "/encode",        "/classify",       "/rerank",
                                        "/tokenize",      "/detokenize"};
    const char *method = http_req_method(r), *path = http_req_path(r);

    if (strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0) {
        return 1;
    }
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        if (strcmp(path, paths[i]) == 0) {
            return 1;
        }
    }
    return 0;
}

void router_call_handle(void *arg, struct http_req *r)
{
    struct router_call *c;

    if (router_fan_is(http_req_path(r))) {
        router_fan_handle(arg, r);
        return;
    }
    c = mem_alloc(sizeof *c);
    c->task.kind = ROUTER_TASK_CALL;
    c->rt = arg;
    c->r = r;
    atomic_init(&c->refs, 2); /* the router's thread and the server's */
    buf_init(&c->body, WHOLE_MAX + 1);
    http_req_on_done(r, on_done, c);
    post(c, CALL_FRESH);
}

/* ---- the end ---- */

/* The client's request was ended: nothing more comes of this call. */
static void over(struct router *rt, struct router_call *c)
{
    double s = proc_now() - c->start;
    int i = 0;

    c->r = NULL;
    rt->running -= c->list != &rt->queue;
    list_drop(c);
    for (int k = 0; k < c->nheld; k++) {
        http_client_release(rt->client, c->held[k]);
    }
    c->nheld = 0;
    http_client_release(rt->client, c->head);
    c->head = NULL;
    rt->stats.answers[c->status / 100 < 6 ? c->status / 100 : 0]++;
    while (i < ROUTER_BUCKETS && s > router_bounds[i]) {
        i++;
    }
    rt->stats.time[i]++;
    rt->stats.time_sum += s;
    call_drop(c);
}

/* Takes the call from its worker. */
static void leave(struct router *rt, struct router_call *c, enum router_worker_end how)
{
    struct router_worker *w = c->w;

    (void)rt;
    c->w = NULL;
    c->id = 0;
    if (w) {
        router_worker_ended(w, how, proc_now());
    }
}

/* Leaves a worker that has not finished. */
static void abandon(struct router *rt, struct router_call *c)
{
    if (c->id) {
        http_client_cancel(rt->client, c->id);
    }
    leave(rt, c, ROUTER_WORKER_NEUTRAL);
}

static void fail(struct router *rt, struct router_call *c, int status, const char *msg)
{
    c->status = status;
    http_req_fail(c->r, status, "%s", msg);
    over(rt, c);
}

/* The client has gone, or its answer cannot be made whole. */
static void cut(struct router *rt, struct router_call *c)
{
    c->status = 0;
    abandon(rt, c);
    http_req_cut(c->r);
    over(rt, c);
}

/* ---- choosing and sending ---- */

static int was_tried(const struct router_call *c, const struct router_worker *w)
{
    for (int i = 0; i < c->ntried && i < TRIED_MAX; i++) {
        if (c->tried[i] == w->id) {
            return 1;
        }
    }
    return 0;
}

/* The workers to choose from, in rt->usable: those not tried yet if there are any. *fresh says
 * whether they are. */
static int candidates(struct router *rt, const struct router_call *c, double now, int *fresh)
{
    int n = router_usable(rt, now), left = 0;

    for (int i = 0; i < n; i++) {
        if (!was_tried(c, rt->usable[i])) {
            struct router_worker *w = rt->usable[left];
            rt->usable[left++] = rt->usable[i];
            rt->usable[i] = w;
        }
    }
    *fresh = left > 0;
    return left > 0 ? left : n;
}

static void dispatch(struct router *rt, struct router_call *c, double now);

/* Asks again, now or after a pause. 0 when it may not. */
static int try_again(struct router *rt, struct router_call *c, int at_once, double now)
{
    double pause = rt->o.backoff_s;
    int fresh = 0;

    if (!c->idempotent || c->begun || c->again >= rt->o.max_retries || now >= c->deadline) {
        return 0;
    }
    c->again++;
    rt->stats.retries++;
    list_drop(c);
    if (at_once && candidates(rt, c, now, &fresh) > 0 && fresh) {
        dispatch(rt, c, now);
        return 1;
    }
    for (int i = 0; i < c->pauses && pause < rt->o.backoff_max_s; i++) {
        pause *= rt->o.backoff_factor;
    }
    pause = pause < rt->o.backoff_max_s ? pause : rt->o.backoff_max_s;
    pause *= 1 + rt->o.jitter * (2 * router_policy_random(&rt->policy) - 1);
    c->pauses++;
    c->due = now + pause;
    router_due(rt, c->due);
    list_add(&rt->pausing, c);
    return 1;
}

static void dispatch(struct router *rt, struct router_call *c, double now)
{
    int fresh, n = candidates(rt, c, now, &fresh), rc;
    struct router_worker *w = router_policy_pick(&rt->policy, rt->usable, n, &c->key, now);
    struct http_client_request q = {.stream = 1, .window = WINDOW, .total_s = c->deadline - now};
    struct err e = {0};

    if (!w) {
        if (!try_again(rt, c, 0, now)) {
            fail(rt, c, 503, rt->nworkers > 0 ? "no worker is available" : "there are no workers");
        }
        return;
    }
    q.method = http_req_method(c->r);
    q.body = http_req_body(c->r, &q.len);
    q.body = q.len > 0 ? q.body : NULL;
    q.fresh = !c->idempotent;
    c->discard = 0;
    rc = router_send(rt, w, &c->task, &q, c->r, http_req_target(c->r), &c->id, &e);
    if (rc != STATUS_OK) {
        c->id = 0;
        fail(rt, c, rc == STATUS_INPUT ? 400 : 503, e.msg);
        return;
    }
    atomic_fetch_add(&c->refs, 1);
    c->w = w;
    c->tried[c->ntried++ % TRIED_MAX] = w->id;
    router_worker_began(w, now);
    list_add(&rt->flying, c);
}

static void read_key(struct router *rt, struct router_call *c)
{
    int wants = router_policy_wants(&rt->policy);
    const char *name = http_req_header(c->r, "X-SMG-Routing-Key");
    size_t n;
    const char *body = http_req_body(c->r, &n);

    if (wants == 1 && n > 0) {
        router_key_read(&c->key, body, n);
    } else if (wants == 2 && name) {
        router_key_name(&c->key, name, strlen(name));
    }
}

static void admit(struct router *rt, struct router_call *c)
{
    double now = proc_now();

    c->start = now;
    c->deadline = now + rt->o.request_s;
    c->idempotent = is_idempotent(c->r);
    rt->stats.requests++;
    read_key(rt, c);
    if (rt->o.max_running < 0 || rt->running < rt->o.max_running) {
        rt->running++;
        dispatch(rt, c, now);
        return;
    }
    if (rt->queue.n >= rt->o.queue_size) {
        rt->stats.queue_full++;
        rt->running++; /* over() takes it back */
        fail(rt, c, 429, "too many requests: the router's queue is full");
        return;
    }
    c->due = now + rt->o.queue_s;
    router_due(rt, c->due);
    list_add(&rt->queue, c);
}

void router_call_pump(struct router *rt)
{
    while (rt->queue.first && rt->running < rt->o.max_running) {
        struct router_call *c = rt->queue.first;
        list_drop(c);
        rt->running++;
        dispatch(rt, c, proc_now());
    }
}

void router_call_tick(struct router *rt, double now)
{
    struct router_call *c, *next;

    for (c = rt->pausing.first; c; c = next) {
        next = c->next;
        if (now >= c->due) {
            list_drop(c);
            dispatch(rt, c, now);
        } else {
            router_due(rt, c->due);
        }
    }
    while ((c = rt->queue.first) != NULL && now >= c->due) {
        rt->stats.queue_late++;
        fail(rt, c, 408, "the request waited too long in the router's queue");
    }
    if (c) {
        router_due(rt, c->due);
    }
}

/* ---- answers ---- */

/* An answer that says: not now, or not here. */
static int is_refusal(int status)
{
    return status == 429 || status == 502 || status == 503;
}

static int may_retry(const struct router *rt, const struct router_call *c)
{
    return c->idempotent && !c->begun && c->again < rt->o.max_retries;
}

/* 1 when the answer is to be kept until it is whole. */
static int wants_whole(const struct router_call *c, const struct http_client_event *ev)
{
    const char *length = http_client_header(ev, "Content-Length");

    return strcmp(http_req_method(c->r), "HEAD") == 0 || ev->status == 204 || ev->status == 304 ||
           (length && strtoull(length, NULL, 10) <= WHOLE_MAX);
}

static void pass_head(struct router_call *c, const struct http_client_event *ev, struct buf *whole)
{
    struct http_header *h = mem_alloc(sizeof *h * (size_t)(ev->nheaders + 1));
    struct http_req_answer a = {.status = ev->status, .headers = h, .nheaders = ev->nheaders + 1};

    memcpy(h, ev->headers, sizeof *h * (size_t)ev->nheaders);
    h[ev->nheaders] = (struct http_header){"X-Miles-Worker", c->w ? c->w->url : "-"};
    c->status = ev->status;
    if (whole) {
        http_req_reply_buf(c->r, &a, whole);
    } else {
        http_req_begin(c->r, &a, HTTP_REQ_WAIT_FULL, on_room, c);
        c->begun = 1;
    }
    mem_free(h);
}

static void on_head(struct router *rt, struct router_call *c, struct http_client_event *ev)
{
    if (is_refusal(ev->status) && may_retry(rt, c)) {
        c->discard = 1;
    } else if (wants_whole(c, ev)) {
        c->head = ev; /* goes with the end */
        return;
    } else {
        pass_head(c, ev, NULL);
    }
    http_client_release(rt->client, ev);
}

static void hold(struct router_call *c, struct http_client_event *ev)
{
    if (c->nheld == c->held_cap) {
        int cap = c->held_cap ? 2 * c->held_cap : 16;
        c->held = mem_realloc(c->held, sizeof *c->held * (size_t)c->held_cap,
                              sizeof *c->held * (size_t)cap);
        c->held_cap = cap;
    }
    c->held[c->nheld++] = ev;
}

/* 1 when the piece was taken, or nobody is there to take it. */
static int pass_data(struct router *rt, struct router_call *c, struct http_client_event *ev)
{
    if (c->discard) {
    } else if (c->head) {
        buf_add(&c->body, ev->data, ev->len);
    } else if (http_req_push(c->r, ev->data, ev->len) == STATUS_AGAIN) {
        return 0;
    }
    http_client_release(rt->client, ev);
    return 1;
}

static enum router_worker_end judge(const struct http_client_event *ev)
{
    switch (ev->outcome) {
    case HTTP_CLIENT_OK: /* one that is busy is not broken */
        return ev->status == 503   ? ROUTER_WORKER_NEUTRAL
               : ev->status >= 500 ? ROUTER_WORKER_BAD
                                   : ROUTER_WORKER_GOOD;
    case HTTP_CLIENT_CANCELLED:
    case HTTP_CLIENT_TOO_LARGE: return ROUTER_WORKER_NEUTRAL;
    default: return ROUTER_WORKER_BAD;
    }
}

static int is_late(enum http_client_outcome o)
{
    return o == HTTP_CLIENT_LATE || o == HTTP_CLIENT_IDLE;
}

/* A worker was lost before its answer was whole. */
static void on_lost(struct router *rt, struct router_call *c, const struct http_client_event *ev,
                    const char *url)
{
    char msg[512];

    http_client_release(rt->client, c->head);
    c->head = NULL;
    buf_clear(&c->body);
    if (c->begun) {
        cut(rt, c);
        return;
    }
    if (!is_late(ev->outcome) && try_again(rt, c, 1, proc_now())) {
        return;
    }
    snprintf(msg, sizeof msg, "worker %.200s: %.200s", url, ev->error);
    fail(rt, c, is_late(ev->outcome) ? 504 : 502, msg);
}

static void on_whole(struct router *rt, struct router_call *c)
{
    if (c->begun) {
        http_req_end(c->r);
    } else {
        pass_head(c, c->head, &c->body);
    }
    over(rt, c);
}

/* The worker has done with it, well or not. */
static void on_end(struct router *rt, struct router_call *c, struct http_client_event *ev)
{
    struct router_worker *w = c->w;
    enum router_worker_end how = judge(ev);
    double now = proc_now();
    int ok = ev->outcome == HTTP_CLIENT_OK, held = c->nheld > 0;

    router_worker_ref(w); /* its name is wanted below */
    if (held) {
        hold(c, ev);
    } else if (ok && !c->discard) {
        on_whole(rt, c);
    }
    leave(rt, c, how);
    if (how != ROUTER_WORKER_GOOD) {
        router_worker_suspect(w, now);
        router_due(rt, w->next_check);
    }
    if (!held && !ok) {
        on_lost(rt, c, ev, w->url);
    } else if (!held && c->discard && !try_again(rt, c, 0, now)) {
        fail(rt, c, ev->status, "the workers refuse the request");
    }
    router_worker_unref(w);
    if (!held) {
        http_client_release(rt->client, ev);
    }
}

/* Passes on what was held, as far as there is room. */
static void pass_held(struct router *rt, struct router_call *c)
{
    int n = 0;

    while (n < c->nheld && c->held[n]->kind == HTTP_CLIENT_DATA && pass_data(rt, c, c->held[n])) {
        n++;
    }
    c->nheld -= n;
    memmove(c->held, c->held + n, sizeof *c->held * (size_t)c->nheld);
    if (c->nheld > 0 && c->held[0]->kind == HTTP_CLIENT_END) {
        if (c->held[0]->outcome == HTTP_CLIENT_OK) {
            on_whole(rt, c); /* it releases the last event too */
        } else {
            cut(rt, c);
        }
    }
}

void router_call_event(struct router *rt, struct http_client_event *ev)
{
    struct router_call *c = ev->user;
    int last = ev->kind == HTTP_CLIENT_END;

    if (ev->id != c->id) { /* of a worker that the call has left */
        http_client_release(rt->client, ev);
    } else if (ev->kind == HTTP_CLIENT_HEAD) {
        on_head(rt, c, ev);
    } else if (last) {
        on_end(rt, c, ev);
    } else if (c->nheld > 0 || !pass_data(rt, c, ev)) {
        hold(c, ev);
    }
    if (last) {
        call_drop(c);
    }
}

void router_call_move(struct router *rt, struct router_worker *w, double now)
{
    struct router_call *c, *next;

    for (c = rt->flying.first; c; c = next) {
        next = c->next;
        if (c->w == w && may_retry(rt, c) && router_usable(rt, now) > 0) {
            http_client_release(rt->client, c->head);
            c->head = NULL;
            buf_clear(&c->body);
            abandon(rt, c);
            rt->stats.moved++;
            if (!try_again(rt, c, 1, now)) {
                fail(rt, c, 504, "the worker was lost");
            }
        }
    }
}

/* ---- the inbox ---- */

static void heed(struct router *rt, struct router_call *c, int news)
{
    if (!c->r) {
        return;
    }
    if (news & CALL_GONE) {
        rt->running += (news & CALL_FRESH) != 0; /* over() takes it back */
        c->start = news & CALL_FRESH ? proc_now() : c->start;
        cut(rt, c);
    } else if (news & CALL_FRESH) {
        admit(rt, c);
    } else if (c->nheld > 0) {
        pass_held(rt, c);
    }
}

void router_call_take(struct router *rt)
{
    for (;;) {
        struct router_call *c;
        int news = 0;
        pthread_mutex_lock(&rt->mu);
        c = rt->inbox;
        if (c) {
            rt->inbox = c->next_in;
            rt->inbox_end = rt->inbox ? rt->inbox_end : &rt->inbox;
            news = c->news;
            c->news = c->posted = 0;
        }
        pthread_mutex_unlock(&rt->mu);
        if (!c) {
            return;
        }
        heed(rt, c, news);
        call_drop(c);
    }
}

void router_call_stop(struct router *rt)
{
    struct router_list *lists[] = {&rt->queue, &rt->pausing, &rt->flying};

    for (int i = 0; i < 3; i++) {
        while (lists[i]->first) {
            cut(rt, lists[i]->first);
        }
    }
}
