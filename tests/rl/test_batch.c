/* A batch with a fake engine: completion order never shows, failed rewards take groups out, a full
 * reward queue loses nothing. */
#include "fakeport.h"

#include <math.h>

#include "base/rng.h"
#include "reward/hub.h"
#include "rl/batch.h"
#include "rl/prompts.h"

static struct err e;

/* Rows with a label, without one (every third), with their number as the prompt. */
static struct prompts *open_rows(int n, int group)
{
    struct prompts_opts o = {.path = fakeport_path("rows.jsonl"),
                             .input_key = "q",
                             .label_key = "label",
                             .group_size = group};
    struct prompts *p = NULL;
    struct buf b;
    buf_init(&b, 1 << 20);
    for (int i = 0; i < n; i++) {
        buf_printf(&b,
                   i % 3 == 2 ? "{\"q\": \"row %d\", \"label\": null}\n"
                              : "{\"q\": \"row %d\", \"label\": \"a b c\"}\n",
                   i);
    }
    fakeport_text("rows.jsonl", b.data);
    buf_fini(&b);
    assert_ok(prompts_open(&p, &o, &e), &e);
    return p;
}

static struct batch_cfg config(struct fakeport *f, struct hub *hub, int n, int drop)
{
    struct batch_cfg c;
    memset(&c, 0, sizeof c);
    c.port = &f->rollout;
    c.hub = hub;
    c.enc = &f->enc;
    c.n = n;
    c.proto.max_new = 8;
    c.proto.seed = 42;
    c.proto.stream = RNG_TRAIN;
    c.drop_failed = drop;
    return c;
}

static struct hub *open_hub(const char *type)
{
    struct hub_opts o = {.rm_type = type};
    struct hub *h = NULL;
    assert_ok(hub_open(&o, &h, &e), &e);
    return h;
}

/* Runs until complete; groups left out are replaced by the next prompt. Number left out. */
static int run(struct batch *b, struct prompts *p)
{
    const char *reason;
    int rc, failed, all = 0;
    for (int guard = 0; guard < 200000; guard++) {
        rc = batch_tick(b, &e);
        if (rc < 0) {
            fail_msg("batch: %s", e.msg);
        }
        failed = batch_failed(b, &reason);
        all += failed;
        for (int i = 0; i < failed; i++) {
            struct prompts_group g;
            struct batch_item it;
            assert_non_null(strstr(reason, "no label"));
            assert_ok(prompts_next(p, 1, &g, &e), &e);
            it = (struct batch_item){g.row, g.group_index, g.index};
            assert_ok(batch_add(b, &it, &e), &e);
        }
        if (rc == STATUS_OK && !failed) {
            return all;
        }
    }
    fail_msg("the batch does not end");
    return -1;
}

static void add(struct batch *b, struct prompts *p, int n)
{
    for (int i = 0; i < n; i++) {
        struct prompts_group g;
        struct batch_item it;
        assert_ok(prompts_next(p, 1, &g, &e), &e);
        it = (struct batch_item){g.row, g.group_index, g.index};
        assert_ok(batch_add(b, &it, &e), &e);
    }
}

/* All samples as text. */
static char *text_of(struct batch *b, int *n)
{
    struct sample **s = batch_samples(b, n);
    json_t *a = json_array();
    char *text;
    for (int i = 0; i < *n; i++) {
        json_array_append_new(a, sample_to_json(s[i]));
        assert_true(i == 0 || s[i]->index > s[i - 1]->index);
    }
    text = json_dumps(a, JSON_COMPACT);
    json_decref(a);
    return text;
}

/* Groups that go to the hub whole are scored as samples are, in every order of the answers. */
static void groups_go_whole(void **state)
{
    char *want = NULL;
    (void)state;
    for (uint64_t order = 0; order < 8; order++) {
        struct fakeport f;
        struct prompts *p = open_rows(20, 4);
        struct hub *h = open_hub("f1");
        struct batch_cfg c;
        struct batch *b;
        char *got;
        int n;
        fakeport_open(&f, order);
        c = config(&f, h, 4, 1);
        c.group_rm = order > 0;
        b = batch_new(&c);
        add(b, p, 7);
        assert_int_equal(run(b, p), 3);
        got = text_of(b, &n);
        assert_int_equal(n, 7 * 4);
        assert_non_null(strstr(got, "\"reward_reason\":\"f1: "));
        if (want) {
            assert_string_equal(got, want);
            free(got);
        } else {
            want = got;
        }
        batch_free(b);
        hub_close(h);
        prompts_close(p);
        fakeport_close(&f);
    }
    free(want);
}

