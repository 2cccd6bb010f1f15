/* A cache of encoded words for many threads: the words of real text repeat.
 *
 *     struct wordcache *c = wordcache_new(50000);
 *     wordcache_encode(c, word, len, encode_new, model, &ids, &e);
 *     wordcache_free(c);
 *
 * No locks: a reader that meets a writer sees a miss. Memory is fixed, old words are overwritten.
 */
#ifndef TEXT_WORDCACHE_H
#define TEXT_WORDCACHE_H

#include <stddef.h>
#include <stdint.h>

struct err;
struct tokids;
struct wordcache;

enum { WORDCACHE_WORDS = 7, WORDCACHE_BYTES = 8 * WORDCACHE_WORDS, WORDCACHE_IDS = 16 };

struct wordcache_key {
    uint64_t w[WORDCACHE_WORDS]; /* the bytes, zeros behind them; only the first n are set */
    uint64_t hash;
    unsigned n, len;
};

/* Its size goes by the number of tokens, up to 4 MB. NULL when there is no memory. */
struct wordcache *wordcache_new(size_t tokens);
void wordcache_free(struct wordcache *c); /* NULL is fine */
/* 1, or 0 when the word is empty or too long. */
int wordcache_key(struct wordcache_key *k, const char *s, size_t len);
/* Appends the ids of the word: 1 found, 0 not there, STATUS_NOMEM. */
int wordcache_get(const struct wordcache *c, const struct wordcache_key *k, struct tokids *out);
/* Keeps the ids from `first` on; more than WORDCACHE_IDS are not kept. */
void wordcache_put(struct wordcache *c, const struct wordcache_key *k, const struct tokids *l,
                   size_t first);

/* What a model makes of a word that is not in the cache: appends its ids. */
typedef int wordcache_fn(const void *model, const char *word, size_t len, struct tokids *out,
                         struct err *e);
/* Appends the ids of a word, from the cache or else by `fn`, whose answer is kept; one that is
 * empty or too long is always `fn`'s. */
int wordcache_encode(struct wordcache *c, const char *word, size_t len, wordcache_fn *fn,
                     const void *model, struct tokids *out, struct err *e);

#endif
