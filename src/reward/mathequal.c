/* Owns the rules by which two answers are equal, in this order: the text; a choice letter; a time
 * of day; then the trees, by what they are (lists, tuples, sets of real numbers, equations,
 * matrices, ratios, values with their units). Every rule leaves its words in the verdict. Values
 * themselves are compared in mathval, intervals in mathdom. */
#include "reward/mathequal.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "reward/mathdom.h"
#include "reward/mathlex.h"
#include "reward/mathread.h"
#include "reward/mathval.h"

enum {
    MAX_ITEMS = 64,     /* of a list that is matched in any order */
    MAX_DEPTH = 24,     /* of structures in structures */
    ROUND_DIGITS = 6,   /* significant digits from which a decimal may stand for its exact value */
    MAX_PLUS_MINUS = 3, /* signs expanded in one answer */
    MAX_ASKED = 8       /* pairs in one question */
};

typedef struct mathread_node node;

struct ctx {
    struct arena a;
    struct mathval m;
    int depth;
    const char *truth, *given; /* as they came */
    int any_order; /* inside a matching: what is unknown there is no question for sympy */
    char why[MATHVERDICT_REASON];
    json_t *ask; /* pairs of trees that must be equal, all of them */
};

static int say(struct ctx *c, int right, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static int say(struct ctx *c, int right, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(c->why, sizeof c->why, fmt, ap);
    va_end(ap);
    return right;
}

static int compare(struct ctx *c, node *t, node *g);

/* ---- questions ---- */

static json_t *tree(const node *x)
{
    static const char *const names[] = {
        [MATHREAD_PI] = "pi",           [MATHREAD_E] = "e",         [MATHREAD_I] = "i",
        [MATHREAD_INF] = "inf",         [MATHREAD_ADD] = "add",     [MATHREAD_SUB] = "sub",
        [MATHREAD_MUL] = "mul",         [MATHREAD_DIV] = "div",     [MATHREAD_POW] = "pow",
        [MATHREAD_NEG] = "neg",         [MATHREAD_ROOT] = "root",   [MATHREAD_LOGB] = "logb",
        [MATHREAD_FACT] = "fact",       [MATHREAD_BINOM] = "binom", [MATHREAD_DEG] = "deg",
        [MATHREAD_PERCENT] = "percent", [MATHREAD_SUM] = "sum",     [MATHREAD_PROD] = "prod"};
    json_t *out = json_array();

    if (x->op == MATHREAD_UNIT) {
        json_decref(out);
        return tree(x->kid[0]);
    }
    if (x->op == MATHREAD_NUM) {
        json_array_append_new(out, json_string("num"));
        json_array_append_new(out, json_string(x->text));
        json_array_append_new(out, json_string(x->more ? x->more : ""));
        json_array_append_new(out, json_integer(x->exp10));
        return out;
    }
    if (x->op == MATHREAD_BASE) {
        json_array_append_new(out, json_string("based"));
        json_array_append_new(out, json_string(x->text));
        json_array_append_new(out, json_integer(x->exp10));
        return out;
    }
    if (x->op == MATHREAD_SYM || x->op == MATHREAD_WORD) {
        json_array_append_new(out, json_string("sym"));
        json_array_append_new(out, json_string(x->text));
    } else if (x->op == MATHREAD_FUNC) {
        json_array_append_new(out, json_string(mathlex_functions[x->fn]));
    } else if ((size_t)x->op < sizeof names / sizeof *names && names[x->op]) {
        json_array_append_new(out, json_string(names[x->op]));
    } else {
        json_decref(out);
        return NULL;
    }
    for (int i = 0; i < x->n; i++) {
        json_t *kid = tree(x->kid[i]);
        if (!kid) {
            json_decref(out);
            return NULL;
        }
        json_array_append_new(out, kid);
    }
    return out;
}

/* Notes a pair for sympy; how: "equal" or "equation". */
static void ask(struct ctx *c, const char *how, const node *t, const node *g)
{
    json_t *a, *b;

    if (c->any_order || json_array_size(c->ask) >= MAX_ASKED) {
        return;
    }
    a = tree(t);
    b = tree(g);
    if (a && b) {
        json_array_append_new(c->ask, json_pack("[s, o, o]", how, a, b));
    } else {
        json_decref(a);
        json_decref(b);
        json_array_append_new(c->ask, json_null()); /* there is more, which cannot be asked */
    }
}

/* ---- values ---- */

struct quantity {
    node *value;
    int percent, degree, dimension;
    double num, den;
    const char *unit;
};

/* Takes percent, degrees and units off the end of a value. */
static struct quantity quantity(struct ctx *c, node *x)
{
    struct quantity q = {.value = x, .num = 1, .den = 1};
    int minus = 0;

    for (;;) {
        if (x->op == MATHREAD_NEG &&
            (x->kid[0]->op == MATHREAD_UNIT || x->kid[0]->op == MATHREAD_PERCENT ||
             x->kid[0]->op == MATHREAD_DEG)) {
            minus ^= 1;
            x = x->kid[0];
        } else if (x->op == MATHREAD_UNIT) {
            q.unit = x->text;
            if (!mathread_unit(x->text, &q.dimension, &q.num, &q.den)) {
                q.dimension = 0;
            }
            x = x->kid[0];
        } else if (x->op == MATHREAD_PERCENT) {
            q.percent = 1;
            x = x->kid[0];
        } else if (x->op == MATHREAD_DEG) {
            q.degree = 1;
            x = x->kid[0];
        } else {
            break;
        }
    }
    q.value = minus ? mathread_make(&c->a, MATHREAD_NEG, x, NULL) : x;
    return q;
}

/* 0.1 m: a letter is a unit when the other side has one. */
static void letter_unit(struct quantity *q)
{
    node *x = q->value;

    if (!q->unit && x->op == MATHREAD_MUL && x->kid[1]->op == MATHREAD_SYM &&
        mathval_is_constant(x->kid[0]) &&
        mathread_unit(x->kid[1]->text, &q->dimension, &q->num, &q->den)) {
        q->unit = x->kid[1]->text;
        q->value = x->kid[0];
    }
}

static node *number(struct ctx *c, double v)
{
    node *x = mathread_make(&c->a, MATHREAD_NUM, NULL, NULL);
    char *text = arena_alloc(&c->a, 40);

    snprintf(text, 40, "%.0f", v);
    x->text = text;
    return x;
}

static node *scaled(struct ctx *c, node *x, double num, double den)
{
    x = mathread_make(&c->a, MATHREAD_MUL, x, number(c, num));
    return mathread_make(&c->a, MATHREAD_DIV, x, number(c, den));
}

/* "3 != 4" for a reason, as far as both have short values. */
static int say_different(struct ctx *c, node *t, node *g)
{
    char a[64], b[64];

    mathval_show(&c->m, t, a, sizeof a);
    mathval_show(&c->m, g, b, sizeof b);
    if (*a && *b) {
        return say(c, 0, "different number: %s != %s", b, a);
    }
    if (*a || *b) {
        return say(c, 0, "a number against a formula: %s != %s", *b ? b : "formula",
                   *a ? a : "formula");
    }
    return say(c, 0, "different formula");
}

static int is_based(const node *x)
{
    return x->op == MATHREAD_BASE || (x->op == MATHREAD_NEG && x->kid[0]->op == MATHREAD_BASE);
}

/* 1011_2 against 1011: the digits count, for the base was asked for. */
static int compare_based(struct ctx *c, node *t, node *g)
{
    const node *a = t->op == MATHREAD_NEG ? t->kid[0] : t;
    const node *b = g->op == MATHREAD_NEG ? g->kid[0] : g;
    int same;

    if (is_based(t) && is_based(g)) {
        same = mathval_equal(&c->m, t, g);
        return same == 1 ? say(c, 1, "equal number in its base") : say_different(c, t, g);
    }
    if (b->op != MATHREAD_NUM && b->op != MATHREAD_BASE) {
        return say(c, 0, "a number in another base against a formula");
    }
    if (a->op != MATHREAD_NUM && a->op != MATHREAD_BASE) {
        return say(c, 0, "a number in another base against a formula");
    }
    same = strcmp(a->text, b->text) == 0 && (t->op == MATHREAD_NEG) == (g->op == MATHREAD_NEG);
    return say(c, same, same ? "equal digits, the base only once" : "different digits of a base");
}

/* Two values without units. */
static int compare_plain(struct ctx *c, node *t, node *g)
{
    int same;

    if (is_based(t) || is_based(g)) {
        return compare_based(c, t, g);
    }
    same = mathval_equal(&c->m, t, g);
    if (same == 1) {
        int number = mathval_is_constant(t) && mathval_is_constant(g);
        return say(c, 1, number ? "equal number" : "equal formula at every point tried");
    }
    if (mathval_rounds(&c->m, g, t, ROUND_DIGITS) || mathval_rounds(&c->m, t, g, ROUND_DIGITS)) {
        return say(c, 1, "equal when rounded to the decimals given");
    }
    if (same == 0) {
        return say_different(c, t, g);
    }
    if (c->m.spent) {
        return say(c, -1, "its budget of work is used up");
    }
    ask(c, "equal", t, g);
    return say(c, -1, "needs algebra");
}

static int infinite(const node *x)
{
    if (x->op == MATHREAD_INF) {
        return 1;
    }
    return x->op == MATHREAD_NEG && x->kid[0]->op == MATHREAD_INF ? -1 : 0;
}

static int has_pi(const node *x)
{
    if (x->op == MATHREAD_PI) {
        return 1;
    }
    for (int i = 0; i < x->n; i++) {
        if (has_pi(x->kid[i])) {
            return 1;
        }
    }
    return 0;
}

/* 3cm against a formula: three times c times m. */
static node *letters_again(struct ctx *c, node *x, const node *against)
{
    node *out;

    if (x->op != MATHREAD_UNIT || !x->fn || strlen(x->text) != 2 || against->op == MATHREAD_UNIT ||
        mathval_is_constant(against)) {
        return x;
    }
    out = x->kid[0];
    for (int i = 0; i < 2; i++) {
        node *letter = mathread_make(&c->a, MATHREAD_SYM, NULL, NULL);
        letter->text = arena_strndup(&c->a, x->text + i, 1);
        out = mathread_make(&c->a, MATHREAD_MUL, out, letter);
    }
    return out;
}

static int compare_values(struct ctx *c, node *t, node *g)
{
    struct quantity a, b;
    int same;

    if (infinite(t) || infinite(g)) {
        same = infinite(t) == infinite(g);
        return say(c, same, same ? "equal infinity" : "infinity on one side only");
    }
    a = quantity(c, letters_again(c, t, g));
    b = quantity(c, letters_again(c, g, t));
    if (b.dimension) {
        letter_unit(&a);
    } else if (a.dimension) {
        letter_unit(&b);
    }
    if (a.dimension && b.dimension && a.dimension != b.dimension) {
        return say(c, 0, "different units: %.40s and %.40s", b.unit, a.unit);
    }
    if (a.dimension && b.dimension && a.num * b.den != b.num * a.den) {
        same = compare_plain(c, scaled(c, a.value, a.num, a.den), scaled(c, b.value, b.num, b.den));
        return same == 1 ? say(c, 1, "equal quantity in other units") : same;
    }
    same = compare_plain(c, a.value, b.value);
    if (same == 0 && a.percent != b.percent) {
        node *x = a.percent ? scaled(c, a.value, 1, 100) : a.value;
        node *y = b.percent ? scaled(c, b.value, 1, 100) : b.value;
        if (mathval_equal(&c->m, x, y) == 1) {
            return say(c, 1, "equal number, once as a percentage");
        }
    }
    if (same == 0 && a.degree != b.degree && (has_pi(a.value) || has_pi(b.value))) {
        node *x = a.degree ? mathread_make(&c->a, MATHREAD_DEG, a.value, NULL) : a.value;
        node *y = b.degree ? mathread_make(&c->a, MATHREAD_DEG, b.value, NULL) : b.value;
        if (mathval_equal(&c->m, x, y) == 1) {
            return say(c, 1, "equal angle, once in degrees");
        }
    }
    if (same == 1 && (a.unit || b.unit || a.percent || b.percent || a.degree || b.degree)) {
        return say(c, 1, "equal number with its unit");
    }
    return same;
}

/* ---- lists, sets and tuples ---- */

/* All of one side in order; unknown only when nothing is different. */
static int compare_in_order(struct ctx *c, const node *t, const node *g)
{
    int all = 1;

    if (t->n != g->n) {
        return say(c, 0, "different number of elements: %d != %d", g->n, t->n);
    }
    for (int i = 0; i < t->n; i++) {
        int same = compare(c, t->kid[i], g->kid[i]);
        if (same == 0) {
            char inner[MATHVERDICT_REASON];
            memcpy(inner, c->why, sizeof inner);
            return say(c, 0, "element %d: %.200s", i + 1, inner);
        }
        all = same < 0 ? -1 : all;
    }
    return all;
}

/* 1 when x equals an item that is not yet used; its index in *at. */
static int find_item(struct ctx *c, node *x, const node *list, const char *used, int swap, int *at)
{
    int unknown = 0;

    for (int i = 0; i < list->n; i++) {
        int same;
        if (used && used[i]) {
            continue;
        }
        same = swap ? compare(c, list->kid[i], x) : compare(c, x, list->kid[i]);
        if (same == 1) {
            *at = i;
            return 1;
        }
        unknown |= same < 0;
    }
    return unknown ? -1 : 0;
}

/* Lists match one to one; sets need each element of one in the other. */
static int compare_any_order(struct ctx *c, const node *t, const node *g, int sets)
{
    char used[MAX_ITEMS] = {0};
    int unknown = 0, at = 0;

    if (t->n > MAX_ITEMS || g->n > MAX_ITEMS) {
        return compare_in_order(c, t, g);
    }
    if (!sets && t->n != g->n) {
        return say(c, 0, "different number of elements: %d != %d", g->n, t->n);
    }
    c->any_order++;
    for (int i = 0; i < t->n; i++) {
        int found = find_item(c, t->kid[i], g, sets ? NULL : used, 0, &at);
        if (found == 1) {
            used[at] = 1;
        } else if (found == 0) {
            c->any_order--;
            return say(c, 0, "element %d of the label is not in the answer", i + 1);
        }
        unknown |= found < 0;
    }
    for (int i = 0; sets && i < g->n; i++) {
        int found = used[i] ? 1 : find_item(c, g->kid[i], t, NULL, 1, &at);
        if (found == 0) {
            c->any_order--;
            return say(c, 0, "element %d of the answer is not in the label", i + 1);
        }
        unknown |= found < 0;
    }
    c->any_order--;
    return unknown ? say(c, -1, "an element cannot be compared")
                   : say(c, 1, sets ? "equal set" : "equal elements in any order");
}

static int compare_tuples(struct ctx *c, const node *t, const node *g)
{
    int same;

    if (t->open != g->open || t->close != g->close) {
        return say(c, 0, "different brackets: %c %c != %c %c", g->open, g->close, t->open,
                   t->close);
    }
    same = compare_in_order(c, t, g);
    return same == 1 ? say(c, 1, "equal elements in order") : same;
}

static int is_vector(const node *x)
{
    return x->op == MATHREAD_MATRIX && (x->rows == 1 || x->cols == 1);
}

static int compare_matrices(struct ctx *c, const node *t, const node *g)
{
    int same;

    if (t->op == MATHREAD_MATRIX && g->op == MATHREAD_MATRIX &&
        (t->rows != g->rows || t->cols != g->cols)) {
        return say(c, 0, "different size of matrix: %dx%d != %dx%d", g->rows, g->cols, t->rows,
                   t->cols);
    }
    if ((t->op == MATHREAD_MATRIX && !is_vector(t) && g->op != MATHREAD_MATRIX) ||
        (g->op == MATHREAD_MATRIX && !is_vector(g) && t->op != MATHREAD_MATRIX)) {
        return say(c, 0, "a matrix on one side only");
    }
    same = compare_in_order(c, t, g);
    return same == 1 ? say(c, 1, "equal matrix or vector") : same;
}

static int is_zero(const node *x)
{
    return x->op == MATHREAD_NUM && x->text[strspn(x->text, "0.")] == 0;
}

static int compare_ratios(struct ctx *c, node *t, node *g)
{
    if (t->op != MATHREAD_RATIO || g->op != MATHREAD_RATIO) {
        const node *r = t->op == MATHREAD_RATIO ? t : g;
        node *other = t->op == MATHREAD_RATIO ? g : t;
        if (r->n != 2) {
            return say(c, 0, "a ratio of %d against a value", r->n);
        }
        return compare_values(c, mathread_make(&c->a, MATHREAD_DIV, r->kid[0], r->kid[1]), other);
    }
    if (t->n != g->n) {
        return say(c, 0, "different number of parts of a ratio: %d != %d", g->n, t->n);
    }
    for (int i = 0; i < t->n; i++) {
        if (is_zero(t->kid[i]) || is_zero(g->kid[i])) { /* 5:00 is a time rather */
            return compare_in_order(c, t, g);
        }
    }
    for (int i = 1; i < t->n; i++) {
        node *x = mathread_make(&c->a, MATHREAD_MUL, t->kid[i], g->kid[0]);
        node *y = mathread_make(&c->a, MATHREAD_MUL, g->kid[i], t->kid[0]);
        int same = mathval_equal(&c->m, x, y);
        if (same != 1) {
            return say(c, same, same ? "a ratio that cannot be compared" : "different ratio");
        }
    }
    return say(c, 1, "equal ratio");
}

/* ---- equations and sets of numbers ---- */

static int is_equation(const node *x)
{
    return x->op == MATHREAD_REL && x->text[strspn(x->text, "=")] == 0;
}

/* x, f(x), x + y: what an answer may repeat of the question before its equals sign. */
static int is_asked(const node *x)
{
    if (x->op == MATHREAD_ADD) {
        return is_asked(x->kid[0]) && is_asked(x->kid[1]);
    }
    return mathdom_is_name(x);
}

/* The right side of x = 5; NULL when the left side is not something that was asked for. */
static node *solved(const node *x)
{
    if (!is_asked(x->kid[0]) && !mathval_is_constant(x->kid[0])) {
        return NULL;
    }
    return x->kid[x->n - 1];
}

/* f(x) */
static int is_function(const node *x)
{
    return x->op == MATHREAD_MUL && x->kid[0]->op == MATHREAD_SYM && x->kid[1]->grouped;
}

static int same_name(struct ctx *c, node *a, node *b)
{
    return mathval_equal(&c->m, a, b) == 1;
}

/* The only name in x so far, or the first two that differ: *two is set then. */
static void find_names(const node *x, const char **name, int *two)
{
    if (x->op == MATHREAD_SYM || x->op == MATHREAD_WORD) {
        *two |= *name && strcmp(*name, x->text) != 0;
        *name = x->text;
    }
    for (int i = 0; i < x->n; i++) {
        find_names(x->kid[i], name, two);
    }
}

/* Equations in one unknown may have the same roots without being multiples of each other. */
static int one_name(const node *a, const node *b)
{
    const char *name = NULL;
    int two = 0;

    find_names(a, &name, &two);
    find_names(b, &name, &two);
    return name && !two;
}

static int compare_equations(struct ctx *c, node *t, node *g)
{
    node *a, *b;
    int same, sign;

    if (t->n != 2 || g->n != 2) {
        same = compare_in_order(c, t, g);
        return same == 1 ? say(c, 1, "equal chain of equations") : same;
    }
    if (is_asked(t->kid[0]) && is_asked(g->kid[0])) {
        int name = same_name(c, t->kid[0], g->kid[0]);
        int function = is_function(t->kid[0]) || is_function(g->kid[0]);
        if (name || function) {
            same = compare(c, t->kid[1], g->kid[1]);
            if (same == 1) {
                return say(c, 1, "equal right side of an equation");
            }
            if (name && mathval_is_constant(t->kid[1]) && mathval_is_constant(g->kid[1])) {
                return same;
            }
        }
    }
    if (t->kid[0]->op >= MATHREAD_TUPLE || t->kid[1]->op >= MATHREAD_TUPLE ||
        g->kid[0]->op >= MATHREAD_TUPLE || g->kid[1]->op >= MATHREAD_TUPLE) {
        same = compare_in_order(c, t, g);
        return same == 1 ? say(c, 1, "equal sides of an equation") : same;
    }
    a = mathread_make(&c->a, MATHREAD_SUB, t->kid[0], t->kid[1]);
    b = mathread_make(&c->a, MATHREAD_SUB, g->kid[0], g->kid[1]);
    same = mathval_proportional(&c->m, a, b, &sign);
    if (same == 1) {
        return say(c, 1, "equal equation up to a factor");
    }
    if (same == 0 && ((is_asked(t->kid[0]) && is_asked(g->kid[0])) || !one_name(a, b))) {
        return say(c, 0, "different equation");
    }
    if (c->m.spent) {
        return say(c, -1, "its budget of work is used up");
    }
    ask(c, "equation", a, b);
    return say(c, -1, "equations that are not multiples of each other: needs algebra");
}

/* x + y < 3 against 2x + 2y < 6. */
static int compare_inequalities(struct ctx *c, node *t, node *g)
{
    int sign, same, a = t->text[0], b = g->text[0];
    node *x, *y;

    if (t->n != 2 || g->n != 2) {
        same = strcmp(t->text, g->text) == 0 ? compare_in_order(c, t, g) : 0;
        return same == 1 ? say(c, 1, "equal chain of relations")
                         : say(c, same, "different chain of relations");
    }
    x = mathread_make(&c->a, MATHREAD_SUB, t->kid[0], t->kid[1]);
    y = mathread_make(&c->a, MATHREAD_SUB, g->kid[0], g->kid[1]);
    if (strchr("<>", a) ? !strchr("<>", b) : strchr("lg", a) ? !strchr("lg", b) : a != b) {
        return say(c, 0, "different relation signs");
    }
    same = mathval_proportional(&c->m, x, y, &sign);
    if (same == 1) {
        same = a == 'n' ? 1 : sign == 0 ? 0 : (sign > 0) == (a == b);
    }
    return say(c, same, same == 1 ? "equal relation up to a factor" : "different relation");
}

static int is_domain(const node *x)
{
    switch (x->op) {
    case MATHREAD_UNION:
    case MATHREAD_INTERSECT:
    case MATHREAD_SETMINUS:
    case MATHREAD_REALS:
    case MATHREAD_EMPTY: return 1;
    case MATHREAD_REL: return !is_equation(x);
    case MATHREAD_LIST:
        for (int i = 0; i < x->n; i++) {
            if (x->kid[i]->op != MATHREAD_REL || is_equation(x->kid[i])) {
                return 0;
            }
        }
        return 1;
    default: return 0;
    }
}

static int compare_domains(struct ctx *c, node *t, node *g)
{
    struct mathdom a, b;
    const node *x = mathdom_subject(t), *y = mathdom_subject(g);
    int ta = mathdom_read(&a, &c->m, t), gb = mathdom_read(&b, &c->m, g), same;

    if (ta == 1 && gb == 1) {
        if (x && y && !same_name(c, (node *)x, (node *)y)) {
            return say(c, 0, "relations about different names");
        }
        same = mathdom_equal(&c->m, &a, &b);
        return say(c, same,
                   same == 1   ? "equal set of real numbers"
                   : same == 0 ? "different set of real numbers"
                               : "ends of intervals that cannot be compared");
    }
    if (t->op == MATHREAD_REL && g->op == MATHREAD_REL) {
        return compare_inequalities(c, t, g);
    }
    if (t->op == MATHREAD_LIST && g->op == MATHREAD_LIST) {
        return compare_any_order(c, t, g, 0);
    }
    if (t->op == g->op && t->n == 2 && g->n == 2) {
        same = compare_in_order(c, t, g);
        return same == 1 ? say(c, 1, "equal parts of a set") : say(c, -1, "sets that are not read");
    }
    if (ta == -1 || gb == -1) {
        return say(c, -1, "a set whose ends cannot be put in order");
    }
    return say(c, 0, "%s is no set of real numbers", ta == 1 ? "the answer" : "the label");
}

/* ---- plus and minus ---- */

static int count_signs(const node *x)
{
    int n = x->op == MATHREAD_PM || x->op == MATHREAD_MP;

    for (int i = 0; i < x->n; i++) {
        n += count_signs(x->kid[i]);
    }
    return n;
}

/* The tree with plus for every upper sign, or minus. */
static node *choose(struct ctx *c, node *x, int minus)
{
    node *out;
    int other = x->op == MATHREAD_MP ? !minus : minus;

    if (x->n == 0) {
        return x;
    }
    out = arena_alloc(&c->a, sizeof *out);
    *out = *x;
    out->kid = arena_alloc(&c->a, (size_t)x->n * sizeof *out->kid);
    for (int i = 0; i < x->n; i++) {
        out->kid[i] = choose(c, x->kid[i], minus);
    }
    if (x->op == MATHREAD_PM || x->op == MATHREAD_MP) {
        if (x->n == 1) {
            return other ? mathread_make(&c->a, MATHREAD_NEG, out->kid[0], NULL) : out->kid[0];
        }
        out->op = other ? MATHREAD_SUB : MATHREAD_ADD;
    }
    return out;
}

/* Both choices of each item as a list. */
static node *expand(struct ctx *c, node *x)
{
    node *out = mathread_make(&c->a, MATHREAD_LIST, NULL, NULL);
    int list = x->op == MATHREAD_LIST || x->op == MATHREAD_SET, n = list ? x->n : 1;

    out->kid = arena_alloc(&c->a, (size_t)(2 * n) * sizeof *out->kid);
    for (int i = 0; i < n; i++) {
        node *item = list ? x->kid[i] : x;
        out->kid[out->n++] = choose(c, item, 0);
        if (count_signs(item)) {
            out->kid[out->n++] = choose(c, item, 1);
        }
    }
    return out;
}

/* ---- the order of rules ---- */

/* k times a matrix, minus a matrix, a matrix by k: the matrix of the products. */
static node *scalar_matrix(struct ctx *c, node *x)
{
    node *k = NULL, *mat = NULL, *out;

    if (x->op == MATHREAD_NEG && x->kid[0]->op == MATHREAD_MATRIX) {
        mat = x->kid[0];
    } else if ((x->op == MATHREAD_MUL || x->op == MATHREAD_DIV) && x->n == 2) {
        int second = x->kid[1]->op == MATHREAD_MATRIX && x->op == MATHREAD_MUL;
        mat = x->kid[second];
        k = x->kid[!second];
    }
    if (!mat || mat->op != MATHREAD_MATRIX || (k && k->op >= MATHREAD_TUPLE)) {
        return x;
    }
    out = arena_alloc(&c->a, sizeof *out);
    *out = *mat;
    out->kid = arena_alloc(&c->a, (size_t)mat->n * sizeof *out->kid);
    for (int i = 0; i < mat->n; i++) {
        out->kid[i] = k ? mathread_make(&c->a, x->op, mat->kid[i], k)
                        : mathread_make(&c->a, MATHREAD_NEG, mat->kid[i], NULL);
    }
    return out;
}

static int is_list(const node *x)
{
    return x->op == MATHREAD_LIST || x->op == MATHREAD_SET;
}

/* Structures against structures; the sides are known to be no equations. */
static int compare_structures(struct ctx *c, node *t, node *g)
{
    if (t->op == MATHREAD_MATRIX || g->op == MATHREAD_MATRIX) {
        if (t->op < MATHREAD_TUPLE || g->op < MATHREAD_TUPLE) {
            return say(c, 0, "a matrix on one side only");
        }
        return compare_matrices(c, t, g);
    }
    if (is_list(t) && is_list(g)) {
        int sets = t->op == MATHREAD_SET || g->op == MATHREAD_SET;
        return compare_any_order(c, t, g, sets);
    }
    if (t->op == MATHREAD_TUPLE && g->op == MATHREAD_TUPLE) {
        return compare_tuples(c, t, g);
    }
    if ((t->op == MATHREAD_TUPLE && g->op == MATHREAD_LIST) ||
        (t->op == MATHREAD_LIST && g->op == MATHREAD_TUPLE)) {
        const node *tuple = t->op == MATHREAD_TUPLE ? t : g;
        int same;
        if (tuple->open != '(' || tuple->close != ')') {
            return say(c, 0, "an interval against a list");
        }
        same = compare_in_order(c, t, g);
        return same == 1 ? say(c, 1, "equal elements in order, brackets on one side") : same;
    }
    if (t->op == MATHREAD_SET && t->n == 1) {
        return compare(c, t->kid[0], g);
    }
    if (g->op == MATHREAD_SET && g->n == 1) {
        return compare(c, t, g->kid[0]);
    }
    if (t->op == MATHREAD_RATIO || g->op == MATHREAD_RATIO) {
        if ((t->op >= MATHREAD_TUPLE && t->op != MATHREAD_RATIO) ||
            (g->op >= MATHREAD_TUPLE && g->op != MATHREAD_RATIO)) {
            return say(c, 0, "a ratio on one side only");
        }
        return compare_ratios(c, t, g);
    }
    if (t->op >= MATHREAD_TUPLE || g->op >= MATHREAD_TUPLE) {
        return say(c, 0, "different kinds: %s against a single value",
                   t->op >= MATHREAD_TUPLE ? "the label has several parts"
                                           : "the answer has several parts");
    }
    return compare_values(c, t, g);
}

static int compare_any(struct ctx *c, node *t, node *g)
{
    int signs = count_signs(t) + count_signs(g);

    if (t->op == MATHREAD_IN) {
        t = t->kid[1];
    }
    if (g->op == MATHREAD_IN) {
        g = g->kid[1];
    }
    if (signs > 2 * MAX_PLUS_MINUS) {
        return say(c, -1, "too many signs of plus and minus");
    }
    if (is_equation(t) && g->op != MATHREAD_REL && mathval_is_constant(t->kid[0])) {
        for (int i = 0; i + 1 < t->n; i++) { /* a label of 2/3 = 0.67: either will do */
            if (compare(c, t->kid[i], g) == 1) {
                return 1;
            }
        }
        return compare(c, t->kid[t->n - 1], g);
    }
    if (is_equation(t) && is_equation(g) && mathval_is_constant(t->kid[0]) &&
        mathval_is_constant(g->kid[0])) {
        return compare(c, t, g->kid[g->n - 1]);
    }
    if (is_equation(t) && g->op != MATHREAD_REL && !(is_list(g) && signs)) {
        node *x = solved(t);
        return x ? compare(c, x, g) : say(c, 0, "the label is an equation, the answer is not");
    }
    if (is_equation(g) && t->op != MATHREAD_REL && !(is_list(t) && signs)) {
        node *x = solved(g);
        return x ? compare(c, t, x) : say(c, 0, "the answer is an equation, the label is not");
    }
    if (signs) {
        return compare_any_order(c, expand(c, t), expand(c, g), 1);
    }
    if (is_equation(t) && is_equation(g)) {
        return compare_equations(c, t, g);
    }
    if (is_domain(t) || is_domain(g)) {
        return compare_domains(c, t, g);
    }
    return compare_structures(c, scalar_matrix(c, t), scalar_matrix(c, g));
}

static int compare(struct ctx *c, node *t, node *g)
{
    int out;

    if (c->m.spent) {
        return say(c, -1, "its budget of work is used up");
    }
    if (++c->depth > MAX_DEPTH) {
        c->depth--;
        return say(c, -1, "structures nested too deep");
    }
    out = compare_any(c, t, g);
    c->depth--;
    return out;
}

/* ---- text ---- */

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* The text without what only spaces it out. Two digits never come together that way. */
static char *squeeze(struct arena *a, const char *s)
{
    static const char *const drop[] = {"\\left",   "\\right",  "\\displaystyle",
                                       "\\!",      "\\,",      "\\;",
                                       "\\:",      "\\ ",      "$",
                                       " ",        "\n",       "\t",
                                       "\r",       "~",        "\\text",
                                       "\\mathrm", "\\textbf", "\\mbox",
                                       NULL};
    char *out = arena_alloc(a, 2 * strlen(s) + 1);
    size_t n = 0;

    while (*s) {
        size_t k = 0;
        for (int i = 0; drop[i] && !k; i++) {
            size_t len = strlen(drop[i]);
            if (strncmp(s, drop[i], len) == 0 && !(len > 2 && ((s[len] >= 'a' && s[len] <= 'z') ||
                                                               (s[len] >= 'A' && s[len] <= 'Z')))) {
                k = len;
            }
        }
        if (!k && (strncmp(s, "\\dfrac", 6) == 0 || strncmp(s, "\\tfrac", 6) == 0)) {
            memcpy(out + n, "\\frac", 5);
            n += 5;
            s += 6;
            continue;
        }
        if (!k) {
            out[n++] = *s++;
            continue;
        }
        s += k;
        if (n && is_digit(out[n - 1]) && is_digit(*s)) {
            out[n++] = ' ';
        }
    }
    while (n && out[n - 1] == '.') {
        n--;
    }
    out[n] = 0;
    return out;
}

/* A copy without blanks, dollars and full stops at the ends, and out of one \text{...}. */
static char *tidy(struct arena *a, const char *s)
{
    static const char *const wrap[] = {"\\text{",  "\\textbf{", "\\mathrm{", "\\mbox{",
                                       "\\boxed{", "\\(",       "\\[",       NULL};
    size_t n = strlen(s);

    for (int again = 1; again;) {
        again = 0;
        while (n && strchr(" \t\r\n$", *s)) {
            s++;
            n--;
        }
        while (n &&
               (strchr(" \t\r\n$", s[n - 1]) || (s[n - 1] == '.' && n > 1) || s[n - 1] == ',')) {
            if (n > 1 && s[n - 1] == ' ' && s[n - 2] == '\\') {
                n--;
            }
            n--;
        }
        for (int i = 0; wrap[i] && !again; i++) {
            size_t k = strlen(wrap[i]);
            int depth = 1;
            size_t at = k;
            if (n <= k || strncmp(s, wrap[i], k) != 0) {
                continue;
            }
            if (s[k - 1] == '(' || s[k - 1] == '[') {
                if (n >= k + 2 && s[n - 2] == '\\' && s[n - 1] == (s[k - 1] == '(' ? ')' : ']')) {
                    s += k;
                    n -= k + 2;
                    again = 1;
                }
                continue;
            }
            for (; at < n && depth; at++) {
                at += s[at] == '\\' && at + 1 < n;
                depth += s[at] == '{';
                depth -= s[at] == '}';
            }
            if (depth == 0 && at == n) {
                s += k;
                n -= k + 1;
                again = 1;
            }
        }
    }
    return arena_strndup(a, s, n);
}

/* ---- choices and times ---- */

/* The letter of a choice: B, (B), B., \textbf{(B)}; with `more`, also "B) twelve". 0 for none. */
static int choice(struct arena *a, const char *s, int more, int *marked)
{
    char *t = squeeze(a, s), *w = t;
    int open = 0, c;

    for (char *r = t; *r; r++) {
        if (*r != '{' && *r != '}') {
            *w++ = *r;
        }
    }
    *w = 0;
    if (more) {
        static const char *const words[] = {"option", "choice", "answer", NULL};
        for (int i = 0; words[i]; i++) {
            if (strncasecmp(t, words[i], 6) == 0) {
                t += 6;
            }
        }
    }
    open = *t == '(' || *t == '[';
    t += open;
    c = *t;
    *marked = open || strstr(s, "\\text") != NULL || strstr(s, "\\mathrm") != NULL;
    if (!((c >= 'A' && c <= 'J') || (c >= 'a' && c <= 'j'))) {
        return 0;
    }
    t++;
    if (open ? *t == ')' || *t == ']' : *t == ')' || *t == '.' || *t == ':') {
        *marked = 1;
        t++;
        return !*t || more ? c : 0;
    }
    return *t || open ? 0 : c;
}

/* 1 equal, 0 different, 2 the rule does not apply. */
static int compare_choices(struct ctx *c, const char *truth, const char *given)
{
    int mt, mg, t = choice(&c->a, truth, 0, &mt), g;

    if (!t) {
        return 2;
    }
    g = choice(&c->a, given, (t >= 'A' && t <= 'J') || mt, &mg);
    if (!g) {
        return 2;
    }
    if (mt || mg) {
        t |= 32;
        g |= 32;
    }
    if (t != g && !mt && !mg) {
        return 2; /* two letters may still be variables, but then they differ */
    }
    return say(c, t == g, t == g ? "equal choice" : "different choice");
}

/* Minutes since midnight of "3:30 pm", "15:30", "3 p.m."; half: 1 am, 2 pm, 0 not said. */
static int clock_time(struct arena *a, const char *s, int *minutes, int *half)
{
    char *t = squeeze(a, s), *w = t;
    int h = 0, m = 0, n = 0;

    for (char *r = t; *r; r++) {
        if (!strchr("{}.", *r)) {
            *w++ = (char)(*r >= 'A' && *r <= 'Z' ? *r + 32 : *r);
        }
    }
    *w = 0;
    while (is_digit(*t) && n++ < 2) {
        h = h * 10 + (*t++ - '0');
    }
    if (n == 0) {
        return 0;
    }
    if (*t == ':' && is_digit(t[1]) && is_digit(t[2])) {
        m = (t[1] - '0') * 10 + (t[2] - '0');
        t += 3;
        n = 0;
    }
    *half = strcmp(t, "am") == 0 ? 1 : strcmp(t, "pm") == 0 ? 2 : 0;
    if ((*t && !*half) || (n && !*half) || h > 24 || m > 59 || (*half && (h < 1 || h > 12))) {
        return 0;
    }
    *minutes = (*half ? h % 12 + (*half == 2 ? 12 : 0) : h) * 60 + m;
    return 1;
}

static int compare_times(struct ctx *c, const char *truth, const char *given)
{
    int tm, th, gm, gh, same;

    if (!clock_time(&c->a, truth, &tm, &th) || !clock_time(&c->a, given, &gm, &gh) ||
        (!th && !gh)) {
        return 2;
    }
    same = tm == gm || ((!th || !gh) && tm % 720 == gm % 720 && (th ? gm : tm) < 13 * 60);
    return say(c, same, same ? "equal time of day" : "different time of day");
}

/* ---- the comparison ---- */

/* A label of words only: then different text is a different answer. */
static int is_prose(const char *s)
{
    int letters = 0;

    for (; *s; s++) {
        if (strchr("\\^_=<>{}/*+", *s) || is_digit(*s)) {
            return 0;
        }
        letters += (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || (unsigned char)*s > 127;
    }
    return letters > 1;
}

/* Both readings of commas on both sides, the thousands first. */
static int compare_readings(struct ctx *c, const char *truth, const char *given)
{
    struct mathread t[2], g[2];
    char first[MATHVERDICT_REASON] = "";
    int nt = 1, ng = 1, out = 0, unknown = 0;

    if (mathread_parse(&t[0], &c->a, truth, 1) != 0) {
        if (is_prose(truth)) {
            return say(c, 0, "different text");
        }
        return say(c, -1, "label unreadable: %s", t[0].why);
    }
    if (mathread_parse(&g[0], &c->a, given, 1) != 0) {
        return say(c, 0, "answer unreadable: %s", g[0].why);
    }
    nt += t[0].merged && mathread_parse(&t[1], &c->a, truth, 0) == 0;
    ng += g[0].merged && mathread_parse(&g[1], &c->a, given, 0) == 0;
    for (int i = 0; i < nt && out != 1; i++) {
        for (int k = 0; k < ng && out != 1; k++) {
            if (nt == 2 && ng == 2 && i != k) {
                continue; /* both were written alike */
            }
            json_array_clear(c->ask);
            out = compare(c, t[i].root, g[k].root);
            unknown |= out < 0;
            if (!first[0]) {
                memcpy(first, c->why, sizeof first);
            }
        }
    }
    if (out != 1) {
        memcpy(c->why, first, sizeof c->why);
    }
    return out == 1 ? 1 : unknown ? -1 : 0;
}

static int compare_texts(struct ctx *c, const char *truth, const char *given)
{
    char *a = squeeze(&c->a, truth), *b = squeeze(&c->a, given);
    int out;

    if (strcmp(a, b) == 0) {
        return say(c, 1, "equal text");
    }
    if ((is_prose(truth) || is_prose(given)) && strcasecmp(a, b) == 0) {
        return say(c, 1, "equal text but for capitals");
    }
    out = compare_choices(c, c->truth, c->given);
    if (out != 2) {
        return out;
    }
    out = compare_times(c, truth, given);
    return out != 2 ? out : compare_readings(c, truth, given);
}

static char *question(json_t *pairs)
{
    json_t *q;
    char *text, *out;
    size_t i;
    json_t *p;

    if (json_array_size(pairs) == 0) {
        return NULL;
    }
    json_array_foreach(pairs, i, p)
    {
        if (json_is_null(p)) {
            return NULL;
        }
    }
    q = json_pack("{s:s, s:O}", "rule", "equal", "pairs", pairs);
    text = q ? json_dumps(q, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    out = mem_strdup(text);
    free(text);
    json_decref(q);
    return out;
}

void mathequal_compare(const char *given, const char *truth, struct mathverdict *v)
{
    struct ctx c = {.truth = truth, .given = given};
    char *t, *g;
    int out;

    if (strnlen(truth, MATHEQUAL_MAX + 1) > MATHEQUAL_MAX) {
        mathverdict_set(v, -1, "too long: the label has more than %d bytes", (int)MATHEQUAL_MAX);
        return;
    }
    if (strnlen(given, MATHEQUAL_MAX + 1) > MATHEQUAL_MAX) {
        mathverdict_set(v, 0, "too long: the answer has more than %d bytes", (int)MATHEQUAL_MAX);
        return;
    }
    arena_init(&c.a, 1 << 16);
    mathval_init(&c.m);
    c.ask = json_array();
    t = tidy(&c.a, truth);
    g = tidy(&c.a, given);
    if (!*t) {
        out = say(&c, -1, "the label is empty");
    } else if (!*g) {
        out = say(&c, 0, "the answer is empty");
    } else {
        out = compare_texts(&c, t, g);
    }
    mathverdict_set(v, out, "%s", c.why);
    v->ask = out < 0 ? question(c.ask) : NULL;
    json_decref(c.ask);
    arena_fini(&c.a);
}

/* ---- the answer in a response ---- */

static const char *find_last(const char *s, size_t n, const char *what, int any_case)
{
    size_t k = strlen(what);

    for (size_t i = n; i >= k; i--) {
        const char *p = s + i - k;
        if ((any_case ? (*p | 32) == *what : *p == *what) &&
            (any_case ? strncasecmp(p, what, k) == 0 : memcmp(p, what, k) == 0)) {
            return p;
        }
    }
    return NULL;
}

/* The content of the braces that open at s. */
static int braces(const char *s, const char *end, const char **answer, size_t *len)
{
    int depth = 0;

    for (const char *p = s; p < end; p++) {
        if (*p == '\\' && p + 1 < end) {
            p++;
            continue;
        }
        depth += *p == '{';
        depth -= *p == '}';
        if (depth == 0) {
            *answer = s + 1;
            *len = (size_t)(p - s) - 1;
            return 1;
        }
    }
    return 0;
}

/* What follows "answer is", "answer:" or "####", to the end of its sentence or line. */
static int said(const char *s, size_t n, const char **answer, size_t *len)
{
    static const char *const marks[] = {"answer is", "answer:", "answer =", "answers are", "####"};
    const char *best = NULL, *end = s + n, *p, *q;

    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        p = find_last(s, n, marks[i], 1);
        if (p && (!best || p + strlen(marks[i]) > best)) {
            best = p + strlen(marks[i]);
        }
    }
    if (!best) {
        return 0;
    }
    p = best;
    while (p < end && strchr(" \t:*=", *p) && *p) {
        p++;
    }
    while (p < end && (*p == '\n' || *p == '\r' || *p == ' ')) {
        p++;
    }
    q = p;
    while (q < end && *q != '\n' && !(*q == '.' && (q + 1 == end || strchr(" \n*\"", q[1])))) {
        q++;
    }
    while (q > p && strchr(" \t\r*\"`", q[-1])) {
        q--;
    }
    *answer = p;
    *len = (size_t)(q - p);
    return q > p;
}

int mathequal_answer(const char *response, size_t n, const char **answer, size_t *len,
                     struct mathverdict *v)
{
    static const char think[] = "</think>";
    const char *p = find_last(response, n, think, 0), *end = response + n, *box, *other;

    if (p) {
        response = p + sizeof think - 1;
        n = (size_t)(end - response);
    }
    box = find_last(response, n, "\\boxed{", 0);
    other = find_last(response, n, "\\fbox{", 0);
    box = other && (!box || other > box) ? other : box;
    if (box) {
        p = memchr(box, '{', (size_t)(end - box));
        if (!p || !braces(p, end, answer, len)) {
            mathverdict_set(v, 0, "the last \\boxed{ is not closed");
            return 0;
        }
    } else if (!said(response, n, answer, len)) {
        mathverdict_set(v, 0, "no \\boxed{} and no \"answer is\" in the answer");
        return 0;
    }
    if (*len > MATHEQUAL_MAX) {
        mathverdict_set(v, 0, "too long: the answer has %zu bytes, more than %d", *len,
                        (int)MATHEQUAL_MAX);
        return 0;
    }
    if (memchr(*answer, 0, *len)) {
        mathverdict_set(v, 0, "the answer has a NUL character");
        return 0;
    }
    return 1;
}

void mathequal_grade(const char *response, size_t n, const char *label, struct mathverdict *v)
{
    const char *given, *truth = label;
    size_t len, tlen = label ? strlen(label) : 0;
    char *g, *t;

    if (!tlen) {
        mathverdict_set(v, -1, "no label");
        return;
    }
    if (strstr(label, "\\boxed{")) {
        if (!mathequal_answer(label, tlen, &truth, &tlen, v)) {
            mathverdict_set(v, -1, "label unreadable: its \\boxed{ is not closed, or too long");
            return;
        }
    }
    if (tlen > MATHEQUAL_MAX) {
        mathverdict_set(v, -1, "too long: the label has more than %d bytes", (int)MATHEQUAL_MAX);
        return;
    }
    if (!mathequal_answer(response, n, &given, &len, v)) {
        return;
    }
    g = mem_strndup(given, len);
    t = mem_strndup(truth, tlen);
    mathequal_compare(g, t, v);
    mem_free(g);
    mem_free(t);
}
