/* Owns one column's way through a row group: pages are unpacked one at a time, levels and values
 * come out one by one. */
#include <stdlib.h>
#include <string.h>

#include <zlib.h>

#include "base/mem.h"
#include "base/status.h"
#include "rl/parquet_int.h"
#include "rl/unpack.h"

#define MAX_PAGE ((int64_t)256 << 20) /* unpacked bytes */

enum { CODEC_NONE = 0, CODEC_SNAPPY = 1, CODEC_GZIP = 2, CODEC_ZSTD = 6 };

static const char *codec_name(int codec)
{
    static const char *const names[] = {"none",   "snappy", "gzip", "LZO",
                                        "brotli", "LZ4",    "zstd", "LZ4_RAW"};
    return codec >= 0 && codec < 8 ? names[codec] : "unknown";
}

static int bits_of(int most)
{
    int n = 0;
    while (most >> n) {
        n++;
    }
    return n;
}

int parquet_column_start(struct parquet_column *c, const struct parquet_chunk *chunk, struct err *e)
{
    c->chunk = *chunk;
    c->left = chunk->values;
    c->page_left = 0;
    c->have = 0;
    c->has_dict = 0;
    c->nwords = 0;
    c->at = chunk->at;
    if (chunk->values < 0 || chunk->at < 4 || chunk->bytes < 0 ||
        (uint64_t)chunk->at > (uint64_t)c->len ||
        (uint64_t)chunk->bytes > (uint64_t)c->len - (uint64_t)chunk->at) {
        return ERR(e, STATUS_FORMAT, "its values do not lie inside the file");
    }
    c->end = chunk->at + chunk->bytes;
    if (chunk->type != c->node->type) {
        return ERR(e, STATUS_FORMAT, "its type differs from the schema's");
    }
    if (chunk->codec != CODEC_NONE && chunk->codec != CODEC_SNAPPY && chunk->codec != CODEC_GZIP &&
        chunk->codec != CODEC_ZSTD) {
        return ERR(e, STATUS_UNSUPPORTED,
                   "compressed with %s, which is not understood (none, snappy, gzip, zstd are)",
                   codec_name(chunk->codec));
    }
    return 0;
}

/* Unpacks `packed` bytes into *to, n bytes of room for what comes out. */
static int unpack(int codec, const uint8_t *in, size_t packed, uint8_t *to, size_t n, struct err *e)
{
    switch (codec) {
    case CODEC_NONE:
        if (packed != n) {
            return ERR(e, STATUS_FORMAT, "a page has %zu bytes, its header says %zu", packed, n);
        }
        if (n) {
            memcpy(to, in, n);
        }
        return 0;
    case CODEC_SNAPPY:
        return parquet_unsnap(in, packed, to, n) ? 0
                                                 : ERR(e, STATUS_FORMAT, "damaged snappy block");
    default:
        return unpack_block(codec == CODEC_GZIP ? UNPACK_GZIP : UNPACK_ZSTD, in, packed, to, n, e);
    }
}

static int grow(uint8_t **p, size_t *cap, size_t n, struct err *e)
{
    if (n > *cap) {
        mem_free(*p);
        *p = mem_try(n);
        *cap = *p ? n : 0;
        if (!*p) {
            return ERR(e, STATUS_NOMEM, "no memory for a page of %zu bytes", n);
        }
    }
    return 0;
}

/* The whole page into buf; the levels of a page of version 2 are not packed. */
static int load_page(const struct parquet_column *c, const struct parquet_page *h,
                     const uint8_t *body, uint8_t **buf, size_t *cap, struct err *e)
{
    int64_t levels = h->type == PARQUET_DATA_V2 ? h->def_bytes + h->rep_bytes : 0;
    int codec = h->type == PARQUET_DATA_V2 && !h->compressed ? CODEC_NONE : c->chunk.codec;
    int rc;

    if (h->unpacked > MAX_PAGE) {
        return ERR(e, STATUS_UNSUPPORTED, "a page of %lld bytes, at most %lld are read",
                   (long long)h->unpacked, (long long)MAX_PAGE);
    }
    if (h->has_crc && crc32(0, body, (uInt)h->packed) != h->crc) {
        return ERR(e, STATUS_FORMAT, "a page's checksum is wrong: the file is damaged");
    }
    if (levels > h->packed || levels > h->unpacked) {
        return ERR(e, STATUS_FORMAT, "a page's levels are longer than it");
    }
    rc = grow(buf, cap, (size_t)h->unpacked + 1, e);
    if (rc) {
        return rc;
    }
    if (levels) {
        memcpy(*buf, body, (size_t)levels);
    }
    if (h->packed == levels && h->unpacked == levels) {
        return 0; /* no values: nothing was compressed */
    }
    return unpack(codec, body + levels, (size_t)(h->packed - levels), *buf + levels,
                  (size_t)(h->unpacked - levels), e);
}

