/* Owns a table of words and their ids that threads read and write without locks. Each entry is two
 * cache lines of 64-bit words behind a header with a sequence number: odd while it is written, and
 * a reader takes what it copied only if the header was the same before and after. Two entries share
 * a place, so that a rare word does not push out a frequent one. */
#include "text/wordcache.h"

#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "text/tokids.h"

#define ENTRIES_MIN 64u
#define ENTRIES_MAX (1u << 15)

/* Header: hash in the upper half, then 8 bits of length, 8 of the number of ids, 16 of sequence. */
struct entry {
    _Atomic uint64_t head;
    _Atomic uint64_t key[WORDCACHE_WORDS];
    _Atomic uint64_t ids[WORDCACHE_IDS / 2];
};
struct wordcache {
    struct entry *entry;
    size_t n; /* a power of two */
};

struct wordcache *wordcache_new(size_t tokens)
{
    struct wordcache *c = mem_alloc(sizeof *c);

    c->n = ENTRIES_MIN;
    while (c->n < ENTRIES_MAX && c->n < tokens) {
        c->n *= 2;
    }
    c->entry = mem_try(c->n * sizeof *c->entry);
    if (!c->entry) {
        mem_free(c);
        return NULL;
    }
    return c;
}

void wordcache_free(struct wordcache *c)
{
    if (c) {
        mem_free(c->entry);
        mem_free(c);
    }
}

static uint64_t load64(const char *s)
{
    uint64_t v;
    memcpy(&v, s, sizeof v);
    return v;
}

static uint64_t load32(const char *s)
{
    uint32_t v;
    memcpy(&v, s, sizeof v);
    return v;
}

/* The bytes of a string of 1 to 8, zeros above; reads nothing beyond them. */
static uint64_t load_tail(const char *s, size_t n)
{
    if (n == 8) {
        return load64(s);
    }
    if (n >= 4) {
        return load32(s) | load32(s + n - 4) << (8 * (n - 4));
    }
    return (uint64_t)(unsigned char)s[0] | (uint64_t)(unsigned char)s[n / 2] << (8 * (n / 2)) |
           (uint64_t)(unsigned char)s[n - 1] << (8 * (n - 1));
}

int wordcache_key(struct wordcache_key *k, const char *s, size_t len)
{
    uint64_t h = len * UINT64_C(0x9E3779B97F4A7C15);
    unsigned n = 0;

    if (len - 1 >= WORDCACHE_BYTES) { /* 0 wraps */
        return 0;
    }
    k->len = (unsigned)len;
    for (;;) {
        uint64_t w = len > 8 ? load64(s) : load_tail(s, len);
        k->w[n++] = w;
        h = (h ^ w) * UINT64_C(0xD6E8FEB86659FD93);
        h ^= h >> 32;
        if (len <= 8) {
            break;
        }
        s += 8;
        len -= 8;
    }
    k->n = n;
    k->hash = h * UINT64_C(0xD6E8FEB86659FD93);
    return 1;
}

static uint64_t head_of(const struct wordcache_key *k, uint64_t n, uint64_t seq)
{
    return (k->hash >> 32) << 32 | (uint64_t)k->len << 24 | n << 16 | (seq & 0xFFFF);
}

static struct entry *pair_of(const struct wordcache *c, const struct wordcache_key *k)
{
    return &c->entry[(k->hash & (c->n / 2 - 1)) * 2];
}

static int entry_get(struct entry *en, const struct wordcache_key *k, struct tokids *out)
{
    uint64_t head = atomic_load_explicit(&en->head, memory_order_acquire);
    uint64_t ids[WORDCACHE_IDS / 2];
    unsigned n = (unsigned)(head >> 16) & 0xFF;
    unsigned i;

    if ((head ^ head_of(k, 0, 0)) >> 24 || (head & 1)) {
        return 0;
    }
    for (i = 0; i < k->n; i++) {
        if (atomic_load_explicit(&en->key[i], memory_order_acquire) != k->w[i]) {
            return 0;
        }
    }
    for (i = 0; i < (n + 1) / 2; i++) {
        ids[i] = atomic_load_explicit(&en->ids[i], memory_order_acquire);
    }
    if (atomic_load_explicit(&en->head, memory_order_relaxed) != head) {
        return 0;
    }
    if (out->cap - out->n < WORDCACHE_IDS && tokids_grow(out, WORDCACHE_IDS)) {
        return STATUS_NOMEM;
    }
    for (i = 0; i < n; i++) {
        out->v[out->n + i] = (int32_t)(uint32_t)(ids[i / 2] >> (i % 2 * 32));
    }
    out->n += n;
    return 1;
}

int wordcache_get(const struct wordcache *c, const struct wordcache_key *k, struct tokids *out)
{
    struct entry *en = pair_of(c, k);
    int rc = entry_get(en, k, out);

    return rc ? rc : entry_get(en + 1, k, out);
}

void wordcache_put(struct wordcache *c, const struct wordcache_key *k, const struct tokids *l,
                   size_t first)
{
    struct entry *en = pair_of(c, k);
    size_t n = l->n - first;
    uint64_t head;
    unsigned i;

    if (n > WORDCACHE_IDS) {
        return;
    }
    /* A free one of the two, else one by the hash. */
    if (atomic_load_explicit(&en->head, memory_order_relaxed) &&
        (!atomic_load_explicit(&en[1].head, memory_order_relaxed) || (k->hash >> 31 & 1))) {
        en++;
    }
    head = atomic_load_explicit(&en->head, memory_order_relaxed);
    if ((head & 1) || !atomic_compare_exchange_strong_explicit(
                          &en->head, &head, head | 1, memory_order_acq_rel, memory_order_relaxed)) {
        return; /* another thread writes here */
    }
    for (i = 0; i < k->n; i++) {
        atomic_store_explicit(&en->key[i], k->w[i], memory_order_release);
    }
    for (i = 0; i < n; i += 2) {
        uint64_t hi = i + 1 < n ? (uint32_t)l->v[first + i + 1] : 0;
        atomic_store_explicit(&en->ids[i / 2], (uint32_t)l->v[first + i] | hi << 32,
                              memory_order_release);
    }
    atomic_store_explicit(&en->head, head_of(k, n, (head & 0xFFFF) + 2), memory_order_release);
}

int wordcache_encode(struct wordcache *c, const char *word, size_t len, wordcache_fn *fn,
                     const void *model, struct tokids *out, struct err *e)
{
    struct wordcache_key key;
    size_t first = out->n;
    int rc;

    if (!wordcache_key(&key, word, len)) {
        return fn(model, word, len, out, e);
    }
    rc = wordcache_get(c, &key, out);
    if (rc) {
        return rc < 0 ? ERR(e, STATUS_NOMEM, "no memory for %zu tokens", out->n) : 0;
    }
    rc = fn(model, word, len, out, e);
    if (rc == 0) {
        wordcache_put(c, &key, out, first);
    }
    return rc;
}
