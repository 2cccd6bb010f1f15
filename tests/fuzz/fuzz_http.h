/* Any bytes at the socket of a server: it goes on, every request that a handler got ends once, and
 * nothing is held afterwards. */
#ifndef TESTS_FUZZ_FUZZ_HTTP_H
#define TESTS_FUZZ_FUZZ_HTTP_H

#include <poll.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/status.h"
#include "net/http_server.h"
#include "net/netpeer.h"

static struct {
    struct http_server *s;
    int port;
    atomic_int handed, done;
    unsigned long long inputs;
} fuzz_http;

#define FUZZ_HTTP_CHECK(x) ((x) ? (void)0 : abort())

static void fuzz_http_done(void *arg, struct http_req *r, enum http_req_end how)
{
    (void)arg;
    (void)r;
    FUZZ_HTTP_CHECK(how > HTTP_REQ_OPEN && how <= HTTP_REQ_CLOSED);
    atomic_fetch_add(&fuzz_http.done, 1);
}

static void fuzz_http_count(struct http_req *r)
{
    atomic_fetch_add(&fuzz_http.handed, 1);
    http_req_on_done(r, fuzz_http_done, NULL);
}

static void fuzz_http_now(void *arg, struct http_req *r)
{
    const char *q = http_req_query(r, "q");
    (void)arg;
    fuzz_http_count(r);
    http_req_reply(r, 200, "text/plain", q ? q : "", q ? strlen(q) : 0);
}

static void fuzz_http_echo(void *arg, struct http_req *r)
{
    size_t n;
    const char *body = http_req_body(r, &n);
    (void)arg;
    fuzz_http_count(r);
    FUZZ_HTTP_CHECK(n <= 4096 && strlen(body) <= n);
    if (n > 0 && body[0] == '{') {
        http_req_reply(r, 200, "application/json", body, n);
    } else {
        http_req_fail(r, 400, "not JSON: %.20s", body);
    }
}

static void fuzz_http_stream(void *arg, struct http_req *r)
{
    struct http_req_answer a = {.status = 200, .type = "text/event-stream"};
    (void)arg;
    fuzz_http_count(r);
    FUZZ_HTTP_CHECK(http_req_begin(r, &a, HTTP_REQ_CUT_FULL, NULL, NULL) == STATUS_OK);
    for (int i = 0; i < 5; i++) {
        http_req_push(r, "data: x\n\n", 9);
    }
    http_req_end(r);
}

static void fuzz_http_cut(void *arg, struct http_req *r)
{
    (void)arg;
    fuzz_http_count(r);
    http_req_cut(r);
}

static void fuzz_http_start(void)
{
    static const struct http_server_route routes[] = {
        {"GET", "/now", fuzz_http_now, HTTP_SERVER_OPEN},
        {"*", "/echo", fuzz_http_echo, HTTP_SERVER_OPEN},
        {"POST", "/stream", fuzz_http_stream, HTTP_SERVER_OPEN},
        {"POST", "/later", fuzz_http_cut, HTTP_SERVER_OPEN},
        {"GET", "/secret", fuzz_http_now, 0},
    };
    static const char *const keys[] = {"k"};
    struct http_server_opts o = {
        .routes = routes,
        .nroutes = sizeof routes / sizeof routes[0],
        .keys = keys,
        .nkeys = 1,
        .max_header = 4096,
        .max_body = 4096,
        .read_s = 2,
        .stream_buffer = 1024,
    };
    FUZZ_HTTP_CHECK(http_server_start(&fuzz_http.s, &o, NULL) == STATUS_OK);
    fuzz_http.port = http_server_port(fuzz_http.s);
}

/* It still answers, and what it was handed has ended. */
static void fuzz_http_verify(void)
{
    static const char ask[] = "GET /now?q=alive HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    int fd = netpeer_connect(fuzz_http.port);
    struct http_server_stats st;
    struct buf b;
    buf_init(&b, 4096);
    FUZZ_HTTP_CHECK(fd >= 0 && netpeer_text(fd, ask) == 0);
    netpeer_all(fd, &b);
    FUZZ_HTTP_CHECK(b.len > 5 && strcmp(b.data + b.len - 5, "alive") == 0);
    close(fd);
    buf_fini(&b);
    for (double end = proc_now() + 10;; netpeer_sleep(0.001)) {
        http_server_stats(fuzz_http.s, &st);
        if (st.held == 0) {
            break;
        }
        FUZZ_HTTP_CHECK(proc_now() < end);
    }
    FUZZ_HTTP_CHECK(atomic_load(&fuzz_http.handed) == atomic_load(&fuzz_http.done));
}

/* Sends the bytes, in two pieces now and then, reads a while and leaves. */
static void fuzz_http_one(const uint8_t *data, size_t n)
{
    size_t cut = n && (data[0] & 1) ? n / 2 : n;
    struct pollfd p;
    struct buf b;
    int fd;
    if (!fuzz_http.s) {
        fuzz_http_start();
    }
    fd = netpeer_connect(fuzz_http.port);
    FUZZ_HTTP_CHECK(fd >= 0);
    buf_init(&b, 1 << 20);
    netpeer_send(fd, data, cut);
    if (cut < n) {
        netpeer_sleep(0.0002);
        netpeer_send(fd, data + cut, n - cut);
    }
    shutdown(fd, SHUT_WR);
    p = (struct pollfd){.fd = fd, .events = POLLIN};
    while (poll(&p, 1, 3) > 0 && netpeer_more(fd, &b) > 0) {
    }
    close(fd);
    buf_fini(&b);
    if (++fuzz_http.inputs % 256 == 0) {
        fuzz_http_verify();
    }
}

#endif
