/* Owns the search for the best cut of a word. Token texts are a trie whose edges lie in one hash
 * table; from every character the tokens that start there are walked once, and each place keeps the
 * best way to reach it. Sums are made in the order and the precision (f64) of the package, and the
 * first of equals stays, so that ties fall as there. */
#include "text/unigram.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "text/jscan.h"
#include "text/tokids.h"
#include "text/unicode.h"
#include "text/vocab.h"
#include "text/wordcache.h"

#define WORD_MAX    ((size_t)1 << 25)
#define UNK_PENALTY 10.0
#define SMALL       128
#define TOKEN_MAX   1024 /* bytes: each place of a word looks so far */

struct edge {
    uint64_t key;   /* parent << 8 | byte, plus 1; 0: free */
    uint32_t child; /* a node */
};
struct step {
    double score;
    int32_t from; /* -1: not reached */
    int32_t id;   /* of the token from there */
    int32_t to;   /* the next place on the best way */
};
struct unigram {
    struct vocab *v;
    double *score; /* by id */
    size_t n, cap;
    struct edge *edge;
    size_t nedge_slots;
    int32_t *leaf; /* by node: the token that ends there; -1: none */
    size_t nnode;
    double unk_score;
    int32_t unk_id;
    int byte_fallback;
    int32_t byte_id[256];
    struct wordcache *cache;
};

struct unigram *unigram_new(struct vocab *v)
{
    struct unigram *u = mem_alloc(sizeof *u);

    u->v = v;
    u->unk_id = -1;
    return u;
}

void unigram_free(struct unigram *u)
{
    if (u) {
        wordcache_free(u->cache);
        mem_free(u->leaf);
        mem_free(u->edge);
        mem_free(u->score);
        mem_free(u);
    }
}

static int score_add(struct unigram *u, double score)
{
    if (u->n == u->cap) {
        size_t cap = u->cap ? 2 * u->cap : 1024;
        double *p = mem_try(cap * sizeof *p);
        if (!p) {
            return 0;
        }
        if (u->n) {
            memcpy(p, u->score, u->n * sizeof *p);
        }
        mem_free(u->score);
        u->score = p;
        u->cap = cap;
    }
    u->score[u->n++] = score;
    return 1;
}

int unigram_read(struct unigram *u, struct jscan *s, struct err *e)
{
    int rc = 0;

    if (vocab_count(u->v)) {
        return ERR(e, STATUS_FORMAT, "two vocabularies in one model");
    }
    jscan_open(s, '[');
    while (rc == 0 && !s->bad && jscan_more(s, ']')) {
        const char *text;
        size_t n;
        double score;
        if (!jscan_open(s, '[') || !jscan_more(s, ']') || !jscan_string(s, &text, &n)) {
            jscan_fail(s, "a pair of text and score was expected");
            break;
        }
        /* The text may lie in the scanner's buffer: it is used before the next string. */
        rc = u->n <= VOCAB_ID_MAX ? vocab_put(u->v, text, n, (int32_t)u->n, e)
                                  : ERR(e, STATUS_FORMAT, "more than %zu tokens", u->n);
        if (!jscan_more(s, ']') || !jscan_number(s, &score) || jscan_more(s, ']')) {
            jscan_fail(s, "a pair of text and score was expected");
            break;
        }
        if (rc == 0 && !score_add(u, score)) {
            rc = ERR(e, STATUS_NOMEM, "no memory after %zu tokens", u->n);
        }
    }
    if (rc == 0 && s->bad) {
        rc = ERR(e, STATUS_FORMAT, "vocabulary: %s at byte %zu", s->bad, (size_t)(s->p - s->start));
    }
    return rc;
}

/* ---- the trie ---- */

static size_t slot_of(const struct unigram *u, uint64_t key)
{
    uint64_t x = key * UINT64_C(0x9E3779B97F4A7C15);
    size_t mask = u->nedge_slots - 1;
    size_t i;

    for (i = (x >> 32 ^ x >> 47) & mask; u->edge[i].key && u->edge[i].key != key;
         i = (i + 1) & mask) {
    }
    return i;
}

static int trie_build(struct unigram *u)
{
    size_t total = 1;
    size_t slots = 64;
    size_t i, k, n;

    for (i = 0; i < u->n; i++) {
        if (vocab_text(u->v, (int32_t)i, &n)) {
            total += n;
        }
    }
    while (slots < 2 * total) {
        slots *= 2;
    }
    u->nedge_slots = slots;
    u->edge = mem_try(slots * sizeof *u->edge);
    u->leaf = mem_try(total * sizeof *u->leaf);
    if (!u->edge || !u->leaf || total > UINT32_MAX) {
        return 0;
    }
    memset(u->leaf, 0xFF, total * sizeof *u->leaf);
    u->nnode = 1;
    for (i = 0; i < u->n; i++) {
        const char *text = vocab_text(u->v, (int32_t)i, &n);
        uint32_t at = 0;
        for (k = 0; text && k < n; k++) {
            uint64_t key = ((uint64_t)at << 8 | (unsigned char)text[k]) + 1;
            struct edge *ed = &u->edge[slot_of(u, key)];
            if (!ed->key) {
                ed->key = key;
                ed->child = (uint32_t)u->nnode++;
            }
            at = ed->child;
        }
        if (at) {
            u->leaf[at] = (int32_t)i;
        }
    }
    return 1;
}

