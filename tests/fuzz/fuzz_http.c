/* libFuzzer's entry for the socket of the HTTP server. */
#include "fuzz_http.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_http_one(data, n);
    return 0;
}
