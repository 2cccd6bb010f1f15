/* Owns the trainer's side of weights in shared memory. The values are where engines read them
 * before anybody publishes: what is made here is the word that they may, and the proof that they
 * read the same. */
#include "rl/wsync_shared.h"

#include <stdio.h>

#include "base/mem.h"
#include "base/status.h"
#include "model/weights.h"
#include "rl/wsync_proof.h"

struct wsync_shared {
    struct weights *w;
    struct wsync sync;
    struct wsync_proof proof;
};

static int wsync_shared_prepare(void *self, int64_t version, struct err *e)
{
    struct wsync_shared *s = self;

    if (s->w->version != version) {
        return ERR(e, STATUS_FAIL, "version %lld is to be published, the trainer has %lld",
                   (long long)version, (long long)s->w->version);
    }
    wsync_proof_begin(&s->proof, version);
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
    return wsync_proof_check(&s->proof, k, r, e);
}

static int wsync_shared_judge(void *self, int64_t version, int k, const json_t *answer,
                              struct err *e)
{
    struct wsync_shared *s = self;

    (void)k;
    return wsync_proof_judge(&s->proof, version, answer, e);
}

static void wsync_shared_settled(void *self, int64_t version)
{
    (void)self, (void)version;
}

int wsync_shared_open(const struct wsync_shared_opts *o, struct wsync_shared **out, struct err *e)
{
    struct wsync_proof_opts po = {.w = o->w, .all = o->all, .bytes = o->bytes};
    struct wsync_shared *s;

    if (weights_share_fd(o->w) < 0) {
        return ERR(e, STATUS_INPUT, "the trainer's weights are not in shared memory");
    }
    s = mem_alloc(sizeof *s);
    s->w = o->w;
    wsync_proof_init(&s->proof, &po);
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
    return weights_share_fd(s->w);
}

void wsync_shared_close(struct wsync_shared *s)
{
    if (s) {
        wsync_proof_fini(&s->proof);
        mem_free(s);
    }
}
