/* The elementary functions against the C library in long double: every exponent, dense mantissas,
 * and the edges. The bounds are those that vmath.h claims. */
#include "support.h"

#include <float.h>
#include <math.h>

#include "base/thread.h"
#include "num/vmath.h"

static float from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static uint32_t bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

/* Distance of got from exact in units of exact's last place as a float. */
static long double ulps(float got, long double exact)
{
    int e;
    frexpl(exact, &e);
    return fabsl((long double)got - exact) / ldexpl(1.0L, e - 24);
}

static long double relative(double got, long double exact)
{
    return exact == 0 ? fabsl((long double)got) : fabsl(((long double)got - exact) / exact);
}

static void worst(long double *max, long double e, double x, double *at)
{
    if (!(e <= *max)) { /* a NaN counts */
        *max = e;
        *at = x;
    }
}

static void test_expf(void **state)
{
    long double max = 0;
    double at = 0;
    (void)state;
    for (uint32_t exponent = 1; exponent < 0x7f + 7; exponent++) {
        for (uint32_t m = 0; m < 1u << 23; m += exponent < 0x70 ? 65537 : 509) {
            for (uint32_t sign = 0; sign < 2; sign++) {
                float x = from_bits(sign << 31 | exponent << 23 | m);
                if (x >= VMATH_EXP_MIN && x <= VMATH_EXP_MAX) {
                    worst(&max, ulps(vmath_expf(x), expl((long double)x)), (double)x, &at);
                }
            }
        }
    }
    for (int i = -870000; i <= 880000; i++) {
        float x = (float)i * 1e-4f;
        if (x >= VMATH_EXP_MIN && x <= VMATH_EXP_MAX) {
            worst(&max, ulps(vmath_expf(x), expl((long double)x)), (double)x, &at);
        }
    }
    print_message("expf: %.3Lf ulp at %a\n", max, at);
    assert_true(max < 1.02L);
}

static void test_expf_edges(void **state)
{
    (void)state;
    assert_int_equal(bits(vmath_expf(0.0f)), bits(1.0f));
    assert_int_equal(bits(vmath_expf(-0.0f)), bits(1.0f));
    assert_int_equal(bits(vmath_expf(-INFINITY)), 0);
    assert_int_equal(bits(vmath_expf(-FLT_MAX)), 0);
    assert_int_equal(bits(vmath_expf(nextafterf(VMATH_EXP_MIN, -INFINITY))), 0);
    assert_true(vmath_expf(VMATH_EXP_MIN) >= FLT_MIN);
    assert_true(isfinite(vmath_expf(VMATH_EXP_MAX)));
    assert_true(vmath_expf(nextafterf(VMATH_EXP_MAX, INFINITY)) == INFINITY);
    assert_true(vmath_expf(INFINITY) == INFINITY);
    assert_true(isnan(vmath_expf(NAN)));
}

static void test_pow2f(void **state)
{
    long double max = 0;
    double at = 0;
    (void)state;
    for (int i = -12600000; i < 12800000; i++) {
        float x = (float)i * 1e-5f;
        long double want = exp2l((long double)x);
        worst(&max, fabsl((long double)vmath_pow2f(x) - want) / want, (double)x, &at);
    }
    print_message("pow2f: %.3Le relative at %a\n", max, at);
    assert_true(max < 1.02e-4L);
    for (int i = -126; i < 128; i++) {
        assert_true(vmath_pow2f((float)i) == ldexpf(1.0f, i));
    }
    assert_int_equal(bits(vmath_pow2f(nextafterf(VMATH_POW2_MIN, -INFINITY))), 0);
    assert_int_equal(bits(vmath_pow2f(-INFINITY)), 0);
    assert_true(isfinite(vmath_pow2f(nextafterf(VMATH_POW2_MAX, 0.0f))));
    assert_true(vmath_pow2f(VMATH_POW2_MAX) == INFINITY);
    assert_true(vmath_pow2f(INFINITY) == INFINITY);
    assert_true(isnan(vmath_pow2f(NAN)));
}

