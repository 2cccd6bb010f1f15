/* The CPU device's operations on rows (norms, activations, embedding, log-probs) and the optimizer,
 * cut into tasks. */
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "base/thread.h"
#include "num/cpu/cpu_int.h"
#include "num/exact.h"
#include "num/vmath.h"

/* ---- column sums over leaves -------------------------------------------------------------------
 */

struct cpu_cols {
    struct cpu *c;
    const struct tensor *dy, *x, *rstd;
    const struct leaf_rows *leaves;
    int64_t *grad;
};

static void cpu_cols_task(void *arg, int task, int worker)
{
    struct cpu_cols *t = arg;
    const float scale = (float)((int64_t)1 << PLAN_QUANTUM);
    int bad = 0;
    (void)worker;
    for (int l = 0; l < t->leaves->n; l++) {
        int r0 = t->leaves->start[l], r1 = t->leaves->start[l + 1];
        bad |= t->x ? t->c->k.rmsnorm_dw(t->dy->data, t->dy->ld, t->x->data, t->x->ld,
                                         t->rstd->data, r0, r1, task * 16, t->grad, scale)
                    : t->c->k.bias_dw(t->dy->data, t->dy->ld, r0, r1, task * 16, t->grad, scale);
    }
    if (bad) {
        atomic_store(&t->c->bad, 1);
    }
}

void cpu_bias_dw(struct device *d, const struct tensor *dy, const struct leaf_rows *leaves,
                 struct tensor *grad)
{
    struct cpu_cols t = {cpu_of(d), dy, NULL, NULL, leaves, grad->data};
    pool_run(d->pool, cpu_cols_task, &t, ceil_div((int)grad->cols, 16));
}

/* ---- norms -------------------------------------------------------------------------------------
 */

struct cpu_norm {
    const struct kern *k;
    const struct tensor *dy, *x, *residual, *y;
    const struct norm *norm;
    float *rstd;
    const struct tensor *dx;
};

static void cpu_norm_row(const void *arg, int r)
{
    const struct cpu_norm *t = arg;
    t->k->rmsnorm(ROW16(t->x, r), t->norm, (int)t->x->cols,
                  t->residual ? ROW16(t->residual, r) : NULL, ROW16(t->y, r),
                  t->rstd ? t->rstd + r : NULL);
}

void cpu_rmsnorm(struct device *d, const struct tensor *x, const struct norm *norm,
                 const struct tensor *residual, struct tensor *y, struct tensor *rstd)
{
    struct cpu_norm t = {.k = &cpu_of(d)->k,
                         .x = x,
                         .residual = residual,
                         .y = y,
                         .norm = norm,
                         .rstd = rstd ? rstd->data : NULL};
    cpu_each_row(d, (int)x->rows, 32, cpu_norm_row, &t);
}

static void cpu_norm_bwd_row(const void *arg, int r)
{
    const struct cpu_norm *t = arg;
    t->k->rmsnorm_bwd(ROW16(t->dy, r), ROW16(t->x, r), t->norm, (int)t->x->cols, t->rstd[r],
                      ROW32(t->dx, r));
}

void cpu_rmsnorm_bwd(struct device *d, const struct tensor *dy, const struct tensor *x,
                     const struct norm *norm, const struct tensor *rstd,
                     const struct leaf_rows *leaves, struct tensor *dx, struct tensor *grad_w)
{
    struct cpu_norm t = {
        .k = &cpu_of(d)->k, .dy = dy, .x = x, .norm = norm, .rstd = rstd->data, .dx = dx};
    struct cpu_cols c = {cpu_of(d), dy, x, rstd, leaves, grad_w->data};
    cpu_each_row(d, (int)x->rows, 32, cpu_norm_bwd_row, &t);
    pool_run(d->pool, cpu_cols_task, &c, ceil_div((int)x->cols, 16));
}
/* ---- elementwise, embedding, logits ------------------------------------------------------------
 */

struct cpu_two {
    const struct kern *k;
    struct cpu *c;
    const struct tensor *a, *b, *o;
    const int32_t *ids;
    enum act act;
    float scale;
};

static void cpu_glu_row(const void *arg, int r)
{
    const struct cpu_two *t = arg;
    t->k->glu(ROW16(t->a, r), t->act, (int)t->o->cols, ROW16(t->o, r));
}

void cpu_glu(struct device *d, const struct tensor *gu, enum act act, struct tensor *y)
{
    struct cpu_two t = {.k = &cpu_of(d)->k, .a = gu, .o = y, .act = act};
    cpu_each_row(d, (int)y->rows, 16, cpu_glu_row, &t);
}

static void cpu_glu_bwd_row(const void *arg, int r)
{
    const struct cpu_two *t = arg;
    t->k->glu_bwd(ROW16(t->a, r), ROW16(t->b, r), t->act, (int)t->a->cols, ROW16(t->o, r));
}

