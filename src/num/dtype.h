/* Element types and the bf16 rounding that every device shares. */
#ifndef NUM_DTYPE_H
#define NUM_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum dtype { DTYPE_F32, DTYPE_BF16, DTYPE_I64, DTYPE_I16 };

static inline size_t dtype_size(enum dtype t)
{
    return t == DTYPE_F32 ? 4 : t == DTYPE_I64 ? 8 : 2;
}

static inline float dtype_from_bf16(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* Round to nearest, ties to even; a NaN stays a quiet NaN with its sign. */
static inline uint16_t dtype_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)((u >> 16) | 0x40u);
    }
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* An f32 as its bf16 and what is missing from that to the f32, in units of the f32's last place.
 * Half way above an even bf16 the difference is one more than 16 bits hold: there, and only there,
 * the f32 that dtype_join gives back is its lower neighbour. */
static inline void dtype_split(float f, uint16_t *hi, int16_t *rem)
{
    uint32_t u;
    int32_t d;
    memcpy(&u, &f, 4);
    *hi = dtype_to_bf16(f);
    d = (int32_t)(u - ((uint32_t)*hi << 16));
    *rem = (int16_t)(d > 32767 ? 32767 : d < -32768 ? -32768 : d);
}

static inline float dtype_join(uint16_t hi, int16_t rem)
{
    uint32_t u = ((uint32_t)hi << 16) + (uint32_t)(int32_t)rem;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* 32 bits that look random, of a key and a counter. */
static inline uint32_t dtype_hash(uint32_t key, uint32_t i)
{
    uint32_t x = i * 0x9e3779b9u + key;
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    return x ^ x >> 16;
}

/* Rounds away from zero when the bits that are cut off and a 16-bit number make a carry: with
 * numbers evenly spread, the mean of the results is the value itself. */
static inline uint16_t dtype_to_bf16_rand(float f, uint32_t r16)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)((u >> 16) | 0x40u);
    }
    return (uint16_t)((u + r16) >> 16);
}

#endif
