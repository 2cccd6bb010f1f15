/* Owns the vocabulary of answers: which commands, words and signs mean something, and which only
 * space things out. One pass, no backtracking; every byte is looked at a bounded number of times.
 */
#include "reward/mathlex.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"

const char *const mathlex_functions[MATHLEX_FN_COUNT] = {
    "sin",  "cos",  "tan",   "cot",  "sec",  "csc",   "asin",  "acos",  "atan", "acot",
    "asec", "acsc", "sinh",  "cosh", "tanh", "asinh", "acosh", "atanh", "ln",   "log",
    "exp",  "abs",  "floor", "ceil", "max",  "min",   "gcd",   "lcm"};

struct lexer {
    struct mathlex *out;
    struct arena *a;
    const char *s, *end;
    int cap, depth, space, thousands;
    char *scratch; /* as long as the text */
};

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static int is_alpha(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static struct mathlex_token *push(struct lexer *l, enum mathlex_kind kind, int op)
{
    struct mathlex_token *t = &l->out->tok[l->out->n];

    if (l->out->n + 1 < l->cap) {
        l->out->n++;
    }
    memset(t, 0, sizeof *t);
    t->kind = kind;
    t->op = op;
    t->space = l->space;
    l->space = 0;
    return t;
}

static int lex_fail(struct lexer *l, const char *what, const char *s, size_t n)
{
    snprintf(l->out->why, sizeof l->out->why, "%s %.*s", what, (int)(n < 40 ? n : 40), s);
    return -1;
}

/* ---- words ---- */

static int find_function(const char *s, size_t n)
{
    static const struct {
        const char *name;
        int fn;
    } more[] = {
        {"arcsin", MATHLEX_FN_ASIN},  {"arccos", MATHLEX_FN_ACOS},  {"arctan", MATHLEX_FN_ATAN},
        {"arccot", MATHLEX_FN_ACOT},  {"arcsec", MATHLEX_FN_ASEC},  {"arccsc", MATHLEX_FN_ACSC},
        {"arsinh", MATHLEX_FN_ASINH}, {"arcosh", MATHLEX_FN_ACOSH}, {"artanh", MATHLEX_FN_ATANH},
        {"lg", MATHLEX_FN_LOG},       {"tg", MATHLEX_FN_TAN},       {"ctg", MATHLEX_FN_COT},
        {"cosec", MATHLEX_FN_CSC},    {"ceiling", MATHLEX_FN_CEIL}};

    for (int i = 0; i < MATHLEX_FN_COUNT; i++) {
        if (strlen(mathlex_functions[i]) == n && memcmp(mathlex_functions[i], s, n) == 0) {
            return i;
        }
    }
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        if (strlen(more[i].name) == n && memcmp(more[i].name, s, n) == 0) {
            return more[i].fn;
        }
    }
    return -1;
}

static int is_greek(const char *s, size_t n)
{
    static const char *const names[] = {
        "alpha",  "beta",     "gamma",      "delta",  "epsilon",  "zeta",    "eta",   "theta",
        "iota",   "kappa",    "lambda",     "mu",     "nu",       "xi",      "rho",   "sigma",
        "tau",    "upsilon",  "phi",        "chi",    "psi",      "omega",   "Gamma", "Delta",
        "Theta",  "Lambda",   "Xi",         "Sigma",  "Upsilon",  "Phi",     "Psi",   "Omega",
        "varphi", "vartheta", "varepsilon", "varrho", "varsigma", "ell",     "hbar",  "Pi",
        "aleph",  "odot",     "oplus",      "star",   "mho",      "partial", "nabla", "varpi",
        "imath",  "jmath"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strlen(names[i]) == n && memcmp(names[i], s, n) == 0) {
            return 1;
        }
    }
    return 0;
}

struct named {
    const char *name;
    int op;
};

