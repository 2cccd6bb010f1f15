/* Exact sums: the value does not depend on the order of additions (contract C4).
 *
 * An accumulator is one long fixed-point integer that covers every finite double, in 32-bit digits
 * held in 64-bit words, so nothing is ever rounded before exact_value. Accumulators of several
 * ranks add word by word (after exact_carry), so an integer MPI sum serves.
 *
 *     struct exact x; exact_init(&x);
 *     for (...) exact_add(&x, v[i]);
 *     if (exact_status(&x)) ...                (a NaN or an infinity was added)
 *     double sum = exact_value(&x);            (correctly rounded)
 *
 * Float subnormals count as zero, as FTZ/DAZ has them everywhere else. Not for concurrent use. */
#ifndef NUM_EXACT_H
#define NUM_EXACT_H

#include <stddef.h>
#include <stdint.h>

#define EXACT_WORDS 70

struct exact {
    int64_t w[EXACT_WORDS]; /* digit i weighs 2^(32 i - 1075); signed, carries pending */
    uint32_t pending;       /* additions since the last carry */
    uint32_t bad;           /* not 0 when an addend was NaN or infinite; never wraps to 0 */
};

void exact_init(struct exact *x);
void exact_add(struct exact *x, double v);
void exact_add_f32(struct exact *x, float v);
void exact_sub(struct exact *x, double v);
/* Adds v[0..n): the same value as n single additions, faster for the squares. */
void exact_add_f32v(struct exact *x, const float *v, size_t n);
void exact_add_sq_f32v(struct exact *x, const float *v, size_t n); /* sum of v[i]^2 */
/* Adds the product of two floats, exactly. */
void exact_add_mul_f32(struct exact *x, float a, float b);
void exact_merge(struct exact *x, const struct exact *y);
/* Brings the words into canonical form: equal sums give equal words. */
void exact_carry(struct exact *x);
/* 0, or STATUS_NUMERIC when an addend was not finite or the sum is beyond a double. */
int exact_status(const struct exact *x);
/* The sum rounded to nearest even; NaN when exact_status is not 0. */
double exact_value(const struct exact *x);

/* Correctly rounded square root in integer arithmetic: IEEE bits on every machine without libm.
 * Negative gives NaN. */
double exact_sqrt(double v);

#endif
