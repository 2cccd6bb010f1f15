/* Owns the two normal forms of an answer and the order of comparisons. Both forms are chains of
 * text replacements whose order matters; each step makes a new string in an arena that lives for
 * one grading, so every step reads like its description. */
#include "reward/mathgrade.h"

#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/buf.h"
#include "base/mem.h"
#include "reward/detex.h"
#include "reward/mathexpr.h"

/* ---- text in an arena ---- */

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static size_t count(const char *s, const char *what)
{
    size_t n = 0, k = strlen(what);
    while ((s = strstr(s, what)) != NULL) {
        n++;
        s += k;
    }
    return n;
}

static char *replace(struct arena *a, char *s, const char *from, const char *to)
{
    size_t hits = count(s, from), nf = strlen(from), nt = strlen(to), len = strlen(s);
    char *out, *w;

    if (hits == 0) {
        return s;
    }
    out = w = arena_alloc(a, len + hits * nt + 1);
    for (;;) {
        char *hit = strstr(s, from);
        size_t n = hit ? (size_t)(hit - s) : strlen(s);
        memcpy(w, s, n);
        w += n;
        if (!hit) {
            break;
        }
        memcpy(w, to, nt);
        w += nt;
        s = hit + nf;
    }
    *w = 0;
    return out;
}

/* Bytes of the character at s (1 for a byte that is not UTF-8) and its code point (-1 then). */
static size_t char_at(const char *s, int32_t *code)
{
    utf8proc_int32_t c;
    utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)s, -1, &c);

    *code = n > 0 ? c : -1;
    return n > 0 ? (size_t)n : 1;
}

