/* Server and client back to back, as a router uses them: answers pass through in pieces, a slow
 * reader in front slows the server behind and not the others, and who leaves in front is missed
 * behind. The proxy is one thread with two inboxes: the client's queue, and what its own server's
 * thread leaves for it. */
#include "net/netserver.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>

#include "net/http_client.h"

enum { MAX_PAIRS = 512, WINDOW = 64 << 10 };

struct proxy;

/* One request in front and its copy behind. */
struct pair {
    struct proxy *p;
    struct http_req *r;
    uint64_t id;
    struct http_client_event *held; /* the front had no room for it */
    int begun;
    atomic_int room, gone; /* set by the front server's thread */
};

struct proxy {
    struct http_server *front;
    int port, back_port, wake;
    struct http_client *client;
    pthread_t thread;
    atomic_int stop;
    pthread_mutex_t mu;
    struct pair *fresh[MAX_PAIRS];
    int nfresh;
    struct pair pool[MAX_PAIRS]; /* never used twice: a done function may come late */
    int used;
    struct pair *pairs[MAX_PAIRS]; /* the proxy's thread */
    int npairs;
};

static void nudge(struct proxy *p)
{
    uint64_t one = 1;
    assert_int_equal(write(p->wake, &one, sizeof one), sizeof one);
}

static void on_room(void *arg, struct http_req *r)
{
    struct pair *x = arg;
    (void)r;
    atomic_store(&x->room, 1);
    nudge(x->p);
}

static void on_done(void *arg, struct http_req *r, enum http_req_end how)
{
    struct pair *x = arg;
    (void)r;
    if (how != HTTP_REQ_SENT) {
        atomic_store(&x->gone, 1);
        nudge(x->p);
    }
}

static void on_request(void *arg, struct http_req *r)
{
    struct proxy *p = arg;
    struct pair *x = &p->pool[p->used++];
    assert_true(p->used < MAX_PAIRS);
    x->p = p;
    x->r = r;
    http_req_on_done(r, on_done, x);
    pthread_mutex_lock(&p->mu);
    p->fresh[p->nfresh++] = x;
    pthread_mutex_unlock(&p->mu);
    nudge(p);
}

static void begin_behind(struct proxy *p, struct pair *x)
{
    char url[256];
    size_t n;
    const char *body = http_req_body(x->r, &n);
    struct err e = {0};
    snprintf(url, sizeof url, "http://127.0.0.1:%d%s", p->back_port, http_req_target(x->r));
    assert_ok(http_client_start(p->client,
                                &(struct http_client_request){.method = http_req_method(x->r),
                                                              .url = url,
                                                              .body = n ? body : NULL,
                                                              .len = n,
                                                              .stream = 1,
                                                              .window = WINDOW,
                                                              .total_s = 60,
                                                              .user = x},
                                &x->id, &e),
              &e);
    p->pairs[p->npairs++] = x;
}

/* Passes a piece on; what finds no room is held, which stops the server behind by its window. */
static void pass(struct proxy *p, struct pair *x, struct http_client_event *ev)
{
    if (http_req_push(x->r, ev->data, ev->len) == STATUS_AGAIN) {
        x->held = ev;
        return;
    }
    http_client_release(p->client, ev); /* sent on, or nobody is there */
}

static struct http_client_event *next_of(struct pair *x, struct http_client_event **later, int *n)
{
    for (int i = 0; i < *n; i++) {
        if (later[i]->user == x) {
            struct http_client_event *ev = later[i];
            memmove(later + i, later + i + 1, sizeof ev * (size_t)(--*n - i));
            return ev;
        }
    }
    return NULL;
}

static void end_pair(struct proxy *p, struct pair *x, const struct http_client_event *ev)
{
    for (int i = 0; i < p->npairs; i++) {
        if (p->pairs[i] == x) {
            p->pairs[i] = p->pairs[--p->npairs];
        }
    }
    if (ev->outcome == HTTP_CLIENT_OK && x->begun) {
        http_req_end(x->r);
    } else if (x->begun) {
        http_req_cut(x->r);
    } else {
        http_req_fail(x->r, 502, "%s", ev->error);
    }
    x->r = NULL;
}

