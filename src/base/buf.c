/* Owns the growth policy of byte buffers: doubling up to the ceiling, never past it. */
#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"

static char buf_empty[1];

void buf_init(struct buf *b, size_t max)
{
    memset(b, 0, sizeof *b);
    b->data = buf_empty;
    b->max = max;
}

void buf_fini(struct buf *b)
{
    if (b->cap) {
        mem_free(b->data);
    }
    buf_init(b, b->max);
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    b->failed = 0;
    if (b->cap) {
        b->data[0] = 0;
    }
}

/* Moves the bytes to a place of cap; 0 when there is none. */
static int buf_move(struct buf *b, size_t cap)
{
    char *p = mem_try(cap);

    if (!p) {
        return 0;
    }
    memcpy(p, b->data, b->len);
    if (b->cap) {
        mem_free(b->data);
    }
    b->data = p;
    b->cap = cap;
    return 1;
}

/* Room for n more bytes and the NUL; 0 when there is none. */
static int buf_room(struct buf *b, size_t n)
{
    size_t want = b->len + n;
    size_t cap = b->cap ? b->cap : 64;

    if (b->failed || want < n || want > b->max) {
        b->failed = 1;
        return 0;
    }
    if (want < b->cap) {
        return 1;
    }
    while (cap <= want) {
        cap *= 2;
    }
    b->failed = !buf_move(b, cap);
    return !b->failed;
}

void buf_reserve(struct buf *b, size_t n)
{
    if (n <= b->max && n >= b->cap && n) {
        buf_move(b, n + 1);
    }
}

void buf_add(struct buf *b, const void *p, size_t n)
{
    if (n && buf_room(b, n)) {
        memcpy(b->data + b->len, p, n);
        b->len += n;
        b->data[b->len] = 0;
    }
}

void buf_str(struct buf *b, const char *s)
{
    buf_add(b, s, strlen(s));
}

void buf_char(struct buf *b, char c)
{
    buf_add(b, &c, 1);
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    char small[256];
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(small, sizeof small, fmt, ap);
    va_end(ap);
    if (n < 0) {
        b->failed = 1;
    } else if ((size_t)n < sizeof small) {
        buf_add(b, small, (size_t)n);
    } else if (buf_room(b, (size_t)n)) {
        va_start(ap, fmt);
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
        va_end(ap);
        b->len += (size_t)n;
    }
}

void buf_shift(struct buf *b, size_t n)
{
    ASSERT(n <= b->len);
    if (n) {
        memmove(b->data, b->data + n, b->len - n + 1);
        b->len -= n;
    }
}

int buf_status(const struct buf *b)
{
    return b->failed ? STATUS_NOMEM : STATUS_OK;
}

char *buf_take(struct buf *b, size_t *len)
{
    char *p = b->cap ? b->data : mem_strdup("");
    if (len) {
        *len = b->len;
    }
    b->cap = 0;
    buf_fini(b);
    return p;
}
