/* Groups in flight with a fake engine: what is refused is not waited for, a full reward queue loses
 * nothing, a group that goes on keeps what it has, an aborted one what it got. */
#include "fakeport.h"

#include <math.h>

#include "base/rng.h"
#include "reward/hub.h"
#include "rl/batch.h"
#include "rl/prompts.h"

static struct err e;

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
        buf_printf(&b, "{\"q\": \"row %d\", \"label\": \"a b c\"}\n", i);
    }
    fakeport_text("rows.jsonl", b.data);
    buf_fini(&b);
    assert_ok(prompts_open(&p, &o, &e), &e);
    return p;
}

static struct batch_cfg config(struct fakeport *f, struct hub *hub, int n)
{
    struct batch_cfg c;
    memset(&c, 0, sizeof c);
    c.port = &f->rollout;
    c.hub = hub;
    c.enc = &f->enc;
    c.n = n;
    c.proto.max_new = 16;
    c.proto.seed = 42;
    c.proto.stream = RNG_TRAIN;
    return c;
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

static int run(struct batch *b)
{
    int rc = STATUS_AGAIN;
    for (int guard = 0; rc == STATUS_AGAIN; guard++) {
        assert_true(guard < 200000);
        rc = batch_tick(b, &e);
    }
    return rc;
}

static void context_bound(void **state)
{
    struct fakeport f;
    struct prompts *p = open_rows(5, 1);
    struct batch_cfg c;
    struct batch *b;
    (void)state;
    fakeport_open(&f, 0);
    c = config(&f, NULL, 1);
    c.max_context = 9;
    b = batch_new(&c);
    add(b, p, 1);
    assert_int_equal(f.last_max_new, 9 - 5); /* "row 0" has five tokens */
    batch_free(b);
    c.max_context = 100;
    b = batch_new(&c);
    f.nq = 0;
    add(b, p, 1);
    assert_int_equal(f.last_max_new, 16);
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
    (void)state;
    fakeport_open(&f, 0);
    c = config(&f, NULL, 2);
    b = batch_new(&c);
    assert_int_equal(batch_tick(b, &e), STATUS_OK); /* nothing to do is done */
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
    assert_ok(run(b), &e);
    assert_int_equal(batch_done_samples(b), 2);
    assert_int_equal(batch_groups(b), 1);
    /* an engine that forgets a sample is an error, not an endless wait */
    add(b, p, 1);
    f.end_early = 2;
    assert_int_equal(run(b), STATUS_FAIL);
    assert_non_null(strstr(e.msg, "1 groups unfinished"));
    batch_free(b);
    batch_free(NULL);
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
    struct batch_event ev;
    int scored = 0;
    (void)state;
    fakeport_text("rew.py", code);
    assert_ok(hub_open(&o, &h, &e), &e);
    fakeport_open(&f, 0);
    c = config(&f, h, EACH);
    b = batch_new(&c);
    add(b, p, GROUPS);
    assert_ok(run(b), &e);
    for (int i = 0; i < GROUPS * EACH; i++) {
        const struct sample *s = batch_group(b, i / EACH)[i % EACH];
        assert_int_equal(s->index, i);
        assert_true(fabs(s->reward - (i + s->response_len / 100.0)) < 1e-9);
        assert_true(batch_is_scored(b, i / EACH, i % EACH));
    }
    while (batch_event(b, &ev)) {
        scored += ev.kind == BATCH_SCORED;
    }
    assert_int_equal(scored, GROUPS);
    assert_int_equal(hub_pending(h), 0);
    batch_free(b);
    hub_close(h);
    prompts_close(p);
    fakeport_close(&f);
}

/* Aborted after a while, cut, taken up again: the tokens are those of a batch never disturbed, in
 * two segments, and with mask_old only the second is trained. */
static void goes_on(void **state)
{
    enum { EACH = 6 };
    struct prompts *p = open_rows(1, EACH);
    struct fakeport f;
    struct batch_cfg c;
    struct batch *b;
    struct sample **want, **s;
    const struct prompts_row *row;
    struct batch_item it = {NULL, 0, 0};
    int whole = 0, parts = 0;
    (void)state;
    assert_ok(prompts_row(p, 0, &row, &e), &e);
    it.row = row;
    fakeport_open(&f, 3);
    f.spread = 16;
    c = config(&f, NULL, EACH);
    b = batch_new(&c);
    assert_ok(batch_add(b, &it, &e), &e);
    assert_ok(run(b), &e);
    want = batch_hand_over(b, 0);
    assert_null(batch_group(b, 0));
    batch_free(b);

    f.slots = 4;
    b = batch_new(&c);
    assert_ok(batch_add(b, &it, &e), &e);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(batch_tick(b, &e), STATUS_AGAIN);
    }
    batch_abort(b);
    assert_ok(run(b), &e);
    assert_int_equal(f.aborts, 1);
    for (int i = 0; i < EACH; i++) {
        if (!batch_answered(b, 0, i)) {
            int n = batch_fresh(b, 0, i);
            assert_int_equal(batch_cut(b, 0, i, n + 1, &e), STATUS_FAIL);
            assert_ok(batch_cut(b, 0, i, n > 2 ? 2 : n, &e), &e);
            assert_int_equal(batch_group(b, 0)[i]->response_len, n > 2 ? 2 : n);
            assert_int_equal(batch_group(b, 0)[i]->status, SAMPLE_ABORTED);
        }
    }
    s = batch_hand_over(b, 0);
    batch_free(b);

    f.version = 7;
    c.mask_old = 1;
    b = batch_new(&c);
    assert_ok(batch_resume(b, s, &e), &e);
    mem_free(s);
    assert_ok(run(b), &e);
    s = batch_group(b, 0);
    for (int i = 0; i < EACH; i++) {
        assert_int_equal(s[i]->response_len, want[i]->response_len);
        assert_memory_equal(s[i]->tokens, want[i]->tokens,
                            sizeof(int32_t) * (size_t)(s[i]->prompt_len + s[i]->response_len));
        assert_memory_equal(s[i]->logps, want[i]->logps,
                            sizeof(float) * (size_t)s[i]->response_len);
        assert_string_equal(s[i]->response, want[i]->response);
        assert_int_equal(s[i]->status, want[i]->status);
        if (s[i]->nsegments == 2) {
            int old = s[i]->segments[0].len;
            assert_int_equal(s[i]->segments[0].version, 0);
            assert_int_equal(s[i]->segments[1].version, 7);
            assert_int_equal(s[i]->segments[1].start, old);
            assert_int_equal(s[i]->segments[1].len, s[i]->response_len - old);
            for (int t = 0; t < s[i]->response_len; t++) {
                assert_int_equal(s[i]->mask[t], t >= old);
            }
            parts++;
        } else {
            whole++;
            assert_int_equal(s[i]->nsegments, 1);
        }
    }
    assert_true(whole > 0 && parts > 0);
    batch_free(b);
    for (int i = 0; i < EACH; i++) {
        sample_free(want[i]);
    }
    mem_free(want);
    prompts_close(p);
    fakeport_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(context_bound), cmocka_unit_test(refusals),
                                       cmocka_unit_test(full_queue), cmocka_unit_test(goes_on)};
    return cmocka_run_group_tests(tests, fakeport_setup, fakeport_teardown);
}