static int find_named(const struct named *list, size_t count, const char *s, size_t n)
{
    for (size_t i = 0; i < count; i++) {
        if (strlen(list[i].name) == n && memcmp(list[i].name, s, n) == 0) {
            return list[i].op;
        }
    }
    return 0;
}
#define FIND(list, s, n) find_named(list, sizeof(list) / sizeof *(list), s, n)

static int plain_word(struct lexer *l, const char *s, size_t n)
{
    static const struct named words[] = {
        {"pi", MATHLEX_PI},           {"infinity", MATHLEX_INFTY}, {"inf", MATHLEX_INFTY},
        {"oo", MATHLEX_INFTY},        {"sqrt", MATHLEX_SQRT},      {"and", MATHLEX_SEP},
        {"or", MATHLEX_SEP},          {"degrees", MATHLEX_DEG},    {"degree", MATHLEX_DEG},
        {"percent", MATHLEX_PERCENT}, {"union", MATHLEX_CUP},      {"deg", MATHLEX_DEG}};
    char low[16];
    int op, fn;

    for (size_t i = 0; i < n && i + 1 < sizeof low; i++) {
        low[i] = (char)(s[i] >= 'A' && s[i] <= 'Z' ? s[i] + 32 : s[i]);
        low[i + 1] = 0;
    }
    op = n < sizeof low ? FIND(words, low, n) : 0;
    fn = find_function(s, n);
    if (op) {
        struct mathlex_token *t = push(l, MATHLEX_OP, op);
        t->text = op == MATHLEX_SEP && n == 3 ? "and" : NULL;
        t->plain = 1;
    } else if (fn >= 0) {
        push(l, MATHLEX_FUNC, fn);
    } else if (is_greek(s, n)) {
        push(l, MATHLEX_SYM, 0)->text = arena_strndup(l->a, s, n);
    } else if (n == 1) {
        const struct mathlex_token *prev = l->out->n ? &l->out->tok[l->out->n - 1] : NULL;
        const char *q = s + 1;
        while (q < l->end && *q == ' ') {
            q++;
        }
        if (*s == 'U' && prev && prev->kind == MATHLEX_OP && (prev->op == ')' || prev->op == ']') &&
            q < l->end && (*q == '(' || *q == '[' || *q == '\\')) {
            push(l, MATHLEX_OP, MATHLEX_CUP);
        } else {
            push(l, MATHLEX_SYM, 0)->text = arena_strndup(l->a, s, n);
        }
    } else if (n >= 4 && n <= 5 && (fn = find_function(s, 3)) >= 0 && fn <= MATHLEX_FN_CSC &&
               find_function(s, n) < 0 && memchr("xyztnuv", s[3], 7)) {
        push(l, MATHLEX_FUNC, fn); /* sinx, cos2x has its digit apart */
        for (size_t i = 3; i < n; i++) {
            push(l, MATHLEX_SYM, 0)->text = arena_strndup(l->a, s + i, 1);
        }
    } else {
        push(l, MATHLEX_WORD, 0)->text = arena_strndup(l->a, s, n);
    }
    return 0;
}

/* ---- numbers ---- */

/* The length of a separator that may stand between thousands: ",\!", "{,}", "\,", a thin space. */
static size_t loose_separator(const char *s, const char *end)
{
    static const char *const list[] = {",\\!\\!",      ",\\!",         "{,}",  "\\,",   "\\ ",
                                       "\xe2\x80\x89", "\xe2\x80\xaf", ",\\,", "{,}\\!"};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        size_t n = strlen(list[i]);
        if ((size_t)(end - s) > n && memcmp(s, list[i], n) == 0) {
            return n + (n > 2 && s[n] == ' '); /* 11,\! 111 */
        }
    }
    return 0;
}

static int three_digits(const char *s, const char *end)
{
    return end - s >= 3 && is_digit(s[0]) && is_digit(s[1]) && is_digit(s[2]) &&
           (end - s == 3 || !is_digit(s[3]));
}

