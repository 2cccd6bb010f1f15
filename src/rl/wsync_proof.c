/* Owns the draw of tensors for a version and the trainer's sums of them, made once for all engines.
 */
#include "rl/wsync_proof.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/proc.h"
#include "base/status.h"
#include "model/weights.h"

#define WSYNC_PROOF_BYTES ((int64_t)64 << 20)

void wsync_proof_init(struct wsync_proof *p, const struct wsync_proof_opts *o)
{
    memset(p, 0, sizeof *p);
    p->o = *o;
    p->o.bytes = o->bytes > 0 ? o->bytes : WSYNC_PROOF_BYTES;
    p->version = p->first = -1;
    map_init(&p->sums);
}

void wsync_proof_fini(struct wsync_proof *p)
{
    map_fini(&p->sums);
}

void wsync_proof_begin(struct wsync_proof *p, int64_t version)
{
    if (p->version != version) {
        p->first = p->version < 0 ? version : p->first;
        p->version = version;
        p->summed = 0;
        p->draw = (struct wsum_opts){.seed = (uint64_t)version,
                                     .bytes = p->o.all || version == p->first ? 0 : p->o.bytes,
                                     .read = p->o.read,
                                     .arg = p->o.arg};
    }
}

int wsync_proof_check(const struct wsync_proof *p, int k, struct wsync_request *r, struct err *e)
{
    if (k > 0) {
        return STATUS_END;
    }
    return wsync_ask(r, "/weights_checker",
                     json_pack("{s:s,s:{s:I,s:I}}", "action", "checksum", "miles_draw", "seed",
                               (json_int_t)p->draw.seed, "bytes", (json_int_t)p->draw.bytes),
                     e);
}

/* The trainer's own sums, once for all engines. */
static const struct map *wsync_proof_sums(void *arg, int tp_rank, int tp_size, struct err *e)
{
    struct wsync_proof *p = arg;
    double start = proc_now();

    (void)tp_rank;
    if (tp_size > 1) {
        ERR(e, STATUS_UNSUPPORTED, "an engine of this kind has the weights whole, not in %d ranks",
            tp_size);
        return NULL;
    }
    if (!p->summed) {
        map_fini(&p->sums);
        map_init(&p->sums);
        if (wsum_take(p->o.w, &p->draw, &p->sums, e) != STATUS_OK) {
            return NULL;
        }
        p->summed = 1;
        log_debug(WSYNC, "version %lld: %zu of %d tensors summed in %.3f s", (long long)p->version,
                  p->sums.count, p->o.w->nparams, proc_now() - start);
    }
    return &p->sums;
}

int wsync_proof_judge(struct wsync_proof *p, int64_t version, const json_t *answer, struct err *e)
{
    const char *label = json_string_value(json_object_get(answer, "weight_version"));
    char want[24];

    if (p->version != version || (!p->o.read && p->o.w->version != version)) {
        return ERR(e, STATUS_FAIL, "version %lld is to be proven, the trainer has %lld",
                   (long long)version, (long long)(p->o.read ? p->version : p->o.w->version));
    }
    snprintf(want, sizeof want, "%lld", (long long)version);
    if (label && strcmp(label, want) != 0) {
        return ERR(e, STATUS_FAIL, "the engine has version %.40s, not %s", label, want);
    }
    return wsync_judge_sums(wsync_proof_sums, p, answer, e);
}
