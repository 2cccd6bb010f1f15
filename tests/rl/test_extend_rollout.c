/* Functions that make rollouts and give prompts: what they answered is recorded, and a run that
 * goes on, or a replay, has the same from the ledger. The functions here answer otherwise at every
 * call. */
#include "fakeport.h"

#include "base/conf.h"
#include "rl/extend.h"
#include "rl/sample.h"
#include "rl/train_opts.h"
#include "run/ledger.h"

static struct err e;
static const char functions[] =
    "import os, random\n"
    "from miles.utils.types import Sample\n"
    "def note(text):\n"
    "    with open(os.path.join(os.path.dirname(__file__), 'calls'), 'a') as out:\n"
    "        out.write(text + '\\n')\n"
    "def rollout(args, rollout_id, data_source, evaluation=False):\n"
    "    note('rollout %d %d' % (rollout_id, evaluation))\n"
    "    if evaluation:\n"
    "        return {'mine': {'rewards': [random.random()], 'truncated': [False]}}\n"
    "    groups = data_source.get_samples(2) + data_source.get_samples(1)\n"
    "    for g in groups:\n"
    "        g[0].append_response([7, 8], 'x', [-1.5, -0.1])\n"
    "        g[0].reward = random.random()\n"
    "    return groups\n"
    "class Source:\n"
    "    def __init__(self, args):\n"
    "        pass\n"
    "    def get_samples(self, n):\n"
    "        note('groups %d' % n)\n"
    "        return [[Sample(index=random.randrange(1 << 40), prompt='p')] for _ in range(n)]\n";

struct fixture {
    struct conf *conf;
    struct train_opts o;
    struct ledger *l;
    struct extend *x;
    struct extend_feed feed;
    int64_t taken;
};

static int feed_get(void *self, int64_t n, json_t **groups, struct err *err)
{
    struct fixture *f = self;
    (void)err;
    *groups = json_array();
    for (int64_t i = 0; i < n; i++) {
        struct sample *s = sample_new();
        int32_t tokens[2] = {1, 2};
        s->index = s->rollout_id = f->taken++;
        sample_set(s, tokens, 2, NULL, NULL, 0, -1, 0);
        json_array_append_new(*groups, json_pack("[o]", sample_to_json(s)));
        sample_free(s);
    }
    return STATUS_OK;
}

static char *function(const char *name)
{
    char *s = mem_alloc(512);
    snprintf(s, 512, "%s:%s", fakeport_path("fns.py"), name);
    return s;
}

/* A start of the run, or (closed) a replay. */
static void run_open(struct fixture *f, int closed)
{
    struct ledger_opts o = {.dir = fakeport_path("run"), .closed = closed};
    json_t *args = json_object();

    memset(f, 0, sizeof *f);
    f->conf = conf_new();
    conf_add(f->conf, train_opts_table, &f->o);
    assert_ok(conf_parse(f->conf, 0, NULL, &e), &e);
    f->o.rollout_function_path = function("rollout");
    f->o.eval_function_path = function("rollout");
    f->o.data_source_path = function("Source");
    assert_ok(ledger_open(&o, &f->l, &e), &e);
    assert_ok(extend_open(&(struct extend_opts){.o = &f->o, .args = args}, &f->x, &e), &e);
    assert_ok(extend_open_rollout(f->x, args, ledger_journal(f->l), &e), &e);
    f->feed = (struct extend_feed){.get = feed_get, .self = f};
    extend_set_feed(f->x, &f->feed);
    assert_true(extend_has(f->x, "rollout-function-path"));
    assert_true(extend_has(f->x, "data-source-path"));
    json_decref(args);
}

static void run_close(struct fixture *f)
{
    extend_close(f->x);
    ledger_close(f->l, "done");
    conf_free(f->conf);
}

static int calls(void)
{
    char *text = NULL;
    size_t n = 0;
    int lines = 0;
    if (fsio_read(fakeport_path("calls"), 1 << 20, &text, &n, NULL) == STATUS_OK) {
        for (size_t i = 0; i < n; i++) {
            lines += text[i] == '\n';
        }
        mem_free(text);
    }
    return lines;
}

