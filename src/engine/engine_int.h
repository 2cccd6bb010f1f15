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
    int scored;                 /* next prompt token without its log-prob */
    float *prompt_logps;        /* (ntokens - prompt_from), with the best candidates */
    int32_t *prompt_top_ids;
    float *prompt_top_logps;
    float *prompt_wanted; /* (ntokens - prompt_from, nwanted) */
    int32_t *top_ids;     /* (n, max_new, top) */
    float *top_logps;
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

/* A prompt token whose log-prob the step computes. */
struct engine_score {
    struct engine_request *req;
    int token; /* its place in the prompt */
};

struct engine {
    struct weights *w;
    struct engine_opts o;
    struct forward *f;
    struct kv_pool kv;
    struct radix tree;
    struct tensor logits, probs; /* (logit_rows, V) and (probs_rows, V) f32 */
    int logit_rows;
    int probs_rows, probs_at; /* probs_at: the logit row of the first row of probs */
    float *host[2];           /* their copies where the host cannot read the device's memory */
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
    struct engine_score *score; /* (chunk) */
    int32_t *score_idx, *score_target;
    float *score_logp;    /* (logit_rows) */
    int nscore, score_at; /* score_at: the first of the block at hand */
    struct engine_stats stats;
};

static inline int engine_blocks(int tokens)
{
    return (tokens + PLAN_KV_BLOCK - 1) / PLAN_KV_BLOCK;
}

/* Prompt log-probs that the request still lacks. */
static inline int engine_to_score(const struct engine_request *q)
{
    return q->q.prompt_logps && q->scored < q->q.ntokens;
}

/* Gives every sampled row its token, and the prompts' rows their log-probs. */
void emit_tokens(struct engine *g);
void emit_scores(struct engine *g);

/* Chooses the rows of the next pass, takes pages for them and starts samples. */
void roster_plan(struct engine *g, struct rows *r);
/* The rows are computed: what they hold is known to the cache from now on. */
void roster_settle(struct engine *g);
/* Gives a sample's pages up. keep: the cache learns what is in them. */
void roster_release(struct engine *g, struct engine_sample *s, int keep);

#endif
