/* Weight gradients on AMX tiles: leaves of dy^T x, each rounded to a whole number of quanta and
 * summed as integers. What costs here is not the products but turning every leaf's f32 values into
 * integers: that is five vector operations a value, done a few rows after each step of the tiles,
 * so that both are busy at once. */
#include "num/cpu/amx_int.h"

/* ---- exact sums in two halves ------------------------------------------------------------------
 *
 * A value v below 1 is cut into h, what it has above 2^-22, and the rest r. h comes off by adding v
 * to a sum that stays in [2, 4), where f32 counts in 2^-22: the sum's change is h, and the sum of
 * all h gathers there without a rounding. r is exact and at most 2^-23. Added to 1.5 2^-22, where
 * f32 counts in quanta of 2^-45, it is rounded to even, once; the bits of the result less those of
 * 1.5 2^-22 are its integer. A tie in the first addition may fall to either side: r then differs by
 * an even number of quanta, so h and r's integer together do not.
 *
 * That holds while the sum of all |v| stays below 1. How large a leaf's values can be follows from
 * the norms of its columns of dy and x (Cauchy-Schwarz); leaves beyond that go the plain way. */
#define DW_START   3.0f
#define DW_ROOM    0.95f       /* for the sum of |v| between two flushes */
#define DW_MAGIC   0x1.8p-22f  /* here f32 counts in 2^-45 */
#define DW_BITS    0x34c00000u /* of DW_MAGIC */
#define DW_LEAVES  128         /* between two flushes: their rests fit 32 bits */
#define DW_CACHE   (5 << 18)   /* bytes of the second-level cache for x */
#define DW_VECTORS 64          /* of a (32, 32) block */
#define DW_HIDDEN  1e-15f      /* of a norm, by squares that underflow */
#define DW_SLACK   1.01f       /* roundings of norms and products */

_Static_assert(PLAN_QUANTUM == 45, "the halves are cut for quanta of 2^-45");

/* One (32, 32) block of the gradient. */
struct dw_sums {
    _Alignas(64) float hi[1024];    /* DW_START and the sum above 2^-22 */
    _Alignas(64) uint32_t lo[1024]; /* the sum of the rests' bits */
    int64_t *grad;
    int rows;
    int leaves; /* that were computed since the last flush */
    float room; /* that is left */
    int fresh;  /* the gradient's memory counts as zero: the next flush writes it */
};

/* Leaf results on their way into the sums, and the sums on their way into the gradient. */
struct dw_work {
    struct dw_sums *s;
    const float *c[2]; /* one or two leaves */
    int at, end;       /* vectors: DW_VECTORS to convert, then as many to flush if end says so */
    int slice;         /* at a time */
    int leaves;        /* in the sums that are flushed */
    int fresh;         /* the flush writes, it does not add */
};

/* What a thread works with: the next block begins while the last leaves of one are converted. */
struct dw_state {
    struct dw_sums sums[2];
    _Alignas(64) float c[3][2][1024]; /* pairs of leaves in turn: converted, stored, to come */
    struct dw_work work;
    struct dw_work next; /* stored, but hardly out of the store buffers; s NULL: none */
    struct dw_work held; /* computed last, the newest leaf still in the tiles; s NULL: none */
    float *due;          /* where the newest goes */
    int64_t ldg;
    float scale;
    int turn, bad;
};

_Static_assert(sizeof(struct dw_state) <= KERN_DW_SCRATCH, "the scratch of dw");

static inline __m512 dw_add(__m512 sum, __m512 v, __m512i *lo)
{
    __m512 t = _mm512_add_ps(sum, v);
    __m512 r = _mm512_sub_ps(v, _mm512_sub_ps(t, sum));
    __m512 u = _mm512_add_ps(r, _mm512_set1_ps(DW_MAGIC));
    *lo = _mm512_add_epi32(*lo, _mm512_castps_si512(u));
    return t;
}

static inline int64_t *dw_at(const struct dw_state *d, const struct dw_sums *s, int vec)
{
    return s->grad + (size_t)(vec / 2) * (size_t)d->ldg + (size_t)(vec % 2) * 16;
}

