/* The router between clients and workers that do as they are told: what is passed on, to whom, how
 * often, and what happens when somebody leaves, breaks, is slow or says no. */
#include "serve/routerkit.h"

#include "base/mem.h"

#define W routerkit_w

static int asked_of(int i)
{
    return atomic_load(&W[i].asked);
}

/* ---- passing on ---- */

static void passes_on(void **state)
{
    struct router_opts o = routerkit_opts();
    json_t *a;
    char *big = mem_alloc((5 << 20) + 1);
    (void)state;
    routerkit_start(&o, 2);
    assert_int_equal(routerkit_ask_with("PUT", "/some/where?a=b%20c&d", "X-Thing: seven\r\n", "hi"),
                     200);
    a = routerkit_json();
    assert_string_equal(json_string_value(json_object_get(a, "method")), "PUT");
    assert_string_equal(json_string_value(json_object_get(a, "target")), "/some/where?a=b%20c&d");
    assert_string_equal(json_string_value(json_object_get(a, "body")), "hi");
    assert_string_equal(json_string_value(json_object_get(a, "thing")), "seven");
    json_decref(a);
    assert_non_null(strstr(routerkit_head.data, "\r\nX-Of-Worker: yes\r\n"));
    assert_non_null(strstr(routerkit_head.data, "\r\nX-Miles-Worker: http://127.0.0.1:"));
    assert_non_null(strcasestr(routerkit_head.data, "\r\nContent-Type: application/json\r\n"));
    assert_non_null(strcasestr(routerkit_head.data, "\r\nContent-Length:"));
    /* Each in turn. */
    for (int i = 0; i < 8; i++) {
        int before = routerkit_who();
        assert_int_equal(routerkit_ask("POST", "/generate", "{}"), 200);
        assert_int_equal(routerkit_who(), 1 - before);
    }
    /* A large body both ways: not kept whole. */
    memset(big, 'x', 5 << 20);
    assert_int_equal(routerkit_ask("POST", "/generate", big), 200);
    a = routerkit_json();
    assert_int_equal(json_string_length(json_object_get(a, "body")), 5 << 20);
    json_decref(a);
    mem_free(big);
    /* Statuses that are nobody's fault come as they are, and once. */
    for (int i = 0; i < 2; i++) {
        atomic_store(&W[i].mode, ROUTERKIT_STATUS);
        atomic_store(&W[i].status, 418);
        atomic_store(&W[i].asked, 0);
    }
    assert_int_equal(routerkit_ask("POST", "/generate", "{}"), 418);
    assert_non_null(strstr(routerkit_body.data, "as told"));
    assert_int_equal(asked_of(0) + asked_of(1), 1);
    assert_int_equal(routerkit_ask("HEAD", "/some", ""), 418);
    routerkit_stop(2);
}

static void streams_pass_through(void **state)
{
    struct router_opts o = routerkit_opts();
    struct http_req_answer a = {.status = 200, .type = "text/event-stream"};
    struct http_req *r;
    struct buf rest;
    int fd;
    (void)state;
    routerkit_start(&o, 1);
    atomic_store(&W[0].mode, ROUTERKIT_STREAM);
    assert_int_equal(routerkit_ask("POST", "/generate", "{\"stream\": true}"), 200);
    assert_string_equal(routerkit_body.data, "data: 1\n\ndata: 2\n\ndata: [DONE]\n\n");
    assert_non_null(strcasestr(routerkit_head.data, "Content-Type: text/event-stream"));
    /* A piece is there before the next is made. */
    atomic_store(&W[0].mode, ROUTERKIT_HOLD);
    buf_init(&rest, 1 << 20);
    fd = netpeer_connect(routerkit_port);
    netpeer_text(fd, "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}");
    r = routerkit_take(&W[0]);
    assert_int_equal(http_req_begin(r, &a, HTTP_REQ_CUT_FULL, NULL, NULL), STATUS_OK);
    for (int i = 0; i < 5; i++) {
        char piece[32];
        snprintf(piece, sizeof piece, "data: piece %d\n\n", i);
        http_req_push(r, piece, strlen(piece));
        while (!strstr(rest.data, piece)) {
            assert_true(netpeer_more(fd, &rest) > 0);
        }
    }
    http_req_end(r);
    assert_int_equal(netpeer_answer(fd, &rest, &routerkit_head, &routerkit_body, 0), 200);
    close(fd);
    /* One that breaks in the middle is cut, and not asked for again. */
    buf_clear(&rest);
    atomic_store(&W[0].asked, 0);
    fd = netpeer_connect(routerkit_port);
    netpeer_text(fd, "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}");
    r = routerkit_take(&W[0]);
    assert_int_equal(http_req_begin(r, &a, HTTP_REQ_CUT_FULL, NULL, NULL), STATUS_OK);
    http_req_push(r, "data: half\n\n", 12);
    while (!strstr(rest.data, "half")) {
        assert_true(netpeer_more(fd, &rest) > 0);
    }
    http_req_cut(r);
    assert_int_equal(netpeer_answer(fd, &rest, &routerkit_head, &routerkit_body, 0), 0);
    assert_int_equal(asked_of(0), 1);
    close(fd);
    buf_fini(&rest);
    routerkit_stop(1);
}

