/* Engines for the tests of the HTTP port: servers in this process that answer /generate at once, or
 * badly, or not at all, and a host that starts and kills them.
 *
 *     struct fakeengine_host h;
 *     fakeengine_open(&h, 2);
 *     h.e[0].cut = 5;                                  every fifth request is cut
 *     ... &h.host ... &h.sync ...
 *     fakeengine_close(&h);
 *
 * A response is a pure function of the prompt, the key and the sample's number, as with the real
 * engine, so that an answer can be checked whoever gave it. The sync names a version and asks for
 * its name as the proof. */
#ifndef TESTS_RL_FAKEENGINE_H
#define TESTS_RL_FAKEENGINE_H

#include "support.h"

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/proc.h"
#include "base/status.h"
#include "net/http_req.h"
#include "net/http_server.h"
#include "rl/port_http.h"

enum { FAKEENGINE_MAX = 4, FAKEENGINE_HELD = 16384, FAKEENGINE_TOKENS = 5 };

struct fakeengine {
    struct http_server *s;
    char url[64];
    int index;
    /* every k-th request of /generate; 0: none */
    atomic_int cut, bad, busy, wrong, broken, short_list, abortive, refuse;
    atomic_int hold;      /* 1: samples are held until fakeengine_let */
    atomic_int fell;      /* 1: those end with weights of before; 2: and began with newer */
    atomic_int deaf;      /* 1: nothing is answered, not even a health check */
    atomic_int sick;      /* so many times /health says 503 */
    atomic_int not_yet;   /* so many takes are answered with 503 */
    atomic_int bad_take;  /* so many are refused */
    atomic_int bad_proof; /* so many proofs name another version */
    atomic_int spoils, late_spoil; /* requests before a take; 1: one came after it */
    atomic_int paused, released, aborts, asked, samples, starts, takes, late;
    atomic_int leaves;   /* of its manifest */
    atomic_int want;     /* the version that samples must find here */
    atomic_int unproven; /* samples that found another */
    pthread_mutex_t mu;
    struct http_req *held[FAKEENGINE_HELD];
    int nheld;
    int version;          /* under mu */
    json_int_t first[64]; /* under mu: key of the first samples asked for */
    int counts[64], nasked;
};

struct fakeengine_host {
    struct fakeengine e[FAKEENGINE_MAX];
    int n;
    struct port_http_host host;
    struct wsync sync;
    const char *urls[FAKEENGINE_MAX];
    atomic_int dead[FAKEENGINE_MAX];
    int prepared, settled, doubted, no_start;
};

static inline int32_t fakeengine_token(int32_t first, uint64_t sample, int i)
{
    return (int32_t)((uint64_t)first * 31 + sample * 7 + (uint64_t)i) % 1000;
}

static inline float fakeengine_logp(uint64_t sample, int i)
{
    return -(float)(sample % 13) * 0.1f - (float)i;
}

static inline void fakeengine_json(struct http_req *r, int status, json_t *o)
{
    char *text = json_dumps(o, JSON_COMPACT);
    http_req_reply(r, status, "application/json", text, strlen(text));
    free(text);
    json_decref(o);
}

static inline int fakeengine_kth(atomic_int *every, int k)
{
    int n = atomic_load(every);
    return n > 0 && k % n == n - 1;
}

/* 1 when the request was put aside. */
static inline int fakeengine_keep(struct fakeengine *f, struct http_req *r)
{
    pthread_mutex_lock(&f->mu);
    assert_true(f->nheld < FAKEENGINE_HELD);
    f->held[f->nheld++] = r;
    pthread_mutex_unlock(&f->mu);
    return 1;
}

