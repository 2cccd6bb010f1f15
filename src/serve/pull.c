/* Owns the fetching of files: which of them lead from what is held to the version asked for, and
 * each of them until it is whole and right. From a folder files are mapped, over HTTP they are put
 * together in memory. */
#include "serve/pull.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/proc.h"
#include "base/rng.h"
#include "base/status.h"
#include "net/http_client.h"

#define PULL_AT_ONCE  4
#define PULL_MANIFEST ((size_t)256 << 20) /* bytes of one, at most */
#define PULL_LAYERS   4096                /* versions from a whole one on, at most */
#define PULL_TIMEOUT  600.0
#define PULL_IDLE_S   30.0
#define PULL_WAIT_S   0.1 /* before the second try; twice that before the third, ... */
#define PULL_WAIT_MAX 5.0

/* One file. */
struct pull_file {
    char *where;            /* path or address */
    char hash[WDELTA_HASH]; /* "": not known */
    uint8_t *data;
    size_t got, size, room; /* size 0: not known */
    int mapped;
    int tries, wrong; /* without a new byte; of wrong bytes */
    double next;      /* not before */
    uint64_t call;    /* 0: none */
    int done;
};

struct pull {
    struct pull_opts o;
    struct http_client *http; /* NULL: a folder */
    double deadline;
    uint64_t draws;
    struct wmanifest **manifests; /* newest first until all are there */
    struct wpatch_layer *layers;
    struct pull_file **files; /* of each layer its chunks */
    int n;
    struct pull_figures f;
    char why[200]; /* the last request came to nothing */
};

/* Seconds before the next try, after n: more each time, and by chance. */
static double pull_pause(struct pull *p, int n)
{
    double wait = PULL_WAIT_S * (double)(1 << (n < 7 ? n : 7));
    double chance = rng_uniform((uint64_t)(uintptr_t)p ^ (uint64_t)(p->deadline * 1e6), RNG_INIT,
                                p->draws++, 0, 0);

    return (wait < PULL_WAIT_MAX ? wait : PULL_WAIT_MAX) * (0.5 + chance);
}

/* ---- one file from a folder ---- */

