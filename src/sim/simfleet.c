/* Owns engine processes and the samples they work on. A sample's tokens are made when somebody
 * needs to know them: at its end, when it is aborted, and before the weights under it change. */
#include "sim/simfleet.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "sim/sim.h"
#include "sim/simdelta.h"
#include "sim/simnet.h"
#include "sim/simtrain.h"

enum { SIMFLEET_LEN = 32 }; /* most tokens of a response */

enum simfleet_state { SIMFLEET_DOWN, SIMFLEET_STARTING, SIMFLEET_UP };

#define SIMFLEET_NO_VERSION 1000 /* and more: weights that nobody has */

struct simfleet_weights {
    uint64_t sum; /* 0: none */
    char version[24];
};

struct simfleet_sample {
    int32_t id[SIMFLEET_LEN];
    float logp[SIMFLEET_LEN];
    int n, over;
    int mixed; /* tokens that are not of the last one's weights */
};

/* A request of /generate. */
struct simfleet_job {
    struct simfleet_job *next;
    uint64_t call;
    int engine, count, max_new, position, aborted;
    char rid[48];
    uint64_t seed, stream;
    int64_t first;
    double since; /* that it has been running; 0: it rests */
    int64_t serial;
    struct simfleet_sample *s;
};

struct simfleet_engine {
    enum simfleet_state state;
    int64_t life; /* starts and ends so far */
    double hung_until, sick_until, slow_until, crawl_until;
    struct simfleet_weights has, had;
    int paused;
    int own; /* 1: the controller starts it */
    char url[32];
};

/* A request that waits for an engine that hangs, or for weights to be there. */
struct simfleet_wait {
    struct simfleet_wait *next;
    int64_t serial, life;
    struct simnet_request r;
};

struct simfleet {
    struct sim *s;
    struct simnet *net;
    int n, own, crawl;
    struct simdelta *delta;
    struct port_http_host host;
    struct simfleet_engine *e;
    const char **urls;
    struct simfleet_job *jobs;
    struct simfleet_wait *waits;
    int64_t serial;
};

static void simfleet_handle(struct simfleet *f, const struct simnet_request *r);
static void simfleet_up(void *arg, int64_t life);

/* ---- samples ---- */

/* Whose tokens the engine gives. */
static uint64_t simfleet_sum(const struct simfleet *f, const struct simfleet_job *j)
{
    const struct simfleet_engine *en = &f->e[j->engine];
    int before = f->s->plant == SIM_PLANT_EVAL && j->stream == RNG_EVAL && en->had.sum;

    return before ? en->had.sum : en->has.sum;
}

static double simfleet_token_s(const struct simfleet *f, const struct simfleet_engine *en)
{
    return f->s->now < en->crawl_until ? 40.0 : f->s->now < en->slow_until ? 1.5 : 0.03;
}

/* Makes the tokens that there is time for; all: to the end. */
static void simfleet_make(struct simfleet *f, struct simfleet_job *j, int all)
{
    const struct simfleet_engine *en = &f->e[j->engine];
    int n = all               ? SIMFLEET_LEN
            : j->since <= 0.0 ? 0
                              : (int)((f->s->now - j->since) / simfleet_token_s(f, en));
    uint64_t sum = simfleet_sum(f, j);

    for (int i = 0; i < j->count; i++) {
        struct simfleet_sample *x = &j->s[i];
        int begin = x->n;
        while (!x->over && x->n < begin + n && x->n < j->max_new && x->n < SIMFLEET_LEN) {
            struct simtrain_token k =
                simtrain_token(sum, j->seed, j->stream, j->first + i, j->position + x->n);
            x->id[x->n] = k.id;
            x->logp[x->n++] = k.logp;
            x->over = k.last;
        }
        x->over |= x->n >= j->max_new || x->n >= SIMFLEET_LEN;
    }
    j->since = j->since > 0.0 ? f->s->now : 0.0;
}

