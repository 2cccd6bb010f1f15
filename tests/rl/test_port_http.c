/* The HTTP port against engines that cut, hang, lie and die: every sample is answered once and
 * right, by an engine that has proven its weights, or the port ends with an error that says why. */
#include "support.h"

#include "base/log.h"
#include "base/rng.h"
#include "rl/fakeengine.h"
#include "serve/router.h"

static struct fakeengine_host h;

struct bench {
    struct port_http *p;
    const struct rollout_port *r;
    struct port_http_opts o;
    unsigned char *seen; /* (groups, n) */
    int n, aborted, exact, answers;
    int64_t versions[16];
};

static struct bench b;

static void defaults(int engines)
{
    memset(&b, 0, sizeof b);
    fakeengine_open(&h, engines);
    b.o = (struct port_http_opts){.nengines = engines,
                                  .host = &h.host,
                                  .sync = &h.sync,
                                  .start_s = 10,
                                  .request_s = 60,
                                  .sync_s = 5,
                                  .check_s = 0.2,
                                  .check_timeout_s = 15}; /* a busy machine is no hanging engine */
}

static int start(struct err *e)
{
    int rc = port_http_open(&b.o, &b.p, e);
    double end = proc_now() + 30;
    if (rc == STATUS_OK) {
        b.r = port_http_port(b.p);
        while ((rc = port_http_start(b.p, e)) == STATUS_AGAIN && proc_now() < end) {
        }
    }
    return rc;
}

static int publish(int64_t version, struct err *e)
{
    int rc;
    double end = proc_now() + 30;
    while ((rc = b.r->publish(b.r->self, version, e)) == STATUS_AGAIN && proc_now() < end) {
    }
    return rc;
}

static void begin(int engines)
{
    struct err e = {0};
    (void)engines;
    assert_ok(start(&e), &e);
    assert_ok(publish(1, &e), &e);
    assert_int_equal(h.settled, 1);
}

static void finish(void)
{
    port_http_close(b.p);
    fakeengine_close(&h);
    mem_free(b.seen);
}

/* Group i has the prompt (i, i + 1) and the samples i * n ... */
static int submit(int i, int n, struct err *e)
{
    int32_t prompt[2] = {i, i + 1};
    struct port_group g = {.id = i,
                           .tokens = prompt,
                           .ntokens = 2,
                           .n = n,
                           .max_new = FAKEENGINE_TOKENS,
                           .temperature = 1.0f,
                           .top_p = 1.0f,
                           .top_k = -1,
                           .seed = 42,
                           .stream = RNG_TRAIN,
                           .sample = (int64_t)i * n};
    return b.r->submit(b.r->self, &g, e);
}

static void submit_all(int groups, int n)
{
    struct err e = {0};
    b.n = n;
    mem_free(b.seen);
    b.seen = mem_alloc((size_t)(groups * n));
    for (int i = 0; i < groups; i++) {
        assert_ok(submit(i, n, &e), &e);
    }
}

static void check(const struct port_answer *a)
{
    uint64_t sample = (uint64_t)(a->group * b.n + a->sample);

    assert_true(a->sample >= 0 && a->sample < b.n);
    assert_int_equal(b.seen[a->group * b.n + a->sample]++, 0);
    b.answers++;
    b.aborted += a->finish == PORT_ABORT;
    b.exact += a->exact;
    assert_true(a->version < 16);
    b.versions[a->version]++;
    if (a->finish != PORT_ABORT) {
        assert_int_equal(a->ntokens, FAKEENGINE_TOKENS);
    }
    for (int i = 0; i < a->ntokens; i++) {
        assert_int_equal(a->tokens[i], fakeengine_token((int32_t)a->group, sample, i));
        assert_true(a->logps[i] == fakeengine_logp(sample, i));
    }
}

/* Polls until nothing runs, at most for `seconds`; the number of answers, or the error. */
static int drain(double seconds, struct err *e)
{
    double end = proc_now() + seconds;
    int n = 0, rc;
    struct port_answer a;

    while ((rc = b.r->poll(b.r->self, &a, e)) == STATUS_OK || rc == STATUS_AGAIN) {
        if (rc == STATUS_OK) {
            check(&a);
            n++;
        } else if (proc_now() > end) {
            return n;
        }
    }
    return rc == STATUS_END ? n : rc;
}

static void drain_all(int n)
{
    struct err e = {0};
    int got = drain(60, &e);
    if (got != n) {
        fail_msg("%d answers of %d: %s", got, n, e.msg);
    }
}

static json_int_t figure(const char *name)
{
    json_t *row = json_object();
    json_int_t v;
    b.r->report(b.r->self, row);
    assert_non_null(json_object_get(row, name));
    v = json_integer_value(json_object_get(row, name));
    json_decref(row);
    return v;
}

