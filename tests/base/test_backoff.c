/* Waits double up to their bound, and vary by a quarter. */
#include "support.h"

#include "base/backoff.h"

static void test_growth(void **state)
{
    (void)state;
    assert_true(backoff_s(0.1, 0, 5.0, 0.5) == 0.1);
    assert_true(backoff_s(0.1, 3, 5.0, 0.5) == 0.8);
    assert_true(backoff_s(0.1, 1000, 5.0, 0.5) == 5.0);
    assert_true(backoff_s(8.0, 0, 5.0, 0.5) == 5.0);
    assert_true(backoff_s(4.0, 1, 100.0, 0.0) == 6.0);
    assert_true(backoff_s(4.0, 1, 100.0, 1.0) == 10.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_growth)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
