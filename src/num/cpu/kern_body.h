/* The kernels, written once on 16-lane vectors (`vf`, from vec_*.h, which must be included first).
 * Lanes and their order are part of the definition of a result: a sum over a row is 16 running lane
 * sums joined by a fixed tree, on every instruction set. */
#ifndef CPU_KERN_BODY_H
#define CPU_KERN_BODY_H

#include <string.h>

#include "num/cpu/kern.h"
#include "num/device_int.h"
#include "num/vmath.h"

static inline vf vf_exp(vf x)
{
    vf t = vf_fma(x, vf_set1(VMATH_LOG2E), vf_set1(VMATH_MAGIC));
    vf n = vf_sub(t, vf_set1(VMATH_MAGIC));
    vf r = vf_fma(n, vf_set1(-VMATH_LN2_HI), x);
    vf p, y;
    r = vf_fma(n, vf_set1(-VMATH_LN2_LO), r);
    p = vf_fma(vf_set1(VMATH_E0), r, vf_set1(VMATH_E1));
    p = vf_fma(p, r, vf_set1(VMATH_E2));
    p = vf_fma(p, r, vf_set1(VMATH_E3));
    p = vf_fma(p, r, vf_set1(VMATH_E4));
    p = vf_fma(p, r, vf_set1(VMATH_E5));
    y = vf_add(vf_fma(p, vf_mul(r, r), r), vf_set1(1.0f));
    y = vf_scale2(y, t, VMATH_MAGIC);
    y = vf_select_gt(x, vf_set1(VMATH_EXP_MAX), vf_set1(INFINITY), y);
    return vf_select_gt(vf_set1(VMATH_EXP_MIN), x, vf_zero(), y);
}

/* ---- products ----------------------------------------------------------------------------------
 */

/* One block of 32 terms for VEC_ROWS rows of a and 16 columns of b: even and odd terms in two
 * chains from zero, their sum added to the accumulator. */
static inline void kern_block(const float *a, size_t lda, const uint16_t *b, size_t bstep, vf *acc)
{
    vf e[VEC_ROWS], o[VEC_ROWS];
    for (int r = 0; r < VEC_ROWS; r++) {
        e[r] = vf_zero();
        o[r] = vf_zero();
    }
    for (int kp = 0; kp < 16; kp++) {
        vf be, bo;
        vf_loadpairs(b + (size_t)kp * bstep, &be, &bo);
        for (int r = 0; r < VEC_ROWS; r++) {
            e[r] = vf_fma(vf_set1(a[(size_t)r * lda + 2 * (size_t)kp]), be, e[r]);
            o[r] = vf_fma(vf_set1(a[(size_t)r * lda + 2 * (size_t)kp + 1]), bo, o[r]);
        }
    }
    for (int r = 0; r < VEC_ROWS; r++) {
        acc[r] = vf_add(acc[r], vf_add(e[r], o[r]));
    }
}

/* Joins leaf[0..n) by a binary tree into leaf[0]. */
static inline void kern_join(vf leaf[][VEC_ROWS], int n)
{
    for (int w = 1; w < n; w *= 2) {
        for (int i = 0; i + w < n; i += 2 * w) {
            for (int r = 0; r < VEC_ROWS; r++) {
                leaf[i][r] = vf_add(leaf[i][r], leaf[i + w][r]);
            }
        }
    }
}

/* Writes 16 lanes of a result row, the first n of them. */
static inline void kern_store(const struct kern_gemm *g, int row, int col, int n, vf x)
{
    float tmp[16];
    if (g->bias) {
        uint16_t b[16] = {0};
        memcpy(b, g->bias + col, (size_t)n * 2);
        x = vf_add(x, vf_loadbf(b));
    }
    if (g->c_f32) {
        float *c = (float *)g->c + (size_t)row * (size_t)g->ldc + (size_t)col;
        if (n == 16) {
            vf_store(c, g->accumulate ? vf_add(vf_load(c), x) : x);
            return;
        }
        vf_store(tmp, x);
        for (int i = 0; i < n; i++) {
            c[i] = g->accumulate ? c[i] + tmp[i] : tmp[i];
        }
    } else {
        uint16_t *c = (uint16_t *)g->c + (size_t)row * (size_t)g->ldc + (size_t)col;
        uint16_t t16[16] = {0};
        if (n == 16) {
            vf_storebf(c, g->accumulate ? vf_add(vf_loadbf(c), x) : x);
            return;
        }
        memcpy(t16, c, (size_t)n * 2);
        vf_storebf(t16, g->accumulate ? vf_add(vf_loadbf(t16), x) : x);
        memcpy(c, t16, (size_t)n * 2);
    }
}

static void kern_expand(const uint16_t *a, int64_t lda, int rows, int k, float *out)
{
    for (int r = 0; r < VEC_ROWS; r++) {
        if (r >= rows) {
            memset(out + (size_t)r * (size_t)k, 0, (size_t)k * 4);
            continue;
        }
        for (int i = 0; i < k; i += 16) {
            vf_store(out + (size_t)r * (size_t)k + (size_t)i,
                     vf_loadbf(a + (size_t)r * (size_t)lda + (size_t)i));
        }
    }
}

