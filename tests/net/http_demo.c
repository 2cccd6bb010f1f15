/* A server for clients outside the process (tests/live/http_conform.sh): echo, streams, counters.
 *
 *     http_demo CERT KEY
 *
 * Prints its two ports, plain and TLS, and serves until its standard input ends; then drains. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/status.h"
#include "net/http_server.h"
#include "net/sse.h"

struct stream {
    struct stream *next;
    struct http_req *r;
    long left, at;
};

static struct {
    pthread_mutex_t mu;
    struct stream *fresh;
    atomic_int stop;
    struct http_server *servers[2];
} demo = {.mu = PTHREAD_MUTEX_INITIALIZER};

static void on_health(void *arg, struct http_req *r)
{
    (void)arg;
    http_req_reply(r, 200, "text/plain", "ok", 2);
}

static void on_echo(void *arg, struct http_req *r)
{
    size_t n;
    const char *body = http_req_body(r, &n);
    (void)arg;
    http_req_reply(r, 200, "application/octet-stream", body, n);
}

static void on_stats(void *arg, struct http_req *r)
{
    struct http_server_stats st;
    char text[64];
    int n;
    (void)arg;
    http_server_stats(demo.servers[0], &st);
    n = snprintf(text, sizeof text, "{\"active\":%lld}", (long long)st.active);
    http_req_reply(r, 200, "application/json", text, (size_t)n);
}

static void on_stream(void *arg, struct http_req *r)
{
    struct stream *x = mem_alloc(sizeof *x);
    size_t n;
    (void)arg;
    x->r = r;
    x->left = strtol(http_req_body(r, &n), NULL, 10);
    pthread_mutex_lock(&demo.mu);
    x->next = demo.fresh;
    demo.fresh = x;
    pthread_mutex_unlock(&demo.mu);
}

/* One event; 0 when the stream is over, and its owner has ended it. */
static int step(struct stream *x, struct buf *b)
{
    char text[64];
    int n = snprintf(text, sizeof text, "{\"token\":%ld}", x->at++), more = x->left-- > 0;
    buf_clear(b);
    if (more) {
        sse_data(b, text, (size_t)n);
    } else {
        sse_done(b);
    }
    if (http_req_push(x->r, b->data, b->len) == STATUS_OK && more) {
        return 1;
    }
    http_req_end(x->r);
    mem_free(x);
    return 0;
}

/* All streams by one thread, a step for each in turn. */
static void *engine(void *arg)
{
    struct http_req_answer a = {.status = 200, .type = "text/event-stream"};
    struct timespec pause = {.tv_nsec = 1000000};
    struct stream *running = NULL;
    struct buf b;
    (void)arg;
    buf_init(&b, 4096);
    while (!atomic_load(&demo.stop) || running) {
        struct stream *fresh, **link = &running;
        pthread_mutex_lock(&demo.mu);
        fresh = demo.fresh;
        demo.fresh = NULL;
        pthread_mutex_unlock(&demo.mu);
        while (fresh) {
            struct stream *next = fresh->next;
            http_req_begin(fresh->r, &a, HTTP_REQ_CUT_FULL, NULL, NULL);
            fresh->next = running;
            running = fresh;
            fresh = next;
        }
        while (*link) {
            struct stream *x = *link, *next = x->next;
            if (step(x, &b)) {
                link = &x->next;
            } else {
                *link = next;
            }
        }
        nanosleep(&pause, NULL);
    }
    buf_fini(&b);
    return NULL;
}

int main(int argc, char **argv)
{
    static const struct http_server_route routes[] = {
        {"GET", "/health", on_health, HTTP_SERVER_OPEN},
        {"POST", "/echo", on_echo, 0},
        {"POST", "/stream", on_stream, 0},
        {"GET", "/stats", on_stats, 0},
    };
    static const char *const keys[] = {"sesame"};
    struct http_server_opts o = {.routes = routes,
                                 .nroutes = sizeof routes / sizeof routes[0],
                                 .keys = keys,
                                 .nkeys = 1,
                                 .max_body = 2 << 20};
    struct err e = {0};
    pthread_t th;
    char c;
    int rc = 0;
    if (argc != 3) {
        fprintf(stderr, "usage: http_demo CERT KEY\n");
        return 2;
    }
    for (int i = 0; i < 2; i++) {
        o.cert_file = i ? argv[1] : NULL;
        o.key_file = i ? argv[2] : NULL;
        if (http_server_start(&demo.servers[i], &o, &e)) {
            fprintf(stderr, "%s\n", e.msg);
            return 1;
        }
    }
    pthread_create(&th, NULL, engine, NULL);
    printf("%d %d\n", http_server_port(demo.servers[0]), http_server_port(demo.servers[1]));
    fflush(stdout);
    while (read(0, &c, 1) > 0) {
    }
    for (int i = 0; i < 2; i++) {
        rc |= http_server_drain(demo.servers[i], 10);
    }
    atomic_store(&demo.stop, 1);
    pthread_join(th, NULL);
    for (int i = 0; i < 2; i++) {
        struct http_server_stats st;
        http_server_stats(demo.servers[i], &st);
        rc |= st.held != 0;
        http_server_free(demo.servers[i]);
    }
    return rc ? 1 : 0;
}
