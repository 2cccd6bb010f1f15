/* Owns the text of a manifest: writing it, and reading what came from outside. */
#include "model/wmanifest.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/status.h"
#include "model/weights.h"

#define WMANIFEST_FORMAT 1
#define WMANIFEST_CHUNK  ((int64_t)1 << 30) /* bytes of one, at most */

static const char *const wmanifest_encodings[] = {"xor", "overwrite"};

void wmanifest_name(int64_t version, char *out, size_t size)
{
    snprintf(out, size, "weight_v%06lld.json", (long long)version);
}

struct wmanifest *wmanifest_new(const struct weights *w)
{
    struct wmanifest *m = mem_alloc(sizeof *m);
    int n = 0;

    for (int i = 0; i < w->nparams; i++) {
        n += w->params[i].nparts;
    }
    m->base = -1;
    m->tensors = mem_alloc(sizeof *m->tensors * (size_t)n);
    for (int i = 0; i < w->nparams; i++) {
        const struct param *p = &w->params[i];
        for (int k = 0; k < p->nparts; k++) {
            struct wmanifest_tensor *t = &m->tensors[m->ntensors++];
            snprintf(t->name, sizeof t->name, "%s", p->part[k].name);
            t->count = weights_part_count(p, k);
        }
    }
    return m;
}

void wmanifest_free(struct wmanifest *m)
{
    if (m) {
        mem_free(m->tensors);
        mem_free(m->chunks);
        mem_free(m);
    }
}

void wmanifest_add_chunk(struct wmanifest *m, const char *hash, int64_t bytes)
{
    if (m->nchunks == m->cap_chunks) {
        ASSERT(mem_grow((void **)&m->chunks, &m->cap_chunks, 64, sizeof *m->chunks));
    }
    snprintf(m->chunks[m->nchunks].hash, WDELTA_HASH, "%s", hash);
    m->chunks[m->nchunks++].bytes = bytes;
}

int64_t wmanifest_bytes(const struct wmanifest *m)
{
    int64_t n = 0;

    for (size_t i = 0; i < m->nchunks; i++) {
        n += m->chunks[i].bytes;
    }
    return n;
}

int64_t wmanifest_full_bytes(const struct wmanifest *m)
{
    int64_t n = 0;

    for (int i = 0; i < m->ntensors; i++) {
        n += 2 * m->tensors[i].count;
    }
    return n;
}

int64_t wmanifest_largest(const struct wmanifest *m)
{
    int64_t n = 0;

    for (int i = 0; i < m->ntensors; i++) {
        n = m->tensors[i].count > n ? m->tensors[i].count : n;
    }
    return n;
}

/* Names and sums in order. */
static void wmanifest_total(const struct wmanifest *m, char out[WDELTA_HASH])
{
    struct buf b;

    buf_init(&b, SIZE_MAX / 2);
    for (int i = 0; i < m->ntensors; i++) {
        buf_printf(&b, "%s %s\n", m->tensors[i].name, m->tensors[i].sum);
    }
    wdelta_hash(b.data, b.len, out);
    buf_fini(&b);
}

void wmanifest_seal(struct wmanifest *m)
{
    wmanifest_total(m, m->sum);
}

