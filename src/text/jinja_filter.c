/* Owns the filters of `x | name(args)`. Those that are generators in jinja2 (map, select, unique
 * ...) give a one-pass iterator here too, because templates can tell: it is always true, has no
 * length and cannot be indexed. The items are computed at once; an error among them is kept until
 * it would be met. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_int.h"

#define FILTER(name)                                                                               \
    static int f_##name(struct jinja_run *r, struct jinja_val in, const struct jinja_args *a,      \
                        struct jinja_val *out)

static int is_given(struct jinja_val v)
{
    return v.t != JINJA_MISSING && v.t != JINJA_NONE;
}

/* Calls a method of str on str(in). */
static int on_str(struct jinja_run *r, struct jinja_val in, const char *method,
                  const struct jinja_args *a, struct jinja_val *out)
{
    JINJA_TRY(jinja_print_soft(r, in, &in));
    return jinja_str_method(method, strlen(method))->fn(r, in, a, out);
}

/* ---- attribute paths: "a.b.0" ---- */

static int lower_key(struct jinja_run *r, struct jinja_val v, struct jinja_val *out)
{
    static const struct jinja_args none;
    if (v.t != JINJA_STR) {
        *out = v;
        return 0;
    }
    return on_str(r, v, "lower", &none, out);
}

static int get_path(struct jinja_run *r, struct jinja_val v, const char *p, size_t n,
                    struct jinja_val dflt, struct jinja_val *out)
{
    for (;;) {
        const char *dot = memchr(p, '.', n);
        size_t len = dot ? (size_t)(dot - p) : n, i;
        struct jinja_val key;
        int64_t num = 0;
        int digits = len > 0 && len < 10;
        for (i = 0; i < len; i++) {
            digits &= p[i] >= '0' && p[i] <= '9';
            num = digits ? num * 10 + (p[i] - '0') : 0;
        }
        if (digits) {
            key = jinja_int(num);
        } else {
            JINJA_TRY(jinja_value_str(r, p, len, &key));
        }
        JINJA_TRY(jinja_object_item(r, v, key, &v));
        if (v.t == JINJA_UNDEF && is_given(dflt)) {
            v = dflt;
        }
        if (!dot) {
            *out = v;
            return 0;
        }
        p = dot + 1;
        n -= len + 1;
    }
}

/* make_attrgetter: attr may be missing (the item itself), a path or a number. */
static int get_attr(struct jinja_run *r, struct jinja_val v, struct jinja_val attr,
                    struct jinja_val dflt, struct jinja_val *out)
{
    if (!is_given(attr)) {
        *out = v;
        return 0;
    }
    if (attr.t == JINJA_STR) {
        return get_path(r, v, attr.s->p, attr.s->n, dflt, out);
    }
    JINJA_TRY(jinja_object_item(r, v, attr, out));
    if (out->t == JINJA_UNDEF && is_given(dflt)) {
        *out = dflt;
    }
    return 0;
}

static int sort_key(struct jinja_run *r, struct jinja_val v, struct jinja_val attr, int cased,
                    struct jinja_val *out)
{
    JINJA_TRY(get_attr(r, v, attr, jinja_missing(), out));
    return cased ? 0 : lower_key(r, *out, out);
}

/* ---- text ---- */

FILTER(trim)
{
    struct jinja_val chars;

    JINJA_TRY(jinja_object_bind(r, a, "trim", "chars", 0, &chars));
    JINJA_TRY(jinja_print_soft(r, in, &in));
    if (is_given(chars) && chars.t != JINJA_STR) {
        return jinja_fail(r, STATUS_INPUT, "strip arg must be None or str");
    }
    return jinja_str_strip(r, in, is_given(chars) ? chars.s->p : NULL,
                           is_given(chars) ? chars.s->n : 0, 3, out);
}

FILTER(upper)
{
    return on_str(r, in, "upper", a, out);
}

FILTER(lower)
{
    return on_str(r, in, "lower", a, out);
}

FILTER(capitalize)
{
    return on_str(r, in, "capitalize", a, out);
}

/* Words begin after white space and after -({[<; unlike str.title, not after digits or quotes. */
FILTER(title)
{
    struct jinja_sb b = {0};
    const char *p, *end;
    struct jinja_val s;

    JINJA_TRY(jinja_object_bind(r, a, "title", "", 0, NULL));
    JINJA_TRY(jinja_print_soft(r, in, &s));
    p = s.s->p;
    end = p + s.s->n;
    while (p < end) {
        const char *q = p;
        struct jinja_val part;
        uint32_t cp;
        int sep = -1;
        while (q < end) {
            size_t k = jinja_uni_next(q, end, &cp);
            int is_sep = jinja_uni_space(cp) || (cp < 0x80 && cp && strchr("-({[<", (int)cp));
            if (sep >= 0 && is_sep != sep) {
                break;
            }
            sep = is_sep;
            q += k;
        }
        if (sep) {
            JINJA_TRY(jinja_sb_add(r, &b, p, (size_t)(q - p)));
        } else {
            uint32_t to[3];
            size_t k = jinja_uni_next(p, end, &cp);
            int i, n = jinja_uni_to_upper(cp, to);
            static const struct jinja_args none;
            for (i = 0; i < n; i++) {
                JINJA_TRY(jinja_sb_cp(r, &b, to[i]));
            }
            JINJA_TRY(jinja_value_str(r, p + k, (size_t)(q - p) - k, &part));
            JINJA_TRY(on_str(r, part, "lower", &none, &part));
            JINJA_TRY(jinja_sb_add(r, &b, part.s->p, part.s->n));
        }
        p = q;
    }
    return jinja_sb_str(r, &b, out);
}