void cpu_glu_bwd(struct device *d, const struct tensor *dy, const struct tensor *gu, enum act act,
                 struct tensor *dgu)
{
    struct cpu_two t = {.k = &cpu_of(d)->k, .a = dy, .b = gu, .o = dgu, .act = act};
    cpu_each_row(d, (int)dy->rows, 16, cpu_glu_bwd_row, &t);
}

static void cpu_gather_row(const void *arg, int r)
{
    const struct cpu_two *t = arg;
    size_t sz = dtype_size(t->a->dtype);
    memcpy((char *)t->o->data + (size_t)r * (size_t)t->o->ld * sz,
           (const char *)t->a->data + (size_t)t->ids[r] * (size_t)t->a->ld * sz,
           (size_t)t->a->cols * sz);
}

void cpu_gather(struct device *d, const struct tensor *x, const int32_t *row, struct tensor *y)
{
    struct cpu_two t = {.a = x, .o = y, .ids = row};
    cpu_each_row(d, (int)y->rows, 64, cpu_gather_row, &t);
}

static void cpu_embed_row(const void *arg, int r)
{
    const struct cpu_two *t = arg;
    t->k->scale_row(ROW16(t->a, t->ids[r]), (int)t->a->cols, t->scale, ROW16(t->o, r));
}

void cpu_embed(struct device *d, const struct tensor *table, const int32_t *ids, float scale,
               struct tensor *y)
{
    struct cpu_two t = {.k = &cpu_of(d)->k, .a = table, .o = y, .ids = ids, .scale = scale};
    cpu_each_row(d, (int)y->rows, 64, scale == 1.0f ? cpu_gather_row : cpu_embed_row, &t);
}

struct cpu_scatter {
    const struct tensor *x, *y;
    const int32_t *first; /* (rows of y) the first row of x that goes there, or -1 */
    const int32_t *next;  /* (rows of x) the next one with the same row of y, or -1 */
};

static void cpu_scatter_sum(const struct cpu_scatter *t, int r)
{
    for (int c = 0; c < (int)t->x->cols; c++) {
        float sum = 0.0f;
        for (int i = t->first[r]; i >= 0; i = t->next[i]) {
            float v =
                t->x->dtype == DTYPE_F32 ? ROW32(t->x, i)[c] : dtype_from_bf16(ROW16(t->x, i)[c]);
            sum = i == t->first[r] ? v : sum + v;
        }
        if (t->y->dtype == DTYPE_F32) {
            ROW32(t->y, r)[c] = sum;
        } else {
            ROW16(t->y, r)[c] = dtype_to_bf16(sum);
        }
    }
}

static void cpu_scatter_row(const void *arg, int r)
{
    const struct cpu_scatter *t = arg;
    size_t sz = dtype_size(t->y->dtype);
    char *out = (char *)t->y->data + (size_t)r * (size_t)t->y->ld * sz;
    int i = t->first[r];

    if (i < 0) {
        memset(out, 0, (size_t)t->y->ld * sz);
    } else if (t->next[i] < 0) {
        memcpy(out, (const char *)t->x->data + (size_t)i * (size_t)t->x->ld * sz,
               (size_t)t->x->cols * sz);
    } else {
        cpu_scatter_sum(t, r);
    }
}

void cpu_scatter(struct device *d, const struct tensor *x, const int32_t *row, struct tensor *y)
{
    int32_t *first =
        cpu_grow(&cpu_of(d)->index, sizeof(int32_t) * ((size_t)y->rows + (size_t)x->rows));
    int32_t *next = first + y->rows;
    struct cpu_scatter t = {x, y, first, next};

    for (int64_t r = 0; r < y->rows; r++) {
        first[r] = -1;
    }
    for (int64_t i = x->rows - 1; i >= 0; i--) {
        next[i] = first[row[i]];
        first[row[i]] = (int32_t)i;
    }
    cpu_each_row(d, (int)y->rows, 64, cpu_scatter_row, &t);
}

static void cpu_embed_bwd_cols(void *arg, int task, int worker)
{
    const struct cpu_two *t = arg;
    int c0 = task * 64, n = (int)t->a->cols - c0 < 64 ? (int)t->a->cols - c0 : 64;
    (void)worker;
    for (int r = 0; r < (int)t->a->rows; r++) {
        int64_t *g = (int64_t *)t->o->data + (size_t)t->ids[r] * (size_t)t->o->ld + c0;
        if (t->k->add_row(ROW32(t->a, r) + c0, n, t->scale, g,
                          (float)((int64_t)1 << PLAN_QUANTUM))) {
            atomic_store(&t->c->bad, 1);
        }
    }
}