int wmanifest_write(struct wmanifest *m, struct buf *out, struct err *e)
{
    json_t *tensors = json_array(), *chunks = json_array(), *o;
    char *text;

    for (int i = 0; i < m->ntensors; i++) {
        const struct wmanifest_tensor *t = &m->tensors[i];
        json_array_append_new(tensors, json_pack("{s:s,s:I,s:s}", "name", t->name, "values",
                                                 (json_int_t)t->count, "sum", t->sum));
    }
    for (size_t i = 0; i < m->nchunks; i++) {
        json_array_append_new(chunks, json_pack("{s:s,s:I}", "hash", m->chunks[i].hash, "bytes",
                                                (json_int_t)m->chunks[i].bytes));
    }
    o = json_pack("{s:i,s:I,s:s,s:s,s:s,s:s,s:s,s:I,s:o,s:o}", "format", WMANIFEST_FORMAT,
                  "version", (json_int_t)m->version, "kind", m->base < 0 ? "full" : "delta",
                  "delta_encoding", wmanifest_encodings[m->encoding], "compression_format", "zstd",
                  "checksum_format", "xxh3-128", "sum", m->sum, "changed", (json_int_t)m->changed,
                  "tensors", tensors, "chunks", chunks);
    if (o && m->base >= 0) {
        json_object_set_new(o, "base_version", json_integer(m->base));
        json_object_set_new(o, "base_sum", json_string(m->base_sum));
        json_object_set_new(o, "base_manifest", json_string(m->base_hash));
    }
    text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    if (!text) {
        return ERR(e, STATUS_NOMEM, "no memory for the manifest of version %lld",
                   (long long)m->version);
    }
    buf_str(out, text);
    buf_char(out, '\n');
    free(text);
    wdelta_hash(out->data, out->len, m->hash);
    return buf_status(out) ? ERR(e, STATUS_NOMEM, "the manifest is too long") : STATUS_OK;
}

/* ---- reading ---- */

static int wmanifest_bad(struct err *e, const char *what)
{
    return ERR(e, STATUS_FORMAT, "no manifest of weights: %s", what);
}

static int wmanifest_copy_hash(char *out, const char *text)
{
    if (!text || !wdelta_is_hash(text)) {
        return 0;
    }
    memcpy(out, text, WDELTA_HASH);
    return 1;
}

static int wmanifest_read_tensors(struct wmanifest *m, const json_t *list, struct err *e)
{
    const json_t *v;
    size_t i;

    m->ntensors = (int)json_array_size(list);
    m->tensors = mem_alloc(sizeof *m->tensors * (size_t)(m->ntensors + 1));
    json_array_foreach(list, i, v)
    {
        struct wmanifest_tensor *t = &m->tensors[i];
        const char *name = NULL, *sum = NULL;
        json_int_t n = 0;
        if (json_unpack((json_t *)(uintptr_t)v, "{s:s,s:I,s:s}", "name", &name, "values", &n, "sum",
                        &sum) ||
            strlen(name) >= sizeof t->name || n < 1 || n > INT64_MAX / 4 ||
            !wmanifest_copy_hash(t->sum, sum)) {
            return wmanifest_bad(e, "a tensor is none");
        }
        memcpy(t->name, name, strlen(name) + 1);
        t->count = n;
    }
    return STATUS_OK;
}

static int wmanifest_read_chunks(struct wmanifest *m, const json_t *list, struct err *e)
{
    const json_t *v;
    size_t i;

    json_array_foreach(list, i, v)
    {
        const char *hash = NULL;
        json_int_t n = 0;
        if (json_unpack((json_t *)(uintptr_t)v, "{s:s,s:I}", "hash", &hash, "bytes", &n) ||
            !wdelta_is_hash(hash) || n < WDELTA_HEAD || n > WMANIFEST_CHUNK) {
            return wmanifest_bad(e, "a chunk is none");
        }
        wmanifest_add_chunk(m, hash, n);
    }
    return STATUS_OK;
}

static int wmanifest_read_base(struct wmanifest *m, const json_t *o, struct err *e)
{
    json_int_t base = -1;
    const char *sum = NULL, *hash = NULL;

    if (json_unpack((json_t *)(uintptr_t)o, "{s:I,s:s,s:s}", "base_version", &base, "base_sum",
                    &sum, "base_manifest", &hash) ||
        base < 0 || base >= m->version || !wmanifest_copy_hash(m->base_sum, sum) ||
        !wmanifest_copy_hash(m->base_hash, hash)) {
        return wmanifest_bad(e, "it does not say which version it changes");
    }
    m->base = base;
    return STATUS_OK;
}

