/* The reference device's rope, KV pages and attention, from the definition (see ops_ref.c). */
#include "num/ops_ref_int.h"

#include "base/thread.h"

/* ---- rope and pages ----------------------------------------------------------------------------
 */

struct rope_args {
    struct device *d;
    const struct tensor *qkv, *cos, *sin, *q;
    const struct norm *q_norm, *k_norm;
    const struct attn_shape *s;
    const struct rows *rows;
    struct kv_store *kv;
    int layer;
    const struct tensor *dq, *dkv, *dqkv;
};

static const struct row_seq *seq_of(const struct rows *rows, int r)
{
    const struct row_seq *s = rows->seq;
    while (r < s->row0 || r >= s->row0 + s->nrows) {
        s++;
        ASSERT(s < rows->seq + rows->nseq);
    }
    return s;
}

static float head_rstd(const float *x, int d, float eps)
{
    float s[LANES] = {0};
    for (int i = 0; i < d; i++) {
        s[i % LANES] = fmaf(x[i], x[i], s[i % LANES]);
    }
    return 1.0f / sqrtf(lanes_sum(s) / (float)d + eps);
}

/* The two members of rope's pair i, of a head's dimensions. */
static int pair_first(const struct attn_shape *s, int i)
{
    return s->interleaved ? 2 * i : i;
}

static int pair_second(const struct attn_shape *s, int i)
{
    return s->interleaved ? 2 * i + 1 : s->rot / 2 + i;
}

/* Head h of a row of qkv (query heads, then key heads) normed and rotated, not yet rounded. */
static void rope_head(const struct rope_args *a, int r, int h, float *y)
{
    const struct norm *norm = h < a->s->n_heads ? a->q_norm : a->k_norm;
    int d = a->s->head_dim, pos = a->rows->pos[r];
    float x[MAX_DIM] = {0};

    for (int i = 0; i < d; i++) {
        x[i] = get(a->qkv, r, h * d + i);
    }
    if (norm) {
        float rstd = head_rstd(x, d, norm->eps);
        for (int i = 0; i < d; i++) {
            x[i] = (x[i] * rstd) * norm_factor(norm, i);
        }
    }
    for (int i = 0; i < a->s->rot / 2; i++) {
        float c = get(a->cos, pos, i), s = get(a->sin, pos, i);
        int j = pair_first(a->s, i), k = pair_second(a->s, i);
        y[j] = x[j] * c - x[k] * s;
        y[k] = x[k] * c + x[j] * s;
    }
    for (int i = a->s->rot; i < d; i++) {
        y[i] = x[i];
    }
}

static void rope_task(void *arg, int r, int worker)
{
    const struct rope_args *a = arg;
    int d = a->s->head_dim, nh = a->s->n_heads, nkv = a->s->n_kv_heads;
    int pos = a->rows->pos[r], slot = pos % PLAN_KV_BLOCK;
    int page = seq_of(a->rows, r)->pages[pos / PLAN_KV_BLOCK];
    float y[MAX_DIM];
    (void)worker;

    for (int h = 0; h < nh; h++) {
        rope_head(a, r, h, y);
        for (int i = 0; i < d; i++) {
            put(a->q, r, h * d + i, y[i]);
        }
    }
    for (int h = 0; h < nkv; h++) {
        size_t key = kv_key_offset(a->kv, page, a->layer, h);
        size_t value = kv_value_offset(a->kv, page, a->layer, h);
        rope_head(a, r, nh + h, y);
        for (int i = 0; i < d; i++) {
            kv_put(a->kv, key + kv_key_index(i, slot), y[i]);
            kv_put(a->kv, value + kv_value_index(i, slot, d),
                   get(a->qkv, r, (nh + nkv + h) * d + i));
        }
    }
}

