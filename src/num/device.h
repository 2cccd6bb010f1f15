/* A device computes the coarse operations that a transformer is made of, forward and backward, on
 * opaque tensors. The same model code drives every device.
 *
 *     struct device *d;
 *     device_open("cpu", "auto", 2, &d, &e);       cpu with the best instruction set, two threads
 *     struct tensor x; device_tensor(d, &x, DTYPE_BF16, n, hidden, &e);
 *     d->ops->linear(d, &x, &w, NULL, NULL, &y);
 *     device_close(d);
 *
 * A device is driven by one thread at a time. Operations do not allocate and cannot fail for valid
 * shapes; a numeric fault (an exact sum that overflowed) is kept and asked for with device_fault.
 */
#ifndef NUM_DEVICE_H
#define NUM_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "num/plan.h"
#include "num/tensor.h"

struct device;
struct err;
struct pool;
struct region;

/* What a device promises about bits (contracts C1, C4). */
enum {
    DEVICE_ROW_EXACT = 1,    /* a row's result does not depend on the batch, chunking or threads */
    DEVICE_LAYOUT_EXACT = 2, /* a gradient does not depend on how leaves were grouped */
    /* adamw takes every form of struct adam_param, and unpack exists; without it masters and
     * moments are f32 and every trainable weight keeps its plain rows */
    DEVICE_SPLIT_STATE = 4
};

/* A weight as the device wants it: packed once per version from bf16 (or f32) rows. */
struct wview {
    struct device *dev;
    int n, k;                  /* y (rows, n) = x (rows, k) W^T */
    struct leafset kleaf;      /* leaves of the forward contraction over k */
    struct leafset nleaf;      /* leaves of the input gradient's contraction over n */
    void *fwd, *bwd;           /* the device's packed forms; bwd NULL when no gradient is taken */
    size_t fwd_size, bwd_size; /* bytes held; 0 in a region's memory */
};

/* Paged KV storage of all layers: page p, layer l, kv head h. A page holds PLAN_KV_BLOCK tokens. */
struct kv_store {
    struct device *dev;
    enum dtype dtype;
    int n_layers, n_kv_heads, head_dim, n_pages;
    void *data;
    size_t size;
};

/* The rows of one forward pass: sequences, each a run of consecutive positions. */
struct row_seq {
    int row0, nrows;      /* rows [row0, row0 + nrows) */
    int pos0;             /* position of the first of them */
    const int32_t *pages; /* page of positions 64 i .. 64 i + 63 */
    /* 0, or it goes on from sequence base - 1 of the same pass, whose rows are its positions before
     * pos0: all of that one's, which starts at 0. Those that go on from a sequence follow it. Pages
     * that the base fills are the base's own; of one that it fills in part each has its own, and
     * rope_kv writes the base's tokens there too. */
    int base;
};
struct rows {
    int n; /* all rows */
    int nseq;
    const struct row_seq *seq;
    const int32_t *pos; /* (n) absolute positions */
};

/* Row ranges that are summed as one leaf of a weight gradient. */
struct leaf_rows {
    int n;
    const int32_t *start; /* (n + 1): leaf i is rows [start[i], start[i+1]) */
};

struct attn_shape {
    int n_heads, n_kv_heads, head_dim;
    float scale;
    int window;      /* a query at p sees keys at p - window + 1 .. p; 0: all up to p */
    float softcap;   /* scores (scaled) become cap * tanh(score / cap) before the mask; 0: none */
    int rot;         /* leading dimensions of a head that rope turns, even; the rest pass through */
    int interleaved; /* rope pairs are (2i, 2i + 1); else (i, i + rot / 2) */
};

/* y = x / rms(x) * w, or (1 + w) when plus_one, in f32, rounded once at the end. w (1, cols). */
struct norm {
    const struct tensor *w;
    float eps;
    int plus_one;
};

enum act {
    ACT_SILU,
    ACT_GELU_TANH, /* 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) */
};

/* What becomes of a raw logit x: cap * tanh(x / cap) when softcap is not 0, then over the
 * temperature when that is positive. */
struct logit_spec {
    float temperature, softcap;
};

