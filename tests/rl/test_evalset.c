/* Evaluation sets: what a set says, what it inherits and in which order, and what a wrong file is
 * told. */
#include "support.h"

#include "base/conf.h"
#include "base/mem.h"
#include "base/status.h"
#include "rl/evalset.h"
#include "rl/train_opts.h"

static struct err e;

struct opts {
    struct conf *conf;
    struct train_opts o;
};

static void open_opts(struct opts *t, const char *const *more)
{
    const char *argv[48] = {"--hf-checkpoint",
                            "x",
                            "--prompt-data",
                            "x",
                            "--num-rollout",
                            "1",
                            "--rollout-batch-size",
                            "1",
                            "--rollout-max-response-len",
                            "100",
                            "--rollout-temperature",
                            "0.9",
                            "--rollout-top-k",
                            "7",
                            "--label-key",
                            "label",
                            "--eval-top-p",
                            "0.5",
                            "--rollout-stop-token-ids",
                            "4",
                            "5"};
    int argc = 21;
    memset(t, 0, sizeof *t);
    for (; *more; more++) {
        argv[argc++] = *more;
    }
    t->conf = conf_new();
    conf_add(t->conf, train_opts_table, &t->o);
    assert_ok(conf_parse(t->conf, argc, (char *const *)(uintptr_t)argv, &e), &e);
    assert_ok(train_opts_validate(&t->o, &e), &e);
}

static int parse(const struct opts *t, const char *text, struct evalset **s, int *n)
{
    json_t *root = json_loads(text, 0, NULL);
    int rc;
    assert_non_null(root);
    rc = evalset_parse(&t->o, root, "sets.yaml", s, n, &e);
    json_decref(root);
    return rc;
}

static void inherits(void **state)
{
    static const char text[] =
        "{\"eval\":{\"defaults\":{\"n_samples_per_eval_prompt\":4,\"max_response_len\":50,"
        "\"temperature\":0.6,\"metadata_overrides\":{\"a\":1}},\"datasets\":["
        "{\"name\":\"math\",\"path\":\"m.jsonl\",\"rm_type\":\"math\",\"temperature\":0,"
        "\"stop_token_ids\":[9],\"label_key\":\"answer\",\"metadata_overrides\":{\"b\":\"c\"}},"
        "{\"name\":\"add\",\"path\":\"a.jsonl\",\"max_response_len\":\"20\",\"top_k\":-1,"
        "\"top_p\":null}]}}";
    const char *none[] = {NULL};
    struct evalset *s = NULL;
    struct opts t;
    char *meta;
    int n = 0;
    (void)state;
    open_opts(&t, none);
    assert_ok(parse(&t, text, &s, &n), &e);
    assert_int_equal(n, 2);
    assert_string_equal(s[0].name, "math");
    assert_string_equal(s[0].path, "m.jsonl");
    assert_string_equal(s[0].label_key, "answer");
    assert_string_equal(s[0].input_key, "input");
    assert_int_equal(s[0].n, 4);
    assert_true(s[0].temperature == 0.0);
    assert_true(s[0].top_p == 0.5);
    assert_int_equal(s[0].top_k, 7);
    assert_int_equal(s[0].max_response_len, 50);
    assert_int_equal(s[0].nstop, 1);
    assert_int_equal(s[0].stop[0], 9);
    meta = json_dumps(s[0].metadata, JSON_SORT_KEYS | JSON_COMPACT);
    assert_string_equal(meta, "{\"a\":1,\"b\":\"c\",\"rm_type\":\"math\"}");
    free(meta);
    assert_string_equal(s[1].label_key, "label");
    assert_true(s[1].temperature == 0.6);
    assert_true(s[1].top_p == 0.5);
    assert_int_equal(s[1].top_k, -1);
    assert_int_equal(s[1].max_response_len, 20);
    assert_int_equal(s[1].nstop, 2);
    assert_int_equal(s[1].stop[1], 5);
    evalset_free(s, n);
    /* a mapping by name, without the outer key */
    assert_ok(parse(&t, "{\"datasets\":{\"b\":{\"path\":\"1\"},\"a\":{\"path\":\"2\"}}}", &s, &n),
              &e);
    assert_int_equal(n, 2);
    assert_string_equal(s[0].name, "b"); /* in the order of the file */
    assert_string_equal(s[1].name, "a");
    assert_true(s[0].temperature == 0.9);
    assert_null(s[0].metadata);
    evalset_free(s, n);
    conf_free(t.conf);
}

