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

#endif
