/* The trainer: samples in, new weights and metrics out.
 *
 *     struct trainer *t;
 *     trainer_open(w, &opts, &t, &e);
 *     trainer_score(t, samples, n, &e);                 old log-probs (only where they are unknown)
 *     trainer_step(t, samples, n, &hyper, &report, &e); forward, loss, backward, AdamW
 *     trainer_close(t);
 *
 * Samples of one prompt are bundled (train/bundle.h), bundles packed into micro-batches of at most
 * max_tokens rows; how they are packed changes no bit of the result (contract C4). */
#ifndef TRAIN_TRAINER_H
#define TRAIN_TRAINER_H

#include <stdint.h>

#include "model/forward.h"
#include "train/loss.h"
#include "train/optim.h"

struct err;
struct weights;

struct trainer_opts {
    int max_tokens;    /* rows of a micro-batch; one longer bundle still runs alone */
    int max_len;       /* longest sample */
    int micro_batch;   /* static packing: samples per micro-batch; 0 packs by tokens */
    float temperature; /* divides the logits, as in the rollout */
    struct loss_opts loss;
    int entropy; /* compute the entropy of each token */
    struct optim_opts optim;
    enum forward_recompute recompute;
    int recompute_layers; /* of FORWARD_FULL; 0: all */
    /* What memory is sized by; 0: whatever max_tokens rows may be. */
    int max_rows;     /* rows of a micro-batch, where fewer than max_tokens, and ... */
    int max_bundle;   /* ... of a bundle: for more, memory is taken when they come */
    int max_scored;   /* response tokens of a micro-batch: more are scored in several turns */
    int pages;        /* KV pages of a micro-batch: more are there when they are needed */
    int logit_rows;   /* rows of logits at a time; 0: what TRAINER_LOGIT_BYTES hold */
    int score_tokens; /* rows of a micro-batch of trainer_score, where less; 0: max_tokens */
    int by_flops;     /* 1: micro-batches are evened out by work (rl-math 13.2), max_tokens stays */
};

/* One sample; arrays are the caller's. */
struct train_sample {
    const int32_t *tokens;  /* prompt and response */
    int prompt, response;   /* lengths; prompt >= 1 */
    const uint8_t *mask;    /* (response) or NULL for all ones */
    int64_t rollout;        /* samples of one rollout count once */
    int64_t denom;          /* active tokens of its whole rollout; 0 takes its own */
    const float *roll;      /* rollout log-probs or NULL */
    int exact;              /* 1: roll was computed under the weights of this step (contract C2) */
    int on_policy;          /* 1: so it was, by an engine that need not have the trainer's bits */
    const float *old, *ref; /* old and reference log-probs, or NULL */
    const float *train;     /* the trainer's log-probs of what roll has, where old is not that */
    const float *adv;
    /* What functions of the user's gave for its response tokens, see loss.h; each may be NULL. */
    const float *weight, *coef, *given_dlogp, *given_dentropy;
    const uint8_t *keep;
    float *logp_out, *entropy_out; /* (response) filled by the pass; either may be NULL */
};

/* A loss over rows of logits, see backward_req: sample s of the step, its response token t. 0, or
 * not 0 with the reason in e. */
struct trainer_logits {
    const struct train_sample *sample;
    int s, t;
    int32_t target;
    int vocab;
    float logp, entropy;
    const float *logits;
};
typedef int trainer_logit_loss_fn(void *arg, const struct trainer_logits *r, float *dlogits,
                                  double *loss, struct err *e);

struct trainer_report {
    struct exact row_sum; /* of the loss over rows of logits, divided by the step's divisor */
    double row_loss;      /* the same as a number */
    struct loss_sums sums;
    struct loss_step step;
    double grad_norm;
    float max_diff; /* largest |trainer - rollout| log-prob over exact tokens */
    int64_t exact_tokens, tokens, micro_batches;
    int64_t rows;         /* tokens of all samples, prompts and responses */
    int64_t computed;     /* rows of the passes: a prompt that samples share counts once */
    int64_t idle_samples; /* without a gradient: their backward pass was left out */
    double forward_s, backward_s, optim_s;
};

struct trainer;

int trainer_open(struct weights *w, const struct trainer_opts *o, struct trainer **out,
                 struct err *e);
void trainer_close(struct trainer *t);
struct optim *trainer_optim(struct trainer *t);
/* Bytes that training comes to use beside the weights themselves. */
struct trainer_bytes {
    int64_t grads, optim;
    int64_t activations; /* of both passes, with their KV pages */
    int64_t logits, scratch;
};
/* Rows that memory is taken for. */
int trainer_rows(const struct trainer_opts *o);         /* that a micro-batch may have */
int trainer_rows_planned(const struct trainer_opts *o); /* that memory is planned for */
int64_t trainer_bytes(const struct weights *w, const struct trainer_opts *o,
                      struct trainer_bytes *parts); /* the sum; parts may be NULL */

/* The logits that a response's token is drawn from; the log-prob of token v is x[v] - max - logz.
 */
struct trainer_row {
    int sample, at; /* of the list; token of its response */
    const float *x; /* (vocab) divided by the temperature */
    int vocab;
    float max, logz;
};
typedef void trainer_row_fn(void *arg, const struct trainer_row *r);
/* trainer_score that also hands out every row; for what looks at more than the sampled token. */
int trainer_score_rows(struct trainer *t, struct train_sample *s, int n, trainer_row_fn *fn,
                       void *arg, struct err *e);
/* Log-probs of every sample's response under the current weights, into logp_out. */
int trainer_score(struct trainer *t, struct train_sample *s, int n, struct err *e);
/* One optimizer step over all n samples. Weights of a correction that are to average 1
 * (mis_opts.normalize) do so over the step, which needs train or old of every sample. A rollout
 * log-prob that should be exact and is not is STATUS_NUMERIC. */
int trainer_step(struct trainer *t, struct train_sample *s, int n, const struct optim_hyper *h,
                 struct trainer_report *r, struct err *e);

/* Adds a loss over the logits of every active response token to that of LOSS_CUSTOM, its
 * derivatives divided as those are. STATUS_UNSUPPORTED for a model with capped logits. */
int trainer_add_logit_loss(struct trainer *t, trainer_logit_loss_fn *fn, void *arg, struct err *e);

/* What the sums of a step over these samples are divided by. */
void trainer_step_of(const struct train_sample *s, int n, struct loss_step *st);

/* Log-probs under other weights (a reference model), without a trainer's memory. */
int trainer_score_with(struct weights *w, int max_tokens, float temperature, struct train_sample *s,
                       int n, struct err *e);

#endif