static void handle(struct proxy *p, struct pair *x, struct http_client_event *ev)
{
    switch (ev->kind) {
    case HTTP_CLIENT_HEAD: {
        struct http_req_answer a = {
            .status = ev->status, .headers = ev->headers, .nheaders = ev->nheaders};
        x->begun = 1;
        http_req_begin(x->r, &a, HTTP_REQ_WAIT_FULL, on_room, x);
        http_client_release(p->client, ev);
        break;
    }
    case HTTP_CLIENT_DATA: pass(p, x, ev); break;
    default:
        end_pair(p, x, ev);
        http_client_release(p->client, ev);
        break;
    }
}

static void *proxy_main(void *arg)
{
    struct proxy *p = arg;
    static struct http_client_event *later[65536]; /* of pairs whose front has no room */
    int nlater = 0;
    while (!atomic_load(&p->stop) || p->npairs > 0) {
        struct pollfd fds[2] = {{.fd = p->wake, .events = POLLIN},
                                {.fd = http_client_fd(p->client), .events = POLLIN}};
        struct http_client_event *ev;
        uint64_t count;
        poll(fds, 2, 100);
        if (fds[0].revents && read(p->wake, &count, sizeof count) < 0) {
            break;
        }
        pthread_mutex_lock(&p->mu);
        for (int i = 0; i < p->nfresh; i++) {
            begin_behind(p, p->fresh[i]);
        }
        p->nfresh = 0;
        pthread_mutex_unlock(&p->mu);
        for (int i = p->npairs - 1; i >= 0; i--) {
            struct pair *x = p->pairs[i];
            if (atomic_exchange(&x->gone, 0)) {
                http_client_cancel(p->client, x->id);
            }
            if (x->held && (atomic_exchange(&x->room, 0) || http_req_state(x->r))) {
                ev = x->held;
                x->held = NULL;
                pass(p, x, ev);
            }
            while (!x->held && x->r && (ev = next_of(x, later, &nlater)) != NULL) {
                handle(p, x, ev);
            }
        }
        for (int i = 0; i < 256 && (ev = http_client_take(p->client, 0)) != NULL; i++) {
            struct pair *x = ev->user;
            if (x->held) {
                assert_true(nlater < 65536);
                later[nlater++] = ev;
            } else {
                handle(p, x, ev);
            }
        }
    }
    return NULL;
}

static void proxy_start(struct proxy *p, int back_port)
{
    static const struct http_server_route all = {"*", "/...", on_request, 0};
    struct http_server_opts o = {.routes = &all, .nroutes = 1, .arg = p, .stream_buffer = WINDOW};
    struct http_client_opts co = {0};
    struct err e = {0};
    memset(p, 0, sizeof *p);
    pthread_mutex_init(&p->mu, NULL);
    p->back_port = back_port;
    p->wake = eventfd(0, EFD_CLOEXEC);
    assert_ok(http_client_new(&p->client, &co, &e), &e);
    assert_ok(http_server_start(&p->front, &o, &e), &e);
    p->port = http_server_port(p->front);
    pthread_create(&p->thread, NULL, proxy_main, p);
}

static void proxy_stop(struct proxy *p)
{
    struct http_server_stats st;
    assert_int_equal(http_server_drain(p->front, 10), STATUS_OK);
    atomic_store(&p->stop, 1);
    nudge(p);
    pthread_join(p->thread, NULL);
    http_server_stats(p->front, &st);
    assert_int_equal(st.held, 0);
    http_server_free(p->front);
    assert_int_equal(http_client_running(p->client), 0);
    http_client_free(p->client);
    close(p->wake);
    pthread_mutex_destroy(&p->mu);
}

static struct buf head, body;