static int is_space(int32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

static char *trim(struct arena *a, const char *s)
{
    const char *end = s, *p;
    int32_t c;
    size_t n;

    while (*s && (n = char_at(s, &c)) > 0 && is_space(c)) {
        s += n;
    }
    end = s;
    for (p = s; *p; p += n) {
        n = char_at(p, &c);
        if (!is_space(c)) {
            end = p + n;
        }
    }
    return arena_strndup(a, s, (size_t)(end - s));
}

static int starts(const char *s, const char *with)
{
    return strncmp(s, with, strlen(with)) == 0;
}

/* The inside of \text{...} when that is all of s (but for a line end), else NULL. */
static char *unwrap_text(struct arena *a, const char *s)
{
    size_t n = strlen(s);

    if (n && s[n - 1] == '\n') {
        n--;
    }
    if (n < 8 || !starts(s, "\\text{") || s[n - 1] != '}' || memchr(s, '\n', n)) {
        return NULL;
    }
    return arena_strndup(a, s + 6, n - 7);
}

/* ---- first form: string equality after Hendrycks' rules ---- */

/* \sqrt3 -> \sqrt{3}. NULL when nothing follows a \sqrt. */
static char *brace_sqrt(struct arena *a, char *s)
{
    struct buf b;
    char *out = NULL;

    buf_init(&b, (size_t)8 * MATHGRADE_MAX);
    for (;;) {
        char *hit = strstr(s, "\\sqrt");
        int32_t c;
        size_t n;
        if (!hit) {
            buf_str(&b, s);
            out = arena_strndup(a, b.data, b.len);
            break;
        }
        buf_add(&b, s, (size_t)(hit - s) + 5);
        s = hit + 5;
        if (!*s || starts(s, "\\sqrt")) {
            break;
        }
        if (*s != '{') {
            n = char_at(s, &c);
            buf_str(&b, "{");
            buf_add(&b, s, n);
            buf_str(&b, "}");
            s += n;
        }
    }
    buf_fini(&b);
    return out;
}

/* \frac12 -> \frac{1}{2}, \frac1{2} -> \frac{1}{2}. NULL when a \frac has nothing after it; s as it
 * was when one has only one character. */
static char *brace_frac(struct arena *a, char *s)
{
    struct buf b;
    char *out = NULL, *at = s;

    buf_init(&b, (size_t)8 * MATHGRADE_MAX);
    for (;;) {
        char *hit = strstr(at, "\\frac"), *next;
        int32_t c;
        size_t n, m;
        if (!hit) {
            buf_str(&b, at);
            out = arena_strndup(a, b.data, b.len);
            break;
        }
        buf_add(&b, at, (size_t)(hit - at) + 5);
        at = hit + 5;
        next = strstr(at, "\\frac");
        if (!*at || next == at) {
            break;
        }
        if (*at == '{') {
            continue;
        }
        n = char_at(at, &c);
        if (!at[n] || next == at + n) {
            out = s;
            break;
        }
        m = char_at(at + n, &c);
        buf_str(&b, "{");
        buf_add(&b, at, n);
        buf_str(&b, "}");
        if (at[n] != '{') {
            buf_str(&b, "{");
            buf_add(&b, at + n, m);
            buf_str(&b, "}");
        } else {
            buf_str(&b, "{");
        }
        at += n + m;
    }
    buf_fini(&b);
    return out;
}

/* The length of an integer as Python prints it (no sign but '-', no leading zeros), 0 for none. */
static size_t plain_int(const char *s)
{
    size_t n = *s == '-', first = n;
    while (is_digit(s[n])) {
        n++;
    }
    if (n == first || n - first > 4300 || (s[first] == '0' && n > 1)) {
        return 0;
    }
    return n;
}

/* 3/4 -> \frac{3}{4}, only when both are integers in plain form. */
static char *slash_to_frac(struct arena *a, char *s)
{
    size_t n = plain_int(s), m;
    char *out;

    if (n == 0 || s[n] != '/' || (m = plain_int(s + n + 1)) == 0 || s[n + 1 + m]) {
        return s;
    }
    out = arena_alloc(a, n + m + 16);
    sprintf(out, "\\frac{%.*s}{%s}", (int)n, s, s + n + 1);
    return out;
}

/* Characters before p, counted up to 3. */
static int few_chars(const char *s, const char *p)
{
    int n = 0;
    int32_t c;
    while (s < p && n < 3) {
        s += char_at(s, &c);
        n++;
    }
    return n;
}

/* The rules in order; NULL when one of them cannot be applied. */
static char *mathd_rules(struct arena *a, char *s)
{
    static const char *const table[][2] = {
        {"\n", ""},     {"\\!", ""},     {"\\\\", "\\"},    {"tfrac", "frac"}, {"dfrac", "frac"},
        {"\\left", ""}, {"\\right", ""}, {"^{\\circ}", ""}, {"^\\circ", ""},   {"\\$", ""},
    };
    char *p;

    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        s = replace(a, s, table[i][0], table[i][1]);
    }
    if (count(s, "\\text{ ") > 1) {
        return NULL;
    }
    if ((p = strstr(s, "\\text{ ")) != NULL) {
        s = arena_strndup(a, s, (size_t)(p - s)); /* a unit */
    }
    s = replace(a, s, "\\%", "");
    s = replace(a, s, " .", " 0.");
    s = replace(a, s, "{.", "{0.");
    if (!*s) {
        return s;
    }
    if (*s == '.') {
        char *t = arena_alloc(a, strlen(s) + 2);
        t[0] = '0';
        strcpy(t + 1, s);
        s = t;
    }
    if (count(s, "=") == 1 && few_chars(s, strchr(s, '=')) <= 2) {
        s = strchr(s, '=') + 1; /* x = 5 */
    }
    s = brace_sqrt(a, s);
    s = s ? brace_frac(a, replace(a, s, " ", "")) : NULL;
    if (!s) {
        return NULL;
    }
    if (strcmp(s, "0.5") == 0) {
        return arena_strdup(a, "\\frac{1}{2}");
    }
    return slash_to_frac(a, s);
}

static char *mathd_form(struct arena *a, const char *text)
{
    char *s = trim(a, text), *inner = unwrap_text(a, s), *out;

    if (inner) {
        s = trim(a, inner);
    }
    out = mathd_rules(a, s);
    return out ? out : s;
}

/* ---- second form ---- */