/* 0.1\overline{6}, 0.\dot{3}: the repeating digits. */
static const char *repeating(struct lexer *l)
{
    static const char *const marks[] = {"\\overline{", "\\bar{", "\\dot{"};
    for (size_t i = 0; i < 3; i++) {
        size_t n = strlen(marks[i]);
        const char *p = l->s + n, *q = p;
        if ((size_t)(l->end - l->s) <= n || memcmp(l->s, marks[i], n) != 0) {
            continue;
        }
        while (q < l->end && is_digit(*q)) {
            q++;
        }
        if (q > p && q < l->end && *q == '}') {
            l->s = q + 1;
            return arena_strndup(l->a, p, (size_t)(q - p));
        }
    }
    return NULL;
}

static void exponent(struct lexer *l, struct mathlex_token *t)
{
    const char *p = l->s;
    int minus = 0, e = 0;

    if (p == l->end || (*p != 'e' && *p != 'E')) {
        return;
    }
    p++;
    if (p < l->end && (*p == '-' || *p == '+')) {
        minus = *p++ == '-';
    }
    if (p == l->end || !is_digit(*p)) {
        return;
    }
    while (p < l->end && is_digit(*p)) {
        e = e < 100000000 ? e * 10 + (*p - '0') : e;
        p++;
    }
    if (p < l->end && is_alpha(*p)) {
        return;
    }
    t->exp10 = minus ? -e : e;
    l->s = p;
}

static void number(struct lexer *l)
{
    const char *s = l->s, *end = l->end;
    char *out = l->scratch;
    size_t n = 0, lead;
    struct mathlex_token *t = push(l, MATHLEX_NUM, 0);

    while (s < end && is_digit(*s)) {
        out[n++] = *s++;
    }
    lead = n;
    while (lead >= 1 && lead <= 3 && s < end) {
        size_t k = loose_separator(s, end);
        if (!k && *s == ',' && l->thousands && l->depth == 0 && out[0] != '0') {
            k = 1;
            l->out->merged |= three_digits(s + 1, end);
        }
        if (!k || !three_digits(s + k, end)) {
            break;
        }
        memcpy(out + n, s + k, 3);
        n += 3;
        s += k + 3;
    }
    if (s < end && *s == '.' && (s + 1 == end || s[1] != '.')) {
        out[n++] = *s++;
        while (s < end && is_digit(*s)) {
            out[n++] = *s++;
        }
    }
    out[n] = 0;
    l->s = s;
    t->text = arena_strndup(l->a, out, n);
    if (strchr(t->text, '.')) {
        t->more = repeating(l);
    }
    exponent(l, t);
}

/* ---- commands ---- */

/* The group {...} at l->s, or one token: its inner text. NULL when there is none. */
static const char *group_text(struct lexer *l, size_t *n)
{
    const char *s = l->s;
    int depth = 0;

    while (s < l->end && *s == ' ') {
        s++;
    }
    if (s == l->end) {
        return NULL;
    }
    if (*s != '{') {
        *n = 1;
        if (*s == '\\') {
            while (s + *n < l->end && is_alpha(s[*n])) {
                ++*n;
            }
        }
        l->s = s + *n;
        return s;
    }
    for (const char *p = s; p < l->end; p++) {
        if (*p == '\\' && p + 1 < l->end) {
            p++;
            continue;
        }
        depth += *p == '{';
        depth -= *p == '}';
        if (depth == 0) {
            *n = (size_t)(p - s) - 1;
            l->s = p + 1;
            return s + 1;
        }
    }
    return NULL;
}

