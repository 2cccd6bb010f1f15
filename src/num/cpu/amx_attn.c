/* Attention with its products on AMX tiles: the kernels of kern_attn.h over another kern_mul, with
 * the same bits. */
#include "num/cpu/amx_int.h"

#define KERN_MUL_TILES 1

static inline void kern_mul_begin(void)
{
    amx_configure(32);
}

/* The pairs of 16 terms and as many zeros. */
static inline void amx_attn_half(const uint16_t *b, size_t bstep, uint16_t tile[512])
{
    memset(tile, 0, 1024);
    for (int i = 0; i < 8; i++) {
        memcpy(tile + i * 32, b + (size_t)i * bstep, 64);
    }
    AMX_BARRIER;
}

/* Tiles 0-3 accumulate (32, 32) of c; 4, 5 hold rows of a; 6, 7 columns of b. two_m, two_n: whether
 * rows and columns 16-31 exist. Constants at every call, so that no branch is left. */
static inline __attribute__((always_inline)) void
amx_attn_block(const uint16_t *a, size_t lda, const uint16_t *const *b, int span, size_t bstep,
               size_t col, int k, float *c, size_t ldc, int add, int two_m, int two_n)
{
    float *c2 = c + 16 * ldc;
    uint16_t half[512];

    if (add) {
        _tile_loadd(0, c, ldc * 4);
        if (two_n) {
            _tile_loadd(1, c + 16, ldc * 4);
        }
        if (two_m) {
            _tile_loadd(2, c2, ldc * 4);
        }
        if (two_m && two_n) {
            _tile_loadd(3, c2 + 16, ldc * 4);
        }
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int t = 0; t < k; t += 32) {
        const uint16_t *p = b[t / span] + (size_t)(t % span / 2) * bstep + 2 * col;
        const uint16_t *at = a + t;
        if (k - t < 32) {
            amx_attn_half(p, bstep, half);
            _tile_loadd(6, half, 64);
        } else {
            _tile_loadd(6, p, bstep * 2);
        }
        _tile_loadd(4, at, lda * 2);
        _tile_dpbf16ps(0, 4, 6);
        if (two_m) {
            _tile_loadd(5, at + 16 * lda, lda * 2);
            _tile_dpbf16ps(2, 5, 6);
        }
        if (two_n) {
            if (k - t < 32) {
                amx_attn_half(p + 32, bstep, half);
                _tile_loadd(7, half, 64);
            } else {
                _tile_loadd(7, p + 32, bstep * 2);
            }
            _tile_dpbf16ps(1, 4, 7);
            if (two_m) {
                _tile_dpbf16ps(3, 5, 7);
            }
        }
    }
    _tile_stored(0, c, ldc * 4);
    if (two_n) {
        _tile_stored(1, c + 16, ldc * 4);
    }
    if (two_m) {
        _tile_stored(2, c2, ldc * 4);
    }
    if (two_m && two_n) {
        _tile_stored(3, c2 + 16, ldc * 4);
    }
}

/* See kern_attn.h. */
static void kern_mul(const uint16_t *a, size_t lda, int m, const uint16_t *const *b, int span,
                     size_t bstep, int n, int k, float *c, size_t ldc, int add, float *tmp)
{
    (void)tmp;
    AMX_BARRIER;
    for (int j = 0; j < n; j += 32) {
        for (int i = 0; i < m; i += 32) {
            const uint16_t *ai = a + (size_t)i * lda;
            float *ci = c + (size_t)i * ldc + j;
            size_t col = (size_t)j;
            if (n - j > 16 && m - i > 16) {
                amx_attn_block(ai, lda, b, span, bstep, col, k, ci, ldc, add, 1, 1);
            } else if (n - j > 16) {
                amx_attn_block(ai, lda, b, span, bstep, col, k, ci, ldc, add, 0, 1);
            } else if (m - i > 16) {
                amx_attn_block(ai, lda, b, span, bstep, col, k, ci, ldc, add, 1, 0);
            } else {
                amx_attn_block(ai, lda, b, span, bstep, col, k, ci, ldc, add, 0, 0);
            }
        }
    }
}

#include "num/cpu/kern_body.h"

/* ---- the forward pass of a segment -------------------------------------------------------------
 *
 * Heads of 64 dimensions without a soft cap. Scores of 32 rows at a time, the queries
 * staying in tiles 0-3; the maxima of a page are taken while the products of the next one run. Then
 * 16 rows at a time: tiles 0-3 accumulate 64 dimensions while the vector unit makes the next
 * page's probabilities. */

#define AMX_PAGE  PLAN_KV_BLOCK
#define AMX_DIM   64
#define AMX_PROBS (2 * AMX_PAGE)
#define AMX_FEW   12 /* fewer rows would mostly compute what is not there */

/* What rows see of the keys: those from lo to hi, and pages [full0, full1) all rows alike. */
struct amx_seen {
    const int *lo, *hi;
    int page0, cols; /* first page, one past the last 16 keys that a row sees */
    int full0, full1;
};

