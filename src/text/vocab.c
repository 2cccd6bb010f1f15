/* Owns the texts and ids of a vocabulary. Texts lie in one pool; an open-addressing table finds a
 * token by text, a plain table by id. */
#include "text/vocab.h"

#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "text/jscan.h"

#define POOL_MAX ((size_t)1 << 31)

struct vocab_token {
    uint32_t off, len; /* in the pool */
    uint32_t hash;
    int32_t id;
};
struct vocab {
    char *pool;
    size_t pool_len, pool_cap;
    struct vocab_token *tok; /* in order of appearance */
    size_t ntok, captok;
    uint32_t *slot; /* 1 + index into tok; 0: free */
    size_t nslot;
    uint32_t *by_id; /* 1 + index into tok */
    int32_t max_id;
    size_t max_bytes;
    int plain;
};

/* FNV-1a: short strings, and the hash of a joined pair continues from that of its left part. */
static uint32_t hash_more(uint32_t h, const char *s, size_t n)
{
    size_t i;

    for (i = 0; i < n; i++) {
        h = (h ^ (unsigned char)s[i]) * 16777619u;
    }
    return h;
}

#define HASH_START 2166136261u

/* FNV's low bits are weak for short keys. */
static size_t spread(uint32_t h)
{
    return h ^ h >> 15;
}

struct vocab *vocab_new(void)
{
    struct vocab *v = mem_alloc(sizeof *v);

    v->max_id = -1;
    return v;
}

void vocab_free(struct vocab *v)
{
    if (v) {
        mem_free(v->by_id);
        mem_free(v->slot);
        mem_free(v->tok);
        mem_free(v->pool);
        mem_free(v);
    }
}

static const struct vocab_token *find2(const struct vocab *v, uint32_t hash, const char *x,
                                       size_t nx, const char *y, size_t ny)
{
    size_t mask = v->nslot - 1;
    size_t i;

    if (v->nslot == 0) {
        return NULL;
    }
    for (i = spread(hash) & mask; v->slot[i]; i = (i + 1) & mask) {
        const struct vocab_token *t = &v->tok[v->slot[i] - 1];
        if (t->hash == hash && t->len == nx + ny && memcmp(v->pool + t->off, x, nx) == 0 &&
            memcmp(v->pool + t->off + nx, y, ny) == 0) {
            return t;
        }
    }
    return NULL;
}

int32_t vocab_id(const struct vocab *v, const char *text, size_t len)
{
    const struct vocab_token *t = find2(v, hash_more(HASH_START, text, len), text, len, "", 0);

    return t ? t->id : -1;
}

int32_t vocab_id2(const struct vocab *v, const char *x, size_t nx, const char *y, size_t ny)
{
    uint32_t hash = hash_more(hash_more(HASH_START, x, nx), y, ny);
    const struct vocab_token *t = find2(v, hash, x, nx, y, ny);

    return t ? t->id : -1;
}

int32_t vocab_longest(const struct vocab *v, const char *prefix, size_t nprefix, const char *s,
                      size_t n, size_t *k)
{
    uint32_t hash = hash_more(HASH_START, prefix, nprefix);
    int32_t best = -1;
    size_t i;

    for (i = 1; i <= n && nprefix + i <= v->max_bytes; i++) {
        const struct vocab_token *t;
        hash = hash_more(hash, s + i - 1, 1);
        if (i < n && ((unsigned char)s[i] & 0xC0) == 0x80) {
            continue; /* inside a character */
        }
        t = find2(v, hash, prefix, nprefix, s, i);
        if (t) {
            best = t->id;
            *k = i;
        }
    }
    return best;
}

const char *vocab_text(const struct vocab *v, int32_t id, size_t *len)
{
    const struct vocab_token *t;

    if (id < 0 || id > v->max_id || !v->by_id[id]) {
        return NULL;
    }
    t = &v->tok[v->by_id[id] - 1];
    *len = t->len;
    return v->pool + t->off;
}

const char *vocab_at(const struct vocab *v, size_t i, size_t *len, int32_t *id)
{
    *len = v->tok[i].len;
    *id = v->tok[i].id;
    return v->pool + v->tok[i].off;
}

int vocab_is_plain(const struct vocab *v)
{
    return v->plain;
}

int32_t vocab_max_id(const struct vocab *v)
{
    return v->max_id;
}

size_t vocab_count(const struct vocab *v)
{
    return v->ntok;
}

size_t vocab_max_bytes(const struct vocab *v)
{
    return v->max_bytes;
}

