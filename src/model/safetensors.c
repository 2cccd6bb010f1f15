/* Owns the safetensors format, both ways. The reader checks the whole header at open so that
 * reading a tensor later cannot go wrong; the writer takes the declarations first because the
 * header, which stands before the data, holds every offset. */
#include "model/safetensors.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/buf.h"
#include "base/fsio.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/status.h"
#include "model/halves_int.h"
#include "model/jtext.h"
#include "num/dtype.h"

/* The format's own limit on the header. */
#define SAFETENSORS_MAX_HEADER 100000000u
/* The data of our files starts at a multiple of this. */
#define SAFETENSORS_ALIGN 64

static const struct {
    const char *name;
    enum safetensors_dtype dtype;
    int size;
} safetensors_dtypes[] = {
    {"F32", SAFETENSORS_F32, 4},       {"F16", SAFETENSORS_F16, 2},
    {"BF16", SAFETENSORS_BF16, 2},     {"I64", SAFETENSORS_I64, 8},
    {"F64", SAFETENSORS_OTHER, 8},     {"U64", SAFETENSORS_OTHER, 8},
    {"I32", SAFETENSORS_OTHER, 4},     {"U32", SAFETENSORS_OTHER, 4},
    {"I16", SAFETENSORS_OTHER, 2},     {"U16", SAFETENSORS_OTHER, 2},
    {"I8", SAFETENSORS_OTHER, 1},      {"U8", SAFETENSORS_OTHER, 1},
    {"BOOL", SAFETENSORS_OTHER, 1},    {"F8_E4M3", SAFETENSORS_OTHER, 1},
    {"F8_E5M2", SAFETENSORS_OTHER, 1},
};
#define SAFETENSORS_NDTYPES ((int)(sizeof safetensors_dtypes / sizeof safetensors_dtypes[0]))

struct safetensors {
    char *path;
    const uint8_t *map;
    size_t map_len;
    struct safetensors_tensor *tensors;
    int count;
    struct map by_name;
    struct map meta; /* key -> index into meta_text */
    char **meta_text;
    int n_meta;
    struct arena arena;
};

/* ---- reader ---- */

static int safetensors_shape(const struct safetensors *f, const char *name, const json_t *shape,
                             struct safetensors_tensor *t, struct err *e)
{
    size_t n = json_array_size(shape);

    if (!json_is_array(shape)) {
        return ERR(e, STATUS_FORMAT, "%s: tensor %.200s has no shape", f->path, name);
    }
    if (n > SAFETENSORS_MAX_DIMS) {
        return ERR(e, STATUS_UNSUPPORTED, "%s: tensor %.200s has %zu dimensions, at most %d",
                   f->path, name, n, SAFETENSORS_MAX_DIMS);
    }
    t->ndim = (int)n;
    t->count = 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *d = json_array_get(shape, i);
        if (!json_is_integer(d) || json_integer_value(d) < 0) {
            return ERR(e, STATUS_FORMAT, "%s: tensor %.200s: dimension %zu is not a size", f->path,
                       name, i);
        }
        t->dim[i] = json_integer_value(d);
        if (t->dim[i] > 0 && t->count > INT64_MAX / 8 / t->dim[i]) {
            return ERR(e, STATUS_FORMAT, "%s: tensor %.200s: the shape overflows", f->path, name);
        }
        t->count *= t->dim[i];
    }
    return STATUS_OK;
}

static int safetensors_entry(struct safetensors *f, const uint8_t *base, size_t data_len,
                             const char *name, const json_t *v, struct safetensors_tensor *t,
                             struct err *e)
{
    const char *dtype = json_string_value(json_object_get(v, "dtype"));
    const json_t *offsets = json_object_get(v, "data_offsets");
    const json_t *b = json_array_get(offsets, 0), *n = json_array_get(offsets, 1);
    int64_t from, to;
    int size = 0, rc;

