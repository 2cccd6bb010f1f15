/* The reference device: every operation in plain C, one value at a time, written from the
 * definition of its result and never optimised. In bf16 plans the cpu device must equal it bit for
 * bit; in f32 plans the same code runs without any rounding to bf16, which finite differences need.
 *
 * The definition, once for all operations below:
 *   product    blocks of 32 terms, zero padded: even and odd terms in two fmaf chains from zero,
 * their sum added to the accumulator. Leaves are such accumulators, joined by a binary tree. row
 * sum    16 running lane sums (term i goes to lane i % 16, zero padded), joined 8, 4, 2, 1.
 *   gradient   a leaf is summed in token order in f32, then rounded to a multiple of 2^-45, ties to
 *              even, and added to a 64-bit integer.
 *   attention  pages of 64 keys inside segments of 1024, a running maximum inside a segment,
 * segments joined left to right. Threads share out output values (each is computed by one task), so
 * they cannot show in a result. */
#include <math.h>
#include <string.h>

#include "base/status.h"
#include "base/thread.h"
#include "num/device_int.h"
#include "num/exact.h"
#include "num/vmath.h"

#define LANES   16
#define MAX_DIM 512 /* largest head dimension */
#define COLS    64  /* columns of a product that make one task */

/* ---- values ------------------------------------------------------------------------------------
 */

static float get(const struct tensor *t, int64_t r, int64_t c)
{
    int64_t i = r * t->ld + c;
    return t->dtype == DTYPE_F32 ? ((const float *)t->data)[i]
                                 : dtype_from_bf16(((const uint16_t *)t->data)[i]);
}

static void put(const struct tensor *t, int64_t r, int64_t c, float v)
{
    int64_t i = r * t->ld + c;
    if (t->dtype == DTYPE_F32) {
        ((float *)t->data)[i] = v;
    } else {
        ((uint16_t *)t->data)[i] = dtype_to_bf16(v);
    }
}

/* A row's value, or the zero that pads it. */
static float get_padded(const struct tensor *t, int64_t r, int64_t c)
{
    return c < t->cols ? get(t, r, c) : 0.0f;
}

static float kv_get(const struct kv_store *kv, size_t i)
{
    return kv->dtype == DTYPE_F32 ? ((const float *)kv->data)[i]
                                  : dtype_from_bf16(((const uint16_t *)kv->data)[i]);
}

static void kv_put(struct kv_store *kv, size_t i, float v)
{
    if (kv->dtype == DTYPE_F32) {
        ((float *)kv->data)[i] = v;
    } else {
        ((uint16_t *)kv->data)[i] = dtype_to_bf16(v);
    }
}

/* Copies a row; a value that keeps its type keeps its bits. */
static void copy_row(const struct tensor *from, int64_t r, const struct tensor *to, int64_t s)
{
    size_t size = dtype_size(from->dtype);
    if (from->dtype == to->dtype) {
        memcpy((char *)to->data + (size_t)(s * to->ld) * size,
               (const char *)from->data + (size_t)(r * from->ld) * size, (size_t)from->cols * size);
        return;
    }
    for (int64_t c = 0; c < from->cols; c++) {
        put(to, s, c, get(from, r, c));
    }
}

static int pad(int n, int to)
{
    return (n + to - 1) / to * to;
}

/* ---- the sums that define results --------------------------------------------------------------
 */

static float greater(float a, float b)
{
    return a > b ? a : b;
}

static float lanes_sum(float s[LANES])
{
    for (int w = LANES / 2; w; w /= 2) {
        for (int i = 0; i < w; i++) {
            s[i] = s[i] + s[i + w];
        }
    }
    return s[0];
}

static float lanes_max(float s[LANES])
{
    for (int w = LANES / 2; w; w /= 2) {
        for (int i = 0; i < w; i++) {
            s[i] = greater(s[i], s[i + w]);
        }
    }
    return s[0];
}

/* One block of a product. */
static float block_product(const float a[PLAN_KBLOCK], const float b[PLAN_KBLOCK])
{
    float even = 0.0f, odd = 0.0f;
    for (int i = 0; i < PLAN_KBLOCK; i += 2) {
        even = fmaf(a[i], b[i], even);
        odd = fmaf(a[i + 1], b[i + 1], odd);
    }
    return even + odd;
}

