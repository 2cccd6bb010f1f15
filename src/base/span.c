/* Owns the list of span sinks. */
#include "base/span.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/status.h"

#define SPAN_SINKS 4

static pthread_mutex_t span_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    span_sink_fn *fn;
    void *arg;
} span_sinks[SPAN_SINKS];

double span_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void span_emit(const char *lane, const char *name, double t0, double t1, int64_t rollout)
{
    struct span s = {lane, name, t0, t1, rollout};

    pthread_mutex_lock(&span_lock);
    for (int i = 0; i < SPAN_SINKS; i++) {
        if (span_sinks[i].fn) {
            span_sinks[i].fn(span_sinks[i].arg, &s);
        }
    }
    pthread_mutex_unlock(&span_lock);
}

int span_add_sink(span_sink_fn *fn, void *arg)
{
    int rc = STATUS_NOMEM;

    pthread_mutex_lock(&span_lock);
    for (int i = 0; i < SPAN_SINKS; i++) {
        if (!span_sinks[i].fn) {
            span_sinks[i].fn = fn;
            span_sinks[i].arg = arg;
            rc = STATUS_OK;
            break;
        }
    }
    pthread_mutex_unlock(&span_lock);
    return rc;
}

void span_remove_sink(span_sink_fn *fn, void *arg)
{
    pthread_mutex_lock(&span_lock);
    for (int i = 0; i < SPAN_SINKS; i++) {
        if (span_sinks[i].fn == fn && span_sinks[i].arg == arg) {
            span_sinks[i].fn = NULL;
        }
    }
    pthread_mutex_unlock(&span_lock);
}

void span_enter(struct span_lane *l, const char *lane, const char *name, int64_t rollout)
{
    double now;

    if (l->name && name && strcmp(l->name, name) == 0 && l->rollout == rollout) {
        return;
    }
    now = span_now();
    if (l->name) {
        span_emit(lane, l->name, l->t0, now, l->rollout);
    }
    l->name = name;
    l->t0 = now;
    l->rollout = rollout;
}
