/* The rollout engine: continuous batching over paged KV with a prefix cache. A group is one prompt
 * with n samples; its prompt is computed once and its samples share the pages, as do all requests
 * that begin with the same tokens (engine/radix.h).
 *
 *     struct engine *g;
 *     engine_open(w, &opts, &g, &e);
 *     engine_submit(g, &group, &e);                    tokens are copied; at any time between steps
 *     while (engine_busy(g)) {
 *         engine_step(g, &e);
 *         for (int i = 0; engine_peek(g, &i, &r);) { ...; }    who streams: samples that go on
 *         while (engine_take(g, &r)) { ...; }          valid until engine_take returns 0 or the
 *     }                                                next step
 *     engine_close(g);
 *
 * A sample's tokens depend only on the weights, its prompt, its parameters and its key (contracts
 * C1 to C3): limits on running samples, memory, what the cache knows, being taken back for want of
 * memory and order of submission change nothing but time. A step allocates nothing. One thread
 * drives an engine. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include <stdint.h>

#include "engine/sampler.h"

struct err;
struct weights;
struct engine;

struct engine_opts {
    int max_running;     /* samples decoded at once; 0 takes 256 */
    int max_context;     /* tokens of prompt and response; 0 takes the model's */
    int64_t kv_bytes;    /* memory for pages, which also bounds the longest sample; 0 takes what
                            max_running samples of max_context need, up to half of the machine's */
    int64_t kv_tokens;   /* the same in tokens, rounded down to pages; counts before kv_bytes */
    int chunk;           /* prompt rows computed per step; 0 takes 512 */
    double mem_fraction; /* without those: the pages take this share of the memory that is free
                            now; 0: as kv_bytes says */
};

/* What names a sample's randomness: u(seed, stream, sample, branch, position). */
struct engine_key {
    uint64_t seed;
    uint32_t stream;   /* 0 train, 1 eval */
    uint64_t sample;   /* first sample's number; sample i of the group has sample + i */
    uint32_t position; /* of the first new token: tokens of the response that the prompt ends with
                        */
};

#define ENGINE_MAX_STOP   16
#define ENGINE_MAX_TOP    1024
#define ENGINE_MAX_WANTED (64 << 20) /* log-probs of one request beside those of its tokens */
struct engine_group {
    int64_t id;            /* names the group to engine_abort and engine_end */
    const int32_t *tokens; /* prompt, at least one */
    int ntokens;
    int n;       /* samples */
    int max_new; /* 0: none, when the prompt's log-probs are all that is wanted */
    int min_new; /* before so many tokens none comes that would end the response */
    struct sampler_params sampling; /* the bias is copied */
    int ignore_eos;
    int nstop;
    int32_t stop[ENGINE_MAX_STOP]; /* beside the model's own end tokens */
    struct engine_key key;
    /* Log-probs of prompt tokens prompt_from .. ntokens - 1 (the first token of a prompt has none),
     * at their own temperature; 0 is 1. Rows from there on are computed, not taken from the cache.
     */
    int prompt_logps, prompt_from;
    float prompt_temperature;
    int top; /* so many best candidates beside each token that has a log-prob */
    /* Beside each prompt token that has one: log-probs of nwanted tokens. The list is copied; with
     * wanted_each it has nwanted for each prompt token from prompt_from on. */
    const int32_t *wanted;
    int nwanted, wanted_each;
    int forget; /* 1: nobody will go on from the prompt or the responses: the cache keeps the prompt
                   while samples of it are to come, and no response */
};

enum engine_finish {
    ENGINE_STOP,
    ENGINE_LENGTH,
    ENGINE_ABORT,
    ENGINE_RUNNING /* of engine_peek: not finished */
};

struct engine_result {
    int64_t group;
    int sample;              /* 0 .. n-1 */
    const int32_t *tokens;   /* response so far, the end token included */
    const float *logps;      /* log-softmax of logits / temperature, before all else (C2) */
    const int64_t *versions; /* of the weights that each token was sampled with */
    const uint8_t *mixed;    /* 1: rows of other versions were read for this token */
    int ntokens;
    int top;                /* candidates per token, most likely first */
    const int32_t *top_ids; /* (ntokens, top) */
    const float *top_logps;
    /* of prompt tokens prompt_from .. prompt_from + nprompt - 1 */
    int prompt_from, nprompt;
    const float *prompt_logps;     /* (nprompt) */
    const int32_t *prompt_top_ids; /* (nprompt, top) */
    const float *prompt_top_logps;
    const float *prompt_wanted; /* (nprompt, nwanted) */
    enum engine_finish finish;
    int64_t weight_version; /* of the last token */
    int prompt_tokens;
    int cached_tokens; /* of the prompt: found in the cache when the sample began */
};

struct engine_stats {
    int64_t prompt_rows, decode_rows, steps;
    int64_t cached_tokens; /* rows that the cache spared, over all samples */
    int64_t preempted;     /* samples taken back for want of pages */
    int64_t evicted;       /* pages that the cache gave up */
    int running, waiting, pages_free, pages;
    int pages_cached; /* held by the cache alone: free when needed */
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
/* One forward pass over what can run. STATUS_END when there is nothing to do; STATUS_AGAIN while
 * paused, and while attached weights are not steady (model/weights.h); STATUS_NUMERIC when the
 * weights' version changed while samples hold pages of another one and no pause had said what is to
 * become of them, or when the weights changed during the pass. */
int engine_step(struct engine *g, struct err *e);
int engine_busy(const struct engine *g);
/* 1 and *r when a sample has finished since. */
int engine_take(struct engine *g, struct engine_result *r);
/* Walks over the samples that got a token in the last step and go on; *at is 0 at first. */
int engine_peek(const struct engine *g, int *at, struct engine_result *r);

/* Ends what is left of a group: its unfinished samples come out of engine_take as ENGINE_ABORT with
 * the tokens so far. Returns their number, 0 when no such group is there. */
int engine_abort(struct engine *g, int64_t group);
/* Ends a running sample after its first ntokens tokens, for reasons above tokens (a stop string);
 * it comes out of engine_take. 0 when it is not running. */
int engine_end(struct engine *g, int64_t group, int sample, int ntokens, enum engine_finish finish);

/* Between pause and resume steps do nothing, and the weights may change. What becomes of the
 * running samples: */
enum engine_pause {
    ENGINE_PAUSE_ABORT,    /* they end, and so does what waits */
    ENGINE_PAUSE_RETRACT,  /* they give their pages up; under new weights all rows are computed
                              again before the next token */
    ENGINE_PAUSE_IN_PLACE, /* they keep their rows; tokens that read rows of other weights are
                              marked (engine_result.mixed) */
};
void engine_pause(struct engine *g, enum engine_pause how);
void engine_resume(struct engine *g);

/* Tokens that an unfinished sample of the group has; 0 when it has not begun, -1 when there is no
 * such sample. */
int engine_progress(const struct engine *g, int64_t group, int sample);
/* Empties the prefix cache. */
void engine_flush(struct engine *g);
void engine_get_stats(const struct engine *g, struct engine_stats *s);
/* Counts every holder of every page again. STATUS_FAIL names the first page whose count is wrong:
 * one that leaked, or that two parties believe to be theirs. */
int engine_check(const struct engine *g, struct err *e);

#endif
