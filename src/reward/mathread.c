/* Owns the grammar of answers. Recursive descent over the tokens of mathlex; every recursion passes
 * enter(), which bounds its depth, and every node make(), which bounds their number, so hostile
 * text ends as "too deep" or "too large". */
#include "reward/mathread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "reward/mathlex.h"

enum { MAX_DEPTH = 150, MAX_CELLS = 400 };

typedef struct mathread_node node;

struct parser {
    struct mathlex lex;
    struct arena *a;
    struct mathread *r;
    int at, depth, failed;
    int bars;    /* inside |...|: a bar closes */
    int no_unit; /* a word here is no unit, unless it is marked as text */
    int both;    /* the last separator was "and" */
};

/* ---- tools ---- */

static node *fail(struct parser *p, const char *why)
{
    if (!p->failed) {
        p->failed = 1;
        snprintf(p->r->why, sizeof p->r->why, "%s", why);
    }
    return NULL;
}

static int enter(struct parser *p)
{
    if (++p->depth > MAX_DEPTH) {
        fail(p, "nested too deep");
    }
    return !p->failed;
}

static const struct mathlex_token *peek(const struct parser *p)
{
    return &p->lex.tok[p->at];
}

static const struct mathlex_token *peek_at(const struct parser *p, int ahead)
{
    int i = p->at + ahead;
    return &p->lex.tok[i < p->lex.n ? i : p->lex.n - 1];
}

static int is_op(const struct parser *p, int op)
{
    return peek(p)->kind == MATHLEX_OP && peek(p)->op == op;
}

static int take(struct parser *p, int op)
{
    if (!is_op(p, op)) {
        return 0;
    }
    p->at++;
    return 1;
}

static node *alloc(struct parser *p, enum mathread_op op, int n)
{
    node *x;

    if (++p->r->count > MATHREAD_MAX_NODES) {
        return fail(p, "too large");
    }
    x = arena_alloc(p->a, sizeof *x);
    x->op = op;
    x->n = n;
    x->kid = n ? arena_alloc(p->a, (size_t)n * sizeof *x->kid) : NULL;
    return x;
}

static node *make1(struct parser *p, enum mathread_op op, node *a)
{
    node *x = p->failed ? NULL : alloc(p, op, 1);
    if (x) {
        x->kid[0] = a;
    }
    return x;
}

static node *make2(struct parser *p, enum mathread_op op, node *a, node *b)
{
    node *x = p->failed ? NULL : alloc(p, op, 2);
    if (x) {
        x->kid[0] = a;
        x->kid[1] = b;
    }
    return x;
}

static node *leaf(struct parser *p, enum mathread_op op, const char *text)
{
    node *x = p->failed ? NULL : alloc(p, op, 0);
    if (x) {
        x->text = text;
    }
    return x;
}

node *mathread_make(struct arena *a, enum mathread_op op, node *x, node *y)
{
    node *out = arena_alloc(a, sizeof *out);

    out->op = op;
    out->n = y ? 2 : x ? 1 : 0;
    if (out->n) {
        out->kid = arena_alloc(a, 2 * sizeof *out->kid);
        out->kid[0] = x;
        out->kid[1] = y;
    }
    return out;
}

/* A list that grows by doubling, in the arena. */
struct items {
    node **item;
    int n, cap;
};

static void add(struct parser *p, struct items *l, node *x)
{
    if (l->n == l->cap) {
        node **bigger = arena_alloc(p->a, (size_t)(l->cap * 2 + 4) * sizeof *bigger);
        if (l->n) {
            memcpy(bigger, l->item, (size_t)l->n * sizeof *bigger);
        }
        l->item = bigger;
        l->cap = l->cap * 2 + 4;
    }
    l->item[l->n++] = x;
}

static node *make_list(struct parser *p, enum mathread_op op, const struct items *l)
{
    node *x = p->failed ? NULL : alloc(p, op, l->n);
    if (x && l->n) {
        memcpy(x->kid, l->item, (size_t)l->n * sizeof *x->kid);
    }
    return x;
}

static node *parse_list(struct parser *p);
static node *parse_item(struct parser *p);
static node *parse_sum(struct parser *p);
static node *parse_factor(struct parser *p);
static node *parse_primary(struct parser *p);

/* ---- units ---- */

struct unit {
    const char *name;
    int dimension;
    double num, den;
};

enum { D_NONE, D_LENGTH, D_MASS, D_TIME, D_MONEY, D_VOLUME, D_ANGLE, D_SPEED, D_TEMPERATURE };

