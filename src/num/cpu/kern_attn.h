/* Part of kern_body.h: rope and attention. */
#ifndef CPU_KERN_ATTN_H
#define CPU_KERN_ATTN_H

/* ---- rope --------------------------------------------------------------------------------------
 */

static void kern_rope_head(const uint16_t *x, const struct norm *norm, const float *cos,
                           const float *sin, const struct attn_shape *s, float *y)
{
    int d = s->head_dim, half = s->rot / 2;

    for (int i = 0; i < d; i += 16) {
        vf_store(y + i, vf_loadbf(x + i));
    }
    if (norm) {
        vf r = vf_set1(kern_rstd(x, d, norm->eps));
        for (int i = 0; i < d; i += 16) {
            vf_store(y + i, vf_mul(vf_mul(vf_load(y + i), r), kern_norm_factor(norm, i)));
        }
    }
    if (s->interleaved || half % 16) {
        for (int i = 0; i < half; i++) {
            int j = s->interleaved ? 2 * i : i, k = s->interleaved ? 2 * i + 1 : half + i;
            float a = y[j], b = y[k];
            y[j] = a * cos[i] - b * sin[i];
            y[k] = b * cos[i] + a * sin[i];
        }
        return;
    }
    for (int i = 0; i < half; i += 16) {
        vf a = vf_load(y + i), b = vf_load(y + half + i), c = vf_load(cos + i),
           sn = vf_load(sin + i);
        vf_store(y + i, vf_sub(vf_mul(a, c), vf_mul(b, sn)));
        vf_store(y + half + i, vf_add(vf_mul(b, c), vf_mul(a, sn)));
    }
}

/* The turn back: dx = rope's transpose of dy. */
static void kern_rope_back(const float *dy, const float *cos, const float *sin,
                           const struct attn_shape *s, float *dx)
{
    int d = s->head_dim, half = s->rot / 2;

    if (s->interleaved || half % 16) {
        for (int i = 0; i < half; i++) {
            int j = s->interleaved ? 2 * i : i, k = s->interleaved ? 2 * i + 1 : half + i;
            dx[j] = dy[j] * cos[i] + dy[k] * sin[i];
            dx[k] = dy[k] * cos[i] - dy[j] * sin[i];
        }
    } else {
        for (int i = 0; i < half; i += 16) {
            vf a = vf_load(dy + i), b = vf_load(dy + half + i);
            vf c = vf_load(cos + i), sn = vf_load(sin + i);
            vf_store(dx + i, vf_add(vf_mul(a, c), vf_mul(b, sn)));
            vf_store(dx + half + i, vf_sub(vf_mul(b, c), vf_mul(a, sn)));
        }
    }
    memcpy(dx + s->rot, dy + s->rot, sizeof(float) * (size_t)(d - s->rot));
}