static void kern_gemm_fn(const struct kern_gemm *g, int m0, int m1, int n0, int n1, void *scratch)
{
    float *af = scratch; /* (VEC_ROWS, kp) */
    int kp = g->ktiles * 32;
    vf leaf[PLAN_MAX_LEAVES][VEC_ROWS];

    for (int m = m0; m < m1; m += VEC_ROWS) {
        int rows = m1 - m < VEC_ROWS ? m1 - m : VEC_ROWS;
        kern_expand(g->a + (size_t)m * (size_t)g->lda, g->lda, rows, kp, af);
        for (int n = n0; n < n1; n += 16) {
            const uint16_t *b = g->b + (size_t)(n / 16) * (size_t)g->ktiles * 512;
            int cols = n1 - n < 16 ? n1 - n : 16;
            for (int l = 0; l < g->leaves->leaves; l++) {
                for (int r = 0; r < VEC_ROWS; r++) {
                    leaf[l][r] = vf_zero();
                }
            }
            for (int i = 0; i < g->leaves->n; i++) {
                for (int k = g->leaves->r[i].start; k < g->leaves->r[i].end; k += 32) {
                    kern_block(af + k, (size_t)kp, b + (size_t)(k / 32) * 512, 32,
                               leaf[g->leaves->r[i].leaf]);
                }
            }
            kern_join(leaf, g->leaves->leaves);
            for (int r = 0; r < rows; r++) {
                kern_store(g, m + r, n, cols, leaf[0][r]);
            }
        }
    }
}

static int kern_dw_fn(const struct kern_dw *g, int n0, int n1, void *scratch)
{
    float *af = scratch; /* (VEC_ROWS, 32) */
    int bad = 0;

    for (int n = n0; n < n1; n += VEC_ROWS) {
        int rows = n1 - n < VEC_ROWS ? n1 - n : VEC_ROWS;
        for (int k = 0; k < g->k; k += 16) {
            for (int l = 0; l < g->nleaf; l++) {
                vf acc[VEC_ROWS];
                for (int r = 0; r < VEC_ROWS; r++) {
                    acc[r] = vf_zero();
                }
                for (int tb = g->tb0[l]; tb < g->tb0[l + 1]; tb++) {
                    const uint16_t *a = g->dyt +
                                        ((size_t)(n / 16) * (size_t)g->ttiles + (size_t)tb) * 512 +
                                        (size_t)(n % 16) * 32;
                    kern_expand(a, 32, VEC_ROWS, 32, af);
                    kern_block(af, 32,
                               g->xp + ((size_t)tb * (size_t)g->ktiles + (size_t)(k / 16)) * 512,
                               32, acc);
                }
                for (int r = 0; r < rows; r++) {
                    bad |= vf_accumulate(g->grad + (size_t)(n + r) * (size_t)g->ldg + (size_t)k,
                                         acc[r], g->scale);
                }
            }
        }
    }
    return bad;
}

/* ---- packing -----------------------------------------------------------------------------------
 */

/* Rows [32 tb, 32 tb + rows) of a leaf's dy, columns [n0, n1), as tiles (16 n, 32 t). */
static void kern_pack_dyt(const uint16_t *dy, int64_t ld, int rows, int n0, int n1, int tb,
                          int ttiles, uint16_t *dyt)
{
    for (int n = n0; n < n1; n += 16) {
        uint16_t *out = dyt + ((size_t)(n / 16) * (size_t)ttiles + (size_t)tb) * 512;
        for (int t = 0; t < 32; t++) {
            for (int i = 0; i < 16; i++) {
                out[i * 32 + t] = t < rows ? dy[(size_t)t * (size_t)ld + (size_t)(n + i)] : 0;
            }
        }
    }
}

static void kern_pack_xp(const uint16_t *x, int64_t ld, int rows, int k, int tb, uint16_t *xp)
{
    uint16_t *out = xp + (size_t)tb * (size_t)(k / 16) * 512;
    for (int c = 0; c < k; c += 16, out += 512) {
        for (int tp = 0; tp < 16; tp++) {
            const uint16_t *r0 = x + (size_t)(2 * tp) * (size_t)ld + (size_t)c;
            for (int i = 0; i < 16; i++) {
                out[tp * 32 + 2 * i] = 2 * tp < rows ? r0[i] : 0;
                out[tp * 32 + 2 * i + 1] = 2 * tp + 1 < rows ? r0[ld + i] : 0;
            }
        }
    }
}

static void kern_pack_fwd(const uint16_t *w, int64_t ld, int n, int k, int nb, uint16_t *out)
{
    out += (size_t)nb * (size_t)(k / 32) * 512;
    for (int kb = 0; kb < k / 32; kb++, out += 512) {
        for (int i = 0; i < 16; i++) {
            const uint16_t *src = w + (size_t)(nb * 16 + i) * (size_t)ld + (size_t)kb * 32;
            for (int kp = 0; kp < 16; kp++) {
                out[kp * 32 + 2 * i] = nb * 16 + i < n ? src[2 * kp] : 0;
                out[kp * 32 + 2 * i + 1] = nb * 16 + i < n ? src[2 * kp + 1] : 0;
            }
        }
    }
}

static void kern_pack_bwd(const uint16_t *w, int64_t ld, int n, int k, int kb, uint16_t *out)
{
    int ntiles = (n + 31) / 32;
    (void)k;
    out += (size_t)kb * (size_t)ntiles * 512;
    for (int nb = 0; nb < ntiles; nb++, out += 512) {
        for (int np = 0; np < 16; np++) {
            int row = nb * 32 + 2 * np;
            const uint16_t *src = w + (size_t)row * (size_t)ld + (size_t)kb * 16;
            for (int i = 0; i < 16; i++) {
                out[np * 32 + 2 * i] = row < n ? src[i] : 0;
                out[np * 32 + 2 * i + 1] = row + 1 < n ? src[ld + i] : 0;
            }
        }
    }
}

