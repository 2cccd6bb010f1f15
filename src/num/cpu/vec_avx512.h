/* Sixteen f32 lanes as one AVX-512 register. */
#ifndef CPU_VEC_H
#define CPU_VEC_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>

#include "num/dtype.h"

#define VEC_ROWS 8
#define VEC_NAME "avx512"

typedef __m512 vf;

static inline vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}
static inline vf vf_zero(void)
{
    return _mm512_setzero_ps();
}
static inline vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
static inline void vf_store(float *p, vf x)
{
    _mm512_storeu_ps(p, x);
}
static inline vf vf_loadbf(const uint16_t *p)
{
    __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
}
static inline __m256i vf_tobf(vf x)
{
    __m512i u = _mm512_castps_si512(x);
    __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(lsb, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    r = _mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16));
}
static inline void vf_storebf_any(uint16_t *p, vf x)
{
    _mm256_storeu_si256((__m256i *)p, vf_tobf(x));
}
/* Of values that were computed, hence are not denormal: there the instruction rounds alike. */
static inline void vf_storebf(uint16_t *p, vf x)
{
#if defined(__AVX512BF16__)
    _mm256_storeu_si256((__m256i *)p, (__m256i)_mm512_cvtneps_pbh(x));
#else
    _mm256_storeu_si256((__m256i *)p, vf_tobf(x));
#endif
}
/* dtype_join and dtype_split of 16 values. */
static inline vf vf_join(const uint16_t *hi, const int16_t *rem)
{
    __m512i h = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)hi));
    __m512i r = _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)rem));
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_slli_epi32(h, 16), r));
}
static inline void vf_split(uint16_t *hi, int16_t *rem, vf x)
{
    __m256i h = vf_tobf(x);
    __m512i w = _mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16);
    __m512i r = _mm512_sub_epi32(_mm512_castps_si512(x), w);
    _mm256_storeu_si256((__m256i *)hi, h);
    _mm256_storeu_si256((__m256i *)rem, _mm512_cvtsepi32_epi16(r));
}
/* dtype_hash of counters i, i + 1, ... and dtype_to_bf16_rand with its lower or upper half. */
typedef __m512i vu;
static inline vu vu_hash(uint32_t key, uint32_t i)
{
    __m512i x =
        _mm512_add_epi32(_mm512_set1_epi32((int)i),
                         _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    x = _mm512_add_epi32(_mm512_mullo_epi32(x, _mm512_set1_epi32((int)0x9e3779b9u)),
                         _mm512_set1_epi32((int)key));
    x = _mm512_mullo_epi32(_mm512_xor_si512(x, _mm512_srli_epi32(x, 16)),
                           _mm512_set1_epi32((int)0x85ebca6bu));
    x = _mm512_mullo_epi32(_mm512_xor_si512(x, _mm512_srli_epi32(x, 13)),
                           _mm512_set1_epi32((int)0xc2b2ae35u));
    return _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
}
static inline vu vu_low(vu x)
{
    return _mm512_and_si512(x, _mm512_set1_epi32(0xffff));
}
static inline vu vu_high(vu x)
{
    return _mm512_srli_epi32(x, 16);
}
static inline void vf_storebf_rand(uint16_t *p, vf x, vu r16)
{
    __m512i u = _mm512_castps_si512(x), r = _mm512_add_epi32(u, r16);
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    r = _mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16)));
}
static inline void vf_loadpairs(const uint16_t *p, vf *even, vf *odd)
{
    __m512i u = _mm512_loadu_si512((const void *)p);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(u, _mm512_set1_epi32((int)0xffff0000u)));
}
static inline vf vf_add(vf x, vf y)
{
    return _mm512_add_ps(x, y);
}
static inline vf vf_sub(vf x, vf y)
{
    return _mm512_sub_ps(x, y);
}
static inline vf vf_mul(vf x, vf y)
{
    return _mm512_mul_ps(x, y);
}
static inline vf vf_div(vf x, vf y)
{
    return _mm512_div_ps(x, y);
}
static inline vf vf_sqrt(vf x)
{
    return _mm512_sqrt_ps(x);
}
static inline vf vf_fma(vf x, vf y, vf z)
{
    return _mm512_fmadd_ps(x, y, z);
}
static inline vf vf_max(vf x, vf y)
{
    return _mm512_max_ps(x, y);
}
static inline vf vf_select_gt(vf x, vf y, vf a, vf b)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, y, _CMP_GT_OQ), b, a);
}
static inline vf vf_first(int n, vf a, vf b)
{
    __mmask16 m = n >= 16 ? 0xffffu : n <= 0 ? 0 : (__mmask16)((1u << n) - 1u);
    return _mm512_mask_blend_ps(m, b, a);
}
static inline vf vf_scale2(vf y, vf t, float magic)
{
    /* (t - magic) << 23, whose second part is 0 for the magic of vf_exp */
    union {
        float f;
        uint32_t u;
    } m = {magic};
    __m512i n = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
    n = _mm512_sub_epi32(n, _mm512_set1_epi32((int)(m.u << 23)));
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(y), n));
}
static inline float vf_hsum(vf x)
{
    __m256 s = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 r = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    r = _mm_add_ps(r, _mm_movehl_ps(r, r));
    r = _mm_add_ss(r, _mm_shuffle_ps(r, r, 1));
    return _mm_cvtss_f32(r);
}
static inline float vf_hmax(vf x)
{
    __m256 s = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 r = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    r = _mm_max_ps(r, _mm_movehl_ps(r, r));
    r = _mm_max_ss(r, _mm_shuffle_ps(r, r, 1));
    return _mm_cvtss_f32(r);
}
/* A value out of range converts to INT64_MIN, which no sum in range contains: both kinds of
 * overflow show in the sign bits of (acc ^ sum) & (q ^ sum) or as that value. */