static void slow_readers_slow_their_worker(void **state)
{
    enum { MOST = 64 << 20 };
    struct router_opts o = routerkit_opts();
    struct http_req_answer a = {.status = 200};
    struct http_req *r;
    struct buf rest;
    size_t pushed;
    int fd;
    (void)state;
    o.http.stream_buffer = 64 << 10;
    routerkit_start(&o, 1);
    atomic_store(&W[0].mode, ROUTERKIT_HOLD);
    buf_init(&rest, MOST);
    fd = netpeer_connect_small(routerkit_port, 4096);
    netpeer_text(fd, "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}");
    r = routerkit_take(&W[0]);
    assert_int_equal(http_req_begin(r, &a, HTTP_REQ_WAIT_FULL, NULL, NULL), STATUS_OK);
    pushed = netpeer_fill(r, MOST);
    assert_true(pushed < MOST / 2); /* no buffer on the way is large */
    atomic_store(&W[0].mode, ROUTERKIT_ANSWER);
    for (int i = 0; i < 5; i++) { /* others pass meanwhile */
        assert_int_equal(routerkit_ask("POST", "/generate", "{}"), 200);
    }
    http_req_end(r);
    netpeer_sleep(0.1); /* the end waits behind what is held */
    assert_int_equal(netpeer_answer(fd, &rest, &routerkit_head, &routerkit_body, 0), 200);
    assert_int_equal(routerkit_body.len, pushed);
    assert_int_equal(netpeer_filled(&routerkit_body), pushed);
    close(fd);
    buf_fini(&rest);
    routerkit_wait("active_requests", 0);
    routerkit_stop(1);
}

static void leavers_are_missed(void **state)
{
    enum { N = 40 };
    struct router_opts o = routerkit_opts();
    struct http_req_answer a = {.status = 200};
    struct http_req *r[N];
    int fd[N];
    (void)state;
    routerkit_start(&o, 1);
    atomic_store(&W[0].mode, ROUTERKIT_HOLD);
    for (int i = 0; i < N; i++) {
        fd[i] = netpeer_connect(routerkit_port);
        netpeer_text(fd[i], "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}");
        r[i] = routerkit_take(&W[0]);
        if (i & 1) {
            http_req_begin(r[i], &a, HTTP_REQ_CUT_FULL, NULL, NULL);
            http_req_push(r[i], "abc", 3);
        }
    }
    assert_true(routerkit_metric("active_requests") == N);
    for (int i = 0; i < N; i++) {
        close(fd[i]);
    }
    for (double end = proc_now() + 10; proc_now() < end && atomic_load(&W[0].gone) < N;) {
        netpeer_sleep(0.001);
    }
    assert_int_equal(atomic_load(&W[0].gone), N);
    for (int i = 0; i < N; i++) {
        http_req_cut(r[i]);
    }
    routerkit_wait("active_requests", 0);
    assert_true(routerkit_metric("retries_total") == 0);
    routerkit_stop(1);
}

/* ---- another worker ---- */

