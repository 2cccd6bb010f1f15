/* Owns the encodings of Parquet: levels, dictionary indexes and values, each as a stream over the
 * bytes of a page, so that no count in a file decides how much memory is taken. */
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "rl/parquet_int.h"

#define MAX_BLOCK 65536 /* values of a block of deltas; writers take 128 */

const char *parquet_enc_name(int encoding)
{
    static const char *const names[] = {
        "PLAIN",          "GROUP_VAR_INT",       "PLAIN_DICTIONARY",        "RLE",
        "BIT_PACKED",     "DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY",
        "RLE_DICTIONARY", "BYTE_STREAM_SPLIT"};
    return encoding >= 0 && encoding < (int)(sizeof names / sizeof names[0]) ? names[encoding]
                                                                             : "unknown";
}

static int get_varint(const uint8_t **p, const uint8_t *end, uint64_t *out)
{
    uint64_t v = 0;
    for (int shift = 0; shift < 70 && *p < end; shift += 7) {
        uint8_t b = *(*p)++;
        if (shift < 64) {
            v |= (uint64_t)(b & 0x7f) << shift;
        }
        if (!(b & 0x80)) {
            *out = v;
            return 1;
        }
    }
    return 0;
}

static uint32_t get_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* `width` bits from bit `at` on, least first; they lie inside the bytes. */
static uint64_t get_bits(const uint8_t *p, uint64_t at, int width)
{
    uint64_t v = 0;
    int have = 0;

    while (have < width) {
        int from = (int)(at & 7), take = 8 - from < width - have ? 8 - from : width - have;
        uint64_t b = (uint64_t)(p[at >> 3] >> from) & ((1u << take) - 1);
        v |= b << have;
        have += take;
        at += (uint64_t)take;
    }
    return v;
}

/* --- runs --- */

void parquet_runs_init(struct parquet_runs *r, const uint8_t *p, size_t n, int width)
{
    memset(r, 0, sizeof *r);
    r->p = p;
    r->end = p + n;
    r->width = width;
}

static int next_run(struct parquet_runs *r)
{
    uint64_t head;
    size_t bytes = (size_t)(r->width + 7) / 8;

    if (r->packed) { /* behind the last group */
        r->p += r->bit / 8;
        r->bit = 0;
        r->packed = 0;
    }
    if (!get_varint(&r->p, r->end, &head) || head >> 1 > UINT32_MAX) {
        return 0;
    }
    if (head & 1) {
        uint64_t groups = head >> 1, room;
        r->packed = 1;
        r->bit = 0;
        r->left = groups * 8;
        if (r->width) { /* the last group may be cut behind the last value */
            room = (uint64_t)(r->end - r->p) * 8 / (uint64_t)r->width;
            r->left = r->left < room ? r->left : room;
        }
        return 1;
    }
    if ((size_t)(r->end - r->p) < bytes) {
        return 0;
    }
    r->value = 0;
    for (size_t i = 0; i < bytes; i++) {
        r->value |= (uint32_t)r->p[i] << (8 * i);
    }
    r->p += bytes;
    r->left = head >> 1;
    return 1;
}

int parquet_runs_next(struct parquet_runs *r, uint32_t *out)
{
    while (r->left == 0) {
        if (!next_run(r)) {
            return 0;
        }
    }
    r->left--;
    if (r->packed) {
        *out = (uint32_t)get_bits(r->p, r->bit, r->width);
        r->bit += (uint64_t)r->width;
    } else {
        *out = r->value;
    }
    return 1;
}

/* --- deltas --- */

int parquet_delta_init(struct parquet_delta *d, const uint8_t *p, size_t n)
{
    uint64_t first;

    memset(d, 0, sizeof *d);
    d->p = p;
    d->end = p + n;
    if (!get_varint(&d->p, d->end, &d->per_block) || !get_varint(&d->p, d->end, &d->minis) ||
        !get_varint(&d->p, d->end, &d->total) || !get_varint(&d->p, d->end, &first)) {
        return 0;
    }
    if (d->per_block == 0 || d->per_block > MAX_BLOCK || d->minis == 0 ||
        d->per_block % d->minis != 0 || (d->per_block / d->minis) % 8 != 0) {
        return 0;
    }
    d->per_mini = d->per_block / d->minis;
    d->last = first >> 1 ^ -(first & 1);
    d->mini = d->minis; /* no block is open */
    d->in_mini = d->per_mini;
    return 1;
}

