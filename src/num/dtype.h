/* Element types and the bf16 rounding that every device shares. */
#ifndef NUM_DTYPE_H
#define NUM_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum dtype { DTYPE_F32, DTYPE_BF16, DTYPE_I64 };

static inline size_t dtype_size(enum dtype t)
{
    return t == DTYPE_F32 ? 4 : t == DTYPE_BF16 ? 2 : 8;
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

#endif
