/* Owns exact rational arithmetic over trees: whatever has a rational value of at most MAX_BITS is
 * computed with GMP, and sizes are looked at before the work is done, so a tower of powers costs
 * nothing. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reward/mathexact_int.h"
#include "reward/mathlex.h"
#include "reward/mathread.h"
#include "reward/mathval.h"

enum {
    MAX_BITS = 8192, /* of an exact numerator or denominator */
    MAX_FACTORIAL = 700
};

typedef const struct mathread_node node;

int mathexact_charge(struct mathval *m, int64_t units)
{
    m->left -= units;
    if (m->left < 0) {
        m->spent = 1;
    }
    return !m->spent;
}

const struct mathval_bound *mathexact_bound(const struct mathval *m, node *x)
{
    for (const struct mathval_bound *b = m->bound; b; b = b->up) {
        if (x->op == MATHREAD_I ? !b->name : b->name && strcmp(b->name, x->text) == 0) {
            return b;
        }
    }
    return NULL;
}

size_t mathexact_bits(const mpq_t q)
{
    return mpz_sizeinbase(mpq_numref(q), 2) + mpz_sizeinbase(mpq_denref(q), 2);
}

/* digits . digits (repeating) * 10^e */
static int exact_literal(node *x, mpq_t out)
{
    size_t n = strlen(x->text), after = 0, rep = x->more ? strlen(x->more) : 0, k = 0;
    const char *point = strchr(x->text, '.');
    long e = x->exp10;
    mpz_t ten;
    char *digits;

    if (n + rep > MAX_BITS / 4 || labs(e) > MAX_BITS / 4) {
        return 0;
    }
    digits = malloc(n + rep + 2);
    if (!digits) {
        return 0;
    }
    for (size_t i = 0; i < n; i++) {
        if (x->text[i] != '.') {
            digits[k++] = x->text[i];
        }
    }
    if (k == 0) {
        digits[k++] = '0';
    }
    digits[k] = 0;
    after = point ? strlen(point + 1) : 0;
    mpz_init(ten);
    mpz_set_str(mpq_numref(out), digits, 10);
    mpz_set_ui(mpq_denref(out), 1);
    if (rep) { /* d.ddd(r): (all digits - digits before) / (10^after * (10^rep - 1)) */
        mpz_t all;
        memcpy(digits + k, x->more, rep + 1);
        mpz_init_set_str(all, digits, 10);
        mpz_sub(mpq_numref(out), all, mpq_numref(out));
        mpz_ui_pow_ui(ten, 10, rep);
        mpz_sub_ui(mpq_denref(out), ten, 1);
        mpz_clear(all);
    }
    e -= (long)after;
    mpz_ui_pow_ui(ten, 10, (unsigned long)labs(e));
    if (e < 0) {
        mpz_mul(mpq_denref(out), mpq_denref(out), ten);
    } else {
        mpz_mul(mpq_numref(out), mpq_numref(out), ten);
    }
    mpq_canonicalize(out);
    mpz_clear(ten);
    free(digits);
    return 1;
}

static int exact_power(struct mathval *m, const mpq_t base, const mpq_t e, mpq_t out)
{
    long k;
    unsigned long n;

    if (mpz_cmp_ui(mpq_denref(e), 1) != 0 || !mpz_fits_slong_p(mpq_numref(e))) {
        return 0;
    }
    k = mpz_get_si(mpq_numref(e));
    n = k < 0 ? 0ul - (unsigned long)k : (unsigned long)k;
    if (k == 0) {
        mpq_set_ui(out, 1, 1);
        return mpq_sgn(base) != 0;
    }
    if (mpq_sgn(base) == 0) {
        mpq_set_ui(out, 0, 1);
        return k > 0;
    }
    if (mpq_cmp_si(base, 1, 1) == 0 || mpq_cmp_si(base, -1, 1) == 0) {
        mpq_set_si(out, mpq_sgn(base) < 0 && n % 2 ? -1 : 1, 1);
        return 1;
    }
    if (n > MAX_BITS || mathexact_bits(base) * n > MAX_BITS ||
        !mathexact_charge(m, (int64_t)(mathexact_bits(base) * n / 64))) {
        return 0;
    }
    mpz_pow_ui(mpq_numref(out), mpq_numref(base), n);
    mpz_pow_ui(mpq_denref(out), mpq_denref(base), n);
    if (k < 0) {
        mpq_inv(out, out);
    }
    return 1;
}

