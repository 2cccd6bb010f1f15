/* Part of kern_body.h: products, weight gradients, packing. */
#ifndef CPU_KERN_GEMM_H
#define CPU_KERN_GEMM_H

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
        const float *res =
            g->residual ? (const float *)g->residual + (size_t)row * (size_t)g->ldr + col : NULL;
        if (n == 16) {
            vf_store(c, res ? vf_add(vf_load(res), x) : x);
            return;
        }
        vf_store(tmp, x);
        for (int i = 0; i < n; i++) {
            c[i] = res ? res[i] + tmp[i] : tmp[i];
        }
    } else {
        uint16_t *c = (uint16_t *)g->c + (size_t)row * (size_t)g->ldc + (size_t)col;
        const uint16_t *res =
            g->residual ? (const uint16_t *)g->residual + (size_t)row * (size_t)g->ldr + col : NULL;
        uint16_t t16[16] = {0};
        if (n == 16) {
            vf_storebf(c, res ? vf_add(vf_loadbf(res), x) : x);
            return;
        }
        if (res) {
            memcpy(t16, res, (size_t)n * 2);
        }
        vf_storebf(t16, res ? vf_add(vf_loadbf(t16), x) : x);
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
            const uint16_t *b =
                g->b + (size_t)(n / 32) * (size_t)g->ktiles * 1024 + (size_t)(n / 16 % 2) * 512;
            int cols = n1 - n < 16 ? n1 - n : 16;
            for (int l = 0; l < g->leaves->leaves; l++) {
                for (int r = 0; r < VEC_ROWS; r++) {
                    leaf[l][r] = vf_zero();
                }
            }
            for (int i = 0; i < g->leaves->n; i++) {
                for (int k = g->leaves->r[i].start; k < g->leaves->r[i].end; k += 32) {
                    kern_block(af + k, (size_t)kp, b + (size_t)(k / 32) * 1024, 32,
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
                    const uint16_t *a =
                        g->dyt + kern_dw_tile(n, tb, g->ttiles) + (size_t)(n % 16) * 32;
                    kern_expand(a, 32, VEC_ROWS, 32, af);
                    kern_block(af, 32, g->xp + kern_dw_tile(k, tb, g->ttiles), 32, acc);
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

/* Rows [32 tb, 32 tb + rows) of a leaf's dy as tiles (16 n, 32 t). */
static void kern_pack_dyt(const uint16_t *dy, int64_t ld, int rows, int n, int tb, int ttiles,
                          uint16_t *dyt, float *squares)
{
    (void)squares;
    for (int c = 0; c < n; c += 16) {
        uint16_t *out = dyt + kern_dw_tile(c, tb, ttiles);
        for (int t = 0; t < 32; t++) {
            for (int i = 0; i < 16; i++) {
                out[i * 32 + t] = t < rows ? dy[(size_t)t * (size_t)ld + (size_t)(c + i)] : 0;
            }
        }
    }
}

static void kern_pack_xp(const uint16_t *x, int64_t ld, int rows, int k, int tb, int ttiles,
                         uint16_t *xp, float *squares)
{
    (void)squares;
    for (int c = 0; c < k; c += 16) {
        uint16_t *out = xp + kern_dw_tile(c, tb, ttiles);
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
    out += (size_t)(nb / 2) * (size_t)(k / 32) * 1024 + (size_t)(nb % 2) * 512;
    for (int kb = 0; kb < k / 32; kb++, out += 1024) {
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
    out += (size_t)(kb / 2) * (size_t)ntiles * 1024 + (size_t)(kb % 2) * 512;
    for (int nb = 0; nb < ntiles; nb++, out += 1024) {
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

static void kern_unpack_fwd(const uint16_t *fwd, int k, int nb, uint16_t *w, int64_t ld)
{
    const uint16_t *in = fwd + (size_t)(nb / 2) * (size_t)(k / 32) * 1024 + (size_t)(nb % 2) * 512;
    for (int kb = 0; kb < k / 32; kb++, in += 1024) {
        for (int i = 0; i < 16; i++) {
            uint16_t *dst = w + (size_t)i * (size_t)ld + (size_t)kb * 32;
            for (int kp = 0; kp < 16; kp++) {
                memcpy(dst + 2 * kp, in + kp * 32 + 2 * i, 4);
            }
        }
    }
}

static void kern_fwd_to_bwd(const uint16_t *fwd, int n, int k, int kb, uint16_t *out)
{
    /* column block kb is the lower or upper half of the forward tiles' 32 columns */
    const uint16_t *in = fwd + (size_t)(kb / 2) * 1024 + (size_t)(kb % 2) * 256;
    for (int nb = 0; nb < (n + 31) / 32; nb++, in += (size_t)(k / 32) * 1024, out += 1024) {
        for (int np = 0; np < 16; np++) {
            const uint16_t *t = in + np / 8 * 512 + np % 8 * 4;
            for (int i = 0; i < 16; i++) {
                out[np * 32 + 2 * i] = t[(i / 2) * 32 + i % 2];
                out[np * 32 + 2 * i + 1] = t[(i / 2) * 32 + 2 + i % 2];
            }
        }
    }
}

#endif
