/* Stop strings in growing text: what is shown is never taken back, and the earliest match ends it,
 * whatever the pieces are. */
#include "serve/servekit.h"

#include "text/stoptext.h"

static const struct {
    const char *text;
    const char *stops[3];
    const char *shown; /* in the end */
    int matched;       /* which; -1 none */
} cases[] = {
    {"abcdef", {NULL}, "abcdef", -1},
    {"abcdef", {"cd"}, "ab", 0},
    {"aaab!", {"aab"}, "a", 0},
    {"abcabd!", {"abd"}, "abc", 0},
    {"hello world", {"world", "lo w"}, "hel", 1},
    {"xyz", {"xyzz", "zz"}, "xyz", -1},
    {"stop", {"stop"}, "", 0},
    {"one two", {" ", "e"}, "on", 1},
    {"ababababc", {"ababc"}, "abab", 0},
};

static void test_cases(void **state)
{
    struct tokenizer *tok;
    struct err e = {0};
    struct buf b;

    (void)state;
    buf_init(&b, 1 << 20);
    printable_tokenizer(&b);
    assert_ok(tokenizer_open(b.data, &tok, &e), &e);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct stoptext_stop stops[3];
        struct stoptext t;
        int32_t *ids;
        size_t n, before = 0, ended = 0;
        int nstops = 0;
        while (nstops < 3 && cases[i].stops[nstops]) {
            stops[nstops].s = cases[i].stops[nstops];
            stops[nstops].n = strlen(stops[nstops].s);
            nstops++;
        }
        assert_ok(tokenizer_encode(tok, cases[i].text, strlen(cases[i].text), 0, &ids, &n, &e), &e);
        assert_int_equal(n, strlen(cases[i].text));
        stoptext_init(&t, tok, 1, stops, nstops, 1 << 20);
        for (size_t k = 1; k <= n && !ended; k++) {
            int rc = stoptext_push(&t, ids, k, k == n, &e);
            assert_true(rc == STATUS_OK || rc == STATUS_END);
            assert_true(t.shown >= before && t.shown <= strlen(cases[i].shown));
            before = t.shown;
            ended = rc == STATUS_END ? k : 0;
        }
        assert_int_equal(t.shown, strlen(cases[i].shown));
        assert_memory_equal(t.text.data, cases[i].shown, t.shown);
        assert_int_equal(ended > 0, cases[i].matched >= 0);
        if (ended) { /* as soon as it is complete, and it stays so */
            assert_ptr_equal(t.matched, &stops[cases[i].matched]);
            assert_int_equal(ended, t.matched_at + t.matched->n);
            assert_int_equal(stoptext_push(&t, ids, n, 1, &e), STATUS_END);
        }
        stoptext_fini(&t);
        mem_free(ids);
    }
    tokenizer_close(tok);
    buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
