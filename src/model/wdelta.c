/* Owns the bytes of a piece. How many values changed is counted first, at the speed of memory; the
 * piece is small enough that the second look finds it in the cache. */
#include "model/wdelta.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>
#include <zstd.h>

#include "base/mem.h"
#include "base/status.h"

#define WDELTA_LEVEL 1   /* of zstd */
#define WDELTA_SKIP  255 /* so many values without a changed one, and the next gap goes on */
#define WDELTA_FEW   8   /* sparse when fewer than one of so many changed */
#define WDELTA_BLOCK 32  /* values that are compared at once */
#define WDELTA_RAW   (2 * (size_t)WDELTA_PIECE)

struct wdelta {
    ZSTD_CCtx *pack;
    ZSTD_DCtx *unpack;
    uint8_t *raw; /* (WDELTA_RAW) */
};

struct wdelta *wdelta_new(void)
{
    struct wdelta *d = mem_alloc(sizeof *d);

    d->pack = ZSTD_createCCtx();
    d->unpack = ZSTD_createDCtx();
    d->raw = mem_alloc(WDELTA_RAW);
    ASSERT(d->pack && d->unpack);
    return d;
}

void wdelta_free(struct wdelta *d)
{
    if (d) {
        ZSTD_freeCCtx(d->pack);
        ZSTD_freeDCtx(d->unpack);
        mem_free(d->raw);
        mem_free(d);
    }
}

size_t wdelta_bound(void)
{
    return WDELTA_HEAD + ZSTD_compressBound(WDELTA_RAW);
}

/* ---- encoding ---- */

/* Of a block: loops of a fixed length, which the compiler makes vectors of. */
static int wdelta_count_block(const uint16_t *old, const uint16_t *now)
{
    uint16_t n = 0;

    for (int i = 0; i < WDELTA_BLOCK; i++) {
        n = (uint16_t)(n + (old[i] != now[i]));
    }
    return n;
}

static int wdelta_same_block(const uint16_t *old, const uint16_t *now)
{
    uint16_t x = 0;

    for (int i = 0; i < WDELTA_BLOCK; i++) {
        x |= old[i] ^ now[i];
    }
    return x == 0;
}

static int64_t wdelta_count(const uint16_t *old, const uint16_t *now, int32_t n)
{
    int64_t all = 0;
    int32_t i = 0;

    for (; i + WDELTA_BLOCK <= n; i += WDELTA_BLOCK) {
        all += wdelta_count_block(old + i, now + i);
    }
    for (; i < n; i++) {
        all += old[i] != now[i];
    }
    return all;
}

/* Low bytes, then high bytes. */
static size_t wdelta_dense(uint8_t *raw, const uint16_t *old, const uint16_t *now, int32_t n)
{
    uint8_t *high = raw + n;

    for (int32_t i = 0; i < n; i++) {
        uint16_t v = old ? now[i] ^ old[i] : now[i];
        raw[i] = (uint8_t)v;
        high[i] = (uint8_t)(v >> 8);
    }
    return 2 * (size_t)n;
}

/* Gaps, low bytes, high bytes. */
static size_t wdelta_sparse(uint8_t *raw, const uint16_t *old, const uint16_t *now, int32_t n,
                            int64_t changed, int xored, uint32_t *gaps)
{
    uint8_t *gap = raw, *low = raw + n, *high = low + changed; /* moved together at the end */
    int32_t last = -1;
    int64_t k = 0;

    for (int32_t i = 0; i < n; i++) {
        int32_t d = i - last - 1;
        uint16_t v;
        if (i % WDELTA_BLOCK == 0 && n - i >= WDELTA_BLOCK && wdelta_same_block(old + i, now + i)) {
            i += WDELTA_BLOCK - 1;
            continue;
        }
        if (old[i] == now[i]) {
            continue;
        }
        for (; d >= WDELTA_SKIP; d -= WDELTA_SKIP) {
            *gap++ = WDELTA_SKIP;
        }
        *gap++ = (uint8_t)d;
        v = xored ? now[i] ^ old[i] : now[i];
        low[k] = (uint8_t)v;
        high[k++] = (uint8_t)(v >> 8);
        last = i;
    }
    *gaps = (uint32_t)(gap - raw);
    memmove(gap, low, 2 * (size_t)changed);
    return *gaps + 2 * (size_t)changed;
}

static void wdelta_put32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) {
        p[i] = (uint8_t)(v >> (8 * i));
    }
}

static uint32_t wdelta_get32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