struct adam_step {
    float lr, beta1, beta2, eps, weight_decay;
    float bias1, bias2_sqrt; /* 1 - beta1^t, sqrt(1 - beta2^t) */
    float grad_scale;        /* clip factor */
};

/* One parameter of an AdamW step; all (rows, cols). */
struct adam_param {
    const struct tensor *grad; /* i64 */
    struct tensor *master;     /* f32; or i16, what the bf16 weight lacks (dtype_split) */
    struct tensor *m, *v;      /* f32; or bf16, rounded up or down by a counter */
    struct tensor *w16;        /* plain rows; NULL: the weight is read from view */
    struct wview *view;        /* packed forms that follow the weight, or NULL */
    int decay;                 /* 0: norms and biases */
    uint32_t key;              /* of the counter: differs between steps and parameters */
};

/* Everything below: shapes in comments, H hidden, n rows, bf16 unless said otherwise. In f32 plans
 * (reference device) every bf16 tensor is f32. */
struct device_ops {
    /* y = residual + (x W^T + bias), rounded once. x (n, k), y (n, w->n): bf16, or f32 (logits).
     * bias (1, n) or NULL; residual NULL or of y's shape and type, y itself is fine. */
    void (*linear)(struct device *d, const struct tensor *x, const struct wview *w,
                   const struct tensor *bias, const struct tensor *residual, struct tensor *y);
    /* dx = dy W, dx bf16 or f32. */
    void (*linear_dx)(struct device *d, const struct tensor *dy, const struct wview *w,
                      struct tensor *dx);
    /* grad (w->n, w->k) i64 += sum over leaves of dy^T x, each leaf rounded to the quantum. Takes a
     * forgotten grad, which is no longer one then. */
    void (*linear_dw)(struct device *d, const struct tensor *dy, const struct tensor *x,
                      const struct leaf_rows *leaves, struct tensor *grad);
    /* grad (1, cols) i64 += sum over leaves of dy. */
    void (*bias_dw)(struct device *d, const struct tensor *dy, const struct leaf_rows *leaves,
                    struct tensor *grad);

    /* y = residual + norm(x), rounded once; residual NULL or of y's shape, y itself is fine. rstd
     * (n, 1) f32 kept for the backward pass (may be NULL). */
    void (*rmsnorm)(struct device *d, const struct tensor *x, const struct norm *norm,
                    const struct tensor *residual, struct tensor *y, struct tensor *rstd);
    /* dx f32 (n, H) += gradient through the norm; grad_w (1, H) i64 += its weight gradient. */
    void (*rmsnorm_bwd)(struct device *d, const struct tensor *dy, const struct tensor *x,
                        const struct norm *norm, const struct tensor *rstd,
                        const struct leaf_rows *leaves, struct tensor *dx, struct tensor *grad_w);

    /* qkv (n, (heads + 2 kv) d): norms of each head (each NULL without), rope; q (n, heads d) out,
     * k and v to pages, a base's also to those that go on from it. cos, sin (positions, rot / 2)
     * f32. */
    void (*rope_kv)(struct device *d, const struct tensor *qkv, const struct norm *q_norm,
                    const struct norm *k_norm, const struct tensor *cos, const struct tensor *sin,
                    const struct attn_shape *s, const struct rows *rows, struct kv_store *kv,
                    int layer, struct tensor *q);
    /* dq (n, heads d) f32, dkv (n, 2 kv d) f32 -> dqkv bf16. grad_qn, grad_kn (1, d) i64 += the
     * norm weights' gradients: a leaf is one head over the leaf's rows, summed in row order in f32
     * and rounded to the quantum, so that heads may lie on different ranks. */
    void (*rope_kv_bwd)(struct device *d, const struct tensor *dq, const struct tensor *dkv,
                        const struct tensor *qkv, const struct norm *q_norm,
                        const struct norm *k_norm, const struct tensor *cos,
                        const struct tensor *sin, const struct attn_shape *s,
                        const struct rows *rows, const struct leaf_rows *leaves,
                        struct tensor *dqkv, struct tensor *grad_qn, struct tensor *grad_kn);

