/* Python functions in worker processes: rewards, and with `hook` any other call.
 *
 *     struct worker_opts o = {.path = "recipes/add_reward.py:last_integer", .python = "python3",
 *                             .count = 2, .timeout_s = 30};
 *     struct worker_pool *w;
 *     if (worker_open(&o, &w, e) == 0) {
 *         worker_submit(w, 7, sample, e);
 *         struct worker_result r;
 *         while (worker_poll(w, 0.1, &r, e) == 0) { use(&r); json_decref(r.value); }
 *         worker_close(w);
 *     }
 *
 * The function is `fn(args, sample)`, plain or `async def`, named `pkg.module.fn` or `FILE.py:fn`.
 * Of a group it gets the list of samples and returns a list of as many rewards.
 * A plain function has one call at a time in each worker; an async one up to `async_calls`. A call
 * that takes longer than timeout_s, raises, kills its worker or gives no usable value ends as
 * `failed` with the reason, never as a reward of 0; the worker is started again. When a worker dies
 * with several async calls in it, each is tried once more, alone, so that only the culprit fails.
 *
 * One thread owns a pool, and lives as long as it (see base/proc.h). What the function prints goes
 * to our stderr. */
#ifndef REWARD_WORKER_H
#define REWARD_WORKER_H

#include <jansson.h>
#include <stdint.h>

struct err;
struct proc;
struct proc_opts;
struct worker_pool;

struct worker_opts {
    const char *path;       /* pkg.module.fn or FILE.py:fn; with source: its name in messages */
    const char *source;     /* Python text that defines `reward`, instead of path; NULL: none */
    const char *python;     /* interpreter; NULL: python3 in PATH */
    int count;              /* processes, 1 to 128; 0: 1 */
    double timeout_s;       /* of one call; 0: 60 */
    double start_timeout_s; /* of a start with all imports; 0: 300 */
    int queue_max;          /* calls that are submitted and not yet polled; 0: 4096 */
    int async_calls;        /* calls at a time in one worker, async functions; 0: 64 */
    const json_t *args;     /* object: attributes of `args`; NULL: none. Read by open only. */
    const char *hook;       /* flag whose call it is (python/miles_c/hooks.py), for worker_call;
                               NULL: rewards, for worker_submit */
    size_t reply_max;       /* bytes of one answer; 0: 4 MiB */
    int share_fd;           /* ours: the workers have it as descriptor 6; 0: none */
    /* Answers a question that a function has in the middle of call `id`: *out is a new reference.
     * NULL: none is answered. Called inside worker_poll. */
    int (*ask)(void *arg, int64_t id, const char *what, const json_t *argv, json_t **out,
               struct err *e);
    void *ask_arg;
    /* Starts a process, as proc_spawn does; NULL: proc_spawn. */
    int (*spawn)(void *arg, const struct proc_opts *o, struct proc *p, struct err *e);
    void *spawn_arg;
};

struct worker_result {
    int64_t id;
    int failed;
    int late;         /* it failed because it took too long */
    char reason[512]; /* why, when failed; one line */
    /* Number or object; of a group a list of these, one for each sample; of a hook whatever it
     * gives. Owned by the caller; NULL when failed. */
    json_t *value;
};

/* Starts the workers and waits until each has loaded the function. STATUS_INPUT with Python's own
 * message when the module or the function is not there, STATUS_NOTFOUND without an interpreter. */
int worker_open(const struct worker_opts *o, struct worker_pool **out, struct err *e);

/* Hands over a call; ids are the caller's and need not be unique. sample is an object, or a list of
 * them (a group), read during the call only. STATUS_AGAIN when the queue is full: poll first. */
int worker_submit(struct worker_pool *w, int64_t id, const json_t *sample, struct err *e);

/* The same for a hook: its arguments beside `args`, read during the call only. */
int worker_call(struct worker_pool *w, int64_t id, const json_t *argv, struct err *e);

/* One finished call in *out, in no fixed order. STATUS_AGAIN when none came within wait_s seconds;
 * at once when nothing is pending. */
int worker_poll(struct worker_pool *w, double wait_s, struct worker_result *out, struct err *e);

/* Calls submitted and not yet polled. */
int worker_pending(const struct worker_pool *w);

/* How many times a worker had to be started again. */
int worker_restarts(const struct worker_pool *w);

/* Ends all workers (an idle one may run its exit handlers for half a second) and drops what is
 * pending. Takes NULL. */
void worker_close(struct worker_pool *w);

#endif