static int command_text(struct lexer *l, const char *cmd, size_t n)
{
    size_t len;
    const char *t = group_text(l, &len);
    struct mathlex_token *k;
    int roman = n >= 6 && memcmp(cmd, "math", 4) == 0, fn;

    if (!t) {
        return lex_fail(l, "nothing after", cmd - 1, n + 1);
    }
    if (n == 12 && (fn = find_function(t, len)) >= 0) { /* operatorname */
        push(l, MATHLEX_FUNC, fn);
        return 0;
    }
    k = push(l, MATHLEX_TEXT, 0);
    k->text = arena_strndup(l->a, t, len);
    k->plain = roman || n == 12;
    return 0;
}

/* \vec{AB}: a name of its own. */
static int command_accent(struct lexer *l, const char *cmd, size_t n)
{
    size_t len, w = 0;
    const char *t = group_text(l, &len);
    char *name;

    if (!t) {
        return lex_fail(l, "nothing after", cmd - 1, n + 1);
    }
    name = arena_alloc(l->a, n + len + 2);
    memcpy(name, cmd, n);
    name[n] = ' ';
    for (size_t i = 0; i < len; i++) {
        if (t[i] != ' ' && t[i] != '{' && t[i] != '}') {
            name[n + 1 + w++] = t[i];
        }
    }
    push(l, MATHLEX_SYM, 0)->text = name;
    return 0;
}

static int in_words(const char *words, const char *s, size_t n)
{
    for (const char *p = words; *p;) {
        size_t k = strcspn(p, " ");
        if (k == n && memcmp(p, s, n) == 0) {
            return 1;
        }
        p += k + (p[k] == ' ');
    }
    return 0;
}

