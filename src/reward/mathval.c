/* Owns the numbers that are not rational (those are in mathexact.c): an evaluation into complex
 * numbers that carry the binary logarithm of a bound on their absolute error. The bounds are
 * first-order with a factor of two or four on top at each step: rough, but they grow where digits
 * cancel, and that is what tells a zero from a small difference. */
#include "reward/mathval.h"

#include <math.h>
#include <mpfr.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reward/mathexact_int.h"
#include "reward/mathlex.h"
#include "reward/mathread.h"

enum { LOW_PREC = 256, HIGH_PREC = 1024, POINTS = 8, POINTS_NEEDED = 3, BUDGET = 120000 };

/* Why there is no number. */
enum { OK = 0, UNDEFINED = -1, UNKNOWN = -2 };

typedef const struct mathread_node node;

void mathval_init(struct mathval *m)
{
    memset(m, 0, sizeof *m);
    m->left = BUDGET;
    mpfr_set_emin(mpfr_get_emin_min()); /* of this thread: 10^10^10 is a number */
    mpfr_set_emax(mpfr_get_emax_max());
}

static int has_free(node *x, const struct mathval_bound *bound)
{
    struct mathval m = {.bound = bound};

    if (!x) {
        return 0;
    }
    if (x->op == MATHREAD_SYM || x->op == MATHREAD_WORD) {
        return !mathexact_bound(&m, x);
    }
    if (x->op == MATHREAD_SUM || x->op == MATHREAD_PROD) {
        struct mathval_bound b = {bound, x->kid[0]->text, 0};
        return has_free(x->kid[1], bound) || has_free(x->kid[2], bound) || has_free(x->kid[3], &b);
    }
    for (int i = 0; i < x->n; i++) {
        if (has_free(x->kid[i], bound)) {
            return 1;
        }
    }
    return 0;
}

int mathval_is_constant(node *a)
{
    return !has_free(a, NULL);
}

/* ---- numeric ---- */

static const double NONE = -1e300; /* the logarithm of no error, or of zero */

struct num {
    mpfr_t re, im;
    double err; /* log2 of a bound on the absolute error */
};

struct eval {
    struct mathval *m;
    int prec, point;
    int wide; /* variables go far: there is a rounding to whole numbers in the formula */
};

static void num_init(const struct eval *v, struct num *x)
{
    mpfr_init2(x->re, v->prec);
    mpfr_init2(x->im, v->prec);
    mpfr_set_zero(x->re, 1);
    mpfr_set_zero(x->im, 1);
    x->err = NONE;
}

static void num_clear(struct num *x)
{
    mpfr_clear(x->re);
    mpfr_clear(x->im);
}

static double lg1(const mpfr_t x)
{
    return mpfr_zero_p(x) ? NONE : (double)mpfr_get_exp(x);
}

/* An upper bound of log2 |x|; a lower one is this minus 2. */
static double lg(const struct num *x)
{
    double a = lg1(x->re), b = lg1(x->im);
    return (a > b ? a : b) + 0.5;
}

static double max2(double a, double b)
{
    return a > b ? a : b;
}

static int num_ok(const struct num *x)
{
    return mpfr_number_p(x->re) && mpfr_number_p(x->im) && x->err < 1e300 ? OK : UNKNOWN;
}

/* Could it be zero, as far as we know? */
static int maybe_zero(const struct num *x)
{
    return lg(x) - 2 <= x->err + 1;
}

static int is_real(const struct num *x)
{
    return mpfr_zero_p(x->im) || lg1(x->im) <= x->err + 2;
}

static int work(const struct eval *v, int64_t units)
{
    int64_t scale = v->prec > LOW_PREC ? 8 : 1;
    return mathexact_charge(v->m, units * scale) ? OK : UNKNOWN;
}

static void num_set(struct num *out, const struct num *x)
{
    mpfr_set(out->re, x->re, MPFR_RNDN);
    mpfr_set(out->im, x->im, MPFR_RNDN);
    out->err = x->err;
}

static int num_add(const struct eval *v, const struct num *a, const struct num *b, int minus,
                   struct num *out)
{
    double e = max2(a->err, b->err), la = lg(a), lb = lg(b);

    if (la > NONE && lb > NONE && (la < lb ? lb - la : la - lb) > 0.9 * v->prec) {
        v->m->absorbed = 1;
    }
    if (minus) {
        mpfr_sub(out->re, a->re, b->re, MPFR_RNDN);
        mpfr_sub(out->im, a->im, b->im, MPFR_RNDN);
    } else {
        mpfr_add(out->re, a->re, b->re, MPFR_RNDN);
        mpfr_add(out->im, a->im, b->im, MPFR_RNDN);
    }
    out->err = 1 + max2(e, lg(out) - v->prec);
    return work(v, 2) == OK ? num_ok(out) : UNKNOWN;
}

static int num_mul(const struct eval *v, const struct num *a, const struct num *b, struct num *out)
{
    double la = lg(a), lb = lg(b), e = max2(a->err + lb, b->err + la);
    mpfr_t t, re, im;

    mpfr_inits2(v->prec, t, re, im, (mpfr_ptr)0);
    mpfr_mul(re, a->re, b->re, MPFR_RNDN);
    mpfr_mul(t, a->im, b->im, MPFR_RNDN);
    mpfr_sub(re, re, t, MPFR_RNDN);
    mpfr_mul(im, a->re, b->im, MPFR_RNDN);
    mpfr_mul(t, a->im, b->re, MPFR_RNDN);
    mpfr_add(im, im, t, MPFR_RNDN);
    mpfr_set(out->re, re, MPFR_RNDN);
    mpfr_set(out->im, im, MPFR_RNDN);
    mpfr_clears(t, re, im, (mpfr_ptr)0);
    out->err = 2 + max2(max2(e, a->err + b->err), la + lb - v->prec);
    return work(v, 4) == OK ? num_ok(out) : UNKNOWN;
}