static void lost_requests_move(void **state)
{
    struct router_opts o = routerkit_opts();
    int fd[12];
    struct buf rest;
    (void)state;
    routerkit_start(&o, 3);
    buf_init(&rest, 1 << 20);
    /* Cut without an answer. */
    atomic_store(&W[0].mode, ROUTERKIT_CUT);
    for (int i = 0; i < 3; i++) { /* one of them meets it; more would open its breaker */
        assert_int_equal(routerkit_ask("POST", "/v1/chat/completions", "{}"), 200);
        assert_true(routerkit_who() != 0);
    }
    assert_true(routerkit_metric("retries_total") >= 1);
    atomic_store(&W[0].mode, ROUTERKIT_ANSWER);
    /* In flight when their worker dies. */
    atomic_store(&W[1].mode, ROUTERKIT_HOLD);
    for (int i = 0; i < 12; i++) {
        fd[i] = netpeer_connect(routerkit_port);
        netpeer_text(fd[i], "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}");
    }
    for (double end = proc_now() + 10; routerkit_held(&W[1]) < 4 && proc_now() < end;) {
        netpeer_sleep(0.01);
    }
    assert_int_equal(routerkit_held(&W[1]), 4);
    routerkit_worker_kill(&W[1]);
    for (int i = 0; i < 12; i++) {
        buf_clear(&rest);
        assert_int_equal(netpeer_answer(fd[i], &rest, &routerkit_head, &routerkit_body, 0), 200);
        assert_true(routerkit_who() != 1);
        close(fd[i]);
    }
    /* It is found out by its checks, and later back again. */
    routerkit_wait("active_workers", 2);
    {
        int port = W[1].port;
        pthread_mutex_destroy(&W[1].mu);
        routerkit_worker_start(&W[1], 1, port);
    }
    routerkit_wait("active_workers", 3);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(routerkit_ask("POST", "/generate", "{}"), 200);
    }
    assert_int_equal(asked_of(1), 2);
    buf_fini(&rest);
    routerkit_stop(3);
}

static void refusals_move(void **state)
{
    static const int refusals[] = {429, 502, 503};
    struct router_opts o = routerkit_opts();
    (void)state;
    o.worker.cb_failures = 1000;
    routerkit_start(&o, 2);
    for (int k = 0; k < 3; k++) {
        atomic_store(&W[0].mode, ROUTERKIT_STATUS);
        atomic_store(&W[0].status, refusals[k]);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(routerkit_ask("POST", "/generate", "{}"), 200);
            assert_int_equal(routerkit_who(), 1);
        }
    }
    /* Everybody refuses: the last answer, after five more tries. */
    atomic_store(&W[1].mode, ROUTERKIT_STATUS);
    atomic_store(&W[1].status, 503);
    atomic_store(&W[0].asked, 0);
    atomic_store(&W[1].asked, 0);
    assert_int_equal(routerkit_ask("POST", "/generate", "{}"), 503);
    assert_non_null(strstr(routerkit_body.data, "as told"));
    assert_int_equal(asked_of(0) + asked_of(1), 6);
    /* What is not refused is not repeated, whatever it is. */
    atomic_store(&W[0].status, 500);
    atomic_store(&W[1].status, 504);
    atomic_store(&W[0].asked, 0);
    atomic_store(&W[1].asked, 0);
    for (int i = 0; i < 4; i++) {
        int status = routerkit_ask("POST", "/generate", "{}");
        assert_true(status == 500 || status == 504);
    }
    assert_int_equal(asked_of(0) + asked_of(1), 4);
    routerkit_stop(2);
}

