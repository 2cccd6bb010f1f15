/* Owns the vocabulary and merges of a BPE model. Token texts lie in one pool; two open-addressing
 * tables find a token by text and a merge by its pair of ids. A word is merged with a linked list
 * and a heap of candidate pairs, so a megabyte without a space costs n log n. Most words of real
 * text repeat: a small cache of finished words, locked in stripes, answers those. */
#include "text/bpe.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "text/jscan.h"
#include "text/unicode.h"

#define ID_MAX       ((1 << 24) - 1)
#define POOL_MAX     ((size_t)1 << 31)
#define WORD_MAX     ((size_t)1 << 25)
#define CACHE_SETS   32
#define CACHE_WAYS   256
#define CACHE_KEY    48
#define CACHE_TOKENS 14

struct bpe_token {
    uint32_t off, len; /* in the pool */
    uint32_t hash;
    int32_t id;
};
struct bpe_merge {
    uint32_t a, b; /* the pair; a == UINT32_MAX: free */
    uint32_t rank;
    int32_t id;
};
struct cache_entry {
    uint32_t hash;
    uint8_t len, n; /* len 0: free */
    char key[CACHE_KEY];
    int32_t ids[CACHE_TOKENS];
};
struct cache_set {
    pthread_mutex_t lock;
    struct cache_entry way[CACHE_WAYS];
};
struct bpe {
    char *pool;
    size_t pool_len, pool_cap;
    struct bpe_token *tok; /* in order of appearance */
    size_t ntok, captok;
    uint32_t *slot; /* 1 + index into tok; 0: free */
    size_t nslot;
    uint32_t *by_id; /* 1 + index into tok */
    int32_t max_id;
    struct bpe_merge *merge;
    size_t nmerge_slots;
    struct bpe_options opt;
    int32_t unk_id;
    int32_t byte_id[256]; /* first tokens of a word: of the byte alphabet, or of <0xNN> */
    struct cache_set *cache;
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

struct bpe *bpe_new(void)
{
    struct bpe *b = mem_alloc(sizeof *b);