static int pull_map(struct pull *p, struct pull_file *x, struct err *e)
{
    char is[WDELTA_HASH];
    const uint8_t *data;
    int rc = fsio_map(x->where, &data, &x->got, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    x->data = (uint8_t *)(uintptr_t)data;
    x->mapped = 1;
    wdelta_hash(x->data, x->got, is);
    if (x->hash[0] && strcmp(is, x->hash) != 0) {
        fsio_unmap(x->data, x->got);
        x->mapped = 0;
        x->data = NULL;
        return ERR(e, STATUS_FAIL, "%s has hash %s, not %s", x->where, is, x->hash);
    }
    x->done = 1;
    p->f.bytes += (int64_t)x->got;
    p->f.files++;
    return STATUS_OK;
}

/* A file of a network's file system may be seen late, or be repaired: it is looked at again. */
static int pull_map_again(struct pull *p, struct pull_file *x, struct err *e)
{
    int rc = pull_map(p, x, e);

    while (rc != STATUS_OK && ++x->wrong < PULL_WRONG && proc_now() < p->deadline) {
        double wait = pull_pause(p, x->wrong);
        struct timespec t = {(time_t)wait, (long)((wait - (double)(time_t)wait) * 1e9)};
        log_warn(PULL, "%s: looked at again in %.1f s", e->msg, wait);
        nanosleep(&t, NULL);
        p->f.again++;
        rc = pull_map(p, x, e);
    }
    return rc;
}

static void pull_file_fini(struct pull_file *x)
{
    if (x->mapped) {
        fsio_unmap(x->data, x->got);
    } else {
        mem_free(x->data);
    }
    mem_free(x->where);
}

/* ---- files over HTTP ---- */

static int pull_start(struct pull *p, struct pull_file *x, struct err *e)
{
    char range[48];
    struct http_header h[2];
    struct http_client_request q = {.method = "GET", .url = x->where, .headers = h, .user = x};

    snprintf(range, sizeof range, "bytes=%zu-", x->got);
    if (x->got) {
        h[q.nheaders++] = (struct http_header){"Range", range};
    }
    if (x->wrong) {
        h[q.nheaders++] = (struct http_header){"Cache-Control", "no-cache"};
    }
    q.total_s = p->deadline - proc_now();
    q.total_s = q.total_s > 0.01 ? q.total_s : 0.01;
    q.idle_s = PULL_IDLE_S;
    q.max_response = x->size ? x->size + 1 : PULL_MANIFEST;
    return http_client_start(p->http, &q, &x->call, e);
}

/* What came goes behind what was there: 206, or from the beginning: 200. New bytes, or -1: no
 * answer of ours. */
static int64_t pull_append(struct pull *p, struct pull_file *x, const struct http_client_event *ev)
{
    size_t want;

    if (ev->status != 200 && !(ev->status == 206 && x->got)) {
        return -1;
    }
    if (ev->status == 200) {
        x->got = 0;
    } else {
        p->f.resumed++;
    }
    want = x->got + ev->len;
    if (want > x->room) {
        size_t room = x->size && want <= x->size ? x->size : want;
        x->data = mem_realloc(x->data, x->room, room);
        x->room = room;
    }
    if (ev->len) {
        memcpy(x->data + x->got, ev->data, ev->len);
    }
    x->got += ev->len;
    return (int64_t)ev->len;
}

static void pull_later(struct pull *p, struct pull_file *x, int n)
{
    x->next = proc_now() + pull_pause(p, n);
}

/* It is as long as it should be. */
static int pull_judge(struct pull *p, struct pull_file *x, struct err *e)
{
    char is[WDELTA_HASH];

    wdelta_hash(x->data, x->got, is);
    if (!x->hash[0] || strcmp(is, x->hash) == 0) {
        x->done = 1;
        p->f.bytes += (int64_t)x->got;
        p->f.files++;
        return STATUS_OK;
    }
    p->f.again++;
    x->got = 0;
    if (++x->wrong >= PULL_WRONG) {
        return ERR(e, STATUS_FAIL, "%s came %d times with a wrong hash, last %s, not %s", x->where,
                   x->wrong, is, x->hash);
    }
    log_warn(PULL, "%s came with hash %s, not %s: fetched again", x->where, is, x->hash);
    pull_later(p, x, x->wrong - 1);
    return STATUS_OK;
}

static int pull_ended(struct pull *p, struct pull_file *x, const struct http_client_event *ev,
                      struct err *e)
{
    size_t before = x->got;
    int64_t new = pull_append(p, x, ev);
    int whole = ev->outcome == HTTP_CLIENT_OK && new >= 0;

    x->call = 0;
    if (whole && (!x->size || x->got == x->size)) {
        return pull_judge(p, x, e);
    }
    if (x->size && x->got > x->size) {
        whole = 1;
    }
    if (whole) { /* of another length: what came is of no use */
        x->got = 0;
        new = 0;
    }
    x->tries = new > 0 && x->got > before ? 0 : x->tries + 1;
    if (ev->status == 404 && ++x->wrong >= PULL_WRONG) {
        return ERR(e, STATUS_NOTFOUND, "there is no %s", x->where);
    }
    snprintf(p->why, sizeof p->why, "%s, status %d, %zu bytes%s%.100s",
             http_client_outcome_name(ev->outcome), ev->status, x->got, ev->error[0] ? ": " : "",
             ev->error);
    if (x->tries >= PULL_TRIES) {
        return ERR(e, STATUS_AGAIN, "%s does not come: %s", x->where, p->why);
    }
    pull_later(p, x, x->tries);
    return STATUS_OK;
}

static int pull_wait(struct pull *p, struct err *e)
{
    struct http_client_event *ev = http_client_take(p->http, 0.05);
    int rc = STATUS_OK;

    if (ev) {
        rc = ev->kind == HTTP_CLIENT_END ? pull_ended(p, ev->user, ev, e) : STATUS_OK;
        http_client_release(p->http, ev);
    }
    if (rc == STATUS_OK && p->o.stop && p->o.stop(p->o.arg)) {
        rc = ERR(e, STATUS_AGAIN, "nobody waits for the weights any more");
    }
    if (rc == STATUS_OK && proc_now() > p->deadline) {
        rc = ERR(e, STATUS_AGAIN, "the weights were not there after %g s%s%s", p->o.timeout_s,
                 p->why[0] ? "; the last try: " : "", p->why);
    }
    return rc;
}

/* After an error: no event may name a file that is gone. */
static void pull_cancel(struct pull *p, struct pull_file *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        http_client_cancel(p->http, x[i].call);
    }
    while (http_client_running(p->http) > 0) {
        struct http_client_event *ev = http_client_take(p->http, 1.0);
        if (ev) {
            http_client_release(p->http, ev);
        }
    }
}

