/* Owns the merges of a BPE model and the merging of words. Most words of real text repeat and come
 * from a cache. A short word is merged by looking for the lowest rank again and again; a long one
 * with a linked list and a heap of candidate pairs, so a megabyte without a space costs n log n.
 *
 * A model without a pre-tokenizer gets whole texts as words. Such a text is cut first wherever no
 * merge could ever join the two neighbouring characters: nothing changes for the tokens, and the
 * parts are short words that repeat. */
#include "text/bpe.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "text/jscan.h"
#include "text/unicode.h"
#include "text/vocab.h"
#include "text/wordcache.h"

#define WORD_MAX   ((size_t)1 << 25)
#define SHORT      40 /* symbols of a word that is merged by scanning */
#define SMALL      96 /* symbols of a word that needs no memory */
#define CUT_MIN    24 /* bytes below which a word is not cut */
#define JOINT_BITS 20
#define CHAR_IDS   0x10000
#define NO_RANK    UINT32_MAX
#define RANK_BITS  22
#define ID_BITS    21
#define EMPTY      UINT64_MAX
#define AFFIX_MAX  256

struct bpe {
    const struct vocab *v;
    struct bpe_options opt;
    char *prefix, *suffix;
    size_t nprefix, nsuffix;
    uint64_t *slot; /* of pairs: left id, right id, rank; EMPTY where free */
    size_t nslot;
    uint64_t *list; /* while loading: the pair of each rank, the rank itself 0 */
    size_t nlist, caplist;
    int32_t *made; /* what the pair of a rank becomes */
    size_t capmade;
    int32_t unk_id;
    int32_t byte_id[256]; /* first tokens of a word: of the byte alphabet, or of <0xNN> */
    uint32_t *byte_rank;  /* (256, 256) byte level: rank of two bytes side by side */
    int32_t *char_id;     /* else: tokens of the characters below CHAR_IDS; -1 none */
    uint64_t *joints;     /* a bit for each pair of characters that some merge joins, hashed */
    struct wordcache *cache;
    int single; /* a word of one byte is that byte's token */
};

struct bpe *bpe_new(const struct vocab *v)
{
    struct bpe *b = mem_alloc(sizeof *b);

    b->v = v;
    b->unk_id = -1;
    return b;
}

void bpe_free(struct bpe *b)
{
    if (b) {
        wordcache_free(b->cache);
        mem_free(b->joints);
        mem_free(b->char_id);
        mem_free(b->byte_rank);
        mem_free(b->made);
        mem_free(b->list);
        mem_free(b->slot);
        mem_free(b->prefix);
        mem_free(b->suffix);
        mem_free(b);
    }
}

/* ---- the merges ---- */

static uint64_t pair_of(uint32_t a, uint32_t b)
{
    return (uint64_t)a << (ID_BITS + RANK_BITS) | (uint64_t)b << RANK_BITS;
}

static size_t pair_hash(uint64_t pair)
{
    uint64_t x = (pair >> RANK_BITS) * UINT64_C(0x9E3779B97F4A7C15);

    return (size_t)(x >> 32 ^ x >> 47);
}

/* The rank of a pair, or NO_RANK. */
static inline uint32_t rank_of(const struct bpe *b, uint32_t x, uint32_t y)
{
    uint64_t pair = pair_of(x, y);
    size_t mask = b->nslot - 1;
    size_t i;

    for (i = pair_hash(pair) & mask; b->slot[i] != EMPTY; i = (i + 1) & mask) {
        if ((b->slot[i] ^ pair) >> RANK_BITS == 0) {
            return (uint32_t)(b->slot[i] & (((uint64_t)1 << RANK_BITS) - 1));
        }
    }
    return NO_RANK;
}

void bpe_set_prefix(struct bpe *b, const char *prefix)
{
    mem_free(b->prefix);
    b->prefix = mem_strdup(prefix);
    b->nprefix = prefix ? strlen(prefix) : 0;
}

