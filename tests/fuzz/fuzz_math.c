/* libFuzzer's entry for the graders of mathematics. */
#include "fuzz_math.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_math_one(data, n);
    return 0;
}