/* Starts of the dictionary's byte arrays. */
static int index_dict(struct parquet_column *c, int64_t n, struct err *e)
{
    struct parquet_values v = {0};
    const uint8_t *p;
    size_t len;
    int rc = parquet_values_init(&v, c->node->type, c->node->length, PARQUET_ENC_PLAIN, c->dict,
                                 c->dict_len, n, e);

    if (n < 0 || (c->node->type == PARQUET_BYTES && (uint64_t)n > c->dict_len / 4)) {
        rc = ERR(e, STATUS_FORMAT, "a dictionary of %lld values in %zu bytes", (long long)n,
                 c->dict_len);
    }
    mem_free(c->word);
    c->word = NULL;
    if (rc == 0 && c->node->type == PARQUET_BYTES) {
        c->word = mem_alloc((size_t)(n + 1) * sizeof *c->word);
    }
    for (int64_t i = 0; rc == 0 && i < n && c->word; i++) {
        if (!parquet_values_next(&v, &p, &len)) {
            rc = ERR(e, STATUS_FORMAT, "the dictionary is cut");
        } else {
            c->word[i] = p - 4;
        }
    }
    c->nwords = n;
    c->has_dict = rc == 0;
    parquet_values_fini(&v);
    return rc;
}

static int read_dict(struct parquet_column *c, const struct parquet_page *h, const uint8_t *body,
                     struct err *e)
{
    int rc;

    if (c->has_dict) {
        return ERR(e, STATUS_FORMAT, "a second dictionary");
    }
    if (h->encoding != PARQUET_ENC_PLAIN && h->encoding != PARQUET_ENC_PLAIN_DICTIONARY) {
        return ERR(e, STATUS_UNSUPPORTED, "a dictionary encoded as %s",
                   parquet_enc_name(h->encoding));
    }
    rc = load_page(c, h, body, &c->dict, &c->dict_cap, e);
    c->dict_len = rc == 0 ? (size_t)h->unpacked : 0;
    return rc ? rc : index_dict(c, h->values, e);
}

/* The bytes of levels at *p: with their length before them (version 1), or n of them. */
static int take_levels(struct parquet_runs *r, const uint8_t **p, const uint8_t *end, int64_t n,
                       int most, int v2, struct err *e)
{
    if (most == 0 && !v2) {
        return 0;
    }
    if (!v2) {
        if (end - *p < 4) {
            return ERR(e, STATUS_FORMAT, "a page's levels are cut");
        }
        n = (int64_t)((uint32_t)(*p)[0] | (uint32_t)(*p)[1] << 8 | (uint32_t)(*p)[2] << 16 |
                      (uint32_t)(*p)[3] << 24);
        *p += 4;
    }
    if (n < 0 || n > end - *p) {
        return ERR(e, STATUS_FORMAT, "a page's levels are cut");
    }
    parquet_runs_init(r, *p, (size_t)n, bits_of(most));
    *p += n;
    return 0;
}

static int open_data(struct parquet_column *c, const struct parquet_page *h, const uint8_t *body,
                     struct err *e)
{
    int v2 = h->type == PARQUET_DATA_V2, rc;
    const uint8_t *p, *end;

    if (h->values < 0 || h->values > c->left) {
        return ERR(e, STATUS_FORMAT, "a page of %lld values, %lld are left", (long long)h->values,
                   (long long)c->left);
    }
    if (!v2 && ((c->node->def && h->def_encoding != PARQUET_ENC_RLE) ||
                (c->node->rep && h->rep_encoding != PARQUET_ENC_RLE))) {
        return ERR(e, STATUS_UNSUPPORTED, "levels encoded as %s",
                   parquet_enc_name(c->node->def ? h->def_encoding : h->rep_encoding));
    }
    if (v2 && (h->def_bytes < 0 || h->rep_bytes < 0)) {
        return ERR(e, STATUS_FORMAT, "a page's levels are damaged");
    }
    rc = load_page(c, h, body, &c->page, &c->page_cap, e);
    if (rc) {
        return rc;
    }
    p = c->page;
    end = p + h->unpacked;
    rc = take_levels(&c->reps, &p, end, h->rep_bytes, c->node->rep, v2, e);
    rc = rc ? rc : take_levels(&c->defs, &p, end, h->def_bytes, c->node->def, v2, e);
    c->indexed =
        h->encoding == PARQUET_ENC_PLAIN_DICTIONARY || h->encoding == PARQUET_ENC_RLE_DICTIONARY;
    if (rc == 0 && c->indexed && !c->has_dict) {
        rc = ERR(e, STATUS_FORMAT, "a page needs a dictionary that is not there");
    }
    rc = rc ? rc
            : parquet_values_init(&c->values, c->node->type, c->node->length, h->encoding, p,
                                  (size_t)(end - p), h->values, e);
    c->page_left = rc == 0 ? h->values : 0;
    return rc;
}

