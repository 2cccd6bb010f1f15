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
        size_t value = kv_value_offset(a->kv, page, a->layer, h) + (size_t)(slot * d);
        rope_head(a, r, nh + h, y);
        for (int i = 0; i < d; i++) {
            kv_put(a->kv, key + kv_key_index(i, slot), y[i]);
            kv_put(a->kv, value + (size_t)i, get(a->qkv, r, (nh + nkv + h) * d + i));
        }
    }
}

void ref_rope_kv(struct device *d, const struct tensor *qkv, const struct norm *q_norm,
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

/* The norm weight that heads [h0, h1) share: a leaf is summed over its rows and their heads. */
static void head_norm_dw(const struct rope_args *a, int h0, int h1, const struct leaf_rows *leaves,
                         const struct tensor *grad)
{
    float dx[MAX_DIM], dn[MAX_DIM];
    for (int l = 0; l < leaves->n; l++) {
        float s[MAX_DIM] = {0};
        for (int r = leaves->start[l]; r < leaves->start[l + 1]; r++) {
            for (int h = h0; h < h1; h++) {
                rope_head_bwd(a, r, h, dx, dn);
                for (int i = 0; i < a->s->head_dim; i++) {
                    s[i] = s[i] + dn[i];
                }
            }
        }
        for (int i = 0; i < a->s->head_dim; i++) {
            grad_add(a->d, grad, 0, i, s[i]);
        }
    }
}

void ref_rope_kv_bwd(struct device *d, const struct tensor *dq, const struct tensor *dkv,
                     const struct tensor *qkv, const struct norm *q_norm, const struct norm *k_norm,
                     const struct tensor *cos, const struct tensor *sin, const struct attn_shape *s,
                     const struct rows *rows, const struct leaf_rows *leaves, struct tensor *dqkv,
                     struct tensor *grad_qn, struct tensor *grad_kn)
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
 */

struct attn_args {
    const struct tensor *q, *out, *lse, *dout, *dq, *dkv;
    const struct kv_store *kv;
    int layer;
    const struct attn_shape *s;
    const struct rows *rows;
};

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
    int page = sq->pages[j / PLAN_KV_BLOCK], d = a->s->head_dim;
    return kv_get(a->kv, kv_value_offset(a->kv, page, a->layer, kvh) +
                             (size_t)(j % PLAN_KV_BLOCK * d + i));
}

/* Scaled score of row r, head h, against key j. */
static float score(const struct attn_args *a, const struct row_seq *sq, int r, int h, int j)
{
    int d = a->s->head_dim;
    float acc = 0.0f, x[PLAN_KBLOCK], y[PLAN_KBLOCK];
    for (int k = 0; k < d; k += PLAN_KBLOCK) {
        for (int i = 0; i < PLAN_KBLOCK; i++) {
            x[i] = get(a->q, r, h * d + k + i);
            y[i] = key_at(a, sq, kv_head(a, h), j, k + i);
        }
        acc = acc + block_product(x, y);
    }
    return acc * a->s->scale;
}

/* A softmax that is not finished: maximum, sum of exp(x - m), sum of exp(x - m) v. */
struct soft {
    float m, l, o[MAX_DIM];
};

/* Takes in keys [j0, j0 + n) of one page. */
static void soft_page(const struct attn_args *a, const struct row_seq *sq, int r, int h, int j0,
                      int n, struct soft *s)
{
    float x[PLAN_KV_BLOCK], top[LANES], sum[LANES], m, alpha;

    for (int j = 0; j < PLAN_KV_BLOCK; j++) {
        x[j] = j < n ? score(a, sq, r, h, j0 + j) : -INFINITY;
    }
    for (int i = 0; i < LANES; i++) {
        top[i] = greater(greater(x[i], x[i + 16]), greater(x[i + 32], x[i + 48]));
    }
    m = greater(lanes_max(top), s->m);
    for (int j = 0; j < PLAN_KV_BLOCK; j++) {
        x[j] = vmath_expf(x[j] - m);
    }
    for (int i = 0; i < LANES; i++) {
        sum[i] = (x[i] + x[i + 16]) + (x[i + 32] + x[i + 48]);
    }
    alpha = vmath_expf(s->m - m);
    s->l = s->l * alpha + lanes_sum(sum);
    s->m = m;
    for (int i = 0; i < a->s->head_dim; i++) {
        s->o[i] = s->o[i] * alpha;
        for (int j = 0; j < n; j++) {
            s->o[i] = fmaf(x[j], value_at(a, sq, kv_head(a, h), j0 + j, i), s->o[i]);
        }
    }
}

static void soft_segment(const struct attn_args *a, const struct row_seq *sq, int r, int h, int j0,
                         int end, struct soft *s)
{
    s->m = -INFINITY;
    s->l = 0.0f;
    memset(s->o, 0, sizeof s->o);
    for (int j = j0; j < end; j += PLAN_KV_BLOCK) {
        soft_page(a, sq, r, h, j, end - j < PLAN_KV_BLOCK ? end - j : PLAN_KV_BLOCK, s);
    }
}