/* The root of a perfect power; of a negative number only when the index is odd. */
static int exact_root(struct mathval *m, const mpq_t x, unsigned long index, mpq_t out)
{
    if (index < 1 || index > 1000 || (mpq_sgn(x) < 0 && (index % 2 == 0))) {
        return 0;
    }
    if (mpq_sgn(x) < 0) {
        m->met |= MATHEXACT_REAL_ROOT;
        if (!(m->mode & MATHEXACT_REAL_ROOT)) {
            return 0;
        }
    }
    return mathexact_charge(m, 20) && mpz_root(mpq_numref(out), mpq_numref(x), index) &&
           mpz_root(mpq_denref(out), mpq_denref(x), index);
}

int mathexact_small(const mpq_t q, long limit, long *out)
{
    if (mpz_cmp_ui(mpq_denref(q), 1) != 0 ||
        mpz_cmpabs_ui(mpq_numref(q), (unsigned long)limit) > 0) {
        return 0;
    }
    *out = mpz_get_si(mpq_numref(q));
    return 1;
}

static int exact_based(node *x, mpq_t out)
{
    if (strlen(x->text) > 200) {
        return 0;
    }
    if (mpz_set_str(mpq_numref(out), x->text, x->exp10) != 0) {
        return 0;
    }
    mpz_set_ui(mpq_denref(out), 1);
    return 1;
}

static int exact_function(struct mathval *m, node *x, mpq_t a, mpq_t out)
{
    mpq_t b;
    int ok = 1;

    switch (x->fn) {
    case MATHLEX_FN_ABS: mpq_abs(out, a); return 1;
    case MATHLEX_FN_FLOOR:
    case MATHLEX_FN_CEIL:
        if (x->fn == MATHLEX_FN_FLOOR) {
            mpz_fdiv_q(mpq_numref(out), mpq_numref(a), mpq_denref(a));
        } else {
            mpz_cdiv_q(mpq_numref(out), mpq_numref(a), mpq_denref(a));
        }
        mpz_set_ui(mpq_denref(out), 1);
        return 1;
    case MATHLEX_FN_MAX:
    case MATHLEX_FN_MIN:
    case MATHLEX_FN_GCD:
    case MATHLEX_FN_LCM:
        mpq_init(b);
        mpq_set(out, a);
        for (int i = 1; i < x->n && ok; i++) {
            ok = mathexact_eval(m, x->kid[i], b);
            if (ok && x->fn >= MATHLEX_FN_GCD) {
                ok = mpz_cmp_ui(mpq_denref(out), 1) == 0 && mpz_cmp_ui(mpq_denref(b), 1) == 0;
                if (ok && x->fn == MATHLEX_FN_GCD) {
                    mpz_gcd(mpq_numref(out), mpq_numref(out), mpq_numref(b));
                } else if (ok) {
                    mpz_lcm(mpq_numref(out), mpq_numref(out), mpq_numref(b));
                }
            } else if (ok && (mpq_cmp(b, out) > 0) == (x->fn == MATHLEX_FN_MAX)) {
                mpq_set(out, b);
            }
        }
        mpq_clear(b);
        return ok && mathexact_bits(out) < MAX_BITS;
    default: return 0;
    }
}

static int exact_sum(struct mathval *m, node *x, mpq_t out)
{
    struct mathval_bound b = {m->bound, x->kid[0]->text, 0};
    long from, to;
    mpq_t t;
    int ok;

    mpq_init(t);
    ok = mathexact_eval(m, x->kid[1], t) && mathexact_small(t, 1000000, &from) &&
         mathexact_eval(m, x->kid[2], t) && mathexact_small(t, 1000000, &to) &&
         to - from < MATHEXACT_TERMS;
    mpq_set_ui(out, x->op == MATHREAD_PROD, 1);
    m->bound = &b;
    for (b.value = ok ? from : 1; ok && b.value <= to; b.value++) {
        ok = mathexact_eval(m, x->kid[3], t);
        if (ok && x->op == MATHREAD_SUM) {
            mpq_add(out, out, t);
        } else if (ok) {
            mpq_mul(out, out, t);
        }
        ok = ok && mathexact_bits(out) < MAX_BITS;
    }
    m->bound = b.up;
    mpq_clear(t);
    return ok;
}

