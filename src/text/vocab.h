/* The vocabulary of a tokenizer: token texts and their ids, found both ways.
 *
 *     struct vocab *v = vocab_new();
 *     vocab_read(v, &scan, e);                 (or vocab_put for each token)
 *     vocab_finish(v, e);
 *     id = vocab_id(v, "the", 3);
 *     vocab_free(v);
 *
 * Constant after vocab_finish: any thread. */
#ifndef TEXT_VOCAB_H
#define TEXT_VOCAB_H

#include <stddef.h>
#include <stdint.h>

struct err;
struct jscan;
struct vocab;

/* Ids lie below this: merges and caches pack them. Ten times the largest vocabulary of today. */
#define VOCAB_ID_MAX ((1 << 21) - 1)

struct vocab *vocab_new(void);
void vocab_free(struct vocab *v); /* NULL is fine */
/* Makes room for about so many tokens at once. */
void vocab_reserve(struct vocab *v, size_t tokens);
/* The value of model.vocab, an object of token text to id. */
int vocab_read(struct vocab *v, struct jscan *s, struct err *e);
/* One token; a text seen before gets the new id. Unlike the others, the text may be any bytes. */
int vocab_put(struct vocab *v, const char *text, size_t len, int32_t id, struct err *e);
/* Ends loading: ids are found from now on. */
int vocab_finish(struct vocab *v, struct err *e);

int32_t vocab_id(const struct vocab *v, const char *text, size_t len); /* -1: no such token */
/* The token whose text is x followed by y. */
int32_t vocab_id2(const struct vocab *v, const char *x, size_t nx, const char *y, size_t ny);
/* The longest token that is `prefix` followed by a start of s, whole characters of valid UTF-8:
 * its id, and in *k how much of s. -1: none. */
int32_t vocab_longest(const struct vocab *v, const char *prefix, size_t nprefix, const char *s,
                      size_t n, size_t *k);
/* 1 when no two texts have the same id. After vocab_finish. */
int vocab_is_plain(const struct vocab *v);
/* The token's text, NUL-terminated; NULL when the id is free. After vocab_finish. */
const char *vocab_text(const struct vocab *v, int32_t id, size_t *len);
/* The i-th token, below vocab_count: its text and id. */
const char *vocab_at(const struct vocab *v, size_t i, size_t *len, int32_t *id);
int32_t vocab_max_id(const struct vocab *v);   /* -1 when empty */
size_t vocab_count(const struct vocab *v);     /* number of tokens */
size_t vocab_max_bytes(const struct vocab *v); /* of the longest text */

#endif
