/* Unigram language models (SentencePiece): a word becomes the tokens with the highest sum of
 * scores.
 *
 *     struct unigram *u = unigram_new(vocab);
 *     unigram_read(u, &scan, e);                          (fills the vocabulary too)
 *     unigram_finish(u, unk_id, byte_fallback, e);
 *     unigram_encode(u, word, len, &ids, e);
 *     unigram_free(u);
 *
 * Constant after unigram_finish but for a cache without locks: any thread. */
#ifndef TEXT_UNIGRAM_H
#define TEXT_UNIGRAM_H

#include <stddef.h>
#include <stdint.h>

struct err;
struct jscan;
struct tokids;
struct unigram;
struct vocab;

struct unigram *unigram_new(struct vocab *v); /* borrowed */
void unigram_free(struct unigram *u);         /* NULL is fine */
/* The value of model.vocab: [[text, score], ...], the place is the id. */
int unigram_read(struct unigram *u, struct jscan *s, struct err *e);
/* unk_id -1: there is none, and text that needs it is refused. After vocab_finish. */
int unigram_finish(struct unigram *u, int64_t unk_id, int byte_fallback, struct err *e);
/* Appends the tokens of one word of valid UTF-8. */
int unigram_encode(const struct unigram *u, const char *word, size_t len, struct tokids *out,
                   struct err *e);

#endif