static const struct unit units[] = {{"mm", D_LENGTH, 1, 1000},
                                    {"millimeter", D_LENGTH, 1, 1000},
                                    {"cm", D_LENGTH, 1, 100},
                                    {"centimeter", D_LENGTH, 1, 100},
                                    {"centimetre", D_LENGTH, 1, 100},
                                    {"m", D_LENGTH, 1, 1},
                                    {"meter", D_LENGTH, 1, 1},
                                    {"metre", D_LENGTH, 1, 1},
                                    {"km", D_LENGTH, 1000, 1},
                                    {"kilometer", D_LENGTH, 1000, 1},
                                    {"kilometre", D_LENGTH, 1000, 1},
                                    {"in", D_LENGTH, 254, 10000},
                                    {"inch", D_LENGTH, 254, 10000},
                                    {"inche", D_LENGTH, 254, 10000},
                                    {"ft", D_LENGTH, 3048, 10000},
                                    {"foot", D_LENGTH, 3048, 10000},
                                    {"feet", D_LENGTH, 3048, 10000},
                                    {"yd", D_LENGTH, 9144, 10000},
                                    {"yard", D_LENGTH, 9144, 10000},
                                    {"mi", D_LENGTH, 1609344, 1000},
                                    {"mile", D_LENGTH, 1609344, 1000},
                                    {"mg", D_MASS, 1, 1000},
                                    {"g", D_MASS, 1, 1},
                                    {"gram", D_MASS, 1, 1},
                                    {"kg", D_MASS, 1000, 1},
                                    {"kilogram", D_MASS, 1000, 1},
                                    {"lb", D_MASS, 45359237, 100000},
                                    {"pound", D_MASS, 45359237, 100000},
                                    {"oz", D_MASS, 45359237, 1600000},
                                    {"ounce", D_MASS, 45359237, 1600000},
                                    {"ton", D_NONE, 1, 1},
                                    {"s", D_TIME, 1, 1},
                                    {"sec", D_TIME, 1, 1},
                                    {"second", D_TIME, 1, 1},
                                    {"min", D_TIME, 60, 1},
                                    {"minute", D_TIME, 60, 1},
                                    {"h", D_TIME, 3600, 1},
                                    {"hr", D_TIME, 3600, 1},
                                    {"hour", D_TIME, 3600, 1},
                                    {"day", D_TIME, 86400, 1},
                                    {"week", D_TIME, 604800, 1},
                                    {"month", D_NONE, 1, 1},
                                    {"year", D_NONE, 1, 1},
                                    {"cent", D_MONEY, 1, 100},
                                    {"dollar", D_MONEY, 1, 1},
                                    {"euro", D_NONE, 1, 1},
                                    {"l", D_VOLUME, 1, 1},
                                    {"liter", D_VOLUME, 1, 1},
                                    {"litre", D_VOLUME, 1, 1},
                                    {"ml", D_VOLUME, 1, 1000},
                                    {"milliliter", D_VOLUME, 1, 1000},
                                    {"gallon", D_NONE, 1, 1},
                                    {"mph", D_SPEED, 1609344, 3600000},
                                    {"km/h", D_SPEED, 1000, 3600},
                                    {"kmh", D_SPEED, 1000, 3600},
                                    {"kph", D_SPEED, 1000, 3600},
                                    {"m/s", D_SPEED, 1, 1},
                                    {"radian", D_ANGLE, 1, 1},
                                    {"rad", D_ANGLE, 1, 1},
                                    {"unit", D_NONE, 1, 1},
                                    {"sq", D_NONE, 1, 1},
                                    {"square", D_NONE, 1, 1},
                                    {"cubic", D_NONE, 1, 1},
                                    {"per", D_NONE, 1, 1},
                                    {"point", D_NONE, 1, 1},
                                    {"people", D_NONE, 1, 1},
                                    {"way", D_NONE, 1, 1},
                                    {"time", D_NONE, 1, 1},
                                    {"student", D_NONE, 1, 1},
                                    {"hz", D_NONE, 1, 1},
                                    {"mol", D_NONE, 1, 1},
                                    {"mole", D_NONE, 1, 1},
                                    {"usd", D_MONEY, 1, 1},
                                    {"dozen", D_NONE, 1, 1}};

static const struct unit *find_unit(const char *s, size_t n)
{
    char low[32];

    if (n == 0 || n >= sizeof low) {
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        low[i] = (char)(s[i] >= 'A' && s[i] <= 'Z' ? s[i] + 32 : s[i]);
    }
    for (int plural = 0; plural < 2; plural++) {
        for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
            if (strlen(units[i].name) == n && memcmp(units[i].name, low, n) == 0) {
                return &units[i];
            }
        }
        if (n < 3 || low[n - 1] != 's') {
            break;
        }
        n--;
    }
    return NULL;
}

/* "square centimeters", "cm^2", " feet.": the unit, its power and what it measures. */
int mathread_unit(const char *text, int *dimension, double *num, double *den)
{
    char word[2][32];
    const char *s = text;
    int n = 0, power = 1;
    const struct unit *u;

    while (*s && n < 2) {
        size_t k;
        s += strspn(s, " .~");
        k = strcspn(s, " .^~0123456789");
        if (k == 0 || k >= sizeof word[0]) {
            break;
        }
        snprintf(word[n], sizeof word[n], "%.*s", (int)k, s);
        n++;
        s += k;
    }
    s += strspn(s, " .^{");
    if (*s == '2' || *s == '3') {
        power = *s - '0';
        s += 1 + strspn(s + 1, " .}");
    }
    if (n == 0 || *s) {
        return 0;
    }
    if (n == 2) {
        if (strcmp(word[0], "square") == 0 || strcmp(word[0], "sq") == 0) {
            power = 2;
        } else if (strcmp(word[0], "cubic") == 0) {
            power = 3;
        } else {
            return 0;
        }
    }
    u = find_unit(word[n - 1], strlen(word[n - 1]));
    if (!u) {
        return 0;
    }
    *dimension = u->dimension == D_NONE ? 0 : u->dimension * 4 + power;
    *num = *den = 1;
    for (int i = 0; i < power; i++) {
        *num *= u->num;
        *den *= u->den;
    }
    return 1;
}

/* ---- structures ---- */

/* "for all x", "where k is a whole number": what an answer says about its letters. */
static int is_condition(const struct mathlex_token *t)
{
    static const char *const words[] = {"for ", "where ", "with ", "when ", "for", "where", NULL};
    const char *s = t->kind == MATHLEX_TEXT ? t->text + strspn(t->text, " ,;(") : "";

    for (int i = 0; words[i]; i++) {
        size_t n = strlen(words[i]);
        if (strncmp(s, words[i], n) == 0 && (words[i][n - 1] == ' ' || !s[n])) {
            return 1;
        }
    }
    return 0;
}

/* Commas, semicolons, "and", "or". */
static int take_separator(struct parser *p)
{
    int any = 0;

    for (;;) {
        const struct mathlex_token *t = peek(p);
        if (t->kind == MATHLEX_OP && (t->op == ',' || t->op == ';' || t->op == MATHLEX_SEP)) {
            p->at++;
            any = 1;
            p->both |= t->op == MATHLEX_SEP && t->text != NULL;
        } else if (t->kind == MATHLEX_TEXT) {
            const char *s = t->text + strspn(t->text, " ,;");
            size_t n = strcspn(s, " ,");
            int word = (n == 3 && strncmp(s, "and", 3) == 0) ||
                       (n == 2 && strncmp(s, "or", 2) == 0) || n == 0;
            if (!word || s[n + strspn(s + n, " ,")]) {
                return any;
            }
            p->at++;
            p->both |= n == 3;
            any = any || n > 0 || strpbrk(t->text, ",;");
        } else {
            return any;
        }
    }
}

