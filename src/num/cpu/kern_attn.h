/* Part of kern_body.h: attention. */
#ifndef CPU_KERN_ATTN_H
#define CPU_KERN_ATTN_H

/* ---- attention ---------------------------------------------------------------------------------
 *
 * Written once for every instruction set on one product, kern_mul, and on row passes. Masked terms
 * are zeros; where an operand is not finite a zero would not be neutral, and the careful product
 * leaves out what is not seen. */

#ifndef KERN_MUL_TILES
#define KERN_MUL_TILES 0 /* 1: kern_mul is there already, on matrix tiles */
#endif

/* Values from row to row of n keys: close together, but not in the same cache sets. */
#define KERN_SCORE_LD(n) ((size_t)(n) + 16)
#define KERN_PROB_LD(n)  ((size_t)(n) + 32)
#define KERN_KEYS_LD     (KERN_ATTN_KEYS + 16)
#define KERN_SEG_PAGES   (PLAN_KV_SEGMENT / PLAN_KV_BLOCK)

/* Results are never denormal (FTZ), so the instruction equals our own rounding. */
#if defined(__AVX512BF16__)
/* Rounds a and b: as pairs, and with ra not NULL each on its own too. */
static inline void kern_storepairs(uint16_t *pairs, uint16_t *ra, uint16_t *rb, vf a, vf b)
{
    const __m512i zip = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    __m512i z = (__m512i)_mm512_cvtne2ps_pbh(b, a);
    _mm512_storeu_si512((void *)pairs, _mm512_permutexvar_epi16(zip, z));
    if (ra) {
        _mm256_storeu_si256((__m256i *)ra, _mm512_castsi512_si256(z));
        _mm256_storeu_si256((__m256i *)rb, _mm512_extracti64x4_epi64(z, 1));
    }
}
#else
static inline void kern_storepairs(uint16_t *pairs, uint16_t *ra, uint16_t *rb, vf a, vf b)
{
    uint16_t x[16], y[16];
    vf_storebf(x, a);
    vf_storebf(y, b);
    for (int i = 0; i < 16; i++) {
        pairs[2 * i] = x[i];
        pairs[2 * i + 1] = y[i];
    }
    if (ra) {
        memcpy(ra, x, sizeof x);
        memcpy(rb, y, sizeof y);
    }
}
#endif

/* vmath_pow2f of every lane. */
static inline vf kern_pow2(vf x)
{
#if defined(__AVX512DQ__)
    vf r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    vf t = vf_add(x, vf_set1(VMATH_MAGIC)), r = vf_sub(x, vf_sub(t, vf_set1(VMATH_MAGIC)));
#endif
    vf p = vf_fma(vf_set1(VMATH_P0), r, vf_set1(VMATH_P1));
    p = vf_fma(p, r, vf_set1(VMATH_P2));
    p = vf_fma(p, r, vf_set1(1.0f));
#if defined(__AVX512DQ__)
    /* Overflows by itself, and below 2^-126 to zero (FTZ). */
    return _mm512_scalef_ps(p, _mm512_sub_ps(x, r));
#else
    p = vf_scale2(p, t, VMATH_MAGIC);
    p = vf_select_gt(vf_set1(VMATH_POW2_MAX), x, p, vf_add(x, vf_set1(INFINITY)));
    return vf_select_gt(vf_set1(VMATH_POW2_MIN), x, vf_zero(), p);
#endif
}

/* What scores are multiplied by to be exponents of 2. */
static inline float kern_unit(const struct attn_shape *s)
{
    return (s->softcap > 0.0f ? 1.0f : s->scale) * VMATH_LOG2E;
}

/* Transposes 16 rows of 16 values of 4 bytes; strides in bytes. */
static inline void kern_turn(const void *src, size_t lds, void *dst, size_t ldd)
{
#if defined(__AVX512F__)
    __m512i r[16];
    for (int i = 0; i < 16; i++) {
        r[i] = _mm512_loadu_si512((const void *)((const char *)src + (size_t)i * lds));
    }
    vec_transpose(r);
    for (int i = 0; i < 16; i++) {
        _mm512_storeu_si512((void *)((char *)dst + (size_t)i * ldd), r[i]);
    }
#else
    for (int i = 0; i < 16; i++) {
        for (int j = 0; j < 16; j++) {
            memcpy((char *)dst + (size_t)j * ldd + 4 * (size_t)i,
                   (const char *)src + (size_t)i * lds + 4 * (size_t)j, 4);
        }
    }
#endif
}

