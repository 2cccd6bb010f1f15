/* Weight sync by what changed: each version is a manifest and chunks in a folder (rl/wstore.h),
 * which engines of `miles serve` read there, or fetch by plain HTTP from whatever passes the folder
 * on. They may sit outside the cluster.
 *
 *     struct wsync_delta_opts o = {.store = {.dir = "run/weights"}, .w = w, .full_every = 20};
 *     struct wsync_delta *s;
 *     wsync_delta_open(&o, &s, &e);
 *     ... wsync_delta_sync(s) ...
 *     wsync_delta_close(s);
 *
 * The first version is whole, and every full_every-th after it; the others tell what changed since
 * the one before. For that the last published values are kept: two bytes for each of the model's.
 * An engine takes the versions between its own and the newest, or from the newest whole one on; it
 * checks every chunk by its hash and every tensor by its sum before it changes anything. What is
 * proven at each publish beside that: rl/wsync_proof.h. */
#ifndef RL_WSYNC_DELTA_H
#define RL_WSYNC_DELTA_H

#include "rl/wstore.h"
#include "rl/wsync.h"

struct weights;
struct world;
struct wsync_delta;

/* Borrowed until close. */
struct wsync_delta_opts {
    struct wstore_opts store;
    const char *url; /* where engines find the folder; NULL: they see it under its own name */
    struct weights *w;
    const struct world *world; /* NULL: the system's */
    enum wdelta_encoding encoding;
    int full_every; /* versions from one whole one to the next; 0: 20 */
    int all; /* 1: before the first version is taken the engine fills its tensors with noise, and
                all tensors are proven at every publish (--check-weight-update-equal) */
    double fetch_s; /* for an engine to fetch a version [600] */
};

/* Bytes of memory that it takes for these weights. */
int64_t wsync_delta_bytes(const struct weights *w);
int wsync_delta_open(const struct wsync_delta_opts *o, struct wsync_delta **out, struct err *e);
const struct wsync *wsync_delta_sync(struct wsync_delta *s);
/* Removes what was written. NULL is fine. */
void wsync_delta_close(struct wsync_delta *s);

#endif