static int wmanifest_parse(struct wmanifest *m, const json_t *o, struct err *e)
{
    const char *kind = NULL, *encoding = NULL, *packing = NULL, *sums = NULL, *sum = NULL;
    const json_t *tensors, *chunks;
    json_int_t version = -1, changed = 0;
    char total[WDELTA_HASH];
    int format = 0, rc;

    if (json_unpack((json_t *)(uintptr_t)o, "{s:i,s:I,s:s,s:s,s:s,s:s,s:s,s:I,s:o,s:o}", "format",
                    &format, "version", &version, "kind", &kind, "delta_encoding", &encoding,
                    "compression_format", &packing, "checksum_format", &sums, "sum", &sum,
                    "changed", &changed, "tensors", &tensors, "chunks", &chunks)) {
        return wmanifest_bad(e, "a field is missing or of another kind");
    }
    if (format != WMANIFEST_FORMAT || strcmp(packing, "zstd") || strcmp(sums, "xxh3-128")) {
        return ERR(e, STATUS_UNSUPPORTED,
                   "a manifest of format %d with %.20s and %.20s; this program knows %d, zstd and "
                   "xxh3-128",
                   format, packing, sums, WMANIFEST_FORMAT);
    }
    if (version < 0 || changed < 0 || !wmanifest_copy_hash(m->sum, sum) ||
        (strcmp(kind, "full") && strcmp(kind, "delta")) ||
        (strcmp(encoding, wmanifest_encodings[0]) && strcmp(encoding, wmanifest_encodings[1]))) {
        return wmanifest_bad(e, "version, kind, encoding or sum are none");
    }
    m->version = version;
    m->changed = changed;
    m->encoding = strcmp(encoding, wmanifest_encodings[0]) ? WDELTA_OVERWRITE : WDELTA_XOR;
    rc = strcmp(kind, "delta") ? STATUS_OK : wmanifest_read_base(m, o, e);
    rc = rc ? rc : wmanifest_read_tensors(m, tensors, e);
    rc = rc ? rc : wmanifest_read_chunks(m, chunks, e);
    if (rc == STATUS_OK) {
        wmanifest_total(m, total);
        rc = strcmp(total, m->sum) ? wmanifest_bad(e, "its sum is not that of its tensors") : rc;
    }
    return rc;
}

int wmanifest_read(const char *text, size_t len, struct wmanifest **out, struct err *e)
{
    json_error_t why;
    json_t *o = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
    struct wmanifest *m;
    int rc;

    if (!o) {
        return ERR(e, STATUS_FORMAT, "no manifest of weights: %s", why.text);
    }
    m = mem_alloc(sizeof *m);
    m->base = -1;
    rc = wmanifest_parse(m, o, e);
    json_decref(o);
    if (rc != STATUS_OK) {
        wmanifest_free(m);
        return rc;
    }
    wdelta_hash(text, len, m->hash);
    *out = m;
    return STATUS_OK;
}

int wmanifest_fits(const struct wmanifest *m, const struct weights *w, struct err *e)
{
    struct wmanifest *ours = wmanifest_new(w);
    int rc = STATUS_OK;

    for (int i = 0; rc == STATUS_OK && i < ours->ntensors; i++) {
        const struct wmanifest_tensor *a = &ours->tensors[i];
        const struct wmanifest_tensor *b = i < m->ntensors ? &m->tensors[i] : NULL;
        if (!b || strcmp(a->name, b->name) != 0 || a->count != b->count) {
            rc = ERR(e, STATUS_INPUT,
                     "version %lld is of another model: its tensor %d is %s of %lld values, the "
                     "model's is %s of %lld",
                     (long long)m->version, i, b ? b->name : "none", (long long)(b ? b->count : 0),
                     a->name, (long long)a->count);
        }
    }
    if (rc == STATUS_OK && m->ntensors != ours->ntensors) {
        rc = ERR(e, STATUS_INPUT, "version %lld is of another model: it has %d tensors, not %d",
                 (long long)m->version, m->ntensors, ours->ntensors);
    }
    wmanifest_free(ours);
    return rc;
}
