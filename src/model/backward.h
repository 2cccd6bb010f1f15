/* The backward pass of model/forward.h: from gradients of chosen tokens' log-probs (and entropies)
 * to exact integer sums of every parameter's gradient.
 *
 *     struct backward *b;
 *     backward_open(f, logit_rows, &b, &e);      f with keep 1
 *     forward_run(f, ...);
 *     backward_logp(b, &req);                    log-probs of response tokens
 *     ... the loss gives g and ge ...
 *     backward_run(b, &rows, tokens, leaves, &req);
 *
 * Gradients add up in b->grad until backward_zero. Of a critic (arch.value_head) what is called a
 * log-prob is the value of the row, g the gradient in it; targets say nothing. */
#ifndef MODEL_BACKWARD_H
#define MODEL_BACKWARD_H

#include <stdint.h>

#include "model/forward.h"

/* Tokens whose log-prob is wanted: row idx[i] of the forward run predicts target[i]. Leaves cut the
 * list as the sequences' leaves cut their rows: leaf l is entries [leaf[l], leaf[l+1]). */
struct backward_req {
    int n;
    const int32_t *idx, *target;
    int nleaf;
    const int32_t *leaf; /* (nleaf + 1) */
    float temperature;
    float *logp;         /* (n) out */
    float *entropy;      /* (n) out, or NULL */
    const float *g, *ge; /* (n) dJ/dlogp, dJ/dentropy (ge may be NULL) */
    /* Of backward_score, or NULL: told the logits (V) of each entry, divided by the temperature;
     * the log-prob of token v is x[v] - max - logz. */
    void (*row)(void *arg, int i, const float *x, float max, float logz);
    /* A loss over whole rows of logits, or NULL: backward_run gives it the logits of entry i
     * (vocab of them, divided by the temperature), and what it adds to dlogits, all zero at first,
     * goes the way of g. Models with capped logits have none. */
    void (*row_loss)(void *arg, int i, int vocab, const float *logits, float *dlogits);
    void *row_loss_arg;
    void *row_arg;
};

struct backward {
    struct forward *f;
    struct tensor *grad; /* one i64 tensor per parameter, in the order of weights->params */
    int logit_rows;
    int kept;                             /* 1: logits hold all rows of the last backward_logp */
    struct tensor logits, dlogits;        /* (logit_rows, V) f32, bf16 */
    float *max, *logz, *ent;              /* (max_rows) statistics of the last backward_logp */
    int32_t *chunk_leaf;                  /* (max_rows + 1) leaves of a chunk of logits */
    struct tensor dh, dy16, dpick, dx16;  /* (n, H) f32, bf16; (n, H) bf16; (n, H) bf16 */
    struct tensor dout;                   /* (n, H) f32, behind norms of outputs; else empty */
    struct tensor dact, dgu, dattn, dqkv; /* bf16 */
    struct tensor dq, dkv;                /* f32 */
};

/* logit_rows: rows of logits that exist at a time, at least those of a leaf (PLAN_LEAF). */
int backward_open(struct forward *f, int logit_rows, struct backward **out, struct err *e);
void backward_close(struct backward *b);
/* Gradients start anew; those of products are only forgotten (device_forget). */
void backward_zero(struct backward *b);
/* Bytes that backward_open will take: for its rows, and for the gradients. */
int64_t backward_bytes(const struct weights *w, int max_rows, int logit_rows);
int64_t backward_grad_bytes(const struct weights *w);

/* Log-probs (and entropies) of the requested tokens of the last forward run. */
void backward_logp(struct backward *b, const struct backward_req *r);
/* Adds the gradients. rows and tokens as given to forward_run; leaves cut the rows. */
void backward_run(struct backward *b, const struct rows *rows, const int32_t *tokens,
                  struct kv_store *kv, const struct leaf_rows *leaves,
                  const struct backward_req *r);

/* The same log-probs without a backward pass: logits may be any f32 tensor of at least one row. */
void backward_score(struct forward *f, struct tensor *logits, const struct backward_req *r);

#endif
