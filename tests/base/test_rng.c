/* Philox against the Random123 distribution's known answers; MT19937 against CPython. */
#include "support.h"

#include <math.h>

#include "base/rng.h"

static void philox_known_answers(void **state)
{
    /* kat_vectors of Random123, philox4x32 10 rounds */
    static const struct {
        uint32_t ctr[4], key[2], out[4];
    } kat[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof kat / sizeof kat[0]; i++) {
        uint32_t out[4];
        rng_philox(kat[i].ctr, kat[i].key, out);
        for (int j = 0; j < 4; j++) {
            assert_int_equal(out[j], kat[i].out[j]);
        }
    }
}

static void uniform_is_pure_and_in_range(void **state)
{
    double sum = 0, sq = 0, min = 1, max = 0;
    int n = 200000;
    (void)state;
    for (int i = 0; i < n; i++) {
        double u = rng_uniform(42, RNG_TRAIN, (uint64_t)i / 100, 0, (uint32_t)i % 100);
        assert_true(u > 0 && u < 1);
        assert_true(u == rng_uniform(42, RNG_TRAIN, (uint64_t)i / 100, 0, (uint32_t)i % 100));
        sum += u;
        sq += u * u;
        min = u < min ? u : min;
        max = u > max ? u : max;
    }
    assert_true(fabs(sum / n - 0.5) < 0.003);
    assert_true(fabs(sq / n - 1.0 / 3) < 0.003);
    assert_true(min < 1e-4 && max > 1 - 1e-4);
}

static void uniform_depends_on_every_argument(void **state)
{
    double base = rng_uniform(1, 0, 2, 3, 4);
    (void)state;
    assert_true(base != rng_uniform(2, 0, 2, 3, 4));
    assert_true(base != rng_uniform(1ull << 32 | 1, 0, 2, 3, 4));
    assert_true(base != rng_uniform(1, 1, 2, 3, 4));
    assert_true(base != rng_uniform(1, 0, 3, 3, 4));
    assert_true(base != rng_uniform(1, 0, (1ull << 32) + 2, 3, 4));
    assert_true(base != rng_uniform(1, 0, 2, 4, 4));
    assert_true(base != rng_uniform(1, 0, 2, 3, 5));
}

/* The mapping is a promise: a change makes every recorded run irreproducible. */
static void uniform_golden(void **state)
{
    (void)state;
    assert_true(rng_uniform(42, 0, 0, 0, 0) == 0x1.11777362d0078p-4);
    assert_true(rng_uniform(42, 1, 7, 2, 1000) == 0x1.565e9e5540a08p-2);
}

static void shuffle_of_32_bits(void **state)
{
    static int64_t a[5000];
    static uint32_t b[5000];
    struct rng_py r;
    (void)state;
    for (int n = 1; n <= 5000; n += 1 + n / 3) {
        for (int i = 0; i < n; i++) {
            a[i] = i;
            b[i] = (uint32_t)i;
        }
        rng_py_seed(&r, (uint64_t)n);
        rng_py_shuffle(&r, a, n);
        rng_py_seed(&r, (uint64_t)n);
        rng_py_shuffle32(&r, b, n);
        for (int i = 0; i < n; i++) {
            assert_int_equal(a[i], b[i]);
        }
    }
}

static void shuffle_as_cpython(void **state)
{
    static const int64_t g42[] = {7, 3, 2, 8, 5, 6, 9, 4, 0, 1};
    static const int64_t g43[] = {8, 1, 5, 6, 9, 7, 3, 2, 4, 0};
    static const int64_t g5[] = {3, 1, 2, 4, 0};
    struct rng_py r;
    int64_t idx[10];
    (void)state;
    for (int i = 0; i < 10; i++) {
        idx[i] = i;
    }
    rng_py_seed(&r, 42);
    rng_py_shuffle(&r, idx, 10);
    assert_memory_equal(idx, g42, sizeof g42);
    for (int i = 0; i < 10; i++) {
        idx[i] = i;
    }
    rng_py_seed(&r, 43);
    rng_py_shuffle(&r, idx, 10);
    assert_memory_equal(idx, g43, sizeof g43);
    for (int i = 0; i < 5; i++) {
        idx[i] = i;
    }
    rng_py_seed(&r, 42);
    rng_py_shuffle(&r, idx, 5);
    assert_memory_equal(idx, g5, sizeof g5);
}

/* python3 -c "import random; random.seed(S); print([random.getrandbits(32) for _ in range(3)],
 *                                                  random.randrange(10**12))" */
static void words_as_cpython(void **state)
{
    struct rng_py r;
    (void)state;
    rng_py_seed(&r, 0u);
    assert_int_equal(rng_py_u32(&r), 3626764237u);
    assert_int_equal(rng_py_u32(&r), 1654615998u);
    assert_int_equal(rng_py_u32(&r), 3255389356u);
    assert_int_equal(rng_py_randbelow(&r, 1000000000000), 463385069186);
    for (int i = 0; i < 699; i++) {
        rng_py_u32(&r);
    }
    assert_int_equal(rng_py_u32(&r), 2877920773u);
    rng_py_seed(&r, 42u);
    assert_int_equal(rng_py_u32(&r), 2746317213u);
    assert_int_equal(rng_py_u32(&r), 478163327u);
    assert_int_equal(rng_py_u32(&r), 107420369u);
    assert_int_equal(rng_py_randbelow(&r, 1000000000000), 303832645883);
    for (int i = 0; i < 699; i++) {
        rng_py_u32(&r);
    }
    assert_int_equal(rng_py_u32(&r), 4033992825u);
    rng_py_seed(&r, 1099511640121ull);
    assert_int_equal(rng_py_u32(&r), 1332995613u);
    assert_int_equal(rng_py_u32(&r), 1500173691u);
    assert_int_equal(rng_py_u32(&r), 493462063u);
    assert_int_equal(rng_py_randbelow(&r, 1000000000000), 584132290922);
    for (int i = 0; i < 699; i++) {
        rng_py_u32(&r);
    }
    assert_int_equal(rng_py_u32(&r), 1114881867u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_known_answers),
        cmocka_unit_test(uniform_is_pure_and_in_range),
        cmocka_unit_test(uniform_depends_on_every_argument),
        cmocka_unit_test(uniform_golden),
        cmocka_unit_test(shuffle_as_cpython),
        cmocka_unit_test(shuffle_of_32_bits),
        cmocka_unit_test(words_as_cpython),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