/* Vectors [from, to) of the leaves into the sums. */
static inline void dw_convert(const struct dw_work *w, int from, int to)
{
    float *hi = w->s->hi;
    uint32_t *lo = w->s->lo;
    const float *c0 = w->c[0], *c1 = w->c[1];

    for (int i = from * 16; c1 && i < to * 16; i += 16) {
        __m512i l = _mm512_load_si512(lo + i);
        __m512 h = dw_add(_mm512_load_ps(hi + i), _mm512_load_ps(c0 + i), &l);
        h = dw_add(h, _mm512_load_ps(c1 + i), &l);
        _mm512_store_ps(hi + i, h);
        _mm512_store_si512(lo + i, l);
    }
    for (int i = from * 16; !c1 && i < to * 16; i += 16) {
        __m512i l = _mm512_load_si512(lo + i);
        __m512 h = dw_add(_mm512_load_ps(hi + i), _mm512_load_ps(c0 + i), &l);
        _mm512_store_ps(hi + i, h);
        _mm512_store_si512(lo + i, l);
    }
}

/* Vectors [from, to) of the sums into the gradient; the sums start anew. */
static inline void dw_flush(struct dw_state *d, const struct dw_work *w, int from, int to)
{
    const __m512 start = _mm512_set1_ps(DW_START), up = _mm512_set1_ps(d->scale);
    const __m512i bits = _mm512_set1_epi32((int)((uint32_t)w->leaves * DW_BITS));
    __m512i over = _mm512_setzero_si512();
    struct dw_sums *s = w->s;

    for (int v = from; v < to; v++) {
        __m512 h = _mm512_mul_ps(_mm512_sub_ps(_mm512_load_ps(s->hi + v * 16), start), up);
        __m512i l = _mm512_sub_epi32(_mm512_load_si512(s->lo + v * 16), bits);
        __m512i q0 = _mm512_add_epi64(_mm512_cvtps_epi64(_mm512_castps512_ps256(h)),
                                      _mm512_cvtepi32_epi64(_mm512_castsi512_si256(l)));
        __m512i q1 = _mm512_add_epi64(_mm512_cvtps_epi64(_mm512_extractf32x8_ps(h, 1)),
                                      _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(l, 1)));
        _mm512_store_ps(s->hi + v * 16, start);
        _mm512_store_si512(s->lo + v * 16, _mm512_setzero_si512());
        if (v / 2 < s->rows) {
            int64_t *out = dw_at(d, s, v);
            if (w->fresh) { /* rows of whole lines; not read before the update */
                _mm512_stream_si512((void *)out, q0);
                _mm512_stream_si512((void *)(out + 8), q1);
                continue;
            }
            __m512i a0 = _mm512_loadu_si512((const void *)out);
            __m512i a1 = _mm512_loadu_si512((const void *)(out + 8));
            __m512i r0 = _mm512_add_epi64(a0, q0), r1 = _mm512_add_epi64(a1, q1);
            over = _mm512_or_si512(over, _mm512_ternarylogic_epi64(a0, q0, r0, 0x42));
            over = _mm512_or_si512(over, _mm512_ternarylogic_epi64(a1, q1, r1, 0x42));
            _mm512_storeu_si512((void *)out, r0);
            _mm512_storeu_si512((void *)(out + 8), r1);
        }
    }
    d->bad |= _mm512_movepi64_mask(over) != 0;
}

/* Does the next n vectors of the work. */
static __attribute__((noinline)) void dw_slice(struct dw_state *d, int n)
{
    struct dw_work *w = &d->work;
    int from = w->at, to = from + n < w->end ? from + n : w->end;
    if (from < DW_VECTORS) {
        int stop = to < DW_VECTORS ? to : DW_VECTORS;
        if (w->end > DW_VECTORS && !w->fresh) {
            for (int v = from; v < stop && v / 2 < w->s->rows; v++) {
                __builtin_prefetch(dw_at(d, w->s, v), 1, 2);
                __builtin_prefetch(dw_at(d, w->s, v) + 8, 1, 2);
            }
        }
        dw_convert(w, from, stop);
    }
    if (to > DW_VECTORS) {
        dw_flush(d, w, (from > DW_VECTORS ? from : DW_VECTORS) - DW_VECTORS, to - DW_VECTORS);
    }
    w->at = to;
}