static void others_are_sent_once(void **state)
{
    struct router_opts o = routerkit_opts();
    (void)state;
    routerkit_start(&o, 2);
    for (int i = 0; i < 2; i++) {
        atomic_store(&W[i].mode, ROUTERKIT_CUT);
    }
    assert_int_equal(routerkit_ask("POST", "/do_something", "{}"), 502);
    assert_int_equal(asked_of(0) + asked_of(1), 1);
    for (int i = 0; i < 2; i++) {
        atomic_store(&W[i].mode, ROUTERKIT_STATUS);
    }
    assert_int_equal(routerkit_ask("POST", "/do_something", "{}"), 503);
    assert_int_equal(asked_of(0) + asked_of(1), 2);
    assert_int_equal(routerkit_ask("GET", "/get_something", ""), 503); /* a GET is repeated */
    assert_int_equal(asked_of(0) + asked_of(1), 8);
    routerkit_stop(2);
    /* Nor is anything when it is switched off. */
    o.max_retries = 0;
    routerkit_start(&o, 2);
    atomic_store(&W[0].mode, ROUTERKIT_STATUS);
    atomic_store(&W[1].mode, ROUTERKIT_STATUS);
    assert_int_equal(routerkit_ask("POST", "/generate", "{}"), 503);
    assert_int_equal(asked_of(0) + asked_of(1), 1);
    routerkit_stop(2);
}

static void hung_workers_are_left(void **state)
{
    struct router_opts o = routerkit_opts();
    struct http_req *r;
    struct buf rest;
    int fd;
    (void)state;
    routerkit_start(&o, 2);
    buf_init(&rest, 1 << 20);
    atomic_store(&W[0].mode, ROUTERKIT_HOLD);
    atomic_store(&W[1].mode, ROUTERKIT_HOLD);
    fd = netpeer_connect(routerkit_port);
    netpeer_text(fd, "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}");
    for (double end = proc_now() + 10;
         routerkit_held(&W[0]) + routerkit_held(&W[1]) < 1 && proc_now() < end;) {
        netpeer_sleep(0.01);
    }
    /* The one that has it fails its checks, and says nothing: the other gets it. */
    {
        int i = routerkit_held(&W[0]) ? 0 : 1;
        r = routerkit_take(&W[i]);
        atomic_store(&W[i].sick, 1);
        atomic_store(&W[1 - i].mode, ROUTERKIT_ANSWER);
        assert_int_equal(netpeer_answer(fd, &rest, &routerkit_head, &routerkit_body, 0), 200);
        assert_int_equal(routerkit_who(), 1 - i);
        assert_true(routerkit_metric("moved_total") == 1);
        for (double end = proc_now() + 10; !http_req_state(r) && proc_now() < end;) {
            netpeer_sleep(0.01);
        }
        assert_int_equal(http_req_state(r), HTTP_REQ_GONE);
        http_req_cut(r);
    }
    close(fd);
    buf_fini(&rest);
    routerkit_stop(2);
}

/* Asks some requests; 1 when that took no longer than a breaker stays open. */
static int ask_some(int n, double open_s)
{
    double t = proc_now();
    for (int i = 0; i < n; i++) {
        int status = routerkit_ask("POST", "/generate", "{}");
        assert_true(status == 200 || status == 500);
    }
    return proc_now() - t < open_s;
}

static void breaker_spares_the_broken(void **state)
{
    struct router_opts o = routerkit_opts();
    (void)state;
    o.worker.cb_open_s = 2;
    routerkit_start(&o, 2);
    atomic_store(&W[0].mode, ROUTERKIT_STATUS);
    atomic_store(&W[0].status, 500);
    while (asked_of(0) < 3) {
        ask_some(1, 0);
    }
    assert_int_equal(routerkit_ask("GET", "/workers", ""), 200);
    assert_non_null(strstr(routerkit_body.data, "\"circuit_breaker\":\"open\""));
    assert_true(routerkit_metric("active_workers") == 1);
    if (ask_some(8, 1)) { /* a crowded machine may take longer, and says nothing then */
        assert_int_equal(asked_of(0), 3);
    }
    netpeer_sleep(2.1); /* half open: one try fails, and it is open again */
    if (ask_some(6, 1.9)) {
        assert_int_equal(asked_of(0), 4);
    }
    atomic_store(&W[0].mode, ROUTERKIT_ANSWER);
    netpeer_sleep(2.1);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(routerkit_ask("POST", "/generate", "{}"), 200);
    }
    assert_true(asked_of(0) >= 8);
    assert_int_equal(routerkit_ask("GET", "/workers", ""), 200);
    assert_null(strstr(routerkit_body.data, "\"circuit_breaker\":\"open\""));
    routerkit_stop(2);
}