static float tree_join(float leaf[PLAN_MAX_LEAVES], int n)
{
    for (int w = 1; w < n; w *= 2) {
        for (int i = 0; i + w < n; i += 2 * w) {
            leaf[i] = leaf[i] + leaf[i + w];
        }
    }
    return leaf[0];
}

/* Adds one leaf's sum to a gradient. */
static void grad_add(struct device *d, const struct tensor *grad, int64_t r, int64_t c, float leaf)
{
    int64_t *g = (int64_t *)grad->data + r * grad->ld + c;
    float q = leaf * (float)((int64_t)1 << PLAN_QUANTUM);

    /* a NaN fails both comparisons */
    if (!(q < 0x1p63f && q > -0x1p63f) || __builtin_add_overflow(*g, (int64_t)rintf(q), g)) {
        __atomic_store_n(&d->fault, 1, __ATOMIC_RELAXED);
    }
}

static float grad_get(const struct tensor *grad, int64_t r, int64_t c)
{
    double quantum = 1.0 / (double)((int64_t)1 << PLAN_QUANTUM);
    return (float)((double)((const int64_t *)grad->data)[r * grad->ld + c] * quantum);
}

/* ---- products ----------------------------------------------------------------------------------
 */

/* n values of a tensor from (r, c) on: along a row, or down a column. */
struct line {
    const struct tensor *t;
    int64_t r, c;
    int down, n;
};

/* Terms [from, from + 32) of a line, zero padded. */
static void line_block(const struct line *l, int from, float out[PLAN_KBLOCK])
{
    int n = l->n - from < PLAN_KBLOCK ? l->n - from : PLAN_KBLOCK;
    for (int i = 0; i < n; i++) {
        out[i] = l->down ? get(l->t, l->r + from + i, l->c) : get(l->t, l->r, l->c + from + i);
    }
    for (int i = n; i < PLAN_KBLOCK; i++) {
        out[i] = 0.0f;
    }
}

/* acc + the product of terms [start, end) of two lines. */
static float line_product(const struct line *a, const struct line *b, int start, int end, float acc)
{
    float x[PLAN_KBLOCK], y[PLAN_KBLOCK];
    for (int i = start; i < end; i += PLAN_KBLOCK) {
        line_block(a, i, x);
        line_block(b, i, y);
        acc = acc + block_product(x, y);
    }
    return acc;
}

static float leaf_product(const struct line *a, const struct line *b, const struct leafset *s)
{
    float leaf[PLAN_MAX_LEAVES] = {0};
    for (int i = 0; i < s->n; i++) {
        int l = s->r[i].leaf;
        leaf[l] = line_product(a, b, s->r[i].start, s->r[i].end, leaf[l]);
    }
    return tree_join(leaf, s->leaves);
}

struct product_args {
    struct device *d;
    const struct tensor *x, *bias, *y;
    const struct leafset *leaves;
    const struct leaf_rows *rows;
    struct tensor w; /* the view's rows (n, k) */
    int transposed;  /* y = x W instead of x W^T */
    int accumulate;
    int tasks; /* per row of y */
};

static void product_task(void *arg, int task, int worker)
{
    const struct product_args *a = arg;
    int64_t r = task / a->tasks, c0 = task % a->tasks * COLS;
    int64_t c1 = c0 + COLS < a->y->cols ? c0 + COLS : a->y->cols;
    int terms = (int)(a->transposed ? a->w.rows : a->w.cols);
    (void)worker;

    for (int64_t c = c0; c < c1; c++) {
        struct line x = {a->x, r, 0, 0, terms};
        struct line w = {&a->w, a->transposed ? 0 : c, a->transposed ? c : 0, a->transposed, terms};
        float v = leaf_product(&x, &w, a->leaves);
        if (a->bias) {
            v = v + get(a->bias, 0, c);
        }
        if (a->accumulate) {
            v = get(a->y, r, c) + v;
        }
        put(a->y, r, c, v);
    }
}

static void product_run(struct device *d, struct product_args *a, const struct wview *w)
{
    a->w =
        (struct tensor){.dtype = DTYPE_F32, .rows = w->n, .cols = w->k, .ld = w->k, .data = w->fwd};
    a->tasks = ((int)a->y->cols + COLS - 1) / COLS;
    pool_run(d->pool, product_task, a, (int)a->x->rows * a->tasks);
}

