/* The run folder: what a run was told, what it computed with, and its numbers over time.
 *
 *     RUN/config.json     resolved options and where each came from
 *     RUN/manifest.json   numeric manifest, program version, device
 *     RUN/metrics.jsonl   one JSON object per rollout or evaluation
 *     RUN/log.txt         log lines, with the time in UTC
 *
 * Opening registers sinks with base/log and base/metric; closing takes them out again. */
#ifndef RUN_RUNFOLDER_H
#define RUN_RUNFOLDER_H

#include <jansson.h>
#include <stdint.h>

struct err;
struct runfolder;

/* Rows of metrics.jsonl at or after rollout `from` (of an earlier run that was resumed before them)
 * are removed; from 0 starts the file anew. config and manifest are borrowed. */
int runfolder_open(const char *dir, const json_t *config, const json_t *manifest, int64_t from,
                   struct runfolder **out, struct err *e);
void runfolder_close(struct runfolder *r);
/* 0, or the first error met while writing metrics (a full disk must not go unseen). */
int runfolder_status(struct runfolder *r, struct err *e);
/* "runs/20260131-235959" beside the working folder: the default name. Free with mem_free. */
char *runfolder_default(void);

#endif