/* Rows beyond n do not count. */
static void amx_attn_seen(struct amx_seen *v, const int *lo, const int *hi, int n)
{
    int lo0 = INT_MAX, lo1 = 0, hi0 = INT_MAX, hi1 = 0;
    for (int r = 0; r < n; r++) {
        lo0 = lo[r] < lo0 ? lo[r] : lo0;
        lo1 = lo[r] > lo1 ? lo[r] : lo1;
        hi0 = hi[r] < hi0 ? hi[r] : hi0;
        hi1 = hi[r] > hi1 ? hi[r] : hi1;
    }
    v->lo = lo;
    v->hi = hi;
    v->page0 = lo0 / AMX_PAGE;
    v->cols = (hi1 + 15) / 16;
    v->full0 = (lo1 + AMX_PAGE - 1) / AMX_PAGE;
    v->full1 = hi0 / AMX_PAGE;
}

/* Maxima of rows [r0, r1) with those of a page's n times 16 scores. */
static inline void amx_attn_top(const float *s, size_t ld, const struct amx_seen *v, int page,
                                int r0, int r1, float *top)
{
    int full = page >= v->full0 && page < v->full1, n = v->cols - page * 4;
    const float *x = s + (size_t)r0 * ld + (size_t)(page * AMX_PAGE);

    n = n < 4 ? n : 4;
    for (int r = r0; r < r1; r++, x += ld) {
        vf t = vf_load(top + r * 16);
        if (full) {
            t = vf_max(vf_max(vf_max(t, vf_load(x)), vf_load(x + 16)),
                       vf_max(vf_load(x + 32), vf_load(x + 48)));
        } else {
            for (int c = 0; c < n; c++) {
                int at = page * AMX_PAGE + c * 16;
                t = vf_max(t, kern_lanes(v->lo[r] - at, v->hi[r] - at, vf_load(x + c * 16),
                                         vf_set1(-INFINITY)));
            }
        }
        vf_store(top + r * 16, t);
    }
}

/* 16 keys against the queries in tiles 0-3. */
static inline void amx_attn_column(const uint16_t *key, float *s, size_t ld)
{
    const size_t step = AMX_PAGE * 4;
    _tile_zero(4);
    _tile_zero(5);
    _tile_loadd(6, key, step);
    _tile_loadd(7, key + 16 * AMX_PAGE * 2, step);
    _tile_dpbf16ps(4, 0, 6);
    _tile_dpbf16ps(5, 2, 6);
    _tile_dpbf16ps(4, 1, 7);
    _tile_dpbf16ps(5, 3, 7);
    _tile_stored(4, s, ld * 4);
    _tile_stored(5, s + 16 * ld, ld * 4);
}

/* Scores of 32 rows and, in every lane, their maxima. */
static inline void amx_attn_scores(const uint16_t *q, const uint16_t *const *keys,
                                   const struct amx_seen *v, float *s, size_t ld, float *top)
{
    int pages = (v->cols + 3) / 4;

    for (int r = 0; r < 32; r++) {
        vf_store(top + r * 16, vf_set1(-INFINITY));
    }
    AMX_BARRIER;
    _tile_loadd(0, q, AMX_DIM * 2);
    _tile_loadd(1, q + 32, AMX_DIM * 2);
    _tile_loadd(2, q + 16 * AMX_DIM, AMX_DIM * 2);
    _tile_loadd(3, q + 16 * AMX_DIM + 32, AMX_DIM * 2);
    for (int b = v->page0; b < pages; b++) {
        int n = v->cols - b * 4 < 4 ? v->cols - b * 4 : 4;
        for (int c = 0; c < 4; c++) {
            if (c < n) {
                amx_attn_column(keys[b] + c * 32, s + b * AMX_PAGE + c * 16, ld);
            }
            if (b > v->page0) {
                amx_attn_top(s, ld, v, b - 1, c * 8, c * 8 + 8, top);
            }
            AMX_BARRIER;
        }
    }
    if (pages > v->page0) {
        amx_attn_top(s, ld, v, pages - 1, 0, 32, top);
    }
}

/* Probabilities of rows [r0, r0 + 4) of a page; sum: their sums in every lane. */
static inline void amx_attn_powers(const float *s, size_t ld, const struct amx_seen *v, int page,
                                   int r0, float unit, const float *neg, float *sum, uint16_t *p)
{
    int full = page >= v->full0 && page < v->full1;
    vf u = vf_set1(unit);

    for (int r = r0; r < r0 + 4; r++) {
        const float *x = s + (size_t)r * ld + (size_t)(page * AMX_PAGE);
        vf e[4], t = vf_load(sum + r * 16), less = vf_set1(neg[r]);
        for (int c = 0; c < 4; c++) {
            e[c] = kern_pow2(vf_fma(vf_load(x + c * 16), u, less));
        }
        if (!full) {
            for (int c = 0; c < 4; c++) {
                int at = page * AMX_PAGE + c * 16;
                e[c] = kern_lanes(v->lo[r] - at, v->hi[r] - at, e[c], vf_zero());
            }
        }
        for (int c = 0; c < 4; c++) {
            t = vf_add(t, e[c]);
        }
        vf_store(sum + r * 16, t);
        for (int c = 0; c < 4; c += 2) {
            _mm512_storeu_si512((void *)(p + r * AMX_PROBS + c * 16),
                                (__m512i)_mm512_cvtne2ps_pbh(e[c + 1], e[c]));
        }
    }
}

