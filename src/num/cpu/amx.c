/* Products on AMX tiles. TDPBF16PS multiplies a (16, 32) by a (32, 16) block in exactly the order
 * that defines our products (even and odd chains from zero, their sum added), so results equal
 * those of the other tables bit for bit; everything that is not a product is the AVX-512 kernel. */
#include "num/cpu/vec_avx512.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "num/cpu/kern_body.h"

static const struct kern amx_base = KERN_TABLE;

#define AMX_XFEATURE_TILEDATA   18
#define AMX_ARCH_REQ_XCOMP_PERM 0x1023

struct amx_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t colsb[16];
    uint8_t rows[16];
};

/* Eight tiles of 16 rows of 64 bytes. */
static void amx_configure(void)
{
    struct amx_config c;
    memset(&c, 0, sizeof c);
    c.palette = 1;
    for (int i = 0; i < 8; i++) {
        c.colsb[i] = 64;
        c.rows[i] = 16;
    }
    _tile_loadconfig(&c);
}

/* Tiles 0-3 accumulate a (32, 32) block; 4, 5 hold rows of a; 6, 7 columns of b. One row tile (rows
 * 0-15 only) when one is set. */
static inline void amx_run(const uint16_t *a, size_t lda, const uint16_t *b0, const uint16_t *b1,
                           int k0, int k1, int one)
{
    const char *pa = (const char *)a + (size_t)k0 * 2;
    size_t sa = lda * 2;
    const uint16_t *p0 = b0 + (size_t)(k0 / 32) * 512, *p1 = b1 + (size_t)(k0 / 32) * 512;

    if (one) {
        for (int k = k0; k < k1; k += 32, pa += 64, p0 += 512, p1 += 512) {
            _tile_loadd(6, p0, 64);
            _tile_loadd(4, pa, sa);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, p1, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        return;
    }
    for (int k = k0; k < k1; k += 32, pa += 64, p0 += 512, p1 += 512) {
        _tile_loadd(6, p0, 64);
        _tile_loadd(4, pa, sa);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, pa + 16 * sa, sa);
        _tile_dpbf16ps(2, 5, 6);
        _tile_loadd(7, p1, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
    }
}

static inline void amx_zero(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

/* c (32, 32) f32 */
static inline void amx_store(float *c, int one)
{
    _tile_stored(0, c, 128);
    _tile_stored(1, c + 16, 128);
    if (!one) {
        _tile_stored(2, c + 16 * 32, 128);
        _tile_stored(3, c + 16 * 32 + 16, 128);
    }
}

/* Joins the leaves of a block by the tree, into leaf 0. */
static void amx_join(float *leaf, int n, int rows)
{
    for (int w = 1; w < n; w *= 2) {
        for (int i = 0; i + w < n; i += 2 * w) {
            float *x = leaf + i * 1024, *y = leaf + (i + w) * 1024;
            for (int j = 0; j < rows * 32; j += 16) {
                vf_store(x + j, vf_add(vf_load(x + j), vf_load(y + j)));
            }
        }
    }
}

/* Rounds two registers to 32 bf16 values. Tile products hold no denormals, so the instruction
 * equals our own rounding. */
static inline void amx_store32(uint16_t *out, __m512 lo, __m512 hi)
{
    _mm512_storeu_si512((void *)out, (__m512i)_mm512_cvtne2ps_pbh(hi, lo));
}

/* Writes a finished block, (rows, cols) of c (32, 32). */
static void amx_epilogue(const struct kern_gemm *g, int m, int n, int rows, int cols,
                         const float *c)
{
    int plain = cols == 32 && !g->bias && !g->c_f32;
    for (int r = 0; r < rows; r++, c += 32) {
        uint16_t *out = (uint16_t *)g->c + (size_t)(m + r) * (size_t)g->ldc + (size_t)n;
        __m512 lo = _mm512_load_ps(c), hi = _mm512_load_ps(c + 16);
        if (plain && !g->residual) {
            amx_store32(out, lo, hi);
        } else if (plain) {
            const uint16_t *res =
                (const uint16_t *)g->residual + (size_t)(m + r) * (size_t)g->ldr + (size_t)n;
            amx_store32(out, vf_add(vf_loadbf(res), lo), vf_add(vf_loadbf(res + 16), hi));
        } else {
            kern_store(g, m + r, n, cols < 16 ? cols : 16, lo);
            if (cols > 16) {
                kern_store(g, m + r, n + 16, cols - 16, hi);
            }
        }
    }
}

/* A block whose tiles are stored and whose result is still to be written. */
struct amx_done {
    int m, n, rows, cols; /* rows 0: none */
    float *leaf;
};

static void amx_finish(const struct kern_gemm *g, struct amx_done *d)
{
    if (d->rows) {
        amx_join(d->leaf, g->leaves->leaves, d->rows);
        amx_epilogue(g, d->m, d->n, d->rows, d->cols, d->leaf);
        d->rows = 0;
    }
}

/* All leaves of one block; the block before is finished while the last leaf's tiles are busy. */
static void amx_block(const struct kern_gemm *g, const uint16_t *a, size_t lda, const uint16_t *b0,
                      const uint16_t *b1, int one, float *leaf, struct amx_done *before)
{
    int cur = g->leaves->r[0].leaf;
    amx_zero();
    for (int i = 0; i < g->leaves->n; i++) {
        if (g->leaves->r[i].leaf != cur) {
            amx_store(leaf + cur * 1024, one);
            amx_zero();
            cur = g->leaves->r[i].leaf;
        }
        amx_run(a, lda, b0, b1, g->leaves->r[i].start, g->leaves->r[i].end, one);
    }
    amx_finish(g, before);
    amx_store(leaf + cur * 1024, one);
}

static void amx_gemm(const struct kern_gemm *g, int m0, int m1, int n0, int n1, void *scratch)
{
    int kp = g->ktiles * 32, turn = 0;
    float *leaves = scratch; /* (2, R, 32, 32): a block and the one before */
    uint16_t *pad = (uint16_t *)(leaves + 2 * PLAN_MAX_LEAVES * 1024); /* (32, kp) */
    int tail = (m1 - m0) % 32;
    unsigned present = 0; /* leaves that own a range */
    struct amx_done done = {0, 0, 0, 0, NULL};

    amx_configure();
    for (int i = 0; i < g->leaves->n; i++) {
        present |= 1u << g->leaves->r[i].leaf;
    }
    if (tail) {
        int from = m1 - tail;
        memset(pad, 0, (size_t)32 * (size_t)kp * 2);
        for (int r = 0; r < tail; r++) {
            memcpy(pad + (size_t)r * (size_t)kp, g->a + (size_t)(from + r) * (size_t)g->lda,
                   (size_t)kp * 2);
        }
    }
    for (int n = n0; n < n1; n += 32) {
        const uint16_t *b0 = g->b + (size_t)(n / 16) * (size_t)g->ktiles * 512;
        const uint16_t *b1 = n + 16 < n1 ? b0 + (size_t)g->ktiles * 512 : b0;
        for (int m = m0; m < m1; m += 32) {
            int rows = m1 - m < 32 ? m1 - m : 32;
            const uint16_t *a = rows < 32 ? pad : g->a + (size_t)m * (size_t)g->lda;
            float *leaf = leaves + turn * PLAN_MAX_LEAVES * 1024;
            for (int l = 0; l < g->leaves->leaves; l++) {
                if (!(present >> l & 1u)) {
                    memset(leaf + l * 1024, 0, sizeof(float) * 1024);
                }
            }
            amx_block(g, a, rows < 32 ? (size_t)kp : (size_t)g->lda, b0, b1, rows <= 16, leaf,
                      &done);
            done.m = m;
            done.n = n;
            done.rows = rows;
            done.cols = n1 - n < 32 ? n1 - n : 32;
            done.leaf = leaf;
            turn = !turn;
        }
    }
    amx_finish(g, &done);
}

/* A leaf's value in quanta is kept as hi 2^24 + lo, two 32-bit integers: hi is the value rounded to
 * 2^24 quanta, lo the rest rounded to one. The rest is exact in f32 and hi 2^24 is even, so this is
 * the same integer as rounding once. Sums of AMX_FLUSH leaves below AMX_SMALL cannot overflow 32
 * bits. */
#define AMX_FLUSH 128
#define AMX_SMALL 4.0f

struct amx_sums {
    int32_t hi[1024], lo[1024]; /* (32, 32) */
    float c[2][1024]; /* leaf results, in turn: one is converted while AMX fills the other */
};

/* Adds one leaf; 0 when a value is too large (or not a number) and nothing was added. */
static inline int amx_add_leaf(struct amx_sums *s, const float *c, float scale)
{
    const __m512 up = _mm512_set1_ps(scale / 16777216.0f), rest = _mm512_set1_ps(16777216.0f);
    __m512 top = _mm512_setzero_ps();
    for (int i = 0; i < 1024; i += 64) {
        __m512 a = _mm512_range_ps(_mm512_load_ps(c + i), _mm512_load_ps(c + i + 16), 0x0b);
        __m512 b = _mm512_range_ps(_mm512_load_ps(c + i + 32), _mm512_load_ps(c + i + 48), 0x0b);
        top = _mm512_range_ps(top, _mm512_range_ps(a, b, 0x0b), 0x0b);
    }
    if (_mm512_cmp_ps_mask(top, _mm512_set1_ps(AMX_SMALL), _CMP_NLT_UQ)) {
        return 0;
    }
    for (int i = 0; i < 1024; i += 64) {
        for (int j = i; j < i + 64; j += 16) { /* unrolled by the compiler */
            __m512 x = _mm512_mul_ps(_mm512_load_ps(c + j), up);
            __m512 r = _mm512_mul_ps(_mm512_reduce_ps(x, 0), rest);
            __m512i hi = _mm512_cvtps_epi32(x), lo = _mm512_cvtps_epi32(r);
            _mm512_store_si512(s->hi + j, _mm512_add_epi32(_mm512_load_si512(s->hi + j), hi));
            _mm512_store_si512(s->lo + j, _mm512_add_epi32(_mm512_load_si512(s->lo + j), lo));
        }
    }
    return 1;
}

/* grad += sums; the sums start anew. */
static int amx_flush(struct amx_sums *s, int64_t *grad, int64_t ldg, int rows)
{
    __m512i over = _mm512_setzero_si512();
    for (int r = 0; r < rows; r++) {
        for (int i = 0; i < 32; i += 8) {
            int64_t *out = grad + (size_t)r * (size_t)ldg + i;
            __m256i h = _mm256_load_si256((const __m256i *)(s->hi + r * 32 + i));
            __m256i l = _mm256_load_si256((const __m256i *)(s->lo + r * 32 + i));
            __m512i q = _mm512_add_epi64(_mm512_slli_epi64(_mm512_cvtepi32_epi64(h), 24),
                                         _mm512_cvtepi32_epi64(l));
            __m512i a = _mm512_loadu_si512((const void *)out), sum = _mm512_add_epi64(a, q);
            over = _mm512_or_si512(over, _mm512_ternarylogic_epi64(a, q, sum, 0x42));
            _mm512_storeu_si512((void *)out, sum);
        }
    }
    memset(s->hi, 0, sizeof s->hi);
    memset(s->lo, 0, sizeof s->lo);
    return _mm512_movepi64_mask(over) != 0;
}

/* One (32, 32) block of a weight gradient over all leaves. */
static int amx_dw_block(const struct kern_dw *g, int n, int k, int rows, struct amx_sums *s)
{
    const uint16_t *a0 = g->dyt + (size_t)(n / 16) * (size_t)g->ttiles * 512;
    const uint16_t *a1 = a0 + (size_t)g->ttiles * 512;
    const uint16_t *b0 = g->xp + (size_t)(k / 16) * 512;
    size_t bstep = (size_t)g->ktiles * 512;
    int64_t *grad = g->grad + (size_t)n * (size_t)g->ldg + (size_t)k;
    int bad = 0, pending = 0;

    for (int l = 0; l <= g->nleaf; l++) {
        if (l < g->nleaf) {
            amx_zero();
            for (int tb = g->tb0[l]; tb < g->tb0[l + 1]; tb++) {
                const uint16_t *b = b0 + (size_t)tb * bstep;
                _tile_loadd(6, b, 64);
                _tile_loadd(4, a0 + (size_t)tb * 512, 64);
                _tile_dpbf16ps(0, 4, 6);
                _tile_loadd(5, a1 + (size_t)tb * 512, 64);
                _tile_dpbf16ps(2, 5, 6);
                _tile_loadd(7, b + 512, 64);
                _tile_dpbf16ps(1, 4, 7);
                _tile_dpbf16ps(3, 5, 7);
            }
        }
        if (l > 0) { /* the leaf before, while the tiles are busy with this one */
            const float *c = s->c[(l - 1) & 1];
            if (amx_add_leaf(s, c, g->scale)) {
                pending++;
            } else {
                for (int r = 0; r < rows; r++) {
                    int64_t *out = grad + (size_t)r * (size_t)g->ldg;
                    bad |= vf_accumulate(out, vf_load(c + r * 32), g->scale);
                    bad |= vf_accumulate(out + 16, vf_load(c + r * 32 + 16), g->scale);
                }
            }
        }
        if (l < g->nleaf) {
            amx_store(s->c[l & 1], 0);
        }
        if (pending == AMX_FLUSH) {
            bad |= amx_flush(s, grad, g->ldg, rows);
            pending = 0;
        }
    }
    return bad | (pending ? amx_flush(s, grad, g->ldg, rows) : 0);
}

static int amx_dw(const struct kern_dw *g, int n0, int n1, void *scratch)
{
    /* columns whose packed x stays in the second-level cache while rows pass by */
    int panel = (1 << 20) / (g->ttiles * 64) / 32 * 32;
    struct amx_sums *sums = scratch; /* of whole pages, so aligned */
    int bad = 0;

    amx_configure();
    memset(sums, 0, sizeof *sums);
    panel = panel < 32 ? 32 : panel;
    for (int k0 = 0; k0 < g->k; k0 += panel) {
        int k1 = k0 + panel < g->k ? k0 + panel : g->k;
        for (int n = n0; n < n1; n += 32) {
            for (int k = k0; k < k1; k += 32) {
                bad |= amx_dw_block(g, n, k, n1 - n < 32 ? n1 - n : 32, sums);
            }
        }
    }
    return bad;
}

/* ---- packing on 512-bit registers --------------------------------------------------------------
 */

/* Transposes 16 rows of 16 32-bit values in place. */
static inline void amx_transpose(__m512i r[16])
{
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

/* 16 values of two rows as interleaved pairs; a missing row is zero. */
static inline __m512i amx_pair(const uint16_t *x, const uint16_t *y)
{
    __m512i lo =
        x ? _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)x)) : _mm512_setzero_si512();
    __m512i hi =
        y ? _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)y)) : _mm512_setzero_si512();
    return _mm512_or_si512(lo, _mm512_slli_epi32(hi, 16));
}