static void nobody_there(void **state)
{
    struct router_opts o = routerkit_opts();
    (void)state;
    routerkit_start(&o, 0);
    assert_int_equal(routerkit_ask("POST", "/generate", "{}"), 503);
    assert_int_equal(routerkit_ask("GET", "/health", ""), 503);
    assert_int_equal(routerkit_ask("GET", "/liveness", ""), 200);
    assert_int_equal(routerkit_ask("GET", "/readiness", ""), 503);
    assert_int_equal(routerkit_ask("POST", "/flush_cache", ""), 503);
    assert_int_equal(routerkit_ask("GET", "/list_workers", ""), 200);
    assert_string_equal(routerkit_body.data, "{\"urls\":[]}");
    routerkit_stop(0);
    /* An address at which nobody listens. */
    routerkit_start(&o, 1);
    routerkit_worker_kill(&W[0]);
    assert_int_equal(routerkit_ask("POST", "/do_something", "{}"), 502);
    assert_int_equal(routerkit_ask("POST", "/generate", "{}"), 503);
    routerkit_wait("active_workers", 0);
    routerkit_stop(1);
}

/* ---- limits ---- */

static void queue_has_an_end(void **state)
{
    struct router_opts o = routerkit_opts();
    int fd[8];
    struct buf rest;
    struct http_req *r;
    (void)state;
    o.max_running = 2;
    o.queue_s = 3;
    routerkit_start(&o, 1);
    buf_init(&rest, 1 << 20);
    atomic_store(&W[0].mode, ROUTERKIT_HOLD);
    for (int i = 0; i < 7; i++) { /* two run, four wait, one too many */
        fd[i] = netpeer_connect(routerkit_port);
        netpeer_text(fd[i], "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}");
        netpeer_sleep(0.02);
    }
    assert_int_equal(netpeer_answer(fd[6], &rest, &routerkit_head, &routerkit_body, 0), 429);
    assert_true(routerkit_metric("queued_requests") == 4);
    close(fd[2]); /* one that waits leaves */
    close(fd[6]);
    routerkit_wait("queued_requests", 3);
    /* The first to end makes room for the first that waits. */
    r = routerkit_take(&W[0]);
    http_req_reply(r, 200, "text/plain", "first", 5);
    buf_clear(&rest);
    assert_int_equal(netpeer_answer(fd[0], &rest, &routerkit_head, &routerkit_body, 0), 200);
    routerkit_wait("queued_requests", 2);
    for (int i = 4; i < 6; i++) {
        buf_clear(&rest);
        assert_int_equal(netpeer_answer(fd[i], &rest, &routerkit_head, &routerkit_body, 0), 408);
        close(fd[i]);
    }
    for (int i = 0; i < 2; i++) {
        r = routerkit_take(&W[0]);
        http_req_reply(r, 200, "text/plain", "later", 5);
    }
    buf_clear(&rest);
    assert_int_equal(netpeer_answer(fd[3], &rest, &routerkit_head, &routerkit_body, 0), 200);
    close(fd[0]);
    close(fd[1]);
    close(fd[3]);
    buf_fini(&rest);
    routerkit_wait("active_requests", 0);
    routerkit_stop(1);
}

static void late_answers_are_504(void **state)
{
    struct router_opts o = routerkit_opts();
    struct http_req *r;
    (void)state;
    o.request_s = 1;
    routerkit_start(&o, 1);
    atomic_store(&W[0].mode, ROUTERKIT_HOLD);
    assert_int_equal(routerkit_ask("POST", "/generate", "{}"), 504);
    r = routerkit_take(&W[0]);
    http_req_cut(r);
    assert_int_equal(asked_of(0), 1);
    routerkit_stop(1);
}

static void *drain_later(void *arg)
{
    struct http_req *r;
    (void)arg;
    netpeer_sleep(0.2);
    r = routerkit_take(&W[0]);
    http_req_reply(r, 200, "text/plain", "late but whole", 14);
    return NULL;
}

