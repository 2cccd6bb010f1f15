/* A pool of pinned threads that runs one parallel loop at a time.
 *
 *     struct pool *p = pool_new(2);
 *     pool_run(p, fn, arg, n);      fn(arg, i, worker) for every i in [0, n), returns when all are
 * done pool_free(p);
 *
 * The caller takes part as worker 0. Which worker runs which task is not fixed: a task's result
 * must not depend on it. Every worker (and the caller inside pool_run) runs with FTZ and DAZ set.
 */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H

struct pool;
typedef void pool_fn(void *arg, int task, int worker);

struct pool *pool_new(int nthreads); /* nthreads >= 1; 0 takes the number of usable cores */
void pool_free(struct pool *p);
int pool_size(const struct pool *p);
void pool_run(struct pool *p, pool_fn *fn, void *arg, int ntasks);
/* Number of cores this process may use. */
int pool_cores(void);
/* Flush denormals to zero in the calling thread: every thread that computes numbers calls it. */
void thread_flush_denormals(void);

#endif
