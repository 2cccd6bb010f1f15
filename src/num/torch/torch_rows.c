/* The torch device's norms, activations, rows, log-probs and optimizer: f32 inside, bf16 at the
 * outputs. Gradients are accumulated in f64. Large operands are cut into pieces of rows, so that
 * temporaries stay small. */
#include "num/exact.h"
#include "num/torch/torch_int.h"

/* Rows of n values that make one piece. */
static int64_t piece_rows(const struct torch *t, int64_t n)
{
    int64_t rows = t->chunk / (n ? n : 1);
    return rows ? rows : 1;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- norms -------------------------------------------------------------------------------------
 */

struct aten *torch_rstd(struct torch *t, struct aten *x, int64_t dim, float eps)
{
    struct aten *mean = torch_mean(t, torch_mul(t, x, x), dim);
    return torch_un(t, "aten::rsqrt", torch_add(t, mean, torch_scalar(t, eps)));
}

struct aten *torch_norm_weight(struct torch *t, const struct norm *norm)
{
    struct aten *w = torch_f32(t, torch_view(t, norm->w));
    return norm->plus_one ? torch_add(t, w, torch_scalar(t, 1.0f)) : w;
}

void torch_rmsnorm(struct device *d, const struct tensor *x, const struct norm *norm,
                   const struct tensor *residual, struct tensor *y, struct tensor *rstd)
{
    struct torch *t = torch_of(d);
    struct aten *a, *r, *z;

    if (!x->rows) {
        return;
    }
    a = torch_f32(t, torch_view(t, x));
    r = torch_rstd(t, a, 1, norm->eps);
    z = torch_mul(t, torch_mul(t, a, r), torch_norm_weight(t, norm));
    if (residual) {
        z = torch_add(t, torch_f32(t, torch_view(t, residual)), z);
    }
    torch_put(t, torch_view(t, y), z);
    if (rstd) {
        torch_put(t, torch_view(t, rstd), r);
    }
    torch_release(t, 0);
}

/* With xh = x rstd and g = dy w: dx += rstd (g - xh mean(g xh)). */
void torch_rmsnorm_bwd(struct device *d, const struct tensor *dy, const struct tensor *x,
                       const struct norm *norm, const struct tensor *rstd,
                       const struct leaf_rows *leaves, struct tensor *dx, struct tensor *grad_w)
{
    struct torch *t = torch_of(d);
    int64_t r0 = leaves->start[0], rows = leaves->start[leaves->n] - r0, h = x->cols;
    struct aten *g, *xh, *r, *dyf, *out, *part;

    if (!x->rows) {
        return;
    }
    r = torch_view(t, rstd);
    dyf = torch_f32(t, torch_view(t, dy));
    g = torch_mul(t, dyf, torch_norm_weight(t, norm));
    xh = torch_mul(t, torch_f32(t, torch_view(t, x)), r);
    out = torch_view(t, dx);
    part = torch_sub(t, g, torch_mul(t, xh, torch_mean(t, torch_mul(t, g, xh), 1)));
    torch_put(t, out, torch_add(t, out, torch_mul(t, r, part)));
    if (rows) {
        struct aten *share = torch_mul(t, dyf, xh);
        share = torch_strided(t, share, r0 * h, 2, (int64_t[]){rows, h}, NULL);
        torch_grad(t, grad_w, 0, 1, torch_sum(t, share, 0));
    }
    torch_release(t, 0);
}

/* ---- activations -------------------------------------------------------------------------------
 */

void torch_glu(struct device *d, const struct tensor *gu, enum act act, struct tensor *y)
{
    struct torch *t = torch_of(d);
    int64_t n = y->cols;
    struct aten *g, *u;

    if (!y->rows) {
        return;
    }
    g = torch_f32(t, torch_block(t, gu, 0, y->rows, 0, n));
    u = torch_f32(t, torch_block(t, gu, 0, y->rows, n, n));
    g = act == ACT_SILU ? torch_un(t, "aten::silu", g)
                        : torch_op(t, "aten::gelu", "", "ts", g, "tanh");
    torch_put(t, torch_view(t, y), torch_mul(t, g, u));
    torch_release(t, 0);
}

void torch_glu_bwd(struct device *d, const struct tensor *dy, const struct tensor *gu, enum act act,
                   struct tensor *dgu)
{
    struct torch *t = torch_of(d);
    int64_t n = dy->cols, rows = dy->rows;
    struct aten *g, *u, *a, *up, *gy;

    if (!rows) {
        return;
    }
    g = torch_f32(t, torch_block(t, gu, 0, rows, 0, n));
    u = torch_f32(t, torch_block(t, gu, 0, rows, n, n));
    gy = torch_f32(t, torch_view(t, dy));
    up = torch_mul(t, gy, u);
    if (act == ACT_SILU) {
        a = torch_un(t, "aten::silu", g);
        up = torch_op(t, "aten::silu_backward", "", "tt", up, g);
    } else {
        a = torch_op(t, "aten::gelu", "", "ts", g, "tanh");
        up = torch_op(t, "aten::gelu_backward", "", "tts", up, g, "tanh");
    }
    torch_put(t, torch_block(t, dgu, 0, rows, 0, n), up);
    torch_put(t, torch_block(t, dgu, 0, rows, n, n), torch_mul(t, gy, a));
    torch_release(t, 0);
}

/* ---- moving rows -------------------------------------------------------------------------------
 */

static struct aten *rows_of(struct torch *t, const struct tensor *x, const int32_t *row, int64_t n)
{
    return torch_op(t, "aten::index_select", "", "tit", torch_view(t, x), (int64_t)0,
                    torch_ints(t, row, n));
}

void torch_gather(struct device *d, const struct tensor *x, const int32_t *row, struct tensor *y)
{
    struct torch *t = torch_of(d);
    if (y->rows) {
        torch_put(t, torch_view(t, y), rows_of(t, x, row, y->rows));
    }
    torch_release(t, 0);
}

void torch_scatter(struct device *d, const struct tensor *x, const int32_t *row, struct tensor *y)
{
    struct torch *t = torch_of(d);
    int64_t all[] = {y->rows, y->cols}, size[] = {x->rows, x->cols}, spread[] = {1, 0};
    struct aten *sum = torch_empty(t, t->f32, 2, all), *at;

    device_zero(y);
    if (x->rows) {
        if (!t->failed) {
            t->f.aoti_torch_zero_(sum);
        }
        at = torch_strided(t, torch_ints(t, row, x->rows), 0, 2, size, spread);
        torch_op(t, "aten::scatter_add_", "", "titt", sum, (int64_t)0, at,
                 torch_f32(t, torch_view(t, x)));
        torch_put(t, torch_view(t, y), sum);
    }
    torch_release(t, 0);
}

void torch_copy(struct device *d, const struct tensor *x, struct tensor *y)
{
    struct torch *t = torch_of(d);
    if (x->rows && x->data != y->data) {
        torch_put(t, torch_view(t, y), torch_view(t, x));
    }
    torch_release(t, 0);
}

void torch_embed(struct device *d, const struct tensor *table, const int32_t *ids, float scale,
                 struct tensor *y)
{
    struct torch *t = torch_of(d);
    if (y->rows) {
        struct aten *x = rows_of(t, table, ids, y->rows);
        if (scale != 1.0f) {
            x = torch_scale(t, torch_f32(t, x), scale);
        }
        torch_put(t, torch_view(t, y), x);
    }
    torch_release(t, 0);
}

void torch_embed_bwd(struct device *d, const struct tensor *dy, const int32_t *ids, float scale,
                     struct tensor *grad)
{
    struct torch *t = torch_of(d);
    int64_t size[] = {dy->rows, dy->cols}, spread[] = {1, 0};
    struct aten *x, *at;

    if (!dy->rows) {
        return;
    }
    x = torch_op(t, "aten::to", "dtype", "tdbb-", torch_view(t, dy), t->f64, 0, 0);
    if (scale != 1.0f) {
        x = torch_scale(t, x, scale);
    }
    at = torch_strided(t, torch_ints(t, ids, dy->rows), 0, 2, size, spread);
    torch_op(t, "aten::scatter_add_", "", "titt", torch_view(t, grad), (int64_t)0, at, x);
    torch_release(t, 0);
}

/* ---- log-probabilities -------------------------------------------------------------------------
 */

#define LOGP_FLOOR (-1e30f) /* keeps 0 * log 0 at 0 */

static struct aten *at_least(struct torch *t, struct aten *x, float least_value)
{
    return torch_op(t, "aten::clamp_min", "Tensor", "tt", x, torch_scalar(t, least_value));
}

/* The logits as the policy has them: capped, then over the temperature, in place. */
static struct aten *logits_shape(struct torch *t, struct aten *x, const struct logit_spec *spec)
{
    if (spec->softcap > 0.0f) {
        struct aten *y = torch_un(t, "aten::tanh", torch_scale(t, x, 1.0f / spec->softcap));
        torch_put(t, x, torch_scale(t, y, spec->softcap));
    }
    if (spec->temperature > 0.0f && spec->temperature != 1.0f) {
        torch_op(t, "aten::div_", "Tensor", "tt", x, torch_scalar(t, spec->temperature));
    }
    return x;
}

/* target[] with 0 for "none", and 1 or 0 for whether there is one. */
static struct aten *targets(struct torch *t, const int32_t *target, int64_t n)
{
    int32_t *v = torch_scratch(t, n);
    for (int64_t i = 0; i < n; i++) {
        v[i] = target[i] < 0 ? 0 : target[i];
    }
    return torch_strided(t, torch_ints(t, v, n), 0, 2, (int64_t[]){n, 1}, NULL);
}

static void logp_rows(struct torch *t, const struct tensor *logits, const struct logit_spec *spec,
                      const int32_t *target, float *logp, float *max, float *logz, float *entropy)
{
    int64_t n = logits->rows;
    struct aten *x = logits_shape(t, torch_view(t, logits), spec);
    struct aten *m = torch_op(t, "aten::amax", "", "tlb", x, (int64_t)1, 1);
    struct aten *v = torch_sub(t, x, m), *p = torch_un(t, "aten::exp", v);
    struct aten *z = torch_sum(t, p, 1), *lz = torch_un(t, "aten::log", z);

    torch_read(t, m, max, n);
    torch_read(t, lz, logz, n);
    if (entropy) {
        struct aten *s = torch_sum(t, torch_mul(t, p, at_least(t, v, LOGP_FLOOR)), 1);
        torch_read(t, torch_sub(t, lz, torch_div(t, s, z)), entropy, n);
    }
    if (logp && target) {
        struct aten *y =
            torch_op(t, "aten::gather", "", "titb", v, (int64_t)1, targets(t, target, n), 0);
        float *all = (float *)torch_scratch(t, n);
        torch_read(t, torch_sub(t, y, lz), all, n);
        for (int64_t i = 0; i < n; i++) {
            logp[i] = target[i] >= 0 ? all[i] : logp[i];
        }
    }
}

static float *from(float *p, int64_t i)
{
    return p ? p + i : NULL;
}

void torch_logp(struct device *d, struct tensor *logits, const struct logit_spec *spec,
                const int32_t *target, const struct leafset *vleaf, float *logp, float *max,
                float *logz, float *entropy)
{
    struct torch *t = torch_of(d);
    int64_t step = piece_rows(t, logits->cols);
    (void)vleaf;
    for (int64_t r = 0; r < logits->rows; r += step) {
        struct tensor x = tensor_rows(logits, r, least(step, logits->rows - r));
        logp_rows(t, &x, spec, target ? target + r : NULL, from(logp, r), from(max, r),
                  from(logz, r), from(entropy, r));
        torch_release(t, 0);
    }
}

struct logp_grad {
    const struct logit_spec *spec;
    const int32_t *target;
    const float *max, *logz, *entropy, *g, *ge;
};

/* d log p[y] / dx = 1[y] - p and dH / dx = -p (log p + H), then back through logits_shape. */
static void logp_bwd_rows(struct torch *t, const struct tensor *logits, const struct logp_grad *a,
                          int64_t r, struct tensor *dlogits)
{
    int64_t n = logits->rows;
    struct aten *x = torch_view(t, logits), *g = torch_floats(t, a->g + r, n);
    struct aten *lp = torch_sub(t, torch_sub(t, x, torch_floats(t, a->max + r, n)),
                                torch_floats(t, a->logz + r, n));
    struct aten *p = torch_un(t, "aten::exp", lp), *v = torch_mul(t, p, torch_scale(t, g, -1.0f));
    float *own, temperature = a->spec->temperature > 0.0f ? a->spec->temperature : 1.0f;

    if (a->ge) {
        struct aten *s = at_least(t, lp, LOGP_FLOOR);
        if (a->entropy) {
            s = torch_add(t, s, torch_floats(t, a->entropy + r, n));
        }
        v = torch_sub(t, v, torch_mul(t, torch_mul(t, p, s), torch_floats(t, a->ge + r, n)));
    }
    {
        struct aten *at = targets(t, a->target + r, n);
        own = (float *)torch_scratch(t, n);
        for (int64_t i = 0; i < n; i++) {
            own[i] = a->target[r + i] >= 0 ? a->g[r + i] : 0.0f;
        }
        torch_op(t, "aten::scatter_add_", "", "titt", v, (int64_t)1, at, torch_floats(t, own, n));
    }
    if (a->spec->softcap > 0.0f) {
        struct aten *c = torch_scale(t, x, temperature / a->spec->softcap);
        v = torch_sub(t, v, torch_mul(t, v, torch_mul(t, c, c)));
    }
    if (temperature != 1.0f) {
        v = torch_scale(t, v, 1.0f / temperature);
    }
    torch_put(t, torch_view(t, dlogits), v);
}

void torch_logp_bwd(struct device *d, const struct tensor *logits, const struct logit_spec *spec,
                    const int32_t *target, const float *max, const float *logz,
                    const float *entropy, const float *g, const float *ge, struct tensor *dlogits)
{
    struct torch *t = torch_of(d);
    struct logp_grad a = {spec, target, max, logz, entropy, g, ge};
    int64_t step = piece_rows(t, logits->cols);
    for (int64_t r = 0; r < logits->rows; r += step) {
        int64_t n = least(step, logits->rows - r);
        struct tensor x = tensor_rows(logits, r, n), dx = tensor_rows(dlogits, r, n);
        logp_bwd_rows(t, &x, &a, r, &dx);
        torch_release(t, 0);
    }
}

void torch_exps(struct device *d, const struct tensor *x, const float *max, struct tensor *y)
{
    struct torch *t = torch_of(d);
    if (x->rows) {
        struct aten *v = torch_sub(t, torch_view(t, x), torch_floats(t, max, x->rows));
        torch_put(t, torch_view(t, y), torch_un(t, "aten::exp", v));
    }
    torch_release(t, 0);
}

/* ---- optimizer ---------------------------------------------------------------------------------
 */

void torch_sumsq(struct device *d, const struct tensor *grad, void *exact)
{
    struct torch *t = torch_of(d);
    int64_t step = piece_rows(t, grad->cols);
    for (int64_t r = 0; r < grad->rows; r += step, torch_release(t, 0)) {
        struct aten *g = torch_block(t, grad, r, least(step, grad->rows - r), 0, grad->cols);
        struct aten *s = torch_op(t, "aten::sum", "", "t-", torch_mul(t, g, g));
        double v = 0.0;
        if (s && t->f.aoti_torch_item_float64(s, &v)) {
            torch_fail(t, "aten::item");
        }
        exact_add(exact, v);
    }
}

static void adamw_rows(struct torch *t, const struct tensor *grad, const struct tensor *master,
                       const struct tensor *m, const struct tensor *v, const struct adam_step *s,
                       int decay, const struct tensor *w16)
{
    struct aten *g = torch_scale(t, torch_f32(t, torch_view(t, grad)), s->grad_scale);
    struct aten *x = torch_view(t, master), *om = torch_view(t, m), *ov = torch_view(t, v), *root;
    struct aten *nm, *nv;

    nm = torch_axpy(t, g, 1.0 - (double)s->beta1, torch_scale(t, om, s->beta1));
    nv = torch_axpy(t, torch_mul(t, g, g), 1.0 - (double)s->beta2, torch_scale(t, ov, s->beta2));
    root = torch_scale(t, torch_un(t, "aten::sqrt", nv), 1.0f / s->bias2_sqrt);
    root = torch_div(t, nm, torch_add(t, root, torch_scalar(t, s->eps)));
    if (decay) {
        torch_put(t, x, torch_scale(t, x, 1.0f - s->lr * s->weight_decay));
    }
    torch_put(t, x, torch_axpy(t, root, -(double)s->lr / (double)s->bias1, x));
    torch_put(t, om, nm);
    torch_put(t, ov, nv);
    torch_put(t, torch_view(t, w16), x);
}

void torch_adamw(struct device *d, const struct adam_param *p, const struct adam_step *s)
{
    struct torch *t = torch_of(d);
    int64_t step = piece_rows(t, p->grad->cols);
    for (int64_t r = 0; r < p->grad->rows; r += step, torch_release(t, 0)) {
        int64_t n = least(step, p->grad->rows - r);
        struct tensor g = tensor_rows(p->grad, r, n), x = tensor_rows(p->master, r, n);
        struct tensor mm = tensor_rows(p->m, r, n), vv = tensor_rows(p->v, r, n);
        struct tensor w = tensor_rows(p->w16, r, n);
        adamw_rows(t, &g, &x, &mm, &vv, s, p->decay, &w);
    }
    if (p->view) {
        d->ops->pack(d, p->w16, p->view);
    }
}