    b->max_id = -1;
    b->unk_id = -1;
    return b;
}

void bpe_free(struct bpe *b)
{
    int i;

    if (!b) {
        return;
    }
    if (b->cache) {
        for (i = 0; i < CACHE_SETS; i++) {
            pthread_mutex_destroy(&b->cache[i].lock);
        }
    }
    mem_free(b->cache);
    mem_free(b->merge);
    mem_free(b->by_id);
    mem_free(b->slot);
    mem_free(b->tok);
    mem_free(b->pool);
    mem_free(b);
}

/* ---- the vocabulary ---- */

/* Finds the token whose text is x followed by y. */
static const struct bpe_token *find2(const struct bpe *b, uint32_t hash, const char *x, size_t nx,
                                     const char *y, size_t ny)
{
    size_t mask = b->nslot - 1;
    size_t i;

    if (b->nslot == 0) {
        return NULL;
    }
    for (i = spread(hash) & mask; b->slot[i]; i = (i + 1) & mask) {
        const struct bpe_token *t = &b->tok[b->slot[i] - 1];
        if (t->hash == hash && t->len == nx + ny && memcmp(b->pool + t->off, x, nx) == 0 &&
            memcmp(b->pool + t->off + nx, y, ny) == 0) {
            return t;
        }
    }
    return NULL;
}

static const struct bpe_token *find(const struct bpe *b, uint32_t hash, const char *s, size_t n)
{
    return find2(b, hash, s, n, "", 0);
}

int32_t bpe_id(const struct bpe *b, const char *text, size_t len)
{
    const struct bpe_token *t = find(b, hash_more(HASH_START, text, len), text, len);

    return t ? t->id : -1;
}

const char *bpe_text(const struct bpe *b, int32_t id, size_t *len)
{
    const struct bpe_token *t;

    if (id < 0 || id > b->max_id || !b->by_id[id]) {
        return NULL;
    }
    t = &b->tok[b->by_id[id] - 1];
    *len = t->len;
    return b->pool + t->off;
}

int32_t bpe_max_id(const struct bpe *b)
{
    return b->max_id;
}

size_t bpe_count(const struct bpe *b)
{
    return b->ntok;
}

/* Doubles an array of *cap items of `size` bytes. */
static int grow(void **p, size_t *cap, size_t first, size_t size)
{
    size_t n = *cap ? *cap * 2 : first;
    void *q = mem_try(n * size);

    if (!q) {
        return 0;
    }
    if (*cap) {
        memcpy(q, *p, *cap * size);
    }
    mem_free(*p);
    *p = q;
    *cap = n;
    return 1;
}

static int slots_grow(struct bpe *b)
{
    size_t n = b->nslot ? b->nslot * 2 : 1u << 17;
    uint32_t *s = mem_try(n * sizeof *s);
    size_t i, k;

    if (!s) {
        return 0;
    }
    for (k = 0; k < b->ntok; k++) {
        for (i = spread(b->tok[k].hash) & (n - 1); s[i]; i = (i + 1) & (n - 1)) {
        }
        s[i] = (uint32_t)k + 1;
    }
    mem_free(b->slot);
    b->slot = s;
    b->nslot = n;
    return 1;
}

/* Adds a token; a text seen before gets the new id. */
static int vocab_add(struct bpe *b, const char *s, size_t n, int32_t id)
{
    uint32_t hash = hash_more(HASH_START, s, n);
    struct bpe_token *t;
    size_t i;

    if (2 * (b->ntok + 1) > b->nslot && !slots_grow(b)) {
        return 0;
    }
    t = (struct bpe_token *)find(b, hash, s, n);
    if (!t) {
        if (b->ntok == b->captok && !grow((void **)&b->tok, &b->captok, 1u << 16, sizeof *b->tok)) {
            return 0;
        }
        while (b->pool_len + n + 1 > b->pool_cap) {
            if (b->pool_cap >= POOL_MAX ||
                !grow((void **)&b->pool, &b->pool_cap, (size_t)1 << 20, 1)) {
                return 0;
            }
        }
        t = &b->tok[b->ntok];
        t->off = (uint32_t)b->pool_len;
        t->len = (uint32_t)n;
        t->hash = hash;
        memcpy(b->pool + b->pool_len, s, n);
        b->pool_len += n + 1;
        for (i = spread(hash) & (b->nslot - 1); b->slot[i]; i = (i + 1) & (b->nslot - 1)) {
        }
        b->slot[i] = (uint32_t)++b->ntok;
    }
    t->id = id;
    if (id > b->max_id) {
        b->max_id = id;
    }
    return 1;
}

int bpe_read_vocab(struct bpe *b, struct jscan *s, struct err *e)
{
    size_t i;

    if (b->ntok) {
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
        if (id < 0 || id > ID_MAX) {
            return ERR(e, STATUS_FORMAT, "vocabulary: id %lld is outside 0 to %d", (long long)id,
                       ID_MAX);
        }
        if (!vocab_add(b, key, n, (int32_t)id)) {
            return ERR(e, STATUS_NOMEM, "vocabulary: no memory after %zu tokens", b->ntok);
        }
    }
    if (s->bad) {
        return ERR(e, STATUS_FORMAT, "vocabulary: %s at byte %zu", s->bad,
                   (size_t)(s->p - s->start));
    }
    b->by_id = mem_try(((size_t)b->max_id + 2) * sizeof *b->by_id);
    if (!b->by_id) {
        return ERR(e, STATUS_NOMEM, "vocabulary: no memory for ids up to %d", b->max_id);
    }
    for (i = 0; i < b->ntok; i++) {
        b->by_id[b->tok[i].id] = (uint32_t)i + 1;
    }
    return 0;
}

/* ---- the merges ---- */

static size_t pair_hash(uint32_t a, uint32_t b)
{
    uint64_t x = ((uint64_t)a << 32 | b) * UINT64_C(0x9E3779B97F4A7C15);

    return (size_t)(x >> 32 ^ x >> 47);
}

static const struct bpe_merge *merge_find(const struct bpe *b, uint32_t x, uint32_t y)
{
    size_t mask = b->nmerge_slots - 1;
    size_t i;

    if (b->nmerge_slots == 0) {
        return NULL;
    }
    for (i = pair_hash(x, y) & mask; b->merge[i].a != UINT32_MAX; i = (i + 1) & mask) {
        if (b->merge[i].a == x && b->merge[i].b == y) {
            return &b->merge[i];
        }
    }
    return NULL;
}

/* One merge while loading: its pair by position in a plain list. */
struct merge_list {
    struct bpe_merge *v;
    size_t n, cap;
};

static int merge_add(struct bpe *b, struct merge_list *l, const char *x, size_t nx, const char *y,
                     size_t ny, struct err *e)
{
    uint32_t hx = hash_more(HASH_START, x, nx);
    const struct bpe_token *tx = find(b, hx, x, nx);
    const struct bpe_token *ty = find(b, hash_more(HASH_START, y, ny), y, ny);
    const struct bpe_token *txy = find2(b, hash_more(hx, y, ny), x, nx, y, ny);

    if (!tx || !ty || !txy) {
        return ERR(e, STATUS_FORMAT,
                   "merge %zu: '%.*s' + '%.*s' is not made of tokens of the vocabulary", l->n,
                   (int)(nx > 100 ? 100 : nx), x, (int)(ny > 100 ? 100 : ny), y);
    }
    if (l->n == l->cap && !grow((void **)&l->v, &l->cap, 1u << 16, sizeof *l->v)) {
        return ERR(e, STATUS_NOMEM, "no memory after %zu merges", l->n);
    }
    l->v[l->n].a = (uint32_t)tx->id;
    l->v[l->n].b = (uint32_t)ty->id;
    l->v[l->n].rank = (uint32_t)l->n;
    l->v[l->n].id = txy->id;
    l->n++;
    return 0;
}

/* "a b" */
static int merge_add_line(struct bpe *b, struct merge_list *l, const char *s, size_t n,
                          struct err *e)
{
    const char *sp = memchr(s, ' ', n);