int bpe_merge(struct bpe *b, const char *x, size_t nx, const char *y, size_t ny, struct err *e)
{
    size_t cut = b->nprefix < ny ? b->nprefix : ny; /* the right part's prefix is left out */
    int32_t ix = vocab_id(b->v, x, nx);
    int32_t iy = vocab_id(b->v, y, ny);
    int32_t ixy = vocab_id2(b->v, x, nx, y + cut, ny - cut);

    if (ix < 0 || iy < 0 || ixy < 0) {
        return ERR(e, STATUS_FORMAT,
                   "merge %zu: '%.*s' + '%.*s' is not made of tokens of the vocabulary", b->nlist,
                   (int)(nx > 100 ? 100 : nx), x, (int)(ny > 100 ? 100 : ny), y);
    }
    if (b->nlist + 1 >= (size_t)1 << RANK_BITS) {
        return ERR(e, STATUS_UNSUPPORTED, "more than %zu merges", b->nlist);
    }
    if ((b->nlist == b->caplist &&
         !mem_grow((void **)&b->list, &b->caplist, 1024, sizeof *b->list)) ||
        (b->nlist == b->capmade &&
         !mem_grow((void **)&b->made, &b->capmade, 1024, sizeof *b->made))) {
        return ERR(e, STATUS_NOMEM, "no memory after %zu merges", b->nlist);
    }
    b->list[b->nlist] = pair_of((uint32_t)ix, (uint32_t)iy);
    b->made[b->nlist++] = ixy;
    return 0;
}

/* "a b" */
static int merge_line(struct bpe *b, const char *s, size_t n, struct err *e)
{
    const char *sp = memchr(s, ' ', n);

    if (n >= 8 && memcmp(s, "#version", 8) == 0) {
        return 0; /* the first line of a merges.txt */
    }
    if (!sp || memchr(sp + 1, ' ', n - (size_t)(sp + 1 - s))) {
        return ERR(e, STATUS_FORMAT, "merge %zu: '%.*s' is not two tokens", b->nlist,
                   (int)(n > 200 ? 200 : n), s);
    }
    return bpe_merge(b, s, (size_t)(sp - s), sp + 1, n - (size_t)(sp + 1 - s), e);
}

/* ["a", "b"]; the scanner is before the bracket. */
static int merge_pair(struct bpe *b, struct jscan *s, struct err *e)
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
        rc = bpe_merge(b, x, nx, y, ny, e);
    }
    mem_free(copy);
    return rc;
}

int bpe_read_merges(struct bpe *b, struct jscan *s, struct err *e)
{
    int rc = 0;

    if (b->nlist) {
        return ERR(e, STATUS_FORMAT, "two lists of merges in one model");
    }
    jscan_open(s, '[');
    while (!s->bad && rc == 0 && jscan_more(s, ']')) {
        const char *v;
        size_t n;
        if (jscan_peek(s) == '[') {
            rc = merge_pair(b, s, e);
        } else if (jscan_string(s, &v, &n)) {
            rc = merge_line(b, v, n, e);
        }
    }
    if (rc == 0 && s->bad) {
        rc = ERR(e, STATUS_FORMAT, "merges: %s at byte %zu", s->bad, (size_t)(s->p - s->start));
    }
    return rc;
}

/* ---- the end of loading ---- */

/* The list becomes a table; a pair given twice keeps its last rank, as in the package. */
static int merge_table(struct bpe *b)
{
    size_t n = 64;
    size_t i, k;

    while (n < 2 * b->nlist) {
        n *= 2;
    }
    b->slot = mem_try(n * sizeof *b->slot);
    if (!b->slot) {
        return 0;
    }
    b->nslot = n;
    memset(b->slot, 0xFF, n * sizeof *b->slot);
    for (k = 0; k < b->nlist; k++) {
        for (i = pair_hash(b->list[k]) & (n - 1); b->slot[i] != EMPTY; i = (i + 1) & (n - 1)) {
            if ((b->slot[i] ^ b->list[k]) >> RANK_BITS == 0) {
                break;
            }
        }
        b->slot[i] = b->list[k] | k;
    }
    return 1;
}

static size_t joint_bit(uint32_t a, uint32_t b)
{
    uint64_t x = ((uint64_t)a << 32 | b) * UINT64_C(0x9E3779B97F4A7C15);

    return (size_t)(x >> (64 - JOINT_BITS));
}

