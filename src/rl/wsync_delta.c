/* Owns the making of versions: the values of the last one, and what is different in the next. A
 * tensor's pieces are compared, packed and copied in parallel, so that the trainer's values are
 * read once. */
#include "rl/wsync_delta.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/metric.h"
#include "base/patience.h"
#include "base/status.h"
#include "base/thread.h"
#include "base/world.h"
#include "model/weights.h"
#include "rl/wsync_proof.h"

#define WSYNC_DELTA_FULL_EVERY 20
#define WSYNC_DELTA_FETCH_S    600.0
#define WSYNC_DELTA_CHUNK                                                                          \
    ((size_t)4 << 20)       /* a chunk ends with the piece that makes it so long                   \
                             */
#define WSYNC_DELTA_AHEAD 4 /* pieces of a thread before they are written */

struct wsync_delta_slot {
    uint8_t *out; /* (wdelta_bound()) */
    size_t bytes;
    int64_t changed;
};

struct wsync_delta {
    struct wsync_delta_opts o;
    struct wsync sync;
    struct wstore *store;
    struct wsync_proof proof;
    struct wmanifest *shape; /* the model's tensors */
    int64_t *offset;         /* (ntensors) of their values in `last` */
    uint16_t *last, *now;    /* values of the newest version; one tensor as it is now */
    size_t last_bytes, now_bytes;
    int valid;                      /* 1: `last` is the newest version in the store */
    int since_full;                 /* versions behind the newest whole one */
    struct wdelta **codec;          /* (threads) */
    struct wsync_delta_slot *slots; /* (nslots) */
    int nthreads, nslots;
    struct buf chunk; /* that is being filled */
    /* the tensor and its pieces that are being made */
    struct wmanifest *m;
    int tensor;
    int64_t first_piece;
    int whole, hashes; /* hashes: 1: task 0 sums the tensor */
    int again;         /* 1: the newest version once more: its values are in `last` */
    /* since the last report */
    int64_t bytes, changed, values, fulls, versions;
    double seconds;
};

static double wsync_delta_time(const struct wsync_delta *s)
{
    return s->o.world->now(s->o.world->self);
}

/* ---- making a version ---- */

static void wsync_delta_task(void *arg, int task, int worker)
{
    struct wsync_delta *s = arg;
    struct wmanifest_tensor *t = &s->m->tensors[s->tensor];
    struct wsync_delta_slot *slot;
    struct wdelta_at at = {.tensor = s->tensor};
    uint16_t *old;

    if (task < s->hashes) {
        wdelta_hash(s->now, 2 * (size_t)t->count, t->sum);
        return;
    }
    slot = &s->slots[task - s->hashes];
    at.first = (s->first_piece + task - s->hashes) * WDELTA_PIECE;
    at.count = (int32_t)(t->count - at.first < WDELTA_PIECE ? t->count - at.first : WDELTA_PIECE);
    old = s->last + s->offset[s->tensor] + at.first;
    slot->bytes = wdelta_encode(s->codec[worker], s->o.encoding, &at, s->whole ? NULL : old,
                                s->now + at.first, slot->out, &slot->changed);
    if (slot->bytes) {
        memcpy(old, s->now + at.first, 2 * (size_t)at.count);
    }
}

static int wsync_delta_flush(struct wsync_delta *s, struct err *e)
{
    int rc = STATUS_OK;

    if (s->chunk.len) {
        rc = buf_status(&s->chunk)
                 ? ERR(e, STATUS_NOMEM, "no memory for a chunk of weights")
                 : wstore_put_chunk(s->store, s->m, s->chunk.data, s->chunk.len, e);
        buf_clear(&s->chunk);
    }
    return rc;
}

