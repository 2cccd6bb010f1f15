/* A breaker opens after failures in a row, lets one try, and waits longer each time. */
#include "support.h"

#include "rl/breaker.h"

static void open_it(struct breaker *b, double now)
{
    for (int i = 1; i < BREAKER_BAD; i++) {
        assert_int_equal(breaker_bad(b, now, 0.5), 0);
    }
    assert_int_equal(breaker_bad(b, now, 0.5), 1);
}

static void test_opens(void **state)
{
    struct breaker b = {0};
    (void)state;

    assert_true(breaker_takes(&b, 0.0, 100));
    breaker_bad(&b, 0.0, 0.5);
    breaker_bad(&b, 0.0, 0.5);
    assert_int_equal(breaker_good(&b), 0); /* not in a row any more */
    open_it(&b, 10.0);
    assert_false(breaker_takes(&b, 10.9, 0));
    assert_int_equal(breaker_bad(&b, 10.9, 0.5), 0); /* of one that was sent before */
    assert_int_equal(breaker_good(&b), 0);
    assert_false(breaker_takes(&b, 10.9, 0));
    /* one may try */
    assert_true(breaker_takes(&b, 11.0, 0));
    assert_false(breaker_takes(&b, 11.0, 1));
    assert_int_equal(breaker_good(&b), 1);
    assert_true(breaker_takes(&b, 11.0, 1));
}

static void test_waits_longer(void **state)
{
    struct breaker b = {0};
    double now = 0.0;
    (void)state;

    open_it(&b, now);
    for (int i = 0; i < 40; i++) {
        double wait = i < 6 ? (double)(1 << i) : 60.0;
        assert_true(b.until - now == wait);
        now = b.until;
        assert_true(breaker_takes(&b, now, 0));
        assert_int_equal(breaker_bad(&b, now, 0.5), 1); /* one failure of a trial is enough */
    }
    /* a good trial does not make its past forgotten, many good answers do */
    now = b.until;
    assert_true(breaker_takes(&b, now, 0));
    breaker_good(&b);
    open_it(&b, now);
    assert_true(b.until - now == 60.0);
    assert_true(breaker_takes(&b, b.until, 0));
    for (int i = 0; i < 20; i++) {
        breaker_good(&b);
    }
    open_it(&b, now);
    assert_true(b.until - now == 1.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_opens),
                                       cmocka_unit_test(test_waits_longer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
