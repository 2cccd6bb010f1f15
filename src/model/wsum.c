/* Owns the sums of tensors. Values are taken out of their packed form a few tensors at a time, and
 * those are summed in parallel, one tensor to a thread: a sum itself cannot be split. */
#include "model/wsum.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "base/status.h"
#include "base/thread.h"

#define WSUM_ROOM ((int64_t)64 << 20) /* bytes of tensors taken out at a time, or one tensor */

/* ---- one tensor ---- */

static uint32_t wsum_rotl(uint32_t x, int r)
{
    return x << r | x >> (32 - r);
}

static uint32_t wsum_mix(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x85ebca6bu;
    x ^= x >> 13;
    x *= 0xc2b2ae35u;
    return x ^ x >> 16;
}

/* Tiles of 8192 words, each word mixed with its place, added up: sglang/kernels/ops/memory/
 * gpu_tensor_hash.py. */
static uint64_t wsum_gpu(const uint8_t *p, size_t n)
{
    const uint32_t seed1 = 0x243f6a88u, seed2 = seed1 * 0x9e3779b1u ^ 0xdeadbeefu;
    size_t words = (n + 3) / 4;
    uint64_t all = 0;

    for (size_t tile = 0; tile < words; tile += 8192) {
        uint32_t h1 = 0, h2 = 0, bytes = (uint32_t)words * 4;
        for (size_t k = tile; k < words && k < tile + 8192; k++) {
            uint32_t v = 0, i = (uint32_t)k;
            memcpy(&v, p + 4 * k, n - 4 * k < 4 ? n - 4 * k : 4);
            h1 += wsum_mix(v ^ (i * 0x27d4eb2du + seed1) ^ wsum_rotl(i, 15));
            h2 += wsum_mix(v ^ (i * 0x165667b1u + seed2) ^ wsum_rotl(i, 13));
        }
        all += (uint64_t)wsum_mix(h1 ^ bytes) << 32 | wsum_mix(h2 ^ bytes);
    }
    all ^= all >> 30;
    all *= 0xbf58476d1ce4e5b9u;
    all ^= all >> 27;
    all *= 0x94d049bb133111ebu;
    return all ^ all >> 31;
}

uint64_t wsum_bytes(enum wsum_kind kind, const void *data, size_t n)
{
    struct sha256 h;
    uint8_t digest[32];
    uint64_t sum = 0;

    if (kind == WSUM_GPU) {
        return n ? wsum_gpu(data, n) : 0;
    }
    sha256_init(&h);
    sha256_update(&h, data, n);
    sha256_final(&h, digest);
    for (int i = 0; i < 8; i++) {
        sum = sum << 8 | digest[i];
    }
    return sum;
}

/* ---- which tensors ---- */

struct wsum_range {
    int64_t from, n;
};

struct wsum_item {
    struct param *p;
    char name[112];
    int64_t rows, cols; /* of the whole tensor; a vector is a column */
    /* What of it is summed: ranges of rows one after the other, of their columns one range, then
     * rows of zeros. */
    struct wsum_range row[3], col;
    int nranges;
    int64_t zeros;
    int64_t room;   /* bytes while it is taken out and cut */
    uint64_t order; /* in a draw */
    uint16_t *at;
    uint64_t sum;
};

struct wsum {
    struct weights *w;
    const struct wsum_opts *o;
    struct wsum_item *items;
    int n;
    int first; /* of those whose values are taken out */
};

/* `from` replaced by `to` in the name of the first part: it stands for all of them. */
static int wsum_fused(const char *name, const char *from, const char *to, char out[112])
{
    const char *at = strstr(name, from);

    if (!at) {
        return 0;
    }
    snprintf(out, 112, "%.*s%s%s", (int)(at - name), name, to, at + strlen(from));
    return 1;
}

void wsum_name(const struct param *p, char out[112])
{
    const char *name = p->part[0].name;

    if (p->nparts < 2 || (!wsum_fused(name, "q_proj", "qkv_proj", out) &&
                          !wsum_fused(name, "gate_proj", "gate_up_proj", out))) {
        snprintf(out, 112, "%s", name);
    }
}

/* Part `rank` of `size` equal ones of n rows from `from` on. */
static void wsum_cut(struct wsum_item *it, int64_t from, int64_t n, int rank, int size)
{
    it->row[it->nranges++] = (struct wsum_range){from + n / size * rank, n / size};
}

/* Heads go to ranks in turn; where there are more ranks than heads of keys and values, several
 * ranks have the same one. */
