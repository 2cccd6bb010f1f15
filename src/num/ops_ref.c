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
 *   attention  pages of 64 keys inside segments of 1024, one maximum for each segment, segments
 * joined left to right; ops_ref_attn.c says the rest. Threads share out output values (each is
 * computed by one task), so they cannot show in a result. */
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
    const struct tensor *x, *bias, *residual, *y;
    const struct leafset *leaves;
    const struct leaf_rows *rows;
    struct tensor w; /* the view's rows (n, k) */
    int transposed;  /* y = x W instead of x W^T */
    int tasks;       /* per row of y */
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
        if (a->residual) {
            v = get(a->residual, r, c) + v;
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
                       const struct tensor *bias, const struct tensor *residual, struct tensor *y)
{
    struct product_args a = {
        .d = d, .x = x, .bias = bias, .residual = residual, .y = y, .leaves = &w->kleaf};
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
    device_settle(grad);
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
    const struct tensor *dy, *x, *residual, *y, *rstd;
    const struct norm *norm;
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
    rstd = 1.0f / sqrtf(lanes_sum(s) / (float)h + a->norm->eps);
    for (int c = 0; c < h; c++) {
        float v = (get(a->x, r, c) * rstd) * norm_factor(a->norm, c);
        put(a->y, r, c, a->residual ? get(a->residual, r, c) + v : v);
    }
    if (a->rstd) {
        put(a->rstd, r, 0, rstd);
    }
}

static void ref_rmsnorm(struct device *d, const struct tensor *x, const struct norm *norm,
                        const struct tensor *residual, struct tensor *y, struct tensor *rstd)
{
    struct norm_args a = {NULL, x, residual, y, rstd, norm};
    pool_run(d->pool, rmsnorm_task, &a, (int)x->rows);
}

