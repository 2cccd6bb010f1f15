/* Scoring of files: every row comes out once, in order, with its verdict; nothing ends the run. */
#include "support.h"

#include "base/log.h"
#include "base/status.h"
#include "reward/scorefile.h"

/* Scores the text; the rows that came out, as a list. */
static json_t *score(const struct hub_opts *ho, const char *text, size_t n,
                     struct scorefile_opts *o, struct scorefile_stats *st)
{
    FILE *in = tmpfile(), *out = tmpfile();
    struct hub *h = NULL;
    struct err e = {0};
    json_t *rows = json_array(), *row;

    assert_true(in && out);
    assert_int_equal(fwrite(text, 1, n, in), n);
    rewind(in);
    assert_ok(hub_open(ho, &h, &e), &e);
    o->out = out;
    assert_ok(scorefile_run(h, in, "test", o, st, &e), &e);
    hub_close(h);
    rewind(out);
    while ((row = json_loadf(out, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, NULL)) != NULL) {
        json_array_append_new(rows, row);
    }
    fclose(in);
    fclose(out);
    return rows;
}

static const char *text_at(const json_t *rows, size_t i, const char *key)
{
    const char *s = json_string_value(json_object_get(json_array_get(rows, i), key));
    return s ? s : "(none)";
}

static void test_rows(void **state)
{
    (void)state;
    static const char text[] =
        "{\"format\": \"miles-rollout\", \"version\": 1}\n"
        "{\"q\": \"x\", \"a\": \"\\\\boxed{4}\", \"gold\": 4, \"keep\": [1]}\n"
        "\n \t\r\n"
        "{\"q\": \"x\", \"a\": \"\\\\boxed{5}\", \"gold\": \"4\", \"response\": \"not this\"}\r\n"
        "oops\n"
        "{\"a\": \"\\\\boxed{1}\"\n"
        "7\n"
        "{\"q\": \"x\"}\n"
        "{\"q\": \"x\", \"a\": \"a\\u0000b\", \"gold\": \"4\"}\n"
        "{\"a\": \"c b\", \"gold\": \"b\", \"m\": {\"rm_type\": \"f1\"}}";
    struct scorefile_opts o = {
        .prompt_key = "q", .response_key = "a", .label_key = "gold", .metadata_key = "m"};
    struct hub_opts ho = {.rm_type = "math", .threads = 2};
    struct scorefile_stats st;
    json_t *rows = score(&ho, text, sizeof text - 1, &o, &st);

    assert_int_equal(json_array_size(rows), 8);
    assert_int_equal(st.rows, 8);
    assert_int_equal(st.graded, 4);
    assert_int_equal(st.failed, 1);
    assert_int_equal(st.bad, 3);
    assert_true(st.sum == 1 + 2.0 / 3.0);
    assert_int_equal(st.classes[HUB_RIGHT], 1);
    assert_int_equal(st.classes[HUB_WRONG], 1);
    assert_int_equal(st.classes[HUB_NO_ANSWER], 1);
    assert_int_equal(st.classes[HUB_PARTIAL], 1);
    assert_int_equal(st.classes[HUB_BAD_SAMPLE], 1);
    assert_string_equal(text_at(rows, 0, "reason"), "math: equal text in the first normal form: 4");
    assert_int_equal(json_array_size(json_object_get(json_array_get(rows, 0), "keep")), 1);
    assert_string_equal(text_at(rows, 1, "reason"), "math: different by algebra: 5 != 4");
    assert_string_equal(text_at(rows, 1, "response"), "not this");
    for (size_t i = 2; i < 5; i++) {
        assert_string_equal(text_at(rows, i, "class"), "bad_row");
        assert_int_equal(json_integer_value(json_object_get(json_array_get(rows, i), "line")),
                         i + 4);
    }
    assert_non_null(strstr(text_at(rows, 2, "reason"), "not JSON: column"));
    assert_string_equal(text_at(rows, 5, "class"), "bad_sample");
    assert_true(json_is_null(json_object_get(json_array_get(rows, 5), "reward")));
    assert_string_equal(text_at(rows, 6, "class"), "no_answer");
    assert_true(json_real_value(json_object_get(json_array_get(rows, 7), "reward")) == 2.0 / 3.0);
    json_decref(rows);
}