static int pull_fetch(struct pull *p, struct pull_file *x, size_t n, struct err *e)
{
    int rc = STATUS_OK;
    size_t done = 0;

    while (rc == STATUS_OK && done < n) {
        double now = proc_now();
        int running = http_client_running(p->http);
        for (size_t i = 0; rc == STATUS_OK && i < n && running < PULL_AT_ONCE; i++) {
            if (!x[i].done && !x[i].call && now >= x[i].next) {
                rc = pull_start(p, &x[i], e);
                running++;
            }
        }
        rc = rc ? rc : pull_wait(p, e);
        while (done < n && x[done].done) {
            done++;
        }
    }
    if (rc != STATUS_OK) {
        pull_cancel(p, x, n);
    }
    return rc;
}

static int pull_get(struct pull *p, struct pull_file *x, size_t n, struct err *e)
{
    int rc = STATUS_OK;

    if (p->http) {
        return pull_fetch(p, x, n, e);
    }
    for (size_t i = 0; rc == STATUS_OK && i < n; i++) {
        rc = pull_map_again(p, &x[i], e);
    }
    return rc;
}

static char *pull_where(const struct pull *p, const char *folder, const char *name)
{
    char *a = fsio_join(p->o.source, folder), *b = fsio_join(a, name);
    mem_free(a);
    return b;
}

/* ---- the chain ---- */

static int pull_manifest(struct pull *p, int64_t version, const char *hash, struct wmanifest **out,
                         struct err *e)
{
    struct pull_file x = {0};
    char name[32];
    int rc;

    wmanifest_name(version, name, sizeof name);
    x.where = fsio_join(p->o.source, name);
    snprintf(x.hash, sizeof x.hash, "%s", hash ? hash : "");
    rc = pull_get(p, &x, 1, e);
    if (rc == STATUS_OK) {
        rc = wmanifest_read((const char *)x.data, x.got, out, e);
        rc = rc < 0 ? err_prefix(e, "%s", x.where) : rc;
    }
    if (rc == STATUS_OK && (*out)->version != version) {
        rc = ERR(e, STATUS_FORMAT, "%s is of version %lld", x.where, (long long)(*out)->version);
        wmanifest_free(*out);
        *out = NULL;
    }
    pull_file_fini(&x);
    return rc;
}

static int pull_chain(struct pull *p, struct err *e)
{
    int64_t version = p->o.version;
    const char *hash = p->o.manifest;
    int rc = STATUS_OK;

    for (;;) {
        struct wmanifest *m = NULL;
        if (p->n == PULL_LAYERS) {
            return ERR(e, STATUS_FORMAT, "there is no whole version among %d", p->n);
        }
        rc = pull_manifest(p, version, hash, &m, e);
        if (rc != STATUS_OK) {
            return rc;
        }
        if (strcmp(m->sum, p->o.held->sum) == 0) { /* it is here */
            wmanifest_free(m);
            return STATUS_OK;
        }
        p->manifests[p->n++] = m;
        if (m->base < 0 || strcmp(m->base_sum, p->o.held->sum) == 0) {
            return STATUS_OK;
        }
        if (p->o.only) {
            return ERR(e, STATUS_INPUT,
                       "version %lld changes version %lld with sum %.8s; this engine has version "
                       "%.40s with sum %.8s",
                       (long long)version, (long long)m->base, m->base_sum, p->o.held_name,
                       p->o.held->sum);
        }
        version = m->base;
        hash = m->base_hash;
    }
}

