/* Values of answers: exact rationals, and complex numbers with a bound on their error.
 *
 *     struct mathval m;
 *     mathval_init(&m);
 *     mathval_equal(&m, a, b)          1 equal, 0 different, -1 cannot be told
 *
 * Rational numbers are compared exactly (up to 8,192 bits). Everything else is computed with 256
 * and then 1,024 bits together with a bound on the error: different means farther apart than the
 * bounds allow, equal means closer than the bounds at both precisions. Formulas with variables are
 * compared so at up to eight points, real and of both signs, with the main branch of roots and
 * logarithms. Where writers disagree (log to base 10 or e, the cube root of a negative number) two
 * formulas are equal if one reading makes them so.
 *
 * Work is counted, not timed; when m->left is used up the outcome is -1 and m->spent is set. */
#ifndef REWARD_MATHVAL_H
#define REWARD_MATHVAL_H

#include <stddef.h>
#include <stdint.h>

struct mathread_node;

struct mathval {
    int64_t left; /* units of work, about 0.2 microseconds each */
    int spent;
    int mode, met; /* readings in use, and where they mattered */
    int absorbed;  /* a summand was too small to leave a digit in its sum */
    const struct mathval_bound *bound;
};

void mathval_init(struct mathval *m);

int mathval_equal(struct mathval *m, const struct mathread_node *a, const struct mathread_node *b);

/* a and b as equations a = 0 and b = 0: is a the same constant times b everywhere? 1 with its sign
 * (0 when it is not real), 0, -1. */
int mathval_proportional(struct mathval *m, const struct mathread_node *a,
                         const struct mathread_node *b, int *sign);

/* The order of two real constants: 1 with -1, 0 or 1 in *order, else 0. */
int mathval_order(struct mathval *m, const struct mathread_node *a, const struct mathread_node *b,
                  int *order);

/* 1 when a is a constant with at least `digits` significant digits behind it as a decimal literal
 * (perhaps with a minus or an exponent), and b, a real constant, rounds to it. */
int mathval_rounds(struct mathval *m, const struct mathread_node *a, const struct mathread_node *b,
                   int digits);

int mathval_is_constant(const struct mathread_node *a);

/* The value in a few characters, "" when it has none. */
void mathval_show(struct mathval *m, const struct mathread_node *a, char *out, size_t n);

#endif
