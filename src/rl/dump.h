/* Debug rollout data: samples of one rollout as JSON lines, to look at or to train on again.
 *
 *     {"format": "miles-rollout", "version": 1, "rollout_id": 3, "samples": 128}
 *     {"index": 384, "group_index": 24, "tokens": [...], "response_length": 7, "reward": 1.0, ...}
 *     ...
 *
 * Fields of a sample are those of rl/sample.h (Miles' Sample). docs/rollout-data.md describes it.
 */
#ifndef RL_DUMP_H
#define RL_DUMP_H

#include <stdint.h>

struct err;
struct sample;

/* --debug-rollout-print-every: the samples as lines of JSON on stdout, without tokens: what a
 * person reads. */
void dump_print(int64_t rollout_id, struct sample *const *s, int n);
int dump_write(const char *path, int64_t rollout_id, struct sample *const *s, int n, struct err *e);
/* *out and each sample are the caller's. Errors name file and line. */
int dump_read(const char *path, struct sample ***out, int *n, struct err *e);

#endif
