/* Part of kern_body.h: attention, backward.
 *
 * One leaf of queries at a time against KERN_ATTN_KEYS keys at a time: scores and their gradients
 * with queries as rows, dq += dS K, and the leaf's dk and dv as (d, keys), so that probabilities
 * are wanted as pairs of queries, which two rows make. */
#ifndef CPU_KERN_ATTN_BWD_H
#define CPU_KERN_ATTN_BWD_H

#define KERN_LEAF_LD (PLAN_LEAF + 32)

struct kern_leaf {
    int d, dp, group;
    int row;         /* of the first query */
    int q0, nq, nqp; /* its position, queries, the same to the next multiple of 32 */
    int k0, nk;      /* first key of those in hand, keys */
    int q_finite, k_finite;
    /* per head of the group */
    uint16_t *qr, *gr; /* (nqp, dp) queries, dout; rows from nq on are zero */
    uint16_t *qt, *gt; /* (dp, KERN_LEAF_LD) transposed */
    float *dq;         /* (nqp, d) */
    float *lse, *dsum; /* (nqp); lse for powers of 2 */
    /* of the keys in hand */
    uint16_t *vd;      /* pages of (d / 2, 64, 2): values as keys are stored */
    uint16_t *kk;      /* pages of (64 / 2, d, 2): keys as values are stored */
    float *dkt, *dvt;  /* (d, KERN_KEYS_LD) */
    float *s, *dp_;    /* (32, KERN_KEYS_LD) scores, gradients of the probabilities */
    uint16_t *pp, *sp; /* (nqp / 2, KERN_ATTN_KEYS, 2) probabilities, score gradients of a head */
    uint16_t *sr;      /* (32, KERN_PROB_KEYS) score gradients as rows */
    uint16_t *more;    /* (group, PLAN_LEAF, KERN_ATTN_KEYS) for kern_bwd_tiles */
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
    w->more = w->sr + 32 * KERN_PROB_KEYS;
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

