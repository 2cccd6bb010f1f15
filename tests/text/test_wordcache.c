/* The cache of words: what goes in comes out, and threads that write over each other's words never
 * see a word with the ids of another. */
#include "support.h"

#include <pthread.h>

#include "base/mem.h"
#include "text/tokids.h"
#include "text/wordcache.h"

static void test_in_and_out(void **state)
{
    struct wordcache *c = wordcache_new(1000);
    char word[WORDCACHE_BYTES + 2];
    size_t len;
    (void)state;

    memset(word, 'x', sizeof word);
    for (len = 1; len <= WORDCACHE_BYTES; len++) {
        int32_t ids[WORDCACHE_IDS];
        struct tokids in = {0}, out = {0};
        struct wordcache_key k, other;
        size_t n = len % (WORDCACHE_IDS + 1);
        for (size_t i = 0; i < WORDCACHE_IDS; i++) {
            ids[i] = (int32_t)(len * 100 + i);
        }
        assert_int_equal(tokids_add(&in, ids, n), 0);
        assert_int_equal(wordcache_key(&k, word, len), 1);
        assert_int_equal(wordcache_get(c, &k, &out), 0);
        wordcache_put(c, &k, &in, 0);
        assert_int_equal(wordcache_get(c, &k, &out), 1);
        assert_int_equal(out.n, n);
        if (n) {
            assert_memory_equal(out.v, ids, n * sizeof *ids);
        }
        /* one byte changed, anywhere, is another word */
        word[len / 2] = 'y';
        assert_int_equal(wordcache_key(&other, word, len), 1);
        word[len / 2] = 'x';
        assert_int_equal(wordcache_get(c, &other, &out), 0);
        mem_free(in.v);
        mem_free(out.v);
    }
    struct wordcache_key k;
    assert_int_equal(wordcache_key(&k, word, 0), 0);
    assert_int_equal(wordcache_key(&k, word, WORDCACHE_BYTES + 1), 0);
    wordcache_free(c);
    wordcache_free(NULL);
}

static void test_too_many_ids(void **state)
{
    struct wordcache *c = wordcache_new(0);
    struct wordcache_key k;
    struct tokids in = {0}, out = {0};
    (void)state;

    for (int32_t i = 0; i <= WORDCACHE_IDS; i++) {
        assert_int_equal(tokids_add(&in, &i, 1), 0);
    }
    assert_int_equal(wordcache_key(&k, "word", 4), 1);
    wordcache_put(c, &k, &in, 0);
    assert_int_equal(wordcache_get(c, &k, &out), 0);
    wordcache_put(c, &k, &in, 1);
    assert_int_equal(wordcache_get(c, &k, &out), 1);
    assert_int_equal(out.n, WORDCACHE_IDS);
    assert_int_equal(out.v[0], 1);
    mem_free(in.v);
    mem_free(out.v);
    wordcache_free(c);
}

struct job {
    struct wordcache *c;
    unsigned seed;
    long hits, wrong;
};

/* Words are numbers in a cache with far fewer places; their ids follow from the number. */
static void *hammer(void *arg)
{
    struct job *j = arg;
    struct tokids in = {0}, out = {0};

    for (int i = 0; i < 200000; i++) {
        struct wordcache_key k;
        char word[40];
        unsigned v = (j->seed = j->seed * 1664525u + 1013904223u) >> 22;
        int len = snprintf(word, sizeof word, "%u-%u-%u", v, v * 7919u, v % 3 ? v : v * 31u);
        int32_t n = 1 + (int32_t)(v % WORDCACHE_IDS);
        wordcache_key(&k, word, (size_t)len);
        out.n = in.n = 0;
        if (wordcache_get(j->c, &k, &out) == 1) {
            j->hits++;
            j->wrong += out.n != (size_t)n;
            for (size_t x = 0; x < out.n; x++) {
                j->wrong += out.v[x] != (int32_t)(v * 16u + x);
            }
        } else {
            for (int32_t x = 0; x < n; x++) {
                int32_t id = (int32_t)(v * 16u) + x;
                tokids_add(&in, &id, 1);
            }
            wordcache_put(j->c, &k, &in, 0);
        }
    }
    mem_free(in.v);
    mem_free(out.v);
    return NULL;
}

static void test_threads(void **state)
{
    struct wordcache *c = wordcache_new(0);
    struct job job[4];
    pthread_t id[4];
    (void)state;

    for (int i = 0; i < 4; i++) {
        job[i] = (struct job){.c = c, .seed = (unsigned)i * 77u + 1u};
        assert_int_equal(pthread_create(&id[i], NULL, hammer, &job[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(id[i], NULL);
        assert_int_equal(job[i].wrong, 0);
        assert_true(job[i].hits > 100);
    }
    wordcache_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_and_out),
        cmocka_unit_test(test_too_many_ids),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