static void ref_linear(struct device *d, const struct tensor *x, const struct wview *w,
                       const struct tensor *bias, enum device_store how, struct tensor *y)
{
    struct product_args a = {.d = d,
                             .x = x,
                             .bias = bias,
                             .y = y,
                             .leaves = &w->kleaf,
                             .accumulate = how == DEVICE_ACCUMULATE};
    product_run(d, &a, w);
}

static void ref_linear_dx(struct device *d, const struct tensor *dy, const struct wview *w,
                          struct tensor *dx)
{
    struct product_args a = {.d = d, .x = dy, .y = dx, .leaves = &w->nleaf, .transposed = 1};
    product_run(d, &a, w);
}

/* Row n of a weight's gradient: column n of dy times each column of x, leaf by leaf. */
struct dw_args {
    struct device *d;
    const struct tensor *dy, *x, *rstd, *grad;
    const struct leaf_rows *leaves;
};

static void linear_dw_task(void *arg, int n, int worker)
{
    const struct dw_args *a = arg;
    (void)worker;
    for (int l = 0; l < a->leaves->n; l++) {
        int r0 = a->leaves->start[l], rows = a->leaves->start[l + 1] - r0;
        for (int64_t k = 0; k < a->grad->cols; k++) {
            struct line dy = {a->dy, r0, n, 1, rows}, x = {a->x, r0, k, 1, rows};
            grad_add(a->d, a->grad, n, k, line_product(&dy, &x, 0, rows, 0.0f));
        }
    }
}

static void ref_linear_dw(struct device *d, const struct tensor *dy, const struct tensor *x,
                          const struct leaf_rows *leaves, struct tensor *grad)
{
    struct dw_args a = {d, dy, x, NULL, grad, leaves};
    pool_run(d->pool, linear_dw_task, &a, (int)grad->rows);
}

static void bias_dw_task(void *arg, int c, int worker)
{
    const struct dw_args *a = arg;
    (void)worker;
    for (int l = 0; l < a->leaves->n; l++) {
        float s = 0.0f;
        for (int r = a->leaves->start[l]; r < a->leaves->start[l + 1]; r++) {
            s = s + get(a->dy, r, c);
        }
        grad_add(a->d, a->grad, 0, c, s);
    }
}

static void ref_bias_dw(struct device *d, const struct tensor *dy, const struct leaf_rows *leaves,
                        struct tensor *grad)
{
    struct dw_args a = {d, dy, NULL, NULL, grad, leaves};
    pool_run(d->pool, bias_dw_task, &a, (int)grad->cols);
}

/* ---- norms -------------------------------------------------------------------------------------
 */

struct norm_args {
    const struct tensor *dy, *x, *w, *y, *rstd;
    float eps;
};

static void rmsnorm_task(void *arg, int r, int worker)
{
    const struct norm_args *a = arg;
    int h = (int)a->x->cols;
    float s[LANES] = {0}, rstd;
    (void)worker;

    for (int c = 0; c < pad(h, LANES); c++) {
        float x = get_padded(a->x, r, c);
        s[c % LANES] = fmaf(x, x, s[c % LANES]);
    }
    rstd = 1.0f / sqrtf(lanes_sum(s) / (float)h + a->eps);
    for (int c = 0; c < h; c++) {
        put(a->y, r, c, (get(a->x, r, c) * rstd) * get(a->w, 0, c));
    }
    if (a->rstd) {
        put(a->rstd, r, 0, rstd);
    }
}

static void ref_rmsnorm(struct device *d, const struct tensor *x, const struct tensor *w, float eps,
                        struct tensor *y, struct tensor *rstd)
{
    struct norm_args a = {NULL, x, w, y, rstd, eps};
    pool_run(d->pool, rmsnorm_task, &a, (int)x->rows);
}

/* With xh = x rstd and g = dy w: dx += rstd (g - xh mean(g xh)). */
static void rmsnorm_bwd_task(void *arg, int r, int worker)
{
    const struct norm_args *a = arg;
    int h = (int)a->x->cols;
    float s[LANES] = {0}, rstd = get(a->rstd, r, 0), mean;
    (void)worker;

    for (int c = 0; c < pad(h, LANES); c++) {
        float g = get_padded(a->dy, r, c) * get_padded(a->w, 0, c);
        s[c % LANES] = fmaf(g, get_padded(a->x, r, c) * rstd, s[c % LANES]);
    }
    mean = lanes_sum(s) / (float)h;
    for (int c = 0; c < h; c++) {
        float g = get(a->dy, r, c) * get(a->w, 0, c), xh = get(a->x, r, c) * rstd;
        put(a->y, r, c, get(a->y, r, c) + rstd * (g - xh * mean));
    }
}