static void amx_pack_dyt(const uint16_t *dy, int64_t ld, int rows, int n0, int n1, int tb,
                         int ttiles, uint16_t *dyt)
{
    for (int n = n0; n < n1; n += 16) {
        uint16_t *out = dyt + ((size_t)(n / 16) * (size_t)ttiles + (size_t)tb) * 512;
        __m512i r[16];
        for (int tp = 0; tp < 16; tp++) {
            const uint16_t *p = dy + (size_t)(2 * tp) * (size_t)ld + (size_t)n;
            r[tp] = amx_pair(2 * tp < rows ? p : NULL, 2 * tp + 1 < rows ? p + ld : NULL);
        }
        amx_transpose(r);
        for (int i = 0; i < 16; i++) {
            _mm512_storeu_si512((void *)(out + i * 32), r[i]);
        }
    }
}

static void amx_pack_xp(const uint16_t *x, int64_t ld, int rows, int k, int tb, uint16_t *xp)
{
    uint16_t *out = xp + (size_t)tb * (size_t)(k / 16) * 512;
    for (int c = 0; c < k; c += 16, out += 512) {
        for (int tp = 0; tp < 16; tp++) {
            const uint16_t *p = x + (size_t)(2 * tp) * (size_t)ld + (size_t)c;
            _mm512_storeu_si512(
                (void *)(out + tp * 32),
                amx_pair(2 * tp < rows ? p : NULL, 2 * tp + 1 < rows ? p + ld : NULL));
        }
    }
}

