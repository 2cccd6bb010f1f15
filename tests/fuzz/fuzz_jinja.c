/* libFuzzer's entry for the template interpreter. */
#include "fuzz_jinja.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_jinja_one(data, n);
    return 0;
}