/* ---- norms -------------------------------------------------------------------------------------
 */

static float kern_rstd(const uint16_t *x, int h, float eps)
{
    vf s = vf_zero();
    for (int i = 0; i < h; i += 16) {
        vf v = vf_loadbf(x + i);
        s = vf_fma(v, v, s);
    }
    return 1.0f / sqrtf(vf_hsum(s) / (float)h + eps);
}

static void kern_rmsnorm(const uint16_t *x, const uint16_t *w, int h, float eps, uint16_t *y,
                         float *rstd)
{
    float r = kern_rstd(x, h, eps);
    for (int i = 0; i < h; i += 16) {
        vf_storebf(y + i, vf_mul(vf_mul(vf_loadbf(x + i), vf_set1(r)), vf_loadbf(w + i)));
    }
    if (rstd) {
        *rstd = r;
    }
}

static void kern_rmsnorm_bwd(const uint16_t *dy, const uint16_t *x, const uint16_t *w, int h,
                             float rstd, float *dx)
{
    vf s = vf_zero(), r = vf_set1(rstd), c;
    for (int i = 0; i < h; i += 16) {
        vf dxh = vf_mul(vf_loadbf(dy + i), vf_loadbf(w + i));
        s = vf_fma(dxh, vf_mul(vf_loadbf(x + i), r), s);
    }
    c = vf_set1(vf_hsum(s) / (float)h);
    for (int i = 0; i < h; i += 16) {
        vf dxh = vf_mul(vf_loadbf(dy + i), vf_loadbf(w + i));
        vf xh = vf_mul(vf_loadbf(x + i), r);
        vf_store(dx + i, vf_add(vf_load(dx + i), vf_mul(r, vf_sub(dxh, vf_mul(xh, c)))));
    }
}

static int kern_rmsnorm_dw(const uint16_t *dy, int64_t lddy, const uint16_t *x, int64_t ldx,
                           const float *rstd, int r0, int r1, int c0, int64_t *grad, float scale)
{
    vf s = vf_zero();
    for (int r = r0; r < r1; r++) {
        vf xh = vf_mul(vf_loadbf(x + (size_t)r * (size_t)ldx + (size_t)c0), vf_set1(rstd[r]));
        s = vf_fma(vf_loadbf(dy + (size_t)r * (size_t)lddy + (size_t)c0), xh, s);
    }
    return vf_accumulate(grad + c0, s, scale);
}

static int kern_bias_dw(const uint16_t *dy, int64_t ld, int r0, int r1, int c0, int64_t *grad,
                        float scale)
{
    vf s = vf_zero();
    for (int r = r0; r < r1; r++) {
        s = vf_add(s, vf_loadbf(dy + (size_t)r * (size_t)ld + (size_t)c0));
    }
    return vf_accumulate(grad + c0, s, scale);
}

/* ---- rope --------------------------------------------------------------------------------------
 */

static void kern_rope_head(const uint16_t *x, const uint16_t *norm, float eps, const float *cos,
                           const float *sin, int d, float *y)
{
    vf r = norm ? vf_set1(kern_rstd(x, d, eps)) : vf_zero();
    for (int i = 0; i < d / 2; i += 16) {
        vf a = vf_loadbf(x + i), b = vf_loadbf(x + d / 2 + i);
        vf c = vf_load(cos + i), s = vf_load(sin + i);
        if (norm) {
            a = vf_mul(vf_mul(a, r), vf_loadbf(norm + i));
            b = vf_mul(vf_mul(b, r), vf_loadbf(norm + d / 2 + i));
        }
        vf_store(y + i, vf_sub(vf_mul(a, c), vf_mul(b, s)));
        vf_store(y + d / 2 + i, vf_add(vf_mul(b, c), vf_mul(a, s)));
    }
}

static void kern_rope_head_bwd(const float *dy, const uint16_t *x, const uint16_t *norm, float eps,
                               const float *cos, const float *sin, int d, float *dx, float *dn)
{
    vf sum = vf_zero(), r = vf_zero(), c;
    for (int i = 0; i < d / 2; i += 16) {
        vf a = vf_load(dy + i), b = vf_load(dy + d / 2 + i);
        vf co = vf_load(cos + i), si = vf_load(sin + i);
        vf_store(dx + i, vf_add(vf_mul(a, co), vf_mul(b, si)));
        vf_store(dx + d / 2 + i, vf_sub(vf_mul(b, co), vf_mul(a, si)));
    }
    if (!norm) {
        return;
    }
    r = vf_set1(kern_rstd(x, d, eps));
    for (int i = 0; i < d; i += 16) {
        vf xh = vf_mul(vf_loadbf(x + i), r), g = vf_load(dx + i);
        vf_store(dn + i, vf_mul(g, xh));
        g = vf_mul(g, vf_loadbf(norm + i));
        vf_store(dx + i, g);
        sum = vf_fma(g, xh, sum);
    }
    c = vf_set1(vf_hsum(sum) / (float)d);
    for (int i = 0; i < d; i += 16) {
        vf xh = vf_mul(vf_loadbf(x + i), r);
        vf_store(dx + i, vf_mul(r, vf_sub(vf_load(dx + i), vf_mul(xh, c))));
    }
}

