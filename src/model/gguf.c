/* Owns the GGUF container (versions 2 and 3, little-endian). Everything that comes from the file is
 * bounds-checked at open by one cursor; afterwards views into the map are handed out as they are.
 */
#include "model/gguf.h"

#include <stdio.h>
#include <string.h>

#include "base/fsio.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/status.h"
#include "model/gguf_quant.h"

/* No real file nests arrays deeper than 1, nor has keys or tensors by the million. */
#define GGUF_MAX_DEPTH   4
#define GGUF_MAX_KV      65536
#define GGUF_MAX_TENSORS 1000000
#define GGUF_MAX_NAME    1024

struct gguf {
    char *path;
    const uint8_t *map;
    size_t len;
    struct gguf_kv *kvs;
    int n_kv;
    struct gguf_tensor *tensors;
    uint64_t *offset; /* of each tensor, from the start of the data */
    int n_tensors;
    struct map kv_index, tensor_index;
    struct arena arena;
};

static const char *const gguf_type_names[] = {
    "F32",      "F16",      "Q4_0",    "Q4_1",  "type 4",  "type 5",  "Q5_0",    "Q5_1",
    "Q8_0",     "Q8_1",     "Q2_K",    "Q3_K",  "Q4_K",    "Q5_K",    "Q6_K",    "Q8_K",
    "IQ2_XXS",  "IQ2_XS",   "IQ3_XXS", "IQ1_S", "IQ4_NL",  "IQ3_S",   "IQ2_S",   "IQ4_XS",
    "I8",       "I16",      "I32",     "I64",   "F64",     "IQ1_M",   "BF16",    "Q4_0_4_4",
    "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",   "TQ2_0", "type 36", "type 37", "type 38", "MXFP4",
};

/* ---- the cursor ---- */

struct gguf_cur {
    const struct gguf *g;
    const uint8_t *p, *end;
};

static int gguf_short(const struct gguf_cur *c, const char *what, struct err *e)
{
    return ERR(e, STATUS_FORMAT, "%s: the file ends inside %s (byte %zu of %zu)", c->g->path, what,
               (size_t)(c->p - c->g->map), c->g->len);
}

static uint64_t gguf_le(const uint8_t *p, int n)
{
    uint64_t v = 0;
    for (int i = n - 1; i >= 0; i--) {
        v = v << 8 | p[i];
    }
    return v;
}

static int gguf_uint(struct gguf_cur *c, int n, const char *what, uint64_t *out, struct err *e)
{
    if ((size_t)(c->end - c->p) < (size_t)n) {
        return gguf_short(c, what, e);
    }
    *out = gguf_le(c->p, n);
    c->p += n;
    return STATUS_OK;
}

