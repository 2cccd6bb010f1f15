/* Exact sums against cases with a known value, against each other in shuffled order, and against
 * the FPU where that is exact. */
#include "support.h"

#include <float.h>
#include <math.h>

#include "base/rng.h"
#include "base/status.h"
#include "num/exact.h"

static uint64_t seed_state = 1;

static uint64_t next_u64(void)
{
    uint32_t ctr[4] = {(uint32_t)seed_state, (uint32_t)(seed_state >> 32), 0, 0}, key[2] = {7, 9};
    uint32_t out[4];
    seed_state++;
    rng_philox(ctr, key, out);
    return (uint64_t)out[0] << 32 | out[1];
}

/* Any finite double, subnormals included. */
static double any_double(void)
{
    for (;;) {
        uint64_t b = next_u64();
        double v;
        memcpy(&v, &b, 8);
        if (isfinite(v)) {
            return v;
        }
    }
}

static double sum_of(const double *v, int n)
{
    struct exact x;
    exact_init(&x);
    for (int i = 0; i < n; i++) {
        exact_add(&x, v[i]);
    }
    assert_int_equal(exact_status(&x), 0);
    return exact_value(&x);
}

static void known_sums(void **state)
{
    double big[] = {1e308, 1, -1e308};
    double tiny[] = {5e-324, 1, -1};
    double tie_even[] = {1, 0x1p-53};            /* half an ulp: stays at 1 */
    double tie_odd[] = {1 + 0x1p-52, 0x1p-53};   /* half an ulp above an odd one: goes up */
    double tie_broken[] = {1, 0x1p-53, 5e-324};  /* a hair more than half: goes up */
    double hair_below[] = {1, 0x1p-53, -5e-324}; /* a hair less: stays */
    double tenth[] = {.1, .1, .1, .1, .1, .1, .1, .1, .1, .1};
    double negative[] = {-3.5, 1.25};
    double zero[] = {1e-300, -1e-300};
    (void)state;
    assert_true(sum_of(big, 3) == 1);
    assert_true(sum_of(tiny, 3) == 5e-324);
    assert_true(sum_of(tie_even, 2) == 1);
    assert_true(sum_of(tie_odd, 2) == 1 + 0x1p-51);
    assert_true(sum_of(tie_broken, 3) == 1 + 0x1p-52);
    assert_true(sum_of(hair_below, 3) == 1);
    assert_true(sum_of(tenth, 10) == 1); /* correctly rounded, unlike a loop */
    assert_true(sum_of(negative, 2) == -2.25);
    assert_true(sum_of(zero, 2) == 0);
    assert_true(sum_of(NULL, 0) == 0);
}

static void one_value_comes_back(void **state)
{
    (void)state;
    for (int i = 0; i < 20000; i++) {
        double v = any_double();
        assert_true(sum_of(&v, 1) == v);
    }
    double edge[] = {DBL_MAX, -DBL_MAX, DBL_MIN, DBL_MIN - 5e-324, 5e-324, 0x1p-1022, 0x1.8p-1073};
    for (size_t i = 0; i < sizeof edge / sizeof edge[0]; i++) {
        assert_true(sum_of(&edge[i], 1) == edge[i]);
    }
}

/* a + b is correctly rounded by the FPU too. */
static void pairs_as_the_fpu(void **state)
{
    (void)state;
    for (int i = 0; i < 50000; i++) {
        double p[2] = {any_double(), 0};
        p[1] = p[0] * (1 + ldexp((double)(next_u64() >> 11), -(int)(next_u64() % 120)));
        if (next_u64() & 1) {
            p[1] = -p[1];
        }
        if (isfinite(p[1]) && isfinite(p[0] + p[1])) {
            assert_true(sum_of(p, 2) == p[0] + p[1]);
        }
    }
}

static void order_is_free(void **state)
{
    enum { N = 4000 };
    static double v[N];
    double first;
    (void)state;
    for (int i = 0; i < N; i++) {
        v[i] = ldexp((double)(int64_t)(next_u64() >> 11), (int)(next_u64() % 200) - 150) *
               (next_u64() & 1 ? 1 : -1);
    }
    first = sum_of(v, N);
    for (int round = 0; round < 5; round++) {
        struct exact a, b;
        exact_init(&a);
        exact_init(&b);
        for (int i = N - 1; i > 0; i--) {
            int j = (int)(next_u64() % (uint64_t)(i + 1));
            double t = v[i];
            v[i] = v[j];
            v[j] = t;
        }
        for (int i = 0; i < N; i++) {
            exact_add(next_u64() & 1 ? &a : &b, v[i]);
        }
        exact_merge(&a, &b);
        assert_true(exact_value(&a) == first);
    }
}