/* Python's float(s): surrounding blanks, one '_' between digits, inf and nan. */
static int to_float(struct arena *a, const char *text, double *out)
{
    char *s = trim(a, text), *w = s, *end;
    size_t sign = *s == '-' || *s == '+';
    int digits = 0;

    if (strcasecmp(s + sign, "inf") == 0 || strcasecmp(s + sign, "infinity") == 0) {
        *out = *s == '-' ? -INFINITY : INFINITY;
        return 1;
    }
    if (strcasecmp(s + sign, "nan") == 0) {
        *out = NAN;
        return 1;
    }
    for (const char *r = s; *r; r++) {
        if (*r == '_') {
            if (r == s || !is_digit(r[-1]) || !is_digit(r[1])) {
                return 0;
            }
            continue;
        }
        if (!is_digit(*r) && !strchr("+-.eE", *r)) {
            return 0;
        }
        digits |= is_digit(*r);
        *w++ = *r;
    }
    *w = 0;
    if (!digits) {
        return 0;
    }
    *out = strtod(s, &end);
    return *end == 0;
}

static int near_int(double x)
{
    double r;

    if (!(x > -1e308 && x < 1e308)) {
        return 0;
    }
    if (x > 4503599627370496.0 || x < -4503599627370496.0) {
        return 1;
    }
    r = (double)(int64_t)(x < 0 ? x - 0.5 : x + 0.5);
    return x - r <= 1e-7 && r - x <= 1e-7;
}

/* The integer nearest to x, or the one towards zero, as digits. */
static char *int_text(struct arena *a, double x, int truncate)
{
    char *out = arena_alloc(a, 340);

    if (truncate && x > -4503599627370496.0 && x < 4503599627370496.0) {
        x = (double)(int64_t)x;
    }
    snprintf(out, 340, "%.0f", x);
    return strcmp(out, "-0") == 0 ? out + 1 : out;
}

/* 1,000 -> 1000: a comma between a digit and exactly three more. One pass takes every second comma
 * of 1,234,567 because the character after the three digits belongs to the match; passes are
 * repeated until nothing changes. */
static char *strip_commas(struct arena *a, char *s)
{
    for (;;) {
        size_t n = strlen(s), i = 0;
        char *out, *w;
        int hits = 0;
        if (!memchr(s, ',', n)) {
            return s;
        }
        out = w = arena_alloc(a, n + 1);
        while (i < n) {
            if (is_digit(s[i]) && n - i >= 5 && s[i + 1] == ',' && is_digit(s[i + 2]) &&
                is_digit(s[i + 3]) && is_digit(s[i + 4]) && !is_digit(s[i + 5])) {
                *w++ = s[i];
                memcpy(w, s + i + 2, 3);
                w += 3;
                i += 5;
                if (i < n) {
                    *w++ = s[i++];
                }
                hits++;
            } else {
                *w++ = s[i++];
            }
        }
        *w = 0;
        if (!hits) {
            return s;
        }
        s = out;
    }
}

static int text_is_int(struct arena *a, char *s)
{
    double x;
    return to_float(a, strip_commas(a, s), &x) && near_int(x);
}

/* Removes `unit`, an optional "es", an optional "s", blanks and an optional ^digits, anywhere. */
static char *strip_unit(struct arena *a, char *s, const char *unit)
{
    size_t nu = strlen(unit);
    char *out, *w, *hit;

    if (!strstr(s, unit)) {
        return s;
    }
    out = w = arena_alloc(a, strlen(s) + 1);
    while ((hit = strstr(s, unit)) != NULL) {
        memcpy(w, s, (size_t)(hit - s));
        w += hit - s;
        s = hit + nu;
        s += starts(s, "es") ? 2 : 0;
        s += *s == 's';
        while (*s == ' ') {
            s++;
        }
        if (*s == '^' && is_digit(s[1])) {
            s++;
            while (is_digit(*s)) {
                s++;
            }
        }
    }
    strcpy(w, s);
    return out;
}

/* Removes `first`, blanks, `second` (which may be ""). */
static char *strip_pair(struct arena *a, char *s, const char *first, const char *second)
{
    char *out = arena_alloc(a, strlen(s) + 1), *w = out;

    while (*s) {
        if (starts(s, first)) {
            char *p = s + strlen(first);
            while (*p == ' ') {
                p++;
            }
            if (starts(p, second)) {
                s = p + strlen(second);
                continue;
            }
        }
        *w++ = *s++;
    }
    *w = 0;
    return out;
}

