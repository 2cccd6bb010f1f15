/* The hub: which grader scores a sample, what a label is, what a failure says. */
#include "support.h"

#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "reward/hub.h"
#include "reward/textgrade.h"

static struct hub *open_type(const char *type, const char *key)
{
    struct hub_opts o = {.rm_type = type, .reward_key = key};
    struct hub *h = NULL;
    struct err e = {0};
    assert_ok(hub_open(&o, &h, &e), &e);
    return h;
}

/* One request through the hub; takes over the sample. */
static struct hub_result ask(struct hub *h, json_t *sample)
{
    struct hub_request q = {77, sample};
    struct hub_result r;
    struct err e = {0};

    assert_non_null(sample);
    assert_ok(hub_submit(h, &q, &e), &e);
    json_decref(sample);
    assert_int_equal(hub_pending(h), 1);
    assert_ok(hub_poll(h, 120, &r, &e), &e);
    assert_int_equal(hub_pending(h), 0);
    assert_int_equal(r.id, 77);
    assert_int_equal(hub_poll(h, 5, &(struct hub_result){0}, &e), STATUS_AGAIN);
    return r;
}

static void gives(struct hub *h, json_t *sample, double want)
{
    struct hub_result r = ask(h, sample);
    if (r.failed) {
        fail_msg("failed: %s", r.reason);
    }
    assert_true(r.reward == want);
    assert_true(r.reason[0] && r.why < HUB_BAD_SAMPLE);
    json_decref(r.raw);
}

/* Reward, class and reason. */
static void says(struct hub *h, json_t *sample, double want, enum hub_class why, const char *reason)
{
    struct hub_result r = ask(h, sample);
    assert_true(r.reward == want);
    assert_string_equal(hub_class_name(r.why), hub_class_name(why));
    assert_string_equal(r.reason, reason);
    json_decref(r.raw);
}

static void fails(struct hub *h, json_t *sample, const char *why)
{
    struct hub_result r = ask(h, sample);
    assert_int_equal(r.failed, 1);
    assert_true(r.why >= HUB_BAD_SAMPLE);
    assert_true(r.reward == 0);
    if (!strstr(r.reason, why)) {
        fail_msg("reason is \"%s\", not \"%s\"", r.reason, why);
    }
    json_decref(r.raw);
}

static json_t *pair(const char *response, const char *label)
{
    return json_pack("{s:s, s:s?}", "response", response, "label", label);
}

static void test_types(void **state)
{
    (void)state;
    struct hub *h = open_type("math", NULL);
    gives(h, pair("\\boxed{42}", "42"), 1);
    gives(h, pair("\\boxed{wrong}", "42"), 0);
    gives(h, pair("\\boxed{42}", NULL), 0);
    gives(h, pair("\\boxed{42}", ""), 0);
    fails(h, json_pack("{s:s}", "label", "42"), "no response");
    fails(h, json_pack("{s:s, s:[s]}", "response", "x", "label", "a"), "neither text nor a number");
    hub_close(h);
    h = open_type(" deepscaler\n", NULL);
    gives(h, pair("</think>\\boxed{42}", "42"), 1);
    gives(h, pair("\\boxed{42}", "42"), 0);
    fails(h, pair("</think>\\boxed{42}", NULL), "no label");
    hub_close(h);
    h = open_type("f1", NULL);
    gives(h, pair("hello world", "hello world"), 1);
    gives(h, pair("hello", "hello world"), 2.0 / 3.0);
    hub_close(h);
    h = open_type("boxed_f1", NULL);
    gives(h, pair("Final answer is \\boxed{hello world}", "hello world"), 1);
    gives(h, pair("hello world", "hello world"), 0);
    hub_close(h);
    h = open_type("random", NULL);
    int ones = 0;
    for (int i = 0; i < 200; i++) {
        struct hub_result r = ask(h, json_pack("{s:s, s:i}", "response", "x", "index", i));
        assert_true(r.reward == 0 || r.reward == 1);
        ones += r.reward == 1;
        assert_true(ask(h, json_pack("{s:s, s:i}", "response", "x", "index", i)).reward ==
                    r.reward);
    }
    assert_true(ones > 60 && ones < 140);
    hub_close(h);
}