/* Until all engines can be used again. */
static void recover(void)
{
    struct port_answer a;
    struct err e = {0};
    double end = proc_now() + 20;
    while (figure("rollout/engines_ready") < h.n && proc_now() < end) {
        assert_int_equal(b.r->poll(b.r->self, &a, &e), STATUS_END);
        usleep(5000);
    }
    assert_int_equal(figure("rollout/engines_ready"), h.n);
}

static void no_unproven(void)
{
    for (int i = 0; i < h.n; i++) {
        assert_int_equal(atomic_load(&h.e[i].unproven), 0);
    }
}

/* 4,096 groups over three engines, each with faults of its own. */
static void test_many(void **state)
{
    (void)state;
    defaults(3);
    begin(3);
    h.e[0].cut = 97;
    h.e[0].bad = 31;
    h.e[1].busy = 11;
    h.e[1].broken = 37;
    h.e[2].short_list = 41;
    h.e[2].abortive = 43;
    submit_all(4096, 2);
    drain_all(8192);
    assert_int_equal(b.exact, 8192);
    assert_int_equal(b.versions[1], 8192);
    for (int i = 0; i < 3; i++) {
        assert_true(h.e[i].asked > 600);
    }
    no_unproven();
    assert_true(figure("rollout/engine_retries") > 100);
    finish();
}

/* SGLang's way: one request for each sample, with a seed instead of a key. */
static void test_sglang(void **state)
{
    struct port_answer a;
    struct err e = {0};
    double end = proc_now() + 20;
    int n = 0;
    (void)state;

    defaults(2);
    b.o.kind = PORT_HTTP_SGLANG;
    begin(2);
    assert_ok(submit(7, 6, &e), &e);
    while (n < 6 && proc_now() < end) {
        int rc = b.r->poll(b.r->self, &a, &e);
        assert_true(rc >= 0);
        if (rc == STATUS_OK) {
            n++;
            assert_int_equal(a.exact, 0); /* it promises nothing */
            assert_int_equal(a.version, 1);
        }
    }
    assert_int_equal(n, 6);
    assert_int_equal(h.e[0].asked + h.e[1].asked, 6);
    assert_int_equal(b.r->poll(b.r->self, &a, &e), STATUS_END);
    finish();
}

/* Fewer groups than engines: the samples are shared, with the keys they would have had together. */
static void test_shares(void **state)
{
    json_int_t first = 0;
    (void)state;
    defaults(4);
    begin(4);
    submit_all(1, 10);
    drain_all(10);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(h.e[i].nasked, 1);
        assert_true(h.e[i].counts[0] == 2 || h.e[i].counts[0] == 3);
        first += h.e[i].first[0];
    }
    assert_true(first > 0);
    finish();
    /* and not when there is enough for all */
    defaults(2);
    begin(2);
    submit_all(8, 4);
    drain_all(32);
    assert_int_equal(h.e[0].asked + h.e[1].asked, 8);
    finish();
}

/* No more at an engine than it may have, also when a group alone is more. */
static void test_concurrency(void **state)
{
    struct err e = {0};
    struct port_answer a;
    (void)state;
    defaults(1);
    b.o.concurrency = 8;
    begin(1);
    h.e[0].hold = 1;
    submit_all(3, 20);
    for (int k = 0; k < 5; k++) {
        assert_int_equal(b.r->poll(b.r->self, &a, &e), STATUS_AGAIN);
    }
    assert_int_equal(h.e[0].samples, 8);
    assert_int_equal(h.e[0].asked, 1);
    h.e[0].hold = 0;
    fakeengine_let(&h.e[0], "length");
    drain_all(60);
    finish();
}

/* Killed in the middle: the others take over, it comes back, and gets samples only with the right
 * weights. */
static void test_killed(void **state)
{
    struct err e = {0};
    struct port_answer a;
    (void)state;
    for (int round = 0; round < 5; round++) {
        int64_t lost;
        defaults(2);
        begin(2);
        h.e[0].hold = h.e[1].hold = 1;
        submit_all(64, 2);
        for (int k = 0; k < 3 + round; k++) {
            assert_int_equal(b.r->poll(b.r->self, &a, &e), STATUS_AGAIN);
        }
        assert_true(fakeengine_nheld(&h.e[0]) > 0);
        h.e[0].hold = 0;
        fakeengine_strike(&h, 0);
        for (int k = 0; k < 20 + round; k++) {
            int rc = b.r->poll(b.r->self, &a, &e);
            assert_true(rc == STATUS_AGAIN || rc == STATUS_OK);
            if (rc == STATUS_OK) {
                check(&a);
            }
        }
        h.e[1].hold = 0;
        fakeengine_let(&h.e[1], "stop");
        drain(60, &e);
        assert_int_equal(b.answers, 128);
        assert_int_equal(b.exact, 128);
        /* all samples may be there before it is known to be lost */
        for (double end = proc_now() + 20; !(lost = figure("rollout/engines_lost"));) {
            assert_true(proc_now() < end);
            assert_int_equal(b.r->poll(b.r->self, &a, &e), STATUS_END);
            usleep(5000);
        }
        assert_int_equal(lost, 1);
        recover();
        assert_int_equal(h.e[0].starts, 2);
        assert_int_equal(h.e[0].takes, 2);
        atomic_store(&h.e[0].asked, 0);
        submit_all(16, 2);
        drain_all(32);
        assert_true(h.e[0].asked > 0);
        no_unproven();
        finish();
    }
}

