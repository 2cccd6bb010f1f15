/* The kernels of one instruction set: what a thread does with its share of an operation. cpu.c
 * splits the work and calls them; scalar.c, avx2.c and avx512.c instantiate the same source,
 * kern_body.h, and amx.c replaces the products. Every entry gives the same bits in every table. */
#ifndef CPU_KERN_H
#define CPU_KERN_H

#include <stddef.h>
#include <stdint.h>

#include "num/device.h"

/* A product over packed tiles. A tile is 512 bf16, (16 pairs of k, 16 columns, 2); the two tiles of
 * 32 columns lie side by side, zero where there are no such columns, so that b is read in one line.
 */
struct kern_gemm {
    const uint16_t *a; /* (m, k) bf16 */
    int64_t lda;
    const uint16_t *b; /* tiles (n/32, k/32, 2) */
    int ktiles;        /* tiles along k */
    int m, n, k;
    const struct leafset *leaves;
    void *c; /* (m, n) bf16 or f32 */
    int64_t ldc;
    int c_f32;
    int stream;           /* c is large and aligned: it may be written past the caches */
    const void *residual; /* (m, n) of c's type, added to the result; NULL without; may be c */
    int64_t ldr;
    const uint16_t *bias; /* (n) bf16 or NULL */
};

/* A weight gradient over packed transposes, tiles as kern_dw_tile has them: of dyt (16 n, 32 t), of
 * xp (16 pairs of t, 16 k, 2). Leaf l is tiles [tb0[l], tb0[l+1]) along t, zero padded. */
struct kern_dw {
    const uint16_t *dyt, *xp;
    int ttiles; /* tiles along t */
    int n, k;
    int nleaf;
    const int32_t *tb0;
    const float *dyn, *xn; /* by dw_norms: (n/32, leaves) and (k/32, leaves), or NULL */
    int64_t *grad;         /* (n, k) */
    int64_t ldg;
    float scale; /* 2^quantum */
    int fresh;   /* grad counts as zero; only where dw_norms exists */
};

/* Where the tile of columns c to c + 15 and t tile tb begins: the tiles of 32 columns lie side by
 * side, and those of all t in one line. */
static inline size_t kern_dw_tile(int c, int tb, int ttiles)
{
    return ((size_t)(c / 32) * (size_t)ttiles + (size_t)tb) * 1024 + (size_t)(c / 16 % 2) * 512;
}

#define KERN_MAX_HEAD 512 /* dimensions of a head */

struct kern_rope {
    const uint16_t *qkv; /* (rows, (heads + 2 kv) d) */
    int64_t ld;
    const float *cos, *sin; /* (positions, rot / 2) */
    int64_t ldt;
    const struct norm *qn, *kn; /* each or NULL */
    const struct attn_shape *s;
    const int32_t *pos; /* (rows) */
    struct kv_store *kv;
    int layer;
    uint16_t *q; /* (rows, heads d) */
    int64_t ldq;
};

struct kern_attn {
    const uint16_t *q; /* (rows, heads d) bf16 */
    int64_t ldq;
    const struct kv_store *kv;
    int layer;
    struct attn_shape s;
    const struct rows *rows;
    uint16_t *out;
    int64_t ldo;
    float *lse; /* (rows, heads) or NULL */
    int64_t ldl;
};

struct kern_attn_bwd {
    struct kern_attn f; /* the forward's arguments */
    const uint16_t *dout;
    int64_t lddo;
    float *dq, *dkv; /* (rows, heads d), (rows, 2 kv d) */
    int64_t lddq, lddkv;
};

/* One row of an AdamW step: n values (a multiple of 16), the first being number `index` of its
 * parameter. Of each pair of pointers one is NULL. */
struct kern_adamw {
    const int64_t *grad;
    float *p;     /* master, or */
    int16_t *rem; /* what w16 lacks */
    float *m, *v;
    uint16_t *m16, *v16;
    uint16_t *w16;
    int n, decay;
    uint32_t key, index;
    double quantum;
    const struct adam_step *s;
};