/* Labels that are numbers in the data. */
static void test_label_numbers(void **state)
{
    (void)state;
    struct hub *h = open_type("math", NULL);
    gives(h, json_pack("{s:s, s:i}", "response", "\\boxed{0}", "label", 0), 1);
    gives(h, json_pack("{s:s, s:i}", "response", "\\boxed{1}", "label", 0), 0);
    gives(h, json_pack("{s:s, s:f}", "response", "\\boxed{0}", "label", 0.0), 1);
    gives(h, json_pack("{s:s, s:i}", "response", "\\boxed{123}", "label", 123), 1);
    gives(h, json_pack("{s:s, s:f}", "response", "\\boxed{3.14}", "label", 3.14), 1);
    gives(h, json_pack("{s:s, s:f}", "response", "\\boxed{1/2}", "label", 0.5), 1);
    gives(h, json_pack("{s:s, s:f}", "response", "\\boxed{2}", "label", 2.0), 1);
    gives(h,
          json_pack("{s:s, s:I}", "response", "\\boxed{-9007199254740993}", "label",
                    (json_int_t)-9007199254740993LL),
          1);
    hub_close(h);
    /* str(float) as Python has it: F1 of one word is equality of the text */
    h = open_type("boxed_f1", NULL);
    gives(h, json_pack("{s:s, s:f}", "response", "\\boxed{0.1}", "label", 0.1), 1);
    gives(h, json_pack("{s:s, s:f}", "response", "\\boxed{2.0}", "label", 2.0), 1);
    gives(h, json_pack("{s:s, s:f}", "response", "\\boxed{1e+22}", "label", 1e22), 1);
    gives(h, json_pack("{s:s, s:f}", "response", "\\boxed{1e-05}", "label", 1e-5), 1);
    gives(h, json_pack("{s:s, s:f}", "response", "\\boxed{0.0001}", "label", 1e-4), 1);
    gives(h, json_pack("{s:s, s:f}", "response", "\\boxed{123456.789}", "label", 123456.789), 1);
    gives(h,
          json_pack("{s:s, s:f}", "response", "\\boxed{1234567890123456.0}", "label",
                    1234567890123456.0),
          1);
    gives(h,
          json_pack("{s:s, s:f}", "response", "\\boxed{1.2345678901234568e+16}", "label",
                    12345678901234568.0),
          1);
    gives(h,
          json_pack("{s:s, s:f}", "response", "\\boxed{0.30000000000000004}", "label", 0.1 + 0.2),
          1);
    gives(h, json_pack("{s:s, s:b}", "response", "\\boxed{True}", "label", 1), 1);
    hub_close(h);
}

static void test_deterministic_random(void **state)
{
    (void)state;
    struct hub *h = open_type("deterministic_random", NULL);
    gives(h, json_pack("{s:s, s:[i,i,i]}", "response", "hello", "tokens", 1, 2, 3), 0);
    gives(h, json_pack("{s:s, s:[i,i]}", "response", "hello world", "tokens", 10, 20), 1);
    fails(h, json_pack("{s:s, s:[s]}", "response", "hello", "tokens", "1"), "not an integer");
    hub_close(h);
}

/* Who reads tokens must get them: the type of the sample decides. */
static void test_reads_tokens(void **state)
{
    json_t *plain = pair("x", "x");
    json_t *own = json_pack("{s:s,s:{s:s}}", "response", "x", "metadata", "rm_type",
                            "boxed_deterministic_random");
    struct hub *h = open_type("math", NULL);
    (void)state;

    assert_int_equal(hub_reads_tokens(h, plain), 0);
    assert_int_equal(hub_reads_tokens(h, own), 1);
    hub_close(h);
    h = open_type("deterministic_random", NULL);
    assert_int_equal(hub_reads_tokens(h, plain), 1);
    hub_close(h);
    h = open_type(NULL, NULL);
    assert_int_equal(hub_reads_tokens(h, plain), 1); /* it names no type: let the hub say so */
    hub_close(h);
    json_decref(plain);
    json_decref(own);
}

