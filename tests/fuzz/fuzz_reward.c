/* libFuzzer's entry for the rewards that run in this process. */
#include "fuzz_reward.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_reward_one(data, n);
    return 0;
}
