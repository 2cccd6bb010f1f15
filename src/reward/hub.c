/* Owns who scores a sample, the calls on their way, and the rule that a failure is never a zero.
 * There are four sources of results: graders that ran inside hub_submit, graders in threads of our
 * own, Python workers, and a service over HTTP. A caller sees one queue. Waiting is done at the one
 * source that has something pending; where there are several (samples that name types of their
 * own), or somebody may wake us, each is looked at for two milliseconds in turn. */
#include "reward/hub.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/proc.h"
#include "base/status.h"
#include "reward/hub_int.h"
#include "reward/ifbench.h"
#include "reward/mathgrade.h"
#include "reward/remote.h"
#include "reward/worker.h"

enum { QUEUE_MAX = 4096, MAX_POOLS = 16, MAX_THREADS = 256, DEFAULT_THREADS = 2 };
static const double SLICE_S = 0.002;

/* A finished sample, or one on its way through a thread. */
struct done {
    struct done *next;
    struct hub_result r;
    json_t *sample; /* held for the thread; let go by the owner */
    const struct hub_type *type;
    int boxed;
};

/* A call in a worker or at the service. */
struct flight {
    struct flight *prev, *next;
    int64_t id;
    int group;    /* samples of a group; 0: one sample */
    int internal; /* the worker's answer is {"value", "reason"} of a type of ours */
};

/* The workers of one function. */
struct pool {
    char *path;
    int internal;
    struct worker_pool *w; /* NULL: it could not be opened, for `error` */
    char error[256];
};

struct hub {
    char *rm_type, *reward_key, *python, *rm_url;
    int nworkers, rm_inflight, rm_metadata, sample_functions, keep_dict, shared;
    double timeout_s;
    json_t *args;
    struct pool pools[MAX_POOLS];
    int npools;
    int custom; /* pool of the custom function; -1: none */
    struct remote *remote;
    struct flight *flights;
    int pending; /* samples submitted and not polled */

    pthread_t thread[MAX_THREADS];
    int nthreads, want_threads;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t work, ready;
    struct done *todo, *todo_last, *first, *last;
    int running; /* given to threads and not done */
    int woken, stop;
};

/* ---- results ---- */

static void append(struct done **first, struct done **last, struct done *d)
{
    d->next = NULL;
    if (*last) {
        (*last)->next = d;
    } else {
        *first = d;
    }
    *last = d;
}

static struct done *remove_first(struct done **first, struct done **last)
{
    struct done *d = *first;

    if (d) {
        *first = d->next;
        *last = *first ? *last : NULL;
    }
    return d;
}

static void push(struct hub *h, const struct hub_result *r)
{
    struct done *d = mem_alloc(sizeof *d);

    d->r = *r;
    pthread_mutex_lock(&h->lock);
    append(&h->first, &h->last, d);
    pthread_mutex_unlock(&h->lock);
}

static void push_failed(struct hub *h, int64_t id, int n, enum hub_class why, const char *reason)
{
    for (int i = 0; i < (n ? n : 1); i++) {
        struct hub_result r = {.id = id + i};
        hub_failed(&r, why, reason);
        push(h, &r);
    }
}

/* The number under the reward key of a dict; a failure when there is none. */
static void pick_key(const struct hub *h, struct hub_result *r)
{
    const json_t *v = h->reward_key ? json_object_get(r->raw, h->reward_key) : NULL;
    char why[256];

    if (!h->reward_key) {
        if (!h->keep_dict) {
            hub_failed(r, HUB_BAD_VALUE, "the reward is a dict: give --reward-key");
        }
    } else if (!v) {
        snprintf(why, sizeof why, "the reward is a dict without the key %.100s", h->reward_key);
        hub_failed(r, HUB_BAD_VALUE, why);
    } else if (!json_is_number(v) && !json_is_boolean(v)) {
        snprintf(why, sizeof why, "the reward is a dict with no number under the key %.100s",
                 h->reward_key);
        hub_failed(r, HUB_BAD_VALUE, why);
    } else {
        r->reward = json_is_boolean(v) ? json_is_true(v) : json_number_value(v);
    }
}