/* "- 3" -> "-3", and "7 3/4" -> "7+3/4". */
static char *mixed_numbers(struct arena *a, char *s)
{
    char *out = arena_alloc(a, strlen(s) + 1), *w = out, *t;

    for (t = s; *t;) {
        *w++ = *t;
        if (*t++ == '-') {
            while (*t == ' ') {
                t++;
            }
        }
    }
    *w = 0;
    s = out;
    out = w = arena_alloc(a, strlen(s) + 1);
    while (*s) {
        t = s + 1;
        while (*t == ' ') {
            t++;
        }
        if (is_digit(*s) && t > s + 1 && is_digit(*t)) {
            *w++ = *s;
            *w++ = '+';
            *w++ = *t;
            s = t + 1;
        } else {
            *w++ = *s++;
        }
    }
    *w = 0;
    return out;
}

static char *lower(struct arena *a, const char *s)
{
    char *out = arena_alloc(a, 2 * strlen(s) + 8), *w = out;

    while (*s) {
        int32_t c;
        size_t n = char_at(s, &c);
        if (c < 0) {
            *w++ = *s;
        } else {
            w += utf8proc_encode_char(utf8proc_tolower(c), (utf8proc_uint8_t *)w);
        }
        s += n;
    }
    *w = 0;
    return out;
}

static char *latex_to_text(struct arena *a, char *s)
{
    static const char *const table[][2] = {{"√", "sqrt"}, {"π", "pi"}, {"∞", "inf"},
                                           {"∪", "U"},    {"·", "*"},  {"×", "*"}};
    char *t;

    s = replace(a, s, "\\tfrac", "\\frac");
    s = replace(a, s, "\\dfrac", "\\frac");
    s = replace(a, s, "\\frac", " \\frac"); /* for mixed numbers */
    t = detex_text(s, a);
    if (!t) {
        return s;
    }
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        t = replace(a, t, table[i][0], table[i][1]);
    }
    return trim(a, t);
}

static char *norm_form(struct arena *a, const char *text)
{
    static const char *const table[][2] = {{"\\%", "%"},
                                           {"\\$", "$"},
                                           {"$", ""},
                                           {"%", ""},
                                           {" or ", " , "},
                                           {" and ", " , "},
                                           {"million", "*10^6"},
                                           {"billion", "*10^9"},
                                           {"trillion", "*10^12"}};
    static const char *const units[] = {"degree", "cm",   "centimeter", "meter", "mile",  "second",
                                        "minute", "hour", "day",        "week",  "month", "year",
                                        "foot",   "feet", "inch",       "yard"};
    char *s = unwrap_text(a, text);
    size_t n;
    double x;

    s = s ? s : arena_strdup(a, text);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        s = replace(a, s, table[i][0], table[i][1]);
    }
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        s = strip_unit(a, s, units[i]);
    }
    s = strip_pair(a, s, "^", "\\circ");
    n = strlen(s);
    if (n && s[0] == '{' && s[n - 1] == '}') {
        s = n == 1 ? arena_strdup(a, "") : arena_strndup(a, s + 1, n - 2);
    }
    s = strip_pair(a, s, ",\\!", "");
    if (to_float(a, s, &x) && near_int(x)) {
        s = int_text(a, x, 0);
    }
    if (strchr(s, '\\')) {
        s = latex_to_text(a, s);
    }
    s = mixed_numbers(a, s);
    s = replace(a, s, " ", "");
    s = replace(a, s, "{", "");
    s = replace(a, s, "}", "");
    s = lower(a, s);
    if (text_is_int(a, s) && to_float(a, replace(a, s, ",", ""), &x)) {
        s = int_text(a, x, 1);
    }
    return s;
}

/* ---- comparison of second forms ---- */

/* -?digits .? / 0* [1-9] digits* .? : an integer fraction, perhaps with a stray character. */
static int is_fraction(const char *s)
{
    int32_t c;

    s += *s == '-';
    if (!is_digit(*s)) {
        return 0;
    }
    while (is_digit(*s)) {
        s++;
    }
    for (int stray = 0; stray < 2; stray++) {
        const char *p = s;
        if (stray && *p && *p != '\n') {
            p += char_at(p, &c);
        }
        if (*p++ != '/') {
            continue;
        }
        while (*p == '0') {
            p++;
        }
        if (!is_digit(*p)) {
            continue;
        }
        while (is_digit(*p)) {
            p++;
        }
        if (*p && *p != '\n') {
            p += char_at(p, &c);
        }
        if (!*p || (*p == '\n' && !p[1])) {
            return 1;
        }
    }
    return 0;
}

