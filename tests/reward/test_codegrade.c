/* The program of a response, the forms of tests, rewards and their reasons. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/proc.h"
#include "base/status.h"
#include "reward/codegrade.h"
#include "reward/hub.h"

static struct codegrade *all_or_none, *share;

static int open_both(void **state)
{
    struct codegrade_opts o = {.workers = 2, .limits = {.wall_s = 20}};
    struct err e = {0};
    int rc = codegrade_open(&o, &all_or_none, &e);

    (void)state;
    o.share = 1;
    rc = rc ? rc : codegrade_open(&o, &share, &e);
    if (rc != 0) {
        fprintf(stderr, "skipped: %s\n", e.msg);
        _exit(rc == STATUS_NOTFOUND || rc == STATUS_UNSUPPORTED ? 77 : 1);
    }
    return 0;
}

static int close_both(void **state)
{
    (void)state;
    codegrade_close(all_or_none);
    codegrade_close(share);
    return 0;
}

static void program_is(const char *response, const char *want)
{
    const char *p = NULL;
    size_t n = 0;
    int found = codegrade_program(response, strlen(response), &p, &n);

    if (!want) {
        assert_false(found);
        return;
    }
    assert_true(found);
    assert_int_equal(n, strlen(want));
    assert_memory_equal(p, want, n);
}

static void test_program(void **state)
{
    (void)state;
    program_is("text\n```python\nprint(1)\n```\nmore", "print(1)\n");
    program_is("```python\na\n```\n```py\nb\n```", "b\n");
    program_is("```python\na\n```\n```\nb\n```", "a\n");
    program_is("```\na\n```\n```cpp\nb\n```", "a\n");
    program_is("```python\na\n```\n</think>no code", NULL);
    program_is("```python\na\n```\n</think>\n```python3\nb\n```", "b\n");
    program_is("```python\nnot closed", NULL);
    program_is("```cpp\nint x;\n```", NULL);
    program_is("  ```Python \r\nx = 1\r\n  ```", "x = 1\r\n");
    program_is("````python\n```\nx\n```\n````", "```\nx\n```\n");
    program_is("```python\n```", "");
    program_is("", NULL);
}

static struct codegrade_result grade(struct codegrade *c, const char *response, const char *label,
                                     const char *metadata)
{
    json_t *sample = json_object();
    struct codegrade_result r;
    struct err e = {0};
    int rc;

    json_object_set_new(sample, "response", json_string(response));
    json_object_set_new(sample, "label",
                        label && *label == '=' ? json_loads(label + 1, 0, NULL)
                        : label                ? json_string(label)
                                               : json_null());
    if (metadata) {
        json_object_set_new(sample, "metadata", json_loads(metadata, 0, NULL));
    }
    rc = codegrade_submit(c, &r, sample, &e);
    json_decref(sample);
    if (rc != 0) {
        memset(&r, 0, sizeof r);
        r.failed = 2;
        snprintf(r.reason, sizeof r.reason, "%.255s", e.msg);
        return r;
    }
    while ((rc = codegrade_poll(c, 30, &r, &e)) == STATUS_AGAIN) {
    }
    assert_int_equal(rc, 0);
    return r;
}

#define FENCE(code) "Here:\n```python\n" code "\n```\n"
#define ADD         FENCE("a, b = map(int, input().split())\nprint(a + b)")

static void test_forms(void **state)
{
    static const struct {
        const char *response, *label, *metadata;
        double reward;
    } t[] = {
        {ADD, "{\"inputs\": [\"1 2\\n\", \"3 4\"], \"outputs\": [\"3\\n\", \"7\"]}", NULL, 1},
        {ADD, "={\"inputs\": [\"1 2\\n\"], \"outputs\": [\"4\"]}", NULL, 0},
        {ADD, "={\"inputs\": [[\"1 2\"]], \"outputs\": [[\"3\"]]}", NULL, 1},
        {ADD, "=[{\"input\": \"1 2\", \"output\": \"3\", \"testtype\": \"stdin\"}]", NULL, 1},
        {ADD, "=[{\"input\": \"1 2\", \"expected_output\": \"5\"}]", NULL, 0},
        {ADD, NULL, "{\"tests\": {\"inputs\": [\"1 2\"], \"outputs\": [\"3\"]}}", 1},
        {ADD, NULL,
         "{\"input_output\": \"{\\\"inputs\\\": [\\\"1 2\\\"], \\\"outputs\\\": [\\\"3\\\"]}\"}",
         1},
        {FENCE("def f(a, b): return a * b"),
         "={\"inputs\": [[2, 3], [4, 5]], \"outputs\": [6, 20], \"fn_name\": \"f\"}", NULL, 1},
        {FENCE("def f(a, b): return a * b"),
         "=[{\"input\": \"2\\n3\", \"output\": \"6\", \"testtype\": \"functional\", \"metadata\": "
         "{\"func_name\": \"f\"}}]",
         NULL, 1},
        {FENCE("class Solution:\n    def f(self, x: List[int]) -> str: return 'a' * len(x)"),
         "=[{\"input\": \"[1, 2]\", \"output\": \"\\\"aa\\\"\", \"testtype\": \"functional\", "
         "\"metadata\": {\"func_name\": \"f\"}}]",
         NULL, 1},
        {FENCE("def f(x): return x + 1"), "assert f(1) == 2\nassert f(2) == 3", NULL, 1},
        {FENCE("def f(x): return x + 1"), "=[\"assert f(1) == 2\", \"assert f(2) == 4\"]", NULL, 0},
        {FENCE("def f(x): return x + 1"), NULL, "{\"test_list\": [\"assert f(1) == 2\"]}", 1},
        {FENCE("def f(x): return x + 1"),
         "={\"test\": \"def check(candidate):\\n    assert candidate(1) == 2\", "
         "\"entry_point\": \"f\"}",
         NULL, 1},
        {"I cannot do that.", "assert f(1) == 2", NULL, 0},
        {FENCE("import time\ntime.sleep(9)"), "={\"inputs\": [\"\"], \"outputs\": [\"\"]}",
         "{\"time_limit\": 0.1}", 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct codegrade_result r = grade(all_or_none, t[i].response, t[i].label, t[i].metadata);
        if (r.failed || r.reward != t[i].reward) {
            print_error("case %zu: failed %d reward %g: %s\n", i, r.failed, r.reward, r.reason);
        }
        assert_false(r.failed);
        assert_true(r.reward == t[i].reward);
        assert_true(strlen(r.reason) > 5);
        assert_int_equal(r.why == CODEGRADE_RIGHT, r.reward == 1);
    }
    assert_int_equal(codegrade_pending(all_or_none), 0);
}

static void test_share(void **state)
{
    static const char label[] =
        "{\"inputs\": [\"1 2\", \"0 0\", \"2 2\", \"5 5\"], \"outputs\": [\"3\", \"1\", \"4\", "
        "\"10\"]}";
    struct codegrade_result r = grade(share, ADD, label, NULL);

    (void)state;
    assert_true(r.reward == 0.75);
    assert_int_equal(r.why, CODEGRADE_PARTIAL);
    assert_non_null(strstr(r.reason, "case 2 of 4"));
    r = grade(all_or_none, ADD, label, NULL);
    assert_true(r.reward == 0);
    assert_int_equal(r.why, CODEGRADE_WRONG);
    r = grade(share, FENCE("def f(x): return x"), "assert f(1) == 1\nassert f(1) == 2", NULL);
    assert_true(r.reward == 0.5);
}

/* What is no test fails with the cause and is never a zero. */
static void test_no_tests(void **state)
{
    static const char *const labels[] = {NULL,
                                         "42",
                                         "={\"inputs\": [\"1\"], \"outputs\": []}",
                                         "={\"inputs\": [], \"outputs\": []}",
                                         "={\"inputs\": [1], \"outputs\": [2]}",
                                         "={\"x\": 1}",
                                         "=[{\"input\": \"1\", \"testtype\": \"functional\", "
                                         "\"output\": \"1\"}]",
                                         "assert f(1) =="};

    (void)state;
    for (size_t i = 0; i < sizeof labels / sizeof *labels; i++) {
        struct codegrade_result r = grade(all_or_none, ADD, labels[i], NULL);
        if (!r.failed) {
            print_error("case %zu: %s\n", i, r.reason);
        }
        assert_true(r.failed);
        assert_true(strlen(r.reason) > 10);
    }
}

