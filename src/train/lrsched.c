/* Owns the schedules of learning rate and weight decay. Doubles and functions of our own, so that a
 * resumed or moved run sees the same rates to the last bit. */
#include "train/lrsched.h"

#include "num/exact.h"
#include "num/vmath.h"

#define PI  3.14159265358979323846
#define LN2 0.69314718055994530942

/* (cos(pi z) + 1) / 2 for z in [0, 1]; the ends are exact. */
static double half_cosine(double z)
{
    double s, c;
    if (z <= 0) {
        return 1;
    }
    if (z >= 1) {
        return 0;
    }
    vmath_sincos(PI * z, &s, &c);
    return 0.5 * (c + 1.0);
}

static double wsd_coef(const struct lrsched *s, int64_t pos)
{
    int64_t start = s->decay - s->wsd_decay;
    double q;

    if (pos <= start || s->wsd_decay <= 0) {
        return 1;
    }
    q = (double)(pos - start) / (double)s->wsd_decay;
    switch (s->wsd) {
    case LRSCHED_WSD_LINEAR: return 1.0 - q;
    case LRSCHED_WSD_COSINE: return half_cosine(q);
    case LRSCHED_WSD_MINUS_SQRT: return 1.0 - exact_sqrt(q);
    case LRSCHED_WSD_EXPONENTIAL: return 2.0 * vmath_exp(-LN2 * q) - 1.0;
    }
    return 1;
}

double lrsched_lr(const struct lrsched *s, int64_t pos)
{
    double coef = 1, z, lr;

    if (s->warmup > 0 && pos <= s->warmup) {
        return s->init_lr + (s->max_lr - s->init_lr) * (double)pos / (double)s->warmup;
    }
    if (s->style == LRSCHED_CONSTANT) {
        return s->max_lr;
    }
    if (pos > s->decay) {
        return s->min_lr;
    }
    if (s->style == LRSCHED_INVERSE_SQRT) {
        double w = (double)(s->warmup > 1 ? s->warmup : 1);
        double p = (double)(pos > 1 ? pos : 1);
        lr = s->max_lr * exact_sqrt(w) / exact_sqrt(p);
        return lr > s->min_lr ? lr : s->min_lr;
    }
    z = s->decay > s->warmup ? (double)(pos - s->warmup) / (double)(s->decay - s->warmup) : 1.0;
    switch (s->style) {
    case LRSCHED_LINEAR: coef = 1.0 - z; break;
    case LRSCHED_COSINE: coef = half_cosine(z); break;
    case LRSCHED_WSD: coef = wsd_coef(s, pos); break;
    default: break;
    }
    return s->min_lr + coef * (s->max_lr - s->min_lr);
}

double lrsched_wd_at(const struct lrsched *s, int64_t pos)
{
    double z, coef;

    if (s->wd_style == LRSCHED_WD_CONSTANT || s->wd_steps <= 0 || pos > s->wd_steps) {
        return s->wd_end;
    }
    z = (double)pos / (double)s->wd_steps;
    coef = s->wd_style == LRSCHED_WD_LINEAR ? z : half_cosine(1.0 - z);
    return s->wd_start + coef * (s->wd_end - s->wd_start);
}
