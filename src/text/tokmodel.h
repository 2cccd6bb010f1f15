/* The `model` of tokenizer.json, of whichever type: its vocabulary, and words to ids.
 *
 *     struct tokmodel *m = tokmodel_new(strlen(json));
 *     tokmodel_vocab(m, &scan, e);                the two large parts, read in place
 *     tokmodel_merges(m, &scan, e);
 *     tokmodel_open(m, spec, byte_level, e);      everything else of it
 *     tokmodel_encode(m, word, len, &ids, e);
 *     tokmodel_free(m);
 *
 * Types: BPE, Unigram, WordPiece, WordLevel. Constant once open but for caches without locks: any
 * thread. */
#ifndef TEXT_TOKMODEL_H
#define TEXT_TOKMODEL_H

#include <stddef.h>

#include <jansson.h>

struct err;
struct jscan;
struct tokids;
struct tokmodel;
struct vocab;

/* For a file of so many bytes. */
struct tokmodel *tokmodel_new(size_t bytes);
void tokmodel_free(struct tokmodel *m); /* NULL is fine */
/* The value of `vocab`: an object, or a list for Unigram. */
int tokmodel_vocab(struct tokmodel *m, struct jscan *s, struct err *e);
/* The value of `merges`; the vocabulary and the prefix must be there. */
int tokmodel_merges(struct tokmodel *m, struct jscan *s, struct err *e);
/* continuing_subword_prefix, which says what merges make. */
void tokmodel_prefix(struct tokmodel *m, const char *prefix);
/* A whole vocabulary in tiktoken's format, one token a line: base64, a blank, its rank, which is
 * its id. Merges are all ways to make a token of two others. */
int tokmodel_tiktoken(struct tokmodel *m, const char *text, size_t len, struct err *e);

/* `spec` is the model without its large parts. byte_level: words come as bytes; only for BPE. */
int tokmodel_open(struct tokmodel *m, const json_t *spec, int byte_level, struct err *e);
/* 1 when the type can take words as bytes. */
int tokmodel_takes_bytes(const json_t *spec);
const struct vocab *tokmodel_words(const struct tokmodel *m);
/* Appends the ids of one word. */
int tokmodel_encode(const struct tokmodel *m, const char *word, size_t len, struct tokids *out,
                    struct err *e);

#endif
