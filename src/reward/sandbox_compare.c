/* Owns when an output counts as right, and the words for what is wrong with it. Pure functions over
 * hostile bytes: everything is bounded by the lengths given. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "reward/sandbox_int.h"

static const double TOLERANCE = 1e-6;

void sandbox_compare_quote(char *out, size_t n, const char *text, size_t len)
{
    size_t o = 0;

    for (size_t i = 0; i < len && o + 5 < n;) {
        unsigned char c = (unsigned char)text[i];
        size_t more = c < 0x80 ? 0 : c >= 0xc2 && c < 0xe0 ? 1 : c >= 0xe0 && c < 0xf0 ? 2 : 3;
        int good = c < 0x80 || (c >= 0xc2 && c < 0xf5 && i + more < len);
        for (size_t k = 1; good && k <= more; k++) {
            good = ((unsigned char)text[i + k] & 0xc0) == 0x80;
        }
        /* Overlong forms, surrogates and what lies past the last code point. */
        if (good && more >= 2) {
            unsigned char d = (unsigned char)text[i + 1];
            good = !((c == 0xe0 && d < 0xa0) || (c == 0xed && d > 0x9f) ||
                     (c == 0xf0 && d < 0x90) || (c == 0xf4 && d > 0x8f));
        }
        if (!good) {
            out[o++] = '?';
            i++;
        } else if (c < 0x20 || c == 0x7f) {
            out[o++] = ' ';
            i++;
        } else {
            memcpy(out + o, text + i, more + 1);
            o += more + 1;
            i += more + 1;
        }
    }
    out[o] = 0;
}

/* ---- lines ---- */

struct view {
    const char *p;
    size_t n;
};

static int is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

static void trim_end(struct view *v)
{
    while (v->n && (is_blank(v->p[v->n - 1]) || v->p[v->n - 1] == '\n')) {
        v->n--;
    }
}

/* Takes the next line off v, without its newline and the blanks at its end. 0 at the end. */
static int next_line(struct view *v, struct view *line)
{
    const char *nl;

    if (v->n == 0) {
        return 0;
    }
    nl = memchr(v->p, '\n', v->n);
    line->p = v->p;
    line->n = nl ? (size_t)(nl - v->p) : v->n;
    v->p += line->n + (nl != NULL);
    v->n -= line->n + (nl != NULL);
    while (line->n && is_blank(line->p[line->n - 1])) {
        line->n--;
    }
    return 1;
}

static int same(struct view a, struct view b)
{
    return a.n == b.n && memcmp(a.p, b.p, a.n) == 0;
}

static int next_word(struct view *line, struct view *w)
{
    while (line->n && is_blank(line->p[0])) {
        line->p++;
        line->n--;
    }
    w->p = line->p;
    w->n = 0;
    while (w->n < line->n && !is_blank(line->p[w->n])) {
        w->n++;
    }
    line->p += w->n;
    line->n -= w->n;
    return w->n > 0;
}

/* A decimal number and nothing else; names such as nan and inf are words. */
static int number(struct view w, double *x)
{
    char text[64], *end;

    if (w.n == 0 || w.n >= sizeof text) {
        return 0;
    }
    memcpy(text, w.p, w.n);
    text[w.n] = 0;
    if (strspn(text, "+-0123456789.eE") != w.n) {
        return 0;
    }
    *x = strtod(text, &end);
    return *end == 0 && isfinite(*x);
}

static int close_to(double a, double b)
{
    double scale = fmax(1.0, fmax(fabs(a), fabs(b)));
    return fabs(a - b) <= TOLERANCE * scale;
}

/* A number that is meant to be near: integers are meant exactly, however long they are. */
static int same_number(struct view got, struct view want)
{
    double p, q;
    int whole = 1;

    for (size_t i = 0; i < want.n; i++) {
        whole &= !strchr(".eE", want.p[i]);
    }
    if (!number(got, &p) || !number(want, &q)) {
        return 0;
    }
    return whole ? p == q && fabs(q) < 9007199254740992.0 : close_to(p, q);
}

static int same_words(struct view a, struct view b)
{
    struct view x, y;

    for (;;) {
        int more_a = next_word(&a, &x), more_b = next_word(&b, &y);
        if (!more_a || !more_b) {
            return more_a == more_b;
        }
        if (!same(x, y) && !same_number(x, y)) {
            return 0;
        }
    }
}

