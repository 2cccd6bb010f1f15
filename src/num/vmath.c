/* Owns the scalar elementary functions. Range reduction plus a polynomial, every step a correctly
 * rounded IEEE operation (fmaf included), so the result is the same on every machine. */
#include "num/vmath.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static float of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

float vmath_expf(float x)
{
    float t, n, r, p, y;

    if (!(x >= VMATH_EXP_MIN)) {
        return x != x ? x : 0.0f;
    }
    if (x > VMATH_EXP_MAX) {
        return of_bits(0x7f800000u);
    }
    t = fmaf(x, VMATH_LOG2E, VMATH_MAGIC);
    n = t - VMATH_MAGIC;
    r = fmaf(n, -VMATH_LN2_HI, x);
    r = fmaf(n, -VMATH_LN2_LO, r);
    p = fmaf(VMATH_E0, r, VMATH_E1);
    p = fmaf(p, r, VMATH_E2);
    p = fmaf(p, r, VMATH_E3);
    p = fmaf(p, r, VMATH_E4);
    p = fmaf(p, r, VMATH_E5);
    y = fmaf(p, r * r, r) + 1.0f;
    return of_bits(bits_of(y) + ((bits_of(t) - bits_of(VMATH_MAGIC)) << 23));
}

float vmath_logf(float x)
{
    uint32_t u = bits_of(x);
    float m, f, z, p, n;
    int e;

    if (!(x > 0.0f)) {
        return x == 0.0f ? of_bits(0xff800000u) : of_bits(0x7fc00000u);
    }
    if (u >= 0x7f800000u) {
        return x;
    }
    e = (int)(u >> 23) - 126;
    m = of_bits((u & 0x007fffffu) | 0x3f000000u); /* [0.5, 1) */
    if (m < 0.707106781186547524f) {
        e -= 1;
        m = m + m;
    }
    f = m - 1.0f;
    n = (float)e;
    z = f * f;
    p = fmaf(7.0376836292e-2f, f, -1.1514610310e-1f);
    p = fmaf(p, f, 1.1676998740e-1f);
    p = fmaf(p, f, -1.2420140846e-1f);
    p = fmaf(p, f, 1.4249322787e-1f);
    p = fmaf(p, f, -1.6668057665e-1f);
    p = fmaf(p, f, 2.0000714765e-1f);
    p = fmaf(p, f, -2.4999993993e-1f);
    p = fmaf(p, f, 3.3333331174e-1f);
    p = p * f * z;
    p = fmaf(n, VMATH_LN2_LO, p);
    p = fmaf(z, -0.5f, p);
    p = f + p;
    return fmaf(n, VMATH_LN2_HI, p);
}

float vmath_tanhf(float x)
{
    float a = x > 0.0f - x ? x : 0.0f - x, z, p;

    if (a > VMATH_TANH_SMALL) {
        p = 1.0f - 2.0f / (vmath_expf(a + a) + 1.0f);
        return x < 0.0f ? 0.0f - p : p;
    }
    z = x * x;
    p = fmaf(VMATH_T0, z, VMATH_T1);
    p = fmaf(p, z, VMATH_T2);
    p = fmaf(p, z, VMATH_T3);
    p = fmaf(p, z, VMATH_T4);
    return fmaf(p * z, x, x);
}

float vmath_pow2f(float x)
{
    float t, r, p;

    if (!(x >= VMATH_POW2_MIN)) {
        return x != x ? x : 0.0f;
    }
    if (x >= VMATH_POW2_MAX) {
        return of_bits(0x7f800000u);
    }
    t = x + VMATH_MAGIC;
    r = x - (t - VMATH_MAGIC);
    p = fmaf(VMATH_P0, r, VMATH_P1);
    p = fmaf(p, r, VMATH_P2);
    p = fmaf(p, r, 1.0f);
    return of_bits(bits_of(p) + ((bits_of(t) - bits_of(VMATH_MAGIC)) << 23));
}

double vmath_exp(double x)
{
    /* e^x = 2^n e^r, |r| <= ln2/2, Taylor to r^14 */
    double n, r, p = 1.0;
    uint64_t u;

    if (x < -708.0) {
        return 0.0;
    }
    if (x > 709.0) {
        return HUGE_VAL;
    }
    n = (x * 1.4426950408889634074 + 6755399441055744.0) - 6755399441055744.0;
    r = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
    for (int i = 14; i > 0; i--) {
        p = p * r / i + 1.0;
    }
    u = (uint64_t)((int64_t)n + 1023) << 52;
    memcpy(&r, &u, 8);
    return p * r;
}

double vmath_log(double x)
{
    /* x = m 2^e; log m = 2 atanh((m-1)/(m+1)) */
    uint64_t u;
    int e;
    double m, s, s2, p = 0.0;

    if (!(x > 0.0)) {
        return x == 0.0 ? -HUGE_VAL : (double)of_bits(0x7fc00000u);
    }
    memcpy(&u, &x, 8);
    e = (int)(u >> 52) - 1023;
    u = (u & 0x000fffffffffffffull) | 0x3ff0000000000000ull;
    memcpy(&m, &u, 8);
    if (m > 1.41421356237309504880) {
        m *= 0.5;
        e++;
    }
    s = (m - 1.0) / (m + 1.0);
    s2 = s * s;
    for (int k = 23; k >= 1; k -= 2) {
        p = p * s2 + 1.0 / k;
    }
    return e * 6.93147180559945286227e-01 + 2.0 * s * p;
}

void vmath_sincos(double x, double *s, double *c)
{
    /* x = n pi/2 + r, |r| <= pi/4, Taylor series; pi/2 in three parts of 33, 33 and 53 bits */
    double n = (x * 6.36619772367581382433e-01 + 6755399441055744.0) - 6755399441055744.0;
    double r = ((x - n * 1.57079632673412561417e+00) - n * 6.07710050630396597660e-11) -
               n * 2.02226624879595063154e-21;
    double r2 = r * r, sn = 1.0, cs = 1.0, t;
    long q = (long)n & 3;

    for (int k = 19; k >= 3; k -= 2) {
        sn = 1.0 - sn * r2 / (double)(k * (k - 1));
    }
    sn *= r;
    for (int k = 20; k >= 2; k -= 2) {
        cs = 1.0 - cs * r2 / (double)(k * (k - 1));
    }
    if (q & 1) {
        t = sn;
        sn = cs;
        cs = t;
    }
    *s = q >= 2 ? -sn : sn;
    *c = q == 1 || q == 2 ? -cs : cs;
}

double vmath_powi(double x, long n)
{
    double r = 1.0;
    for (; n > 0; n >>= 1) {
        if (n & 1) {
            r *= x;
        }
        x *= x;
    }
    return r;
}
