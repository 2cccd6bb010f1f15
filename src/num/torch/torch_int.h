/* Shared by the files of the torch device. Values are handles of torch tensors; what an operation
 * makes on its way is temporary and dies together at the operation's end:
 *
 *     struct aten *a = torch_f32(t, torch_view(t, x));
 *     torch_put(t, torch_view(t, y), torch_mul(t, a, a));
 *     torch_release(t, 0);
 *
 * After a failure inside torch every function returns NULL and does nothing, until device_fault has
 * told the cause. */
#ifndef NUM_TORCH_INT_H
#define NUM_TORCH_INT_H

#include "num/device_int.h"
#include "num/torch/torch_abi.h"

#define TORCH_TEMPS 512

struct torch_held {
    void *data;
    struct aten *owner;
};

struct torch {
    struct torch_abi f;
    uint64_t version;
    int32_t type, index; /* the device, in torch's numbers */
    int32_t host;        /* torch's number of the host's memory */
    int32_t bf16, f32, f64, u8, i32, i64;
    int mm_f32;     /* 1: the device multiplies bf16 into f32 */
    int64_t chunk;  /* values of a temporary that a large operation is cut into */
    int64_t scores; /* the same for attention's scores */
    struct aten *temp[TORCH_TEMPS];
    int ntemp;
    struct torch_held *held; /* memory handed out */
    int nheld, cap_held;
    int32_t *ints; /* scratch of the host for indices */
    int64_t cap_ints;
    int failed;
    char why[512];
    char isa[32];
};

static inline struct torch *torch_of(const struct device *d)
{
    return d->impl;
}

/* ---- torch_lib.c: finding the library ---- */

/* Opens libtorch and fills the table. dir may be NULL. STATUS_NOTFOUND says what to install. */
int torch_lib_open(struct torch_abi *f, const char *dir, int cuda, int threads, struct err *e);

/* ---- torch_call.c: values ---- */

void torch_fail(struct torch *t, const char *what);
/* Takes over a handle as a temporary; returns it. */
struct aten *torch_keep(struct torch *t, struct aten *x);
/* Frees the temporaries made since `mark` (t->ntemp then). */
void torch_release(struct torch *t, int mark);

/* Memory of the device at data, or of the host. strides NULL: dense. */
struct aten *torch_blob(struct torch *t, void *data, int32_t dtype, int ndim, const int64_t *sizes,
                        const int64_t *strides, int on_host);
struct aten *torch_empty(struct torch *t, int32_t dtype, int ndim, const int64_t *sizes);
/* A tensor as it is, (rows, cols). */
struct aten *torch_view(struct torch *t, const struct tensor *x);
/* Columns [c0, c0 + n) of rows [r0, r0 + m). */
struct aten *torch_block(struct torch *t, const struct tensor *x, int64_t r0, int64_t m, int64_t c0,
                         int64_t n);
/* Any strided part of a tensor, from element `offset` on. */
struct aten *torch_part(struct torch *t, const struct tensor *x, int64_t offset, int ndim,
                        const int64_t *sizes, const int64_t *strides);
/* The same of a dense temporary. */
struct aten *torch_strided(struct torch *t, struct aten *x, int64_t offset, int ndim,
                           const int64_t *sizes, const int64_t *strides);
/* A dense copy in f32. */
struct aten *torch_dense(struct torch *t, struct aten *x, int ndim, const int64_t *sizes);
int32_t torch_dtype(const struct torch *t, enum dtype d);

/* n indices or values from the host, as (n) i64 and (n, 1) f32. */
struct aten *torch_ints(struct torch *t, const int32_t *v, int64_t n);
struct aten *torch_floats(struct torch *t, const float *v, int64_t n);
/* n f32 values to the host. dst NULL: nothing. */
void torch_read(struct torch *t, struct aten *x, float *dst, int64_t n);

/* Calls an operator. form has one letter for each argument, all of the schema's are given:
 *   t tensor, T tensor as an optional, i int64_t, b int (bool), d int (a type), - none, l int64_t
 * (a list of one integer), L the same as an optional, D int (a type) as an optional, s const char
 * *. */
struct aten *torch_op(struct torch *t, const char *op, const char *overload, const char *form, ...);

struct aten *torch_f32(struct torch *t, struct aten *x);
struct aten *torch_scalar(struct torch *t, float v);
struct aten *torch_axpy(struct torch *t, struct aten *x, double alpha, struct aten *y); /* ax + y */
struct aten *torch_add(struct torch *t, struct aten *x, struct aten *y);
struct aten *torch_sub(struct torch *t, struct aten *x, struct aten *y);
struct aten *torch_mul(struct torch *t, struct aten *x, struct aten *y);
struct aten *torch_div(struct torch *t, struct aten *x, struct aten *y);
struct aten *torch_scale(struct torch *t, struct aten *x, float by);
struct aten *torch_sum(struct torch *t, struct aten *x, int64_t dim);  /* keeps the dimension */
struct aten *torch_mean(struct torch *t, struct aten *x, int64_t dim); /* keeps the dimension */
struct aten *torch_un(struct torch *t, const char *op, struct aten *x);
/* dst = src, converted. */
void torch_put(struct torch *t, struct aten *dst, struct aten *src);
/* grad += x: the accumulator is f64 in a tensor of type I64. */
void torch_grad(struct torch *t, struct tensor *grad, int64_t r0, int64_t rows, struct aten *x);