/* The sum of the rewards of a rollout, or what an evaluation gave. */
static double made(struct fixture *f, int64_t rollout, int64_t version, int evaluation)
{
    struct extend_rolled r;
    double sum = 0;
    int rc;

    assert_ok(extend_rollout_begin(f->x, rollout, version, evaluation, &e), &e);
    while ((rc = extend_rollout_poll(f->x, evaluation, 0.2, &r, &e)) == STATUS_AGAIN) {
    }
    assert_ok(rc, &e);
    assert_int_equal(r.n, evaluation ? 0 : 3);
    for (int i = 0; i < r.n; i++) {
        assert_int_equal(r.s[i]->response_len, 2);
        sum += r.s[i]->reward;
    }
    if (evaluation) {
        const json_t *set = json_object_get(r.data, "mine");
        sum = json_number_value(json_array_get(json_object_get(set, "rewards"), 0));
    }
    extend_rolled_free(&r);
    return sum;
}

static void test_rollouts(void **state)
{
    struct fixture f;
    struct err why = {0};
    double first, second, eval;
    (void)state;
    run_open(&f, 0);
    first = made(&f, 3, 1, 0);
    eval = made(&f, 4, 1, 1);
    second = made(&f, 4, 2, 0);
    assert_int_equal(f.taken, 6);
    assert_int_equal(calls(), 3);
    assert_true(first != second);
    run_close(&f);
    /* started again: nobody is asked, and the data is as far as it was */
    run_open(&f, 0);
    assert_true(made(&f, 3, 1, 0) == first);
    assert_int_equal(f.taken, 3);
    assert_true(made(&f, 4, 1, 1) == eval);
    assert_true(made(&f, 4, 2, 0) == second);
    assert_int_equal(f.taken, 6);
    assert_int_equal(calls(), 3);
    /* with other weights it is another question */
    assert_true(made(&f, 4, 3, 0) != second);
    assert_int_equal(calls(), 4);
    run_close(&f);
    /* a replay has nobody to ask */
    run_open(&f, 1);
    assert_true(made(&f, 3, 1, 0) == first);
    assert_int_equal(extend_rollout_begin(f.x, 5, 1, 0, &why), STATUS_NOTFOUND);
    assert_non_null(strstr(why.msg, "rollout 5"));
    assert_int_equal(calls(), 4);
    run_close(&f);
}

static void test_source(void **state)
{
    struct fixture f;
    json_t *first = NULL, *second = NULL, *again = NULL;
    int before = calls();
    (void)state;
    run_open(&f, 0);
    assert_ok(extend_source_get(f.x, 2, 0, 3, &first, &e), &e);
    assert_ok(extend_source_get(f.x, 2, 1, 3, &second, &e), &e);
    assert_false(json_equal(first, second));
    run_close(&f);
    /* started again it is asked, to move on, and the recorded groups are the ones that count */
    run_open(&f, 0);
    assert_ok(extend_source_get(f.x, 2, 0, 3, &again, &e), &e);
    assert_true(json_equal(first, again));
    json_decref(again);
    assert_ok(extend_source_get(f.x, 2, 1, 3, &again, &e), &e);
    assert_true(json_equal(second, again));
    json_decref(again);
    run_close(&f);
    assert_int_equal(calls() - before, 4);
    run_open(&f, 1);
    assert_ok(extend_source_get(f.x, 2, 1, 3, &again, &e), &e);
    assert_true(json_equal(second, again));
    json_decref(again);
    assert_int_equal(extend_source_get(f.x, 2, 2, 3, &again, &e), STATUS_NOTFOUND);
    run_close(&f);
    assert_int_equal(calls() - before, 4);
    json_decref(first);
    json_decref(second);
}

static int setup(void **state)
{
    int rc = fakeport_setup(state);
    fakeport_text("fns.py", functions);
    return rc;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rollouts),
        cmocka_unit_test(test_source),
    };
    return cmocka_run_group_tests(tests, setup, fakeport_teardown);
}