/* A quarter of a page's products: 32 keys with 32 dimensions. */
static inline void amx_attn_values(const uint16_t *p, const uint16_t *value, int quarter)
{
    const size_t step = AMX_DIM * 4;
    const uint16_t *b = value + (quarter >= 2 ? 16 * AMX_DIM * 2 : 0);
    AMX_BARRIER;
    if (quarter % 2 == 0) {
        _tile_loadd(4, p + (quarter / 2) * 32, AMX_PROBS * 2);
        _tile_loadd(6, b, step);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + 32, step);
        _tile_dpbf16ps(1, 4, 7);
    } else {
        _tile_loadd(6, b + 64, step);
        _tile_dpbf16ps(2, 4, 6);
        _tile_loadd(7, b + 96, step);
        _tile_dpbf16ps(3, 4, 7);
    }
}

/* Sums of values of 16 rows to o. p: (16, AMX_PROBS), two pages' probabilities by turns. */
static inline void amx_attn_sums(const float *s, size_t ld, const struct amx_seen *v, float unit,
                                 const float *neg, float *sum, uint16_t *p,
                                 const uint16_t *const *values, float *o)
{
    int pages = (v->cols + 3) / 4;

    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int b = v->page0; b <= pages; b++) {
        /* the last page's second half is read only where a row sees it */
        int n = b > v->page0 ? (v->cols - (b - 1) * 4 > 2 ? 4 : 2) : 0;
        for (int i = 0; i < 4; i++) {
            if (b < pages) {
                amx_attn_powers(s, ld, v, b, i * 4, unit, neg, sum, p + b % 2 * AMX_PAGE);
            }
            if (i < n) {
                amx_attn_values(p + (b + 1) % 2 * AMX_PAGE, values[b - 1], i);
            }
        }
    }
    _tile_stored(0, o, AMX_DIM * 4);
    _tile_stored(1, o + 16, AMX_DIM * 4);
    _tile_stored(2, o + 32, AMX_DIM * 4);
    _tile_stored(3, o + 48, AMX_DIM * 4);
    AMX_BARRIER;
}

/* vf_hmax or vf_hsum of 16 rows. */
static inline vf amx_attn_across(const float *x, int max)
{
    __m512i t[16];
    vf v[16];
    for (int i = 0; i < 16; i++) {
        t[i] = _mm512_castps_si512(vf_load(x + i * 16));
    }
    vec_transpose(t);
    for (int i = 0; i < 16; i++) {
        v[i] = _mm512_castsi512_ps(t[i]);
    }
    for (int n = 8; n; n /= 2) {
        for (int i = 0; i < n; i++) {
            v[i] = max ? vf_max(v[i], v[i + n]) : vf_add(v[i], v[i + n]);
        }
    }
    return v[0];
}

static int kern_attn_tiles(const struct kern_attn *a, struct kern_rows *w,
                           const uint16_t *const *keys, const uint16_t *const *values, int n,
                           const int *lo, const int *hi, float *m, float *l)
{
    size_t ld = KERN_SCORE_LD(n);
    float unit = kern_unit(&a->s), neg[16], top[32 * 16], sum[16 * 16];

    if (w->n < AMX_FEW || a->s.softcap > 0.0f || a->s.head_dim != AMX_DIM) {
        return 0;
    }
    for (int i = 0; i < w->n; i += 32) {
        struct amx_seen v;
        float *s = w->s + (size_t)i * ld;
        amx_attn_seen(&v, lo + i, hi + i, w->n - i < 32 ? w->n - i : 32);
        amx_attn_scores(w->q + (size_t)(i * AMX_DIM), keys, &v, s, ld, top);
        for (int j = i; j < i + 32 && j < w->n; j += 16) {
            vf most = vf_mul(amx_attn_across(top + (j - i) * 16, 1), vf_set1(unit));
            vf_store(m + j, most);
            vf_store(neg, vf_sub(vf_set1(-0.0f), most));
            memset(sum, 0, sizeof sum);
            amx_attn_seen(&v, lo + j, hi + j, w->n - j < 16 ? w->n - j : 16);
            amx_attn_sums(w->s + (size_t)j * ld, ld, &v, unit, neg, sum, w->p, values,
                          w->o + (size_t)(j * AMX_DIM));
            vf_store(l + j, amx_attn_across(sum, 0));
        }
    }
    return 1;
}

#include "num/cpu/amx_bwd.h"

const struct kern amx_attn_kern = KERN_TABLE;