static inline __mmask8 vf_accumulate8(int64_t *acc, __m256 s)
{
    __m512i q = _mm512_cvtps_epi64(s);
    __m512i a = _mm512_loadu_si512((const void *)acc);
    __m512i r = _mm512_add_epi64(a, q);
    __m512i o = _mm512_ternarylogic_epi64(a, q, r, 0x42); /* sign set: a, q alike, r not */
    _mm512_storeu_si512((void *)acc, r);
    return _mm512_movepi64_mask(o) |
           _mm512_cmpeq_epi64_mask(q, _mm512_set1_epi64((long long)0x8000000000000000ull));
}
static inline int vf_accumulate(int64_t *acc, vf x, float scale)
{
    vf s = _mm512_mul_ps(x, _mm512_set1_ps(scale));
    return vf_accumulate8(acc, _mm512_castps512_ps256(s)) |
           vf_accumulate8(acc + 8, _mm512_extractf32x8_ps(s, 1));
}
static inline __m256 vf_from_i64_8(const int64_t *g, __m512d quantum)
{
    __m512d d = _mm512_mul_pd(_mm512_cvtepi64_pd(_mm512_loadu_si512((const void *)g)), quantum);
    return _mm512_cvtpd_ps(d);
}
static inline vf vf_from_i64(const int64_t *g, double quantum)
{
    __m512d q = _mm512_set1_pd(quantum);
    return _mm512_insertf32x8(_mm512_castps256_ps512(vf_from_i64_8(g, q)), vf_from_i64_8(g + 8, q),
                              1);
}
static inline double vf_sumsq32(const int64_t *g, double quantum)
{
    __m512d q = _mm512_set1_pd(quantum), s = _mm512_setzero_pd();
    __m256d h;
    __m128d r;
    for (int i = 0; i < 32; i += 8) {
        __m512d f = _mm512_cvtps_pd(vf_from_i64_8(g + i, q));
        s = _mm512_add_pd(s, _mm512_mul_pd(f, f));
    }
    h = _mm256_add_pd(_mm512_castpd512_pd256(s), _mm512_extractf64x4_pd(s, 1));
    r = _mm_add_pd(_mm256_castpd256_pd128(h), _mm256_extractf128_pd(h, 1));
    r = _mm_add_sd(r, _mm_unpackhi_pd(r, r));
    return _mm_cvtsd_f64(r);
}

/* Transposes 16 rows of 16 32-bit values in place. */
static inline void vec_transpose(__m512i r[16])
{
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

#endif
