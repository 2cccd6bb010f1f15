/* Owns exact summation. A double is an integer of 53 bits at one of 2046 places; laid into a fixed
 * integer of 70 digits of 32 bits it is added without rounding, so addition is associative again.
 * Digits sit in 64-bit words: carries may wait for 2^29 additions (Neal, "Fast exact summation
 * using small and large superaccumulators", is the same idea). Everything works on bits, because
 * FTZ/DAZ makes arithmetic on subnormals differ between threads that set it and threads that do
 * not. */
#include "num/exact.h"

#include <math.h>
#include <string.h>

#include "base/status.h"

#define DIGIT_MASK    0xffffffffll
#define MAX_PENDING   (1u << 29)
#define BLOCK         32768 /* 2^15 squares of 48 bits stay below 2^63 */
#define LANES         4 /* tables used in turn, so that equal exponents do not wait for each other */
#define DIGIT0_WEIGHT (-1075)

void exact_init(struct exact *x)
{
    memset(x, 0, sizeof *x);
}

void exact_carry(struct exact *x)
{
    int64_t carry = 0;
    for (int i = 0; i < EXACT_WORDS - 1; i++) {
        int64_t v = x->w[i] + carry;
        int64_t d = v & DIGIT_MASK;
        carry = (v - d) / (DIGIT_MASK + 1);
        x->w[i] = d;
    }
    x->w[EXACT_WORDS - 1] += carry;
    x->pending = 1;
}

static void count_add(struct exact *x)
{
    if (++x->pending >= MAX_PENDING) {
        exact_carry(x);
    }
}

/* Adds mag * 2^place, negated when neg; place counts from the lowest digit's weight. */
static void add_int(struct exact *x, uint64_t mag, int place, int neg)
{
    int sh = place & 31;
    int64_t *w = x->w + (place >> 5);
    uint64_t lo = mag << sh;
    int64_t d0 = (int64_t)(lo & (uint64_t)DIGIT_MASK);
    int64_t d1 = (int64_t)(lo >> 32);
    int64_t d2 = sh ? (int64_t)(mag >> (64 - sh)) : 0;
    int64_t s = -(int64_t)neg; /* signs are random: no branch on them */

    w[0] += (d0 ^ s) - s;
    w[1] += (d1 ^ s) - s;
    w[2] += (d2 ^ s) - s;
    count_add(x);
}

static void note_bad(struct exact *x)
{
    if (x->bad != UINT32_MAX) {
        x->bad++;
    }
}

static void add_bits(struct exact *x, uint64_t bits)
{
    int exponent = (int)(bits >> 52 & 0x7ff);
    uint64_t mant = bits & 0xfffffffffffffull;

    if (exponent == 0x7ff) {
        note_bad(x);
        return;
    }
    if (exponent) {
        mant |= 1ull << 52;
    } else {
        exponent = 1;
    }
    if (mant) {
        add_int(x, mant, exponent, (int)(bits >> 63));
    }
}

void exact_add(struct exact *x, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, 8);
    add_bits(x, bits);
}

void exact_sub(struct exact *x, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, 8);
    add_bits(x, bits ^ (1ull << 63));
}

/* Splits a float into sign, biased exponent and 24-bit mantissa; 0 mantissa for zero and
 * subnormals.
 */
static uint32_t f32_split(float v, int *exponent, int *neg)
{
    uint32_t u;
    memcpy(&u, &v, 4);
    *neg = (int)(u >> 31);
    *exponent = (int)(u >> 23 & 0xff);
    return *exponent ? (u & 0x7fffffu) | 0x800000u : 0;
}

/* A float is mantissa * 2^(exponent - 150). */
static int f32_place(int exponent)
{
    return exponent - 150 - DIGIT0_WEIGHT;
}

void exact_add_f32(struct exact *x, float v)
{
    int exponent, neg;
    uint32_t m = f32_split(v, &exponent, &neg);
    if (exponent == 0xff) {
        note_bad(x);
    } else if (m) {
        add_int(x, m, f32_place(exponent), neg);
    }
}

void exact_add_mul_f32(struct exact *x, float a, float b)
{
    int ea, eb, na, nb;
    uint64_t ma = f32_split(a, &ea, &na), mb = f32_split(b, &eb, &nb);
    if (ea == 0xff || eb == 0xff) {
        note_bad(x);
    } else if (ma && mb) {
        add_int(x, ma * mb, f32_place(ea) + eb - 150, na ^ nb);
    }
}

void exact_add_f32v(struct exact *x, const float *v, size_t n)
{
    int64_t acc[256];

    while (n) {
        size_t k = n < BLOCK ? n : BLOCK;
        memset(acc, 0, sizeof acc);
        for (size_t i = 0; i < k; i++) {
            int exponent, neg;
            int64_t m = f32_split(v[i], &exponent, &neg);
            acc[exponent] += neg ? -m : m;
            if (exponent == 0xff) {
                note_bad(x);
            }
        }
        for (int j = 1; j < 255; j++) {
            if (acc[j]) {
                int neg = acc[j] < 0;
                add_int(x, neg ? 0 - (uint64_t)acc[j] : (uint64_t)acc[j], f32_place(j), neg);
            }
        }
        v += k;
        n -= k;
    }
}

