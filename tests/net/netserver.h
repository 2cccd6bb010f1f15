/* A server for tests, whose requests are answered by the test's own thread when it likes. */
#ifndef TESTS_NET_NETSERVER_H
#define TESTS_NET_NETSERVER_H

#include "support.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/proc.h"
#include "base/status.h"
#include "net/http_server.h"
#include "net/netpeer.h"

enum { NETSERVER_MAX = 4096 };

struct netserver {
    struct http_server *s;
    int port;
    pthread_mutex_t mu;
    struct http_req *waiting[NETSERVER_MAX]; /* asked of /later, not yet taken */
    int nwaiting;
    atomic_int handed, done, ended[8];
    double t_done; /* of the last one */
};

static void netserver_done(void *arg, struct http_req *r, enum http_req_end how)
{
    struct netserver *t = arg;
    assert_non_null(http_req_path(r));
    pthread_mutex_lock(&t->mu);
    t->t_done = proc_now();
    pthread_mutex_unlock(&t->mu);
    atomic_fetch_add(&t->ended[how], 1);
    atomic_fetch_add(&t->done, 1);
}

static void netserver_count(struct netserver *t, struct http_req *r)
{
    atomic_fetch_add(&t->handed, 1);
    http_req_on_done(r, netserver_done, t);
}

static void netserver_health(void *arg, struct http_req *r)
{
    netserver_count(arg, r);
    http_req_reply(r, 200, "text/plain", "ok", 2);
}

/* The request told back: method, path, one argument, one header, body. */
static void netserver_echo(void *arg, struct http_req *r)
{
    struct http_header h = {"X-Echo", "yes"};
    struct http_req_answer a = {.status = 200, .type = "text/plain", .headers = &h, .nheaders = 1};
    const char *q = http_req_query(r, "q"), *x = http_req_header(r, "x-thing");
    struct buf b;
    size_t n;
    const char *body = http_req_body(r, &n);
    netserver_count(arg, r);
    buf_init(&b, 256u << 20);
    buf_printf(&b, "%s|%s|%s|%s|%s|", http_req_method(r), http_req_path(r), http_req_target(r),
               q ? q : "-", x ? x : "-");
    buf_add(&b, body, n);
    http_req_reply_buf(r, &a, &b);
    buf_fini(&b);
}

static void netserver_later(void *arg, struct http_req *r)
{
    struct netserver *t = arg;
    netserver_count(t, r);
    pthread_mutex_lock(&t->mu);
    assert_true(t->nwaiting < NETSERVER_MAX);
    t->waiting[t->nwaiting++] = r;
    pthread_mutex_unlock(&t->mu);
}

static void netserver_big(void *arg, struct http_req *r)
{
    const char *q = http_req_query(r, "n");
    struct http_req_answer a = {.status = 200, .type = "application/octet-stream"};
    size_t n = q ? strtoul(q, NULL, 10) : 0;
    struct buf b;
    netserver_count(arg, r);
    buf_init(&b, n + 1);
    while (b.len < n) {
        size_t left = n - b.len;
        buf_add(&b, "abcdefghijklmnopqrstuvw", left < 23 ? left : 23);
    }
    http_req_reply_buf(r, &a, &b);
    buf_fini(&b);
}

static void netserver_fail(void *arg, struct http_req *r)
{
    netserver_count(arg, r);
    http_req_fail(r, 418, "not \"tea\"");
}

static void netserver_cut(void *arg, struct http_req *r)
{
    netserver_count(arg, r);
    http_req_cut(r);
}

/* Starts it; o may be NULL or hold limits. */
static void netserver_start(struct netserver *t, const struct http_server_opts *limits)
{
    static const struct http_server_route routes[] = {
        {"GET", "/health", netserver_health, HTTP_SERVER_OPEN},
        {"*", "/echo", netserver_echo, 0},
        {"GET", "/big", netserver_big, 0},
        {"GET", "/fail", netserver_fail, 0},
        {"GET", "/cut", netserver_cut, 0},
        {"POST", "/later", netserver_later, 0},
        {"PUT", "/later", netserver_later, 0},
        {"GET", "/tree/...", netserver_echo, 0},
    };
    struct http_server_opts o = {0};
    struct err e = {0};
    if (limits) {
        o = *limits;
    }
    memset(t, 0, sizeof *t);
    pthread_mutex_init(&t->mu, NULL);
    o.routes = routes;
    o.nroutes = sizeof routes / sizeof routes[0];
    o.arg = t;
    assert_ok(http_server_start(&t->s, &o, &e), &e);
    t->port = http_server_port(t->s);
    assert_true(t->port > 0);
}

/* Every request that a handler got has ended once, and nothing is held. */
static void netserver_stop(struct netserver *t)
{
    struct http_server_stats st;
    assert_int_equal(t->nwaiting, 0);
    for (double end = proc_now() + 5; proc_now() < end;) {
        http_server_stats(t->s, &st);
        if (st.held == 0) {
            break;
        }
        netpeer_sleep(0.01);
    }
    http_server_stats(t->s, &st);
    assert_int_equal(st.held, 0);
    assert_int_equal(st.active, 0);
    http_server_free(t->s);
    assert_int_equal(atomic_load(&t->handed), atomic_load(&t->done));
    pthread_mutex_destroy(&t->mu);
}

/* Takes a request asked of /later, waiting for it; NULL when none came. */
static struct http_req *netserver_take_within(struct netserver *t, double wait_s)
{
    for (double end = proc_now() + wait_s;;) {
        struct http_req *r = NULL;
        pthread_mutex_lock(&t->mu);
        if (t->nwaiting > 0) {
            r = t->waiting[0];
            memmove(t->waiting, t->waiting + 1, sizeof r * (size_t)--t->nwaiting);
        }
        pthread_mutex_unlock(&t->mu);
        if (r || proc_now() > end) {
            return r;
        }
        netpeer_sleep(0.001);
    }
}

static inline struct http_req *netserver_take(struct netserver *t)
{
    struct http_req *r = netserver_take_within(t, 20);
    assert_non_null(r);
    return r;
}

/* Waits until n requests have ended; the count. */
static inline int netserver_wait_done(struct netserver *t, int n, double wait_s)
{
    for (double end = proc_now() + wait_s; atomic_load(&t->done) < n && proc_now() < end;) {
        netpeer_sleep(0.001);
    }
    return atomic_load(&t->done);
}

#define NETSERVER_POST "POST /later HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"

#endif