static int wsync_delta_tensor(struct wsync_delta *s, int i, struct err *e)
{
    const struct wmanifest_tensor *t = &s->m->tensors[i];
    int64_t pieces = (t->count + WDELTA_PIECE - 1) / WDELTA_PIECE;
    int rc = STATUS_OK;

    if (s->again) {
        memcpy(s->now, s->last + s->offset[i], 2 * (size_t)t->count);
    } else {
        rc = weights_read_bf16(s->o.w, t->name, s->now, t->count, e);
    }
    s->tensor = i;
    for (int64_t done = 0; rc == STATUS_OK && done < pieces;) {
        int n = (int)(pieces - done < s->nslots ? pieces - done : s->nslots);
        s->first_piece = done;
        s->hashes = done == 0;
        pool_run(s->o.w->dev->pool, wsync_delta_task, s, n + s->hashes);
        for (int k = 0; rc == STATUS_OK && k < n; k++) {
            buf_add(&s->chunk, s->slots[k].out, s->slots[k].bytes);
            s->m->changed += s->slots[k].changed;
            rc = s->chunk.len >= WSYNC_DELTA_CHUNK ? wsync_delta_flush(s, e) : STATUS_OK;
        }
        done += n;
    }
    return rc;
}

/* All but what stands in the store; while this goes on `last` is neither version, or `again` both.
 */
static int wsync_delta_make(struct wsync_delta *s, struct err *e)
{
    int rc = STATUS_OK;

    buf_clear(&s->chunk);
    for (int i = 0; rc == STATUS_OK && i < s->m->ntensors; i++) {
        rc = wsync_delta_tensor(s, i, e);
    }
    rc = rc ? rc : wsync_delta_flush(s, e);
    if (rc == STATUS_OK) {
        wmanifest_seal(s->m);
        rc = wstore_put(s->store, s->m, e);
    }
    return rc;
}

static void wsync_delta_count(struct wsync_delta *s, const struct wmanifest *m, double seconds)
{
    int64_t bytes = wmanifest_bytes(m), full = wmanifest_full_bytes(m);

    s->bytes += bytes;
    s->values += full / 2;
    s->changed += m->changed;
    s->fulls += m->base < 0;
    s->versions++;
    s->seconds += seconds;
    log_info(WSYNC,
             "weight_sync: version %lld written in %.3f s: %s, %.3f MB, %.2f%% of the weights; "
             "%.2f%% of values changed; %d versions, %.1f MB",
             (long long)m->version, seconds, m->base < 0 ? "whole" : "changes", (double)bytes / 1e6,
             100.0 * (double)bytes / (double)full, 200.0 * (double)m->changed / (double)full,
             wstore_count(s->store), (double)wstore_bytes(s->store) / 1e6);
}

/* Against the newest version, or whole: also behind a try that failed, and the newest again. */
static int wsync_delta_try(struct wsync_delta *s, int64_t version, struct err *e)
{
    const struct wmanifest *newest = wstore_newest(s->store);
    double start = wsync_delta_time(s);
    int rc;

    s->again = newest && newest->version == version;
    s->whole = s->again || !s->valid || s->since_full + 1 >= s->o.full_every;
    s->m = wmanifest_new(s->o.w);
    s->m->version = version;
    s->m->encoding = s->o.encoding;
    if (!s->whole) {
        s->m->base = newest->version;
        memcpy(s->m->base_sum, newest->sum, WDELTA_HASH);
        memcpy(s->m->base_hash, newest->hash, WDELTA_HASH);
    }
    s->valid = s->again;
    rc = wsync_delta_make(s, e);
    if (rc == STATUS_OK) {
        s->valid = 1;
        s->since_full = s->whole ? 0 : s->since_full + 1;
        wsync_proof_begin(&s->proof, version);
        wsync_delta_count(s, s->m, wsync_delta_time(s) - start);
    } else {
        wmanifest_free(s->m);
    }
    s->m = NULL;
    return rc;
}

/* A full disk is waited for. */
static int wsync_delta_write(struct wsync_delta *s, int64_t version, struct err *e)
{
    struct patience wait = {0};
    int rc;

    do {
        rc = wsync_delta_try(s, version, e);
    } while (patience_again(&wait, rc, s->o.store.dir, e));
    return rc;
}

static int wsync_delta_prepare(void *self, int64_t version, struct err *e)
{
    struct wsync_delta *s = self;
    const struct wmanifest *newest = wstore_newest(s->store);

    if (newest && newest->version == version) {
        return STATUS_OK;
    }
    if (s->o.w->version != version || (newest && newest->version > version)) {
        return ERR(e, STATUS_FAIL, "version %lld is to be published, the trainer has %lld",
                   (long long)version, (long long)s->o.w->version);
    }
    return wsync_delta_write(s, version, e);
}

/* Files that somebody has damaged: the version is written again, whole, so that nobody needs any
 * other. Its manifest is another one then, under the same name: who has the old one from a cache
 * finds by its hash that it is not the one asked for. */