/* Opens the next mini block, and the next block before its first. */
static int next_mini(struct parquet_delta *d)
{
    uint64_t zig, bytes;

    if (d->mini == d->minis) {
        if (!get_varint(&d->p, d->end, &zig) || (uint64_t)(d->end - d->p) < d->minis) {
            return 0;
        }
        d->min = zig >> 1 ^ -(zig & 1);
        d->widths = d->p;
        d->p += d->minis;
        d->mini = 0;
    }
    d->width = d->widths[d->mini++];
    bytes = d->per_mini / 8 * (uint64_t)d->width;
    if (d->width > 64) {
        return 0;
    }
    d->packed = d->p;
    d->in_mini = 0;
    if ((uint64_t)(d->end - d->p) < bytes) { /* the last one may be cut behind its values */
        uint64_t need = d->total - d->given < d->per_mini ? d->total - d->given : d->per_mini;
        if ((uint64_t)(d->end - d->p) * 8 < need * (uint64_t)d->width) {
            return 0;
        }
        bytes = (uint64_t)(d->end - d->p);
    }
    d->p += bytes;
    return 1;
}

int parquet_delta_next(struct parquet_delta *d, int64_t *out)
{
    if (d->given == d->total) {
        return 0;
    }
    if (d->given > 0) {
        if (d->in_mini == d->per_mini && !next_mini(d)) {
            return 0;
        }
        d->last += d->min + get_bits(d->packed, d->in_mini * (uint64_t)d->width, d->width);
        d->in_mini++;
    }
    d->given++;
    *out = (int64_t)d->last;
    return 1;
}

const uint8_t *parquet_delta_end(struct parquet_delta d)
{
    uint64_t left = d.total > 0 ? d.total - 1 : 0; /* values behind the first */

    d.given = d.total ? 1 : 0;
    while (left > 0) {
        uint64_t n = left < d.per_mini ? left : d.per_mini;
        if (!next_mini(&d)) {
            return NULL;
        }
        d.given += n;
        left -= n;
    }
    return d.p; /* mini blocks of the last block without values have no bytes */
}

/* --- values --- */

static size_t fixed_size(int type, int length)
{
    switch (type) {
    case PARQUET_INT32:
    case PARQUET_FLOAT: return 4;
    case PARQUET_INT64:
    case PARQUET_DOUBLE: return 8;
    case PARQUET_INT96: return 12;
    case PARQUET_FIXED: return (size_t)length;
    default: return 0;
    }
}

static int bad_encoding(int type, int encoding, struct err *e)
{
    static const char *const types[] = {"BOOLEAN", "INT32",  "INT64",      "INT96",
                                        "FLOAT",   "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"};
    return ERR(e, STATUS_UNSUPPORTED, "encoding %s (%d) of type %s is not understood",
               parquet_enc_name(encoding), encoding, types[type]);
}

static int init_split(struct parquet_values *v, size_t len, struct err *e)
{
    size_t size = fixed_size(v->type, v->length);

    if (!size || size > sizeof v->tmp) {
        return bad_encoding(v->type, v->encoding, e);
    }
    v->n = (int64_t)(len / size);
    return 0;
}

static int init_delta_bytes(struct parquet_values *v, size_t len, struct err *e)
{
    const uint8_t *p = v->p;

    if (v->type != PARQUET_BYTES &&
        !(v->type == PARQUET_FIXED && v->encoding == PARQUET_ENC_DELTA_BYTES)) {
        return bad_encoding(v->type, v->encoding, e);
    }
    if (v->encoding == PARQUET_ENC_DELTA_BYTES) {
        p = parquet_delta_init(&v->prefix, p, len) ? parquet_delta_end(v->prefix) : NULL;
    }
    if (p) {
        p = parquet_delta_init(&v->delta, p, (size_t)(v->end - p)) ? parquet_delta_end(v->delta)
                                                                   : NULL;
    }
    if (!p) {
        return ERR(e, STATUS_FORMAT, "the lengths of byte arrays are damaged");
    }
    v->p = p;
    return 0;
}

