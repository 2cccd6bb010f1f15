/* libFuzzer's entry for tokenizer.json and a text. */
#include "fuzz_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_tokenizer_one(data, n);
    return 0;
}
