/* New weights told by what changed in them: pieces of tensors, each against the values before it or
 * whole, compressed, one behind the other in chunks of bytes.
 *
 *     struct wdelta *d = wdelta_new();
 *     n = wdelta_encode(d, WDELTA_XOR, at, old, now, out, &changed);   0: nothing changed
 *     ...
 *     for (size_t pos = 0; pos < len;) {
 *         wdelta_next(chunk, len, &pos, &piece, &e);
 *         wdelta_apply(d, &piece, values, &e);
 *     }
 *     wdelta_free(d);
 *
 * A piece is at most WDELTA_PIECE values of one tensor and begins at a multiple of that. Where few
 * values changed it has their places and what they are (or the xor with what they were); where many
 * did, or there is nothing before it, all of them. The low and the high bytes of values lie apart,
 * because the high ones of neighbours are alike and those of an xor are 0; zstd does the rest.
 *
 * Numbers in chunks are little-endian. Nothing here trusts bytes from outside: what is no piece is
 * STATUS_FORMAT. A struct wdelta belongs to one thread at a time. */
#ifndef MODEL_WDELTA_H
#define MODEL_WDELTA_H

#include <stddef.h>
#include <stdint.h>

struct err;
struct wdelta;

#define WDELTA_PIECE 524288 /* values */
#define WDELTA_HEAD  32     /* bytes before the packed ones of a piece */
#define WDELTA_HASH  33     /* 32 digits of an xxh3-128 hash and a NUL */

enum wdelta_encoding { WDELTA_XOR, WDELTA_OVERWRITE };

/* Which values of which tensor. */
struct wdelta_at {
    int32_t tensor; /* its number in the manifest */
    int64_t first;
    int32_t count;
};

struct wdelta_piece {
    struct wdelta_at at;
    int xored, sparse;
    uint32_t changed, gaps; /* sparse: values, and bytes that say where */
    const uint8_t *packed;
    uint32_t bytes;
};

struct wdelta *wdelta_new(void);
void wdelta_free(struct wdelta *d); /* NULL is fine */

/* Room that any piece fits in. */
size_t wdelta_bound(void);
/* Bytes of the piece, 0 when no value changed. old NULL: there is nothing before it. *changed
 * counts values. */
size_t wdelta_encode(struct wdelta *d, enum wdelta_encoding how, const struct wdelta_at *at,
                     const uint16_t *old, const uint16_t *now, uint8_t *out, int64_t *changed);

/* The piece at *pos, which moves behind it. */
int wdelta_next(const uint8_t *chunk, size_t len, size_t *pos, struct wdelta_piece *p,
                struct err *e);
/* 1: the piece says all of its values and needs none before it. */
int wdelta_whole(const struct wdelta_piece *p);
/* Changes the piece's values: `values` is the first of them. When that fails they are neither. */
int wdelta_apply(struct wdelta *d, const struct wdelta_piece *p, uint16_t *values, struct err *e);

void wdelta_hash(const void *data, size_t n, char out[WDELTA_HASH]);
/* 1: the text is 32 digits of a hash, and so a harmless name of a file. */
int wdelta_is_hash(const char *text);

#endif
