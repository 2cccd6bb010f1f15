/* Numbers over time. A row is one JSON object of named values at one step; rows go to the sinks
 * that the run folder (or a test) registered. Names are Miles' ("rollout/raw_reward",
 * "train/loss").
 *
 *     json_t *row = json_object();
 *     metric_put(row, "train/loss", 0.25);
 *     metric_emit(row);                       takes the row
 *
 * Any thread may emit. */
#ifndef BASE_METRIC_H
#define BASE_METRIC_H

#include <jansson.h>

typedef void metric_sink_fn(void *arg, const json_t *row);

/* A value that is not finite becomes null: JSON has no other way, and it must not vanish. */
void metric_put(json_t *row, const char *name, double value);
void metric_put_int(json_t *row, const char *name, long long value);
void metric_emit(json_t *row);
/* At most 8 sinks; 0 or STATUS_NOMEM. */
int metric_add_sink(metric_sink_fn *fn, void *arg);
void metric_remove_sink(metric_sink_fn *fn, void *arg);

#endif