/* The base's tokens of the page that it fills in part, into the page of a sequence's own. */
static void base_tail(const struct rope_args *a, const struct row_seq *sq)
{
    int d = a->s->head_dim, at = sq->pos0 / PLAN_KV_BLOCK, n = sq->pos0 % PLAN_KV_BLOCK;
    const struct row_seq *base = &a->rows->seq[sq->base - 1];

    ASSERT(base->pos0 == 0 && base->nrows == sq->pos0);
    for (int h = 0; n && h < a->s->n_kv_heads; h++) {
        size_t key = kv_key_offset(a->kv, base->pages[at], a->layer, h);
        size_t value = kv_value_offset(a->kv, base->pages[at], a->layer, h);
        size_t own_key = kv_key_offset(a->kv, sq->pages[at], a->layer, h);
        size_t own_value = kv_value_offset(a->kv, sq->pages[at], a->layer, h);
        for (int slot = 0; slot < n; slot++) {
            for (int i = 0; i < d; i++) {
                size_t k = kv_key_index(i, slot), v = kv_value_index(i, slot, d);
                kv_put(a->kv, own_key + k, kv_get(a->kv, key + k));
                kv_put(a->kv, own_value + v, kv_get(a->kv, value + v));
            }
        }
    }
}

void ops_ref_rope_kv(struct device *d, const struct tensor *qkv, const struct norm *q_norm,
                     const struct norm *k_norm, const struct tensor *cos, const struct tensor *sin,
                     const struct attn_shape *s, const struct rows *rows, struct kv_store *kv,
                     int layer, struct tensor *q)
{
    struct rope_args a = {.d = d,
                          .qkv = qkv,
                          .q_norm = q_norm,
                          .k_norm = k_norm,
                          .cos = cos,
                          .sin = sin,
                          .q = q,
                          .s = s,
                          .rows = rows,
                          .kv = kv,
                          .layer = layer};
    ASSERT(s->head_dim <= MAX_DIM);
    pool_run(d->pool, rope_task, &a, rows->n);
    for (int i = 0; i < rows->nseq; i++) {
        if (rows->seq[i].base) {
            base_tail(&a, &rows->seq[i]);
        }
    }
}

/* Gradient of head h of a row: dx, and with a norm dn, the share of the norm's weight. */
static void rope_head_bwd(const struct rope_args *a, int r, int h, float *dx, float *dn)
{
    const struct norm *norm = h < a->s->n_heads ? a->q_norm : a->k_norm;
    const struct tensor *dy = h < a->s->n_heads ? a->dq : a->dkv;
    int d = a->s->head_dim, pos = a->rows->pos[r];
    int64_t at = (int64_t)(h < a->s->n_heads ? h : h - a->s->n_heads) * d;
    float x[MAX_DIM] = {0}, lanes[LANES] = {0}, rstd, mean;

    for (int i = 0; i < a->s->rot / 2; i++) {
        float c = get(a->cos, pos, i), s = get(a->sin, pos, i);
        int j = pair_first(a->s, i), k = pair_second(a->s, i);
        float p = get(dy, r, at + j), q = get(dy, r, at + k);
        dx[j] = p * c + q * s;
        dx[k] = q * c - p * s;
    }
    for (int i = a->s->rot; i < d; i++) {
        dx[i] = get(dy, r, at + i);
    }
    if (!norm) {
        return;
    }
    for (int i = 0; i < d; i++) {
        x[i] = get(a->qkv, r, h * d + i);
    }
    rstd = head_rstd(x, d, norm->eps);
    for (int i = 0; i < d; i++) {
        float xh = x[i] * rstd;
        dn[i] = dx[i] * xh;
        dx[i] = dx[i] * norm_factor(norm, i);
        lanes[i % LANES] = fmaf(dx[i], xh, lanes[i % LANES]);
    }
    mean = lanes_sum(lanes) / (float)d;
    for (int i = 0; i < d; i++) {
        dx[i] = rstd * (dx[i] - (x[i] * rstd) * mean);
    }
}

static void rope_bwd_task(void *arg, int r, int worker)
{
    const struct rope_args *a = arg;
    int d = a->s->head_dim, nh = a->s->n_heads, nkv = a->s->n_kv_heads;
    float dx[MAX_DIM], dn[MAX_DIM];
    (void)worker;

    for (int h = 0; h < nh + nkv; h++) {
        rope_head_bwd(a, r, h, dx, dn);
        for (int i = 0; i < d; i++) {
            put(a->dqkv, r, h * d + i, dx[i]);
        }
    }
    for (int i = 0; i < nkv * d; i++) {
        put(a->dqkv, r, (nh + nkv) * d + i, get(a->dkv, r, nkv * d + i));
    }
}

