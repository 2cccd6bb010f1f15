/* Metrics to wandb and MLflow, by a Python process that has those packages.
 *
 *     struct trackers_opts o = {.kind = TRACKERS_WANDB, .options = json, .config = config};
 *     t = trackers_open(&o);                  NULL when it cannot; why is logged
 *     ...
 *     trackers_close(t);                      waits a while for what is under way
 *
 * Nothing here ends a run or holds it up: rows wait in a queue with a bound, those that do not fit
 * are left out and counted, and a tracker that fails is given up with a warning. Opening registers
 * a sink with base/metric; the thread that opens must live as long as it (base/proc.h). */
#ifndef RUN_TRACKERS_H
#define RUN_TRACKERS_H

#include <jansson.h>

struct trackers;

enum trackers_kind { TRACKERS_WANDB, TRACKERS_MLFLOW };

/* Borrowed during the call. */
struct trackers_opts {
    enum trackers_kind kind;
    const char *python;    /* interpreter; NULL: python3 in PATH */
    const json_t *options; /* what the package is told, see run/trackside.h */
    const json_t *config;  /* options of the run, without secrets */
    double close_s;        /* how long closing may take; 0: 20 */
};

struct trackers *trackers_open(const struct trackers_opts *o);
void trackers_close(struct trackers *t); /* NULL is fine */

#endif
