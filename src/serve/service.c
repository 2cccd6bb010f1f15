/* Owns the engine and the thread that drives it. Everything that touches the engine happens here,
 * between two steps: calls come in through a list, other work as functions to be run. A sample's
 * text is made only where somebody reads it while it grows or a stop string may end it; of all
 * others it is made once, at the end.
 *
 * A group's id in the engine is the address of its state here, so that results find their way
 * without a table. */
#include "serve/service.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/proc.h"
#include "model/weights.h"
#include "num/plan.h"

#define SERVICE_MAX_TEXT (64u << 20) /* bytes of a response */
#define SERVICE_LABELS   16          /* versions whose names are remembered */

const double service_bounds[SERVICE_BUCKETS] = {0.001, 0.002, 0.005, 0.01, 0.02,  0.05, 0.1,
                                                0.2,   0.5,   1.0,   2.0,  3.0,   5.0,  10.0,
                                                20.0,  40.0,  60.0,  80.0, 100.0, 200.0};

struct service_sample {
    struct stoptext text;
    int told;       /* tokens of the last SERVICE_TOKENS */
    double t_token; /* when the last token came */
};

struct service_group {
    struct service_call *call;
    int index;
    double t_first;
    struct service_sample *samples; /* (n) */
};

struct service_work {
    service_run_fn *fn;
    void *arg;
    struct service_work *next;
};

struct service_name {
    int64_t version;
    char label[256];
};

struct service {
    struct service_model m;
    struct service_opts o;
    struct engine *engine; /* NULL: released, or failed */
    int context;
    pthread_t thread;
    atomic_int load;

    pthread_mutex_t mu;
    pthread_cond_t wake;
    /* Under mu. */
    struct service_work *work, **work_tail;
    int kick, stop;
    struct service_stats shown;

    /* The thread's own. */
    struct service_call calls; /* list of those at work, oldest first; a head of a ring */
    struct service_stats st;
    struct engine_stats before; /* of engines that were closed */
    int paused, closing;
    struct service_name names[SERVICE_LABELS]; /* newest first */
    uint64_t next_sample;
    double t_rate;
    uint64_t rate_from;
    const char *abort_why;
};

/* ---- small things ---- */

static void service_hist_add(struct service_hist *h, double v)
{
    int i = 0;
    while (i < SERVICE_BUCKETS && v > service_bounds[i]) {
        i++;
    }
    h->n[i]++;
    h->sum += v;
}

int service_context(const struct service *s)
{
    return s->context;
}

const struct service_model *service_model(const struct service *s)
{
    return &s->m;
}

const char *service_label(const struct service *s)
{
    return s->names[0].label;
}

const char *service_name_of(const struct service *s, int64_t version)
{
    for (int i = 0; i < SERVICE_LABELS; i++) {
        if (s->names[i].label[0] && s->names[i].version == version) {
            return s->names[i].label;
        }
    }
    return s->names[0].label;
}

void service_set_label(struct service *s, const char *label)
{
    if (s->names[0].version != s->m.w->version) {
        memmove(s->names + 1, s->names, sizeof s->names[0] * (SERVICE_LABELS - 1));
        s->names[0].version = s->m.w->version;
    }
    if (label) {
        snprintf(s->names[0].label, sizeof s->names[0].label, "%s", label);
    }
}

void service_show(struct service *s)
{
    double now = proc_now();

    if (s->engine) {
        struct engine_stats g;
        engine_get_stats(s->engine, &g);
        s->st.engine = g;
        s->st.engine.prompt_rows += s->before.prompt_rows;
        s->st.engine.decode_rows += s->before.decode_rows;
        s->st.engine.steps += s->before.steps;
        s->st.engine.cached_tokens += s->before.cached_tokens;
        s->st.engine.preempted += s->before.preempted;
        s->st.engine.evicted += s->before.evicted;
    }
    if (now - s->t_rate >= 2.0) {
        uint64_t rows = (uint64_t)s->st.engine.decode_rows;
        s->st.tokens_per_s = (double)(rows - s->rate_from) / (now - s->t_rate);
        s->rate_from = rows;
        s->t_rate = now;
    }
    s->st.paused = s->paused;
    s->st.released = !s->engine;
    s->st.dropped = s->m.w->dropped;
    snprintf(s->st.weight_version, sizeof s->st.weight_version, "%s", service_label(s));
    pthread_mutex_lock(&s->mu);
    s->shown = s->st;
    pthread_mutex_unlock(&s->mu);
}

