/* The fuzzer of tokenizer.json over its corpus and over mutations of it, the same ones in each run.
 * A case that the fuzzer found goes into the corpus. */
#include "support.h"

#include <dirent.h>

#include "base/fsio.h"
#include "fuzz/fuzz_tokenizer.h"

enum { MAX_FILES = 256, MAX_BYTES = 1 << 16, MUTATIONS = 1500 };

static char *files[MAX_FILES];
static size_t sizes[MAX_FILES];
static int count;

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name); /* whatever the locale */
}

static int setup(void **state)
{
    static const char path[] = TEST_SOURCE_DIR "/tests/fuzz/corpus/tokenizer";
    struct dirent **list;
    struct err e = {0};
    int n = scandir(path, &list, NULL, by_name);

    (void)state;
    for (int i = 0; i < n; i++) {
        if (list[i]->d_name[0] != '.' && count < MAX_FILES) {
            char *file = fsio_join(path, list[i]->d_name);
            assert_ok(fsio_read(file, MAX_BYTES, &files[count], &sizes[count], &e), &e);
            count++;
            mem_free(file);
        }
        free(list[i]);
    }
    if (n >= 0) {
        free(list);
    }
    return count > 5 ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    while (count > 0) {
        mem_free(files[--count]);
    }
    return 0;
}

static void test_corpus(void **state)
{
    (void)state;
    for (int i = 0; i < count; i++) {
        fuzz_tokenizer_one((const uint8_t *)files[i], sizes[i]);
    }
}

/* Every file of the corpus but the hostile ones opens: the fuzzer reaches what is behind. */
static void test_corpus_opens(void **state)
{
    int opened = 0;

    (void)state;
    for (int i = 0; i < count; i++) {
        struct tokenizer *t = NULL;
        if (files[i][0] == '{' && tokenizer_open(files[i], &t, NULL) == 0) {
            opened++;
        }
        tokenizer_close(t);
    }
    assert_true(opened >= 9);
}

static void test_mutations(void **state)
{
    static const char marks[] = "{}[]\",:0123456789-.eE\\ntrfalsu\x80\xff\xe2\x00";
    static uint8_t out[MAX_BYTES];
    uint64_t x = 88172645463325252u;

    (void)state;
    for (int i = 0; i < MUTATIONS; i++) {
        int f = i % count;
        memcpy(out, files[f], sizes[f]);
        for (int k = 1 + i % 5; k > 0; k--) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            out[x % sizes[f]] = (uint8_t)marks[(x >> 32) % (sizeof marks - 1)];
        }
        fuzz_tokenizer_one(out, sizes[f]);
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