static int num_inv(const struct eval *v, const struct num *a, struct num *out)
{
    double low = lg(a) - 2;
    mpfr_t n, t;

    if (maybe_zero(a)) {
        return UNDEFINED;
    }
    mpfr_inits2(v->prec, n, t, (mpfr_ptr)0);
    mpfr_sqr(n, a->re, MPFR_RNDN);
    mpfr_sqr(t, a->im, MPFR_RNDN);
    mpfr_add(n, n, t, MPFR_RNDN);
    mpfr_div(out->re, a->re, n, MPFR_RNDN);
    mpfr_div(out->im, a->im, n, MPFR_RNDN);
    mpfr_neg(out->im, out->im, MPFR_RNDN);
    mpfr_clears(n, t, (mpfr_ptr)0);
    out->err = 3 + max2(a->err - 2 * low, -low - v->prec);
    return work(v, 2) == OK ? num_ok(out) : UNKNOWN;
}

static int num_exp(const struct eval *v, const struct num *a, struct num *out)
{
    mpfr_t s, c, r;

    if (a->err > -8 || lg1(a->re) > 58 || lg1(a->im) > 58 || work(v, 30) != OK) {
        return UNKNOWN;
    }
    mpfr_inits2(v->prec, s, c, r, (mpfr_ptr)0);
    mpfr_exp(r, a->re, MPFR_RNDN);
    mpfr_sin_cos(s, c, a->im, MPFR_RNDN);
    mpfr_mul(out->re, r, c, MPFR_RNDN);
    mpfr_mul(out->im, r, s, MPFR_RNDN);
    out->err = 3 + lg1(r) + max2(a->err, -v->prec);
    mpfr_clears(s, c, r, (mpfr_ptr)0);
    return num_ok(out);
}

static int num_log(const struct eval *v, const struct num *a, struct num *out)
{
    double low = lg(a) - 2;
    mpfr_t r, arg;

    if (maybe_zero(a)) {
        return UNDEFINED;
    }
    if (work(v, 40) != OK) {
        return UNKNOWN;
    }
    mpfr_inits2(v->prec, r, arg, (mpfr_ptr)0);
    if (mpfr_zero_p(a->im) || lg1(a->im) <= a->err + 2) {
        /* rounding must not choose the side of the cut */
        mpfr_abs(r, a->re, MPFR_RNDN);
        if (mpfr_sgn(a->re) < 0) {
            mpfr_const_pi(arg, MPFR_RNDN);
        } else {
            mpfr_set_zero(arg, 1);
        }
    } else {
        mpfr_hypot(r, a->re, a->im, MPFR_RNDN);
        mpfr_atan2(arg, a->im, a->re, MPFR_RNDN);
    }
    mpfr_log(out->re, r, MPFR_RNDN);
    mpfr_set(out->im, arg, MPFR_RNDN);
    mpfr_clears(r, arg, (mpfr_ptr)0);
    out->err = 3 + max2(a->err - low, max2(lg(out), 0) - v->prec);
    return num_ok(out);
}

static int num_sqrt(const struct eval *v, const struct num *a, struct num *out)
{
    double low = lg(a) - 2;
    struct num t;
    int rc;

    if (maybe_zero(a)) { /* at a branch point the error grows to its root */
        mpfr_set_zero(out->re, 1);
        mpfr_set_zero(out->im, 1);
        out->err = a->err <= NONE ? NONE : a->err / 2 + 2;
        return OK;
    }
    if (is_real(a)) {
        int minus = mpfr_sgn(a->re) < 0;
        num_init(v, &t);
        mpfr_abs(t.re, a->re, MPFR_RNDN);
        mpfr_sqrt(minus ? out->im : out->re, t.re, MPFR_RNDN);
        mpfr_set_zero(minus ? out->re : out->im, 1);
        out->err = 2 + max2(a->err - low / 2, low / 2 + 2 - v->prec);
        num_clear(&t);
        return work(v, 3) == OK ? num_ok(out) : UNKNOWN;
    }
    num_init(v, &t);
    rc = num_log(v, a, &t);
    if (rc == OK) {
        mpfr_div_2ui(t.re, t.re, 1, MPFR_RNDN);
        mpfr_div_2ui(t.im, t.im, 1, MPFR_RNDN);
        rc = num_exp(v, &t, out);
    }
    num_clear(&t);
    return rc;
}

static int num_whole_power(const struct eval *v, const struct num *a, long k, struct num *out)
{
    unsigned long n = k < 0 ? 0ul - (unsigned long)k : (unsigned long)k;
    struct num r, b;
    int rc = OK;

    num_init(v, &r);
    num_init(v, &b);
    mpfr_set_ui(r.re, 1, MPFR_RNDN);
    num_set(&b, a);
    for (; n && rc == OK; n >>= 1) {
        if (n & 1) {
            rc = num_mul(v, &r, &b, &r);
        }
        if (n > 1 && rc == OK) {
            rc = num_mul(v, &b, &b, &b);
        }
    }
    if (rc == OK && k < 0) {
        rc = num_inv(v, &r, out);
    } else if (rc == OK) {
        num_set(out, &r);
    }
    num_clear(&r);
    num_clear(&b);
    return rc;
}

/* exp(b log a), or the real root of a negative number to an odd index. */
static int num_power(const struct eval *v, const struct num *a, const struct num *b, const mpq_t q,
                     int rational, struct num *out)
{
    struct num t, u;
    int rc, minus = 0;

    if (maybe_zero(a)) {
        if (a->err <= NONE && is_real(b) && mpfr_sgn(b->re) > 0 && !maybe_zero(b)) {
            mpfr_set_zero(out->re, 1);
            mpfr_set_zero(out->im, 1);
            out->err = NONE;
            return OK;
        }
        return a->err <= NONE ? UNDEFINED : UNKNOWN;
    }
    num_init(v, &t);
    num_init(v, &u);
    num_set(&u, a);
    if (rational && is_real(a) && mpfr_sgn(a->re) < 0 && mpz_odd_p(mpq_denref(q)) &&
        mpz_cmp_ui(mpq_denref(q), 1) != 0) {
        v->m->met |= MATHEXACT_REAL_ROOT;
        if (v->m->mode & MATHEXACT_REAL_ROOT) {
            mpfr_neg(u.re, u.re, MPFR_RNDN);
            minus = mpz_odd_p(mpq_numref(q)) != 0;
        }
    }
    rc = num_log(v, &u, &t);
    rc = rc == OK ? num_mul(v, &t, b, &t) : rc;
    rc = rc == OK ? num_exp(v, &t, out) : rc;
    if (rc == OK && minus) {
        mpfr_neg(out->re, out->re, MPFR_RNDN);
        mpfr_neg(out->im, out->im, MPFR_RNDN);
    }
    num_clear(&t);
    num_clear(&u);
    return rc;
}