FILTER(string)
{
    JINJA_TRY(jinja_object_bind(r, a, "string", "", 0, NULL));
    return jinja_print_soft(r, in, out);
}

FILTER(safe)
{
    JINJA_TRY(jinja_object_bind(r, a, "safe", "", 0, NULL));
    JINJA_TRY(jinja_print_soft(r, in, &in));
    return jinja_value_markup(r, in, 1, out);
}

FILTER(escape)
{
    JINJA_TRY(jinja_object_bind(r, a, "escape", "", 0, NULL));
    return jinja_print_escape(r, in, out);
}

FILTER(forceescape)
{
    JINJA_TRY(jinja_object_bind(r, a, "forceescape", "", 0, NULL));
    JINJA_TRY(jinja_print_soft(r, in, &in));
    JINJA_TRY(jinja_value_markup(r, in, 0, &in));
    return jinja_print_escape(r, in, out);
}

FILTER(replace)
{
    struct jinja_val arg[3];
    int64_t count = -1;

    JINJA_TRY(jinja_object_bind(r, a, "replace", "old new count", 2, arg));
    JINJA_TRY(jinja_print_soft(r, in, &in));
    JINJA_TRY(jinja_print_soft(r, arg[0], &arg[0]));
    JINJA_TRY(jinja_print_soft(r, arg[1], &arg[1]));
    if (is_given(arg[2])) {
        if (arg[2].t != JINJA_INT && arg[2].t != JINJA_BOOL) {
            return jinja_fail(r, STATUS_INPUT, "replace: count must be an integer");
        }
        count = arg[2].i;
    }
    return jinja_str_replace(r, in.s, arg[0].s, arg[1].s, count, out);
}

FILTER(format)
{
    struct jinja_val arg;
    size_t i;

    JINJA_TRY(jinja_print_soft(r, in, &in));
    if (a->npos && a->nkw) {
        return jinja_fail(r, STATUS_INPUT,
                          "can't handle positional and keyword arguments at the same time");
    }
    if (a->nkw) {
        JINJA_TRY(jinja_value_dict(r, &arg));
        for (i = 0; i < a->nkw; i++) {
            struct jinja_val k;
            JINJA_TRY(jinja_value_str(r, a->kw[i].name, a->kw[i].n, &k));
            JINJA_TRY(jinja_value_put(r, arg.d, k, a->kw[i].v));
        }
    } else {
        JINJA_TRY(jinja_value_list(r, JINJA_TUPLE, a->npos, &arg));
        for (i = 0; i < a->npos; i++) {
            arg.l->v[i] = a->pos[i];
        }
    }
    return jinja_format_percent(r, in, arg, out);
}

FILTER(indent)
{
    struct jinja_val arg[3], lines;
    struct jinja_sb b = {0};
    const char *pad = "    ";
    size_t npad = 4, i;
    int first, blank;

    JINJA_TRY(jinja_object_bind(r, a, "indent", "width first blank", 0, arg));
    first = jinja_value_truth(arg[1]);
    blank = jinja_value_truth(arg[2]);
    if (in.t != JINJA_STR) {
        return in.t == JINJA_UNDEF
                   ? jinja_value_undef_error(r, in)
                   : jinja_fail(r, STATUS_INPUT, "indent needs text, not %s", jinja_value_type(in));
    }
    if (arg[0].t == JINJA_STR) {
        pad = arg[0].s->p;
        npad = arg[0].s->n;
    } else if (arg[0].t == JINJA_INT || arg[0].t == JINJA_BOOL) {
        struct jinja_val spaces;
        JINJA_TRY(jinja_value_str(r, " ", 1, &spaces));
        JINJA_TRY(jinja_ops_binary(r, JINJA_TOK_MUL, spaces, arg[0], &spaces));
        pad = spaces.s->p;
        npad = spaces.s->n;
    } else if (arg[0].t != JINJA_MISSING) {
        return jinja_fail(r, STATUS_INPUT, "indent: width must be a number or a string");
    }
    /* the newline at the end makes splitlines keep an empty last line */
    JINJA_TRY(jinja_value_copy(r, in.s->p, in.s->n + 0, &lines));
    JINJA_TRY(jinja_value_str(r, "\n", 1, out));
    JINJA_TRY(jinja_ops_binary(r, JINJA_TOK_ADD, lines, *out, &lines));
    JINJA_TRY(jinja_str_splitlines(r, lines, 0, &lines));
    for (i = 0; i < lines.l->n; i++) {
        struct jinja_str *s = lines.l->v[i].s;
        if (i) {
            JINJA_TRY(jinja_sb_char(r, &b, '\n'));
        }
        if (i ? blank || s->n : first) {
            JINJA_TRY(jinja_sb_add(r, &b, pad, npad));
        }
        JINJA_TRY(jinja_sb_add(r, &b, s->p, s->n));
    }
    JINJA_TRY(jinja_sb_str(r, &b, out));
    out->s->markup = in.s->markup;
    return 0;
}