struct kern {
    const char *name;
    int rows;            /* rows of the register block: scratch of gemm is rows * k floats */
    size_t gemm_scratch; /* or these bytes, when not 0 */
    void (*gemm)(const struct kern_gemm *g, int m0, int m1, int n0, int n1, void *scratch);
    int (*dw)(const struct kern_dw *g, int n0, int n1, void *scratch); /* 1: overflow */
    /* One tile of t of all columns. squares: where dw_norms exists, the largest sum of squares of
     * a column, for each 16 columns. */
    void (*pack_dyt)(const uint16_t *dy, int64_t ld, int rows, int n, int tb, int ttiles,
                     uint16_t *dyt, float *squares);
    void (*pack_xp)(const uint16_t *x, int64_t ld, int rows, int k, int tb, int ttiles,
                    uint16_t *xp, float *squares);
    /* From squares (tiles, nb): (ceil(nb/2), leaves) bounds of the norms of a leaf's columns. NULL:
     * not needed. */
    void (*dw_norms)(const float *squares, int nb, int nleaf, const int32_t *tb0, float *norms);
    void (*pack_fwd)(const uint16_t *w, int64_t ld, int n, int k, int nb, uint16_t *out);
    void (*pack_bwd)(const uint16_t *w, int64_t ld, int n, int k, int kb, uint16_t *out);
    /* The inverse of pack_fwd: rows [16 nb, 16 nb + 16) into w (16, k). */
    void (*unpack_fwd)(const uint16_t *fwd, int k, int nb, uint16_t *w, int64_t ld);
    /* What pack_bwd makes of column block kb, from the forward form; out is its first tile, the
     * others follow at every second place. */
    void (*fwd_to_bwd)(const uint16_t *fwd, int n, int k, int kb, uint16_t *out);

    /* residual (h) or NULL */
    void (*rmsnorm)(const uint16_t *x, const struct norm *n, int h, const uint16_t *residual,
                    uint16_t *y, float *rstd);
    void (*rmsnorm_bwd)(const uint16_t *dy, const uint16_t *x, const struct norm *n, int h,
                        float rstd, float *dx);
    /* Columns [c0, c0 + 16): the leaf's rows [r0, r1) into grad. dy bf16 or f32 is not needed. */
    int (*rmsnorm_dw)(const uint16_t *dy, int64_t lddy, const uint16_t *x, int64_t ldx,
                      const float *rstd, int r0, int r1, int c0, int64_t *grad, float scale);
    int (*bias_dw)(const uint16_t *dy, int64_t ld, int r0, int r1, int c0, int64_t *grad,
                   float scale);
    /* The leaves of heads' norm weights: 16 columns of n heads, `d` apart in a row of dn, each
     * summed over rows [r0, r1). */
    int (*heads_dw)(const float *dn, int64_t ld, int n, int d, int r0, int r1, int64_t *grad,
                    float scale);
    /* Rows [r0, r0 + n), n <= 16, neighbours in one sequence and one page: norms, rope, and keys
     * and values into the page. */
    void (*rope_rows)(const struct kern_rope *a, int page, int r0, int n);
    /* dy f32 (d) -> dx f32 (d); with a norm also dn (d), the norm weight's gradient of this row. */
    void (*rope_head_bwd)(const float *dy, const uint16_t *x, const struct norm *norm,
                          const float *cos, const float *sin, const struct attn_shape *s, float *dx,
                          float *dn);
    /* Rows [r0, r1) of a sequence, every query head of a kv head. With parts only the segment that
     * starts at key seg, its (maximum, sum, sums of values) unfinished to parts ((r1 - r0) group
     * rows of d + 2); attn_join finishes them. */
    void (*attn)(const struct kern_attn *a, int seq, int kvh, int r0, int r1, int seg, float *parts,
                 void *scratch);
    /* parts[i]: segment i of [0, n), each joined to those before it. */
    void (*attn_join)(const struct kern_attn *a, int seq, int kvh, int r0, int r1, int n,
                      const float *parts);
    /* Query leaves [l0, l1) of a sequence, every query head of a kv head: dq, and with parts NULL
     * their share of dk and dv joined to dkv, else that of the one leaf to parts (keys from the
     * page of kern_attn_first on, rows of 2 d). */
    void (*attn_bwd)(const struct kern_attn_bwd *a, int seq, int kvh, int l0, int l1, float *parts,
                     void *scratch);
    /* Joins the parts of query leaf l to dkv of those keys in [j0, j1) that it has. */
    void (*attn_bwd_join)(const struct kern_attn_bwd *a, int seq, int kvh, int l, int j0, int j1,
                          const float *parts);
    void (*glu)(const uint16_t *gu, enum act act, int inter, uint16_t *y);
    void (*glu_bwd)(const uint16_t *dy, const uint16_t *gu, enum act act, int inter, uint16_t *dgu);
    void (*scale_row)(const uint16_t *x, int n, float scale, uint16_t *y);
    /* grad += dy times mul, in units of 1 / scale. */
    int (*add_row)(const float *dy, int n, float mul, int64_t *grad, float scale);
    /* Row statistics; x becomes what the spec says, in place. sums[0] = Z, sums[1] = sum z (x-m) */
    void (*logits_row)(float *x, int n, const struct logit_spec *spec, const struct leafset *leaves,
                       float *max, float sums[2], int want_entropy);
    void (*dlogits_row)(const float *x, int n, int ld, const struct logit_spec *spec, int target,
                        float max, float logz, float entropy, float g, float ge, uint16_t *out);
    void (*to_bf16)(const float *x, int n, uint16_t *y);
    double (*sumsq32)(const int64_t *g, double quantum);
    void (*adamw)(const struct kern_adamw *a);
    void (*exps)(const float *x, int n, float sub, float *y); /* y = exp(x - sub) */
};