/* Seconds until the last of them has ended. */
static double simfleet_left(struct simfleet *f, const struct simfleet_job *j)
{
    const struct simfleet_engine *en = &f->e[j->engine];
    uint64_t sum = simfleet_sum(f, j);
    int most = 1;

    for (int i = 0; i < j->count; i++) {
        int n = j->s[i].n;
        while (!j->s[i].over && n < j->max_new &&
               !simtrain_token(sum, j->seed, j->stream, j->first + i, j->position + n).last) {
            n++;
        }
        most = n + 1 - j->s[i].n > most ? n + 1 - j->s[i].n : most;
    }
    return most * simfleet_token_s(f, en) * sim_between(f->s, 1.0, 1.3);
}

static void simfleet_sample_text(struct buf *b, const struct simfleet_sample *x, int aborted,
                                 const char *version, int max_new)
{
    buf_str(b, "{\"output_ids\":[");
    for (int i = 0; i < x->n; i++) {
        buf_printf(b, i ? ",%d" : "%d", x->id[i]);
    }
    buf_printf(b, "],\"meta_info\":{\"finish_reason\":{\"type\":\"%s\"},\"weight_version\":\"%s\"",
               !x->over && aborted ? "abort"
               : x->n >= max_new   ? "length"
                                   : "stop",
               version);
    buf_str(b, ",\"output_token_logprobs\":[");
    for (int i = 0; i < x->n; i++) {
        buf_printf(b, "%s[%.9g,%d]", i ? "," : "", (double)x->logp[i], x->id[i]);
    }
    buf_printf(b, "],\"miles_mixed_tokens\":%d}}", x->mixed);
}

static void simfleet_unlink(struct simfleet *f, struct simfleet_job *j)
{
    struct simfleet_job **p = &f->jobs;
    while (*p != j) {
        p = &(*p)->next;
    }
    *p = j->next;
}

static void simfleet_free_job(struct simfleet_job *j)
{
    mem_free(j->s);
    mem_free(j);
}

/* Answers with what there is. */
static void simfleet_finish(struct simfleet *f, struct simfleet_job *j)
{
    const struct simfleet_engine *en = &f->e[j->engine];
    char version[32];
    struct buf b;

    snprintf(version, sizeof version, "%s", en->has.version);
    /* never one that may be asked for: who lies in that cannot be found out by an answer */
    if (sim_fault(f->s, SIM_MISLABELS)) {
        snprintf(version, sizeof version, "%lld",
                 (long long)sim_below(f->s, 8) + SIMFLEET_NO_VERSION);
    }
    buf_init(&b, 1 << 20);
    buf_str(&b, "[");
    for (int i = 0; i < j->count; i++) {
        buf_str(&b, i ? "," : "");
        simfleet_sample_text(&b, &j->s[i], j->aborted, version, j->max_new);
    }
    buf_str(&b, "]");
    simfleet_unlink(f, j);
    simnet_answer(f->net, j->call, 200, b.data);
    buf_fini(&b);
    simfleet_free_job(j);
}

static void simfleet_done(void *arg, int64_t serial)
{
    struct simfleet *f = arg;
    struct simfleet_job *j = f->jobs;

    while (j && j->serial != serial) {
        j = j->next;
    }
    if (!j || j->since <= 0.0) {
        return;
    }
    if (f->s->now < f->e[j->engine].hung_until) {
        sim_at(f->s, f->e[j->engine].hung_until, simfleet_done, f, serial);
        return;
    }
    simfleet_make(f, j, 1);
    simfleet_finish(f, j);
}

static void simfleet_run(struct simfleet *f, struct simfleet_job *j)
{
    j->since = f->s->now;
    j->serial = ++f->serial;
    sim_at(f->s, f->s->now + simfleet_left(f, j), simfleet_done, f, j->serial);
}

/* What it works on rests with the tokens it has. */
static void simfleet_rest(struct simfleet *f, int engine)
{
    for (struct simfleet_job *j = f->jobs; j; j = j->next) {
        if (j->engine == engine) {
            simfleet_make(f, j, 0);
            j->since = 0.0;
        }
    }
}

static void simfleet_go_on(struct simfleet *f, int engine)
{
    for (struct simfleet_job *j = f->jobs; j; j = j->next) {
        if (j->engine == engine) {
            simfleet_run(f, j);
        }
    }
}