static void amx_pack_fwd(const uint16_t *w, int64_t ld, int n, int k, int nb, uint16_t *out)
{
    out += (size_t)nb * (size_t)(k / 32) * 512;
    for (int kb = 0; kb < k / 32; kb++, out += 512) {
        __m512i r[16];
        for (int i = 0; i < 16; i++) {
            const uint16_t *p = w + (size_t)(nb * 16 + i) * (size_t)ld + (size_t)kb * 32;
            r[i] = nb * 16 + i < n ? _mm512_loadu_si512((const void *)p) : _mm512_setzero_si512();
        }
        amx_transpose(r);
        for (int i = 0; i < 16; i++) {
            _mm512_storeu_si512((void *)(out + i * 32), r[i]);
        }
    }
}

static void amx_pack_bwd(const uint16_t *w, int64_t ld, int n, int k, int kb, uint16_t *out)
{
    int ntiles = (n + 31) / 32;
    (void)k;
    out += (size_t)kb * (size_t)ntiles * 512;
    for (int row = 0; row < ntiles * 32; row += 2) {
        const uint16_t *p = w + (size_t)row * (size_t)ld + (size_t)kb * 16;
        _mm512_storeu_si512((void *)(out + row * 16),
                            amx_pair(row < n ? p : NULL, row + 1 < n ? p + ld : NULL));
    }
}

int amx_fill(struct kern *k)
{
    if (syscall(SYS_arch_prctl, AMX_ARCH_REQ_XCOMP_PERM, AMX_XFEATURE_TILEDATA) != 0) {
        return 0;
    }
    *k = amx_base;
    k->name = "amx";
    k->rows = 32;
    k->gemm = amx_gemm;
    k->attn = amx_attn_kern.attn;
    k->attn_bwd = amx_attn_kern.attn_bwd;
    k->dw = amx_dw;
    k->pack_dyt = amx_pack_dyt;
    k->pack_xp = amx_pack_xp;
    k->pack_fwd = amx_pack_fwd;
    k->pack_bwd = amx_pack_bwd;
    return 1;
}
