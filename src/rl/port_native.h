/* Both ports on this host: engine and trainer in one process, over the same packed weights. */
#ifndef RL_PORT_NATIVE_H
#define RL_PORT_NATIVE_H

#include "base/span.h"
#include "engine/engine.h"
#include "rl/copies.h"
#include "rl/port.h"
#include "rl/stopwatch.h"
#include "train/trainer.h"

struct ckpt_writer;
struct err;
struct weights;
struct wfile;

struct port_native {
    struct weights *w, *ref; /* borrowed; ref may be NULL */
    struct weights *teacher; /* borrowed, set by the owner; NULL: none */
    const struct wfile *src; /* borrowed: texts for exports */
    struct engine *engine;   /* owned; NULL when training only, or its memory is released */
    struct engine_opts engine_opts;
    struct trainer *trainer; /* owned; NULL when sampling only */
    struct rollout_port rollout;
    struct trainer_port train;
    int max_tokens;
    float temperature;
    struct stopwatch stops; /* owned; the owner sets its tokenizer, where there are stop strings */
    struct copies copies;   /* owned; the owner opens it for --keep-old-actor */
    struct ckpt_writer *writer; /* of a checkpoint in flight, or NULL */
    const char *lane;           /* of the trainer's spans, static */
    struct span_lane busy;      /* of the engine */
    int64_t running;            /* samples submitted and not yet answered */
    double save_t0;             /* when the checkpoint in flight was begun */
};

/* eo or to NULL leaves that side out. */
int port_native_open(struct port_native *p, struct weights *w, struct weights *ref,
                     const struct wfile *src, const struct engine_opts *eo,
                     const struct trainer_opts *to, struct err *e);
void port_native_close(struct port_native *p);

#endif