/* Symbolic comparison is tried only on formulas with at most two letters and small exponents. */
static int may_evaluate(struct arena *a, char *s)
{
    int32_t seen[2], c;
    int n = 0;

    if (strstr(s, "^{") || strstr(s, "^(")) {
        return 0;
    }
    for (const char *p = s; (p = strchr(p, '^')) != NULL; p++) {
        const char *q = p + 1;
        while (is_digit(*q)) {
            q++;
        }
        if (q - p > 2 || (q - p > 1 && *q == '^')) {
            return 0;
        }
    }
    s = replace(a, replace(a, s, "sqrt", ""), "frac", "");
    for (size_t k; *s; s += k) {
        k = char_at(s, &c);
        if (c < 0 || utf8proc_category(c) < UTF8PROC_CATEGORY_LU ||
            utf8proc_category(c) > UTF8PROC_CATEGORY_LO) {
            continue;
        }
        if ((n > 0 && seen[0] == c) || (n > 1 && seen[1] == c)) {
            continue;
        }
        if (n == 2) {
            return 0;
        }
        seen[n++] = c;
    }
    return 1;
}

/* One comparison on its way: the rule that decided last, and the formulas for sympy. */
struct grading {
    struct arena *a;
    struct mathverdict *v;
    json_t *ask; /* an array; NULL while there is nothing to ask */
};

/* Short enough for a reason. */
#define SHOW "%.60s"

static int symbolic_equal(struct grading *g, const char *truth, const char *given)
{
    size_t n = strlen(truth) + strlen(given) + 6;
    char *s = arena_alloc(g->a, n);
    int zero;
    json_t *text;

    snprintf(s, n, "(%s)-(%s)", truth, given);
    if (!may_evaluate(g->a, s)) {
        mathverdict_set(g->v, 0, "different text, not for algebra: " SHOW " != " SHOW, given,
                        truth);
        return 0;
    }
    zero = mathexpr_zero(s, strlen(s));
    if (zero == 1 && mathexpr_rounds(s, strlen(s))) {
        zero = -1; /* in Miles it depends on the rounding of decimals */
    }
    if (zero == 1) {
        mathverdict_set(g->v, 1, "equal by algebra: " SHOW " = " SHOW, given, truth);
    } else if (zero == 0 || !(text = json_string(s))) {
        zero = 0;
        mathverdict_set(g->v, 0, "different by algebra: " SHOW " != " SHOW, given, truth);
    } else {
        g->ask = g->ask ? g->ask : json_array();
        json_array_append_new(g->ask, text);
        mathverdict_set(g->v, -1, "needs algebra: " SHOW " = " SHOW "?", given, truth);
    }
    return zero;
}

static int is_infinity(const char *s)
{
    return strcmp(s + (*s == '-' || *s == '+'), "inf") == 0;
}

static int element_equal(struct grading *g, char *truth, char *given)
{
    int same = strcmp(truth, given) == 0;

    if (is_fraction(truth) && is_fraction(given)) {
        /* 2/4 is not reduced, so it is not 1/2 */
        mathverdict_set(g->v, same,
                        same ? "equal fraction" : "fraction not as in the label: " SHOW " != " SHOW,
                        given, truth);
        return same;
    }
    if (is_infinity(truth) || is_infinity(given)) {
        mathverdict_set(g->v, same,
                        same ? "equal infinity" : "different infinity: " SHOW " != " SHOW, given,
                        truth);
        return same;
    }
    if (text_is_int(g->a, truth) != text_is_int(g->a, given)) {
        mathverdict_set(g->v, 0, "only one is an integer: " SHOW " != " SHOW, given, truth);
        return 0;
    }
    return symbolic_equal(g, truth, given);
}

struct elements {
    char **item;
    size_t n;
};

/* (1,2) and [1,2) have elements; anything else is one element. */
static struct elements split_tuple(struct arena *a, char *s)
{
    struct elements e = {0};
    size_t n, commas = 0;

