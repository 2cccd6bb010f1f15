/* What the files of the engine share: requests, samples and the rows of a step. */
#ifndef ENGINE_ENGINE_INT_H
#define ENGINE_ENGINE_INT_H

#include "engine/engine.h"
#include "engine/kv.h"
#include "engine/radix.h"
#include "model/forward.h"

struct engine_sample;

struct engine_request {
    struct engine_group q; /* what it points to is our copy */
    int started;           /* samples that have begun, or were aborted before */
    int ended;             /* samples that the caller has taken: the request goes with the last */
    int aborted;
    struct engine_sample *lead; /* computes the prompt for all: the others wait */
    struct engine_request *next;
};

enum { ENGINE_LIVE, ENGINE_DONE, ENGINE_TAKEN };

struct engine_sample {
    struct engine_request *req; /* NULL: the slot is free */
    int index;                  /* in its group */
    int state;                  /* ENGINE_LIVE .. */
    enum engine_finish finish;
    int32_t *tokens; /* (max_context) prompt and response */
    float *logps;    /* (max_context) of the response, as all below */
    int64_t *versions;
    uint8_t *mixed;
    int len;        /* tokens */
    int have;       /* rows in the pages */
    int32_t *pages; /* (pages_per_sample) */
    int npages;     /* held; 0: the sample has not begun or was taken back */
    int rows, fill; /* of this step; fill: it began with more than one row to compute */
    int got;        /* 1: this step gave it a token */
    int foreign;    /* 1: pages hold rows of other weights */
    int cached;     /* prompt tokens found in the cache; -1: not looked yet */
};

struct engine {
    struct weights *w;
    struct engine_opts o;
    struct forward *f;
    struct kv_pool kv;
    struct radix tree;
    struct tensor logits, probs; /* (max_running, V) f32 */
    float *host[2];              /* their copies where the host cannot read the device's memory */
    float *max, *logz;
    struct sampler **samplers; /* one per thread */
    struct engine_request *head, *tail;
    struct engine_sample *slots; /* (max_running) */
    void *text;                  /* their tokens, log-probs, versions, marks */
    size_t text_size;
    struct engine_sample **live; /* (max_running) slots in use, oldest first */
    int nlive, waiting, taken;   /* taken: how far engine_take has come in live */
    int pages_per_sample;
    int64_t version; /* of the weights of the last step */
    int paused, in_place;
    /* rows of a step */
    struct row_seq *seq;
    int32_t *pos, *tok, *idx;
    struct engine_sample **sampled; /* who gets a token from logit row i */
    int nsampled;
    struct engine_stats stats;
};

static inline int engine_blocks(int tokens)
{
    return (tokens + PLAN_KV_BLOCK - 1) / PLAN_KV_BLOCK;
}

/* Chooses the rows of the next pass, takes pages for them and starts samples. */
void roster_plan(struct engine *g, struct rows *r);
/* The rows are computed: what they hold is known to the cache from now on. */
void roster_settle(struct engine *g);
/* Gives a sample's pages up. keep: the cache learns what is in them. */
void roster_release(struct engine *g, struct engine_sample *s, int keep);

#endif
