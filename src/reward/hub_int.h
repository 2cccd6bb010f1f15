/* Inside the reward hub: tasks, types and sources.
 *
 * A type is a row of hub_types.c. Either it has `grade`, which scores a task at once (in the
 * owner's thread, or in the hub's own when it is HUB_SLOW); or `send`, which hands the sample to a
 * source: something that gives results later, as workers, a service or a sandbox do. A source is
 * opened at its first use with hub_source_add, keeps a struct hub_flight for what it was sent, and
 * pushes results with hub_push when `hear` finds them. */
#ifndef REWARD_HUB_INT_H
#define REWARD_HUB_INT_H

#include <pthread.h>

#include "reward/hub.h"

enum {
    HUB_TEXT = 160,  /* bytes of a label or an answer that a reason shows */
    HUB_SLOW = 1,    /* takes more than a moment: never inside hub_submit */
    HUB_TOKENS = 2,  /* a grader that reads the sample's tokens */
    HUB_NO_LABEL = 8 /* scores samples without a label too */
};

/* What a grader sees and gives. It returns 0 with `reward` or `raw` set and its reason told by
 * hub_say; or STATUS_AGAIN with a question for sympy in `ask` (the hub frees it); or a status with
 * the reason in e. Any thread. */
struct hub_task {
    int64_t id;
    const json_t *sample;
    const char *response;
    size_t n;
    const json_t *label, *metadata;
    char *label_text; /* str(label); NULL for null */
    double reward;
    json_t *raw;
    char *ask;
    enum hub_class why;
    char reason[256];
};

struct hub_type {
    const char *name;
    int needs; /* HUB_SLOW, HUB_TOKENS, HUB_NO_LABEL */
    int (*grade)(struct hub_task *t, struct err *e);
    /* Makes sure that what it needs is there: at the start for the run's own type, and before each
     * `send`, so the second time it is quick. NULL: it needs nothing. */
    int (*open)(struct hub *h, const struct hub_type *g, struct err *e);
    /* 0, STATUS_AGAIN when there is no room, else the sample is at fault, for the reason in e. */
    int (*send)(struct hub *h, const struct hub_type *g, const struct hub_request *r,
                struct err *e);
};

struct hub_source {
    char *name;
    int internal; /* of a type of ours, not a user's function */
    int hook;     /* a shared object or a URL of the user's (reward/hookcall.h) */
    void *self;   /* NULL: it could not be opened, for `error` */
    char error[256];
    /* Takes at most one result, waiting up to wait_s, and pushes what came of it: 0, STATUS_AGAIN
     * or an error. */
    int (*hear)(struct hub *h, void *self, double wait_s, struct err *e);
    int (*pending)(const void *self);
    int (*restarts)(const void *self); /* of its processes; NULL: it has none */
    void (*close)(void *self);
};

/* A call that a source has. */
struct hub_flight {
    struct hub_flight *prev, *next;
    int64_t id;
    int group;    /* samples of a group; 0: one sample */
    int internal; /* the answer is {"value", "reason"} of a type of ours */
    const struct hub_type *type;
};

enum { HUB_MAX_SOURCES = 16, HUB_MAX_THREADS = 256, HUB_QUEUE = 4096 };

struct hub_done;
struct hub {
    char *rm_type, *reward_key, *python, *rm_url;
    int nworkers, rm_inflight, rm_metadata, sample_functions, keep_dict, shared;
    double timeout_s, code_timeout_s, code_memory_mb;
    int code_share;
    json_t *args;
    struct hub_source sources[HUB_MAX_SOURCES];
    int nsources;
    const struct hub_scorer *scorer;
    int custom; /* source of the custom function; -1: none */
    struct hub_flight *flights;
    int pending; /* samples submitted and not polled */

    pthread_t thread[HUB_MAX_THREADS];
    int nthreads, want_threads;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t work, ready;
    struct hub_done *todo, *todo_last, *first, *last;
    int running; /* given to threads and not done */
    int woken, stop;
};

/* The type of that name, without its blanks and its boxed_ prefix; NULL with the reason in e. */
const struct hub_type *hub_type_find(const char *type, int *boxed, struct err *e);
/* Scores: fills the result but for its id and what reward_key decides; a dict is left in raw, and a
 * question for sympy in t->ask. */
void hub_type_grade(const struct hub_type *g, int boxed, struct hub_task *t,
                    struct hub_result *out);
void hub_say(struct hub_task *t, enum hub_class why, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* One line of valid UTF-8, cut at a character, into out. */
void hub_line(char *out, size_t size, const char *s, size_t n);
/* ---- for sources; the owner's thread ---- */

/* The source of that name, or NULL. Its `self` is NULL when it could not be opened before: then the
 * reason is in e. */
struct hub_source *hub_source_find(struct hub *h, const char *name, int internal, struct err *e);
/* A new one, for the caller to fill; NULL when there are too many. */
struct hub_source *hub_source_add(struct hub *h, const char *name, int internal, struct err *e);
struct hub_flight *hub_flight_new(struct hub *h, const struct hub_request *r, int internal);
void hub_flight_end(struct hub *h, struct hub_flight *f);
void hub_push(struct hub *h, const struct hub_result *r);
/* n results from id on (0 is 1). */
void hub_push_failed(struct hub *h, int64_t id, int n, enum hub_class why, const char *reason);
/* What the reward key picks from the dict in r->raw. */
void hub_pick_key(const struct hub *h, struct hub_result *r);

/* ---- hub_calls.c: Python workers and the service ---- */

/* The workers of a function; with `source` of a type of ours. NULL with the reason in e. */
struct hub_source *hub_calls_pool(struct hub *h, const char *path, const char *source,
                                  struct err *e);
/* A shared object or a service in place of a Python function. */
struct hub_source *hub_calls_hook(struct hub *h, const char *path, struct err *e);
int hub_calls_submit(struct hub *h, struct hub_source *s, const struct hub_request *r,
                     struct err *e);
int hub_calls_open_ifbench(struct hub *h, const struct hub_type *g, struct err *e);
int hub_calls_ifbench(struct hub *h, const struct hub_type *g, const struct hub_request *r,
                      struct err *e);
int hub_calls_open_remote(struct hub *h, const struct hub_type *g, struct err *e);
int hub_calls_remote(struct hub *h, const struct hub_type *g, const struct hub_request *r,
                     struct err *e);

/* ---- hub_code.c: programs in sandboxes ---- */

int hub_code_open(struct hub *h, const struct hub_type *g, struct err *e);
int hub_code_send(struct hub *h, const struct hub_type *g, const struct hub_request *r,
                  struct err *e);

/* ---- hub_math.c: sympy ---- */

/* Asks the question that a grader left; r is what it said. 0, or STATUS_AGAIN when there is no
 * room. */
int hub_math_ask(struct hub *h, const struct hub_type *g, const struct hub_result *r,
                 const char *ask);

/* ---- results ---- */

/* Fills a failure. */
void hub_failed(struct hub_result *r, enum hub_class why, const char *reason);

#endif
