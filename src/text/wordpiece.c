/* Owns the cutting of words into WordPiece tokens: from the left, each time the longest token that
 * fits. A word with a part that fits nowhere is unknown as a whole. */
#include "text/wordpiece.h"

#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "text/tokids.h"
#include "text/unicode.h"
#include "text/vocab.h"
#include "text/wordcache.h"

#define TOKEN_MAX 4096 /* bytes: each place of a word looks so far */

struct wordpiece {
    const struct vocab *v;
    struct wordcache *cache;
    char *prefix, *unk;
    size_t nprefix;
    size_t max_chars;
    int32_t unk_id;
    int whole;
};

struct wordpiece *wordpiece_new(const struct vocab *v)
{
    struct wordpiece *w = mem_alloc(sizeof *w);

    w->v = v;
    w->unk_id = -1;
    return w;
}

void wordpiece_free(struct wordpiece *w)
{
    if (w) {
        wordcache_free(w->cache);
        mem_free(w->prefix);
        mem_free(w->unk);
        mem_free(w);
    }
}

int wordpiece_finish(struct wordpiece *w, const struct wordpiece_options *o, struct err *e)
{
    w->unk = mem_strdup(o->unk_token ? o->unk_token : "");
    w->unk_id = vocab_id(w->v, w->unk, strlen(w->unk));
    w->prefix = mem_strdup(o->prefix ? o->prefix : "");
    w->nprefix = strlen(w->prefix);
    w->max_chars = o->max_chars;
    w->whole = o->whole;
    if (vocab_max_bytes(w->v) > TOKEN_MAX) {
        return ERR(e, STATUS_UNSUPPORTED, "a token of %zu bytes, more than %d",
                   vocab_max_bytes(w->v), TOKEN_MAX);
    }
    w->cache = wordcache_new(vocab_count(w->v));
    return w->cache ? 0 : ERR(e, STATUS_NOMEM, "no memory for a cache of words");
}

static size_t chars(const char *s, size_t n)
{
    size_t count = 0;
    size_t i;

    for (i = 0; i < n; i++) {
        count += ((unsigned char)s[i] & 0xC0) != 0x80;
    }
    return count;
}

static int encode_new(const void *model, const char *s, size_t n, struct tokids *out, struct err *e)
{
    const struct wordpiece *w = model;
    size_t first = out->n;
    size_t i = 0;
    int bad = !w->whole && chars(s, n) > w->max_chars;
    int rc = 0;

    while (i < n && !bad && rc == 0) {
        size_t k = n;
        int32_t id = w->whole
                         ? vocab_id(w->v, s, n)
                         : vocab_longest(w->v, w->prefix, i ? w->nprefix : 0, s + i, n - i, &k);
        bad = id < 0;
        rc = bad ? 0 : tokids_add(out, &id, 1);
        i += k;
    }
    if (rc == 0 && bad) {
        out->n = first;
        if (w->unk_id < 0) {
            return ERR(e, STATUS_INPUT,
                       "'%.*s' is not in the vocabulary, and nor is the unknown token '%.100s'",
                       (int)(n > 100 ? 100 : n), s, w->unk);
        }
        rc = tokids_add(out, &w->unk_id, 1);
    }
    return rc ? ERR(e, STATUS_NOMEM, "no memory for %zu tokens", out->n) : 0;
}

int wordpiece_encode(const struct wordpiece *w, const char *word, size_t len, struct tokids *out,
                     struct err *e)
{
    return len ? wordcache_encode(w->cache, word, len, encode_new, w, out, e) : 0;
}