/* Closed with work in it. */
static void test_close_early(void **state)
{
    struct codegrade_opts o = {.workers = 1};
    struct codegrade *c = NULL;
    struct err e = {0};
    json_t *sample = json_pack("{s:s, s:s}", "response", FENCE("import time\ntime.sleep(99)"),
                               "label", "{\"inputs\": [\"\"], \"outputs\": [\"\"]}");
    struct codegrade_result r;
    double began;

    (void)state;
    assert_int_equal(codegrade_open(&o, &c, &e), 0);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(codegrade_submit(c, NULL, sample, &e), 0);
    }
    assert_int_equal(codegrade_poll(c, 0.3, &r, &e), STATUS_AGAIN);
    assert_int_equal(codegrade_pending(c), 5);
    began = proc_now();
    codegrade_close(c);
    assert_true(proc_now() - began < 8);
    json_decref(sample);
}

/* As the type of a hub: rewards, reasons, and samples that name it themselves. */
static void test_hub(void **state)
{
    static const char *const labels[] = {"assert f(1) == 2", "assert f(1) == 3", "nothing"};
    struct hub_opts o = {.rm_type = "code", .workers = 1};
    struct hub *h = NULL;
    struct hub_result r;
    struct err e = {0};
    int seen = 0;

    (void)state;
    assert_int_equal(hub_open(&o, &h, &e), 0);
    for (int i = 0; i < 3; i++) {
        json_t *s = json_pack("{s:s, s:s}", "response", FENCE("def f(x): return x + 1"), "label",
                              labels[i]);
        struct hub_request q = {i, s};
        assert_int_equal(hub_submit(h, &q, &e), 0);
        json_decref(s);
    }
    while (hub_pending(h)) {
        if (hub_poll(h, 1, &r, &e) != 0) {
            continue;
        }
        seen |= 1 << r.id;
        assert_int_equal(r.failed, r.id == 2);
        assert_true(r.reward == (r.id == 0));
        assert_int_equal(r.why, r.id == 0 ? HUB_RIGHT : r.id == 1 ? HUB_WRONG : HUB_BAD_SAMPLE);
        assert_true(strlen(r.reason) > 5);
    }
    assert_int_equal(seen, 7);
    hub_close(h);
    o.python = "/nonexistent/python";
    assert_int_equal(hub_open(&o, &h, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "--rm-type code: the sandbox needs"));
}

int main(void)
{
    const struct CMUnitTest all[] = {
        cmocka_unit_test(test_program),     cmocka_unit_test(test_forms),
        cmocka_unit_test(test_share),       cmocka_unit_test(test_no_tests),
        cmocka_unit_test(test_close_early), cmocka_unit_test(test_hub),
    };
    return cmocka_run_group_tests(all, open_both, close_both);
}