/* ---- functions ---- */

/* e^(iz) and e^(-iz) halves: sine, cosine of a complex number. */
static int num_sin_cos(const struct eval *v, const struct num *a, struct num *s, struct num *c)
{
    mpfr_t si, co, sh, ch;
    double big;

    if (a->err > -8 || lg1(a->re) > 58 || lg1(a->im) > 20 || work(v, 60) != OK) {
        return UNKNOWN;
    }
    mpfr_inits2(v->prec, si, co, sh, ch, (mpfr_ptr)0);
    mpfr_sin_cos(si, co, a->re, MPFR_RNDN);
    mpfr_sinh_cosh(sh, ch, a->im, MPFR_RNDN);
    mpfr_mul(s->re, si, ch, MPFR_RNDN);
    mpfr_mul(s->im, co, sh, MPFR_RNDN);
    mpfr_mul(c->re, co, ch, MPFR_RNDN);
    mpfr_mul(c->im, si, sh, MPFR_RNDN);
    mpfr_neg(c->im, c->im, MPFR_RNDN);
    big = lg1(ch);
    mpfr_clears(si, co, sh, ch, (mpfr_ptr)0);
    s->err = c->err = 3 + big + max2(a->err, -v->prec);
    return num_ok(s) == OK ? num_ok(c) : UNKNOWN;
}

static int num_trig(const struct eval *v, int fn, const struct num *a, struct num *out)
{
    struct num s, c;
    int rc;

    num_init(v, &s);
    num_init(v, &c);
    rc = num_sin_cos(v, a, &s, &c);
    if (rc == OK) {
        switch (fn) {
        case MATHLEX_FN_SIN: num_set(out, &s); break;
        case MATHLEX_FN_COS: num_set(out, &c); break;
        case MATHLEX_FN_TAN:
            rc = num_inv(v, &c, &c);
            rc = rc == OK ? num_mul(v, &s, &c, out) : rc;
            break;
        case MATHLEX_FN_COT:
            rc = num_inv(v, &s, &s);
            rc = rc == OK ? num_mul(v, &s, &c, out) : rc;
            break;
        case MATHLEX_FN_SEC: rc = num_inv(v, &c, out); break;
        default: rc = num_inv(v, &s, out); break;
        }
    }
    num_clear(&s);
    num_clear(&c);
    return rc;
}

/* Functions of a real argument only. */
static int num_real_function(const struct eval *v, int fn, const struct num *a, struct num *out)
{
    double near = 0;
    mpfr_t t;
    int rc = OK;

    if (!is_real(a)) {
        return UNDEFINED;
    }
    if (work(v, 60) != OK || a->err > -8) {
        return UNKNOWN;
    }
    mpfr_init2(t, v->prec);
    mpfr_set_zero(out->im, 1);
    if (fn == MATHLEX_FN_ASIN || fn == MATHLEX_FN_ACOS || fn == MATHLEX_FN_ATANH) {
        mpfr_abs(t, a->re, MPFR_RNDN);
        mpfr_ui_sub(t, 1, t, MPFR_RNDN); /* how far from the end of its domain */
        near = lg1(t);
        if (mpfr_sgn(t) < 0 && near > a->err + 2) {
            rc = UNDEFINED;
        }
    }
    if (rc == OK) {
        mpfr_set(t, a->re, MPFR_RNDN);
        if ((fn == MATHLEX_FN_ASIN || fn == MATHLEX_FN_ACOS) && mpfr_cmpabs_ui(t, 1) > 0) {
            mpfr_set_si(t, mpfr_sgn(t), MPFR_RNDN);
        }
        switch (fn) {
        case MATHLEX_FN_ASIN: mpfr_asin(out->re, t, MPFR_RNDN); break;
        case MATHLEX_FN_ACOS: mpfr_acos(out->re, t, MPFR_RNDN); break;
        case MATHLEX_FN_ATAN: mpfr_atan(out->re, t, MPFR_RNDN); break;
        case MATHLEX_FN_ASINH: mpfr_asinh(out->re, t, MPFR_RNDN); break;
        case MATHLEX_FN_ACOSH: mpfr_acosh(out->re, t, MPFR_RNDN); break;
        default: mpfr_atanh(out->re, t, MPFR_RNDN); break;
        }
        if (fn == MATHLEX_FN_ACOSH) {
            mpfr_sub_ui(t, a->re, 1, MPFR_RNDN);
            near = lg1(t);
        }
        out->err = 3 + max2(a->err, max2(lg(out), 0) - v->prec);
        if (fn == MATHLEX_FN_ASIN || fn == MATHLEX_FN_ACOS || fn == MATHLEX_FN_ACOSH) {
            /* the slope is 1/sqrt(distance): near the end the error is its root */
            out->err = near <= a->err + 8 ? max2(a->err / 2 + 4, -v->prec + 4)
                                          : out->err + max2(0, -near / 2 + 1);
            if (a->err <= NONE) {
                out->err = 4 - v->prec;
            }
        } else if (fn == MATHLEX_FN_ATANH) {
            out->err += max2(0, -near + 1);
        }
        rc = num_ok(out);
    }
    mpfr_clear(t);
    return rc == UNKNOWN ? UNDEFINED : rc;
}