int unigram_finish(struct unigram *u, int64_t unk_id, int byte_fallback, struct err *e)
{
    double low = INFINITY;
    size_t i;

    if (u->n == 0) {
        return ERR(e, STATUS_FORMAT, "the model has no vocabulary");
    }
    if (unk_id >= (int64_t)u->n || unk_id < -1) {
        return ERR(e, STATUS_FORMAT, "unk_id %lld is not in the vocabulary", (long long)unk_id);
    }
    if (vocab_max_bytes(u->v) > TOKEN_MAX) {
        return ERR(e, STATUS_UNSUPPORTED, "a token of %zu bytes, more than %d",
                   vocab_max_bytes(u->v), TOKEN_MAX);
    }
    u->unk_id = (int32_t)unk_id;
    u->byte_fallback = byte_fallback;
    for (i = 0; i < u->n; i++) {
        low = u->score[i] < low ? u->score[i] : low;
    }
    u->unk_score = low - UNK_PENALTY;
    for (i = 0; i < 256; i++) {
        char t[8];
        u->byte_id[i] = vocab_id(u->v, t, (size_t)snprintf(t, sizeof t, "<0x%02X>", (unsigned)i));
    }
    u->cache = wordcache_new(u->n);
    if (!u->cache || !trie_build(u)) {
        return ERR(e, STATUS_NOMEM, "no memory for %zu tokens", u->n);
    }
    return 0;
}

/* ---- one word ---- */

static void reach(struct step *to, double score, size_t from, int32_t id)
{
    if (to->from < 0 || score > to->score) {
        to->score = score;
        to->from = (int32_t)from;
        to->id = id;
    }
}

/* Fills the best way to each place; 0 when an unknown character has no token. */
static int search(const struct unigram *u, const char *s, size_t n, struct step *best)
{
    size_t i, k, w;

    for (i = 0; i <= n; i++) {
        best[i].from = -1;
        best[i].score = 0.0;
    }
    for (i = 0; i < n; i += w) {
        double here = best[i].score;
        uint32_t at = 0;
        int single = 0;
        w = unicode_width((unsigned char)s[i]);
        for (k = i; k < n; k++) {
            uint64_t key = ((uint64_t)at << 8 | (unsigned char)s[k]) + 1;
            const struct edge *ed = &u->edge[slot_of(u, key)];
            if (!ed->key) {
                break;
            }
            at = ed->child;
            if (u->leaf[at] >= 0) {
                reach(&best[k + 1], u->score[u->leaf[at]] + here, i, u->leaf[at]);
                single |= k + 1 - i == w;
            }
        }
        if (!single) {
            if (u->unk_id < 0) {
                return 0;
            }
            reach(&best[i + w], u->unk_score + here, i, u->unk_id);
        }
    }
    return 1;
}

/* The token of a part of the word, or the bytes of an unknown part. */
static int put(const struct unigram *u, const char *s, size_t n, struct tokids *out)
{
    int32_t id = vocab_id(u->v, s, n);
    size_t i;
    int rc = 0;

    if (id < 0 && u->byte_fallback) {
        for (i = 0; i < n && u->byte_id[(unsigned char)s[i]] >= 0; i++) {
        }
        if (i == n) {
            for (i = 0; i < n && rc == 0; i++) {
                rc = tokids_add(out, &u->byte_id[(unsigned char)s[i]], 1);
            }
            return rc;
        }
    }
    id = id < 0 ? u->unk_id : id;
    return tokids_add(out, &id, 1);
}

/* Walks back along the best way, then forward; neighbouring unknown parts are one. */
static int emit(const struct unigram *u, const char *s, size_t n, struct step *best,
                struct tokids *out)
{
    size_t at = n;
    int rc = 0;

    while (at > 0) {
        size_t from = (size_t)best[at].from;
        best[from].to = (int32_t)at;
        at = from;
    }
    while (at < n && rc == 0) {
        size_t next = (size_t)best[at].to;
        if (best[next].id == u->unk_id) {
            while (next < n && best[best[next].to].id == u->unk_id) {
                next = (size_t)best[next].to;
            }
        }
        rc = put(u, s + at, next - at, out);
        at = next;
    }
    return rc;
}

static int encode_new(const void *model, const char *s, size_t n, struct tokids *out, struct err *e)
{
    const struct unigram *u = model;
    struct step small[SMALL + 1];
    struct step *best = small;
    int rc = 0;

    if (n > WORD_MAX) {
        return ERR(e, STATUS_INPUT, "a word of %zu bytes is too long to tokenize", n);
    }
    if (n > SMALL) {
        best = mem_try((n + 1) * sizeof *best);
        if (!best) {
            return ERR(e, STATUS_NOMEM, "no memory to tokenize a word of %zu bytes", n);
        }
    }
    if (!search(u, s, n, best)) {
        rc = ERR(e, STATUS_INPUT,
                 "'%.*s' has a character that is not in the vocabulary, and there "
                 "is no token for unknown ones",
                 (int)(n > 100 ? 100 : n), s);
    } else if (emit(u, s, n, best, out)) {
        rc = ERR(e, STATUS_NOMEM, "no memory for %zu tokens", out->n);
    }
    if (best != small) {
        mem_free(best);
    }
    return rc;
}

int unigram_encode(const struct unigram *u, const char *word, size_t len, struct tokids *out,
                   struct err *e)
{
    return len ? wordcache_encode(u->cache, word, len, encode_new, u, out, e) : 0;
}
