/* Owns intervals. A set is a list of pieces; every operation ends in `tidy`, which sorts them and
 * joins what touches, so that equal sets have equal pieces. Complement is the one operation from
 * which difference and intersection follow. */
#include "reward/mathdom.h"

#include <string.h>

#include "reward/mathread.h"
#include "reward/mathval.h"

typedef const struct mathread_node node;
typedef struct mathdom_piece piece;

int mathdom_is_name(node *x)
{
    switch (x->op) {
    case MATHREAD_SYM:
    case MATHREAD_WORD: return 1;
    case MATHREAD_E:
    case MATHREAD_I: return 0;
    case MATHREAD_MUL: {
        node *b = x->kid[1];
        int inside = mathdom_is_name(b) || (b->grouped && (b->op == MATHREAD_NUM));
        return mathdom_is_name(x->kid[0]) && inside; /* f(x), P(1) */
    }
    default: return 0;
    }
}

/* ---- ends ---- */

/* -1, 0, 1; 2 when it cannot be told. Infinite: `inf` is the sign. */
static int order_ends(struct mathval *m, node *a, int a_inf, node *b, int b_inf)
{
    int order;

    if (!a || !b) {
        int x = a ? 0 : a_inf, y = b ? 0 : b_inf;
        return x < y ? -1 : x > y ? 1 : 0;
    }
    return mathval_order(m, a, b, &order) ? order : 2;
}

static int order_lows(struct mathval *m, const piece *a, const piece *b)
{
    int o = order_ends(m, a->lo, -1, b->lo, -1);
    if (o == 0 && a->lo) {
        return b->lo_in - a->lo_in; /* the closed end comes first */
    }
    return o;
}

/* An end of an interval: NULL for infinity, whose sign goes to *inf. */
static node *read_end(node *x, int *inf)
{
    *inf = 0;
    if (x->op == MATHREAD_INF) {
        *inf = 1;
        return NULL;
    }
    if (x->op == MATHREAD_NEG && x->kid[0]->op == MATHREAD_INF) {
        *inf = -1;
        return NULL;
    }
    return x;
}

/* Sorts and joins; 1, or -1 when two ends cannot be ordered. */
static int tidy(struct mathval *m, struct mathdom *d)
{
    int n = 0;

    for (int i = 0; i < d->n; i++) { /* what is empty goes */
        piece *p = &d->piece[i];
        int o = p->lo && p->hi ? order_ends(m, p->lo, 0, p->hi, 0) : -1;
        if (o == 2) {
            return -1;
        }
        if (o < 0 || (o == 0 && p->lo_in && p->hi_in)) {
            d->piece[n++] = *p;
        }
    }
    d->n = n;
    for (int i = 1; i < n; i++) {
        for (int k = i; k > 0; k--) {
            int o = order_lows(m, &d->piece[k], &d->piece[k - 1]);
            piece t = d->piece[k];
            if (o == 2) {
                return -1;
            }
            if (o >= 0) {
                break;
            }
            d->piece[k] = d->piece[k - 1];
            d->piece[k - 1] = t;
        }
    }
    for (int i = 1; i < d->n;) {
        piece *a = &d->piece[i - 1], *b = &d->piece[i];
        int o = a->hi && b->lo ? order_ends(m, a->hi, 0, b->lo, 0) : 1, e;
        if (o == 2) {
            return -1;
        }
        if (o < 0 || (o == 0 && !a->hi_in && !b->lo_in)) {
            i++;
            continue;
        }
        e = order_ends(m, a->hi, 1, b->hi, 1);
        if (e == 2) {
            return -1;
        }
        if (e < 0) {
            a->hi = b->hi;
            a->hi_in = b->hi_in;
        } else if (e == 0) {
            a->hi_in |= b->hi_in;
        }
        memmove(b, b + 1, (size_t)(d->n - i - 1) * sizeof *b);
        d->n--;
    }
    return 1;
}