/* sinh, cosh, tanh from e^z. */
static int num_hyperbolic(const struct eval *v, int fn, const struct num *a, struct num *out)
{
    struct num p, q, s, c;
    int rc;

    num_init(v, &p);
    num_init(v, &q);
    num_init(v, &s);
    num_init(v, &c);
    rc = num_exp(v, a, &p);
    rc = rc == OK ? num_inv(v, &p, &q) : rc;
    rc = rc == OK ? num_add(v, &p, &q, 1, &s) : rc;
    rc = rc == OK ? num_add(v, &p, &q, 0, &c) : rc;
    if (rc == OK && fn == MATHLEX_FN_TANH) {
        rc = num_inv(v, &c, &c);
        rc = rc == OK ? num_mul(v, &s, &c, out) : rc;
    } else if (rc == OK) {
        num_set(out, fn == MATHLEX_FN_SINH ? &s : &c);
        mpfr_div_2ui(out->re, out->re, 1, MPFR_RNDN);
        mpfr_div_2ui(out->im, out->im, 1, MPFR_RNDN);
    }
    num_clear(&p);
    num_clear(&q);
    num_clear(&s);
    num_clear(&c);
    return rc;
}

static int num_abs(const struct eval *v, const struct num *a, struct num *out)
{
    mpfr_hypot(out->re, a->re, a->im, MPFR_RNDN);
    mpfr_set_zero(out->im, 1);
    out->err = 1 + max2(a->err, lg(out) - v->prec);
    return work(v, 2) == OK ? num_ok(out) : UNKNOWN;
}

/* Down or up to a whole number; not when the argument may be one. */
static int num_round(const struct eval *v, int fn, const struct num *a, struct num *out)
{
    mpfr_t t;
    int rc = OK;

    if (!is_real(a)) {
        return UNDEFINED;
    }
    if (lg1(a->re) > v->prec / 2) {
        return UNKNOWN;
    }
    mpfr_init2(t, v->prec);
    mpfr_rint(t, a->re, MPFR_RNDN);
    mpfr_sub(t, t, a->re, MPFR_RNDN);
    if (a->err > NONE && lg1(t) <= a->err + 2) {
        rc = UNKNOWN;
    } else {
        mpfr_rint(out->re, a->re, fn == MATHLEX_FN_FLOOR ? MPFR_RNDD : MPFR_RNDU);
        mpfr_set_zero(out->im, 1);
        out->err = NONE;
    }
    mpfr_clear(t);
    return rc;
}

static int num_gamma1(const struct eval *v, const struct num *a, struct num *out)
{
    mpfr_t t;
    int rc = OK;

    if (!is_real(a)) {
        return UNDEFINED;
    }
    if (a->err > -20 || lg1(a->re) > 9 || work(v, 300) != OK) {
        return UNKNOWN;
    }
    mpfr_init2(t, v->prec);
    mpfr_add_ui(t, a->re, 1, MPFR_RNDN);
    if (mpfr_sgn(t) <= 0) {
        mpfr_t r;
        mpfr_init2(r, v->prec);
        mpfr_rint(r, t, MPFR_RNDN);
        mpfr_sub(r, r, t, MPFR_RNDN);
        rc = lg1(r) < -20 ? UNDEFINED : OK; /* at or near a pole */
        mpfr_clear(r);
    }
    if (rc == OK) {
        mpfr_gamma(out->re, t, MPFR_RNDN);
        mpfr_set_zero(out->im, 1);
        out->err = 3 + lg(out) + max2(a->err + 24, -v->prec);
        rc = num_ok(out);
    }
    mpfr_clear(t);
    return rc;
}

/* ---- evaluation ---- */

static int eval(const struct eval *v, node *x, struct num *out);

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* The value of a variable at a point: real, known exactly, small and large, of both signs. */
static void sample(const struct eval *v, const char *name, struct num *out)
{
    static const double base[POINTS] = {0.2, 1.1, -0.9, -3.2, 0.3, 2.3, 0.1, -1.7};
    static const double width[POINTS] = {0.7, 1.7, 0.7, 1.9, 0.6, 2.9, 0.4, 3.9};
    uint64_t h = 1469598103934665603u;

    for (const char *p = name; *p; p++) {
        h = (h ^ (unsigned char)*p) * 1099511628211u;
    }
    h = mix(h ^ mix((uint64_t)v->point + 1));
    mpfr_set_ui(out->re, (unsigned long)(h >> 11), MPFR_RNDN);
    mpfr_div_2ui(out->re, out->re, 53, MPFR_RNDN);
    mpfr_mul_d(out->re, out->re, width[v->point], MPFR_RNDN);
    mpfr_add_d(out->re, out->re, base[v->point], MPFR_RNDN);
    if (v->wide) {
        mpfr_mul_ui(out->re, out->re, (unsigned long)(1 + 11 * v->point * v->point), MPFR_RNDN);
    }
}

static int eval_literal(const struct eval *v, node *x, struct num *out)
{
    mpq_t q;
    mpfr_t t;
    int rounded = 1;

    mpq_init(q);
    if (mathexact_eval(v->m, x, q)) {
        rounded = mpfr_set_q(out->re, q, MPFR_RNDN) != 0;
    } else if (x->op == MATHREAD_NUM && !x->more && strlen(x->text) < 5000) {
        mpfr_set_str(out->re, x->text, 10, MPFR_RNDN);
        mpfr_init2(t, v->prec);
        mpfr_set_si(t, x->exp10, MPFR_RNDN);
        mpfr_exp10(t, t, MPFR_RNDN);
        mpfr_mul(out->re, out->re, t, MPFR_RNDN);
        mpfr_clear(t);
    } else {
        mpq_clear(q);
        return UNKNOWN;
    }
    mpq_clear(q);
    out->err = rounded ? lg(out) + 3 - v->prec : NONE;
    return work(v, 3) == OK ? num_ok(out) : UNKNOWN;
}