    /* out (n, heads d); lse (n, heads) f32 kept for the backward pass (may be NULL). */
    void (*attn)(struct device *d, const struct tensor *q, const struct kv_store *kv, int layer,
                 const struct attn_shape *s, const struct rows *rows, struct tensor *out,
                 struct tensor *lse);
    /* Sequences from position 0 and those with a base. dq (n, heads d) f32, dkv (n, 2 kv d) f32: of
     * a key one sum for each PLAN_LEAF queries of a sequence from its first row on, these sums
     * joined in ascending order, its own sequence's before those of the sequences that go on from
     * it, one after the other. */
    void (*attn_bwd)(struct device *d, const struct tensor *dout, const struct tensor *q,
                     const struct tensor *out, const struct tensor *lse, const struct kv_store *kv,
                     int layer, const struct attn_shape *s, const struct rows *rows,
                     struct tensor *dq, struct tensor *dkv);

    /* gu (n, 2 I) = [gate | up]; y (n, I) = act(gate) up. */
    void (*glu)(struct device *d, const struct tensor *gu, enum act act, struct tensor *y);
    void (*glu_bwd)(struct device *d, const struct tensor *dy, const struct tensor *gu,
                    enum act act, struct tensor *dgu);

    /* y (n, H) = table rows times scale (1: none); table is the embedding's own rows (bf16, not
     * packed). */
    void (*embed)(struct device *d, const struct tensor *table, const int32_t *ids, float scale,
                  struct tensor *y);
    /* grad (V, H) i64 += dy (n, H) f32 rows times scale, each row its own leaf. */
    void (*embed_bwd)(struct device *d, const struct tensor *dy, const int32_t *ids, float scale,
                      struct tensor *grad);

    /* logits (n, V) f32, turned in place into what the spec says. Per row: log-prob of target[i]
     * (skipped when negative), row maximum, log of the sum of exp(x - max), entropy (each may be
     * NULL). */
    void (*logp)(struct device *d, struct tensor *logits, const struct logit_spec *spec,
                 const int32_t *target, const struct leafset *vleaf, float *logp, float *max,
                 float *logz, float *entropy);
    /* dlogits (n, V) bf16 from logits as logp left them: g (1[y] - p) + ge * dH, times the slope of
     * the spec. */
    void (*logp_bwd)(struct device *d, const struct tensor *logits, const struct logit_spec *spec,
                     const int32_t *target, const float *max, const float *logz,
                     const float *entropy, const float *g, const float *ge, struct tensor *dlogits);

    /* y (n, V) f32 = exp(x - max[row]), for the sampler. */
    void (*exps)(struct device *d, const struct tensor *x, const float *max, struct tensor *y);

    void (*gather)(struct device *d, const struct tensor *x, const int32_t *row, struct tensor *y);
    /* y[row[i]] = x[i]; a row that is named again gets the sum, in f32 in ascending i, rounded
     * once; the other rows of y are set to 0. Both f32 or both bf16. */
    void (*scatter)(struct device *d, const struct tensor *x, const int32_t *row, struct tensor *y);
    /* y = x, same shape and type; the same memory is fine. */
    void (*copy)(struct device *d, const struct tensor *x, struct tensor *y);
    /* y (bf16) = x (f32) */
    void (*convert)(struct device *d, const struct tensor *x, struct tensor *y);

    /* Sum of squares of grad (i64, in quanta), exact over blocks of 32 values; see exact.h. */
    void (*sumsq)(struct device *d, const struct tensor *grad, void *exact);
    /* One AdamW step. The new weight is the rounded master, in w16 and in view. Both forms of the
     * master give the same bits. */
    void (*adamw)(struct device *d, const struct adam_param *p, const struct adam_step *s);

    /* Packs w16 (n, k) into view->fwd (and bwd when with_bwd). */
    void (*pack)(struct device *d, const struct tensor *w16, struct wview *view);
    /* Rows [row0, row0 + w16->rows) of a packed weight. NULL without DEVICE_SPLIT_STATE. */
    void (*unpack)(struct device *d, const struct wview *view, int64_t row0, struct tensor *w16);
    /* n rows as f32 (n, k), by the calling thread alone: it may run beside any reader of the
     * weights, in whichever threads. NULL: the device cannot. */
    void (*unpack_alone)(const struct device *d, const struct wview *view, int64_t row0, int64_t n,
                         float *x);
};

