/* Owns the worker threads. A parallel loop is open while the caller takes tasks from it; workers
 * that come in time go in and are counted, and the caller waits for those alone: a worker that the
 * system has not put on a core yet holds nobody up. A decode step is a few hundred loops of tens of
 * microseconds, so whoever waits stays awake a short while before it sleeps. */
#include "base/thread.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/mem.h"
#include "base/status.h"

#define POOL_SPIN_NS  50000   /* waits first with the core held */
#define POOL_YIELD_NS 1000000 /* then offering it to whoever wants it; then asleep */

/* What `state` holds: workers inside the loop, whether it is open, and its number. */
#define POOL_INSIDE ((uint64_t)0x7fffffff)
#define POOL_OPEN   ((uint64_t)1 << 31)
#define POOL_LOOP   ((uint64_t)1 << 32)

struct pool {
    int n;
    pthread_t *threads;
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    _Atomic uint64_t state;
    atomic_int sleepers; /* workers asleep until the next loop */
    atomic_int waiting;  /* the caller sleeps until the last worker leaves */
    atomic_int next;     /* next task to hand out */
    atomic_int stop;
    /* written while nobody is inside */
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

static int64_t pool_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* A turn of waiting awake; 0 when it is time to sleep. *since is 0 before the first. */
static int pool_turn(int64_t *since)
{
    int64_t now = pool_now();
    *since = *since ? *since : now;
    if (now - *since >= POOL_YIELD_NS) {
        return 0;
    }
    if (now - *since >= POOL_SPIN_NS) {
        sched_yield();
    } else {
        for (int i = 0; i < 8; i++) {
            pool_pause();
        }
    }
    return 1;
}

/* The state once its loop is not number `seen`. */
static uint64_t pool_await(struct pool *p, uint64_t seen)
{
    int64_t since = 0;
    uint64_t s;

    while ((s = atomic_load(&p->state)) / POOL_LOOP == seen) {
        if (pool_turn(&since)) {
            continue;
        }
        pthread_mutex_lock(&p->lock);
        atomic_fetch_add(&p->sleepers, 1);
        while (atomic_load(&p->state) / POOL_LOOP == seen) {
            pthread_cond_wait(&p->wake, &p->lock);
        }
        atomic_fetch_sub(&p->sleepers, 1);
        pthread_mutex_unlock(&p->lock);
    }
    return s;
}

static void pool_leave(struct pool *p)
{
    uint64_t left = atomic_fetch_sub(&p->state, 1) - 1;
    if (!(left & (POOL_OPEN | POOL_INSIDE)) && atomic_load(&p->waiting)) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_signal(&p->done);
        pthread_mutex_unlock(&p->lock);
    }
}

static void *pool_main(void *arg)
{
    struct pool_start *s = arg;
    struct pool *p = s->p;
    int id = s->id;
    uint64_t seen = 0;

    mem_free(s);
    thread_flush_denormals();
    for (;;) {
        uint64_t now = pool_await(p, seen);
        if (atomic_load(&p->stop)) {
            return NULL;
        }
        seen = now / POOL_LOOP;
        while (now / POOL_LOOP == seen && (now & POOL_OPEN)) {
            if (atomic_compare_exchange_weak(&p->state, &now, now + 1)) {
                pool_work(p, id);
                pool_leave(p);
                break;
            }
        }
    }
}

struct pool *pool_new(int nthreads)
{
    struct pool *p = mem_alloc(sizeof *p);
    p->n = nthreads > 0 ? nthreads : pool_cores();
    p->threads = mem_alloc(sizeof *p->threads * (size_t)p->n);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->done, NULL);
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

/* Opens the next loop. Whoever goes to sleep counts itself first and looks at the state after
 * that, so one of the two sees the other. */
static void pool_publish(struct pool *p)
{
    uint64_t loop = atomic_load(&p->state) / POOL_LOOP + 1;
    atomic_store(&p->state, loop * POOL_LOOP | POOL_OPEN);
    if (atomic_load(&p->sleepers)) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->lock);
    }
}

/* Lets nobody in any more and waits for those inside. */
static void pool_finish(struct pool *p)
{
    int64_t since = 0;

    atomic_fetch_and(&p->state, ~POOL_OPEN);
    while (atomic_load(&p->state) & POOL_INSIDE) {
        if (pool_turn(&since)) {
            continue;
        }
        pthread_mutex_lock(&p->lock);
        atomic_store(&p->waiting, 1);
        while (atomic_load(&p->state) & POOL_INSIDE) {
            pthread_cond_wait(&p->done, &p->lock);
        }
        atomic_store(&p->waiting, 0);
        pthread_mutex_unlock(&p->lock);
    }
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
    pthread_cond_destroy(&p->done);
    mem_free(p->threads);
    mem_free(p);
}

int pool_size(const struct pool *p)
{
    return p->n;
}

void pool_run(struct pool *p, pool_fn *fn, void *arg, int ntasks)
{
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
    pool_publish(p);
    pool_work(p, 0);
    pool_finish(p);
}
