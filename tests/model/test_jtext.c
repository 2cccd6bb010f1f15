/* JSON strings and numbers written by hand must read back as what they were. */
#include "support.h"

#include <jansson.h>

#include "base/buf.h"
#include "base/status.h"
#include "model/jtext.h"

static void test_strings(void **state)
{
    static const char *const texts[] = {
        "",         "plain", "a\"b\\c/",           "\n\r\t\b\f\x01\x1f\x7f",
        "\304\240", "你好",  "\360\237\231\202 x", "\302\200\337\277"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct buf b;
        json_t *j;
        buf_init(&b, 4096);
        assert_int_equal(jtext_string(&b, texts[i], strlen(texts[i])), STATUS_OK);
        j = json_loads(b.data, JSON_DECODE_ANY, NULL);
        assert_non_null(j);
        assert_string_equal(json_string_value(j), texts[i]);
        json_decref(j);
        buf_fini(&b);
    }
}

/* Every byte at every place among plain ones: words of eight bytes are looked at as one. */
static void test_places(void **state)
{
    (void)state;
    for (int c = 1; c < 256; c++) {
        for (int at = 0; at < 19; at++) {
            char text[] = "abcdefghijklmnopqrs";
            struct buf b;
            json_t *j;
            buf_init(&b, 4096);
            text[at] = (char)c;
            assert_int_equal(jtext_string(&b, text, 19), c < 128 ? STATUS_OK : STATUS_FORMAT);
            if (c < 128) {
                j = json_loads(b.data, JSON_DECODE_ANY, NULL);
                assert_non_null(j);
                assert_string_equal(json_string_value(j), text);
                json_decref(j);
            }
            buf_fini(&b);
        }
    }
}

static void test_utf8(void **state)
{
    /* A stray continuation, overlong forms, a surrogate, above U+10FFFF, cut characters. */
    static const char *const bad[] = {
        "\200", "\300\257", "\301\277",     "\340\237\277", "\355\240\200", "\364\220\200\200",
        "\303", "\342\202", "\360\237\231", "a\377",        "\303("};
    static const char *const good[] = {"\302\200",     "\340\240\200",     "\355\237\277",
                                       "\356\200\200", "\360\220\200\200", "\364\217\277\277"};
    struct buf b;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        buf_init(&b, 4096);
        assert_int_equal(jtext_utf8(bad[i], strlen(bad[i])), 0);
        assert_int_equal(jtext_string(&b, bad[i], strlen(bad[i])), STATUS_FORMAT);
        buf_fini(&b);
    }
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_int_equal(jtext_utf8(good[i], strlen(good[i])), 1);
    }
}

static void test_reals(void **state)
{
    static const struct {
        double v;
        const char *text;
    } cases[] = {
        {100000.0, "100000.0"}, {1e-5, "1e-05"},          {(double)1e-5f, "9.999999747378752e-06"},
        {0.02, "0.02"},         {1000000.0, "1000000.0"}, {-2.5, "-2.5"},
        {1e300, "1e+300"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct buf b;
        buf_init(&b, 4096);
        jtext_real(&b, cases[i].v);
        assert_string_equal(b.data, cases[i].text);
        assert_true(strtod(b.data, NULL) == cases[i].v);
        buf_fini(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_reals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