/* Other weights under what it works on. */
static void simfleet_change(struct simfleet *f, int engine, const struct simfleet_weights *w)
{
    struct simfleet_engine *en = &f->e[engine];

    for (struct simfleet_job *j = f->jobs; j; j = j->next) {
        if (j->engine == engine) {
            simfleet_make(f, j, 0);
            for (int i = 0; i < j->count; i++) {
                j->s[i].mixed = j->s[i].n;
            }
        }
    }
    en->had = en->has;
    en->has = *w;
}

/* ---- processes ---- */

static void simfleet_break(struct simfleet *f, int engine, int silent)
{
    struct simfleet_job *j = f->jobs, *next;

    for (; j; j = next) {
        next = j->next;
        if (j->engine == engine) {
            simnet_break(f->net, j->call, silent);
            simfleet_unlink(f, j);
            simfleet_free_job(j);
        }
    }
    for (struct simfleet_wait *w = f->waits; w; w = w->next) {
        if (w->r.engine == engine) {
            simnet_break(f->net, w->r.id, silent);
        }
    }
}

static void simfleet_ends(struct simfleet *f, int engine, int silent)
{
    struct simfleet_engine *en = &f->e[engine];

    simfleet_break(f, engine, silent);
    en->life++;
    en->state = SIMFLEET_DOWN;
    en->hung_until = en->sick_until = en->slow_until = en->crawl_until = 0;
    en->paused = 0;
    en->has = en->had = (struct simfleet_weights){0, "default"};
    sim_note(f->s, "engine %d has ended", engine);
}

static void simfleet_starts(struct simfleet *f, int engine, double after)
{
    struct simfleet_engine *en = &f->e[engine];

    en->state = SIMFLEET_STARTING;
    sim_at(f->s, f->s->now + after, simfleet_up, f, en->life * f->n + engine);
}

static void simfleet_up(void *arg, int64_t life)
{
    struct simfleet *f = arg;
    int engine = (int)(life % f->n);
    struct simfleet_engine *en = &f->e[engine];

    if (en->life != life / f->n || en->state != SIMFLEET_STARTING) {
        return;
    }
    if (en->own && sim_fault(f->s, SIM_NO_START)) {
        simfleet_ends(f, engine, 0);
        return;
    }
    en->state = SIMFLEET_UP;
    sim_note(f->s, "engine %d is up", engine);
}

static int simfleet_host_start(void *self, int engine, struct err *e)
{
    struct simfleet *f = self;

    if (f->s->dead) {
        return ERR(e, STATUS_CHILD, "the controller has ended");
    }
    simfleet_starts(f, engine, sim_between(f->s, 0.1, 2));
    sim_event(f->s, "engine %d is started", engine);
    return STATUS_OK;
}

static int simfleet_host_alive(void *self, int engine, char *why, size_t size)
{
    const struct simfleet *f = self;

    snprintf(why, size, "killed by signal 9");
    return f->e[engine].state != SIMFLEET_DOWN;
}

static const char *simfleet_host_url(void *self, int engine)
{
    const struct simfleet *f = self;
    return f->e[engine].state == SIMFLEET_UP ? f->e[engine].url : NULL;
}

static void simfleet_host_kill(void *self, int engine)
{
    simfleet_ends(self, engine, 0);
}

/* ---- requests ---- */

static void simfleet_say(struct simfleet *f, const struct simnet_request *r, int status,
                         const char *text)
{
    simnet_answer(f->net, r->id, status, text);
}

static int64_t simfleet_number(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);
    return json_is_string(v) ? (int64_t)strtoull(json_string_value(v), NULL, 10)
                             : (int64_t)json_integer_value(v);
}

