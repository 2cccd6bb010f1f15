/* One thread that owns an engine and serves calls of many others: each call is a list of prompts
 * with n samples each, and hears of its tokens through one function.
 *
 *     struct service *s;
 *     service_open(&model, &opts, &s, &e);
 *     call->groups = ...; call->fn = on_event; call->arg = me;
 *     rc = service_submit(s, call, &e);           STATUS_AGAIN: the queue is full
 *     ... on_event(me, ev) is called on the service's thread until ev->kind is SERVICE_END
 *     service_run(s, fn, arg);                    fn(arg, s) on that thread, between two steps
 *     service_close(s);
 *
 * A call and all it points to stay as they are from service_submit until its SERVICE_END. */
#ifndef SERVE_SERVICE_H
#define SERVE_SERVICE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/engine.h"
#include "text/stoptext.h"

struct service;
struct tokenizer;
struct weights;

/* What is served. Borrowed; the weights must not be held by anybody else. */
struct service_model {
    struct weights *w;
    const struct tokenizer *tok; /* NULL: tokens only */
};

struct service_opts {
    struct engine_opts engine;
    int max_queued;             /* samples waiting or running; 0 takes 8192 */
    uint64_t seed;              /* of calls that bring none */
    const char *weight_version; /* name of the first weights; NULL: "default" */
};

enum service_kind {
    SERVICE_TOKENS, /* a sample got tokens and goes on; only for calls that ask for it */
    SERVICE_SAMPLE, /* a sample has finished */
    SERVICE_END     /* the last event: the call is the caller's again */
};

struct service_call;

struct service_event {
    enum service_kind kind;
    int group, sample;             /* which prompt, which of its n */
    const struct engine_result *r; /* valid during the call, as all here; not in SERVICE_END */
    const char *text;              /* so far, without what a stop string may take back */
    size_t len;                    /* bytes of it */
    const char *matched;           /* stop string that ended it, or NULL */
    int32_t matched_token;         /* token that ended it, or -1 */
    const char *weight_version;    /* of the last token */
    const char *why;               /* of ENGINE_ABORT */
    double first_s, total_s;       /* since submission: first token, now */
    const struct err *error;       /* SERVICE_END: why nothing came; NULL when all went well */
};
typedef void service_event_fn(void *arg, const struct service_event *ev);

struct service_group; /* the service's own */

/* What a prompt asks for beside what the engine knows of. */
struct service_ask {
    int own_key; /* 1: the group's key is given */
    const struct stoptext_stop *stops;
    int nstops;
    int skip_special; /* 1: special tokens are no text */
    int no_stop_trim; /* 1: what ended the response stays in the text */
    int no_text;      /* 1: nobody reads the text; it is made for stop strings only */
};

struct service_call {
    struct engine_group *groups;    /* id is the service's; the key too when own_key is 0 */
    const struct service_ask *asks; /* (ngroups) */
    int ngroups;
    const char *const *rids; /* (ngroups) names for service_abort */
    int progress;            /* tokens between two SERVICE_TOKENS of a sample; 0: none */
    service_event_fn *fn;
    void *arg;

    /* The service's. */
    struct service_group *state;
    int open; /* samples without their last event */
    double t_submit;
    atomic_int cancelled;
    struct err err;
    struct service_call *next, *prev;
};

#define SERVICE_BUCKETS 20
struct service_hist {
    uint64_t n[SERVICE_BUCKETS + 1]; /* not cumulative; the last is above all bounds */
    double sum;
};
extern const double service_bounds[SERVICE_BUCKETS];

struct service_stats {
    struct engine_stats engine;
    uint64_t calls, samples, finished, aborted; /* so far */
    uint64_t prompt_tokens, new_tokens, cached_tokens;
    double tokens_per_s;                       /* new tokens over the last seconds */
    int load;                                  /* samples waiting or running */
    int paused, released, dropped;             /* dropped: the weights' memory is released */
    struct service_hist first, total, between; /* seconds */
    char weight_version[256];
    char failed[512]; /* why the engine is gone; "" while it works */
};

int service_open(const struct service_model *m, const struct service_opts *o, struct service **out,
                 struct err *e);
/* Ends what runs, with its events, and the thread. */
void service_close(struct service *s);

int service_context(const struct service *s); /* tokens of prompt and response */
const struct service_model *service_model(const struct service *s);
void service_get_stats(struct service *s, struct service_stats *out);

/* Any thread. STATUS_AGAIN: too many samples wait; nothing was taken. What the engine refuses is
 * told by the end event. */
int service_submit(struct service *s, struct service_call *c, struct err *e);
/* Any thread, while the call is the service's: its samples end soon, as ENGINE_ABORT. */
void service_cancel(struct service *s, struct service_call *c);

typedef void service_run_fn(void *arg, struct service *s);
/* Any thread: fn runs on the service's thread, in order of asking. Always runs, at the latest in
 * service_close. */
void service_run(struct service *s, service_run_fn *fn, void *arg);

/* ---- only inside functions given to service_run ---- */

/* What service_get_stats says is up to date from here on; else it is between two steps. */
void service_show(struct service *s);
/* Ends samples of calls whose rid is `rid`, or that and _0, _1, ... as the prompts of one request
 * are named; NULL: of all. Their number. */
int service_abort(struct service *s, const char *rid);
void service_pause(struct service *s, enum engine_pause how);
void service_resume(struct service *s);
void service_flush(struct service *s);
/* Runs `fn` between a pause and a resume (no more than the caller's own when it has paused), for a
 * change of weights; `how` as in engine_pause. `label` names the new version, NULL: as before.
 * When fn fails after it raised the version, the engine has failed, but where the weights had been
 * dropped. */
int service_change(struct service *s, enum engine_pause how,
                   int (*fn)(void *arg, struct weights *w, struct err *e), void *arg,
                   const char *label, struct err *e);
void service_set_label(struct service *s, const char *label);
const char *service_label(const struct service *s);
/* The name of a version; old ones that are forgotten have the newest's. Inside events, too. */
const char *service_name_of(const struct service *s, int64_t version);
/* Gives the memory of the key-value cache back and takes it again. STATUS_INPUT while samples run.
 */
int service_release(struct service *s, struct err *e);
int service_restore(struct service *s, struct err *e);
/* Gives the memory of the weights back; service_change brings it again, with values. When that
 * fails, the weights stay dropped. STATUS_INPUT while samples run. */
int service_drop(struct service *s, struct err *e);
/* engine_check of the engine, for tests. */
int service_check(struct service *s, struct err *e);

#endif