static void rmsnorm_dw_task(void *arg, int c, int worker)
{
    const struct dw_args *a = arg;
    (void)worker;
    for (int l = 0; l < a->leaves->n; l++) {
        float s = 0.0f;
        for (int r = a->leaves->start[l]; r < a->leaves->start[l + 1]; r++) {
            s = fmaf(get(a->dy, r, c), get(a->x, r, c) * get(a->rstd, r, 0), s);
        }
        grad_add(a->d, a->grad, 0, c, s);
    }
}

static void ref_rmsnorm_bwd(struct device *d, const struct tensor *dy, const struct tensor *x,
                            const struct tensor *w, const struct tensor *rstd,
                            const struct leaf_rows *leaves, struct tensor *dx,
                            struct tensor *grad_w)
{
    struct norm_args a = {dy, x, w, dx, rstd, 0.0f};
    struct dw_args g = {d, dy, x, rstd, grad_w, leaves};
    pool_run(d->pool, rmsnorm_bwd_task, &a, (int)x->rows);
    pool_run(d->pool, rmsnorm_dw_task, &g, (int)x->cols);
}

/* ---- rope and pages ----------------------------------------------------------------------------
 */

struct rope_args {
    struct device *d;
    const struct tensor *qkv, *q_norm, *k_norm, *cos, *sin, *q;
    float eps;
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

/* Head h of a row of qkv (query heads, then key heads) normed and rotated, not yet rounded. */
static void rope_head(const struct rope_args *a, int r, int h, float *y)
{
    const struct tensor *norm = h < a->s->n_heads ? a->q_norm : a->k_norm;
    int d = a->s->head_dim, pos = a->rows->pos[r];
    float x[MAX_DIM] = {0};

    for (int i = 0; i < d; i++) {
        x[i] = get(a->qkv, r, h * d + i);
    }
    if (norm) {
        float rstd = head_rstd(x, d, a->eps);
        for (int i = 0; i < d; i++) {
            x[i] = (x[i] * rstd) * get(norm, 0, i);
        }
    }
    for (int i = 0; i < d / 2; i++) {
        float c = get(a->cos, pos, i), s = get(a->sin, pos, i);
        y[i] = x[i] * c - x[d / 2 + i] * s;
        y[d / 2 + i] = x[d / 2 + i] * c + x[i] * s;
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

static void ref_rope_kv(struct device *d, const struct tensor *qkv, const struct tensor *q_norm,
                        const struct tensor *k_norm, float eps, const struct tensor *cos,
                        const struct tensor *sin, const struct attn_shape *s,
                        const struct rows *rows, struct kv_store *kv, int layer, struct tensor *q)
{
    struct rope_args a = {.d = d,
                          .qkv = qkv,
                          .q_norm = q_norm,
                          .k_norm = k_norm,
                          .cos = cos,
                          .sin = sin,
                          .q = q,
                          .eps = eps,
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
    const struct tensor *norm = h < a->s->n_heads ? a->q_norm : a->k_norm;
    const struct tensor *dy = h < a->s->n_heads ? a->dq : a->dkv;
    int d = a->s->head_dim, pos = a->rows->pos[r];
    int64_t at = (int64_t)(h < a->s->n_heads ? h : h - a->s->n_heads) * d;
    float x[MAX_DIM] = {0}, lanes[LANES] = {0}, rstd, mean;

    for (int i = 0; i < d / 2; i++) {
        float c = get(a->cos, pos, i), s = get(a->sin, pos, i);
        float p = get(dy, r, at + i), q = get(dy, r, at + d / 2 + i);
        dx[i] = p * c + q * s;
        dx[d / 2 + i] = q * c - p * s;
    }
    if (!norm) {
        return;
    }
    for (int i = 0; i < d; i++) {
        x[i] = get(a->qkv, r, h * d + i);
    }
    rstd = head_rstd(x, d, a->eps);
    for (int i = 0; i < d; i++) {
        float xh = x[i] * rstd;
        dn[i] = dx[i] * xh;
        dx[i] = dx[i] * get(norm, 0, i);
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

static void ref_rope_kv_bwd(struct device *d, const struct tensor *dq, const struct tensor *dkv,
                            const struct tensor *qkv, const struct tensor *q_norm,
                            const struct tensor *k_norm, float eps, const struct tensor *cos,
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
                          .eps = eps,
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

static void ref_attn(struct device *d, const struct tensor *q, const struct kv_store *kv, int layer,
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

static void ref_attn_bwd(struct device *d, const struct tensor *dout, const struct tensor *q,
                         const struct tensor *out, const struct tensor *lse,
                         const struct kv_store *kv, int layer, const struct attn_shape *s,
                         const struct rows *rows, struct tensor *dq, struct tensor *dkv)
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

/* ---- elementwise -------------------------------------------------------------------------------
 */

struct pair_args {
    struct device *d;
    const struct tensor *a, *b, *o;
    const int32_t *ids;
};

static float sigmoid(float x)
{
    return 1.0f / (1.0f + vmath_expf(0.0f - x));
}

static void swiglu_task(void *arg, int r, int worker)
{
    const struct pair_args *t = arg;
    int64_t n = t->o->cols;
    (void)worker;
    for (int64_t c = 0; c < n; c++) {
        float g = get(t->a, r, c), u = get(t->a, r, n + c);
        put(t->o, r, c, (g * sigmoid(g)) * u);
    }
}

static void ref_swiglu(struct device *d, const struct tensor *gu, struct tensor *y)
{
    struct pair_args t = {d, gu, NULL, y, NULL};
    pool_run(d->pool, swiglu_task, &t, (int)y->rows);
}

static void swiglu_bwd_task(void *arg, int r, int worker)
{
    const struct pair_args *t = arg;
    int64_t n = t->a->cols;
    (void)worker;
    for (int64_t c = 0; c < n; c++) {
        float dy = get(t->a, r, c), g = get(t->b, r, c), u = get(t->b, r, n + c);
        float s = sigmoid(g);
        put(t->o, r, c, (dy * u) * (s * fmaf(g, 1.0f - s, 1.0f)));
        put(t->o, r, n + c, dy * (g * s));
    }
}

static void ref_swiglu_bwd(struct device *d, const struct tensor *dy, const struct tensor *gu,
                           struct tensor *dgu)
{
    struct pair_args t = {d, dy, gu, dgu, NULL};
    pool_run(d->pool, swiglu_bwd_task, &t, (int)dy->rows);
}

/* ---- moving rows -------------------------------------------------------------------------------
 */

static void gather_task(void *arg, int r, int worker)
{
    const struct pair_args *t = arg;
    (void)worker;
    copy_row(t->a, t->ids[r], t->o, r);
}

static void ref_gather(struct device *d, const struct tensor *x, const int32_t *row,
                       struct tensor *y)
{
    struct pair_args t = {d, x, NULL, y, row};
    pool_run(d->pool, gather_task, &t, (int)y->rows);
}

static void ref_scatter(struct device *d, const struct tensor *x, const int32_t *row,
                        struct tensor *y)
{
    (void)d;
    device_zero(y);
    for (int64_t r = 0; r < x->rows; r++) {
        copy_row(x, r, y, row[r]);
    }
}

/* Also converts: a row that changes its type is rounded value by value. */
static void ref_copy(struct device *d, const struct tensor *x, struct tensor *y)
{
    (void)d;
    if (x->data == y->data) {
        return;
    }
    for (int64_t r = 0; r < x->rows; r++) {
        copy_row(x, r, y, r);
    }
}

static void embed_bwd_task(void *arg, int c, int worker)
{
    const struct pair_args *t = arg;
    (void)worker;
    for (int64_t r = 0; r < t->a->rows; r++) {
        grad_add(t->d, t->o, t->ids[r], c, get(t->a, r, c));
    }
}

static void ref_embed_bwd(struct device *d, const struct tensor *dy, const int32_t *ids,
                          struct tensor *grad)
{
    struct pair_args t = {d, dy, NULL, grad, ids};
    pool_run(d->pool, embed_bwd_task, &t, (int)dy->cols);
}

/* ---- log-probabilities -------------------------------------------------------------------------
 */

#define LOGP_FLOOR (-1e30f) /* keeps 0 * log 0 at 0 */

struct logp_args {
    const struct tensor *x, *dx;
    float temperature;
    const int32_t *target;
    const struct leafset *leaves;
    float *logp, *max, *logz, *entropy;
    const float *g, *ge, *max_in, *logz_in, *entropy_in;
};

/* Sum of exp(x - m), and of exp(x - m) (x - m), of one leaf. */
static void logp_leaf(const struct logp_args *a, int r, int leaf, float m, float *z, float *s)
{
    float lz[LANES] = {0}, ls[LANES] = {0};
    for (int i = 0; i < a->leaves->n; i++) {
        int start = a->leaves->r[i].start, end = a->leaves->r[i].end;
        if (a->leaves->r[i].leaf != leaf) {
            continue;
        }
        for (int c = start; c < start + pad(end - start, LANES); c++) {
            int lane = (c - start) % LANES;
            float v = (c < end ? get(a->x, r, c) : -INFINITY) - m;
            float e = vmath_expf(v);
            lz[lane] = lz[lane] + e;
            ls[lane] = fmaf(e, greater(v, LOGP_FLOOR), ls[lane]);
        }
    }
    *z = lanes_sum(lz);
    *s = lanes_sum(ls);
}

static void logp_task(void *arg, int r, int worker)
{
    const struct logp_args *a = arg;
    int n = (int)a->x->cols;
    float top[LANES], z[PLAN_MAX_LEAVES], s[PLAN_MAX_LEAVES], m, zsum, ssum, logz;
    (void)worker;

    if (a->temperature > 0.0f && a->temperature != 1.0f) {
        for (int c = 0; c < n; c++) {
            put(a->x, r, c, get(a->x, r, c) / a->temperature);
        }
    }
    for (int i = 0; i < LANES; i++) {
        top[i] = -INFINITY;
    }
    for (int c = 0; c < pad(n, LANES); c++) {
        top[c % LANES] = greater(top[c % LANES], c < n ? get(a->x, r, c) : -INFINITY);
    }
    m = lanes_max(top);
    for (int l = 0; l < a->leaves->leaves; l++) {
        logp_leaf(a, r, l, m, &z[l], &s[l]);
    }
    zsum = tree_join(z, a->leaves->leaves);
    ssum = tree_join(s, a->leaves->leaves);
    logz = vmath_logf(zsum);
    if (a->logp && a->target[r] >= 0) {
        a->logp[r] = (get(a->x, r, a->target[r]) - m) - logz;
    }
    if (a->max) {
        a->max[r] = m;
    }
    if (a->logz) {
        a->logz[r] = logz;
    }
    if (a->entropy) {
        a->entropy[r] = logz - ssum / zsum;
    }
}

static void ref_logp(struct device *d, struct tensor *logits, float temperature,
                     const int32_t *target, const struct leafset *vleaf, float *logp, float *max,
                     float *logz, float *entropy)
{
    struct logp_args a = {.x = logits,
                          .temperature = temperature,
                          .target = target,
                          .leaves = vleaf,
                          .logp = logp,
                          .max = max,
                          .logz = logz,
                          .entropy = entropy};
    pool_run(d->pool, logp_task, &a, (int)logits->rows);
}

/* d log p[y] / dx = 1[y] - p and dH / dx = -p (log p + H), both over the temperature. */
static void logp_bwd_task(void *arg, int r, int worker)
{
    const struct logp_args *a = arg;
    float inverse = a->temperature > 0.0f ? 1.0f / a->temperature : 1.0f;
    float ge = a->ge ? a->ge[r] : 0.0f, entropy = a->entropy_in ? a->entropy_in[r] : 0.0f;
    (void)worker;

    for (int c = 0; c < (int)a->x->cols; c++) {
        float lp = (get(a->x, r, c) - a->max_in[r]) - a->logz_in[r];
        float p = vmath_expf(lp), v = p * -a->g[r];
        if (ge != 0.0f) {
            v = v - (p * (greater(lp, LOGP_FLOOR) + entropy)) * ge;
        }
        if (c == a->target[r]) {
            v = v + a->g[r];
        }
        put(a->dx, r, c, v * inverse);
    }
}

static void ref_logp_bwd(struct device *d, const struct tensor *logits, float temperature,
                         const int32_t *target, const float *max, const float *logz,
                         const float *entropy, const float *g, const float *ge,
                         struct tensor *dlogits)
{
    struct logp_args a = {.x = logits,
                          .dx = dlogits,
                          .temperature = temperature,
                          .target = target,
                          .g = g,
                          .ge = ge,
                          .max_in = max,
                          .logz_in = logz,
                          .entropy_in = entropy};
    pool_run(d->pool, logp_bwd_task, &a, (int)logits->rows);
}

static void exps_task(void *arg, int r, int worker)
{
    const struct logp_args *a = arg;
    (void)worker;
    for (int64_t c = 0; c < a->x->cols; c++) {
        put(a->dx, r, c, vmath_expf(get(a->x, r, c) - a->max_in[r]));
    }
}

static void ref_exps(struct device *d, const struct tensor *x, const float *max, struct tensor *y)
{
    struct logp_args a = {.x = x, .dx = y, .max_in = max};
    pool_run(d->pool, exps_task, &a, (int)x->rows);
}

/* ---- optimizer ---------------------------------------------------------------------------------
 */

/* Squares in f64: 8 running sums over 32 values, joined 4, 2, 1; blocks are added exactly. */
static void ref_sumsq(struct device *d, const struct tensor *grad, void *exact)
{
    int64_t n = grad->rows * grad->ld;
    struct tensor flat = *grad;
    (void)d;

    flat.ld = n;
    for (int64_t i = 0; i < n; i += 32) {
        double s[8] = {0};
        for (int k = 0; k < 32 && i + k < n; k++) {
            double f = (double)grad_get(&flat, 0, i + k);
            s[k % 8] = s[k % 8] + f * f;
        }
        for (int w = 4; w; w /= 2) {
            for (int k = 0; k < w; k++) {
                s[k] = s[k] + s[k + w];
            }
        }
        exact_add(exact, s[0]);
    }
}

struct adamw_args {
    const struct tensor *grad, *master, *m, *v, *w16;
    const struct adam_step *s;
    int decay;
};

static void adamw_task(void *arg, int r, int worker)
{
    const struct adamw_args *a = arg;
    const struct adam_step *s = a->s;
    float keep = 1.0f - s->lr * s->weight_decay, step = s->lr / s->bias1;
    (void)worker;

    for (int64_t c = 0; c < a->grad->cols; c++) {
        float g = grad_get(a->grad, r, c) * s->grad_scale, x = get(a->master, r, c);
        float m = fmaf(s->beta1, get(a->m, r, c), (1.0f - s->beta1) * g);
        float v = fmaf(s->beta2, get(a->v, r, c), (1.0f - s->beta2) * (g * g));
        if (a->decay) {
            x = x * keep;
        }
        x = x - step * (m / (sqrtf(v) / s->bias2_sqrt + s->eps));
        put(a->master, r, c, x);
        put(a->m, r, c, m);
        put(a->v, r, c, v);
        put(a->w16, r, c, x);
    }
}

static void ref_adamw(struct device *d, struct tensor *grad, struct tensor *master,
                      struct tensor *m, struct tensor *v, const struct adam_step *s, int decay,
                      struct tensor *w16)
{
    struct adamw_args a = {grad, master, m, v, w16, s, decay};
    pool_run(d->pool, adamw_task, &a, (int)grad->rows);
}

/* A view is the plain rows in f32; products read it by row and by column. */
static void ref_pack(struct device *d, const struct tensor *w16, struct wview *view)
{
    (void)d;
    for (int64_t r = 0; r < view->n; r++) {
        for (int64_t c = 0; c < view->k; c++) {
            ((float *)view->fwd)[r * view->k + c] = get(w16, r, c);
        }
    }
}

const struct device_ops ops_ref_table = {
    .linear = ref_linear,
    .linear_dx = ref_linear_dx,
    .linear_dw = ref_linear_dw,
    .bias_dw = ref_bias_dw,
    .rmsnorm = ref_rmsnorm,
    .rmsnorm_bwd = ref_rmsnorm_bwd,
    .rope_kv = ref_rope_kv,
    .rope_kv_bwd = ref_rope_kv_bwd,
    .attn = ref_attn,
    .attn_bwd = ref_attn_bwd,
    .swiglu = ref_swiglu,
    .swiglu_bwd = ref_swiglu_bwd,
    .embed = ref_gather,
    .embed_bwd = ref_embed_bwd,
    .logp = ref_logp,
    .logp_bwd = ref_logp_bwd,
    .exps = ref_exps,
    .gather = ref_gather,
    .scatter = ref_scatter,
    .copy = ref_copy,
    .convert = ref_copy,
    .sumsq = ref_sumsq,
    .adamw = ref_adamw,
    .pack = ref_pack,
};
