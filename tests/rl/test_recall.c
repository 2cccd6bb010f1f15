/* Rewards with a memory: each is on disk when it is seen, none that is recorded is asked for again,
 * failures and objects come back as they were. */
#include "fakeport.h"

#include <math.h>

#include "reward/hub.h"
#include "rl/recall.h"
#include "rl/sample.h"
#include "run/ledger.h"

static struct err e;

enum { ALL = 40 };

/* A sample whose reward by F1 is between 0 and 1; every seventh has no label and fails. */
static struct sample *sample_of(int i)
{
    struct sample *s = sample_new();
    int32_t tokens[4] = {i, i + 1, 7, i * 3};
    sample_set(s, tokens, 2, tokens + 2, NULL, 2, 0, 1);
    s->index = i;
    s->response = mem_strdup(i % 3 ? "a b c" : "a x y z");
    s->label = i % 7 ? json_string("a b c d") : NULL;
    s->metadata = json_object();
    return s;
}

struct ask {
    struct ledger *l;
    struct hub *hub;
    struct recall *r;
    struct hub_result got[ALL];
};

static void ask_open(struct ask *a, const char *name, int closed)
{
    struct ledger_opts o = {.dir = fakeport_path(name), .closed = closed};
    struct hub_opts h = {.rm_type = "f1"};
    memset(a, 0, sizeof *a);
    assert_ok(ledger_open(&o, &a->l, &e), &e);
    if (!closed) {
        assert_ok(hub_open(&h, &a->hub, &e), &e);
    }
    a->r = recall_new(a->hub, ledger_journal(a->l), NULL);
}

static void ask_close(struct ask *a)
{
    for (int i = 0; i < ALL; i++) {
        json_decref(a->got[i].raw);
    }
    recall_free(a->r);
    hub_close(a->hub);
    ledger_close(a->l, "done");
}

/* Asks for samples [from, to) and takes the results; wait is what the loop polls with at first. */
static void ask_for(struct ask *a, int from, int to, int set)
{
    struct ledger_counts n;
    int left = to - from;
    for (int i = from; i < to; i++) {
        struct sample *s = sample_of(i);
        int rc;
        while ((rc = recall_submit(a->r, i, 3, set, &s, 1, 0, &e)) == STATUS_AGAIN) {
        }
        assert_ok(rc, &e);
        sample_free(s);
    }
    for (int turn = 0; left; turn++) {
        struct hub_result r;
        int rc = recall_poll(a->r, turn < 3 ? 0.0 : 0.1, &r, &e);
        if (rc == STATUS_AGAIN) {
            continue;
        }
        assert_ok(rc, &e);
        assert_int_equal(a->got[r.id].reason[0], 0);
        a->got[r.id] = r;
        left--;
        assert_ok(ledger_count(a->l, &n, &e), &e);
        assert_true(n.rewards >= (to - from) - left); /* seen is on disk */
    }
}

static void same(const struct hub_result *x, const struct hub_result *y)
{
    assert_int_equal(x->failed, y->failed);
    assert_true(x->reward == y->reward);
    assert_int_equal(x->why, y->why);
    assert_string_equal(x->reason, y->reason);
}

static void test_recalled(void **state)
{
    struct ask one, two;
    int failed = 0;
    (void)state;
    ask_open(&one, "rewards", 0);
    ask_for(&one, 0, ALL, 0);
    assert_int_equal(hub_pending(one.hub), 0);
    for (int i = 0; i < ALL; i++) {
        assert_int_equal(one.got[i].failed, i % 7 == 0);
        failed += one.got[i].failed;
    }
    assert_int_equal(failed, 6);
    recall_free(one.r);
    hub_close(one.hub);
    ledger_close(one.l, "killed");
    one.r = NULL;
    one.hub = NULL;
    one.l = NULL;

    ask_open(&two, "rewards", 1); /* there is no hub: all must come from the ledger */
    ask_for(&two, 0, ALL, 0);
    for (int i = 0; i < ALL; i++) {
        same(&one.got[i], &two.got[i]);
    }
    ask_close(&two);
    ask_close(&one);
}

