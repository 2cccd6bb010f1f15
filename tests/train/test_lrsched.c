/* Schedules against the closed forms, in libm's doubles. */
#include "support.h"

#include <math.h>

#include "train/lrsched.h"

static void near_(double got, double want)
{
    if (fabs(got - want) > 1e-14 * (1 + fabs(want))) {
        fail_msg("%.17g is not %.17g", got, want);
    }
}

static void warmup_then_constant(void **state)
{
    struct lrsched s = {.max_lr = 1e-3, .init_lr = 1e-4, .style = LRSCHED_CONSTANT, .warmup = 40};
    (void)state;
    s.decay = 100;
    near_(lrsched_lr(&s, 0), 1e-4); /* the first update runs at the start value */
    near_(lrsched_lr(&s, 10), 1e-4 + 9e-4 * 0.25);
    assert_true(lrsched_lr(&s, 40) == 1e-3);
    assert_true(lrsched_lr(&s, 41) == 1e-3);
    assert_true(lrsched_lr(&s, 100000) == 1e-3);
    s.warmup = 0;
    assert_true(lrsched_lr(&s, 0) == 1e-3);
}

static void linear_and_cosine(void **state)
{
    struct lrsched s = {
        .max_lr = 2, .min_lr = 0.5, .style = LRSCHED_LINEAR, .warmup = 20, .decay = 120};
    (void)state;
    near_(lrsched_lr(&s, 70), 1.25);
    near_(lrsched_lr(&s, 120), 0.5);
    assert_true(lrsched_lr(&s, 121) == 0.5);
    s.style = LRSCHED_COSINE;
    for (int64_t p = 21; p <= 120; p++) {
        double z = (double)(p - 20) / 100;
        near_(lrsched_lr(&s, p), 0.5 + 1.5 * 0.5 * (cos(M_PI * z) + 1));
    }
    /* half the horizon gives half the rate, past it the floor */
    s = (struct lrsched){.max_lr = 3e-5, .style = LRSCHED_COSINE, .decay = 64};
    near_(lrsched_lr(&s, 32), 1.5e-5);
    assert_true(lrsched_lr(&s, 64) == 0);
    assert_true(lrsched_lr(&s, 65) == 0);
}

static void inverse_sqrt(void **state)
{
    struct lrsched s = {
        .max_lr = 1, .min_lr = 0.3, .style = LRSCHED_INVERSE_SQRT, .warmup = 4, .decay = 1000};
    (void)state;
    near_(lrsched_lr(&s, 16), 0.5);
    near_(lrsched_lr(&s, 5), 2 / sqrt(5));
    assert_true(lrsched_lr(&s, 900) == 0.3);
    assert_true(lrsched_lr(&s, 1001) == 0.3);
    s.warmup = 0;
    assert_true(lrsched_lr(&s, 0) == 1);
}

static void wsd(void **state)
{
    struct lrsched s = {.max_lr = 1, .style = LRSCHED_WSD, .decay = 100, .wsd_decay = 20};
    (void)state;
    assert_true(lrsched_lr(&s, 80) == 1);
    s.wsd = LRSCHED_WSD_LINEAR;
    near_(lrsched_lr(&s, 85), 0.75);
    s.wsd = LRSCHED_WSD_COSINE;
    near_(lrsched_lr(&s, 85), 0.5 * (cos(M_PI * 0.25) + 1));
    s.wsd = LRSCHED_WSD_EXPONENTIAL;
    near_(lrsched_lr(&s, 85), 2 * pow(0.5, 0.25) - 1);
    near_(lrsched_lr(&s, 100), 0);
    s.wsd = LRSCHED_WSD_MINUS_SQRT;
    near_(lrsched_lr(&s, 85), 0.5);
}

static void weight_decay(void **state)
{
    struct lrsched s = {.wd_start = 0, .wd_end = 0.1, .wd_steps = 10};
    (void)state;
    assert_true(lrsched_wd_at(&s, 3) == 0.1);
    s.wd_style = LRSCHED_WD_LINEAR;
    near_(lrsched_wd_at(&s, 3), 0.03);
    assert_true(lrsched_wd_at(&s, 11) == 0.1);
    s.wd_style = LRSCHED_WD_COSINE;
    near_(lrsched_wd_at(&s, 3), 0.1 * 0.5 * (cos(M_PI * 0.7) + 1));
    near_(lrsched_wd_at(&s, 10), 0.1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warmup_then_constant), cmocka_unit_test(linear_and_cosine),
        cmocka_unit_test(inverse_sqrt),         cmocka_unit_test(wsd),
        cmocka_unit_test(weight_decay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
