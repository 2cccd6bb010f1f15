/* Grading of mathematical answers, as the "math" family of rewards does it: the last \boxed{} of an
 * answer against a label, by two normal forms of the text and a symbolic comparison.
 *
 *     mathgrade_math(response, n, "\\frac{1}{2}")          1 when right, 0 when not
 *
 * The rules, with their limits, are those of Miles, so that a run scores the same there and here.
 * All functions are pure, take any bytes and may be called from any thread; time and memory are
 * bounded by the length of the text, and an answer or label beyond MATHGRADE_MAX bytes is wrong. */
#ifndef REWARD_MATHGRADE_H
#define REWARD_MATHGRADE_H

#include <stddef.h>

#include "reward/mathverdict.h"

enum { MATHGRADE_MAX = 1 << 16 };

/* The content of the last \boxed{...} of s[0..n): 1 with a pointer into s, else 0. An unclosed last
 * box gives 0 even if an earlier one is fine. */
int mathgrade_box(const char *s, size_t n, const char **content, size_t *len);

/* The two normal forms; free with mem_free. NULL when s is too long. */
char *mathgrade_mathd(const char *s);
char *mathgrade_norm(const char *s);

/* Is the given answer the true one, by the first form, by the second with symbolic comparison, by
 * either? */
int mathgrade_mathd_equal(const char *given, const char *truth);
int mathgrade_sympy_equal(const char *given, const char *truth);
int mathgrade_equal(const char *given, const char *truth);

/* Rewards of type math, deepscaler and gemma_math: 1 or 0. label is the label's text; NULL and ""
 * are always wrong. */
int mathgrade_math(const char *response, size_t n, const char *label);
int mathgrade_deepscaler(const char *response, size_t n, const char *label);
int mathgrade_gemma(const char *response, size_t n, const char *label);

/* The same three with the rule that decided. Unknown (-1), with a question in ask, is what Miles
 * would give to sympy's simplify and mathexpr cannot decide; the functions above count it as wrong.
 */
void mathgrade_math_why(const char *response, size_t n, const char *label, struct mathverdict *v);
void mathgrade_deepscaler_why(const char *response, size_t n, const char *label,
                              struct mathverdict *v);
void mathgrade_gemma_why(const char *response, size_t n, const char *label, struct mathverdict *v);

#endif