void exact_add_sq_f32v(struct exact *x, const float *v, size_t n)
{
    uint64_t acc[LANES][256];

    while (n) {
        size_t k = n < BLOCK ? n : BLOCK;
        memset(acc, 0, sizeof acc);
        for (size_t i = 0; i < k; i++) {
            uint32_t u;
            uint64_t m;
            memcpy(&u, v + i, 4);
            m = (u & 0x7fffffu) | 0x800000u;
            acc[i % LANES][u >> 23 & 0xff] += m * m;
        }
        for (int j = 1; j < 256; j++) {
            uint64_t s = acc[0][j] + acc[1][j] + acc[2][j] + acc[3][j];
            if (s && j == 255) {
                note_bad(x);
            } else if (s) {
                add_int(x, s, f32_place(j) + j - 150, 0);
            }
        }
        v += k;
        n -= k;
    }
}

void exact_merge(struct exact *x, const struct exact *y)
{
    for (int i = 0; i < EXACT_WORDS; i++) {
        x->w[i] += y->w[i];
    }
    x->pending += y->pending;
    x->bad = x->bad > UINT32_MAX - y->bad ? UINT32_MAX : x->bad + y->bad;
    if (x->pending >= MAX_PENDING) {
        exact_carry(x);
    }
}

/* Bit `place` of a canonical non-negative accumulator. */
static int bit_at(const struct exact *x, int place)
{
    return (int)(x->w[place >> 5] >> (place & 31) & 1);
}

static int any_below(const struct exact *x, int place)
{
    for (int i = 0; i < place >> 5; i++) {
        if (x->w[i]) {
            return 1;
        }
    }
    return (x->w[place >> 5] & ((1ll << (place & 31)) - 1)) != 0;
}

/* Canonical magnitude in *m, the sign in *neg. */
static void magnitude(const struct exact *x, struct exact *m, int *neg)
{
    *m = *x;
    exact_carry(m);
    *neg = m->w[EXACT_WORDS - 1] < 0;
    if (*neg) {
        for (int i = 0; i < EXACT_WORDS; i++) {
            m->w[i] = -m->w[i];
        }
        exact_carry(m);
    }
}

static int round_sum(const struct exact *x, double *out)
{
    struct exact m;
    int neg, top, low, half = 0, sticky = 0;
    uint64_t mant = 0, bits;

    if (x->bad) {
        return STATUS_NUMERIC;
    }
    magnitude(x, &m, &neg);
    if (m.w[EXACT_WORDS - 1]) {
        return STATUS_NUMERIC;
    }
    for (top = 32 * (EXACT_WORDS - 1) - 1; top >= 0 && !bit_at(&m, top);) {
        top -= m.w[top >> 5] ? 1 : 1 + (top & 31);
    }
    if (top < 0) {
        *out = 0;
        return 0;
    }
    /* 53 bits from the top, or down to the smallest subnormal, whose place is 1. */
    low = top > 53 ? top - 52 : 1;
    for (int p = top; p >= low; p--) {
        mant = mant << 1 | (uint64_t)bit_at(&m, p);
    }
    if (low > 1) {
        half = bit_at(&m, low - 1);
        sticky = any_below(&m, low - 1);
    }
    mant += (uint64_t)(half && (sticky || (mant & 1)));
    /* The hidden bit carries into the exponent field by itself. */
    bits = ((uint64_t)low << 52) + mant - (1ull << 52);
    if (low == 1 && mant < 1ull << 52) {
        bits = mant;
    }
    if (bits >= 0x7ffull << 52) {
        return STATUS_NUMERIC;
    }
    bits |= (uint64_t)neg << 63;
    memcpy(out, &bits, 8);
    return 0;
}

int exact_status(const struct exact *x)
{
    double v;
    return round_sum(x, &v);
}

double exact_value(const struct exact *x)
{
    double v;
    return round_sum(x, &v) ? (double)NAN : v;
}

/* Digit by digit: 54 bits of root (53 and one to round by) and a remainder that says "not exact".
 */
double exact_sqrt(double v)
{
    uint64_t bits, mant, hi, lo, root = 0, rem = 0;
    int exponent, shift;

    memcpy(&bits, &v, 8);
    if (bits << 1 == 0 || bits == 0x7ffull << 52) {
        return v;
    }
    if (bits >> 63 || bits > 0x7ffull << 52) {
        return (double)NAN;
    }
    exponent = (int)(bits >> 52);
    mant = bits & 0xfffffffffffffull;
    if (exponent) {
        mant |= 1ull << 52;
    } else {
        exponent = 1;
        while (!(mant >> 52)) {
            mant <<= 1;
            exponent--;
        }
    }
    exponent -= 1075;
    shift = (exponent - 55) % 2 == 0 ? 55 : 54;
    hi = mant >> (64 - shift);
    lo = mant << shift;
    for (int i = 53; i >= 0; i--) {
        int place = 2 * i;
        uint64_t two = place >= 64 ? hi >> (place - 64) & 3 : lo >> place & 3;
        uint64_t trial = root << 2 | 1;
        rem = rem << 2 | two;
        root <<= 1;
        if (rem >= trial) {
            rem -= trial;
            root |= 1;
        }
    }
    exponent = (exponent - shift) / 2 + 1;
    mant = root >> 1;
    mant += (root & 1) && (rem || (mant & 1));
    bits = ((uint64_t)(exponent + 52 + 1023) << 52) + mant - (1ull << 52);
    memcpy(&v, &bits, 8);
    return v;
}