FILTER(center)
{
    struct jinja_val width;
    struct jinja_args one = {.pos = &width, .npos = 1};

    JINJA_TRY(jinja_object_bind(r, a, "center", "width", 0, &width));
    if (width.t == JINJA_MISSING) {
        width = jinja_int(80);
    }
    return on_str(r, in, "center", &one, out);
}

FILTER(truncate)
{
    struct jinja_val arg[4], cut, end;
    int64_t n, len, leeway, nend;

    JINJA_TRY(jinja_object_bind(r, a, "truncate", "length killwords end leeway", 0, arg));
    len = arg[0].t == JINJA_INT ? arg[0].i : 255;
    leeway = arg[3].t == JINJA_INT ? arg[3].i : 5;
    end = arg[2];
    if (end.t == JINJA_MISSING) {
        JINJA_TRY(jinja_value_str(r, "...", 3, &end));
    }
    if (end.t != JINJA_STR) {
        return jinja_fail(r, STATUS_INPUT, "truncate: the end must be text");
    }
    nend = jinja_value_ncp(end.s);
    if (len < nend || leeway < 0) {
        return jinja_fail(r, STATUS_INPUT, "truncate: length or leeway is too small");
    }
    JINJA_TRY(jinja_value_len(r, in, &n));
    if (n - leeway <= len) {
        *out = in;
        return 0;
    }
    if (in.t != JINJA_STR) {
        return jinja_fail(r, STATUS_INPUT, "truncate needs text");
    }
    JINJA_TRY(
        jinja_value_slice(r, in, jinja_missing(), jinja_int(len - nend), jinja_missing(), &cut));
    if (!jinja_value_truth(arg[1])) {
        const char *sp = memrchr(cut.s->p, ' ', cut.s->n);
        if (sp) {
            JINJA_TRY(jinja_value_sub(r, cut.s, 0, (size_t)(sp - cut.s->p), &cut));
        }
    }
    return jinja_ops_binary(r, JINJA_TOK_ADD, cut, end, out);
}

FILTER(wordcount)
{
    const char *p, *end;
    int inside = 0;

    JINJA_TRY(jinja_object_bind(r, a, "wordcount", "", 0, NULL));
    JINJA_TRY(jinja_print_soft(r, in, &in));
    *out = jinja_int(0);
    for (p = in.s->p, end = p + in.s->n; p < end;) {
        uint32_t cp;
        int word;
        p += jinja_uni_next(p, end, &cp);
        word = cp == '_' || jinja_uni_alpha(cp) || jinja_uni_numeric(cp);
        out->i += word && !inside;
        inside = word;
    }
    return 0;
}

/* ---- numbers ---- */

static int to_float(struct jinja_val v, double *f)
{
    switch (v.t) {
    case JINJA_INT:
    case JINJA_BOOL: *f = (double)v.i; return 1;
    case JINJA_FLOAT: *f = v.f; return 1;
    case JINJA_STR: return jinja_str_parse_float(v.s->p, v.s->n, f);
    default: return 0;
    }
}

FILTER(int)
{
    struct jinja_val arg[2];
    int64_t base = 10, v;
    double f;
    int ok;

    JINJA_TRY(jinja_object_bind(r, a, "int", "default base", 0, arg));
    if (in.t == JINJA_UNDEF) {
        return jinja_value_undef_error(r, in);
    }
    if (arg[1].t == JINJA_INT && (arg[1].i == 0 || (arg[1].i >= 2 && arg[1].i <= 36))) {
        base = arg[1].i;
    }
    if (in.t == JINJA_INT || in.t == JINJA_BOOL) {
        *out = jinja_int(in.i);
        return 0;
    }
    if (in.t == JINJA_STR) {
        ok = jinja_str_parse_int(in.s->p, in.s->n, (int)base, &v);
        if (ok < 0) {
            return jinja_fail(r, STATUS_UNSUPPORTED, "an integer exceeds 64 bits");
        }
        if (ok) {
            *out = jinja_int(v);
            return 0;
        }
    }
    if (to_float(in, &f) && f == f && !isinf(f)) {
        if (fabs(f) >= 9.2e18) {
            return jinja_fail(r, STATUS_UNSUPPORTED, "an integer exceeds 64 bits");
        }
        *out = jinja_int((int64_t)f);
        return 0;
    }
    *out = arg[0].t == JINJA_MISSING ? jinja_int(0) : arg[0];
    return 0;
}

FILTER(float)
{
    struct jinja_val dflt;
    double f;

    JINJA_TRY(jinja_object_bind(r, a, "float", "default", 0, &dflt));
    if (in.t == JINJA_UNDEF) {
        return jinja_value_undef_error(r, in);
    }
    *out = to_float(in, &f) ? jinja_float(f) : dflt.t == JINJA_MISSING ? jinja_float(0) : dflt;
    return 0;
}

