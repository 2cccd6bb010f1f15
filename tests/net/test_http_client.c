/* The client against our server and against servers that misbehave: every way to fail is told by
 * its name, and every request ends once. */
#include "net/netserver.h"

#include <dirent.h>
#include <poll.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "net/http_client.h"
#include "net/sse.h"

static struct http_client *open_client(const struct http_client_opts *o)
{
    static const struct http_client_opts none;
    struct http_client *c = NULL;
    struct err e = {0};
    assert_ok(http_client_new(&c, o ? o : &none, &e), &e);
    return c;
}

static char *url_of(int port, const char *target)
{
    static char url[8][256];
    static int next;
    next = (next + 1) % 8;
    snprintf(url[next], sizeof url[next], "http://127.0.0.1:%d%s", port, target);
    return url[next];
}

static uint64_t start(struct http_client *c, const struct http_client_request *q)
{
    struct err e = {0};
    uint64_t id = 0;
    assert_ok(http_client_start(c, q, &id, &e), &e);
    assert_true(id != 0);
    return id;
}

static struct http_client_event *take(struct http_client *c, enum http_client_kind kind)
{
    struct http_client_event *ev = http_client_take(c, 20);
    assert_non_null(ev);
    assert_int_equal(ev->kind, kind);
    return ev;
}

/* One request to its end. */
static struct http_client_event *call(struct http_client *c, const struct http_client_request *q)
{
    start(c, q);
    return take(c, HTTP_CLIENT_END);
}

static void requests(void **state)
{
    struct http_header h[] = {
        {"X-Thing", "a b"}, {"Content-Type", "application/json"}, {"X-E", ""}};
    struct http_client *c = open_client(NULL);
    struct http_server_stats st;
    struct http_client_event *ev;
    struct netserver t;
    int mark;
    (void)state;
    netserver_start(&t, NULL);
    ev = call(c, &(struct http_client_request){.url = url_of(t.port, "/health"), .user = &mark});
    assert_int_equal(ev->outcome, HTTP_CLIENT_OK);
    assert_int_equal(ev->status, 200);
    assert_string_equal(ev->data, "ok");
    assert_ptr_equal(ev->user, &mark);
    assert_string_equal(http_client_header(ev, "content-type"), "text/plain");
    assert_null(http_client_header(ev, "content-typ"));
    assert_string_equal(ev->error, "");
    assert_int_equal(ev->tries, 1);
    assert_true(ev->first_byte_s > 0 && ev->first_byte_s <= ev->total_s && ev->total_s < 5);
    http_client_release(c, ev);
    ev = call(c, &(struct http_client_request){.url = url_of(t.port, "/echo?q=1"),
                                               .headers = h,
                                               .nheaders = 3,
                                               .body = "a\0b",
                                               .len = 3});
    assert_int_equal(ev->len, strlen("POST|/echo|/echo?q=1|1|a b|") + 3);
    assert_memory_equal(ev->data, "POST|/echo|/echo?q=1|1|a b|a\0b", ev->len);
    http_client_release(c, ev);
    ev = call(c, &(struct http_client_request){.method = "DELETE", .url = url_of(t.port, "/echo")});
    assert_string_equal(ev->data, "DELETE|/echo|/echo|-|-|");
    http_client_release(c, ev);
    ev = call(c, &(struct http_client_request){.method = "PUT", .url = url_of(t.port, "/echo")});
    assert_string_equal(ev->data, "PUT|/echo|/echo|-|-|");
    http_client_release(c, ev);
    ev = call(c, &(struct http_client_request){.method = "HEAD", .url = url_of(t.port, "/health")});
    assert_int_equal(ev->outcome, HTTP_CLIENT_OK);
    assert_int_equal(ev->len, 0);
    http_client_release(c, ev);
    ev = call(c, &(struct http_client_request){.url = url_of(t.port, "/none")});
    assert_int_equal(ev->outcome, HTTP_CLIENT_OK); /* an answer is an answer */
    assert_int_equal(ev->status, 404);
    http_client_release(c, ev);
    http_server_stats(t.s, &st);
    assert_int_equal(st.connections, 1); /* one after the other: one connection serves */
    http_client_free(c);
    netserver_stop(&t);
}

