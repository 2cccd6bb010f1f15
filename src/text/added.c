/* Owns finding added tokens in text. The texts are sorted, so those that share a prefix are
 * neighbours: at a place in the text the range of candidates is narrowed byte by byte. Almost every
 * place is left after one look at a table of first bytes. */
#include "text/added.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "text/unicode.h"

void added_init(struct added *a)
{
    memset(a, 0, sizeof *a);
}

void added_fini(struct added *a)
{
    size_t i;

    for (i = 0; i < a->n; i++) {
        mem_free((char *)a->tok[i].text);
    }
    mem_free(a->tok);
    added_init(a);
}

int added_put(struct added *a, const struct added_token *t)
{
    struct added_token *q;
    char *text;

    if (t->len == 0) {
        return 0;
    }
    if (a->n == a->cap) {
        size_t cap = a->cap ? a->cap * 2 : 64;
        q = mem_try(cap * sizeof *q);
        if (!q) {
            return STATUS_NOMEM;
        }
        if (a->n) {
            memcpy(q, a->tok, a->n * sizeof *q);
        }
        mem_free(a->tok);
        a->tok = q;
        a->cap = cap;
    }
    text = mem_try(t->len + 1);
    if (!text) {
        return STATUS_NOMEM;
    }
    memcpy(text, t->text, t->len);
    q = &a->tok[a->n++];
    *q = *t;
    q->text = text;
    return 0;
}

static int by_text(const void *x, const void *y)
{
    const struct added_token *a = x;
    const struct added_token *b = y;
    int c = memcmp(a->text, b->text, a->len < b->len ? a->len : b->len);

    return c ? c : a->len < b->len ? -1 : a->len > b->len;
}

/* Sorts by merging, so that equal texts keep their order. */
static void merge_sort(struct added_token *v, struct added_token *tmp, size_t n)
{
    size_t h = n / 2;
    size_t i = 0;
    size_t j = h;
    size_t k = 0;

    if (n < 2) {
        return;
    }
    merge_sort(v, tmp, h);
    merge_sort(v + h, tmp, n - h);
    memcpy(tmp, v, n * sizeof *v);
    while (i < h || j < n) {
        v[k++] = j == n || (i < h && by_text(&tmp[i], &tmp[j]) <= 0) ? tmp[i++] : tmp[j++];
    }
}

void added_finish(struct added *a)
{
    struct added_token *tmp = mem_alloc((a->n + 1) * sizeof *tmp);
    size_t i;
    size_t n = 0;
    int c;

    merge_sort(a->tok, tmp, a->n);
    mem_free(tmp);
    for (i = 0; i < a->n; i++) {
        if (n && by_text(&a->tok[n - 1], &a->tok[i]) == 0) {
            mem_free((char *)a->tok[i].text);
        } else {
            a->tok[n++] = a->tok[i];
        }
    }
    a->n = n;
    for (c = 0, i = 0; c <= 256; c++) {
        while (i < a->n && (unsigned char)a->tok[i].text[0] < c) {
            i++;
        }
        a->first[c] = (uint32_t)i;
    }
}

/* First token in [lo, hi) whose byte at `depth` is at least c. All of them are that long. */
static size_t lower(const struct added *a, size_t lo, size_t hi, size_t depth, int c)
{
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if ((unsigned char)a->tok[mid].text[depth] < c) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

/* The longest token that starts at s, or NULL. */
static const struct added_token *longest(const struct added *a, const char *s, size_t n)
{
    const struct added_token *best = NULL;
    size_t lo = a->first[(unsigned char)s[0]];
    size_t hi = a->first[(unsigned char)s[0] + 1];
    size_t depth = 1;

    while (lo < hi) {
        /* The shortest of a range of equal prefixes is its first. */
        if (a->tok[lo].len == depth) {
            best = &a->tok[lo++];
        }
        if (depth == n || lo == hi) {
            break;
        }
        lo = lower(a, lo, hi, depth, (unsigned char)s[depth]);
        hi = lower(a, lo, hi, depth, (unsigned char)s[depth] + 1);
        depth++;
    }
    return best;
}

static int touches_word(const char *s, size_t n, size_t start, size_t end)
{
    uint32_t cp;

    if (start > 0) {
        unicode_prev(s, start, &cp);
        if (unicode_is_word(cp)) {
            return 1;
        }
    }
    if (end < n) {
        unicode_next(s + end, &cp);
        if (unicode_is_word(cp)) {
            return 1;
        }
    }
    return 0;
}

/* Widens a hit over white space; to the left no further than the last hit. */
static void widen(const struct added_token *t, const char *s, size_t n, size_t taken,
                  struct added_hit *hit)
{
    uint32_t cp;
    size_t k;

    if (t->lstrip) {
        size_t a = hit->start;
        while (a > taken && (k = unicode_prev(s, a, &cp), unicode_is_space(cp))) {
            a -= k;
        }
        hit->start = a > taken ? a : taken;
    }
    if (t->rstrip) {
        while (hit->end < n && (k = unicode_next(s + hit->end, &cp), unicode_is_space(cp))) {
            hit->end += k;
        }
    }
}

int added_next(const struct added *a, const char *s, size_t n, struct added_pos *pos,
               struct added_hit *hit)
{
    size_t i = pos->scan;

    if (a->n == 0) {
        return 0;
    }
    while (i < n) {
        const struct added_token *t;
        unsigned char c = (unsigned char)s[i];
        if (a->first[c] == a->first[c + 1] || !(t = longest(a, s + i, n - i))) {
            i++;
            continue;
        }
        hit->start = i;
        hit->end = i + t->len;
        hit->id = t->id;
        i = hit->end;
        if (t->single_word && touches_word(s, n, hit->start, hit->end)) {
            continue;
        }
        pos->scan = i;
        widen(t, s, n, pos->taken, hit);
        pos->taken = hit->end;
        return 1;
    }
    pos->scan = n;
    return 0;
}