int parquet_values_init(struct parquet_values *v, int type, int length, int encoding,
                        const uint8_t *p, size_t len, int64_t n, struct err *e)
{
    parquet_values_fini(v);
    v->type = type;
    v->length = length;
    v->encoding = encoding;
    v->p = p;
    v->end = p + len;
    v->n = n;
    switch (encoding) {
    case PARQUET_ENC_PLAIN:
        if (type == PARQUET_BOOLEAN) {
            v->n = len > INT64_MAX / 8 ? INT64_MAX : (int64_t)len * 8;
        }
        return 0;
    case PARQUET_ENC_PLAIN_DICTIONARY:
    case PARQUET_ENC_RLE_DICTIONARY:
        if (len > 0 && p[0] > 32) {
            return ERR(e, STATUS_FORMAT, "dictionary indexes of %d bits", p[0]);
        }
        parquet_runs_init(&v->runs, p + (len > 0), len - (len > 0), len ? p[0] : 0);
        return 0;
    case PARQUET_ENC_RLE:
        if (type != PARQUET_BOOLEAN) {
            return bad_encoding(type, encoding, e);
        }
        if (len < 4 || get_u32(p) > len - 4) {
            return len == 0 ? 0 : ERR(e, STATUS_FORMAT, "a run of booleans is cut");
        }
        parquet_runs_init(&v->runs, p + 4, get_u32(p), 1);
        return 0;
    case PARQUET_ENC_DELTA_BINARY_PACKED:
        if (type != PARQUET_INT32 && type != PARQUET_INT64) {
            return bad_encoding(type, encoding, e);
        }
        return parquet_delta_init(&v->delta, p, len) || len == 0
                   ? 0
                   : ERR(e, STATUS_FORMAT, "a block of deltas is damaged");
    case PARQUET_ENC_DELTA_LENGTH:
    case PARQUET_ENC_DELTA_BYTES: return len == 0 ? 0 : init_delta_bytes(v, len, e);
    case PARQUET_ENC_BYTE_STREAM_SPLIT: return init_split(v, len, e);
    default: return bad_encoding(type, encoding, e);
    }
}

void parquet_values_fini(struct parquet_values *v)
{
    mem_free(v->last);
    memset(v, 0, sizeof *v);
}

static void put_le(uint8_t *out, uint64_t v, int n)
{
    for (int i = 0; i < n; i++) {
        out[i] = (uint8_t)(v >> (8 * i));
    }
}

static int next_plain(struct parquet_values *v, const uint8_t **p, size_t *n)
{
    size_t size = fixed_size(v->type, v->length), left = (size_t)(v->end - v->p);

    if (v->type == PARQUET_BOOLEAN) {
        if (v->given == v->n) {
            return 0;
        }
        v->tmp[0] = (uint8_t)get_bits(v->p, (uint64_t)v->given++, 1);
        *p = v->tmp;
        *n = 1;
        return 1;
    }
    if (v->type == PARQUET_BYTES) {
        if (left < 4 || get_u32(v->p) > left - 4) {
            return 0;
        }
        size = get_u32(v->p);
        v->p += 4;
        left -= 4;
    }
    if (left < size) {
        return 0;
    }
    *p = v->p;
    *n = size;
    v->p += size;
    return 1;
}

static int next_delta_length(struct parquet_values *v, const uint8_t **p, size_t *n)
{
    int64_t len;

    if (!parquet_delta_next(&v->delta, &len) || len < 0 || len > v->end - v->p) {
        return 0;
    }
    *p = v->p;
    *n = (size_t)len;
    v->p += len;
    return 1;
}

static int next_delta_bytes(struct parquet_values *v, const uint8_t **p, size_t *n)
{
    const uint8_t *tail;
    size_t len;
    int64_t keep;

    if (!parquet_delta_next(&v->prefix, &keep) || keep < 0 || (size_t)keep > v->last_len ||
        !next_delta_length(v, &tail, &len)) {
        return 0;
    }
    if ((size_t)keep + len > v->last_cap) {
        size_t cap = ((size_t)keep + len) * 2;
        v->last = mem_realloc(v->last, v->last_cap, cap);
        v->last_cap = cap;
    }
    if (len) {
        memcpy(v->last + keep, tail, len);
    }
    v->last_len = (size_t)keep + len;
    *p = v->last ? v->last : v->tmp;
    *n = v->last_len;
    return v->type != PARQUET_FIXED || *n == (size_t)v->length;
}