/* Takes a function's or service's value (counted anew where it is kept) as the result. */
static void take_value(const struct hub *h, struct hub_result *r, json_t *value, const char *who)
{
    const char *reason = json_string_value(json_object_get(value, "reason"));

    r->why = HUB_SCORED;
    if (json_is_object(value)) {
        r->raw = json_incref(value);
        pick_key(h, r);
    } else {
        r->reward = json_is_boolean(value) ? json_is_true(value) : json_number_value(value);
    }
    if (!r->failed && reason) {
        hub_line(r->reason, sizeof r->reason, reason, strlen(reason));
    } else if (!r->failed) {
        snprintf(r->reason, sizeof r->reason, "%s gave %g", who, r->reward);
    }
    if (!isfinite(r->reward)) {
        hub_failed(r, HUB_BAD_VALUE, "the reward is not finite");
    }
}

/* {"value", "reason"} of a type of ours. */
static void take_verdict(struct hub_result *r, const json_t *value)
{
    const char *reason = json_string_value(json_object_get(value, "reason"));

    r->reward = json_number_value(json_object_get(value, "value"));
    r->why = r->reward == 1 ? HUB_RIGHT : r->reward == 0 ? HUB_WRONG : HUB_PARTIAL;
    hub_line(r->reason, sizeof r->reason, reason ? reason : "", reason ? strlen(reason) : 0);
}

/* ---- threads ---- */

static void grade(struct done *d)
{
    struct hub_task t = {.id = d->r.id, .sample = d->sample};

    hub_type_grade(d->type, d->boxed, &t, &d->r);
}