static int closes(const struct parser *p)
{
    const struct mathlex_token *t = peek(p);
    if (t->kind == MATHLEX_END) {
        return 1;
    }
    return t->kind == MATHLEX_OP &&
           (strchr(")]}", t->op < 256 ? t->op : 'x') || t->op == MATHLEX_SETCLOSE ||
            t->op == MATHLEX_RANGLE || t->op == MATHLEX_ENDENV || t->op == '&' ||
            t->op == MATHLEX_ROW || t->op == MATHLEX_MID || (t->op == '|' && p->bars));
}

static int parse_items(struct parser *p, struct items *l)
{
    for (;;) {
        if (closes(p) || (l->n && is_condition(peek(p)))) {
            break; /* a comma at the end does no harm */
        }
        add(p, l, parse_item(p));
        if (p->failed || !take_separator(p)) {
            break;
        }
    }
    if (!p->failed && p->depth == 1 && is_condition(peek(p))) {
        p->at = p->lex.n - 1; /* the rest is about the letters, not part of the value */
    }
    return !p->failed;
}

static node *parse_list(struct parser *p)
{
    struct items l = {0};
    int outer = p->both;
    node *x;

    if (!enter(p)) {
        return NULL;
    }
    take_separator(p);
    if (p->depth == 1) {
        take(p, MATHLEX_APPROX); /* "approximately 8.24" */
    }
    p->both = 0;
    if (!parse_items(p, &l)) {
        return NULL;
    }
    p->depth--;
    if (l.n == 0) {
        return fail(p, "something is missing");
    }
    x = l.n == 1 ? l.item[0] : make_list(p, MATHREAD_LIST, &l);
    if (l.n > 1 && x) {
        x->fn = p->both;
    }
    p->both = outer;
    return x;
}

/* ( ... ), [ ... ] and mixtures, after the opening bracket. */
static node *parse_bracket(struct parser *p, int open)
{
    struct items l = {0};
    int close, bars = p->bars;
    node *x;

    if (!enter(p)) {
        return NULL;
    }
    p->bars = 0;
    if (!parse_items(p, &l)) {
        return NULL;
    }
    p->bars = bars;
    p->depth--;
    close = peek(p)->kind == MATHLEX_OP ? peek(p)->op : 0;
    if (close != ')' && close != ']') {
        return fail(p, "a bracket is not closed");
    }
    p->at++;
    if (l.n == 0) {
        return fail(p, "empty brackets");
    }
    if (l.n == 1) {
        if ((open == '(') != (close == ')')) {
            return fail(p, "brackets do not match");
        }
        l.item[0]->grouped = 1;
        return l.item[0];
    }
    x = make_list(p, MATHREAD_TUPLE, &l);
    if (x) {
        x->open = open;
        x->close = close;
    }
    return x;
}

/* \{ ... \}, and {1,2} in plain text. {x | x > 3} is what stands after the bar. */
static node *parse_set(struct parser *p, int close)
{
    struct items l = {0};
    int bars = p->bars;

    if (!enter(p)) {
        return NULL;
    }
    p->bars = 0;
    if (take(p, close)) {
        p->depth--;
        p->bars = bars;
        return leaf(p, MATHREAD_EMPTY, NULL);
    }
    p->bars = 1; /* a bar ends the first part */
    if (!parse_items(p, &l)) {
        return NULL;
    }
    p->bars = bars;
    if (close == MATHLEX_SETCLOSE && (take(p, MATHLEX_MID) || take(p, '|'))) {
        node *x = parse_list(p);
        p->depth--;
        return take(p, close) ? x : fail(p, "a set is not closed");
    }
    p->depth--;
    if (!take(p, close)) {
        return fail(p, "a set is not closed");
    }
    return make_list(p, MATHREAD_SET, &l);
}

/* { ... } of LaTeX: grouping, but for a plain set. */
static node *parse_group(struct parser *p)
{
    node *x;

    if (take(p, '}')) {
        return fail(p, "an empty group");
    }
    x = parse_list(p);
    if (p->failed || !take(p, '}')) {
        return fail(p, "a group is not closed");
    }
    if (x->op == MATHREAD_LIST) {
        x->op = MATHREAD_SET;
    }
    return x;
}

static node *parse_matrix(struct parser *p, const char *env)
{
    static const char *const known[] = {"matrix",      "pmatrix", "bmatrix",      "Bmatrix",
                                        "smallmatrix", "array",   "psmallmatrix", NULL};
    struct items l = {0};
    int rows = 0, cols = 0, col = 0, ok = 0;
    node *x;

    for (int i = 0; known[i]; i++) {
        ok |= strcmp(env, known[i]) == 0;
    }
    if (!ok) {
        return fail(p, "an environment that is no matrix");
    }
    if (!enter(p)) {
        return NULL;
    }
    while (!is_op(p, MATHLEX_ENDENV)) {
        if (l.n >= MAX_CELLS) {
            return fail(p, "a large matrix");
        }
        add(p, &l, parse_item(p));
        col++;
        if (p->failed) {
            return NULL;
        }
        if (take(p, '&')) {
            continue;
        }
        if (rows > 0 && col != cols) {
            return fail(p, "a matrix with unequal rows");
        }
        rows++;
        cols = col;
        col = 0;
        if (!take(p, MATHLEX_ROW) && !is_op(p, MATHLEX_ENDENV)) {
            return fail(p, "a matrix is not closed");
        }
    }
    p->at++;
    p->depth--;
    if (l.n == 0 || col) {
        return fail(p, "an empty matrix, or a row without an end");
    }
    x = make_list(p, MATHREAD_MATRIX, &l);
    if (x) {
        x->rows = rows;
        x->cols = cols;
    }
    return x;
}

/* ---- values ---- */

