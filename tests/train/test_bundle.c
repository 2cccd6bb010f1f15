/* How samples are cut into bundles: equal prompts that follow each other, up to a number of tokens.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "train/bundle.h"
#include "train/trainer.h"

static const int32_t a[] = {1, 2, 3, 4, 5, 6, 7, 8}, b[] = {1, 2, 4, 4, 5, 6, 7, 8};

static void test_cut(void **state)
{
    struct train_sample s[6];
    static const int64_t pick[] = {0, 1, 2, 3, 4, 5}, other[] = {0, 3, 1, 2};
    static const int64_t want[] = {0, 2, 3, 4, 5, 6};
    int64_t start[7];
    (void)state;
    memset(s, 0, sizeof s);
    for (int i = 0; i < 6; i++) {
        s[i].tokens = i == 3 ? b : a;
        s[i].prompt = i == 2 ? 2 : 3;
        s[i].response = i + 1;
    }
    /* a shorter prompt, another one, then two more of the first that would have 14 tokens */
    assert_int_equal(bundle_cut(s, pick, 6, 13, start), 5);
    assert_memory_equal(start, want, sizeof want);
    assert_int_equal(bundle_cut(s, pick, 6, 14, start), 4);
    assert_int_equal(start[3], 4);
    assert_int_equal(start[4], 6);
    assert_int_equal(bundle_tokens(s, pick + 4, 2), 14);
    assert_int_equal(bundle_tokens(s, pick, 1), 4);
    /* neighbours of the list, not of the samples */
    assert_int_equal(bundle_cut(s, other, 4, 100, start), 4);
    /* none together, and one that is too long is alone */
    assert_int_equal(bundle_cut(s, pick, 6, 0, start), 6);
    s[1].response = 100;
    assert_int_equal(bundle_cut(s, pick, 2, 50, start), 2);
    s[0].response = 100;
    s[1].response = 1;
    assert_int_equal(bundle_cut(s, pick, 2, 50, start), 2);
    assert_int_equal(bundle_cut(s, pick, 0, 50, start), 0);
    assert_int_equal(start[0], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cut)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
