/* libFuzzer's entry for what the code reward reads. */
#include "fuzz_code.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 1 << 16) {
        fuzz_code_one(data, n);
    }
    return 0;
}