/* Half of them recorded: the others are asked for. Another set of samples is another question. */
static void test_some(void **state)
{
    struct ask a;
    struct ledger_counts n;
    (void)state;
    ask_open(&a, "half", 0);
    ask_for(&a, 0, ALL / 2, 0);
    ask_close(&a);
    ask_open(&a, "half", 0);
    ask_for(&a, 0, ALL, 0);
    assert_ok(ledger_count(a.l, &n, &e), &e);
    assert_int_equal(n.rewards, ALL);
    ask_close(&a);
    ask_open(&a, "half", 0);
    ask_for(&a, 0, ALL, 1);
    assert_ok(ledger_count(a.l, &n, &e), &e);
    assert_int_equal(n.rewards, 2 * ALL);
    ask_close(&a);
    ask_open(&a, "half", 1); /* a replay of what was never asked for: a failure, not an answer */
    ask_for(&a, 0, 3, 2);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(a.got[i].failed, 1);
        assert_string_equal(a.got[i].reason, "its reward is not recorded");
    }
    ask_close(&a);
}

/* Scores a group by how often it was asked before. */
struct counter {
    int64_t id;
    int asked, left;
};

static int counter_submit(void *self, const struct hub_request *q, struct err *err)
{
    struct counter *c = self;
    (void)err;
    c->id = q->id;
    c->left = (int)json_array_size(q->sample);
    c->asked++;
    return STATUS_OK;
}

static int counter_poll(void *self, double wait_s, struct hub_result *out, struct err *err)
{
    struct counter *c = self;
    (void)wait_s, (void)err;
    if (!c->left) {
        return STATUS_AGAIN;
    }
    *out = (struct hub_result){.id = c->id++, .reward = c->asked, .why = HUB_SCORED};
    c->left--;
    return STATUS_OK;
}

static void ask_group(struct recall *r, int64_t rollout, struct sample *const *s, double want)
{
    struct hub_result x;
    assert_ok(recall_submit(r, 0, rollout, 0, s, 3, 1, &e), &e);
    for (int left = 3; left; left--) {
        int rc;
        while ((rc = recall_poll(r, 0.1, &x, &e)) == STATUS_AGAIN) {
        }
        assert_ok(rc, &e);
        assert_true(x.reward == want);
    }
}

/* Of a group all are scored together: when one has grown the others' rewards are others, too. */
static void test_group_grows(void **state)
{
    struct counter c = {0};
    struct hub_scorer scorer = {counter_submit, counter_poll, &c};
    struct hub_opts h = {.rm_type = "f1", .scorer = &scorer};
    struct sample *s[3];
    int32_t more[3] = {5, 6, 7};
    struct ask a;
    (void)state;

    for (int i = 0; i < 3; i++) {
        s[i] = sample_of(i);
    }
    ask_open(&a, "grows", 0);
    hub_close(a.hub);
    recall_free(a.r);
    assert_ok(hub_open(&h, &a.hub, &e), &e);
    a.r = recall_new(a.hub, ledger_journal(a.l), NULL);
    ask_group(a.r, 3, s, 1);
    ask_group(a.r, 4, s, 1); /* known */
    sample_set(s[2], more, 2, more, NULL, 3, 0, 1);
    ask_group(a.r, 4, s, 2);
    ask_close(&a);
    ask_open(&a, "grows", 1); /* what the samples as they are now were told, and not before */
    ask_group(a.r, 4, s, 2);
    ask_close(&a);
    for (int i = 0; i < 3; i++) {
        sample_free(s[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recalled),
        cmocka_unit_test(test_some),
        cmocka_unit_test(test_group_grows),
    };
    return cmocka_run_group_tests(tests, fakeport_setup, fakeport_teardown);
}
