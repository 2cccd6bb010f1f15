/* Are two mathematical answers equal? The reward of type math_equal.
 *
 *     struct mathverdict v;
 *     mathequal_grade("... so \\boxed{\\frac{2}{4}}", n, "0.5", &v);      1: equal number
 *     mathverdict_fini(&v);
 *
 * The answer of a response is what stands after the last </think> if there is one; in that, the
 * content of the last \boxed{...} (or \fbox{...}); without a box, what follows the last "answer
 * is", "answer:" or "####", to the end of its sentence or line. An unclosed last box is no answer.
 *
 * Read exactly: integers, decimals, fractions, mixed numbers, percentages, thousands separators,
 * units, money, degrees, times, radicals, powers, pi, e, i, functions, tuples, intervals and their
 * unions, inequalities, sets, lists of solutions, plus-minus, ratios, equations, small matrices and
 * vectors, numbers in other bases, words and choice letters. Rational numbers are compared exactly,
 * everything else by interval arithmetic of 256 and then 1,024 bits, at several points when there
 * are variables: two numbers are never called equal for agreeing in a double. docs/math-grading.md
 * has the rules.
 *
 * Unknown (-1) is what cannot be decided here: `ask` is then a question for sympy (mathsym.h) when
 * algebra can decide it. Pure functions of their arguments, for any bytes, from any thread; work is
 * counted and bounded (well below 100 ms), so the verdict does not depend on the machine's speed.
 */
#ifndef REWARD_MATHEQUAL_H
#define REWARD_MATHEQUAL_H

#include <stddef.h>

#include "reward/mathverdict.h"

enum { MATHEQUAL_MAX = 1 << 14 }; /* bytes of an answer; a longer one is wrong */

/* Compares two answers as they stand in a box. */
void mathequal_compare(const char *given, const char *truth, struct mathverdict *v);

/* The answer in a response: 1 with a pointer into it, else 0 with the reason in v. */
int mathequal_answer(const char *response, size_t n, const char **answer, size_t *len,
                     struct mathverdict *v);

/* The reward: the response's answer against the label (which may itself be boxed). NULL, "" and an
 * unreadable label are unknown, never wrong. */
void mathequal_grade(const char *response, size_t n, const char *label, struct mathverdict *v);

#endif
