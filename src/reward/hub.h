/* The reward hub: one place where finished samples are scored, by a built-in grader or by the
 * user's Python function.
 *
 *     struct hub *h;
 *     hub_open(&opts, &h, &e);                    starts workers, checks that the function loads
 *     hub_submit(h, &(struct hub_request){7, sample}, &e);
 *     while (hub_poll(h, 0.1, &r, &e) == 0) { use(&r); json_decref(r.raw); }
 *     hub_close(h);
 *
 * Who scores a sample: the custom function if there is one; else the type in the sample's
 * reward_spec.rm_type, else in its metadata.rm_type, else rm_type. Types: math, deepscaler,
 * gemma_math, dapo, f1, random, deterministic_random; with the prefix boxed_ the response is first
 * reduced to the content of its last \boxed{}.
 *
 * A reward that cannot be had is `failed` with its reason, never 0. Results come in any order. One
 * thread owns a hub, and lives as long as it (see base/proc.h). */
#ifndef REWARD_HUB_H
#define REWARD_HUB_H

#include <jansson.h>
#include <stdint.h>

struct err;
struct hub;

struct hub_opts {
    const char *rm_type;        /* built-in grader; NULL or "": each sample names its own */
    const char *custom_rm_path; /* pkg.module.fn or FILE.py:fn; NULL or "": none */
    const char *reward_key;     /* key of a dict reward, or NULL */
    const char *python;         /* interpreter; NULL is python3 */
    int workers;                /* Python processes; 0 is 1 */
    double timeout_s;           /* of one call; 0 is 60 */
    const json_t *args;         /* resolved flags for custom functions; read by open only */
};

struct hub_request {
    int64_t id;
    const json_t *sample; /* Miles' Sample as an object; read during the call only */
};

struct hub_result {
    int64_t id;
    int failed;
    double reward;    /* finite; 0 when failed */
    char reason[256]; /* why, when failed */
    json_t *raw;      /* a dict reward, the caller's to decref; NULL for plain numbers */
};

/* Waits until all workers have loaded the function. STATUS_INPUT for an unknown rm_type (with the
 * list of known ones) and for a function that cannot be loaded (with Python's message). */
int hub_open(const struct hub_opts *o, struct hub **out, struct err *e);
/* STATUS_AGAIN when the queue is full: poll first. Built-in graders run inside this call. */
int hub_submit(struct hub *h, const struct hub_request *r, struct err *e);
/* 0 with a result, STATUS_AGAIN when none came within wait_s seconds; at once when nothing is
 * pending. */
int hub_poll(struct hub *h, double wait_s, struct hub_result *out, struct err *e);
/* Requests submitted and not yet polled. */
int hub_pending(const struct hub *h);
void hub_close(struct hub *h); /* NULL is fine */

#endif
