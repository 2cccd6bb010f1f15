/* Owns the loop that reads memory. It is cut into tasks small enough for the threads to end
 * together, and each is long enough for the processor to run ahead of it. */
#include "cli/bench_read.h"

#include <stdint.h>

#include "base/thread.h"

#define READ_CHUNK ((size_t)256 << 10)

struct bench_reading {
    const char *p;
    size_t n;
    uint64_t sum[4096]; /* what a task saw: keeps the loads alive */
};

#if MILES_X86
typedef uint64_t read_vec __attribute__((vector_size(32), aligned(32)));
__attribute__((target("avx2")))
#else
typedef uint64_t read_vec __attribute__((vector_size(16), aligned(16)));
#endif
static uint64_t
read_sum(const char *p, size_t n)
{
    const read_vec *v = (const read_vec *)p;
    read_vec a = {0}, b = {0}, c = {0}, d = {0};
    for (size_t i = 0; i + 4 <= n / sizeof *v; i += 4) {
        a ^= v[i];
        b ^= v[i + 1];
        c ^= v[i + 2];
        d ^= v[i + 3];
    }
    a ^= b ^ c ^ d;
    return a[0] ^ a[1];
}

static void read_task(void *arg, int task, int worker)
{
    struct bench_reading *r = arg;
    size_t from = (size_t)task * READ_CHUNK;
    size_t n = r->n - from < READ_CHUNK ? r->n - from : READ_CHUNK;
    (void)worker;
    r->sum[task % 4096] ^= read_sum(r->p + from, n);
}

void bench_read(struct pool *pool, const void *p, size_t n)
{
    static struct bench_reading r;
    r.p = p;
    r.n = n;
    pool_run(pool, read_task, &r, (int)((n + READ_CHUNK - 1) / READ_CHUNK));
}