/* {x} or one token, as after \frac and ^. */
static node *parse_argument(struct parser *p)
{
    const struct mathlex_token *t = peek(p);
    node *x;

    if (!enter(p)) {
        return NULL;
    }
    if (take(p, '{')) {
        x = parse_group(p);
        p->depth--;
        return x;
    }
    if (t->kind == MATHLEX_NUM && t->text[0] && t->text[1] && !t->more) {
        /* \frac12: one digit */
        struct mathlex_token *w = &p->lex.tok[p->at];
        if (w->text[0] != '.') {
            x = leaf(p, MATHREAD_NUM, arena_strndup(p->a, w->text, 1));
            w->text++;
            w->space = 0;
            p->depth--;
            return x;
        }
    }
    if (t->kind == MATHLEX_WORD) {
        struct mathlex_token *w = &p->lex.tok[p->at];
        x = leaf(p, MATHREAD_SYM, arena_strndup(p->a, w->text, 1));
        w->text++;
        if (!w->text[0]) {
            p->at++;
        }
        p->depth--;
        return x;
    }
    x = parse_primary(p);
    p->depth--;
    return x;
}

/* The exponent: {x}, a token; plain text may have a sign, a whole number or a bracket. */
static node *parse_exponent(struct parser *p)
{
    const struct mathlex_token *t = peek(p);
    node *x;

    if (t->kind == MATHLEX_OP && (t->op == '-' || t->op == '+')) {
        p->at++;
        if (!enter(p)) {
            return NULL;
        }
        x = parse_exponent(p);
        p->depth--;
        return t->op == '-' ? make1(p, MATHREAD_NEG, x) : x;
    }
    if (t->kind == MATHLEX_NUM) {
        return parse_primary(p);
    }
    return parse_argument(p);
}

static int token_joins(const struct parser *p)
{
    const struct mathlex_token *t = peek(p);

    switch (t->kind) {
    case MATHLEX_NUM:
    case MATHLEX_SYM:
    case MATHLEX_WORD:
    case MATHLEX_FUNC:
    case MATHLEX_BIG: return 1;
    case MATHLEX_OP:
        return t->op == '(' || t->op == '[' || t->op == '{' || t->op == MATHLEX_FRAC ||
               t->op == MATHLEX_BINOM || t->op == MATHLEX_SQRT || t->op == MATHLEX_PI ||
               t->op == MATHLEX_INFTY || t->op == MATHLEX_LFLOOR || t->op == MATHLEX_LCEIL ||
               t->op == MATHLEX_BEGIN || t->op == MATHLEX_LANGLE || (t->op == '|' && !p->bars);
    default: return 0;
    }
}

/* What \sin takes without brackets: factors without a sign between them, up to another function. */
static node *parse_bare_argument(struct parser *p)
{
    node *x;
    int minus = 0;

    while (is_op(p, '-') || is_op(p, '+')) {
        minus ^= peek(p)->op == '-';
        p->at++;
    }
    p->no_unit++;
    x = parse_factor(p);
    while (!p->failed && token_joins(p) && peek(p)->kind != MATHLEX_FUNC &&
           peek(p)->kind != MATHLEX_BIG && !is_op(p, '(') && !is_op(p, '[') &&
           !is_op(p, MATHLEX_BEGIN)) {
        x = make2(p, MATHREAD_MUL, x, parse_factor(p));
    }
    /* \sin x/2 stays (\sin x)/2, \cos \pi/4 is meant as the angle */
    if (!p->failed && is_op(p, '/') && x->op == MATHREAD_PI && peek_at(p, 1)->kind == MATHLEX_NUM) {
        p->at++;
        x = make2(p, MATHREAD_DIV, x, parse_factor(p));
    }
    p->no_unit--;
    return minus ? make1(p, MATHREAD_NEG, x) : x;
}

static int inverse_of(int fn)
{
    static const int list[][2] = {
        {MATHLEX_FN_SIN, MATHLEX_FN_ASIN},   {MATHLEX_FN_COS, MATHLEX_FN_ACOS},
        {MATHLEX_FN_TAN, MATHLEX_FN_ATAN},   {MATHLEX_FN_COT, MATHLEX_FN_ACOT},
        {MATHLEX_FN_SEC, MATHLEX_FN_ASEC},   {MATHLEX_FN_CSC, MATHLEX_FN_ACSC},
        {MATHLEX_FN_SINH, MATHLEX_FN_ASINH}, {MATHLEX_FN_COSH, MATHLEX_FN_ACOSH},
        {MATHLEX_FN_TANH, MATHLEX_FN_ATANH}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        if (list[i][0] == fn) {
            return list[i][1];
        }
    }
    return -1;
}

static int is_minus_one(const node *x)
{
    return x && x->op == MATHREAD_NEG && x->kid[0]->op == MATHREAD_NUM &&
           strcmp(x->kid[0]->text, "1") == 0;
}

static node *parse_function(struct parser *p, int fn)
{
    node *power = NULL, *base = NULL, *x, *f;

    if (!enter(p)) {
        return NULL;
    }
    for (int i = 0; i < 2; i++) {
        if (take(p, '^')) {
            power = parse_exponent(p);
        } else if (fn == MATHLEX_FN_LOG && take(p, '_')) {
            base = parse_argument(p);
        }
    }
    if (!p->failed && is_minus_one(power) && inverse_of(fn) >= 0) {
        fn = inverse_of(fn);
        power = NULL;
    }
    if (take(p, '(') || take(p, '[')) {
        x = parse_bracket(p, p->lex.tok[p->at - 1].op);
    } else if (is_op(p, '{')) {
        p->at++;
        x = parse_group(p);
    } else {
        x = parse_bare_argument(p);
    }
    p->depth--;
    if (p->failed) {
        return NULL;
    }
    if (fn == MATHLEX_FN_LOG && !base && x->op == MATHREAD_TUPLE && x->n == 2) {
        base = x->kid[1]; /* log(8, 2) as programs write it */
        x = x->kid[0];
    }
    if (base) {
        f = make2(p, MATHREAD_LOGB, base, x);
    } else if (fn >= MATHLEX_FN_MAX && (x->op == MATHREAD_TUPLE || x->op == MATHREAD_LIST)) {
        f = x;
        f->op = MATHREAD_FUNC;
    } else {
        f = make1(p, MATHREAD_FUNC, x);
    }
    if (f) {
        f->fn = fn;
    }
    return power ? make2(p, MATHREAD_POW, f, power) : f;
}