FILTER(abs)
{
    JINJA_TRY(jinja_object_bind(r, a, "abs", "", 0, NULL));
    if (in.t == JINJA_FLOAT) {
        *out = jinja_float(fabs(in.f));
        return 0;
    }
    if (in.t == JINJA_INT || in.t == JINJA_BOOL) {
        return jinja_ops_unary(r, in.i < 0 ? JINJA_TOK_SUB : JINJA_TOK_ADD, in, out);
    }
    return in.t == JINJA_UNDEF ? jinja_value_undef_error(r, in)
                               : jinja_fail(r, STATUS_INPUT, "bad operand type for abs(): '%s'",
                                            jinja_value_type(in));
}

/* round() to `digits` places: the decimal nearest to the binary value, ties to even. */
static double round_to(double v, int64_t digits)
{
    char text[700];
    double p;

    if (v != v || isinf(v) || digits > 300) {
        return v;
    }
    if (digits >= 0) {
        snprintf(text, sizeof text, "%.*f", (int)digits, v);
        return strtod(text, NULL);
    }
    if (digits < -308) {
        return 0;
    }
    p = pow(10, (double)-digits);
    return rint(v / p) * p;
}

FILTER(round)
{
    struct jinja_val arg[2];
    int64_t prec = 0;
    char method = 'c';
    double v, p;

    JINJA_TRY(jinja_object_bind(r, a, "round", "precision method", 0, arg));
    if (arg[0].t == JINJA_INT || arg[0].t == JINJA_BOOL) {
        prec = arg[0].i;
    }
    if (arg[1].t == JINJA_STR && arg[1].s->n == 4 && memcmp(arg[1].s->p, "ceil", 4) == 0) {
        method = 'u';
    } else if (arg[1].t == JINJA_STR && arg[1].s->n == 5 && memcmp(arg[1].s->p, "floor", 5) == 0) {
        method = 'd';
    } else if (arg[1].t != JINJA_MISSING && !(arg[1].t == JINJA_STR && arg[1].s->n == 6 &&
                                              memcmp(arg[1].s->p, "common", 6) == 0)) {
        return jinja_fail(r, STATUS_INPUT, "method must be common, ceil or floor");
    }
    if (in.t == JINJA_UNDEF) {
        return jinja_value_undef_error(r, in);
    }
    if (in.t != JINJA_INT && in.t != JINJA_BOOL && in.t != JINJA_FLOAT) {
        return jinja_fail(r, STATUS_INPUT, "type %s doesn't define __round__ method",
                          jinja_value_type(in));
    }
    v = in.t == JINJA_FLOAT ? in.f : (double)in.i;
    if (method == 'c') {
        if (in.t != JINJA_FLOAT) {
            *out = jinja_int(prec >= 0 ? in.i : (int64_t)round_to(v, prec));
        } else {
            *out = jinja_float(round_to(v, prec));
        }
        return 0;
    }
    p = pow(10, (double)prec);
    *out = jinja_float((method == 'u' ? ceil(v * p) : floor(v * p)) / p);
    return 0;
}

FILTER(sum)
{
    struct jinja_val arg[2], v;
    struct jinja_list *items;
    size_t i;

    JINJA_TRY(jinja_object_bind(r, a, "sum", "attribute start", 0, arg));
    JINJA_TRY(jinja_value_items(r, in, &items));
    *out = arg[1].t == JINJA_MISSING ? jinja_int(0) : arg[1];
    if (out->t == JINJA_STR) {
        return jinja_fail(r, STATUS_INPUT, "sum() can't sum strings");
    }
    for (i = 0; i < items->n; i++) {
        JINJA_TRY(get_attr(r, items->v[i], arg[0], jinja_missing(), &v));
        JINJA_TRY(jinja_ops_binary(r, JINJA_TOK_ADD, *out, v, out));
    }
    return 0;
}

/* ---- sequences ---- */

FILTER(length)
{
    int64_t n;
    JINJA_TRY(jinja_object_bind(r, a, "length", "", 0, NULL));
    JINJA_TRY(jinja_value_len(r, in, &n));
    *out = jinja_int(n);
    return 0;
}

FILTER(join)
{
    struct jinja_val arg[2], v;
    struct jinja_sb b = {0};
    struct jinja_list *items;
    size_t i;

    JINJA_TRY(jinja_object_bind(r, a, "join", "d attribute", 0, arg));
    JINJA_TRY(jinja_value_items(r, in, &items));
    for (i = 0; i < items->n; i++) {
        if (i && arg[0].t != JINJA_MISSING) {
            JINJA_TRY(jinja_print_str(r, &b, arg[0]));
        }
        JINJA_TRY(get_attr(r, items->v[i], arg[1], jinja_missing(), &v));
        JINJA_TRY(jinja_print_str(r, &b, v));
    }
    return jinja_sb_str(r, &b, out);
}

FILTER(default)
{
    struct jinja_val arg[2];

    JINJA_TRY(jinja_object_bind(r, a, "default", "default_value boolean", 0, arg));
    if (in.t != JINJA_UNDEF && !(jinja_value_truth(arg[1]) && !jinja_value_truth(in))) {
        *out = in;
        return 0;
    }
    if (arg[0].t == JINJA_MISSING) {
        return jinja_value_str(r, "", 0, out);
    }
    *out = arg[0];
    return 0;
}

