/* The proof that an engine of `miles serve` holds a version: sums of tensors that it computes from
 * what it reads equal the trainer's own. Of all tensors in the first publish, later of tensors
 * drawn anew for each version, unless `all`. Shared by the kinds of weight sync whose engines are
 * ours.
 *
 *     struct wsync_proof p;
 *     wsync_proof_init(&p, &(struct wsync_proof_opts){.w = w});
 *     wsync_proof_begin(&p, version);
 *     wsync_proof_check(&p, k, &request, e);
 *     wsync_proof_judge(&p, version, answer, e);
 *     wsync_proof_fini(&p); */
#ifndef RL_WSYNC_PROOF_H
#define RL_WSYNC_PROOF_H

#include "base/map.h"
#include "model/wsum.h"
#include "rl/wsync.h"

struct wsync_proof_opts {
    struct weights *w;     /* the trainer's; borrowed */
    weights_read_fn *read; /* where values of the version are, or NULL: in w */
    void *arg;
    int all;       /* 1: all tensors are summed at every publish */
    int64_t bytes; /* of tensors drawn for a publish; 0: 64 MiB */
};

struct wsync_proof {
    struct wsync_proof_opts o;
    int64_t version, first; /* that is proven; that was the first; -1: none */
    struct wsum_opts draw;
    struct map sums;
    int summed; /* 1: sums are those of this version */
};

void wsync_proof_init(struct wsync_proof *p, const struct wsync_proof_opts *o);
void wsync_proof_fini(struct wsync_proof *p);
void wsync_proof_begin(struct wsync_proof *p, int64_t version); /* the same again is fine */
/* As `check` and `judge` of struct wsync. */
int wsync_proof_check(const struct wsync_proof *p, int k, struct wsync_request *r, struct err *e);
int wsync_proof_judge(struct wsync_proof *p, int64_t version, const json_t *answer, struct err *e);

#endif
