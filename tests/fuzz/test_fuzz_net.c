/* The fuzzers of net/ over their corpus and over mutations of it, the same ones in each run. A case
 * that a fuzzer found goes into the corpus. */
#include "support.h"

#include <dirent.h>

#include "base/fsio.h"
#include "base/mem.h"
#include "base/rng.h"
#include "fuzz/fuzz_http.h"
#include "fuzz/fuzz_sse.h"

enum { MAX_FILES = 256, MAX_BYTES = 1 << 16 };

struct corpus {
    char *data[MAX_FILES];
    size_t len[MAX_FILES];
    int n;
};

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name); /* whatever the locale */
}

static void load(struct corpus *c, const char *name)
{
    char path[1024];
    struct dirent **list;
    struct err e = {0};
    int n;
    c->n = 0;
    snprintf(path, sizeof path, "%s/tests/fuzz/corpus/%s", TEST_SOURCE_DIR, name);
    n = scandir(path, &list, NULL, by_name);
    assert_true(n > 0);
    for (int i = 0; i < n; i++) {
        if (list[i]->d_name[0] != '.') {
            char *file = fsio_join(path, list[i]->d_name);
            assert_true(c->n < MAX_FILES);
            assert_ok(fsio_read(file, MAX_BYTES, &c->data[c->n], &c->len[c->n], &e), &e);
            c->n++;
            mem_free(file);
        }
        free(list[i]);
    }
    free(list);
    assert_true(c->n > 5);
}

static void unload(struct corpus *c)
{
    while (c->n > 0) {
        mem_free(c->data[--c->n]);
    }
}

/* Some changes of one input: bytes set, flipped, doubled, cut out, or a piece of another put in. */
static size_t mutate(struct rng_py *g, const struct corpus *c, uint8_t *out)
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
            if (n + len < MAX_BYTES) {
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

static void run(const char *name, void (*one)(const uint8_t *, size_t), int mutations)
{
    static struct corpus c;
    uint8_t *in = mem_alloc(MAX_BYTES + 64);
    struct rng_py g;
    load(&c, name);
    rng_py_seed(&g, 2026);
    one(in, 0);
    for (int i = 0; i < c.n; i++) {
        for (size_t n = 1; n <= c.len[i]; n += 1 + c.len[i] / 40) { /* cut anywhere */
            one((const uint8_t *)c.data[i], n);
        }
        one((const uint8_t *)c.data[i], c.len[i]);
    }
    for (int i = 0; i < mutations; i++) {
        size_t n = mutate(&g, &c, in);
        one(in, n);
    }
    unload(&c);
    mem_free(in);
}

static void event_stream(void **state)
{
    (void)state;
    run("sse", fuzz_sse_one, 20000);
}

static void server_socket(void **state)
{
    (void)state;
    run("http", fuzz_http_one, 2000);
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