#if !KERN_MUL_TILES
/* kern_block for the 16 terms that end a head dimension of 80. */
static void kern_half_block(const float *a, size_t lda, const uint16_t *b, size_t bstep, vf *acc)
{
    for (int r = 0; r < VEC_ROWS; r++) {
        vf e = vf_zero(), o = vf_zero();
        for (int kp = 0; kp < 8; kp++) {
            vf be, bo;
            vf_loadpairs(b + (size_t)kp * bstep, &be, &bo);
            e = vf_fma(vf_set1(a[(size_t)r * lda + 2 * (size_t)kp]), be, e);
            o = vf_fma(vf_set1(a[(size_t)r * lda + 2 * (size_t)kp + 1]), bo, o);
        }
        acc[r] = vf_add(acc[r], vf_add(e, o));
    }
}

/* c (m, n) f32 = [c +] a b: a (m, k) bf16 rows; b pairs of k interleaved, b[i] holding `span` terms
 * as (span / 2, n, 2) with bstep values from pair to pair. n and k are multiples of 16, rows up to
 * the next multiple of 32 may be read and written, columns of a up to that of 32. tmp: 16 k floats.
 */
static void kern_mul(const uint16_t *a, size_t lda, int m, const uint16_t *const *b, int span,
                     size_t bstep, int n, int k, float *c, size_t ldc, int add, float *tmp)
{
    for (int i = 0; i < m; i += VEC_ROWS, a += VEC_ROWS * lda, c += VEC_ROWS * ldc) {
        for (int r = 0; r < VEC_ROWS; r++) {
            for (int t = 0; t < k; t += 16) {
                vf_store(tmp + r * k + t, vf_loadbf(a + (size_t)r * lda + (size_t)t));
            }
        }
        for (int j = 0; j < n; j += 16) {
            vf acc[VEC_ROWS];
            for (int r = 0; r < VEC_ROWS; r++) {
                acc[r] = add ? vf_load(c + (size_t)r * ldc + (size_t)j) : vf_zero();
            }
            for (int t = 0; t < k; t += 32) {
                const uint16_t *bt = b[t / span] + (size_t)(t % span / 2) * bstep + 2 * (size_t)j;
                if (k - t < 32) {
                    kern_half_block(tmp + t, (size_t)k, bt, bstep, acc);
                } else {
                    kern_block(tmp + t, (size_t)k, bt, bstep, acc);
                }
            }
            for (int r = 0; r < VEC_ROWS; r++) {
                vf_store(c + (size_t)r * ldc + (size_t)j, acc[r]);
            }
        }
    }
}

static inline void kern_mul_begin(void)
{
}
#endif

/* The same for rows [0, m) with only terms [lo, hi) of each row (or of each column): what is left
 * out is not read. Slow; for operands with infinities or NaN. */
static void kern_mul_careful(const uint16_t *a, size_t lda, int m, const uint16_t *const *b,
                             int span, size_t bstep, int n, int k, float *c, size_t ldc, int add,
                             const int *lo, const int *hi, int by_column)
{
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < n; j++) {
            int from = lo[by_column ? j : i], end = hi[by_column ? j : i];
            float acc = add ? c[(size_t)i * ldc + (size_t)j] : 0.0f;
            for (int t = 0; t < k; t += 32) {
                float sum[2] = {0.0f, 0.0f};
                for (int u = t > from ? t : from; u < t + 32 && u < end; u++) {
                    uint16_t y = b[u / span][(size_t)(u % span / 2) * bstep + 2 * (size_t)j +
                                             (size_t)(u & 1)];
                    sum[u & 1] = fmaf(dtype_from_bf16(a[(size_t)i * lda + (size_t)u]),
                                      dtype_from_bf16(y), sum[u & 1]);
                }
                acc = acc + (sum[0] + sum[1]);
            }
            c[(size_t)i * ldc + (size_t)j] = acc;
        }
    }
}

/* d values, then zeros up to dp. */
static inline void kern_copy_row(uint16_t *y, const uint16_t *x, int d, int dp)
{
    for (int c = 0; c < d; c += 16) { /* pieces that need no call */
        memcpy(y + c, x + c, 32);
    }
    for (int c = d; c < dp; c += 16) {
        memset(y + c, 0, 32);
    }
}

