/* Owns the training thread. */
#include "rl/trainjob.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "base/status.h"
#include "base/thread.h"

enum trainjob_state { TRAINJOB_IDLE, TRAINJOB_RUNS, TRAINJOB_DONE, TRAINJOB_END };

struct trainjob {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t turn;
    enum trainjob_state state;
    int (*fn)(void *arg, struct err *e);
    void *arg;
    int rc;
    struct err err;
};

static void *trainjob_main(void *self)
{
    struct trainjob *j = self;

    thread_flush_denormals();
    pthread_mutex_lock(&j->lock);
    while (j->state != TRAINJOB_END) {
        if (j->state == TRAINJOB_RUNS) {
            struct err e = {0};
            int rc;
            pthread_mutex_unlock(&j->lock);
            rc = j->fn(j->arg, &e);
            pthread_mutex_lock(&j->lock);
            j->rc = rc;
            j->err = e;
            j->state = j->state == TRAINJOB_END ? TRAINJOB_END : TRAINJOB_DONE;
            pthread_cond_broadcast(&j->turn);
        } else {
            pthread_cond_wait(&j->turn, &j->lock);
        }
    }
    pthread_mutex_unlock(&j->lock);
    return NULL;
}

int trainjob_open(struct trainjob **out, struct err *e)
{
    struct trainjob *j = mem_alloc(sizeof *j);
    pthread_condattr_t attr;
    int rc;

    pthread_mutex_init(&j->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&j->turn, &attr);
    pthread_condattr_destroy(&attr);
    rc = pthread_create(&j->thread, NULL, trainjob_main, j);
    if (rc != 0) {
        pthread_cond_destroy(&j->turn);
        pthread_mutex_destroy(&j->lock);
        mem_free(j);
        return ERR(e, STATUS_FAIL, "no thread to train in: %s", strerror(rc));
    }
    *out = j;
    return STATUS_OK;
}

void trainjob_close(struct trainjob *j)
{
    if (!j) {
        return;
    }
    pthread_mutex_lock(&j->lock);
    j->state = TRAINJOB_END;
    pthread_cond_broadcast(&j->turn);
    pthread_mutex_unlock(&j->lock);
    pthread_join(j->thread, NULL);
    pthread_cond_destroy(&j->turn);
    pthread_mutex_destroy(&j->lock);
    mem_free(j);
}

void trainjob_start(struct trainjob *j, int (*fn)(void *arg, struct err *e), void *arg)
{
    pthread_mutex_lock(&j->lock);
    ASSERT(j->state == TRAINJOB_IDLE);
    j->fn = fn;
    j->arg = arg;
    j->state = TRAINJOB_RUNS;
    pthread_cond_broadcast(&j->turn);
    pthread_mutex_unlock(&j->lock);
}

int trainjob_wait(struct trainjob *j, double wait_s, struct err *e)
{
    struct timespec until;
    int rc = STATUS_AGAIN;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)wait_s;
    until.tv_nsec += (long)((wait_s - (double)(time_t)wait_s) * 1e9);
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&j->lock);
    while (j->state == TRAINJOB_RUNS && wait_s > 0.0 &&
           pthread_cond_timedwait(&j->turn, &j->lock, &until) != ETIMEDOUT) {
    }
    if (j->state == TRAINJOB_DONE) {
        j->state = TRAINJOB_IDLE;
        rc = j->rc;
        if (rc != STATUS_OK && e) {
            *e = j->err;
        }
    }
    pthread_mutex_unlock(&j->lock);
    return rc;
}