static void passes_on(void **state)
{
    static const char *const asks[] = {
        "GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST /echo?q=a%20b HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
        "GET /none HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /big?n=3000000 HTTP/1.1\r\nHost: x\r\n\r\n",
    };
    static const int want[] = {200, 200, 404, 200};
    struct netserver back;
    static struct proxy p;
    struct buf direct;
    (void)state;
    netserver_start(&back, NULL);
    proxy_start(&p, back.port);
    buf_init(&direct, 64u << 20);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(netpeer_ask(back.port, asks[i], strlen(asks[i]), &head, &direct), want[i]);
        assert_int_equal(netpeer_ask(p.port, asks[i], strlen(asks[i]), &head, &body), want[i]);
        assert_int_equal(body.len, direct.len);
        assert_memory_equal(body.data, direct.data, body.len);
    }
    /* Nobody behind. */
    {
        static struct proxy lost;
        proxy_start(&lost, 1);
        assert_int_equal(netpeer_ask(lost.port, asks[0], strlen(asks[0]), &head, &body), 502);
        proxy_stop(&lost);
    }
    buf_fini(&direct);
    proxy_stop(&p);
    netserver_stop(&back);
}

static void slow_reader_in_front(void **state)
{
    enum { MOST = 64 << 20 };
    struct http_server_opts o = {.stream_buffer = WINDOW};
    struct http_req_answer a = {.status = 200};
    struct netserver back;
    static struct proxy p;
    struct http_req *r;
    struct buf rest;
    size_t pushed;
    int fd;
    (void)state;
    netserver_start(&back, &o);
    proxy_start(&p, back.port);
    buf_init(&rest, MOST);
    fd = netpeer_connect_small(p.port, 4096);
    netpeer_text(fd, NETSERVER_POST);
    r = netserver_take(&back);
    assert_int_equal(http_req_begin(r, &a, HTTP_REQ_WAIT_FULL, NULL, NULL), STATUS_OK);
    /* no buffer on the way is large */
    pushed = netpeer_fill(r, MOST);
    assert_true(pushed < MOST / 2);
    /* Others pass meanwhile. */
    for (int i = 0; i < 5; i++) {
        static const char ask[] = "GET /big?n=300000 HTTP/1.1\r\nHost: x\r\n\r\n";
        assert_int_equal(netpeer_ask(p.port, ask, strlen(ask), &head, &body), 200);
        assert_int_equal(body.len, 300000);
    }
    http_req_end(r);
    assert_int_equal(netpeer_answer(fd, &rest, &head, &body, 0), 200);
    assert_int_equal(body.len, pushed);
    assert_int_equal(netpeer_filled(&body), pushed);
    close(fd);
    buf_fini(&rest);
    proxy_stop(&p);
    netserver_stop(&back);
}

static void leavers_are_missed_behind(void **state)
{
    enum { N = 40 };
    struct http_req_answer a = {.status = 200};
    struct netserver back;
    static struct proxy p;
    struct http_req *r[N];
    int fd[N];
    double t0;
    (void)state;
    netserver_start(&back, NULL);
    proxy_start(&p, back.port);
    for (int i = 0; i < N; i++) {
        fd[i] = netpeer_connect(p.port);
        netpeer_text(fd[i], NETSERVER_POST);
        r[i] = netserver_take(&back);
        if (i & 1) {
            http_req_begin(r[i], &a, HTTP_REQ_CUT_FULL, NULL, NULL);
            http_req_push(r[i], "abc", 3);
        }
    }
    t0 = proc_now();
    for (int i = 0; i < N; i++) {
        close(fd[i]);
    }
    assert_int_equal(netserver_wait_done(&back, N, 10), N);
    assert_true(proc_now() - t0 < 3);
    assert_int_equal(atomic_load(&back.ended[HTTP_REQ_GONE]), N);
    for (int i = 0; i < N; i++) {
        http_req_cut(r[i]);
    }
    proxy_stop(&p);
    netserver_stop(&back);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes_on),
        cmocka_unit_test(slow_reader_in_front),
        cmocka_unit_test(leavers_are_missed_behind),
    };
    int rc;
    buf_init(&head, 1 << 20);
    buf_init(&body, 256u << 20);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    buf_fini(&head);
    buf_fini(&body);
    return rc;
}