static int put(struct mathdom *d, node *lo, int lo_in, node *hi, int hi_in)
{
    if (d->n == MATHDOM_MAX) {
        return -1;
    }
    d->piece[d->n++] = (piece){lo, hi, lo ? lo_in : 0, hi ? hi_in : 0};
    return 1;
}

/* ---- operations ---- */

static int complement(const struct mathdom *a, struct mathdom *out)
{
    node *lo = NULL;
    int lo_in = 0, open = 1, rc = 1;

    out->n = 0;
    for (int i = 0; i < a->n && rc == 1; i++) {
        const piece *p = &a->piece[i];
        if (p->lo) {
            rc = put(out, lo, lo_in, p->lo, !p->lo_in);
        }
        lo = p->hi;
        lo_in = !p->hi_in;
        open = p->hi != NULL;
    }
    return open && rc == 1 ? put(out, lo, lo_in, NULL, 0) : rc;
}

static int join(struct mathval *m, struct mathdom *a, const struct mathdom *b)
{
    for (int i = 0; i < b->n; i++) {
        if (a->n == MATHDOM_MAX) {
            return -1;
        }
        a->piece[a->n++] = b->piece[i];
    }
    return tidy(m, a);
}

/* a and b: not (not a or not b). */
static int intersect(struct mathval *m, struct mathdom *a, const struct mathdom *b)
{
    struct mathdom x, y;

    if (complement(a, &x) != 1 || complement(b, &y) != 1 || join(m, &x, &y) != 1) {
        return -1;
    }
    return complement(&x, a);
}

/* ---- reading ---- */

static int flip(int sign)
{
    return sign == '<' ? '>' : sign == '>' ? '<' : sign == 'l' ? 'g' : sign == 'g' ? 'l' : sign;
}

/* The set of x with `x sign end`. */
static int half_line(struct mathval *m, struct mathdom *d, int sign, node *end)
{
    int inf;
    node *e = read_end(end, &inf);

    d->n = 0;
    if (inf) { /* x < infinity: everything; x > infinity: nothing */
        int all = (sign == '<' && inf > 0) || (sign == '>' && inf < 0);
        return all ? put(d, NULL, 0, NULL, 0) : 0;
    }
    switch (sign) {
    case '<': return put(d, NULL, 0, e, 0);
    case 'l': return put(d, NULL, 0, e, 1);
    case '>': return put(d, e, 0, NULL, 0);
    case 'g': return put(d, e, 1, NULL, 0);
    case 'n': return put(d, NULL, 0, e, 0) == 1 && put(d, e, 0, NULL, 0) == 1 ? tidy(m, d) : -1;
    case '=': return put(d, e, 1, e, 1);
    default: return 0;
    }
}

node *mathdom_subject(node *x)
{
    if (x->op != MATHREAD_REL) {
        return NULL;
    }
    if (x->n == 2 && strchr("<>lgn", x->text[0])) {
        if (mathdom_is_name(x->kid[0]) && mathval_is_constant(x->kid[1])) {
            return x->kid[0];
        }
        if (mathdom_is_name(x->kid[1]) && mathval_is_constant(x->kid[0])) {
            return x->kid[1];
        }
    }
    if (x->n == 3 && strchr("<>lg", x->text[0]) && strchr("<>lg", x->text[1]) &&
        mathdom_is_name(x->kid[1]) && mathval_is_constant(x->kid[0]) &&
        mathval_is_constant(x->kid[2])) {
        return x->kid[1];
    }
    return NULL;
}

static int read_relation(struct mathdom *d, struct mathval *m, node *x)
{
    node *who = mathdom_subject(x);
    struct mathdom b;
    int rc;

    if (!who) {
        return 0;
    }
    if (x->n == 2) {
        return who == x->kid[0] ? half_line(m, d, x->text[0], x->kid[1])
                                : half_line(m, d, flip(x->text[0]), x->kid[0]);
    }
    rc = half_line(m, d, flip(x->text[0]), x->kid[0]);
    if (rc == 1) {
        rc = half_line(m, &b, x->text[1], x->kid[2]);
    }
    return rc == 1 ? intersect(m, d, &b) : rc;
}

