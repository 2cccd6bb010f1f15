/* The byte buffer: contents, the ceiling and its stickiness, shifting, taking. */
#include "support.h"

#include "base/buf.h"
#include "base/mem.h"
#include "base/status.h"

static void appends(void **state)
{
    struct buf b;
    (void)state;
    buf_init(&b, 1 << 20);
    assert_string_equal(b.data, "");
    buf_add(&b, "", 0);
    assert_int_equal(b.len, 0);
    buf_str(&b, "ab");
    buf_char(&b, 0);
    buf_printf(&b, "%d-%s", 42, "x");
    assert_int_equal(b.len, 7);
    assert_memory_equal(b.data,
                        "ab\0"
                        "42-x",
                        8);
    buf_clear(&b);
    assert_string_equal(b.data, "");
    buf_str(&b, "again");
    assert_string_equal(b.data, "again");
    buf_fini(&b);
    buf_fini(&b);
}

/* Every length across several doublings, with each way to append: the NUL is always there. */
static void doublings(void **state)
{
    struct buf b;
    char text[700];
    (void)state;
    memset(text, 'q', sizeof text);
    for (size_t n = 0; n < 600; n++) {
        text[n] = 0;
        buf_init(&b, 1 << 20);
        buf_printf(&b, "%s", text);
        assert_int_equal(b.len, n);
        assert_string_equal(b.data, text);
        buf_printf(&b, "%s!", text);
        assert_int_equal(b.len, 2 * n + 1);
        assert_int_equal(b.data[2 * n], '!');
        assert_int_equal(b.data[2 * n + 1], 0);
        buf_fini(&b);
        text[n] = 'q';
    }
}

/* Exactly `max` bytes fit, one more does not; a failed buffer refuses what would fit again. */
static void ceiling(void **state)
{
    (void)state;
    for (size_t max = 0; max < 300; max += 23) {
        struct buf b;
        char text[512];
        memset(text, 'z', sizeof text);
        buf_init(&b, max);
        buf_add(&b, text, max);
        assert_int_equal(buf_status(&b), STATUS_OK);
        assert_int_equal(b.len, max);
        buf_char(&b, 'x');
        assert_int_equal(buf_status(&b), STATUS_NOMEM);
        assert_int_equal(b.len, max);
        buf_clear(&b);
        assert_int_equal(buf_status(&b), STATUS_OK);
        text[max + 1] = 0;
        buf_printf(&b, "%s", text);
        assert_int_equal(buf_status(&b), STATUS_NOMEM);
        buf_add(&b, "y", max ? 1 : 0);
        assert_int_equal(b.len, 0);
        assert_string_equal(b.data, "");
        buf_fini(&b);
    }
}

/* A length that wraps is refused before anything is copied. */
static void wrap(void **state)
{
    struct buf b;
    (void)state;
    buf_init(&b, SIZE_MAX);
    buf_str(&b, "abc");
    buf_add(&b, "x", SIZE_MAX - 1);
    assert_int_equal(buf_status(&b), STATUS_NOMEM);
    assert_string_equal(b.data, "abc");
    buf_fini(&b);
}

static void shifts(void **state)
{
    struct buf b;
    (void)state;
    buf_init(&b, 100);
    buf_shift(&b, 0);
    buf_str(&b, "one\ntwo");
    buf_shift(&b, 4);
    assert_string_equal(b.data, "two");
    assert_int_equal(b.len, 3);
    buf_shift(&b, 3);
    assert_string_equal(b.data, "");
    buf_fini(&b);
}

/* Room that was made is not moved from, and is no more than was said; too much is no error. */
static void reserves(void **state)
{
    struct buf b;
    const char *at;
    (void)state;
    buf_init(&b, 1000);
    buf_reserve(&b, 0);
    assert_int_equal(b.cap, 0);
    buf_str(&b, "ab");
    buf_reserve(&b, 700);
    assert_string_equal(b.data, "ab");
    assert_int_equal(b.cap, 701);
    at = b.data;
    while (b.len < 700) {
        buf_char(&b, 'x');
    }
    assert_ptr_equal(b.data, at);
    buf_reserve(&b, 10);
    assert_ptr_equal(b.data, at);
    buf_reserve(&b, 1001);
    assert_ptr_equal(b.data, at);
    assert_int_equal(buf_status(&b), 0);
    buf_char(&b, 'y');
    assert_int_equal(b.len, 701);
    assert_memory_equal(b.data + 698, "xxy", 4);
    buf_fini(&b);
}

static void takes(void **state)
{
    struct buf b;
    char *p;
    size_t n = 99;
    (void)state;
    buf_init(&b, 100);
    p = buf_take(&b, &n);
    assert_string_equal(p, "");
    assert_int_equal(n, 0);
    mem_free(p);
    buf_str(&b, "mine");
    p = buf_take(&b, &n);
    assert_string_equal(p, "mine");
    assert_int_equal(n, 4);
    assert_int_equal(b.len, 0);
    assert_string_equal(b.data, "");
    mem_free(p);
    buf_str(&b, "more");
    p = buf_take(&b, NULL);
    assert_string_equal(p, "more");
    mem_free(p);
    buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(appends),  cmocka_unit_test(doublings), cmocka_unit_test(ceiling),
        cmocka_unit_test(wrap),     cmocka_unit_test(shifts),    cmocka_unit_test(takes),
        cmocka_unit_test(reserves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