static int gguf_string(struct gguf_cur *c, const char *what, struct gguf_str *out, struct err *e)
{
    uint64_t n = 0;
    int rc = gguf_uint(c, 8, what, &n, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    if (n > (uint64_t)(c->end - c->p)) {
        return gguf_short(c, what, e);
    }
    out->s = (const char *)c->p;
    out->n = (size_t)n;
    c->p += n;
    return STATUS_OK;
}

/* Bytes of a scalar type, 0 for strings, arrays and unknown numbers. */
static int gguf_scalar_size(uint64_t type)
{
    static const int size[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type <= GGUF_F64 ? size[type] : 0;
}

/* ---- metadata ---- */

static int gguf_skip_array(struct gguf_cur *c, uint64_t elem, uint64_t count, int depth,
                           const char *key, struct err *e)
{
    int size = gguf_scalar_size(elem), rc = STATUS_OK;

    if (size) {
        if (count > (uint64_t)(c->end - c->p) / (uint64_t)size) {
            return gguf_short(c, key, e);
        }
        c->p += count * (uint64_t)size;
        return STATUS_OK;
    }
    if ((elem != GGUF_STRING && elem != GGUF_ARRAY) || depth == GGUF_MAX_DEPTH) {
        return ERR(e, STATUS_FORMAT, "%s: %s is an array of an unknown type %llu", c->g->path, key,
                   (unsigned long long)elem);
    }
    /* Each element takes at least 8 bytes, so a hostile count ends this loop at the file's end. */
    for (uint64_t i = 0; i < count && rc == STATUS_OK; i++) {
        struct gguf_str s;
        uint64_t sub = 0, n = 0;
        if (elem == GGUF_STRING) {
            rc = gguf_string(c, key, &s, e);
        } else if (!(rc = gguf_uint(c, 4, key, &sub, e)) && !(rc = gguf_uint(c, 8, key, &n, e))) {
            rc = gguf_skip_array(c, sub, n, depth + 1, key, e);
        }
    }
    return rc;
}

/* A scalar's bits as a value of its type. */
static int gguf_scalar(const struct gguf *g, struct gguf_kv *kv, uint64_t bits, struct err *e)
{
    uint32_t u32 = (uint32_t)bits;
    float f32;

    switch (kv->type) {
    case GGUF_I8: kv->i = (int8_t)bits; break;
    case GGUF_I16: kv->i = (int16_t)bits; break;
    case GGUF_I32: kv->i = (int32_t)bits; break;
    case GGUF_F32:
        memcpy(&f32, &u32, 4);
        kv->f = (double)f32;
        break;
    case GGUF_F64: memcpy(&kv->f, &bits, 8); break;
    case GGUF_BOOL: kv->i = bits != 0; break;
    case GGUF_U64:
        if (bits > INT64_MAX) {
            return ERR(e, STATUS_FORMAT, "%s: %s is %llu, beyond any use", g->path, kv->key,
                       (unsigned long long)bits);
        }
        kv->i = (int64_t)bits;
        break;
    default: kv->i = (int64_t)bits; break;
    }
    return STATUS_OK;
}

/* A name of the file as a NUL-terminated copy. */
static int gguf_name(struct gguf *g, struct gguf_cur *c, const char *what, const char **out,
                     struct err *e)
{
    struct gguf_str s = {NULL, 0};
    int rc = gguf_string(c, what, &s, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    if (s.n == 0 || s.n > GGUF_MAX_NAME || memchr(s.s, 0, s.n)) {
        return ERR(e, STATUS_FORMAT, "%s: %s of %zu bytes is not a name", g->path, what, s.n);
    }
    *out = arena_strndup(&g->arena, s.s, s.n);
    return STATUS_OK;
}

static int gguf_read_kv(struct gguf *g, struct gguf_cur *c, struct gguf_kv *kv, struct err *e)
{
    uint64_t type = 0, v = 0;
    int rc;

    if ((rc = gguf_name(g, c, "a metadata key", &kv->key, e)) ||
        (rc = gguf_uint(c, 4, kv->key, &type, e))) {
        return rc;
    }
    if (type > GGUF_F64) {
        return ERR(e, STATUS_FORMAT, "%s: %s has an unknown type %llu", g->path, kv->key,
                   (unsigned long long)type);
    }
    kv->type = (enum gguf_type)type;
    if (kv->type == GGUF_STRING) {
        return gguf_string(c, kv->key, &kv->str, e);
    }
    if (kv->type == GGUF_ARRAY) {
        if ((rc = gguf_uint(c, 4, kv->key, &v, e)) ||
            (rc = gguf_uint(c, 8, kv->key, &kv->count, e))) {
            return rc;
        }
        kv->data = c->p;
        rc = gguf_skip_array(c, v, kv->count, 1, kv->key, e);
        kv->elem = rc == STATUS_OK ? (enum gguf_type)v : GGUF_U8;
        return rc;
    }
    rc = gguf_uint(c, gguf_scalar_size(type), kv->key, &v, e);
    return rc == STATUS_OK ? gguf_scalar(g, kv, v, e) : rc;
}

/* ---- tensors ---- */

/* Bytes of one row of n values, or 0 when the type cannot be read or n is not whole blocks. */
static size_t gguf_row_bytes(uint32_t type, int64_t n)
{
    const struct gguf_quant *q = gguf_quant_find(type);
    return q && n % q->values == 0 ? (size_t)(n / q->values) * (size_t)q->bytes : 0;
}

static int gguf_read_tensor(struct gguf *g, struct gguf_cur *c, int index, struct err *e)
{
    struct gguf_tensor *t = &g->tensors[index];
    uint64_t v = 0, type = 0;
    int rc;

    if ((rc = gguf_name(g, c, "a tensor name", &t->name, e)) ||
        (rc = gguf_uint(c, 4, t->name, &v, e))) {
        return rc;
    }
    if (v < 1 || v > 4) {
        return ERR(e, STATUS_FORMAT, "%s: tensor %s has %llu dimensions, 1 to 4 are possible",
                   g->path, t->name, (unsigned long long)v);
    }
    t->ndim = (int)v;
    t->count = 1;
    for (int i = 0; i < 4; i++) {
        t->dim[i] = 1;
    }
    for (int i = 0; i < t->ndim; i++) {
        if ((rc = gguf_uint(c, 8, t->name, &v, e))) {
            return rc;
        }
        if (v == 0 || v > (uint64_t)(INT64_MAX / 8 / t->count)) {
            return ERR(e, STATUS_FORMAT, "%s: tensor %s: dimension %d is %llu", g->path, t->name, i,
                       (unsigned long long)v);
        }
        t->dim[i] = (int64_t)v;
        t->count *= t->dim[i];
    }
    if ((rc = gguf_uint(c, 4, t->name, &type, e)) ||
        (rc = gguf_uint(c, 8, t->name, &g->offset[index], e))) {
        return rc;
    }
    t->type = (uint32_t)type;
    if (type < sizeof gguf_type_names / sizeof gguf_type_names[0]) {
        t->type_name = gguf_type_names[type];
    } else {
        char name[32];
        snprintf(name, sizeof name, "type %u", t->type);
        t->type_name = arena_strdup(&g->arena, name);
    }
    return STATUS_OK;
}

/* Offsets become pointers once the start of the data is known. */
static int gguf_place_tensors(struct gguf *g, const struct gguf_cur *c, struct err *e)
{
    const struct gguf_kv *kv = gguf_kv(g, "general.alignment");
    uint64_t align = 32, start = (uint64_t)(c->p - g->map), room;

    if (kv) {
        if (kv->type != GGUF_U32 || kv->i < 8 || kv->i > 1 << 20 || (kv->i & (kv->i - 1))) {
            return ERR(e, STATUS_FORMAT, "%s: general.alignment is not a power of two from 8",
                       g->path);
        }
        align = (uint64_t)kv->i;
    }
    start = (start + align - 1) / align * align;
    room = start <= g->len ? g->len - start : 0;
    for (int i = 0; i < g->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensors[i];
        uint64_t off = g->offset[i], rows;
        t->row_bytes = gguf_row_bytes(t->type, t->dim[0]);
        if (!t->row_bytes) {
            continue;
        }
        rows = (uint64_t)(t->count / t->dim[0]);
        if (off % align != 0 || off > room || rows > (room - off) / t->row_bytes) {
            return ERR(e, STATUS_FORMAT,
                       "%s: tensor %s: %llu rows of %zu bytes at offset %llu are not inside the "
                       "file's %llu data bytes",
                       g->path, t->name, (unsigned long long)rows, t->row_bytes,
                       (unsigned long long)off, (unsigned long long)room);
        }
        t->data = g->map + start + off;
        t->readable = 1;
    }
    return STATUS_OK;
}

/* ---- the file ---- */

static int gguf_counts(struct gguf *g, struct gguf_cur *c, struct err *e)
{
    uint64_t magic = 0, version = 0, n_tensors = 0, n_kv = 0;
    int rc;

    if (g->len < 4 || memcmp(g->map, "GGUF", 4) != 0) {
        return ERR(e, STATUS_FORMAT, "%s is not a gguf file", g->path);
    }
    if ((rc = gguf_uint(c, 4, "the header", &magic, e)) ||
        (rc = gguf_uint(c, 4, "the header", &version, e))) {
        return rc;
    }
    if (version != 2 && version != 3) {
        return ERR(e, STATUS_UNSUPPORTED, "%s: gguf version %llu%s; only 2 and 3 are supported",
                   g->path, (unsigned long long)version,
                   (version & 0xffff) == 0 ? " (a big-endian file)" : "");
    }
    if ((rc = gguf_uint(c, 8, "the header", &n_tensors, e)) ||
        (rc = gguf_uint(c, 8, "the header", &n_kv, e))) {
        return rc;
    }
    if (n_kv > GGUF_MAX_KV || n_tensors > GGUF_MAX_TENSORS) {
        return ERR(e, STATUS_FORMAT, "%s: %llu metadata keys and %llu tensors are beyond any use",
                   g->path, (unsigned long long)n_kv, (unsigned long long)n_tensors);
    }
    /* A key takes 12 bytes at the least and a tensor 24: so the tables stay within a multiple of
     * the file's own size. */
    if (n_kv * 12 + n_tensors * 24 > g->len) {
        return ERR(e, STATUS_FORMAT, "%s: %llu metadata keys and %llu tensors do not fit %zu bytes",
                   g->path, (unsigned long long)n_kv, (unsigned long long)n_tensors, g->len);
    }
    g->n_kv = (int)n_kv;
    g->n_tensors = (int)n_tensors;
    g->kvs = mem_alloc((n_kv + 1) * sizeof *g->kvs);
    g->tensors = mem_alloc((n_tensors + 1) * sizeof *g->tensors);
    g->offset = mem_alloc((n_tensors + 1) * sizeof *g->offset);
    return STATUS_OK;
}

static int gguf_parse(struct gguf *g, struct err *e)
{
    struct gguf_cur c = {g, g->map, g->map + g->len};
    int rc = gguf_counts(g, &c, e);

    for (int i = 0; rc == STATUS_OK && i < g->n_kv; i++) {
        rc = gguf_read_kv(g, &c, &g->kvs[i], e);
        if (rc == STATUS_OK && !map_put(&g->kv_index, g->kvs[i].key, strlen(g->kvs[i].key), i)) {
            rc = ERR(e, STATUS_FORMAT, "%s: the key %s is there twice", g->path, g->kvs[i].key);
        }
    }
    for (int i = 0; rc == STATUS_OK && i < g->n_tensors; i++) {
        const char **name = &g->tensors[i].name;
        rc = gguf_read_tensor(g, &c, i, e);
        if (rc == STATUS_OK && !map_put(&g->tensor_index, *name, strlen(*name), i)) {
            rc = ERR(e, STATUS_FORMAT, "%s: the tensor %s is there twice", g->path, *name);
        }
    }
    return rc == STATUS_OK ? gguf_place_tensors(g, &c, e) : rc;
}

int gguf_open(const char *path, struct gguf **out, struct err *e)
{
    struct gguf *g = mem_alloc(sizeof *g);
    int rc;

    g->path = mem_strdup(path);
    arena_init(&g->arena, 1 << 16);
    map_init(&g->kv_index);
    map_init(&g->tensor_index);
    rc = fsio_map(path, &g->map, &g->len, e);
    if (rc == STATUS_OK) {
        rc = gguf_parse(g, e);
    }
    if (rc != STATUS_OK) {
        gguf_close(g);
        return rc;
    }
    *out = g;
    return STATUS_OK;
}

void gguf_close(struct gguf *g)
{
    if (g) {
        fsio_unmap(g->map, g->len);
        map_fini(&g->kv_index);
        map_fini(&g->tensor_index);
        arena_fini(&g->arena);
        mem_free(g->kvs);
        mem_free(g->tensors);
        mem_free(g->offset);
        mem_free(g->path);
        mem_free(g);
    }
}

const char *gguf_path(const struct gguf *g)
{
    return g->path;
}

const struct gguf_kv *gguf_kv(const struct gguf *g, const char *key)
{
    int64_t i;
    return map_get(&g->kv_index, key, strlen(key), &i) ? &g->kvs[i] : NULL;
}

int gguf_tensor_count(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, int i)
{
    ASSERT(i >= 0 && i < g->n_tensors);
    return &g->tensors[i];
}

const struct gguf_tensor *gguf_find(const struct gguf *g, const char *name)
{
    int64_t i;
    return map_get(&g->tensor_index, name, strlen(name), &i) ? &g->tensors[i] : NULL;
}

struct gguf_str gguf_next_string(const uint8_t **at)
{
    struct gguf_str s;
    s.n = (size_t)gguf_le(*at, 8);
    s.s = (const char *)*at + 8;
    *at += 8 + s.n;
    return s;
}

int64_t gguf_array_int(const struct gguf_kv *kv, uint64_t i)
{
    int size = gguf_scalar_size(kv->elem);
    uint64_t v;

    ASSERT(kv->type == GGUF_ARRAY && size && i < kv->count);
    v = gguf_le(kv->data + i * (uint64_t)size, size);
    switch (kv->elem) {
    case GGUF_I8: return (int8_t)v;
    case GGUF_I16: return (int16_t)v;
    case GGUF_I32: return (int32_t)v;
    default: return (int64_t)v;
    }
}

/* ---- values ---- */

static int gguf_check_rows(const struct gguf_tensor *t, int64_t row0, int64_t nrows, struct err *e)
{
    int64_t rows = t->count / t->dim[0];

    if (!t->readable) {
        return ERR(e, STATUS_UNSUPPORTED,
                   "tensor %s is %s with rows of %lld; only " GGUF_QUANT_NAMES
                   " (in whole blocks) can be read",
                   t->name, t->type_name, (long long)t->dim[0]);
    }
    if (row0 < 0 || nrows < 0 || row0 > rows || nrows > rows - row0) {
        return ERR(e, STATUS_INPUT, "tensor %s has %lld rows, rows %lld to %lld were asked for",
                   t->name, (long long)rows, (long long)row0, (long long)row0 + nrows);
    }
    return STATUS_OK;
}

int gguf_rows_f32(const struct gguf_tensor *t, int64_t row0, int64_t nrows, float *dst,
                  struct err *e)
{
    int rc = gguf_check_rows(t, row0, nrows, e);
    const struct gguf_quant *q;

    if (rc != STATUS_OK) {
        return rc;
    }
    q = gguf_quant_find(t->type);
    q->f32(t->data + (size_t)row0 * t->row_bytes, dst, nrows * t->dim[0] / q->values);
    return STATUS_OK;
}

int gguf_rows_bf16(const struct gguf_tensor *t, int64_t row0, int64_t nrows, uint16_t *dst,
                   struct err *e)
{
    int rc = gguf_check_rows(t, row0, nrows, e);
    const struct gguf_quant *q;

    if (rc != STATUS_OK) {
        return rc;
    }
    q = gguf_quant_find(t->type);
    gguf_quant_bf16(q, t->data + (size_t)row0 * t->row_bytes, dst, nrows * t->dim[0] / q->values);
    return STATUS_OK;
}