FILTER(first)
{
    struct jinja_list *items;

    JINJA_TRY(jinja_object_bind(r, a, "first", "", 0, NULL));
    if (in.t == JINJA_ITER) {
        int got;
        JINJA_TRY(jinja_value_next(r, in.iter, out, &got));
        return got ? 0 : jinja_value_undef(r, "No first item, sequence was empty.", out);
    }
    JINJA_TRY(jinja_value_items(r, in, &items));
    if (!items->n) {
        return jinja_value_undef(r, "No first item, sequence was empty.", out);
    }
    *out = items->v[0];
    return 0;
}

FILTER(last)
{
    struct jinja_list *items;

    JINJA_TRY(jinja_object_bind(r, a, "last", "", 0, NULL));
    if (in.t == JINJA_ITER) {
        return jinja_fail(r, STATUS_INPUT, "'%s' object is not reversible", jinja_value_type(in));
    }
    JINJA_TRY(jinja_value_items(r, in, &items));
    if (!items->n) {
        return jinja_value_undef(r, "No last item, sequence was empty.", out);
    }
    *out = items->v[items->n - 1];
    return 0;
}

FILTER(list)
{
    struct jinja_list *items;
    size_t i;

    JINJA_TRY(jinja_object_bind(r, a, "list", "", 0, NULL));
    JINJA_TRY(jinja_value_items(r, in, &items));
    JINJA_TRY(jinja_value_list(r, JINJA_LIST, items->n, out));
    for (i = 0; i < items->n; i++) {
        out->l->v[i] = items->v[i];
    }
    return 0;
}

static int items_of(struct jinja_run *r, struct jinja_val in, struct jinja_list **items)
{
    struct jinja_view view = {.kind = 'i'};
    struct jinja_val v = {.t = JINJA_VIEW, .view = &view};

    if (in.t == JINJA_UNDEF) {
        return 0;
    }
    if (in.t != JINJA_DICT) {
        return jinja_fail(r, STATUS_INPUT, "Can only get item pairs from a mapping.");
    }
    view.d = in.d;
    return jinja_value_items(r, v, items);
}

FILTER(items)
{
    struct jinja_val l;
    int rc;

    JINJA_TRY(jinja_object_bind(r, a, "items", "", 0, NULL));
    JINJA_TRY(jinja_value_list(r, JINJA_LIST, 0, &l));
    rc = items_of(r, in, &l.l);
    return jinja_value_lazy(r, rc, l.l, out);
}

FILTER(reverse)
{
    struct jinja_list *items;
    struct jinja_val l;
    size_t i;

    JINJA_TRY(jinja_object_bind(r, a, "reverse", "", 0, NULL));
    if (in.t == JINJA_STR) {
        return jinja_value_slice(r, in, jinja_missing(), jinja_missing(), jinja_int(-1), out);
    }
    JINJA_TRY(jinja_value_items(r, in, &items));
    JINJA_TRY(jinja_value_list(r, JINJA_LIST, items->n, &l));
    for (i = 0; i < items->n; i++) {
        l.l->v[i] = items->v[items->n - 1 - i];
    }
    if (in.t == JINJA_ITER) {
        *out = l;
        return 0;
    }
    return jinja_value_iter(r, l.l, "reversed", out);
}

/* Sorted by an attribute list "a,b"; each key is a list, compared item by item. */
static int multi_key(struct jinja_run *r, struct jinja_val v, struct jinja_val attr, int cased,
                     struct jinja_val *out)
{
    struct jinja_val k;
    const char *p, *end;

    if (attr.t != JINJA_STR) {
        return sort_key(r, v, attr, cased, out);
    }
    JINJA_TRY(jinja_value_list(r, JINJA_LIST, 0, out));
    for (p = attr.s->p, end = p + attr.s->n; p <= end;) {
        const char *comma = memchr(p, ',', (size_t)(end - p));
        const char *stop = comma ? comma : end;
        JINJA_TRY(get_path(r, v, p, (size_t)(stop - p), jinja_missing(), &k));
        if (!cased) {
            JINJA_TRY(lower_key(r, k, &k));
        }
        JINJA_TRY(jinja_value_append(r, out->l, k));
        p = stop + 1;
    }
    return 0;
}

FILTER(sort)
{
    struct jinja_val arg[3], *keys;
    static const struct jinja_args none;
    size_t i;

    JINJA_TRY(jinja_object_bind(r, a, "sort", "reverse case_sensitive attribute", 0, arg));
    JINJA_TRY(f_list(r, in, &none, out));
    keys = jinja_alloc(r, (out->l->n + 1) * sizeof *keys);
    if (!keys) {
        return STATUS_NOMEM;
    }
    for (i = 0; i < out->l->n; i++) {
        JINJA_TRY(multi_key(r, out->l->v[i], arg[2], jinja_value_truth(arg[1]), &keys[i]));
    }
    return jinja_value_sort(r, keys, out->l->v, out->l->n, jinja_value_truth(arg[0]));
}