/* Scratch of at least n integers on the host; the next call may move it. */
int32_t *torch_scratch(struct torch *t, int64_t n);

/* ---- the operations ---- */

void torch_linear(struct device *d, const struct tensor *x, const struct wview *w,
                  const struct tensor *bias, const struct tensor *residual, struct tensor *y);
void torch_linear_dx(struct device *d, const struct tensor *dy, const struct wview *w,
                     struct tensor *dx);
void torch_linear_dw(struct device *d, const struct tensor *dy, const struct tensor *x,
                     const struct leaf_rows *leaves, struct tensor *grad);
void torch_bias_dw(struct device *d, const struct tensor *dy, const struct leaf_rows *leaves,
                   struct tensor *grad);
void torch_pack(struct device *d, const struct tensor *w16, struct wview *view);

void torch_rmsnorm(struct device *d, const struct tensor *x, const struct norm *norm,
                   const struct tensor *residual, struct tensor *y, struct tensor *rstd);
void torch_rmsnorm_bwd(struct device *d, const struct tensor *dy, const struct tensor *x,
                       const struct norm *norm, const struct tensor *rstd,
                       const struct leaf_rows *leaves, struct tensor *dx, struct tensor *grad_w);
void torch_glu(struct device *d, const struct tensor *gu, enum act act, struct tensor *y);
void torch_glu_bwd(struct device *d, const struct tensor *dy, const struct tensor *gu, enum act act,
                   struct tensor *dgu);
void torch_embed(struct device *d, const struct tensor *table, const int32_t *ids, float scale,
                 struct tensor *y);
void torch_embed_bwd(struct device *d, const struct tensor *dy, const int32_t *ids, float scale,
                     struct tensor *grad);
void torch_logp(struct device *d, struct tensor *logits, const struct logit_spec *spec,
                const int32_t *target, const struct leafset *vleaf, float *logp, float *max,
                float *logz, float *entropy);
void torch_logp_bwd(struct device *d, const struct tensor *logits, const struct logit_spec *spec,
                    const int32_t *target, const float *max, const float *logz,
                    const float *entropy, const float *g, const float *ge, struct tensor *dlogits);
void torch_exps(struct device *d, const struct tensor *x, const float *max, struct tensor *y);
void torch_gather(struct device *d, const struct tensor *x, const int32_t *row, struct tensor *y);
void torch_scatter(struct device *d, const struct tensor *x, const int32_t *row, struct tensor *y);
void torch_copy(struct device *d, const struct tensor *x, struct tensor *y);
void torch_sumsq(struct device *d, const struct tensor *grad, void *exact);
void torch_adamw(struct device *d, const struct adam_param *p, const struct adam_step *s);

void torch_rope_kv(struct device *d, const struct tensor *qkv, const struct norm *q_norm,
                   const struct norm *k_norm, const struct tensor *cos, const struct tensor *sin,
                   const struct attn_shape *s, const struct rows *rows, struct kv_store *kv,
                   int layer, struct tensor *q);
void torch_rope_kv_bwd(struct device *d, const struct tensor *dq, const struct tensor *dkv,
                       const struct tensor *qkv, const struct norm *q_norm,
                       const struct norm *k_norm, const struct tensor *cos,
                       const struct tensor *sin, const struct attn_shape *s,
                       const struct rows *rows, const struct leaf_rows *leaves, struct tensor *dqkv,
                       struct tensor *grad_qn, struct tensor *grad_kn);
void torch_attn(struct device *d, const struct tensor *q, const struct kv_store *kv, int layer,
                const struct attn_shape *s, const struct rows *rows, struct tensor *out,
                struct tensor *lse);
void torch_attn_bwd(struct device *d, const struct tensor *dout, const struct tensor *q,
                    const struct tensor *out, const struct tensor *lse, const struct kv_store *kv,
                    int layer, const struct attn_shape *s, const struct rows *rows,
                    struct tensor *dq, struct tensor *dkv);

/* x / rms(x) * w and its parts, of rows or heads: x f32, over the last dimension `dim` of width n.
 */
struct aten *torch_rstd(struct torch *t, struct aten *x, int64_t dim, float eps);
struct aten *torch_norm_weight(struct torch *t, const struct norm *norm);

#endif