/* Stopped, not ended: nothing comes, and its health check finds out. */
static void test_hangs(void **state)
{
    double t0;
    (void)state;
    defaults(2);
    b.o.check_timeout_s = 1.0;
    b.o.restarts = 100;
    begin(2);
    h.e[1].deaf = 1;
    t0 = proc_now();
    submit_all(64, 2);
    drain_all(128);
    assert_true(proc_now() - t0 < 15.0);
    assert_true(proc_now() - t0 > 0.9);
    recover();
    assert_true(h.e[1].starts >= 2);
    no_unproven();
    finish();
}

/* The same while it is to take weights: it is not waited for as long as that may take. */
static void test_hangs_at_publish(void **state)
{
    struct err e = {0};
    double t0;
    (void)state;
    defaults(2);
    b.o.sync_s = 60;
    b.o.check_timeout_s = 1.0;
    b.o.restarts = 100;
    begin(2);
    h.e[1].deaf = 1;
    t0 = proc_now();
    assert_ok(publish(2, &e), &e);
    assert_true(proc_now() - t0 < 20.0);
    recover();
    assert_true(h.e[1].starts >= 2);
    submit_all(8, 2);
    drain_all(16);
    no_unproven();
    finish();
}

/* One that is sick says so itself. */
static void test_sick(void **state)
{
    (void)state;
    defaults(2);
    begin(2);
    h.e[1].hold = 1;
    h.e[1].sick = 1000;
    submit_all(16, 2);
    drain(3, &(struct err){0});
    assert_int_equal(b.answers, 32);
    finish();
    /* SGLang says so when it is busy: once or twice is nothing */
    for (int round = 0; round < 2; round++) {
        struct err e = {0};
        struct port_answer a;
        int rc;
        defaults(1);
        b.o.kind = PORT_HTTP_SGLANG;
        begin(1);
        h.e[0].hold = 1;
        assert_ok(submit(7, 2, &e), &e);
        h.e[0].sick = round ? 1000 : 2;
        for (double end = proc_now() + (round ? 20.0 : 2.0); proc_now() < end;) {
            rc = b.r->poll(b.r->self, &a, &e);
            assert_int_equal(rc, STATUS_AGAIN);
            if (h.e[0].starts > 1) {
                break;
            }
        }
        assert_int_equal(h.e[0].starts, 1 + round);
        finish();
    }
}

/* Nobody can be had back: an error that names all and why, no silent wait. */
static void test_all_lost(void **state)
{
    struct err e = {0};
    (void)state;
    defaults(2);
    b.o.restarts = 2;
    begin(2);
    h.no_start = 1;
    h.e[0].hold = h.e[1].hold = 1;
    submit_all(8, 2);
    drain(0.1, &e);
    fakeengine_strike(&h, 0);
    fakeengine_strike(&h, 1);
    assert_int_equal(drain(60, &e), STATUS_CHILD);
    assert_non_null(strstr(e.msg, "no engine is left"));
    assert_non_null(strstr(e.msg, "engine 0"));
    assert_non_null(strstr(e.msg, "engine 1"));
    assert_non_null(strstr(e.msg, "no such program"));
    /* and it stays so */
    assert_int_equal(submit(99, 1, &e), STATUS_CHILD);
    finish();
}

/* One of two given up: the other does all. */
static void test_one_given_up(void **state)
{
    struct err e = {0};
    (void)state;
    defaults(2);
    b.o.restarts = 1;
    begin(2);
    h.no_start = 1;
    h.e[0].hold = 1;
    submit_all(32, 2);
    drain(0.2, &e);
    fakeengine_strike(&h, 0);
    drain(60, &e);
    assert_int_equal(b.answers, 64);
    assert_int_equal(figure("rollout/engines_ready"), 1);
    finish();
}

/* An engine that ends at its start is told of with what it said. */
static void test_no_start(void **state)
{
    struct err e = {0};
    (void)state;
    defaults(1);
    h.no_start = 1;
    h.e[0].starts = 1;
    b.o.restarts = 1;
    assert_int_equal(start(&e), STATUS_CHILD);
    assert_non_null(strstr(e.msg, "engine 0"));
    assert_non_null(strstr(e.msg, "no such program"));
    finish();
    /* nobody listens there */
    defaults(1);
    b.o.host = NULL;
    h.urls[0] = "http://127.0.0.1:1";
    b.o.urls = h.urls;
    b.o.start_s = 0.5;
    memset(&e, 0, sizeof e);
    assert_int_equal(start(&e), STATUS_CHILD);
    assert_non_null(strstr(e.msg, "not up after"));
    assert_non_null(strstr(e.msg, "http://127.0.0.1:1"));
    finish();
}