static int command_name(struct lexer *l, const char *s, size_t n)
{
    static const struct named ops[] = {{"frac", MATHLEX_FRAC},
                                       {"dfrac", MATHLEX_FRAC},
                                       {"tfrac", MATHLEX_FRAC},
                                       {"cfrac", MATHLEX_FRAC},
                                       {"binom", MATHLEX_BINOM},
                                       {"dbinom", MATHLEX_BINOM},
                                       {"tbinom", MATHLEX_BINOM},
                                       {"sqrt", MATHLEX_SQRT},
                                       {"lbrace", MATHLEX_SETOPEN},
                                       {"rbrace", MATHLEX_SETCLOSE},
                                       {"langle", MATHLEX_LANGLE},
                                       {"rangle", MATHLEX_RANGLE},
                                       {"lfloor", MATHLEX_LFLOOR},
                                       {"rfloor", MATHLEX_RFLOOR},
                                       {"lceil", MATHLEX_LCEIL},
                                       {"rceil", MATHLEX_RCEIL},
                                       {"le", MATHLEX_LE},
                                       {"leq", MATHLEX_LE},
                                       {"leqslant", MATHLEX_LE},
                                       {"ge", MATHLEX_GE},
                                       {"geq", MATHLEX_GE},
                                       {"geqslant", MATHLEX_GE},
                                       {"ne", MATHLEX_NE},
                                       {"neq", MATHLEX_NE},
                                       {"lt", '<'},
                                       {"gt", '>'},
                                       {"approx", MATHLEX_APPROX},
                                       {"in", MATHLEX_IN},
                                       {"cup", MATHLEX_CUP},
                                       {"bigcup", MATHLEX_CUP},
                                       {"cap", MATHLEX_CAP},
                                       {"setminus", MATHLEX_SETMINUS},
                                       {"backslash", MATHLEX_SETMINUS},
                                       {"smallsetminus", MATHLEX_SETMINUS},
                                       {"pm", MATHLEX_PM},
                                       {"mp", MATHLEX_MP},
                                       {"infty", MATHLEX_INFTY},
                                       {"pi", MATHLEX_PI},
                                       {"R", MATHLEX_REALS},
                                       {"emptyset", MATHLEX_EMPTY},
                                       {"varnothing", MATHLEX_EMPTY},
                                       {"mid", MATHLEX_MID},
                                       {"degree", MATHLEX_DEG},
                                       {"circ", MATHLEX_DEG},
                                       {"percent", MATHLEX_PERCENT},
                                       {"cdot", '*'},
                                       {"times", '*'},
                                       {"ast", '*'},
                                       {"div", '/'},
                                       {"colon", ':'},
                                       {"vert", '|'},
                                       {"lvert", '|'},
                                       {"rvert", '|'},
                                       {"lparen", '('},
                                       {"rparen", ')'},
                                       {"lbrack", '['},
                                       {"rbrack", ']'},
                                       {"prime", '\''},
                                       {"land", MATHLEX_SEP},
                                       {"lor", MATHLEX_SEP},
                                       {"wedge", MATHLEX_SEP},
                                       {"vee", MATHLEX_SEP},
                                       {"cr", MATHLEX_ROW}};
    static const struct named bigs[] = {
        {"sum", MATHLEX_SUM}, {"prod", MATHLEX_PROD}, {"int", MATHLEX_INT}, {"lim", MATHLEX_LIM}};
    static const char skip[] =
        "left right big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr quad qquad "
        "displaystyle textstyle scriptstyle limits nolimits boxed fbox mathbf boldsymbol mathcal "
        "mathit bf it bold enspace thinspace medspace thickspace rm hfill hline middle nonumber "
        "allowbreak";
    static const char texts[] = "text mbox textbf textrm textit textsf texttt textnormal mathrm "
                                "mathsf mathtt operatorname hbox emph textup mathop";
    static const char accents[] = "vec hat bar tilde dot ddot overline widehat widetilde "
                                  "overrightarrow underline overarc angle triangle";
    int op = FIND(ops, s, n), big = FIND(bigs, s, n), fn = find_function(s, n);

    if (op) {
        l->depth += op == MATHLEX_SETOPEN || op == MATHLEX_LANGLE;
        l->depth -= op == MATHLEX_SETCLOSE || op == MATHLEX_RANGLE;
        push(l, MATHLEX_OP, op)->text = op == MATHLEX_SEP && (n == 4 || n == 5) ? "and" : NULL;
    } else if (big) {
        push(l, MATHLEX_BIG, big);
    } else if (fn >= 0) {
        push(l, MATHLEX_FUNC, fn);
    } else if (in_words(skip, s, n)) {
        if ((n == 4 || n == 5) && (*s == 'l' || *s == 'r') && l->s < l->end && *l->s == '.') {
            l->s++; /* \left. */
        }
        l->space = 1;
    } else if (in_words("phantom hphantom vphantom hspace vspace", s, n)) {
        size_t len;
        group_text(l, &len); /* what it takes is not seen */
        l->space = 1;
    } else if (in_words(texts, s, n)) {
        return command_text(l, s, n);
    } else if (in_words(accents, s, n)) {
        return command_accent(l, s, n);
    } else if (n == 6 && memcmp(s, "mathbb", 6) == 0) {
        size_t len;
        const char *t = group_text(l, &len);
        if (t && len == 1 && *t == 'R') {
            push(l, MATHLEX_OP, MATHLEX_REALS);
        } else if (t && len == 1) {
            push(l, MATHLEX_SYM, 0)->text = arena_strndup(l->a, t, 1);
        } else {
            return lex_fail(l, "unknown set after", s - 1, n + 1);
        }
    } else if ((n == 5 && memcmp(s, "begin", 5) == 0) || (n == 3 && memcmp(s, "end", 3) == 0)) {
        size_t len;
        const char *t = group_text(l, &len);
        if (!t) {
            return lex_fail(l, "nothing after", s - 1, n + 1);
        }
        push(l, MATHLEX_OP, n == 5 ? MATHLEX_BEGIN : MATHLEX_ENDENV)->text =
            arena_strndup(l->a, t, len);
        if (n == 5 && len >= 5 && memcmp(t, "array", 5) == 0 && l->s < l->end && *l->s == '{') {
            group_text(l, &len); /* its columns */
        }
    } else if (is_greek(s, n)) {
        push(l, MATHLEX_SYM, 0)->text = arena_strndup(l->a, s, n);
    } else {
        return lex_fail(l, "unknown command", s - 1, n + 1);
    }
    return 0;
}

