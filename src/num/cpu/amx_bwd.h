/* Part of amx_attn.c: attention backward on tiles, heads of 64 dimensions without a soft cap.
 *
 * A unit is 32 queries against 32 keys: its scores and the gradients of its probabilities go
 * through a buffer of 8 KiB to the vector unit. What decides the speed is how many written lines
 * leave the first-level cache, so the sums of 32 keys' dk and dv stay in it while all queries of
 * the leaf and all heads pass, and what only is read comes past it (TILELOADDT1). Score gradients
 * wait in the second level until there are those of AMX_BWD_KEYS keys for dq.
 *
 * Every sum has its terms in the order of kern_attn_bwd.h, 32 at a time; steps in which every
 * probability is zero are left out, which changes nothing where all operands are finite. */
#ifndef CPU_AMX_BWD_H
#define CPU_AMX_BWD_H

#define AMX_TILE       512            /* bf16 values of a tile; half as many floats */
#define AMX_BWD_KEYS   KERN_ATTN_KEYS /* keys whose score gradients dq takes at a time */
#define AMX_BWD_HALVES (AMX_BWD_KEYS / 32)
#define AMX_BWD_CHUNK  8 /* blocks of 32 queries that dk and dv take at a time */

struct amx_bwd {
    const struct kern_attn_bwd *a;
    const struct row_seq *sq;
    struct kern_leaf *w;
    float *parts;
    int kvh, base; /* the first key */
    vf unit, scale;
    float *s;     /* 4 tiles of scores, 4 of the probabilities' gradients */
    float *sums;  /* 8 tiles of dv, 8 of dk */
    uint16_t *kk; /* AMX_BWD_KEYS keys as (keys / 2, 64, 2), twice by turns */
    uint16_t *vd; /* a page of values as keys are stored */
    float *out;   /* where tiles 0-3 belong, or NULL */
    size_t ldc, c_row, c_col;
};

/* What the vector unit makes of a unit. */
struct amx_unit {
    const float *lse, *dsum; /* of the 32 queries */
    uint16_t *pp, *sp;       /* 2 tiles each: pairs of queries, keys in amx_bwd_key's order */
    uint16_t *sr;            /* 2 tiles: score gradients as rows */
    int masked;
    uint32_t mask[32]; /* the keys that a row sees */
};