/* Marks the characters at the inner ends of every merge. A merged token's text is the text of its
 * parts, so no other pair of neighbouring characters is ever joined. */
static int mark_joints(struct bpe *b)
{
    size_t i;

    if (!vocab_is_plain(b->v)) {
        return 1;
    }
    b->joints = mem_try(((size_t)1 << JOINT_BITS) / 8);
    if (!b->joints) {
        return 0;
    }
    for (i = 0; i < b->nlist; i++) {
        int32_t x = (int32_t)(b->list[i] >> (ID_BITS + RANK_BITS));
        int32_t y = (int32_t)(b->list[i] >> RANK_BITS & (((uint64_t)1 << ID_BITS) - 1));
        size_t nx, ny, bit;
        const char *sx = vocab_text(b->v, x, &nx);
        const char *sy = vocab_text(b->v, y, &ny);
        uint32_t cx, cy;
        if (nx == 0 || ny == 0) {
            mem_free(b->joints); /* an empty text has no ends: whole words then */
            b->joints = NULL;
            return 1;
        }
        unicode_prev(sx, nx, &cx);
        unicode_next(sy, &cy);
        bit = joint_bit(cx, cy);
        b->joints[bit / 64] |= (uint64_t)1 << bit % 64;
    }
    return 1;
}

static int first_tokens(struct bpe *b)
{
    uint32_t i, k;
    size_t j;

    for (i = 0; i < 256; i++) {
        char t[8];
        size_t n = b->opt.byte_level ? unicode_put(unicode_byte_char((uint8_t)i), t)
                                     : (size_t)snprintf(t, sizeof t, "<0x%02X>", (unsigned)i);
        b->byte_id[i] = vocab_id(b->v, t, n);
    }
    if (b->opt.byte_level) {
        b->byte_rank = mem_try(65536 * sizeof *b->byte_rank);
        for (i = 0; b->byte_rank && i < 256; i++) {
            for (k = 0; k < 256; k++) {
                b->byte_rank[i << 8 | k] =
                    b->byte_id[i] < 0 || b->byte_id[k] < 0
                        ? NO_RANK
                        : rank_of(b, (uint32_t)b->byte_id[i], (uint32_t)b->byte_id[k]);
            }
        }
        return b->byte_rank != NULL;
    }
    b->char_id = mem_try(CHAR_IDS * sizeof *b->char_id);
    if (b->char_id) {
        memset(b->char_id, 0xFF, CHAR_IDS * sizeof *b->char_id);
    }
    for (j = 0; b->char_id && j < vocab_count(b->v); j++) {
        size_t n;
        int32_t id;
        const char *text = vocab_at(b->v, j, &n, &id);
        uint32_t cp = CHAR_IDS;
        if (n > 0 && n == unicode_width((unsigned char)*text)) {
            unicode_next(text, &cp);
        }
        if (cp < CHAR_IDS) {
            b->char_id[cp] = id;
        }
    }
    return b->char_id != NULL;
}

int bpe_finish(struct bpe *b, const struct bpe_options *o, struct err *e)
{
    if (vocab_count(b->v) == 0) {
        return ERR(e, STATUS_FORMAT, "the model has no vocabulary");
    }
    b->opt = *o;
    b->opt.unk_token = b->opt.prefix = b->opt.suffix = NULL; /* the caller's memory */
    bpe_set_prefix(b, o->prefix);
    b->suffix = mem_strdup(o->suffix);
    b->nsuffix = o->suffix ? strlen(o->suffix) : 0;
    if (b->nprefix > AFFIX_MAX || b->nsuffix > AFFIX_MAX) {
        return ERR(e, STATUS_UNSUPPORTED, "a prefix or suffix of more than %d bytes", AFFIX_MAX);
    }
    if (o->unk_token) {
        b->unk_id = vocab_id(b->v, o->unk_token, strlen(o->unk_token));
        if (b->unk_id < 0) {
            return ERR(e, STATUS_FORMAT, "unk_token '%s' is not in the vocabulary", o->unk_token);
        }
    }
    b->cache = wordcache_new(vocab_count(b->v));
    if (!b->cache || !merge_table(b) || !first_tokens(b) ||
        (!o->byte_level && !o->ignore_merges && !b->nprefix && !b->nsuffix && !mark_joints(b))) {
        return ERR(e, STATUS_NOMEM, "no memory for %zu merges", b->nlist);
    }
    b->single = o->byte_level && !b->nprefix && !b->nsuffix;
    mem_free(b->list);
    b->list = NULL;
    return 0;
}