static inline json_t *fakeengine_sample(struct fakeengine *f, json_t *o, int i, const char *finish,
                                        int version)
{
    const json_t *sp = json_object_get(o, "sampling_params"),
                 *key = json_object_get(o, "miles_key");
    const char *first = json_string_value(json_object_get(key, "sample"));
    json_int_t seed = json_integer_value(json_object_get(sp, "sampling_seed"));
    uint64_t sample = first ? strtoull(first, NULL, 10) + (uint64_t)i : (uint64_t)seed;
    int32_t p0 = (int32_t)json_integer_value(json_array_get(json_object_get(o, "input_ids"), 0));
    json_t *ids = json_array(), *lps = json_array(), *name = json_sprintf("%d", version);
    int n = strcmp(finish, "abort") == 0 ? 2 : FAKEENGINE_TOKENS;

    (void)f;
    for (int k = 0; k < n; k++) {
        char text[32];
        json_t *t = json_array();
        snprintf(text, sizeof text, "%.9g", (double)fakeengine_logp(sample, k));
        json_array_append_new(t, json_real(strtod(text, NULL)));
        json_array_append_new(t, json_integer(fakeengine_token(p0, sample, k)));
        json_array_append_new(t, json_null());
        json_array_append_new(lps, t);
        json_array_append_new(ids, json_integer(fakeengine_token(p0, sample, k)));
    }
    return json_pack("{s:o,s:{s:{s:s},s:o,s:o}}", "output_ids", ids, "meta_info", "finish_reason",
                     "type", finish, "weight_version", name, "output_token_logprobs", lps);
}

static inline void fakeengine_answer(struct fakeengine *f, struct http_req *r, int fault,
                                     const char *finish)
{
    size_t len;
    const char *body = http_req_body(r, &len);
    json_t *o = json_loadb(body, len, 0, NULL), *all;
    const json_t *sp = json_object_get(o, "sampling_params");
    int n = json_object_get(sp, "n") ? (int)json_integer_value(json_object_get(sp, "n")) : 1;
    int version;

    pthread_mutex_lock(&f->mu);
    version = f->version;
    pthread_mutex_unlock(&f->mu);
    version -= fault == 'v' || fault == 'm';
    if (n == 1 && fault != 's') {
        all = fakeengine_sample(f, o, 0, finish, version);
    } else {
        all = json_array();
        for (int i = 0; i < n - (fault == 's'); i++) {
            json_array_append_new(all, fakeengine_sample(f, o, i, finish, version));
        }
    }
    if (fault == 'm') {
        json_object_set_new(json_object_get(all, "meta_info"), "miles_mixed_tokens",
                            json_integer(1));
    }
    fakeengine_json(r, 200, all);
    json_decref(o);
}

static inline void fakeengine_generate(void *arg, struct http_req *r)
{
    struct fakeengine *f = arg;
    int k = atomic_fetch_add(&f->asked, 1);
    size_t len;
    const char *body = http_req_body(r, &len), *first;
    json_t *o = json_loadb(body, len, 0, NULL);
    const json_t *sp = json_object_get(o, "sampling_params");
    int n = json_object_get(sp, "n") ? (int)json_integer_value(json_object_get(sp, "n")) : 1;

    first = json_string_value(json_object_get(json_object_get(o, "miles_key"), "sample"));
    atomic_fetch_add(&f->samples, n);
    pthread_mutex_lock(&f->mu);
    if (atomic_load(&f->want) >= 0 && f->version != atomic_load(&f->want)) {
        atomic_fetch_add(&f->unproven, 1);
    }
    if (f->nasked < 64) {
        f->first[f->nasked] = first ? strtoll(first, NULL, 10) : -1;
        f->counts[f->nasked++] = n;
    }
    pthread_mutex_unlock(&f->mu);
    json_decref(o);
    if (atomic_load(&f->deaf) || atomic_load(&f->hold)) {
        fakeengine_keep(f, r);
    } else if (fakeengine_kth(&f->cut, k)) {
        http_req_cut(r);
    } else if (fakeengine_kth(&f->bad, k)) {
        http_req_fail(r, 500, "as told");
    } else if (fakeengine_kth(&f->busy, k)) {
        http_req_fail(r, 503, "busy");
    } else if (fakeengine_kth(&f->refuse, k)) {
        http_req_fail(r, 400, "too long for this engine");
    } else if (fakeengine_kth(&f->broken, k)) {
        http_req_reply(r, 200, "application/json", "{\"output_ids\":[1", 16);
    } else {
        fakeengine_answer(f, r,
                          fakeengine_kth(&f->wrong, k)        ? 'v'
                          : fakeengine_kth(&f->short_list, k) ? 's'
                                                              : 0,
                          fakeengine_kth(&f->abortive, k) ? "abort" : "stop");
    }
}