    t->name = arena_strdup(&f->arena, name);
    if (!dtype || strlen(dtype) >= sizeof t->dtype_name) {
        return ERR(e, STATUS_FORMAT, "%s: tensor %.200s has no dtype", f->path, name);
    }
    memcpy(t->dtype_name, dtype, strlen(dtype) + 1);
    t->dtype = SAFETENSORS_OTHER;
    for (int i = 0; i < SAFETENSORS_NDTYPES; i++) {
        if (strcmp(dtype, safetensors_dtypes[i].name) == 0) {
            t->dtype = safetensors_dtypes[i].dtype;
            size = safetensors_dtypes[i].size;
        }
    }
    rc = safetensors_shape(f, name, json_object_get(v, "shape"), t, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    if (json_array_size(offsets) != 2 || !json_is_integer(b) || !json_is_integer(n)) {
        return ERR(e, STATUS_FORMAT, "%s: tensor %.200s has no data_offsets", f->path, name);
    }
    from = json_integer_value(b);
    to = json_integer_value(n);
    if (from < 0 || to < from || (uint64_t)to > data_len) {
        return ERR(e, STATUS_FORMAT,
                   "%s: tensor %.200s: data_offsets %lld to %lld are outside the %zu data bytes",
                   f->path, name, (long long)from, (long long)to, data_len);
    }
    /* A dtype this table does not know has an unknown size; it can be listed, never read. */
    if (size && t->count * size != to - from) {
        return ERR(e, STATUS_FORMAT, "%s: tensor %.200s: %lld values of %s are not %lld bytes",
                   f->path, name, (long long)t->count, dtype, (long long)(to - from));
    }
    t->data = base + from;
    t->nbytes = (size_t)(to - from);
    return STATUS_OK;
}

static int safetensors_by_offset(const void *pa, const void *pb)
{
    const struct safetensors_tensor *a = pa, *b = pb;
    if (a->data != b->data) {
        return a->data < b->data ? -1 : 1;
    }
    if (a->nbytes != b->nbytes) {
        return a->nbytes < b->nbytes ? -1 : 1;
    }
    return strcmp(a->name, b->name);
}

static int safetensors_metadata(struct safetensors *f, json_t *v, struct err *e)
{
    const char *key;
    json_t *text;

    if (!json_is_object(v)) {
        return ERR(e, STATUS_FORMAT, "%s: __metadata__ is not an object", f->path);
    }
    f->meta_text = arena_alloc(&f->arena, (json_object_size(v) + 1) * sizeof *f->meta_text);
    json_object_foreach(v, key, text)
    {
        if (!json_is_string(text)) {
            return ERR(e, STATUS_FORMAT, "%s: __metadata__ %.200s is not a string", f->path, key);
        }
        f->meta_text[f->n_meta] = arena_strdup(&f->arena, json_string_value(text));
        map_put(&f->meta, key, strlen(key), f->n_meta++);
    }
    return STATUS_OK;
}

/* The data must be tiled by the tensors: whatever is covered twice, or not at all, means that the
 * header and the data are not of one piece. */
static int safetensors_tiling(const struct safetensors *f, const uint8_t *base, size_t data_len,
                              struct err *e)
{
    const uint8_t *at = base;