static int command(struct lexer *l)
{
    const char *s = l->s + 1;
    size_t n = 0;

    if (s == l->end) {
        return lex_fail(l, "a backslash at the end", "", 0);
    }
    if (!is_alpha(*s)) {
        l->s = s + 1;
        switch (*s) {
        case '{':
            l->depth++;
            push(l, MATHLEX_OP, MATHLEX_SETOPEN);
            return 0;
        case '}':
            l->depth--;
            push(l, MATHLEX_OP, MATHLEX_SETCLOSE);
            return 0;
        case '%': push(l, MATHLEX_OP, MATHLEX_PERCENT); return 0;
        case '$': l->out->money = 1; return 0;
        case '\\': push(l, MATHLEX_OP, MATHLEX_ROW); return 0;
        case '|': push(l, MATHLEX_OP, '|'); return 0;
        case '(':
        case ')':
        case '[':
        case ']':
        case ',':
        case ';':
        case ':':
        case '!':
        case ' ':
        case '/':
        case '\n':
        case '>': l->space = 1; return 0;
        case '#':
        case '&':
        case '_': l->space = 1; return 0;
        default: return lex_fail(l, "unknown command", l->s - 2, 2);
        }
    }
    while (s + n < l->end && is_alpha(s[n])) {
        n++;
    }
    l->s = s + n;
    return command_name(l, s, n);
}

/* ---- signs ---- */

/* f^{\prime} is f'. */
static int prime_power(struct lexer *l)
{
    const char *p = l->s + 1;
    int brace = 0;

    while (p < l->end && (*p == ' ' || (*p == '{' && !brace))) {
        brace |= *p == '{';
        p++;
    }
    if (l->end - p < 6 || memcmp(p, "\\prime", 6) != 0) {
        return 0;
    }
    p += 6;
    while (brace && p < l->end && *p == ' ') {
        p++;
    }
    if (brace && (p == l->end || *p++ != '}')) {
        return 0;
    }
    l->s = p;
    push(l, MATHLEX_OP, '\'');
    return 1;
}

/* ^\circ, ^{\circ}, ^o are degrees. */
static int degree_power(struct lexer *l)
{
    const char *p = l->s + 1;
    int brace = 0;

    while (p < l->end && (*p == ' ' || (*p == '{' && !brace))) {
        brace |= *p == '{';
        p++;
    }
    if (l->end - p >= 5 && memcmp(p, "\\circ", 5) == 0 && (l->end - p == 5 || !is_alpha(p[5]))) {
        p += 5;
    } else if (l->end - p >= 2 && memcmp(p, "\xc2\xb0", 2) == 0) {
        p += 2;
    } else if (l->end - p >= 3 && memcmp(p, "\xe2\x88\x98", 3) == 0) {
        p += 3;
    } else {
        return 0;
    }
    while (brace && p < l->end && *p == ' ') {
        p++;
    }
    if (brace && (p == l->end || *p++ != '}')) {
        return 0;
    }
    l->s = p;
    push(l, MATHLEX_OP, MATHLEX_DEG);
    return 1;
}

static void push_num(struct lexer *l, const char *digits)
{
    push(l, MATHLEX_NUM, 0)->text = digits;
}

static int unicode_greek(int32_t c, const char **name)
{
    static const char *const low[] = {
        "alpha", "beta",   "gamma",   "delta", "epsilon", "zeta",    "eta",  "theta", "iota",
        "kappa", "lambda", "mu",      "nu",    "xi",      "omicron", NULL,   "rho",   "sigma",
        "sigma", "tau",    "upsilon", "phi",   "chi",     "psi",     "omega"};

    if (c >= 0x3b1 && c <= 0x3c9) {
        *name = low[c - 0x3b1];
        return 1;
    }
    return 0;
}