static void canonical_words_are_equal(void **state)
{
    struct exact a, b;
    (void)state;
    exact_init(&a);
    exact_init(&b);
    exact_add(&a, 3.5);
    exact_add(&a, -10);
    exact_add(&b, -6.5);
    exact_carry(&a);
    exact_carry(&b);
    assert_memory_equal(a.w, b.w, sizeof a.w);
    exact_sub(&a, -6.5);
    assert_true(exact_value(&a) == 0);
}

static void vectors_as_single_adds(void **state)
{
    enum { N = 100003 };
    float *v = malloc(N * sizeof *v);
    struct exact a, b, c, d;
    (void)state;
    exact_init(&a);
    exact_init(&b);
    exact_init(&c);
    exact_init(&d);
    for (int i = 0; i < N; i++) {
        uint32_t u = (uint32_t)next_u64();
        memcpy(&v[i], &u, 4);
        if (!isfinite(v[i])) {
            v[i] = 0;
        }
    }
    v[5] = 1e-41f; /* a subnormal counts as zero */
    for (int i = 0; i < N; i++) {
        double w = fabsf(v[i]) < FLT_MIN ? 0 : v[i];
        exact_add(&a, w);
        exact_add(&c, w * w);
    }
    exact_add_f32v(&b, v, N);
    exact_add_sq_f32v(&d, v, N);
    assert_true(exact_value(&a) == exact_value(&b));
    assert_true(exact_value(&c) == exact_value(&d));
    exact_init(&b);
    exact_init(&d);
    for (int i = 0; i < N; i++) {
        exact_add_f32(&b, v[i]);
        exact_add_mul_f32(&d, v[i], -v[i]);
    }
    assert_true(exact_value(&a) == exact_value(&b));
    assert_true(exact_value(&c) == -exact_value(&d));
    free(v);
}

static void not_finite_is_told(void **state)
{
    struct exact x, y;
    float f[3] = {1, NAN, 2};
    (void)state;
    exact_init(&x);
    exact_add(&x, INFINITY);
    exact_add(&x, -INFINITY);
    assert_int_equal(x.bad, 2);
    assert_int_equal(exact_status(&x), STATUS_NUMERIC);
    assert_true(isnan(exact_value(&x)));
    exact_init(&x);
    exact_add_f32v(&x, f, 3);
    assert_int_equal(x.bad, 1);
    exact_init(&x);
    exact_add_sq_f32v(&x, f, 3);
    assert_int_equal(exact_status(&x), STATUS_NUMERIC);
    exact_init(&x);
    exact_init(&y);
    exact_add_mul_f32(&y, 1, INFINITY);
    exact_merge(&x, &y);
    assert_int_equal(exact_status(&x), STATUS_NUMERIC);
    /* A sum beyond a double is told, and becomes fine again when it comes back. */
    exact_init(&x);
    exact_add(&x, DBL_MAX);
    exact_add(&x, DBL_MAX);
    assert_int_equal(exact_status(&x), STATUS_NUMERIC);
    exact_sub(&x, DBL_MAX);
    assert_int_equal(exact_status(&x), 0);
    assert_true(exact_value(&x) == DBL_MAX);
}

static void carries_do_not_overflow(void **state)
{
    struct exact x;
    (void)state;
    exact_init(&x);
    /* The worst digit pattern, up to a state near the carry limit and past it. */
    exact_add(&x, -0x1.fffffffffffffp0);
    for (int i = 0; i < 40; i++) {
        struct exact y = x;
        exact_merge(&x, &y); /* doubles the sum and the pending additions */
    }
    assert_true(exact_value(&x) == -ldexp(0x1.fffffffffffffp0, 40));
}

static void sqrt_as_the_fpu(void **state)
{
    (void)state;
    for (int i = 0; i < 100000; i++) {
        double v = fabs(any_double());
        assert_true(exact_sqrt(v) == sqrt(v));
    }
    assert_true(exact_sqrt(0) == 0);
    assert_true(exact_sqrt(4) == 2);
    assert_true(exact_sqrt(2) == sqrt(2));
    assert_true(exact_sqrt(DBL_MAX) == sqrt(DBL_MAX));
    assert_true(exact_sqrt(5e-324) == sqrt(5e-324));
    assert_true(isnan(exact_sqrt(-1)));
    assert_true(isinf(exact_sqrt(INFINITY)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_sums),
        cmocka_unit_test(one_value_comes_back),
        cmocka_unit_test(pairs_as_the_fpu),
        cmocka_unit_test(order_is_free),
        cmocka_unit_test(canonical_words_are_equal),
        cmocka_unit_test(vectors_as_single_adds),
        cmocka_unit_test(not_finite_is_told),
        cmocka_unit_test(carries_do_not_overflow),
        cmocka_unit_test(sqrt_as_the_fpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
