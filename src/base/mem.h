/* Memory: plan sizes first, allocate once, hand out views.
 *
 * mem_alloc and friends never return NULL: when the system has no memory they say how many bytes
 * were asked and abort. mem_try returns NULL instead: use it wherever the size comes from outside.
 * mem_count() counts allocations of the process, so a test can prove a step makes none. */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

void *mem_alloc(size_t n); /* zeroed; 64-byte aligned; free with mem_free */
void *mem_try(size_t n);   /* the same, NULL when there is none */
void *mem_realloc(void *p, size_t old_n, size_t n); /* new bytes are zeroed */
/* Doubles an array of *cap items of `size` bytes, of `first` items to begin with; 0 when there is
 * no memory, and all is as it was. */
int mem_grow(void **p, size_t *cap, size_t first, size_t size);
/* Room for one more behind the n items of `size` bytes that a list of *cap has: the list, at its
 * old or a new place. New items are zeroed. */
void *mem_room(void *p, size_t size, int n, int *cap);
char *mem_strdup(const char *s); /* NULL gives NULL */
char *mem_strndup(const char *s, size_t n);
void mem_free(void *p); /* NULL is fine */
/* Gives pages that hold nothing back to the system. After many blocks of one lifetime were freed:
 * the next as many then find whole pages instead of what holes the last left. Takes some
 * milliseconds for each 100 MB. */
void mem_trim(void);
uint64_t mem_count(void);
/* Bytes of this process in memory now, and the most there ever were; -1 when the system does not
 * say. */
int64_t mem_resident(void);
int64_t mem_peak(void);
/* Bytes that this machine could still give without swapping; -1 when the system does not say. */
int64_t mem_available(void);

/* Large zeroed block of its own pages; huge pages where the kernel gives them, which neighbours may
 * share. NULL on failure. Free with mem_unmap and the same size. */
void *mem_map(size_t n);
void mem_unmap(void *p, size_t n);

/* An arena: many small things of one lifetime (process, step, request), freed together.
 *     struct arena a; arena_init(&a, 1 << 20); p = arena_alloc(&a, n); arena_fini(&a); */
struct arena_block;
struct arena {
    struct arena_block *head;
    size_t block; /* bytes of a normal block */
    size_t total; /* bytes held */
};
void arena_init(struct arena *a, size_t block);
void *arena_alloc(struct arena *a, size_t n); /* zeroed, 16-byte aligned, never NULL */
char *arena_strdup(struct arena *a, const char *s);
char *arena_strndup(struct arena *a, const char *s, size_t n);
void arena_reset(struct arena *a); /* forgets all, keeps one block */
void arena_fini(struct arena *a);

#endif