static void test_choice(void **state)
{
    (void)state;
    struct hub *h = open_type(NULL, NULL);
    gives(h,
          json_pack("{s:s,s:s,s:{s:s}}", "response", "\\boxed{42}", "label", "42", "metadata",
                    "rm_type", "math"),
          1);
    gives(h,
          json_pack("{s:s,s:s,s:{s:s}}", "response", "hello", "label", "hello", "metadata",
                    "rm_type", " f1 "),
          1);
    fails(h, pair("x", "x"), "no reward is named");
    fails(h,
          json_pack("{s:s,s:s,s:{s:s}}", "response", "a", "label", "a", "metadata", "rm_type",
                    "unknown_type"),
          "unknown reward type \"unknown_type\"; known are math, deepscaler");
    hub_close(h);
    h = open_type("math", NULL);
    gives(h,
          json_pack("{s:s,s:s,s:{s:s}}", "response", "hello", "label", "hello", "metadata",
                    "rm_type", "f1"),
          1);
    gives(h,
          json_pack("{s:s,s:s,s:{s:s},s:{s:s}}", "response", "hello", "label", "hello", "metadata",
                    "rm_type", "math", "reward_spec", "rm_type", "f1"),
          1);
    gives(h,
          json_pack("{s:s,s:s,s:{s:s}}", "response", "\\boxed{1}", "label", "1", "metadata",
                    "rm_type", ""),
          1);
    gives(h, json_pack("{s:s,s:s,s:[s]}", "response", "\\boxed{1}", "label", "1", "metadata", "x"),
          1);
    fails(h,
          json_pack("{s:s,s:s,s:{s:s}}", "response", "a", "label", "a", "reward_spec",
                    "custom_rm_path", "a.b"),
          "names a reward function, a.b, which is not allowed");
    json_t *list = json_array();
    struct hub_request q = {1, list};
    struct err e = {0};
    assert_int_equal(hub_submit(h, &q, &e), STATUS_INPUT);
    json_decref(list);
    hub_close(h);
    hub_close(NULL);

    struct hub_opts o = {.rm_type = "mth"};
    h = NULL;
    assert_int_equal(hub_open(&o, &h, &e), STATUS_INPUT);
    assert_null(h);
    assert_non_null(strstr(e.msg, "\"mth\""));
    assert_non_null(strstr(e.msg, "deterministic_random"));
    o.rm_type = "boxed_";
    assert_int_equal(hub_open(&o, &h, &e), STATUS_INPUT);
    o.rm_type = "remote_rm";
    assert_int_equal(hub_open(&o, &h, &e), STATUS_INPUT);
    assert_string_equal(e.msg, "the reward type remote_rm needs --rm-url");
    o.rm_url = "localhost:80";
    assert_int_equal(hub_open(&o, &h, &e), STATUS_INPUT);
    assert_string_equal(e.msg, "--rm-url: localhost:80 is no http:// or https:// address");
    assert_int_equal(hub_type_check(" boxed_gpqa ", &e), 0);
    assert_int_equal(hub_type_check("gpqb", &e), STATUS_INPUT);
}