/* The norm weight that heads [h0, h1) share: each head's rows of a leaf are a leaf of their own. */
static void head_norm_dw(const struct rope_args *a, int h0, int h1, const struct leaf_rows *leaves,
                         const struct tensor *grad)
{
    float dx[MAX_DIM], dn[MAX_DIM];
    for (int l = 0; l < leaves->n; l++) {
        for (int h = h0; h < h1; h++) {
            float s[MAX_DIM] = {0};
            for (int r = leaves->start[l]; r < leaves->start[l + 1]; r++) {
                rope_head_bwd(a, r, h, dx, dn);
                for (int i = 0; i < a->s->head_dim; i++) {
                    s[i] = s[i] + dn[i];
                }
            }
            for (int i = 0; i < a->s->head_dim; i++) {
                grad_add(a->d, grad, 0, i, s[i]);
            }
        }
    }
}

void ops_ref_rope_kv_bwd(struct device *d, const struct tensor *dq, const struct tensor *dkv,
                         const struct tensor *qkv, const struct norm *q_norm,
                         const struct norm *k_norm, const struct tensor *cos,
                         const struct tensor *sin, const struct attn_shape *s,
                         const struct rows *rows, const struct leaf_rows *leaves,
                         struct tensor *dqkv, struct tensor *grad_qn, struct tensor *grad_kn)
{
    struct rope_args a = {.d = d,
                          .qkv = qkv,
                          .q_norm = q_norm,
                          .k_norm = k_norm,
                          .cos = cos,
                          .sin = sin,
                          .s = s,
                          .rows = rows,
                          .dq = dq,
                          .dkv = dkv,
                          .dqkv = dqkv};
    ASSERT(s->head_dim <= MAX_DIM);
    pool_run(d->pool, rope_bwd_task, &a, rows->n);
    if (q_norm) {
        head_norm_dw(&a, 0, s->n_heads, leaves, grad_qn);
    }
    if (k_norm) {
        head_norm_dw(&a, s->n_heads, s->n_heads + s->n_kv_heads, leaves, grad_kn);
    }
}

/* ---- attention ---------------------------------------------------------------------------------
 *
 * A query at position p sees keys [first_key(p), p]: that alone decides which blocks exist for it.
 * Inside a segment the softmax has one maximum; probabilities that multiply values, and in the
 * backward pass probabilities and score gradients, are rounded to bf16 (not in f32 plans), and
 * their products run over blocks of 32 keys (or queries) at absolute positions like any other. What
 * a query does not see adds zero terms, which change nothing but the sign of a zero: adding 0 at
 * the end takes that away too, so skipping a block and computing it masked are the same. */

struct attn_args {
    const struct tensor *q, *out, *lse, *dout, *dq, *dkv;
    const struct kv_store *kv;
    int layer;
    const struct attn_shape *s;
    const struct rows *rows;
};

static int first_key(const struct attn_shape *s, int p)
{
    return s->window > 0 && p >= s->window ? p - s->window + 1 : 0;
}

/* One past the last of a sequence's rows whose query sees key j. */
static int end_query(const struct attn_shape *s, const struct row_seq *sq, int j)
{
    int end = j + s->window - sq->pos0;
    return s->window > 0 && end < sq->nrows ? end : sq->nrows;
}

static int kv_head(const struct attn_args *a, int h)
{
    return h / (a->s->n_heads / a->s->n_kv_heads);
}

static float key_at(const struct attn_args *a, const struct row_seq *sq, int kvh, int j, int i)
{
    int page = sq->pages[j / PLAN_KV_BLOCK];
    return kv_get(a->kv,
                  kv_key_offset(a->kv, page, a->layer, kvh) + kv_key_index(i, j % PLAN_KV_BLOCK));
}

static float value_at(const struct attn_args *a, const struct row_seq *sq, int kvh, int j, int i)
{
    int page = sq->pages[j / PLAN_KV_BLOCK];
    return kv_get(a->kv, kv_value_offset(a->kv, page, a->layer, kvh) +
                             kv_value_index(i, j % PLAN_KV_BLOCK, a->s->head_dim));
}

/* What a tile product takes. */
static float rounded(const struct attn_args *a, float x)
{
    return a->kv->dtype == DTYPE_F32 ? x : dtype_from_bf16(dtype_to_bf16(x));
}