    s = strip_commas(a, s);
    n = strlen(s);
    if (n == 0) {
        return e;
    }
    for (size_t i = 0; i < n; i++) {
        commas += s[i] == ',';
    }
    e.item = arena_alloc(a, (commas + 1) * sizeof *e.item);
    if (n > 2 && strchr("()[]", s[0]) && strchr("()[]", s[n - 1]) &&
        strcspn(s + 1, "()[]") == n - 2) {
        char *p = arena_strndup(a, s + 1, n - 2), *comma;
        while ((comma = strchr(p, ',')) != NULL) {
            *comma = 0;
            e.item[e.n++] = trim(a, p);
            p = comma + 1;
        }
        e.item[e.n++] = trim(a, p);
    } else {
        e.item[e.n++] = s;
    }
    return e;
}

/* 1, 0 or -1, with the rule in g->v. */
static int norm_equal(struct grading *g, const char *given_text, const char *truth_text)
{
    char *truth = norm_form(g->a, truth_text), *given = norm_form(g->a, given_text);
    struct elements te, ge;
    int all = 1;

    if (strcmp(truth, given) == 0) {
        mathverdict_set(g->v, 1, "equal text in the second normal form: " SHOW, truth);
        return 1;
    }
    if (!*given || !*truth) {
        mathverdict_set(g->v, 0, "%s is empty", *given ? "the label" : "the answer");
        return 0;
    }
    te = split_tuple(g->a, truth);
    ge = split_tuple(g->a, given);
    if (te.n > 1 &&
        (truth[0] != given[0] || truth[strlen(truth) - 1] != given[strlen(given) - 1])) {
        mathverdict_set(g->v, 0, "different brackets: " SHOW " != " SHOW, given, truth);
        return 0;
    }
    if (te.n != ge.n) {
        mathverdict_set(g->v, 0, "different number of elements: %zu != %zu", ge.n, te.n);
        return 0;
    }
    for (size_t i = 0; i < te.n; i++) {
        int same = element_equal(g, te.item[i], ge.item[i]);
        if (same == 0) {
            return 0;
        }
        all = same < 0 ? -1 : all;
    }
    if (all < 0) {
        mathverdict_set(g->v, -1, "needs algebra: " SHOW " = " SHOW "?", given, truth);
    }
    return all;
}

/* ---- public ---- */

static int too_long(const char *s)
{
    return strnlen(s, MATHGRADE_MAX + 1) > MATHGRADE_MAX;
}

typedef char *form_fn(struct arena *a, const char *text);

static char *in_form(form_fn *fn, const char *s)
{
    struct arena a;
    char *out;

    if (too_long(s)) {
        return NULL;
    }
    arena_init(&a, 1 << 14);
    out = mem_strdup(fn(&a, s));
    arena_fini(&a);
    return out;
}

char *mathgrade_mathd(const char *s)
{
    return in_form(mathd_form, s);
}

char *mathgrade_norm(const char *s)
{
    return in_form(norm_form, s);
}

int mathgrade_mathd_equal(const char *given, const char *truth)
{
    struct arena a;
    int same;

    if (too_long(given) || too_long(truth)) {
        return 0;
    }
    arena_init(&a, 1 << 14);
    same = strcmp(mathd_form(&a, given), mathd_form(&a, truth)) == 0;
    arena_fini(&a);
    return same;
}

