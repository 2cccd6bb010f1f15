/* Many streams at once, made by one thread as the engine makes them, to clients of all manners. */
#include "net/netserver.h"

#include <fcntl.h>
#include <poll.h>

#include "base/mem.h"
#include "base/rng.h"
#include "net/sse.h"

/* ---- the engine: one thread, one event for each stream in each step ---- */

struct engine {
    struct netserver *t;
    pthread_t thread;
    atomic_int stop;
    int tokens;         /* events of a stream */
    double step_s;      /* pause after a step */
    atomic_int most;    /* streams at once */
    atomic_int cut_off; /* streams that ended early */
};

static int start_stream(struct http_req *r)
{
    struct http_req_answer a = {.status = 200, .type = "text/event-stream"};
    return http_req_begin(r, &a, HTTP_REQ_CUT_FULL, NULL, NULL);
}

/* One event of stream r, whose owner ends it at the last or when nobody reads. 1 when it goes on.
 */
static int step_stream(struct engine *g, struct http_req *r, int *step, struct buf *b)
{
    char text[64];
    int rc, n = snprintf(text, sizeof text, "{\"id\":%llu,\"token\":%d}",
                         (unsigned long long)http_req_id(r), *step);
    buf_clear(b);
    sse_data(b, text, (size_t)n);
    if (++*step == g->tokens) {
        sse_done(b);
    }
    rc = http_req_push(r, b->data, b->len);
    if (rc != STATUS_OK) {
        atomic_fetch_add(&g->cut_off, 1);
    }
    if (rc != STATUS_OK || *step == g->tokens) {
        http_req_end(r);
        return 0;
    }
    return 1;
}

static void *engine_main(void *arg)
{
    struct engine *g = arg;
    static struct http_req *run[NETSERVER_MAX];
    static int step[NETSERVER_MAX];
    struct buf b;
    int n = 0, stop;
    buf_init(&b, 4096);
    do {
        struct http_req *r;
        int kept = 0;
        stop = atomic_load(&g->stop);
        while ((r = netserver_take_within(g->t, n ? 0 : 0.002)) != NULL) {
            if (start_stream(r)) {
                atomic_fetch_add(&g->cut_off, 1);
                http_req_end(r);
                continue;
            }
            step[n] = 0;
            run[n++] = r;
        }
        if (n > atomic_load(&g->most)) {
            atomic_store(&g->most, n);
        }
        for (int i = 0; i < n; i++) {
            if (step_stream(g, run[i], &step[i], &b)) {
                run[kept] = run[i];
                step[kept++] = step[i];
            }
        }
        n = kept;
        if (g->step_s > 0) {
            netpeer_sleep(g->step_s);
        }
    } while (!stop || n > 0);
    buf_fini(&b);
    return NULL;
}

/* ---- clients ---- */

struct client {
    int fd, events, done, closed;
    long long id;
    struct buf in, text;
    struct sse sse;
};

static int on_event(void *arg, const struct sse_event *ev, struct err *e)
{
    struct client *c = arg;
    long long id;
    int token;
    (void)e;
    if (ev->done) {
        c->done++;
        return STATUS_OK;
    }
    assert_int_equal(sscanf(ev->data, "{\"id\":%lld,\"token\":%d}", &id, &token), 2);
    assert_int_equal(token, c->events++);
    assert_true(c->id == 0 || c->id == id);
    c->id = id;
    return STATUS_OK;
}

/* 256 streams at once come whole, each with its own events in order, and memory stays flat. */
static void many_streams(void **state)
{
    enum { N = 256, TOKENS = 200, ROUNDS = 2 };
    static struct client cl[N];
    struct netserver t;
    struct engine g = {.t = &t, .tokens = TOKENS, .step_s = 0.001};
    struct http_server_opts o = {.stream_buffer = 64 << 10};
    struct pollfd pf[N];
    struct err e = {0};
    int64_t before = 0;
    (void)state;
    netserver_start(&t, &o);
    pthread_create(&g.thread, NULL, engine_main, &g);
    for (int round = 0; round < ROUNDS; round++) {
        int left = N;
        double end = proc_now() + 60;
        for (int i = 0; i < N; i++) {
            memset(&cl[i], 0, sizeof cl[i]);
            cl[i].fd = netpeer_connect(t.port);
            assert_true(cl[i].fd >= 0);
            buf_init(&cl[i].in, 1 << 20);
            buf_init(&cl[i].text, 1 << 20);
            sse_init(&cl[i].sse, 1000);
            netpeer_text(cl[i].fd, NETSERVER_POST);
            pf[i] = (struct pollfd){.fd = cl[i].fd, .events = POLLIN};
        }
        while (left > 0 && proc_now() < end) {
            poll(pf, N, 1000);
            for (int i = 0; i < N; i++) {
                const char *sep;
                size_t stop;
                if (pf[i].fd < 0 || !pf[i].revents) {
                    continue;
                }
                assert_true(netpeer_more(cl[i].fd, &cl[i].in) > 0);
                sep = strstr(cl[i].in.data, "\r\n\r\n");
                if (sep && netpeer_dechunk(&cl[i].in, (size_t)(sep - cl[i].in.data) + 4,
                                           &cl[i].text, &stop) == 1) {
                    pf[i].fd = -1;
                    left--;
                }
            }
        }
        assert_int_equal(left, 0);
        for (int i = 0; i < N; i++) {
            assert_ok(sse_feed(&cl[i].sse, cl[i].text.data, cl[i].text.len, on_event, &cl[i], &e),
                      &e);
            assert_int_equal(cl[i].events, TOKENS);
            assert_int_equal(cl[i].done, 1);
            close(cl[i].fd);
            buf_fini(&cl[i].in);
            buf_fini(&cl[i].text);
            sse_fini(&cl[i].sse);
        }
        if (round == 0) {
            before = mem_resident();
        }
    }
#if !defined(__SANITIZE_ADDRESS__) /* it keeps what was freed */
    assert_true(mem_resident() < before + (16 << 20));
#endif
    (void)before;
    assert_true(atomic_load(&g.most) > N / 2);
    assert_int_equal(atomic_load(&g.cut_off), 0);
    atomic_store(&g.stop, 1);
    pthread_join(g.thread, NULL);
    netserver_stop(&t);
    assert_int_equal(atomic_load(&t.ended[HTTP_REQ_SENT]), N * ROUNDS);
}

