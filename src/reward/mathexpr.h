/* Is a formula identically zero? For comparing two answers: (a)-(b).
 *
 *     mathexpr_is_zero("(x^2+2*x+1)-((x+1)^2)", n)      1
 *
 * Reads what sympy's parser reads of short answers: + - * / ^ ** ! parentheses, decimal numbers
 * (taken exactly), sqrt(), ln(), pi, single letters as variables, multiplication without a sign.
 * Any thread; no allocation that outlives the call; time and memory bounded by the length. */
#ifndef REWARD_MATHEXPR_H
#define REWARD_MATHEXPR_H

#include <stddef.h>

enum { MATHEXPR_MAX = 20000 }; /* bytes; longer formulas are "no" */

/* 1 when it is zero for all values of its variables; 0 when not, when it cannot be read, when it
 * divides by zero, or when that cannot be told. The chance that 1 is wrong is below 2^-60. */
int mathexpr_is_zero(const char *text, size_t n);

/* The same in three values: 0 only when it is certainly not zero, or not a formula at all; -1 when
 * sympy might know better (a function we know nothing of, a word of sympy's, too many roots). */
int mathexpr_zero(const char *text, size_t n);

/* 1 when sympy, which computes decimals in floating point, may find that a difference is not zero
 * although it is: 0.1+0.2-0.3. */
int mathexpr_rounds(const char *text, size_t n);

#endif
