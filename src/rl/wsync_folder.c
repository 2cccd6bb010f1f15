/* Owns the folders that weights go through, and their number. A folder is written under another
 * name and renamed when it is whole, so that an engine never reads half of one; the oldest goes
 * before the next is written, so that there are never more than were agreed. */
#include "rl/wsync_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fsio.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/patience.h"
#include "base/proc.h"
#include "base/status.h"
#include "model/weights.h"
#include "model/wfile.h"
#include "model/wsum.h"
#include "rl/port.h"

#define WSYNC_FOLDER_NAME "weights_v"
#define WSYNC_FOLDER_MOST 64
#define WSYNC_FOLDER_PAD  64 /* SGLang's vocabulary has a multiple of so many rows */
#define WSYNC_FOLDER_WAYS 3
#define WSYNC_FOLDER_SUMS (64 * WSYNC_FOLDER_WAYS) /* ranks times ways */

/* How engines sum what they hold: SGLang in the host's memory, SGLang on a GPU, `miles serve`. */
static const struct wsum_opts wsync_folder_ways[WSYNC_FOLDER_WAYS] = {
    {.kind = WSUM_SHA256, .pad = WSYNC_FOLDER_PAD},
    {.kind = WSUM_GPU, .pad = WSYNC_FOLDER_PAD},
    {.kind = WSUM_SHA256},
};

struct wsync_folder_one {
    int64_t version, bytes;
};

struct wsync_folder {
    struct wsync_folder_opts o;
    struct wsync sync;
    char *dir;                                           /* absolute: engines have their own */
    struct wsync_folder_one have[WSYNC_FOLDER_MOST + 1]; /* oldest first */
    int n;
    int64_t first;  /* version of the run's first publish; -1: none yet */
    int64_t judged; /* version that the sums are of; -1: none */
    struct wsync_folder_sum {
        int way, rank, size;
        struct map map;
    } sums[WSYNC_FOLDER_SUMS];
    int nsums;
    int way, try_way; /* that engines were found to use; that is being tried */
};

/* ---- folders ---- */

static char *wsync_folder_path(const struct wsync_folder *s, int64_t version)
{
    char name[48];

    snprintf(name, sizeof name, WSYNC_FOLDER_NAME "%lld", (long long)version);
    return fsio_join(s->dir, name);
}

/* weights_v and digits, or that and .tmp. */
static int wsync_folder_ours(const char *name)
{
    size_t n = strlen(WSYNC_FOLDER_NAME), digits;

    if (strncmp(name, WSYNC_FOLDER_NAME, n) != 0) {
        return 0;
    }
    digits = strspn(name + n, "0123456789");
    return digits > 0 && (name[n + digits] == '\0' || strcmp(name + n + digits, ".tmp") == 0);
}

static int wsync_folder_at(const struct wsync_folder *s, int64_t version)
{
    for (int i = 0; i < s->n; i++) {
        if (s->have[i].version == version) {
            return i;
        }
    }
    return -1;
}

/* Removes the oldest until there are `most`. */
static int wsync_folder_trim(struct wsync_folder *s, int most, struct err *e)
{
    while (s->n > most) {
        char *path = wsync_folder_path(s, s->have[0].version);
        int rc = fsio_remove_tree(path, e);
        mem_free(path);
        if (rc != STATUS_OK) {
            return rc;
        }
        memmove(s->have, s->have + 1, sizeof s->have[0] * (size_t)--s->n);
    }
    return STATUS_OK;
}

int64_t wsync_folder_bytes(const struct wsync_folder *s)
{
    int64_t sum = 0;

    for (int i = 0; i < s->n; i++) {
        sum += s->have[i].bytes;
    }
    return sum;
}

/* Whole or not there; a full disk is waited for. */
static int wsync_folder_write(struct wsync_folder *s, const char *path, struct err *e)
{
    struct patience wait = {0};
    int rc;

    do {
        rc = s->o.train->export_hf(s->o.train->self, path, e);
    } while (patience_again(&wait, rc, path, e));
    return rc;
}

