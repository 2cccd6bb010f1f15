/* libFuzzer's entry for safetensors files. */
#include "fuzz_safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_safetensors_one(data, n);
    return 0;
}