/* Row r of x, head h, times key or value j. */
static float head_product(const struct attn_args *a, const struct tensor *x, int r, int h,
                          const struct row_seq *sq, int j,
                          float (*at)(const struct attn_args *, const struct row_seq *, int, int,
                                      int))
{
    int d = a->s->head_dim;
    float acc = 0.0f, u[PLAN_KBLOCK], v[PLAN_KBLOCK];
    for (int k = 0; k < d; k += PLAN_KBLOCK) {
        for (int i = 0; i < PLAN_KBLOCK; i++) {
            u[i] = k + i < d ? get(x, r, h * d + k + i) : 0.0f;
            v[i] = k + i < d ? at(a, sq, kv_head(a, h), j, k + i) : 0.0f;
        }
        acc = acc + block_product(u, v);
    }
    return acc;
}

/* The score of row r, head h, against key j, to be multiplied by score_unit and then the exponent
 * of power. *slope is the capped score's derivative. */
static float score(const struct attn_args *a, const struct row_seq *sq, int r, int h, int j,
                   float *slope)
{
    float x = head_product(a, a->q, r, h, sq, j, key_at), cap = a->s->softcap, t;
    *slope = 1.0f;
    if (cap > 0.0f) {
        t = vmath_tanhf(x * (a->s->scale / cap));
        *slope = 1.0f - t * t;
        x = cap * t;
    }
    return x;
}

/* Exponents are those of 2, and their powers as exact as bf16 can tell; in f32 plans those of e. */
static float score_unit(const struct attn_args *a)
{
    float unit = a->s->softcap > 0.0f ? 1.0f : a->s->scale;
    return a->kv->dtype == DTYPE_F32 ? unit : unit * VMATH_LOG2E;
}

static float power(const struct attn_args *a, float x)
{
    return a->kv->dtype == DTYPE_F32 ? vmath_expf(x) : vmath_pow2f(x);
}

/* A softmax that is not finished: maximum, sum of power(x - m), sum of power(x - m) v. */
struct soft {
    float m, l, o[MAX_DIM];
};

/* Keys [j0, end) of the segment that starts at seg. */
static void soft_segment(const struct attn_args *a, const struct row_seq *sq, int r, int h, int seg,
                         int j0, int end, struct soft *s)
{
    float p[PLAN_KV_SEGMENT] = {0}, top[LANES], sum[LANES] = {0}, slope;
    float unit = score_unit(a);

    for (int i = 0; i < LANES; i++) {
        top[i] = -INFINITY;
    }
    for (int j = j0; j < end; j++) {
        p[j - seg] = score(a, sq, r, h, j, &slope);
        top[j % LANES] = greater(top[j % LANES], p[j - seg]);
    }
    s->m = lanes_max(top) * unit;
    for (int j = j0; j < end; j++) {
        p[j - seg] = power(a, fmaf(p[j - seg], unit, -s->m));
        sum[j % LANES] = sum[j % LANES] + p[j - seg];
    }
    s->l = lanes_sum(sum);
    for (int c = 0; c < a->s->head_dim; c++) {
        s->o[c] = 0.0f;
        for (int b = j0 / PLAN_KBLOCK * PLAN_KBLOCK; b < end; b += PLAN_KBLOCK) {
            float x[PLAN_KBLOCK], y[PLAN_KBLOCK];
            for (int i = 0; i < PLAN_KBLOCK; i++) {
                int seen = b + i >= j0 && b + i < end;
                x[i] = seen ? rounded(a, p[b + i - seg]) : 0.0f;
                y[i] = seen ? value_at(a, sq, kv_head(a, h), b + i, c) : 0.0f;
            }
            s->o[c] = s->o[c] + block_product(x, y);
        }
    }
}

static void soft_join(const struct attn_args *args, struct soft *s, const struct soft *next, int d)
{
    float m = greater(s->m, next->m);
    float a = power(args, s->m - m), b = power(args, next->m - m);
    s->l = s->l * a + next->l * b;
    s->m = m;
    for (int i = 0; i < d; i++) {
        s->o[i] = s->o[i] * a + next->o[i] * b;
    }
}