/* ---- attention ---------------------------------------------------------------------------------
 */

/* Running softmax of VEC_ROWS queries over one segment. o is (VEC_ROWS, d). */
struct kern_soft {
    float m[VEC_ROWS], l[VEC_ROWS];
    float *o;
};

/* Scores of VEC_ROWS queries (f32 rows in qf) against one page of keys: s (VEC_ROWS, 64). */
static inline void kern_scores(const float *qf, int d, const uint16_t *keys, float *s)
{
    for (int j = 0; j < PLAN_KV_BLOCK; j += 16) {
        vf acc[VEC_ROWS];
        for (int r = 0; r < VEC_ROWS; r++) {
            acc[r] = vf_zero();
        }
        for (int k = 0; k < d; k += 32) {
            kern_block(qf + k, (size_t)d, keys + (size_t)(k / 2) * (PLAN_KV_BLOCK * 2) + 2 * j,
                       PLAN_KV_BLOCK * 2, acc);
        }
        for (int r = 0; r < VEC_ROWS; r++) {
            vf_store(s + (size_t)r * PLAN_KV_BLOCK + (size_t)j, acc[r]);
        }
    }
}

/* Turns a row's 64 scores (first `valid` of them) into exp(s - max), updates m and l; returns the
 * factor by which what was summed before shrinks. */
static inline float kern_soft_row(float *s, int valid, float scale, float *m, float *l)
{
    vf x[4], top, sum;
    float mx, alpha;
    for (int i = 0; i < 4; i++) {
        x[i] = vf_first(valid - 16 * i, vf_mul(vf_load(s + 16 * i), vf_set1(scale)),
                        vf_set1(-INFINITY));
    }
    top = vf_max(vf_max(x[0], x[1]), vf_max(x[2], x[3]));
    mx = vf_hmax(top);
    mx = mx > *m ? mx : *m;
    for (int i = 0; i < 4; i++) {
        x[i] = vf_exp(vf_sub(x[i], vf_set1(mx)));
        vf_store(s + 16 * i, x[i]);
    }
    sum = vf_add(vf_add(x[0], x[1]), vf_add(x[2], x[3]));
    alpha = vmath_expf(*m - mx);
    *l = *l * alpha + vf_hsum(sum);
    *m = mx;
    return alpha;
}

/* o = o * alpha + p V over the keys of one page, in ascending order of keys for every row. */
static inline void kern_pv(const float *p, const int *valid, const float *alpha, int rows,
                           const uint16_t *values, int d, float *o)
{
    int common = PLAN_KV_BLOCK;
    for (int r = 0; r < rows; r++) {
        common = valid[r] < common ? valid[r] : common;
    }
    common = rows == VEC_ROWS ? common : 0;
    for (int c = 0; c < d; c += 16) {
        vf acc[VEC_ROWS];
        for (int r = 0; r < rows; r++) {
            acc[r] = vf_mul(vf_load(o + (size_t)r * (size_t)d + (size_t)c), vf_set1(alpha[r]));
        }
        for (int j = 0; j < common; j++) {
            vf v = vf_loadbf(values + (size_t)j * (size_t)d + (size_t)c);
            for (int r = 0; r < VEC_ROWS; r++) {
                acc[r] = vf_fma(vf_set1(p[(size_t)r * PLAN_KV_BLOCK + (size_t)j]), v, acc[r]);
            }
        }
        for (int r = 0; r < rows; r++) {
            for (int j = common; j < valid[r]; j++) {
                acc[r] = vf_fma(vf_set1(p[(size_t)r * PLAN_KV_BLOCK + (size_t)j]),
                                vf_loadbf(values + (size_t)j * (size_t)d + (size_t)c), acc[r]);
            }
            vf_store(o + (size_t)r * (size_t)d + (size_t)c, acc[r]);
        }
    }
}

/* Joins a finished segment (m, l, o) into the total, left to right. */
static inline void kern_join_segment(float *m, float *l, float *o, float ms, float ls,
                                     const float *os, int d)
{
    float mx = *m > ms ? *m : ms;
    float a = vmath_expf(*m - mx), b = vmath_expf(ms - mx);
    *l = *l * a + ls * b;
    *m = mx;
    for (int c = 0; c < d; c += 16) {
        vf_store(o + c,
                 vf_add(vf_mul(vf_load(o + c), vf_set1(a)), vf_mul(vf_load(os + c), vf_set1(b))));
    }
}

/* Up to VEC_ROWS queries that share a kv head; qf (VEC_ROWS, d), pos per query, results to o, m, l.
 */
