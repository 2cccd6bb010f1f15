/* The forward pass: the only one. The rollout engine calls it on a few rows per sequence, the
 * trainer on whole sequences; a row's numbers are the same in both (contracts C1, C2).
 *
 *     struct forward *f;
 *     forward_open(w, 4096, 0, &f, &e);                rows at most; 1 keeps what backward needs
 *     forward_run(f, &rows, tokens, &kv);              fills f->hidden (n, H)
 *     forward_logits(f, idx, n, &logits);              output layer for chosen rows
 *     forward_close(f);
 *
 * No allocation after open. */
#ifndef MODEL_FORWARD_H
#define MODEL_FORWARD_H

#include <stdint.h>

#include "model/weights.h"

struct err;

/* What a pass with keep 1 leaves for the backward pass; the rest is computed again there, in the
 * same bits. */
enum forward_recompute {
    FORWARD_KEEP_ALL,
    FORWARD_SELECTIVE, /* all but the outputs of norms and the activation's product */
    FORWARD_FULL       /* each layer's input only */
};

/* What one layer leaves for the backward pass. Tensors that are not kept are the same memory in all
 * layers. */
struct forward_layer {
    struct tensor h_in, x1, rstd1; /* (n, H) (n, H) (n, 1) f32 */
    struct tensor qkv, q;          /* (n, (heads + 2 kv) d) (n, heads d) */
    struct tensor attn, lse;       /* (n, heads d) (n, heads) f32 */
    struct tensor h_mid, x2, rstd2;
    struct tensor gu, act; /* (n, 2 I) (n, I) */
    /* outputs of attention and MLP before their own norms; empty without those */
    struct tensor attn_out, rstd3, mlp_out, rstd4;
};

struct forward {
    struct weights *w; /* borrowed: who runs a pass holds the image meanwhile */
    int max_rows, keep;
    enum forward_recompute recompute;
    int recompute_layers;         /* FORWARD_FULL is for the first of them, the rest is kept */
    struct forward_layer *layers; /* (n_layers) */
    struct forward_layer shared;  /* what the layers do not keep of their own */
    int in_shared;                /* the layer whose values the shared tensors hold */
    struct tensor h_out, rstd_out, hidden; /* before and after the last norm */
    struct tensor picked;                  /* rows gathered for the output layer */
    struct attn_shape shape[ARCH_ATTN_KINDS];
    int n; /* rows of the last run */
};

int forward_open(struct weights *w, int max_rows, int keep, struct forward **out, struct err *e);
/* Opens with keep 1; layers: 0 means all. */
int forward_open_recompute(struct weights *w, int max_rows, enum forward_recompute how, int layers,
                           struct forward **out, struct err *e);
void forward_close(struct forward *f);
/* Bytes that forward_open (keep 0: how and layers say nothing) or forward_open_recompute will take.
 */
int64_t forward_bytes(const struct weights *w, int max_rows, int keep, enum forward_recompute how,
                      int layers);

/* tokens (rows->n). Keys and values of the rows are written to kv before they are read. */
void forward_run(struct forward *f, const struct rows *rows, const int32_t *tokens,
                 struct kv_store *kv);
/* Layer i of the last run as the backward pass needs it, the first rows->n rows of each tensor.
 * What was not kept is computed again; until the next call. */
struct forward_layer forward_again(struct forward *f, int i, const struct rows *rows,
                                   struct kv_store *kv);
/* logits (n, V) f32 of rows idx[0..n) of the last run; n <= max_rows. */
void forward_logits(struct forward *f, const int32_t *idx, int n, struct tensor *logits);

/* A parameter as the norm that it is the weight of. */
struct norm forward_norm(const struct arch *a, const struct param *p);
/* What embeddings are multiplied by. */
float forward_embed_scale(const struct weights *w);
/* What becomes of the model's logits. */
struct logit_spec forward_logit_spec(const struct arch *a, float temperature);

#endif
