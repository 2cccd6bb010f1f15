/* Messages of chat requests: the form that templates get, and what is refused. */
#include "support.h"

#include <jansson.h>

#include "base/status.h"
#include "serve/chatmsg.h"

static int messages(const char *list, json_t **out, struct err *e)
{
    json_t *body = json_pack("{s:o}", "messages", json_loads(list, 0, NULL));
    int rc;

    assert_non_null(body);
    rc = chatmsg_messages(body, out, e);
    json_decref(body);
    return rc;
}

static void test_form(void **state)
{
    json_t *m = NULL, *want;
    struct err e = {0};

    (void)state;
    assert_ok(messages("[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
                       "{\"type\":\"text\",\"text\":\"b\"}]},"
                       "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\","
                       "\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"x\\\":1}\"}}]},"
                       "{\"role\":\"user\",\"content\":\"c\",\"tool_calls\":null}]",
                       &m, &e),
              &e);
    want = json_loads("[{\"role\":\"user\",\"content\":\"a b\"},"
                      "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"1\","
                      "\"function\":{\"name\":\"f\",\"arguments\":{\"x\":1}}}]},"
                      "{\"role\":\"user\",\"content\":\"c\"}]",
                      0, NULL);
    assert_true(json_equal(m, want));
    json_decref(m);
    json_decref(want);
}

/* What is refused leaves nothing behind: the caller frees only what it was given. */
static void test_refused(void **state)
{
    static const char *const bad[] = {
        "[]",
        "{}",
        "[3]",
        "[{\"content\":\"x\"}]",
        "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"alien\",\"content\":\"x\"}]",
        "[{\"role\":\"user\",\"content\":7}]",
        "[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]",
        "[{\"role\":\"assistant\",\"tool_calls\":3}]",
        "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"arguments\":\"{\"}}]}]",
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_t *m = NULL;
        struct err e = {0};
        assert_int_equal(messages(bad[i], &m, &e), STATUS_INPUT);
        assert_null(m);
        assert_non_null(strstr(e.msg, "messages"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_form), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