static void kern_attn_block(const struct kern_attn *a, const struct row_seq *seq, int kvh, int rows,
                            const float *qf, const int *pos, float *scratch, float *m, float *l,
                            float *o)
{
    int d = a->s.head_dim, last = 0;
    float *s = scratch;                             /* (VEC_ROWS, 64) */
    float *os = scratch + VEC_ROWS * PLAN_KV_BLOCK; /* (VEC_ROWS, d) */
    const uint16_t *kv = a->kv->data;

    for (int r = 0; r < rows; r++) {
        last = pos[r] > last ? pos[r] : last;
    }
    for (int seg = 0; seg <= last; seg += PLAN_KV_SEGMENT) {
        float ms[VEC_ROWS], ls[VEC_ROWS], alpha[VEC_ROWS];
        int valid[VEC_ROWS];
        int end = seg + PLAN_KV_SEGMENT <= last ? seg + PLAN_KV_SEGMENT : last + 1;
        for (int r = 0; r < rows; r++) {
            ms[r] = -INFINITY;
            ls[r] = 0.0f;
        }
        memset(os, 0, sizeof(float) * (size_t)rows * (size_t)d);
        for (int b = seg; b < end; b += PLAN_KV_BLOCK) {
            int page = seq->pages[b / PLAN_KV_BLOCK];
            kern_scores(qf, d, kv + kv_key_offset(a->kv, page, a->layer, kvh), s);
            for (int r = 0; r < rows; r++) {
                valid[r] = pos[r] + 1 - b;
                valid[r] = valid[r] > PLAN_KV_BLOCK ? PLAN_KV_BLOCK : valid[r] < 0 ? 0 : valid[r];
                alpha[r] = 1.0f;
                if (valid[r]) {
                    alpha[r] = kern_soft_row(s + (size_t)r * PLAN_KV_BLOCK, valid[r], a->s.scale,
                                             &ms[r], &ls[r]);
                }
            }
            kern_pv(s, valid, alpha, rows, kv + kv_value_offset(a->kv, page, a->layer, kvh), d, os);
        }
        for (int r = 0; r < rows; r++) {
            if (pos[r] < seg) {
                continue;
            }
            if (seg == 0) {
                m[r] = ms[r];
                l[r] = ls[r];
                memcpy(o + (size_t)r * (size_t)d, os + (size_t)r * (size_t)d, (size_t)d * 4);
            } else {
                kern_join_segment(&m[r], &l[r], o + (size_t)r * (size_t)d, ms[r], ls[r],
                                  os + (size_t)r * (size_t)d, d);
            }
        }
    }
}

/* Rows [r0, r1) of a sequence for every query head of one kv head. */
static void kern_attn_fn(const struct kern_attn *a, int seq, int kvh, int r0, int r1, void *scratch)
{
    const struct row_seq *sq = &a->rows->seq[seq];
    int d = a->s.head_dim, group = a->s.n_heads / a->s.n_kv_heads;
    int total = (r1 - r0) * group;
    float *qf = scratch;          /* (VEC_ROWS, d) */
    float *o = qf + VEC_ROWS * d; /* (VEC_ROWS, d) */
    float *more = o + VEC_ROWS * d;
    float m[VEC_ROWS], l[VEC_ROWS];
    int pos[VEC_ROWS];

    for (int i = 0; i < total; i += VEC_ROWS) {
        int rows = total - i < VEC_ROWS ? total - i : VEC_ROWS;
        memset(qf, 0, sizeof(float) * VEC_ROWS * (size_t)d);
        for (int r = 0; r < rows; r++) {
            int row = r0 + (i + r) / group, head = kvh * group + (i + r) % group;
            const uint16_t *q =
                a->q + (size_t)(sq->row0 + row) * (size_t)a->ldq + (size_t)(head * d);
            pos[r] = sq->pos0 + row;
            for (int c = 0; c < d; c += 16) {
                vf_store(qf + r * d + c, vf_loadbf(q + c));
            }
        }
        kern_attn_block(a, sq, kvh, rows, qf, pos, more, m, l, o);
        for (int r = 0; r < rows; r++) {
            int row = sq->row0 + r0 + (i + r) / group, head = kvh * group + (i + r) % group;
            uint16_t *out = a->out + (size_t)row * (size_t)a->ldo + (size_t)(head * d);
            for (int c = 0; c < d; c += 16) {
                vf_storebf(out + c, vf_div(vf_load(o + r * d + c), vf_set1(l[r])));
            }
            if (a->lse) {
                a->lse[(size_t)row * (size_t)a->ldl + (size_t)head] = m[r] + vmath_logf(l[r]);
            }
        }
    }
}

/* One query head, VEC_ROWS queries from i0: dq of them, and their share of dk, dv. */
struct kern_bwd {
    int d, t;              /* head dimension, tokens */
    int tp;                /* t rounded up to 64 */
    float *kf;             /* (t, d) keys */
    float *vt;             /* (d, tp) values, transposed */
    float *dk, *dv;        /* (t, d) partial sums */
    float *p, *ds;         /* (VEC_ROWS, tp) */
    float *qf, *dof, *dqf; /* (VEC_ROWS, d) */
};

