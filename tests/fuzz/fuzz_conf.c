/* libFuzzer's entry for config files. */
#include "fuzz_conf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_conf_one(data, n);
    return 0;
}