/* Scores become capped scores; *slope their derivative. */
static inline vf kern_cap(const struct attn_shape *s, vf x, vf *slope)
{
    vf t = vf_tanh(vf_mul(x, vf_set1(s->scale / s->softcap)));
    *slope = vf_sub(vf_set1(1.0f), vf_mul(t, t));
    return vf_mul(vf_set1(s->softcap), t);
}

/* x in lanes [lo, hi), other elsewhere */
static inline vf kern_lanes(int lo, int hi, vf x, vf other)
{
    return vf_first(lo, other, vf_first(hi, x, other));
}

/* A row of n scores of which [lo, hi) are seen: probabilities as bf16 to p (zero elsewhere), the
 * maximum and the sum. n is a multiple of 16. */
static void kern_soft_row(const struct attn_shape *s, float *x, int n, int lo, int hi, uint16_t *p,
                          float *max, float *total)
{
    float unit = kern_unit(s), m;
    vf top = vf_set1(-INFINITY), sum = vf_zero(), neg, u = vf_set1(unit);
    int from = lo / 16 * 16, to = (hi + 15) / 16 * 16;

    for (int j = 0; j < from; j += 16) {
        memset(p + j, 0, 32);
    }
    for (int j = to; j < n; j += 16) {
        memset(p + j, 0, 32);
    }
    for (int j = from; j < to; j += 16) {
        vf v = vf_load(x + j), slope;
        if (s->softcap > 0.0f) {
            v = kern_cap(s, v, &slope);
            vf_store(x + j, v);
        }
        if (j < lo || j + 16 > hi) {
            v = kern_lanes(lo - j, hi - j, v, vf_set1(-INFINITY));
        }
        top = vf_max(top, v);
    }
    m = vf_hmax(top) * unit;
    neg = vf_set1(-m);
    for (int j = from; j < to; j += 16) {
        vf v = kern_pow2(vf_fma(vf_load(x + j), u, neg));
        if (j < lo || j + 16 > hi) {
            v = kern_lanes(lo - j, hi - j, v, vf_zero());
        }
        sum = vf_add(sum, v);
        vf_storebf(p + j, v);
    }
    *max = m;
    *total = vf_hsum(sum);
}

/* Joins maxima and sums of 16 rows' finished segments to those before them, left to right; fa and
 * fb: what their values are multiplied by then. */
static inline void kern_join_rows(float *m, float *l, const float *ms, const float *ls, float *fa,
                                  float *fb)
{
    vf x = vf_load(m), y = vf_load(ms), most = vf_select_gt(x, y, x, y);
    vf a = kern_pow2(vf_sub(x, most)), b = kern_pow2(vf_sub(y, most));
    vf_store(m, most);
    vf_store(l, vf_add(vf_mul(vf_load(l), a), vf_mul(vf_load(ls), b)));
    vf_store(fa, a);
    vf_store(fb, b);
}

static inline void kern_join_values(float *o, const float *os, int d, float fa, float fb)
{
    vf a = vf_set1(fa), b = vf_set1(fb);
    for (int c = 0; c < d; c += 16) {
        vf_store(o + c, vf_add(vf_mul(vf_load(o + c), a), vf_mul(vf_load(os + c), b)));
    }
}

/* The same for one row. */
static inline void kern_join_segment(float *m, float *l, float *o, float ms, float ls,
                                     const float *os, int d)
{
    float f[6][16] = {{*m}, {*l}, {ms}, {ls}};
    kern_join_rows(f[0], f[1], f[2], f[3], f[4], f[5]);
    *m = f[0][0];
    *l = f[1][0];
    kern_join_values(o, os, d, f[4][0], f[5][0]);
}

/* Up to KERN_ATTN_ROWS queries of one kv head. */
struct kern_rows {
    int n, pos[KERN_ATTN_ROWS];
    float m[KERN_ATTN_ROWS], l[KERN_ATTN_ROWS];
    uint16_t *q; /* (32, dp) */
    float *s;    /* (32, KERN_SCORE_LD(keys)) */
    uint16_t *p; /* (32, KERN_PROB_LD(keys)) */
    float *o;    /* (32, d) of the segment */
    float *all;  /* (32, d) joined */
    float *tmp;
};

