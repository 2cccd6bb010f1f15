/* The fuzzers of net/ over their corpus and over changes of it. */
#include "fuzz/corpus.h"
#include "fuzz/fuzz_http.h"
#include "fuzz/fuzz_sse.h"

static void event_stream(void **state)
{
    (void)state;
    corpus_run("sse", fuzz_sse_one, 20000);
}

static void server_socket(void **state)
{
    (void)state;
    corpus_run("http", fuzz_http_one, 2000);
    fuzz_http_verify();
    assert_true(atomic_load(&fuzz_http.handed) > 200);
    http_server_free(fuzz_http.s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(event_stream),
        cmocka_unit_test(server_socket),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