static int eval_function(const struct eval *v, node *x, const struct num *a, struct num *out)
{
    struct num t;
    int rc;

    switch (x->fn) {
    case MATHLEX_FN_SIN:
    case MATHLEX_FN_COS:
    case MATHLEX_FN_TAN:
    case MATHLEX_FN_COT:
    case MATHLEX_FN_SEC:
    case MATHLEX_FN_CSC: return num_trig(v, x->fn, a, out);
    case MATHLEX_FN_ASIN:
    case MATHLEX_FN_ACOS:
    case MATHLEX_FN_ATAN:
    case MATHLEX_FN_ASINH:
    case MATHLEX_FN_ACOSH:
    case MATHLEX_FN_ATANH: return num_real_function(v, x->fn, a, out);
    case MATHLEX_FN_ACOT:
    case MATHLEX_FN_ASEC:
    case MATHLEX_FN_ACSC:
        num_init(v, &t);
        rc = num_inv(v, a, &t);
        if (rc == OK) {
            rc = num_real_function(v,
                                   x->fn == MATHLEX_FN_ACOT   ? MATHLEX_FN_ATAN
                                   : x->fn == MATHLEX_FN_ASEC ? MATHLEX_FN_ACOS
                                                              : MATHLEX_FN_ASIN,
                                   &t, out);
        }
        num_clear(&t);
        return rc;
    case MATHLEX_FN_SINH:
    case MATHLEX_FN_COSH:
    case MATHLEX_FN_TANH: return num_hyperbolic(v, x->fn, a, out);
    case MATHLEX_FN_LN: return num_log(v, a, out);
    case MATHLEX_FN_LOG:
        rc = num_log(v, a, out);
        v->m->met |= MATHEXACT_LOG10;
        if (rc == OK && (v->m->mode & MATHEXACT_LOG10)) {
            num_init(v, &t);
            mpfr_set_ui(t.re, 10, MPFR_RNDN);
            mpfr_log(t.re, t.re, MPFR_RNDN);
            mpfr_ui_div(t.re, 1, t.re, MPFR_RNDN);
            t.err = 2 - v->prec;
            rc = num_mul(v, out, &t, out);
            num_clear(&t);
        }
        return rc;
    case MATHLEX_FN_EXP: return num_exp(v, a, out);
    case MATHLEX_FN_ABS: return num_abs(v, a, out);
    case MATHLEX_FN_FLOOR:
    case MATHLEX_FN_CEIL: return num_round(v, x->fn, a, out);
    default: return UNKNOWN;
    }
}

static int eval_power(const struct eval *v, node *x, node *ex, int invert, const struct num *a,
                      struct num *out)
{
    struct num b;
    mpq_t q;
    long k = 0;
    int rc, rational;

    (void)x;
    mpq_init(q);
    num_init(v, &b);
    if (ex) {
        rational = mathexact_eval(v->m, ex, q);
    } else {
        mpq_set_ui(q, 2, 1);
        rational = 1;
    }
    if (rational && invert) {
        rational = mpq_sgn(q) != 0;
        if (rational) {
            mpq_inv(q, q);
        }
    }
    if (rational && mathexact_small(q, 4096, &k)) {
        rc = k == 0 && maybe_zero(a) ? UNDEFINED : num_whole_power(v, a, k, out);
    } else if (rational && mpz_cmp_ui(mpq_denref(q), 2) == 0 && mathexact_small(q, 0, &k) == 0 &&
               mpz_cmpabs_ui(mpq_numref(q), 1000) < 0) {
        rc = num_sqrt(v, a, &b);
        rc = rc == OK ? num_whole_power(v, &b, mpz_get_si(mpq_numref(q)), out) : rc;
    } else {
        if (rational) {
            mpfr_set_q(b.re, q, MPFR_RNDN);
            b.err = lg(&b) + 1 - v->prec;
            rc = OK;
        } else {
            rc = eval(v, ex, &b);
            if (rc == OK && invert) {
                rc = num_inv(v, &b, &b);
            }
        }
        rc = rc == OK ? num_power(v, a, &b, q, rational, out) : rc;
    }
    num_clear(&b);
    mpq_clear(q);
    return rc;
}

static int eval_sum(const struct eval *v, node *x, struct num *out)
{
    struct mathval *m = v->m;
    struct mathval_bound b = {m->bound, x->kid[0]->text, 0};
    long from = 0, to = 0;
    struct num t;
    mpq_t q;
    int rc;

    mpq_init(q);
    rc = mathexact_eval(m, x->kid[1], q) && mathexact_small(q, 1000000, &from) &&
                 mathexact_eval(m, x->kid[2], q) && mathexact_small(q, 1000000, &to) &&
                 to - from < MATHEXACT_TERMS
             ? OK
             : UNKNOWN;
    mpq_clear(q);
    if (rc != OK) {
        return rc;
    }
    num_init(v, &t);
    mpfr_set_ui(out->re, x->op == MATHREAD_PROD, MPFR_RNDN);
    m->bound = &b;
    for (b.value = from; b.value <= to && rc == OK; b.value++) {
        rc = eval(v, x->kid[3], &t);
        if (rc == OK) {
            rc = x->op == MATHREAD_SUM ? num_add(v, out, &t, 0, out) : num_mul(v, out, &t, out);
        }
    }
    m->bound = b.up;
    num_clear(&t);
    return rc;
}

/* max and min of real numbers that are clearly apart, or the same. */
static int eval_extreme(const struct eval *v, node *x, struct num *out)
{
    struct num t;
    int rc = eval(v, x->kid[0], out);

    num_init(v, &t);
    for (int i = 1; i < x->n && rc == OK; i++) {
        rc = eval(v, x->kid[i], &t);
        if (rc == OK && (!is_real(&t) || !is_real(out))) {
            rc = UNDEFINED;
        } else if (rc == OK && (mpfr_cmp(t.re, out->re) > 0) == (x->fn == MATHLEX_FN_MAX)) {
            num_set(out, &t);
        }
    }
    num_clear(&t);
    return rc;
}

static int eval_two(const struct eval *v, node *x, const struct num *a, struct num *b,
                    struct num *out)
{
    struct num t;
    int rc;