/* More rows than the window has, in the order of the file though threads finish in any. */
static void test_order(void **state)
{
    (void)state;
    enum { N = 20000 };
    char *text = malloc((size_t)N * 80), *p = text;
    struct scorefile_opts o = {0};
    struct hub_opts ho = {.rm_type = "f1", .threads = 3};
    struct scorefile_stats st;
    json_t *rows;

    for (int i = 0; i < N; i++) {
        p += sprintf(p, "{\"response\": \"%d\", \"label\": \"%d\"}\n", i, i % 2 ? i : -1);
    }
    rows = score(&ho, text, (size_t)(p - text), &o, &st);
    assert_int_equal(json_array_size(rows), N);
    assert_int_equal(st.graded, N);
    assert_true(st.sum == N / 2);
    for (int i = 0; i < N; i++) {
        assert_int_equal(atoi(text_at(rows, (size_t)i, "response")), i);
        assert_true(json_real_value(json_object_get(json_array_get(rows, (size_t)i), "reward")) ==
                    i % 2);
    }
    json_decref(rows);
    free(text);
}

static void test_dicts_and_groups(void **state)
{
    (void)state;
    static const char text[] = "{\"response\": \"Answer: 4\", \"label\": 4, \"group_index\": 1}\n"
                               "{\"response\": \"Answer: 5\", \"label\": 4, \"group_index\": 1}\n"
                               "{\"response\": \"Answer: 4\", \"label\": 4}\n"
                               "{\"response\": \"Answer: 4\", \"label\": 4, \"group_index\": 2}\n";
    struct scorefile_opts o = {.group = 1};
    struct hub_opts ho = {.rm_type = "dapo", .reward_key = "score"};
    struct scorefile_stats st;
    json_t *rows = score(&ho, text, sizeof text - 1, &o, &st), *r;

    assert_int_equal(json_array_size(rows), 4);
    assert_int_equal(st.bad, 1);
    assert_int_equal(st.graded, 3);
    assert_true(st.sum == 1);
    assert_string_equal(text_at(rows, 2, "class"), "bad_row");
    r = json_array_get(rows, 1);
    assert_true(json_real_value(json_object_get(r, "reward_value")) == -1);
    assert_string_equal(json_string_value(json_object_get(json_object_get(r, "reward"), "pred")),
                        "5");
    json_decref(rows);
    o.group = 0;
    ho.reward_key = NULL;
    rows = score(&ho, text, sizeof text - 1, &o, &st);
    assert_int_equal(st.failed, 4);
    assert_string_equal(text_at(rows, 0, "reason"), "the reward is a dict: give --reward-key");
    json_decref(rows);
}

static void test_nothing(void **state)
{
    (void)state;
    struct scorefile_opts o = {0};
    struct hub_opts ho = {.rm_type = "math"};
    struct scorefile_stats st;
    json_t *rows = score(&ho, "", 0, &o, &st);

    assert_int_equal(json_array_size(rows), 0);
    assert_int_equal(st.rows, 0);
    json_decref(rows);
    rows = score(&ho, "\0\0\0\n", 4, &o, &st);
    assert_int_equal(st.bad, 1);
    json_decref(rows);
    /* what jansson says of a line may have bytes of it */
    rows = score(&ho, "\xff\xfe\n[\"\xff\"]\n\xe2\x82x\n\x9b[2J\n", 17, &o, &st);
    assert_int_equal(st.bad, 4);
    assert_int_equal(json_array_size(rows), 4);
    json_decref(rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_dicts_and_groups),
        cmocka_unit_test(test_nothing),
    };
    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