    w->row = sq->row0 + l * PLAN_LEAF;
    w->q0 = sq->pos0 + l * PLAN_LEAF;
    w->nq = sq->nrows - l * PLAN_LEAF < PLAN_LEAF ? sq->nrows - l * PLAN_LEAF : PLAN_LEAF;
    w->nqp = (w->nq + 31) / 32 * 32;
    w->q_finite = 1;
    for (int i = 0; i < w->nq; i++) { /* a row's heads lie together in memory */
        size_t row = (size_t)(w->row + i);
        for (int g = 0; g < w->group; g++) {
            size_t at = (size_t)g * PLAN_LEAF + (size_t)i, h = (size_t)(kvh * w->group + g);
            const uint16_t *q = a->f.q + row * (size_t)a->f.ldq + h * (size_t)d;
            const uint16_t *dout = a->dout + row * (size_t)a->lddo + h * (size_t)d;
            const uint16_t *o = a->f.out + row * (size_t)a->f.ldo + h * (size_t)d;
            vf s = vf_zero();
            kern_copy_row(w->qr + at * (size_t)dp, q, d, dp);
            kern_copy_row(w->gr + at * (size_t)dp, dout, d, dp);
            for (int c = 0; c < d; c += 16) {
                s = vf_fma(vf_loadbf(dout + c), vf_loadbf(o + c), s);
            }
            w->dsum[at] = vf_hsum(s);
            w->lse[at] = a->f.lse[row * (size_t)a->f.ldl + h] * VMATH_LOG2E;
        }
    }
    for (int g = 0; g < w->group; g++) {
        uint16_t *qr = w->qr + (size_t)g * PLAN_LEAF * (size_t)dp;
        uint16_t *gr = w->gr + (size_t)g * PLAN_LEAF * (size_t)dp;
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
    vf unit = vf_set1(kern_unit(sh)), scale = vf_set1(sh->scale);

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
            p[t] = kern_pow2(vf_fma(v, unit, vf_set1(-lse[t])));
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
    int seen = (w->q0 + i + 31 - w->k0) / PLAN_KV_BLOCK + 1; /* pages up to the last query */

    seen = seen < pages ? seen : pages;
    for (int b = 0; b < seen; b++) {
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
        kern_mul(w->sr, KERN_PROB_KEYS, 32, kk, PLAN_KV_BLOCK, (size_t)d * 2, d,
                 seen * PLAN_KV_BLOCK, w->dq + at * (size_t)d, (size_t)d, 1, w->tmp);
    } else {
        kern_mul_careful(w->sr, KERN_PROB_KEYS, 32, kk, PLAN_KV_BLOCK, (size_t)d * 2, d,
                         seen * PLAN_KV_BLOCK, w->dq + at * (size_t)d, (size_t)d, 1, lo, hi, 0);
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

    for (int j = 0; j < n && w->q_finite; j += PLAN_KV_BLOCK) {
        /* queries before a page's first key add nothing to it */
        int skip = w->k0 + j - w->q0 - qs > 0 ? (w->k0 + j - w->q0 - qs) / 32 * 32 : 0;
        int cols = n - j < PLAN_KV_BLOCK ? n - j : PLAN_KV_BLOCK, k = qe - qs - skip;
        const uint16_t *pj = pp + (size_t)skip * KERN_ATTN_KEYS + 2 * j;
        const uint16_t *sj = sp + (size_t)skip * KERN_ATTN_KEYS + 2 * j;
        kern_mul(gt + skip, KERN_LEAF_LD, w->d, &pj, k, KERN_ATTN_KEYS * 2, cols, k, w->dvt + j,
                 KERN_KEYS_LD, g > 0, w->tmp);
        kern_mul(qt + skip, KERN_LEAF_LD, w->d, &sj, k, KERN_ATTN_KEYS * 2, cols, k, w->dkt + j,
                 KERN_KEYS_LD, g > 0, w->tmp);
    }
    if (w->q_finite) {
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

/* The leaf's (d, keys) sums of the keys in hand to their rows: those of dk (what 0) or dv (1). */
static void kern_bwd_commit(const struct kern_attn_bwd *a, const struct row_seq *sq, int kvh,
                            const struct kern_leaf *w, int base, float *parts, int what)
{
    const float *xt = what ? w->dvt : w->dkt;
    size_t d = (size_t)w->d, col = (size_t)(what * a->f.s.n_kv_heads + kvh) * d;

    for (int j = 0; j < w->nk; j += 16) {
        int rows = w->nk - j < 16 ? w->nk - j : 16;
        float *out[16];
        for (int r = 0; r < rows; r++) {
            int key = w->k0 + j + r;
            out[r] = parts ? parts + ((size_t)(key - base) * 2 + (size_t)what) * d
                           : a->dkv + kern_key_row(a->f.rows, sq, key) * (size_t)a->lddkv + col;
        }
        for (int c = 0; c < w->d; c += 16) {
            float t[16][16];
            kern_turn(xt + (size_t)c * KERN_KEYS_LD + (size_t)j, KERN_KEYS_LD * 4, t, sizeof t[0]);
            for (int r = 0; r < rows; r++) {
                if (parts) {
                    vf_store(out[r] + c, vf_load(t[r]));
                } else {
                    kern_join_leaf(out[r] + c, t[r], 16, w->k0 + j + r < w->q0);
                }
            }
        }
    }
}

#if KERN_MUL_TILES
/* kern_bwd_leaf for the shapes and operands that it knows; else 0 and nothing done. */
static int kern_bwd_tiles(const struct kern_attn_bwd *a, const struct row_seq *sq, int kvh,
                          struct kern_leaf *w, float *parts);
#endif

static void kern_bwd_leaf(const struct kern_attn_bwd *a, const struct row_seq *sq, int kvh,
                          struct kern_leaf *w, float *parts)
{
    int d = w->d, q1 = w->q0 + w->nq;
    int base = kern_attn_first(&a->f.s, w->q0) / PLAN_KV_BLOCK * PLAN_KV_BLOCK;
    const uint16_t *kv = a->f.kv->data;

#if KERN_MUL_TILES
    if (kern_bwd_tiles(a, sq, kvh, w, parts)) {
        return;
    }
#endif
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
        kern_bwd_commit(a, sq, kvh, w, base, parts, 0);
        kern_bwd_commit(a, sq, kvh, w, base, parts, 1);
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
            int row = w.row + i / group, g = i % group;
            float *dq = a->dq + (size_t)row * (size_t)a->lddq + (size_t)((kvh * group + g) * d);
            kern_join_leaf(dq, w.dq + ((size_t)g * PLAN_LEAF + (size_t)(i / group)) * (size_t)d, d,
                           0);
        }
    }
}

static void kern_attn_bwd_join(const struct kern_attn_bwd *a, int seq, int kvh, int l, int j0,
                               int j1, const float *parts)
{
    const struct row_seq *sq = &a->f.rows->seq[seq];
    int d = a->f.s.head_dim, nkv = a->f.s.n_kv_heads, base;
    int end = kern_leaf_keys(&a->f.s, sq, l, &base);

    end = j1 < end ? j1 : end;
    for (int j = j0 > base ? j0 : base; j < end; j++) {
        float *dkv = a->dkv + kern_key_row(a->f.rows, sq, j) * (size_t)a->lddkv;
        const float *p = parts + (size_t)(j - base) * (size_t)(2 * d);
        int add = j < sq->pos0 + l * PLAN_LEAF;
        kern_join_leaf(dkv + kvh * d, p, d, add);
        kern_join_leaf(dkv + (nkv + kvh) * d, p + d, d, add);
    }
}

#endif