static void wsum_cut_qkv(struct wsum_item *it, const struct arch *a, int rank, int size)
{
    int64_t q = (int64_t)a->n_heads * a->head_dim, kv = (int64_t)a->n_kv_heads * a->head_dim;
    int same = size > a->n_kv_heads ? size / a->n_kv_heads : 1;

    wsum_cut(it, 0, q, rank, size);
    wsum_cut(it, q, kv, rank / same, size / same);
    wsum_cut(it, q + kv, kv, rank / same, size / same);
}

static int64_t wsum_filled(int64_t rows, int pad)
{
    return pad ? (rows + pad - 1) / pad * pad : rows;
}

static void wsum_cut_vocab(struct wsum_item *it, int pad, int rank, int size)
{
    int64_t all = wsum_filled(it->rows, pad), each, from, n;

    if (all % size) {
        all = wsum_filled(it->rows, pad * size);
    }
    each = all / size;
    from = each * rank;
    n = from < it->rows ? it->rows - from : 0;
    n = n < each ? n : each;
    it->row[it->nranges++] = (struct wsum_range){from, n};
    it->zeros = each - n;
}

/* Which layer's which matrix or bias it is decides what of it a rank has. */
static void wsum_cut_layer(struct wsum_item *it, const struct weights *w, int rank, int size)
{
    for (int i = 0; i < w->arch.n_layers; i++) {
        const struct weights_layer *l = &w->layers[i];
        if (it->p == l->qkv.w || it->p == l->qkv.bias) {
            wsum_cut_qkv(it, &w->arch, rank, size);
        } else if (it->p == l->gate_up.w || it->p == l->gate_up.bias) {
            wsum_cut(it, 0, w->arch.intermediate, rank, size);
            wsum_cut(it, w->arch.intermediate, w->arch.intermediate, rank, size);
        } else if (it->p == l->o.w || it->p == l->down.w) {
            it->col = (struct wsum_range){it->cols / size * rank, it->cols / size};
        }
    }
}

static int wsum_divides(const struct weights *w, int size, struct err *e)
{
    const struct arch *a = &w->arch;

    if (a->n_heads % size || a->intermediate % size ||
        (a->n_kv_heads % size && size % a->n_kv_heads)) {
        return ERR(e, STATUS_UNSUPPORTED,
                   "%d heads, %d of keys and values, and %d columns cannot be split over %d ranks",
                   a->n_heads, a->n_kv_heads, a->intermediate, size);
    }
    return STATUS_OK;
}

static void wsum_shape(const struct wsum *s, struct wsum_item *it)
{
    const struct wsum_opts *o = s->o;
    int size = o->tp_size > 1 ? o->tp_size : 1, rank = size > 1 ? o->tp_rank : 0;

    for (int k = 0; k < it->p->nparts; k++) {
        it->rows += it->p->part[k].rows;
    }
    it->cols = it->p->kind == WEIGHTS_VECTOR ? 1 : it->p->cols;
    it->col = (struct wsum_range){0, it->cols};
    if (it->p == s->w->embed || it->p == s->w->lm_head.w) {
        wsum_cut_vocab(it, o->pad, rank, size);
    } else if (size > 1) {
        wsum_cut_layer(it, s->w, rank, size);
    }
    if (it->nranges == 0) {
        it->row[it->nranges++] = (struct wsum_range){0, it->rows};
    }
    it->room = (it->rows + it->zeros) * it->cols * 2;
}

static uint64_t wsum_order(const char *name, uint64_t seed)
{
    struct sha256 h;
    uint8_t digest[32];
    uint64_t order;

    sha256_init(&h);
    sha256_update(&h, &seed, sizeof seed);
    sha256_update(&h, name, strlen(name));
    sha256_final(&h, digest);
    memcpy(&order, digest, sizeof order);
    return order;
}

static int wsum_by_order(const void *a, const void *b)
{
    const struct wsum_item *x = a, *y = b;
    return x->order < y->order ? -1 : x->order > y->order;
}

static void wsum_list(struct wsum *s)
{
    const struct wsum_opts *o = s->o;
    int64_t bytes = 0;

    s->items = mem_alloc(sizeof *s->items * (size_t)s->w->nparams);
    s->n = s->w->nparams;
    for (int i = 0; i < s->n; i++) {
        struct wsum_item *it = &s->items[i];
        it->p = &s->w->params[i];
        wsum_name(it->p, it->name);
        wsum_shape(s, it);
        it->order = wsum_order(it->name, o->seed);
    }
    if (o->bytes > 0) {
        qsort(s->items, (size_t)s->n, sizeof *s->items, wsum_by_order);
        for (int i = 0; i < s->n; i++) {
            bytes += s->items[i].room;
            if (bytes >= o->bytes) {
                s->n = i + 1;
            }
        }
    }
}

