/* Shared by the files of the reference device: values and the sums that define results (ops_ref.c
 * says how). */
#ifndef NUM_OPS_REF_INT_H
#define NUM_OPS_REF_INT_H

#include <math.h>
#include <string.h>

#include "base/status.h"
#include "num/device_int.h"
#include "num/exact.h"
#include "num/vmath.h"

#define LANES   16
#define MAX_DIM 512 /* largest head dimension */
#define COLS    64  /* columns of a product that make one task */

/* ---- values ------------------------------------------------------------------------------------
 */

static inline float get(const struct tensor *t, int64_t r, int64_t c)
{
    int64_t i = r * t->ld + c;
    return t->dtype == DTYPE_F32 ? ((const float *)t->data)[i]
                                 : dtype_from_bf16(((const uint16_t *)t->data)[i]);
}

static inline void put(const struct tensor *t, int64_t r, int64_t c, float v)
{
    int64_t i = r * t->ld + c;
    if (t->dtype == DTYPE_F32) {
        ((float *)t->data)[i] = v;
    } else {
        ((uint16_t *)t->data)[i] = dtype_to_bf16(v);
    }
}

/* A row's value, or the zero that pads it. */
static inline float get_padded(const struct tensor *t, int64_t r, int64_t c)
{
    return c < t->cols ? get(t, r, c) : 0.0f;
}

static inline float kv_get(const struct kv_store *kv, size_t i)
{
    return kv->dtype == DTYPE_F32 ? ((const float *)kv->data)[i]
                                  : dtype_from_bf16(((const uint16_t *)kv->data)[i]);
}

static inline void kv_put(struct kv_store *kv, size_t i, float v)
{
    if (kv->dtype == DTYPE_F32) {
        ((float *)kv->data)[i] = v;
    } else {
        ((uint16_t *)kv->data)[i] = dtype_to_bf16(v);
    }
}

/* Copies a row; a value that keeps its type keeps its bits. */
static inline void copy_row(const struct tensor *from, int64_t r, const struct tensor *to,
                            int64_t s)
{
    size_t size = dtype_size(from->dtype);
    if (from->dtype == to->dtype) {
        memcpy((char *)to->data + (size_t)(s * to->ld) * size,
               (const char *)from->data + (size_t)(r * from->ld) * size, (size_t)from->cols * size);
        return;
    }
    for (int64_t c = 0; c < from->cols; c++) {
        put(to, s, c, get(from, r, c));
    }
}

static inline int pad(int n, int to)
{
    return (n + to - 1) / to * to;
}

/* ---- the sums that define results --------------------------------------------------------------
 */

static inline float greater(float a, float b)
{
    return a > b ? a : b;
}

static inline float lanes_sum(float s[LANES])
{
    for (int w = LANES / 2; w; w /= 2) {
        for (int i = 0; i < w; i++) {
            s[i] = s[i] + s[i + w];
        }
    }
    return s[0];
}

static inline float lanes_max(float s[LANES])
{
    for (int w = LANES / 2; w; w /= 2) {
        for (int i = 0; i < w; i++) {
            s[i] = greater(s[i], s[i + w]);
        }
    }
    return s[0];
}

/* One block of a product. */
static inline float block_product(const float a[PLAN_KBLOCK], const float b[PLAN_KBLOCK])
{
    float even = 0.0f, odd = 0.0f;
    for (int i = 0; i < PLAN_KBLOCK; i += 2) {
        even = fmaf(a[i], b[i], even);
        odd = fmaf(a[i + 1], b[i + 1], odd);
    }
    return even + odd;
}

/* The factor of column c of a norm. */
static inline float norm_factor(const struct norm *n, int64_t c)
{
    return n->plus_one ? 1.0f + get(n->w, 0, c) : get(n->w, 0, c);
}

static inline float tree_join(float leaf[PLAN_MAX_LEAVES], int n)
{
    for (int w = 1; w < n; w *= 2) {
        for (int i = 0; i + w < n; i += 2 * w) {
            leaf[i] = leaf[i] + leaf[i + w];
        }
    }
    return leaf[0];
}

/* Adds one leaf's sum to a gradient. */
static inline void grad_add(struct device *d, const struct tensor *grad, int64_t r, int64_t c,
                            float leaf)
{
    int64_t *g = (int64_t *)grad->data + r * grad->ld + c;
    float q = leaf * (float)((int64_t)1 << PLAN_QUANTUM);

    /* a NaN fails both comparisons */
    if (!(q < 0x1p63f && q > -0x1p63f) || __builtin_add_overflow(*g, (int64_t)rintf(q), g)) {
        __atomic_store_n(&d->fault, 1, __ATOMIC_RELAXED);
    }
}

static inline float grad_get(const struct tensor *grad, int64_t r, int64_t c)
{
    double quantum = 1.0 / (double)((int64_t)1 << PLAN_QUANTUM);
    return (float)((double)((const int64_t *)grad->data)[r * grad->ld + c] * quantum);
}

/* ops_ref_optim.c */
void ops_ref_optim_sumsq(struct device *d, const struct tensor *grad, void *exact);
void ops_ref_optim_adamw(struct device *d, const struct adam_param *p, const struct adam_step *s);

/* ops_ref_attn.c */
void ops_ref_rope_kv(struct device *d, const struct tensor *qkv, const struct norm *q_norm,
                     const struct norm *k_norm, const struct tensor *cos, const struct tensor *sin,
                     const struct attn_shape *s, const struct rows *rows, struct kv_store *kv,
                     int layer, struct tensor *q);
void ops_ref_rope_kv_bwd(struct device *d, const struct tensor *dq, const struct tensor *dkv,
                         const struct tensor *qkv, const struct norm *q_norm,
                         const struct norm *k_norm, const struct tensor *cos,
                         const struct tensor *sin, const struct attn_shape *s,
                         const struct rows *rows, const struct leaf_rows *leaves,
                         struct tensor *dqkv, struct tensor *grad_qn, struct tensor *grad_kn);
void ops_ref_attn(struct device *d, const struct tensor *q, const struct kv_store *kv, int layer,
                  const struct attn_shape *s, const struct rows *rows, struct tensor *out,
                  struct tensor *lse);
void ops_ref_attn_bwd(struct device *d, const struct tensor *dout, const struct tensor *q,
                      const struct tensor *out, const struct tensor *lse, const struct kv_store *kv,
                      int layer, const struct attn_shape *s, const struct rows *rows,
                      struct tensor *dq, struct tensor *dkv);

#endif