/* Answers what was held; finish as in SGLang. */
static inline int fakeengine_let(struct fakeengine *f, const char *finish)
{
    struct http_req *r[64];
    int n = 0, all = 0;
    do {
        pthread_mutex_lock(&f->mu);
        for (n = 0; n < 64 && f->nheld; n++) {
            r[n] = f->held[--f->nheld];
        }
        pthread_mutex_unlock(&f->mu);
        for (int i = 0; i < n; i++) {
            fakeengine_answer(f, r[i], "\0vm"[atomic_load(&f->fell)], finish);
        }
        all += n;
    } while (n);
    return all;
}

static inline int fakeengine_nheld(struct fakeengine *f)
{
    int n;
    pthread_mutex_lock(&f->mu);
    n = f->nheld;
    pthread_mutex_unlock(&f->mu);
    return n;
}

static inline int fakeengine_less(atomic_int *n)
{
    if (atomic_load(n) > 0) {
        atomic_fetch_sub(n, 1);
        return 1;
    }
    return 0;
}

static inline void fakeengine_health(void *arg, struct http_req *r)
{
    struct fakeengine *f = arg;
    if (atomic_load(&f->deaf)) {
        fakeengine_keep(f, r);
    } else if (fakeengine_less(&f->sick)) {
        http_req_fail(r, 503, "sick");
    } else {
        http_req_reply(r, 200, "text/plain", "", 0);
    }
}

static inline void fakeengine_info(void *arg, struct http_req *r)
{
    struct fakeengine *f = arg;
    fakeengine_json(r, 200,
                    json_pack("{s:{s:{s:i,s:i},s:b}}", "miles", "manifest", "leaves",
                              atomic_load(&f->leaves), "kblock", 32, "row_exact", 1));
}

static inline void fakeengine_take(void *arg, struct http_req *r)
{
    struct fakeengine *f = arg;
    size_t len;
    const char *body = http_req_body(r, &len);
    json_t *o = json_loadb(body, len, 0, NULL);

    atomic_fetch_add(&f->takes, 1);
    if (atomic_load(&f->deaf)) {
        fakeengine_keep(f, r);
    } else if (fakeengine_less(&f->not_yet)) {
        http_req_fail(r, 503, "being written");
    } else if (fakeengine_less(&f->bad_take)) {
        fakeengine_json(r, 200, json_pack("{s:b,s:s}", "success", 0, "message", "no such folder"));
    } else {
        pthread_mutex_lock(&f->mu);
        f->version = atoi(json_string_value(json_object_get(o, "new_version")));
        pthread_mutex_unlock(&f->mu);
        fakeengine_json(r, 200, json_pack("{s:b}", "success", 1));
    }
    json_decref(o);
}

static inline void fakeengine_proof(void *arg, struct http_req *r)
{
    struct fakeengine *f = arg;
    int v;
    pthread_mutex_lock(&f->mu);
    v = f->version + fakeengine_less(&f->bad_proof);
    pthread_mutex_unlock(&f->mu);
    fakeengine_json(r, 200, json_pack("{s:o}", "weight_version", json_sprintf("%d", v)));
}