/* The second form with its rule; unknown carries the question. */
static void sympy_equal(const char *given, const char *truth, struct mathverdict *v)
{
    struct arena a;
    struct grading g = {&a, v, NULL};

    if (too_long(given) || too_long(truth)) {
        mathverdict_set(v, 0, "too long: more than %d bytes", (int)MATHGRADE_MAX);
        return;
    }
    arena_init(&a, 1 << 14);
    if (norm_equal(&g, given, truth) < 0) {
        json_t *q = json_pack("{s:s, s:O}", "rule", "miles", "zero", g.ask);
        char *text = q ? json_dumps(q, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
        v->ask = mem_strdup(text);
        free(text);
        json_decref(q);
    }
    json_decref(g.ask);
    arena_fini(&a);
}

int mathgrade_sympy_equal(const char *given, const char *truth)
{
    struct mathverdict v;

    sympy_equal(given, truth, &v);
    mathverdict_fini(&v);
    return v.right == 1;
}

int mathgrade_equal(const char *given, const char *truth)
{
    return mathgrade_mathd_equal(given, truth) || mathgrade_sympy_equal(given, truth);
}

/* The last place of `what` in s[0..n), or NULL. */
static const char *find_last(const char *s, size_t n, const char *what)
{
    size_t k = strlen(what);

    for (size_t i = n; i >= k; i--) {
        if (s[i - k] == what[0] && memcmp(s + i - k, what, k) == 0) {
            return s + i - k;
        }
    }
    return NULL;
}

int mathgrade_box(const char *s, size_t n, const char **content, size_t *len)
{
    const char *box = find_last(s, n, "\\boxed"), *end = s + n;
    int depth = 0;

    if (!box || end - box < 7 || box[6] != '{') {
        return 0;
    }
    for (const char *p = box + 6; p < end; p++) {
        depth += *p == '{';
        depth -= *p == '}';
        if (depth == 0) {
            *content = box + 7;
            *len = (size_t)(p - box) - 7;
            return 1;
        }
    }
    return 0;
}

/* The answer's box as a string of its own; NULL when there is none or it cannot be text. */
static char *boxed(const char *s, size_t n)
{
    const char *p;
    size_t len;

    if (!mathgrade_box(s, n, &p, &len) || len > MATHGRADE_MAX || memchr(p, 0, len)) {
        return NULL;
    }
    return mem_strndup(p, len);
}

void mathgrade_math_why(const char *response, size_t n, const char *label, struct mathverdict *v)
{
    char *given, *truth;

    if (!label || !*label) {
        mathverdict_set(v, 0, "no label");
        return;
    }
    given = boxed(response, n);
    truth = strstr(label, "\\boxed") ? boxed(label, strlen(label)) : mem_strdup(label);
    if (!given) {
        mathverdict_set(v, 0, "no closed \\boxed{} in the answer");
    } else if (!truth) {
        mathverdict_set(v, 0, "no closed \\boxed{} in the label");
    } else if (mathgrade_mathd_equal(given, truth)) {
        mathverdict_set(v, 1, "equal text in the first normal form: " SHOW, truth);
    } else {
        sympy_equal(given, truth, v);
    }
    mem_free(given);
    mem_free(truth);
}

/* The first place of `what` in s[0..n), or NULL. */
static const char *find_first(const char *s, size_t n, const char *what)
{
    return memmem(s, n, what, strlen(what));
}

void mathgrade_deepscaler_why(const char *response, size_t n, const char *label,
                              struct mathverdict *v)
{
    static const char think[] = "</think>", mark[] = "###Response";
    const char *p = find_last(response, n, think), *end = response + n, *next;

    if (p) {
        p += sizeof think - 1;
        mathgrade_math_why(p, (size_t)(end - p), label, v);
        return;
    }
    p = find_first(response, n, mark);
    if (!p) {
        mathverdict_set(v, 0, "neither </think> nor ###Response in the answer");
        return;
    }
    p += sizeof mark - 1;
    next = find_first(p, (size_t)(end - p), mark);
    mathgrade_math_why(p, (size_t)((next ? next : end) - p), label, v);
}

void mathgrade_gemma_why(const char *response, size_t n, const char *label, struct mathverdict *v)
{
    static const char mark[] = "<channel|>";
    const char *p = find_last(response, n, mark);

    if (p) {
        p += sizeof mark - 1;
        n -= (size_t)(p - response);
        response = p;
    }
    mathgrade_math_why(response, n, label, v);
}

typedef void why_fn(const char *response, size_t n, const char *label, struct mathverdict *v);

static int is_right(why_fn *why, const char *response, size_t n, const char *label)
{
    struct mathverdict v;

    why(response, n, label, &v);
    mathverdict_fini(&v);
    return v.right == 1;
}

int mathgrade_math(const char *response, size_t n, const char *label)
{
    return is_right(mathgrade_math_why, response, n, label);
}

int mathgrade_deepscaler(const char *response, size_t n, const char *label)
{
    return is_right(mathgrade_deepscaler_why, response, n, label);
}

int mathgrade_gemma(const char *response, size_t n, const char *label)
{
    return is_right(mathgrade_gemma_why, response, n, label);
}
