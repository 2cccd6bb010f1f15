/* exp, log, sin and cos of our own, so that no bit depends on the C library's version.
 *
 * The f32 functions are written once per lane here and once on vectors in cpu/kern_body.h, with the
 * same operations in the same order; tests compare them bit for bit. Bounds against the exact
 * value, checked in tests over every exponent: vmath_expf 1.02 ulp for -87 <= x <= 88 (0 below,
 * +inf above), vmath_logf 0.83 ulp for normal x > 0, vmath_tanhf 1.3 ulp; vmath_pow2f, a power of
 * two for values that are rounded to bf16 next (which costs 2e-3), 1.02e-4 relative for -126 <= x <
 * 128 (0 below, +inf above), and whole powers exactly. The f64 functions are for tables and
 * schedules: exp and log 1e-15 relative, sin and cos 1e-15 absolute. */
#ifndef NUM_VMATH_H
#define NUM_VMATH_H

float vmath_expf(float x);
float vmath_logf(float x); /* x > 0 and normal; 0 gives -inf, negative and NaN give NaN */
float vmath_tanhf(float x);
float vmath_pow2f(float x);
double vmath_exp(double x);
double vmath_log(double x);
void vmath_sincos(double x, double *s, double *c); /* |x| < 2^20 */
double vmath_powi(double x, long n);               /* n >= 0, by squaring */

/* Coefficients shared with the vector forms. */
#define VMATH_LOG2E      1.44269504088896341f
#define VMATH_LN2        0.693147180559945309f
#define VMATH_LN2_HI     0.693359375f
#define VMATH_LN2_LO     (-2.12194440e-4f)
#define VMATH_MAGIC      12582912.0f /* 1.5 * 2^23: adding it rounds to an integer */
#define VMATH_EXP_MIN    (-87.0f)
#define VMATH_EXP_MAX    88.0f
#define VMATH_E0         1.9875691500e-4f
#define VMATH_E1         1.3981999507e-3f
#define VMATH_E2         8.3334519073e-3f
#define VMATH_E3         4.1665795894e-2f
#define VMATH_E4         1.6666665459e-1f
#define VMATH_E5         5.0000001201e-1f
#define VMATH_POW2_MIN   (-126.0f)
#define VMATH_POW2_MAX   128.0f /* from here on +inf */
#define VMATH_P0         5.500895157e-2f
#define VMATH_P1         2.422110140e-1f
#define VMATH_P2         6.932829022e-1f
#define VMATH_TANH_SMALL 0.625f /* up to here an odd polynomial, above by way of exp */
#define VMATH_T0         (-5.70498872745e-3f)
#define VMATH_T1         2.06390887954e-2f
#define VMATH_T2         (-5.37397155531e-2f)
#define VMATH_T3         1.33314422036e-1f
#define VMATH_T4         (-3.33332819422e-1f)
/* gelu(x) = x sigmoid(x (GELU_1 + GELU_C x^2)), within 1.5e-7 |x|; beyond GELU_MAX the sigmoid is 0
 * or 1 */
#define VMATH_GELU_1   1.5957691216057308f    /* 2 sqrt(2 / pi) */
#define VMATH_GELU_C   7.1354816272600248e-2f /* 0.044715 times that */
#define VMATH_GELU_3C  2.1406444881780074e-1f
#define VMATH_GELU_MAX 64.0f

#endif