static void kern_bwd_scores(const struct kern_attn *a, const struct row_seq *sq, int kvh,
                            const struct kern_bwd *w, int i0, int rows, const float *lse,
                            const float *dsum)
{
    const uint16_t *kv = a->kv->data;
    float s[VEC_ROWS * PLAN_KV_BLOCK];
    int last = i0 + rows - 1;

    for (int b = 0; b <= last; b += PLAN_KV_BLOCK) {
        int page = sq->pages[b / PLAN_KV_BLOCK];
        kern_scores(w->qf, w->d, kv + kv_key_offset(a->kv, page, a->layer, kvh), s);
        for (int j = 0; j < PLAN_KV_BLOCK; j += 16) {
            vf acc[VEC_ROWS];
            for (int r = 0; r < VEC_ROWS; r++) {
                acc[r] = vf_zero();
            }
            for (int c = 0; c < w->d; c++) {
                vf v = vf_load(w->vt + (size_t)c * (size_t)w->tp + (size_t)(b + j));
                for (int r = 0; r < VEC_ROWS; r++) {
                    acc[r] = vf_fma(vf_set1(w->dof[r * w->d + c]), v, acc[r]);
                }
            }
            for (int r = 0; r < rows; r++) {
                vf x = vf_mul(vf_load(s + r * PLAN_KV_BLOCK + j), vf_set1(a->s.scale));
                vf p = vf_exp(vf_sub(x, vf_set1(lse[r])));
                vf ds;
                p = vf_first(i0 + r + 1 - (b + j), p, vf_zero());
                ds = vf_mul(vf_mul(p, vf_sub(acc[r], vf_set1(dsum[r]))), vf_set1(a->s.scale));
                vf_store(w->p + (size_t)r * (size_t)w->tp + (size_t)(b + j), p);
                vf_store(w->ds + (size_t)r * (size_t)w->tp + (size_t)(b + j), ds);
            }
        }
    }
}

/* dq of the rows, and dk, dv += their share; row r sees keys 0 .. i0 + r. */
static void kern_bwd_products(const struct kern_bwd *w, int i0, int rows)
{
    for (int c = 0; c < w->d; c += 16) {
        vf dq[VEC_ROWS], q[VEC_ROWS], dout[VEC_ROWS];
        for (int r = 0; r < rows; r++) {
            dq[r] = vf_zero();
            q[r] = vf_load(w->qf + r * w->d + c);
            dout[r] = vf_load(w->dof + r * w->d + c);
        }
        for (int j = 0; j < i0 + rows; j++) {
            size_t at = (size_t)j * (size_t)w->d + (size_t)c;
            vf k = vf_load(w->kf + at), dk = vf_load(w->dk + at), dv = vf_load(w->dv + at);
            for (int r = j > i0 ? j - i0 : 0; r < rows; r++) {
                vf ds = vf_set1(w->ds[(size_t)r * (size_t)w->tp + (size_t)j]);
                vf p = vf_set1(w->p[(size_t)r * (size_t)w->tp + (size_t)j]);
                dq[r] = vf_fma(ds, k, dq[r]);
                dk = vf_fma(ds, q[r], dk);
                dv = vf_fma(p, dout[r], dv);
            }
            vf_store(w->dk + at, dk);
            vf_store(w->dv + at, dv);
        }
        for (int r = 0; r < rows; r++) {
            vf_store(w->dqf + r * w->d + c, dq[r]);
        }
    }
}

static void kern_bwd_load(const struct kern_attn_bwd *a, const struct row_seq *sq, int kvh,
                          struct kern_bwd *w)
{
    const uint16_t *kv = a->f.kv->data;
    memset(w->vt, 0, sizeof(float) * (size_t)w->d * (size_t)w->tp);
    for (int j = 0; j < w->t; j++) {
        int page = sq->pages[j / PLAN_KV_BLOCK], slot = j % PLAN_KV_BLOCK;
        const uint16_t *k = kv + kv_key_offset(a->f.kv, page, a->f.layer, kvh);
        const uint16_t *v =
            kv + kv_value_offset(a->f.kv, page, a->f.layer, kvh) + (size_t)slot * (size_t)w->d;
        for (int c = 0; c < w->d; c++) {
            w->kf[(size_t)j * (size_t)w->d + (size_t)c] = dtype_from_bf16(k[kv_key_index(c, slot)]);
            w->vt[(size_t)c * (size_t)w->tp + (size_t)j] = dtype_from_bf16(v[c]);
        }
    }
}

/* Whole sequence, all query heads of a kv head. dk and dv are one f32 partial per (head, query
 * leaf), joined in ascending order. */