void service_get_stats(struct service *s, struct service_stats *out)
{
    pthread_mutex_lock(&s->mu);
    *out = s->shown;
    pthread_mutex_unlock(&s->mu);
    out->load = atomic_load(&s->load);
}

/* ---- calls ---- */

static void service_end_call(struct service *s, struct service_call *c)
{
    struct service_event ev = {.kind = SERVICE_END, .error = c->err.code ? &c->err : NULL};
    int n = 0;

    c->prev->next = c->next;
    c->next->prev = c->prev;
    for (int i = 0; i < c->ngroups; i++) {
        for (int k = 0; k < c->groups[i].n; k++) {
            stoptext_fini(&c->state[i].samples[k].text);
        }
        n += c->groups[i].n;
        mem_free(c->state[i].samples);
    }
    mem_free(c->state);
    c->state = NULL;
    atomic_fetch_sub(&s->load, n);
    service_show(s); /* who has the answer sees it counted */
    c->fn(c->arg, &ev);
}

static void service_fill_event(const struct service *s, const struct service_group *g,
                               const struct engine_result *r, struct service_event *ev)
{
    const struct service_sample *x = &g->samples[r->sample];
    double t0 = g->call->t_submit;

    memset(ev, 0, sizeof *ev);
    ev->group = g->index;
    ev->sample = r->sample;
    ev->r = r;
    ev->text = x->text.text.data;
    ev->len = x->text.shown;
    ev->matched_token = -1;
    ev->weight_version = service_name_of(s, r->weight_version);
    ev->first_s = g->t_first > 0.0 ? g->t_first - t0 : 0.0;
    ev->total_s = proc_now() - t0;
}

static void service_saw_token(struct service *s, struct service_group *g,
                              const struct engine_result *r)
{
    struct service_sample *x = &g->samples[r->sample];
    double now = proc_now();

    if (g->t_first <= 0.0) {
        g->t_first = now;
        service_hist_add(&s->st.first, now - g->call->t_submit);
    } else if (x->t_token > 0.0) {
        service_hist_add(&s->st.between, now - x->t_token);
    }
    x->t_token = now;
}

/* A call that cannot go on: what is left of it is ended, its end event tells the first cause. */
static void service_spoil(struct service *s, struct service_call *c, const struct err *e)
{
    if (!c->err.code) {
        c->err = *e;
    }
    for (int i = 0; s->engine && i < c->ngroups; i++) {
        engine_abort(s->engine, c->groups[i].id);
    }
}

/* A sample has new tokens and goes on. */
static void service_progress(struct service *s, const struct engine_result *r)
{
    struct service_group *g = (struct service_group *)(uintptr_t)r->group;
    struct service_call *c = g->call;
    struct service_sample *x = &g->samples[r->sample];
    struct service_event ev;
    struct err e = {0};
    int rc;

    service_saw_token(s, g, r);
    if (!c->asks[g->index].nstops && !c->progress) {
        return;
    }
    rc = stoptext_push(&x->text, r->tokens, (size_t)r->ntokens, 0, &e);
    if (rc == STATUS_END) {
        engine_end(s->engine, r->group, r->sample, r->ntokens, ENGINE_STOP);
    } else if (rc != STATUS_OK) {
        service_spoil(s, c, &e);
    } else if (c->progress && r->ntokens - x->told >= c->progress) {
        x->told = r->ntokens;
        service_fill_event(s, g, r, &ev);
        ev.kind = SERVICE_TOKENS;
        c->fn(c->arg, &ev);
    }
}

/* Where the text of a finished sample ends, and what ended it. */
static int service_last_text(const struct service_ask *ask, struct service_sample *x,
                             struct engine_result *r, struct service_event *ev, struct err *e)
{
    int by_token = r->finish == ENGINE_STOP && !x->text.matched;
    int n = r->ntokens - (by_token && !ask->no_stop_trim), rc;

    rc = stoptext_push(&x->text, r->tokens, (size_t)n, 1, e);
    if (rc < 0) {
        return rc;
    }
    if (x->text.matched) {
        ev->matched = x->text.matched->s;
        r->finish = ENGINE_STOP;
        by_token = 0;
    }
    if (by_token) {
        ev->matched_token = r->tokens[r->ntokens - 1];
    }
    ev->text = x->text.text.data;
    ev->len = ask->no_stop_trim ? x->text.text.len : x->text.shown;
    return STATUS_OK;
}

