/* The rollout engine: continuous batching over paged KV. A group is one prompt with n samples; its
 * prompt is computed once and its samples share the pages.
 *
 *     struct engine *g;
 *     engine_open(w, &opts, &g, &e);
 *     engine_submit(g, &group, &e);                    tokens are copied
 *     while (engine_busy(g)) {
 *         engine_step(g, &e);
 *         while (engine_take(g, &result)) { ...; }     valid until engine_take returns 0 or the
 * next step
 *     }
 *     engine_close(g);
 *
 * A sample's tokens depend only on the weights, its prompt, its parameters and its key (contracts
 * C1 to C3): limits on running samples, memory and order of submission change nothing but time. One
 * thread drives an engine. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include <stdint.h>

#include "engine/sampler.h"

struct err;
struct weights;
struct engine;

struct engine_opts {
    int max_running;  /* samples decoded at once; 0 takes 256 */
    int max_context;  /* tokens of prompt and response; 0 takes the model's */
    int64_t kv_bytes; /* memory for pages; 0 takes what max_running samples of max_context need, up
                         to half of the machine's memory */
    int chunk;        /* prompt rows computed per step; 0 takes 512 */
};

/* What names a sample's randomness: u(seed, stream, sample, branch, position). */
struct engine_key {
    uint64_t seed;
    uint32_t stream; /* 0 train, 1 eval */
    uint64_t sample; /* first sample's number; sample i of the group has sample + i */
};

#define ENGINE_MAX_STOP 16
struct engine_group {
    int64_t id;
    const int32_t *tokens; /* prompt, at least one */
    int ntokens;
    int n; /* samples */
    int max_new;
    struct sampler_params sampling;
    int ignore_eos;
    int nstop;
    int32_t stop[ENGINE_MAX_STOP]; /* beside the model's own end tokens */
    struct engine_key key;
};

enum engine_finish { ENGINE_STOP, ENGINE_LENGTH, ENGINE_ABORT };

struct engine_result {
    int64_t group;
    int sample;            /* 0 .. n-1 */
    const int32_t *tokens; /* response, the end token included */
    const float *logps;
    int ntokens;
    enum engine_finish finish;
    int64_t weight_version;
};

struct engine_stats {
    int64_t prompt_rows, decode_rows, steps;
    int running, waiting, pages_free, pages;
};

/* Bytes that an engine comes to use with `running` samples at once that hold `pages` pages each on
 * average; engine_pages tells how many one of a group of n holds when it is done. */
int64_t engine_bytes(const struct weights *w, const struct engine_opts *o, int running,
                     double pages);
double engine_pages(int prompt, int max_new, int n);
int engine_open(struct weights *w, const struct engine_opts *o, struct engine **out, struct err *e);
void engine_close(struct engine *g);
/* STATUS_INPUT when the group can never fit (context or memory). */
int engine_submit(struct engine *g, const struct engine_group *q, struct err *e);
/* One forward pass over what can run. STATUS_END when there is nothing to do; STATUS_NUMERIC when
 * the weights' version changed while samples hold pages of another one. */
int engine_step(struct engine *g, struct err *e);
int engine_busy(const struct engine *g);
/* 1 and *r when a sample has finished since. */
int engine_take(struct engine *g, struct engine_result *r);
void engine_get_stats(const struct engine *g, struct engine_stats *s);

#endif
