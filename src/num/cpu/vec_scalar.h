/* Sixteen f32 lanes in plain C: the form every other instruction set must equal bit for bit. */
#ifndef CPU_VEC_H
#define CPU_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "num/dtype.h"

#define VEC_ROWS 2 /* rows of a product's register block */
#define VEC_NAME "scalar"

typedef struct {
    float v[16];
} vf;

#define VEC_EACH for (int i_ = 0; i_ < 16; i_++)

static inline vf vf_set1(float x)
{
    vf r;
    VEC_EACH r.v[i_] = x;
    return r;
}
static inline vf vf_zero(void)
{
    return vf_set1(0.0f);
}
static inline vf vf_load(const float *p)
{
    vf r;
    memcpy(r.v, p, 64);
    return r;
}
static inline void vf_store(float *p, vf a)
{
    memcpy(p, a.v, 64);
}
static inline vf vf_loadbf(const uint16_t *p)
{
    vf r;
    VEC_EACH r.v[i_] = dtype_from_bf16(p[i_]);
    return r;
}
static inline void vf_storebf(uint16_t *p, vf a)
{
    VEC_EACH p[i_] = dtype_to_bf16(a.v[i_]);
}
#define vf_storebf_any vf_storebf /* denormals too */
/* Even and odd members of 16 interleaved bf16 pairs. */
static inline void vf_loadpairs(const uint16_t *p, vf *even, vf *odd)
{
    VEC_EACH even->v[i_] = dtype_from_bf16(p[2 * i_]);
    VEC_EACH odd->v[i_] = dtype_from_bf16(p[2 * i_ + 1]);
}
static inline vf vf_add(vf a, vf b)
{
    VEC_EACH a.v[i_] += b.v[i_];
    return a;
}
static inline vf vf_sub(vf a, vf b)
{
    VEC_EACH a.v[i_] -= b.v[i_];
    return a;
}
static inline vf vf_mul(vf a, vf b)
{
    VEC_EACH a.v[i_] *= b.v[i_];
    return a;
}
static inline vf vf_div(vf a, vf b)
{
    VEC_EACH a.v[i_] /= b.v[i_];
    return a;
}
static inline vf vf_sqrt(vf a)
{
    VEC_EACH a.v[i_] = sqrtf(a.v[i_]);
    return a;
}
static inline vf vf_fma(vf a, vf b, vf c)
{
    VEC_EACH c.v[i_] = fmaf(a.v[i_], b.v[i_], c.v[i_]);
    return c;
}
static inline vf vf_max(vf a, vf b)
{
    VEC_EACH a.v[i_] = a.v[i_] > b.v[i_] ? a.v[i_] : b.v[i_];
    return a;
}
/* a where x > y, else b */
static inline vf vf_select_gt(vf x, vf y, vf a, vf b)
{
    VEC_EACH b.v[i_] = x.v[i_] > y.v[i_] ? a.v[i_] : b.v[i_];
    return b;
}
/* Lanes below n of a; b elsewhere. */
static inline vf vf_first(int n, vf a, vf b)
{
    VEC_EACH b.v[i_] = i_ < n ? a.v[i_] : b.v[i_];
    return b;
}
/* y * 2^(t - magic), t and magic floats whose low bits hold an integer. */
static inline vf vf_scale2(vf y, vf t, float magic)
{
    uint32_t m;
    memcpy(&m, &magic, 4);
    VEC_EACH
    {
        uint32_t a, b;
        memcpy(&a, &y.v[i_], 4);
        memcpy(&b, &t.v[i_], 4);
        a += (b - m) << 23;
        memcpy(&y.v[i_], &a, 4);
    }
    return y;
}
static inline float vf_hsum(vf a)
{
    for (int w = 8; w; w /= 2) {
        for (int i = 0; i < w; i++) {
            a.v[i] += a.v[i + w];
        }
    }
    return a.v[0];
}
static inline float vf_hmax(vf a)
{
    for (int w = 8; w; w /= 2) {
        for (int i = 0; i < w; i++) {
            a.v[i] = a.v[i] > a.v[i + w] ? a.v[i] : a.v[i + w];
        }
    }
    return a.v[0];
}
/* acc[i] += round(x[i] * 2^q) for 16 lanes; nonzero when a sum or a value left the range. */
static inline int vf_accumulate(int64_t *acc, vf x, float scale)
{
    int bad = 0;
    VEC_EACH
    {
        float s = x.v[i_] * scale;
        if (!(s < 0x1p63f && s > -0x1p63f)) {
            bad = 1;
        } else {
            int64_t q = (int64_t)rintf(s);
            bad |= __builtin_add_overflow(acc[i_], q, &acc[i_]);
        }
    }
    return bad;
}
/* Sum of squares of 32 gradient values, in a fixed order, f64. */
static inline double vf_sumsq32(const int64_t *g, double quantum)
{
    double s[8] = {0};
    for (int i = 0; i < 32; i++) {
        float f = (float)((double)g[i] * quantum);
        s[i % 8] = s[i % 8] + (double)f * (double)f;
    }
    for (int w = 4; w; w /= 2) {
        for (int i = 0; i < w; i++) {
            s[i] += s[i + w];
        }
    }
    return s[0];
}
/* 16 gradient values as f32. */
static inline vf vf_from_i64(const int64_t *g, double quantum)
{
    vf r;
    VEC_EACH r.v[i_] = (float)((double)g[i_] * quantum);
    return r;
}

/* dtype_join and dtype_split of 16 values. */
static inline vf vf_join(const uint16_t *hi, const int16_t *rem)
{
    vf r;
    VEC_EACH r.v[i_] = dtype_join(hi[i_], rem[i_]);
    return r;
}
static inline void vf_split(uint16_t *hi, int16_t *rem, vf x)
{
    VEC_EACH dtype_split(x.v[i_], &hi[i_], &rem[i_]);
}
/* dtype_hash of counters i, i + 1, ... and dtype_to_bf16_rand with its lower or upper half. */
typedef struct {
    uint32_t v[16];
} vu;
static inline vu vu_hash(uint32_t key, uint32_t i)
{
    vu r;
    VEC_EACH r.v[i_] = dtype_hash(key, i + (uint32_t)i_);
    return r;
}
static inline vu vu_low(vu x)
{
    VEC_EACH x.v[i_] &= 0xffffu;
    return x;
}
static inline vu vu_high(vu x)
{
    VEC_EACH x.v[i_] >>= 16;
    return x;
}
static inline void vf_storebf_rand(uint16_t *p, vf x, vu r16)
{
    VEC_EACH p[i_] = dtype_to_bf16_rand(x.v[i_], r16.v[i_]);
}

#endif