/* Every verdict has its reason: of one line, valid, and not longer than its place. */
static void test_reasons(void **state)
{
    (void)state;
    struct hub *h = open_type("math", NULL);
    char far[3000];

    says(h, pair("\\boxed{3}", "4"), 0, HUB_WRONG, "math: different by algebra: 3 != 4");
    says(h, pair("\\boxed{0.5}", "\\frac{1}{2}"), 1, HUB_RIGHT,
         "math: equal text in the first normal form: \\frac{1}{2}");
    says(h, pair("4", "4"), 0, HUB_NO_ANSWER, "math: no closed \\boxed{} in the answer");
    says(h, pair("\\boxed{}", "4"), 0, HUB_NO_ANSWER, "math: the answer is empty");
    memset(far, 'x', sizeof far);
    memcpy(far, "\\boxed{", 7);
    for (int i = 7; i + 3 < (int)sizeof far; i += 2) {
        memcpy(far + i, "\xc3\xa9", 2);
    }
    memcpy(far + sizeof far - 2, "}", 2);
    memcpy(far + sizeof far - 3, "}}", 3);
    struct hub_result r = ask(h, pair(far, "4"));
    assert_non_null(strstr(r.reason, "math: "));
    json_t *text = json_string(r.reason);
    assert_non_null(text);
    json_decref(text);
    hub_close(h);
    h = open_type("deepscaler", NULL);
    says(h, pair("\\boxed{4}", "4"), 0, HUB_NO_ANSWER,
         "deepscaler: neither </think> nor ###Response in the answer");
    says(h, pair("</think>\\boxed{4}", "4"), 1, HUB_RIGHT,
         "deepscaler: equal text in the first normal form: 4");
    hub_close(h);
    h = open_type("math_equal", NULL); /* in a thread, without being asked for one */
    gives(h, pair("so \\boxed{\\frac{2}{4}}", "0.5"), 1);
    gives(h, pair("so \\boxed{3}", "4"), 0);
    fails(h, pair("\\boxed{3}", NULL), "no label");
    struct hub_result m = ask(h, pair("nothing", "4"));
    assert_true(!m.failed && m.why == HUB_NO_ANSWER);
    hub_close(h);
    h = open_type("dapo", "score");
    says(h, pair("Answer: 41", "42"), -1, HUB_WRONG, "dapo: 41 is not 42");
    says(h, pair("Answer: 42", "42"), 1, HUB_RIGHT, "dapo: 42 is 42");
    for (int i = 90; i < 110; i++) { /* a label that is cut somewhere in a character */
        char label[300];
        memset(label, 'x', (size_t)i);
        memcpy(label + i, "\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac", 13);
        struct hub_result c = ask(h, pair("Answer: 1", label));
        json_t *whole = json_string(c.reason);
        assert_true(c.failed && whole);
        json_decref(whole);
    }
    says(h, pair("42", "42"), -1, HUB_NO_ANSWER,
         "dapo: no \"Answer: ...\" in the last 300 characters");
    hub_close(h);
    h = open_type("f1", NULL);
    says(h, pair("hello", "hello world"), 2.0 / 3.0, HUB_PARTIAL,
         "f1: 1 words in common, of 1 in the response and 2 in the label");
    says(h, pair("yes", "no"), 0, HUB_WRONG, "f1: yes, no and noanswer must be met exactly");
    says(h, pair(" the ", "no"), 0, HUB_WRONG, "f1: yes, no and noanswer must be met exactly");
    says(h, pair(" the ", "cat"), 0, HUB_NO_ANSWER, "f1: no words in the response");
    hub_close(h);
    h = open_type("gpqa", NULL);
    says(h, pair("The answer is B", "C"), 0, HUB_WRONG, "gpqa: B is not C");
    fails(h, pair("The answer is B", NULL), "tell the right answer");
    hub_close(h);
    h = open_type("deterministic_random", NULL);
    says(h, json_pack("{s:s, s:[i,i,i]}", "response", "hello", "tokens", 1, 2, 3), 0, HUB_SCORED,
         "deterministic_random: the hash begins with byte 218");
    hub_close(h);
}

/* A Python that has sympy; 0 when there is none. */
static int find_sympy(char *out, size_t size)
{
    const char *oracles = getenv("MILES_ORACLES"), *home = getenv("HOME");
    char cmd[700];

    for (int i = 0; i < 3; i++) {
        snprintf(out, size, "%.500s%s",
                 i == 0   ? (oracles ? oracles : "")
                 : i == 1 ? home
                          : "python3",
                 i == 0   ? "/bin/python"
                 : i == 1 ? "/.cache/miles/oracles/bin/python"
                          : "");
        snprintf(cmd, sizeof cmd, "'%s' -c 'import sympy' 2>/dev/null", out);
        if (system(cmd) == 0) {
            return 1;
        }
    }
    return 0;
}

