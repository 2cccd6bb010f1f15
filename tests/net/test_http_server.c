/* The server over real sockets: what clients do right, wrong, slowly, and not at all any more. */
#include "net/netserver.h"

#include <fcntl.h>

static struct buf head, body;

static int ask(struct netserver *t, const char *request)
{
    return netpeer_ask(t->port, request, strlen(request), &head, &body);
}

#define assert_body(text)                                                                          \
    do {                                                                                           \
        assert_int_equal(body.len, strlen(text));                                                  \
        assert_memory_equal(body.data, text, strlen(text));                                        \
    } while (0)

static void answers(void **state)
{
    struct netserver t;
    (void)state;
    netserver_start(&t, NULL);
    assert_int_equal(ask(&t, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"), 200);
    assert_body("ok");
    assert_non_null(strstr(head.data, "Content-Type: text/plain"));
    assert_int_equal(ask(&t, "HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n"), 200);
    assert_non_null(strcasestr(head.data, "Content-Length: 2"));
    assert_int_equal(ask(&t, "GET /none HTTP/1.1\r\nHost: x\r\n\r\n"), 404);
    assert_body("{\"error\":{\"message\":\"no such path\",\"type\":\"not_found_error\","
                "\"param\":null,\"code\":404}}");
    assert_int_equal(ask(&t, "GET /later HTTP/1.1\r\nHost: x\r\n\r\n"), 405);
    assert_non_null(strstr(head.data, "Allow: POST, PUT\r\n"));
    assert_int_equal(ask(&t, "GET /fail HTTP/1.1\r\nHost: x\r\n\r\n"), 418);
    assert_body("{\"error\":{\"message\":\"not \\\"tea\\\"\",\"type\":\"invalid_request_error\","
                "\"param\":null,\"code\":418}}");
    assert_int_equal(ask(&t, "GET /cut HTTP/1.1\r\nHost: x\r\n\r\n"), 0);
    assert_int_equal(head.len, 0);
    netserver_stop(&t);
    assert_int_equal(atomic_load(&t.ended[HTTP_REQ_SENT]), 3);
    assert_int_equal(atomic_load(&t.ended[HTTP_REQ_ABORTED]), 1);
}

static void reads_requests(void **state)
{
    struct netserver t;
    (void)state;
    netserver_start(&t, NULL);
    assert_int_equal(ask(&t, "POST /echo?q=a%20b+c&z HTTP/1.1\r\nHost: x\r\nX-THING: v w\r\n"
                             "Content-Length: 5\r\n\r\nhello"),
                     200);
    assert_body("POST|/echo|/echo?q=a%20b+c&z|a b c|v w|hello");
    assert_non_null(strstr(head.data, "X-Echo: yes"));
    assert_int_equal(ask(&t, "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                             "3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\nTrailer: t\r\n\r\n"),
                     200);
    assert_body("POST|/echo|/echo|-|-|abcdefg");
    assert_int_equal(ask(&t, "GET /tree/a%2fb/c?q= HTTP/1.0\r\n\r\n"), 200);
    assert_body("GET|/tree/a/b/c|/tree/a%2fb/c?q=||-|");
    /* A client that asks first is told to go on, and its body is read. */
    assert_int_equal(ask(&t, "PUT /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                             "Content-Length: 2\r\n\r\nab"),
                     200);
    assert_body("PUT|/echo|/echo|-|-|ab");
    netserver_stop(&t);
}

static void keeps_connections(void **state)
{
    static const char two[] = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
                              "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nz";
    struct http_server_stats st;
    struct netserver t;
    struct buf rest;
    int fd;
    (void)state;
    netserver_start(&t, NULL);
    buf_init(&rest, 1 << 20);
    fd = netpeer_connect(t.port);
    for (int i = 0; i < 20; i++) { /* two at a time: the second waits for the first */
        netpeer_text(fd, two);
        assert_int_equal(netpeer_answer(fd, &rest, &head, &body, 0), 200);
        assert_body("ok");
        assert_int_equal(netpeer_answer(fd, &rest, &head, &body, 0), 200);
        assert_body("POST|/echo|/echo|-|-|z");
        netpeer_text(fd, "GET /none HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_int_equal(netpeer_answer(fd, &rest, &head, &body, 0), 404);
    }
    http_server_stats(t.s, &st);
    assert_int_equal(st.connections, 1);
    assert_int_equal(st.requests, 60);
    assert_int_equal(st.open, 1);
    close(fd);
    buf_fini(&rest);
    netserver_stop(&t);
}

/* Each must be answered with an error of the client's or the connection closed; the server must
 * still answer afterwards, and no handler may have heard of it. */
static void malformed(void **state)
{
    static const char *const bad[] = {
        "\r\n\r\n\r\n\r\nX",
        "GET\r\n\r\n",
        "GET /health\r\n\r\n",
        "GET /health HTTP/9.9\r\nHost: x\r\n\r\n",
        "GET /health HTTP/2.0\r\nHost: x\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET /health%00 HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /health HTTP/1.1\r\n\r\n", /* no Host */
        "GET /health HTTP/1.1\r\nHost: x\r\nNo colon here\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1x\r\n\r\na",
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\na",
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9223372036854775807\r\n\r\na",
        "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n"
        "0\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\nabc",
        "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc",
        "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nabc\r\n",
        "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        "ffffffffffffffffff\r\nabc\r\n",
        "POST /echo HTTP/1.1\r\nHost: x\r\nExpect: tea\r\nContent-Length: 1\r\n\r\na",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS greeting\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab", /* then closed */
    };
    struct netserver t;
    (void)state;
    netserver_start(&t, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct buf all;
        int fd = netpeer_connect(t.port), status;
        assert_true(fd >= 0);
        buf_init(&all, 1 << 20);
        netpeer_text(fd, bad[i]);
        shutdown(fd, SHUT_WR);
        netpeer_all(fd, &all);
        close(fd);
        status = all.len > 12 ? atoi(all.data + 9) : 0;
        if (status != 0 && (status < 400 || status > 505)) {
            fail_msg("request %zu was answered with %d", i, status);
        }
        buf_fini(&all);
    }
    assert_int_equal(atomic_load(&t.handed), 0);
    assert_int_equal(ask(&t, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"), 200);
    netserver_stop(&t);
}

/* Sends a body of n bytes, chunked or not, and gives the status. */
static int post(struct netserver *t, size_t n, int chunked)
{
    char *data = malloc(n + 1);
    struct buf b;
    int status;
    memset(data, 'x', n);
    buf_init(&b, n + 4096);
    buf_str(&b, "POST /echo HTTP/1.1\r\nHost: x\r\n");
    if (chunked) {
        buf_str(&b, "Transfer-Encoding: chunked\r\n\r\n");
        buf_printf(&b, "%zx\r\n", n);
    } else {
        buf_printf(&b, "Content-Length: %zu\r\n\r\n", n);
    }
    buf_add(&b, data, n);
    if (chunked) {
        buf_str(&b, "\r\n0\r\n\r\n");
    }
    status = netpeer_ask(t->port, b.data, b.len, &head, &body);
    free(data);
    buf_fini(&b);
    return status;
}

static void body_limits(void **state)
{
    struct http_server_opts o = {.max_body = 100000, .max_bodies = 150000, .max_header = 8192};
    struct netserver t;
    struct http_req *r;
    struct buf b;
    int fd;
    (void)state;
    netserver_start(&t, &o);
    for (int chunked = 0; chunked < 2; chunked++) {
        assert_int_equal(post(&t, 100000, chunked), 200);
        assert_int_equal(body.len, 100000 + strlen("POST|/echo|/echo|-|-|"));
        assert_int_equal(post(&t, 100001, chunked), 413);
        assert_non_null(strstr(body.data, "the body is too large"));
        assert_int_equal(post(&t, 900000, chunked), 413);
    }
    /* Told before it is sent. */
    assert_int_equal(ask(&t, "POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                             "Content-Length: 100001\r\n\r\n"),
                     413);
    /* Far too much is not read to its end. */
    assert_int_equal(
        ask(&t, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n"), 413);
    assert_int_equal(atomic_load(&t.handed), 2);

    /* All bodies together: the first is held by its owner while the second comes. */
    buf_init(&b, 1 << 20);
    buf_str(&b, "POST /later HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n\r\n");
    for (int i = 0; i < 90000; i++) {
        buf_char(&b, 'x');
    }
    fd = netpeer_connect(t.port);
    netpeer_send(fd, b.data, b.len);
    r = netserver_take(&t);
    assert_int_equal(post(&t, 90000, 0), 503);
    http_req_reply(r, 200, NULL, "", 0);
    close(fd);
    assert_int_equal(netserver_wait_done(&t, 3, 5), 3);
    assert_int_equal(post(&t, 90000, 0), 200);

    /* Headers. */
    buf_clear(&b);
    buf_str(&b, "GET /health HTTP/1.1\r\nHost: x\r\nX-Long: ");
    for (int i = 0; i < 20000; i++) {
        buf_char(&b, 'x');
    }
    buf_str(&b, "\r\n\r\n");
    assert_int_equal(netpeer_ask(t.port, b.data, b.len, &head, &body), 431);
    buf_clear(&b);
    buf_str(&b, "GET /");
    for (int i = 0; i < 20000; i++) {
        buf_char(&b, 'x');
    }
    buf_str(&b, " HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_int_equal(netpeer_ask(t.port, b.data, b.len, &head, &body), 414);
    buf_fini(&b);
    netserver_stop(&t);
}

static void keys(void **state)
{
    static const char *const good[] = {"sesame", "open wide"};
    struct http_server_opts o = {.keys = good, .nkeys = 2};
    struct netserver t;
    (void)state;
    netserver_start(&t, &o);
    assert_int_equal(ask(&t, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"), 200);
    assert_int_equal(ask(&t, "GET /big HTTP/1.1\r\nHost: x\r\n\r\n"), 401);
    assert_non_null(strstr(head.data, "WWW-Authenticate: Bearer"));
    assert_int_equal(ask(&t, "GET /big HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sesam\r\n\r\n"),
                     401);
    assert_int_equal(
        ask(&t, "GET /big HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sesamee\r\n\r\n"), 401);
    assert_int_equal(ask(&t, "GET /big HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \r\n\r\n"),
                     401);
    assert_int_equal(ask(&t, "GET /big HTTP/1.1\r\nHost: x\r\nAuthorization: Basic sesame\r\n\r\n"),
                     401);
    /* Without a key one does not learn which paths there are. */
    assert_int_equal(ask(&t, "GET /none HTTP/1.1\r\nHost: x\r\n\r\n"), 401);
    assert_int_equal(ask(&t, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"),
                     401);
    assert_int_equal(atomic_load(&t.handed), 1);
    assert_int_equal(
        ask(&t, "GET /big HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sesame\r\n\r\n"), 200);
    assert_int_equal(
        ask(&t, "GET /big HTTP/1.1\r\nHost: x\r\nauthorization: bearer open wide\r\n\r\n"), 200);
    netserver_stop(&t);
}

static void large_answers(void **state)
{
    static const size_t sizes[] = {0, 1, 65535, 65536, 65537, 5000000};
    struct netserver t;
    (void)state;
    netserver_start(&t, NULL);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char req[100];
        snprintf(req, sizeof req, "GET /big?n=%zu HTTP/1.1\r\nHost: x\r\n\r\n", sizes[i]);
        assert_int_equal(ask(&t, req), 200);
        assert_int_equal(body.len, sizes[i]);
        for (size_t k = 0; k < body.len; k++) {
            if (body.data[k] != (char)('a' + k % 23)) {
                fail_msg("byte %zu of %zu differs", k, sizes[i]);
            }
        }
    }
    netserver_stop(&t);
}

static void slow_senders(void **state)
{
    struct http_server_opts o = {.read_s = 1, .idle_s = 1};
    static const char req[] =
        "POST /later HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nslowly...";
    struct netserver t;
    (void)state;
    netserver_start(&t, &o);
    /* Nothing at all; half a line; half the headers; half the body: closed after read_s. */
    for (size_t cut = 0; cut < sizeof req - 1; cut += 20) {
        int fd = netpeer_connect(t.port);
        double t0 = proc_now();
        struct buf all;
        buf_init(&all, 4096);
        netpeer_send(fd, req, cut);
        netpeer_all(fd, &all);
        assert_true(proc_now() - t0 < 6);
        assert_true(proc_now() - t0 > 0.9);
        close(fd);
        buf_fini(&all);
    }
    { /* A byte now and then does not prolong it. */
        int fd = netpeer_connect(t.port), i;
        double t0 = proc_now();
        for (i = 0; i < 100 && netpeer_send(fd, req + i % 30, 1) == 0; i++) {
            netpeer_sleep(0.05);
        }
        assert_true(i < 100);
        assert_true(proc_now() - t0 < 6);
        close(fd);
    }
    { /* An idle connection is closed after idle_s, not before. */
        int fd = netpeer_connect(t.port);
        double t0;
        struct buf rest;
        buf_init(&rest, 4096);
        for (int i = 0; i < 3; i++) {
            netpeer_text(fd, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
            assert_int_equal(netpeer_answer(fd, &rest, &head, &body, 0), 200);
            netpeer_sleep(0.25);
        }
        t0 = proc_now();
        assert_int_equal(netpeer_all(fd, &rest), 0);
        assert_true(proc_now() - t0 < 5);
        close(fd);
        buf_fini(&rest);
    }
    assert_int_equal(atomic_load(&t.handed), 3);
    netserver_stop(&t);
}

static void answers_later(void **state)
{
    enum { N = 64 };
    struct netserver t;
    int fd[N];
    struct buf rest;
    (void)state;
    netserver_start(&t, NULL);
    buf_init(&rest, 1 << 20);
    for (int i = 0; i < N; i++) {
        fd[i] = netpeer_connect(t.port);
        netpeer_text(fd[i], NETSERVER_POST);
    }
    for (int round = 0; round < 3; round++) {
        struct http_req *r[N];
        for (int i = 0; i < N; i++) {
            r[i] = netserver_take(&t);
        }
        for (int i = N - 1; i >= 0; i--) {
            assert_int_equal(http_req_state(r[i]), HTTP_REQ_OPEN);
            assert_int_equal(http_req_reply(r[i], 201, "text/plain", "late", 4), STATUS_OK);
        }
        for (int i = 0; i < N; i++) {
            assert_int_equal(netpeer_answer(fd[i], &rest, &head, &body, 0), 201);
            assert_body("late");
            if (round < 2) {
                netpeer_text(fd[i], NETSERVER_POST);
            }
        }
    }
    for (int i = 0; i < N; i++) {
        close(fd[i]);
    }
    buf_fini(&rest);
    netserver_stop(&t);
    assert_int_equal(atomic_load(&t.ended[HTTP_REQ_SENT]), 3 * N);
}

static void late_requests(void **state)
{
    struct http_server_opts o = {.request_s = 1};
    struct http_req_answer a = {.status = 200};
    struct netserver t;
    struct http_req *r;
    struct buf rest;
    int fd;
    (void)state;
    netserver_start(&t, &o);
    buf_init(&rest, 1 << 20);
    fd = netpeer_connect(t.port);
    netpeer_text(fd, NETSERVER_POST);
    r = netserver_take(&t);
    assert_int_equal(netpeer_answer(fd, &rest, &head, &body, 0), 504);
    assert_int_equal(netserver_wait_done(&t, 1, 5), 1);
    assert_int_equal(atomic_load(&t.ended[HTTP_REQ_LATE]), 1);
    assert_int_equal(http_req_state(r), HTTP_REQ_LATE);
    assert_int_equal(http_req_reply(r, 200, NULL, "", 0), STATUS_END);
    /* The connection is still good. A stream that lasts too long is cut. */
    netpeer_text(fd, NETSERVER_POST);
    r = netserver_take(&t);
    assert_int_equal(http_req_begin(r, &a, HTTP_REQ_CUT_FULL, NULL, NULL), STATUS_OK);
    assert_int_equal(http_req_push(r, "abc", 3), STATUS_OK);
    assert_int_equal(netpeer_answer(fd, &rest, &head, &body, 0), 0);
    assert_body("abc");
    assert_int_equal(netserver_wait_done(&t, 2, 5), 2);
    assert_int_equal(http_req_push(r, "d", 1), STATUS_END);
    http_req_end(r);
    close(fd);
    buf_fini(&rest);
    netserver_stop(&t);
    assert_int_equal(atomic_load(&t.ended[HTTP_REQ_LATE]), 2);
}

static void disconnects(void **state)
{
    struct http_req_answer a = {.status = 200};
    struct netserver t;
    (void)state;
    netserver_start(&t, NULL);
    /* 0: before the answer began; 1: in a stream that waits; 2: by a reset; 3: with data on its
     * way; 4: half closed before the request was taken. */
    for (int how = 0; how < 5; how++) {
        struct linger reset = {.l_onoff = 1};
        struct http_req *r;
        int fd = netpeer_connect(t.port), rc = 0;
        double t0;
        netpeer_text(fd, NETSERVER_POST);
        if (how == 4) {
            shutdown(fd, SHUT_WR);
        }
        r = netserver_take(&t);
        if (how > 0 && how < 4) {
            assert_int_equal(http_req_begin(r, &a, HTTP_REQ_CUT_FULL, NULL, NULL), STATUS_OK);
            assert_int_equal(http_req_push(r, "abc", 3), STATUS_OK);
            netpeer_sleep(0.05);
        }
        if (how == 2) {
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        }
        t0 = proc_now();
        close(fd);
        while (how == 3 && (rc = http_req_push(r, "abc", 3)) == STATUS_OK && proc_now() < t0 + 5) {
            netpeer_sleep(0.001);
        }
        assert_int_equal(netserver_wait_done(&t, how + 1, 5), how + 1);
        assert_true(t.t_done - t0 < 2);
        assert_int_equal(http_req_state(r), HTTP_REQ_GONE);
        if (how > 0 && how < 4) {
            assert_int_equal(http_req_push(r, "d", 1), STATUS_END);
            http_req_end(r);
        } else {
            assert_int_equal(http_req_reply(r, 200, NULL, "x", 1), STATUS_END);
        }
    }
    netserver_stop(&t);
    assert_int_equal(atomic_load(&t.ended[HTTP_REQ_GONE]), 5);
}

static void on_room(void *arg, struct http_req *r)
{
    (void)r;
    atomic_fetch_add((atomic_int *)arg, 1);
}

static void back_pressure(void **state)
{
    enum { TOTAL = 3 << 20, PIECE = 1000, BOUND = 64 << 10 };
    struct http_server_opts o = {.stream_buffer = BOUND};
    struct http_req_answer a = {.status = 200, .type = "text/event-stream"};
    struct netserver t;
    struct http_req *r;
    struct buf rest;
    atomic_int room = 0;
    char piece[PIECE];
    int fd, again = 0, fl;
    size_t pushed = 0;
    (void)state;
    netserver_start(&t, &o);
    buf_init(&rest, 64u << 20);
    fd = netpeer_connect_small(t.port, 4096);
    netpeer_text(fd, NETSERVER_POST);
    r = netserver_take(&t);
    assert_int_equal(http_req_begin(r, &a, HTTP_REQ_WAIT_FULL, on_room, &room), STATUS_OK);
    fl = fcntl(fd, F_GETFL);
    fcntl(fd, F_SETFL, fl | O_NONBLOCK);
    /* how much the system takes before the queue fills is its own affair */
    while (pushed < TOTAL || (again <= 3 && pushed < 16 * (size_t)TOTAL)) {
        int rc;
        for (int i = 0; i < PIECE; i++) {
            piece[i] = (char)('a' + (pushed + (size_t)i) % 23);
        }
        rc = http_req_push(r, piece, PIECE);
        assert_true(http_req_queued(r) <= BOUND);
        if (rc == STATUS_OK) {
            pushed += PIECE;
        } else { /* full: the reader reads, and the owner hears of the room */
            double end = proc_now() + 10;
            assert_int_equal(rc, STATUS_AGAIN);
            again++;
            while (atomic_load(&room) < again && proc_now() < end) {
                netpeer_more(fd, &rest);
            }
            assert_int_equal(atomic_load(&room), again);
        }
    }
    assert_true(again > 3);
    http_req_end(r);
    fcntl(fd, F_SETFL, fl);
    assert_int_equal(netpeer_answer(fd, &rest, &head, &body, 0), 200);
    assert_int_equal(body.len, pushed);
    for (size_t k = 0; k < body.len; k++) {
        if (body.data[k] != (char)('a' + k % 23)) {
            fail_msg("byte %zu differs", k);
        }
    }
    close(fd);
    buf_fini(&rest);
    netserver_stop(&t);
}

static void slow_readers(void **state)
{
    enum { BOUND = 64 << 10 };
    struct http_server_opts o = {.stream_buffer = BOUND, .stall_s = 1};
    struct http_req_answer a = {.status = 200};
    struct netserver t;
    struct http_req *r;
    char piece[4096] = {0};
    int fd, fd2, rc;
    double t0;
    (void)state;
    netserver_start(&t, &o);
    /* It overflows: cut, and the producer is told. */
    fd = netpeer_connect_small(t.port, 4096);
    netpeer_text(fd, NETSERVER_POST);
    r = netserver_take(&t);
    assert_int_equal(http_req_begin(r, &a, HTTP_REQ_CUT_FULL, NULL, NULL), STATUS_OK);
    t0 = proc_now();
    while ((rc = http_req_push(r, piece, sizeof piece)) == STATUS_OK && proc_now() < t0 + 10) {
        assert_true(http_req_queued(r) <= BOUND);
        netpeer_sleep(0.0001);
    }
    assert_int_equal(rc, STATUS_NOMEM);
    assert_int_equal(netserver_wait_done(&t, 1, 5), 1);
    assert_int_equal(http_req_push(r, piece, 1), STATUS_END);
    http_req_end(r);
    assert_int_equal(atomic_load(&t.ended[HTTP_REQ_OVERFLOW]), 1);
    /* The client sees a broken answer, not a short one. */
    {
        struct buf rest;
        buf_init(&rest, 64u << 20);
        assert_int_equal(netpeer_answer(fd, &rest, &head, &body, 0), 0);
        buf_fini(&rest);
    }
    close(fd);
    /* It stalls with a stream and with a whole answer: cut after stall_s. */
    fd = netpeer_connect_small(t.port, 4096);
    netpeer_text(fd, NETSERVER_POST);
    fd2 = netpeer_connect_small(t.port, 4096);
    netpeer_text(fd2, "GET /big?n=8000000 HTTP/1.1\r\nHost: x\r\n\r\n");
    r = netserver_take(&t);
    assert_int_equal(http_req_begin(r, &a, HTTP_REQ_WAIT_FULL, NULL, NULL), STATUS_OK);
    t0 = proc_now();
    while ((rc = http_req_push(r, piece, sizeof piece)) != STATUS_END && proc_now() < t0 + 60) {
        assert_true(rc == STATUS_OK || rc == STATUS_AGAIN);
        netpeer_sleep(0.001);
    }
    assert_int_equal(rc, STATUS_END);
    assert_int_equal(http_req_state(r), HTTP_REQ_STALLED);
    http_req_end(r);
    assert_int_equal(netserver_wait_done(&t, 3, 20), 3);
    assert_int_equal(atomic_load(&t.ended[HTTP_REQ_STALLED]), 2);
    close(fd);
    close(fd2);
    /* A reader that takes a little at a time is slow, but has not stalled. */
    fd = netpeer_connect_small(t.port, 4096);
    netpeer_text(fd, "GET /big?n=8000000 HTTP/1.1\r\nHost: x\r\n\r\n");
    for (t0 = proc_now(); proc_now() < t0 + 3.0;) {
        assert_true(recv(fd, piece, 1024, 0) > 0);
        netpeer_sleep(0.02);
    }
    close(fd);
    assert_int_equal(netserver_wait_done(&t, 4, 20), 4);
    assert_int_equal(atomic_load(&t.ended[HTTP_REQ_STALLED]), 2);
    /* A stream that only waits for its producer does not stall. */
    fd = netpeer_connect(t.port);
    netpeer_text(fd, NETSERVER_POST);
    r = netserver_take(&t);
    assert_int_equal(http_req_begin(r, &a, HTTP_REQ_CUT_FULL, NULL, NULL), STATUS_OK);
    assert_int_equal(http_req_push(r, "a", 1), STATUS_OK);
    netpeer_sleep(1.6);
    assert_int_equal(http_req_push(r, "b", 1), STATUS_OK);
    http_req_end(r);
    {
        struct buf rest;
        buf_init(&rest, 1 << 20);
        assert_int_equal(netpeer_answer(fd, &rest, &head, &body, 0), 200);
        assert_body("ab");
        buf_fini(&rest);
    }
    close(fd);
    netserver_stop(&t);
}

/* ---- ending ---- */

struct drain {
    struct http_server *s;
    double wait_s;
    int rc;
    double took;
};

static void *drain(void *arg)
{
    struct drain *d = arg;
    double t0 = proc_now();
    d->rc = http_server_drain(d->s, d->wait_s);
    d->took = proc_now() - t0;
    return NULL;
}

static void drains(void **state)
{
    for (int late = 0; late < 2; late++) {
        struct http_req_answer a = {.status = 200};
        struct netserver t;
        struct drain d;
        struct http_req *r[2];
        struct buf rest, idle_rest;
        pthread_t th;
        int fd[2], idle, extra;
        (void)state;
        netserver_start(&t, NULL);
        buf_init(&rest, 1 << 20);
        buf_init(&idle_rest, 1 << 20);
        idle = netpeer_connect(t.port);
        netpeer_text(idle, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_int_equal(netpeer_answer(idle, &idle_rest, &head, &body, 0), 200);
        /* Its head is there before the drain, its body comes after: it is still served. */
        extra = netpeer_connect(t.port);
        netpeer_text(extra, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n");
        for (int i = 0; i < 2; i++) {
            fd[i] = netpeer_connect(t.port);
            netpeer_text(fd[i], NETSERVER_POST);
            r[i] = netserver_take(&t);
        }
        assert_int_equal(http_req_begin(r[0], &a, HTTP_REQ_CUT_FULL, NULL, NULL), STATUS_OK);
        assert_int_equal(http_req_push(r[0], "one ", 4), STATUS_OK);
        d = (struct drain){.s = t.s, .wait_s = late ? 2 : 20};
        pthread_create(&th, NULL, drain, &d);
        assert_int_equal(netpeer_all(idle, &idle_rest), 0); /* the idle one is closed at once */
        assert_true(http_server_draining(t.s));
        assert_int_equal(netpeer_connect(t.port), -1);
        netpeer_text(extra, "ab");
        assert_int_equal(netpeer_answer(extra, &idle_rest, &head, &body, 0), 200);
        assert_non_null(strcasestr(head.data, "Connection: close"));
        if (!late) {
            assert_int_equal(http_req_push(r[0], "two", 3), STATUS_OK);
            http_req_end(r[0]);
            assert_int_equal(netpeer_answer(fd[0], &rest, &head, &body, 0), 200);
            assert_body("one two");
            http_req_reply(r[1], 200, NULL, "end", 3);
            assert_int_equal(netpeer_answer(fd[1], &rest, &head, &body, 0), 200);
            assert_body("end");
        }
        pthread_join(th, NULL);
        assert_int_equal(d.rc, late ? STATUS_TIMEOUT : STATUS_OK);
        assert_true(d.took < 5);
        if (late) {
            assert_int_equal(atomic_load(&t.ended[HTTP_REQ_CLOSED]), 2);
            assert_int_equal(http_req_push(r[0], "x", 1), STATUS_END);
            http_req_end(r[0]);
            http_req_cut(r[1]);
            assert_int_equal(netpeer_answer(fd[0], &rest, &head, &body, 0), 0);
        }
        close(idle);
        close(extra);
        close(fd[0]);
        close(fd[1]);
        buf_fini(&rest);
        buf_fini(&idle_rest);
        netserver_stop(&t);
    }
}

/* A server that is freed at once tells every owner; the requests outlive it. */
static void freed_under_requests(void **state)
{
    struct http_req_answer a = {.status = 200};
    struct http_req *r[4];
    struct netserver t;
    int fd[4];
    (void)state;
    netserver_start(&t, NULL);
    for (int i = 0; i < 4; i++) {
        fd[i] = netpeer_connect(t.port);
        netpeer_text(fd[i], NETSERVER_POST);
        r[i] = netserver_take(&t);
        if (i & 1) {
            http_req_begin(r[i], &a, HTTP_REQ_CUT_FULL, NULL, NULL);
            http_req_push(r[i], "abc", 3);
        }
    }
    http_server_free(t.s);
    assert_int_equal(atomic_load(&t.ended[HTTP_REQ_CLOSED]), 4);
    for (int i = 0; i < 4; i++) {
        size_t n;
        assert_int_equal(http_req_state(r[i]), HTTP_REQ_CLOSED);
        assert_string_equal(http_req_body(r[i], &n), "hi");
        if (i & 1) {
            assert_int_equal(http_req_push(r[i], "abc", 3), STATUS_END);
            http_req_end(r[i]);
        } else {
            assert_int_equal(http_req_fail(r[i], 500, "x"), STATUS_END);
        }
        close(fd[i]);
    }
    pthread_mutex_destroy(&t.mu);
}

static void ports(void **state)
{
    struct http_server_opts o = {0};
    static const struct http_server_route one = {"GET", "/", netserver_health, 0};
    struct netserver t;
    struct http_server *s = NULL;
    struct err e = {0};
    int port, fd;
    (void)state;
    netserver_start(&t, NULL);
    port = t.port;
    o.routes = &one;
    o.nroutes = 1;
    o.port = port;
    assert_int_equal(http_server_start(&s, &o, &e), STATUS_IO);
    assert_non_null(strstr(e.msg, "in use"));
    /* The same port serves again at once, though connections of the last run are remembered. */
    fd = netpeer_connect(port);
    netpeer_text(fd, NETSERVER_POST);
    http_req_reply(netserver_take(&t), 200, NULL, "", 0);
    assert_int_equal(netserver_wait_done(&t, 1, 5), 1);
    netserver_stop(&t);
    o.port = port;
    netserver_start(&t, &o);
    assert_int_equal(t.port, port);
    assert_int_equal(ask(&t, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"), 200);
    netserver_stop(&t);
    close(fd);
    /* What makes no sense. */
    o.port = 70000;
    assert_int_equal(http_server_start(&s, &o, &e), STATUS_INPUT);
    o.port = 0;
    o.cert_file = "x";
    assert_int_equal(http_server_start(&s, &o, &e), STATUS_INPUT);
    o.key_file = "/does/not/exist";
    assert_true(http_server_start(&s, &o, &e) < 0);
    o.cert_file = o.key_file = NULL;
    o.host = "no.such.host.invalid";
    assert_int_equal(http_server_start(&s, &o, &e), STATUS_INPUT);
    assert_null(s);
    http_server_free(NULL);
}

/* More connections than allowed wait their turn. */
static void connection_limit(void **state)
{
    struct http_server_opts o = {.max_connections = 2};
    struct netserver t;
    struct buf rest;
    int fd[3];
    (void)state;
    netserver_start(&t, &o);
    buf_init(&rest, 1 << 20);
    for (int i = 0; i < 3; i++) {
        fd[i] = netpeer_connect(t.port);
        netpeer_text(fd[i], NETSERVER_POST);
    }
    for (int i = 0; i < 3; i++) {
        struct http_req *r = netserver_take(&t);
        if (i == 0) {
            struct http_req *second = netserver_take(&t);
            assert_null(netserver_take_within(&t, 0.2));
            http_req_reply(second, 200, NULL, "b", 1);
            i++;
        }
        http_req_reply(r, 200, NULL, "a", 1);
        if (i == 1) {
            for (int k = 0; k < 2; k++) {
                assert_int_equal(netpeer_answer(fd[k], &rest, &head, &body, 0), 200);
                close(fd[k]);
            }
        }
    }
    assert_int_equal(netpeer_answer(fd[2], &rest, &head, &body, 0), 200);
    close(fd[2]);
    buf_fini(&rest);
    netserver_stop(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers),
        cmocka_unit_test(reads_requests),
        cmocka_unit_test(keeps_connections),
        cmocka_unit_test(malformed),
        cmocka_unit_test(body_limits),
        cmocka_unit_test(keys),
        cmocka_unit_test(large_answers),
        cmocka_unit_test(slow_senders),
        cmocka_unit_test(answers_later),
        cmocka_unit_test(late_requests),
        cmocka_unit_test(disconnects),
        cmocka_unit_test(back_pressure),
        cmocka_unit_test(slow_readers),
        cmocka_unit_test(drains),
        cmocka_unit_test(freed_under_requests),
        cmocka_unit_test(ports),
        cmocka_unit_test(connection_limit),
    };
    int rc;
    buf_init(&head, 1 << 20);
    buf_init(&body, 256u << 20);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    buf_fini(&head);
    buf_fini(&body);
    return rc;
}