FILTER(dictsort)
{
    struct jinja_val arg[3], pairs, *keys;
    struct jinja_view view = {.kind = 'i'};
    struct jinja_val v = {.t = JINJA_VIEW, .view = &view};
    static const struct jinja_args none;
    int which = 0;
    size_t i;

    JINJA_TRY(jinja_object_bind(r, a, "dictsort", "case_sensitive by reverse", 0, arg));
    if (in.t != JINJA_DICT) {
        return in.t == JINJA_UNDEF ? jinja_value_undef_error(r, in)
                                   : jinja_fail(r, STATUS_INPUT, "dictsort needs a dict, not %s",
                                                jinja_value_type(in));
    }
    if (arg[1].t == JINJA_STR && arg[1].s->n == 5 && memcmp(arg[1].s->p, "value", 5) == 0) {
        which = 1;
    } else if (arg[1].t != JINJA_MISSING &&
               !(arg[1].t == JINJA_STR && arg[1].s->n == 3 && memcmp(arg[1].s->p, "key", 3) == 0)) {
        return jinja_fail(r, STATUS_INPUT, "You can only sort by either \"key\" or \"value\"");
    }
    view.d = in.d;
    JINJA_TRY(f_list(r, v, &none, &pairs));
    keys = jinja_alloc(r, (pairs.l->n + 1) * sizeof *keys);
    if (!keys) {
        return STATUS_NOMEM;
    }
    for (i = 0; i < pairs.l->n; i++) {
        keys[i] = pairs.l->v[i].l->v[which];
        if (!jinja_value_truth(arg[0])) {
            JINJA_TRY(lower_key(r, keys[i], &keys[i]));
        }
    }
    *out = pairs;
    return jinja_value_sort(r, keys, pairs.l->v, pairs.l->n, jinja_value_truth(arg[2]));
}

static int unique_of(struct jinja_run *r, struct jinja_val in, const struct jinja_val *arg,
                     struct jinja_list *l)
{
    struct jinja_val seen, key, *hit;
    struct jinja_list *items;
    size_t i;

    JINJA_TRY(jinja_value_items(r, in, &items));
    JINJA_TRY(jinja_value_dict(r, &seen));
    for (i = 0; i < items->n; i++) {
        JINJA_TRY(sort_key(r, items->v[i], arg[1], jinja_value_truth(arg[0]), &key));
        JINJA_TRY(jinja_value_get(r, seen.d, key, &hit));
        if (!hit) {
            JINJA_TRY(jinja_value_put(r, seen.d, key, jinja_none()));
            JINJA_TRY(jinja_value_append(r, l, items->v[i]));
        }
    }
    return 0;
}

FILTER(unique)
{
    struct jinja_val arg[2], l;
    int rc;

    JINJA_TRY(jinja_object_bind(r, a, "unique", "case_sensitive attribute", 0, arg));
    JINJA_TRY(jinja_value_list(r, JINJA_LIST, 0, &l));
    rc = unique_of(r, in, arg, l.l);
    return jinja_value_lazy(r, rc, l.l, out);
}

static int min_max(struct jinja_run *r, struct jinja_val in, const struct jinja_args *a, int sign,
                   struct jinja_val *out)
{
    struct jinja_val arg[2], key, best = jinja_missing();
    struct jinja_list *items;
    size_t i;
    int c;

    JINJA_TRY(jinja_object_bind(r, a, "min", "case_sensitive attribute", 0, arg));
    JINJA_TRY(jinja_value_items(r, in, &items));
    if (!items->n) {
        return jinja_value_undef(r, "No aggregated item, sequence was empty.", out);
    }
    for (i = 0; i < items->n; i++) {
        JINJA_TRY(sort_key(r, items->v[i], arg[1], jinja_value_truth(arg[0]), &key));
        c = 0;
        if (i) {
            JINJA_TRY(jinja_value_cmp(r, key, best, &c));
        }
        if (!i || (c != 2 && c * sign > 0)) {
            best = key;
            *out = items->v[i];
        }
    }
    return 0;
}

FILTER(min)
{
    return min_max(r, in, a, -1, out);
}

FILTER(max)
{
    return min_max(r, in, a, 1, out);
}

static int batch_of(struct jinja_run *r, struct jinja_val in, const struct jinja_val *arg,
                    struct jinja_list *l)
{
    struct jinja_val row = jinja_none();
    struct jinja_list *items;
    size_t i;

    JINJA_TRY(jinja_value_items(r, in, &items));
    if (arg[0].t != JINJA_INT || arg[0].i < 1) {
        return jinja_fail(r, STATUS_INPUT, "batch needs a positive number");
    }
    for (i = 0; i < items->n; i++) {
        if (i % (size_t)arg[0].i == 0) {
            JINJA_TRY(jinja_value_list(r, JINJA_LIST, 0, &row));
            JINJA_TRY(jinja_value_append(r, l, row));
        }
        JINJA_TRY(jinja_value_append(r, row.l, items->v[i]));
    }
    while (items->n && is_given(arg[1]) && row.l->n < (size_t)arg[0].i) {
        JINJA_TRY(jinja_value_append(r, row.l, arg[1]));
    }
    return 0;
}

FILTER(batch)
{
    struct jinja_val arg[2], l;
    int rc;

    JINJA_TRY(jinja_object_bind(r, a, "batch", "linecount fill_with", 1, arg));
    JINJA_TRY(jinja_value_list(r, JINJA_LIST, 0, &l));
    rc = batch_of(r, in, arg, l.l);
    return jinja_value_lazy(r, rc, l.l, out);
}

