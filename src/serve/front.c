/* Owns the threads that prepare requests. The queue needs no bound of its own: each entry is a
 * request on an open connection, and those are bounded by the server. */
#include "serve/front.h"

#include <pthread.h>

#include "base/mem.h"
#include "base/status.h"

struct front_work {
    front_fn *fn;
    void *arg;
    struct front_work *next;
};

struct front {
    pthread_mutex_t mu;
    pthread_cond_t wake;
    struct front_work *head, **tail;
    int stop, n;
    pthread_t *threads;
};

static void *front_loop(void *arg)
{
    struct front *f = arg;

    for (;;) {
        struct front_work *w;
        pthread_mutex_lock(&f->mu);
        while (!f->head && !f->stop) {
            pthread_cond_wait(&f->wake, &f->mu);
        }
        w = f->head;
        if (w) {
            f->head = w->next;
            f->tail = f->head ? f->tail : &f->head;
        }
        pthread_mutex_unlock(&f->mu);
        if (!w) {
            return NULL;
        }
        w->fn(w->arg);
        mem_free(w);
    }
}

struct front *front_new(int nthreads)
{
    struct front *f = mem_alloc(sizeof *f);

    pthread_mutex_init(&f->mu, NULL);
    pthread_cond_init(&f->wake, NULL);
    f->tail = &f->head;
    f->threads = mem_alloc(sizeof *f->threads * (size_t)nthreads);
    while (f->n < nthreads && pthread_create(&f->threads[f->n], NULL, front_loop, f) == 0) {
        f->n++;
    }
    ASSERT(f->n > 0);
    return f;
}

void front_run(struct front *f, front_fn *fn, void *arg)
{
    struct front_work *w = mem_alloc(sizeof *w);

    w->fn = fn;
    w->arg = arg;
    pthread_mutex_lock(&f->mu);
    *f->tail = w;
    f->tail = &w->next;
    pthread_cond_signal(&f->wake);
    pthread_mutex_unlock(&f->mu);
}

void front_free(struct front *f)
{
    if (!f) {
        return;
    }
    pthread_mutex_lock(&f->mu);
    f->stop = 1;
    pthread_cond_broadcast(&f->wake);
    pthread_mutex_unlock(&f->mu);
    for (int i = 0; i < f->n; i++) {
        pthread_join(f->threads[i], NULL);
    }
    pthread_cond_destroy(&f->wake);
    pthread_mutex_destroy(&f->mu);
    mem_free(f->threads);
    mem_free(f);
}