/* \sum_{k=1}^{n} term, \int_a^b f\,dx, \lim_{x \to a} f. */
static node *parse_big(struct parser *p, int op)
{
    node *low = NULL, *high = NULL, *x = NULL, *body;

    if (op == MATHLEX_INT || op == MATHLEX_LIM) {
        return fail(p, "integrals and limits are not read");
    }
    if (!enter(p)) {
        return NULL;
    }
    for (int i = 0; i < 2; i++) {
        if (take(p, '_')) {
            low = parse_argument(p);
        } else if (take(p, '^')) {
            high = parse_exponent(p);
        }
    }
    if (p->failed || !low || !high || low->op != MATHREAD_REL || low->n != 2 ||
        low->text[0] != '=' || (low->kid[0]->op != MATHREAD_SYM && low->kid[0]->op != MATHREAD_I)) {
        return fail(p, "a sum without its bounds");
    }
    body = parse_factor(p);
    while (!p->failed && (token_joins(p) || is_op(p, '*') || is_op(p, '/'))) {
        enum mathread_op how = is_op(p, '/') ? MATHREAD_DIV : MATHREAD_MUL;
        p->at += is_op(p, '*') || is_op(p, '/');
        body = make2(p, how, body, parse_factor(p));
    }
    p->depth--;
    if (p->failed) {
        return NULL;
    }
    x = alloc(p, op == MATHLEX_SUM ? MATHREAD_SUM : MATHREAD_PROD, 4);
    if (x) {
        x->kid[0] = low->kid[0];
        x->kid[1] = low->kid[1];
        x->kid[2] = high;
        x->kid[3] = body;
    }
    return x;
}

/* Letters without a sign between them: a product, unless they look like a name or a word. */
static node *letters(struct parser *p, const char *s)
{
    size_t n = strlen(s), upper = 0;
    node *x = NULL;

    for (size_t i = 0; i < n; i++) {
        upper += s[i] >= 'A' && s[i] <= 'Z';
        if ((unsigned char)s[i] >= 0x80) {
            return leaf(p, MATHREAD_WORD, s);
        }
    }
    if (upper == n) {
        return leaf(p, MATHREAD_SYM, s); /* AB is a segment, LQSX a word: order matters */
    }
    if (n > 4) {
        char *low = arena_strdup(p->a, s);
        for (size_t i = 0; i < n; i++) {
            low[i] = (char)(low[i] >= 'A' && low[i] <= 'Z' ? low[i] + 32 : low[i]);
        }
        return leaf(p, MATHREAD_WORD, low);
    }
    for (size_t i = 0; i < n && !p->failed; i++) {
        char *one = arena_strndup(p->a, s + i, 1);
        node *y = *one == 'e'   ? leaf(p, MATHREAD_E, NULL)
                  : *one == 'i' ? leaf(p, MATHREAD_I, NULL)
                                : leaf(p, MATHREAD_SYM, one);
        if (i + 1 == n && is_op(p, '^')) {
            /* xy^2: the power belongs to the last letter */
            p->at++;
            y = make2(p, MATHREAD_POW, y, parse_exponent(p));
        }
        x = x ? make2(p, MATHREAD_MUL, x, y) : y;
    }
    return x;
}

/* Subscripts and primes belong to the name. */
static node *parse_symbol(struct parser *p, const char *name)
{
    char *full = arena_alloc(p->a, strlen(name) + 80);
    size_t n = strlen(name);
    node *x;

    memcpy(full, name, n);
    while (n < strlen(name) + 60) {
        if (take(p, '\'')) {
            full[n++] = '\'';
        } else if (take(p, '_')) {
            int depth = 0;
            full[n++] = '_';
            do {
                const struct mathlex_token *t = peek(p);
                if (t->kind == MATHLEX_END) {
                    return fail(p, "a subscript is not closed");
                }
                if (t->kind == MATHLEX_OP && t->op == '{') {
                    depth++;
                } else if (t->kind == MATHLEX_OP && t->op == '}') {
                    depth--;
                } else if (n < strlen(name) + 50) {
                    if (t->text) {
                        n += (size_t)snprintf(full + n, 12, "%s", t->text) > 11 ? 11
                                                                                : strlen(t->text);
                    } else {
                        n += (size_t)snprintf(full + n, 12, "%s%d",
                                              t->kind == MATHLEX_FUNC ? "f" : "o", t->op % 1000);
                    }
                }
                p->at++;
            } while (depth > 0);
        } else {
            break;
        }
    }
    full[n] = 0;
    if (strcmp(full, "e") == 0) {
        return leaf(p, MATHREAD_E, NULL);
    }
    if (strcmp(full, "i") == 0) {
        return leaf(p, MATHREAD_I, NULL);
    }
    x = leaf(p, MATHREAD_SYM, full);
    return x;
}

/* 1011_2, \text{A5}_{11} */
static node *parse_based(struct parser *p, const char *digits)
{
    node *x = leaf(p, MATHREAD_BASE, digits), *base;

    p->at++;
    base = parse_argument(p);
    if (p->failed) {
        return NULL;
    }
    if (base->op == MATHREAD_WORD || base->op == MATHREAD_SYM) {
        return fail(p, "a base that is no number");
    }
    if (base->op != MATHREAD_NUM || strlen(base->text) > 2 || strchr(base->text, '.')) {
        return fail(p, "a base that is no number");
    }
    x->exp10 = atoi(base->text);
    if (x->exp10 < 2 || x->exp10 > 36) {
        return fail(p, "a base outside of 2 to 36");
    }
    return x;
}

static int whole(const char *s)
{
    return *s && s[strspn(s, "0123456789")] == 0;
}

