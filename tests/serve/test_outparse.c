/* Reasoning and calls of tools in what a model wrote: whole, and cut at every byte. */
#include "support.h"

#include "serve/outparse.h"

static const struct {
    const char *text, *reasoning, *content;
    int inside, ncalls;
    const char *name, *arguments; /* of the first call */
} cases[] = {
    {"plain text", "", "plain text", 0, 0, NULL, NULL},
    {"<think>\nhm</think>\n\nyes", "hm", "yes", 0, 0, NULL, NULL},
    {"hm</think>yes", "hm", "yes", 1, 0, NULL, NULL},
    {"<think>never ends", "never ends", "", 0, 0, NULL, NULL},
    {"<thin", "", "<thin", 0, 0, NULL, NULL},
    {"a <b> <tool", "", "a <b> <tool", 0, 0, NULL, NULL},
    {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>", "", "", 0, 1, "f",
     "{\"x\": 1}"},
    {"say <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"g\"}"
     "</tool_call>",
     "", "say ", 0, 2, "f", "{}"},
    {"<tool_call>not json</tool_call> x", "", "<tool_call>not json</tool_call>x", 0, 0, NULL, NULL},
    {"<tool_call>{\"name\":\"f\",\"arguments\":{}}", "", "", 0, 1, "f", "{}"},
    {"<tool_call>{\"na", "", "<tool_call>{\"na", 0, 0, NULL, NULL},
    {"<think>a</think><tool_call>{\"name\":\"f\",\"arguments\":\"{}\"}</tool_call>", "a", "", 0, 1,
     "f", "{}"},
};

static void test_whole_and_cut(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct outparse_rules q = {1, 1, cases[i].inside};
        struct outparse all, o;
        size_t len = strlen(cases[i].text);
        outparse_split(&all, &q, "id", 0, cases[i].text, len, 1);
        assert_string_equal(all.content.data, cases[i].content);
        assert_string_equal(all.reasoning.data, cases[i].reasoning);
        assert_int_equal(all.ncalls, cases[i].ncalls);
        if (all.ncalls) {
            assert_string_equal(all.calls[0].name, cases[i].name);
            assert_string_equal(all.calls[0].arguments, cases[i].arguments);
        }
        /* what was told of a beginning stays true */
        for (size_t n = 0; n <= len; n++) {
            outparse_split(&o, &q, "id", 0, cases[i].text, n, 0);
            assert_true(o.content.len <= all.content.len && o.ncalls <= all.ncalls);
            assert_memory_equal(o.content.data, all.content.data, o.content.len);
            assert_memory_equal(o.reasoning.data, all.reasoning.data, o.reasoning.len);
            for (int k = 0; k < o.ncalls; k++) {
                assert_string_equal(o.calls[k].id, all.calls[k].id);
                assert_string_equal(o.calls[k].arguments, all.calls[k].arguments);
            }
            outparse_fini(&o);
        }
        outparse_fini(&all);
    }
}

static void test_off(void **state)
{
    static const char text[] = "<think>a</think><tool_call>{}</tool_call>";
    struct outparse_rules q = {0, 0, 0};
    struct outparse o;

    (void)state;
    outparse_split(&o, &q, "id", 0, text, strlen(text), 1);
    assert_string_equal(o.content.data, text);
    outparse_fini(&o);
    assert_int_equal(outparse_opens("x<think>\n", 9), 1);
    assert_int_equal(outparse_opens("x<think>y", 9), 0);
}

static void test_names(void **state)
{
    (void)state;
    assert_int_equal(outparse_named(OUTPARSE_TOOLS, "hermes"), 1);
    assert_int_equal(outparse_named(OUTPARSE_TOOLS, "qwen"), 1);
    assert_int_equal(outparse_named(OUTPARSE_TOOLS, "qwen25"), 1);
    assert_int_equal(outparse_named(OUTPARSE_TOOLS, "qwen2"), 0);
    assert_int_equal(outparse_named(OUTPARSE_TOOLS, ""), 0);
    assert_int_equal(outparse_named(OUTPARSE_REASONING, "hermes"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_whole_and_cut),
                                       cmocka_unit_test(test_off), cmocka_unit_test(test_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