static void dw_settle(struct dw_state *d)
{
    if (d->work.at < d->work.end) {
        dw_slice(d, d->work.end);
    }
}

/* The held leaves are stored; those stored before are the work of the next `steps` steps. */
static void dw_begin(struct dw_state *d, int steps)
{
    dw_settle(d);
    if (d->next.s) {
        d->work = d->next;
        d->work.slice = (d->work.end + steps - 1) / (steps > 0 ? steps : 1);
    }
    d->next = d->held;
    d->held.s = NULL;
    d->due = NULL;
}

/* The held leaves are the last before a flush. */
static void dw_last(struct dw_state *d)
{
    if (d->held.s) {
        d->held.end = 2 * DW_VECTORS;
        d->held.fresh = d->held.s->fresh;
        d->held.s->fresh = 0;
    }
}

/* Nothing is left in the tiles, no leaf outside the gradient. */
static void dw_drain(struct dw_state *d)
{
    if (d->held.s && d->held.end == DW_VECTORS) {
        dw_last(d);
    }
    if (d->held.s) {
        amx_store(d->due, 0);
        AMX_BARRIER;
    }
    while (d->held.s || d->next.s) {
        dw_begin(d, 1);
    }
    dw_settle(d);
}

/* ---- blocks ------------------------------------------------------------------------------------
 */

struct dw_tiles {
    const uint16_t *a, *b; /* dy^T and x: two tiles of 32 columns for each 32 rows */
    const char *ahead;     /* what to ask for at step t: lines [t lines, t lines + lines) */
    int lines;
};

/* Leaf [t0, t1) into the tiles. Accumulators that are due are stored between the first products; if
 * they complete what is held, it is the work of this leaf and of `more` steps after it. */