static void simfleet_generate(struct simfleet *f, const struct simnet_request *r, const json_t *o)
{
    const json_t *p = json_object_get(o, "sampling_params"), *k = json_object_get(o, "miles_key");
    struct simfleet_job *j;

    if (sim_fault(f->s, SIM_GIVES_UP)) {
        simfleet_say(f, r, 500, "{\"error\":{\"message\":\"out of memory\"}}");
        return;
    }
    j = mem_alloc(sizeof *j);
    j->call = r->id;
    j->engine = r->engine;
    j->count = (int)simfleet_number(p, "n");
    j->max_new = (int)simfleet_number(p, "max_new_tokens");
    j->seed = (uint64_t)simfleet_number(k, "seed");
    j->stream = (uint64_t)simfleet_number(k, "stream");
    j->first = simfleet_number(k, "sample");
    j->position = (int)simfleet_number(k, "position");
    snprintf(j->rid, sizeof j->rid, "%s", json_string_value(json_object_get(o, "rid")));
    ASSERT(j->count > 0 && j->max_new > 0);
    j->s = mem_alloc(sizeof *j->s * (size_t)j->count);
    j->next = f->jobs;
    f->jobs = j;
    if (!f->e[r->engine].paused) {
        simfleet_run(f, j);
    }
}

static void simfleet_abort(struct simfleet *f, const struct simnet_request *r, const json_t *o)
{
    const char *rid = json_string_value(json_object_get(o, "rid"));
    int all = json_is_true(json_object_get(o, "abort_all"));
    struct simfleet_job *j = f->jobs, *next;

    for (; j; j = next) {
        next = j->next;
        if (j->engine == r->engine && (all || (rid && strcmp(rid, j->rid) == 0))) {
            simfleet_make(f, j, 0);
            j->aborted = 1;
            simfleet_finish(f, j);
        }
    }
    simfleet_say(f, r, 200, "{}");
}

/* The request is looked at again after a while. */
static void simfleet_later(void *arg, int64_t serial)
{
    struct simfleet *f = arg;
    struct simfleet_wait **p = &f->waits, *w;

    while (*p && (*p)->serial != serial) {
        p = &(*p)->next;
    }
    w = *p;
    if (!w) {
        return;
    }
    *p = w->next;
    if (f->e[w->r.engine].life == w->life) {
        simfleet_handle(f, &w->r);
    }
    mem_free((void *)(uintptr_t)w->r.path);
    mem_free((void *)(uintptr_t)w->r.body);
    mem_free(w);
}

static void simfleet_put_off(struct simfleet *f, const struct simnet_request *r, double until)
{
    struct simfleet_wait *w = mem_alloc(sizeof *w);

    w->serial = ++f->serial;
    w->life = f->e[r->engine].life;
    w->r = *r;
    w->r.path = mem_strdup(r->path);
    w->r.body = mem_strdup(r->body);
    w->next = f->waits;
    f->waits = w;
    sim_at(f->s, until, simfleet_later, f, w->serial);
}

/* The weights that it is told to take. 0: it cannot, and has said so. */
static int simfleet_fetch(struct simfleet *f, const struct simnet_request *r, const json_t *o,
                          uint64_t *sum)
{
    struct err e = {0};
    int rc;

    if (!f->delta) {
        *sum = strtoull(json_string_value(json_object_get(o, "weights")), NULL, 16);
        return 1;
    }
    *sum = f->e[r->engine].has.sum;
    rc = simdelta_take(f->delta, r->engine, o, sum, &e);
    if (rc != STATUS_OK) {
        simfleet_say(f, r, rc == STATUS_AGAIN ? 503 : 400, "{\"success\":false}");
    }
    return rc == STATUS_OK;
}

static void simfleet_update(struct simfleet *f, const struct simnet_request *r, const json_t *o)
{
    struct simfleet_weights w = {0, ""};

    snprintf(w.version, sizeof w.version, "%s",
             json_string_value(json_object_get(o, "weight_version")));
    if (sim_fault(f->s, SIM_TAKES_LATE)) {
        f->e[r->engine].hung_until = f->s->now + sim_between(f->s, 0.5, 20);
        simfleet_put_off(f, r, f->e[r->engine].hung_until);
        return;
    }
    if (!simfleet_fetch(f, r, o, &w.sum)) {
        return;
    }
    if (sim_fault(f->s, SIM_TAKES_WRONG)) {
        w.sum ^= 1ull << sim_below(f->s, 64);
    }
    if (!sim_fault(f->s, SIM_KEEPS_OLD)) {
        simfleet_change(f, r->engine, &w);
    }
    simfleet_say(f, r, 200, "{\"success\":true,\"message\":\"taken\"}");
}

