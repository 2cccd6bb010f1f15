/* The words of a mathematical answer: LaTeX, plain text and Unicode signs become one kind of token.
 *
 *     struct mathlex x;
 *     if (mathlex_run(&x, &arena, text, thousands) == 0) { x.tok[0 .. x.n - 1], the last is
 * MATHLEX_END } else puts(x.why);
 *
 * Spacing commands, dollar signs, \left and \right are gone. All text lives in the arena. */
#ifndef REWARD_MATHLEX_H
#define REWARD_MATHLEX_H

struct arena;

enum mathlex_kind {
    MATHLEX_END,
    MATHLEX_NUM,  /* text: digits and at most one point; more: repeating digits or NULL; exp10 */
    MATHLEX_SYM,  /* text: a name of one letter, a Greek letter, a letter with an accent */
    MATHLEX_WORD, /* text: a run of letters */
    MATHLEX_TEXT, /* text: content of \text{} and the like; plain: it was \mathrm or \operatorname
                   */
    MATHLEX_OP,   /* op: one of "+-*^_!()[]{},;:|=<>'&/" or a name below */
    MATHLEX_FUNC, /* op: a function */
    MATHLEX_BIG   /* op: MATHLEX_SUM, MATHLEX_PROD, MATHLEX_INT, MATHLEX_LIM */
};

enum mathlex_op {
    MATHLEX_FRAC = 256,
    MATHLEX_BINOM,
    MATHLEX_SQRT,
    MATHLEX_SETOPEN,
    MATHLEX_SETCLOSE,
    MATHLEX_LANGLE,
    MATHLEX_RANGLE,
    MATHLEX_LFLOOR,
    MATHLEX_RFLOOR,
    MATHLEX_LCEIL,
    MATHLEX_RCEIL,
    MATHLEX_LE,
    MATHLEX_GE,
    MATHLEX_NE,
    MATHLEX_APPROX,
    MATHLEX_IN,
    MATHLEX_CUP,
    MATHLEX_CAP,
    MATHLEX_SETMINUS,
    MATHLEX_PM,
    MATHLEX_MP,
    MATHLEX_DEG,
    MATHLEX_PERCENT,
    MATHLEX_INFTY,
    MATHLEX_PI,
    MATHLEX_REALS,
    MATHLEX_EMPTY,
    MATHLEX_MID,
    MATHLEX_BEGIN, /* text: the environment */
    MATHLEX_ENDENV,
    MATHLEX_ROW, /* \\ */
    MATHLEX_SEP, /* "and", "or"; text is not NULL for "and" */
    MATHLEX_SUM,
    MATHLEX_PROD,
    MATHLEX_INT,
    MATHLEX_LIM
};

/* In the order of mathlex_functions. */
enum mathlex_fn {
    MATHLEX_FN_SIN,
    MATHLEX_FN_COS,
    MATHLEX_FN_TAN,
    MATHLEX_FN_COT,
    MATHLEX_FN_SEC,
    MATHLEX_FN_CSC,
    MATHLEX_FN_ASIN,
    MATHLEX_FN_ACOS,
    MATHLEX_FN_ATAN,
    MATHLEX_FN_ACOT,
    MATHLEX_FN_ASEC,
    MATHLEX_FN_ACSC,
    MATHLEX_FN_SINH,
    MATHLEX_FN_COSH,
    MATHLEX_FN_TANH,
    MATHLEX_FN_ASINH,
    MATHLEX_FN_ACOSH,
    MATHLEX_FN_ATANH,
    MATHLEX_FN_LN,
    MATHLEX_FN_LOG,
    MATHLEX_FN_EXP,
    MATHLEX_FN_ABS,
    MATHLEX_FN_FLOOR,
    MATHLEX_FN_CEIL,
    MATHLEX_FN_MAX,
    MATHLEX_FN_MIN,
    MATHLEX_FN_GCD,
    MATHLEX_FN_LCM,
    MATHLEX_FN_COUNT
};

extern const char *const mathlex_functions[MATHLEX_FN_COUNT]; /* sin, cos, ... */

struct mathlex_token {
    enum mathlex_kind kind;
    int op;
    int space; /* a blank stood before */
    int plain; /* of text: see above; of sqrt: it was not \sqrt, so sqrt12 is the root of 12 */
    const char *text, *more;
    int exp10;
};

struct mathlex {
    struct mathlex_token *tok;
    int n;
    int merged; /* commas were taken as thousands separators */
    int money;  /* a currency sign was dropped */
    char why[160];
};

/* thousands: take 1,234 outside of brackets as one number. 0, or -1 with the reason in x->why. */
int mathlex_run(struct mathlex *x, struct arena *a, const char *text, int thousands);

#endif
