/* The fuzzer of the template interpreter over its corpus and over mutations of it, the same ones in
 * each run. A case that the fuzzer found goes into the corpus. */
#include "support.h"

#include <dirent.h>
#include <time.h>

#include "base/fsio.h"
#include "base/rng.h"
#include "fuzz/fuzz_jinja.h"

enum { MAX_FILES = 256, MAX_BYTES = 1 << 16, MUTATIONS = 3000 };

static char *files[MAX_FILES];
static size_t sizes[MAX_FILES];
static int count;

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name); /* whatever the locale */
}

static int setup(void **state)
{
    static const char path[] = TEST_SOURCE_DIR "/tests/fuzz/corpus/jinja";
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
    free(list);
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

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One file with some bytes set, cut out, or a piece of another put in. */
static size_t mutate(struct rng_py *g, uint8_t *out)
{
    static const char marks[] = "{}%#|()[]'\"~+-*/<>=!.,:_ \n019ax\x80\xff";
    int a = (int)rng_py_randbelow(g, count), b = (int)rng_py_randbelow(g, count);
    size_t n = sizes[a];

    memcpy(out, files[a], n);
    for (int k = (int)rng_py_randbelow(g, 8); k >= 0 && n > 8; k--) {
        size_t at = rng_py_randbelow(g, n), len = 1 + rng_py_randbelow(g, 16);
        len = len < n - at ? len : n - at;
        switch (rng_py_randbelow(g, 3)) {
        case 0: out[at] = (uint8_t)marks[rng_py_randbelow(g, sizeof marks - 1)]; break;
        case 1:
            memmove(out + at, out + at + len, n - at - len);
            n -= len;
            break;
        default:
            len = len < sizes[b] ? len : sizes[b];
            memcpy(out + at, files[b] + rng_py_randbelow(g, sizes[b] - len + 1),
                   len < n - at ? len : n - at);
            break;
        }
    }
    return n;
}

static void test_corpus(void **state)
{
    (void)state;
    for (int i = 0; i < count; i++) {
        double start = now();
        fuzz_jinja_one((const uint8_t *)files[i], sizes[i]);
        assert_true(now() - start < 60); /* bounded; generous for a loaded machine */
    }
}

static void test_mutations(void **state)
{
    static uint8_t out[MAX_BYTES];
    struct rng_py g;

    (void)state;
    rng_py_seed(&g, 7);
    for (int i = 0; i < MUTATIONS; i++) {
        size_t n = mutate(&g, out);
        fuzz_jinja_one(out, n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_corpus),
        cmocka_unit_test(test_mutations),
    };
    setenv("TZ", "UTC", 1);
    return cmocka_run_group_tests(tests, setup, teardown);
}