/* Ends the held request of that name, or all. */
static inline void fakeengine_abort(struct fakeengine *f, struct http_req *r)
{
    size_t len, n;
    const char *body = http_req_body(r, &len), *rid;
    json_t *o = json_loadb(body, len, 0, NULL);
    struct http_req *found = NULL;

    rid = json_string_value(json_object_get(o, "rid"));
    atomic_fetch_add(&f->aborts, 1);
    if (json_is_true(json_object_get(o, "abort_all"))) {
        fakeengine_let(f, "abort");
    }
    pthread_mutex_lock(&f->mu);
    for (int i = 0; i < f->nheld && rid && *rid && !found; i++) {
        if (strstr(http_req_body(f->held[i], &n), rid)) {
            found = f->held[i];
            f->held[i] = f->held[--f->nheld];
        }
    }
    pthread_mutex_unlock(&f->mu);
    if (found) {
        fakeengine_answer(f, found, 0, "abort");
    }
    json_decref(o);
}

static inline void fakeengine_ok(void *arg, struct http_req *r)
{
    struct fakeengine *f = arg;
    const char *path = http_req_path(r);
    if (atomic_load(&f->deaf)) {
        fakeengine_keep(f, r);
        return;
    }
    if (strcmp(path, "/pause_generation") == 0) {
        atomic_store(&f->paused, 1);
    } else if (strcmp(path, "/continue_generation") == 0) {
        atomic_store(&f->paused, 0);
    } else if (strcmp(path, "/release_memory_occupation") == 0) {
        atomic_store(&f->released, 1);
    } else if (strcmp(path, "/resume_memory_occupation") == 0) {
        atomic_store(&f->released, 0);
    } else if (strcmp(path, "/abort_request") == 0) {
        fakeengine_abort(f, r);
    } else if (strcmp(path, "/weights_checker") == 0) {
        atomic_fetch_add(&f->spoils, 1);
        f->late_spoil |= f->version > 0;
    }
    http_req_reply(r, 200, "application/json", "{}", 2);
}

/* ---- the host ---- */

static inline void fakeengine_up(struct fakeengine *f, int port)
{
    static const struct http_server_route routes[] = {
        {"POST", "/generate", fakeengine_generate, 0},
        {"GET", "/health", fakeengine_health, 0},
        {"GET", "/get_server_info", fakeengine_info, 0},
        {"POST", "/update_weight_version", fakeengine_take, 0},
        {"POST", "/get_weight_version", fakeengine_proof, 0},
        {"POST", "...", fakeengine_ok, 0},
    };
    struct http_server_opts o = {.routes = routes, .nroutes = 6, .arg = f, .port = port};
    struct err e = {0};

    atomic_store(&f->deaf, 0);
    f->version = 0;
    atomic_fetch_add(&f->starts, 1);
    assert_ok(http_server_start(&f->s, &o, &e), &e);
    snprintf(f->url, sizeof f->url, "http://127.0.0.1:%d", http_server_port(f->s));
}

static inline void fakeengine_down(struct fakeengine *f)
{
    struct http_server *s = f->s;
    f->s = NULL;
    http_server_free(s);
    pthread_mutex_lock(&f->mu);
    while (f->nheld) {
        http_req_cut(f->held[--f->nheld]);
    }
    pthread_mutex_unlock(&f->mu);
}

static inline int fakeengine_host_start(void *self, int i, struct err *e)
{
    struct fakeengine_host *h = self;
    if (h->no_start && h->e[i].starts) {
        return ERR(e, STATUS_CHILD, "no such program");
    }
    atomic_store(&h->dead[i], 0);
    fakeengine_up(&h->e[i], 0);
    return STATUS_OK;
}

static inline int fakeengine_host_alive(void *self, int i, char *why, size_t size)
{
    struct fakeengine_host *h = self;
    if (atomic_load(&h->dead[i])) {
        snprintf(why, size, "killed by signal 9");
    }
    return !atomic_load(&h->dead[i]);
}

static inline const char *fakeengine_host_url(void *self, int i)
{
    return ((struct fakeengine_host *)self)->e[i].url;
}

