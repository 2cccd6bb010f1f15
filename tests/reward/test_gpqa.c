/* The multiple-choice reward: which letter a response chooses, what makes an answer right. */
#include "support.h"

#include "base/status.h"
#include "reward/gpqa.h"

static void letter_is(const char *response, const char *valid, char want)
{
    char got = gpqa_letter(response, strlen(response), valid);
    if (got != want) {
        fail_msg("%s chooses %c, not %c", response, got ? got : '0', want ? want : '0');
    }
}

static void test_letters(void **state)
{
    (void)state;
    static const struct {
        const char *response;
        char letter;
    } rows[] = {
        {"the answer choice B", 'C'}, /* the first letter of any word may be it */
        {"the answer depends on B", 'D'},
        {"the optional answer, I think, is C", 'A'},
        {"I choose (b)", 0},
        {"I choose (B)", 'B'},
        {"The answer is C.", 'C'},
        {"answer: d", 'D'},
        {"ANSWER:\n\n  e", 'E'},
        {"Option\tf", 'F'},
        {"B is correct", 'B'},
        {"b is the correct one", 'B'},
        {"b\xc2\xa0is\xc2\xa0the correct", 'B'},
        {"a is theCorrect", 'A'},
        {"final option: G", 'G'},
        {"The answer is (C)", 'C'}, /* the pattern gives I, which is not valid: the lone capital */
        {"The answer is X, so B", 'B'},
        {"A and then B, at last C", 'C'},
        {"A1 _B C\xc3\xa9", 0}, /* part of words */
        {"(A)", 'A'},
        {"Z", 0},
        {"", 0},
        {"</think>", 0},
        {"answer A</think>B", 'B'},
        {"answer A</think>x</think>D", 'D'},
        {"answer", 0},
        {"answer is", 0},
        {"final answer isb", 'B'},
        {"\xc3\x84 B", 'B'},
        {"\xc3\x84"
         "B",
         0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        letter_is(rows[i].response, "ABCDEFGH", rows[i].letter);
    }
    letter_is("the answer is C", "AB", 0);
    letter_is("A but the answer is C", "AB", 'A');
}

/* label and metadata as JSON; want -1 means failed. */
static void grade_is(const char *response, const char *label, const char *metadata, int want)
{
    json_t *l = json_loads(label, JSON_DECODE_ANY, NULL);
    json_t *m = json_loads(metadata, JSON_DECODE_ANY, NULL);
    struct gpqa_verdict v;
    struct err e = {0};
    int rc;

    assert_true(l && m);
    rc = gpqa_grade(response, strlen(response), l, m, &v, &e);
    if (rc != (want < 0 ? STATUS_INPUT : 0) || (want >= 0 && v.right != want)) {
        fail_msg("%s with %s %s gives %d (%s%s), not %d", response, label, metadata,
                 rc ? -1 : v.right, rc ? e.msg : v.reason, "", want);
    }
    assert_true(rc || v.reason[0]);
    json_decref(l);
    json_decref(m);
}

static void test_grades(void **state)
{
    (void)state;
    grade_is("The answer is B", "\"B\"", "{}", 1);
    grade_is("The answer is B", "\" b \"", "{}", 1);
    grade_is("The answer is B", "\"C\"", "{}", 0);
    grade_is("The answer is B", "1", "{}", 1);
    grade_is("The answer is B", "1.9", "{}", 1);
    grade_is("The answer is B", "true", "{}", 1);
    grade_is("The answer is A", "false", "{}", 1);
    grade_is("The answer is A", "-0.5", "{}", 1); /* int() cuts towards 0 */
    grade_is("The answer is A", "-1", "{}", -1);
    grade_is("The answer is B", "26", "{}", -1);
    /* metadata comes before a letter as label, a number as label before metadata */
    grade_is("The answer is B", "\"B\"", "{\"correct_letter\": \"C\"}", 0);
    grade_is("The answer is C", "\"B\"", "{\"correct_letter\": \" c \"}", 1);
    grade_is("The answer is B", "1", "{\"correct_letter\": \"C\"}", 1);
    /* text of a choice */
    grade_is("The answer is B", "\"Red, light!\"", "{\"choices\": [\"blue\", \"red light\"]}", 1);
    grade_is("The answer is A", "\"Red, light!\"", "{\"choices\": [\"blue\", \"red light\"]}", 0);
    grade_is("B", "\"7\"", "{\"choices\": {\"A\": 6, \"B\": 7}}", 1);
    grade_is("It is red light.", "\"red light\"", "{\"choices\": [\"blue\", \"red light\"]}", 1);
    grade_is("It is blue.", "\"red light\"", "{\"choices\": [\"blue\", \"red light\"]}", 0);
    grade_is("It is RED-light.", "null", "{\"answer_text\": \"red light\"}", 1);
    grade_is("red light</think>It is blue.", "null", "{\"correct_answer\": \"red light\"}", 0);
    /* a label that is no valid letter is text, and a text that is in this response */
    grade_is("The answer is C", "\"C\"", "{\"choices\": [\"x\", \"y\"]}", 1);
    grade_is("Perhaps A", "\"C\"", "{\"choices\": [\"x\", \"y\"]}", 0);
    /* letters of its own */
    grade_is("The answer is Y", "1", "{\"valid_letters\": [\"x\", \"y\"]}", 1);
    grade_is("The answer is Y", "\"y\"", "{\"valid_letters\": \"XY\"}", 1);
    grade_is("The answer is A", "\"y\"", "{\"valid_letters\": \"XY\"}", 0);
    /* nothing tells */
    grade_is("The answer is B", "null", "{}", -1);
    grade_is("The answer is B", "null", "[]", -1);
    grade_is("The answer is B", "\"\"", "{\"correct_letter\": 3}", -1);
    grade_is("The answer is B", "[1]", "{}", -1);
    grade_is("", "\"B\"", "{}", 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_letters),
        cmocka_unit_test(test_grades),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
