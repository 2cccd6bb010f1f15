/* Weight sync without a copy: engines of this host have the trainer's weights mapped
 * (`miles serve --weights-fd`), and a publish tells them which version those are now.
 *
 *     weights_open(file, dev, WEIGHTS_TRAIN | WEIGHTS_SHARED, ...);
 *     struct wsync_shared *s;
 *     wsync_shared_open(&(struct wsync_shared_opts){.w = w}, &s, &e);
 *     ... engines start with the descriptor wsync_shared_fd(s) ...
 *     ... wsync_shared_sync(s) ...
 *     wsync_shared_close(s);
 *
 * What is proven at each publish: the engine has mapped an image of this program, model, plan and
 * packing; the image says the same version to both, and was not written meanwhile; and sums of
 * tensors as in rl/wsync_proof.h. */
#ifndef RL_WSYNC_SHARED_H
#define RL_WSYNC_SHARED_H

#include <stdint.h>

#include "rl/wsync.h"

struct weights;
struct wsync_shared;

struct wsync_shared_opts {
    struct weights *w; /* the trainer's, with WEIGHTS_SHARED; borrowed */
    int all;           /* 1: all tensors are summed at every publish */
    int64_t bytes;     /* of tensors drawn for a publish; 0: 64 MiB */
};

int wsync_shared_open(const struct wsync_shared_opts *o, struct wsync_shared **out, struct err *e);
const struct wsync *wsync_shared_sync(struct wsync_shared *s);
/* For engines to be started: a child gets it by dup2. */
int wsync_shared_fd(const struct wsync_shared *s);
void wsync_shared_close(struct wsync_shared *s); /* NULL is fine */

#endif
