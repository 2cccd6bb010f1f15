/* libFuzzer's entry for Parquet files. */
#include "fuzz_parquet.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_parquet_one(data, n);
    return 0;
}
