/* The engines of a run that are not in its process: started or found, behind a router or not, with
 * the way that weights get to them.
 *
 *     w = weights_open(..., use | engines_use(&place, &train_opts), ...);
 *     engines_open(&o, &g, &e);                 waits until all are up, and says what it waits for
 *     loop_cfg.rollout = engines_port(g);
 *     ...
 *     engines_close(g);                         those that were started here end
 *
 * Engines of `miles serve` on the cpu device map the trainer's weights, unless they are to keep
 * older ones for a while (--update-weights-interval, train-async); all others read folders, or what
 * changed (--update-weight-transfer-mode disk-delta). */
#ifndef RUN_ENGINES_H
#define RUN_ENGINES_H

#include <jansson.h>

struct engines;
struct err;
struct place_opts;
struct rollout_port;
struct train_opts;
struct trainer_port;
struct weights;
struct world;

/* Borrowed until engines_close. */
struct engines_opts {
    const struct place_opts *place; /* resolved, not in-process */
    const struct train_opts *train;
    struct weights *w;
    const struct trainer_port *trainer; /* writes the folders that engines read */
    const json_t *manifest;             /* of the numbers, that `miles serve` must show */
    const char *run_dir;
    int max_running, max_context; /* of an engine */
    const struct world *world;
};

/* What weights_open must be told so that these engines can have the weights: 0 or WEIGHTS_SHARED.
 */
int engines_use(const struct place_opts *p, const struct train_opts *t);
int engines_open(const struct engines_opts *o, struct engines **out, struct err *e);
const struct rollout_port *engines_port(struct engines *g);
/* Where samples can be asked for: the router, else the first engine; NULL while that is not known.
 */
const char *engines_url(const struct engines *g);
void engines_close(struct engines *g); /* NULL is fine */

#endif
