/* Owns the worker threads. A parallel loop is published by bumping a generation counter; workers
 * spin a short while before sleeping, because a decode step is a few hundred loops of tens of
 * microseconds. */
#include "base/thread.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/mem.h"
#include "base/status.h"

#define POOL_SPIN 20000

struct pool {
    int n;
    pthread_t *threads;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    atomic_uint gen;     /* bumped for each loop */
    atomic_int sleepers; /* workers inside cond_wait */
    atomic_int next;     /* next task to hand out */
    atomic_int busy;     /* workers that have not finished the loop */
    atomic_int stop;
    pool_fn *fn;
    void *arg;
    int ntasks;
};

struct pool_start {
    struct pool *p;
    int id;
};

void thread_flush_denormals(void)
{
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040u); /* FTZ | DAZ */
#endif
}

int pool_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        return CPU_COUNT(&set);
    }
    return (int)sysconf(_SC_NPROCESSORS_ONLN);
}

static void pool_work(struct pool *p, int id)
{
    int t;
    while ((t = atomic_fetch_add(&p->next, 1)) < p->ntasks) {
        p->fn(p->arg, t, id);
    }
}

static void pool_pause(void)
{
#if defined(__x86_64__)
    _mm_pause();
#endif
}

static void *pool_main(void *arg)
{
    struct pool_start *s = arg;
    struct pool *p = s->p;
    int id = s->id;
    unsigned seen = 0;

    mem_free(s);
    thread_flush_denormals();
    for (;;) {
        int spin = 0;
        while (atomic_load_explicit(&p->gen, memory_order_acquire) == seen) {
            if (++spin < POOL_SPIN) {
                pool_pause();
                continue;
            }
            pthread_mutex_lock(&p->lock);
            atomic_fetch_add(&p->sleepers, 1);
            while (atomic_load(&p->gen) == seen) {
                pthread_cond_wait(&p->wake, &p->lock);
            }
            atomic_fetch_sub(&p->sleepers, 1);
            pthread_mutex_unlock(&p->lock);
        }
        seen = atomic_load(&p->gen);
        if (atomic_load(&p->stop)) {
            return NULL;
        }
        pool_work(p, id);
        atomic_fetch_sub_explicit(&p->busy, 1, memory_order_release);
    }
}

struct pool *pool_new(int nthreads)
{
    struct pool *p = mem_alloc(sizeof *p);
    p->n = nthreads > 0 ? nthreads : pool_cores();
    p->threads = mem_alloc(sizeof *p->threads * (size_t)p->n);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    for (int i = 1; i < p->n; i++) {
        struct pool_start *s = mem_alloc(sizeof *s);
        s->p = p;
        s->id = i;
        if (pthread_create(&p->threads[i], NULL, pool_main, s) != 0) {
            mem_free(s);
            p->n = i; /* fewer threads than asked: slower, never wrong */
            break;
        }
    }
    return p;
}

static void pool_publish(struct pool *p)
{
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add_explicit(&p->gen, 1, memory_order_release);
    if (atomic_load(&p->sleepers)) {
        pthread_cond_broadcast(&p->wake);
    }
    pthread_mutex_unlock(&p->lock);
}

void pool_free(struct pool *p)
{
    if (!p) {
        return;
    }
    atomic_store(&p->stop, 1);
    pool_publish(p);
    for (int i = 1; i < p->n; i++) {
        pthread_join(p->threads[i], NULL);
    }
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->wake);
    mem_free(p->threads);
    mem_free(p);
}

int pool_size(const struct pool *p)
{
    return p->n;
}

void pool_run(struct pool *p, pool_fn *fn, void *arg, int ntasks)
{
    int spin = 0;

    thread_flush_denormals();
    if (p->n == 1 || ntasks <= 1) {
        for (int i = 0; i < ntasks; i++) {
            fn(arg, i, 0);
        }
        return;
    }
    p->fn = fn;
    p->arg = arg;
    p->ntasks = ntasks;
    atomic_store(&p->next, 0);
    atomic_store(&p->busy, p->n - 1);
    pool_publish(p);
    pool_work(p, 0);
    while (atomic_load_explicit(&p->busy, memory_order_acquire)) {
        if (++spin < POOL_SPIN) {
            pool_pause();
        } else {
            sched_yield();
        }
    }
}