static void wsync_delta_doubt(void *self, int64_t version)
{
    struct wsync_delta *s = self;
    const struct wmanifest *newest = wstore_newest(s->store);
    struct err e = {0};

    if (!s->valid || !newest || newest->version != version ||
        wstore_verify(s->store, &e) == STATUS_OK) {
        return;
    }
    log_warn(WSYNC, "weight_sync: version %lld is damaged and is written again: %s",
             (long long)version, e.msg);
    if (wsync_delta_write(s, version, &e) != STATUS_OK) {
        log_error(WSYNC, "weight_sync: version %lld cannot be written again: %s",
                  (long long)version, e.msg);
    }
}

/* ---- requests ---- */

static int wsync_delta_before(void *self, int64_t version, int k, struct wsync_request *r,
                              struct err *e)
{
    const struct wsync_delta *s = self;

    if (!s->o.all || version != s->proof.first || k > 0) {
        return STATUS_END;
    }
    return wsync_ask(r, "/weights_checker", json_pack("{s:s}", "action", "reset_tensors"), e);
}

static int wsync_delta_take(void *self, int64_t version, struct wsync_request *r, struct err *e)
{
    const struct wsync_delta *s = self;
    const struct wmanifest *m = wstore_newest(s->store);
    char label[24];

    if (!m || m->version != version) {
        return ERR(e, STATUS_NOTFOUND, "version %lld is to be taken, the newest is %lld",
                   (long long)version, (long long)(m ? m->version : -1));
    }
    snprintf(label, sizeof label, "%lld", (long long)version);
    return wsync_ask(r, "/update_weights_from_delta",
                     json_pack("{s:s,s:s,s:s,s:f}", "source",
                               s->o.url ? s->o.url : wstore_dir(s->store), "weight_version", label,
                               "manifest", m->hash, "timeout_s", s->o.fetch_s),
                     e);
}

static int wsync_delta_check(void *self, int64_t version, int k, struct wsync_request *r,
                             struct err *e)
{
    const struct wsync_delta *s = self;

    (void)version;
    return wsync_proof_check(&s->proof, k, r, e);
}

static int wsync_delta_judge(void *self, int64_t version, int k, const json_t *answer,
                             struct err *e)
{
    struct wsync_delta *s = self;

    (void)k;
    return wsync_proof_judge(&s->proof, version, answer, e);
}

static void wsync_delta_settled(void *self, int64_t version)
{
    struct wsync_delta *s = self;
    struct err e = {0};

    if (wstore_collect(s->store, version, wsync_delta_time(s), &e) != STATUS_OK) {
        log_warn(WSYNC, "old weights stay: %s", e.msg);
    }
}

static void wsync_delta_report(void *self, json_t *row)
{
    struct wsync_delta *s = self;

    if (s->versions) {
        metric_put_int(row, "perf/delta_bytes", s->bytes);
        metric_put(row, "perf/delta_share", (double)s->bytes / (double)(2 * s->values));
        metric_put(row, "perf/delta_changed", (double)s->changed / (double)s->values);
        metric_put_int(row, "perf/delta_full", s->fulls);
        metric_put(row, "perf/delta_encode_time", s->seconds);
    }
    s->bytes = s->changed = s->values = s->fulls = s->versions = 0;
    s->seconds = 0.0;
}

/* ---- beginning and end ---- */

/* The newest version's values, for the proof. */
static int wsync_delta_read(void *arg, const char *name, uint16_t *dst, int64_t count,
                            struct err *e)
{
    const struct wsync_delta *s = arg;

    for (int i = 0; i < s->shape->ntensors; i++) {
        const struct wmanifest_tensor *t = &s->shape->tensors[i];
        if (strcmp(t->name, name) == 0 && t->count == count) {
            memcpy(dst, s->last + s->offset[i], 2 * (size_t)count);
            return STATUS_OK;
        }
    }
    return ERR(e, STATUS_NOTFOUND, "the published weights have no tensor %s of %lld values", name,
               (long long)count);
}

/* Pieces that are made before they are written: of one tensor at most. */
static int wsync_delta_slots(const struct weights *w, const struct wmanifest *m)
{
    int64_t pieces = (wmanifest_largest(m) + WDELTA_PIECE - 1) / WDELTA_PIECE;
    int64_t most = (int64_t)WSYNC_DELTA_AHEAD * pool_size(w->dev->pool);

    return (int)(pieces < most ? pieces : most);
}