static void drains(void **state)
{
    struct router_opts o = routerkit_opts();
    struct buf rest;
    pthread_t t;
    int fd;
    (void)state;
    routerkit_start(&o, 1);
    buf_init(&rest, 1 << 20);
    atomic_store(&W[0].mode, ROUTERKIT_HOLD);
    fd = netpeer_connect(routerkit_port);
    netpeer_text(fd, "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}");
    for (double end = proc_now() + 10; routerkit_held(&W[0]) < 1 && proc_now() < end;) {
        netpeer_sleep(0.01);
    }
    pthread_create(&t, NULL, drain_later, NULL);
    assert_int_equal(router_drain(routerkit_rt, 10), STATUS_OK);
    pthread_join(t, NULL);
    assert_int_equal(netpeer_answer(fd, &rest, &routerkit_head, &routerkit_body, 0), 200);
    assert_string_equal(routerkit_body.data, "late but whole");
    assert_int_equal(netpeer_connect(routerkit_port), -1);
    close(fd);
    buf_fini(&rest);
    routerkit_stop(1);
    /* One that does not end is cut. */
    routerkit_start(&o, 1);
    atomic_store(&W[0].mode, ROUTERKIT_HOLD);
    fd = netpeer_connect(routerkit_port);
    netpeer_text(fd, "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}");
    {
        struct http_req *r = routerkit_take(&W[0]);
        assert_int_equal(router_drain(routerkit_rt, 0.2), STATUS_TIMEOUT);
        for (double end = proc_now() + 10; !http_req_state(r) && proc_now() < end;) {
            netpeer_sleep(0.01);
        }
        assert_int_equal(http_req_state(r), HTTP_REQ_GONE);
        http_req_cut(r);
    }
    close(fd);
    routerkit_stop(1);
}

/* ---- keys ---- */

static void keys_are_asked_and_passed(void **state)
{
    static const char *const keys[] = {"front"};
    struct router_opts o = routerkit_opts();
    (void)state;
    o.http.keys = keys;
    o.http.nkeys = 1;
    routerkit_start(&o, 1);
    routerkit_wait("active_workers", 1); /* open to all, as are the checks */
    assert_int_equal(routerkit_ask("POST", "/generate", "{}"), 401);
    assert_int_equal(routerkit_ask("GET", "/list_workers", ""), 401);
    assert_int_equal(
        routerkit_ask_with("POST", "/generate", "Authorization: Bearer front\r\n", "{}"), 200);
    assert_string_equal(W[0].key, "Bearer front");
    routerkit_stop(1);
    o.worker_key = "behind";
    routerkit_start(&o, 1);
    routerkit_wait("active_workers", 1);
    assert_int_equal(
        routerkit_ask_with("POST", "/generate", "Authorization: Bearer front\r\n", "{}"), 200);
    assert_string_equal(W[0].key, "Bearer behind");
    routerkit_stop(1);
}

/* ---- policies over the wire ---- */

static void prefixes_find_their_worker(void **state)
{
    struct router_opts o = routerkit_opts();
    char body[4096];
    int home[6];
    (void)state;
    o.policy.kind = ROUTER_POLICY_CACHE_AWARE;
    routerkit_start(&o, 3);
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 6; i++) {
            const char *path = i < 2   ? "/generate"
                               : i < 4 ? "/v1/chat/completions"
                                       : "/v1/completions";
            int who;
            if (i < 1) {
                snprintf(body, sizeof body, "{\"text\": \"%d%0600d tail %d\"}", i, i, round);
            } else if (i < 2) {
                snprintf(body, sizeof body, "{\"input_ids\": [%d%0600d, 2, %d]}", i, i, round);
            } else if (i < 4) {
                snprintf(body, sizeof body,
                         "{\"messages\": [{\"role\": \"user\", \"content\": \"%d%0600d %d\"}]}", i,
                         i, round);
            } else {
                snprintf(body, sizeof body, "{\"prompt\": \"%d%0600d tail %d\"}", i, i, round);
            }
            assert_int_equal(routerkit_ask("POST", path, body), 200);
            who = routerkit_who();
            home[i] = round == 0 ? who : home[i];
            assert_int_equal(who, home[i]);
        }
    }
    assert_true(routerkit_metric("cache_hits_total") == 18);
    assert_true(routerkit_metric("cache_misses_total") == 6);
    assert_int_equal(asked_of(0), 8);
    assert_int_equal(asked_of(1), 8);
    routerkit_stop(3);
}

