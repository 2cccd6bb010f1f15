/* Owns the dequantisation of ggml's blocks. */
#include "model/gguf_quant.h"

#include <stddef.h>
#include <string.h>

#include "model/halves_int.h"
#include "num/dtype.h"

#define GGUF_QK 32 /* values of a small block */

/* ---- plain types: a block is one value ---- */

static void gguf_f32_f32(const uint8_t *p, float *dst, int64_t n)
{
    memcpy(dst, p, (size_t)n * 4);
}

static void gguf_f16_f32(const uint8_t *p, float *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        dst[i] = halves_to_f32(halves_load16(p + 2 * i));
    }
}

static void gguf_bf16_f32(const uint8_t *p, float *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        dst[i] = dtype_from_bf16(halves_load16(p + 2 * i));
    }
}

static void gguf_bf16_bf16(const uint8_t *p, uint16_t *dst, int64_t n)
{
    memcpy(dst, p, (size_t)n * 2);
}

/* ---- blocks of 32 ---- */

/* Q4_1: d and m as halves, then 16 bytes; byte j holds value j low and value j + 16 high. A block
 * has only 16 different values, so they are computed once and looked up. */
static void gguf_q4_1_f32(const uint8_t *restrict p, float *restrict dst, int64_t blocks)
{
    for (int64_t b = 0; b < blocks; b++, p += 20, dst += GGUF_QK) {
        float d = halves_to_f32(halves_load16(p)), m = halves_to_f32(halves_load16(p + 2));
        float table[16];
        for (int q = 0; q < 16; q++) {
            table[q] = d * (float)q + m;
        }
        for (int j = 0; j < 16; j++) {
            dst[j] = table[p[4 + j] & 15];
            dst[j + 16] = table[p[4 + j] >> 4];
        }
    }
}