#define KERN_DW_SCRATCH 65536 /* bytes that dw needs */
#define KERN_ATTN_ROWS  64    /* queries (of all heads of a group) that attn takes at a time */
#define KERN_ATTN_KEYS  128   /* keys that attn_bwd takes at a time */

/* Bytes of scratch that attn and attn_bwd need: whatever the sequences' length. */
static inline size_t kern_attn_scratch(int head_dim, int group)
{
    size_t d = (size_t)(head_dim + 31) / 32 * 32;
    return (size_t)group * PLAN_LEAF * (d * 13 + KERN_ATTN_KEYS * 2 + 8) + d * KERN_ATTN_KEYS * 24 +
           ((size_t)1 << 19);
}

/* The first key that a query at position p sees. */
static inline int kern_attn_first(const struct attn_shape *s, int p)
{
    return s->window > 0 && p >= s->window ? p - s->window + 1 : 0;
}

/* The keys of query leaf l of a sequence: [*j0, return), from a page's first on. */
static inline int kern_leaf_keys(const struct attn_shape *s, const struct row_seq *sq, int l,
                                 int *j0)
{
    int q0 = sq->pos0 + l * PLAN_LEAF, end = (l + 1) * PLAN_LEAF;
    *j0 = kern_attn_first(s, q0) / PLAN_KV_BLOCK * PLAN_KV_BLOCK;
    return sq->pos0 + (end < sq->nrows ? end : sq->nrows);
}

/* The row of a sequence's key j, which may be the base's. */
static inline size_t kern_key_row(const struct rows *rows, const struct row_seq *sq, int j)
{
    return (size_t)(j < sq->pos0 ? rows->seq[sq->base - 1].row0 + j : sq->row0 + j - sq->pos0);
}

extern const struct kern scalar_kern, avx2_kern, avx512_kern;
extern const struct kern amx_attn_kern; /* attention on AMX tiles, the rest as avx512_kern */
/* Replaces the products of *k by AMX ones. Returns 0 when the kernel refuses the permission. */
int amx_fill(struct kern *k);

#endif