static void test_logf(void **state)
{
    long double max = 0;
    double at = 0;
    (void)state;
    for (uint32_t exponent = 1; exponent < 0xff; exponent++) {
        uint32_t step = exponent >= 0x7d && exponent <= 0x80 ? 7 : 1021;
        for (uint32_t m = 0; m < 1u << 23; m += step) {
            float x = from_bits(exponent << 23 | m);
            if (x == 1.0f) {
                assert_int_equal(bits(vmath_logf(x)), 0);
                continue;
            }
            worst(&max, ulps(vmath_logf(x), logl((long double)x)), (double)x, &at);
        }
    }
    print_message("logf: %.3Lf ulp at %a\n", max, at);
    assert_true(max < 0.83L);
    assert_true(vmath_logf(0.0f) == -INFINITY);
    assert_true(vmath_logf(-0.0f) == -INFINITY);
    assert_true(vmath_logf(INFINITY) == INFINITY);
    assert_true(isnan(vmath_logf(-1.0f)));
    assert_true(isnan(vmath_logf(NAN)));
}

static void test_tanhf(void **state)
{
    long double max = 0;
    double at = 0;
    (void)state;
    for (uint32_t exponent = 1; exponent < 0xff; exponent++) {
        uint32_t step = exponent >= 0x79 && exponent <= 0x83 ? 131 : 65537;
        for (uint32_t m = 0; m < 1u << 23; m += step) {
            float x = from_bits(exponent << 23 | m), y = vmath_tanhf(x);
            worst(&max, ulps(y, tanhl((long double)x)), (double)x, &at);
            assert_int_equal(bits(vmath_tanhf(-x)), bits(-y));
        }
    }
    print_message("tanhf: %.3Lf ulp at %a\n", max, at);
    assert_true(max < 1.3L);
    assert_true(vmath_tanhf(0.0f) == 0.0f);
    assert_true(vmath_tanhf(INFINITY) == 1.0f);
    assert_true(vmath_tanhf(-INFINITY) == -1.0f);
    assert_true(isnan(vmath_tanhf(NAN)));
}

/* GELU as the devices compute it (gate_exponent in ops_ref.c). */
static float gelu(float x)
{
    float c = x > VMATH_GELU_MAX ? VMATH_GELU_MAX : x < -VMATH_GELU_MAX ? -VMATH_GELU_MAX : x;
    float e = c * fmaf(c * c, VMATH_GELU_C, VMATH_GELU_1);
    return x * (1.0f / (1.0f + vmath_expf(0.0f - e)));
}

static void test_gelu(void **state)
{
    const long double root = sqrtl(2.0L / acosl(-1.0L));
    long double max = 0;
    double at = 0;
    (void)state;
    for (int i = -1200000; i <= 1200000; i += 3) {
        float x = (float)i * 1e-5f;
        long double l = (long double)x;
        long double want = 0.5L * l * (1.0L + tanhl(root * (l + 0.044715L * l * l * l)));
        if (i) {
            worst(&max, fabsl((long double)gelu(x) - want) / fabsl(l), (double)x, &at);
        }
    }
    print_message("gelu: %.3Le |x| at %a\n", max, at);
    assert_true(max < 1.5e-7L);
    assert_true(gelu(1e30f) == 1e30f);
    assert_true(gelu(-1e30f) == 0.0f);
}

/* Both are monotonic enough that log(exp(x)) returns to x within the sum of their errors. */
static void test_round_trip(void **state)
{
    (void)state;
    for (int i = -8000; i <= 8000; i++) {
        float x = (float)i * 0.01f, y = vmath_logf(vmath_expf(x));
        assert_true(fabsf(y - x) <= 4e-7f + 3e-7f * fabsf(x));
    }
}

