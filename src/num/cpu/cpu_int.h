/* Inside the CPU device: its state, scratch memory and the operations of its table. */
#ifndef CPU_INT_H
#define CPU_INT_H

#include <stdatomic.h>

#include "num/cpu/kern.h"
#include "num/device_int.h"

#define CPU_STREAM ((size_t)2 << 20) /* bytes from which results are written past the caches */

struct cpu_scratch {
    void *p;
    size_t size;
};
struct cpu {
    struct kern k;
    struct cpu_scratch *worker; /* one per thread */
    struct cpu_scratch shared;  /* packed transposes of a weight gradient */
    struct cpu_scratch index;
    struct cpu_scratch norms; /* of the columns of a weight gradient's leaves */
    struct cpu_scratch panel; /* transpose of a weight that keeps none */
    atomic_int bad;
};

static inline struct cpu *cpu_of(const struct device *d)
{
    return d->impl;
}
/* Scratch of at least n bytes; the old contents are lost when it grows. */
void *cpu_grow(struct cpu_scratch *s, size_t n);
/* At least n bytes for every worker. */
void cpu_scratch_all(struct device *d, size_t n);

static inline int ceil_div(int a, int b)
{
    return (a + b - 1) / b;
}

#define ROW16(t, r) ((uint16_t *)(t)->data + (size_t)(r) * (size_t)(t)->ld)
#define ROW32(t, r) ((float *)(t)->data + (size_t)(r) * (size_t)(t)->ld)

typedef void cpu_row_fn(const void *arg, int row);
/* fn(arg, row) for every row, in parallel pieces of `step` rows. */
void cpu_each_row(struct device *d, int n, int step, cpu_row_fn *fn, const void *arg);

/* cpu_gemm.c: products and packing */
void cpu_linear(struct device *d, const struct tensor *x, const struct wview *w,
                const struct tensor *bias, const struct tensor *residual, struct tensor *y);
void cpu_linear_dx(struct device *d, const struct tensor *dy, const struct wview *w,
                   struct tensor *dx);
void cpu_linear_dw(struct device *d, const struct tensor *dy, const struct tensor *x,
                   const struct leaf_rows *leaves, struct tensor *grad);
void cpu_pack_fn(struct device *d, const struct tensor *w16, struct wview *view);

/* cpu_attn.c: rope, pages, attention */
void cpu_rope_kv(struct device *d, const struct tensor *qkv, const struct norm *q_norm,
                 const struct norm *k_norm, const struct tensor *cos, const struct tensor *sin,
                 const struct attn_shape *s, const struct rows *rows, struct kv_store *kv,
                 int layer, struct tensor *q);
void cpu_rope_kv_bwd(struct device *d, const struct tensor *dq, const struct tensor *dkv,
                     const struct tensor *qkv, const struct norm *q_norm, const struct norm *k_norm,
                     const struct tensor *cos, const struct tensor *sin, const struct attn_shape *s,
                     const struct rows *rows, const struct leaf_rows *leaves, struct tensor *dqkv,
                     struct tensor *grad_qn, struct tensor *grad_kn);
void cpu_attn_fwd(struct device *d, const struct tensor *q, const struct kv_store *kv, int layer,
                  const struct attn_shape *s, const struct rows *rows, struct tensor *out,
                  struct tensor *lse);
void cpu_attn_bwd(struct device *d, const struct tensor *dout, const struct tensor *q,
                  const struct tensor *out, const struct tensor *lse, const struct kv_store *kv,
                  int layer, const struct attn_shape *s, const struct rows *rows, struct tensor *dq,
                  struct tensor *dkv);

/* cpu_rows.c: what works on rows */
void cpu_bias_dw(struct device *d, const struct tensor *dy, const struct leaf_rows *leaves,
                 struct tensor *grad);
void cpu_rmsnorm(struct device *d, const struct tensor *x, const struct norm *norm,
                 const struct tensor *residual, struct tensor *y, struct tensor *rstd);
void cpu_rmsnorm_bwd(struct device *d, const struct tensor *dy, const struct tensor *x,
                     const struct norm *norm, const struct tensor *rstd,
                     const struct leaf_rows *leaves, struct tensor *dx, struct tensor *grad_w);
void cpu_glu(struct device *d, const struct tensor *gu, enum act act, struct tensor *y);
void cpu_glu_bwd(struct device *d, const struct tensor *dy, const struct tensor *gu, enum act act,
                 struct tensor *dgu);
void cpu_embed(struct device *d, const struct tensor *table, const int32_t *ids, float scale,
               struct tensor *y);
void cpu_gather(struct device *d, const struct tensor *x, const int32_t *row, struct tensor *y);
void cpu_embed_bwd(struct device *d, const struct tensor *dy, const int32_t *ids, float scale,
                   struct tensor *grad);
void cpu_logp_fn(struct device *d, struct tensor *logits, const struct logit_spec *spec,
                 const int32_t *target, const struct leafset *vleaf, float *logp, float *max,
                 float *logz, float *entropy);
void cpu_logp_bwd(struct device *d, const struct tensor *logits, const struct logit_spec *spec,
                  const int32_t *target, const float *max, const float *logz, const float *entropy,
                  const float *g, const float *ge, struct tensor *dlogits);
void cpu_exps(struct device *d, const struct tensor *x, const float *max, struct tensor *y);
void cpu_scatter(struct device *d, const struct tensor *x, const int32_t *row, struct tensor *y);
void cpu_copy(struct device *d, const struct tensor *x, struct tensor *y);
void cpu_convert(struct device *d, const struct tensor *x, struct tensor *y);

/* cpu_optim.c: the optimizer, and what it reads of packed weights */
void cpu_sumsq_fn(struct device *d, const struct tensor *grad, void *exact);
void cpu_adamw(struct device *d, const struct adam_param *p, const struct adam_step *s);
void cpu_unpack_fn(struct device *d, const struct wview *view, int64_t row0, struct tensor *w16);
void cpu_unpack_alone(const struct device *d, const struct wview *view, int64_t row0, int64_t n,
                      float *x);
void cpu_linear_dx_panels(struct device *d, const struct tensor *dy, const struct wview *w,
                          struct tensor *dx);

#endif