    for (int i = 0; i < f->count; i++) {
        const struct safetensors_tensor *t = &f->tensors[i];
        if (t->data != at) {
            return ERR(e, STATUS_FORMAT, "%s: tensor %.200s %s", f->path, t->name,
                       t->data < at ? "overlaps another tensor" : "leaves a gap before it");
        }
        at += t->nbytes;
    }
    if ((size_t)(at - base) != data_len) {
        return ERR(e, STATUS_FORMAT, "%s: %zu data bytes, but the tensors hold %zu", f->path,
                   data_len, (size_t)(at - base));
    }
    return STATUS_OK;
}

static int safetensors_header(struct safetensors *f, struct err *e)
{
    uint64_t n = 0;
    const uint8_t *base;
    size_t data_len;
    json_error_t je;
    json_t *root = NULL, *v;
    const char *key;
    int rc = STATUS_OK;

    if (f->map_len < 8) {
        return ERR(e, STATUS_FORMAT, "%s: %zu bytes are too few for a safetensors file", f->path,
                   f->map_len);
    }
    for (int i = 7; i >= 0; i--) {
        n = n << 8 | f->map[i];
    }
    if (n > SAFETENSORS_MAX_HEADER || n > f->map_len - 8) {
        return ERR(e, STATUS_FORMAT, "%s: a header of %llu bytes does not fit the file (%zu bytes)",
                   f->path, (unsigned long long)n, f->map_len);
    }
    base = f->map + 8 + n;
    data_len = f->map_len - 8 - (size_t)n;
    root = json_loadb((const char *)f->map + 8, (size_t)n, JSON_REJECT_DUPLICATES, &je);
    if (!root || !json_is_object(root)) {
        rc = ERR(e, STATUS_FORMAT, "%s: the header is not a json object: %s", f->path,
                 root ? "another value" : je.text);
        goto out;
    }
    f->tensors = mem_try((json_object_size(root) + 1) * sizeof *f->tensors);
    if (!f->tensors) {
        rc = ERR(e, STATUS_NOMEM, "%s: no memory for %zu tensors", f->path, json_object_size(root));
        goto out;
    }
    json_object_foreach(root, key, v)
    {
        rc = strcmp(key, "__metadata__") == 0
                 ? safetensors_metadata(f, v, e)
                 : safetensors_entry(f, base, data_len, key, v, &f->tensors[f->count++], e);
        if (rc != STATUS_OK) {
            goto out;
        }
    }
    qsort(f->tensors, (size_t)f->count, sizeof *f->tensors, safetensors_by_offset);
    rc = safetensors_tiling(f, base, data_len, e);
    for (int i = 0; i < f->count && rc == STATUS_OK; i++) {
        map_put(&f->by_name, f->tensors[i].name, strlen(f->tensors[i].name), i);
    }
out:
    json_decref(root);
    return rc;
}

int safetensors_open(const char *path, struct safetensors **out, struct err *e)
{
    struct safetensors *f = mem_alloc(sizeof *f);
    int rc;

    f->path = mem_strdup(path);
    arena_init(&f->arena, 1 << 16);
    map_init(&f->by_name);
    map_init(&f->meta);
    rc = fsio_map(path, &f->map, &f->map_len, e);
    if (rc == STATUS_OK) {
        rc = safetensors_header(f, e);
    }
    if (rc != STATUS_OK) {
        safetensors_close(f);
        return rc;
    }
    *out = f;
    return STATUS_OK;
}

void safetensors_close(struct safetensors *f)
{
    if (f) {
        fsio_unmap(f->map, f->map_len);
        map_fini(&f->by_name);
        map_fini(&f->meta);
        arena_fini(&f->arena);
        mem_free(f->tensors);
        mem_free(f->path);
        mem_free(f);
    }
}

int safetensors_count(const struct safetensors *f)
{
    return f->count;
}

const struct safetensors_tensor *safetensors_at(const struct safetensors *f, int i)
{
    ASSERT(i >= 0 && i < f->count);
    return &f->tensors[i];
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *f, const char *name)
{
    int64_t i;
    return map_get(&f->by_name, name, strlen(name), &i) ? &f->tensors[i] : NULL;
}

const char *safetensors_meta(const struct safetensors *f, const char *key)
{
    int64_t i;
    return map_get(&f->meta, key, strlen(key), &i) ? f->meta_text[i] : NULL;
}

static int safetensors_check_read(const struct safetensors_tensor *t, int64_t count, int is_int,
                                  struct err *e)
{
    int ok = is_int ? t->dtype == SAFETENSORS_I64
                    : t->dtype == SAFETENSORS_F32 || t->dtype == SAFETENSORS_F16 ||
                          t->dtype == SAFETENSORS_BF16;
    if (!ok) {
        return ERR(e, STATUS_UNSUPPORTED, "tensor %.200s has dtype %s; only %s can be read here",
                   t->name, t->dtype_name, is_int ? "I64" : "F32, F16 and BF16");
    }
    if (count != t->count) {
        return ERR(e, STATUS_INPUT, "tensor %.200s has %lld values, %lld were asked for", t->name,
                   (long long)t->count, (long long)count);
    }
    return STATUS_OK;
}

int safetensors_read_f32(const struct safetensors_tensor *t, float *dst, int64_t count,
                         struct err *e)
{
    int rc = safetensors_check_read(t, count, 0, e);
    if (rc != STATUS_OK || !count) {
        return rc;
    }
    if (t->dtype == SAFETENSORS_F32) {
        memcpy(dst, t->data, (size_t)count * 4);
    } else if (t->dtype == SAFETENSORS_BF16) {
        for (int64_t i = 0; i < count; i++) {
            dst[i] = dtype_from_bf16(halves_load16(t->data + i * 2));
        }
    } else {
        for (int64_t i = 0; i < count; i++) {
            dst[i] = halves_to_f32(halves_load16(t->data + i * 2));
        }
    }
    fsio_forget(t->data, t->nbytes);
    return STATUS_OK;
}

int safetensors_read_bf16(const struct safetensors_tensor *t, uint16_t *dst, int64_t count,
                          struct err *e)
{
    int rc = safetensors_check_read(t, count, 0, e);
    if (rc != STATUS_OK || !count) {
        return rc;
    }
    if (t->dtype == SAFETENSORS_BF16) {
        memcpy(dst, t->data, (size_t)count * 2);
    } else if (t->dtype == SAFETENSORS_F32) {
        for (int64_t i = 0; i < count; i++) {
            float f;
            memcpy(&f, t->data + i * 4, 4);
            dst[i] = dtype_to_bf16(f);
        }
    } else {
        for (int64_t i = 0; i < count; i++) {
            dst[i] = dtype_to_bf16(halves_to_f32(halves_load16(t->data + i * 2)));
        }
    }
    fsio_forget(t->data, t->nbytes);
    return STATUS_OK;
}

int safetensors_read_i64(const struct safetensors_tensor *t, int64_t *dst, int64_t count,
                         struct err *e)
{
    int rc = safetensors_check_read(t, count, 1, e);
    if (rc == STATUS_OK && count) {
        memcpy(dst, t->data, (size_t)count * 8);
    }
    return rc;
}

uint64_t safetensors_sum(const struct safetensors *f)
{
    return XXH3_64bits(f->map, f->map_len);
}

/* ---- writer ---- */

struct safetensors_writer {
    struct fsio_out out;
    XXH3_state_t *sum;
    char *path;
    struct buf entries; /* "name":{...} of the tensors, comma before each */
    struct buf meta;    /* ,"key":"value" after the format */
    struct map names;
    uint64_t data_bytes; /* declared so far */
    uint64_t written;    /* data appended so far */
    int begun;
};

int safetensors_writer_open(const char *path, struct safetensors_writer **out, struct err *e)
{
    struct safetensors_writer *w = mem_alloc(sizeof *w);
    int rc = fsio_out_open(&w->out, path, e);

    if (rc != STATUS_OK) {
        mem_free(w);
        return rc;
    }
    w->sum = XXH3_createState();
    ASSERT(w->sum);
    XXH3_64bits_reset(w->sum);
    w->path = mem_strdup(path);
    buf_init(&w->entries, SAFETENSORS_MAX_HEADER - 65536);
    buf_init(&w->meta, 32768);
    map_init(&w->names);
    *out = w;
    return STATUS_OK;
}

static void safetensors_writer_free(struct safetensors_writer *w)
{
    XXH3_freeState(w->sum);
    buf_fini(&w->entries);
    buf_fini(&w->meta);
    map_fini(&w->names);
    mem_free(w->path);
    mem_free(w);
}

static int safetensors_put(struct safetensors_writer *w, const void *data, size_t n, struct err *e)
{
    XXH3_64bits_update(w->sum, data, n);
    return fsio_out_write(&w->out, data, n, e);
}

uint64_t safetensors_writer_sum(const struct safetensors_writer *w)
{
    return XXH3_64bits_digest(w->sum);
}

int safetensors_writer_meta(struct safetensors_writer *w, const char *key, const char *value,
                            struct err *e)
{
    ASSERT(!w->begun && strcmp(key, "format") != 0);
    buf_char(&w->meta, ',');
    if (jtext_string(&w->meta, key, strlen(key)) != STATUS_OK) {
        return ERR(e, STATUS_INPUT, "%s: a metadata key is not utf-8", w->path);
    }
    buf_char(&w->meta, ':');
    if (jtext_string(&w->meta, value, strlen(value)) != STATUS_OK) {
        return ERR(e, STATUS_INPUT, "%s: metadata %s is not utf-8", w->path, key);
    }
    if (buf_status(&w->meta) != STATUS_OK) {
        return ERR(e, STATUS_NOMEM, "%s: more than %zu bytes of metadata", w->path, w->meta.max);
    }
    return STATUS_OK;
}

int safetensors_writer_add(struct safetensors_writer *w, const char *name,
                           enum safetensors_dtype dtype, int ndim, const int64_t *dim,
                           struct err *e)
{
    static const int sizes[] = {4, 2, 2, 8};
    static const char *const names[] = {"F32", "F16", "BF16", "I64"};
    int64_t bytes;