static void service_finish(struct service *s, struct engine_result *r)
{
    struct service_group *g = (struct service_group *)(uintptr_t)r->group;
    struct service_call *c = g->call;
    struct service_event ev;
    struct err e = {0};

    if (r->ntokens && r->finish != ENGINE_ABORT) {
        service_saw_token(s, g, r);
    }
    service_fill_event(s, g, r, &ev);
    ev.kind = SERVICE_SAMPLE;
    ev.why = s->abort_why;
    if (service_last_text(&c->asks[g->index], &g->samples[r->sample], r, &ev, &e) != STATUS_OK) {
        service_spoil(s, c, &e);
    }
    s->st.finished++;
    s->st.aborted += r->finish == ENGINE_ABORT;
    s->st.prompt_tokens += (uint64_t)(r->sample == 0 ? r->prompt_tokens : 0);
    s->st.cached_tokens += (uint64_t)(r->sample == 0 ? r->cached_tokens : 0);
    s->st.new_tokens += (uint64_t)r->ntokens;
    service_hist_add(&s->st.total, ev.total_s);
    c->open--;
    if (!c->err.code) {
        c->fn(c->arg, &ev);
    }
    if (c->open == 0) {
        service_end_call(s, c);
    }
}

static void service_drain(struct service *s)
{
    struct engine_result r;
    while (engine_take(s->engine, &r)) {
        service_finish(s, &r);
    }
}

/* A call comes from another thread to this one. */
static void service_accept(void *arg, struct service *s)
{
    struct service_call *c = arg;
    struct err e = {0};
    int rc = STATUS_OK, n = 0;

    c->prev = s->calls.prev;
    c->next = &s->calls;
    c->prev->next = c;
    s->calls.prev = c;
    s->st.calls++;
    c->open = 0;
    if (s->closing) {
        rc = ERR(&e, STATUS_AGAIN, "the server is shutting down");
    } else if (s->st.failed[0]) {
        rc = ERR(&e, STATUS_FAIL, "%s", s->st.failed);
    } else if (!s->engine) {
        rc = ERR(&e, STATUS_AGAIN, "the memory of the key-value cache is released");
    } else if (s->m.w->dropped) {
        rc = ERR(&e, STATUS_AGAIN, "the memory of the weights is released");
    }
    for (int i = 0; rc == STATUS_OK && i < c->ngroups; i++) {
        struct engine_group *q = &c->groups[i];
        q->id = (int64_t)(uintptr_t)&c->state[i];
        if (!c->asks[i].own_key) {
            q->key = (struct engine_key){.seed = s->o.seed, .sample = s->next_sample};
            s->next_sample += (uint64_t)q->n;
        }
        rc = engine_submit(s->engine, q, &e);
        if (rc == STATUS_OK) {
            n += q->n;
        }
    }
    c->open = n;
    s->st.samples += (uint64_t)n;
    if (rc != STATUS_OK) {
        c->err = e;
        c->err.code = rc;
        service_spoil(s, c, &e);
    }
    if (n == 0) {
        service_end_call(s, c);
    } else if (atomic_load(&c->cancelled)) { /* before it came here */
        for (int i = 0; i < c->ngroups; i++) {
            engine_abort(s->engine, c->groups[i].id);
        }
    }
}

int service_submit(struct service *s, struct service_call *c, struct err *e)
{
    int n = 0, before;

    for (int i = 0; i < c->ngroups; i++) {
        if (c->groups[i].n < 1 || c->groups[i].n > s->o.max_queued - n) {
            return ERR(e, STATUS_INPUT, "more than %d samples in one request", s->o.max_queued);
        }
        n += c->groups[i].n;
    }
    before = atomic_fetch_add(&s->load, n);
    if (before + n > s->o.max_queued) {
        atomic_fetch_sub(&s->load, n);
        return ERR(e, STATUS_AGAIN, "the queue is full: %d samples wait or run, %d may", before,
                   s->o.max_queued);
    }
    c->state = mem_alloc(sizeof *c->state * (size_t)c->ngroups);
    for (int i = 0; i < c->ngroups; i++) {
        struct service_group *g = &c->state[i];
        g->call = c;
        g->index = i;
        g->samples = mem_alloc(sizeof *g->samples * (size_t)c->groups[i].n);
        for (int k = 0; k < c->groups[i].n; k++) {
            const struct service_ask *q = &c->asks[i];
            stoptext_init(&g->samples[k].text, q->no_text && !q->nstops ? NULL : s->m.tok,
                          q->skip_special, q->stops, q->nstops, SERVICE_MAX_TEXT);
        }
    }
    memset(&c->err, 0, sizeof c->err);
    c->t_submit = proc_now();
    service_run(s, service_accept, c);
    return STATUS_OK;
}

