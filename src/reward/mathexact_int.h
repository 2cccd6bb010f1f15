/* Exact rational values of trees, for mathval. */
#ifndef REWARD_MATHEXACT_INT_H
#define REWARD_MATHEXACT_INT_H

#include <gmp.h>
#include <stdint.h>

struct mathread_node;
struct mathval;

enum { MATHEXACT_TERMS = 300 }; /* of a sum that is computed */

/* Readings of mathval: log to base 10, real roots of negative numbers. */
enum { MATHEXACT_LOG10 = 1, MATHEXACT_REAL_ROOT = 2 };

/* The index of a sum that is being computed. */
struct mathval_bound {
    const struct mathval_bound *up;
    const char *name; /* NULL: the letter i */
    long value;
};

/* Takes units of work; 0 when they are used up. */
int mathexact_charge(struct mathval *m, int64_t units);

/* The sum whose index x is, or NULL. */
const struct mathval_bound *mathexact_bound(const struct mathval *m, const struct mathread_node *x);

/* 1 with the value, or 0 when it is not rational, too large, or not seen to be rational. */
int mathexact_eval(struct mathval *m, const struct mathread_node *x, mpq_t out);

/* A whole number of at most `limit`. */
int mathexact_small(const mpq_t q, long limit, long *out);

size_t mathexact_bits(const mpq_t q);

#endif