static void soft_join(struct soft *s, const struct soft *next, int d)
{
    float m = greater(s->m, next->m);
    float a = vmath_expf(s->m - m), b = vmath_expf(next->m - m);
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
    int keys = sq->pos0 + (r - sq->row0) + 1;
    struct soft all, next;
    (void)worker;

    for (int j = 0; j < keys; j += PLAN_KV_SEGMENT) {
        int end = j + PLAN_KV_SEGMENT < keys ? j + PLAN_KV_SEGMENT : keys;
        soft_segment(a, sq, r, h, j, end, j ? &next : &all);
        if (j) {
            soft_join(&all, &next, d);
        }
    }
    for (int i = 0; i < d; i++) {
        put(a->out, r, h * d + i, all.o[i] / all.l);
    }
    if (a->lse) {
        put(a->lse, r, h, all.m + vmath_logf(all.l));
    }
}

void ref_attn(struct device *d, const struct tensor *q, const struct kv_store *kv, int layer,
              const struct attn_shape *s, const struct rows *rows, struct tensor *out,
              struct tensor *lse)
{
    struct attn_args a = {
        .q = q, .out = out, .lse = lse, .kv = kv, .layer = layer, .s = s, .rows = rows};
    ASSERT(s->head_dim <= MAX_DIM);
    pool_run(d->pool, attn_task, &a, rows->n * s->n_heads);
}

/* The probability of key j for query i (of the sequence), head h, and the gradient of its score. */
static void pair_grad(const struct attn_args *a, const struct row_seq *sq, int i, int h, int j,
                      float *p, float *ds)
{
    int d = a->s->head_dim, r = sq->row0 + i;
    float lanes[LANES] = {0}, dp = 0.0f, mean;

    for (int c = 0; c < d; c++) {
        lanes[c % LANES] =
            fmaf(get(a->dout, r, h * d + c), get(a->out, r, h * d + c), lanes[c % LANES]);
        dp = fmaf(get(a->dout, r, h * d + c), value_at(a, sq, kv_head(a, h), j, c), dp);
    }
    mean = lanes_sum(lanes);
    *p = vmath_expf(score(a, sq, r, h, j) - get(a->lse, r, h));
    *ds = (*p * (dp - mean)) * a->s->scale;
}

static void attn_dq_task(void *arg, int task, int worker)
{
    const struct attn_args *a = arg;
    int r = task / a->s->n_heads, h = task % a->s->n_heads, d = a->s->head_dim;
    const struct row_seq *sq = seq_of(a->rows, r);
    int i = r - sq->row0;
    float dq[MAX_DIM] = {0};
    (void)worker;

    for (int j = 0; j <= i; j++) {
        float p, ds;
        pair_grad(a, sq, i, h, j, &p, &ds);
        for (int c = 0; c < d; c++) {
            dq[c] = fmaf(ds, key_at(a, sq, kv_head(a, h), j, c), dq[c]);
        }
    }
    for (int c = 0; c < d; c++) {
        put(a->dq, r, h * d + c, dq[c]);
    }
}

/* One key and value: a partial sum for each head and leaf of queries, joined in that order. */
static void attn_dkv_task(void *arg, int task, int worker)
{
    const struct attn_args *a = arg;
    int nkv = a->s->n_kv_heads, group = a->s->n_heads / nkv, d = a->s->head_dim;
    int r = task / nkv, kvh = task % nkv;
    const struct row_seq *sq = seq_of(a->rows, r);
    int j = r - sq->row0;
    float dk[MAX_DIM] = {0}, dv[MAX_DIM] = {0};
    (void)worker;

    for (int h = kvh * group; h < (kvh + 1) * group; h++) {
        for (int leaf = j / PLAN_LEAF * PLAN_LEAF; leaf < sq->nrows; leaf += PLAN_LEAF) {
            int end = leaf + PLAN_LEAF < sq->nrows ? leaf + PLAN_LEAF : sq->nrows;
            float pk[MAX_DIM] = {0}, pv[MAX_DIM] = {0};
            for (int i = leaf > j ? leaf : j; i < end; i++) {
                float p, ds;
                pair_grad(a, sq, i, h, j, &p, &ds);
                for (int c = 0; c < d; c++) {
                    pk[c] = fmaf(ds, get(a->q, sq->row0 + i, h * d + c), pk[c]);
                    pv[c] = fmaf(p, get(a->dout, sq->row0 + i, h * d + c), pv[c]);
                }
            }
            for (int c = 0; c < d; c++) {
                dk[c] = dk[c] + pk[c];
                dv[c] = dv[c] + pv[c];
            }
        }
    }
    for (int c = 0; c < d; c++) {
        put(a->dkv, r, kvh * d + c, dk[c]);
        put(a->dkv, r, (nkv + kvh) * d + c, dv[c]);
    }
}

void ref_attn_bwd(struct device *d, const struct tensor *dout, const struct tensor *q,
                  const struct tensor *out, const struct tensor *lse, const struct kv_store *kv,
                  int layer, const struct attn_shape *s, const struct rows *rows, struct tensor *dq,
                  struct tensor *dkv)
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