/* What only algebra decides is asked of sympy; without it there is no reward, never a guess. */
static void test_algebra(void **state)
{
    (void)state;
    char python[600];
    struct hub_opts o = {.rm_type = "math", .python = "/nowhere/python"};
    struct hub *h = NULL;
    struct err e = {0};

    assert_ok(hub_open(&o, &h, &e), &e);
    for (int i = 0; i < 2; i++) {
        fails(h, pair("\\boxed{x*(x-1)!}", "x!"), "math: needs algebra");
    }
    gives(h, pair("\\boxed{3}", "3"), 1);
    hub_close(h);
    if (!find_sympy(python, sizeof python)) {
        print_message("SKIP: no Python with sympy\n");
        return;
    }
    o.python = python;
    for (int threads = 0; threads < 2; threads++) {
        o.threads = threads;
        assert_ok(hub_open(&o, &h, &e), &e);
        gives(h, pair("\\boxed{x*(x-1)!}", "x!"), 1);
        gives(h, pair("\\boxed{[2^x,x!]}", "[2^y,y!]"), 0);
        gives(h, pair("\\boxed{3}", "3"), 1);
        for (int i = 0; i < 40; i++) { /* half of them ask, one question twenty times */
            json_t *s = pair(i % 2 ? "\\boxed{x*(x-1)!}" : "\\boxed{7}", i % 2 ? "x!" : "8");
            assert_ok(hub_submit(h, &(struct hub_request){i, s}, &e), &e);
            json_decref(s);
        }
        for (int i = 0; i < 40; i++) {
            struct hub_result r;
            assert_ok(hub_poll(h, 120, &r, &e), &e);
            assert_true(!r.failed && r.reward == (double)(r.id % 2));
        }
        assert_int_equal(hub_pending(h), 0);
        json_t *s = pair("\\boxed{y*(y-1)!}", "y!");
        assert_ok(hub_submit(h, &(struct hub_request){1, s}, &e), &e);
        json_decref(s);
        hub_close(h); /* with a question in it */
    }
}

/* The same verdicts in threads; every request has one result. */
static void test_threads(void **state)
{
    (void)state;
    struct hub_opts o = {.rm_type = "f1", .threads = 3};
    struct hub *h = NULL;
    struct err e = {0};
    struct hub_result r;
    char seen[500] = {0};

    assert_ok(hub_open(&o, &h, &e), &e);
    for (int i = 0; i < 500; i++) {
        json_t *s = pair(i % 2 ? "a cat" : "a dog", "cat");
        assert_ok(hub_submit(h, &(struct hub_request){i, s}, &e), &e);
        json_decref(s);
    }
    assert_int_equal(hub_pending(h), 500);
    for (int i = 0; i < 500; i++) {
        assert_ok(hub_poll(h, 60, &r, &e), &e);
        assert_true(r.reward == (double)(r.id % 2));
        assert_int_equal(seen[r.id]++, 0);
    }
    assert_int_equal(hub_pending(h), 0);
    for (int i = 0; i < 100; i++) { /* closed with work in it */
        json_t *s = pair("a cat", "cat");
        assert_ok(hub_submit(h, &(struct hub_request){i, s}, &e), &e);
        json_decref(s);
    }
    hub_close(h);
}

static void dapo_form_is(const char *s, const char *want)
{
    char *got = textgrade_dapo_form(s);
    if (strcmp(got, want) != 0) {
        fail_msg("%s becomes %s, not %s", s, got, want);
    }
    mem_free(got);
}