static void bad_requests(void **state)
{
    static const char *const urls[] = {NULL,      "",   "ftp://x/", "file:///etc/passwd",
                                       "http://", "x y"};
    struct http_header h[] = {{"A", "b\r\nC: d"}};
    struct http_client *c = open_client(NULL);
    struct err e = {0};
    (void)state;
    for (size_t i = 0; i < sizeof urls / sizeof urls[0]; i++) {
        assert_int_equal(
            http_client_start(c, &(struct http_client_request){.url = urls[i]}, NULL, &e),
            STATUS_INPUT);
    }
    assert_int_equal(http_client_start(c,
                                       &(struct http_client_request){
                                           .url = "http://127.0.0.1/", .headers = h, .nheaders = 1},
                                       NULL, &e),
                     STATUS_INPUT);
    assert_int_equal(http_client_running(c), 0);
    assert_null(http_client_take(c, 0));
    http_client_free(c);
    http_client_free(NULL);
}

/* ---- servers that misbehave ---- */

struct fake {
    pthread_t thread;
    int fd, port, conns;
    const char *answer; /* sent after the head of a request was read; NULL: nothing is read */
    int hang;           /* 1: then stays open until the peer closes */
    atomic_int served;
};

static void *fake_main(void *arg)
{
    struct fake *f = arg;
    for (int i = 0; i < f->conns; i++) {
        int fd = accept(f->fd, NULL, NULL);
        struct buf b;
        if (fd < 0) {
            break;
        }
        buf_init(&b, 1 << 20);
        while (f->answer && !strstr(b.data, "\r\n\r\n") && netpeer_more(fd, &b) > 0) {
        }
        atomic_fetch_add(&f->served, 1);
        if (f->answer) {
            netpeer_text(fd, f->answer);
        }
        while (f->hang && netpeer_more(fd, &b) > 0) {
        }
        close(fd);
        buf_fini(&b);
    }
    return NULL;
}

static void fake_start(struct fake *f)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t n = sizeof a;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    f->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(f->fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(f->fd, 16), 0);
    assert_int_equal(getsockname(f->fd, (struct sockaddr *)&a, &n), 0);
    f->port = ntohs(a.sin_port);
    pthread_create(&f->thread, NULL, fake_main, f);
}

static void fake_stop(struct fake *f)
{
    shutdown(f->fd, SHUT_RDWR);
    pthread_join(f->thread, NULL);
    close(f->fd);
}

static void outcomes(void **state)
{
    static const struct {
        const char *answer;
        int hang;
        enum http_client_outcome want;
        int status;
        const char *data;
    } cases[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 0, HTTP_CLIENT_OK, 200, "hello"},
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", 0, HTTP_CLIENT_CUT, 200, "hel"},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n", 0, HTTP_CLIENT_CUT,
         200, "hel"},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", 0, HTTP_CLIENT_CUT, 200,
         "hel"},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhel", 0, HTTP_CLIENT_PROTOCOL,
         200, ""},
        {"HTTP/1.1 200 OK\r\nContent-Le", 0, HTTP_CLIENT_CUT, 0, ""},
        {"", 0, HTTP_CLIENT_CUT, 0, ""},
        {NULL, 0, HTTP_CLIENT_CUT, 0, ""},
        {"SSH-2.0-OpenSSH_9.2\r\n", 0, HTTP_CLIENT_PROTOCOL, 0, ""},
        {"HTTP/1.1 200 OK\r\n\r\nuntil the end", 0, HTTP_CLIENT_OK, 200, "until the end"},
        {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Made\r\nContent-Length: 1\r\n\r\nx", 0,
         HTTP_CLIENT_OK, 201, "x"},
        {"", 1, HTTP_CLIENT_IDLE, 0, ""},
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", 1, HTTP_CLIENT_IDLE, 200, "hel"},
        {"HTTP/1.1 301 Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", 0,
         HTTP_CLIENT_OK, 301, ""},
        {"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n12345678901234567890123", 1,
         HTTP_CLIENT_TOO_LARGE, 200, ""},
    };
    struct http_client *c = open_client(NULL);
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fake f = {.answer = cases[i].answer, .hang = cases[i].hang, .conns = 4};
        struct http_client_event *ev;
        fake_start(&f);
        ev = call(c, &(struct http_client_request){.url = url_of(f.port, "/"),
                                                   .idle_s = cases[i].hang ? 0.5 : 20,
                                                   .max_response = 20});
        if (ev->outcome != cases[i].want || ev->status != cases[i].status ||
            strcmp(ev->data, cases[i].data) != 0) {
            fail_msg("case %zu: outcome %d (%s) status %d data '%s'", i, ev->outcome, ev->error,
                     ev->status, ev->data);
        }
        assert_int_equal(ev->error[0] == 0, ev->outcome == HTTP_CLIENT_OK);
        assert_int_equal(ev->tries, 1);
        http_client_release(c, ev);
        assert_int_equal(atomic_load(&f.served), 1);
        fake_stop(&f);
    }
    http_client_free(c);
}

