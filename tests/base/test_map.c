/* The map against a linear list: keys of any bytes, replacement, order of insertion. */
#include "support.h"

#include "base/map.h"

static void small(void **state)
{
    struct map m;
    int64_t v = 5;
    (void)state;
    map_init(&m);
    assert_false(map_get(&m, "a", 1, &v));
    assert_int_equal(v, 5);
    assert_int_equal(map_put(&m, "a", 1, INT64_MIN), 1);
    assert_int_equal(map_put(&m, "", 0, 7), 1);
    assert_int_equal(map_put(&m, "a\0b", 3, 8), 1);
    assert_int_equal(map_put(&m, "a", 1, 9), 0);
    assert_true(map_get(&m, "a", 1, &v) && v == 9);
    assert_true(map_get(&m, "", 0, &v) && v == 7);
    assert_true(map_get(&m, "a\0b", 3, &v) && v == 8);
    assert_false(map_get(&m, "a\0c", 3, NULL));
    assert_true(map_get(&m, "a", 1, NULL));
    assert_int_equal(m.count, 3);
    map_fini(&m);
    map_fini(&m);
}

static size_t key_of(int i, char out[64])
{
    /* numbers that differ in one byte, some long enough for several hash steps */
    return (size_t)snprintf(out, 64, i % 3 ? "%d" : "a long key with a tail that differs %d", i);
}

/* Ten thousand keys through many growths, looked up during and after, in insertion order. */
static void many(void **state)
{
    enum { N = 10000 };
    struct map m;
    char key[64];
    (void)state;
    map_init(&m);
    for (int i = 0; i < N; i++) {
        int64_t v;
        size_t n = key_of(i, key);
        assert_false(map_get(&m, key, n, NULL));
        assert_int_equal(map_put(&m, key, n, i * 3), 1);
        memset(key, 'X', sizeof key); /* the map has its own copy */
        n = key_of(i / 2, key);
        assert_true(map_get(&m, key, n, &v));
        assert_int_equal(v, i / 2 * 3);
    }
    for (int i = 0; i < N; i += 2) {
        size_t n = key_of(i, key);
        assert_int_equal(map_put(&m, key, n, -i), 0);
    }
    assert_int_equal(m.count, N);
    for (int i = 0; i < N; i++) {
        size_t n = key_of(i, key);
        assert_int_equal(m.entries[i].len, n);
        assert_string_equal(m.entries[i].key, key);
        assert_int_equal(m.entries[i].value, i % 2 ? i * 3 : -i);
    }
    map_fini(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(small), cmocka_unit_test(many)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