static void kern_attn_bwd_fn(const struct kern_attn_bwd *a, int seq, int kvh, void *scratch)
{
    const struct row_seq *sq = &a->f.rows->seq[seq];
    int d = a->f.s.head_dim, group = a->f.s.n_heads / a->f.s.n_kv_heads;
    int nkv = a->f.s.n_kv_heads;
    struct kern_bwd w;
    float *p = scratch;

    w.d = d;
    w.t = sq->nrows;
    w.tp = (w.t + 63) / 64 * 64;
    w.kf = p;
    w.vt = w.kf + (size_t)w.tp * (size_t)d;
    w.dk = w.vt + (size_t)w.tp * (size_t)d;
    w.dv = w.dk + (size_t)w.tp * (size_t)d;
    w.p = w.dv + (size_t)w.tp * (size_t)d;
    w.ds = w.p + (size_t)w.tp * VEC_ROWS;
    w.qf = w.ds + (size_t)w.tp * VEC_ROWS;
    w.dof = w.qf + VEC_ROWS * d;
    w.dqf = w.dof + VEC_ROWS * d;
    kern_bwd_load(a, sq, kvh, &w);
    for (int j = 0; j < w.t; j++) {
        float *dkv = a->dkv + (size_t)(sq->row0 + j) * (size_t)a->lddkv;
        memset(dkv + kvh * d, 0, (size_t)d * 4);
        memset(dkv + (nkv + kvh) * d, 0, (size_t)d * 4);
    }
    for (int h = kvh * group; h < (kvh + 1) * group; h++) {
        for (int leaf = 0; leaf < w.t; leaf += PLAN_LEAF) {
            int end = leaf + PLAN_LEAF < w.t ? leaf + PLAN_LEAF : w.t;
            memset(w.dk, 0, sizeof(float) * (size_t)end * (size_t)d);
            memset(w.dv, 0, sizeof(float) * (size_t)end * (size_t)d);
            for (int i = leaf; i < end; i += VEC_ROWS) {
                int rows = end - i < VEC_ROWS ? end - i : VEC_ROWS;
                float lse[VEC_ROWS], dsum[VEC_ROWS];
                memset(w.qf, 0, sizeof(float) * 2 * VEC_ROWS * (size_t)d);
                for (int r = 0; r < rows; r++) {
                    size_t row = (size_t)(sq->row0 + i + r);
                    const uint16_t *q = a->f.q + row * (size_t)a->f.ldq + (size_t)(h * d);
                    const uint16_t *g = a->dout + row * (size_t)a->lddo + (size_t)(h * d);
                    const uint16_t *o = a->f.out + row * (size_t)a->f.ldo + (size_t)(h * d);
                    vf s = vf_zero();
                    for (int c = 0; c < d; c += 16) {
                        vf_store(w.qf + r * d + c, vf_loadbf(q + c));
                        vf_store(w.dof + r * d + c, vf_loadbf(g + c));
                        s = vf_fma(vf_loadbf(g + c), vf_loadbf(o + c), s);
                    }
                    dsum[r] = vf_hsum(s);
                    lse[r] = a->f.lse[row * (size_t)a->f.ldl + (size_t)h];
                }
                kern_bwd_scores(&a->f, sq, kvh, &w, i, rows, lse, dsum);
                kern_bwd_products(&w, i, rows);
                for (int r = 0; r < rows; r++) {
                    memcpy(a->dq + (size_t)(sq->row0 + i + r) * (size_t)a->lddq + (size_t)(h * d),
                           w.dqf + r * d, (size_t)d * 4);
                }
            }
            for (int j = 0; j < end; j++) {
                float *dkv = a->dkv + (size_t)(sq->row0 + j) * (size_t)a->lddkv;
                for (int c = 0; c < d; c += 16) {
                    float *ok = dkv + kvh * d + c, *ov = dkv + (nkv + kvh) * d + c;
                    vf_store(ok, vf_add(vf_load(ok), vf_load(w.dk + (size_t)j * (size_t)d + c)));
                    vf_store(ov, vf_add(vf_load(ov), vf_load(w.dv + (size_t)j * (size_t)d + c)));
                }
            }
        }
    }
}

/* ---- elementwise -------------------------------------------------------------------------------
 */

static inline vf kern_sigmoid(vf x)
{
    return vf_div(vf_set1(1.0f), vf_add(vf_set1(1.0f), vf_exp(vf_sub(vf_zero(), x))));
}

static void kern_swiglu(const uint16_t *gu, int inter, uint16_t *y)
{
    for (int i = 0; i < inter; i += 16) {
        vf g = vf_loadbf(gu + i), u = vf_loadbf(gu + inter + i);
        vf_storebf(y + i, vf_mul(vf_mul(g, kern_sigmoid(g)), u));
    }
}

static void kern_swiglu_bwd(const uint16_t *dy, const uint16_t *gu, int inter, uint16_t *dgu)
{
    for (int i = 0; i < inter; i += 16) {
        vf g = vf_loadbf(gu + i), u = vf_loadbf(gu + inter + i), d = vf_loadbf(dy + i);
        vf s = kern_sigmoid(g), one = vf_set1(1.0f);
        vf ds = vf_mul(s, vf_fma(g, vf_sub(one, s), one));
        vf_storebf(dgu + i, vf_mul(vf_mul(d, u), ds));
        vf_storebf(dgu + inter + i, vf_mul(d, vf_mul(g, s)));
    }
}

static int kern_add_row(const float *dy, int n, int64_t *grad, float scale)
{
    int bad = 0;
    for (int i = 0; i < n; i += 16) {
        bad |= vf_accumulate(grad + i, vf_load(dy + i), scale);
    }
    return bad;
}

static vf kern_load_tail(const float *x, int n, float fill)
{
    float t[16];
    for (int i = 0; i < 16; i++) {
        t[i] = i < n ? x[i] : fill;
    }
    return vf_load(t);
}

static void kern_logits_row(float *x, int n, float temperature, const struct leafset *leaves,
                            float *max, float sums[2], int want_entropy)
{
    float z[PLAN_MAX_LEAVES] = {0}, s[PLAN_MAX_LEAVES] = {0};
    vf top = vf_set1(-INFINITY), m;
    int i = 0;

    if (temperature != 1.0f && temperature > 0.0f) {
        for (; i + 16 <= n; i += 16) {
            vf_store(x + i, vf_div(vf_load(x + i), vf_set1(temperature)));
        }
        for (; i < n; i++) {
            x[i] = x[i] / temperature;
        }
    }
    for (i = 0; i + 16 <= n; i += 16) {
        top = vf_max(top, vf_load(x + i));
    }
    if (i < n) {
        top = vf_max(top, kern_load_tail(x + i, n - i, -INFINITY));
    }
    *max = vf_hmax(top);
    m = vf_set1(*max);
    for (int l = 0; l < leaves->n; l++) {
        vf az = vf_zero(), as = vf_zero();
        int end = leaves->r[l].end;
        for (i = leaves->r[l].start; i < end; i += 16) {
            vf v = vf_sub(
                i + 16 <= end ? vf_load(x + i) : kern_load_tail(x + i, end - i, -INFINITY), m);
            vf e = vf_exp(v);
            az = vf_add(az, e);
            if (want_entropy) {
                as = vf_fma(e, vf_max(v, vf_set1(-1e30f)), as);
            }
        }
        z[leaves->r[l].leaf] = vf_hsum(az);
        s[leaves->r[l].leaf] = vf_hsum(as);
    }
    for (int w = 1; w < leaves->leaves; w *= 2) {
        for (i = 0; i + w < leaves->leaves; i += 2 * w) {
            z[i] = z[i] + z[i + w];
            s[i] = s[i] + s[i + w];
        }
    }
    sums[0] = z[0];
    sums[1] = s[0];
}