static inline void dw_leaf(struct dw_state *d, const struct dw_tiles *o, int t0, int t1, int more)
{
    const uint16_t *a = o->a + (size_t)t0 * 1024, *b = o->b + (size_t)t0 * 1024;
    float *due = d->due;

    AMX_BARRIER;
    if (due && t0 < t1) {
        _tile_stream_loadd(6, b, 64);
        _tile_stored(0, due, 128);
        _tile_zero(0);
        _tile_stream_loadd(4, a, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_stored(2, due + 16 * 32, 128);
        _tile_zero(2);
        _tile_stream_loadd(5, a + 512, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_stored(1, due + 16, 128);
        _tile_zero(1);
        _tile_stream_loadd(7, b + 512, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_stored(3, due + 16 * 32 + 16, 128);
        _tile_zero(3);
        _tile_dpbf16ps(3, 5, 7);
        t0++;
        a += 1024;
        b += 1024;
    } else {
        if (due) {
            amx_store(due, 0);
        }
        amx_zero();
    }
    d->due = NULL;
    if (d->held.s) {
        dw_begin(d, t1 - t0 + more);
    } else if (d->work.at < d->work.end) {
        dw_slice(d, d->work.slice);
    }
    for (; t0 < t1; t0++, a += 1024, b += 1024) {
        for (int i = 0; i < o->lines; i++) {
            __builtin_prefetch(o->ahead + ((size_t)t0 * (size_t)o->lines + (size_t)i) * 64, 0, 2);
        }
        _tile_stream_loadd(6, b, 64);
        _tile_stream_loadd(4, a, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_stream_loadd(5, a + 512, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_stream_loadd(7, b + 512, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
        if (d->work.at < d->work.end) {
            dw_slice(d, d->work.slice);
        }
    }
}

/* A leaf whose values may be large, or are no numbers. */
static void dw_plain(struct dw_state *d, const struct dw_tiles *o, int t0, int t1,
                     struct dw_sums *s)
{
    float *c = d->c[0][0];
    dw_drain(d);
    for (int r = 0; s->fresh && r < s->rows; r++) {
        memset(dw_at(d, s, 2 * r), 0, 32 * sizeof *s->grad);
    }
    s->fresh = 0;
    dw_leaf(d, o, t0, t1, 0);
    amx_store(c, 0);
    AMX_BARRIER;
    for (int r = 0; r < s->rows; r++) {
        d->bad |= vf_accumulate(dw_at(d, s, 2 * r), vf_load(c + r * 32), d->scale);
        d->bad |= vf_accumulate(dw_at(d, s, 2 * r + 1), vf_load(c + r * 32 + 16), d->scale);
    }
}

/* One or two leaves from l on, bounded by `bound`, of the block with sums s. */
static void dw_unit(struct dw_state *d, const struct kern_dw *g, const struct dw_tiles *o,
                    struct dw_sums *s, int l, int n, float bound)
{
    const int32_t *t = g->tb0 + l;
    float *c0 = d->c[d->turn][0], *c1 = d->c[d->turn][1];

    if (d->held.s == s && (bound > s->room || s->leaves + n > DW_LEAVES)) {
        dw_last(d); /* the leaves before fill the sums */
        s->leaves = 0;
        s->room = DW_ROOM;
    }
    dw_leaf(d, o, t[0], t[1], n == 2 ? t[2] - t[1] : 0);
    d->due = c0;
    if (n == 2) {
        dw_leaf(d, o, t[1], t[2], 0);
        d->due = c1;
    }
    s->leaves += n;
    s->room -= bound;
    d->held = (struct dw_work){.s = s, .c = {c0, n == 2 ? c1 : NULL}, .end = DW_VECTORS};
    d->held.leaves = s->leaves;
    d->turn = (d->turn + 1) % 3;
}

/* The block at (n, k) over all leaves; dyn and xn: norms of its columns, by leaf. */
static void dw_block(struct dw_state *d, const struct kern_dw *g, const struct dw_tiles *o,
                     struct dw_sums *s, const float *dyn, const float *xn)
{
    for (int l = 0; l < g->nleaf;) {
        float bound = dyn[l] * xn[l];
        float both = l + 1 < g->nleaf ? bound + dyn[l + 1] * xn[l + 1] : DW_ROOM;
        if (both < DW_ROOM) {
            dw_unit(d, g, o, s, l, 2, both);
            l += 2;
        } else if (bound < DW_ROOM) {
            dw_unit(d, g, o, s, l, 1, bound);
            l++;
        } else {
            dw_plain(d, o, g->tb0[l], g->tb0[l + 1], s);
            s->leaves = 0;
            s->room = DW_ROOM;
            l++;
        }
    }
    if (d->held.s == s) {
        dw_last(d);
    }
}

/* Columns whose packed x stays in the second-level cache while rows pass by. */
static int dw_panel(const struct kern_dw *g)
{
    int64_t bytes = (int64_t)g->k * g->ttiles * 64;
    int panels = (int)((bytes + DW_CACHE - 1) / DW_CACHE), blocks = (g->k + 31) / 32;
    panels = panels > blocks ? blocks : panels;
    return (blocks + panels - 1) / panels * 32;
}

int amx_dw(const struct kern_dw *g, int n0, int n1, void *scratch)
{
    int panel = dw_panel(g), blocks = panel / 32, block = 0;
    struct dw_state *d = scratch; /* of whole pages, so aligned */

    memset(d, 0, sizeof *d);
    for (int i = 0; i < 1024; i++) {
        d->sums[0].hi[i] = d->sums[1].hi[i] = DW_START;
    }
    d->ldg = g->ldg;
    d->scale = g->scale;
    amx_configure(32);
    for (int k0 = 0; k0 < g->k; k0 += panel) {
        int k1 = k0 + panel < g->k ? k0 + panel : g->k;
        for (int n = n0; n < n1; n += 32) {
            for (int k = k0; k < k1; k += 32, block = !block) {
                struct dw_sums *s = &d->sums[block];
                struct dw_tiles o;
                o.a = g->dyt + (size_t)(n / 32) * (size_t)g->ttiles * 1024;
                o.b = g->xp + (size_t)(k / 32) * (size_t)g->ttiles * 1024;
                /* the next rows of dy^T, a share in each block of this row */
                o.lines = n + 32 < n1 ? (32 + blocks - 1) / blocks : 0;
                o.ahead = (const char *)(o.a + (size_t)g->ttiles * 1024) +
                          (size_t)((k - k0) / 32) * (size_t)o.lines * (size_t)g->ttiles * 64;
                if (d->next.s == s) { /* a block of few steps */
                    dw_drain(d);
                } else if (d->work.s == s) {
                    dw_settle(d);
                }
                s->grad = g->grad + (size_t)n * (size_t)g->ldg + (size_t)k;
                s->rows = n1 - n < 32 ? n1 - n : 32;
                s->leaves = 0;
                s->room = DW_ROOM;
                s->fresh = g->fresh;
                dw_block(d, g, &o, s, g->dyn + (size_t)(n / 32) * (size_t)g->nleaf,
                         g->xn + (size_t)(k / 32) * (size_t)g->nleaf);
            }
        }
    }
    dw_drain(d);
    _mm_sfence(); /* what was streamed is seen by others when they see that this thread is done */
    return d->bad;
}

/* ---- packing -----------------------------------------------------------------------------------
 */

static inline __m512 dw_square(__m512 sum, __m512i pair)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)pair, (__m512bh)pair);
}

/* The largest; not a number counts as larger than any. */
static inline float dw_largest(__m512 sum)
{
    uint32_t bits = _mm512_reduce_max_epu32(_mm512_castps_si512(sum));
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

void amx_pack_dyt(const uint16_t *dy, int64_t ld, int rows, int n, int tb, int ttiles,
                  uint16_t *dyt, float *squares)
{
    for (int c = 0; c < n; c += 16) {
        uint16_t *out = dyt + kern_dw_tile(c, tb, ttiles);
        __m512 sum = _mm512_setzero_ps();
        __m512i r[16];
        for (int tp = 0; tp < 16; tp++) {
            const uint16_t *p = dy + (size_t)(2 * tp) * (size_t)ld + (size_t)c;
            r[tp] = amx_pair(2 * tp < rows ? p : NULL, 2 * tp + 1 < rows ? p + ld : NULL);
            sum = dw_square(sum, r[tp]);
        }
        vec_transpose(r);
        for (int i = 0; i < 16; i++) {
            _mm512_storeu_si512((void *)(out + i * 32), r[i]);
        }
        squares[c / 16] = dw_largest(sum);
    }
}

void amx_pack_xp(const uint16_t *x, int64_t ld, int rows, int k, int tb, int ttiles, uint16_t *xp,
                 float *squares)
{
    for (int c = 0; c < k; c += 16) {
        uint16_t *out = xp + kern_dw_tile(c, tb, ttiles);
        __m512 sum = _mm512_setzero_ps();
        for (int tp = 0; tp < 16; tp++) {
            const uint16_t *p = x + (size_t)(2 * tp) * (size_t)ld + (size_t)c;
            __m512i pair = amx_pair(2 * tp < rows ? p : NULL, 2 * tp + 1 < rows ? p + ld : NULL);
            sum = dw_square(sum, pair);
            _mm512_storeu_si512((void *)(out + tp * 32), pair);
        }
        squares[c / 16] = dw_largest(sum);
    }
}

void amx_dw_norms(const float *squares, int nb, int nleaf, const int32_t *tb0, float *norms)
{
    for (int b = 0; b < nb; b += 2) {
        for (int l = 0; l < nleaf; l++) {
            float sum = 0.0f;
            for (int t = tb0[l]; t < tb0[l + 1]; t++) {
                const float *s = squares + (size_t)t * (size_t)nb + (size_t)b;
                sum += s[0] + (b + 1 < nb ? s[1] : 0.0f);
            }
            sum = _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(sum)));
            norms[(size_t)(b / 2) * (size_t)nleaf + (size_t)l] = (sum + DW_HIDDEN) * DW_SLACK;
        }
    }
}
