/* Owns the two generators of the project: Philox, a pure function of its counter and key, and
 * CPython's Mersenne twister, which fixes the order of shuffled prompts to that of Miles. */
#include "base/rng.h"

#include "base/status.h"

static uint32_t philox_mul(uint32_t a, uint32_t b, uint32_t *hi)
{
    uint64_t p = (uint64_t)a * b;
    *hi = (uint32_t)(p >> 32);
    return (uint32_t)p;
}

void rng_philox(const uint32_t ctr[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = ctr[0], c1 = ctr[1], c2 = ctr[2], c3 = ctr[3];
    uint32_t k0 = key[0], k1 = key[1];

    for (int round = 0; round < 10; round++) {
        uint32_t hi0, hi1;
        uint32_t lo0 = philox_mul(0xD2511F53u, c0, &hi0);
        uint32_t lo1 = philox_mul(0xCD9E8D57u, c2, &hi1);
        c0 = hi1 ^ c1 ^ k0;
        c1 = lo1;
        c2 = hi0 ^ c3 ^ k1;
        c3 = lo0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* The 160 bits that identify a draw do not fit one counter: (stream, branch) first make the key
 * under which (sample, position) are drawn. */
double rng_uniform(uint64_t seed, uint32_t stream, uint64_t sample, uint32_t branch,
                   uint32_t position)
{
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t outer[4] = {stream, branch, 0, 0};
    uint32_t inner[4] = {(uint32_t)sample, (uint32_t)(sample >> 32), position, 0};
    uint32_t r[4];
    uint64_t bits;

    rng_philox(outer, key, r);
    key[0] = r[0];
    key[1] = r[1];
    rng_philox(inner, key, r);
    bits = (((uint64_t)r[0] << 32) | r[1]) >> 11;
    /* 0 is outside the open interval; half the smallest step takes its place. */
    return bits ? (double)bits * 0x1p-53 : 0x1p-54;
}

enum { MT_N = 624, MT_M = 397 };

static void mt_init(struct rng_py *r, uint32_t s)
{
    r->mt[0] = s;
    for (int i = 1; i < MT_N; i++) {
        r->mt[i] = 1812433253u * (r->mt[i - 1] ^ (r->mt[i - 1] >> 30)) + (uint32_t)i;
    }
    r->next = MT_N;
}

/* random.seed(int) hands the absolute value to init_by_array in 32-bit words, least first. */
void rng_py_seed(struct rng_py *r, uint64_t seed)
{
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    int len = key[1] ? 2 : 1;
    int i = 1, j = 0;

    mt_init(r, 19650218u);
    for (int k = MT_N; k; k--) {
        r->mt[i] =
            (r->mt[i] ^ ((r->mt[i - 1] ^ (r->mt[i - 1] >> 30)) * 1664525u)) + key[j] + (uint32_t)j;
        if (++i >= MT_N) {
            r->mt[0] = r->mt[MT_N - 1];
            i = 1;
        }
        if (++j >= len) {
            j = 0;
        }
    }
    for (int k = MT_N - 1; k; k--) {
        r->mt[i] = (r->mt[i] ^ ((r->mt[i - 1] ^ (r->mt[i - 1] >> 30)) * 1566083941u)) - (uint32_t)i;
        if (++i >= MT_N) {
            r->mt[0] = r->mt[MT_N - 1];
            i = 1;
        }
    }
    r->mt[0] = 0x80000000u;
    r->next = MT_N;
}

static void mt_refill(struct rng_py *r)
{
    for (int i = 0; i < MT_N; i++) {
        uint32_t y = (r->mt[i] & 0x80000000u) | (r->mt[(i + 1) % MT_N] & 0x7fffffffu);
        r->mt[i] = r->mt[(i + MT_M) % MT_N] ^ (y >> 1) ^ ((y & 1) ? 0x9908b0dfu : 0u);
    }
    r->next = 0;
}

uint32_t rng_py_u32(struct rng_py *r)
{
    uint32_t y;
    if (r->next >= MT_N) {
        mt_refill(r);
    }
    y = r->mt[r->next++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

/* random.getrandbits(k), 1 <= k <= 63: words least first, the last one cut from the top. */
static uint64_t mt_bits(struct rng_py *r, int k)
{
    uint64_t lo, hi;
    if (k <= 32) {
        return rng_py_u32(r) >> (32 - k);
    }
    lo = rng_py_u32(r);
    hi = rng_py_u32(r) >> (64 - k);
    return (hi << 32) | lo;
}

int64_t rng_py_randbelow(struct rng_py *r, int64_t n)
{
    int k;
    uint64_t v;

    ASSERT(n > 0);
    k = 64 - __builtin_clzll((unsigned long long)n);
    do {
        v = mt_bits(r, k);
    } while (v >= (uint64_t)n);
    return (int64_t)v;
}

void rng_py_shuffle(struct rng_py *r, int64_t *idx, int64_t n)
{
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = rng_py_randbelow(r, i + 1);
        int64_t t = idx[i];
        idx[i] = idx[j];
        idx[j] = t;
    }
}

void rng_py_shuffle32(struct rng_py *r, uint32_t *idx, int64_t n)
{
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = rng_py_randbelow(r, i + 1);
        uint32_t t = idx[i];
        idx[i] = idx[j];
        idx[j] = t;
    }
}
