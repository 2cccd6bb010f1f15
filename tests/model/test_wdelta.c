/* Pieces of weights: what goes in comes out, at every density and with both encodings; bytes that
 * are no piece are refused. */
#include "model/fixture.h"

#include "base/mem.h"
#include "base/status.h"
#include "model/wdelta.h"

static uint64_t seed = 7;

static uint64_t draw(void)
{
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return seed >> 33;
}

struct pair {
    uint16_t *old, *now;
    int32_t n;
    int64_t changed;
};

/* One of `every` values changes; 0: none. */
static void make(struct pair *p, int32_t n, int every)
{
    p->old = mem_alloc(2 * (size_t)n);
    p->now = mem_alloc(2 * (size_t)n);
    p->n = n;
    p->changed = 0;
    for (int32_t i = 0; i < n; i++) {
        p->old[i] = (uint16_t)draw();
        p->now[i] = p->old[i];
        if (every && draw() % (uint64_t)every == 0) {
            p->now[i] ^= (uint16_t)(1 + draw() % 3);
            p->changed++;
        }
    }
}

static void drop(struct pair *p)
{
    mem_free(p->old);
    mem_free(p->now);
}

static void round_trip(struct wdelta *d, const struct pair *p, enum wdelta_encoding how, int whole)
{
    struct wdelta_at at = {.tensor = 3, .first = 2 * WDELTA_PIECE, .count = p->n};
    uint8_t *out = mem_alloc(wdelta_bound());
    uint16_t *v = mem_alloc(2 * (size_t)p->n);
    struct wdelta_piece x;
    struct err e = {0};
    int64_t changed = -1;
    size_t pos = 0, n = wdelta_encode(d, how, &at, whole ? NULL : p->old, p->now, out, &changed);

    assert_int_equal(changed, whole ? p->n : p->changed);
    assert_int_equal(n == 0, changed == 0);
    if (n) {
        assert_ok(wdelta_next(out, n, &pos, &x, &e), &e);
        assert_int_equal(pos, n);
        assert_int_equal(x.at.tensor, 3);
        assert_int_equal(x.at.first, 2 * WDELTA_PIECE);
        assert_int_equal(x.at.count, p->n);
        if (!whole) { /* a whole piece needs nothing before it */
            memcpy(v, p->old, 2 * (size_t)p->n);
        }
        assert_int_equal(wdelta_whole(&x), whole || (how == WDELTA_OVERWRITE && !x.sparse));
        assert_ok(wdelta_apply(d, &x, v, &e), &e);
        assert_memory_equal(v, p->now, 2 * (size_t)p->n);
    }
    mem_free(out);
    mem_free(v);
}

static void test_round_trips(void **state)
{
    static const int32_t sizes[] = {1,           3, 8, 9, 255, 256, 1000, 4097, WDELTA_PIECE - 1,
                                    WDELTA_PIECE};
    static const int every[] = {0, 1, 2, 7, 8, 9, 50, 254, 255, 256, 2000, 100000};
    struct wdelta *d = wdelta_new();

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (size_t k = 0; k < sizeof every / sizeof every[0]; k++) {
            struct pair p;
            make(&p, sizes[i], every[k]);
            for (int how = 0; how < 4; how++) {
                round_trip(d, &p, how & 1 ? WDELTA_OVERWRITE : WDELTA_XOR, how & 2);
            }
            drop(&p);
        }
    }
    wdelta_free(d);
}

/* Gaps of exactly 254, 255, 256 and 510 values, at the first and the last place. */
static void test_gaps(void **state)
{
    static const int32_t places[] = {0, 255, 511, 768, 1279, 4999};
    struct wdelta *d = wdelta_new();
    struct pair p;

    (void)state;
    make(&p, 5000, 0);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        p.now[places[i]] ^= 0x8001;
        p.changed++;
    }
    round_trip(d, &p, WDELTA_XOR, 0);
    round_trip(d, &p, WDELTA_OVERWRITE, 0);
    drop(&p);
    wdelta_free(d);
}

static void test_small(void **state)
{
    struct wdelta *d = wdelta_new();
    uint8_t *out = mem_alloc(wdelta_bound());
    struct wdelta_at at = {.count = WDELTA_PIECE};
    struct pair p;
    int64_t changed;
    size_t n;

    (void)state;
    make(&p, WDELTA_PIECE, 50);
    n = wdelta_encode(d, WDELTA_XOR, &at, p.old, p.now, out, &changed);
    assert_true(n < (size_t)changed * 3 / 2); /* 2% of values: place and change in 12 bits */
    drop(&p);
    mem_free(out);
    wdelta_free(d);
}

/* Any byte changed, any end cut: an error, or values that only a sum tells from the right ones;
 * never a step outside. */
static void test_damage(void **state)
{
    struct wdelta *d = wdelta_new();
    uint8_t *out = mem_alloc(wdelta_bound()), *bad;
    struct wdelta_at at = {.count = 5000};
    struct wdelta_piece x;
    struct err e = {0};
    int64_t changed;
    struct pair p;
    int refused = 0;

    (void)state;
    for (int every = 1; every < 100; every += 49) {
        size_t n;
        make(&p, 5000, every);
        n = wdelta_encode(d, WDELTA_XOR, &at, p.old, p.now, out, &changed);
        for (size_t cut = 0; cut < n; cut++) {
            size_t pos = 0;
            bad = mem_alloc(cut + 1);
            memcpy(bad, out, cut);
            assert_int_equal(wdelta_next(bad, cut, &pos, &x, &e), STATUS_FORMAT);
            mem_free(bad);
        }
        for (int k = 0; k < 20000; k++) {
            size_t pos = 0;
            uint16_t *v = mem_alloc(2 * 5000);
            bad = mem_alloc(n);
            memcpy(bad, out, n);
            bad[draw() % (k & 1 ? n : WDELTA_HEAD)] ^= (uint8_t)(1 + draw() % 255);
            if (wdelta_next(bad, n, &pos, &x, &e) != STATUS_OK || x.at.count > 5000 ||
                wdelta_apply(d, &x, v, &e) != STATUS_OK) {
                refused++;
            }
            mem_free(bad);
            mem_free(v);
        }
        drop(&p);
    }
    assert_true(refused > 10000);
    mem_free(out);
    wdelta_free(d);
}

static void test_hash(void **state)
{
    char h[WDELTA_HASH];

    (void)state;
    wdelta_hash("", 0, h);
    assert_string_equal(h, "99aa06d3014798d86001c324468d497f"); /* xxhsum -H128 of nothing */
    assert_true(wdelta_is_hash(h));
    assert_false(wdelta_is_hash("../../etc/passwd"));
    assert_false(wdelta_is_hash("99AA06d3014798d86001c324468d497f"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_round_trips),
                                       cmocka_unit_test(test_gaps), cmocka_unit_test(test_small),
                                       cmocka_unit_test(test_damage), cmocka_unit_test(test_hash)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