#if KERN_MUL_TILES
/* m, l and o of the rows, all keys at once; row r sees keys [lo[r], hi[r]) of n. Scores are left in
 * s. Returns 0 when it does not know the shape. */
static int kern_attn_tiles(const struct kern_attn *a, struct kern_rows *w,
                           const uint16_t *const *keys, const uint16_t *const *values, int n,
                           const int *lo, const int *hi, float *m, float *l);
#endif

/* 1 when n values of o are finite. */
static inline int kern_finite32(const float *o, int n)
{
    vf bad = vf_zero();
    for (int c = 0; c < n; c += 16) {
        vf x = vf_load(o + c);
        bad = vf_add(bad, vf_sub(x, x)); /* NaN for NaN and infinities */
    }
    return vf_hsum(bad) == 0.0f;
}

/* A row's sums of values again, for values that are not finite where it does not look. */
static void kern_pv_careful(const struct attn_shape *sh, const struct kern_rows *w, int r,
                            const uint16_t *const *values, int n, int lo, int hi, int tiles)
{
    int d = sh->head_dim;
    float *o = w->o + (size_t)r * (size_t)d, m, l;
    uint16_t *p = w->p + (size_t)r * KERN_PROB_LD(n);

    if (kern_finite32(o, d)) {
        return;
    }
    if (tiles) { /* which keeps no probabilities */
        kern_soft_row(sh, w->s + (size_t)r * KERN_SCORE_LD(n), n, lo, hi, p, &m, &l);
    }
    kern_mul_careful(p, 0, 1, values, PLAN_KV_BLOCK, (size_t)d * 2, d, n, o, 0, 0, &lo, &hi, 0);
}

/* The same step by step, for any shape. end: one past the last key of n that a row sees. */
static void kern_attn_steps(const struct kern_attn *a, struct kern_rows *w,
                            const uint16_t *const *keys, const uint16_t *const *values, int n,
                            int end, const int *lo, const int *hi, float *m, float *l)
{
    int d = a->s.head_dim, dp = (d + 31) / 32 * 32;

    for (int i = 0; i < n; i += PLAN_KV_BLOCK) {
        int cols = end - i < PLAN_KV_BLOCK ? (end - i + 15) / 16 * 16 : PLAN_KV_BLOCK;
        kern_mul(w->q, (size_t)dp, w->n, &keys[i / PLAN_KV_BLOCK], d, PLAN_KV_BLOCK * 2, cols, d,
                 w->s + i, KERN_SCORE_LD(n), 0, w->tmp);
    }
    for (int r = 0; r < w->n; r++) {
        uint16_t *p = w->p + (size_t)r * KERN_PROB_LD(n);
        m[r] = -INFINITY;
        l[r] = 0.0f;
        if (lo[r] < hi[r]) {
            kern_soft_row(&a->s, w->s + (size_t)r * KERN_SCORE_LD(n), n, lo[r], hi[r], p, &m[r],
                          &l[r]);
        } else {
            memset(p, 0, (size_t)n * 2);
        }
    }
    kern_mul(w->p, KERN_PROB_LD(n), w->n, values, PLAN_KV_BLOCK, (size_t)d * 2, d,
             (end + 31) / 32 * 32, w->o, (size_t)d, 0, w->tmp);
}

/* The segment that starts at seg: m, l, o of the rows that see some of it; seen[r] tells which. */
static void kern_attn_segment(const struct kern_attn *a, const struct row_seq *sq, int kvh,
                              struct kern_rows *w, int seg, float *m, float *l, int *seen)
{
    int n, b0, end = 0, first = INT_MAX, tiles = 0;
    int lo[KERN_ATTN_ROWS] = {0}, hi[KERN_ATTN_ROWS] = {0}; /* what a row sees, from b0 on */
    const uint16_t *keys[KERN_SEG_PAGES], *values[KERN_SEG_PAGES], *kv = a->kv->data;