static void test_dapo(void **state)
{
    (void)state;
    static const char *const forms[][2] = {
        {"42", "42"},
        {"  42  ", "42"},
        {"\\text{hello}", "hello"},
        {"\\textbf{bold}", "bold"},
        {"x = 42", "42"},
        {"100 square", "100"},
        {"$50$ dollars", "50"},
        {"\\boxed{42}", "42"},
        {"\\frac12", "\\frac{1}{2}"},
        {"\\sqrt3", "\\sqrt{3}"},
        {"1,000", "1000"},
        {"<|im_end|>", ""},
        {"\\frac1{72}", "\\frac{1}{{}72}"},
        {"\\frac{1}{72}", "\\frac{1}{72}"},
        {"so $x$ and $y$", "x"},
        {"\\boxed{a}b}", "a}b"}, /* to the last brace */
        {"10,00,", "1000"},
        {",", ","},
        {"5^{\\circ}", "5"},
        {"12\\text{ and }13", "1213"},
        {"3\\mbox{cm}", "3"},
        {"\\overline{AB}", "AB"},
        {"sqrt", "sqrt"},
        {"frac1", "frac1"},
        {"", ""},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        dapo_form_is(forms[i][0], forms[i][1]);
    }
    struct hub *h = open_type("dapo", "score");
    gives(h, pair("Answer: 42", "42"), 1);
    gives(h, pair("Answer: 100", "42"), -1);
    gives(h, pair("Answer: wrong", "42"), -1);
    gives(h, pair("answer :\n\n 42\nmore", "42"), 1);
    gives(h, pair("Answer: 42.0", "42"), -1);
    gives(h, pair("Answer: 42", "42.9"), 1);
    gives(h, pair("Answer: -3", "-3.7"), 1);
    gives(h, pair("Answer: 0", "-0.5"), 1);
    gives(h, pair("Answer: 1", "1e0"), 1);
    gives(h, pair("Final Answer: 42 Answer: 43", "43"), -1);
    gives(h, pair("Answer: 41\nAnswer: 42", "42"), 1);
    gives(h, pair("no such line", "42"), -1);
    gives(h, pair("Answer:", "42"), -1);
    gives(h, pair("Answer: ", "42"), -1);
    gives(h, pair("", "42"), -1);
    gives(h, json_pack("{s:s, s:i}", "response", "Answer: 7", "label", 7), 1);
    fails(h, pair("Answer: 42", "forty"), "the label forty is not a number");
    fails(h, pair("Answer: 42", NULL), "no label");
    char far[600];
    memset(far, 'x', sizeof far);
    memcpy(far, "Answer: 42\n", 11);
    far[sizeof far - 1] = 0;
    gives(h, pair(far, "42"), -1); /* farther than 300 characters from the end */
    memcpy(far + 599 - 300, "Answer: 42\n", 11);
    gives(h, pair(far, "42"), 1);
    struct hub_result r = ask(h, pair("Final Answer: 42 Answer: 43", "43"));
    assert_string_equal(json_string_value(json_object_get(r.raw, "pred")), "42Answer:43");
    assert_true(json_is_false(json_object_get(r.raw, "acc")));
    assert_true(json_real_value(json_object_get(r.raw, "score")) == -1.0);
    json_decref(r.raw);
    hub_close(h);
    h = open_type("dapo", NULL);
    fails(h, pair("Answer: 42", "42"), "give --reward-key");
    hub_close(h);
    h = open_type("dapo", "pred");
    fails(h, pair("Answer: 42", "42"), "no number under the key pred");
    hub_close(h);
    h = open_type("dapo", "acc");
    gives(h, pair("Answer: 42", "42"), 1);
    hub_close(h);
}

static void f1_is(const char *a, const char *b, double want)
{
    struct textgrade_words w;
    double got = textgrade_f1(a, b, &w);
    if (got != want) {
        fail_msg("%s against %s gives %.17g, not %.17g", a, b, got, want);
    }
}

static void test_f1(void **state)
{
    (void)state;
    f1_is("hello world", "hello world", 1);
    f1_is("hello world foo", "hello world bar", 2 * (2.0 / 3) * (2.0 / 3) / (2.0 / 3 + 2.0 / 3));
    f1_is("abc", "xyz", 0);
    f1_is("yes", "no", 0);
    f1_is("no", "yes", 0);
    f1_is("yes", "yes", 1);
    f1_is("noanswer", "yes", 0);
    f1_is("yes indeed", "yes", 0);
    f1_is("the answer is correct", "answer is correct", 1);
    f1_is("hello, world!", "hello world", 1);
    f1_is("hello", "hello world", 2 * 1.0 * 0.5 / 1.5);
    f1_is("The quick", "quick", 1);
    f1_is("A cat and a dog", "cat and dog", 1);
    f1_is("UPPER \xc3\x89t\xc3\xa9", "upper \xc3\xa9t\xc3\xa9", 1);
    f1_is("a a a", "a", 0);
    f1_is("", "", 0);
    f1_is("x x y", "x y y", 2 * (2.0 / 3) * (2.0 / 3) / (2.0 / 3 + 2.0 / 3));
    f1_is("the\xe2\x80\x94"
          "cat",
          "\xe2\x80\x94"
          "cat",
          1); /* an article next to a dash */
    f1_is("theory", "ory", 0);
    f1_is("a\xc2\xa0"
          "b c",
          "b c", 1);
    f1_is("x\xff y", "y x\xff", 1);
}

