/* Owns the files of published versions. A file is written under another name and renamed when it is
 * whole, and a manifest after its chunks, so that who finds a manifest finds everything. */
#include "rl/wstore.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/fsio.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/patience.h"
#include "base/status.h"
#include "rl/wsync.h"

#define WSTORE_PREFIX "weight_v"

struct wstore_one {
    struct wmanifest *m;
    double spare; /* when it was first seen not to be needed; < 0: it is */
};

struct wstore {
    struct wstore_opts o;
    char *dir, *chunks;
    struct wstore_one *have; /* oldest first */
    size_t n, cap;
    struct map held; /* bytes of each chunk that is there; 0: it is damaged */
    int64_t bytes;
};

/* ---- files ---- */

static int wstore_ours(const char *name)
{
    size_t n = strlen(WSTORE_PREFIX), digits;

    if (strncmp(name, WSTORE_PREFIX, n) != 0) {
        return 0;
    }
    digits = strspn(name + n, "0123456789");
    return digits > 0 &&
           (strcmp(name + n + digits, ".json") == 0 || strcmp(name + n + digits, ".json.tmp") == 0);
}

static int wstore_is_chunk(const char *name)
{
    char hash[WDELTA_HASH];

    snprintf(hash, sizeof hash, "%s", name);
    return wdelta_is_hash(hash) &&
           (!name[WDELTA_HASH - 1] || strcmp(name + WDELTA_HASH - 1, ".tmp") == 0);
}

/* Manifests first: who still reads them must not find chunks missing. What else lies there is not
 * ours, and stays. */
static int wstore_clean(const struct wstore *s, struct err *e)
{
    int rc = wsync_clean(s->dir, wstore_ours, 0, e);

    if (rc == STATUS_OK && fsio_is_dir(s->chunks)) {
        rc = wsync_clean(s->chunks, wstore_is_chunk, 0, e);
        (void)fsio_sys_rmdir(s->chunks);
    }
    return rc;
}