static void simfleet_checksums(struct simfleet *f, const struct simnet_request *r, const json_t *o)
{
    const struct simfleet_weights *w = &f->e[r->engine].has;
    struct buf b;

    buf_init(&b, 1 << 16);
    if (f->delta) {
        simdelta_checksums(f->delta, r->engine, w->sum, o, w->version, &b);
    } else {
        buf_printf(&b, "{\"success\":true,\"ranks\":[{\"checksums\":{\"weights\":\"%016llx\"}}]}",
                   (unsigned long long)w->sum);
    }
    simfleet_say(f, r, 200, b.data);
    buf_fini(&b);
}

static void simfleet_health(struct simfleet *f, const struct simnet_request *r)
{
    struct simfleet_engine *en = &f->e[r->engine];

    if (sim_fault(f->s, SIM_SICK)) {
        en->sick_until = f->s->now + sim_between(f->s, 0.1, 15);
    }
    simfleet_say(f, r, f->s->now < en->sick_until ? 503 : 200, "{}");
}

static void simfleet_handle(struct simfleet *f, const struct simnet_request *r)
{
    struct simfleet_engine *en = &f->e[r->engine];
    json_t *o = json_loads(r->body, 0, NULL);
    const char *p = r->path;

    if (f->s->now < en->hung_until) {
        simfleet_put_off(f, r, en->hung_until);
    } else if (strcmp(p, "/health") == 0) {
        simfleet_health(f, r);
    } else if (strcmp(p, "/get_server_info") == 0) {
        simfleet_say(f, r, 200, "{\"miles\":{\"row_exact\":true}}");
    } else if (strncmp(p, "/update_weights_from_d", 22) == 0) { /* disk, or delta */
        simfleet_update(f, r, o);
    } else if (strcmp(p, "/weights_checker") == 0) {
        simfleet_checksums(f, r, o);
    } else if (strcmp(p, "/generate") == 0) {
        simfleet_generate(f, r, o);
    } else if (strcmp(p, "/abort_request") == 0) {
        simfleet_abort(f, r, o);
    } else if (strcmp(p, "/pause_generation") == 0) {
        simfleet_rest(f, r->engine);
        en->paused = 1;
        simfleet_say(f, r, 200, "{}");
    } else if (strcmp(p, "/continue_generation") == 0) {
        if (en->paused) {
            en->paused = 0;
            simfleet_go_on(f, r->engine);
        }
        simfleet_say(f, r, 200, "{}");
    } else {
        simfleet_say(f, r, 404, "{\"error\":{\"message\":\"no such path\"}}");
    }
    json_decref(o);
}

/* What may befall an engine when it is spoken to. */
static void simfleet_befall(struct simfleet *f, int engine)
{
    struct simfleet_engine *en = &f->e[engine];

    if (sim_fault(f->s, SIM_CRASH)) {
        simfleet_ends(f, engine, sim_below(f->s, 4) == 0);
        if (!en->own) {
            simfleet_starts(f, engine, sim_between(f->s, 0.5, 20));
        }
    } else if (!en->own && sim_fault(f->s, SIM_FORGETS)) {
        simfleet_ends(f, engine, 0);
        en->state = SIMFLEET_UP;
    } else if (sim_fault(f->s, SIM_HANG)) {
        en->hung_until = f->s->now + sim_between(f->s, 0.2, 40);
    } else if (sim_fault(f->s, SIM_SLOW)) {
        en->slow_until = f->s->now + sim_between(f->s, 1, 20);
    } else if (f->crawl && sim_fault(f->s, SIM_CRAWLS)) {
        en->crawl_until = f->s->now + sim_between(f->s, 1, 200);
    } else if (en->had.sum && strcmp(en->had.version, en->has.version) != 0 &&
               sim_fault(f->s, SIM_FALLS_BACK)) { /* what it says of them is true */
        struct simfleet_weights w = en->had;
        simfleet_change(f, engine, &w);
    }
}