/* kern_pow2 of eight vectors, step by step for all, which leaves the processor less to reorder. */
static inline void amx_bwd_pow2(vf x[8])
{
    vf r[8], p[8];
    for (int i = 0; i < 8; i++) {
        r[i] = _mm512_reduce_ps(x[i], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
    for (int i = 0; i < 8; i++) {
        p[i] = vf_fma(vf_set1(VMATH_P0), r[i], vf_set1(VMATH_P1));
        x[i] = vf_sub(x[i], r[i]);
    }
    for (int i = 0; i < 8; i++) {
        p[i] = vf_fma(p[i], r[i], vf_set1(VMATH_P2));
    }
    for (int i = 0; i < 8; i++) {
        p[i] = vf_fma(p[i], r[i], vf_set1(1.0f));
    }
    for (int i = 0; i < 8; i++) {
        x[i] = _mm512_scalef_ps(p[i], x[i]);
    }
}

/* Four rows of probabilities and score gradients. */
static inline void amx_bwd_rows(const struct amx_bwd *b, const struct amx_unit *u, int r)
{
    const float *s = b->s + r / 16 * AMX_TILE + r % 16 * 16, *lse = u->lse + r, *dsum = u->dsum + r;
    uint16_t *sr = u->sr + r / 16 * AMX_TILE + r % 16 * 32, *pp = u->pp + r * 16;
    uint16_t *sp = u->sp + r * 16;
    vf unit = b->unit, scale = b->scale, x[8], d[8];
    __m512i p[4], g[4];

    for (int i = 0; i < 8; i++) { /* row i / 2, columns 16 (i % 2) on */
        x[i] = _mm512_fmsub_ps(vf_load(s + i % 2 * 256 + i / 2 * 16), unit, vf_set1(lse[i / 2]));
    }
    for (int i = 0; i < 8; i++) {
        d[i] = vf_sub(vf_load(s + 2 * AMX_TILE + i % 2 * 256 + i / 2 * 16), vf_set1(dsum[i / 2]));
    }
    amx_bwd_pow2(x);
    for (int i = 0; i < 8; i++) {
        d[i] = vf_mul(x[i], d[i]);
    }
    for (int i = 0; i < 8; i++) {
        d[i] = vf_mul(d[i], scale);
    }
    if (u->masked) {
        for (int i = 0; i < 8; i++) {
            __mmask16 m = (__mmask16)(u->mask[r + i / 2] >> (16 * (i % 2)));
            x[i] = _mm512_maskz_mov_ps(m, x[i]);
            d[i] = _mm512_maskz_mov_ps(m, d[i]);
        }
    }
    for (int i = 0; i < 4; i++) {
        p[i] = (__m512i)_mm512_cvtne2ps_pbh(x[2 * i + 1], x[2 * i]);
        g[i] = (__m512i)_mm512_cvtne2ps_pbh(d[2 * i + 1], d[2 * i]);
    }
    for (int i = 0; i < 4; i++) {
        _mm512_store_si512((void *)(sr + i * 32), g[i]);
    }
    for (int i = 0; i < 4; i += 2) {
        _mm512_store_si512((void *)(pp + i * 16), _mm512_unpacklo_epi16(p[i], p[i + 1]));
        _mm512_store_si512((void *)(pp + AMX_TILE + i * 16), _mm512_unpackhi_epi16(p[i], p[i + 1]));
        _mm512_store_si512((void *)(sp + i * 16), _mm512_unpacklo_epi16(g[i], g[i + 1]));
        _mm512_store_si512((void *)(sp + AMX_TILE + i * 16), _mm512_unpackhi_epi16(g[i], g[i + 1]));
    }
}

/* The key, of 32, that column c of pair tile t stands for. */
static inline int amx_bwd_key(int t, int c)
{
    return c / 4 * 8 + c % 4 + 4 * t;
}

/* Tiles 0-3 to where they belong. */
static inline void amx_bwd_settle(struct amx_bwd *b)
{
    if (b->out) {
        _tile_stored(0, b->out, b->ldc);
        _tile_stored(1, b->out + b->c_col, b->ldc);
        _tile_stored(2, b->out + b->c_row, b->ldc);
        _tile_stored(3, b->out + b->c_row + b->c_col, b->ldc);
    }
    b->out = NULL;
    AMX_BARRIER;
}

/* c (32, 32) = [c +] a b, in n steps of 32 terms. Strides are in bytes, distances in values. */
struct amx_mul {
    const uint16_t *a, *b;
    size_t lda, ldb;
    size_t a_half, b_half; /* to rows, columns 16-31 */
    size_t a_step, b_step; /* to the next 32 terms */
    float *c;
    size_t ldc, c_row, c_col; /* to rows, columns 16-31 */
    int n;
};

enum {
    AMX_ADD = 1,  /* to what is in c */
    AMX_NEAR = 2, /* b and c are in the first-level cache and stay there */
};

#define AMX_BWD_LOAD(near, tile, at, ld)                                                           \
    if (near) {                                                                                    \
        _tile_loadd(tile, at, ld);                                                                 \
    } else {                                                                                       \
        _tile_stream_loadd(tile, at, ld);                                                          \
    }

/* Stores what a tile held of the product before, and begins with it. */
#define AMX_BWD_TURN(tile, last, now)                                                              \
    if (b->out) {                                                                                  \
        _tile_stored(tile, b->out + (last), b->ldc);                                               \
    }                                                                                              \
    if (how & AMX_ADD) {                                                                           \
        AMX_BWD_LOAD(how &AMX_NEAR, tile, m->c + (now), m->ldc)                                    \
    } else {                                                                                       \
        _tile_zero(tile);                                                                          \
    }

/* Tiles 0-3 become the product, to be stored by whoever needs them next. */
static inline __attribute__((always_inline)) void amx_bwd_mul(struct amx_bwd *b,
                                                              const struct amx_mul *m, int how)
{
    const uint16_t *pa = m->a, *pb = m->b;

    AMX_BARRIER;
    _tile_stream_loadd(4, pa, m->lda);
    AMX_BWD_LOAD(how & AMX_NEAR, 6, pb, m->ldb)
    AMX_BWD_TURN(0, 0, 0)
    _tile_dpbf16ps(0, 4, 6);
    AMX_BWD_LOAD(how & AMX_NEAR, 7, pb + m->b_half, m->ldb)
    AMX_BWD_TURN(1, b->c_col, m->c_col)
    _tile_dpbf16ps(1, 4, 7);
    _tile_stream_loadd(5, pa + m->a_half, m->lda);
    AMX_BWD_TURN(2, b->c_row, m->c_row)
    _tile_dpbf16ps(2, 5, 6);
    AMX_BWD_TURN(3, b->c_row + b->c_col, m->c_row + m->c_col)
    _tile_dpbf16ps(3, 5, 7);
    b->out = m->c;
    b->ldc = m->ldc;
    b->c_row = m->c_row;
    b->c_col = m->c_col;
    for (int t = 1; t < m->n; t++) {
        pa += m->a_step;
        pb += m->b_step;
        _tile_stream_loadd(4, pa, m->lda);
        AMX_BWD_LOAD(how & AMX_NEAR, 6, pb, m->ldb)
        _tile_dpbf16ps(0, 4, 6);
        AMX_BWD_LOAD(how & AMX_NEAR, 7, pb + m->b_half, m->ldb)
        _tile_dpbf16ps(1, 4, 7);
        _tile_stream_loadd(5, pa + m->a_half, m->lda);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

/* x (32, 64) rows times 32 keys of a page: 4 tiles to c. */
static inline __attribute__((always_inline)) void
amx_bwd_scores(struct amx_bwd *b, const uint16_t *x, const uint16_t *page, float *c)
{
    struct amx_mul m = {x, page, AMX_DIM * 2, AMX_PAGE * 4, 16 * AMX_DIM, 32, 32, 16 * AMX_PAGE * 2,
                        c, 64,   AMX_TILE,    256,          AMX_DIM / 32};
    amx_bwd_mul(b, &m, AMX_NEAR);
}

/* dq (32, 64) of row i of head g += n times 32 keys' score gradients times as many keys. */
static void amx_bwd_dq(struct amx_bwd *b, const uint16_t *sr, const uint16_t *kk, int n, float *dq)
{
    for (int c = 0; c < AMX_DIM; c += 32) {
        struct amx_mul m = {sr,       kk + 2 * c,  64,           AMX_DIM * 4,
                            AMX_TILE, 32,          2 * AMX_TILE, 16 * AMX_DIM * 2,
                            dq + c,   AMX_DIM * 4, 16 * AMX_DIM, 16,
                            n};
        amx_bwd_mul(b, &m, AMX_ADD);
    }
}

/* Where a chunk keeps pairs of probabilities (what 0) and of score gradients (1). */
static inline size_t amx_bwd_pairs(int what, int block)
{
    return (size_t)(what * AMX_BWD_CHUNK + block) * (2 * AMX_TILE);
}

/* Where the sums of a key belong: dk first, and dv *to_dv after it. */
static inline float *amx_bwd_row_of(const struct amx_bwd *b, int key, size_t *to_dv)
{
    *to_dv = (size_t)(b->parts ? 1 : b->a->f.s.n_kv_heads) * AMX_DIM;
    return b->parts ? b->parts + (size_t)(key - b->base) * (2 * AMX_DIM)
                    : b->a->dkv + b->kvh * AMX_DIM +
                          kern_key_row(b->a->f.rows, b->sq, key) * (size_t)b->a->lddkv;
}

/* Finished sums of 32 keys to their rows. */
static void amx_bwd_commit(const struct amx_bwd *b, int key0)
{
    const struct kern_leaf *w = b->w;
    int nk = w->q0 + w->nq - key0;
    size_t to_dv = 0;
    float *y[32];

    for (int key = 0; key < 32 && key < nk; key++) {
        y[key] = amx_bwd_row_of(b, key0 + key, &to_dv);
    }
    for (int i = 0; i < 16; i++) { /* 16 dimensions of 16 keys */
        int what = i / 8, t = i / 4 % 2, c = i % 4;
        const float *x = b->sums + (what * 2 + c / 2) * (2 * AMX_TILE) + c % 2 * AMX_TILE + t * 256;
        size_t at = (what ? 0 : to_dv) + (size_t)c * 16;
        float v[16][16];
        kern_turn(x, 64, v, sizeof v[0]);
        for (int r = 0; r < 16; r++) {
            int key = amx_bwd_key(t, r);
            if (key < nk && b->parts) {
                vf_store(y[key] + at, vf_load(v[r]));
            } else if (key < nk) {
                kern_join_leaf(y[key] + at, v[r], 16, key0 + key < w->q0);
            }
        }
    }
}

/* dk and dv of 32 keys from n blocks of queries of head g, from row i of the leaf on; add: to what
 * there is. */
static void amx_bwd_keys(struct amx_bwd *b, int g, int i, int n, int add)
{
    const struct kern_leaf *w = b->w;
    size_t at = (size_t)g * AMX_DIM * KERN_LEAF_LD + (size_t)i;

    for (int p = 0; p < 4; p++) {
        struct amx_mul m = {(p / 2 ? w->qt : w->gt) + at + p % 2 * 32 * KERN_LEAF_LD,
                            w->pp + amx_bwd_pairs(p / 2, 0),
                            KERN_LEAF_LD * 2,
                            64,
                            16 * KERN_LEAF_LD,
                            AMX_TILE,
                            32,
                            2 * AMX_TILE,
                            b->sums + p * (2 * AMX_TILE),
                            64,
                            AMX_TILE,
                            256,
                            n};
        if (add) {
            amx_bwd_mul(b, &m, AMX_ADD | AMX_NEAR);
        } else {
            amx_bwd_mul(b, &m, AMX_NEAR);
        }
    }
}

/* Whether one of 32 queries from row i of the leaf on sees one of the n keys from key0 on. */
static inline int amx_bwd_seen(const struct amx_bwd *b, int i, int key0, int n)
{
    const struct kern_leaf *w = b->w;
    int last = i + 31 < w->nq ? i + 31 : w->nq - 1;
    return key0 <= w->q0 + last && key0 + n > kern_attn_first(&b->a->f.s, w->q0 + i);
}

static void amx_bwd_mask(const struct amx_bwd *b, struct amx_unit *u, int i, int key0)
{
    const struct kern_leaf *w = b->w;

    u->masked = i + 32 > w->nq || key0 + 31 > w->q0 + i ||
                kern_attn_first(&b->a->f.s, w->q0 + i + 31) > key0;
    for (int r = 0; r < 32 && u->masked; r++) {
        int pos = w->q0 + i + r, hi = pos + 1 - key0;
        int lo = kern_attn_first(&b->a->f.s, pos) - key0;
        uint64_t below = lo > 0 ? ((uint64_t)1 << (lo < 32 ? lo : 32)) - 1 : 0;
        uint64_t seen = hi > 0 ? ((uint64_t)1 << (hi < 32 ? hi : 32)) - 1 : 0;
        u->mask[r] = i + r < w->nq ? (uint32_t)(seen & ~below) : 0;
    }
}

/* Score gradients of 32 queries as rows: 2 tiles for each 32 of AMX_BWD_KEYS keys. */
static inline uint16_t *amx_bwd_row_tiles(const struct amx_bwd *b, int g, int i)
{
    return b->w->more + ((size_t)g * PLAN_LEAF + (size_t)i) * AMX_BWD_KEYS;
}

/* dq of 32 queries from the AMX_BWD_KEYS keys from k0 on. */
static void amx_bwd_queries(struct amx_bwd *b, int g, int i, int k0)
{
    const uint16_t *kk = b->kk + (k0 - b->base) / AMX_BWD_KEYS % 2 * (AMX_BWD_KEYS * AMX_DIM);
    size_t row = (size_t)g * PLAN_LEAF + (size_t)i;
    int from = 0, n = 0;

    for (int h = 0; h < AMX_BWD_HALVES; h++) {
        if (amx_bwd_seen(b, i, k0 + 32 * h, 32)) {
            from = n ? from : h;
            n++;
        }
    }
    if (n) {
        amx_bwd_dq(b, amx_bwd_row_tiles(b, g, i) + from * (2 * AMX_TILE),
                   kk + from * (32 * AMX_DIM), n, b->w->dq + row * AMX_DIM);
    }
}

/* Queries from row i of the leaf on, block number `at` of their chunk, against 32 keys. */
static void amx_bwd_unit(struct amx_bwd *b, int g, int i, int at, int key0, const uint16_t *key)
{
    struct kern_leaf *w = b->w;
    struct amx_unit u;
    size_t row = (size_t)g * PLAN_LEAF + (size_t)i;
    int k0 = key0 - (key0 - b->base) % AMX_BWD_KEYS, half = (key0 - k0) / 32;

    u.lse = w->lse + row;
    u.dsum = w->dsum + row;
    u.pp = w->pp + amx_bwd_pairs(0, at);
    u.sp = w->pp + amx_bwd_pairs(1, at);
    u.sr = amx_bwd_row_tiles(b, g, i) + half * (2 * AMX_TILE);
    if (k0 > b->base && (!half || !amx_bwd_seen(b, i, key0 - 32, 32))) {
        amx_bwd_queries(b, g, i, k0 - AMX_BWD_KEYS); /* before its rows are overwritten */
    }
    amx_bwd_scores(b, w->qr + row * AMX_DIM, key, b->s);
    amx_bwd_scores(b, w->gr + row * AMX_DIM, b->vd + key0 % AMX_PAGE * 2, b->s + 2 * AMX_TILE);
    amx_bwd_mask(b, &u, i, key0);
    amx_bwd_settle(b);
    for (int r = 0; r < 32; r += 4) {
        amx_bwd_rows(b, &u, r);
    }
    AMX_BARRIER;
}

/* All queries of the leaf against 32 keys. */
static void amx_bwd_half(struct amx_bwd *b, int key0, const uint16_t *key)
{
    const struct kern_leaf *w = b->w;
    int i0 = 0, i1 = w->nqp, add = 0;

    while (i0 < i1 && !amx_bwd_seen(b, i0, key0, 32)) {
        i0 += 32;
    }
    while (i1 > i0 && !amx_bwd_seen(b, i1 - 32, key0, 32)) {
        i1 -= 32;
    }
    for (int g = 0; g < w->group; g++) {
        for (int i = i0; i < i1; i += 32 * AMX_BWD_CHUNK) {
            int n = i1 - i < 32 * AMX_BWD_CHUNK ? (i1 - i) / 32 : AMX_BWD_CHUNK;
            for (int j = 0; j < n; j++) {
                amx_bwd_unit(b, g, i + 32 * j, j, key0, key);
            }
            amx_bwd_keys(b, g, i, n, add);
            add = 1;
        }
    }
    amx_bwd_settle(b);
    if (!add) { /* the window begins after these keys; the leaf's parts hold them all the same */
        memset(b->sums, 0, 16 * 256 * sizeof *b->sums);
    }
    amx_bwd_commit(b, key0);
}

/* dq from AMX_BWD_KEYS keys, for the queries that see none of the next ones. */
static void amx_bwd_rest(struct amx_bwd *b, int k0, int end)
{
    for (int g = 0; g < b->w->group; g++) {
        for (int i = 0; i < b->w->nqp; i += 32) {
            if (end || !amx_bwd_seen(b, i, k0 + AMX_BWD_KEYS, AMX_BWD_KEYS)) {
                amx_bwd_queries(b, g, i, k0);
            }
        }
    }
}

static int kern_bwd_tiles(const struct kern_attn_bwd *a, const struct row_seq *sq, int kvh,
                          struct kern_leaf *w, float *parts)
{
    struct amx_bwd b;
    const uint16_t *kv = a->f.kv->data;
    int q1 = w->q0 + w->nq, base = kern_attn_first(&a->f.s, w->q0) / AMX_PAGE * AMX_PAGE, k0;

    if (w->d != AMX_DIM || a->f.s.softcap > 0.0f || !w->q_finite) {
        return 0;
    }
    for (k0 = base; k0 < q1; k0 += AMX_PAGE) {
        size_t at = kv_key_offset(a->f.kv, sq->pages[k0 / AMX_PAGE], a->f.layer, kvh);
        if (!kern_finite(kv + at, AMX_PAGE * AMX_DIM)) {
            return 0;
        }
    }
    memset(&b, 0, sizeof b);
    b.a = a;
    b.sq = sq;
    b.w = w;
    b.parts = parts;
    b.kvh = kvh;
    b.base = base;
    b.unit = vf_set1(kern_unit(&a->f.s));
    b.scale = vf_set1(a->f.s.scale);
    b.s = w->s;
    b.sums = w->dkt;
    b.kk = w->sp;
    b.vd = w->vd;
    for (k0 = base; k0 < q1; k0 += AMX_BWD_KEYS) {
        if (k0 > base) {
            amx_bwd_rest(&b, k0 - AMX_BWD_KEYS, 0);
        }
        for (int k = k0; k < k0 + AMX_BWD_KEYS && k < q1; k += AMX_PAGE) {
            int page = sq->pages[k / AMX_PAGE];
            const uint16_t *key = kv + kv_key_offset(a->f.kv, page, a->f.layer, kvh);
            size_t at = (size_t)((k - base) % (2 * AMX_BWD_KEYS)) * AMX_DIM;
            kern_repair(key, AMX_DIM / 2, AMX_PAGE, b.kk + at);
            kern_repair(kv + kv_value_offset(a->f.kv, page, a->f.layer, kvh), AMX_PAGE / 2, AMX_DIM,
                        b.vd);
            amx_bwd_half(&b, k, key);
            if (k + 32 < q1) {
                amx_bwd_half(&b, k + 32, key + 64);
            }
        }
    }
    amx_bwd_rest(&b, k0 - AMX_BWD_KEYS, 1);
    amx_bwd_settle(&b);
    return 1;
}

#endif
