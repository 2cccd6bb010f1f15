/* The fuzzer of the session server over its corpus and over changes of it, the same ones in each
 * run. */
#include "fuzz/corpus.h"
#include "fuzz/fuzz_session.h"

static void sessions(void **state)
{
    (void)state;
    corpus_run("session", fuzz_session_one, 4000);
    print_message("%ld inputs: %ld answered, %ld refused\n", fuzz_session.inputs,
                  fuzz_session.answered, fuzz_session.refused);
    assert_true(fuzz_session.answered > 500 && fuzz_session.refused > 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sessions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