/* ---- the sums ---- */

/* The whole tensor, then only what is summed: it moves towards the front. */
static int wsum_values(const struct wsum *s, struct wsum_item *it, struct err *e)
{
    uint16_t *at = it->at, *to = it->at;
    int rc = STATUS_OK;

    for (int k = 0; k < it->p->nparts && rc == STATUS_OK; k++) {
        const struct weights_part *part = &it->p->part[k];
        int64_t n = part->rows * it->cols;
        rc = s->o->read ? s->o->read(s->o->arg, part->name, at, n, e)
                        : weights_read_bf16(s->w, part->name, at, n, e);
        at += n;
    }
    for (int k = 0; k < it->nranges; k++) {
        for (int64_t r = 0; r < it->row[k].n; r++, to += it->col.n) {
            const uint16_t *row = it->at + (it->row[k].from + r) * it->cols + it->col.from;
            if (to != row) {
                memmove(to, row, (size_t)it->col.n * 2);
            }
        }
    }
    memset(to, 0, (size_t)(it->zeros * it->col.n) * 2);
    return rc;
}

static void wsum_task(void *arg, int task, int worker)
{
    struct wsum *s = arg;
    struct wsum_item *it = &s->items[s->first + task];
    int64_t rows = it->zeros;

    (void)worker;
    for (int k = 0; k < it->nranges; k++) {
        rows += it->row[k].n;
    }
    it->sum = wsum_bytes(s->o->kind, it->at, (size_t)(rows * it->col.n) * 2);
}

/* As many of the next tensors as there is room for. */
static int wsum_some(struct wsum *s, char *room, int64_t size, int *done, struct err *e)
{
    int rc = STATUS_OK, i;
    int64_t used = 0;

    for (i = s->first; i < s->n && rc == STATUS_OK; i++) {
        struct wsum_item *it = &s->items[i];
        if (used + it->room > size) {
            break;
        }
        it->at = (uint16_t *)(void *)(room + used);
        used += (it->room + 63) / 64 * 64;
        rc = wsum_values(s, it, e);
    }
    if (rc == STATUS_OK) {
        pool_run(s->w->dev->pool, wsum_task, s, i - s->first);
    }
    *done = i;
    return rc;
}

int wsum_take(struct weights *w, const struct wsum_opts *o, struct map *sums, struct err *e)
{
    struct wsum s = {.w = w, .o = o};
    int64_t size = WSUM_ROOM;
    int rc = o->tp_size > 1 ? wsum_divides(w, o->tp_size, e) : STATUS_OK;
    char *room;

    if (rc == STATUS_OK && w->dropped && !o->read) {
        rc = ERR(e, STATUS_AGAIN, "the memory of the weights is released");
    }
    if (rc != STATUS_OK) {
        return rc;
    }
    wsum_list(&s);
    for (int i = 0; i < s.n; i++) {
        size = s.items[i].room > size ? s.items[i].room : size;
    }
    room = mem_map((size_t)size);
    if (!room) {
        rc = ERR(e, STATUS_NOMEM, "no memory for a copy of a tensor");
    }
    while (rc == STATUS_OK && s.first < s.n) {
        int done = 0;
        rc = wsum_some(&s, room, size, &done, e);
        for (; rc == STATUS_OK && s.first < done; s.first++) {
            const struct wsum_item *it = &s.items[s.first];
            map_put(sums, it->name, strlen(it->name), (int64_t)it->sum);
        }
    }
    mem_unmap(room, (size_t)size);
    mem_free(s.items);
    return rc;
}

static int wsum_by_name(const void *a, const void *b)
{
    return strcmp((*(const struct map_entry *const *)a)->key,
                  (*(const struct map_entry *const *)b)->key);
}

void wsum_total(const struct map *sums, char hex[65])
{
    const struct map_entry **list = mem_alloc(sizeof *list * (sums->count + 1));
    struct sha256 h;
    uint8_t digest[32];
    char sum[17];

    for (size_t i = 0; i < sums->count; i++) {
        list[i] = &sums->entries[i];
    }
    qsort(list, sums->count, sizeof *list, wsum_by_name);
    sha256_init(&h);
    for (size_t i = 0; i < sums->count; i++) {
        snprintf(sum, sizeof sum, "%016llx", (unsigned long long)list[i]->value);
        sha256_update(&h, list[i]->key, list[i]->len);
        sha256_update(&h, sum, 16);
    }
    sha256_final(&h, digest);
    sha256_digits(digest, hex);
    mem_free(list);
}