static int next_page(struct parquet_column *c, struct err *e)
{
    struct parquet_page h;
    const uint8_t *body;
    int rc;

    if (c->at >= c->end) {
        return ERR(e, STATUS_FORMAT, "its pages end with %lld values missing", (long long)c->left);
    }
    rc = parquet_meta_page(c->data + c->at, (size_t)(c->end - c->at), &h, e);
    if (rc) {
        return rc;
    }
    body = c->data + c->at + h.header;
    if (h.packed > c->end - c->at - (int64_t)h.header) {
        return ERR(e, STATUS_FORMAT, "a page of %lld bytes is cut", (long long)h.packed);
    }
    c->at += (int64_t)h.header + h.packed;
    if (h.type == PARQUET_DICTIONARY) {
        return read_dict(c, &h, body, e);
    }
    if (h.type == PARQUET_DATA || h.type == PARQUET_DATA_V2) {
        return open_data(c, &h, body, e);
    }
    return 0; /* an index page, or one of a kind to come: readers pass over them */
}

static int take_level(struct parquet_runs *r, int most, int *out, struct err *e)
{
    uint32_t v = 0;

    if (most && (!parquet_runs_next(r, &v) || v > (uint32_t)most)) {
        return ERR(e, STATUS_FORMAT, "a page's levels are damaged");
    }
    *out = (int)v;
    return 0;
}

int parquet_column_peek(struct parquet_column *c, int *more, struct err *e)
{
    int rc = 0;

    *more = c->have || c->left > 0;
    if (c->have || !*more) {
        c->rep = c->have ? c->rep : 0;
        return 0;
    }
    while (rc == 0 && c->page_left == 0) {
        rc = next_page(c, e);
    }
    rc = rc ? rc : take_level(&c->reps, c->node->rep, &c->rep, e);
    rc = rc ? rc : take_level(&c->defs, c->node->def, &c->def, e);
    if (rc == 0) {
        c->page_left--;
        c->left--;
        c->have = 1;
    }
    return rc;
}

/* The value of a dictionary's index. */
static int look_up(const struct parquet_column *c, const uint8_t **p, size_t *n, struct err *e)
{
    uint32_t i = (uint32_t)(*p)[0] | (uint32_t)(*p)[1] << 8 | (uint32_t)(*p)[2] << 16 |
                 (uint32_t)(*p)[3] << 24;
    size_t size;

    if ((int64_t)i >= c->nwords) {
        return ERR(e, STATUS_FORMAT, "index %u of a dictionary of %lld", i, (long long)c->nwords);
    }
    if (c->word) {
        const uint8_t *w = c->word[i];
        *n = (size_t)w[0] | (size_t)w[1] << 8 | (size_t)w[2] << 16 | (size_t)w[3] << 24;
        *p = w + 4;
        return 0;
    }
    switch (c->node->type) {
    case PARQUET_INT32:
    case PARQUET_FLOAT: size = 4; break;
    case PARQUET_INT64:
    case PARQUET_DOUBLE: size = 8; break;
    case PARQUET_INT96: size = 12; break;
    case PARQUET_FIXED: size = (size_t)c->node->length; break;
    default: return ERR(e, STATUS_UNSUPPORTED, "a dictionary of booleans");
    }
    if ((i + (uint64_t)1) * size > c->dict_len) {
        return ERR(e, STATUS_FORMAT, "the dictionary is cut");
    }
    *p = c->dict + i * size;
    *n = size;
    return 0;
}

int parquet_column_take(struct parquet_column *c, const uint8_t **p, size_t *n, struct err *e)
{
    int more, rc = parquet_column_peek(c, &more, e);

    if (rc == 0 && !more) {
        rc = ERR(e, STATUS_FORMAT, "it has fewer values than its neighbours");
    }
    *p = NULL;
    if (rc || c->def < c->node->def) {
        c->have = 0;
        return rc;
    }
    c->have = 0;
    if (!parquet_values_next(&c->values, p, n)) {
        return ERR(e, STATUS_FORMAT, "a page's values are damaged or cut");
    }
    return c->indexed ? look_up(c, p, n, e) : 0;
}

void parquet_column_fini(struct parquet_column *c)
{
    parquet_values_fini(&c->values);
    mem_free(c->page);
    mem_free(c->dict);
    mem_free(c->word);
    memset(c, 0, sizeof *c);
}
