/* Half precision to single, in integers only: the result does not depend on the thread's
 * flush-to-zero mode. */
#ifndef MODEL_HALVES_INT_H
#define MODEL_HALVES_INT_H

#include <stdint.h>
#include <string.h>

static inline float halves_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exp = (h >> 10) & 0x1fu;
    uint32_t man = h & 0x3ffu;
    uint32_t u;
    float f;

    if (exp == 0x1f) {
        u = sign | 0x7f800000u | man << 13;
    } else if (exp) {
        u = sign | (exp + 112) << 23 | man << 13;
    } else if (man) {
        /* A subnormal half is man * 2^-24: shift its top bit to the implicit place. */
        uint32_t k = 0;
        while (!(man & 0x400u)) {
            man <<= 1;
            k++;
        }
        u = sign | (113 - k) << 23 | (man & 0x3ffu) << 13;
    } else {
        u = sign;
    }
    memcpy(&f, &u, 4);
    return f;
}

static inline uint16_t halves_load16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

#endif