void service_cancel(struct service *s, struct service_call *c)
{
    atomic_store(&c->cancelled, 1);
    pthread_mutex_lock(&s->mu);
    s->kick = 1;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->mu);
}

void service_run(struct service *s, service_run_fn *fn, void *arg)
{
    struct service_work *w = mem_alloc(sizeof *w);

    w->fn = fn;
    w->arg = arg;
    pthread_mutex_lock(&s->mu);
    *s->work_tail = w;
    s->work_tail = &w->next;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->mu);
}

/* The engine cannot go on: every call ends with the cause, and so do all that come. */
static void service_fail(struct service *s, const struct err *e)
{
    snprintf(s->st.failed, sizeof s->st.failed, "the engine has failed: %.480s", e->msg);
    log_error(SERVE, "%s", s->st.failed);
    while (s->calls.next != &s->calls) {
        struct service_call *c = s->calls.next;
        c->err = *e;
        service_end_call(s, c);
    }
    engine_close(s->engine);
    s->engine = NULL;
}

/* ---- what others ask for between two steps ---- */

/* Whether a prompt of this name is meant: "a" means a, a_0 and a_12, not ab and a_b. */
static int service_is_named(const char *name, const char *rid)
{
    size_t n = strlen(rid);

    if (strncmp(name, rid, n) != 0) {
        return 0;
    }
    name += n;
    return !*name || (*name == '_' && name[1] && name[1 + strspn(name + 1, "0123456789")] == 0);
}

int service_abort(struct service *s, const char *rid)
{
    int n = 0;

    for (struct service_call *c = s->calls.next; s->engine && c != &s->calls; c = c->next) {
        for (int i = 0; i < c->ngroups; i++) {
            if (!rid || service_is_named(c->rids[i], rid)) {
                n += engine_abort(s->engine, c->groups[i].id);
            }
        }
    }
    return n;
}

void service_pause(struct service *s, enum engine_pause how)
{
    s->paused = 1;
    if (s->engine) {
        engine_pause(s->engine, how);
    }
}

void service_resume(struct service *s)
{
    s->paused = 0;
    if (s->engine) {
        engine_resume(s->engine);
    }
}

void service_flush(struct service *s)
{
    if (s->engine) {
        engine_flush(s->engine);
    }
}

int service_change(struct service *s, enum engine_pause how,
                   int (*fn)(void *arg, struct weights *w, struct err *e), void *arg,
                   const char *label, struct err *e)
{
    int paused = s->paused, dropped = s->m.w->dropped, rc;
    int64_t version = s->m.w->version;
    struct err other;

    if (!paused || how == ENGINE_PAUSE_ABORT) {
        service_pause(s, how);
    }
    rc = fn(arg, s->m.w, e);
    if (rc == STATUS_OK) {
        service_set_label(s, label);
    } else if (dropped) {
        weights_drop(s->m.w, &other);        /* what was read of them */
    } else if (s->m.w->version != version) { /* neither the old weights nor the new ones */
        service_fail(s, e);
    }
    if (!paused) {
        service_resume(s);
    }
    return rc;
}

static int service_idle(const struct service *s, struct err *e)
{
    if (s->engine && engine_busy(s->engine)) {
        return ERR(e, STATUS_INPUT, "%d samples wait or run: memory cannot be released",
                   atomic_load(&s->load));
    }
    return STATUS_OK;
}

int service_drop(struct service *s, struct err *e)
{
    int rc = service_idle(s, e);

    if (rc == STATUS_OK && !s->m.w->dropped) {
        service_flush(s);
        rc = weights_drop(s->m.w, e);
    }
    return rc;
}

int service_release(struct service *s, struct err *e)
{
    struct engine_stats g;
    int rc = service_idle(s, e);

    if (rc != STATUS_OK || !s->engine) {
        return rc;
    }
    engine_get_stats(s->engine, &g);
    s->before.prompt_rows += g.prompt_rows;
    s->before.decode_rows += g.decode_rows;
    s->before.steps += g.steps;
    s->before.cached_tokens += g.cached_tokens;
    s->before.preempted += g.preempted;
    s->before.evicted += g.evicted;
    engine_close(s->engine);
    s->engine = NULL;
    return STATUS_OK;
}

int service_restore(struct service *s, struct err *e)
{
    int rc;

    if (s->engine) {
        return STATUS_OK;
    }
    if (s->st.failed[0]) {
        return ERR(e, STATUS_FAIL, "%s", s->st.failed);
    }
    rc = engine_open(s->m.w, &s->o.engine, &s->engine, e);
    if (rc == STATUS_OK && s->paused) {
        engine_pause(s->engine, ENGINE_PAUSE_IN_PLACE);
    }
    return rc;
}

