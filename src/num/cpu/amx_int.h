/* What the AMX files share: the tiles' configuration, their accumulators, pairs of rows. */
#ifndef CPU_AMX_INT_H
#define CPU_AMX_INT_H

#include "num/cpu/vec_avx512.h"

#include <string.h>

#include "num/cpu/kern.h"

/* Stores before it, tile loads after: the compiler does not know that they read memory. */
#define AMX_BARRIER __asm__ volatile("" ::: "memory")

struct amx_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t colsb[16];
    uint8_t rows[16];
};

/* Blocks of up to 32 rows of a and of the result: tiles 0, 1, 4 hold rows 0-15 and 2, 3, 5 the
 * rest; 6 and 7 are full. */
static inline void amx_configure(int rows)
{
    struct amx_config c;
    memset(&c, 0, sizeof c);
    c.palette = 1;
    for (int i = 0; i < 8; i++) {
        int second = i == 2 || i == 3 || i == 5;
        int n = second ? rows - 16 : rows;
        c.colsb[i] = 64;
        c.rows[i] = (uint8_t)(i > 5 || n <= 0 || n > 16 ? 16 : n);
    }
    /* The intrinsic tells the compiler of the first 8 bytes only. */
    __asm__ volatile("" ::"r"(&c) : "memory");
    _tile_loadconfig(&c);
}

static inline void amx_zero(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

/* c (32, 32) f32 */
static inline void amx_store(float *c, int one)
{
    _tile_stored(0, c, 128);
    _tile_stored(1, c + 16, 128);
    if (!one) {
        _tile_stored(2, c + 16 * 32, 128);
        _tile_stored(3, c + 16 * 32 + 16, 128);
    }
}

/* 16 values of two rows as interleaved pairs; a missing row is zero. */
static inline __m512i amx_pair(const uint16_t *x, const uint16_t *y)
{
    __m512i lo =
        x ? _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)x)) : _mm512_setzero_si512();
    __m512i hi =
        y ? _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)y)) : _mm512_setzero_si512();
    return _mm512_or_si512(lo, _mm512_slli_epi32(hi, 16));
}

/* amx_dw.c: see struct kern. */
int amx_dw(const struct kern_dw *g, int n0, int n1, void *scratch);
void amx_pack_dyt(const uint16_t *dy, int64_t ld, int rows, int n, int tb, int ttiles,
                  uint16_t *dyt, float *squares);
void amx_pack_xp(const uint16_t *x, int64_t ld, int rows, int k, int tb, int ttiles, uint16_t *xp,
                 float *squares);
void amx_dw_norms(const float *squares, int nb, int nleaf, const int32_t *tb0, float *norms);

#endif