    switch (x->op) {
    case MATHREAD_ADD: return num_add(v, a, b, 0, out);
    case MATHREAD_SUB: return num_add(v, a, b, 1, out);
    case MATHREAD_MUL: return num_mul(v, a, b, out);
    case MATHREAD_DIV: rc = num_inv(v, b, b); return rc == OK ? num_mul(v, a, b, out) : rc;
    case MATHREAD_LOGB:
        num_init(v, &t);
        rc = num_log(v, a, &t);
        rc = rc == OK ? num_inv(v, &t, &t) : rc;
        rc = rc == OK ? num_log(v, b, b) : rc;
        rc = rc == OK ? num_mul(v, b, &t, out) : rc;
        num_clear(&t);
        return rc;
    case MATHREAD_BINOM: /* a! / (b! (a-b)!) */
        num_init(v, &t);
        rc = num_add(v, a, b, 1, &t);
        rc = rc == OK ? num_gamma1(v, &t, &t) : rc;
        rc = rc == OK ? num_gamma1(v, b, b) : rc;
        rc = rc == OK ? num_mul(v, &t, b, &t) : rc;
        rc = rc == OK ? num_inv(v, &t, &t) : rc;
        rc = rc == OK ? num_gamma1(v, a, b) : rc;
        rc = rc == OK ? num_mul(v, b, &t, out) : rc;
        num_clear(&t);
        return rc;
    default: return UNKNOWN;
    }
}

static int eval_one(const struct eval *v, node *x, struct num *a, struct num *out)
{
    struct num t;
    int rc = OK;

    switch (x->op) {
    case MATHREAD_NEG:
        num_set(out, a);
        mpfr_neg(out->re, out->re, MPFR_RNDN);
        mpfr_neg(out->im, out->im, MPFR_RNDN);
        return OK;
    case MATHREAD_UNIT: num_set(out, a); return OK;
    case MATHREAD_FACT: return num_gamma1(v, a, out);
    case MATHREAD_FUNC: return eval_function(v, x, a, out);
    case MATHREAD_DEG:
    case MATHREAD_PERCENT:
        num_init(v, &t);
        if (x->op == MATHREAD_DEG) {
            mpfr_const_pi(t.re, MPFR_RNDN);
            mpfr_div_ui(t.re, t.re, 180, MPFR_RNDN);
        } else {
            mpfr_set_ui(t.re, 1, MPFR_RNDN);
            mpfr_div_ui(t.re, t.re, 100, MPFR_RNDN);
        }
        t.err = lg(&t) + 2 - v->prec;
        rc = num_mul(v, a, &t, out);
        num_clear(&t);
        return rc;
    default: return UNKNOWN;
    }
}

static int eval_leaf(const struct eval *v, node *x, struct num *out)
{
    const struct mathval_bound *b;

    switch (x->op) {
    case MATHREAD_NUM:
    case MATHREAD_BASE: return eval_literal(v, x, out);
    case MATHREAD_SYM:
    case MATHREAD_WORD:
    case MATHREAD_I:
        b = mathexact_bound(v->m, x);
        if (b) {
            mpfr_set_si(out->re, b->value, MPFR_RNDN);
        } else if (x->op == MATHREAD_I) {
            mpfr_set_ui(out->im, 1, MPFR_RNDN);
        } else {
            sample(v, x->text, out);
        }
        return work(v, 1);
    case MATHREAD_PI: mpfr_const_pi(out->re, MPFR_RNDN); break;
    case MATHREAD_E:
        mpfr_set_ui(out->re, 1, MPFR_RNDN);
        mpfr_exp(out->re, out->re, MPFR_RNDN);
        break;
    default: return UNKNOWN;
    }
    out->err = 3 - v->prec;
    return work(v, 10);
}

static int eval(const struct eval *v, node *x, struct num *out)
{
    struct num a, b;
    mpq_t q;
    int rc;

    mpfr_set_zero(out->re, 1);
    mpfr_set_zero(out->im, 1);
    out->err = NONE;
    if (x->n == 0) {
        return eval_leaf(v, x, out);
    }
    if (x->op == MATHREAD_SUM || x->op == MATHREAD_PROD) {
        return eval_sum(v, x, out);
    }
    if (x->op == MATHREAD_FUNC && x->fn >= MATHLEX_FN_MAX) {
        return x->fn <= MATHLEX_FN_MIN ? eval_extreme(v, x, out) : UNKNOWN;
    }
    if (x->op == MATHREAD_FUNC && (x->fn == MATHLEX_FN_FLOOR || x->fn == MATHLEX_FN_CEIL)) {
        mpq_init(q); /* floor(3) must not wait for a rounding */
        rc = mathexact_eval(v->m, x, q);
        if (rc) {
            mpfr_set_q(out->re, q, MPFR_RNDN);
            out->err = lg(out) - v->prec;
        }
        mpq_clear(q);
        if (rc) {
            return OK;
        }
    }
    num_init(v, &a);
    rc = eval(v, x->kid[0], &a);
    if (rc == OK && (x->op == MATHREAD_POW || x->op == MATHREAD_ROOT)) {
        rc = eval_power(v, x, x->n > 1 ? x->kid[1] : NULL, x->op == MATHREAD_ROOT, &a, out);
    } else if (rc == OK && x->n == 2) {
        num_init(v, &b);
        rc = eval(v, x->kid[1], &b);
        rc = rc == OK ? eval_two(v, x, &a, &b, out) : rc;
        num_clear(&b);
    } else if (rc == OK) {
        rc = eval_one(v, x, &a, out);
    }
    num_clear(&a);
    return rc;
}

/* ---- comparison ---- */

/* 1: no difference within the bounds, which are small; 0: different; UNDEFINED; UNKNOWN. */
static int compare_at(const struct eval *v, node *a, node *b)
{
    struct num x, y, d;
    double scale;
    int rc;

    num_init(v, &x);
    num_init(v, &y);
    num_init(v, &d);
    mpfr_clear_flags();
    v->m->absorbed = 0;
    rc = eval(v, a, &x);
    rc = rc == OK ? eval(v, b, &y) : rc;
    rc = rc == OK ? num_add(v, &x, &y, 1, &d) : rc;
    if (rc == OK) {
        scale = max2(max2(lg(&x), lg(&y)), -60);
        if (mpfr_underflow_p() || mpfr_overflow_p()) {
            rc = UNKNOWN;
        } else if (lg(&d) - 2 > d.err + 4) {
            rc = 0;
        } else {
            rc = d.err <= scale - 0.5 * v->prec ? 1 : UNKNOWN;
            if (rc == 1 && v->prec == HIGH_PREC && v->m->absorbed) {
                rc = UNDEFINED; /* 1 + 10^-999 is not 1: this place says nothing */
            }
        }
    }
    num_clear(&x);
    num_clear(&y);
    num_clear(&d);
    return rc;
}

