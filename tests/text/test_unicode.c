/* UTF-8 repair, classes, normal forms, the byte alphabet. */
#include "support.h"

#include "base/buf.h"
#include "base/mem.h"
#include "base/status.h"
#include "text/unicode.h"

static void test_valid_prefix(void **state)
{
    static const struct {
        const char *s;
        size_t good;
    } cases[] = {
        {"", 0},
        {"plain ascii, longer than eight", 30},
        {"caf\xC3\xA9", 5},
        {"\xF0\x9F\x98\x80", 4},
        {"12345678\xFF", 8},
        {"a\xC3", 1},
        {"\xC0\x80", 0},         /* overlong */
        {"\xE0\x9F\xBF", 0},     /* overlong */
        {"\xED\xA0\x80", 0},     /* surrogate */
        {"\xED\x9F\xBF", 3},     /* the last before them */
        {"\xF4\x8F\xBF\xBF", 4}, /* U+10FFFF */
        {"\xF4\x90\x80\x80", 0},
        {"\xF8\x88\x80\x80\x80", 0},
        {"ab\x80", 2},
    };
    size_t i;
    (void)state;

    for (i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(unicode_valid_prefix(cases[i].s, strlen(cases[i].s)), cases[i].good);
    }
}

static void test_round_trip(void **state)
{
    uint32_t cp, back;
    char b[4];
    (void)state;

    for (cp = 0; cp < 0x110000; cp++) {
        size_t n;
        if (cp >= 0xD800 && cp < 0xE000) {
            continue;
        }
        n = unicode_put(cp, b);
        assert_int_equal(unicode_valid_prefix(b, n), n);
        assert_int_equal(unicode_width((unsigned char)b[0]), n);
        assert_int_equal(unicode_next(b, &back), n);
        assert_int_equal(back, cp);
        assert_int_equal(unicode_prev(b, n, &back), n);
        assert_int_equal(back, cp);
    }
}

static void test_byte_alphabet(void **state)
{
    uint32_t cp;
    int seen[256] = {0};
    int b;
    (void)state;

    assert_int_equal(unicode_byte_char(' '), 0x120);
    assert_int_equal(unicode_byte_char('\n'), 0x10A);
    assert_int_equal(unicode_byte_char('A'), 'A');
    assert_int_equal(unicode_byte_char(0x7F), 0x121);
    assert_int_equal(unicode_byte_char(0xA0), 0x142);
    assert_int_equal(unicode_byte_char(0xAD), 0x143);
    assert_int_equal(unicode_byte_char(0xAE), 0xAE);
    for (b = 0; b < 256; b++) {
        assert_int_equal(unicode_char_byte(unicode_byte_char((uint8_t)b)), b);
    }
    for (cp = 0; cp < 0x3000; cp++) {
        b = unicode_char_byte(cp);
        if (b >= 0) {
            assert_int_equal(seen[b]++, 0);
        }
    }
    for (b = 0; b < 256; b++) {
        assert_int_equal(seen[b], 1);
    }
}

static void test_classes(void **state)
{
    (void)state;
    assert_true(unicode_is_space(' ') && unicode_is_space(0x85) && unicode_is_space(0x3000));
    assert_false(unicode_is_space(0x180E) || unicode_is_space(0x200B) || unicode_is_space('a'));
    assert_true(unicode_is_numeric('7') && unicode_is_numeric(0xBD) && unicode_is_numeric(0x2160));
    assert_true(unicode_is_numeric(0x1D7FF) && unicode_is_numeric(0x116D0));
    assert_false(unicode_is_numeric('a') || unicode_is_numeric(0x4E00) ||
                 unicode_is_numeric(0x3250) || unicode_is_numeric(0x10FFFF));
    assert_true(unicode_is_word('_') && unicode_is_word(0xE9) && unicode_is_word(0x301));
    assert_true(unicode_is_word(0x200D) && unicode_is_word(0x31350) && unicode_is_word(0x1C89));
    assert_false(unicode_is_word('-') || unicode_is_word(' ') || unicode_is_word(0xBD));
}

static const char *normal(enum unicode_form f, const char *s)
{
    static struct buf b;

    buf_fini(&b);
    buf_init(&b, 1 << 20);
    assert_int_equal(unicode_normalize(f, s, strlen(s), &b), 0);
    return b.data;
}

