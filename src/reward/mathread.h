/* A mathematical answer as a tree.
 *
 *     struct mathread r;
 *     if (mathread_parse(&r, &arena, "\\frac{1}{2}x", 1) == 0) use(r.root); else puts(r.why);
 *
 * The grammar is that of short answers: a list of items; an item is a relation of set expressions;
 * those are sums, products, powers as usual, with tuples, sets and matrices as values. Products may
 * have no sign; 1/2x is (1/2)x; 2\frac{1}{2} is two and a half. Depth and size are bounded. */
#ifndef REWARD_MATHREAD_H
#define REWARD_MATHREAD_H

struct arena;

enum mathread_op {
    /* values */
    MATHREAD_NUM,  /* text: digits with at most one point; more: repeating digits or NULL; exp10 */
    MATHREAD_SYM,  /* text: the name */
    MATHREAD_WORD, /* text: a word in lower case, which is a name too */
    MATHREAD_PI,
    MATHREAD_E,
    MATHREAD_I,
    MATHREAD_INF,
    MATHREAD_ADD, /* two kids, as SUB, MUL, DIV, POW */
    MATHREAD_SUB,
    MATHREAD_MUL,
    MATHREAD_DIV,
    MATHREAD_POW,
    MATHREAD_NEG,
    MATHREAD_ROOT, /* radicand, index (which may be missing: a square root) */
    MATHREAD_FUNC, /* fn: enum mathlex_fn; one kid, or several for max, min, gcd, lcm */
    MATHREAD_LOGB, /* base, argument */
    MATHREAD_FACT,
    MATHREAD_BINOM,
    MATHREAD_PM, /* one or two kids: plus or minus */
    MATHREAD_MP,
    MATHREAD_DEG,     /* degrees */
    MATHREAD_PERCENT, /* hundredths */
    MATHREAD_BASE,    /* text: digits; exp10: the base */
    MATHREAD_UNIT,    /* text: the unit as written; fn: it was a plain word, as cm in 3cm */
    MATHREAD_SUM,     /* index, from, to, term */
    MATHREAD_PROD,
    MATHREAD_INT, /* variable, from or NULL, to or NULL, integrand */
    MATHREAD_LIM, /* variable, place, term */
    /* structures */
    MATHREAD_TUPLE, /* open, close: their brackets */
    MATHREAD_LIST,  /* fn: the items are joined by "and" */
    MATHREAD_SET,
    MATHREAD_UNION,
    MATHREAD_INTERSECT,
    MATHREAD_SETMINUS,
    MATHREAD_REL, /* n kids with n - 1 signs in text: = < > l(e) g(e) n(e) */
    MATHREAD_IN,
    MATHREAD_MATRIX, /* rows, cols */
    MATHREAD_RATIO,
    MATHREAD_REALS,
    MATHREAD_EMPTY
};

struct mathread_node {
    enum mathread_op op;
    int fn, exp10;
    int n;
    int open, close;
    int rows, cols;
    int grouped; /* it stood in parentheses */
    struct mathread_node **kid;
    const char *text, *more;
};

struct mathread {
    struct mathread_node *root;
    int merged; /* commas were taken as thousands separators */
    int money;
    int count; /* nodes */
    char why[160];
};

enum { MATHREAD_MAX_NODES = 3000 };

/* 0, or -1 with the reason. thousands: see mathlex.h. The tree lives in the arena. */
int mathread_parse(struct mathread *r, struct arena *a, const char *text, int thousands);

/* A node of the given kids, in the arena. */
struct mathread_node *mathread_make(struct arena *a, enum mathread_op op, struct mathread_node *x,
                                    struct mathread_node *y);

/* 1 when `unit` (as in MATHREAD_UNIT) is a unit we know, with what it measures (an opaque number,
 * 0 for "do not compare") and its size in the base unit as a fraction. */
int mathread_unit(const char *unit, int *dimension, double *num, double *den);

#endif