static int slice_of(struct jinja_run *r, struct jinja_val in, const struct jinja_val *arg,
                    struct jinja_list *l)
{
    struct jinja_val row;
    struct jinja_list *items;
    size_t i, k, at = 0, per, extra;

    JINJA_TRY(jinja_value_items(r, in, &items));
    if (arg[0].t != JINJA_INT || arg[0].i < 1) {
        return jinja_fail(r, STATUS_INPUT, "slice needs a positive number");
    }
    per = items->n / (size_t)arg[0].i;
    extra = items->n % (size_t)arg[0].i;
    for (i = 0; i < (size_t)arg[0].i; i++) {
        JINJA_TRY(jinja_value_list(r, JINJA_LIST, 0, &row));
        for (k = 0; k < per + (i < extra); k++) {
            JINJA_TRY(jinja_value_append(r, row.l, items->v[at++]));
        }
        if (is_given(arg[1]) && i >= extra) {
            JINJA_TRY(jinja_value_append(r, row.l, arg[1]));
        }
        JINJA_TRY(jinja_value_append(r, l, row));
    }
    return 0;
}

FILTER(slice)
{
    struct jinja_val arg[2], l;
    int rc;

    JINJA_TRY(jinja_object_bind(r, a, "slice", "slices fill_with", 1, arg));
    JINJA_TRY(jinja_value_list(r, JINJA_LIST, 0, &l));
    rc = slice_of(r, in, arg, l.l);
    return jinja_value_lazy(r, rc, l.l, out);
}

FILTER(groupby)
{
    struct jinja_val arg[3], sorted, *keys, group = jinja_none(), pair;
    static const struct jinja_args none;
    size_t i;
    int same, cased;

    JINJA_TRY(jinja_object_bind(r, a, "groupby", "attribute default case_sensitive", 1, arg));
    cased = jinja_value_truth(arg[2]);
    JINJA_TRY(f_list(r, in, &none, &sorted));
    keys = jinja_alloc(r, (sorted.l->n + 1) * sizeof *keys);
    if (!keys) {
        return STATUS_NOMEM;
    }
    for (i = 0; i < sorted.l->n; i++) {
        JINJA_TRY(get_attr(r, sorted.l->v[i], arg[0], arg[1], &keys[i]));
        if (!cased) {
            JINJA_TRY(lower_key(r, keys[i], &keys[i]));
        }
    }
    JINJA_TRY(jinja_value_sort(r, keys, sorted.l->v, sorted.l->n, 0));
    JINJA_TRY(jinja_value_sort(r, keys, keys, sorted.l->n, 0));
    JINJA_TRY(jinja_value_list(r, JINJA_LIST, 0, out));
    for (i = 0; i < sorted.l->n; i++) {
        same = 0;
        if (i) {
            JINJA_TRY(jinja_value_eq(r, keys[i - 1], keys[i], &same));
        }
        if (!same) {
            JINJA_TRY(jinja_value_list(r, JINJA_LIST, 0, &group));
            JINJA_TRY(jinja_value_list(r, JINJA_TUPLE, 2, &pair));
            JINJA_TRY(get_attr(r, sorted.l->v[i], arg[0], arg[1], &pair.l->v[0]));
            pair.l->v[1] = group;
            JINJA_TRY(jinja_value_append(r, out->l, pair));
        }
        JINJA_TRY(jinja_value_append(r, group.l, sorted.l->v[i]));
    }
    return 0;
}

FILTER(attr)
{
    struct jinja_val name;

    JINJA_TRY(jinja_object_bind(r, a, "attr", "name", 1, &name));
    if (name.t != JINJA_STR) {
        return jinja_fail(r, STATUS_INPUT, "attr needs a name");
    }
    if (in.t == JINJA_DICT && !(name.s->n && name.s->p[0] == '_')) {
        struct jinja_val empty; /* attributes only: a key of that name does not count */
        JINJA_TRY(jinja_value_dict(r, &empty));
        JINJA_TRY(jinja_object_attr(r, empty, name.s->p, name.s->n, out));
        if (out->t == JINJA_METHOD) {
            out->method->self = in;
        }
        return 0;
    }
    return jinja_object_attr(r, in, name.s->p, name.s->n, out);
}

/* ---- map, select ---- */

static int map_of(struct jinja_run *r, struct jinja_val in, const struct jinja_args *a,
                  struct jinja_list *l)
{
    struct jinja_val arg[2], v;
    struct jinja_list *items;
    struct jinja_args rest = {0};
    const struct jinja_filter *f = NULL;
    size_t i;

    if (!jinja_value_truth(in)) {
        return 0;
    }
    if (a->npos) {
        if (a->pos[0].t == JINJA_STR) {
            f = jinja_filter_find(a->pos[0].s->p, a->pos[0].s->n);
        }
        if (!f) {
            return jinja_fail(r, STATUS_INPUT, "map: no such filter");
        }
        rest = *a;
        rest.pos++;
        rest.npos--;
    } else {
        JINJA_TRY(jinja_object_bind(r, a, "map", "attribute default", 1, arg));
    }
    JINJA_TRY(jinja_value_items(r, in, &items));
    for (i = 0; i < items->n; i++) {
        JINJA_TRY(f ? f->fn(r, items->v[i], &rest, &v)
                    : get_attr(r, items->v[i], arg[0], arg[1], &v));
        JINJA_TRY(jinja_value_append(r, l, v));
    }
    return 0;
}