/* All chunks of one layer. */
static int pull_chunks(struct pull *p, int i, struct err *e)
{
    const struct wmanifest *m = p->layers[i].m;
    const uint8_t **list = mem_alloc(sizeof *list * (m->nchunks + 1));
    int rc;

    p->layers[i].chunks = list;
    if (p->http && mem_available() >= 0 && wmanifest_bytes(m) > mem_available()) {
        return ERR(e, STATUS_NOMEM, "version %lld has %.1f MB of chunks, there is no memory for it",
                   (long long)m->version, (double)wmanifest_bytes(m) / 1e6);
    }
    p->files[i] = mem_alloc(sizeof *p->files[i] * (m->nchunks + 1));
    for (size_t k = 0; k < m->nchunks; k++) {
        struct pull_file *x = &p->files[i][k];
        x->where = pull_where(p, "chunks", m->chunks[k].hash);
        x->size = (size_t)m->chunks[k].bytes;
        memcpy(x->hash, m->chunks[k].hash, WDELTA_HASH);
    }
    rc = pull_get(p, p->files[i], m->nchunks, e);
    for (size_t k = 0; rc == STATUS_OK && k < m->nchunks; k++) {
        list[k] = p->files[i][k].data;
        if (p->files[i][k].got != (size_t)m->chunks[k].bytes) {
            rc = ERR(e, STATUS_FORMAT, "%s has %zu bytes, not %lld", p->files[i][k].where,
                     p->files[i][k].got, (long long)m->chunks[k].bytes);
        }
    }
    return rc < 0 ? err_prefix(e, "version %lld", (long long)m->version) : rc;
}

int pull_open(const struct pull_opts *o, struct pull **out, struct err *e)
{
    struct pull *p = mem_alloc(sizeof *p);
    double start = proc_now();
    int rc = STATUS_OK;

    p->o = *o;
    p->o.timeout_s = o->timeout_s > 0.0 ? o->timeout_s : PULL_TIMEOUT;
    p->deadline = start + p->o.timeout_s;
    p->manifests = mem_alloc(sizeof(struct wmanifest *) * PULL_LAYERS);
    if (strncmp(o->source, "http://", 7) == 0 || strncmp(o->source, "https://", 8) == 0) {
        rc = http_client_new(&p->http, &(struct http_client_opts){0}, e);
    }
    rc = rc ? rc : pull_chain(p, e);
    if (rc == STATUS_OK) {
        p->layers = mem_alloc(sizeof *p->layers * (size_t)(p->n + 1));
        p->files = mem_alloc(sizeof(struct pull_file *) * (size_t)(p->n + 1));
    }
    for (int i = 0; rc == STATUS_OK && i < p->n; i++) {
        p->layers[i].m = p->manifests[p->n - 1 - i];
        rc = pull_chunks(p, i, e);
    }
    p->f.seconds = proc_now() - start;
    if (rc != STATUS_OK) {
        pull_close(p);
        return rc;
    }
    *out = p;
    return STATUS_OK;
}

const struct wpatch_layer *pull_layers(const struct pull *p, int *n)
{
    *n = p->n;
    return p->layers;
}

const struct pull_figures *pull_figures(const struct pull *p)
{
    return &p->f;
}

void pull_close(struct pull *p)
{
    if (!p) {
        return;
    }
    http_client_free(p->http);
    for (int i = 0; p->layers && i < p->n; i++) {
        for (size_t k = 0; p->files[i] && k < p->layers[i].m->nchunks; k++) {
            pull_file_fini(&p->files[i][k]);
        }
        mem_free(p->files[i]);
        mem_free((void *)(uintptr_t)p->layers[i].chunks);
    }
    for (int i = 0; i < p->n; i++) {
        wmanifest_free(p->manifests[i]);
    }
    mem_free(p->files);
    mem_free(p->layers);
    mem_free(p->manifests);
    mem_free(p);
}