struct device_mem;

struct device {
    const char *name; /* "cpu", "ref", "torch:cpu", "torch:cuda" */
    const char *isa;  /* "amx", "avx512", "avx2", "scalar", "c", "libtorch 2.10" */
    unsigned caps;    /* DEVICE_ROW_EXACT | DEVICE_LAYOUT_EXACT */
    struct plan plan;
    const struct device_ops *ops;
    const struct device_mem *mem; /* NULL: tensors lie in the host's memory */
    struct pool *pool;
    /* While it is set, tensors and weights are made in this memory, which is its owner's to free:
     * what the forward pass reads from below, transposes from above. Only where mem is NULL. */
    struct region *region;
    int fault; /* 1: an exact sum overflowed */
    void *impl;
};

/* name "cpu", "ref", "torch:cpu", "torch:cuda" or "torch:cuda:N". `how` of cpu is the instruction
 * set: "auto" (what MILES_ISA says, else the best), "scalar", "avx2", "avx512", "amx"; one that the
 * machine lacks is an error. `how` of torch is the folder of libtorch, NULL: where the system or
 * python3 has it; without one STATUS_NOTFOUND says what to install. threads 0 takes all usable
 * cores. The plan is copied. */
int device_open(const char *name, const char *how, int threads, const struct plan *plan,
                struct device **out, struct err *e);
void device_close(struct device *d);
/* 0, or STATUS_NUMERIC when an operation met an overflow since the last call. */
int device_fault(struct device *d, struct err *e);
/* The best instruction set of this machine: "amx", "avx512", "avx2" or "scalar". */
const char *device_best_isa(void);
int device_has_isa(const char *isa);

/* bf16 of this device's plan: DTYPE_F32 in f32 plans. */
static inline enum dtype device_half(const struct device *d)
{
    return d->plan.f32 ? DTYPE_F32 : DTYPE_BF16;
}

int device_tensor(struct device *d, struct tensor *t, enum dtype dtype, int64_t rows, int64_t cols,
                  struct err *e); /* zeroed */
void device_tensor_free(struct tensor *t);
/* Bytes of a tensor on the devices whose memory is the host's. */
int64_t device_tensor_bytes(enum dtype dtype, int64_t rows, int64_t cols);
int device_wview(struct device *d, struct wview *v, int n, int k, int with_bwd, struct err *e);
void device_wview_free(struct wview *v);
int64_t device_wview_bytes(const struct device *d, int n, int k, int with_bwd);
int device_kv(struct device *d, struct kv_store *kv, int n_layers, int n_kv_heads, int head_dim,
              int n_pages, struct err *e);
void device_kv_free(struct kv_store *kv);
/* Scratch that linear_dw takes for `rows` rows in `leaves` leaves; the largest is kept. */
int64_t device_dw_bytes(const struct device *d, int n, int k, int rows, int leaves);
/* Scratch of linear_dx for a weight without a transpose. */
int64_t device_dx_bytes(const struct device *d, int n, int k);
size_t device_kv_page_bytes(const struct device *d, int n_layers, int n_kv_heads, int head_dim);
/* Page `to` becomes a copy of page `from`, in all layers. */
void device_kv_copy(struct kv_store *kv, int from, int to);

/* Host values in and out, row by row without padding. f32 converts to and from the tensor's type.
 */
void device_upload_f32(struct tensor *t, const float *src);
void device_upload_bf16(struct tensor *t, const uint16_t *src);
void device_download_f32(const struct tensor *t, float *dst);
void device_zero(struct tensor *t);
/* The tensor counts as zero without its memory being written: until linear_dw writes it, or
 * device_settle zeroes it. No other operation may see it before. */
void device_forget(struct tensor *t);
void device_settle(struct tensor *t);
/* Host address of a row of a CPU-resident tensor; NULL when the device's memory is not the host's.
 */
const void *device_host_row(const struct tensor *t, int64_t row);

#endif