static void sessions_find_their_worker(void **state)
{
    static const enum router_policy_kind kinds[] = {ROUTER_POLICY_MANUAL,
                                                    ROUTER_POLICY_CONSISTENT_HASHING};
    (void)state;
    for (int k = 0; k < 2; k++) {
        struct router_opts o = routerkit_opts();
        int home[5];
        o.policy.kind = kinds[k];
        routerkit_start(&o, 3);
        for (int round = 0; round < 4; round++) {
            for (int i = 0; i < 5; i++) {
                char header[64];
                int who;
                snprintf(header, sizeof header, "x-smg-routing-key: session-%d\r\n", i);
                assert_int_equal(routerkit_ask_with("POST", "/generate", header, "{}"), 200);
                who = routerkit_who();
                home[i] = round == 0 ? who : home[i];
                assert_int_equal(who, home[i]);
            }
        }
        routerkit_stop(3);
    }
}

/* ---- all at once ---- */

static void a_thousand_streams(void **state)
{
    enum { N = 1000, PIECES = 5 };
    struct router_opts o = routerkit_opts();
    struct http_req_answer a = {.status = 200, .type = "text/event-stream"};
    static struct http_req *r[N];
    static int fd[N];
    struct buf rest;
    int n = 0;
    (void)state;
    if (proc_raise_files(0) < 4 * N + 100) {
        print_message("too few open files are allowed\n");
        skip();
    }
    o.policy.kind = ROUTER_POLICY_LEAST_LOAD;
    routerkit_start(&o, 4);
    buf_init(&rest, 1 << 20);
    for (int i = 0; i < 4; i++) {
        atomic_store(&W[i].mode, ROUTERKIT_HOLD);
    }
    for (int i = 0; i < N; i++) {
        fd[i] = netpeer_connect(routerkit_port);
        assert_true(fd[i] >= 0);
        netpeer_text(fd[i], "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}");
    }
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < N / 4; k++) { /* each has its share */
            r[n] = routerkit_take(&W[i]);
            assert_int_equal(http_req_begin(r[n++], &a, HTTP_REQ_CUT_FULL, NULL, NULL), STATUS_OK);
        }
    }
    for (int k = 0; k < PIECES; k++) {
        for (int i = 0; i < N; i++) {
            assert_int_equal(http_req_push(r[i], "data: x\n\n", 9), STATUS_OK);
        }
    }
    for (int i = 0; i < N; i++) {
        http_req_end(r[i]);
    }
    for (int i = 0; i < N; i++) {
        buf_clear(&rest);
        assert_int_equal(netpeer_answer(fd[i], &rest, &routerkit_head, &routerkit_body, 0), 200);
        assert_int_equal(routerkit_body.len, 9 * PIECES);
        close(fd[i]);
    }
    assert_true(routerkit_metric("retries_total") == 0);
    buf_fini(&rest);
    routerkit_stop(4);
}

static atomic_int storm_on, storm_answers, storm_bad;

/* One client: asks, leaves early, reads slowly, adds and removes workers. */
static void *storm_client(void *arg)
{
    static const char *const paths[] = {"/generate", "/v1/completions", "/other", "/flush_cache",
                                        "/workers"};
    unsigned state = (unsigned)(uintptr_t)arg * 7919u + 1;
    struct buf rest, head, body;
    buf_init(&rest, 1 << 20);
    buf_init(&head, 1 << 20);
    buf_init(&body, 1 << 20);
    while (atomic_load(&storm_on)) {
        unsigned dice = (state = state * 1103515245u + 12345u) >> 16;
        const char *path = paths[dice % 16 < 12 ? 0 : dice % 16 - 11];
        char ask[512], prompt[200];
        int fd = netpeer_connect(routerkit_port), n;
        snprintf(prompt, sizeof prompt, "{\"text\": \"%0150u\"}", dice % 20);
        n = snprintf(ask, sizeof ask, "%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s",
                     strcmp(path, "/workers") == 0 ? "GET" : "POST", path, strlen(prompt), prompt);
        buf_clear(&rest);
        if (dice % 7 == 0) { /* leaves at some point */
            netpeer_send(fd, ask, dice % 3 ? (size_t)n : (size_t)n / 2);
            if (dice % 2) {
                netpeer_sleep(0.001 * (dice % 10));
            }
        } else {
            int status;
            netpeer_send(fd, ask, (size_t)n);
            status = netpeer_answer(fd, &rest, &head, &body, 0);
            atomic_fetch_add(&storm_answers, 1);
            /* Generation is never refused for a single worker's sake. A stream may be cut. */
            if (status != 200 && status != 0 && strcmp(path, "/generate") == 0) {
                atomic_fetch_add(&storm_bad, 1);
            }
        }
        close(fd);
    }
    buf_fini(&rest);
    buf_fini(&head);
    buf_fini(&body);
    return NULL;
}