    ASSERT(!w->begun && (int)dtype >= 0 && dtype < SAFETENSORS_OTHER);
    ASSERT(ndim >= 0 && ndim <= SAFETENSORS_MAX_DIMS);
    bytes = sizes[dtype];
    if (!map_put(&w->names, name, strlen(name), 1) || strcmp(name, "__metadata__") == 0) {
        return ERR(e, STATUS_INPUT, "%s: tensor name %.200s is taken", w->path, name);
    }
    if (w->data_bytes % (uint64_t)bytes != 0) {
        return ERR(e, STATUS_INPUT, "%s: tensor %.200s would start at byte %llu, unaligned for %s",
                   w->path, name, (unsigned long long)w->data_bytes, names[dtype]);
    }
    if (w->entries.len) {
        buf_char(&w->entries, ',');
    }
    if (jtext_string(&w->entries, name, strlen(name)) != STATUS_OK) {
        return ERR(e, STATUS_INPUT, "%s: a tensor name is not utf-8", w->path);
    }
    buf_printf(&w->entries, ":{\"dtype\":\"%s\",\"shape\":[", names[dtype]);
    for (int i = 0; i < ndim; i++) {
        if (dim[i] < 0 || (dim[i] > 0 && bytes > (INT64_MAX >> 8) / dim[i])) {
            return ERR(e, STATUS_INPUT, "%s: the shape of tensor %.200s overflows", w->path, name);
        }
        bytes *= dim[i];
        buf_printf(&w->entries, "%s%lld", i ? "," : "", (long long)dim[i]);
    }
    if (w->data_bytes + (uint64_t)bytes > (uint64_t)INT64_MAX >> 1) {
        return ERR(e, STATUS_INPUT, "%s: too many bytes of tensors", w->path);
    }
    buf_printf(&w->entries, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)w->data_bytes,
               (unsigned long long)(w->data_bytes + (uint64_t)bytes));
    w->data_bytes += (uint64_t)bytes;
    if (buf_status(&w->entries) != STATUS_OK) {
        return ERR(e, STATUS_NOMEM, "%s: the header exceeds the format's 100 MB", w->path);
    }
    return STATUS_OK;
}