static void kern_dlogits_row(const float *x, int n, int ld, float inv_t, int target, float max,
                             float logz, float entropy, float g, float ge, uint16_t *out)
{
    for (int i = 0; i < ld; i += 16) {
        vf lp, p, d;
        if (i >= n) {
            vf_storebf(out + i, vf_zero());
            continue;
        }
        lp = i + 16 <= n ? vf_load(x + i) : kern_load_tail(x + i, n - i, -INFINITY);
        lp = vf_sub(vf_sub(lp, vf_set1(max)), vf_set1(logz));
        p = vf_exp(lp);
        d = vf_mul(p, vf_set1(-g));
        if (ge != 0.0f) {
            lp = vf_max(lp, vf_set1(-1e30f));
            d = vf_sub(d, vf_mul(vf_mul(p, vf_add(lp, vf_set1(entropy))), vf_set1(ge)));
        }
        if (target >= i && target < i + 16) {
            float t[16];
            vf_store(t, d);
            t[target - i] = t[target - i] + g;
            d = vf_load(t);
        }
        vf_storebf(out + i, vf_mul(d, vf_set1(inv_t)));
    }
}

static void kern_to_bf16(const float *x, int n, uint16_t *y)
{
    for (int i = 0; i < n; i += 16) {
        vf_storebf(y + i, vf_load(x + i));
    }
}

static void kern_add_f32(float *y, const float *x, int n)
{
    for (int i = 0; i < n; i += 16) {
        vf_store(y + i, vf_add(vf_load(y + i), vf_load(x + i)));
    }
}

static double kern_sumsq32(const int64_t *g, double quantum)
{
    return vf_sumsq32(g, quantum);
}

static void kern_adamw(int64_t *grad, float *p, float *m, float *v, uint16_t *w16, int n,
                       double quantum, const struct adam_step *s, int decay)
{
    vf keep = vf_set1(1.0f - s->lr * s->weight_decay), step = vf_set1(s->lr / s->bias1);
    vf b1 = vf_set1(s->beta1), b2 = vf_set1(s->beta2), inv2 = vf_set1(s->bias2_sqrt);
    vf c1 = vf_set1(1.0f - s->beta1), c2 = vf_set1(1.0f - s->beta2), eps = vf_set1(s->eps);
    vf scale = vf_set1(s->grad_scale);

    for (int i = 0; i < n; i += 16) {
        vf g = vf_mul(vf_from_i64(grad + i, quantum), scale);
        vf x = vf_load(p + i), mm, vv, den;
        mm = vf_fma(b1, vf_load(m + i), vf_mul(c1, g));
        vv = vf_fma(b2, vf_load(v + i), vf_mul(c2, vf_mul(g, g)));
        den = vf_add(vf_div(vf_sqrt(vv), inv2), eps);
        if (decay) {
            x = vf_mul(x, keep);
        }
        x = vf_sub(x, vf_mul(step, vf_div(mm, den)));
        vf_store(p + i, x);
        vf_store(m + i, mm);
        vf_store(v + i, vv);
        vf_storebf(w16 + i, x);
    }
}

static void kern_exps(const float *x, int n, float sub, float *y)
{
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        vf_store(y + i, vf_exp(vf_sub(vf_load(x + i), vf_set1(sub))));
    }
    for (; i < n; i++) {
        y[i] = vmath_expf(x[i] - sub);
    }
}

#define KERN_TABLE                                                                                 \
    {                                                                                              \
        .name = VEC_NAME, .rows = VEC_ROWS, .gemm = kern_gemm_fn, .dw = kern_dw_fn,                \
        .pack_dyt = kern_pack_dyt, .pack_xp = kern_pack_xp, .pack_fwd = kern_pack_fwd,             \
        .pack_bwd = kern_pack_bwd, .rmsnorm = kern_rmsnorm, .rmsnorm_bwd = kern_rmsnorm_bwd,       \
        .rmsnorm_dw = kern_rmsnorm_dw, .bias_dw = kern_bias_dw, .rope_head = kern_rope_head,       \
        .rope_head_bwd = kern_rope_head_bwd, .attn = kern_attn_fn, .attn_bwd = kern_attn_bwd_fn,   \
        .swiglu = kern_swiglu, .swiglu_bwd = kern_swiglu_bwd, .add_row = kern_add_row,             \
        .logits_row = kern_logits_row, .dlogits_row = kern_dlogits_row, .to_bf16 = kern_to_bf16,   \
        .add_f32 = kern_add_f32, .sumsq32 = kern_sumsq32, .adamw = kern_adamw, .exps = kern_exps,  \
    }

#endif
