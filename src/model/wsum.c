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
#include "model/weights.h"

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

struct wsum_item {
    struct param *p;
    char name[112];
    int64_t bytes, padded; /* of its values; with the rows that are filled up */
    uint64_t order;        /* in a draw */
    uint16_t *at;
    uint64_t sum;
};

struct wsum {
    struct weights *w;
    enum wsum_kind kind;
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

static int64_t wsum_part_count(const struct param *p, int part)
{
    return p->kind == WEIGHTS_VECTOR ? p->part[part].rows : (int64_t)p->part[part].rows * p->cols;
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

static void wsum_list(struct wsum *s, const struct wsum_opts *o)
{
    int64_t bytes = 0;

    s->items = mem_alloc(sizeof *s->items * (size_t)s->w->nparams);
    s->n = s->w->nparams;
    for (int i = 0; i < s->n; i++) {
        struct wsum_item *it = &s->items[i];
        struct param *p = &s->w->params[i];
        it->p = p;
        wsum_name(p, it->name);
        for (int k = 0; k < p->nparts; k++) {
            it->bytes += wsum_part_count(p, k) * 2;
        }
        it->padded = it->bytes;
        if (o->pad && (p == s->w->embed || p == s->w->lm_head.w)) {
            it->padded = (int64_t)((p->rows + o->pad - 1) / o->pad * o->pad) * p->cols * 2;
        }
        it->order = wsum_order(it->name, o->seed);
    }
    if (o->bytes > 0) {
        qsort(s->items, (size_t)s->n, sizeof *s->items, wsum_by_order);
        for (int i = 0; i < s->n; i++) {
            bytes += s->items[i].bytes;
            if (bytes >= o->bytes) {
                s->n = i + 1;
            }
        }
    }
}

/* ---- the sums ---- */

static int wsum_values(struct wsum *s, struct wsum_item *it, struct err *e)
{
    uint16_t *at = it->at;
    int rc = STATUS_OK;

    for (int k = 0; k < it->p->nparts && rc == STATUS_OK; k++) {
        int64_t n = wsum_part_count(it->p, k);
        rc = weights_read_bf16(s->w, it->p->part[k].name, at, n, e);
        at += n;
    }
    memset(at, 0, (size_t)(it->padded - it->bytes));
    return rc;
}

static void wsum_task(void *arg, int task, int worker)
{
    struct wsum *s = arg;
    struct wsum_item *it = &s->items[s->first + task];

    (void)worker;
    it->sum = wsum_bytes(s->kind, it->at, (size_t)it->padded);
}

/* As many of the next tensors as there is room for. */
static int wsum_some(struct wsum *s, char *room, int64_t size, int *done, struct err *e)
{
    int rc = STATUS_OK, i;
    int64_t used = 0;

    for (i = s->first; i < s->n && rc == STATUS_OK; i++) {
        struct wsum_item *it = &s->items[i];
        if (used + it->padded > size) {
            break;
        }
        it->at = (uint16_t *)(void *)(room + used);
        used += (it->padded + 63) / 64 * 64;
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
    struct wsum s = {.w = w, .kind = o->kind};
    int64_t size = WSUM_ROOM;
    int rc = STATUS_OK;
    char *room;

    if (w->dropped) {
        return ERR(e, STATUS_AGAIN, "the memory of the weights is released");
    }
    wsum_list(&s, o);
    for (int i = 0; i < s.n; i++) {
        size = s.items[i].padded > size ? s.items[i].padded : size;
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