int safetensors_writer_begin(struct safetensors_writer *w, struct err *e)
{
    struct buf h;
    uint64_t n;
    uint8_t len[8];
    int rc;

    ASSERT(!w->begun);
    buf_init(&h, SAFETENSORS_MAX_HEADER);
    buf_str(&h, "{\"__metadata__\":{\"format\":\"pt\"");
    buf_add(&h, w->meta.data, w->meta.len);
    buf_char(&h, '}');
    if (w->entries.len) {
        buf_char(&h, ',');
        buf_add(&h, w->entries.data, w->entries.len);
    }
    buf_char(&h, '}');
    while ((h.len + 8) % SAFETENSORS_ALIGN != 0 && !h.failed) {
        buf_char(&h, ' ');
    }
    rc = buf_status(&h);
    if (rc != STATUS_OK) {
        rc = ERR(e, rc, "%s: the header exceeds the format's 100 MB", w->path);
        goto out;
    }
    n = h.len;
    for (int i = 0; i < 8; i++) {
        len[i] = (uint8_t)(n >> (8 * i));
    }
    rc = safetensors_put(w, len, 8, e);
    if (rc == STATUS_OK) {
        rc = safetensors_put(w, h.data, h.len, e);
    }
    w->begun = 1;
out:
    buf_fini(&h);
    return rc;
}

int safetensors_writer_write(struct safetensors_writer *w, const void *data, size_t nbytes,
                             struct err *e)
{
    ASSERT(w->begun);
    if (nbytes > w->data_bytes - w->written) {
        return ERR(e, STATUS_INPUT, "%s: more data than the %llu bytes declared", w->path,
                   (unsigned long long)w->data_bytes);
    }
    w->written += nbytes;
    return safetensors_put(w, data, nbytes, e);
}

int safetensors_writer_commit(struct safetensors_writer *w, struct err *e)
{
    int rc;

    ASSERT(w->begun);
    if (w->written != w->data_bytes) {
        rc = ERR(e, STATUS_INPUT, "%s: %llu of %llu declared bytes were written", w->path,
                 (unsigned long long)w->written, (unsigned long long)w->data_bytes);
        fsio_out_abort(&w->out);
    } else {
        rc = fsio_out_commit(&w->out, e);
    }
    safetensors_writer_free(w);
    return rc;
}

void safetensors_writer_abort(struct safetensors_writer *w)
{
    if (w) {
        fsio_out_abort(&w->out);
        safetensors_writer_free(w);
    }
}