static void test_manifest(void **state)
{
    json_t *m = json_pack("{s:i,s:i}", "kblock", 32, "leaves", 4);
    struct err e = {0};
    (void)state;
    defaults(2);
    b.o.manifest = m;
    begin(2);
    finish();
    defaults(2);
    b.o.manifest = m;
    h.e[1].leaves = 8;
    assert_int_equal(start(&e), STATUS_CHILD);
    assert_non_null(strstr(e.msg, "engine 1"));
    assert_non_null(strstr(e.msg, "leaves is 8 there and 4 here"));
    finish();
    json_decref(m);
}

/* An answer of other weights: refused and asked again, or taken and marked. */
static void test_wrong_version(void **state)
{
    (void)state;
    defaults(2);
    begin(2);
    h.e[0].wrong = 3;
    submit_all(32, 1);
    drain_all(32);
    assert_int_equal(b.versions[1], 32);
    assert_int_equal(b.exact, 32);
    assert_true(h.e[0].takes > 1); /* it had to prove itself again */
    assert_true(figure("rollout/wrong_version_answers") > 0);
    finish();

    defaults(2);
    b.o.policy = PORT_HTTP_MARK;
    begin(2);
    h.e[0].wrong = 3;
    submit_all(32, 1);
    drain_all(32);
    assert_true(b.versions[0] > 0);
    assert_int_equal(b.exact, 32 - b.versions[0]);
    finish();

    /* always wrong is an error */
    defaults(1);
    begin(1);
    h.e[0].wrong = 1;
    submit_all(1, 1);
    assert_int_equal(drain(60, &(struct err){0}), STATUS_CHILD);
    finish();
}

/* Samples that were under way when weights came: of the old ones is late, of both in the wrong
 * order is an engine that fell back. */
static void test_fell_back(void **state)
{
    struct err e = {0};
    (void)state;
    for (int fell = 1; fell <= 2; fell++) {
        defaults(1);
        begin(1);
        h.e[0].hold = 1;
        submit_all(4, 1);
        for (double end = proc_now() + 20.0; fakeengine_nheld(&h.e[0]) < 4 && proc_now() < end;) {
            struct port_answer a;
            assert_int_equal(b.r->poll(b.r->self, &a, &e), STATUS_AGAIN);
        }
        assert_ok(publish(2, &e), &e);
        h.e[0].hold = 0;
        h.e[0].fell = fell;
        assert_int_equal(fakeengine_let(&h.e[0], "stop"), 4);
        drain_all(4);
        assert_int_equal(b.versions[fell], 4);
        finish();
    }
}

/* Weights: an engine that cannot take them yet is asked again; one that lies is lost. */
static void test_publish(void **state)
{
    struct err e = {0};
    (void)state;
    defaults(2);
    b.o.restarts = 2;
    h.e[0].not_yet = 2;
    h.e[1].bad_proof = 1;
    begin(2);
    assert_int_equal(h.e[0].takes, 3);
    assert_int_equal(h.doubted, 1); /* what it was given may have been at fault */
    submit_all(4, 2);
    drain_all(8);
    no_unproven();
    assert_ok(publish(5, &e), &e);
    assert_int_equal(h.prepared, 5);
    b.answers = b.exact = 0;
    submit_all(40, 2);
    drain_all(80);
    assert_int_equal(b.versions[5], 80);
    no_unproven();
    /* it says success: false, every time */
    h.e[0].bad_take = h.e[1].bad_take = 100;
    assert_int_equal(publish(6, &e), STATUS_CHILD);
    assert_non_null(strstr(e.msg, "no such folder"));
    assert_non_null(strstr(e.msg, "weight version 6"));
    finish();

    /* within its time */
    defaults(1);
    b.o.restarts = 1;
    b.o.sync_s = 0.6;
    h.e[0].not_yet = 1000;
    assert_ok(start(&e), &e);
    memset(&e, 0, sizeof e);
    assert_int_equal(publish(1, &e), STATUS_CHILD);
    assert_non_null(strstr(e.msg, "did not take weight version 1 within"));
    assert_non_null(strstr(e.msg, "being written"));
    finish();
}

/* What an engine is asked for before it takes weights comes before, all of it, and once. */
static void test_before(void **state)
{
    struct err e = {0};
    (void)state;
    defaults(2);
    h.sync.before = fakeengine_sync_before;
    begin(2);
    submit_all(4, 2);
    drain_all(8);
    assert_ok(publish(5, &e), &e);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(h.e[i].spoils, 2);
        assert_int_equal(h.e[i].late_spoil, 0);
        assert_int_equal(h.e[i].takes, 2);
    }
    finish();
}