int service_check(struct service *s, struct err *e)
{
    return s->engine ? engine_check(s->engine, e) : STATUS_OK;
}

/* ---- the thread ---- */

static void service_step(struct service *s)
{
    struct engine_result r;
    struct err e = {0};
    int rc = engine_step(s->engine, &e);

    if (rc < 0) {
        service_fail(s, &e);
        return;
    }
    for (int at = 0; rc == STATUS_OK && engine_peek(s->engine, &at, &r);) {
        service_progress(s, &r);
    }
    service_drain(s);
}

static void service_cancel_calls(struct service *s)
{
    for (struct service_call *c = s->calls.next; s->engine && c != &s->calls; c = c->next) {
        if (atomic_load(&c->cancelled)) {
            for (int i = 0; i < c->ngroups; i++) {
                engine_abort(s->engine, c->groups[i].id);
            }
        }
    }
}

/* Waits until there is something to do and takes the work that others gave. 0: the service ends. */
static int service_wait(struct service *s, struct service_work **work, int *kick)
{
    int idle = !s->engine || s->paused || !weights_steady(s->m.w) || !engine_busy(s->engine), go;

    pthread_mutex_lock(&s->mu);
    while (idle && !s->work && !s->kick && !s->stop) {
        pthread_cond_wait(&s->wake, &s->mu);
    }
    *work = s->work;
    s->work = NULL;
    s->work_tail = &s->work;
    *kick = s->kick;
    s->kick = 0;
    go = !s->stop;
    pthread_mutex_unlock(&s->mu);
    return go;
}

static void service_do(struct service *s, struct service_work *work)
{
    while (work) {
        struct service_work *w = work;
        work = w->next;
        w->fn(w->arg, s);
        mem_free(w);
    }
}

static void *service_loop(void *arg)
{
    struct service *s = arg;
    struct service_work *work;
    int kick;

    while (service_wait(s, &work, &kick)) {
        service_do(s, work);
        if (kick) {
            service_cancel_calls(s);
        }
        if (s->engine && engine_busy(s->engine)) {
            service_step(s);
        }
        service_show(s);
    }
    s->closing = 1;
    s->abort_why = "the server is shutting down";
    service_do(s, work);
    if (s->engine && engine_busy(s->engine)) {
        engine_pause(s->engine, ENGINE_PAUSE_ABORT);
        service_step(s);
    }
    return NULL;
}

/* What has no room in the cache is no part of the context: a request that names no length must
 * not be refused for what nobody asked for. */
static void service_fit_context(struct service *s)
{
    struct engine_stats g;

    engine_get_stats(s->engine, &g);
    if (s->context / PLAN_KV_BLOCK >= g.pages) {
        s->context = g.pages * PLAN_KV_BLOCK;
    }
}

int service_open(const struct service_model *m, const struct service_opts *o, struct service **out,
                 struct err *e)
{
    struct service *s = mem_alloc(sizeof *s);
    int rc;

    s->m = *m;
    s->o = *o;
    s->o.max_queued = o->max_queued > 0 ? o->max_queued : 8192;
    s->context = o->engine.max_context > 0 ? o->engine.max_context : m->w->positions;
    s->calls.next = s->calls.prev = &s->calls;
    s->work_tail = &s->work;
    s->t_rate = proc_now();
    s->abort_why = "Aborted by request.";
    s->names[0].version = m->w->version;
    service_set_label(s, o->weight_version ? o->weight_version : "default");
    rc = engine_open(m->w, &s->o.engine, &s->engine, e);
    if (rc != STATUS_OK) {
        mem_free(s);
        return rc;
    }
    service_fit_context(s);
    pthread_mutex_init(&s->mu, NULL);
    pthread_cond_init(&s->wake, NULL);
    service_show(s);
    if (pthread_create(&s->thread, NULL, service_loop, s) != 0) {
        engine_close(s->engine);
        mem_free(s);
        return ERR(e, STATUS_NOMEM, "no thread for the engine");
    }
    *out = s;
    return STATUS_OK;
}

void service_close(struct service *s)
{
    if (!s) {
        return;
    }
    pthread_mutex_lock(&s->mu);
    s->stop = 1;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->mu);
    pthread_join(s->thread, NULL);
    service_do(s, s->work);
    engine_close(s->engine);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->mu);
    mem_free(s);
}