static int wsync_folder_prepare(void *self, int64_t version, struct err *e)
{
    struct wsync_folder *s = self;
    double start = proc_now();
    char *path;
    int rc;

    if (s->o.w->version != version) {
        return ERR(e, STATUS_FAIL, "version %lld is to be published, the trainer has %lld",
                   (long long)version, (long long)s->o.w->version);
    }
    if (wsync_folder_at(s, version) >= 0) {
        return STATUS_OK;
    }
    rc = wsync_folder_trim(s, s->o.keep - 1, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    path = wsync_folder_path(s, version);
    rc = wsync_folder_write(s, path, e);
    if (rc == STATUS_OK) {
        s->have[s->n++] = (struct wsync_folder_one){version, fsio_folder_bytes(path)};
        s->first = s->first < 0 ? version : s->first;
        log_info(WSYNC, "weight_sync: version %lld written to %s in %.3f s; %d folders, %.1f MB",
                 (long long)version, path, proc_now() - start, s->n,
                 (double)wsync_folder_bytes(s) / 1e6);
    }
    mem_free(path);
    return rc;
}

/* ---- requests ---- */

static int wsync_folder_before(void *self, int64_t version, int k, struct wsync_request *r,
                               struct err *e)
{
    const struct wsync_folder *s = self;

    if (!s->o.spoil || version != s->first || k > 0) {
        return STATUS_END;
    }
    return wsync_ask(r, "/weights_checker", json_pack("{s:s}", "action", "reset_tensors"), e);
}

static int wsync_folder_take(void *self, int64_t version, struct wsync_request *r, struct err *e)
{
    const struct wsync_folder *s = self;
    char *path = wsync_folder_path(s, version), label[24];
    int rc;

    snprintf(label, sizeof label, "%lld", (long long)version);
    rc = wsync_ask(
        r, "/update_weights_from_disk",
        json_pack("{s:s,s:s,s:b}", "model_path", path, "weight_version", label, "flush_cache", 1),
        e);
    mem_free(path);
    return rc;
}

static int wsync_folder_check(void *self, int64_t version, int k, struct wsync_request *r,
                              struct err *e)
{
    (void)self, (void)version;
    if (k > 0) {
        return STATUS_END;
    }
    return wsync_ask(r, "/weights_checker", json_pack("{s:s}", "action", "checksum"), e);
}

/* ---- proof ---- */

static void wsync_folder_forget(struct wsync_folder *s)
{
    for (int i = 0; i < s->nsums; i++) {
        map_fini(&s->sums[i].map);
    }
    s->nsums = 0;
}

static int wsync_folder_read(void *arg, const char *name, uint16_t *dst, int64_t count,
                             struct err *e)
{
    return wfile_read_bf16(arg, name, dst, count, e);
}

/* Of what lies in the folder. */
static int wsync_folder_sum_disk(struct wsync_folder *s, int64_t version, struct wsum_opts *o,
                                 struct map *out, struct err *e)
{
    struct wfile *f = NULL;
    char *path = wsync_folder_path(s, version);
    int rc = wfile_open(path, &f, e);

    mem_free(path);
    if (rc == STATUS_OK) {
        o->read = wsync_folder_read;
        o->arg = f;
        rc = wsum_take(s->o.w, o, out, e);
        wfile_close(f);
    }
    return rc;
}

/* From the trainer's memory, or, when training has gone on, from the folder as it was written. */
static int wsync_folder_sum(struct wsync_folder *s, struct wsum_opts *o, struct map *out,
                            struct err *e)
{
    return s->o.w->version == s->judged ? wsum_take(s->o.w, o, out, e)
                                        : wsync_folder_sum_disk(s, s->judged, o, out, e);
}

/* Once for all engines. */
static const struct map *wsync_folder_sums(void *arg, int tp_rank, int tp_size, struct err *e)
{
    struct wsync_folder *s = arg;
    struct wsum_opts o = wsync_folder_ways[s->try_way];
    struct wsync_folder_sum *x = s->sums;

    for (int i = 0; i < s->nsums; i++, x++) {
        if (x->way == s->try_way && x->rank == tp_rank && x->size == tp_size) {
            return &x->map;
        }
    }
    if (tp_rank < 0 || tp_size < 1 || tp_rank >= tp_size || s->nsums == WSYNC_FOLDER_SUMS) {
        ERR(e, STATUS_UNSUPPORTED, "rank %d of %d: sums of at most %d ranks can be compared",
            tp_rank, tp_size, WSYNC_FOLDER_SUMS / WSYNC_FOLDER_WAYS);
        return NULL;
    }
    o.tp_rank = tp_rank;
    o.tp_size = tp_size;
    x->way = s->try_way;
    x->rank = tp_rank;
    x->size = tp_size;
    map_init(&x->map);
    if (wsync_folder_sum(s, &o, &x->map, e) != STATUS_OK) {
        map_fini(&x->map);
        return NULL;
    }
    s->nsums++;
    return &x->map;
}

/* The answer does not say in which way the engine sums: all its sums equal to ours in one of them
 * is the proof, and that way is tried first from then on. What is wrong is told as the first sees
 * it. */
static int wsync_folder_judge(void *self, int64_t version, int k, const json_t *answer,
                              struct err *e)
{
    struct wsync_folder *s = self;
    struct err other = {0};
    int rc = STATUS_FAIL, told = rc, first = s->way;

    (void)k;
    if (wsync_folder_at(s, version) < 0) {
        return ERR(e, STATUS_NOTFOUND, "version %lld is to be proven, and its folder is gone",
                   (long long)version);
    }
    if (s->judged != version) {
        wsync_folder_forget(s);
        s->judged = version;
    }
    for (int i = 0; i < WSYNC_FOLDER_WAYS && rc == STATUS_FAIL; i++) {
        s->try_way = (first + i) % WSYNC_FOLDER_WAYS;
        rc = wsync_judge_sums(wsync_folder_sums, s, answer, i == 0 ? e : &other);
        s->way = rc == STATUS_OK ? s->try_way : s->way;
        told = i == 0 ? rc : told;
    }
    return rc == STATUS_OK ? rc : told;
}

/* Does the folder hold what the trainer does? */
static int wsync_folder_whole(struct wsync_folder *s, int64_t version, struct err *e)
{
    struct wsum_opts here = {0}, there = {0};
    char want[65], have[65];
    struct map a, b;
    int rc;

    map_init(&a);
    map_init(&b);
    rc = wsum_take(s->o.w, &here, &a, e);
    rc = rc == STATUS_OK ? wsync_folder_sum_disk(s, version, &there, &b, e) : rc;
    if (rc == STATUS_OK) {
        wsum_total(&a, want);
        wsum_total(&b, have);
        if (strcmp(want, have) != 0) {
            rc = ERR(e, STATUS_FORMAT, "the sum of its tensors is %.16s, it was written with %.16s",
                     have, want);
        }
    }
    map_fini(&a);
    map_fini(&b);
    return rc;
}

/* A folder that somebody has damaged is written again as long as the trainer has those weights. */
static void wsync_folder_doubt(void *self, int64_t version)
{
    struct wsync_folder *s = self;
    struct err e = {0};
    char *path;
    int rc;

    if (wsync_folder_at(s, version) < 0 || s->o.w->version != version ||
        wsync_folder_whole(s, version, &e) == STATUS_OK) {
        return;
    }
    path = wsync_folder_path(s, version);
    log_warn(WSYNC, "weight_sync: %s is damaged and is written again: %s", path, e.msg);
    rc = fsio_remove_tree(path, &e);
    rc = rc == STATUS_OK ? wsync_folder_write(s, path, &e) : rc;
    if (rc != STATUS_OK) {
        log_error(WSYNC, "weight_sync: %s cannot be written again: %s", path, e.msg);
    }
    mem_free(path);
}

static void wsync_folder_settled(void *self, int64_t version)
{
    struct wsync_folder *s = self;
    struct err e = {0};

    (void)version;
    if (wsync_folder_trim(s, s->o.keep, &e) != STATUS_OK) {
        log_warn(WSYNC, "old weights stay: %s", e.msg);
    }
}

/* ---- open and close ---- */

int wsync_folder_open(const struct wsync_folder_opts *o, struct wsync_folder **out, struct err *e)
{
    struct wsync_folder *s;
    char *dir;
    int rc = wsync_home(o->dir, &dir, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    s = mem_alloc(sizeof *s);
    s->o = *o;
    s->o.keep = o->keep < 1 ? 1 : o->keep > WSYNC_FOLDER_MOST ? WSYNC_FOLDER_MOST : o->keep;
    s->dir = dir;
    s->first = s->judged = -1;
    s->sync = (struct wsync){.prepare = wsync_folder_prepare,
                             .before = wsync_folder_before,
                             .take = wsync_folder_take,
                             .check = wsync_folder_check,
                             .judge = wsync_folder_judge,
                             .doubt = wsync_folder_doubt,
                             .settled = wsync_folder_settled,
                             .self = s};
    rc = wsync_clean(s->dir, wsync_folder_ours, 1, e);
    if (rc != STATUS_OK) {
        wsync_folder_close(s);
        return rc;
    }
    *out = s;
    return STATUS_OK;
}

const struct wsync *wsync_folder_sync(struct wsync_folder *s)
{
    return &s->sync;
}

void wsync_folder_close(struct wsync_folder *s)
{
    struct err e = {0};

    if (!s) {
        return;
    }
    if (wsync_folder_trim(s, 0, &e) != STATUS_OK) {
        log_warn(WSYNC, "weights stay behind: %s", e.msg);
    }
    wsync_folder_forget(s);
    mem_free(s->dir);
    mem_free(s);
}