/* Tries the low precision first; equal needs the high one too. */
static int compare_twice(struct mathval *m, node *a, node *b, int point, int wide)
{
    struct eval v = {m, LOW_PREC, point, wide};
    int rc = compare_at(&v, a, b);

    if (rc == 0 || m->spent) {
        return m->spent ? UNKNOWN : 0;
    }
    if (rc == UNDEFINED) {
        return rc;
    }
    v.prec = HIGH_PREC;
    return compare_at(&v, a, b);
}

static int has_rounding(node *x)
{
    if (x->op == MATHREAD_FUNC && (x->fn == MATHLEX_FN_FLOOR || x->fn == MATHLEX_FN_CEIL)) {
        return 1;
    }
    for (int i = 0; i < x->n; i++) {
        if (has_rounding(x->kid[i])) {
            return 1;
        }
    }
    return 0;
}

/* The names in x that are not in the list yet; 0 when there are too many. */
static int collect(node *x, const char **names, int *n, int max)
{
    int known = x->op != MATHREAD_SYM && x->op != MATHREAD_WORD;

    for (int i = 0; i < *n && !known; i++) {
        known = strcmp(names[i], x->text) == 0;
    }
    if (!known) {
        if (*n == max) {
            return 0;
        }
        names[(*n)++] = x->text;
    }
    for (int i = 0; i < x->n; i++) {
        if (!collect(x->kid[i], names, n, max)) {
            return 0;
        }
    }
    return 1;
}

/* Formulas that round to whole numbers differ, if they do, at whole numbers: those are tried one by
 * one. 1, 0 or -1. */
static int equal_at_whole(struct mathval *m, node *a, node *b)
{
    struct mathval_bound bound[4];
    const char *names[4];
    struct eval v = {m, LOW_PREC, 0, 0};
    int n = 0, good = 0;
    mpq_t p, q;

    if (!collect(a, names, &n, 4) || !collect(b, names, &n, 4)) {
        return -1;
    }
    mpq_init(p);
    mpq_init(q);
    for (int k = -4; k <= 40 && good >= 0; k++) {
        int rc;
        for (int i = 0; i < n; i++) {
            long far = (long)(mix((uint64_t)(k + 10) * 8 + (uint64_t)i) % 30) + 1;
            bound[i] = (struct mathval_bound){i ? &bound[i - 1] : NULL, names[i], i ? far : k};
        }
        m->bound = &bound[n - 1];
        if (mathexact_eval(m, a, p) && mathexact_eval(m, b, q)) {
            rc = mpq_equal(p, q);
        } else {
            rc = compare_at(&v, a, b);
        }
        good = rc == 0 ? -1 : good + (rc == 1);
    }
    m->bound = NULL;
    mpq_clear(p);
    mpq_clear(q);
    return good < 0 ? 0 : good >= 20 ? 1 : -1;
}

/* At all points; 1, 0 or -1. */
static int equal_in_mode(struct mathval *m, node *a, node *b)
{
    int good = 0, rc, wide = has_rounding(a) || has_rounding(b);

    if (mathval_is_constant(a) && mathval_is_constant(b)) {
        rc = compare_twice(m, a, b, 0, 0);
        return rc < 0 ? -1 : rc;
    }
    if (wide) {
        rc = equal_at_whole(m, a, b);
        if (rc != 1) {
            return rc;
        }
    }
    for (int i = 0; i < POINTS && good < POINTS - 2; i++) {
        if (good < 2) {
            rc = compare_twice(m, a, b, i, wide);
        } else {
            struct eval v = {m, LOW_PREC, i, wide};
            rc = compare_at(&v, a, b);
        }
        if (rc == 0) {
            return 0;
        }
        if (rc == UNKNOWN) {
            return -1;
        }
        good += rc == 1;
    }
    return good >= POINTS_NEEDED ? 1 : -1;
}

int mathval_equal(struct mathval *m, node *a, node *b)
{
    mpq_t p, q;
    int known, out = 0, unknown = 0, seen;

    mpq_init(p);
    mpq_init(q);
    m->mode = m->met = 0;
    known = mathexact_eval(m, a, p) && mathexact_eval(m, b, q);
    if (known) {
        out = mpq_equal(p, q);
    }
    mpq_clear(p);
    mpq_clear(q);
    if (known) {
        return out;
    }
    m->met = 0;
    out = equal_in_mode(m, a, b);
    seen = m->met;
    unknown = out < 0;
    for (m->mode = 1; m->mode <= (MATHEXACT_LOG10 | MATHEXACT_REAL_ROOT) && out != 1; m->mode++) {
        if ((m->mode & seen) == m->mode) {
            out = equal_in_mode(m, a, b);
            seen |= m->met;
            unknown |= out < 0;
        }
    }
    m->mode = 0;
    mpfr_free_cache2(MPFR_FREE_LOCAL_CACHE);
    return out == 1 ? 1 : unknown ? -1 : 0;
}

/* One ratio a/b, compared with that of another point. */
static int ratio_at(const struct eval *v, node *a, node *b, struct num *r)
{
    struct num y;
    int rc;

    num_init(v, &y);
    rc = eval(v, a, r);
    rc = rc == OK ? eval(v, b, &y) : rc;
    rc = rc == OK ? num_inv(v, &y, &y) : rc;
    rc = rc == OK ? num_mul(v, r, &y, r) : rc;
    num_clear(&y);
    return rc;
}