static void test_abort(void **state)
{
    struct err e = {0};
    struct port_answer a;
    (void)state;
    defaults(1);
    b.o.concurrency = 8;
    begin(1);
    h.e[0].hold = 1;
    submit_all(8, 4); /* two groups run, six wait */
    for (int k = 0; k < 3; k++) {
        assert_int_equal(b.r->poll(b.r->self, &a, &e), STATUS_AGAIN);
    }
    b.r->abort(b.r->self, 0); /* running */
    b.r->abort(b.r->self, 5); /* waiting */
    b.r->abort(b.r->self, 77);
    drain(0.5, &e);
    assert_int_equal(b.answers, 8);
    assert_int_equal(b.aborted, 8);
    b.r->abort(b.r->self, -1);
    drain(10, &e);
    assert_int_equal(b.answers, 32);
    assert_int_equal(b.aborted, 32);
    /* it goes on after that */
    h.e[0].hold = 0;
    b.aborted = 0;
    submit_all(4, 4);
    drain_all(16);
    assert_int_equal(b.aborted, 0);
    finish();
}

static int control(enum port_control what, struct err *e)
{
    double end = proc_now() + 10;
    int rc;
    while ((rc = b.r->control(b.r->self, what, e)) == STATUS_AGAIN && proc_now() < end) {
    }
    return rc;
}

static void test_control(void **state)
{
    struct err e = {0};
    struct port_answer a;
    (void)state;
    defaults(2);
    begin(2);
    assert_ok(control(PORT_PAUSE, &e), &e);
    assert_true(h.e[0].paused && h.e[1].paused);
    submit_all(4, 2);
    for (int k = 0; k < 5; k++) {
        assert_int_equal(b.r->poll(b.r->self, &a, &e), STATUS_AGAIN);
    }
    assert_int_equal(h.e[0].asked + h.e[1].asked, 0);
    assert_int_equal(control(PORT_RELEASE, &e), STATUS_INPUT); /* samples are on their way */
    assert_ok(control(PORT_CONTINUE, &e), &e);
    assert_false(h.e[0].paused || h.e[1].paused);
    drain_all(8);
    assert_ok(control(PORT_RELEASE, &e), &e);
    assert_true(h.e[0].released && h.e[1].released);
    assert_ok(publish(2, &e), &e);
    assert_ok(control(PORT_RESTORE, &e), &e);
    assert_false(h.e[0].released || h.e[1].released);
    submit_all(4, 2);
    drain_all(8);
    assert_int_equal(b.versions[2], 8);
    /* one that is dead has no part in it */
    fakeengine_strike(&h, 0);
    assert_ok(control(PORT_PAUSE, &e), &e);
    assert_true(h.e[1].paused);
    assert_ok(control(PORT_CONTINUE, &e), &e);
    finish();
}

/* An engine that is taken out in the middle of it is not waited for. */
static void test_control_removed(void **state)
{
    struct err e = {0};
    (void)state;
    defaults(2);
    begin(2);
    h.e[1].deaf = 1;
    assert_int_equal(b.r->control(b.r->self, PORT_PAUSE, &e), STATUS_AGAIN);
    assert_ok(port_http_remove(b.p, 1, &e), &e);
    assert_ok(control(PORT_PAUSE, &e), &e);
    assert_ok(control(PORT_CONTINUE, &e), &e);
    submit_all(4, 2);
    drain_all(8);
    finish();
}

/* What is refused, fails too often or takes too long ends the port, and says which. */
static void test_errors(void **state)
{
    struct err e = {0};
    (void)state;
    defaults(1);
    begin(1);
    h.e[0].refuse = 2;
    submit_all(2, 1);
    assert_int_equal(drain(20, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "too long for this engine"));
    assert_non_null(strstr(e.msg, "group 1"));
    finish();

    defaults(1);
    b.o.tries = 3;
    begin(1);
    h.e[0].bad = 1;
    submit_all(1, 2);
    assert_int_equal(drain(20, &e), STATUS_CHILD);
    assert_non_null(strstr(e.msg, "failed 3 times"));
    assert_non_null(strstr(e.msg, "as told"));
    assert_int_equal(h.e[0].asked, 3);
    finish();

    defaults(1);
    b.o.request_s = 0.7;
    begin(1);
    h.e[0].hold = 1;
    submit_all(1, 2);
    assert_int_equal(drain(20, &e), STATUS_TIMEOUT);
    assert_non_null(strstr(e.msg, "took longer than"));
    finish();

    defaults(1);
    b.o.request_s = 0.7;
    begin(1);
    h.e[0].busy = 1;
    submit_all(1, 2);
    assert_int_equal(drain(20, &e), STATUS_TIMEOUT);
    assert_non_null(strstr(e.msg, "busy"));
    finish();

    /* cut every time, by an engine that is in good health */
    defaults(1);
    b.o.tries = 1;
    begin(1);
    h.e[0].cut = 1;
    submit_all(1, 2);
    assert_int_equal(drain(20, &e), STATUS_CHILD);
    assert_non_null(strstr(e.msg, "connections ended"));
    finish();
}