static int exact_two(struct mathval *m, node *x, mpq_t a, mpq_t b, mpq_t out)
{
    long n, k;

    switch (x->op) {
    case MATHREAD_ADD: mpq_add(out, a, b); return 1;
    case MATHREAD_SUB: mpq_sub(out, a, b); return 1;
    case MATHREAD_MUL: mpq_mul(out, a, b); return 1;
    case MATHREAD_DIV:
        if (mpq_sgn(b) == 0) {
            return 0;
        }
        mpq_div(out, a, b);
        return 1;
    case MATHREAD_POW: return exact_power(m, a, b, out);
    case MATHREAD_ROOT:
        return mathexact_small(b, 1000, &k) && k > 0 && exact_root(m, a, (unsigned long)k, out);
    case MATHREAD_BINOM:
        if (!mathexact_small(a, 2000, &n) || !mathexact_small(b, 2000, &k) || n < 0 ||
            !mathexact_charge(m, 200)) {
            return 0;
        }
        if (k < 0 || k > n) {
            mpq_set_ui(out, 0, 1);
        } else {
            mpz_bin_uiui(mpq_numref(out), (unsigned long)n, (unsigned long)k);
            mpz_set_ui(mpq_denref(out), 1);
        }
        return 1;
    default: return 0;
    }
}

int mathexact_eval(struct mathval *m, node *x, mpq_t out)
{
    const struct mathval_bound *bound;
    mpq_t a, b;
    long n;
    int ok = 0;

    if (!mathexact_charge(m, 1)) {
        return 0;
    }
    switch (x->op) {
    case MATHREAD_NUM: return exact_literal(x, out);
    case MATHREAD_BASE: return exact_based(x, out);
    case MATHREAD_SYM:
    case MATHREAD_I:
        bound = mathexact_bound(m, x);
        if (bound) {
            mpq_set_si(out, bound->value, 1);
        }
        return bound != NULL;
    case MATHREAD_SUM:
    case MATHREAD_PROD: return exact_sum(m, x, out);
    case MATHREAD_NEG:
    case MATHREAD_ADD:
    case MATHREAD_SUB:
    case MATHREAD_MUL:
    case MATHREAD_DIV:
    case MATHREAD_POW:
    case MATHREAD_ROOT:
    case MATHREAD_BINOM:
    case MATHREAD_FACT:
    case MATHREAD_FUNC:
    case MATHREAD_PERCENT:
    case MATHREAD_UNIT: break;
    default: return 0;
    }
    mpq_init(a);
    mpq_init(b);
    ok = mathexact_eval(m, x->kid[0], a);
    if (ok && x->n == 2 && x->op != MATHREAD_FUNC) {
        ok = mathexact_eval(m, x->kid[1], b) &&
             mathexact_charge(m, (int64_t)(mathexact_bits(a) + mathexact_bits(b)) / 256) &&
             exact_two(m, x, a, b, out) && mathexact_bits(out) < MAX_BITS;
    } else if (ok && x->op == MATHREAD_NEG) {
        mpq_neg(out, a);
    } else if (ok && x->op == MATHREAD_UNIT) {
        mpq_set(out, a);
    } else if (ok && x->op == MATHREAD_PERCENT) {
        mpq_set_ui(b, 1, 100);
        mpq_mul(out, a, b);
    } else if (ok && x->op == MATHREAD_ROOT) {
        ok = exact_root(m, a, 2, out);
    } else if (ok && x->op == MATHREAD_FACT) {
        ok = mathexact_small(a, MAX_FACTORIAL, &n) && n >= 0 && mathexact_charge(m, n);
        if (ok) {
            mpz_fac_ui(mpq_numref(out), (unsigned long)n);
            mpz_set_ui(mpq_denref(out), 1);
        }
    } else if (ok) {
        ok = exact_function(m, x, a, out);
    }
    mpq_clear(a);
    mpq_clear(b);
    return ok;
}