/* ---- the first symbols of a word ---- */

struct symbol {
    int32_t id;
    int32_t prev, next; /* -1: none; next -2: merged away */
};
struct candidate {
    uint32_t rank;
    int32_t pos;
};
struct word {
    int32_t *id; /* first symbols; the tokens at the end */
    size_t n;
};

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
                w->id[w->n++] = b->byte_id[(unsigned char)s[i]];
            }
            return;
        }
    }
    if (b->unk_id < 0) {
        return;
    }
    if (*pending && !b->opt.fuse_unk) {
        w->id[w->n++] = b->unk_id;
    }
    *pending = 1;
}

static int32_t char_id(const struct bpe *b, const char *s, size_t *k)
{
    uint32_t cp;

    *k = unicode_next(s, &cp);
    return cp < CHAR_IDS ? b->char_id[cp] : vocab_id(b->v, s, *k);
}

/* A character with what the model puts around it by its place in the word: `text` and *len. */
static int32_t affixed_id(const struct bpe *b, const char *s, size_t k, int first, int last,
                          char *text, size_t *len)
{
    size_t o = 0;

    if (!first) {
        memcpy(text, b->prefix ? b->prefix : "", b->nprefix);
        o = b->nprefix;
    }
    memcpy(text + o, s, k);
    o += k;
    if (last) {
        memcpy(text + o, b->suffix ? b->suffix : "", b->nsuffix);
        o += b->nsuffix;
    }
    *len = o;
    return vocab_id(b->v, text, o);
}

static void symbols_affixed(const struct bpe *b, struct word *w, const char *s, size_t n)
{
    char text[2 * AFFIX_MAX + 8];
    int pending = 0;
    size_t i, k, len;

    for (i = 0; i < n; i += k) {
        int32_t id;
        char byte[4];
        const char *c = s + i;
        size_t nc;
        k = b->opt.byte_level ? 1 : unicode_width((unsigned char)s[i]);
        nc = k;
        if (b->opt.byte_level) {
            nc = unicode_put(unicode_byte_char((uint8_t)s[i]), byte);
            c = byte;
        }
        id = affixed_id(b, c, nc, i == 0, i + k == n, text, &len);
        if (id < 0) {
            symbol_unknown(b, w, s + i, k, &pending);
            continue;
        }
        if (pending) {
            w->id[w->n++] = b->unk_id;
            pending = 0;
        }
        w->id[w->n++] = id;
    }
    if (pending) {
        w->id[w->n++] = b->unk_id;
    }
}

static void symbols_init(const struct bpe *b, struct word *w, const char *s, size_t n)
{
    size_t i = 0;
    int pending = 0;

    if (b->nprefix || b->nsuffix) {
        symbols_affixed(b, w, s, n);
        return;
    }
    while (i < n) {
        size_t k = 1;
        int32_t id = b->opt.byte_level ? b->byte_id[(unsigned char)s[i]] : char_id(b, s + i, &k);
        if (id >= 0) {
            if (pending) {
                w->id[w->n++] = b->unk_id;
                pending = 0;
            }
            w->id[w->n++] = id;
        } else {
            symbol_unknown(b, w, s + i, k, &pending);
        }
        i += k;
    }
    if (pending) {
        w->id[w->n++] = b->unk_id;
    }
}

/* ---- merging a short word ---- */

/* The ranks of neighbours side by side; the lowest is taken until none is left. `bytes` is the word
 * itself when every byte of it became a symbol. */