/* With xh = x rstd and g = dy times the norm's factor: dx += rstd (g - xh mean(g xh)). */
static void rmsnorm_bwd_task(void *arg, int r, int worker)
{
    const struct norm_args *a = arg;
    int h = (int)a->x->cols;
    float s[LANES] = {0}, rstd = get(a->rstd, r, 0), mean;
    (void)worker;

    for (int c = 0; c < pad(h, LANES); c++) {
        float g = c < h ? get(a->dy, r, c) * norm_factor(a->norm, c) : 0.0f;
        s[c % LANES] = fmaf(g, get_padded(a->x, r, c) * rstd, s[c % LANES]);
    }
    mean = lanes_sum(s) / (float)h;
    for (int c = 0; c < h; c++) {
        float g = get(a->dy, r, c) * norm_factor(a->norm, c), xh = get(a->x, r, c) * rstd;
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
                            const struct norm *norm, const struct tensor *rstd,
                            const struct leaf_rows *leaves, struct tensor *dx,
                            struct tensor *grad_w)
{
    struct norm_args a = {dy, x, NULL, dx, rstd, norm};
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
    enum act act;
    float scale;
};

static float sigmoid(float x)
{
    return 1.0f / (1.0f + vmath_expf(0.0f - x));
}

/* Both activations are x sigmoid(e(x)): e = x for silu, and for gelu e = 2 sqrt(2 / pi) (x +
 * 0.044715 x^3), because (1 + tanh(z)) / 2 = sigmoid(2 z). *slope is x e'(x). */
static float gate_exponent(enum act act, float x, float *slope)
{
    float x2;
    if (act == ACT_SILU) {
        *slope = x;
        return x;
    }
    x = x > VMATH_GELU_MAX ? VMATH_GELU_MAX : x;
    x = -VMATH_GELU_MAX > x ? -VMATH_GELU_MAX : x;
    x2 = x * x;
    *slope = x * fmaf(x2, VMATH_GELU_3C, VMATH_GELU_1);
    return x * fmaf(x2, VMATH_GELU_C, VMATH_GELU_1);
}

static void glu_task(void *arg, int r, int worker)
{
    const struct pair_args *t = arg;
    int64_t n = t->o->cols;
    (void)worker;
    for (int64_t c = 0; c < n; c++) {
        float g = get(t->a, r, c), u = get(t->a, r, n + c), slope;
        put(t->o, r, c, (g * sigmoid(gate_exponent(t->act, g, &slope))) * u);
    }
}

static void ref_glu(struct device *d, const struct tensor *gu, enum act act, struct tensor *y)
{
    struct pair_args t = {.d = d, .a = gu, .o = y, .act = act};
    pool_run(d->pool, glu_task, &t, (int)y->rows);
}

static void glu_bwd_task(void *arg, int r, int worker)
{
    const struct pair_args *t = arg;
    int64_t n = t->a->cols;
    (void)worker;
    for (int64_t c = 0; c < n; c++) {
        float dy = get(t->a, r, c), g = get(t->b, r, c), u = get(t->b, r, n + c), slope;
        float s = sigmoid(gate_exponent(t->act, g, &slope));
        put(t->o, r, c, (dy * u) * (s * fmaf(slope, 1.0f - s, 1.0f)));
        put(t->o, r, n + c, dy * (g * s));
    }
}

static void ref_glu_bwd(struct device *d, const struct tensor *dy, const struct tensor *gu,
                        enum act act, struct tensor *dgu)
{
    struct pair_args t = {.d = d, .a = dy, .b = gu, .o = dgu, .act = act};
    pool_run(d->pool, glu_bwd_task, &t, (int)dy->rows);
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
    struct pair_args t = {.d = d, .a = x, .o = y, .ids = row};
    pool_run(d->pool, gather_task, &t, (int)y->rows);
}

static void ref_scatter(struct device *d, const struct tensor *x, const int32_t *row,
                        struct tensor *y)
{
    (void)d;
    device_zero(y);
    for (int64_t r = 0; r < x->rows; r++) {
        int64_t first = 0;
        while (row[first] != row[r]) {
            first++;
        }
        if (first < r) {
            continue;
        }
        for (int64_t c = 0; c < x->cols; c++) {
            float sum = get(x, r, c);
            for (int64_t i = r + 1; i < x->rows; i++) {
                sum = row[i] == row[r] ? sum + get(x, i, c) : sum;
            }
            put(y, row[r], c, sum);
        }
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

static void embed_task(void *arg, int r, int worker)
{
    const struct pair_args *t = arg;
    (void)worker;
    for (int64_t c = 0; c < t->o->cols; c++) {
        put(t->o, r, c, get(t->a, t->ids[r], c) * t->scale);
    }
}

static void ref_embed(struct device *d, const struct tensor *table, const int32_t *ids, float scale,
                      struct tensor *y)
{
    struct pair_args t = {.d = d, .a = table, .o = y, .ids = ids, .scale = scale};
    pool_run(d->pool, scale == 1.0f ? gather_task : embed_task, &t, (int)y->rows);
}

static void embed_bwd_task(void *arg, int c, int worker)
{
    const struct pair_args *t = arg;
    (void)worker;
    for (int64_t r = 0; r < t->a->rows; r++) {
        grad_add(t->d, t->o, t->ids[r], c, get(t->a, r, c) * t->scale);
    }
}

static void ref_embed_bwd(struct device *d, const struct tensor *dy, const int32_t *ids,
                          float scale, struct tensor *grad)
{
    struct pair_args t = {.d = d, .a = dy, .o = grad, .ids = ids, .scale = scale};
    pool_run(d->pool, embed_bwd_task, &t, (int)dy->cols);
}

/* ---- log-probabilities -------------------------------------------------------------------------
 */

#define LOGP_FLOOR (-1e30f) /* keeps 0 * log 0 at 0 */

struct logp_args {
    const struct tensor *x, *dx;
    const struct logit_spec *spec;
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

/* The spec: soft cap, then temperature. */
static float logit_value(const struct logit_spec *s, float x)
{
    if (s->softcap != 0.0f) {
        x = s->softcap * vmath_tanhf(x / s->softcap);
    }
    return s->temperature > 0.0f && s->temperature != 1.0f ? x / s->temperature : x;
}

static void logp_task(void *arg, int r, int worker)
{
    const struct logp_args *a = arg;
    int n = (int)a->x->cols;
    float top[LANES], z[PLAN_MAX_LEAVES] = {0}, s[PLAN_MAX_LEAVES] = {0}, m, zsum, ssum, logz;
    (void)worker;

    for (int c = 0; c < n; c++) {
        put(a->x, r, c, logit_value(a->spec, get(a->x, r, c)));
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

static void ref_logp(struct device *d, struct tensor *logits, const struct logit_spec *spec,
                     const int32_t *target, const struct leafset *vleaf, float *logp, float *max,
                     float *logz, float *entropy)
{
    struct logp_args a = {.x = logits,
                          .spec = spec,
                          .target = target,
                          .leaves = vleaf,
                          .logp = logp,
                          .max = max,
                          .logz = logz,
                          .entropy = entropy};
    pool_run(d->pool, logp_task, &a, (int)logits->rows);
}

/* d log p[y] / dx = 1[y] - p and dH / dx = -p (log p + H), both over the temperature; a capped
 * logit's slope is 1 - tanh^2, and its tanh is the logit times the temperature over the cap. */
static void logp_bwd_task(void *arg, int r, int worker)
{
    const struct logp_args *a = arg;
    float t = a->spec->temperature > 0.0f ? a->spec->temperature : 1.0f, inverse = 1.0f / t;
    float back = a->spec->softcap != 0.0f ? t / a->spec->softcap : 0.0f;
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
        v = v * inverse;
        if (back != 0.0f) {
            float h = get(a->x, r, c) * back;
            v = v * fmaf(-h, h, 1.0f);
        }
        put(a->dx, r, c, v);
    }
}

static void ref_logp_bwd(struct device *d, const struct tensor *logits,
                         const struct logit_spec *spec, const int32_t *target, const float *max,
                         const float *logz, const float *entropy, const float *g, const float *ge,
                         struct tensor *dlogits)
{
    struct logp_args a = {.x = logits,
                          .dx = dlogits,
                          .spec = spec,
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

/* ---- packing -----------------------------------------------------------------------------------
 */

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

static void ref_unpack(struct device *d, const struct wview *view, int64_t row0, struct tensor *w16)
{
    (void)d;
    for (int64_t r = 0; r < w16->rows; r++) {
        for (int64_t c = 0; c < view->k; c++) {
            put(w16, r, c, ((const float *)view->fwd)[(row0 + r) * view->k + c]);
        }
    }
}

static void ref_unpack_alone(const struct device *d, const struct wview *view, int64_t row0,
                             int64_t n, float *x)
{
    (void)d;
    memcpy(x, (const float *)view->fwd + row0 * view->k, sizeof *x * (size_t)n * (size_t)view->k);
}

const struct device_ops ops_ref_table = {
    .linear = ref_linear,
    .linear_dx = ref_linear_dx,
    .linear_dw = ref_linear_dw,
    .bias_dw = ref_bias_dw,
    .rmsnorm = ref_rmsnorm,
    .rmsnorm_bwd = ref_rmsnorm_bwd,
    .rope_kv = ops_ref_rope_kv,
    .rope_kv_bwd = ops_ref_rope_kv_bwd,
    .attn = ops_ref_attn,
    .attn_bwd = ops_ref_attn_bwd,
    .glu = ref_glu,
    .glu_bwd = ref_glu_bwd,
    .embed = ref_embed,
    .embed_bwd = ref_embed_bwd,
    .logp = ref_logp,
    .logp_bwd = ref_logp_bwd,
    .exps = ref_exps,
    .gather = ref_gather,
    .scatter = ref_scatter,
    .copy = ref_copy,
    .convert = ref_copy,
    .sumsq = ops_ref_optim_sumsq,
    .adamw = ops_ref_optim_adamw,
    .pack = ref_pack,
    .unpack = ref_unpack,
    .unpack_alone = ref_unpack_alone,
};
