/* The reward hub: one place where finished samples are scored: by a built-in grader, by a service
 * over HTTP, or by a Python function in worker processes.
 *
 *     struct hub *h;
 *     hub_open(&opts, &h, &e);                    starts workers, checks that the function loads
 *     hub_submit(h, &(struct hub_request){7, sample}, &e);
 *     while (hub_poll(h, 0.1, &r, &e) == 0) { use(&r); json_decref(r.raw); }
 *     hub_close(h);
 *
 * Who scores a sample: the custom function if there is one; else what the sample's reward_spec
 * names (custom_rm_path, rm_type), else the type in its metadata.rm_type, else rm_type. The types
 * are those of hub_type_list; with the prefix boxed_ the response is first reduced to the content
 * of its last \boxed{}.
 *
 * Every result tells its reason. A reward that cannot be had is `failed`, never 0. Results come in
 * any order. One thread owns a hub, and lives as long as it (see base/proc.h). */
#ifndef REWARD_HUB_H
#define REWARD_HUB_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct err;
struct hub;

/* Who scores in the place of types and functions, such as a simulator. The calls do as hub_submit
 * and hub_poll. */
struct hub_request;
struct hub_result;
struct hub_scorer {
    int (*submit)(void *self, const struct hub_request *r, struct err *e);
    int (*poll)(void *self, double wait_s, struct hub_result *out, struct err *e);
    void *self;
};

struct hub_opts {
    const char *rm_type;        /* a type; NULL or "": each sample names its own */
    const char *custom_rm_path; /* as base/plugin.h resolves it; NULL or "": none */
    const char *reward_key;     /* key of a dict reward, or NULL */
    const char *python;         /* interpreter; NULL is python3 */
    int workers;                /* Python processes of each function; 0 is 1 */
    double timeout_s;           /* of one call; 0 is 60 */
    const json_t *args;         /* resolved flags for custom functions; read by open only */
    const char *rm_url;         /* of remote_rm */
    int rm_inflight;            /* calls of remote_rm at once; 0 is 64 */
    int rm_metadata;            /* 1: remote_rm also sends the sample's metadata */
    int code_share;             /* 1: type code gives the share of cases passed, else 1 or 0 */
    double code_timeout_s;      /* cpu seconds of a case of type code; 0 is 6 */
    double code_memory_mb;      /* of a case of type code; 0 is 1024 */
    int threads;                /* for built-in graders; 0: quick ones run inside hub_submit */
    int sample_functions;       /* 1: samples may name functions (reward_spec.custom_rm_path) */
    int keep_dict;              /* 1: a dict reward without reward_key is no failure: reward is 0 */
    const struct hub_scorer *scorer; /* borrowed; NULL: the hub itself */
    int shared; /* 1: other threads call hub_wake, so no wait is uninterrupted */
};

struct hub_request {
    int64_t id;
    /* Miles' Sample as an object. Or a list of them, the group of one prompt: a custom function
     * then gets the list and returns one; anything else scores each by itself. Sample i of a group
     * has its own result, of id + i. References are counted. */
    json_t *sample;
};

/* What a reason is about. Those from HUB_BAD_SAMPLE on are failures. */
enum hub_class {
    HUB_RIGHT,
    HUB_WRONG,
    HUB_PARTIAL,    /* between wrong and right */
    HUB_NO_ANSWER,  /* the response has no answer to compare: scored as wrong */
    HUB_SCORED,     /* a number that a function, a service or a coin gave */
    HUB_BAD_SAMPLE, /* no response, no label, or not what the type needs */
    HUB_BAD_TYPE,   /* no such type, or it is not set up */
    HUB_BAD_VALUE,  /* the function's or service's answer is no reward; no such reward key */
    HUB_LATE,       /* no reward in time */
    HUB_BROKEN,     /* the function raised, its worker died, the service is not to be had */
    HUB_NCLASSES
};

struct hub_result {
    int64_t id;
    int failed;
    double reward; /* finite; 0 when failed */
    enum hub_class why;
    char reason[256]; /* one line of UTF-8, of every result */
    json_t *raw;      /* a dict reward, the caller's to decref; NULL for plain numbers */
};

/* Waits until all workers have loaded the function. STATUS_INPUT for an unknown rm_type (with the
 * list of known ones), for a type that lacks something (with what), and for a function that cannot
 * be loaded (with Python's message). */
int hub_open(const struct hub_opts *o, struct hub **out, struct err *e);
/* STATUS_AGAIN when the queue is full: poll first. Quick graders run inside this call; the first
 * sample that names a function of its own waits until that is loaded. */
int hub_submit(struct hub *h, const struct hub_request *r, struct err *e);
/* 1: who scores the sample reads its tokens, loss_mask or rollout_log_probs; else it may come
 * without them. */
int hub_reads_tokens(const struct hub *h, const json_t *sample);
/* 0 with a result, STATUS_AGAIN when none came within wait_s seconds; at once when nothing is
 * pending, and when hub_wake was called. */
int hub_poll(struct hub *h, double wait_s, struct hub_result *out, struct err *e);
/* Ends the current or the next wait of hub_poll early. Any thread; the hub must be `shared`. */
void hub_wake(struct hub *h);
/* Requests submitted and not yet polled; each sample of a group counts. */
int hub_pending(const struct hub *h);
/* How many times a worker process had to be started again. */
int hub_restarts(const struct hub *h);
void hub_close(struct hub *h); /* NULL is fine */

const char *hub_class_name(enum hub_class c); /* "right", "no_answer", "late", ... */
/* 0, or STATUS_INPUT when there is no such type. */
int hub_type_check(const char *type, struct err *e);
/* The names of all types, ", " between them. */
void hub_type_list(struct buf *out);

#endif