static void test_bound(void **state)
{
    struct err e = {0};
    (void)state;
    defaults(1);
    begin(1);
    for (int i = 0; i < 16; i++) {
        assert_ok(submit(i, 4096, &e), &e);
    }
    assert_int_equal(submit(16, 1, &e), STATUS_AGAIN);
    assert_int_equal(submit(17, 0, &e), STATUS_INPUT);
    finish();
}

/* Somebody else's engines: they go and come back at the same address. */
static void test_external(void **state)
{
    struct err e = {0};
    int port;
    (void)state;
    defaults(2);
    b.o.host = NULL;
    b.o.urls = h.urls;
    b.o.start_s = 3;
    for (int i = 0; i < 2; i++) {
        fakeengine_up(&h.e[i], 0);
        h.urls[i] = h.e[i].url;
    }
    begin(2);
    h.e[0].hold = 1;
    submit_all(32, 2);
    drain(0.3, &e);
    port = atoi(strrchr(h.e[0].url, ':') + 1);
    fakeengine_down(&h.e[0]);
    h.e[0].hold = 0;
    drain(20, &e);
    assert_int_equal(b.answers, 64);
    assert_int_equal(figure("rollout/engines_ready"), 1);
    fakeengine_up(&h.e[0], port);
    recover();
    b.answers = 0;
    h.e[1].hold = 1; /* all must come from the one that is back */
    submit_all(1, 1);
    drain(0.3, &e);
    fakeengine_down(&h.e[1]);
    drain(20, &e);
    assert_int_equal(b.answers, 1);
    no_unproven();
    /* none left: it is told when their time is over */
    fakeengine_down(&h.e[0]);
    submit_all(1, 1);
    assert_int_equal(drain(30, &e), STATUS_TIMEOUT);
    assert_non_null(strstr(e.msg, "no engine has answered"));
    finish();
}

/* What it answers takes it far longer than the others: it gets no more, those it has are moved, and
 * when it is well it is used again. */
static void test_slow(void **state)
{
    struct err e = {0};
    struct port_answer a;
    double end = proc_now() + 30, next = 0.0;
    int64_t drained = 0;
    int group = 0, before;
    (void)state;
    defaults(3);
    b.o.slow_factor = 5.0;
    b.o.slow_s = 0.5;
    b.o.concurrency = 2;
    begin(3);
    h.e[2].hold = 1;
    b.n = 1;
    b.seen = mem_alloc(65536);
    while (!drained && proc_now() < end) {
        for (; group - b.answers < 12; group++) {
            assert_ok(submit(group, 1, &e), &e);
        }
        if (proc_now() >= next) { /* each takes it 0.3 s */
            next = proc_now() + 0.3;
            fakeengine_let(&h.e[2], "stop");
        }
        if (b.r->poll(b.r->self, &a, &e) == STATUS_OK) {
            check(&a);
        }
        usleep(500);
        drained = figure("rollout/engines_drained");
    }
    assert_int_equal(drained, 1);
    before = h.e[2].asked;
    drain(20, &e); /* what it has comes from others */
    assert_int_equal(b.answers, group);
    assert_int_equal(fakeengine_let(&h.e[2], "stop") > 2, 0);
    h.e[2].hold = 0;
    for (end = proc_now() + 30; h.e[2].asked < before + 8 && proc_now() < end;) {
        for (int i = 0; i < 12; i++) {
            assert_ok(submit(group++, 1, &e), &e);
        }
        drain(20, &e);
        usleep(20000);
    }
    assert_true(h.e[2].asked >= before + 8);
    assert_int_equal(b.answers, group);
    no_unproven();
    finish();
}

/* One of two that get as many samples each, as in a run that waits for all of them: its own answers
 * are no part of what it is held against. */
static void test_slow_of_two(void **state)
{
    struct err e = {0};
    double end = proc_now() + 30;
    int64_t drained = 0;
    int group = 0;
    (void)state;
    defaults(2);
    b.o.slow_factor = 5.0;
    b.o.slow_s = 0.5;
    begin(2);
    h.e[1].hold = 1;
    b.n = 1;
    b.seen = mem_alloc(65536);
    while (!drained && proc_now() < end) {
        for (int i = 0; i < 8; i++) {
            assert_ok(submit(group++, 1, &e), &e);
        }
        drain(0.2, &e);
        fakeengine_let(&h.e[1], "stop");
        drain(20, &e);
        drained = figure("rollout/engines_drained");
    }
    assert_int_equal(drained, 1);
    assert_int_equal(b.answers, group);
    finish();
}

