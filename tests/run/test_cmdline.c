/* Commands as one text: words, quotes, names in braces. */
#include "support.h"

#include "base/status.h"
#include "run/cmdline.h"

static struct cmdline c;
static struct err e;

static const char *joined(void)
{
    static char text[1000];
    size_t n = 0;
    text[0] = 0;
    for (int i = 0; i < c.n; i++) {
        n += (size_t)snprintf(text + n, sizeof text - n, "[%s]", c.v[i]);
    }
    assert_true(!c.v || c.v[c.n] == NULL);
    return text;
}

static void expect_split(const char *text, const char *want)
{
    assert_ok(cmdline_split(&c, text, &e), &e);
    assert_string_equal(joined(), want);
    cmdline_fini(&c);
}

static void splits(void **state)
{
    (void)state;
    expect_split("", "");
    expect_split("  \n ", "");
    expect_split("a  b\tc\n", "[a][b][c]");
    expect_split("env A='x y' \"p q\"r '' \"\"", "[env][A=x y][p qr][][]");
    expect_split("a\\ b '\\n' \"\\\"\\\\\\n\" $HOME * ~", "[a b][\\n][\"\\\\n][$HOME][*][~]");
    expect_split("it\\'s", "[it's]");
    expect_split("--x='{\"a\": 1}'", "[--x={\"a\": 1}]");
    assert_int_equal(cmdline_split(&c, "a 'b c", &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "quote"));
    assert_null(c.v);
    assert_int_equal(cmdline_split(&c, "a \"b", &e), STATUS_INPUT);
}

static void fills(void **state)
{
    static const char *const names[] = {"port", "model", NULL};
    static const char *const values[] = {"300", "a b{x}", NULL};
    struct cmdline copy;
    (void)state;
    assert_ok(cmdline_split(&c, "--port {port} --m={model}/{port} '{{\"a\"}}' x", &e), &e);
    assert_true(cmdline_uses(&c, "port") && cmdline_uses(&c, "model"));
    assert_false(cmdline_uses(&c, "por") || cmdline_uses(&c, "host") || cmdline_uses(&c, "\"a\""));
    cmdline_copy(&copy, &c);
    cmdline_add(&c, "{port}");
    assert_ok(cmdline_fill(&c, names, values, &e), &e);
    assert_string_equal(joined(), "[--port][300][--m=a b{x}/300][{\"a\"}][x][300]");
    cmdline_fini(&c);
    c = copy; /* has its own words */
    assert_string_equal(joined(), "[--port][{port}][--m={model}/{port}][{{\"a\"}}][x]");
    cmdline_fini(&c);
    for (int i = 0; i < 4; i++) {
        static const char *const bad[] = {"{prot}", "{port", "port}", "{}"};
        assert_ok(cmdline_split(&c, bad[i], &e), &e);
        assert_int_equal(cmdline_fill(&c, names, values, &e), STATUS_INPUT);
        assert_non_null(strstr(e.msg, "brace"));
        cmdline_fini(&c);
    }
    assert_ok(cmdline_split(&c, "{{port}}", &e), &e);
    assert_false(cmdline_uses(&c, "port"));
    cmdline_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(splits), cmocka_unit_test(fills)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