/* ---- clients of all manners ---- */

struct chaos {
    struct netserver *t;
    unsigned seed;
    int whole; /* streams read to their end */
};

static void act(struct chaos *c, struct rng_py *g, struct buf *rest, struct buf *head,
                struct buf *body)
{
    struct linger reset = {.l_onoff = 1};
    int fd = netpeer_connect_small(c->t->port, 4096), how = (int)rng_py_randbelow(g, 8);
    buf_clear(rest);
    assert_true(fd >= 0);
    switch (how) {
    case 0: /* rubbish */ netpeer_send(fd, g->mt, (size_t)rng_py_randbelow(g, sizeof g->mt)); break;
    case 1: /* a request cut anywhere */
        netpeer_send(fd, NETSERVER_POST, (size_t)rng_py_randbelow(g, strlen(NETSERVER_POST)));
        break;
    case 2: /* leaves at once */ netpeer_text(fd, NETSERVER_POST); break;
    case 3: /* leaves after a while, by a reset */
        netpeer_text(fd, NETSERVER_POST);
        netpeer_sleep((double)rng_py_randbelow(g, 20) * 1e-3);
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        break;
    case 4: /* reads a little and leaves */
        netpeer_text(fd, NETSERVER_POST);
        netpeer_more(fd, rest);
        break;
    case 5: /* two at once, both read */
        netpeer_text(fd, NETSERVER_POST NETSERVER_POST);
        c->whole += netpeer_answer(fd, rest, head, body, 0) == 200;
        c->whole += netpeer_answer(fd, rest, head, body, 0) == 200;
        break;
    default: /* good ones */
        netpeer_text(fd, NETSERVER_POST);
        c->whole += netpeer_answer(fd, rest, head, body, 0) == 200;
        break;
    }
    close(fd);
}

static void *chaos_main(void *arg)
{
    struct chaos *c = arg;
    struct buf rest, head, body;
    struct rng_py g;
    buf_init(&rest, 1 << 20);
    buf_init(&head, 1 << 20);
    buf_init(&body, 1 << 20);
    rng_py_seed(&g, c->seed);
    for (int i = 0; i < 60; i++) {
        act(c, &g, &rest, &head, &body);
    }
    buf_fini(&rest);
    buf_fini(&head);
    buf_fini(&body);
    return NULL;
}

/* Whatever clients do, each request ends once, none is lost and the server goes on. */
static void all_manners(void **state)
{
    enum { N = 16 };
    struct netserver t;
    struct engine g = {.t = &t, .tokens = 30};
    struct http_server_opts o = {.read_s = 1};
    struct chaos c[N];
    pthread_t th[N];
    int whole = 0, before = -1;
    (void)state;
    netserver_start(&t, &o);
    pthread_create(&g.thread, NULL, engine_main, &g);
    for (int i = 0; i < N; i++) {
        c[i] = (struct chaos){.t = &t, .seed = (unsigned)i + 1};
        pthread_create(&th[i], NULL, chaos_main, &c[i]);
    }
    for (int i = 0; i < N; i++) {
        pthread_join(th[i], NULL);
        whole += c[i].whole;
    }
    /* What was still on its way when the clients left. */
    while (atomic_load(&t.handed) != before) {
        before = atomic_load(&t.handed);
        netpeer_sleep(0.3);
    }
    atomic_store(&g.stop, 1);
    pthread_join(g.thread, NULL);
    netserver_stop(&t);
    assert_true(whole > 100);
    assert_true(atomic_load(&t.ended[HTTP_REQ_GONE]) > 10);
    assert_true(atomic_load(&t.ended[HTTP_REQ_SENT]) >= whole);
}

/* The same, and the server is stopped in the middle of it. */
static void stopped_in_the_middle(void **state)
{
    for (int round = 0; round < 10; round++) {
        enum { N = 32 };
        struct netserver t;
        struct engine g = {.t = &t, .tokens = 1 << 30};
        int fd[N];
        (void)state;
        netserver_start(&t, NULL);
        pthread_create(&g.thread, NULL, engine_main, &g);
        for (int i = 0; i < N; i++) {
            fd[i] = netpeer_connect(t.port);
            netpeer_text(fd[i], NETSERVER_POST);
        }
        netpeer_sleep(0.003 * round);
        if (round & 1) {
            http_server_drain(t.s, 0.01);
        }
        http_server_free(t.s);
        assert_int_equal(atomic_load(&t.handed), atomic_load(&t.done));
        atomic_store(&g.stop, 1);
        pthread_join(g.thread, NULL);
        assert_int_equal(t.nwaiting, 0);
        for (int i = 0; i < N; i++) {
            close(fd[i]);
        }
        pthread_mutex_destroy(&t.mu);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_streams),
        cmocka_unit_test(all_manners),
        cmocka_unit_test(stopped_in_the_middle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
