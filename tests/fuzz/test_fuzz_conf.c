/* The fuzzer of config files over its corpus and over changes of it. */
#include "fuzz/corpus.h"
#include "fuzz/fuzz_conf.h"

static void configs(void **state)
{
    (void)state;
    corpus_run("conf", fuzz_conf_one, 20000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(configs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
