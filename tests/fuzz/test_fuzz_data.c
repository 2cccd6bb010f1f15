/* The fuzzers of data and model files over their corpus and over changes of it. */
#include "fuzz/corpus.h"
#include "fuzz/fuzz_gguf.h"
#include "fuzz/fuzz_jsonl.h"
#include "fuzz/fuzz_parquet.h"
#include "fuzz/fuzz_safetensors.h"
#include "fuzz/fuzz_wdelta.h"

static void jsonl(void **state)
{
    (void)state;
    corpus_run("jsonl", fuzz_jsonl_one, 3000);
}

static void parquet(void **state)
{
    (void)state;
    corpus_run("parquet", fuzz_parquet_one, 6000);
}

static void safetensors(void **state)
{
    (void)state;
    corpus_run("safetensors", fuzz_safetensors_one, 5000);
}

static void gguf(void **state)
{
    (void)state;
    corpus_run("gguf", fuzz_gguf_one, 5000);
}

static void wdelta(void **state)
{
    (void)state;
    corpus_run("wdelta", fuzz_wdelta_one, 3000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jsonl), cmocka_unit_test(parquet), cmocka_unit_test(safetensors),
        cmocka_unit_test(gguf),  cmocka_unit_test(wdelta),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
