/* libFuzzer's entry for the session server. */
#include "fuzz_session.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_session_one(data, n);
    return 0;
}
