/* Metrics as event files that TensorBoard reads: scalars, one event for each row and axis.
 *
 *     struct tbevents *t;
 *     tbevents_open("RUN/tensorboard", 12, &t, &e);     what is shown of rollout 12 and later goes
 *     ...
 *     tbevents_close(t);
 *
 * The step of a value is that of its axis in the row: train/step for train/..., eval/step for
 * eval/..., rollout/step for all others. Each start of a run writes a file of its own, as
 * TensorBoard wants it; `from` tells it that an earlier start's values from there on are void (-1:
 * they are not). Opening registers a sink with base/metric. */
#ifndef RUN_TBEVENTS_H
#define RUN_TBEVENTS_H

#include <stddef.h>
#include <stdint.h>

struct err;
struct tbevents;

int tbevents_open(const char *dir, int64_t from, struct tbevents **out, struct err *e);
const char *tbevents_path(const struct tbevents *t);
void tbevents_close(struct tbevents *t); /* NULL is fine */

/* CRC-32C (Castagnoli) of n bytes. */
uint32_t tbevents_crc(const void *p, size_t n);

#endif
