/* libFuzzer's entry for the reader of server-sent events. */
#include "fuzz_sse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_sse_one(data, n);
    return 0;
}
