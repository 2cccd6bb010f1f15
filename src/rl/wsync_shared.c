/* Owns the trainer's side of weights in shared memory. The values are where engines read them
 * before anybody publishes: what is made here is the word that they may, and the proof that they
 * read the same. */
#include "rl/wsync_shared.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/proc.h"
#include "base/status.h"
#include "model/weights.h"
#include "model/wsum.h"

#define WSYNC_SHARED_BYTES ((int64_t)64 << 20)

struct wsync_shared {
    struct wsync_shared_opts o;
    struct wsync sync;
    int64_t version;       /* that was prepared; -1: none */
    int64_t first;         /* of the run */
    struct wsum_opts draw; /* of this version */
    struct map sums;
    int summed; /* 1: sums are those of this version */
};

static int wsync_shared_prepare(void *self, int64_t version, struct err *e)
{
    struct wsync_shared *s = self;

    if (s->o.w->version != version) {
        return ERR(e, STATUS_FAIL, "version %lld is to be published, the trainer has %lld",
                   (long long)version, (long long)s->o.w->version);
    }
    if (s->version != version) {
        s->first = s->version < 0 ? version : s->first;
        s->version = version;
        s->summed = 0;
        s->draw.seed = (uint64_t)version;
        s->draw.bytes = s->o.all || version == s->first ? 0 : s->o.bytes;
    }
    return STATUS_OK;
}

static int wsync_shared_take(void *self, int64_t version, struct wsync_request *r, struct err *e)
{
    char label[24];

    (void)self;
    snprintf(label, sizeof label, "%lld", (long long)version);
    return wsync_ask(r, "/update_weights_from_shared", json_pack("{s:s}", "weight_version", label),
                     e);
}

static int wsync_shared_check(void *self, int64_t version, int k, struct wsync_request *r,
                              struct err *e)
{
    const struct wsync_shared *s = self;

    (void)version;
    if (k > 0) {
        return STATUS_END;
    }
    return wsync_ask(r, "/weights_checker",
                     json_pack("{s:s,s:{s:I,s:I}}", "action", "checksum", "miles_draw", "seed",
                               (json_int_t)s->draw.seed, "bytes", (json_int_t)s->draw.bytes),
                     e);
}

/* The trainer's own sums, once for all engines. */
static const struct map *wsync_shared_sums(void *arg, int tp_rank, int tp_size, struct err *e)
{
    struct wsync_shared *s = arg;
    double start = proc_now();

    (void)tp_rank;
    if (tp_size > 1) {
        ERR(e, STATUS_UNSUPPORTED, "an engine over shared weights has them whole, not in %d ranks",
            tp_size);
        return NULL;
    }
    if (!s->summed) {
        map_fini(&s->sums);
        map_init(&s->sums);
        if (wsum_take(s->o.w, &s->draw, &s->sums, e) != STATUS_OK) {
            return NULL;
        }
        s->summed = 1;
        log_debug(WSYNC, "version %lld: %zu of %d tensors summed in %.3f s", (long long)s->version,
                  s->sums.count, s->o.w->nparams, proc_now() - start);
    }
    return &s->sums;
}

static int wsync_shared_judge(void *self, int64_t version, int k, const json_t *answer,
                              struct err *e)
{
    struct wsync_shared *s = self;
    const char *label = json_string_value(json_object_get(answer, "weight_version"));
    char want[24];

    (void)k;
    if (s->o.w->version != version || s->version != version) {
        return ERR(e, STATUS_FAIL, "version %lld is to be proven, the trainer has %lld",
                   (long long)version, (long long)s->o.w->version);
    }
    snprintf(want, sizeof want, "%lld", (long long)version);
    if (label && strcmp(label, want) != 0) {
        return ERR(e, STATUS_FAIL, "the engine has version %.40s, not %s", label, want);
    }
    return wsync_judge_sums(wsync_shared_sums, s, answer, e);
}

static void wsync_shared_settled(void *self, int64_t version)
{
    (void)self, (void)version;
}

int wsync_shared_open(const struct wsync_shared_opts *o, struct wsync_shared **out, struct err *e)
{
    struct wsync_shared *s;

    if (weights_share_fd(o->w) < 0) {
        return ERR(e, STATUS_INPUT, "the trainer's weights are not in shared memory");
    }
    s = mem_alloc(sizeof *s);
    s->o = *o;
    s->o.bytes = o->bytes > 0 ? o->bytes : WSYNC_SHARED_BYTES;
    s->version = -1;
    map_init(&s->sums);
    s->sync = (struct wsync){.prepare = wsync_shared_prepare,
                             .take = wsync_shared_take,
                             .check = wsync_shared_check,
                             .judge = wsync_shared_judge,
                             .settled = wsync_shared_settled,
                             .self = s};
    *out = s;
    return STATUS_OK;
}

const struct wsync *wsync_shared_sync(struct wsync_shared *s)
{
    return &s->sync;
}

int wsync_shared_fd(const struct wsync_shared *s)
{
    return weights_share_fd(s->o.w);
}

void wsync_shared_close(struct wsync_shared *s)
{
    if (s) {
        map_fini(&s->sums);
        mem_free(s);
    }
}
