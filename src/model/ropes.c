/* Owns the formulas of scaled rope, in f64 on our own exp and log, so that a table is the same on
 * every machine. */
#include "model/ropes.h"

#include "base/mem.h"
#include "num/vmath.h"

#define ROPES_PI 3.14159265358979323846

static double ropes_pow(double x, double y)
{
    return vmath_exp(vmath_log(x) * y);
}

/* llama3: fast pairs stay, slow ones are divided by the factor, those between are blended. */
static double ropes_llama3(const struct arch_rope *r, double f)
{
    double turns = r->original * f / (2 * ROPES_PI); /* over the original length */
    double smooth = (turns - r->low_freq) / (r->high_freq - r->low_freq);

    if (turns < r->low_freq) {
        return f / r->factor;
    }
    return turns > r->high_freq ? f : (1 - smooth) * f / r->factor + smooth * f;
}

/* yarn: the dimension that turns `rotations` times over the original length. */
static double ropes_yarn_dim(const struct arch_rope *r, int rot, double rotations)
{
    return rot * vmath_log(r->original / (rotations * 2 * ROPES_PI)) / (2 * vmath_log(r->theta));
}

static double ropes_floor(double x)
{
    double n = (double)(long)x;
    return n > x ? n - 1 : n;
}

/* The share of pair i that keeps its own frequency. */
static double ropes_yarn_keep(const struct arch_rope *r, int rot, int i)
{
    double low = ropes_yarn_dim(r, rot, r->beta_fast), high = ropes_yarn_dim(r, rot, r->beta_slow);
    double ramp;

    if (r->truncate) {
        low = ropes_floor(low);
        high = -ropes_floor(-high);
    }
    low = low > 0 ? low : 0;
    high = high < rot - 1 ? high : rot - 1;
    if (low == high) {
        high += 0.001;
    }
    ramp = (i - low) / (high - low);
    return 1 - (ramp < 0 ? 0 : ramp > 1 ? 1 : ramp);
}

double ropes_frequencies(const struct arch_rope *r, int rot, int limit, float *f)
{
    double theta = r->theta;

    if (r->kind == ARCH_ROPE_DYNAMIC && limit > r->original && rot > 2) {
        double stretch = r->factor * limit / r->original - (r->factor - 1);
        theta *= ropes_pow(stretch, (double)rot / (rot - 2));
    }
    for (int i = 0; i < rot / 2; i++) {
        double x = vmath_exp(-vmath_log(theta) * 2.0 * i / rot), keep;
        switch (r->kind) {
        case ARCH_ROPE_LINEAR: x /= r->factor; break;
        case ARCH_ROPE_LLAMA3: x = ropes_llama3(r, x); break;
        case ARCH_ROPE_YARN:
            keep = ropes_yarn_keep(r, rot, i);
            x = x / r->factor * (1 - keep) + x * keep;
            break;
        default: break;
        }
        f[i] = (float)x;
    }
    return r->kind == ARCH_ROPE_YARN ? r->attention_factor : 1.0;
}

void ropes_tables(const struct arch_rope *r, int rot, int limit, int n, float *cos, float *sin)
{
    int half = rot / 2;
    float *f = mem_alloc(sizeof *f * (size_t)half);
    double scale = ropes_frequencies(r, rot, limit, f);

    for (int p = 0; p < n; p++) {
        for (int i = 0; i < half; i++) {
            double s, c;
            vmath_sincos((double)((float)p * f[i]), &s, &c);
            cos[(size_t)p * (size_t)half + (size_t)i] = (float)(c * scale);
            sin[(size_t)p * (size_t)half + (size_t)i] = (float)(s * scale);
        }
    }
    mem_free(f);
}
