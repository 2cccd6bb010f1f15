/* libFuzzer's entry for GGUF files. */
#include "fuzz_gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_gguf_one(data, n);
    return 0;
}
