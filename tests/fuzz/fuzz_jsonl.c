/* libFuzzer's entry for data files. */
#include "fuzz_jsonl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_jsonl_one(data, n);
    return 0;
}
