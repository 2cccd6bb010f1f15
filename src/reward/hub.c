/* Owns who scores a sample, the calls on their way, and the rule that a failure is never a zero.
 * Results come from graders that ran inside hub_submit, graders in threads of our own, and sources
 * (hub_int.h); a caller sees one queue. Waiting is done at the one source that has something
 * pending; where there are several (samples that name types of their own), or somebody may wake us,
 * each is looked at for two milliseconds in turn. */
#include "reward/hub.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "base/plugin.h"
#include "base/proc.h"
#include "base/status.h"
#include "reward/hub_int.h"
#include "reward/mathgrade.h"

enum { DEFAULT_THREADS = 2 };
static const double SLICE_S = 0.002;

/* A finished sample, or one on its way through a thread. */
struct hub_done {
    struct hub_done *next;
    struct hub_result r;
    json_t *sample; /* held for the thread; let go by the owner */
    char *ask;      /* a question for sympy, of which the verdict is to come */
    const struct hub_type *type;
    int boxed;
};

/* ---- results ---- */

static void append(struct hub_done **first, struct hub_done **last, struct hub_done *d)
{
    d->next = NULL;
    if (*last) {
        (*last)->next = d;
    } else {
        *first = d;
    }
    *last = d;
}

static struct hub_done *remove_first(struct hub_done **first, struct hub_done **last)
{
    struct hub_done *d = *first;

    if (d) {
        *first = d->next;
        *last = *first ? *last : NULL;
    }
    return d;
}

void hub_push(struct hub *h, const struct hub_result *r)
{
    struct hub_done *d = mem_alloc(sizeof *d);

    d->r = *r;
    pthread_mutex_lock(&h->lock);
    append(&h->first, &h->last, d);
    pthread_mutex_unlock(&h->lock);
}

void hub_push_failed(struct hub *h, int64_t id, int n, enum hub_class why, const char *reason)
{
    for (int i = 0; i < (n ? n : 1); i++) {
        struct hub_result r = {.id = id + i};
        hub_failed(&r, why, reason);
        hub_push(h, &r);
    }
}

/* The number under the reward key of a dict; a failure when there is none. */
void hub_pick_key(const struct hub *h, struct hub_result *r)
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

/* ---- threads ---- */

static void grade(struct hub_done *d)
{
    struct hub_task t = {.id = d->r.id, .sample = d->sample};

    hub_type_grade(d->type, d->boxed, &t, &d->r);
    d->ask = t.ask;
}