static int slots_grow(struct vocab *v, size_t n)
{
    uint32_t *s = mem_try(n * sizeof *s);
    size_t i, k;

    if (!s) {
        return 0;
    }
    for (k = 0; k < v->ntok; k++) {
        for (i = spread(v->tok[k].hash) & (n - 1); s[i]; i = (i + 1) & (n - 1)) {
        }
        s[i] = (uint32_t)k + 1;
    }
    mem_free(v->slot);
    v->slot = s;
    v->nslot = n;
    return 1;
}

void vocab_reserve(struct vocab *v, size_t tokens)
{
    size_t n = 1u << 10;

    while (n < 2 * tokens && n < (size_t)VOCAB_ID_MAX) {
        n *= 2;
    }
    if (v->ntok == 0 && v->nslot < n) {
        slots_grow(v, n); /* without it, room is made bit by bit */
    }
}

static int put(struct vocab *v, const char *s, size_t n, int32_t id)
{
    uint32_t hash = hash_more(HASH_START, s, n);
    struct vocab_token *t;
    size_t i;

    if (2 * (v->ntok + 1) > v->nslot && !slots_grow(v, v->nslot ? v->nslot * 2 : 1u << 10)) {
        return 0;
    }
    t = (struct vocab_token *)find2(v, hash, s, n, "", 0);
    if (!t) {
        if (v->ntok == v->captok &&
            !mem_grow((void **)&v->tok, &v->captok, 1u << 10, sizeof *v->tok)) {
            return 0;
        }
        while (v->pool_len + n + 1 > v->pool_cap) {
            if (v->pool_cap >= POOL_MAX ||
                !mem_grow((void **)&v->pool, &v->pool_cap, (size_t)1 << 14, 1)) {
                return 0;
            }
        }
        t = &v->tok[v->ntok];
        t->off = (uint32_t)v->pool_len;
        t->len = (uint32_t)n;
        t->hash = hash;
        memcpy(v->pool + v->pool_len, s, n);
        v->pool_len += n + 1;
        for (i = spread(hash) & (v->nslot - 1); v->slot[i]; i = (i + 1) & (v->nslot - 1)) {
        }
        v->slot[i] = (uint32_t)++v->ntok;
        v->max_bytes = n > v->max_bytes ? n : v->max_bytes;
    }
    t->id = id;
    v->max_id = id > v->max_id ? id : v->max_id;
    return 1;
}

int vocab_put(struct vocab *v, const char *text, size_t len, int32_t id, struct err *e)
{
    if (id < 0 || id > VOCAB_ID_MAX) {
        return ERR(e, STATUS_FORMAT, "vocabulary: id %d is outside 0 to %d", id, VOCAB_ID_MAX);
    }
    return put(v, text, len, id)
               ? 0
               : ERR(e, STATUS_NOMEM, "vocabulary: no memory after %zu tokens", v->ntok);
}

int vocab_read(struct vocab *v, struct jscan *s, struct err *e)
{
    if (v->ntok) {
        return ERR(e, STATUS_FORMAT, "two vocabularies in one model");
    }
    jscan_open(s, '{');
    while (!s->bad && jscan_more(s, '}')) {
        const char *key;
        size_t n;
        int64_t id;
        if (!jscan_string(s, &key, &n)) {
            break;
        }
        /* The key may lie in the scanner's buffer; a number and a colon leave that alone. */
        if (!jscan_colon(s) || !jscan_int(s, &id)) {
            break;
        }
        if (id < 0 || id > VOCAB_ID_MAX) {
            return ERR(e, STATUS_FORMAT, "vocabulary: id %lld is outside 0 to %d", (long long)id,
                       VOCAB_ID_MAX);
        }
        if (!put(v, key, n, (int32_t)id)) {
            return ERR(e, STATUS_NOMEM, "vocabulary: no memory after %zu tokens", v->ntok);
        }
    }
    if (s->bad) {
        return ERR(e, STATUS_FORMAT, "vocabulary: %s at byte %zu", s->bad,
                   (size_t)(s->p - s->start));
    }
    return 0;
}

int vocab_finish(struct vocab *v, struct err *e)
{
    size_t i;

    mem_free(v->by_id);
    v->by_id = mem_try(((size_t)v->max_id + 2) * sizeof *v->by_id);
    if (!v->by_id) {
        return ERR(e, STATUS_NOMEM, "vocabulary: no memory for ids up to %d", v->max_id);
    }
    v->plain = 1;
    for (i = 0; i < v->ntok; i++) {
        v->plain &= v->by_id[v->tok[i].id] == 0;
        v->by_id[v->tok[i].id] = (uint32_t)i + 1;
    }
    return 0;
}