/* It says that it is well and answers nothing. */
static void test_silent(void **state)
{
    double t0;
    (void)state;
    defaults(2);
    b.o.slow_factor = 5.0;
    b.o.slow_s = 1.0;
    begin(2);
    submit_all(64, 1);
    drain_all(64);
    h.e[1].hold = 1;
    t0 = proc_now();
    submit_all(64, 1);
    drain_all(64);
    assert_true(proc_now() - t0 < 20.0);
    assert_true(fakeengine_nheld(&h.e[1]) > 0);
    assert_int_equal(figure("rollout/engines_drained"), 1);
    finish();
    /* with nobody else to do it, it is waited for */
    defaults(1);
    b.o.slow_factor = 5.0;
    b.o.slow_s = 0.2;
    begin(1);
    submit_all(64, 1);
    drain_all(64);
    h.e[0].hold = 1;
    submit_all(1, 1);
    drain(2.5, &(struct err){0});
    assert_int_equal(figure("rollout/engines_drained"), 0);
    assert_int_equal(fakeengine_nheld(&h.e[0]), 1);
    finish();
}

/* An engine that fails every sample in good health costs a few tries, not the run. */
static void test_breaker(void **state)
{
    (void)state;
    for (int round = 0; round < 2; round++) {
        defaults(2);
        b.o.concurrency = 4;
        begin(2);
        h.e[1].cut = round == 0;
        h.e[1].bad = round == 1;
        submit_all(256, 1);
        drain_all(256);
        assert_true(h.e[1].asked >= 3 && h.e[1].asked < 40);
        finish();
    }
}

/* Engines come and go while samples are drawn. */
static void test_add(void **state)
{
    struct err e = {0};
    char url[64];
    int engine = -1;
    json_t *all;
    (void)state;
    defaults(2);
    b.o.nengines = 1;
    b.o.room = 1;
    b.o.slow_s = 0.5;
    begin(1);
    fakeengine_up(&h.e[1], 0);
    snprintf(url, sizeof url, "%s", h.e[1].url);
    atomic_store(&h.e[1].want, 1);
    h.e[1].paused = 1; /* who had it before was killed in the middle of something */
    assert_ok(port_http_add(b.p, url, &engine, &e), &e);
    assert_int_equal(engine, 1);
    assert_int_equal(port_http_add(b.p, url, NULL, &e), STATUS_INPUT);
    assert_int_equal(port_http_add(b.p, "http://127.0.0.1:1", NULL, &e), STATUS_AGAIN);
    assert_int_equal(port_http_find(b.p, url), 1);
    recover();
    assert_int_equal(h.e[1].paused, 0);
    submit_all(32, 2);
    drain_all(64);
    assert_true(h.e[1].asked > 0);
    /* it goes with samples in its hands */
    h.e[1].hold = 1;
    b.answers = 0;
    submit_all(32, 2);
    drain(0.2, &e);
    assert_true(fakeengine_nheld(&h.e[1]) > 0);
    assert_ok(port_http_remove(b.p, 1, &e), &e);
    assert_int_equal(port_http_remove(b.p, 1, &e), STATUS_NOTFOUND);
    assert_int_equal(port_http_remove(b.p, 7, &e), STATUS_NOTFOUND);
    assert_int_equal(port_http_find(b.p, url), -1);
    drain(20, &e);
    assert_int_equal(b.answers, 64);
    all = port_http_tell(b.p);
    for (int i = 0; i < 500 && json_array_size(all) > 1; i++) { /* its requests end */
        json_decref(all);
        usleep(10000); /* with nothing on its way there is nothing that is waited for */
        drain(0.1, &e);
        all = port_http_tell(b.p);
    }
    assert_int_equal(json_array_size(all), 1);
    assert_string_equal(json_string_value(json_object_get(json_array_get(all, 0), "state")),
                        "ready");
    json_decref(all);
    /* and comes again, in the same place */
    h.e[1].hold = 0;
    assert_ok(port_http_add(b.p, url, &engine, &e), &e);
    assert_int_equal(engine, 1);
    recover();
    atomic_store(&h.e[1].asked, 0);
    submit_all(32, 2);
    drain_all(64);
    assert_true(h.e[1].asked > 0);
    no_unproven();
    /* one of the run's own is ended, and not started again */
    assert_ok(port_http_remove(b.p, 0, &e), &e);
    submit_all(32, 2);
    drain_all(64);
    assert_int_equal(h.e[0].starts, 1);
    assert_null(h.e[0].s);
    finish();
}