static int proportional(struct mathval *m, node *a, node *b, int *sign)
{
    struct eval v = {m, LOW_PREC, 0, 0};
    struct num first, r, d;
    int good = 0, rc = OK, out = 1;

    num_init(&v, &first);
    num_init(&v, &r);
    num_init(&v, &d);
    mpfr_clear_flags();
    for (v.point = 0; v.point < POINTS && good < 5 && out == 1; v.point++) {
        rc = ratio_at(&v, a, b, &r);
        if (rc == UNDEFINED) {
            continue;
        }
        if (rc != OK) {
            out = -1;
        } else if (maybe_zero(&r)) {
            out = 0;
        } else if (good++ == 0) {
            num_set(&first, &r);
        } else {
            rc = num_add(&v, &first, &r, 1, &d);
            if (rc != OK || d.err > lg(&first) - 0.5 * v.prec) {
                out = -1;
            } else if (lg(&d) - 2 > d.err + 4) {
                out = 0;
            }
        }
    }
    if (mpfr_underflow_p() || mpfr_overflow_p() || (out == 1 && good < POINTS_NEEDED)) {
        out = -1;
    }
    *sign = good && is_real(&first) ? mpfr_sgn(first.re) : 0;
    num_clear(&first);
    num_clear(&r);
    num_clear(&d);
    return out;
}

int mathval_proportional(struct mathval *m, node *a, node *b, int *sign)
{
    int out;

    m->mode = m->met = 0;
    out = proportional(m, a, b, sign);
    mpfr_free_cache2(MPFR_FREE_LOCAL_CACHE);
    return out;
}

/* The sign of a - b when both are real and clearly apart, else 0. */
static int sign_at(const struct eval *v, node *a, node *b)
{
    struct num x, y, d;
    int rc, out = 0;

    num_init(v, &x);
    num_init(v, &y);
    num_init(v, &d);
    rc = eval(v, a, &x);
    rc = rc == OK ? eval(v, b, &y) : rc;
    rc = rc == OK ? num_add(v, &x, &y, 1, &d) : rc;
    if (rc == OK && is_real(&x) && is_real(&y) && !maybe_zero(&d)) {
        out = mpfr_sgn(d.re);
    }
    num_clear(&x);
    num_clear(&y);
    num_clear(&d);
    return out;
}

int mathval_order(struct mathval *m, node *a, node *b, int *order)
{
    struct eval v = {m, LOW_PREC, 0, 0};
    int same, sign;

    if (!mathval_is_constant(a) || !mathval_is_constant(b)) {
        return 0;
    }
    same = mathval_equal(m, a, b);
    if (same == 1) {
        *order = 0;
        return 1;
    }
    if (same < 0) {
        return 0;
    }
    m->mode = MATHEXACT_REAL_ROOT;
    sign = sign_at(&v, a, b);
    if (!sign) {
        v.prec = HIGH_PREC;
        sign = sign_at(&v, a, b);
    }
    m->mode = 0;
    mpfr_free_cache2(MPFR_FREE_LOCAL_CACHE);
    *order = sign;
    return sign != 0;
}

/* A decimal literal, perhaps negative; its digits after the point in *after (with the exponent). */
static node *decimal(node *x, int digits, long *after)
{
    const char *point, *s;
    size_t sig;

    while (x->op == MATHREAD_NEG || x->op == MATHREAD_UNIT) {
        x = x->kid[0];
    }
    if (x->op != MATHREAD_NUM || x->more || !(point = strchr(x->text, '.')) || !point[1]) {
        return NULL;
    }
    s = x->text + strspn(x->text, "0.");
    sig = strlen(s) - (strchr(s, '.') != NULL);
    if (sig < (size_t)digits || sig > 1000 || abs(x->exp10) > 1000) {
        return NULL;
    }
    *after = (long)strlen(point + 1) - x->exp10;
    return x;
}

int mathval_rounds(struct mathval *m, node *a, node *b, int digits)
{
    struct eval v = {m, LOW_PREC, 0, 0};
    struct num x, y, d;
    long after = 0;
    mpfr_t half;
    int rc, out = 0;

    if (!decimal(a, digits, &after) || decimal(b, 1, &after) || !mathval_is_constant(b)) {
        return 0;
    }
    decimal(a, digits, &after);
    v.prec = HIGH_PREC;
    num_init(&v, &x);
    num_init(&v, &y);
    num_init(&v, &d);
    mpfr_init2(half, v.prec);
    rc = eval(&v, a, &x);
    rc = rc == OK ? eval(&v, b, &y) : rc;
    rc = rc == OK ? num_add(&v, &x, &y, 1, &d) : rc;
    if (rc == OK && is_real(&y)) {
        mpfr_set_si(half, -after, MPFR_RNDN);
        mpfr_exp10(half, half, MPFR_RNDN);
        mpfr_div_2ui(half, half, 1, MPFR_RNDN);
        out = mpfr_cmpabs(d.re, half) <= 0 && d.err < lg1(half) - 20;
    }
    mpfr_clear(half);
    num_clear(&x);
    num_clear(&y);
    num_clear(&d);
    mpfr_free_cache2(MPFR_FREE_LOCAL_CACHE);
    return out;
}

void mathval_show(struct mathval *m, node *a, char *out, size_t n)
{
    struct eval v = {m, LOW_PREC, 0, 0};
    struct num x;
    mpq_t q;

    out[0] = 0;
    if (!mathval_is_constant(a)) {
        return;
    }
    mpq_init(q);
    if (mathexact_eval(m, a, q) &&
        mpz_sizeinbase(mpq_numref(q), 10) + mpz_sizeinbase(mpq_denref(q), 10) + 3 < n &&
        mathexact_bits(q) < 130) {
        mpq_get_str(out, 10, q);
        mpq_clear(q);
        return;
    }
    mpq_clear(q);
    num_init(&v, &x);
    if (eval(&v, a, &x) == OK) {
        if (is_real(&x)) {
            mpfr_snprintf(out, n, "%.10Rg", x.re);
        } else {
            mpfr_snprintf(out, n, "%.8Rg%+.8Rgi", x.re, x.im);
        }
    }
    num_clear(&x);
    mpfr_free_cache2(MPFR_FREE_LOCAL_CACHE);
}