FILTER(map)
{
    struct jinja_val l;
    int rc;

    JINJA_TRY(jinja_value_list(r, JINJA_LIST, 0, &l));
    rc = map_of(r, in, a, l.l);
    return jinja_value_lazy(r, rc, l.l, out);
}

static int select_of(struct jinja_run *r, struct jinja_val in, const struct jinja_args *a, int want,
                     int by_attr, struct jinja_list *l)
{
    const struct jinja_test *t = NULL;
    struct jinja_args rest = *a;
    struct jinja_val v, attr = jinja_missing();
    struct jinja_list *items;
    size_t i;

    if (!jinja_value_truth(in)) {
        return 0;
    }
    if (by_attr) {
        if (!rest.npos) {
            return jinja_fail(r, STATUS_INPUT, "Missing parameter for attribute name");
        }
        attr = *rest.pos++;
        rest.npos--;
    }
    if (rest.npos) {
        if (rest.pos->t == JINJA_STR) {
            t = jinja_test_find(rest.pos->s->p, rest.pos->s->n);
        }
        if (!t) {
            return jinja_fail(r, STATUS_INPUT, "select: no such test");
        }
        rest.pos++;
        rest.npos--;
    }
    JINJA_TRY(jinja_value_items(r, in, &items));
    for (i = 0; i < items->n; i++) {
        int yes;
        JINJA_TRY(get_attr(r, items->v[i], attr, jinja_missing(), &v));
        if (t) {
            JINJA_TRY(t->fn(r, v, &rest, &yes));
        } else {
            yes = jinja_value_truth(v);
        }
        if (yes == want) {
            JINJA_TRY(jinja_value_append(r, l, items->v[i]));
        }
    }
    return 0;
}

static int select_items(struct jinja_run *r, struct jinja_val in, const struct jinja_args *a,
                        int want, int by_attr, struct jinja_val *out)
{
    struct jinja_val l;
    int rc;

    JINJA_TRY(jinja_value_list(r, JINJA_LIST, 0, &l));
    rc = select_of(r, in, a, want, by_attr, l.l);
    return jinja_value_lazy(r, rc, l.l, out);
}

FILTER(select)
{
    return select_items(r, in, a, 1, 0, out);
}

FILTER(reject)
{
    return select_items(r, in, a, 0, 0, out);
}

FILTER(selectattr)
{
    return select_items(r, in, a, 1, 1, out);
}

FILTER(rejectattr)
{
    return select_items(r, in, a, 0, 1, out);
}

FILTER(tojson)
{
    return jinja_print_json(r, in, a, out);
}

FILTER(unsupported)
{
    (void)in;
    (void)a;
    (void)out;
    return jinja_fail(r, STATUS_UNSUPPORTED, "this filter of jinja2 is not supported");
}

static const struct jinja_filter filters[] = {
    {"trim", f_trim},
    {"tojson", f_tojson},
    {"length", f_length},
    {"count", f_length},
    {"default", f_default},
    {"d", f_default},
    {"string", f_string},
    {"safe", f_safe},
    {"items", f_items},
    {"selectattr", f_selectattr},
    {"rejectattr", f_rejectattr},
    {"select", f_select},
    {"reject", f_reject},
    {"map", f_map},
    {"join", f_join},
    {"list", f_list},
    {"upper", f_upper},
    {"lower", f_lower},
    {"capitalize", f_capitalize},
    {"title", f_title},
    {"dictsort", f_dictsort},
    {"sort", f_sort},
    {"unique", f_unique},
    {"reverse", f_reverse},
    {"first", f_first},
    {"last", f_last},
    {"replace", f_replace},
    {"indent", f_indent},
    {"int", f_int},
    {"float", f_float},
    {"round", f_round},
    {"abs", f_abs},
    {"sum", f_sum},
    {"min", f_min},
    {"max", f_max},
    {"e", f_escape},
    {"escape", f_escape},
    {"forceescape", f_forceescape},
    {"format", f_format},
    {"center", f_center},
    {"truncate", f_truncate},
    {"wordcount", f_wordcount},
    {"batch", f_batch},
    {"slice", f_slice},
    {"groupby", f_groupby},
    {"attr", f_attr},
    {"filesizeformat", jinja_rare_filesizeformat},
    {"pprint", f_unsupported},
    {"random", f_unsupported},
    {"striptags", f_unsupported},
    {"urlencode", jinja_rare_urlencode},
    {"urlize", f_unsupported},
    {"wordwrap", f_unsupported},
    {"xmlattr", jinja_rare_xmlattr},
};

const struct jinja_filter *jinja_filter_find(const char *p, size_t n)
{
    size_t i;

    for (i = 0; i < sizeof filters / sizeof *filters; i++) {
        if (strlen(filters[i].name) == n && memcmp(filters[i].name, p, n) == 0) {
            return &filters[i];
        }
    }
    return NULL;
}