static int read_interval(struct mathdom *d, struct mathval *m, node *x)
{
    int a, b;
    node *lo, *hi;

    if (x->n != 2) {
        return 0;
    }
    lo = read_end(x->kid[0], &a);
    hi = read_end(x->kid[1], &b);
    if (a > 0 || b < 0 || (lo && !mathval_is_constant(lo)) || (hi && !mathval_is_constant(hi))) {
        return 0;
    }
    d->n = 0;
    return put(d, lo, x->open == '[', hi, x->close == ']') == 1 ? tidy(m, d) : -1;
}

static int read_points(struct mathdom *d, struct mathval *m, node *x)
{
    d->n = 0;
    for (int i = 0; i < x->n; i++) {
        if (!mathval_is_constant(x->kid[i]) || x->kid[i]->op >= MATHREAD_TUPLE) {
            return 0;
        }
        if (put(d, x->kid[i], 1, x->kid[i], 1) != 1) {
            return -1;
        }
    }
    return tidy(m, d);
}

/* Inequalities joined by "and" or "or". */
static int read_list(struct mathdom *d, struct mathval *m, node *x)
{
    for (int i = 0; i < x->n; i++) {
        struct mathdom b;
        int rc = x->kid[i]->op == MATHREAD_REL ? read_relation(i ? &b : d, m, x->kid[i]) : 0;
        if (rc == 1 && i > 0) {
            rc = x->fn ? intersect(m, d, &b) : join(m, d, &b);
        }
        if (rc != 1) {
            return rc;
        }
    }
    return 1;
}

int mathdom_read(struct mathdom *d, struct mathval *m, node *x)
{
    struct mathdom b, c;
    int rc;

    memset(d, 0, sizeof *d);
    switch (x->op) {
    case MATHREAD_TUPLE: return read_interval(d, m, x);
    case MATHREAD_SET: return read_points(d, m, x);
    case MATHREAD_LIST: return read_list(d, m, x);
    case MATHREAD_REL: return read_relation(d, m, x);
    case MATHREAD_REALS: return put(d, NULL, 0, NULL, 0);
    case MATHREAD_EMPTY: return 1;
    case MATHREAD_IN: return mathdom_read(d, m, x->kid[1]);
    case MATHREAD_UNION:
    case MATHREAD_INTERSECT:
    case MATHREAD_SETMINUS:
        rc = mathdom_read(d, m, x->kid[0]);
        if (rc == 1) {
            rc = mathdom_read(&b, m, x->kid[1]);
        }
        if (rc != 1) {
            return rc;
        }
        if (x->op == MATHREAD_UNION) {
            return join(m, d, &b);
        }
        if (x->op == MATHREAD_INTERSECT) {
            return intersect(m, d, &b);
        }
        return complement(&b, &c) == 1 ? intersect(m, d, &c) : -1;
    default: return 0;
    }
}

static int same_end(struct mathval *m, node *a, int a_in, node *b, int b_in)
{
    if (!a || !b) {
        return a == b;
    }
    return a_in == b_in ? mathval_equal(m, a, b) : 0;
}

int mathdom_equal(struct mathval *m, const struct mathdom *a, const struct mathdom *b)
{
    int all = 1;

    if (a->n != b->n) {
        return 0;
    }
    for (int i = 0; i < a->n; i++) {
        const piece *p = &a->piece[i], *q = &b->piece[i];
        int lo = same_end(m, p->lo, p->lo_in, q->lo, q->lo_in);
        int hi = same_end(m, p->hi, p->hi_in, q->hi, q->hi_in);
        if (lo == 0 || hi == 0) {
            return 0;
        }
        all = lo < 0 || hi < 0 ? -1 : all;
    }
    return all;
}