static int simfleet_arrive(void *arg, const struct simnet_request *r)
{
    struct simfleet *f = arg;

    if (r->engine >= f->n) {
        return 0;
    }
    if (f->e[r->engine].state == SIMFLEET_UP) {
        simfleet_befall(f, r->engine);
    }
    if (f->e[r->engine].state != SIMFLEET_UP) {
        return 0;
    }
    simfleet_handle(f, r);
    return 1;
}

static void simfleet_gone(void *arg, uint64_t id)
{
    struct simfleet *f = arg;
    struct simfleet_job *j = f->jobs, *next;

    for (; j; j = next) {
        next = j->next;
        if (j->call == id) {
            simfleet_unlink(f, j);
            simfleet_free_job(j);
        }
    }
}

void simfleet_each_job(const struct simfleet *f, void (*fn)(void *arg, uint64_t call, int engine),
                       void *arg)
{
    for (const struct simfleet_job *j = f->jobs; j; j = j->next) {
        fn(arg, j->call, j->engine);
    }
}

int simfleet_ailing(const struct simfleet *f)
{
    int n = 0;

    for (int i = 0; i < f->n; i++) {
        const struct simfleet_engine *en = &f->e[i];
        n += f->s->now < en->hung_until || f->s->now < en->sick_until ||
             f->s->now < en->slow_until || f->s->now < en->crawl_until;
    }
    return n;
}

void simfleet_orphaned(struct simfleet *f)
{
    for (int i = 0; i < f->n; i++) {
        if (f->e[i].own) {
            simfleet_ends(f, i, 1);
        }
    }
}

void simfleet_begin(struct simfleet *f, int engine, double after)
{
    if (f->e[engine].state == SIMFLEET_DOWN) {
        simfleet_starts(f, engine, after);
    }
}

void simfleet_end(struct simfleet *f, int engine)
{
    simfleet_ends(f, engine, 0);
}

/* ---- beginning and end ---- */

struct simfleet *simfleet_new(struct sim *s, struct simnet *n, const struct simfleet_opts *o)
{
    struct simfleet *f = mem_alloc(sizeof *f);

    f->s = s;
    f->net = n;
    f->n = o->engines + o->more;
    f->own = o->own;
    f->crawl = o->crawl;
    f->delta = o->delta;
    f->e = mem_alloc(sizeof *f->e * (size_t)f->n);
    f->urls = mem_alloc(sizeof *f->urls * (size_t)f->n);
    f->host = (struct port_http_host){simfleet_host_start, simfleet_host_alive, simfleet_host_url,
                                      simfleet_host_kill, f};
    for (int i = 0; i < f->n; i++) {
        snprintf(f->e[i].url, sizeof f->e[i].url, "http://engine-%d", i);
        f->urls[i] = f->e[i].url;
        f->e[i].own = o->own && i < o->engines;
        f->e[i].state = o->own || i >= o->engines ? SIMFLEET_DOWN : SIMFLEET_UP;
        f->e[i].has = (struct simfleet_weights){0, "default"};
    }
    simnet_serve(n, simfleet_arrive, simfleet_gone, f);
    return f;
}

void simfleet_free(struct simfleet *f)
{
    if (!f) {
        return;
    }
    while (f->jobs) {
        struct simfleet_job *j = f->jobs;
        f->jobs = j->next;
        simfleet_free_job(j);
    }
    while (f->waits) {
        struct simfleet_wait *w = f->waits;
        f->waits = w->next;
        mem_free((void *)(uintptr_t)w->r.path);
        mem_free((void *)(uintptr_t)w->r.body);
        mem_free(w);
    }
    mem_free(f->e);
    mem_free(f->urls);
    mem_free(f);
}

const struct port_http_host *simfleet_host(struct simfleet *f)
{
    return f->own ? &f->host : NULL;
}

const char *const *simfleet_urls(const struct simfleet *f)
{
    return f->own ? NULL : f->urls;
}
