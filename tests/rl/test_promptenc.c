/* From data rows to tokens: texts, messages, and that nothing is handed out with an error. */
#include "fakeport.h"

static struct err e;

static const char chat[] = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }}{% endfor %}";

static void expect(const struct promptenc *p, const char *json, const int32_t *want, int n)
{
    json_t *j = json_loads(json, JSON_DECODE_ANY, NULL);
    int32_t *ids = NULL;
    int got = -1;
    assert_non_null(j);
    assert_ok(promptenc_encode(p, j, NULL, &ids, &got, &e), &e);
    assert_int_equal(got, n);
    assert_memory_equal(ids, want, 4 * (size_t)n);
    mem_free(ids);
    json_decref(j);
}

static void refused(const struct promptenc *p, const char *json, const char *why)
{
    json_t *j = json_loads(json, JSON_DECODE_ANY, NULL);
    int32_t *ids = (int32_t *)8;
    int n = 77;
    assert_non_null(j);
    memset(&e, 0, sizeof e);
    assert_int_equal(promptenc_encode(p, j, NULL, &ids, &n, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, why));
    assert_true(ids == (int32_t *)8 && n == 77); /* the caller frees nothing */
    json_decref(j);
}

static void texts(void **state)
{
    struct promptenc p = {.tok = fakeport_tokenizer()};
    (void)state;
    expect(&p, "\"ab 7\"", (int32_t[]){10, 11, 36, 7}, 4);
    expect(&p, "\"a<end>\"", (int32_t[]){10, 37}, 2);
    refused(&p, "\"\"", "0 tokens");
    refused(&p, "[{\"role\": \"user\", \"content\": \"a\"}]", "--apply-chat-template");
    refused(&p, "7", "--apply-chat-template");
    promptenc_close(&p);
    promptenc_close(&p);
}

static void messages(void **state)
{
    struct promptenc p = {.tok = fakeport_tokenizer(), .tmpl = mem_strdup(chat), .apply = 1};
    (void)state;
    expect(&p, "[{\"role\": \"b\", \"content\": \"1\"}]", (int32_t[]){11, 36, 1}, 3);
    expect(&p, "\"1\"", (int32_t[]){30, 28, 14, 27, 36, 1}, 6); /* a user's message */
    refused(&p, "[]", "");
    promptenc_close(&p);
}

static void decodes(void **state)
{
    struct promptenc p = {.tok = fakeport_tokenizer()};
    static const int32_t ids[] = {10, 36, 9, 37};
    char *text = NULL;
    (void)state;
    assert_ok(promptenc_decode(&p, ids, 4, 0, &text, &e), &e);
    assert_string_equal(text, "a 9<end>");
    mem_free(text);
    assert_ok(promptenc_decode(&p, ids, 4, 1, &text, &e), &e);
    assert_string_equal(text, "a 9");
    mem_free(text);
    assert_ok(promptenc_decode(&p, ids, 0, 1, &text, &e), &e);
    assert_string_equal(text, "");
    mem_free(text);
    promptenc_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts),
        cmocka_unit_test(messages),
        cmocka_unit_test(decodes),
    };
    return cmocka_run_group_tests(tests, fakeport_setup, fakeport_teardown);
}