size_t wdelta_encode(struct wdelta *d, enum wdelta_encoding how, const struct wdelta_at *at,
                     const uint16_t *old, const uint16_t *now, uint8_t *out, int64_t *changed)
{
    int xored = old && how == WDELTA_XOR, sparse;
    uint32_t gaps = 0;
    size_t raw, n;

    ASSERT(at->count > 0 && at->count <= WDELTA_PIECE && at->first % WDELTA_PIECE == 0);
    *changed = old ? wdelta_count(old, now, at->count) : at->count;
    if (*changed == 0) {
        return 0;
    }
    sparse = old && *changed * WDELTA_FEW < at->count;
    raw = sparse ? wdelta_sparse(d->raw, old, now, at->count, *changed, xored, &gaps)
                 : wdelta_dense(d->raw, xored ? old : NULL, now, at->count);
    n = ZSTD_compressCCtx(d->pack, out + WDELTA_HEAD, wdelta_bound() - WDELTA_HEAD, d->raw, raw,
                          WDELTA_LEVEL);
    ASSERT(!ZSTD_isError(n));
    memset(out, 0, WDELTA_HEAD);
    wdelta_put32(out, (uint32_t)at->tensor);
    out[4] = (uint8_t)xored;
    out[5] = (uint8_t)sparse;
    wdelta_put32(out + 8, (uint32_t)at->first);
    wdelta_put32(out + 12, (uint32_t)((uint64_t)at->first >> 32));
    wdelta_put32(out + 16, (uint32_t)at->count);
    wdelta_put32(out + 20, (uint32_t)*changed);
    wdelta_put32(out + 24, gaps);
    wdelta_put32(out + 28, (uint32_t)n);
    return WDELTA_HEAD + n;
}

/* ---- decoding ---- */

int wdelta_next(const uint8_t *chunk, size_t len, size_t *pos, struct wdelta_piece *p,
                struct err *e)
{
    const uint8_t *h = chunk + *pos;
    uint64_t first;
    uint32_t tensor, count;

    if (len - *pos < WDELTA_HEAD) {
        return ERR(e, STATUS_FORMAT, "a piece of weights ends after %zu bytes", len - *pos);
    }
    tensor = wdelta_get32(h);
    first = wdelta_get32(h + 8) | (uint64_t)wdelta_get32(h + 12) << 32;
    count = wdelta_get32(h + 16);
    p->xored = h[4];
    p->sparse = h[5];
    p->changed = wdelta_get32(h + 20);
    p->gaps = wdelta_get32(h + 24);
    p->bytes = wdelta_get32(h + 28);
    p->packed = h + WDELTA_HEAD;
    if (tensor > INT32_MAX || first > INT64_MAX / 4 || first % WDELTA_PIECE || count == 0 ||
        count > WDELTA_PIECE || p->xored > 1 || p->sparse > 1 || p->changed > count ||
        (p->sparse ? p->gaps < p->changed || p->gaps + 2 * (size_t)p->changed > WDELTA_RAW
                   : p->gaps > 0)) {
        return ERR(e, STATUS_FORMAT, "byte %zu of a chunk begins no piece of weights", *pos);
    }
    if (p->bytes > len - *pos - WDELTA_HEAD) {
        return ERR(e, STATUS_FORMAT, "a piece of %u bytes has only %zu", p->bytes,
                   len - *pos - WDELTA_HEAD);
    }
    p->at = (struct wdelta_at){(int32_t)tensor, (int64_t)first, (int32_t)count};
    *pos += WDELTA_HEAD + p->bytes;
    return STATUS_OK;
}

int wdelta_whole(const struct wdelta_piece *p)
{
    return !p->xored && !p->sparse;
}

static int wdelta_apply_sparse(const struct wdelta_piece *p, const uint8_t *raw, uint16_t *values,
                               struct err *e)
{
    const uint8_t *low = raw + p->gaps, *high = low + p->changed;
    uint32_t k = 0;
    int64_t i = -1;

    for (uint32_t g = 0; g < p->gaps; g++) {
        i += raw[g];
        if (raw[g] == WDELTA_SKIP) {
            continue;
        }
        if (++i >= p->at.count || k == p->changed) {
            return ERR(e, STATUS_FORMAT, "a piece of %d values changes one behind its end",
                       p->at.count);
        }
        uint16_t v = (uint16_t)(low[k] | high[k] << 8);
        values[i] = p->xored ? values[i] ^ v : v;
        k++;
    }
    return k == p->changed ? STATUS_OK
                           : ERR(e, STATUS_FORMAT, "a piece has places of %u values, and %u values",
                                 k, p->changed);
}

int wdelta_apply(struct wdelta *d, const struct wdelta_piece *p, uint16_t *values, struct err *e)
{
    size_t want = p->sparse ? p->gaps + 2 * (size_t)p->changed : 2 * (size_t)p->at.count;
    size_t n = ZSTD_decompressDCtx(d->unpack, d->raw, WDELTA_RAW, p->packed, p->bytes);
    const uint8_t *low = d->raw, *high = low + p->at.count;

    if (ZSTD_isError(n) || n != want) {
        return ERR(e, STATUS_FORMAT, "a piece of weights does not unpack to %zu bytes: %s", want,
                   ZSTD_isError(n) ? ZSTD_getErrorName(n) : "another number");
    }
    if (p->sparse) {
        return wdelta_apply_sparse(p, d->raw, values, e);
    }
    for (int32_t i = 0; i < p->at.count; i++) {
        uint16_t v = (uint16_t)(low[i] | high[i] << 8);
        values[i] = p->xored ? values[i] ^ v : v;
    }
    return STATUS_OK;
}

/* ---- hashes ---- */

void wdelta_hash(const void *data, size_t n, char out[WDELTA_HASH])
{
    XXH128_hash_t h = XXH3_128bits(data, n);
    snprintf(out, WDELTA_HASH, "%016llx%016llx", (unsigned long long)h.high64,
             (unsigned long long)h.low64);
}

int wdelta_is_hash(const char *text)
{
    return strlen(text) == WDELTA_HASH - 1 && strspn(text, "0123456789abcdef") == WDELTA_HASH - 1;
}