static int unicode(struct lexer *l)
{
    static const struct {
        int32_t c;
        int op;
    } ops[] = {{0x2212, '-'},
               {0x2013, '-'},
               {0x2014, '-'},
               {0x2010, '-'},
               {0x2011, '-'},
               {0xd7, '*'},
               {0xb7, '*'},
               {0x22c5, '*'},
               {0x2217, '*'},
               {0xf7, '/'},
               {0x2215, '/'},
               {0x2044, '/'},
               {0x2264, MATHLEX_LE},
               {0x2265, MATHLEX_GE},
               {0x2260, MATHLEX_NE},
               {0x2248, MATHLEX_APPROX},
               {0x2208, MATHLEX_IN},
               {0x222a, MATHLEX_CUP},
               {0x2229, MATHLEX_CAP},
               {0x2216, MATHLEX_SETMINUS},
               {0xb1, MATHLEX_PM},
               {0x2213, MATHLEX_MP},
               {0xb0, MATHLEX_DEG},
               {0x221e, MATHLEX_INFTY},
               {0x3c0, MATHLEX_PI},
               {0x211d, MATHLEX_REALS},
               {0x2205, MATHLEX_EMPTY},
               {0x221a, MATHLEX_SQRT},
               {0x27e8, MATHLEX_LANGLE},
               {0x27e9, MATHLEX_RANGLE},
               {0x230a, MATHLEX_LFLOOR},
               {0x230b, MATHLEX_RFLOOR},
               {0x2308, MATHLEX_LCEIL},
               {0x2309, MATHLEX_RCEIL},
               {0x2032, '\''},
               {0x2a7d, MATHLEX_LE},
               {0x2a7e, MATHLEX_GE},
               {0xff0c, ','},
               {0xff08, '('},
               {0xff09, ')'},
               {0x2236, ':'}};
    static const char *const digits[] = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"};
    utf8proc_int32_t c;
    utf8proc_ssize_t n =
        utf8proc_iterate((const utf8proc_uint8_t *)l->s, (utf8proc_ssize_t)(l->end - l->s), &c);
    const char *at = l->s, *name;

    if (n <= 0) {
        return lex_fail(l, "not UTF-8", "", 0);
    }
    l->s += n;
    if (utf8proc_category(c) == UTF8PROC_CATEGORY_ZS || c == 0x200b || c == 0xfeff) {
        l->space = 1;
        return 0;
    }
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        if (ops[i].c == c) {
            l->depth += ops[i].op == '(' || ops[i].op == MATHLEX_LANGLE;
            l->depth -= ops[i].op == ')' || ops[i].op == MATHLEX_RANGLE;
            push(l, MATHLEX_OP, ops[i].op)->plain = 1;
            return 0;
        }
    }
    if (c == 0xb2 || c == 0xb3 || c == 0xb9 || c == 0x2070 || (c >= 0x2074 && c <= 0x2079)) {
        push(l, MATHLEX_OP, '^');
        push_num(l, digits[c == 0xb9 ? 1 : c < 0x2070 ? c - 0xb0 : c - 0x2070]);
        return 0;
    }
    if (c == 0xbc || c == 0xbd || c == 0xbe) {
        push(l, MATHLEX_OP, MATHLEX_FRAC);
        push_num(l, c == 0xbe ? "3" : "1");
        push_num(l, c == 0xbd ? "2" : "4");
        return 0;
    }
    if (c == 0x20ac || c == 0xa3 || c == 0xa5) {
        l->out->money = 1;
        return 0;
    }
    if (unicode_greek(c, &name)) {
        push(l, MATHLEX_SYM, 0)->text = name;
        return 0;
    }
    if (utf8proc_category(c) >= UTF8PROC_CATEGORY_LU &&
        utf8proc_category(c) <= UTF8PROC_CATEGORY_LO) {
        const char *q = l->s;
        while (q < l->end && ((unsigned char)*q >= 0x80 || is_alpha(*q))) {
            q++; /* a word of another script */
        }
        if (q == l->s) {
            push(l, MATHLEX_SYM, 0)->text = arena_strndup(l->a, at, (size_t)n);
        } else {
            push(l, MATHLEX_WORD, 0)->text = arena_strndup(l->a, at, (size_t)(q - at));
            l->s = q;
        }
        return 0;
    }
    return lex_fail(l, "unknown sign", at, (size_t)n);
}