/* The same samples, rewards and replacements for every order in which answers come. */
static void order_does_not_show(void **state)
{
    char *want = NULL;
    (void)state;
    for (uint64_t order = 0; order < 8; order++) {
        struct fakeport f;
        struct prompts *p = open_rows(20, 4);
        struct hub *h = open_hub("f1");
        struct batch_cfg c;
        struct batch *b;
        char *got;
        int n, left_out;
        fakeport_open(&f, order);
        c = config(&f, h, 4, 1);
        b = batch_new(&c);
        add(b, p, 7);
        left_out = run(b, p);
        /* rows 2 and 5 fail, then 8, which replaces one of them */
        assert_int_equal(left_out, 3);
        assert_int_equal(batch_done_samples(b), 10 * 4);
        got = text_of(b, &n);
        assert_int_equal(n, 7 * 4);
        if (want) {
            assert_string_equal(got, want);
            free(got);
        } else {
            static const int rows[] = {0, 1, 3, 4, 6, 7, 9};
            struct sample **s = batch_samples(b, &n);
            for (int i = 0; i < n; i++) {
                char prompt[16];
                snprintf(prompt, sizeof prompt, "row %d", rows[i / 4]);
                assert_string_equal(json_string_value(s[i]->prompt), prompt);
                assert_int_equal(s[i]->group_index, rows[i / 4]);
                assert_int_equal(s[i]->index, rows[i / 4] * 4 + i % 4);
                assert_int_equal(s[i]->rollout_id, s[i]->index);
                assert_int_equal(s[i]->prompt_len, 5);
                assert_true(s[i]->reward >= 0.0 && s[i]->reward <= 1.0);
                assert_int_equal(s[i]->segments[0].exact, 1);
                assert_int_equal(strlen(s[i]->response), s[i]->response_len);
            }
            want = got;
        }
        batch_free(b);
        hub_close(h);
        prompts_close(p);
        fakeport_close(&f);
    }
    free(want);
}

/* Without dropping (evaluation) a failed sample stays, failed and without a reward. */
static void failed_stays(void **state)
{
    struct fakeport f;
    struct prompts *p = open_rows(3, 2);
    struct hub *h = open_hub("f1");
    struct batch_cfg c;
    struct batch *b;
    struct sample **s;
    int n;
    (void)state;
    fakeport_open(&f, 5);
    c = config(&f, h, 2, 0);
    b = batch_new(&c);
    add(b, p, 3);
    assert_int_equal(run(b, p), 0);
    s = batch_samples(b, &n);
    assert_int_equal(n, 6);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(s[i]->status == SAMPLE_FAILED, i >= 4);
        assert_int_equal(isnan(s[i]->reward), i >= 4);
    }
    batch_free(b);
    hub_close(h);
    prompts_close(p);
    fakeport_close(&f);
}

static void no_hub(void **state)
{
    struct fakeport f;
    struct prompts *p = open_rows(5, 3);
    struct batch_cfg c;
    struct batch *b;
    struct sample **s;
    int n, truncated = 0;
    (void)state;
    fakeport_open(&f, 2);
    c = config(&f, NULL, 3, 1);
    b = batch_new(&c);
    assert_int_equal(batch_tick(b, &e), STATUS_OK); /* nothing to do is done */
    add(b, p, 5);
    assert_int_equal(run(b, p), 0);
    s = batch_samples(b, &n);
    assert_int_equal(n, 15);
    for (int i = 0; i < n; i++) {
        assert_true(isnan(s[i]->reward));
        assert_true(s[i]->status == SAMPLE_COMPLETED || s[i]->status == SAMPLE_TRUNCATED);
        truncated += s[i]->status == SAMPLE_TRUNCATED;
    }
    assert_true(truncated > 0 && truncated < n);
    assert_int_equal(batch_tick(b, &e), STATUS_OK);
    batch_free(b);
    batch_free(NULL);
    prompts_close(p);
    fakeport_close(&f);
}

