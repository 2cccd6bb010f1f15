/* A growing byte buffer with a ceiling given at init. Once an append fails (ceiling or memory) the
 * buffer stays failed and later appends do nothing: check once, at the end, with buf_status.
 *
 *     struct buf b; buf_init(&b, 1 << 20);
 *     buf_str(&b, "hello "); buf_printf(&b, "%d", 3);
 *     if (buf_status(&b) == 0) puts(b.data);      (data is always NUL-terminated)
 *     buf_fini(&b); */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include <stddef.h>

struct buf {
    char *data; /* NUL-terminated, "" when empty; owned by the buffer */
    size_t len, cap, max;
    int failed;
};

void buf_init(struct buf *b, size_t max);
void buf_fini(struct buf *b);
void buf_clear(struct buf *b); /* length 0, keeps the memory, clears failed */
void buf_add(struct buf *b, const void *p, size_t n);
void buf_str(struct buf *b, const char *s);
void buf_char(struct buf *b, char c);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Drops n bytes at the front. */
void buf_shift(struct buf *b, size_t n);
/* Room for n bytes in all, exactly; a help where the length is known. More than the ceiling, or
 * than there is memory for, is no error before it is needed. */
void buf_reserve(struct buf *b, size_t n);
/* 0, or STATUS_NOMEM when an append did not fit. */
int buf_status(const struct buf *b);
/* Gives the bytes to the caller (free with mem_free) and empties the buffer. */
char *buf_take(struct buf *b, size_t *len);

#endif
