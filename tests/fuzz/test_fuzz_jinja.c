/* The fuzzer of the template interpreter over its corpus and over changes of it. */
#include "fuzz/corpus.h"
#include "fuzz/fuzz_jinja.h"

static void templates(void **state)
{
    (void)state;
    corpus_run("jinja", fuzz_jinja_one, 5000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(templates)};
    setenv("TZ", "UTC", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
