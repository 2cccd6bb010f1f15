/* The reference device's optimizer: the gradient's norm and AdamW, one value at a time.
 *
 * The definition of a step, all in f32: g is the gradient times the clip factor,
 *     m' = b1 m + (1 - b1) g,  v' = b2 v + (1 - b2) g g      one fused multiply-add each
 *     x' = x (1 - lr decay) - lr / bias1 * m' / (sqrt(v') / bias2_sqrt + eps)
 * The weight is x' rounded to bf16. The master that is kept is the weight and a 16-bit difference
 * (dtype_split) in every form of it, so a step's bits do not depend on the form. Moments in bf16
 * are m' and v' rounded up or down by chance, the chance being a hash of the parameter's key and of
 * the value's index: nearest would never let v fall when 1 - b2 is below 2^-9, as a step's change
 * is then less than half of the last place. The step itself uses m' and v' before that rounding. */
#include "num/ops_ref_int.h"

#include "base/thread.h"

/* Squares in f64: 8 running sums over 32 values, joined 4, 2, 1; blocks are added exactly. */
void ops_ref_optim_sumsq(struct device *d, const struct tensor *grad, void *exact)
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
    const struct adam_param *p;
    const struct adam_step *s;
    int f32; /* no rounding to bf16 anywhere */
};

static float adamw_weight(const struct adam_param *p, int64_t r, int64_t c)
{
    return p->w16 ? get(p->w16, r, c) : ((const float *)p->view->fwd)[r * p->view->k + c];
}

static float adamw_master(const struct adam_param *p, int64_t r, int64_t c)
{
    if (p->master->dtype == DTYPE_F32) {
        return get(p->master, r, c);
    }
    return dtype_join(dtype_to_bf16(adamw_weight(p, r, c)),
                      ((const int16_t *)p->master->data)[r * p->master->ld + c]);
}

static void adamw_put(const struct adamw_args *a, int64_t r, int64_t c, float x)
{
    const struct adam_param *p = a->p;
    float w = x;

    if (!a->f32) {
        uint16_t hi;
        int16_t rem;
        dtype_split(x, &hi, &rem);
        w = dtype_from_bf16(hi);
        x = dtype_join(hi, rem);
        if (p->master->dtype == DTYPE_I16) {
            ((int16_t *)p->master->data)[r * p->master->ld + c] = rem;
        }
    }
    if (p->master->dtype == DTYPE_F32) {
        put(p->master, r, c, x);
    }
    if (p->w16) {
        put(p->w16, r, c, w);
    }
    if (p->view) {
        ((float *)p->view->fwd)[r * p->view->k + c] = w;
    }
}

static void adamw_moment(struct tensor *t, int64_t r, int64_t c, float x, uint32_t r16)
{
    if (t->dtype == DTYPE_F32) {
        put(t, r, c, x);
    } else {
        ((uint16_t *)t->data)[r * t->ld + c] = dtype_to_bf16_rand(x, r16);
    }
}

static void adamw_task(void *arg, int r, int worker)
{
    const struct adamw_args *a = arg;
    const struct adam_param *p = a->p;
    const struct adam_step *s = a->s;
    float keep = 1.0f - s->lr * s->weight_decay, step = s->lr / s->bias1;
    (void)worker;

    for (int64_t c = 0; c < p->grad->cols; c++) {
        uint32_t h = dtype_hash(p->key, (uint32_t)(r * p->grad->cols + c));
        float g = grad_get(p->grad, r, c) * s->grad_scale, x = adamw_master(p, r, c);
        float m = fmaf(s->beta1, get(p->m, r, c), (1.0f - s->beta1) * g);
        float v = fmaf(s->beta2, get(p->v, r, c), (1.0f - s->beta2) * (g * g));
        if (p->decay) {
            x = x * keep;
        }
        x = x - step * (m / (sqrtf(v) / s->bias2_sqrt + s->eps));
        adamw_put(a, r, c, x);
        adamw_moment(p->m, r, c, m, h & 0xffffu);
        adamw_moment(p->v, r, c, v, h >> 16);
    }
}

void ops_ref_optim_adamw(struct device *d, const struct adam_param *p, const struct adam_step *s)
{
    struct adamw_args a = {p, s, d->plan.f32};
    pool_run(d->pool, adamw_task, &a, (int)p->grad->rows);
}
