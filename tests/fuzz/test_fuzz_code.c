/* The fuzzer of the code reward over its corpus and changes of it. */
#include "fuzz/corpus.h"
#include "fuzz/fuzz_code.h"

static void test_code(void **state)
{
    (void)state;
    corpus_run("code", fuzz_code_one, 20000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_code)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