static void say_line(char *why, size_t n, size_t line, struct view got, struct view want)
{
    char a[64], b[64];

    sandbox_compare_quote(a, sizeof a, got.p, got.n);
    sandbox_compare_quote(b, sizeof b, want.p, want.n);
    snprintf(why, n, "line %zu is \"%s\", expected \"%s\"", line, a, b);
}

int sandbox_compare_text(enum sandbox_compare rule, const char *got, size_t ngot, const char *want,
                         size_t nwant, char *why, size_t n)
{
    struct view a = {got, ngot}, b = {want, nwant}, x = {"", 0}, y = {"", 0};

    if (rule == SANDBOX_NOTHING) {
        return 1;
    }
    if (same(a, b)) {
        return 1;
    }
    if (rule != SANDBOX_EXACT) {
        trim_end(&a);
        trim_end(&b);
    }
    for (size_t line = 1;; line++) {
        int more_a = next_line(&a, &x), more_b = next_line(&b, &y);
        if (!more_a && !more_b) {
            break;
        }
        if (!more_a || !more_b) {
            struct view none = {more_a ? "the end" : "missing", 7};
            say_line(why, n, line, more_a ? x : none, more_b ? y : none);
            return 0;
        }
        if (!same(x, y) && !(rule == SANDBOX_NUMBERS && same_words(x, y))) {
            say_line(why, n, line, x, y);
            return 0;
        }
    }
    if (rule == SANDBOX_EXACT) {
        snprintf(why, n, "the output differs in blanks or newlines");
        return 0;
    }
    return 1;
}

/* ---- values ---- */

static int same_value(const json_t *a, const json_t *b, int exact, int depth)
{
    const char *key;
    json_t *item;
    size_t i;

    if (depth > 200) {
        return 0;
    }
    if (json_is_number(a) && json_is_number(b)) {
        if (json_is_integer(a) && json_is_integer(b)) {
            return json_integer_value(a) == json_integer_value(b);
        }
        return exact || json_is_integer(b) ? json_number_value(a) == json_number_value(b)
                                           : close_to(json_number_value(a), json_number_value(b));
    }
    if (json_typeof(a) != json_typeof(b)) {
        return 0;
    }
    if (json_is_array(a)) {
        if (json_array_size(a) != json_array_size(b)) {
            return 0;
        }
        json_array_foreach((json_t *)(uintptr_t)a, i, item)
        {
            if (!same_value(item, json_array_get(b, i), exact, depth + 1)) {
                return 0;
            }
        }
        return 1;
    }
    if (json_is_object(a)) {
        if (json_object_size(a) != json_object_size(b)) {
            return 0;
        }
        json_object_foreach((json_t *)(uintptr_t)a, key, item)
        {
            const json_t *other = json_object_get(b, key);
            if (!other || !same_value(item, other, exact, depth + 1)) {
                return 0;
            }
        }
        return 1;
    }
    return json_equal(a, b);
}

int sandbox_compare_value(enum sandbox_compare rule, const char *got, size_t ngot, const char *want,
                          size_t nwant, char *why, size_t n)
{
    const size_t flags = JSON_DECODE_ANY | JSON_ALLOW_NUL;
    json_t *a, *b;
    char x[64], y[64];
    int ok = rule == SANDBOX_NOTHING;

    if (ok) {
        return 1;
    }
    a = json_loadb(got, ngot, flags, NULL);
    b = json_loadb(want, nwant, flags, NULL);
    if (a && b) {
        ok = same_value(a, b, rule == SANDBOX_EXACT, 0);
        if (!ok && rule != SANDBOX_EXACT && json_is_array(b) && json_array_size(b) == 1) {
            ok = same_value(a, json_array_get(b, 0), 0, 0); /* APPS puts values into a list */
        }
    } else {
        /* Integers of more than 64 bits are no JSON for us: then the texts decide. */
        struct view p = {got, ngot}, q = {want, nwant};
        trim_end(&p);
        trim_end(&q);
        ok = same(p, q);
    }
    json_decref(a);
    json_decref(b);
    if (!ok) {
        sandbox_compare_quote(x, sizeof x, got, ngot);
        sandbox_compare_quote(y, sizeof y, want, nwant);
        snprintf(why, n, "the value is %s, expected %s", ngot ? x : "missing", y);
    }
    return ok;
}
