/* The fuzzer of tokenizer.json over its corpus and over mutations of it, the same ones in each run.
 * A case that the fuzzer found goes into the corpus. */
#include "fuzz/corpus.h"
#include "fuzz/fuzz_tokenizer.h"

enum { MUTATIONS = 1500 };

static struct corpus c;

static int setup(void **state)
{
    (void)state;
    corpus_load(&c, "tokenizer");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    corpus_unload(&c);
    return 0;
}

static void test_corpus(void **state)
{
    (void)state;
    for (int i = 0; i < c.n; i++) {
        fuzz_tokenizer_one((const uint8_t *)c.data[i], c.len[i]);
    }
}

/* Every file of the corpus but the hostile ones opens: the fuzzer reaches what is behind. */
static void test_corpus_opens(void **state)
{
    int opened = 0;

    (void)state;
    for (int i = 0; i < c.n; i++) {
        struct tokenizer *t = NULL;
        if (c.data[i][0] == '{' && tokenizer_open(c.data[i], &t, NULL) == 0) {
            opened++;
        }
        tokenizer_close(t);
    }
    assert_true(opened >= 9);
}

static void test_mutations(void **state)
{
    static const char marks[] = "{}[]\",:0123456789-.eE\\ntrfalsu\x80\xff\xe2\x00";
    static uint8_t out[CORPUS_BYTES];
    uint64_t x = 88172645463325252u;

    (void)state;
    for (int i = 0; i < MUTATIONS; i++) {
        int f = i % c.n;
        memcpy(out, c.data[f], c.len[f]);
        for (int k = 1 + i % 5; k > 0; k--) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            out[x % c.len[f]] = (uint8_t)marks[(x >> 32) % (sizeof marks - 1)];
        }
        fuzz_tokenizer_one(out, c.len[f]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_corpus),
        cmocka_unit_test(test_corpus_opens),
        cmocka_unit_test(test_mutations),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
