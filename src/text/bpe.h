/* Byte-pair encoding: ranked merges over a vocabulary, and the merging of one word.
 *
 *     struct bpe *b = bpe_new(vocab);
 *     bpe_read_merges(b, &scan, e);
 *     bpe_finish(b, &options, e);
 *     bpe_encode(b, word, len, &ids, e);       (appends to ids)
 *     bpe_free(b);
 *
 * Merging follows the `tokenizers` package to the letter: lowest rank first, leftmost of equals.
 * After bpe_finish the object is constant apart from a cache of words without locks: any thread may
 * encode.
 */
#ifndef TEXT_BPE_H
#define TEXT_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "text/tokids.h"

struct err;
struct jscan;
struct vocab;
struct bpe;

struct bpe_options {
    int byte_level;        /* words are bytes, the vocabulary spells them in the byte alphabet */
    int byte_fallback;     /* a character outside the vocabulary becomes its <0xNN> tokens */
    int fuse_unk;          /* neighbouring unknown characters share one unknown token */
    int ignore_merges;     /* a word that is a token is that token */
    const char *unk_token; /* NULL: unknown characters vanish, as in the package */
    const char *prefix;    /* before every character of a word but the first; NULL: none */
    const char *suffix;    /* behind the last character of a word; NULL: none */
};

/* The vocabulary is borrowed. It must be read before the merges. */
struct bpe *bpe_new(const struct vocab *v);
void bpe_free(struct bpe *b);
/* `prefix` of the options: merged tokens do without it inside. To be set before the merges. */
void bpe_set_prefix(struct bpe *b, const char *prefix);
/* The value of model.merges, strings "a b" or pairs ["a", "b"]. */
int bpe_read_merges(struct bpe *b, struct jscan *s, struct err *e);
/* One merge, of the next rank. */
int bpe_merge(struct bpe *b, const char *x, size_t nx, const char *y, size_t ny, struct err *e);
/* Ends loading. */
int bpe_finish(struct bpe *b, const struct bpe_options *o, struct err *e);

/* Appends the tokens of one word: any bytes with byte_level, else valid UTF-8. */
int bpe_encode(const struct bpe *b, const char *word, size_t len, struct tokids *out,
               struct err *e);

#endif
