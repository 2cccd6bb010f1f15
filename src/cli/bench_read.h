/* The speed of memory: a plain read by all threads of a pool, which no computation over the same
 * bytes can beat. */
#ifndef CLI_BENCH_READ_H
#define CLI_BENCH_READ_H

#include <stddef.h>

struct pool;

/* Reads n bytes at p, which is aligned to 32. One call at a time. */
void bench_read(struct pool *pool, const void *p, size_t n);

#endif