static void test_exp_log(void **state)
{
    long double max_exp = 0, max_log = 0;
    double at_exp = 0, at_log = 0;
    (void)state;
    for (int i = -708000; i <= 709000; i++) {
        double x = (double)i * 1e-3 * (i % 2 ? 1.0 : 0.99999);
        worst(&max_exp, relative(vmath_exp(x), expl((long double)x)), x, &at_exp);
    }
    for (int e = -1021; e < 1024; e++) {
        for (int m = 0; m < 512; m++) {
            double x = ldexp(1.0 + (double)m / 512.0 + 1e-13 * m, e);
            worst(&max_log, relative(vmath_log(x), logl((long double)x)), x, &at_log);
        }
    }
    for (int i = 1; i < 1000000; i++) { /* around 1, where the result is small */
        double x = 1.0 + ((double)i - 500000.0) * 1e-6 * ((double)i / 1e6);
        worst(&max_log, relative(vmath_log(x), logl((long double)x)), x, &at_log);
    }
    print_message("exp: %.2Le relative at %g, log: %.2Le at %a\n", max_exp, at_exp, max_log,
                  at_log);
    assert_true(max_exp < 1e-15L);
    assert_true(max_log < 1e-15L);
    assert_true(vmath_exp(-1000.0) == 0.0);
    assert_true(vmath_exp(1000.0) == (double)INFINITY);
    assert_true(vmath_exp(0.0) == 1.0);
    assert_true(vmath_log(1.0) == 0.0);
    assert_true(vmath_log(0.0) == -(double)INFINITY);
    assert_true(isnan(vmath_log(-1.0)));
}

static void test_sincos(void **state)
{
    long double max = 0;
    double at = 0, s, c;
    (void)state;
    for (int i = -1000000; i <= 1000000; i++) {
        double x = (double)i * 0.0137;
        vmath_sincos(x, &s, &c);
        worst(&max, fabsl((long double)s - sinl((long double)x)), x, &at);
        worst(&max, fabsl((long double)c - cosl((long double)x)), x, &at);
    }
    for (int i = 0; i < 1 << 20; i += 3) { /* positions of a long context, and beside pi/2 */
        double x = i, y = (double)i * 1.5707963267948966 * 0.6;
        vmath_sincos(x, &s, &c);
        worst(&max, fabsl((long double)s - sinl((long double)x)), x, &at);
        vmath_sincos(y, &s, &c);
        worst(&max, fabsl((long double)c - cosl((long double)y)), y, &at);
        vmath_sincos(-y, &s, &c);
        worst(&max, fabsl((long double)s - sinl((long double)-y)), -y, &at);
    }
    print_message("sincos: %.2Le absolute at %a\n", max, at);
    assert_true(max < 1e-15L);
    vmath_sincos(0.0, &s, &c);
    assert_true(s == 0.0 && c == 1.0);
}

static void test_powi(void **state)
{
    (void)state;
    assert_true(vmath_powi(3.0, 0) == 1.0);
    assert_true(vmath_powi(3.0, 1) == 3.0);
    assert_true(vmath_powi(-2.0, 11) == -2048.0);
    assert_true(vmath_powi(2.0, 1000) == ldexp(1.0, 1000));
    for (long n = 1; n < 3000; n += 37) {
        assert_true(relative(vmath_powi(0.999, n), powl(0.999L, n)) < 1e-12L);
    }
}

static int flush(void **state)
{
    (void)state;
    thread_flush_denormals(); /* as every thread that computes */
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expf),       cmocka_unit_test(test_expf_edges),
        cmocka_unit_test(test_pow2f),      cmocka_unit_test(test_logf),
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_exp_log),
        cmocka_unit_test(test_sincos),     cmocka_unit_test(test_powi),
        cmocka_unit_test(test_tanhf),      cmocka_unit_test(test_gelu),
    };
    return cmocka_run_group_tests(tests, flush, NULL);
}
