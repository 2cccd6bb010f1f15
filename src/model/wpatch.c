/* Owns the order in which pieces of several versions make new tensors: those of one place are
 * applied one after the other, places of a tensor in parallel. */
#include "model/wpatch.h"

#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "base/thread.h"
#include "model/weights.h"

struct wpatch_item {
    struct wdelta_piece piece;
    int next; /* of the same place, in a later layer; -1: none */
};

struct wpatch {
    struct weights *w;
    struct wpatch_held *held;
    const struct wmanifest *last;
    struct wpatch_item *items;
    size_t n, cap;
    int64_t *place0;       /* (ntensors + 1) number of each tensor's first place */
    int *head, *tail;      /* (places) its first and last piece; -1: none */
    uint8_t *touched;      /* (ntensors) */
    struct wdelta **codec; /* (threads) */
    int nthreads;
    /* of the tensor that is being made */
    int tensor;
    uint16_t *values;
    struct err *why; /* (threads) */
};

/* ---- what is held ---- */

void wpatch_held_fini(struct wpatch_held *h)
{
    wmanifest_free(h->m);
    *h = (struct wpatch_held){0};
}

int wpatch_hold(struct weights *w, struct wpatch_held *h, struct err *e)
{
    size_t bytes;
    uint16_t *buf;
    int rc = STATUS_OK;

    if (w->dropped) {
        return ERR(e, STATUS_AGAIN, "the memory of the weights is released");
    }
    if (h->m && h->at == w->version) {
        return STATUS_OK;
    }
    wpatch_held_fini(h);
    h->m = wmanifest_new(w);
    bytes = 2 * (size_t)wmanifest_largest(h->m);
    buf = mem_map(bytes);
    if (!buf) {
        rc = ERR(e, STATUS_NOMEM, "no memory for a copy of a tensor");
    }
    for (int i = 0; rc == STATUS_OK && i < h->m->ntensors; i++) {
        struct wmanifest_tensor *t = &h->m->tensors[i];
        rc = weights_read_bf16(w, t->name, buf, t->count, e);
        wdelta_hash(buf, 2 * (size_t)t->count, t->sum);
    }
    mem_unmap(buf, bytes);
    if (rc != STATUS_OK) {
        wpatch_held_fini(h);
        return rc;
    }
    wmanifest_seal(h->m);
    h->at = w->version;
    return STATUS_OK;
}

/* ---- opening ---- */

/* Each layer changes what is there when it comes. */
static int wpatch_chain(const struct wpatch_held *h, const struct wpatch_layer *l, int n,
                        struct err *e)
{
    const struct wmanifest *below = h->m;

    for (int i = 0; i < n; i++) {
        const struct wmanifest *m = l[i].m;
        if (m->base >= 0 && strcmp(m->base_sum, below->sum) != 0) {
            if (i > 0) {
                return ERR(e, STATUS_INPUT, "version %lld changes version %lld, not version %lld",
                           (long long)m->version, (long long)m->base, (long long)below->version);
            }
            return ERR(e, STATUS_INPUT,
                       "version %lld changes version %lld with sum %.8s; what is held has %.8s",
                       (long long)m->version, (long long)m->base, m->base_sum, below->sum);
        }
        below = m;
    }
    return STATUS_OK;
}

static void wpatch_places(struct wpatch *p)
{
    const struct wmanifest *m = p->last;
    int64_t n = 0;

    p->place0 = mem_alloc(sizeof *p->place0 * (size_t)(m->ntensors + 1));
    for (int i = 0; i < m->ntensors; i++) {
        p->place0[i] = n;
        n += (m->tensors[i].count + WDELTA_PIECE - 1) / WDELTA_PIECE;
    }
    p->place0[m->ntensors] = n;
    p->head = mem_alloc(sizeof *p->head * (size_t)n);
    p->tail = mem_alloc(sizeof *p->tail * (size_t)n);
    memset(p->head, 0xff, sizeof *p->head * (size_t)n);
    memset(p->tail, 0xff, sizeof *p->tail * (size_t)n);
    p->touched = mem_alloc((size_t)m->ntensors);
}

/* A piece of layer i takes its place; a whole one, that of all before it. */
static int wpatch_add(struct wpatch *p, const struct wdelta_piece *x, struct err *e)
{
    const struct wmanifest *m = p->last;
    int64_t at, count = x->at.tensor < m->ntensors ? m->tensors[x->at.tensor].count : 0;
    int me = (int)p->n;

    if (x->at.first >= count ||
        x->at.count != (count - x->at.first < WDELTA_PIECE ? count - x->at.first : WDELTA_PIECE)) {
        return ERR(e, STATUS_FORMAT, "a piece of %d values from %lld on is no part of tensor %d",
                   x->at.count, (long long)x->at.first, x->at.tensor);
    }
    if (p->n == p->cap && !mem_grow((void **)&p->items, &p->cap, 1024, sizeof *p->items)) {
        return ERR(e, STATUS_NOMEM, "no memory for the pieces of a version");
    }
    at = p->place0[x->at.tensor] + x->at.first / WDELTA_PIECE;
    p->items[p->n++] = (struct wpatch_item){*x, -1};
    if (p->head[at] < 0 || wdelta_whole(x)) {
        p->head[at] = me;
    } else {
        p->items[p->tail[at]].next = me;
    }
    p->tail[at] = me;
    p->touched[x->at.tensor] = 1;
    return STATUS_OK;
}

static int wpatch_index(struct wpatch *p, const struct wpatch_layer *l, struct err *e)
{
    int rc = STATUS_OK;

    for (size_t c = 0; rc == STATUS_OK && c < l->m->nchunks; c++) {
        for (size_t pos = 0, len = (size_t)l->m->chunks[c].bytes; rc == STATUS_OK && pos < len;) {
            struct wdelta_piece x;
            rc = wdelta_next(l->chunks[c], len, &pos, &x, e);
            rc = rc ? rc : wpatch_add(p, &x, e);
        }
    }
    return rc;
}