static void merge_short(const struct bpe *b, struct word *w, const char *bytes)
{
    uint32_t rank[SHORT];
    int32_t *id = w->id;
    size_t n = w->n;
    size_t i;

    for (i = 0; i + 1 < n; i++) {
        rank[i] = bytes ? b->byte_rank[(unsigned char)bytes[i] << 8 | (unsigned char)bytes[i + 1]]
                        : rank_of(b, (uint32_t)id[i], (uint32_t)id[i + 1]);
    }
    while (n > 1) {
        uint32_t low = NO_RANK;
        size_t at = 0;
        for (i = 0; i + 1 < n; i++) {
            if (rank[i] < low) {
                low = rank[i];
                at = i;
            }
        }
        if (low == NO_RANK) {
            break;
        }
        id[at] = b->made[low];
        n--;
        memmove(id + at + 1, id + at + 2, (n - at - 1) * sizeof *id);
        if (at + 1 < n) {
            memmove(rank + at + 1, rank + at + 2, (n - at - 2) * sizeof *rank);
            rank[at] = rank_of(b, (uint32_t)id[at], (uint32_t)id[at + 1]);
        }
        if (at > 0) {
            rank[at - 1] = rank_of(b, (uint32_t)id[at - 1], (uint32_t)id[at]);
        }
    }
    w->n = n;
}

/* ---- merging a long word ---- */

struct heap {
    struct symbol *sym;
    struct candidate *v;
    size_t n;
};

static int before(const struct candidate *x, const struct candidate *y)
{
    return x->rank != y->rank ? x->rank < y->rank : x->pos < y->pos;
}