static void context_bound(void **state)
{
    struct fakeport f;
    struct prompts *p = open_rows(5, 1);
    struct batch_cfg c;
    struct batch *b;
    (void)state;
    fakeport_open(&f, 0);
    c = config(&f, NULL, 1, 1);
    c.max_context = 9;
    b = batch_new(&c);
    add(b, p, 1);
    assert_int_equal(f.last_max_new, 9 - 5); /* "row 0" has five tokens */
    batch_free(b);
    c.max_context = 100;
    b = batch_new(&c);
    f.nq = 0;
    add(b, p, 1);
    assert_int_equal(f.last_max_new, 8);
    batch_free(b);
    prompts_close(p);
    fakeport_close(&f);
}

static void refusals(void **state)
{
    struct fakeport f;
    struct prompts *p = open_rows(5, 2);
    const struct prompts_row *row;
    struct prompts_row bad;
    struct batch_cfg c;
    struct batch *b;
    struct batch_item it;
    int rc;
    (void)state;
    fakeport_open(&f, 0);
    c = config(&f, NULL, 2, 1);
    b = batch_new(&c);
    add(b, p, 1);
    f.fail_submit = 2;
    assert_ok(prompts_row(p, 3, &row, &e), &e);
    it = (struct batch_item){row, 1, 2};
    assert_int_equal(batch_add(b, &it, &e), STATUS_INPUT);
    assert_string_equal(e.msg, "prompt of line 4: the engine has no room");
    assert_ok(prompts_row(p, 0, &row, &e), &e);
    bad = *row;
    bad.prompt = json_array();
    it.row = &bad;
    assert_int_equal(batch_add(b, &it, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "prompt of line 1"));
    json_decref(bad.prompt);
    bad.prompt = json_string("");
    assert_int_equal(batch_add(b, &it, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "0 tokens"));
    json_decref(bad.prompt);
    /* what was refused is not waited for */
    while ((rc = batch_tick(b, &e)) == STATUS_AGAIN) {
    }
    assert_int_equal(rc, STATUS_OK);
    assert_int_equal(batch_done_samples(b), 2);
    /* an engine that forgets a sample is an error, not an endless wait */
    add(b, p, 1);
    f.end_early = 2;
    while ((rc = batch_tick(b, &e)) == STATUS_AGAIN) {
    }
    assert_int_equal(rc, STATUS_FAIL);
    assert_non_null(strstr(e.msg, "1 groups unfinished"));
    batch_free(b);
    prompts_close(p);
    fakeport_close(&f);
}

/* More answers than the reward queue holds, from a function in Python that is slower than the
 * engine: all are scored, each with its own reward. */
static void full_queue(void **state)
{
    enum { GROUPS = 10, EACH = 600 };
    static const char code[] = "def count(args, sample):\n"
                               "    return float(sample.index) + len(sample.response) / 100\n";
    struct hub_opts o = {.custom_rm_path = fakeport_path("rew.py:count"), .timeout_s = 60};
    struct fakeport f;
    struct prompts *p = open_rows(GROUPS, EACH);
    struct hub *h = NULL;
    struct batch_cfg c;
    struct batch *b;
    struct sample **s;
    int n;
    (void)state;
    fakeport_text("rew.py", code);
    assert_ok(hub_open(&o, &h, &e), &e);
    fakeport_open(&f, 0);
    c = config(&f, h, EACH, 1);
    b = batch_new(&c);
    add(b, p, GROUPS);
    assert_int_equal(run(b, p), 0);
    s = batch_samples(b, &n);
    assert_int_equal(n, GROUPS * EACH);
    for (int i = 0; i < n; i++) {
        assert_int_equal(s[i]->index, i);
        assert_true(fabs(s[i]->reward - (i + s[i]->response_len / 100.0)) < 1e-9);
    }
    assert_int_equal(hub_pending(h), 0);
    batch_free(b);
    hub_close(h);
    prompts_close(p);
    fakeport_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_does_not_show), cmocka_unit_test(groups_go_whole),
        cmocka_unit_test(failed_stays),        cmocka_unit_test(no_hub),
        cmocka_unit_test(context_bound),       cmocka_unit_test(refusals),
        cmocka_unit_test(full_queue),
    };
    return cmocka_run_group_tests(tests, fakeport_setup, fakeport_teardown);
}