static inline void fakeengine_host_kill(void *self, int i)
{
    struct fakeengine_host *h = self;
    atomic_store(&h->dead[i], 1);
    fakeengine_down(&h->e[i]);
}

/* As SIGKILL from outside does it. */
static inline void fakeengine_strike(struct fakeengine_host *h, int i)
{
    atomic_store(&h->dead[i], 1);
    fakeengine_down(&h->e[i]);
}

static inline int fakeengine_prepare(void *self, int64_t version, struct err *e)
{
    struct fakeengine_host *h = self;
    (void)e;
    h->prepared = (int)version;
    for (int i = 0; i < h->n; i++) {
        atomic_store(&h->e[i].want, (int)version);
    }
    return STATUS_OK;
}

/* Two requests before the first version is taken; for tests that set it. */
static inline int fakeengine_sync_before(void *self, int64_t version, int k,
                                         struct wsync_request *r, struct err *e)
{
    (void)self;
    (void)e;
    if (version > 1 || k == 2) {
        return STATUS_END;
    }
    snprintf(r->path, sizeof r->path, "/weights_checker");
    r->body = json_pack("{s:s}", "action", "reset_tensors");
    return STATUS_OK;
}

static inline int fakeengine_sync_take(void *self, int64_t version, struct wsync_request *r,
                                       struct err *e)
{
    (void)self;
    (void)e;
    snprintf(r->path, sizeof r->path, "/update_weight_version");
    r->body = json_pack("{s:o,s:b}", "new_version", json_sprintf("%lld", (long long)version),
                        "abort_all_requests", 0);
    return STATUS_OK;
}

static inline int fakeengine_sync_check(void *self, int64_t version, int k, struct wsync_request *r,
                                        struct err *e)
{
    (void)self;
    (void)version;
    (void)e;
    if (k == 2) {
        return STATUS_END;
    }
    snprintf(r->path, sizeof r->path, "/get_weight_version");
    r->body = json_object();
    return STATUS_OK;
}

static inline int fakeengine_sync_judge(void *self, int64_t version, int k, const json_t *answer,
                                        struct err *e)
{
    const char *has = json_string_value(json_object_get(answer, "weight_version"));
    (void)self;
    (void)k;
    return has && atoi(has) == version
               ? STATUS_OK
               : ERR(e, STATUS_INPUT, "it holds %s, not %lld", has ? has : "?", (long long)version);
}

static inline void fakeengine_sync_settled(void *self, int64_t version)
{
    ((struct fakeengine_host *)self)->settled = (int)version;
}

static inline void fakeengine_sync_doubt(void *self, int64_t version)
{
    ((struct fakeengine_host *)self)->doubted = (int)version;
}

static inline void fakeengine_open(struct fakeengine_host *h, int n)
{
    memset(h, 0, sizeof *h);
    h->n = n;
    h->settled = -1;
    for (int i = 0; i < n; i++) {
        pthread_mutex_init(&h->e[i].mu, NULL);
        h->e[i].index = i;
        h->e[i].want = -1;
        h->e[i].leaves = 4;
        atomic_store(&h->dead[i], 1);
    }
    h->host = (struct port_http_host){fakeengine_host_start, fakeengine_host_alive,
                                      fakeengine_host_url, fakeengine_host_kill, h};
    h->sync = (struct wsync){.prepare = fakeengine_prepare,
                             .take = fakeengine_sync_take,
                             .check = fakeengine_sync_check,
                             .judge = fakeengine_sync_judge,
                             .doubt = fakeengine_sync_doubt,
                             .settled = fakeengine_sync_settled,
                             .self = h};
}

static inline void fakeengine_close(struct fakeengine_host *h)
{
    for (int i = 0; i < h->n; i++) {
        if (h->e[i].s) {
            fakeengine_down(&h->e[i]);
        }
        pthread_mutex_destroy(&h->e[i].mu);
    }
}

#endif
