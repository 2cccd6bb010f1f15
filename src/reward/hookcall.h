/* A call of whatever an option --...-path names: a Python function in a worker process, a function
 * of a shared object, or a service behind a URL. Arguments and answer are plain data (JSON);
 * python/miles_c/hooks.py and docs/extending.md say what they are for each flag.
 *
 *     struct hookcall_opts o = {.flag = "dynamic-sampling-filter-path", .path = path,
 *                               .args = options};
 *     struct hookcall *h;
 *     hookcall_open(&o, &h, &e);
 *     json_t *answer;
 *     rc = hookcall_run(h, argv, &answer, &e);        waits, at most timeout_s
 *
 * or, for many calls at once:
 *
 *     hookcall_submit(h, 7, argv, &e);
 *     while (hookcall_poll(h, 0.1, &r, &e) == 0) { use(&r); json_decref(r.value); }
 *
 *     hookcall_close(h);
 *
 * An async function has many calls in one worker; a plain one as many as there are workers; a
 * shared object one, inside submit. Names of ours (PLUGIN_BUILTIN) are not opened here: ask
 * plugin_resolve first. One thread owns a hook and lives as long as it. */
#ifndef REWARD_HOOKCALL_H
#define REWARD_HOOKCALL_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "reward/worker.h"

struct err;
struct hookcall;
struct plugin;

struct hookcall_opts {
    const char *flag; /* without dashes: a row of base/plugin.h */
    const char *path;
    const char *python; /* interpreter; NULL: python3 */
    int count;          /* worker processes; 0: 1. State that a function keeps is each worker's. */
    double timeout_s;   /* of one call; 0: 600 */
    const json_t *args; /* object: attributes of `args`. Read by open only. */
    int memory;         /* 1: hookcall_memory will be used */
    /* Answers questions of a running call (see worker.h): get_samples, add_samples,
     * get_buffer_length of the run's data source. */
    int (*ask)(void *arg, int64_t id, const char *what, const json_t *argv, json_t **out,
               struct err *e);
    void *ask_arg;
};

/* Loads the function and checks that it can be called so. STATUS_INPUT with flag, path and cause
 * otherwise. */
int hookcall_open(const struct hookcall_opts *o, struct hookcall **out, struct err *e);
void hookcall_close(struct hookcall *h); /* NULL is fine */

/* One call. *answer is a new reference. STATUS_CHILD with flag, path and cause when it raised, died
 * or gave something else than the hook's answer; STATUS_TIMEOUT when it took too long. Nothing else
 * may be pending. */
int hookcall_run(struct hookcall *h, const json_t *argv, json_t **answer, struct err *e);

/* The same without waiting: STATUS_AGAIN when the queue is full, poll first. */
int hookcall_submit(struct hookcall *h, int64_t id, const json_t *argv, struct err *e);
/* One finished call, in no fixed order. STATUS_AGAIN when none came within wait_s; at once when
 * nothing is pending. */
int hookcall_poll(struct hookcall *h, double wait_s, struct worker_result *out, struct err *e);
int hookcall_pending(const struct hookcall *h);
/* How many times a worker had to be started again. */
int hookcall_restarts(const struct hookcall *h);

/* The shared object behind it; NULL when it is none: then typed functions are called directly. */
struct plugin *hookcall_plugin(struct hookcall *h);
/* At least `bytes` of memory that the function's process sees too, for arrays that are too large
 * for JSON; what it held before is lost when it grows. Valid until the next call of this. */
int hookcall_memory(struct hookcall *h, size_t bytes, void **out, struct err *e);

#endif