/* dtype_to_bf16 for a value known to be no NaN: without the branch the compiler makes vectors. */
static uint16_t gguf_round(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* 1 when the half is infinite or NaN, which makes a block's values NaN too. */
static int gguf_odd_half(const uint8_t *p)
{
    return (p[1] & 0x7c) == 0x7c;
}

static void gguf_q4_1_bf16(const uint8_t *restrict p, uint16_t *restrict dst, int64_t blocks)
{
    for (int64_t b = 0; b < blocks; b++, p += 20, dst += GGUF_QK) {
        float d = halves_to_f32(halves_load16(p)), m = halves_to_f32(halves_load16(p + 2));
        uint16_t table[16];
        for (int q = 0; q < 16; q++) {
            table[q] = gguf_round(d * (float)q + m);
        }
        if (gguf_odd_half(p) || gguf_odd_half(p + 2)) {
            for (int q = 0; q < 16; q++) {
                table[q] = dtype_to_bf16(d * (float)q + m);
            }
        }
        for (int j = 0; j < 16; j++) {
            dst[j] = table[p[4 + j] & 15];
            dst[j + 16] = table[p[4 + j] >> 4];
        }
    }
}

/* Q8_0: d as a half, then 32 signed bytes. */
static void gguf_q8_0_f32(const uint8_t *restrict p, float *restrict dst, int64_t blocks)
{
    for (int64_t b = 0; b < blocks; b++, p += 34, dst += GGUF_QK) {
        float d = halves_to_f32(halves_load16(p));
        for (int j = 0; j < GGUF_QK; j++) {
            dst[j] = (float)(int8_t)p[2 + j] * d;
        }
    }
}

static void gguf_q8_0_bf16(const uint8_t *restrict p, uint16_t *restrict dst, int64_t blocks)
{
    for (int64_t b = 0; b < blocks; b++, p += 34, dst += GGUF_QK) {
        float d = halves_to_f32(halves_load16(p));
        for (int j = 0; j < GGUF_QK; j++) {
            dst[j] = gguf_round((float)(int8_t)p[2 + j] * d);
        }
        for (int j = 0; gguf_odd_half(p) && j < GGUF_QK; j++) {
            dst[j] = dtype_to_bf16((float)(int8_t)p[2 + j] * d);
        }
    }
}

/* Q4_0: d as a half, then 16 bytes as Q4_1's; a value is d (q - 8). */
static void gguf_q4_0_f32(const uint8_t *p, float *dst, int64_t blocks)
{
    for (int64_t b = 0; b < blocks; b++, p += 18, dst += GGUF_QK) {
        float d = halves_to_f32(halves_load16(p));
        for (int j = 0; j < 16; j++) {
            dst[j] = d * (float)((p[2 + j] & 15) - 8);
            dst[j + 16] = d * (float)((p[2 + j] >> 4) - 8);
        }
    }
}

/* Q5_0: d as a half, the fifth bits of all values in 4 bytes, then 16 bytes as Q4_0's. */
static void gguf_q5_0_f32(const uint8_t *p, float *dst, int64_t blocks)
{
    for (int64_t b = 0; b < blocks; b++, p += 22, dst += GGUF_QK) {
        float d = halves_to_f32(halves_load16(p));
        for (int j = 0; j < 16; j++) {
            int lo = p[2 + j / 8] >> (j % 8) & 1, hi = p[4 + j / 8] >> (j % 8) & 1;
            dst[j] = d * (float)(((p[6 + j] & 15) | lo << 4) - 16);
            dst[j + 16] = d * (float)(((p[6 + j] >> 4) | hi << 4) - 16);
        }
    }
}

/* ---- blocks of 256 ---- */

/* Scale and minimum of 32 values: 6 bits each, the upper ones of 4 to 7 beside those of 0 to 3. */
static void gguf_k_scale(const uint8_t *p, int i, int *scale, int *min)
{
    if (i < 4) {
        *scale = p[i] & 63;
        *min = p[4 + i] & 63;
    } else {
        *scale = (p[4 + i] & 15) | (p[i - 4] >> 2 & 48);
        *min = (p[4 + i] >> 4) | (p[i] >> 2 & 48);
    }
}

/* Q4_K: d and dmin as halves, 12 bytes of scales and minima, then nibbles, 32 bytes for two groups
 * of 32 values. */
static void gguf_q4_k_f32(const uint8_t *p, float *dst, int64_t blocks)
{
    for (int64_t b = 0; b < blocks; b++, p += 144) {
        float d = halves_to_f32(halves_load16(p)), dmin = halves_to_f32(halves_load16(p + 2));
        for (int g = 0; g < 8; g++, dst += 32) {
            const uint8_t *q = p + 16 + g / 2 * 32;
            int scale, min;
            float ds, dm;
            gguf_k_scale(p + 4, g, &scale, &min);
            ds = d * (float)scale;
            dm = dmin * (float)min;
            for (int j = 0; j < 32; j++) {
                dst[j] = ds * (float)(g % 2 ? q[j] >> 4 : q[j] & 15) - dm;
            }
        }
    }
}

/* Q6_K: 128 bytes of lower 4 bits, 64 of upper 2, 16 signed scales, d as a half. A half block of
 * 128 values has 64 bytes of lower bits (32 for each pair of groups) and 32 of upper bits. */
static void gguf_q6_k_f32(const uint8_t *p, float *dst, int64_t blocks)
{
    for (int64_t b = 0; b < blocks; b++, p += 210) {
        float d = halves_to_f32(halves_load16(p + 208));
        for (int g = 0; g < 8; g++, dst += 32) { /* groups of 32 values, two scales each */
            const uint8_t *low = p + g / 4 * 64 + g % 2 * 32, *high = p + 128 + g / 4 * 32;
            int nibble = g % 4 / 2 * 4, shift = g % 4 * 2;
            for (int j = 0; j < 32; j++) {
                float ds = d * (float)(int8_t)p[192 + g * 2 + j / 16];
                int q = (low[j] >> nibble & 15) | (high[j] >> shift & 3) << 4;
                dst[j] = ds * (float)(q - 32);
            }
        }
    }
}

/* ---- the table ---- */

static const struct gguf_quant gguf_quants[] = {
    {0, 1, 4, gguf_f32_f32, NULL},
    {1, 1, 2, gguf_f16_f32, NULL},
    {2, GGUF_QK, 18, gguf_q4_0_f32, NULL},
    {3, GGUF_QK, 20, gguf_q4_1_f32, gguf_q4_1_bf16},
    {6, GGUF_QK, 22, gguf_q5_0_f32, NULL},
    {8, GGUF_QK, 34, gguf_q8_0_f32, gguf_q8_0_bf16},
    {12, 256, 144, gguf_q4_k_f32, NULL},
    {14, 256, 210, gguf_q6_k_f32, NULL},
    {30, 1, 2, gguf_bf16_f32, gguf_bf16_bf16},
};

const struct gguf_quant *gguf_quant_find(uint32_t type)
{
    for (size_t i = 0; i < sizeof gguf_quants / sizeof gguf_quants[0]; i++) {
        if (gguf_quants[i].type == type) {
            return &gguf_quants[i];
        }
    }
    return NULL;
}

void gguf_quant_bf16(const struct gguf_quant *q, const uint8_t *p, uint16_t *dst, int64_t blocks)
{
    float f[GGUF_QUANT_MAX];
    int64_t step = GGUF_QUANT_MAX / q->values;

    if (q->bf16) {
        q->bf16(p, dst, blocks);
        return;
    }
    for (int64_t b = 0; b < blocks; b += step) {
        int64_t n = blocks - b < step ? blocks - b : step;
        q->f32(p + b * q->bytes, f, n);
        for (int64_t i = 0; i < n * q->values; i++) {
            dst[b * q->values + i] = dtype_to_bf16(f[i]);
        }
    }
}