/* A proper fraction of whole numbers right after a whole number: 2\frac{1}{2}, 1 1/2. */
static node *mixed_part(struct parser *p)
{
    const struct mathlex_token *t = peek(p), *u;
    const char *num = NULL, *den = NULL;
    int used = 0;
    char *b;
    node *x;

    if (t->kind == MATHLEX_OP && t->op == MATHLEX_FRAC) {
        const char *part[2] = {NULL, NULL};
        int k = 1;
        for (int i = 0; i < 2; i++) {
            int brace = peek_at(p, k)->kind == MATHLEX_OP && peek_at(p, k)->op == '{';
            u = peek_at(p, k + brace);
            if (u->kind != MATHLEX_NUM || !whole(u->text)) {
                return NULL;
            }
            if (!brace && i == 0 && u->text[1]) {
                if (strlen(u->text) != 2) {
                    return NULL;
                }
                part[0] = arena_strndup(p->a, u->text, 1);
                part[1] = u->text + 1;
                k++;
                break;
            }
            if (!brace && u->text[1]) {
                return NULL; /* \frac{1}23 is a half times three */
            }
            part[i] = u->text;
            k += 1 + brace;
            if (brace) {
                if (peek_at(p, k)->kind != MATHLEX_OP || peek_at(p, k)->op != '}') {
                    return NULL;
                }
                k++;
            }
        }
        num = part[0];
        den = part[1];
        used = k;
    } else if (t->kind == MATHLEX_NUM && t->space && whole(t->text) &&
               peek_at(p, 1)->kind == MATHLEX_OP && peek_at(p, 1)->op == '/' &&
               peek_at(p, 2)->kind == MATHLEX_NUM && whole(peek_at(p, 2)->text)) {
        num = t->text;
        den = peek_at(p, 2)->text;
        used = 3;
    }
    if (!num || strlen(num) > 9 || strlen(den) > 9 || atol(num) >= atol(den) || atol(num) == 0) {
        return NULL;
    }
    u = peek_at(p, used);
    if (u->kind == MATHLEX_OP && (u->op == '^' || u->op == '!')) {
        return NULL;
    }
    p->at += used;
    b = arena_strdup(p->a, den);
    x = make2(p, MATHREAD_DIV, leaf(p, MATHREAD_NUM, num), leaf(p, MATHREAD_NUM, b));
    return x;
}

static node *parse_number(struct parser *p)
{
    const struct mathlex_token *t = peek(p);
    node *x, *part;

    p->at++;
    if (is_op(p, '_') && whole(t->text)) {
        return parse_based(p, t->text);
    }
    x = leaf(p, MATHREAD_NUM, t->text);
    if (!x) {
        return NULL;
    }
    x->more = t->more;
    x->exp10 = t->exp10;
    if (whole(t->text) && !t->exp10 && (part = mixed_part(p)) != NULL) {
        x = make2(p, MATHREAD_ADD, x, part);
        if (x) {
            x->grouped = 1;
        }
    }
    return x;
}

/* \text{...} where a value is expected: a word. */
static node *text_word(struct parser *p, const char *s)
{
    char *low = arena_strdup(p->a, s), *w = low;

    for (const char *r = s; *r; r++) {
        if (strchr(" .,;:()~{}\\", *r)) {
            continue;
        }
        *w++ = (char)(*r >= 'A' && *r <= 'Z' ? *r + 32 : *r);
    }
    *w = 0;
    if (!*low) {
        return fail(p, "empty text");
    }
    if (is_op(p, '_') && strpbrk(low, "0123456789") &&
        low[strspn(low, "0123456789abcdefghijklmnopqrstuvwxyz")] == 0) {
        return parse_based(p, low);
    }
    if (!low[1] && ((*low >= 'a' && *low <= 'z'))) {
        const char *one = arena_strndup(p->a, s + strspn(s, " .,;:()~{}\\"), 1);
        return leaf(p, MATHREAD_SYM, one);
    }
    return leaf(p, MATHREAD_WORD, low);
}

static node *parse_delimited(struct parser *p, int close, int fn)
{
    node *x;
    int bars = p->bars;

    if (!enter(p)) {
        return NULL;
    }
    p->bars = close == '|';
    x = parse_sum(p);
    p->bars = bars;
    p->depth--;
    if (p->failed || !take(p, close)) {
        return fail(p, "a bar or bracket is not closed");
    }
    x = make1(p, MATHREAD_FUNC, x);
    if (x) {
        x->fn = fn;
    }
    return x;
}

static node *parse_root(struct parser *p)
{
    node *index = NULL, *x;
    int plain = p->lex.tok[p->at - 1].plain;

    if (take(p, '[')) {
        index = parse_sum(p);
        if (p->failed || !take(p, ']')) {
            return fail(p, "the index of a root is not closed");
        }
    }
    if (take(p, '(')) {
        x = parse_bracket(p, '(');
    } else if (plain && peek(p)->kind == MATHLEX_NUM) {
        x = parse_number(p);
    } else {
        x = parse_argument(p);
    }
    return index ? make2(p, MATHREAD_ROOT, x, index) : make1(p, MATHREAD_ROOT, x);
}

static node *parse_angle(struct parser *p)
{
    struct items l = {0};
    node *x;

    if (!parse_items(p, &l)) {
        return NULL;
    }
    if (!take(p, MATHLEX_RANGLE) || l.n == 0) {
        return fail(p, "a bracket is not closed");
    }
    x = make_list(p, MATHREAD_TUPLE, &l);
    if (x) {
        x->open = '(';
        x->close = ')';
    }
    return x;
}

static node *parse_sign(struct parser *p, int op)
{
    node *a, *b;

    switch (op) {
    case '(':
    case '[': return parse_bracket(p, op);
    case '{': return parse_group(p);
    case '|': return parse_delimited(p, '|', MATHLEX_FN_ABS);
    case MATHLEX_SETOPEN: return parse_set(p, MATHLEX_SETCLOSE);
    case MATHLEX_LANGLE: return parse_angle(p);
    case MATHLEX_LFLOOR: return parse_delimited(p, MATHLEX_RFLOOR, MATHLEX_FN_FLOOR);
    case MATHLEX_LCEIL: return parse_delimited(p, MATHLEX_RCEIL, MATHLEX_FN_CEIL);
    case MATHLEX_FRAC:
    case MATHLEX_BINOM:
        a = parse_argument(p);
        b = p->failed ? NULL : parse_argument(p);
        a = make2(p, op == MATHLEX_FRAC ? MATHREAD_DIV : MATHREAD_BINOM, a, b);
        if (a) {
            a->grouped = 1;
        }
        return a;
    case MATHLEX_SQRT: return parse_root(p);
    case MATHLEX_PI: return leaf(p, MATHREAD_PI, NULL);
    case MATHLEX_INFTY: return leaf(p, MATHREAD_INF, NULL);
    case MATHLEX_REALS: return leaf(p, MATHREAD_REALS, NULL);
    case MATHLEX_EMPTY: return leaf(p, MATHREAD_EMPTY, NULL);
    case MATHLEX_BEGIN: return parse_matrix(p, p->lex.tok[p->at - 1].text);
    default: p->at--; return fail(p, "a sign where a value is expected");
    }
}

