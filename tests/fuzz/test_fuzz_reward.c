/* The fuzzer of the rewards over its corpus and over changes of it, the same ones in each run. */
#include "fuzz/corpus.h"
#include "fuzz/fuzz_reward.h"

static void rewards(void **state)
{
    (void)state;
    corpus_run("reward", fuzz_reward_one, 3000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rewards)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