static void heap_push(struct heap *h, struct candidate c)
{
    size_t i = h->n++;

    while (i > 0 && before(&c, &h->v[(i - 1) / 2])) {
        h->v[i] = h->v[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h->v[i] = c;
}

static struct candidate heap_pop(struct heap *h)
{
    struct candidate top = h->v[0];
    struct candidate last = h->v[--h->n];
    size_t i = 0;

    for (;;) {
        size_t k = 2 * i + 1;
        if (k >= h->n) {
            break;
        }
        if (k + 1 < h->n && before(&h->v[k + 1], &h->v[k])) {
            k++;
        }
        if (!before(&h->v[k], &last)) {
            break;
        }
        h->v[i] = h->v[k];
        i = k;
    }
    h->v[i] = last;
    return top;
}

/* The pair that starts at symbol `pos` becomes a candidate if it is a merge. */
static void offer(const struct bpe *b, struct heap *h, int32_t pos)
{
    const struct symbol *s = &h->sym[pos];
    struct candidate c = {rank_of(b, (uint32_t)s->id, (uint32_t)h->sym[s->next].id), pos};

    if (c.rank != NO_RANK) {
        heap_push(h, c);
    }
}

static void merge_long(const struct bpe *b, struct word *w, struct heap *h)
{
    size_t i;
    size_t n = 0;
    int32_t k;

    for (i = 0; i < w->n; i++) {
        h->sym[i].id = w->id[i];
        h->sym[i].prev = (int32_t)i - 1;
        h->sym[i].next = i + 1 < w->n ? (int32_t)i + 1 : -1;
    }
    for (i = 0; i + 1 < w->n; i++) {
        offer(b, h, (int32_t)i);
    }
    while (h->n) {
        struct candidate c = heap_pop(h);
        struct symbol *s = &h->sym[c.pos];
        struct symbol *right;
        uint32_t rank;
        if (s->next < 0) {
            continue;
        }
        right = &h->sym[s->next];
        /* A stale candidate: its pair has changed. Like the package, the result decides, not the
         * rank: another pair with the same result is merged at this candidate's turn. */
        rank = rank_of(b, (uint32_t)s->id, (uint32_t)right->id);
        if (rank == NO_RANK || b->made[rank] != b->made[c.rank]) {
            continue;
        }
        s->id = b->made[rank];
        s->next = right->next;
        right->next = -2;
        if (s->next >= 0) {
            h->sym[s->next].prev = c.pos;
        }
        if (s->prev >= 0) {
            offer(b, h, s->prev);
        }
        if (s->next >= 0) {
            offer(b, h, c.pos);
        }
    }
    for (k = w->n ? 0 : -1; k >= 0; k = h->sym[k].next) {
        w->id[n++] = h->sym[k].id;
    }
    w->n = n;
}

static int merge_word(const struct bpe *b, const char *s, size_t n, struct tokids *out,
                      struct err *e)
{
    int32_t small_id[SMALL];
    struct symbol small_sym[SMALL];
    struct candidate small_heap[3 * SMALL];
    struct word w = {small_id, 0};
    struct heap h = {small_sym, small_heap, 0};
    void *big = NULL;
    int rc;

    if (n > WORD_MAX) {
        return ERR(e, STATUS_INPUT, "a word of %zu bytes is too long to tokenize", n);
    }
    if (n > SMALL) {
        /* Each of the n - 1 first pairs and two after each merge may wait in the heap. */
        big = mem_try(n * (sizeof *w.id + sizeof *h.sym + 3 * sizeof *h.v));
        if (!big) {
            return ERR(e, STATUS_NOMEM, "no memory to tokenize a word of %zu bytes", n);
        }
        h.v = big;
        h.sym = (struct symbol *)(h.v + 3 * n);
        w.id = (int32_t *)(h.sym + n);
    }
    symbols_init(b, &w, s, n);
    if (w.n <= SHORT) {
        merge_short(b, &w, b->opt.byte_level && w.n == n && !b->nprefix && !b->nsuffix ? s : NULL);
    } else {
        merge_long(b, &w, &h);
    }
    rc = tokids_add(out, w.id, w.n);
    if (rc) {
        rc = ERR(e, STATUS_NOMEM, "no memory for %zu tokens", out->n);
    }
    mem_free(big);
    return rc;
}

/* ---- words ---- */

/* The token that is the whole word, or -1. */
static int32_t whole_word(const struct bpe *b, const char *s, size_t n)
{
    char t[1024];
    size_t i;
    size_t o = 0;

    if (n > vocab_max_bytes(b->v)) {
        return -1;
    }
    if (!b->opt.byte_level) {
        return vocab_id(b->v, s, n);
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
        id = vocab_id(b->v, big, o);
        mem_free(big);
        return id;
    }
    for (i = 0; i < n; i++) {
        o += unicode_put(unicode_byte_char((uint8_t)s[i]), t + o);
    }
    return vocab_id(b->v, t, o);
}

static int encode_new(const void *model, const char *word, size_t len, struct tokids *out,
                      struct err *e)
{
    const struct bpe *b = model;
    if (b->opt.ignore_merges) {
        int32_t id = whole_word(b, word, len);
        if (id >= 0) {
            return tokids_add(out, &id, 1)
                       ? ERR(e, STATUS_NOMEM, "no memory for %zu tokens", out->n)
                       : 0;
        }
    }
    return merge_word(b, word, len, out, e);
}

static int encode_cached(const struct bpe *b, const char *word, size_t len, struct tokids *out,
                         struct err *e)
{
    return wordcache_encode(b->cache, word, len, encode_new, b, out, e);
}

/* Cuts the word between characters that no merge joins; both must be tokens, because an unknown
 * one may share its token with its neighbours. */
static int encode_cut(const struct bpe *b, const char *s, size_t n, struct tokids *out,
                      struct err *e)
{
    size_t from = 0;
    size_t i = 0;
    uint32_t last = 0;
    int known = 0;
    int rc = 0;

    while (i < n && rc == 0) {
        uint32_t cp;
        size_t k = unicode_next(s + i, &cp);
        int ok = (cp < CHAR_IDS ? b->char_id[cp] : vocab_id(b->v, s + i, k)) >= 0;
        if (ok && known) {
            size_t bit = joint_bit(last, cp);
            if (!(b->joints[bit / 64] >> bit % 64 & 1)) {
                rc = encode_cached(b, s + from, i - from, out, e);
                from = i;
            }
        }
        known = ok;
        last = cp;
        i += k;
    }
    return rc ? rc : encode_cached(b, s + from, n - from, out, e);
}

int bpe_encode(const struct bpe *b, const char *word, size_t len, struct tokids *out, struct err *e)
{
    if (len == 0) {
        return 0;
    }
    if (len == 1 && b->single && b->byte_id[(unsigned char)*word] >= 0) {
        return tokids_add(out, &b->byte_id[(unsigned char)*word], 1)
                   ? ERR(e, STATUS_NOMEM, "no memory for %zu tokens", out->n)
                   : 0;
    }
    if (b->joints && len >= CUT_MIN) {
        return encode_cut(b, word, len, out, e);
    }
    return encode_cached(b, word, len, out, e);
}