static void no_connection(void **state)
{
    struct http_client *c = open_client(NULL);
    struct fake f = {.conns = 0};
    struct http_client_event *ev;
    int fill[64], n = 0;
    double t0;
    (void)state;
    fake_start(&f); /* nobody accepts */
    pthread_join(f.thread, NULL);
    shutdown(f.fd, SHUT_RDWR);
    close(f.fd);
    ev = call(c, &(struct http_client_request){.url = url_of(f.port, "/")});
    assert_int_equal(ev->outcome, HTTP_CLIENT_REFUSED);
    assert_int_equal(ev->reached, 0);
    http_client_release(c, ev);
    ev = call(c,
              &(struct http_client_request){.url = "http://no.such.host.invalid/", .total_s = 20});
    assert_int_equal(ev->outcome, HTTP_CLIENT_REFUSED);
    http_client_release(c, ev);
    /* A full queue of connections: the system does not answer. */
    f = (struct fake){.conns = 0};
    fake_start(&f);
    listen(f.fd, 0);
    pthread_join(f.thread, NULL);
    while (n < 64) {
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)f.port)};
        struct pollfd p;
        a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        fill[n] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        p = (struct pollfd){.fd = fill[n], .events = POLLOUT};
        (void)!connect(fill[n], (struct sockaddr *)&a, sizeof a);
        n++;
        if (poll(&p, 1, 200) == 0) {
            break;
        }
    }
    t0 = proc_now();
    ev = call(c, &(struct http_client_request){
                     .url = url_of(f.port, "/"), .connect_s = 0.4, .total_s = 20});
    assert_int_equal(ev->outcome, HTTP_CLIENT_CONNECT_LATE);
    assert_true(proc_now() - t0 < 5);
    http_client_release(c, ev);
    while (n > 0) {
        close(fill[--n]);
    }
    close(f.fd);
    http_client_free(c);
}

static void deadlines(void **state)
{
    struct http_client *c = open_client(&(struct http_client_opts){.max_inflight = 2});
    struct netserver t;
    struct http_client_event *ev;
    struct http_req *r;
    double t0 = proc_now();
    (void)state;
    netserver_start(&t, NULL);
    ev = call(c, &(struct http_client_request){
                     .url = url_of(t.port, "/later"), .body = "x", .len = 1, .total_s = 1});
    assert_int_equal(ev->outcome, HTTP_CLIENT_LATE);
    assert_int_equal(ev->reached, 1);
    assert_true(ev->total_s >= 1 && proc_now() - t0 < 5);
    http_client_release(c, ev);
    /* The server hears of it. */
    r = netserver_take(&t);
    assert_int_equal(netserver_wait_done(&t, 1, 5), 1);
    assert_int_equal(http_req_state(r), HTTP_REQ_GONE);
    http_req_cut(r);
    /* Two hold the network; the third never gets there, and its time runs out all the same. */
    for (int i = 0; i < 3; i++) {
        start(c, &(struct http_client_request){.url = url_of(t.port, "/later"),
                                               .body = "x",
                                               .len = 1,
                                               .total_s = i < 2 ? 20 : 0.3,
                                               .user = i < 2 ? NULL : &t});
    }
    ev = take(c, HTTP_CLIENT_END);
    assert_int_equal(ev->outcome, HTTP_CLIENT_LATE);
    assert_ptr_equal(ev->user, &t);
    assert_int_equal(ev->reached, 0);
    assert_int_equal(ev->tries, 0);
    http_client_release(c, ev);
    for (int i = 0; i < 2; i++) {
        http_req_reply(netserver_take(&t), 200, NULL, "", 0);
        ev = take(c, HTTP_CLIENT_END);
        assert_int_equal(ev->outcome, HTTP_CLIENT_OK);
        http_client_release(c, ev);
    }
    http_client_free(c);
    netserver_stop(&t);
}