void cpu_embed_bwd(struct device *d, const struct tensor *dy, const int32_t *ids, float scale,
                   struct tensor *grad)
{
    struct cpu_two t = {
        .k = &cpu_of(d)->k, .c = cpu_of(d), .a = dy, .o = grad, .ids = ids, .scale = scale};
    pool_run(d->pool, cpu_embed_bwd_cols, &t, ceil_div((int)dy->cols, 64));
}

static void cpu_copy_row(const void *arg, int r)
{
    const struct cpu_two *t = arg;
    size_t bytes = (size_t)t->a->ld * dtype_size(t->a->dtype);
    memcpy((char *)t->o->data + (size_t)r * bytes, (const char *)t->a->data + (size_t)r * bytes,
           bytes);
}

void cpu_copy(struct device *d, const struct tensor *x, struct tensor *y)
{
    struct cpu_two t = {.a = x, .o = y};
    if (x->data != y->data) {
        cpu_each_row(d, (int)x->rows, 128, cpu_copy_row, &t);
    }
}

static void cpu_convert_row(const void *arg, int r)
{
    const struct cpu_two *t = arg;
    t->k->to_bf16(ROW32(t->a, r), (int)t->a->ld, ROW16(t->o, r));
}

void cpu_convert(struct device *d, const struct tensor *x, struct tensor *y)
{
    struct cpu_two t = {.k = &cpu_of(d)->k, .a = x, .o = y};
    cpu_each_row(d, (int)x->rows, 32, cpu_convert_row, &t);
}

struct cpu_logp {
    const struct kern *k;
    const struct tensor *x, *dx;
    const struct logit_spec *spec;
    const int32_t *target;
    const struct leafset *leaves;
    float *logp, *max, *logz, *entropy;
    const float *g, *ge;
};

static void cpu_logp_row(const void *arg, int r)
{
    const struct cpu_logp *t = arg;
    float *x = ROW32(t->x, r), m, sums[2], lz;
    t->k->logits_row(x, (int)t->x->cols, t->spec, t->leaves, &m, sums, t->entropy != NULL);
    lz = vmath_logf(sums[0]);
    if (t->logp && t->target[r] >= 0) {
        t->logp[r] = (x[t->target[r]] - m) - lz;
    }
    if (t->max) {
        t->max[r] = m;
    }
    if (t->logz) {
        t->logz[r] = lz;
    }
    if (t->entropy) {
        t->entropy[r] = lz - sums[1] / sums[0];
    }
}

void cpu_logp_fn(struct device *d, struct tensor *logits, const struct logit_spec *spec,
                 const int32_t *target, const struct leafset *vleaf, float *logp, float *max,
                 float *logz, float *entropy)
{
    struct cpu_logp t = {&cpu_of(d)->k, logits, NULL, spec,    target, vleaf,
                         logp,          max,    logz, entropy, NULL,   NULL};
    cpu_each_row(d, (int)logits->rows, 1, cpu_logp_row, &t);
}

static void cpu_logp_bwd_row(const void *arg, int r)
{
    const struct cpu_logp *t = arg;
    t->k->dlogits_row(ROW32(t->x, r), (int)t->x->cols, (int)t->dx->ld, t->spec, t->target[r],
                      t->max[r], t->logz[r], t->entropy ? t->entropy[r] : 0.0f, t->g[r],
                      t->ge ? t->ge[r] : 0.0f, ROW16(t->dx, r));
}

void cpu_logp_bwd(struct device *d, const struct tensor *logits, const struct logit_spec *spec,
                  const int32_t *target, const float *max, const float *logz, const float *entropy,
                  const float *g, const float *ge, struct tensor *dlogits)
{
    struct cpu_logp t = {&cpu_of(d)->k,
                         logits,
                         dlogits,
                         spec,
                         target,
                         NULL,
                         NULL,
                         (float *)(uintptr_t)max,
                         (float *)(uintptr_t)logz,
                         (float *)(uintptr_t)entropy,
                         g,
                         ge};
    cpu_each_row(d, (int)logits->rows, 1, cpu_logp_bwd_row, &t);
}

static void cpu_exps_row(const void *arg, int r)
{
    const struct cpu_logp *t = arg;
    t->k->exps(ROW32(t->x, r), (int)t->x->cols, t->max[r], ROW32(t->dx, r));
}

void cpu_exps(struct device *d, const struct tensor *x, const float *max, struct tensor *y)
{
    struct cpu_logp t;
    memset(&t, 0, sizeof t);
    t.k = &cpu_of(d)->k;
    t.x = x;
    t.dx = y;
    t.max = (float *)(uintptr_t)max;
    cpu_each_row(d, (int)x->rows, 1, cpu_exps_row, &t);
}