/* factorial(n), binomial(n, k) */
static node *parse_counting(struct parser *p, int factorial)
{
    node *x;

    p->at++;
    x = parse_bracket(p, '(');
    if (p->failed || (!factorial && (x->op != MATHREAD_TUPLE || x->n != 2))) {
        return fail(p, "a binomial without two numbers");
    }
    return factorial ? make1(p, MATHREAD_FACT, x) : make2(p, MATHREAD_BINOM, x->kid[0], x->kid[1]);
}

static node *parse_primary(struct parser *p)
{
    const struct mathlex_token *t = peek(p);

    if (p->failed) {
        return NULL;
    }
    switch (t->kind) {
    case MATHLEX_END: return fail(p, "something is missing at the end");
    case MATHLEX_NUM: return parse_number(p);
    case MATHLEX_SYM: p->at++; return parse_symbol(p, t->text);
    case MATHLEX_WORD:
        p->at++;
        if (is_op(p, '(') &&
            (strcmp(t->text, "factorial") == 0 || strcmp(t->text, "binomial") == 0)) {
            return parse_counting(p, t->text[0] == 'f');
        }
        if (is_op(p, '_')) {
            return parse_symbol(p, t->text);
        }
        return letters(p, t->text);
    case MATHLEX_TEXT: p->at++; return text_word(p, t->text);
    case MATHLEX_FUNC: p->at++; return parse_function(p, t->op);
    case MATHLEX_BIG: p->at++; return parse_big(p, t->op);
    case MATHLEX_OP: p->at++; return parse_sign(p, t->op);
    }
    return fail(p, "something unreadable");
}

static node *with_unit(struct parser *p, node *x, const char *text)
{
    char *unit = arena_alloc(p->a, strlen(text) + 8);
    node *u = make1(p, MATHREAD_UNIT, x);

    strcpy(unit, text);
    if (is_op(p, '^') && peek_at(p, 1)->kind == MATHLEX_NUM) {
        strcat(unit, "^");
        strncat(unit, peek_at(p, 1)->text, 2);
        p->at += 2;
    } else if (is_op(p, '^') && peek_at(p, 1)->kind == MATHLEX_OP && peek_at(p, 1)->op == '{' &&
               peek_at(p, 2)->kind == MATHLEX_NUM && peek_at(p, 3)->kind == MATHLEX_OP &&
               peek_at(p, 3)->op == '}') {
        strcat(unit, "^");
        strncat(unit, peek_at(p, 2)->text, 2);
        p->at += 4;
    }
    if (u) {
        u->text = unit;
    }
    return u;
}

/* Postfix: powers, factorials, degrees, percent, units. */
static node *parse_factor(struct parser *p)
{
    node *x;

    if (!enter(p)) {
        return NULL;
    }
    x = parse_primary(p);
    while (!p->failed) {
        const struct mathlex_token *t = peek(p);
        if (take(p, '^')) {
            x = make2(p, MATHREAD_POW, x, parse_exponent(p));
        } else if (take(p, '!')) {
            x = make1(p, MATHREAD_FACT, x);
        } else if (take(p, MATHLEX_DEG)) {
            x = make1(p, MATHREAD_DEG, x);
        } else if (take(p, MATHLEX_PERCENT)) {
            x = make1(p, MATHREAD_PERCENT, x);
        } else if (t->kind == MATHLEX_OP && t->op == '_' && x->op == MATHREAD_SYM) {
            x = parse_symbol(p, x->text);
        } else {
            break;
        }
    }
    p->depth--;
    return x;
}

/* A sign may stand after * and /. */
static node *parse_signed_factor(struct parser *p)
{
    int minus = 0;
    node *x;

    while (is_op(p, '-') || is_op(p, '+')) {
        minus ^= peek(p)->op == '-';
        p->at++;
    }
    x = parse_factor(p);
    return minus ? make1(p, MATHREAD_NEG, x) : x;
}

/* The unit after a value, written as text or as a known word. */
static const char *unit_here(const struct parser *p, const node *x)
{
    const struct mathlex_token *t = peek(p);
    const struct mathlex_token *next = peek_at(p, 1);
    int ends;

    if (x->op == MATHREAD_WORD || x->op == MATHREAD_TUPLE) {
        return NULL;
    }
    if (t->kind == MATHLEX_TEXT) {
        const char *s = t->text + strspn(t->text, " ,;");
        int sep = strncmp(s, "and", 3) == 0 || strncmp(s, "or", 2) == 0 || !*s || is_condition(t);
        return sep ? NULL : t->text;
    }
    if (p->no_unit || (next->kind == MATHLEX_OP && (next->op == '+' || next->op == '-'))) {
        return NULL; /* 2cm + m^2 */
    }
    ends = next->kind == MATHLEX_END ||
           (next->kind == MATHLEX_OP && next->op != '(' && next->op != '_') ||
           next->kind == MATHLEX_WORD || next->kind == MATHLEX_TEXT;
    if (t->kind == MATHLEX_WORD && ends && find_unit(t->text, strlen(t->text))) {
        return t->text;
    }
    if (t->kind == MATHLEX_WORD && ends && strlen(t->text) > 4 && x->op == MATHREAD_NUM &&
        (unsigned char)t->text[0] < 0x80) {
        return t->text; /* 5 apples */
    }
    return NULL;
}