static void storm(void **state)
{
    enum { CLIENTS = 12 };
    struct router_opts o = routerkit_opts();
    pthread_t t[CLIENTS];
    unsigned dice = 1;
    char target[128];
    (void)state;
    o.policy.kind = ROUTER_POLICY_CACHE_AWARE;
    o.policy.max_bytes = 10 * ROUTER_KEY_BLOCK; /* so that it is full */
    o.worker.cb_open_s = 0.05;
    o.backoff_s = 0.02;
    o.max_running = 6;
    o.queue_size = CLIENTS;
    routerkit_start(&o, 4);
    atomic_store(&storm_on, 1);
    for (int i = 0; i < CLIENTS; i++) {
        pthread_create(&t[i], NULL, storm_client, (void *)(uintptr_t)i);
    }
    for (double end = proc_now() + 4; proc_now() < end;) {
        int i =
            1 + (int)((dice = dice * 1103515245u + 12345u) >> 16) % 3; /* the first stays good */
        switch ((dice >> 20) % 6) {
        case 0: atomic_store(&W[i].mode, ROUTERKIT_CUT); break;
        case 1: atomic_store(&W[i].mode, ROUTERKIT_STATUS); break;
        case 2: atomic_store(&W[i].mode, ROUTERKIT_STREAM); break;
        case 3: atomic_store(&W[i].sick, !atomic_load(&W[i].sick)); break;
        case 4:
            snprintf(target, sizeof target, "/remove_worker?url=%s", W[i].url);
            routerkit_ask("POST", target, "");
            snprintf(target, sizeof target, "/add_worker?url=%s", W[i].url);
            assert_int_equal(routerkit_ask("POST", target, ""), 200);
            break;
        default: atomic_store(&W[i].mode, ROUTERKIT_ANSWER); break;
        }
        netpeer_sleep(0.01);
    }
    atomic_store(&storm_on, 0);
    for (int i = 0; i < CLIENTS; i++) {
        pthread_join(t[i], NULL);
    }
    assert_true(atomic_load(&storm_answers) > 100);
    assert_int_equal(atomic_load(&storm_bad), 0);
    routerkit_wait("active_requests", 0);
    routerkit_wait("queued_requests", 0);
    assert_true(routerkit_metric("retries_total") > 0);
    routerkit_stop(4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes_on),
        cmocka_unit_test(streams_pass_through),
        cmocka_unit_test(slow_readers_slow_their_worker),
        cmocka_unit_test(leavers_are_missed),
        cmocka_unit_test(lost_requests_move),
        cmocka_unit_test(refusals_move),
        cmocka_unit_test(others_are_sent_once),
        cmocka_unit_test(hung_workers_are_left),
        cmocka_unit_test(breaker_spares_the_broken),
        cmocka_unit_test(nobody_there),
        cmocka_unit_test(queue_has_an_end),
        cmocka_unit_test(late_answers_are_504),
        cmocka_unit_test(drains),
        cmocka_unit_test(keys_are_asked_and_passed),
        cmocka_unit_test(prefixes_find_their_worker),
        cmocka_unit_test(sessions_find_their_worker),
        cmocka_unit_test(a_thousand_streams),
        cmocka_unit_test(storm),
    };
    return cmocka_run_group_tests(tests, routerkit_setup, routerkit_teardown);
}