static void attn_task(void *arg, int task, int worker)
{
    const struct attn_args *a = arg;
    int r = task / a->s->n_heads, h = task % a->s->n_heads, d = a->s->head_dim;
    const struct row_seq *sq = seq_of(a->rows, r);
    int pos = sq->pos0 + (r - sq->row0), first = first_key(a->s, pos);
    int seg0 = first / PLAN_KV_SEGMENT * PLAN_KV_SEGMENT;
    struct soft all, next;
    (void)worker;

    for (int seg = seg0; seg <= pos; seg += PLAN_KV_SEGMENT) {
        int end = seg + PLAN_KV_SEGMENT <= pos ? seg + PLAN_KV_SEGMENT : pos + 1;
        soft_segment(a, sq, r, h, seg, seg > first ? seg : first, end, seg > seg0 ? &next : &all);
        if (seg > seg0) {
            soft_join(a, &all, &next, d);
        }
    }
    for (int i = 0; i < d; i++) {
        put(a->out, r, h * d + i, (all.o[i] + 0.0f) * (1.0f / all.l));
    }
    if (a->lse) {
        put(a->lse, r, h,
            a->kv->dtype == DTYPE_F32 ? all.m + vmath_logf(all.l)
                                      : fmaf(all.m, VMATH_LN2, vmath_logf(all.l)));
    }
}

void ops_ref_attn(struct device *d, const struct tensor *q, const struct kv_store *kv, int layer,
                  const struct attn_shape *s, const struct rows *rows, struct tensor *out,
                  struct tensor *lse)
{
    struct attn_args a = {
        .q = q, .out = out, .lse = lse, .kv = kv, .layer = layer, .s = s, .rows = rows};
    ASSERT(s->head_dim <= MAX_DIM);
    pool_run(d->pool, attn_task, &a, rows->n * s->n_heads);
}

/* The probability of key j for the query of row i of the sequence, head h, and the gradient of its
 * score. */
static void pair_grad(const struct attn_args *a, const struct row_seq *sq, int i, int h, int j,
                      float *p, float *ds)
{
    int d = a->s->head_dim, r = sq->row0 + i;
    float lanes[LANES] = {0}, dp, mean, x, slope, lse = get(a->lse, r, h);

    for (int c = 0; c < d; c++) {
        lanes[c % LANES] =
            fmaf(get(a->dout, r, h * d + c), get(a->out, r, h * d + c), lanes[c % LANES]);
    }
    mean = lanes_sum(lanes);
    dp = head_product(a, a->dout, r, h, sq, j, value_at);
    x = score(a, sq, r, h, j, &slope);
    lse = a->kv->dtype == DTYPE_F32 ? lse : lse * VMATH_LOG2E;
    *p = power(a, fmaf(x, score_unit(a), -lse));
    *ds = *p * (dp - mean);
    if (a->s->softcap > 0.0f) {
        *ds = *ds * slope;
    }
    *ds = rounded(a, *ds * a->s->scale);
    *p = rounded(a, *p);
}

static void attn_dq_task(void *arg, int task, int worker)
{
    const struct attn_args *a = arg;
    int r = task / a->s->n_heads, h = task % a->s->n_heads, d = a->s->head_dim;
    const struct row_seq *sq = seq_of(a->rows, r);
    int i = r - sq->row0, pos = sq->pos0 + i, first = first_key(a->s, pos);
    float dq[MAX_DIM] = {0};
    (void)worker;

    for (int b = first / PLAN_KBLOCK * PLAN_KBLOCK; b <= pos; b += PLAN_KBLOCK) {
        float ds[PLAN_KBLOCK] = {0}, k[PLAN_KBLOCK] = {0}, p;
        int from = b > first ? b : first, end = b + PLAN_KBLOCK <= pos ? b + PLAN_KBLOCK : pos + 1;
        for (int j = from; j < end; j++) {
            pair_grad(a, sq, i, h, j, &p, &ds[j - b]);
        }
        for (int c = 0; c < d; c++) {
            for (int j = from; j < end; j++) {
                k[j - b] = key_at(a, sq, kv_head(a, h), j, c);
            }
            dq[c] = dq[c] + block_product(ds, k);
        }
    }
    for (int c = 0; c < d; c++) {
        put(a->dq, r, h * d + c, dq[c] + 0.0f);
    }
}

