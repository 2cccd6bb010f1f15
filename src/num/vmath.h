/* exp, log, sin and cos of our own, so that no bit depends on the C library's version.
 *
 * The f32 functions are written once per lane here and once on vectors in cpu/kern_body.h, with the
 * same operations in the same order; tests compare them bit for bit. Bounds against the exact
 * value, checked in tests over every exponent: vmath_expf 1.02 ulp for -87 <= x <= 88 (0 below,
 * +inf above), vmath_logf 0.83 ulp for normal x > 0. The f64 functions are for tables and
 * schedules: exp and log 1e-15 relative, sin and cos 1e-15 absolute. */
#ifndef NUM_VMATH_H
#define NUM_VMATH_H

float vmath_expf(float x);
float vmath_logf(float x); /* x > 0 and normal; 0 gives -inf, negative and NaN give NaN */
double vmath_exp(double x);
double vmath_log(double x);
void vmath_sincos(double x, double *s, double *c); /* |x| < 2^20 */
double vmath_powi(double x, long n);               /* n >= 0, by squaring */

/* Coefficients shared with the vector forms. */
#define VMATH_LOG2E   1.44269504088896341f
#define VMATH_LN2_HI  0.693359375f
#define VMATH_LN2_LO  (-2.12194440e-4f)
#define VMATH_MAGIC   12582912.0f /* 1.5 * 2^23: adding it rounds to an integer */
#define VMATH_EXP_MIN (-87.0f)
#define VMATH_EXP_MAX 88.0f
#define VMATH_E0      1.9875691500e-4f
#define VMATH_E1      1.3981999507e-3f
#define VMATH_E2      8.3334519073e-3f
#define VMATH_E3      4.1665795894e-2f
#define VMATH_E4      1.6666665459e-1f
#define VMATH_E5      5.0000001201e-1f

#endif
