/* The fuzzer of the math graders over its corpus and over changes of it. */
#include "fuzz/corpus.h"
#include "fuzz/fuzz_math.h"

static void graders(void **state)
{
    (void)state;
    corpus_run("math", fuzz_math_one, 4000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(graders)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
