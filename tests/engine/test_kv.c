/* The pool of KV pages: every page handed out once, counted by its holders, free again when the
 * last has given it back; copies carry all layers, heads, keys and values. */
#include "model/tinymodel.h"

#include "engine/kv.h"

enum { PAGES = 13 };

static const struct tinymodel_spec spec = {"llama", 1, 2, 64, 2, 2, 32, 64, 40, 256, 0};
static struct tinymodel model;

static int setup(void **state)
{
    if (fixture_setup(state) != 0) {
        return -1;
    }
    tinymodel_open(&model, tinymodel_write(&spec), "cpu", "scalar", 1, 1, 0, 0);
    return 0;
}

static int teardown(void **state)
{
    tinymodel_close(&model);
    return fixture_teardown(state);
}

static void open_pool(struct kv_pool *p)
{
    struct err e = {0};
    assert_ok(kv_open(p, model.w, PAGES, &e), &e);
    assert_int_equal(p->n, PAGES);
    assert_int_equal(p->free, PAGES);
}

static void test_take_all(void **state)
{
    struct kv_pool p;
    int seen[PAGES] = {0};

    (void)state;
    open_pool(&p);
    for (int i = 0; i < PAGES; i++) {
        int page = kv_take(&p, 0);
        assert_in_range(page, 0, PAGES - 1);
        assert_int_equal(seen[page]++, 0);
        assert_int_equal(p.free, PAGES - 1 - i);
    }
    assert_int_equal(kv_take(&p, 0), -1);
    assert_int_equal(p.free, 0);
    kv_give(&p, 7);
    assert_int_equal(p.free, 1);
    assert_int_equal(kv_take(&p, 0), 7);
    assert_int_equal(kv_take(&p, 0), -1);
    kv_close(&p);
    kv_close(&p); /* an empty pool is fine */
}

static void test_share(void **state)
{
    struct kv_pool p;
    int page;

    (void)state;
    open_pool(&p);
    page = kv_take(&p, 0);
    kv_share(&p, page);
    kv_share(&p, page);
    assert_int_equal(p.refs[page], 3);
    kv_give(&p, page);
    kv_give(&p, page);
    assert_int_equal(p.free, PAGES - 1);
    for (int i = 0; i < PAGES - 1; i++) {
        assert_int_not_equal(kv_take(&p, 0), page); /* still held */
    }
    assert_int_equal(kv_take(&p, 0), -1);
    kv_give(&p, page);
    assert_int_equal(kv_take(&p, 0), page);
    assert_int_equal(p.refs[page], 1);
    kv_close(&p);
}

/* A page goes back to the pool when the cache and all readers have let go of it; it is idle while
 * the cache alone holds it. */
static void test_cached(void **state)
{
    struct kv_pool p;
    int page;

    (void)state;
    open_pool(&p);
    page = kv_take(&p, 41);
    assert_int_equal(p.version[page], 41);
    kv_cache(&p, page);
    assert_int_equal(p.refs[page], 2);
    assert_int_equal(p.idle, 0);
    kv_give(&p, page);
    assert_int_equal(p.idle, 1);
    kv_share(&p, page);
    assert_int_equal(p.idle, 0);
    kv_give(&p, page);
    assert_int_equal(p.idle, 1);
    assert_int_equal(p.free, PAGES - 1);
    kv_uncache(&p, page);
    assert_int_equal(p.idle, 0);
    assert_int_equal(p.free, PAGES);
    page = kv_take(&p, 42);
    assert_int_equal(p.version[page], 42);
    kv_cache(&p, page);
    kv_uncache(&p, page);
    assert_int_equal(p.free, PAGES - 1); /* somebody reads it */
    kv_give(&p, page);
    assert_int_equal(p.free, PAGES);
    kv_close(&p);
}

/* Thousands of random takes, shares, gives and turns of the cache against counts kept here. */
static void test_random(void **state)
{
    struct kv_pool p;
    int refs[PAGES] = {0}, cached[PAGES] = {0}, used = 0;
    uint64_t s = 11;

    (void)state;
    open_pool(&p);
    for (int i = 0; i < 20000; i++) {
        int page = tinymodel_below(&s, PAGES), what = tinymodel_below(&s, 4), idle = 0;
        if (what == 0) {
            int got = kv_take(&p, i);
            assert_true((got < 0) == (used == PAGES));
            if (got >= 0) {
                assert_int_equal(refs[got], 0);
                assert_int_equal(p.version[got], i);
                refs[got] = 1;
                used++;
            }
        } else if (what == 1 && refs[page] > 0 && refs[page] < 5) {
            kv_share(&p, page);
            refs[page]++;
        } else if (what == 2 && refs[page] > cached[page]) {
            kv_give(&p, page);
            used -= --refs[page] == 0;
        } else if (what == 3 && cached[page]) {
            kv_uncache(&p, page);
            cached[page] = 0;
            used -= --refs[page] == 0;
        } else if (what == 3 && refs[page] > 0) {
            kv_cache(&p, page);
            cached[page] = 1;
            refs[page]++;
        }
        for (int k = 0; k < PAGES; k++) {
            idle += cached[k] && refs[k] == 1;
        }
        assert_int_equal(p.free, PAGES - used);
        assert_int_equal(p.refs[page], refs[page]);
        assert_int_equal(p.idle, idle);
    }
    for (int i = 0; i < PAGES; i++) {
        if (cached[i]) {
            kv_uncache(&p, i);
            refs[i]--;
        }
        while (refs[i]-- > 0) {
            kv_give(&p, i);
        }
    }
    assert_int_equal(p.free, PAGES);
    assert_int_equal(p.idle, 0);
    kv_close(&p);
}

static void test_copy(void **state)
{
    struct kv_pool p;
    size_t bytes = device_kv_page_bytes(model.dev, spec.layers, spec.kv_heads, spec.head_dim);
    unsigned char *d;

    (void)state;
    /* keys and values of 64 tokens, 2 layers, 2 heads of 32, in bf16 */
    assert_int_equal(bytes, 64 * 2 * 2 * 32 * 2 * 2);
    open_pool(&p);
    assert_true(p.store.size >= bytes * PAGES);
    d = p.store.data;
    for (size_t i = 0; i < bytes * PAGES; i++) {
        d[i] = (unsigned char)(i * 31 + i / bytes * 7);
    }
    kv_copy(&p, 2, 5);
    for (size_t i = 0; i < bytes * PAGES; i++) {
        size_t from = i / bytes == 5 ? i - 3 * bytes : i;
        assert_int_equal(d[i], (unsigned char)(from * 31 + from / bytes * 7));
    }
    kv_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_take_all), cmocka_unit_test(test_share),
        cmocka_unit_test(test_cached),   cmocka_unit_test(test_random),
        cmocka_unit_test(test_copy),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
