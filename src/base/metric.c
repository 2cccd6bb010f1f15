/* Owns the list of metric sinks. Nobody below the run folder knows who listens. */
#include "base/metric.h"

#include <math.h>
#include <pthread.h>

#include "base/status.h"

#define METRIC_SINKS 8

static pthread_mutex_t metric_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    metric_sink_fn *fn;
    void *arg;
} metric_sinks[METRIC_SINKS];

void metric_put(json_t *row, const char *name, double value)
{
    json_object_set_new(row, name, isfinite(value) ? json_real(value) : json_null());
}

void metric_put_int(json_t *row, const char *name, long long value)
{
    json_object_set_new(row, name, json_integer(value));
}

void metric_emit(json_t *row)
{
    pthread_mutex_lock(&metric_lock);
    for (int i = 0; i < METRIC_SINKS; i++) {
        if (metric_sinks[i].fn) {
            metric_sinks[i].fn(metric_sinks[i].arg, row);
        }
    }
    pthread_mutex_unlock(&metric_lock);
    json_decref(row);
}

int metric_add_sink(metric_sink_fn *fn, void *arg)
{
    int rc = STATUS_NOMEM;
    pthread_mutex_lock(&metric_lock);
    for (int i = 0; i < METRIC_SINKS; i++) {
        if (!metric_sinks[i].fn) {
            metric_sinks[i].fn = fn;
            metric_sinks[i].arg = arg;
            rc = STATUS_OK;
            break;
        }
    }
    pthread_mutex_unlock(&metric_lock);
    return rc;
}

void metric_remove_sink(metric_sink_fn *fn, void *arg)
{
    pthread_mutex_lock(&metric_lock);
    for (int i = 0; i < METRIC_SINKS; i++) {
        if (metric_sinks[i].fn == fn && metric_sinks[i].arg == arg) {
            metric_sinks[i].fn = NULL;
        }
    }
    pthread_mutex_unlock(&metric_lock);
}