static void kern_rope_head_bwd(const float *dy, const uint16_t *x, const struct norm *norm,
                               const float *cos, const float *sin, const struct attn_shape *s,
                               float *dx, float *dn)
{
    vf sum = vf_zero(), r, c;
    int d = s->head_dim;

    kern_rope_back(dy, cos, sin, s, dx);
    if (!norm) {
        return;
    }
    r = vf_set1(kern_rstd(x, d, norm->eps));
    for (int i = 0; i < d; i += 16) {
        vf xh = vf_mul(vf_loadbf(x + i), r), g = vf_load(dx + i);
        vf_store(dn + i, vf_mul(g, xh));
        g = vf_mul(g, kern_norm_factor(norm, i));
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
 *
 * Written once for every instruction set on one product, kern_mul, and on row passes. Masked terms
 * are zeros; where an operand is not finite a zero would not be neutral, and the careful product
 * leaves out what is not seen. */

#ifndef KERN_MUL_TILES
#define KERN_MUL_TILES 0 /* 1: kern_mul is there already, on matrix tiles */
#endif

#define KERN_SCORE_LD  (PLAN_KV_SEGMENT + 16) /* rows that do not share cache sets */
#define KERN_PROB_LD   (PLAN_KV_SEGMENT + 32)
#define KERN_KEYS_LD   (KERN_ATTN_KEYS + 16)
#define KERN_SEG_PAGES (PLAN_KV_SEGMENT / PLAN_KV_BLOCK)

/* Results are never denormal (FTZ), so the instruction equals our own rounding. */
#if defined(__AVX512BF16__)
static inline void kern_storebf(uint16_t *p, vf x)
{
    _mm256_storeu_si256((__m256i *)p, (__m256i)_mm512_cvtneps_pbh(x));
}

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
static inline void kern_storebf(uint16_t *p, vf x)
{
    vf_storebf(p, x);
}

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

/* Transposes 16 rows of 16 values of 4 bytes; strides in bytes. */
static inline void kern_turn(const void *src, size_t lds, void *dst, size_t ldd)
{
#if defined(__AVX512F__)
    __m512i r[16], t[16];
    for (int i = 0; i < 16; i++) {
        r[i] = _mm512_loadu_si512((const void *)((const char *)src + (size_t)i * lds));
    }
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
    float unit = s->softcap > 0.0f ? 1.0f : s->scale, m;
    vf top = vf_set1(-INFINITY), sum = vf_zero(), neg, u = vf_set1(unit);
    int from = lo / 16 * 16, to = (hi + 15) / 16 * 16;

    memset(p, 0, (size_t)from * 2);
    memset(p + to, 0, (size_t)(n - to) * 2);
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
        vf v = vf_exp(vf_fma(vf_load(x + j), u, neg));
        if (j < lo || j + 16 > hi) {
            v = kern_lanes(lo - j, hi - j, v, vf_zero());
        }
        sum = vf_add(sum, v);
        kern_storebf(p + j, v);
    }
    *max = m;
    *total = vf_hsum(sum);
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

/* Up to KERN_ATTN_ROWS queries of one kv head. */
struct kern_rows {
    int n, pos[KERN_ATTN_ROWS];
    float m[KERN_ATTN_ROWS], l[KERN_ATTN_ROWS];
    uint16_t *q; /* (32, dp) */
    float *s;    /* (32, KERN_SCORE_LD) */
    uint16_t *p; /* (32, KERN_PROB_LD) */
    float *o;    /* (32, d) of the segment */
    float *all;  /* (32, d) joined */
    float *tmp;
};

/* A row's sums of values again, for values that are not finite where it does not look. */
static void kern_pv_careful(const struct kern_rows *w, int r, const uint16_t *const *values, int d,
                            int n, int lo, int hi)
{
    float *o = w->o + (size_t)r * (size_t)d;
    vf bad = vf_zero();
    for (int c = 0; c < d; c += 16) {
        vf x = vf_load(o + c);
        bad = vf_add(bad, vf_sub(x, x)); /* NaN for NaN and infinities */
    }
    if (vf_hsum(bad) != 0.0f) {
        kern_mul_careful(w->p + (size_t)r * KERN_PROB_LD, 0, 1, values, PLAN_KV_BLOCK,
                         (size_t)d * 2, d, n, o, 0, 0, &lo, &hi, 0);
    }
}

/* The segment that starts at seg: m, l, o of the rows that see some of it; seen[r] tells which. */
static void kern_attn_segment(const struct kern_attn *a, const struct row_seq *sq, int kvh,
                              struct kern_rows *w, int seg, float *m, float *l, int *seen)
{
    int d = a->s.head_dim, dp = (d + 31) / 32 * 32, n, b0, end = 0, first = INT_MAX;
    const uint16_t *values[KERN_SEG_PAGES], *kv = a->kv->data;

    for (int r = 0; r < w->n; r++) {
        int f = kern_attn_first(&a->s, w->pos[r]);
        first = f < first ? f : first;
        end = w->pos[r] + 1 > end ? w->pos[r] + 1 : end;
    }
    first = first > seg ? first : seg;
    end = end < seg + PLAN_KV_SEGMENT ? end : seg + PLAN_KV_SEGMENT;
    b0 = first / PLAN_KV_BLOCK;
    n = end > first ? (end - b0 * PLAN_KV_BLOCK + PLAN_KV_BLOCK - 1) / PLAN_KV_BLOCK : 0;
    for (int i = 0; i < n; i++) {
        int page = sq->pages[b0 + i];
        const uint16_t *keys = kv + kv_key_offset(a->kv, page, a->layer, kvh);
        values[i] = kv + kv_value_offset(a->kv, page, a->layer, kvh);
        kern_mul(w->q, (size_t)dp, w->n, &keys, d, PLAN_KV_BLOCK * 2, PLAN_KV_BLOCK, d,
                 w->s + i * PLAN_KV_BLOCK, KERN_SCORE_LD, 0, w->tmp);
    }
    n *= PLAN_KV_BLOCK;
    for (int r = 0; r < w->n; r++) {
        int at = b0 * PLAN_KV_BLOCK, lo = kern_attn_first(&a->s, w->pos[r]) - at;
        int hi = w->pos[r] + 1 - at < n ? w->pos[r] + 1 - at : n;
        lo = lo > 0 ? lo : 0;
        seen[r] = lo < hi;
        m[r] = -INFINITY;
        l[r] = 0.0f;
        if (seen[r]) {
            kern_soft_row(&a->s, w->s + (size_t)r * KERN_SCORE_LD, n, lo, hi,
                          w->p + (size_t)r * KERN_PROB_LD, &m[r], &l[r]);
        } else {
            memset(w->p + (size_t)r * KERN_PROB_LD, 0, (size_t)n * 2);
        }
    }
    kern_mul(w->p, KERN_PROB_LD, w->n, values, PLAN_KV_BLOCK, (size_t)d * 2, d, n, w->o, (size_t)d,
             0, w->tmp);
    for (int r = 0; r < w->n; r++) {
        int at = b0 * PLAN_KV_BLOCK, lo = kern_attn_first(&a->s, w->pos[r]) - at;
        int hi = w->pos[r] + 1 - at < n ? w->pos[r] + 1 - at : n;
        if (seen[r]) {
            kern_pv_careful(w, r, values, d, n, lo > 0 ? lo : 0, hi);
        }
    }
}

/* Writes a finished row. */
static inline void kern_attn_out(const struct kern_attn *a, int row, int head, float m, float l,
                                 const float *o)
{
    int d = a->s.head_dim;
    uint16_t *out = a->out + (size_t)row * (size_t)a->ldo + (size_t)(head * d);
    for (int c = 0; c < d; c += 16) {
        vf_storebf(out + c, vf_div(vf_add(vf_load(o + c), vf_zero()), vf_set1(l)));
    }
    if (a->lse) {
        a->lse[(size_t)row * (size_t)a->ldl + (size_t)head] = m + vmath_logf(l);
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
        kern_attn_segment(a, sq, kvh, w, seg, m, l, seen);
        for (int r = 0; r < w->n; r++) {
            float *all = w->all + (size_t)r * (size_t)d, *o = w->o + (size_t)r * (size_t)d;
            if (seen[r] && begun[r]) {
                kern_join_segment(&w->m[r], &w->l[r], all, m[r], l[r], o, d);
            } else if (seen[r]) {
                w->m[r] = m[r];
                w->l[r] = l[r];
                memcpy(all, o, (size_t)d * 4);
                begun[r] = 1;
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
    w.o = w.s + KERN_ATTN_ROWS * KERN_SCORE_LD;
    w.all = w.o + KERN_ATTN_ROWS * d;
    w.tmp = w.all + KERN_ATTN_ROWS * d;
    w.p = (uint16_t *)(w.tmp + 16 * PLAN_KV_SEGMENT);
    w.q = w.p + KERN_ATTN_ROWS * KERN_PROB_LD;
    kern_mul_begin();
    for (int i = 0; i < total; i += KERN_ATTN_ROWS) {
        w.n = total - i < KERN_ATTN_ROWS ? total - i : KERN_ATTN_ROWS;
        for (int r = 0; r < w.n; r++) {
            int row = r0 + (i + r) / group, head = kvh * group + (i + r) % group;
            const uint16_t *q =
                a->q + (size_t)(sq->row0 + row) * (size_t)a->ldq + (size_t)(head * d);
            w.pos[r] = sq->pos0 + row;
            memcpy(w.q + (size_t)r * (size_t)dp, q, (size_t)d * 2);
            memset(w.q + (size_t)r * (size_t)dp + d, 0, (size_t)(dp - d) * 2);
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

/* ---- attention, backward -----------------------------------------------------------------------
 *
 * One leaf of queries at a time against KERN_ATTN_KEYS keys at a time: scores and their gradients
 * with queries as rows, dq += dS K, and the leaf's dk and dv as (d, keys), so that probabilities
 * are wanted as pairs of queries, which two rows make. */

#define KERN_LEAF_LD (PLAN_LEAF + 32)

struct kern_leaf {
    int d, dp, group;
    int q0, nq, nqp; /* first query, queries, the same to the next multiple of 32 */
    int k0, nk;      /* first key of those in hand, keys */
    int q_finite, k_finite;
    /* per head of the group */
    uint16_t *qr, *gr; /* (nqp, dp) queries, dout; rows from nq on are zero */
    uint16_t *qt, *gt; /* (dp, KERN_LEAF_LD) transposed */
    float *dq;         /* (nqp, d) */
    float *lse, *dsum; /* (nqp) */
    /* of the keys in hand */
    uint16_t *vd;      /* pages of (d / 2, 64, 2): values as keys are stored */
    uint16_t *kk;      /* pages of (64 / 2, d, 2): keys as values are stored */
    float *dkt, *dvt;  /* (d, KERN_KEYS_LD) */
    float *s, *dp_;    /* (32, KERN_KEYS_LD) scores, gradients of the probabilities */
    uint16_t *pp, *sp; /* (nqp / 2, KERN_ATTN_KEYS, 2) probabilities, score gradients of a head */
    uint16_t *sr;      /* (32, KERN_PROB_KEYS) score gradients as rows */
    float *tmp;
};

#define KERN_PROB_KEYS (KERN_ATTN_KEYS + 32)

static void kern_leaf_init(struct kern_leaf *w, int d, int group, void *scratch)
{
    size_t dp = (size_t)(d + 31) / 32 * 32, g = (size_t)group;
    float *f = scratch;
    uint16_t *h;

    memset(w, 0, sizeof *w);
    w->d = d;
    w->dp = (int)dp;
    w->group = group;
    w->s = f;
    w->dp_ = w->s + 32 * KERN_KEYS_LD;
    w->dkt = w->dp_ + 32 * KERN_KEYS_LD;
    w->dvt = w->dkt + dp * KERN_KEYS_LD;
    w->dq = w->dvt + dp * KERN_KEYS_LD;
    w->lse = w->dq + g * PLAN_LEAF * (size_t)d;
    w->dsum = w->lse + g * PLAN_LEAF;
    w->tmp = w->dsum + g * PLAN_LEAF;
    h = (uint16_t *)(w->tmp + 16 * PLAN_LEAF);
    w->qr = h;
    w->gr = w->qr + g * PLAN_LEAF * dp;
    w->qt = w->gr + g * PLAN_LEAF * dp;
    w->gt = w->qt + g * dp * KERN_LEAF_LD;
    w->vd = w->gt + g * dp * KERN_LEAF_LD;
    w->kk = w->vd + KERN_ATTN_KEYS * dp;
    w->pp = w->kk + KERN_ATTN_KEYS * dp;
    w->sp = w->pp + PLAN_LEAF * KERN_ATTN_KEYS;
    w->sr = w->sp + PLAN_LEAF * KERN_ATTN_KEYS;
}

/* 1 when none of n values is infinite or NaN. */
static inline int kern_finite(const uint16_t *x, size_t n)
{
    uint16_t top = 0;
    for (size_t i = 0; i < n; i++) {
        uint16_t v = x[i] & 0x7fff;
        top = v > top ? v : top;
    }
    return top < 0x7f80;
}

/* (n, dp) rows to (dp, KERN_LEAF_LD); n a multiple of 16. */
static void kern_transpose(const uint16_t *x, int n, int dp, uint16_t *y)
{
    for (int i = 0; i < n; i += 16) {
        for (int c = 0; c < dp; c += 32) {
            uint16_t t[16][32]; /* (pairs of c, queries, 2) */
            kern_turn(x + (size_t)i * (size_t)dp + (size_t)c, (size_t)dp * 2, t, sizeof t[0]);
            for (int u = 0; u < 16; u++) {
                uint16_t *even = y + (size_t)(c + 2 * u) * KERN_LEAF_LD + (size_t)i;
                uint16_t *odd = even + KERN_LEAF_LD;
                for (int j = 0; j < 16; j++) {
                    even[j] = t[u][2 * j];
                    odd[j] = t[u][2 * j + 1];
                }
            }
        }
    }
}

/* (r, c, 2), pairs along the first index, to (c / 2, 2 r, 2), pairs along the second. Reads rows up
 * to the next multiple of 16. */
static void kern_repair(const uint16_t *x, int r, int c, uint16_t *y)
{
    for (int i = 0; i < r; i += 16) {
        int n = r - i < 16 ? 2 * (r - i) : 32;
        for (int j = 0; j < c; j += 16) {
            uint16_t t[16][32]; /* (16 of c, 32 of 2 r) */
            kern_turn(x + ((size_t)i * (size_t)c + (size_t)j) * 2, (size_t)c * 4, t, sizeof t[0]);
            for (int u = 0; u < 16; u += 2) {
                uint16_t *out = y + ((size_t)((j + u) / 2) * (size_t)(2 * r) + (size_t)(2 * i)) * 2;
                if (n == 32) { /* the compiler knows the length */
                    for (int k = 0; k < 32; k++) {
                        out[2 * k] = t[u][k];
                        out[2 * k + 1] = t[u + 1][k];
                    }
                    continue;
                }
                for (int k = 0; k < n; k++) {
                    out[2 * k] = t[u][k];
                    out[2 * k + 1] = t[u + 1][k];
                }
            }
        }
    }
}

/* Queries and output gradients of a leaf, every head of the group. */
static void kern_leaf_load(const struct kern_attn_bwd *a, const struct row_seq *sq, int kvh, int l,
                           struct kern_leaf *w)
{
    int d = w->d, dp = w->dp;

    w->q0 = l * PLAN_LEAF;
    w->nq = sq->nrows - w->q0 < PLAN_LEAF ? sq->nrows - w->q0 : PLAN_LEAF;
    w->nqp = (w->nq + 31) / 32 * 32;
    w->q_finite = 1;
    for (int g = 0; g < w->group; g++) {
        uint16_t *qr = w->qr + (size_t)g * PLAN_LEAF * (size_t)dp;
        uint16_t *gr = w->gr + (size_t)g * PLAN_LEAF * (size_t)dp;
        int h = kvh * w->group + g;
        for (int i = 0; i < w->nq; i++) {
            size_t row = (size_t)(sq->row0 + w->q0 + i);
            const uint16_t *q = a->f.q + row * (size_t)a->f.ldq + (size_t)(h * d);
            const uint16_t *dout = a->dout + row * (size_t)a->lddo + (size_t)(h * d);
            const uint16_t *o = a->f.out + row * (size_t)a->f.ldo + (size_t)(h * d);
            vf s = vf_zero();
            memcpy(qr + (size_t)i * (size_t)dp, q, (size_t)d * 2);
            memcpy(gr + (size_t)i * (size_t)dp, dout, (size_t)d * 2);
            memset(qr + (size_t)i * (size_t)dp + d, 0, (size_t)(dp - d) * 2);
            memset(gr + (size_t)i * (size_t)dp + d, 0, (size_t)(dp - d) * 2);
            for (int c = 0; c < d; c += 16) {
                s = vf_fma(vf_loadbf(dout + c), vf_loadbf(o + c), s);
            }
            w->dsum[g * PLAN_LEAF + i] = vf_hsum(s);
            w->lse[g * PLAN_LEAF + i] = a->f.lse[row * (size_t)a->f.ldl + (size_t)h];
        }
        for (int i = w->nq; i < w->nqp; i++) {
            w->dsum[g * PLAN_LEAF + i] = 0.0f;
            w->lse[g * PLAN_LEAF + i] = 0.0f;
        }
        memset(qr + (size_t)w->nq * (size_t)dp, 0, (size_t)(w->nqp - w->nq) * (size_t)dp * 2);
        memset(gr + (size_t)w->nq * (size_t)dp, 0, (size_t)(w->nqp - w->nq) * (size_t)dp * 2);
        w->q_finite &= kern_finite(qr, (size_t)w->nqp * (size_t)dp);
        w->q_finite &= kern_finite(gr, (size_t)w->nqp * (size_t)dp);
        kern_transpose(qr, w->nqp, dp, w->qt + (size_t)g * (size_t)dp * KERN_LEAF_LD);
        kern_transpose(gr, w->nqp, dp, w->gt + (size_t)g * (size_t)dp * KERN_LEAF_LD);
        memset(w->dq + (size_t)g * PLAN_LEAF * (size_t)d, 0, (size_t)(w->nqp * d) * 4);
    }
}

/* Two rows of scores and gradients of probabilities (n keys, of which row t sees [lo[t], hi[t])) to
 * rounded pairs of probabilities and score gradients, these also as rows. */
static void kern_bwd_pair(const struct attn_shape *sh, const float *x, const float *dp, int n,
                          const float *lse, const float *dsum, const int *lo, const int *hi,
                          uint16_t *pp, uint16_t *sp, uint16_t *sr)
{
    vf unit = vf_set1(sh->softcap > 0.0f ? 1.0f : sh->scale), scale = vf_set1(sh->scale);

    for (int j = 0; j < n; j += 16) {
        vf p[2], ds[2];
        for (int t = 0; t < 2; t++) {
            vf v = vf_load(x + t * KERN_KEYS_LD + j), slope = vf_zero();
            if (j >= hi[t] || j + 16 <= lo[t]) {
                p[t] = ds[t] = vf_zero();
                continue;
            }
            if (sh->softcap > 0.0f) {
                v = kern_cap(sh, v, &slope);
            }
            p[t] = vf_exp(vf_fma(v, unit, vf_set1(-lse[t])));
            v = vf_mul(p[t], vf_sub(vf_load(dp + t * KERN_KEYS_LD + j), vf_set1(dsum[t])));
            if (sh->softcap > 0.0f) {
                v = vf_mul(v, slope);
            }
            ds[t] = vf_mul(v, scale);
            if (j < lo[t] || j + 16 > hi[t]) {
                p[t] = kern_lanes(lo[t] - j, hi[t] - j, p[t], vf_zero());
                ds[t] = kern_lanes(lo[t] - j, hi[t] - j, ds[t], vf_zero());
            }
        }
        kern_storepairs(pp + 2 * j, NULL, NULL, p[0], p[1]);
        kern_storepairs(sp + 2 * j, sr + j, sr + KERN_PROB_KEYS + j, ds[0], ds[1]);
    }
}

/* 32 queries of head g from row i of the leaf on, against the keys in hand. */
static void kern_bwd_rows(const struct kern_attn_bwd *a, const uint16_t *const *keys,
                          struct kern_leaf *w, int g, int i)
{
    int d = w->d, pages = (w->nk + PLAN_KV_BLOCK - 1) / PLAN_KV_BLOCK, lo[32], hi[32];
    int n = pages * PLAN_KV_BLOCK;
    const uint16_t *kk[KERN_ATTN_KEYS / PLAN_KV_BLOCK];
    size_t at = (size_t)g * PLAN_LEAF + (size_t)i, dp = (size_t)w->dp;

    for (int b = 0; b < pages; b++) {
        const uint16_t *vd = w->vd + (size_t)b * PLAN_KV_BLOCK * dp;
        kk[b] = w->kk + (size_t)b * PLAN_KV_BLOCK * dp;
        kern_mul(w->qr + at * dp, dp, 32, &keys[b], d, PLAN_KV_BLOCK * 2, PLAN_KV_BLOCK, d,
                 w->s + b * PLAN_KV_BLOCK, KERN_KEYS_LD, 0, w->tmp);
        kern_mul(w->gr + at * dp, dp, 32, &vd, d, PLAN_KV_BLOCK * 2, PLAN_KV_BLOCK, d,
                 w->dp_ + b * PLAN_KV_BLOCK, KERN_KEYS_LD, 0, w->tmp);
    }
    for (int r = 0; r < 32; r++) {
        int pos = w->q0 + i + r;
        lo[r] = kern_attn_first(&a->f.s, pos) - w->k0;
        hi[r] = i + r >= w->nq ? 0 : pos + 1 - w->k0 < w->nk ? pos + 1 - w->k0 : w->nk;
        lo[r] = lo[r] > 0 ? lo[r] : 0;
        hi[r] = hi[r] > lo[r] ? hi[r] : lo[r];
    }
    for (int r = 0; r < 32; r += 2) {
        size_t pair = (size_t)((i + r) / 2) * (KERN_ATTN_KEYS * 2);
        kern_bwd_pair(&a->f.s, w->s + r * KERN_KEYS_LD, w->dp_ + r * KERN_KEYS_LD, n,
                      w->lse + at + r, w->dsum + at + r, lo + r, hi + r, w->pp + pair, w->sp + pair,
                      w->sr + r * KERN_PROB_KEYS);
    }
    if (w->k_finite) {
        kern_mul(w->sr, KERN_PROB_KEYS, 32, kk, PLAN_KV_BLOCK, (size_t)d * 2, d, n,
                 w->dq + at * (size_t)d, (size_t)d, 1, w->tmp);
    } else {
        kern_mul_careful(w->sr, KERN_PROB_KEYS, 32, kk, PLAN_KV_BLOCK, (size_t)d * 2, d, n,
                         w->dq + at * (size_t)d, (size_t)d, 1, lo, hi, 0);
    }
}

/* Rows [qs, qe) of the leaf, head g, onto dk and dv of the keys in hand. */
static void kern_bwd_keys(const struct kern_attn_bwd *a, struct kern_leaf *w, int g, int qs, int qe)
{
    const uint16_t *pp = w->pp + (size_t)qs * KERN_ATTN_KEYS;
    const uint16_t *sp = w->sp + (size_t)qs * KERN_ATTN_KEYS;
    const uint16_t *gt = w->gt + (size_t)g * (size_t)w->dp * KERN_LEAF_LD + qs;
    const uint16_t *qt = w->qt + (size_t)g * (size_t)w->dp * KERN_LEAF_LD + qs;
    int n = (w->nk + 15) / 16 * 16, lo[KERN_ATTN_KEYS], hi[KERN_ATTN_KEYS];

    if (w->q_finite) {
        kern_mul(gt, KERN_LEAF_LD, w->d, &pp, qe - qs, KERN_ATTN_KEYS * 2, n, qe - qs, w->dvt,
                 KERN_KEYS_LD, g > 0, w->tmp);
        kern_mul(qt, KERN_LEAF_LD, w->d, &sp, qe - qs, KERN_ATTN_KEYS * 2, n, qe - qs, w->dkt,
                 KERN_KEYS_LD, g > 0, w->tmp);
        return;
    }
    for (int j = 0; j < n; j++) {
        int key = w->k0 + j, from = w->q0 + qs, end = w->q0 + w->nq;
        int last = a->f.s.window > 0 && key + a->f.s.window < end ? key + a->f.s.window : end;
        lo[j] = key > from ? key - from : 0;
        hi[j] = last - from;
    }
    kern_mul_careful(gt, KERN_LEAF_LD, w->d, &pp, qe - qs, KERN_ATTN_KEYS * 2, n, qe - qs, w->dvt,
                     KERN_KEYS_LD, g > 0, lo, hi, 1);
    kern_mul_careful(qt, KERN_LEAF_LD, w->d, &sp, qe - qs, KERN_ATTN_KEYS * 2, n, qe - qs, w->dkt,
                     KERN_KEYS_LD, g > 0, lo, hi, 1);
}

/* y = [y +] x, without negative zeros */
static inline void kern_join_leaf(float *y, const float *x, int d, int add)
{
    for (int c = 0; c < d; c += 16) {
        vf v = vf_add(add ? vf_load(y + c) : vf_zero(), vf_load(x + c));
        vf_store(y + c, vf_add(v, vf_zero()));
    }
}

/* The leaf's (d, keys) sums to rows of keys: y is the row of the first key in hand. */
static void kern_bwd_commit(const struct kern_leaf *w, const float *xt, float *y, size_t ldy,
                            int plain)
{
    for (int j = 0; j < w->nk; j += 16) {
        int rows = w->nk - j < 16 ? w->nk - j : 16;
        for (int c = 0; c < w->d; c += 16) {
            float t[16][16];
            kern_turn(xt + (size_t)c * KERN_KEYS_LD + (size_t)j, KERN_KEYS_LD * 4, t, sizeof t[0]);
            for (int r = 0; r < rows; r++) {
                float *out = y + (size_t)(j + r) * ldy + (size_t)c;
                if (plain) {
                    vf_store(out, vf_load(t[r]));
                } else {
                    kern_join_leaf(out, t[r], 16, w->k0 + j + r < w->q0);
                }
            }
        }
    }
}

static void kern_bwd_leaf(const struct kern_attn_bwd *a, const struct row_seq *sq, int kvh,
                          struct kern_leaf *w, float *parts)
{
    int d = w->d, nkv = a->f.s.n_kv_heads, q1 = w->q0 + w->nq;
    int base = kern_attn_first(&a->f.s, w->q0) / PLAN_KV_BLOCK * PLAN_KV_BLOCK;
    const uint16_t *kv = a->f.kv->data;

    for (w->k0 = base; w->k0 < q1; w->k0 += KERN_ATTN_KEYS) {
        const uint16_t *keys[KERN_ATTN_KEYS / PLAN_KV_BLOCK];
        int qs, qe = w->nqp;
        w->nk = q1 - w->k0 < KERN_ATTN_KEYS ? q1 - w->k0 : KERN_ATTN_KEYS;
        w->k_finite = 1;
        for (int b = 0; b * PLAN_KV_BLOCK < w->nk; b++) {
            int page = sq->pages[w->k0 / PLAN_KV_BLOCK + b];
            size_t at = (size_t)b * PLAN_KV_BLOCK * (size_t)w->dp;
            keys[b] = kv + kv_key_offset(a->f.kv, page, a->f.layer, kvh);
            w->k_finite &= kern_finite(keys[b], PLAN_KV_BLOCK * (size_t)d);
            kern_repair(keys[b], d / 2, PLAN_KV_BLOCK, w->kk + at);
            kern_repair(kv + kv_value_offset(a->f.kv, page, a->f.layer, kvh), PLAN_KV_BLOCK / 2, d,
                        w->vd + at);
        }
        qs = w->k0 > w->q0 ? (w->k0 - w->q0) / 32 * 32 : 0;
        if (a->f.s.window > 0 && w->k0 + w->nk - 1 + a->f.s.window - w->q0 < qe) {
            qe = (w->k0 + w->nk - 1 + a->f.s.window - w->q0 + 31) / 32 * 32;
        }
        for (int g = 0; g < w->group; g++) {
            for (int i = qs; i < qe; i += 32) {
                kern_bwd_rows(a, keys, w, g, i);
            }
            kern_bwd_keys(a, w, g, qs, qe);
        }
        if (parts) {
            float *p = parts + (size_t)(w->k0 - base) * (size_t)(2 * d);
            kern_bwd_commit(w, w->dkt, p, (size_t)(2 * d), 1);
            kern_bwd_commit(w, w->dvt, p + d, (size_t)(2 * d), 1);
        } else {
            float *p = a->dkv + (size_t)(sq->row0 + w->k0) * (size_t)a->lddkv;
            kern_bwd_commit(w, w->dkt, p + kvh * d, (size_t)a->lddkv, 0);
            kern_bwd_commit(w, w->dvt, p + (nkv + kvh) * d, (size_t)a->lddkv, 0);
        }
    }
}

static void kern_attn_bwd_fn(const struct kern_attn_bwd *a, int seq, int kvh, int l0, int l1,
                             float *parts, void *scratch)
{
    const struct row_seq *sq = &a->f.rows->seq[seq];
    int d = a->f.s.head_dim, group = a->f.s.n_heads / a->f.s.n_kv_heads;
    struct kern_leaf w;

    kern_leaf_init(&w, d, group, scratch);
    kern_mul_begin();
    for (int l = l0; l < l1; l++) {
        kern_leaf_load(a, sq, kvh, l, &w);
        kern_bwd_leaf(a, sq, kvh, &w, parts);
        for (int i = 0; i < w.nq * group; i++) {
            int row = sq->row0 + w.q0 + i / group, g = i % group;
            float *dq = a->dq + (size_t)row * (size_t)a->lddq + (size_t)((kvh * group + g) * d);
            kern_join_leaf(dq, w.dq + ((size_t)g * PLAN_LEAF + (size_t)(i / group)) * (size_t)d, d,
                           0);
        }
    }
}

static void kern_attn_bwd_join(const struct kern_attn_bwd *a, int seq, int kvh, int j0, int j1,
                               int l0, int l1, const float *parts, size_t stride)
{
    const struct row_seq *sq = &a->f.rows->seq[seq];
    int d = a->f.s.head_dim, nkv = a->f.s.n_kv_heads;

    for (int j = j0; j < j1; j++) {
        float *dkv = a->dkv + (size_t)(sq->row0 + j) * (size_t)a->lddkv;
        for (int l = l0 > j / PLAN_LEAF ? l0 : j / PLAN_LEAF; l < l1; l++) {
            int base = kern_attn_first(&a->f.s, l * PLAN_LEAF) / PLAN_KV_BLOCK * PLAN_KV_BLOCK;
            const float *p =
                parts + (size_t)(l - l0) * stride + (size_t)(j - base) * (size_t)(2 * d);
            if (j < base) {
                break;
            }
            kern_join_leaf(dkv + kvh * d, p, d, l > j / PLAN_LEAF);
            kern_join_leaf(dkv + (nkv + kvh) * d, p + d, d, l > j / PLAN_LEAF);
        }
    }
}

#endif
