/* Byte-pair encoding: a vocabulary, ranked merges, and the merging of one word.
 *
 *     struct bpe *b = bpe_new();
 *     bpe_read_vocab(b, &scan, e); bpe_read_merges(b, &scan, e);
 *     bpe_finish(b, &options, e);
 *     bpe_encode(b, word, len, &ids, e);       (appends to ids)
 *     bpe_free(b);
 *
 * Merging follows the `tokenizers` package to the letter: lowest rank first, leftmost of equals.
 * After bpe_finish the object is constant apart from a locked cache of words: any thread may
 * encode.
 */
#ifndef TEXT_BPE_H
#define TEXT_BPE_H

#include <stddef.h>
#include <stdint.h>

struct err;
struct jscan;
struct bpe;

/* A growing list of token ids; zero it to start, free `v` with mem_free. */
struct bpe_ids {
    int32_t *v;
    size_t n, cap;
};

struct bpe_options {
    int byte_level;        /* words are bytes, the vocabulary spells them in the byte alphabet */
    int byte_fallback;     /* a character outside the vocabulary becomes its <0xNN> tokens */
    int fuse_unk;          /* neighbouring unknown characters share one unknown token */
    int ignore_merges;     /* a word that is a token is that token */
    const char *unk_token; /* NULL: unknown characters vanish, as in the package */
};

struct bpe *bpe_new(void);
void bpe_free(struct bpe *b);
/* The value of model.vocab, an object of token text to id. */
int bpe_read_vocab(struct bpe *b, struct jscan *s, struct err *e);
/* The value of model.merges, strings "a b" or pairs ["a", "b"]. The vocabulary must be there. */
int bpe_read_merges(struct bpe *b, struct jscan *s, struct err *e);
/* Ends loading. */
int bpe_finish(struct bpe *b, const struct bpe_options *o, struct err *e);

int32_t bpe_id(const struct bpe *b, const char *text, size_t len); /* -1: no such token */
/* The token's text in the vocabulary, NUL-terminated; NULL when the id is free. */
const char *bpe_text(const struct bpe *b, int32_t id, size_t *len);
int32_t bpe_max_id(const struct bpe *b); /* -1 when empty */
size_t bpe_count(const struct bpe *b);   /* number of tokens */

/* Appends the tokens of one word: any bytes with byte_level, else valid UTF-8. */
int bpe_encode(const struct bpe *b, const char *word, size_t len, struct bpe_ids *out,
               struct err *e);
/* Appends n ids. 0 or STATUS_NOMEM. */
int bpe_ids_add(struct bpe_ids *l, const int32_t *ids, size_t n);

#endif