static void *thread_main(void *arg)
{
    struct hub *h = arg;

    pthread_mutex_lock(&h->lock);
    while (!h->stop) {
        struct hub_done *d = remove_first(&h->todo, &h->todo_last);
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

/* ---- sources ---- */

struct hub_source *hub_source_find(struct hub *h, const char *name, int internal, struct err *e)
{
    for (int i = 0; i < h->nsources; i++) {
        struct hub_source *s = &h->sources[i];
        if (s->internal == internal && strcmp(s->name, name) == 0) {
            if (!s->self) {
                ERR(e, STATUS_INPUT, "%s", s->error);
            }
            return s;
        }
    }
    return NULL;
}

struct hub_source *hub_source_add(struct hub *h, const char *name, int internal, struct err *e)
{
    struct hub_source *s = &h->sources[h->nsources];

    if (h->nsources == HUB_MAX_SOURCES) {
        ERR(e, STATUS_INPUT, "more than %d reward functions in one run", (int)HUB_MAX_SOURCES);
        return NULL;
    }
    h->nsources++;
    s->name = mem_strdup(name);
    s->internal = internal;
    return s;
}

static int is_pending(const struct hub_source *s)
{
    return s->self && s->pending(s->self) > 0;
}

struct hub_flight *hub_flight_new(struct hub *h, const struct hub_request *r, int internal)
{
    struct hub_flight *f = mem_alloc(sizeof *f);

    f->next = h->flights;
    if (f->next) {
        f->next->prev = f;
    }
    h->flights = f;
    f->id = r->id;
    f->group = (int)json_array_size(r->sample);
    f->internal = internal;
    return f;
}

void hub_flight_end(struct hub *h, struct hub_flight *f)
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

int hub_reads_tokens(const struct hub *h, const json_t *sample)
{
    const struct hub_type *g;
    struct err e = {0};
    int boxed;

    if (h->scorer || h->custom >= 0 || sample_function(sample)) {
        return 1;
    }
    g = hub_type_find(sample_type(h, sample), &boxed, &e);
    return !g || !g->grade || (g->needs & HUB_TOKENS);
}

static int to_grader(struct hub *h, const struct hub_type *g, int boxed,
                     const struct hub_request *r, struct err *e)
{
    struct hub_done *d;

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

/* Gives one sample to whoever scores it. What is wrong with the sample is told as its result. */
static int submit_one(struct hub *h, const struct hub_request *r, struct err *e)
{
    const char *function = sample_function(r->sample);
    const struct hub_type *g = NULL;
    struct hub_request q = *r;
    struct err why = {0};
    enum hub_class bad = HUB_BAD_TYPE;
    int boxed = 0, rc;

    if (function && !h->sample_functions) {
        rc = ERR(&why, STATUS_INPUT,
                 "the sample names a reward function, %.80s, which is not allowed", function);
    } else if (function) {
        struct hub_source *s = hub_calls_pool(h, function, NULL, &why);
        rc = s ? hub_calls_submit(h, s, r, &why) : why.code;
    } else if ((g = hub_type_find(sample_type(h, r->sample), &boxed, &why)) == NULL) {
        rc = why.code;
    } else if (g->grade) {
        return to_grader(h, g, boxed, r, e);
    } else {
        rc = g->open ? g->open(h, g, &why) : STATUS_OK;
        if (rc == STATUS_OK) {
            bad = HUB_BAD_SAMPLE;
            q.sample = boxed ? boxed_sample(r->sample) : json_incref(r->sample);
            rc = g->send(h, g, &q, &why);
            json_decref(q.sample);
        }
    }
    if (rc != STATUS_OK && rc != STATUS_AGAIN) {
        h->pending++;
        hub_push_failed(h, r->id, 0, bad, why.msg);
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
            hub_push_failed(h, q.id, 0, HUB_BROKEN, "the queue of the reward workers is full");
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
    if (h->scorer) {
        return h->scorer->submit(h->scorer->self, r, e);
    }
    if (h->pending && h->pending + n > HUB_QUEUE) {
        return STATUS_AGAIN;
    }
    if (h->custom >= 0) {
        return hub_calls_submit(h, &h->sources[h->custom], r, e);
    }
    return json_is_array(r->sample) ? submit_group(h, r, e) : submit_one(h, r, e);
}

/* ---- polling ---- */

/* 0 when the verdict is there; 1 when its question was asked; -1 when there is no room for it. */
static int ask_sympy(struct hub *h, struct hub_done *d)
{
    if (!d->ask) {
        return 0;
    }
    if (hub_math_ask(h, d->type, &d->r, d->ask) == STATUS_AGAIN) {
        pthread_mutex_lock(&h->lock);
        append(&h->first, &h->last, d);
        pthread_mutex_unlock(&h->lock);
        return -1;
    }
    json_decref(d->sample);
    mem_free(d->ask);
    mem_free(d);
    return 1;
}

/* The first finished sample, 1 when there is one; else waits for a thread's until `until`. */
static int take_done(struct hub *h, double until, struct hub_result *out)
{
    struct hub_done *d;
    int asked = 0;

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
    do {
        d = remove_first(&h->first, &h->last);
        pthread_mutex_unlock(&h->lock);
        asked = d ? ask_sympy(h, d) : 0;
        pthread_mutex_lock(&h->lock);
    } while (d && asked > 0);
    pthread_mutex_unlock(&h->lock);
    if (!d || asked < 0) {
        return 0;
    }
    *out = d->r;
    if (d->type && out->raw && !out->failed) {
        hub_pick_key(h, out);
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

/* Hears the sources once. Each is waited for until `until` when it is the only one with something
 * pending, else for a slice. Returns how many have. */
static int hear(struct hub *h, double until, struct err *e, int *rc)
{
    int busy;
    double wait;

    pthread_mutex_lock(&h->lock);
    busy = h->running > 0;
    pthread_mutex_unlock(&h->lock);
    for (int i = 0; i < h->nsources; i++) {
        busy += is_pending(&h->sources[i]);
    }
    wait = until - proc_now();
    wait = wait > SLICE_S && (busy > 1 || h->shared) ? SLICE_S : wait;
    for (int i = 0; i < h->nsources && *rc >= 0; i++) {
        if (is_pending(&h->sources[i])) {
            *rc = h->sources[i].hear(h, h->sources[i].self, wait, e);
        }
    }
    return busy;
}

int hub_poll(struct hub *h, double wait_s, struct hub_result *out, struct err *e)
{
    double until;

    if (h->scorer) {
        return h->scorer->poll(h->scorer->self, wait_s, out, e);
    }
    until = proc_now() + (wait_s > 0 ? wait_s : 0);
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

    for (int i = 0; i < h->nsources; i++) {
        const struct hub_source *s = &h->sources[i];
        n += s->self && s->restarts ? s->restarts(s->self) : 0;
    }
    return n;
}

/* ---- opening and closing ---- */

/* Opens what the run's own function or type needs, so that a lack of it is told at the start. */
static int open_own(struct hub *h, const char *custom, struct err *e)
{
    const struct hub_type *g;
    struct plugin_ref ref;
    struct hub_source *f;
    int boxed;

    if (custom) {
        int rc = plugin_resolve(plugin_hook("custom-rm-path"), custom, &ref, e);
        if (rc != STATUS_OK) {
            return rc;
        }
        f = ref.kind == PLUGIN_PYTHON ? hub_calls_pool(h, custom, NULL, e)
                                      : hub_calls_hook(h, custom, e);
        plugin_ref_fini(&ref);
        h->custom = f ? (int)(f - h->sources) : -1;
        return f ? STATUS_OK : e->code;
    }
    if (!h->rm_type || !*h->rm_type) {
        return STATUS_OK;
    }
    g = hub_type_find(h->rm_type, &boxed, e);
    if (!g) {
        return STATUS_INPUT;
    }
    return g->open ? g->open(h, g, e) : STATUS_OK;
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
    h->code_timeout_s = o->code_timeout_s;
    h->code_memory_mb = o->code_memory_mb;
    h->code_share = o->code_share;
    h->args = o->args ? json_deep_copy(o->args) : NULL;
    h->rm_inflight = o->rm_inflight;
    h->rm_metadata = o->rm_metadata;
    h->sample_functions = o->sample_functions;
    h->keep_dict = o->keep_dict;
    h->shared = o->shared;
    h->scorer = o->scorer;
    h->want_threads = o->threads < HUB_MAX_THREADS ? o->threads : HUB_MAX_THREADS;
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

static void drop(struct hub_done *d)
{
    while (d) {
        struct hub_done *next = d->next;
        json_decref(d->r.raw);
        json_decref(d->sample);
        mem_free(d->ask);
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
    for (int i = 0; i < h->nsources; i++) {
        if (h->sources[i].self) {
            h->sources[i].close(h->sources[i].self);
        }
        mem_free(h->sources[i].name);
    }
    while (h->flights) {
        hub_flight_end(h, h->flights);
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
