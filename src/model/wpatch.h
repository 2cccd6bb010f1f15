/* Weights made into another version of themselves by the chunks of manifests, all or nothing.
 *
 *     wpatch_hold(w, &held, &e);                               what w is, tensor by tensor
 *     struct wpatch_layer layers[] = {{m6, chunks6}, {m7, chunks7}};
 *     rc = wpatch_open(w, &held, layers, 2, &p, &e);           of the right base, well formed
 *     rc = rc ? rc : wpatch_verify(p, &e);                     every tensor will have its sum
 *     rc = rc ? rc : wpatch_commit(p, &e);                     only now w changes
 *     wpatch_close(p);
 *
 * Values are looked at twice, so that nothing changes before everything is known to be right, and
 * no second copy of the model is needed: the memory is that of its largest tensor. The work is done
 * on all threads of the weights' device; nobody else may use it meanwhile. */
#ifndef MODEL_WPATCH_H
#define MODEL_WPATCH_H

#include "model/wmanifest.h"

struct err;
struct weights;
struct wpatch;

/* What weights hold; zero at first, wpatch_held_fini at last. */
struct wpatch_held {
    struct wmanifest *m; /* sums of the tensors, and over all; NULL: not known */
    int64_t at;          /* w->version that they are of */
};
/* Sums w's tensors, unless they are known for its version. STATUS_AGAIN when w is dropped. */
int wpatch_hold(struct weights *w, struct wpatch_held *h, struct err *e);
void wpatch_held_fini(struct wpatch_held *h);

struct wpatch_layer {
    const struct wmanifest *m;
    const uint8_t *const *chunks; /* (m->nchunks), of the bytes and hashes that m says */
};

/* Layers in order of versions: the first is whole or changes what is held, each next one changes
 * the one before. STATUS_INPUT with both versions where it is not so. Borrowed until close. */
int wpatch_open(struct weights *w, struct wpatch_held *h, const struct wpatch_layer *layers, int n,
                struct wpatch **out, struct err *e);
int wpatch_verify(struct wpatch *p, struct err *e);
/* Held is what the last layer says from here on. */
int wpatch_commit(struct wpatch *p, struct err *e);
void wpatch_close(struct wpatch *p); /* NULL is fine */

#endif