int wstore_open(const struct wstore_opts *o, struct wstore **out, struct err *e)
{
    struct wstore *s;
    char *dir;
    int rc = wsync_home(o->dir, &dir, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    s = mem_alloc(sizeof *s);
    s->o = *o;
    s->dir = dir;
    s->chunks = fsio_join(dir, "chunks");
    map_init(&s->held);
    rc = wstore_clean(s, e);
    rc = rc ? rc : patience_mkdirs(s->chunks, e);
    if (rc != STATUS_OK) {
        wstore_close(s);
        return rc;
    }
    *out = s;
    return STATUS_OK;
}

const char *wstore_dir(const struct wstore *s)
{
    return s->dir;
}

int wstore_put_chunk(struct wstore *s, struct wmanifest *m, const void *data, size_t n,
                     struct err *e)
{
    char hash[WDELTA_HASH], *path;
    int64_t bytes = 0;
    int rc = STATUS_OK;

    wdelta_hash(data, n, hash);
    if (!map_get(&s->held, hash, WDELTA_HASH - 1, &bytes) || bytes == 0) {
        path = fsio_join(s->chunks, hash);
        rc = fsio_write_atomic(path, data, n, e);
        mem_free(path);
        if (rc == STATUS_OK) {
            map_put(&s->held, hash, WDELTA_HASH - 1, (int64_t)n);
            s->bytes += (int64_t)n;
        }
    }
    if (rc == STATUS_OK) {
        wmanifest_add_chunk(m, hash, (int64_t)n);
    }
    return rc;
}

int wstore_put(struct wstore *s, struct wmanifest *m, struct err *e)
{
    char name[32], *path;
    struct buf b;
    int rc;

    if (s->n == s->cap && !mem_grow((void **)&s->have, &s->cap, 64, sizeof *s->have)) {
        return ERR(e, STATUS_NOMEM, "no memory for another version");
    }
    buf_init(&b, 1u << 30);
    rc = wmanifest_write(m, &b, e);
    if (rc == STATUS_OK) {
        wmanifest_name(m->version, name, sizeof name);
        path = fsio_join(s->dir, name);
        rc = fsio_write_atomic(path, b.data, b.len, e);
        mem_free(path);
    }
    buf_fini(&b);
    if (rc == STATUS_OK && s->n && s->have[s->n - 1].m->version == m->version) {
        wmanifest_free(s->have[--s->n].m);
    }
    if (rc == STATUS_OK) {
        s->have[s->n++] = (struct wstore_one){m, -1.0};
    }
    return rc;
}

const struct wmanifest *wstore_newest(const struct wstore *s)
{
    return s->n ? s->have[s->n - 1].m : NULL;
}

int64_t wstore_bytes(const struct wstore *s)
{
    return s->bytes;
}

int wstore_count(const struct wstore *s)
{
    return (int)s->n;
}

/* ---- what is damaged ---- */

/* Takes path. */
static int wstore_verify_file(char *path, const char *hash, struct err *e)
{
    char is[WDELTA_HASH];
    const uint8_t *data;
    size_t n;
    int rc = fsio_map(path, &data, &n, e);

    if (rc == STATUS_OK) {
        wdelta_hash(data, n, is);
        rc = strcmp(is, hash) == 0
                 ? STATUS_OK
                 : ERR(e, STATUS_FAIL, "%s has hash %s, it was written with %s", path, is, hash);
        fsio_unmap(data, n);
    }
    mem_free(path);
    return rc;
}

/* A bad one does not count as there. */
static int wstore_verify_chunk(struct wstore *s, const struct wmanifest_chunk *c, struct err *e)
{
    int rc = wstore_verify_file(fsio_join(s->chunks, c->hash), c->hash, e);
    int64_t bytes = 0;

    if (rc != STATUS_OK && map_get(&s->held, c->hash, WDELTA_HASH - 1, &bytes)) {
        map_put(&s->held, c->hash, WDELTA_HASH - 1, 0);
        s->bytes -= bytes;
    }
    return rc;
}

int wstore_verify(struct wstore *s, struct err *e)
{
    struct err other = {0};
    int rc = STATUS_OK;

    for (size_t i = s->n; i-- > 0;) {
        const struct wmanifest *m = s->have[i].m;
        char name[32];
        int bad;
        wmanifest_name(m->version, name, sizeof name);
        bad = wstore_verify_file(fsio_join(s->dir, name), m->hash, rc ? &other : e);
        rc = rc ? rc : bad;
        for (size_t k = 0; k < m->nchunks; k++) {
            bad = wstore_verify_chunk(s, &m->chunks[k], rc ? &other : e);
            rc = rc ? rc : bad;
        }
        if (m->base < 0) {
            break;
        }
    }
    return rc;
}

/* ---- what goes ---- */

/* Chunks of no version that is there go. */
static int wstore_sweep(struct wstore *s, struct err *e)
{
    struct map used, left;
    int rc = STATUS_OK;

    map_init(&used);
    map_init(&left);
    for (size_t i = 0; i < s->n; i++) {
        const struct wmanifest *m = s->have[i].m;
        for (size_t k = 0; k < m->nchunks; k++) {
            map_put(&used, m->chunks[k].hash, WDELTA_HASH - 1, 1);
        }
    }
    s->bytes = 0;
    for (size_t i = 0; i < s->held.count; i++) {
        const struct map_entry *c = &s->held.entries[i];
        int gone = 0;
        if (rc == STATUS_OK && !map_get(&used, c->key, c->len, NULL)) {
            char *path = fsio_join(s->chunks, c->key);
            rc = fsio_remove_tree(path, e);
            gone = rc == STATUS_OK;
            mem_free(path);
        }
        if (!gone) {
            map_put(&left, c->key, c->len, c->value);
            s->bytes += c->value;
        }
    }
    map_fini(&used);
    map_fini(&s->held);
    s->held = left;
    return rc;
}

static int wstore_drop_oldest(struct wstore *s, struct err *e)
{
    char name[32], *path;
    int rc;

    wmanifest_name(s->have[0].m->version, name, sizeof name);
    path = fsio_join(s->dir, name);
    rc = fsio_remove_tree(path, e);
    mem_free(path);
    if (rc == STATUS_OK) {
        wmanifest_free(s->have[0].m);
        memmove(s->have, s->have + 1, sizeof *s->have * --s->n);
        rc = wstore_sweep(s, e);
    }
    return rc;
}

int wstore_collect(struct wstore *s, int64_t version, double now, struct err *e)
{
    size_t need = 0; /* the first that is needed */
    int rc = STATUS_OK;

    for (size_t i = 0; i < s->n; i++) {
        if (s->have[i].m->base < 0 && s->have[i].m->version <= version) {
            need = i;
        }
    }
    for (size_t i = 0; i < need; i++) {
        s->have[i].spare = s->have[i].spare < 0.0 ? now : s->have[i].spare;
    }
    while (rc == STATUS_OK && need > 0 &&
           (now - s->have[0].spare >= s->o.keep_s ||
            (s->o.keep_bytes > 0 && s->bytes > s->o.keep_bytes))) {
        rc = wstore_drop_oldest(s, e);
        need--;
    }
    return rc;
}

void wstore_close(struct wstore *s)
{
    struct err e = {0};

    if (!s) {
        return;
    }
    if (wstore_clean(s, &e) != STATUS_OK) {
        log_warn(WSYNC, "weights stay behind: %s", e.msg);
    }
    for (size_t i = 0; i < s->n; i++) {
        wmanifest_free(s->have[i].m);
    }
    mem_free(s->have);
    map_fini(&s->held);
    mem_free(s->dir);
    mem_free(s->chunks);
    mem_free(s);
}