static void pairs(void **state)
{
    const char *args[] = {"--eval-prompt-data", "one", "1.jsonl", "two", "2.jsonl", NULL};
    struct evalset *s = NULL;
    struct opts t;
    int n = 0;
    (void)state;
    open_opts(&t, args);
    assert_ok(evalset_read(&t.o, &s, &n, &e), &e);
    assert_int_equal(n, 2);
    assert_string_equal(s[1].name, "two");
    assert_string_equal(s[1].path, "2.jsonl");
    assert_int_equal(s[1].n, 1);
    evalset_free(s, n);
    conf_free(t.conf);
}

static void refusals(void **state)
{
    static const struct {
        const char *text, *said;
        int rc;
    } bad[] = {
        {"{}", "datasets has no entries", STATUS_INPUT},
        {"{\"datasets\":[]}", "datasets has no entries", STATUS_INPUT},
        {"{\"sets\":[]}", "sets is neither defaults nor datasets", STATUS_INPUT},
        {"{\"datasets\":[{\"path\":\"x\"}]}", "dataset without a name: it has no name",
         STATUS_INPUT},
        {"{\"datasets\":[{\"name\":\"x\"}]}", "dataset x: it has no path", STATUS_INPUT},
        {"{\"datasets\":[5]}", "it is not a mapping", STATUS_INPUT},
        {"{\"datasets\":[{\"name\":\"x\",\"path\":\"p\",\"temprature\":1}]}",
         "temprature is none of", STATUS_INPUT},
        {"{\"datasets\":[{\"name\":\"x\",\"path\":\"p\",\"temperature\":\"hot\"}]}",
         "temperature is not a number", STATUS_INPUT},
        {"{\"datasets\":[{\"name\":\"x\",\"path\":\"p\",\"top_p\":2}]}", "top_p is 2",
         STATUS_INPUT},
        {"{\"datasets\":[{\"name\":\"x\",\"path\":\"p\",\"top_k\":0}]}", "top_k 0", STATUS_INPUT},
        {"{\"datasets\":[{\"name\":\"x\",\"path\":\"p\",\"max_response_len\":1.5}]}",
         "not a whole number", STATUS_INPUT},
        {"{\"defaults\":{\"foo\":1},\"datasets\":[{\"name\":\"x\",\"path\":\"p\"}]}",
         "defaults: foo", STATUS_INPUT},
        {"{\"datasets\":[{\"name\":\"x\",\"path\":\"p\"},{\"name\":\"x\",\"path\":\"p\"}]}",
         "dataset x is there twice", STATUS_INPUT},
        {"{\"datasets\":[{\"name\":\"x\",\"path\":\"p\",\"min_new_tokens\":3}]}",
         "not supported yet", STATUS_UNSUPPORTED},
        {"{\"datasets\":[{\"name\":\"x\",\"path\":\"p\",\"stop_token_ids\":[-1]}]}",
         "stop_token_ids is -1", STATUS_INPUT},
    };
    const char *none[] = {NULL};
    struct opts t;
    (void)state;
    open_opts(&t, none);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct evalset *s = NULL;
        int n = 0, rc = parse(&t, bad[i].text, &s, &n);
        if (rc != bad[i].rc || !strstr(e.msg, bad[i].said) || !strstr(e.msg, "sets.yaml")) {
            fail_msg("%s: %d, %s", bad[i].text, rc, e.msg);
        }
    }
    conf_free(t.conf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(inherits), cmocka_unit_test(pairs),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