int parquet_values_next(struct parquet_values *v, const uint8_t **p, size_t *n)
{
    uint32_t u;
    int64_t d;

    *p = v->tmp;
    switch (v->encoding) {
    case PARQUET_ENC_PLAIN: return next_plain(v, p, n);
    case PARQUET_ENC_PLAIN_DICTIONARY:
    case PARQUET_ENC_RLE_DICTIONARY:
    case PARQUET_ENC_RLE:
        if (!parquet_runs_next(&v->runs, &u)) {
            return 0;
        }
        *n = v->encoding == PARQUET_ENC_RLE ? 1 : 4;
        put_le(v->tmp, u, 4);
        return 1;
    case PARQUET_ENC_DELTA_BINARY_PACKED:
        if (!parquet_delta_next(&v->delta, &d)) {
            return 0;
        }
        *n = v->type == PARQUET_INT32 ? 4 : 8;
        put_le(v->tmp, (uint64_t)d, (int)*n);
        return 1;
    case PARQUET_ENC_DELTA_LENGTH: return next_delta_length(v, p, n);
    case PARQUET_ENC_DELTA_BYTES: return next_delta_bytes(v, p, n);
    default: /* BYTE_STREAM_SPLIT */
        if (v->given == v->n) {
            return 0;
        }
        *n = fixed_size(v->type, v->length);
        for (size_t i = 0; i < *n; i++) {
            v->tmp[i] = v->p[(int64_t)i * v->n + v->given];
        }
        v->given++;
        return 1;
    }
}

/* --- snappy --- */

/* One element: bytes that follow, or a copy of bytes already written. */
static int unsnap_element(const uint8_t **in, const uint8_t *end, uint8_t *out, size_t *at,
                          size_t n)
{
    const uint8_t *p = *in;
    uint8_t tag = *p++;
    size_t len, from;

    if ((tag & 3) == 0) {
        size_t extra = tag >> 2 < 60 ? 0 : (size_t)(tag >> 2) - 59;
        len = tag >> 2;
        if ((size_t)(end - p) < extra) {
            return 0;
        }
        if (extra) {
            len = 0;
            for (size_t i = 0; i < extra; i++) {
                len |= (size_t)p[i] << (8 * i);
            }
            p += extra;
        }
        len++;
        if (len > (size_t)(end - p) || len > n - *at) {
            return 0;
        }
        memcpy(out + *at, p, len);
        *at += len;
        *in = p + len;
        return 1;
    }
    if (end - p < ((tag & 3) == 3 ? 4 : tag & 3)) {
        return 0;
    }
    if ((tag & 3) == 1) {
        len = 4 + (tag >> 2 & 7);
        from = (size_t)(tag >> 5) << 8 | p[0];
        p += 1;
    } else {
        len = 1 + (size_t)(tag >> 2);
        from = (tag & 3) == 2 ? (size_t)p[0] | (size_t)p[1] << 8 : get_u32(p);
        p += (tag & 3) == 2 ? 2 : 4;
    }
    if (from == 0 || from > *at || len > n - *at) {
        return 0;
    }
    if (from >= len) {
        memcpy(out + *at, out + *at - from, len);
    } else { /* they overlap: the copy repeats */
        for (size_t i = 0; i < len; i++) {
            out[*at + i] = out[*at + i - from];
        }
    }
    *at += len;
    *in = p;
    return 1;
}

int parquet_unsnap(const uint8_t *in, size_t len, uint8_t *out, size_t n)
{
    const uint8_t *end = in + len;
    uint64_t size;
    size_t at = 0;

    if (!get_varint(&in, end, &size) || size != n) {
        return 0;
    }
    while (in < end) {
        if (!unsnap_element(&in, end, out, &at, n)) {
            return 0;
        }
    }
    return at == n;
}