static int sign(struct lexer *l)
{
    const char *s = l->s, *end = l->end;
    int op = 0;

    if (*s == '<' && end - s > 1 && s[1] == '=') {
        op = MATHLEX_LE;
    } else if (*s == '>' && end - s > 1 && s[1] == '=') {
        op = MATHLEX_GE;
    } else if (*s == '!' && end - s > 1 && s[1] == '=') {
        op = MATHLEX_NE;
    } else if (*s == '=' && end - s > 1 && s[1] == '=') {
        op = '=';
    } else if (*s == '*' && end - s > 1 && s[1] == '*') {
        op = '^';
    }
    if (op) {
        l->s += 2;
        push(l, MATHLEX_OP, op);
        return 0;
    }
    if (end - s > 2 && memcmp(s, "+/-", 3) == 0) {
        l->s += 3;
        push(l, MATHLEX_OP, MATHLEX_PM);
        return 0;
    }
    if (*s == '^' && (degree_power(l) || prime_power(l))) {
        return 0;
    }
    l->s++;
    if (*s == '%') {
        push(l, MATHLEX_OP, MATHLEX_PERCENT);
    } else if (*s && strchr("+-*/^_!()[]{},;:|=<>'&", *s)) {
        l->depth += *s == '(' || *s == '[';
        l->depth -= *s == ')' || *s == ']';
        push(l, MATHLEX_OP, *s);
    } else {
        return lex_fail(l, "unknown sign", s, 1);
    }
    return 0;
}

int mathlex_run(struct mathlex *x, struct arena *a, const char *text, int thousands)
{
    struct lexer l = {
        .out = x, .a = a, .s = text, .end = text + strlen(text), .thousands = thousands};
    int rc = 0;

    memset(x, 0, sizeof *x);
    l.cap = 3 * (int)(l.end - l.s) + 4;
    x->tok = arena_alloc(a, (size_t)l.cap * sizeof *x->tok);
    l.scratch = arena_alloc(a, (size_t)(l.end - l.s) + 1);
    while (l.s < l.end && rc == 0) {
        char c = *l.s;
        if (c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '~') {
            l.space = 1;
            l.s++;
        } else if (c == '$') {
            l.space = 1;
            l.s++;
            x->money |= l.s < l.end && is_digit(*l.s);
        } else if (is_digit(c) || (c == '.' && l.s + 1 < l.end && is_digit(l.s[1]))) {
            number(&l);
        } else if (is_alpha(c)) {
            size_t n = 1;
            const char *s = l.s;
            while (s + n < l.end && is_alpha(s[n])) {
                n++;
            }
            l.s += n;
            if (l.end - l.s > 1 && *l.s == '.' && is_alpha(l.s[1]) &&
                ((n == 2 && memcmp(s, "np", 2) == 0) || (n == 4 && memcmp(s, "math", 4) == 0))) {
                l.s++; /* np.arcsin, math.sqrt */
                continue;
            }
            rc = plain_word(&l, s, n);
        } else if (c == '\\') {
            rc = command(&l);
        } else if ((unsigned char)c >= 0x80) {
            rc = unicode(&l);
        } else {
            rc = sign(&l);
        }
    }
    push(&l, MATHLEX_END, 0);
    return rc;
}
