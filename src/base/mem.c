/* Owns every heap allocation of ours. Alignment is 64 because tensors and cache lines want it. */
#include "base/mem.h"

#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/status.h"

static atomic_uint_fast64_t mem_n;

struct arena_block {
    struct arena_block *next;
    size_t used, size;
};

void *mem_try(size_t n)
{
    size_t want = (n + 63) / 64 * 64;
    void *p;

    if (want < n) {
        return NULL;
    }
    p = aligned_alloc(64, want ? want : 64);
    if (p) {
        memset(p, 0, want ? want : 64);
        atomic_fetch_add_explicit(&mem_n, 1, memory_order_relaxed);
    }
    return p;
}

void *mem_alloc(size_t n)
{
    void *p = mem_try(n);
    if (!p) {
        fprintf(stderr, "miles: out of memory: %zu bytes were asked for\n", n);
        abort();
    }
    return p;
}

void *mem_realloc(void *p, size_t old_n, size_t n)
{
    void *q = mem_alloc(n);
    if (p) {
        memcpy(q, p, old_n < n ? old_n : n);
        mem_free(p);
    }
    return q;
}

char *mem_strndup(const char *s, size_t n)
{
    char *p = mem_alloc(n + 1);
    memcpy(p, s, n);
    return p;
}

int mem_grow(void **p, size_t *cap, size_t first, size_t size)
{
    size_t n = *cap ? *cap * 2 : first;
    void *q = mem_try(n * size);

    if (!q) {
        return 0;
    }
    if (*cap) {
        memcpy(q, *p, *cap * size);
    }
    mem_free(*p);
    *p = q;
    *cap = n;
    return 1;
}

void *mem_room(void *p, size_t size, int n, int *cap)
{
    int more = *cap ? *cap * 2 : 64;

    if (n < *cap) {
        return p;
    }
    ASSERT(more > *cap); /* an int holds it */
    p = mem_realloc(p, size * (size_t)*cap, size * (size_t)more);
    *cap = more;
    return p;
}

char *mem_strdup(const char *s)
{
    return s ? mem_strndup(s, strlen(s)) : NULL;
}

void mem_free(void *p)
{
    free(p);
}

void mem_trim(void)
{
    malloc_trim(0);
}

uint64_t mem_count(void)
{
    return atomic_load_explicit(&mem_n, memory_order_relaxed);
}

/* A line of one of the kernel's files, in KiB there. */
static int64_t mem_status(const char *path, const char *key)
{
    FILE *f = fopen(path, "re");
    char line[256];
    long long kib = -1;
    size_t n = strlen(key);

    while (f && kib < 0 && fgets(line, sizeof line, f)) {
        if (strncmp(line, key, n) == 0 && sscanf(line + n, "%lld", &kib) != 1) {
            break;
        }
    }
    if (f) {
        fclose(f);
    }
    return kib < 0 ? -1 : (int64_t)kib * 1024;
}

int64_t mem_resident(void)
{
    return mem_status("/proc/self/status", "VmRSS:");
}

int64_t mem_peak(void)
{
    return mem_status("/proc/self/status", "VmHWM:");
}

int64_t mem_available(void)
{
    return mem_status("/proc/meminfo", "MemAvailable:");
}

/* ---- pages -------------------------------------------------------------------------------------
 *
 * A huge page is given where all of its addresses are mapped when the first of them is touched. So
 * blocks come one after the other out of pieces of address space that begin and end with huge
 * pages: weights of a few hundred KiB then lie in huge pages too. */

#define MEM_HUGE  ((size_t)2 << 20)
#define MEM_PIECE ((size_t)64 << 20)
#define MEM_GRAIN ((size_t)64 << 10) /* a multiple of every page size */

static pthread_mutex_t mem_lock = PTHREAD_MUTEX_INITIALIZER;
static char *mem_at, *mem_end; /* what is left of the newest piece */

static size_t mem_grains(size_t n)
{
    return n ? (n - 1) / MEM_GRAIN * MEM_GRAIN + MEM_GRAIN : MEM_GRAIN;
}

/* n bytes that begin where a huge page can. */
static char *mem_aligned(size_t n)
{
    char *p = mmap(NULL, n + MEM_HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t skip;

    if (p == MAP_FAILED) {
        return NULL;
    }
    skip = (MEM_HUGE - (uintptr_t)p % MEM_HUGE) % MEM_HUGE;
    if (skip) {
        munmap(p, skip);
    }
    munmap(p + skip + n, MEM_HUGE - skip);
    madvise(p + skip, n, MADV_HUGEPAGE);
    return p + skip;
}

/* The next n bytes of a piece. */
static char *mem_next(size_t n)
{
    char *p;

    pthread_mutex_lock(&mem_lock);
    if ((size_t)(mem_end - mem_at) < n) {
        char *piece = mem_aligned(MEM_PIECE);
        if (mem_at < mem_end) {
            munmap(mem_at, (size_t)(mem_end - mem_at));
        }
        mem_at = piece;
        mem_end = piece ? piece + MEM_PIECE : NULL;
    }
    p = mem_at;
    mem_at = p ? p + n : NULL;
    pthread_mutex_unlock(&mem_lock);
    return p;
}

void *mem_map(size_t n)
{
    size_t want = mem_grains(n);
    void *p = n > SIZE_MAX / 2 ? NULL : want > MEM_PIECE / 2 ? mem_aligned(want) : mem_next(want);

    if (p) {
        atomic_fetch_add_explicit(&mem_n, 1, memory_order_relaxed);
    }
    return p;
}

void mem_unmap(void *p, size_t n)
{
    if (p) {
        munmap(p, mem_grains(n));
    }
}

void arena_init(struct arena *a, size_t block)
{
    a->head = NULL;
    a->block = block;
    a->total = 0;
}

void *arena_alloc(struct arena *a, size_t n)
{
    size_t want = (n + 15) / 16 * 16;
    struct arena_block *b = a->head;
    const size_t header = (sizeof *b + 15) / 16 * 16;
    void *p;

    ASSERT(want >= n);
    if (!b || b->size - b->used < want) {
        size_t size = want > a->block ? want : a->block;
        b = mem_alloc(header + size);
        b->size = size;
        b->next = a->head;
        a->head = b;
        a->total += size;
    }
    p = (char *)b + header + b->used;
    b->used += want;
    memset(p, 0, want);
    return p;
}

char *arena_strndup(struct arena *a, const char *s, size_t n)
{
    char *p = arena_alloc(a, n + 1);
    memcpy(p, s, n);
    return p;
}

char *arena_strdup(struct arena *a, const char *s)
{
    return s ? arena_strndup(a, s, strlen(s)) : NULL;
}

void arena_reset(struct arena *a)
{
    while (a->head && a->head->next) {
        struct arena_block *b = a->head;
        a->head = b->next;
        a->total -= b->size;
        mem_free(b);
    }
    if (a->head) {
        a->head->used = 0;
    }
}

void arena_fini(struct arena *a)
{
    while (a->head) {
        struct arena_block *b = a->head;
        a->head = b->next;
        mem_free(b);
    }
    a->total = 0;
}