static void test_normal_forms(void **state)
{
    (void)state;
    assert_string_equal(normal(UNICODE_NFC, "e\xCC\x81"), "\xC3\xA9");
    assert_string_equal(normal(UNICODE_NFD, "\xC3\xA9"), "e\xCC\x81");
    /* dot below (220) goes before acute (230), then both compose */
    assert_string_equal(normal(UNICODE_NFD, "e\xCC\x81\xCC\xA3"), "e\xCC\xA3\xCC\x81");
    assert_string_equal(normal(UNICODE_NFC, "e\xCC\x81\xCC\xA3"), "\xE1\xBA\xB9\xCC\x81");
    assert_string_equal(normal(UNICODE_NFC, "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8"),
                        "\xEA\xB0\x81");
    assert_string_equal(normal(UNICODE_NFC, "\xE2\x84\xAB \xEF\xAC\x81"), "\xC3\x85 \xEF\xAC\x81");
    assert_string_equal(normal(UNICODE_NFKC, "\xE2\x84\xAB \xEF\xAC\x81"), "\xC3\x85 fi");
    assert_string_equal(normal(UNICODE_NFKD, "\xC2\xBD"), "1\xE2\x81\x84"
                                                          "2");
    /* a composition that is excluded: U+0958 stays apart */
    assert_string_equal(normal(UNICODE_NFC, "\xE0\xA5\x98"), "\xE0\xA4\x95\xE0\xA4\xBC");
    /* younger than the package's tables: left alone (U+32FF, and U+11935 U+11930) */
    assert_string_equal(normal(UNICODE_NFKC, "\xE3\x8B\xBF"), "\xE3\x8B\xBF");
    assert_string_equal(normal(UNICODE_NFC, "\xF0\x91\xA4\xB5\xF0\x91\xA4\xB0"),
                        "\xF0\x91\xA4\xB5\xF0\x91\xA4\xB0");
    assert_string_equal(normal(UNICODE_NFC, ""), "");

    assert_true(unicode_is_normal(UNICODE_NFC, "caf\xC3\xA9", 5));
    assert_false(unicode_is_normal(UNICODE_NFC, "e\xCC\x81", 3));
    assert_false(unicode_is_normal(UNICODE_NFKC, "\xC2\xBD", 2));
}

/* Long runs of marks: sorted by class, equal classes in the order they came. */
static void test_long_runs(void **state)
{
    enum { N = 30000 };
    char *s = mem_alloc(4 * N + 2);
    struct buf b;
    int i;
    (void)state;

    s[0] = 'x';
    for (i = 0; i < N; i++) { /* acute and grave (230), dot and ring below (220) */
        static const char *const m[] = {"\xCC\x81", "\xCC\xA3", "\xCC\x80", "\xCC\xA5"};
        memcpy(s + 1 + 2 * i, m[i % 4], 2);
    }
    buf_init(&b, (size_t)1 << 20);
    assert_int_equal(unicode_normalize(UNICODE_NFD, s, 2 * N + 1, &b), 0);
    assert_int_equal(b.len, 2 * N + 1);
    for (i = 0; i < N; i++) {
        const char *want =
            i < N / 2 ? (i % 2 ? "\xCC\xA5" : "\xCC\xA3") : (i % 2 ? "\xCC\x80" : "\xCC\x81");
        assert_memory_equal(b.data + 1 + 2 * i, want, 2);
    }
    buf_fini(&b);
    buf_init(&b, 100);
    assert_int_equal(unicode_normalize(UNICODE_NFD, s, 2 * N + 1, &b), STATUS_NOMEM);
    buf_fini(&b);
    mem_free(s);
}

static void test_shadow(void **state)
{
    int oom = 1;
    char *s;
    (void)state;

    assert_null(unicode_shadow("caf\xC3\xA9 \xE6\xBC\xA2", 9, &oom));
    assert_int_equal(oom, 0);
    /* U+1C89, a capital letter of Unicode 16, becomes an older one of three bytes */
    s = unicode_shadow("a\xE1\xB2\x89z", 5, &oom);
    assert_non_null(s);
    assert_memory_equal(s, "a\xE1\xB2\x90z", 5);
    mem_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_valid_prefix),  cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_byte_alphabet), cmocka_unit_test(test_classes),
        cmocka_unit_test(test_normal_forms),  cmocka_unit_test(test_long_runs),
        cmocka_unit_test(test_shadow),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