/* Samples go to a router; engines register there, leave when lost and come again. */
static void test_router(void **state)
{
    struct router_opts ro = {.worker = {.health_failures = 2,
                                        .health_successes = 1,
                                        .check_s = 0.2,
                                        .startup_check_s = 0.1,
                                        .startup_s = 10,
                                        .cb_failures = 10,
                                        .cb_successes = 1,
                                        .cb_open_s = 0.2,
                                        .cb_window_s = 10},
                             .health_path = "/health",
                             .check_timeout_s = 15,
                             .connect_s = 1,
                             .request_s = 60,
                             .max_running = -1,
                             .max_retries = 3,
                             .backoff_s = 0.05,
                             .backoff_max_s = 0.5,
                             .backoff_factor = 2};
    struct router *rt;
    struct err e = {0};
    char url[64];
    (void)state;

    assert_ok(router_start(&ro, &rt, &e), &e);
    snprintf(url, sizeof url, "http://127.0.0.1:%d", router_port(rt));
    defaults(2);
    b.o.router = url;
    begin(2);
    submit_all(64, 2);
    drain_all(128);
    assert_true(h.e[0].asked > 0 && h.e[1].asked > 0);
    no_unproven();
    /* one dies with samples in its hands */
    b.answers = 0;
    h.e[0].hold = h.e[1].hold = 1;
    submit_all(64, 2);
    drain(0.5, &e);
    h.e[0].hold = 0;
    fakeengine_strike(&h, 0);
    drain(0.5, &e);
    h.e[1].hold = 0;
    fakeengine_let(&h.e[1], "stop");
    drain(30, &e);
    assert_int_equal(b.answers, 128);
    no_unproven();
    /* and takes its share again */
    atomic_store(&h.e[0].asked, 0);
    recover();
    b.answers = 0;
    submit_all(64, 2);
    drain_all(128);
    assert_true(h.e[0].asked > 0);
    no_unproven();
    /* without the router nothing goes, and the error says so */
    router_stop(rt);
    port_http_close(b.p);
    b.o.request_s = 1.0;
    b.p = NULL;
    assert_ok(port_http_open(&b.o, &b.p, &e), &e);
    b.r = port_http_port(b.p);
    while (port_http_start(b.p, &e) == STATUS_AGAIN) {
    }
    assert_int_equal(publish(1, &e), STATUS_TIMEOUT);
    assert_non_null(strstr(e.msg, "router http://"));
    finish();
}

/* A sample that ends every engine it comes to, while others finish. */
static void test_poison(void **state)
{
    struct err e = {0};
    struct port_answer a;
    double end = proc_now() + 60;
    int rc;
    (void)state;
    defaults(1);
    b.o.tries = 1;
    b.o.restarts = 100;
    begin(1);
    h.e[0].hold = 1;
    submit_all(1, 2);
    while ((rc = b.r->poll(b.r->self, &a, &e)) == STATUS_AGAIN && proc_now() < end) {
        if (fakeengine_nheld(&h.e[0])) {
            h.e[0].hold = 0;
            fakeengine_strike(&h, 0);
            h.e[0].hold = 1;
        }
    }
    assert_int_equal(rc, STATUS_CHILD);
    assert_non_null(strstr(e.msg, "ended 5 times under samples 0 to 1 of group 0"));
    assert_int_equal(h.e[0].starts, 5);
    finish();
}

/* Closing with samples on their way leaves nothing behind; the sanitizers look. */
static void test_close(void **state)
{
    struct err e = {0};
    (void)state;
    defaults(2);
    begin(2);
    h.e[0].hold = 1;
    submit_all(64, 4);
    drain(0.2, &e);
    finish();
    assert_int_equal(port_http_open(&(struct port_http_opts){0}, &b.p, &e), STATUS_INPUT);
    port_http_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_sglang),
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_concurrency),
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_hangs),
        cmocka_unit_test(test_hangs_at_publish),
        cmocka_unit_test(test_sick),
        cmocka_unit_test(test_all_lost),
        cmocka_unit_test(test_one_given_up),
        cmocka_unit_test(test_no_start),
        cmocka_unit_test(test_manifest),
        cmocka_unit_test(test_wrong_version),
        cmocka_unit_test(test_fell_back),
        cmocka_unit_test(test_publish),
        cmocka_unit_test(test_before),
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_control),
        cmocka_unit_test(test_control_removed),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_bound),
        cmocka_unit_test(test_external),
        cmocka_unit_test(test_slow),
        cmocka_unit_test(test_slow_of_two),
        cmocka_unit_test(test_silent),
        cmocka_unit_test(test_breaker),
        cmocka_unit_test(test_add),
        cmocka_unit_test(test_router),
        cmocka_unit_test(test_poison),
        cmocka_unit_test(test_close),
    };
    log_set_level(getenv("PORT_LOG") ? LOG_DEBUG : LOG_ERROR + 1);
    cmocka_set_test_filter(getenv("PORT_TEST")); /* such as test_external */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
