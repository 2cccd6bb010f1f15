/* Text of a growing list of tokens, as far as it is certain: what comes out, put together, is what
 * tokenizer_decode makes of the whole list (but for byte tokens that turn out to be no characters,
 * where that depends on later ones). Characters come out whole.
 *
 *     struct tokstream t; tokstream_init(&t, tok, 1);
 *     while (...) {
 *         tokstream_push(&t, ids, n, &out, &e);        all tokens so far; appends what is new
 *     }
 *     tokstream_end(&t, ids, n, &out, &e);             and what was held back */
#ifndef TEXT_TOKSTREAM_H
#define TEXT_TOKSTREAM_H

#include <stddef.h>
#include <stdint.h>

struct buf;
struct err;
struct tokenizer;

struct tokstream {
    const struct tokenizer *tok; /* borrowed */
    int skip_special;
    size_t from, to; /* tokens that are decoded again with those that follow: [from, to) are out */
    size_t done;     /* bytes of the text of [from, ...) that are out */
};

void tokstream_init(struct tokstream *t, const struct tokenizer *tok, int skip_special);
/* ids (n) begin with the tokens of the calls before. */
int tokstream_push(struct tokstream *t, const int32_t *ids, size_t n, struct buf *out,
                   struct err *e);
int tokstream_end(struct tokstream *t, const int32_t *ids, size_t n, struct buf *out,
                  struct err *e);

#endif