int64_t wsync_delta_bytes(const struct weights *w)
{
    struct wmanifest *m = wmanifest_new(w);
    int64_t n = wmanifest_full_bytes(m) + 2 * wmanifest_largest(m) +
                (int64_t)wdelta_bound() * wsync_delta_slots(w, m);

    wmanifest_free(m);
    return n;
}

static int wsync_delta_room(struct wsync_delta *s, struct err *e)
{
    int64_t all = 0;

    s->shape = wmanifest_new(s->o.w);
    s->offset = mem_alloc(sizeof *s->offset * (size_t)s->shape->ntensors);
    for (int i = 0; i < s->shape->ntensors; i++) {
        s->offset[i] = all;
        all += s->shape->tensors[i].count;
    }
    s->last_bytes = 2 * (size_t)all;
    s->now_bytes = 2 * (size_t)wmanifest_largest(s->shape);
    s->last = mem_map(s->last_bytes);
    s->now = mem_map(s->now_bytes);
    return s->last && s->now ? STATUS_OK
                             : ERR(e, STATUS_NOMEM, "no memory for the published weights: %.1f MB",
                                   (double)s->last_bytes / 1e6);
}

static void wsync_delta_workers(struct wsync_delta *s)
{
    s->nthreads = pool_size(s->o.w->dev->pool);
    s->nslots = wsync_delta_slots(s->o.w, s->shape);
    s->codec = mem_alloc(sizeof(struct wdelta *) * (size_t)s->nthreads);
    s->slots = mem_alloc(sizeof *s->slots * (size_t)s->nslots);
    for (int i = 0; i < s->nthreads; i++) {
        s->codec[i] = wdelta_new();
    }
    for (int i = 0; i < s->nslots; i++) {
        s->slots[i].out = mem_alloc(wdelta_bound());
    }
}

int wsync_delta_open(const struct wsync_delta_opts *o, struct wsync_delta **out, struct err *e)
{
    struct wsync_delta *s = mem_alloc(sizeof *s);
    int rc;

    s->o = *o;
    s->o.world = o->world ? o->world : world_system();
    s->o.full_every = o->full_every > 0 ? o->full_every : WSYNC_DELTA_FULL_EVERY;
    s->o.fetch_s = o->fetch_s > 0.0 ? o->fetch_s : WSYNC_DELTA_FETCH_S;
    buf_init(&s->chunk, WSYNC_DELTA_CHUNK + 2 * wdelta_bound());
    wsync_proof_init(&s->proof, &(struct wsync_proof_opts){
                                    .w = o->w, .read = wsync_delta_read, .arg = s, .all = o->all});
    s->sync = (struct wsync){.prepare = wsync_delta_prepare,
                             .before = wsync_delta_before,
                             .take = wsync_delta_take,
                             .check = wsync_delta_check,
                             .judge = wsync_delta_judge,
                             .doubt = wsync_delta_doubt,
                             .settled = wsync_delta_settled,
                             .report = wsync_delta_report,
                             .self = s};
    rc = wstore_open(&o->store, &s->store, e);
    rc = rc ? rc : wsync_delta_room(s, e);
    if (rc != STATUS_OK) {
        wsync_delta_close(s);
        return rc;
    }
    wsync_delta_workers(s);
    *out = s;
    return STATUS_OK;
}

const struct wsync *wsync_delta_sync(struct wsync_delta *s)
{
    return &s->sync;
}

void wsync_delta_close(struct wsync_delta *s)
{
    if (!s) {
        return;
    }
    wstore_close(s->store);
    wsync_proof_fini(&s->proof);
    wmanifest_free(s->shape);
    mem_free(s->offset);
    mem_unmap(s->last, s->last_bytes);
    mem_unmap(s->now, s->now_bytes);
    for (int i = 0; i < s->nthreads; i++) {
        wdelta_free(s->codec[i]);
    }
    for (int i = 0; i < s->nslots; i++) {
        mem_free(s->slots[i].out);
    }
    mem_free(s->codec);
    mem_free(s->slots);
    buf_fini(&s->chunk);
    mem_free(s);
}