static void cancels(void **state)
{
    struct http_client *c =
        open_client(&(struct http_client_opts){.max_inflight = 3, .max_calls = 5});
    struct http_client_request q = {.body = "x", .len = 1};
    struct netserver t;
    struct err e = {0};
    uint64_t id[5];
    (void)state;
    netserver_start(&t, NULL);
    q.url = url_of(t.port, "/later");
    for (int i = 0; i < 5; i++) {
        id[i] = start(c, &q);
    }
    assert_int_equal(http_client_start(c, &q, NULL, &e), STATUS_AGAIN);
    assert_int_equal(http_client_running(c), 5);
    for (int i = 4; i >= 0; i--) { /* the waiting ones first, then those on the network */
        struct http_client_event *ev;
        http_client_cancel(c, id[i]);
        ev = take(c, HTTP_CLIENT_END);
        assert_int_equal(ev->outcome, HTTP_CLIENT_CANCELLED);
        assert_true(ev->id == id[i]);
        http_client_release(c, ev);
        http_client_cancel(c, id[i]);
    }
    assert_int_equal(http_client_running(c), 0);
    assert_null(http_client_take(c, 0.05));
    netpeer_sleep(0.1);
    for (struct http_req *r; (r = netserver_take_within(&t, 0.1)) != NULL;) {
        http_req_cut(r);
    }
    /* Ended with requests in the air. */
    for (int i = 0; i < 5; i++) {
        start(c, &q);
    }
    netpeer_sleep(0.05);
    http_client_free(c);
    for (struct http_req *r; (r = netserver_take_within(&t, 0.3)) != NULL;) {
        http_req_cut(r);
    }
    netserver_stop(&t);
}

