/* The matchers by hand against PCRE2 on the same patterns: every character of Unicode in several
 * surroundings, and random strings of what the patterns tell apart. WORDS_RANDOM sets how many. */
#include "support.h"

#include "base/buf.h"
#include "base/mem.h"
#include "base/status.h"
#include "text/rx.h"
#include "text/unicode.h"
#include "text/words.h"

struct pair {
    struct rx *hand, *pcre;
    struct rx_scratch w;
};

static void pair_open(struct pair *p, const char *pattern)
{
    struct err e = {0};

    rx_scratch_init(&p->w);
    assert_ok(rx_open(pattern, strlen(pattern), &p->hand, &e), &e);
    assert_ok(rx_open_pcre(pattern, strlen(pattern), &p->pcre, &e), &e);
    assert_non_null(rx_words(p->hand));
    assert_null(rx_words(p->pcre));
}

static void pair_close(struct pair *p)
{
    rx_close(p->hand);
    rx_close(p->pcre);
    rx_scratch_fini(&p->w);
}

/* The same matches; PCRE2 looks at the shadow. */
static size_t check(struct pair *p, const char *pattern, const char *s, size_t n)
{
    struct rx_iter x, y;
    struct err e = {0};
    size_t count = 0;
    int oom;
    char *shadow = unicode_shadow(s, n, &oom);

    rx_iter_init(&x, p->hand, s, n);
    rx_iter_init(&y, p->pcre, shadow ? shadow : s, n);
    for (;; count++) {
        size_t a = 0, b = 0, c = 0, d = 0;
        int hand = rx_next(&x, &p->w, &a, &b, &e);
        int pcre = rx_next(&y, &p->w, &c, &d, &e);
        if (hand != pcre || (hand == STATUS_OK && (a != c || b != d))) {
            fail_msg("%s: on '%.*s' match %zu is [%zu, %zu), not [%zu, %zu); %d and %d", pattern,
                     (int)n, s, count, a, b, c, d, hand, pcre);
        }
        if (hand != STATUS_OK) {
            break;
        }
    }
    mem_free(shadow);
    return count;
}

static void put(struct buf *b, uint32_t cp)
{
    char t[4];

    buf_add(b, t, unicode_put(cp, t));
}

/* Each character alone, doubled, and between letters, digits, spaces and line ends. */
static void test_characters(void **state)
{
    static const char *const around[][2] = {{"", ""},   {"a", "b"},  {" ", "a"},  {"1", "A"},
                                            {"'", "s"}, {"\n", " "}, {"Aa", "'S"}};
    struct buf b;
    const char *pattern;
    size_t i, k;
    (void)state;

    buf_init(&b, 1 << 20);
    for (i = 0; (pattern = words_pattern(i)); i++) {
        struct pair p;
        uint32_t cp;
        size_t matches = 0;
        pair_open(&p, pattern);
        for (cp = 1; cp < 0x110000; cp++) {
            if ((cp >= 0xD800 && cp < 0xE000) || (cp > 0x32400 && cp % 61 && cp >> 9 != 0x700)) {
                continue;
            }
            buf_clear(&b);
            for (k = 0; k < sizeof around / sizeof *around; k++) {
                buf_str(&b, around[k][0]);
                put(&b, cp);
                buf_str(&b, around[k][1]);
                put(&b, cp);
                put(&b, cp);
            }
            matches += check(&p, pattern, b.data, b.len);
        }
        assert_true(matches > 1000);
        pair_close(&p);
    }
    buf_fini(&b);
}

static uint64_t next_random(uint64_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return *x;
}

static uint32_t random_char(uint64_t *x)
{
    static const uint32_t some[] = {
        ' ',   ' ',    ' ',    '\n',  '\r',    '\t',   '\'',   's',    'S',     'l',
        'v',   'e',    'E',    'A',   'b',     '1',    '2',    '.',    '/',     '$',
        0x17F, 0x130,  0x301,  0x903, 0x1C5,   0x2B0,  0x4E00, 0x3042, 0x30FF,  0x9FA6,
        0xA0,  0x3000, 0x2028, 0xE9,  0xC9,    0x661,  0x2160, 0xBD,   0x200D,  0x85,
        0x0B,  0x0C,   0,      0x1F,  0x1F600, 0x20AC, 0xAD,   0x2029, 0x1D400, 0x10FFFF};
    uint64_t r = next_random(x);
    uint32_t cp;

    if (r % 8) {
        return some[(r >> 8) % (sizeof some / sizeof *some)];
    }
    do {
        cp = (uint32_t)(next_random(x) % (r % 16 ? 0x3100 : 0x110000));
    } while (cp >= 0xD800 && cp < 0xE000);
    return cp;
}

static void test_random(void **state)
{
    const char *many = getenv("WORDS_RANDOM");
    long rounds = many ? atol(many) : 40000;
    uint64_t x = 88172645463325252u;
    const char *pattern;
    struct buf b;
    size_t i;
    (void)state;

    buf_init(&b, 1 << 20);
    for (i = 0; (pattern = words_pattern(i)); i++) {
        struct pair p;
        long k;
        pair_open(&p, pattern);
        for (k = 0; k < rounds; k++) {
            size_t n = next_random(&x) % 24;
            buf_clear(&b);
            while (n-- > 0) {
                put(&b, random_char(&x));
            }
            check(&p, pattern, b.data, b.len);
        }
        pair_close(&p);
    }
    buf_fini(&b);
}

static void test_find(void **state)
{
    (void)state;
    assert_null(words_find("\\p{N}{1,4}", 10));
    assert_null(words_find("\\p{N}{1,3}", 9));
    assert_non_null(words_find("\\p{N}{1,3}", 10));
    assert_null(words_find("", 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_characters),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_find),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