static void *thread_main(void *arg)
{
    struct hub *h = arg;

    pthread_mutex_lock(&h->lock);
    while (!h->stop) {
        struct done *d = remove_first(&h->todo, &h->todo_last);
        if (!d) {
            pthread_cond_wait(&h->work, &h->lock);
            continue;
        }
        pthread_mutex_unlock(&h->lock);
        grade(d);
        pthread_mutex_lock(&h->lock);
        append(&h->first, &h->last, d);
        h->running--;
        pthread_cond_signal(&h->ready);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

static int start_threads(struct hub *h, struct err *e)
{
    int n = h->want_threads ? h->want_threads : DEFAULT_THREADS;

    while (h->nthreads < n) {
        int rc = pthread_create(&h->thread[h->nthreads], NULL, thread_main, h);
        if (rc != 0 && h->nthreads == 0) {
            return ERR(e, STATUS_NOMEM, "no thread for rewards: %s", strerror(rc));
        }
        if (rc != 0) {
            break;
        }
        h->nthreads++;
    }
    return STATUS_OK;
}

/* ---- Python and HTTP ---- */

/* The workers of a function, opened at first use; NULL with the reason in e. */
static struct worker_pool *pool_of(struct hub *h, const char *path, const char *source, int *index,
                                   struct err *e)
{
    struct worker_opts o = {.path = path,
                            .source = source,
                            .python = h->python,
                            .count = h->nworkers,
                            .timeout_s = h->timeout_s,
                            .queue_max = 2 * QUEUE_MAX,
                            .args = h->args};
    struct pool *p;

    for (*index = 0; *index < h->npools; ++*index) {
        p = &h->pools[*index];
        if (p->internal == (source != NULL) && strcmp(p->path, path) == 0) {
            if (!p->w) {
                ERR(e, STATUS_INPUT, "%s", p->error);
            }
            return p->w;
        }
    }
    if (h->npools == MAX_POOLS) {
        ERR(e, STATUS_INPUT, "more than %d reward functions in one run", (int)MAX_POOLS);
        return NULL;
    }
    p = &h->pools[h->npools++];
    p->path = mem_strdup(path);
    p->internal = source != NULL;
    if (worker_open(&o, &p->w, e) != STATUS_OK) {
        hub_line(p->error, sizeof p->error, e->msg, strlen(e->msg));
        p->w = NULL;
    }
    return p->w;
}

static int open_remote(struct hub *h, struct err *e)
{
    struct remote_opts o = {.url = h->rm_url,
                            .timeout_s = h->timeout_s,
                            .inflight = h->rm_inflight,
                            .metadata = h->rm_metadata};
    int rc;

    if (h->remote) {
        return STATUS_OK;
    }
    if (!h->rm_url || !*h->rm_url) {
        return ERR(e, STATUS_INPUT, "the reward type remote_rm needs --rm-url");
    }
    rc = remote_open(&o, &h->remote, e);
    return rc == STATUS_OK ? rc : err_prefix(e, "--rm-url");
}

static struct flight *new_flight(struct hub *h, int64_t id, const json_t *sample, int internal)
{
    struct flight *f = mem_alloc(sizeof *f);

    f->next = h->flights;
    if (f->next) {
        f->next->prev = f;
    }
    h->flights = f;

    f->id = id;
    f->group = (int)json_array_size(sample);
    f->internal = internal;
    return f;
}

static void end_flight(struct hub *h, struct flight *f)
{
    if (f->prev) {
        f->prev->next = f->next;
    } else {
        h->flights = f->next;
    }
    if (f->next) {
        f->next->prev = f->prev;
    }
    mem_free(f);
}

static int to_worker(struct hub *h, struct worker_pool *w, const struct hub_request *r,
                     int internal, struct err *e)
{
    struct flight *f = new_flight(h, r->id, r->sample, internal);
    int rc = worker_submit(w, (int64_t)(intptr_t)f, r->sample, e);

    if (rc != STATUS_OK) {
        end_flight(h, f);
        return rc;
    }
    h->pending += f->group ? f->group : 1;
    return STATUS_OK;
}

static int to_remote(struct hub *h, const struct hub_request *r, struct err *e)
{
    struct flight *f = new_flight(h, r->id, r->sample, 0);
    int rc = remote_submit(h->remote, f, r->sample, e);

    if (rc != STATUS_OK) {
        end_flight(h, f);
    } else {
        h->pending++;
    }
    return rc;
}

/* ---- submitting ---- */

/* The type for a sample: its own, else the run's. "" when there is none. */
static const char *sample_type(const struct hub *h, const json_t *sample)
{
    static const char *const places[] = {"reward_spec", "metadata"};

    for (int i = 0; i < 2; i++) {
        const char *s =
            json_string_value(json_object_get(json_object_get(sample, places[i]), "rm_type"));
        if (s && *s) {
            return s;
        }
    }
    return h->rm_type ? h->rm_type : "";
}

static const char *sample_function(const json_t *sample)
{
    const char *s = json_string_value(
        json_object_get(json_object_get(sample, "reward_spec"), "custom_rm_path"));
    return s && *s ? s : NULL;
}

static int to_grader(struct hub *h, const struct hub_type *g, int boxed,
                     const struct hub_request *r, struct err *e)
{
    struct done *d;

    if ((h->want_threads || (g->needs & HUB_SLOW)) && start_threads(h, e) != STATUS_OK) {
        return e->code;
    }
    d = mem_alloc(sizeof *d);
    d->r.id = r->id;
    d->type = g;
    d->boxed = boxed;
    d->sample = json_incref(r->sample);
    h->pending++;
    if (!h->want_threads && !(g->needs & HUB_SLOW)) {
        grade(d);
    }
    pthread_mutex_lock(&h->lock);
    if (h->want_threads || (g->needs & HUB_SLOW)) {
        append(&h->todo, &h->todo_last, d);
        h->running++;
        pthread_cond_signal(&h->work);
    } else {
        append(&h->first, &h->last, d);
    }
    pthread_mutex_unlock(&h->lock);
    return STATUS_OK;
}

/* With boxed_, workers and services see only the content of the last box. */
static json_t *boxed_sample(json_t *sample)
{
    const char *in = "", *s = json_string_value(json_object_get(sample, "response"));
    size_t n = 0;
    json_t *copy = json_copy(sample);

    if (s) {
        mathgrade_box(s, json_string_length(json_object_get(sample, "response")), &in, &n);
        json_object_set_new(copy, "response", json_stringn(in, n));
    }
    return copy;
}

/* Gives one sample to whoever scores it. Reasons against it that are the sample's own are told as
 * its result. */
static int submit_one(struct hub *h, const struct hub_request *r, struct err *e)
{
    const char *function = sample_function(r->sample);
    const struct hub_type *g = NULL;
    struct hub_request q = *r;
    struct worker_pool *w;
    struct err why = {0};
    int boxed = 0, index, rc = STATUS_OK;
    enum hub_class bad = HUB_BAD_TYPE;

    if (function && !h->sample_functions) {
        ERR(&why, STATUS_INPUT, "the sample names a reward function, %.80s, which is not allowed",
            function);
    } else if (function) {
        w = pool_of(h, function, NULL, &index, &why);
        return w ? to_worker(h, w, r, 0, e)
                 : (h->pending++, push_failed(h, r->id, 0, bad, why.msg), STATUS_OK);
    } else {
        g = hub_type_find(sample_type(h, r->sample), &boxed, &why);
    }
    if (g && g->grade) {
        return to_grader(h, g, boxed, r, e);
    }
    q.sample = g && boxed ? boxed_sample(r->sample) : json_incref(r->sample);
    if (g && (g->needs & HUB_PYTHON)) {
        w = pool_of(h, g->name, ifbench_script, &index, &why);
        rc = w ? to_worker(h, w, &q, 1, e) : STATUS_INPUT;
        g = w ? g : NULL;
    } else if (g && (g->needs & HUB_HTTP)) {
        rc = open_remote(h, &why);
        g = rc == STATUS_OK ? g : NULL;
        if (g && (rc = to_remote(h, &q, &why)) != STATUS_OK) {
            g = NULL;
            bad = HUB_BAD_SAMPLE;
        }
    }
    json_decref(q.sample);
    if (!g) {
        h->pending++;
        push_failed(h, r->id, 0, bad, why.msg);
        rc = STATUS_OK;
    }
    return rc;
}

static int submit_group(struct hub *h, const struct hub_request *r, struct err *e)
{
    size_t n = json_array_size(r->sample), i;
    json_t *s;

    json_array_foreach(r->sample, i, s)
    {
        struct hub_request q = {r->id + (int64_t)i, s};
        int rc = submit_one(h, &q, e);
        if (rc == STATUS_AGAIN && i > 0) { /* a group is taken whole or not at all */
            h->pending++;
            push_failed(h, q.id, 0, HUB_BROKEN, "the queue of the reward workers is full");
        } else if (rc != STATUS_OK) {
            return rc;
        }
    }
    return n ? STATUS_OK : ERR(e, STATUS_INPUT, "a group without samples");
}

int hub_submit(struct hub *h, const struct hub_request *r, struct err *e)
{
    int n = json_is_array(r->sample) ? (int)json_array_size(r->sample) : 1;
    size_t i;
    json_t *s;

    json_array_foreach(r->sample, i, s)
    {
        n = json_is_object(s) ? n : -1;
    }
    if (n < 1 || (!json_is_object(r->sample) && !json_is_array(r->sample))) {
        return ERR(e, STATUS_INPUT, "the sample of a reward call is not a JSON object");
    }
    if (h->pending && h->pending + n > QUEUE_MAX) {
        return STATUS_AGAIN;
    }
    if (h->custom >= 0) {
        return to_worker(h, h->pools[h->custom].w, r, 0, e);
    }
    return json_is_array(r->sample) ? submit_group(h, r, e) : submit_one(h, r, e);
}

/* ---- polling ---- */

static void land_worker(struct hub *h, const struct worker_result *w)
{
    struct flight *f = (struct flight *)(intptr_t)w->id;

    if (w->failed) {
        push_failed(h, f->id, f->group, w->late ? HUB_LATE : HUB_BROKEN, w->reason);
    }
    for (int i = 0; !w->failed && i < (f->group ? f->group : 1); i++) {
        struct hub_result r = {.id = f->id + i};
        if (f->internal) {
            take_verdict(&r, w->value);
        } else {
            take_value(h, &r, f->group ? json_array_get(w->value, (size_t)i) : w->value,
                       "the function");
        }
        push(h, &r);
    }
    json_decref(w->value);
    end_flight(h, f);
}

static void land_remote(struct hub *h, const struct remote_result *v)
{
    struct flight *f = v->user;
    struct hub_result r = {.id = f->id};

    if (v->failed) {
        hub_failed(&r, v->late ? HUB_LATE : v->broken ? HUB_BROKEN : HUB_BAD_VALUE, v->reason);
    } else {
        take_value(h, &r, v->value, "the service");
    }
    push(h, &r);
    json_decref(v->value);
    end_flight(h, f);
}

/* The first finished sample, 1 when there is one; else waits for a thread's until `until`. */
static int take_done(struct hub *h, double until, struct hub_result *out)
{
    struct done *d;

    pthread_mutex_lock(&h->lock);
    while (!h->first && !h->woken && h->running && proc_now() < until) {
        double left = until - proc_now();
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        t.tv_sec += (time_t)left;
        t.tv_nsec += (long)((left - (double)(time_t)left) * 1e9);
        if (t.tv_nsec >= 1000000000) {
            t.tv_sec++;
            t.tv_nsec -= 1000000000;
        }
        pthread_cond_timedwait(&h->ready, &h->lock, &t);
    }
    d = remove_first(&h->first, &h->last);
    pthread_mutex_unlock(&h->lock);
    if (!d) {
        return 0;
    }
    *out = d->r;
    if (d->type && out->raw && !out->failed) {
        pick_key(h, out);
    }
    json_decref(d->sample);
    mem_free(d);
    h->pending--;
    return 1;
}

static int was_woken(struct hub *h)
{
    int woken;

    pthread_mutex_lock(&h->lock);
    woken = h->woken;
    h->woken = 0;
    pthread_mutex_unlock(&h->lock);
    return woken;
}

/* Hears workers and the service once. Each may be waited for until `until` when it is the only
 * source, else for a slice. Returns how many sources have something pending. */
static int hear(struct hub *h, double until, struct err *e, int *rc)
{
    struct worker_result w;
    struct remote_result v;
    int busy = 0;
    double wait;

    pthread_mutex_lock(&h->lock);
    busy += h->running > 0;
    pthread_mutex_unlock(&h->lock);
    for (int i = 0; i < h->npools; i++) {
        busy += h->pools[i].w && worker_pending(h->pools[i].w) > 0;
    }
    busy += h->remote && remote_pending(h->remote) > 0;
    wait = until - proc_now();
    wait = wait > SLICE_S && (busy > 1 || h->shared) ? SLICE_S : wait;
    for (int i = 0; i < h->npools; i++) {
        if (h->pools[i].w && worker_pending(h->pools[i].w) > 0 &&
            (*rc = worker_poll(h->pools[i].w, wait, &w, e)) == STATUS_OK) {
            land_worker(h, &w);
        }
        if (*rc < 0) {
            return busy;
        }
    }
    if (h->remote && remote_pending(h->remote) > 0 &&
        (*rc = remote_poll(h->remote, wait, &v, e)) == STATUS_OK) {
        land_remote(h, &v);
    }
    return busy;
}

int hub_poll(struct hub *h, double wait_s, struct hub_result *out, struct err *e)
{
    double until = proc_now() + (wait_s > 0 ? wait_s : 0);

    for (;;) {
        int rc = STATUS_OK, busy, running;
        if (take_done(h, 0, out)) {
            return STATUS_OK;
        }
        if (!h->pending || was_woken(h)) {
            return STATUS_AGAIN;
        }
        busy = hear(h, until, e, &rc);
        if (rc < 0) {
            return rc;
        }
        pthread_mutex_lock(&h->lock);
        running = h->running > 0;
        pthread_mutex_unlock(&h->lock);
        if (take_done(h, busy > running ? proc_now() + SLICE_S : until, out)) {
            return STATUS_OK;
        }
        if (proc_now() >= until) {
            return STATUS_AGAIN;
        }
    }
}

void hub_wake(struct hub *h)
{
    pthread_mutex_lock(&h->lock);
    h->woken = 1;
    pthread_cond_signal(&h->ready);
    pthread_mutex_unlock(&h->lock);
}

int hub_pending(const struct hub *h)
{
    return h->pending;
}

int hub_restarts(const struct hub *h)
{
    int n = 0;

    for (int i = 0; i < h->npools; i++) {
        n += h->pools[i].w ? worker_restarts(h->pools[i].w) : 0;
    }
    return n;
}

/* ---- opening and closing ---- */

/* Opens what the run's own function or type needs, so that a lack of it is told at the start. */
static int open_own(struct hub *h, const char *custom, struct err *e)
{
    const struct hub_type *g;
    int boxed, index;

    if (custom) {
        if (!pool_of(h, custom, NULL, &h->custom, e)) {
            h->custom = -1;
            return e->code;
        }
        return STATUS_OK;
    }
    if (!h->rm_type || !*h->rm_type) {
        return STATUS_OK;
    }
    g = hub_type_find(h->rm_type, &boxed, e);
    if (!g) {
        return STATUS_INPUT;
    }
    if (g->needs & HUB_PYTHON) {
        return pool_of(h, g->name, ifbench_script, &index, e) ? STATUS_OK : e->code;
    }
    return g->needs & HUB_HTTP ? open_remote(h, e) : STATUS_OK;
}

int hub_open(const struct hub_opts *o, struct hub **out, struct err *e)
{
    struct hub *h = mem_alloc(sizeof *h);
    pthread_condattr_t monotonic;
    int rc;

    h->rm_type = mem_strdup(o->rm_type);
    h->reward_key = o->reward_key && *o->reward_key ? mem_strdup(o->reward_key) : NULL;
    h->python = mem_strdup(o->python);
    h->rm_url = mem_strdup(o->rm_url);
    h->nworkers = o->workers;
    h->timeout_s = o->timeout_s;
    h->args = o->args ? json_deep_copy(o->args) : NULL;
    h->rm_inflight = o->rm_inflight;
    h->rm_metadata = o->rm_metadata;
    h->sample_functions = o->sample_functions;
    h->keep_dict = o->keep_dict;
    h->shared = o->shared;
    h->want_threads = o->threads < MAX_THREADS ? o->threads : MAX_THREADS;
    h->custom = -1;
    pthread_mutex_init(&h->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&h->work, NULL);
    pthread_cond_init(&h->ready, &monotonic);
    pthread_condattr_destroy(&monotonic);
    rc = open_own(h, o->custom_rm_path && *o->custom_rm_path ? o->custom_rm_path : NULL, e);
    if (rc != STATUS_OK) {
        hub_close(h);
        return rc;
    }
    *out = h;
    return STATUS_OK;
}

static void drop(struct done *d)
{
    while (d) {
        struct done *next = d->next;
        json_decref(d->r.raw);
        json_decref(d->sample);
        mem_free(d);
        d = next;
    }
}

void hub_close(struct hub *h)
{
    if (!h) {
        return;
    }
    pthread_mutex_lock(&h->lock);
    h->stop = 1;
    pthread_cond_broadcast(&h->work);
    pthread_mutex_unlock(&h->lock);
    for (int i = 0; i < h->nthreads; i++) {
        pthread_join(h->thread[i], NULL);
    }
    for (int i = 0; i < h->npools; i++) {
        worker_close(h->pools[i].w);
        mem_free(h->pools[i].path);
    }
    remote_close(h->remote);
    while (h->flights) {
        end_flight(h, h->flights);
    }
    drop(h->todo);
    drop(h->first);
    pthread_cond_destroy(&h->work);
    pthread_cond_destroy(&h->ready);
    pthread_mutex_destroy(&h->lock);
    json_decref(h->args);
    mem_free(h->rm_type);
    mem_free(h->reward_key);
    mem_free(h->python);
    mem_free(h->rm_url);
    mem_free(h);
}