/* cm/s, miles per hour, square feet: all words of a unit. */
static node *parse_units(struct parser *p, node *x)
{
    const char *u;

    while (!p->failed && (u = unit_here(p, x)) != NULL) {
        int again = x->op == MATHREAD_UNIT;
        int word = peek(p)->kind == MATHLEX_WORD && !again;
        const char *text = u;
        if (again) {
            char *both = arena_alloc(p->a, strlen(x->text) + strlen(u) + 2);
            strcat(strcat(strcpy(both, x->text), " "), u);
            text = both;
            x = x->kid[0];
        }
        p->at++;
        x = with_unit(p, x, text);
        if (x) {
            x->fn = word;
        }
        if (is_op(p, '/') &&
            (peek_at(p, 1)->kind == MATHLEX_TEXT || peek_at(p, 1)->kind == MATHLEX_WORD)) {
            char *both = arena_alloc(p->a, strlen(x->text) + strlen(peek_at(p, 1)->text) + 2);
            strcat(strcat(strcpy(both, x->text), "/"), peek_at(p, 1)->text);
            p->at += 2;
            x->text = both;
        }
    }
    return x;
}

static node *parse_product(struct parser *p)
{
    node *x = parse_signed_factor(p);

    while (!p->failed) {
        if (unit_here(p, x)) {
            x = parse_units(p, x);
        } else if (is_op(p, '*') || is_op(p, '/')) {
            enum mathread_op op = is_op(p, '*') ? MATHREAD_MUL : MATHREAD_DIV;
            p->at++;
            x = make2(p, op, x, parse_signed_factor(p));
        } else if (token_joins(p)) {
            node *y = parse_factor(p);
            int within = y && x->op == MATHREAD_SYM && y->op == MATHREAD_TUPLE &&
                         (y->open == '[' || y->close == ']');
            if (y && x->op == MATHREAD_SYM && y->grouped && y->op == MATHREAD_NUM &&
                strcmp(y->text, "0") == 0) {
                char *name = arena_alloc(p->a, strlen(x->text) + 4);
                strcat(strcpy(name, x->text), "(0)");
                x = leaf(p, MATHREAD_SYM, name); /* f(0), not f times nothing */
                continue;
            }
            x = make2(p, within ? MATHREAD_IN : MATHREAD_MUL, x, y); /* t(0,4] has lost its sign */
        } else {
            break;
        }
    }
    return x;
}

static node *parse_sum(struct parser *p)
{
    node *x;
    int op = 0;

    if (!enter(p)) {
        return NULL;
    }
    if (is_op(p, '+') || is_op(p, '-') || is_op(p, MATHLEX_PM) || is_op(p, MATHLEX_MP)) {
        op = peek(p)->op;
        p->at++;
    }
    x = parse_product(p);
    if (op && op != '+') {
        x = make1(p, op == '-' ? MATHREAD_NEG : op == MATHLEX_PM ? MATHREAD_PM : MATHREAD_MP, x);
    }
    while (!p->failed) {
        enum mathread_op how;
        if (is_op(p, '+')) {
            how = MATHREAD_ADD;
        } else if (is_op(p, '-')) {
            how = MATHREAD_SUB;
        } else if (is_op(p, MATHLEX_PM)) {
            how = MATHREAD_PM;
        } else if (is_op(p, MATHLEX_MP)) {
            how = MATHREAD_MP;
        } else {
            break;
        }
        p->at++;
        p->no_unit++;
        x = make2(p, how, x, parse_product(p));
        p->no_unit--;
    }
    p->depth--;
    return x;
}

static node *parse_sets(struct parser *p)
{
    node *x = parse_sum(p);

    while (!p->failed) {
        enum mathread_op how;
        if (is_op(p, MATHLEX_CUP)) {
            how = MATHREAD_UNION;
        } else if (is_op(p, MATHLEX_CAP)) {
            how = MATHREAD_INTERSECT;
        } else if (is_op(p, MATHLEX_SETMINUS)) {
            how = MATHREAD_SETMINUS;
        } else {
            break;
        }
        p->at++;
        x = make2(p, how, x, parse_sum(p));
    }
    if (!p->failed && is_op(p, ':') && peek_at(p, 1)->kind != MATHLEX_END) {
        struct items l = {0};
        add(p, &l, x);
        while (!p->failed && take(p, ':')) {
            add(p, &l, parse_sum(p));
        }
        x = make_list(p, MATHREAD_RATIO, &l);
    }
    return x;
}

static int relation(const struct parser *p)
{
    const struct mathlex_token *t = peek(p);

    if (t->kind != MATHLEX_OP) {
        return 0;
    }
    switch (t->op) {
    case '=':
    case MATHLEX_APPROX: return '=';
    case '<': return '<';
    case '>': return '>';
    case MATHLEX_LE: return 'l';
    case MATHLEX_GE: return 'g';
    case MATHLEX_NE: return 'n';
    default: return 0;
    }
}

static node *parse_item(struct parser *p)
{
    struct items l = {0};
    char *signs;
    int n = 0;
    node *x;

    if (!enter(p)) {
        return NULL;
    }
    x = parse_sets(p);
    if (!p->failed && take(p, MATHLEX_IN)) {
        x = make2(p, MATHREAD_IN, x, parse_sets(p));
    }
    if (p->failed || !relation(p)) {
        p->depth--;
        return x;
    }
    signs = arena_alloc(p->a, 16);
    add(p, &l, x);
    while (!p->failed && relation(p)) {
        if (n == 14) {
            return fail(p, "a long chain of relations");
        }
        signs[n++] = (char)relation(p);
        p->at++;
        add(p, &l, parse_sets(p));
    }
    x = make_list(p, MATHREAD_REL, &l);
    if (x) {
        x->text = signs;
    }
    p->depth--;
    return x;
}

int mathread_parse(struct mathread *r, struct arena *a, const char *text, int thousands)
{
    struct parser p = {.a = a, .r = r};

    memset(r, 0, sizeof *r);
    if (mathlex_run(&p.lex, a, text, thousands) != 0) {
        snprintf(r->why, sizeof r->why, "%s", p.lex.why);
        return -1;
    }
    r->merged = p.lex.merged;
    r->money = p.lex.money;
    r->root = parse_list(&p);
    if (!p.failed && peek(&p)->kind != MATHLEX_END) {
        fail(&p, "something is left over at the end");
    }
    return p.failed ? -1 : 0;
}
