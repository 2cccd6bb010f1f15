/* Sixteen f32 lanes as two AVX2 registers. */
#ifndef CPU_VEC_H
#define CPU_VEC_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>

#include "num/dtype.h"

#define VEC_ROWS 2
#define VEC_NAME "avx2"

typedef struct {
    __m256 a, b;
} vf;

#define VEC_MAP1(op, x)    ((vf){op((x).a), op((x).b)})
#define VEC_MAP2(op, x, y) ((vf){op((x).a, (y).a), op((x).b, (y).b)})

static inline vf vf_set1(float x)
{
    __m256 v = _mm256_set1_ps(x);
    return (vf){v, v};
}
static inline vf vf_zero(void)
{
    return vf_set1(0.0f);
}
static inline vf vf_load(const float *p)
{
    return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
static inline void vf_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
static inline __m256 vf_widen8(const uint16_t *p)
{
    __m256i w = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
}
static inline vf vf_loadbf(const uint16_t *p)
{
    return (vf){vf_widen8(p), vf_widen8(p + 8)};
}
static inline __m256i vf_narrow8(__m256 x)
{
    __m256i u = _mm256_castps_si256(x);
    __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(lsb, _mm256_set1_epi32(0x7fff)));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    r = _mm256_blendv_epi8(r, _mm256_or_si256(u, _mm256_set1_epi32(0x400000)), nan);
    return _mm256_srli_epi32(r, 16);
}
static inline void vf_storebf(uint16_t *p, vf x)
{
    __m256i r = _mm256_packus_epi32(vf_narrow8(x.a), vf_narrow8(x.b));
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(r, 0xd8));
}
#define vf_storebf_any vf_storebf /* denormals too */
/* dtype_join and dtype_split of 16 values. */
static inline __m256 vf_join8(const uint16_t *hi, const int16_t *rem)
{
    __m256i h = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)hi));
    __m256i r = _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)rem));
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_slli_epi32(h, 16), r));
}
static inline vf vf_join(const uint16_t *hi, const int16_t *rem)
{
    return (vf){vf_join8(hi, rem), vf_join8(hi + 8, rem + 8)};
}
static inline void vf_split(uint16_t *hi, int16_t *rem, vf x)
{
    __m256i a = vf_narrow8(x.a), b = vf_narrow8(x.b), r;
    r = _mm256_packus_epi32(a, b);
    _mm256_storeu_si256((__m256i *)hi, _mm256_permute4x64_epi64(r, 0xd8));
    a = _mm256_sub_epi32(_mm256_castps_si256(x.a), _mm256_slli_epi32(a, 16));
    b = _mm256_sub_epi32(_mm256_castps_si256(x.b), _mm256_slli_epi32(b, 16));
    r = _mm256_packs_epi32(a, b);
    _mm256_storeu_si256((__m256i *)rem, _mm256_permute4x64_epi64(r, 0xd8));
}
/* dtype_hash of counters i, i + 1, ... and dtype_to_bf16_rand with its lower or upper half. */
typedef struct {
    __m256i a, b;
} vu;
static inline __m256i vu_hash8(uint32_t key, uint32_t i)
{
    __m256i x =
        _mm256_add_epi32(_mm256_set1_epi32((int)i), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    x = _mm256_add_epi32(_mm256_mullo_epi32(x, _mm256_set1_epi32((int)0x9e3779b9u)),
                         _mm256_set1_epi32((int)key));
    x = _mm256_mullo_epi32(_mm256_xor_si256(x, _mm256_srli_epi32(x, 16)),
                           _mm256_set1_epi32((int)0x85ebca6bu));
    x = _mm256_mullo_epi32(_mm256_xor_si256(x, _mm256_srli_epi32(x, 13)),
                           _mm256_set1_epi32((int)0xc2b2ae35u));
    return _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
}
static inline vu vu_hash(uint32_t key, uint32_t i)
{
    return (vu){vu_hash8(key, i), vu_hash8(key, i + 8)};
}
static inline vu vu_low(vu x)
{
    __m256i m = _mm256_set1_epi32(0xffff);
    return (vu){_mm256_and_si256(x.a, m), _mm256_and_si256(x.b, m)};
}
static inline vu vu_high(vu x)
{
    return (vu){_mm256_srli_epi32(x.a, 16), _mm256_srli_epi32(x.b, 16)};
}
static inline __m256i vf_narrow8_rand(__m256 x, __m256i r16)
{
    __m256i u = _mm256_castps_si256(x), r = _mm256_add_epi32(u, r16);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    r = _mm256_blendv_epi8(r, _mm256_or_si256(u, _mm256_set1_epi32(0x400000)), nan);
    return _mm256_srli_epi32(r, 16);
}
static inline void vf_storebf_rand(uint16_t *p, vf x, vu r16)
{
    __m256i r = _mm256_packus_epi32(vf_narrow8_rand(x.a, r16.a), vf_narrow8_rand(x.b, r16.b));
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(r, 0xd8));
}
static inline void vf_loadpairs(const uint16_t *p, vf *even, vf *odd)
{
    __m256i u = _mm256_loadu_si256((const __m256i *)p);
    __m256i w = _mm256_loadu_si256((const __m256i *)(p + 16));
    __m256i hi = _mm256_set1_epi32((int)0xffff0000u);
    even->a = _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
    even->b = _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
    odd->a = _mm256_castsi256_ps(_mm256_and_si256(u, hi));
    odd->b = _mm256_castsi256_ps(_mm256_and_si256(w, hi));
}
static inline vf vf_add(vf x, vf y)
{
    return VEC_MAP2(_mm256_add_ps, x, y);
}
static inline vf vf_sub(vf x, vf y)
{
    return VEC_MAP2(_mm256_sub_ps, x, y);
}
static inline vf vf_mul(vf x, vf y)
{
    return VEC_MAP2(_mm256_mul_ps, x, y);
}
static inline vf vf_div(vf x, vf y)
{
    return VEC_MAP2(_mm256_div_ps, x, y);
}
static inline vf vf_sqrt(vf x)
{
    return VEC_MAP1(_mm256_sqrt_ps, x);
}
static inline vf vf_fma(vf x, vf y, vf z)
{
    return (vf){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
static inline vf vf_max(vf x, vf y)
{
    return VEC_MAP2(_mm256_max_ps, x, y);
}
static inline vf vf_select_gt(vf x, vf y, vf a, vf b)
{
    return (vf){_mm256_blendv_ps(b.a, a.a, _mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ)),
                _mm256_blendv_ps(b.b, a.b, _mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ))};
}
static inline vf vf_first(int n, vf a, vf b)
{
    __m256i idx = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i ma = _mm256_cmpgt_epi32(_mm256_set1_epi32(n), idx);
    __m256i mb = _mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), idx);
    return (vf){_mm256_blendv_ps(b.a, a.a, _mm256_castsi256_ps(ma)),
                _mm256_blendv_ps(b.b, a.b, _mm256_castsi256_ps(mb))};
}
static inline __m256 vf_scale2_8(__m256 y, __m256 t, __m256i m)
{
    __m256i n = _mm256_slli_epi32(_mm256_sub_epi32(_mm256_castps_si256(t), m), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y), n));
}
static inline vf vf_scale2(vf y, vf t, float magic)
{
    __m256i m = _mm256_castps_si256(_mm256_set1_ps(magic));
    return (vf){vf_scale2_8(y.a, t.a, m), vf_scale2_8(y.b, t.b, m)};
}
static inline float vf_hsum(vf x)
{
    __m256 s = _mm256_add_ps(x.a, x.b);
    __m128 r = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    r = _mm_add_ps(r, _mm_movehl_ps(r, r));
    r = _mm_add_ss(r, _mm_shuffle_ps(r, r, 1));
    return _mm_cvtss_f32(r);
}
static inline float vf_hmax(vf x)
{
    __m256 s = _mm256_max_ps(x.a, x.b);
    __m128 r = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    r = _mm_max_ps(r, _mm_movehl_ps(r, r));
    r = _mm_max_ss(r, _mm_shuffle_ps(r, r, 1));
    return _mm_cvtss_f32(r);
}
static inline int vf_accumulate(int64_t *acc, vf x, float scale)
{
    float s[16];
    int bad = 0;
    vf_store(s, vf_mul(x, vf_set1(scale)));
    for (int i = 0; i < 16; i++) {
        if (!(s[i] < 0x1p63f && s[i] > -0x1p63f)) {
            bad = 1;
        } else {
            int64_t q = (int64_t)_mm_cvtss_si64(_mm_set_ss(s[i]));
            bad |= __builtin_add_overflow(acc[i], q, &acc[i]);
        }
    }
    return bad;
}
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
static inline vf vf_from_i64(const int64_t *g, double quantum)
{
    float r[16];
    for (int i = 0; i < 16; i++) {
        r[i] = (float)((double)g[i] * quantum);
    }
    return vf_load(r);
}

#endif
