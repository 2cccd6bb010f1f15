/* libFuzzer's entry for manifests and chunks of weights. */
#include "fuzz_wdelta.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_wdelta_one(data, n);
    return 0;
}
