/* Allocation: alignment, zeroes, the counter, sizes that cannot be, arenas. */
#include "support.h"

#include "base/mem.h"

static int all_zero(const void *p, size_t n)
{
    const unsigned char *b = p;
    for (size_t i = 0; i < n; i++) {
        if (b[i]) {
            return 0;
        }
    }
    return 1;
}

static void blocks(void **state)
{
    uint64_t before = mem_count();
    int made = 0;
    (void)state;
    for (size_t n = 0; n < 300; n += 7) {
        /* dirty memory first, so that a block is zero because it was cleared */
        char *p = mem_alloc(n);
        made++;
        assert_int_equal((uintptr_t)p % 64, 0);
        assert_true(all_zero(p, n));
        memset(p, 0xff, n);
        mem_free(p);
    }
    assert_int_equal(mem_count() - before, made);
    mem_free(NULL);
    assert_int_equal(mem_count() - before, made);
}

/* Sizes from outside never abort: they give NULL, also where the rounding would wrap. */
static void impossible(void **state)
{
    uint64_t before = mem_count();
    (void)state;
    assert_null(mem_try(SIZE_MAX));
    assert_null(mem_try(SIZE_MAX - 62));
    assert_null(mem_try(SIZE_MAX / 2));
    assert_int_equal(mem_count(), before);
}

static void grows(void **state)
{
    char *p = mem_realloc(NULL, 0, 3);
    (void)state;
    memcpy(p, "abc", 3);
    p = mem_realloc(p, 3, 4000);
    assert_memory_equal(p, "abc", 3);
    assert_true(all_zero(p + 3, 3997));
    p = mem_realloc(p, 4000, 2);
    assert_memory_equal(p, "ab", 2);
    mem_free(p);
}

/* A list that grows by one: its items stay, it doubles, new items are zero. */
static void room(void **state)
{
    int *list = NULL, cap = 0, moves = 0;
    (void)state;
    for (int n = 0; n < 1000; n++) {
        int had = cap;
        list = mem_room(list, sizeof *list, n, &cap);
        assert_true(n < cap && (cap == had || cap == (had ? 2 * had : 64)));
        moves += cap != had;
        assert_int_equal(list[n], 0);
        list[n] = n + 1;
    }
    assert_int_equal(moves, 5);
    for (int n = 0; n < 1000; n++) {
        assert_int_equal(list[n], n + 1);
    }
    mem_free(list);
}

static void strings(void **state)
{
    char *s = mem_strdup("hello");
    (void)state;
    assert_string_equal(s, "hello");
    mem_free(s);
    assert_null(mem_strdup(NULL));
    s = mem_strndup("hello", 2);
    assert_string_equal(s, "he");
    mem_free(s);
    s = mem_strndup("a\0b", 3);
    assert_memory_equal(s, "a\0b", 4);
    mem_free(s);
}

static void maps(void **state)
{
    size_t n = (5 << 20) + 3;
    char *p = mem_map(n);
    (void)state;
    assert_non_null(p);
    assert_int_equal(p[0], 0);
    assert_int_equal(p[n - 1], 0);
    p[0] = p[n - 1] = 1;
    mem_unmap(p, n);
    mem_unmap(NULL, 100);
    assert_null(mem_map(SIZE_MAX / 2));
    p = mem_map(0);
    assert_non_null(p);
    mem_unmap(p, 0);
}

/* Blocks of all sizes lie side by side: zeroed, apart from each other, and whole while neighbours
 * come and go. */
static void maps_neighbours(void **state)
{
    enum { N = 60 };
    unsigned char *p[N];
    size_t size[N];

    (void)state;
    for (int i = 0; i < N; i++) {
        size[i] = (size_t)(i % 7 + 1) * 700001 + (i == 9 ? (size_t)40 << 20 : 0);
        p[i] = mem_map(size[i]);
        assert_non_null(p[i]);
        assert_int_equal((uintptr_t)p[i] % 4096, 0);
        assert_true(p[i][0] == 0 && p[i][size[i] / 2] == 0 && p[i][size[i] - 1] == 0);
        memset(p[i], i + 1, size[i]);
        if (i % 3 == 2) {
            mem_unmap(p[i - 1], size[i - 1]);
            p[i - 1] = NULL;
        }
    }
    for (int i = 0; i < N; i++) {
        for (size_t k = 0; p[i] && k < size[i]; k += 4001) {
            assert_int_equal(p[i][k], i + 1);
        }
        mem_unmap(p[i], size[i]);
    }
}

/* Views of an arena never overlap, are zero and aligned; a thing larger than a block fits. */
static void arenas(void **state)
{
    struct arena a;
    unsigned char *p[200];
    size_t size[200];
    (void)state;
    arena_init(&a, 256);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 200; i++) {
            size[i] = (size_t)(i * 37) % (i % 50 == 0 ? 5000 : 90);
            p[i] = arena_alloc(&a, size[i]);
            assert_int_equal((uintptr_t)p[i] % 16, 0);
            assert_true(all_zero(p[i], size[i]));
            memset(p[i], i + 1, size[i]);
        }
        for (int i = 0; i < 200; i++) {
            for (size_t k = 0; k < size[i]; k++) {
                assert_int_equal(p[i][k], (unsigned char)(i + 1));
            }
        }
        assert_true(a.total > 256);
        arena_reset(&a);
    }
    assert_string_equal(arena_strdup(&a, "text"), "text");
    assert_null(arena_strdup(&a, NULL));
    assert_string_equal(arena_strndup(&a, "text", 2), "te");
    arena_fini(&a);
    assert_int_equal(a.total, 0);
    arena_fini(&a);
}

/* After a reset one block is kept, and reuse of it allocates nothing. */
static void arena_reuse(void **state)
{
    struct arena a;
    uint64_t before;
    (void)state;
    arena_init(&a, 1024);
    memset(arena_alloc(&a, 1000), 0xff, 1000);
    arena_reset(&a);
    before = mem_count();
    assert_true(all_zero(arena_alloc(&a, 1000), 1000));
    assert_int_equal(mem_count(), before);
    assert_int_equal(a.total, 1024);
    arena_fini(&a);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they keep what was freed */
/* What lies between blocks that are held goes back to the system. */
static void trims(void **state)
{
    enum { N = 4000, BYTES = 16384 };
    static void *p[N];
    int64_t full, freed;
    (void)state;
    for (int i = 0; i < N; i++) {
        p[i] = mem_alloc(BYTES);
    }
    full = mem_resident();
    for (int i = 0; i < N; i++) {
        if (i % 10 != 9) { /* the last one is held */
            mem_free(p[i]);
        }
    }
    freed = mem_resident();
    assert_true(full - freed < 8 << 20); /* else this tests nothing */
    mem_trim();
    assert_true(full - mem_resident() > 40 << 20);
    for (int i = 9; i < N; i += 10) {
        assert_true(all_zero(p[i], BYTES));
        mem_free(p[i]);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks),
        cmocka_unit_test(impossible),
        cmocka_unit_test(grows),
        cmocka_unit_test(room),
        cmocka_unit_test(strings),
        cmocka_unit_test(maps),
        cmocka_unit_test(maps_neighbours),
        cmocka_unit_test(arenas),
        cmocka_unit_test(arena_reuse),
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        cmocka_unit_test(trims),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