/* Rows [leaf, end) of a sequence, head h, onto the partial sums of key j. */
static void dkv_leaf(const struct attn_args *a, const struct row_seq *sq, int h, int j, int leaf,
                     int end, float *pk, float *pv)
{
    int d = a->s->head_dim, from = leaf > j - sq->pos0 ? leaf : j - sq->pos0;
    for (int b = leaf; b < end; b += PLAN_KBLOCK) {
        float p[PLAN_KBLOCK] = {0}, ds[PLAN_KBLOCK] = {0}, x[PLAN_KBLOCK] = {0};
        float y[PLAN_KBLOCK] = {0};
        int i0 = b > from ? b : from, i1 = b + PLAN_KBLOCK < end ? b + PLAN_KBLOCK : end;
        for (int i = i0; i < i1; i++) {
            pair_grad(a, sq, i, h, j, &p[i - b], &ds[i - b]);
        }
        for (int c = 0; c < d; c++) {
            for (int i = i0; i < i1; i++) {
                x[i - b] = get(a->q, sq->row0 + i, h * d + c);
                y[i - b] = get(a->dout, sq->row0 + i, h * d + c);
            }
            pk[c] = pk[c] + block_product(ds, x);
            pv[c] = pv[c] + block_product(p, y);
        }
    }
}

/* Key j's sums from a sequence's rows from `leaf` on: one for each leaf of queries (of the group's
 * heads in turn), joined in ascending order. */
static void dkv_seq(const struct attn_args *a, const struct row_seq *sq, int kvh, int j, int leaf,
                    float *dk, float *dv)
{
    int group = a->s->n_heads / a->s->n_kv_heads, last = end_query(a->s, sq, j);

    for (; leaf < last; leaf += PLAN_LEAF) {
        float pk[MAX_DIM] = {0}, pv[MAX_DIM] = {0};
        for (int h = kvh * group; h < (kvh + 1) * group; h++) {
            dkv_leaf(a, sq, h, j, leaf, leaf + PLAN_LEAF < last ? leaf + PLAN_LEAF : last, pk, pv);
        }
        for (int c = 0; c < a->s->head_dim; c++) {
            dk[c] = (dk[c] + pk[c]) + 0.0f;
            dv[c] = (dv[c] + pv[c]) + 0.0f;
        }
    }
}

/* One key and value: its own sequence, then those that go on from it. */
static void attn_dkv_task(void *arg, int task, int worker)
{
    const struct attn_args *a = arg;
    int nkv = a->s->n_kv_heads, d = a->s->head_dim, r = task / nkv, kvh = task % nkv;
    const struct row_seq *sq = seq_of(a->rows, r), *end = a->rows->seq + a->rows->nseq;
    int i = r - sq->row0, j = sq->pos0 + i;
    float dk[MAX_DIM] = {0}, dv[MAX_DIM] = {0};
    (void)worker;

    dkv_seq(a, sq, kvh, j, i / PLAN_LEAF * PLAN_LEAF, dk, dv);
    for (const struct row_seq *on = sq + 1; on < end && !sq->base && on->base; on++) {
        dkv_seq(a, on, kvh, j, 0, dk, dv);
    }
    for (int c = 0; c < d; c++) {
        put(a->dkv, r, kvh * d + c, dk[c]);
        put(a->dkv, r, (nkv + kvh) * d + c, dv[c]);
    }
}

void ops_ref_attn_bwd(struct device *d, const struct tensor *dout, const struct tensor *q,
                      const struct tensor *out, const struct tensor *lse, const struct kv_store *kv,
                      int layer, const struct attn_shape *s, const struct rows *rows,
                      struct tensor *dq, struct tensor *dkv)
{
    struct attn_args a = {.q = q,
                          .out = out,
                          .lse = lse,
                          .dout = dout,
                          .dq = dq,
                          .dkv = dkv,
                          .kv = kv,
                          .layer = layer,
                          .s = s,
                          .rows = rows};
    ASSERT(s->head_dim <= MAX_DIM);
    pool_run(d->pool, attn_dq_task, &a, rows->n * s->n_heads);
    pool_run(d->pool, attn_dkv_task, &a, rows->n * s->n_kv_heads);
}