    if (n >= 8 && memcmp(s, "#version", 8) == 0) {
        return 0; /* the first line of a merges.txt */
    }
    if (!sp || memchr(sp + 1, ' ', n - (size_t)(sp + 1 - s))) {
        return ERR(e, STATUS_FORMAT, "merge %zu: '%.*s' is not two tokens", l->n,
                   (int)(n > 200 ? 200 : n), s);
    }
    return merge_add(b, l, s, (size_t)(sp - s), sp + 1, n - (size_t)(sp + 1 - s), e);
}

/* ["a", "b"]; the scanner is before the bracket. */
static int merge_add_pair(struct bpe *b, struct merge_list *l, struct jscan *s, struct err *e)
{
    const char *x = NULL;
    const char *y = NULL;
    char *copy = NULL;
    size_t nx = 0;
    size_t ny = 0;
    int rc = 0;

    if (jscan_open(s, '[') && jscan_more(s, ']') && jscan_string(s, &x, &nx)) {
        if (x == s->tmp.data) { /* the next string may use the same buffer */
            x = copy = mem_strndup(x, nx);
        }
        if (!jscan_more(s, ']') || !jscan_string(s, &y, &ny) || jscan_more(s, ']')) {
            jscan_fail(s, "a pair of strings was expected");
        }
    } else {
        jscan_fail(s, "a pair of strings was expected");
    }
    if (!s->bad) {
        rc = merge_add(b, l, x, nx, y, ny, e);
    }
    mem_free(copy);
    return rc;
}

/* The list becomes a table; a pair given twice keeps its last rank, as in the package. */
static int merge_table(struct bpe *b, const struct merge_list *l)
{
    size_t n = 64;
    size_t i, k;

    while (n < 2 * l->n) {
        n *= 2;
    }
    mem_free(b->merge);
    b->merge = mem_try(n * sizeof *b->merge);
    if (!b->merge) {
        b->nmerge_slots = 0;
        return 0;
    }
    b->nmerge_slots = n;
    memset(b->merge, 0xFF, n * sizeof *b->merge);
    for (k = 0; k < l->n; k++) {
        for (i = pair_hash(l->v[k].a, l->v[k].b) & (n - 1); b->merge[i].a != UINT32_MAX;
             i = (i + 1) & (n - 1)) {
            if (b->merge[i].a == l->v[k].a && b->merge[i].b == l->v[k].b) {
                break;
            }
        }
        b->merge[i] = l->v[k];
    }
    return 1;
}

int bpe_read_merges(struct bpe *b, struct jscan *s, struct err *e)
{
    struct merge_list l = {0};
    int rc = 0;

    if (b->merge) {
        return ERR(e, STATUS_FORMAT, "two lists of merges in one model");
    }
    jscan_open(s, '[');
    while (!s->bad && rc == 0 && jscan_more(s, ']')) {
        const char *v;
        size_t n;
        if (jscan_peek(s) == '[') {
            rc = merge_add_pair(b, &l, s, e);
        } else if (jscan_string(s, &v, &n)) {
            rc = merge_add_line(b, &l, v, n, e);
        }
    }
    if (rc == 0 && s->bad) {
        rc = ERR(e, STATUS_FORMAT, "merges: %s at byte %zu", s->bad, (size_t)(s->p - s->start));
    }
    if (rc == 0 && !merge_table(b, &l)) {
        rc = ERR(e, STATUS_NOMEM, "no memory for %zu merges", l.n);
    }
    mem_free(l.v);
    return rc;
}

int bpe_finish(struct bpe *b, const struct bpe_options *o, struct err *e)
{
    int i;

    if (b->ntok == 0) {
        return ERR(e, STATUS_FORMAT, "the model has no vocabulary");
    }
    b->opt = *o;
    b->opt.unk_token = NULL; /* the caller's memory; its id is what is needed */
    if (o->unk_token) {
        b->unk_id = bpe_id(b, o->unk_token, strlen(o->unk_token));
        if (b->unk_id < 0) {
            return ERR(e, STATUS_FORMAT, "unk_token '%s' is not in the vocabulary", o->unk_token);
        }
    }
    for (i = 0; i < 256; i++) {
        char t[8];
        size_t n = o->byte_level ? unicode_put(unicode_byte_char((uint8_t)i), t)
                                 : (size_t)snprintf(t, sizeof t, "<0x%02X>", (unsigned)i);
        b->byte_id[i] = bpe_id(b, t, n);
    }
    b->cache = mem_alloc(CACHE_SETS * sizeof *b->cache);
    for (i = 0; i < CACHE_SETS; i++) {
        pthread_mutex_init(&b->cache[i].lock, NULL);
    }
    return 0;
}

/* ---- one word ---- */

int bpe_ids_add(struct bpe_ids *l, const int32_t *ids, size_t n)
{
    if (l->n + n > l->cap) {
        size_t cap = l->cap ? l->cap : 64;
        int32_t *v;
        while (cap < l->n + n) {
            cap *= 2;
        }
        v = mem_try(cap * sizeof *v);
        if (!v) {
            return STATUS_NOMEM;
        }
        if (l->n) {
            memcpy(v, l->v, l->n * sizeof *v);
        }
        mem_free(l->v);
        l->v = v;
        l->cap = cap;
    }
    if (n) {
        memcpy(l->v + l->n, ids, n * sizeof *ids);
    }
    l->n += n;
    return 0;
}

struct symbol {
    int32_t id;
    int32_t prev, next; /* -1: none; next -2: merged away */
};
struct candidate {
    uint32_t rank;
    int32_t pos;
    int32_t id;
};
struct word {
    struct symbol *sym;
    struct candidate *heap;
    size_t nsym, nheap;
};

static void symbol_add(struct word *w, int32_t id)
{
    struct symbol *s = &w->sym[w->nsym];

    s->id = id;
    s->prev = (int32_t)w->nsym - 1;
    s->next = -1;
    if (w->nsym) {
        w->sym[w->nsym - 1].next = (int32_t)w->nsym;
    }
    w->nsym++;
}

/* What a character outside the vocabulary does. `pending` is an unknown token not yet written: it
 * is written before the next known one, and with fuse_unk stands for all characters since. */
static void symbol_unknown(const struct bpe *b, struct word *w, const char *s, size_t n,
                           int *pending)
{
    size_t i;

    if (b->opt.byte_fallback && !b->opt.byte_level) {
        for (i = 0; i < n && b->byte_id[(unsigned char)s[i]] >= 0; i++) {
        }
        if (i == n) {
            for (i = 0; i < n; i++) {
                symbol_add(w, b->byte_id[(unsigned char)s[i]]);
            }
            return;
        }
    }
    if (b->unk_id < 0) {
        return;
    }
    if (*pending && !b->opt.fuse_unk) {
        symbol_add(w, b->unk_id);
    }
    *pending = 1;
}

static void symbols_init(const struct bpe *b, struct word *w, const char *s, size_t n)
{
    size_t i = 0;
    int pending = 0;

    while (i < n) {
        size_t k = b->opt.byte_level ? 1 : unicode_width((unsigned char)s[i]);
        int32_t id = b->opt.byte_level ? b->byte_id[(unsigned char)s[i]] : bpe_id(b, s + i, k);
        if (id >= 0) {
            if (pending) {
                symbol_add(w, b->unk_id);
                pending = 0;
            }
            symbol_add(w, id);
        } else {
            symbol_unknown(b, w, s + i, k, &pending);
        }
        i += k;
    }
    if (pending) {
        symbol_add(w, b->unk_id);
    }
}

static int before(const struct candidate *x, const struct candidate *y)
{
    return x->rank != y->rank ? x->rank < y->rank : x->pos < y->pos;
}

static void heap_push(struct word *w, struct candidate c)
{
    size_t i = w->nheap++;

    while (i > 0 && before(&c, &w->heap[(i - 1) / 2])) {
        w->heap[i] = w->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w->heap[i] = c;
}

static struct candidate heap_pop(struct word *w)
{
    struct candidate top = w->heap[0];
    struct candidate last = w->heap[--w->nheap];
    size_t i = 0;

    for (;;) {
        size_t k = 2 * i + 1;
        if (k >= w->nheap) {
            break;
        }
        if (k + 1 < w->nheap && before(&w->heap[k + 1], &w->heap[k])) {
            k++;
        }
        if (!before(&w->heap[k], &last)) {
            break;
        }
        w->heap[i] = w->heap[k];
        i = k;
    }
    w->heap[i] = last;
    return top;
}

/* The pair that starts at symbol `pos` becomes a candidate if it is a merge. */
static void offer(const struct bpe *b, struct word *w, int32_t pos)
{
    const struct symbol *s = &w->sym[pos];
    const struct bpe_merge *m = merge_find(b, (uint32_t)s->id, (uint32_t)w->sym[s->next].id);

    if (m) {
        struct candidate c = {m->rank, pos, m->id};
        heap_push(w, c);
    }
}

static void merge_all(const struct bpe *b, struct word *w)
{
    size_t i;

    for (i = 0; i + 1 < w->nsym; i++) {
        offer(b, w, (int32_t)i);
    }
    while (w->nheap) {
        struct candidate c = heap_pop(w);
        struct symbol *s = &w->sym[c.pos];
        const struct bpe_merge *m;
        struct symbol *right;
        if (s->next < 0) {
            continue;
        }
        right = &w->sym[s->next];
        /* A stale candidate: its pair has changed. Like the package, the result decides, not the
         * rank: another pair with the same result is merged at this candidate's turn. */
        m = merge_find(b, (uint32_t)s->id, (uint32_t)right->id);
        if (!m || m->id != c.id) {
            continue;
        }
        s->id = c.id;
        s->next = right->next;
        right->next = -2;
        if (s->next >= 0) {
            w->sym[s->next].prev = c.pos;
        }
        if (s->prev >= 0) {
            offer(b, w, s->prev);
        }
        if (s->next >= 0) {
            offer(b, w, c.pos);
        }
    }
}

/* Collapses the symbol list into ids, in place at the front of the symbols. */
static int emit(const struct word *w, struct bpe_ids *out)
{
    int32_t buf[256];
    size_t n = 0;
    int32_t i;

    for (i = w->nsym ? 0 : -1; i >= 0; i = w->sym[i].next) {
        buf[n++] = w->sym[i].id;
        if (n == sizeof buf / sizeof *buf) {
            if (bpe_ids_add(out, buf, n)) {
                return STATUS_NOMEM;
            }
            n = 0;
        }
    }
    return bpe_ids_add(out, buf, n);
}

#define SMALL 64

static int merge_word(const struct bpe *b, const char *s, size_t n, struct bpe_ids *out,
                      struct err *e)
{
    struct symbol small_sym[SMALL];
    struct candidate small_heap[3 * SMALL];
    struct word w = {small_sym, small_heap, 0, 0};
    void *big = NULL;
    int rc;

    if (n > WORD_MAX) {
        return ERR(e, STATUS_INPUT, "a word of %zu bytes is too long to tokenize", n);
    }
    if (n > SMALL) {
        /* Each of the n - 1 first pairs and two after each merge may wait in the heap. */
        big = mem_try(n * (sizeof *w.sym + 3 * sizeof *w.heap));
        if (!big) {
            return ERR(e, STATUS_NOMEM, "no memory to tokenize a word of %zu bytes", n);
        }
        w.sym = big;
        w.heap = (struct candidate *)(w.sym + n);
    }
    symbols_init(b, &w, s, n);
    merge_all(b, &w);
    rc = emit(&w, out);
    if (rc) {
        rc = ERR(e, STATUS_NOMEM, "no memory for %zu tokens", out->n);
    }
    mem_free(big);
    return rc;
}

/* The token that is the whole word, or -1. */
static int32_t whole_word(const struct bpe *b, const char *s, size_t n)
{
    char t[512];
    size_t i;
    size_t o = 0;

    if (!b->opt.byte_level) {
        return bpe_id(b, s, n);
    }
    if (n > sizeof t / 2) {
        char *big = mem_try(2 * n);
        int32_t id;
        if (!big) {
            return -1;
        }
        for (i = 0; i < n; i++) {
            o += unicode_put(unicode_byte_char((uint8_t)s[i]), big + o);
        }
        id = bpe_id(b, big, o);
        mem_free(big);
        return id;
    }
    for (i = 0; i < n; i++) {
        o += unicode_put(unicode_byte_char((uint8_t)s[i]), t + o);
    }
    return bpe_id(b, t, o);
}

static struct cache_entry *cache_lock(const struct bpe *b, uint32_t hash, struct cache_set **set)
{
    size_t h = spread(hash);

    *set = &b->cache[h % CACHE_SETS];
    pthread_mutex_lock(&(*set)->lock);
    return &(*set)->way[h / CACHE_SETS % CACHE_WAYS];
}

int bpe_encode(const struct bpe *b, const char *word, size_t len, struct bpe_ids *out,
               struct err *e)
{
    struct cache_set *set;
    struct cache_entry *c;
    size_t first = out->n;
    uint32_t hash;
    int rc = 0;

    if (len == 0) {
        return 0;
    }
    if (b->opt.ignore_merges) {
        int32_t id = whole_word(b, word, len);
        if (id >= 0) {
            return bpe_ids_add(out, &id, 1)
                       ? ERR(e, STATUS_NOMEM, "no memory for %zu tokens", out->n)
                       : 0;
        }
    }
    if (len > CACHE_KEY) {
        return merge_word(b, word, len, out, e);
    }
    hash = hash_more(HASH_START, word, len);
    c = cache_lock(b, hash, &set);
    if (c->hash == hash && c->len == len && memcmp(c->key, word, len) == 0) {
        rc = bpe_ids_add(out, c->ids, c->n);
        pthread_mutex_unlock(&set->lock);
        return rc ? ERR(e, STATUS_NOMEM, "no memory for %zu tokens", out->n) : 0;
    }
    pthread_mutex_unlock(&set->lock);
    rc = merge_word(b, word, len, out, e);
    if (rc == 0 && out->n > first && out->n - first <= CACHE_TOKENS) {
        c = cache_lock(b, hash, &set);
        c->hash = hash;
        c->len = (uint8_t)len;
        c->n = (uint8_t)(out->n - first);
        memcpy(c->key, word, len);
        memcpy(c->ids, out->v + first, c->n * sizeof *c->ids);
        pthread_mutex_unlock(&set->lock);
    }
    return rc;
}
