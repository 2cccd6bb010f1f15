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
#include "num/ops_ref_int.h"

#include "base/thread.h"

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
