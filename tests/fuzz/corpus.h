/* A fuzzer's committed corpus and changes of it, the same ones in each run: what a test_fuzz_* does
 * with the input function of its fuzzers. A case that a fuzzer found goes into the corpus.
 *
 *     corpus_run("sse", fuzz_sse_one, 20000); */
#ifndef TESTS_FUZZ_CORPUS_H
#define TESTS_FUZZ_CORPUS_H

#include "support.h"

#include <dirent.h>

#include "base/fsio.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"

enum { CORPUS_FILES = 256, CORPUS_BYTES = 1 << 16 };

struct corpus {
    char *data[CORPUS_FILES];
    size_t len[CORPUS_FILES];
    int n;
};

static inline int corpus_by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name); /* whatever the locale */
}

static inline void corpus_load(struct corpus *c, const char *name)
{
    char path[1024];
    struct dirent **list;
    struct err e = {0};
    int n;
    c->n = 0;
    snprintf(path, sizeof path, "%s/tests/fuzz/corpus/%s", TEST_SOURCE_DIR, name);
    n = scandir(path, &list, NULL, corpus_by_name);
    assert_true(n > 0);
    for (int i = 0; i < n; i++) {
        if (list[i]->d_name[0] != '.') {
            char *file = fsio_join(path, list[i]->d_name);
            assert_true(c->n < CORPUS_FILES);
            assert_ok(fsio_read(file, CORPUS_BYTES, &c->data[c->n], &c->len[c->n], &e), &e);
            c->n++;
            mem_free(file);
        }
        free(list[i]);
    }
    free(list);
    assert_true(c->n > 5);
}

static inline void corpus_unload(struct corpus *c)
{
    while (c->n > 0) {
        mem_free(c->data[--c->n]);
    }
}

/* Some changes of one input: bytes set, flipped, doubled, cut out, or a piece of another put in. */
static inline size_t corpus_mutate(struct rng_py *g, const struct corpus *c, uint8_t *out)
{
    int from = (int)rng_py_randbelow(g, c->n), other = (int)rng_py_randbelow(g, c->n);
    size_t n = c->len[from];
    memcpy(out, c->data[from], n);
    for (int i = (int)rng_py_randbelow(g, 6); i >= 0 && n > 0; i--) {
        size_t at = (size_t)rng_py_randbelow(g, (int64_t)n);
        size_t len = (size_t)rng_py_randbelow(g, (int64_t)(n - at < 64 ? n - at : 64) + 1);
        switch (rng_py_randbelow(g, 5)) {
        case 0: out[at] = (uint8_t)rng_py_randbelow(g, 256); break;
        case 1: out[at] ^= (uint8_t)(1u << rng_py_randbelow(g, 8)); break;
        case 2: /* doubled */
            if (n + len < CORPUS_BYTES) {
                memmove(out + at + len, out + at, n - at);
                n += len;
            }
            break;
        case 3: /* cut out */
            memmove(out + at, out + at + len, n - at - len);
            n -= len;
            break;
        default:
            len = len < c->len[other] ? len : c->len[other];
            memcpy(out + at, c->data[other], len < n - at ? len : n - at);
            break;
        }
    }
    return n;
}

/* Every file whole and cut anywhere, then so many changed ones. */
static inline void corpus_run(const char *name, void (*one)(const uint8_t *, size_t), int mutations)
{
    static struct corpus c;
    uint8_t *in = mem_alloc(CORPUS_BYTES + 64);
    struct rng_py g;
    corpus_load(&c, name);
    rng_py_seed(&g, 2026);
    one(in, 0);
    for (int i = 0; i < c.n; i++) {
        for (size_t n = 1; n <= c.len[i]; n += 1 + c.len[i] / 40) { /* cut anywhere */
            one((const uint8_t *)c.data[i], n);
        }
        one((const uint8_t *)c.data[i], c.len[i]);
    }
    for (int i = 0; i < mutations; i++) {
        size_t n = corpus_mutate(&g, &c, in);
        one(in, n);
    }
    corpus_unload(&c);
    mem_free(in);
}

#endif