static void retries(void **state)
{
    struct http_client *c = open_client(NULL);
    struct http_client_request q = {.tries = 3};
    struct http_client_event *ev;
    struct fake f;
    double t0;
    (void)state;
    /* 503 is tried again for all, 502 for the idempotent, 500 for none; the last answer is told. */
    for (int i = 0; i < 4; i++) {
        static const char *const answers[] = {
            "HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy",
            "HTTP/1.1 502 Bad\r\nContent-Length: 3\r\n\r\nbad",
            "HTTP/1.1 502 Bad\r\nContent-Length: 3\r\n\r\nbad",
            "HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\noops",
        };
        static const int idempotent[] = {0, 0, 1, 1}, want[] = {3, 1, 3, 1};
        f = (struct fake){.answer = answers[i], .conns = 9};
        fake_start(&f);
        q.url = url_of(f.port, "/");
        q.idempotent = idempotent[i];
        ev = call(c, &q);
        assert_int_equal(ev->outcome, HTTP_CLIENT_OK);
        assert_int_equal(ev->tries, want[i]);
        assert_int_equal(ev->len, strlen(ev->data));
        assert_string_equal(ev->data, strstr(answers[i], "\r\n\r\n") + 4);
        http_client_release(c, ev);
        assert_int_equal(atomic_load(&f.served), want[i]);
        fake_stop(&f);
    }
    /* Cut before an answer: only the idempotent. */
    for (int i = 0; i < 2; i++) {
        f = (struct fake){.answer = "", .conns = 9};
        fake_start(&f);
        q.url = url_of(f.port, "/");
        q.idempotent = i;
        ev = call(c, &q);
        assert_int_equal(ev->outcome, HTTP_CLIENT_CUT);
        assert_int_equal(ev->tries, i ? 3 : 1);
        http_client_release(c, ev);
        fake_stop(&f);
    }
    /* Nobody there, then somebody. */
    f = (struct fake){.answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", .conns = 1};
    fake_start(&f);
    fake_stop(&f);
    q.url = url_of(f.port, "/");
    t0 = proc_now();
    ev = call(c, &q);
    assert_int_equal(ev->outcome, HTTP_CLIENT_REFUSED);
    assert_int_equal(ev->tries, 3);
    assert_true(proc_now() - t0 > 0.29); /* 0.1 + 0.2 */
    http_client_release(c, ev);
    /* The server says when; and no try begins after the deadline. */
    f = (struct fake){.answer = "HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n",
                      .conns = 9};
    fake_start(&f);
    q.url = url_of(f.port, "/");
    q.total_s = 1.9;
    t0 = proc_now();
    ev = call(c, &q);
    assert_int_equal(ev->outcome, HTTP_CLIENT_OK);
    assert_int_equal(ev->status, 503);
    assert_int_equal(ev->tries, 2);
    assert_true(proc_now() - t0 > 0.99 && proc_now() - t0 < 5);
    http_client_release(c, ev);
    fake_stop(&f);
    http_client_free(c);
}

static void streams(void **state)
{
    struct http_req_answer a = {.status = 200, .type = "text/event-stream"};
    struct http_client *c = open_client(NULL);
    struct http_client_event *ev;
    struct netserver t;
    struct http_req *r;
    uint64_t id;
    (void)state;
    netserver_start(&t, NULL);
    id = start(c, &(struct http_client_request){
                      .url = url_of(t.port, "/later"), .body = "x", .len = 1, .stream = 1});
    r = netserver_take(&t);
    assert_int_equal(http_req_begin(r, &a, HTTP_REQ_CUT_FULL, NULL, NULL), STATUS_OK);
    ev = take(c, HTTP_CLIENT_HEAD); /* before there is any data */
    assert_true(ev->id == id);
    assert_int_equal(ev->status, 200);
    assert_string_equal(http_client_header(ev, "Content-Type"), "text/event-stream");
    http_client_release(c, ev);
    for (int i = 0; i < 20; i++) { /* each piece at once */
        struct pollfd p = {.fd = http_client_fd(c), .events = POLLIN};
        char text[16];
        assert_int_equal(poll(&p, 1, 0), 0);
        snprintf(text, sizeof text, "piece %d", i);
        assert_int_equal(http_req_push(r, text, strlen(text)), STATUS_OK);
        assert_int_equal(poll(&p, 1, 5000), 1);
        ev = take(c, HTTP_CLIENT_DATA);
        assert_string_equal(ev->data, text);
        http_client_release(c, ev);
    }
    http_req_end(r);
    ev = take(c, HTTP_CLIENT_END);
    assert_int_equal(ev->outcome, HTTP_CLIENT_OK);
    assert_int_equal(ev->len, 0);
    http_client_release(c, ev);
    /* Cut in the middle; and cancelled in the middle, which the server hears. */
    for (int cancel = 0; cancel < 2; cancel++) {
        id = start(c, &(struct http_client_request){
                          .url = url_of(t.port, "/later"), .body = "x", .len = 1, .stream = 1});
        r = netserver_take(&t);
        http_req_begin(r, &a, HTTP_REQ_CUT_FULL, NULL, NULL);
        http_req_push(r, "abc", 3);
        http_client_release(c, take(c, HTTP_CLIENT_HEAD));
        http_client_release(c, take(c, HTTP_CLIENT_DATA));
        if (cancel) {
            http_client_cancel(c, id);
            assert_int_equal(netserver_wait_done(&t, 3, 5), 3);
            assert_int_equal(http_req_state(r), HTTP_REQ_GONE);
        }
        http_req_cut(r);
        ev = take(c, HTTP_CLIENT_END);
        assert_int_equal(ev->outcome, cancel ? HTTP_CLIENT_CANCELLED : HTTP_CLIENT_CUT);
        http_client_release(c, ev);
    }
    http_client_free(c);
    netserver_stop(&t);
}

/* Pieces that are not released stop the server, and memory stays within the window; another request
 * goes on meanwhile. */
static void window(void **state)
{
    enum { TOTAL = 4 << 20, WINDOW = 128 << 10 };
    struct http_client *c = open_client(NULL);
    struct http_client_event *held[64], *ev;
    struct netserver t;
    size_t got = 0, nheld = 0, first = 0;
    int ended = 0;
    char target[64];
    (void)state;
    netserver_start(&t, NULL);
    snprintf(target, sizeof target, "/big?n=%d", TOTAL);
    start(
        c,
        &(struct http_client_request){
            .url = url_of(t.port, target), .stream = 1, .window = WINDOW, .idle_s = 3, .user = &t});
    http_client_release(c, take(c, HTTP_CLIENT_HEAD));
    while ((ev = http_client_take(c, 0.5)) != NULL) {
        assert_int_equal(ev->kind, HTTP_CLIENT_DATA);
        assert_true(nheld < 64);
        held[nheld++] = ev;
        first += ev->len;
    }
    assert_true(first >= WINDOW && first < WINDOW + 16384);
    ev = call(c, &(struct http_client_request){.url = url_of(t.port, "/health")});
    assert_int_equal(ev->status, 200);
    http_client_release(c, ev);
    netpeer_sleep(3); /* held back is not idle */
    for (size_t i = 0; i < nheld; i++) {
        for (size_t k = 0; k < held[i]->len; k++) {
            assert_int_equal(held[i]->data[k], 'a' + (got + k) % 23);
        }
        got += held[i]->len;
        http_client_release(c, held[i]);
    }
    while (!ended) {
        ev = http_client_take(c, 20);
        assert_non_null(ev);
        for (size_t k = 0; k < ev->len; k++) {
            if (ev->data[k] != (char)('a' + (got + k) % 23)) {
                fail_msg("byte %zu differs", got + k);
            }
        }
        got += ev->len;
        ended = ev->kind == HTTP_CLIENT_END;
        assert_true(!ended || ev->outcome == HTTP_CLIENT_OK);
        http_client_release(c, ev);
    }
    assert_int_equal(got, TOTAL);
    http_client_free(c);
    netserver_stop(&t);
}

/* Whole bodies of all requests together are bounded, and what is released makes room. */
static void bytes_held(void **state)
{
    struct http_client *c = open_client(&(struct http_client_opts){.max_bytes = 250000});
    struct http_client_request q = {0};
    struct http_client_event *first, *ev;
    struct netserver t;
    (void)state;
    netserver_start(&t, NULL);
    q.url = url_of(t.port, "/big?n=200000");
    first = call(c, &q);
    assert_int_equal(first->outcome, HTTP_CLIENT_OK);
    ev = call(c, &q);
    assert_int_equal(ev->outcome, HTTP_CLIENT_TOO_LARGE);
    assert_true(ev->len <= 50000);
    http_client_release(c, ev);
    http_client_release(c, first);
    for (int i = 0; i < 5; i++) {
        ev = call(c, &q);
        assert_int_equal(ev->outcome, HTTP_CLIENT_OK);
        assert_int_equal(ev->len, 200000);
        http_client_release(c, ev);
    }
    http_client_free(c);
    netserver_stop(&t);
}

/* Hundreds of requests at once, some slow, some cancelled: each ends once. */
static void many(void **state)
{
    enum { N = 2000 };
    struct http_client *c = open_client(&(struct http_client_opts){.max_inflight = 300});
    struct netserver t;
    static int ended[N];
    static uint64_t id[N];
    int left = N, outcome[HTTP_CLIENT_FAILED + 1] = {0};
    double end = proc_now() + 60;
    (void)state;
    memset(ended, 0, sizeof ended);
    netserver_start(&t, NULL);
    for (int i = 0; i < N; i++) {
        id[i] = start(
            c, &(struct http_client_request){.url = url_of(t.port, i % 4 ? "/echo" : "/later"),
                                             .body = "hello",
                                             .len = 5,
                                             .stream = i % 3 == 0,
                                             .total_s = 50,
                                             .user = &ended[i]});
    }
    for (int i = 0; i < N; i += 40) {
        http_client_cancel(c, id[i]);
    }
    while (left > 0 && proc_now() < end) {
        struct http_client_event *ev = http_client_take(c, 0.001);
        struct http_req *r = netserver_take_within(&t, 0);
        if (r) {
            http_req_reply(r, 200, NULL, "late", 4);
        }
        if (ev && ev->kind == HTTP_CLIENT_END) {
            (*(int *)ev->user)++;
            outcome[ev->outcome]++;
            left--;
        }
        http_client_release(c, ev);
    }
    assert_int_equal(left, 0);
    for (int i = 0; i < N; i++) {
        assert_int_equal(ended[i], 1);
    }
    assert_int_equal(outcome[HTTP_CLIENT_OK] + outcome[HTTP_CLIENT_CANCELLED], N);
    assert_true(outcome[HTTP_CLIENT_CANCELLED] <= N / 40 && outcome[HTTP_CLIENT_CANCELLED] > 0);
    assert_int_equal(http_client_running(c), 0);
    http_client_free(c);
    for (struct http_req *r; (r = netserver_take_within(&t, 0.2)) != NULL;) {
        http_req_cut(r);
    }
    netserver_stop(&t);
}

/* Servers are spread over the lanes, and each is always in the same one: whatever is asked of it
 * goes over the connection that is there. Answers, cancels and limits of time are what they are
 * with one lane. */
static void lanes(void **state)
{
    enum { SERVERS = 7, ROUNDS = 4 };
    static const char *const targets[ROUNDS] = {"/health", "/echo?q=1", "/none", "/echo"};
    static const int statuses[ROUNDS] = {200, 200, 404, 200};
    static struct netserver t[SERVERS];
    struct http_client *c = open_client(&(struct http_client_opts){.lanes = 4});
    struct http_server_stats st;
    struct http_client_event *ev;
    uint64_t id[SERVERS];
    (void)state;
    for (int i = 0; i < SERVERS; i++) {
        netserver_start(&t[i], NULL);
    }
    for (int k = 0; k < ROUNDS; k++) {
        for (int i = 0; i < SERVERS; i++) {
            start(c, &(struct http_client_request){.url = url_of(t[i].port, targets[k])});
        }
        for (int i = 0; i < SERVERS; i++) {
            ev = take(c, HTTP_CLIENT_END);
            assert_int_equal(ev->outcome, HTTP_CLIENT_OK);
            assert_int_equal(ev->status, statuses[k]);
            http_client_release(c, ev);
        }
    }
    for (int i = 0; i < SERVERS; i++) {
        http_server_stats(t[i].s, &st);
        assert_int_equal(st.connections, 1);
        id[i] = start(c, &(struct http_client_request){.url = url_of(t[i].port, "/later"),
                                                       .body = "hello",
                                                       .len = 5,
                                                       .total_s = i % 2 ? 0.05 : 20});
    }
    for (int i = 0; i < SERVERS; i += 2) {
        http_client_cancel(c, id[i]);
    }
    for (int i = 0; i < SERVERS; i++) {
        ev = take(c, HTTP_CLIENT_END);
        for (int k = 0; k < SERVERS; k++) {
            if (ev->id == id[k]) {
                assert_int_equal(ev->outcome, k % 2 ? HTTP_CLIENT_LATE : HTTP_CLIENT_CANCELLED);
                id[k] = 0;
            }
        }
        http_client_release(c, ev);
    }
    for (int i = 0; i < SERVERS; i++) {
        assert_int_equal(id[i], 0);
    }
    http_client_free(c);
    for (int i = 0; i < SERVERS; i++) {
        for (struct http_req *r; (r = netserver_take_within(&t[i], 0.05)) != NULL;) {
            http_req_cut(r);
        }
        netserver_stop(&t[i]);
    }
}

/* ---- TLS ---- */

/* A certificate for 127.0.0.1, signed by itself, in files name.crt and name.key. */
static void make_cert(const char *dir, const char *name)
{
    char cmd[1024];
    snprintf(cmd, sizeof cmd,
             "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
             "-subj /CN=%s -addext subjectAltName=IP:127.0.0.1 -keyout %s/%s.key -out %s/%s.crt "
             ">/dev/null 2>&1",
             name, dir, name, dir, name);
    assert_int_equal(system(cmd), 0);
}

static void tls(void **state)
{
    char dir[] = "/tmp/miles-test-tls-XXXXXX", crt[2][128], key[2][128], url[64], cmd[160];
    struct http_server_opts o = {0};
    struct http_client_opts co = {0};
    struct http_req_answer a = {.status = 200};
    struct http_client_event *ev;
    struct http_client *c;
    struct netserver t;
    struct http_req *r;
    struct err e = {0};
    struct http_server *s = NULL;
    static const struct http_server_route one = {"GET", "/", netserver_health, 0};
    (void)state;
    assert_non_null(mkdtemp(dir));
    for (int i = 0; i < 2; i++) {
        make_cert(dir, i ? "other" : "server");
        snprintf(crt[i], sizeof crt[i], "%s/%s.crt", dir, i ? "other" : "server");
        snprintf(key[i], sizeof key[i], "%s/%s.key", dir, i ? "other" : "server");
    }
    o.cert_file = crt[0];
    o.key_file = key[1];
    o.routes = &one;
    o.nroutes = 1;
    assert_true(http_server_start(&s, &o, &e) < 0); /* they do not fit together */
    o.key_file = key[0];
    netserver_start(&t, &o);
    snprintf(url, sizeof url, "https://127.0.0.1:%d", t.port);
    /* The right authority; another; none asked for. */
    for (int i = 0; i < 3; i++) {
        char u[80];
        snprintf(u, sizeof u, "%s/health", url);
        co = (struct http_client_opts){.ca_file = i < 2 ? crt[i] : NULL, .insecure = i == 2};
        c = open_client(&co);
        ev = call(c, &(struct http_client_request){.url = u});
        assert_int_equal(ev->outcome, i == 1 ? HTTP_CLIENT_TLS : HTTP_CLIENT_OK);
        assert_int_equal(ev->status, i == 1 ? 0 : 200);
        http_client_release(c, ev);
        http_client_free(c);
    }
    /* A stream and its breaking, a large answer, a plain client. */
    co = (struct http_client_opts){.ca_file = crt[0]};
    c = open_client(&co);
    for (int i = 0; i < 2; i++) {
        char u[80];
        snprintf(u, sizeof u, "%s/later", url);
        start(c, &(struct http_client_request){.url = u, .body = "x", .len = 1, .stream = 1});
        r = netserver_take(&t);
        assert_int_equal(http_req_begin(r, &a, HTTP_REQ_CUT_FULL, NULL, NULL), STATUS_OK);
        http_client_release(c, take(c, HTTP_CLIENT_HEAD));
        for (int k = 0; k < 5; k++) {
            assert_int_equal(http_req_push(r, "abc", 3), STATUS_OK);
            ev = take(c, HTTP_CLIENT_DATA);
            assert_string_equal(ev->data, "abc");
            http_client_release(c, ev);
        }
        if (i) {
            http_req_cut(r);
        } else {
            http_req_end(r);
        }
        ev = take(c, HTTP_CLIENT_END);
        assert_int_equal(ev->outcome, i ? HTTP_CLIENT_CUT : HTTP_CLIENT_OK);
        http_client_release(c, ev);
    }
    {
        char u[80];
        snprintf(u, sizeof u, "%s/big?n=3000000", url);
        ev = call(c, &(struct http_client_request){.url = u});
        assert_int_equal(ev->len, 3000000);
        http_client_release(c, ev);
        /* The server hears when a client of TLS leaves. */
        snprintf(u, sizeof u, "%s/later", url);
        http_client_cancel(
            c, start(c, &(struct http_client_request){.url = u, .body = "x", .len = 1}));
        http_client_release(c, take(c, HTTP_CLIENT_END));
        start(c, &(struct http_client_request){.url = u, .body = "x", .len = 1, .total_s = 1});
        r = netserver_take(&t);
        if (http_req_state(r) != HTTP_REQ_OPEN) {
            http_req_cut(r);
            r = netserver_take(&t);
        }
        http_client_release(c, take(c, HTTP_CLIENT_END));
        for (double end = proc_now() + 5; http_req_state(r) == HTTP_REQ_OPEN && proc_now() < end;) {
            netpeer_sleep(0.001);
        }
        assert_int_equal(http_req_state(r), HTTP_REQ_GONE);
        http_req_cut(r);
    }
    ev = call(c, &(struct http_client_request){.url = url_of(t.port, "/health")});
    assert_true(ev->outcome == HTTP_CLIENT_CUT || ev->outcome == HTTP_CLIENT_PROTOCOL);
    http_client_release(c, ev);
    http_client_free(c);
    for (struct http_req *x; (x = netserver_take_within(&t, 0.1)) != NULL;) {
        http_req_cut(x);
    }
    netserver_stop(&t);
    snprintf(cmd, sizeof cmd, "rm -r %s", dir);
    assert_int_equal(system(cmd), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests),      cmocka_unit_test(bad_requests), cmocka_unit_test(outcomes),
        cmocka_unit_test(no_connection), cmocka_unit_test(deadlines),    cmocka_unit_test(cancels),
        cmocka_unit_test(retries),       cmocka_unit_test(streams),      cmocka_unit_test(window),
        cmocka_unit_test(bytes_held),    cmocka_unit_test(many),         cmocka_unit_test(lanes),
        cmocka_unit_test(tls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