/* Over a whole version nothing of what is held counts. */
static int wpatch_covered(const struct wpatch *p, struct err *e)
{
    for (int64_t i = 0; i < p->place0[p->last->ntensors]; i++) {
        if (p->head[i] < 0 || !wdelta_whole(&p->items[p->head[i]].piece)) {
            return ERR(e, STATUS_FORMAT, "a whole version lacks pieces");
        }
    }
    return STATUS_OK;
}

int wpatch_open(struct weights *w, struct wpatch_held *h, const struct wpatch_layer *layers, int n,
                struct wpatch **out, struct err *e)
{
    struct wpatch *p;
    int rc = wpatch_chain(h, layers, n, e);

    for (int i = 0; rc == STATUS_OK && i < n; i++) {
        rc = wmanifest_fits(layers[i].m, w, e);
    }
    if (rc != STATUS_OK) {
        return rc;
    }
    p = mem_alloc(sizeof *p);
    p->w = w;
    p->held = h;
    p->last = layers[n - 1].m;
    p->nthreads = pool_size(w->dev->pool);
    p->codec = mem_alloc(sizeof(struct wdelta *) * (size_t)p->nthreads);
    p->why = mem_alloc(sizeof *p->why * (size_t)p->nthreads);
    for (int i = 0; i < p->nthreads; i++) {
        p->codec[i] = wdelta_new();
    }
    wpatch_places(p);
    for (int i = 0; rc == STATUS_OK && i < n; i++) {
        rc = wpatch_index(p, &layers[i], e);
        rc = rc == STATUS_OK && layers[i].m->base < 0 ? wpatch_covered(p, e) : rc;
        rc = rc < 0 ? err_prefix(e, "version %lld", (long long)layers[i].m->version) : rc;
    }
    if (rc != STATUS_OK) {
        wpatch_close(p);
        return rc;
    }
    *out = p;
    return STATUS_OK;
}

void wpatch_close(struct wpatch *p)
{
    if (!p) {
        return;
    }
    for (int i = 0; i < p->nthreads; i++) {
        wdelta_free(p->codec[i]);
    }
    mem_free(p->codec);
    mem_free(p->why);
    mem_free(p->items);
    mem_free(p->place0);
    mem_free(p->head);
    mem_free(p->tail);
    mem_free(p->touched);
    mem_free(p);
}

/* ---- making tensors ---- */

static void wpatch_task(void *arg, int task, int worker)
{
    struct wpatch *p = arg;
    uint16_t *at = p->values + (int64_t)task * WDELTA_PIECE;
    int i = p->head[p->place0[p->tensor] + task], rc = STATUS_OK;

    for (; i >= 0 && rc == STATUS_OK; i = p->items[i].next) {
        rc = wdelta_apply(p->codec[worker], &p->items[i].piece, at, &p->why[worker]);
    }
}

static void wpatch_make(struct wpatch *p, int tensor, uint16_t *values)
{
    p->tensor = tensor;
    p->values = values;
    pool_run(p->w->dev->pool, wpatch_task, p, (int)(p->place0[tensor + 1] - p->place0[tensor]));
}

static int wpatch_verify_one(struct wpatch *p, int i, uint16_t *buf, struct err *e)
{
    const struct wmanifest_tensor *t = &p->last->tensors[i];
    char sum[WDELTA_HASH];
    int rc = STATUS_OK;

    if (!p->touched[i]) {
        memcpy(sum, p->held->m->tensors[i].sum, WDELTA_HASH);
    } else {
        rc = weights_read_bf16(p->w, t->name, buf, t->count, e);
        wpatch_make(p, i, buf);
        for (int k = 0; rc == STATUS_OK && k < p->nthreads; k++) {
            if (p->why[k].code) {
                rc = ERR(e, p->why[k].code, "%s: %.400s", t->name, p->why[k].msg);
            }
        }
        wdelta_hash(buf, 2 * (size_t)t->count, sum);
    }
    if (rc == STATUS_OK && strcmp(sum, t->sum) != 0) {
        rc = ERR(e, STATUS_FAIL, "tensor %s would have sum %s, version %lld has %s", t->name, sum,
                 (long long)p->last->version, t->sum);
    }
    return rc;
}

int wpatch_verify(struct wpatch *p, struct err *e)
{
    size_t bytes = 2 * (size_t)wmanifest_largest(p->last);
    uint16_t *buf = mem_map(bytes);
    int rc = buf ? STATUS_OK : ERR(e, STATUS_NOMEM, "no memory for a copy of a tensor");

    memset(p->why, 0, sizeof *p->why * (size_t)p->nthreads);
    for (int i = 0; rc == STATUS_OK && i < p->last->ntensors; i++) {
        rc = wpatch_verify_one(p, i, buf, e);
    }
    mem_unmap(buf, bytes);
    return rc;
}

static void wpatch_change(void *arg, int tensor, uint16_t *values)
{
    wpatch_make(arg, tensor, values);
}

int wpatch_commit(struct wpatch *p, struct err *e)
{
    int rc = weights_patch(p->w, p->touched, wpatch_change, p, e);

    if (rc == STATUS_OK) {
        for (int i = 0; i < p->last->ntensors; i++) {
            memcpy(p->held->m->tensors[i].sum, p->last->tensors[i].sum, WDELTA_HASH);
        }
        memcpy(p->held->m->sum, p->last->sum, WDELTA_HASH);
        p->held->m->version = p->last->version;
        p->held->at = p->w->version;
    }
    return rc;
}