    for (int r = 0; r < w->n; r++) {
        int f = kern_attn_first(&a->s, w->pos[r]);
        first = f < first ? f : first;
        end = w->pos[r] + 1 > end ? w->pos[r] + 1 : end;
    }
    first = first > seg ? first : seg;
    end = end < seg + PLAN_KV_SEGMENT ? end : seg + PLAN_KV_SEGMENT;
    b0 = first / PLAN_KV_BLOCK * PLAN_KV_BLOCK;
    n = end > first ? (end - b0 + PLAN_KV_BLOCK - 1) / PLAN_KV_BLOCK * PLAN_KV_BLOCK : 0;
    for (int i = 0; i < n; i += PLAN_KV_BLOCK) {
        int page = sq->pages[(b0 + i) / PLAN_KV_BLOCK];
        keys[i / PLAN_KV_BLOCK] = kv + kv_key_offset(a->kv, page, a->layer, kvh);
        values[i / PLAN_KV_BLOCK] = kv + kv_value_offset(a->kv, page, a->layer, kvh);
    }
    for (int r = 0; r < w->n; r++) {
        lo[r] = kern_attn_first(&a->s, w->pos[r]) - b0;
        lo[r] = lo[r] > 0 ? lo[r] : 0;
        hi[r] = w->pos[r] + 1 - b0 < n ? w->pos[r] + 1 - b0 : n;
        seen[r] = lo[r] < hi[r];
    }
#if KERN_MUL_TILES
    tiles = n && kern_attn_tiles(a, w, keys, values, n, lo, hi, m, l);
#endif
    if (!tiles) {
        kern_attn_steps(a, w, keys, values, n, end - b0, lo, hi, m, l);
    }
    for (int r = 0; r < w->n && !kern_finite32(w->o, w->n * a->s.head_dim); r++) {
        if (seen[r]) {
            kern_pv_careful(&a->s, w, r, values, n, lo[r], hi[r], tiles);
        }
    }
}

/* As vmath_logf, in line. */
static inline float kern_log(float x)
{
    uint32_t u;
    float m, f, z, p;
    int e;

    memcpy(&u, &x, 4);
    if (!(x > 0.0f) || u >= 0x7f800000u) {
        return vmath_logf(x);
    }
    e = (int)(u >> 23) - 126;
    u = (u & 0x007fffffu) | 0x3f000000u;
    memcpy(&m, &u, 4);
    if (m < 0.707106781186547524f) {
        e -= 1;
        m = m + m;
    }
    f = m - 1.0f;
    z = f * f;
    p = fmaf(7.0376836292e-2f, f, -1.1514610310e-1f);
    p = fmaf(p, f, 1.1676998740e-1f);
    p = fmaf(p, f, -1.2420140846e-1f);
    p = fmaf(p, f, 1.4249322787e-1f);
    p = fmaf(p, f, -1.6668057665e-1f);
    p = fmaf(p, f, 2.0000714765e-1f);
    p = fmaf(p, f, -2.4999993993e-1f);
    p = fmaf(p, f, 3.3333331174e-1f);
    p = p * f * z;
    p = fmaf((float)e, VMATH_LN2_LO, p);
    p = fmaf(z, -0.5f, p);
    p = f + p;
    return fmaf((float)e, VMATH_LN2_HI, p);
}

/* Writes a finished row. */
static inline void kern_attn_out(const struct kern_attn *a, int row, int head, float m, float l,
                                 const float *o)
{
    int d = a->s.head_dim;
    uint16_t *out = a->out + (size_t)row * (size_t)a->ldo + (size_t)(head * d);
    vf inv = vf_set1(1.0f / l);
    for (int c = 0; c < d; c += 16) {
        vf_storebf(out + c, vf_mul(vf_add(vf_load(o + c), vf_zero()), inv));
    }
    if (a->lse) {
        a->lse[(size_t)row * (size_t)a->ldl + (size_t)head] = fmaf(m, VMATH_LN2, kern_log(l));
    }
}

/* All segments that the rows see, joined left to right. */
static void kern_attn_all(const struct kern_attn *a, const struct row_seq *sq, int kvh,
                          struct kern_rows *w)
{
    int d = a->s.head_dim, last = w->pos[w->n - 1], seen[KERN_ATTN_ROWS];
    int begun[KERN_ATTN_ROWS] = {0};
    float m[KERN_ATTN_ROWS], l[KERN_ATTN_ROWS];
    int seg = kern_attn_first(&a->s, w->pos[0]) / PLAN_KV_SEGMENT * PLAN_KV_SEGMENT;

