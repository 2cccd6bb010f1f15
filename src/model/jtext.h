/* JSON written straight into a buffer, for texts with 100,000 strings (a vocabulary, a tensor list)
 * where building a tree first would cost more than all the rest of opening a model. */
#ifndef MODEL_JTEXT_H
#define MODEL_JTEXT_H

#include <stddef.h>

struct buf;

/* Appends the n bytes at s as a JSON string with its quotes. Returns 0, or STATUS_FORMAT when the
 * bytes are not UTF-8 (b is then left with a partial string). A full buffer shows in buf_status. */
int jtext_string(struct buf *b, const char *s, size_t n);

/* 1 when the n bytes at s are UTF-8 as RFC 3629 defines it (no surrogates, no overlong forms). */
int jtext_utf8(const char *s, size_t n);

/* Appends the shortest decimal that reads back as the same double, with a point or exponent in it
 * so that it stays a real number. v must be finite. */
void jtext_real(struct buf *b, double v);

#endif