static void test_queue(void **state)
{
    (void)state;
    struct hub *h = open_type("math", NULL);
    json_t *s = pair("\\boxed{1}", "1");
    struct err e = {0};
    struct hub_result r;
    int64_t n = 0;
    int rc;

    for (;; n++) {
        struct hub_request q = {n, s};
        rc = hub_submit(h, &q, &e);
        if (rc != 0) {
            break;
        }
        assert_true(n < 100000);
    }
    assert_int_equal(rc, STATUS_AGAIN);
    assert_int_equal(hub_pending(h), n);
    for (int64_t i = 0; i < n - 10; i++) {
        assert_ok(hub_poll(h, 0, &r, &e), &e);
        assert_int_equal(r.id, i);
    }
    json_decref(s);
    hub_close(h); /* with ten results in it */
}

static void test_custom(void **state)
{
    (void)state;
    char dir[] = "/tmp/miles_hub_XXXXXX", path[300];
    const char *text = "def f(args, sample):\n"
                       "    return eval(sample.response)\n";
    struct err e = {0};
    struct hub *h = NULL;

    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/mine.py", dir);
    assert_ok(fsio_write_atomic(path, text, strlen(text), &e), &e);
    snprintf(path, sizeof path, "%s/mine.py:f", dir);
    json_t *args = json_pack("{s:s}", "rm_type", "none_such");
    struct hub_opts o = {.rm_type = "none_such", /* a custom function wins */
                         .custom_rm_path = path,
                         .reward_key = "score",
                         .workers = 2,
                         .timeout_s = 10,
                         .args = args};
    assert_ok(hub_open(&o, &h, &e), &e);
    gives(h, pair("1.5", NULL), 1.5);
    gives(h, pair("True", NULL), 1);
    gives(h, pair("{'score': 0.25, 'x': 'y'}", NULL), 0.25);
    gives(h, pair("{'score': True}", NULL), 1);
    gives(h, pair("args.rm_type == 'none_such'", NULL), 1);
    fails(h, pair("{'points': 3}", NULL), "a dict without the key score");
    fails(h, pair("{'score': None}", NULL), "no number under the key score");
    fails(h, pair("1/0", NULL), "ZeroDivisionError: division by zero");
    struct hub_result r = ask(h, pair("{'score': 2, 'why': [1, 2]}", NULL));
    assert_int_equal(json_array_size(json_object_get(r.raw, "why")), 2);
    json_decref(r.raw);
    r = ask(h, pair("3", NULL));
    assert_null(r.raw);
    hub_close(h);
    o.reward_key = NULL;
    assert_ok(hub_open(&o, &h, &e), &e);
    fails(h, pair("{'score': 1}", NULL), "give --reward-key");
    hub_close(h);
    snprintf(path, sizeof path, "%s/mine.py:g", dir);
    assert_int_equal(hub_open(&o, &h, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "has no function g"));
    json_decref(args);
    assert_ok(fsio_remove_tree(dir, &e), &e);
    errno = 0;
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_label_numbers),
        cmocka_unit_test(test_deterministic_random),
        cmocka_unit_test(test_reads_tokens),
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_reasons),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_dapo),
        cmocka_unit_test(test_f1),
        cmocka_unit_test(test_queue),
        cmocka_unit_test(test_custom),
        cmocka_unit_test(test_algebra),
    };
    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