    for (; seg <= last; seg += PLAN_KV_SEGMENT) {
        float was[2][16], fa[16], fb[16];
        kern_attn_segment(a, sq, kvh, w, seg, m, l, seen);
        for (int r = 0; r < w->n; r++) {
            float *all = w->all + (size_t)r * (size_t)d, *o = w->o + (size_t)r * (size_t)d;
            if (r % 16 == 0) {
                memcpy(was[0], w->m + r, sizeof was[0]);
                memcpy(was[1], w->l + r, sizeof was[1]);
                kern_join_rows(w->m + r, w->l + r, m + r, l + r, fa, fb);
            }
            if (seen[r] && begun[r]) {
                kern_join_values(all, o, d, fa[r % 16], fb[r % 16]);
            } else if (seen[r]) {
                w->m[r] = m[r];
                w->l[r] = l[r];
                memcpy(all, o, (size_t)d * 4);
                begun[r] = 1;
            } else {
                w->m[r] = was[0][r % 16];
                w->l[r] = was[1][r % 16];
            }
        }
    }
}

static void kern_attn_fn(const struct kern_attn *a, int seq, int kvh, int r0, int r1, int seg,
                         float *parts, void *scratch)
{
    const struct row_seq *sq = &a->rows->seq[seq];
    int d = a->s.head_dim, dp = (d + 31) / 32 * 32, group = a->s.n_heads / a->s.n_kv_heads;
    int total = (r1 - r0) * group;
    struct kern_rows w;

    w.s = scratch;
    w.o = w.s + KERN_ATTN_ROWS * KERN_SCORE_LD(PLAN_KV_SEGMENT);
    w.all = w.o + KERN_ATTN_ROWS * d;
    w.tmp = w.all + KERN_ATTN_ROWS * d;
    w.p = (uint16_t *)(w.tmp + 16 * PLAN_KV_SEGMENT);
    w.q = w.p + KERN_ATTN_ROWS * KERN_PROB_LD(PLAN_KV_SEGMENT);
    kern_mul_begin();
    for (int i = 0; i < total; i += KERN_ATTN_ROWS) {
        w.n = total - i < KERN_ATTN_ROWS ? total - i : KERN_ATTN_ROWS;
        for (int r = 0; r < w.n; r++) {
            int row = r0 + (i + r) / group, head = kvh * group + (i + r) % group;
            const uint16_t *q =
                a->q + (size_t)(sq->row0 + row) * (size_t)a->ldq + (size_t)(head * d);
            w.pos[r] = sq->pos0 + row;
            kern_copy_row(w.q + (size_t)r * (size_t)dp, q, d, dp);
        }
        if (parts) {
            int seen[KERN_ATTN_ROWS];
            kern_attn_segment(a, sq, kvh, &w, seg, w.m, w.l, seen);
            for (int r = 0; r < w.n; r++) {
                float *p = parts + (size_t)(i + r) * (size_t)(d + 2);
                p[0] = w.m[r];
                p[1] = seen[r] ? w.l[r] : -1.0f; /* no sum is negative */
                memcpy(p + 2, w.o + (size_t)r * (size_t)d, (size_t)d * 4);
            }
            continue;
        }
        kern_attn_all(a, sq, kvh, &w);
        for (int r = 0; r < w.n; r++) {
            kern_attn_out(a, sq->row0 + r0 + (i + r) / group, kvh * group + (i + r) % group, w.m[r],
                          w.l[r], w.all + (size_t)r * (size_t)d);
        }
    }
}

static void kern_attn_join(const struct kern_attn *a, int seq, int kvh, int r0, int r1, int n,
                           const float *parts)
{
    const struct row_seq *sq = &a->rows->seq[seq];
    int d = a->s.head_dim, group = a->s.n_heads / a->s.n_kv_heads, total = (r1 - r0) * group;

    for (int i = 0; i < total; i++) {
        float m = 0.0f, l = 0.0f, o[512];
        int begun = 0;
        for (int s = 0; s < n; s++) {
            const float *p = parts + ((size_t)s * (size_t)total + (size_t)i) * (size_t)(d + 2);
            if (p[1] < 0.0f) {
                continue;
            }
            if (begun) {
                kern_join_segment(&m, &l, o, p[0], p[1], p + 2, d);
            } else {
                m = p[0];
                l = p[1];
                memcpy(o, p + 2, (size_t)d * 4);
                begun = 1;
            }
        }
        kern_attn_out(a, sq->row0 + r0 + i / group, kvh * group + i % group, m, l, o);
    }
}

#include "num/cpu/kern_attn_bwd.h"

#endif
