/* Weights that travel as changes: the controller's own weight sync (rl/wsync_delta.h) with a small
 * model on the simulated disk, and engines that fetch manifests and chunks from there and make them
 * into weights with the code of `miles serve` (model/wpatch.h).
 *
 *     simdelta_models(&models, &e);                    once for a process
 *     struct simdelta *d = simdelta_new(&sim, &opts);
 *     simdelta_open(d, &e); ... simdelta_sync(d) ...   one life of the controller
 *     simdelta_take(d, engine, body, &sum, &e)         an engine is asked to take a version
 *     simdelta_close(d);
 *     simdelta_free(d);
 *
 * The 64 bits that stand for weights everywhere else in the simulator are spread over a tensor.
 * What is promised of it: who has nothing can take the newest version from what lies there. */
#ifndef SIM_SIMDELTA_H
#define SIM_SIMDELTA_H

#include <jansson.h>
#include <stdint.h>

#include "rl/wsync.h"

struct buf;
struct device;
struct err;
struct sim;
struct simdelta;
struct simdisk;
struct simtrain;
struct weights;

enum { SIMDELTA_ENGINES = 12 };

/* The trainer's and the engines' tensors; seeds use them one after the other. */
struct simdelta_models {
    struct device *dev;
    struct weights *w[1 + SIMDELTA_ENGINES];
};
int simdelta_models(struct simdelta_models *m, struct err *e);
void simdelta_models_fini(struct simdelta_models *m);

struct simdelta_opts {
    struct simdelta_models *models;
    struct simtrain *train;
    struct simdisk *disk;
    int full_every; /* versions from one whole one to the next */
    int overwrite;  /* 1: values are told as they are, and not by what changed in their bits */
    double keep_s;  /* that versions stay which nobody needs */
};

struct simdelta *simdelta_new(struct sim *s, const struct simdelta_opts *o);
void simdelta_free(struct simdelta *d); /* NULL is fine */
int simdelta_open(struct simdelta *d, struct err *e);
void simdelta_close(struct simdelta *d);
const struct wsync *simdelta_sync(struct simdelta *d);
/* The engine, which holds *sum, does as the body of /update_weights_from_delta says. STATUS_AGAIN:
 * it may be asked again. */
int simdelta_take(struct simdelta *d, int engine, const json_t *body, uint64_t *sum, struct err *e);
/* Its answer to /weights_checker. */
void simdelta_checksums(struct simdelta *d, int engine, uint64_t sum, const json_t *body,
                        const char *version, struct buf *out);

#endif
