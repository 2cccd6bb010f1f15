/* Owns the SHA-256 compression function: in plain C, and with the instructions that x86 has for it,
 * because weights in memory are hashed at every publish and plain C is several times slower. */
#include "base/sha256.h"

#include <stdatomic.h>
#include <string.h>

#if MILES_X86
#include <cpuid.h>
#include <immintrin.h>
#endif

static const uint32_t sha256_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t ror(uint32_t x, int n)
{
    return (x >> n) | (x << (32 - n));
}

static void compress(uint32_t h[8], const uint8_t *p)
{
    uint32_t w[64], a = h[0], b = h[1], c = h[2], d = h[3];
    uint32_t e = h[4], f = h[5], g = h[6], k = h[7];

    for (int i = 0; i < 16; i++) {
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
               (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    }
    for (int i = 16; i < 64; i++) {
        uint32_t s0 = ror(w[i - 15], 7) ^ ror(w[i - 15], 18) ^ (w[i - 15] >> 3);
        uint32_t s1 = ror(w[i - 2], 17) ^ ror(w[i - 2], 19) ^ (w[i - 2] >> 10);
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    for (int i = 0; i < 64; i++) {
        uint32_t t1 =
            k + (ror(e, 6) ^ ror(e, 11) ^ ror(e, 25)) + ((e & f) ^ (~e & g)) + sha256_k[i] + w[i];
        uint32_t t2 = (ror(a, 2) ^ ror(a, 13) ^ ror(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        k = g;
        g = f;
        f = e;
        e = d + t1;
        d = c;
        c = b;
        b = a;
        a = t1 + t2;
    }
    h[0] += a;
    h[1] += b;
    h[2] += c;
    h[3] += d;
    h[4] += e;
    h[5] += f;
    h[6] += g;
    h[7] += k;
}

#if MILES_X86
/* Four rounds at a time; m holds the next sixteen words of the schedule. */
__attribute__((target("sha,sse4.1"))) static void compress_sha(uint32_t h[8], const uint8_t *p,
                                                               size_t blocks)
{
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bll, 0x0405060700010203ll);
    __m128i t = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(const void *)h), 0xb1);
    __m128i b = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(const void *)(h + 4)), 0x1b);
    __m128i a = _mm_alignr_epi8(t, b, 8); /* a b e f */

    b = _mm_blend_epi16(b, t, 0xf0); /* c d g h */
    for (; blocks > 0; blocks--, p += 64) {
        __m128i a0 = a, b0 = b, m[4];
        for (int i = 0; i < 4; i++) {
            m[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)(p + 16 * i)),
                                    swap);
        }
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            __m128i k = _mm_loadu_si128((const __m128i *)(const void *)(sha256_k + 4 * i));
            __m128i w = _mm_add_epi32(m[i % 4], k);
            b = _mm_sha256rnds2_epu32(b, a, w);
            a = _mm_sha256rnds2_epu32(a, b, _mm_shuffle_epi32(w, 0x0e));
            m[i % 4] = _mm_sha256msg2_epu32(
                _mm_add_epi32(_mm_sha256msg1_epu32(m[i % 4], m[(i + 1) % 4]),
                              _mm_alignr_epi8(m[(i + 3) % 4], m[(i + 2) % 4], 4)),
                m[(i + 3) % 4]);
        }
        a = _mm_add_epi32(a, a0);
        b = _mm_add_epi32(b, b0);
    }
    t = _mm_shuffle_epi32(a, 0x1b);
    b = _mm_shuffle_epi32(b, 0xb1);
    _mm_storeu_si128((__m128i *)(void *)h, _mm_blend_epi16(t, b, 0xf0));
    _mm_storeu_si128((__m128i *)(void *)(h + 4), _mm_alignr_epi8(b, t, 8));
}

static int has_sha(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 29 & 1u) &&
           __builtin_cpu_supports("sse4.1");
}
#endif

static atomic_int sha256_way; /* 0: not looked yet, 1: plain C, 2: instructions */

void sha256_use_plain(int on)
{
    int fast = 0;
#if MILES_X86
    fast = has_sha();
#endif
    atomic_store(&sha256_way, fast && !on ? 2 : 1);
}

static void compress_all(uint32_t h[8], const uint8_t *p, size_t blocks)
{
    if (atomic_load_explicit(&sha256_way, memory_order_relaxed) == 0) {
        sha256_use_plain(0);
    }
#if MILES_X86
    if (atomic_load_explicit(&sha256_way, memory_order_relaxed) == 2) {
        compress_sha(h, p, blocks);
        return;
    }
#endif
    for (; blocks > 0; blocks--, p += 64) {
        compress(h, p);
    }
}

void sha256_init(struct sha256 *s)
{
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(s->h, start, sizeof start);
    s->bytes = 0;
}

void sha256_update(struct sha256 *s, const void *data, size_t n)
{
    const uint8_t *p = data;
    size_t have = s->bytes % 64;

    if (n == 0) {
        return;
    }
    s->bytes += n;
    if (have) {
        size_t take = 64 - have < n ? 64 - have : n;
        memcpy(s->block + have, p, take);
        p += take;
        n -= take;
        if (have + take < 64) {
            return;
        }
        compress_all(s->h, s->block, 1);
    }
    compress_all(s->h, p, n / 64);
    if (n % 64) {
        memcpy(s->block, p + n / 64 * 64, n % 64);
    }
}

void sha256_final(struct sha256 *s, uint8_t out[32])
{
    uint64_t bits = s->bytes * 8;
    size_t have = s->bytes % 64;

    s->block[have++] = 0x80;
    if (have > 56) {
        memset(s->block + have, 0, 64 - have);
        compress_all(s->h, s->block, 1);
        have = 0;
    }
    memset(s->block + have, 0, 56 - have);
    for (int i = 0; i < 8; i++) {
        s->block[56 + i] = (uint8_t)(bits >> (56 - 8 * i));
    }
    compress_all(s->h, s->block, 1);
    for (int i = 0; i < 32; i++) {
        out[i] = (uint8_t)(s->h[i / 4] >> (24 - 8 * (i % 4)));
    }
}

void sha256_digits(const uint8_t digest[32], char out[65])
{
    static const char hex[] = "0123456789abcdef";
    for (int i = 0; i < 32; i++) {
        out[2 * i] = hex[digest[i] >> 4];
        out[2 * i + 1] = hex[digest[i] & 15];
    }
    out[64] = 0;
}

void sha256_hex(const void *p, size_t n, char out[65])
{
    struct sha256 s;
    uint8_t d[32];

    sha256_init(&s);
    sha256_update(&s, p, n);
    sha256_final(&s, d);
    sha256_digits(d, out);
}
