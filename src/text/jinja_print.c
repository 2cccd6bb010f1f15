/* Owns the text of values: str(), repr(), json.dumps and the shortest form of floats, as Python
 * writes them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_int.h"

enum { PRINT_MAX_NEST = 200 };

/* The shortest decimal that reads back as f, in repr's layout: exponent form outside 1e-4..1e16. */
int jinja_print_float(struct jinja_run *r, struct jinja_sb *b, double f)
{
    char text[40], digits[24];
    int prec, exp10, n;
    char *e;

    if (f != f) {
        return jinja_sb_cstr(r, b, "nan");
    }
    if (isinf(f)) {
        return jinja_sb_cstr(r, b, f < 0 ? "-inf" : "inf");
    }
    for (prec = 0; prec < 17; prec++) {
        snprintf(text, sizeof text, "%.*e", prec, f);
        if (strtod(text, NULL) == f) {
            break;
        }
    }
    e = strchr(text, 'e');
    exp10 = atoi(e + 1);
    n = 0;
    for (const char *p = text; p < e; p++) {
        if (*p >= '0' && *p <= '9') {
            digits[n++] = *p;
        }
    }
    if (signbit(f)) {
        JINJA_TRY(jinja_sb_char(r, b, '-'));
    }
    if (exp10 < -4 || exp10 >= 16) {
        JINJA_TRY(jinja_sb_add(r, b, digits, 1));
        if (n > 1) {
            JINJA_TRY(jinja_sb_char(r, b, '.'));
            JINJA_TRY(jinja_sb_add(r, b, digits + 1, (size_t)n - 1));
        }
        snprintf(text, sizeof text, "e%c%02d", exp10 < 0 ? '-' : '+', abs(exp10));
        return jinja_sb_cstr(r, b, text);
    }
    if (exp10 < 0) {
        JINJA_TRY(jinja_sb_add(r, b, "0.0000", (size_t)(1 - exp10)));
        return jinja_sb_add(r, b, digits, (size_t)n);
    }
    while (n < exp10 + 2) {
        digits[n++] = '0';
    }
    JINJA_TRY(jinja_sb_add(r, b, digits, (size_t)exp10 + 1));
    JINJA_TRY(jinja_sb_char(r, b, '.'));
    return jinja_sb_add(r, b, digits + exp10 + 1, (size_t)(n - exp10 - 1));
}

static int print_int(struct jinja_run *r, struct jinja_sb *b, int64_t i)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)i);
    return jinja_sb_cstr(r, b, text);
}

static int repr_str(struct jinja_run *r, struct jinja_sb *b, const struct jinja_str *s)
{
    char quote = memchr(s->p, '\'', s->n) && !memchr(s->p, '"', s->n) ? '"' : '\'';
    const char *p = s->p, *end = s->p + s->n;
    char text[16];

    JINJA_TRY(jinja_sb_char(r, b, quote));
    while (p < end) {
        uint32_t cp;
        size_t k = jinja_uni_next(p, end, &cp);
        if (cp == (unsigned char)quote || cp == '\\') {
            JINJA_TRY(jinja_sb_char(r, b, '\\'));
            JINJA_TRY(jinja_sb_add(r, b, p, k));
        } else if (cp == '\n' || cp == '\r' || cp == '\t') {
            JINJA_TRY(jinja_sb_cstr(r, b, cp == '\n' ? "\\n" : cp == '\r' ? "\\r" : "\\t"));
        } else if (!jinja_uni_printable(cp)) {
            snprintf(text, sizeof text,
                     cp < 0x100     ? "\\x%02x"
                     : cp < 0x10000 ? "\\u%04x"
                                    : "\\U%08x",
                     (unsigned)cp);
            JINJA_TRY(jinja_sb_cstr(r, b, text));
        } else {
            JINJA_TRY(jinja_sb_add(r, b, p, k));
        }
        p += k;
    }
    return jinja_sb_char(r, b, quote);
}

static int repr_list(struct jinja_run *r, struct jinja_sb *b, struct jinja_val v, int depth)
{
    size_t i;

    JINJA_TRY(jinja_sb_char(r, b, v.t == JINJA_LIST ? '[' : '('));
    for (i = 0; i < v.l->n; i++) {
        if (i) {
            JINJA_TRY(jinja_sb_cstr(r, b, ", "));
        }
        JINJA_TRY(jinja_print_repr(r, b, v.l->v[i], depth + 1));
    }
    if (v.t == JINJA_TUPLE && v.l->n == 1) {
        JINJA_TRY(jinja_sb_char(r, b, ','));
    }
    return jinja_sb_char(r, b, v.t == JINJA_LIST ? ']' : ')');
}

static int repr_dict(struct jinja_run *r, struct jinja_sb *b, struct jinja_dict *d, int depth)
{
    size_t i;

    JINJA_TRY(jinja_sb_char(r, b, '{'));
    for (i = 0; i < d->n; i++) {
        if (i) {
            JINJA_TRY(jinja_sb_cstr(r, b, ", "));
        }
        JINJA_TRY(jinja_print_repr(r, b, d->e[i].k, depth + 1));
        JINJA_TRY(jinja_sb_cstr(r, b, ": "));
        JINJA_TRY(jinja_print_repr(r, b, d->e[i].v, depth + 1));
    }
    return jinja_sb_char(r, b, '}');
}

static int repr_object(struct jinja_run *r, struct jinja_sb *b, struct jinja_val v, int depth)
{
    struct jinja_val list = {.t = JINJA_LIST};

    switch (v.t) {
    case JINJA_RANGE: {
        char text[80];
        int n = snprintf(text, sizeof text, "range(%lld, %lld", (long long)v.l->start,
                         (long long)v.l->stop);
        if (v.l->step != 1) {
            n += snprintf(text + n, sizeof text - (size_t)n, ", %lld", (long long)v.l->step);
        }
        snprintf(text + n, sizeof text - (size_t)n, ")");
        return jinja_sb_cstr(r, b, text);
    }
    case JINJA_VIEW:
        JINJA_TRY(jinja_sb_cstr(r, b, jinja_value_type(v)));
        JINJA_TRY(jinja_sb_char(r, b, '('));
        JINJA_TRY(jinja_value_items(r, v, &list.l));
        JINJA_TRY(repr_list(r, b, list, depth));
        return jinja_sb_char(r, b, ')');
    case JINJA_NS:
        JINJA_TRY(jinja_sb_cstr(r, b, "<Namespace "));
        JINJA_TRY(repr_dict(r, b, v.d, depth));
        return jinja_sb_char(r, b, '>');
    case JINJA_MACRO:
        if (!v.macro->node->name) {
            return jinja_sb_cstr(r, b, "<Macro anonymous>");
        }
        JINJA_TRY(jinja_sb_cstr(r, b, "<Macro '"));
        JINJA_TRY(jinja_sb_add(r, b, v.macro->node->name->p, v.macro->node->name->n));
        return jinja_sb_cstr(r, b, "'>");
    default:
        JINJA_TRY(jinja_sb_char(r, b, '<'));
        JINJA_TRY(jinja_sb_cstr(r, b, jinja_value_type(v)));
        return jinja_sb_cstr(r, b, " object>");
    }
}

int jinja_print_repr(struct jinja_run *r, struct jinja_sb *b, struct jinja_val v, int depth)
{
    if (depth > PRINT_MAX_NEST) {
        return jinja_fail(r, STATUS_INPUT, "a value is nested too deeply to print");
    }
    switch (v.t) {
    case JINJA_MISSING:
    case JINJA_UNDEF: return jinja_sb_cstr(r, b, "Undefined");
    case JINJA_NONE: return jinja_sb_cstr(r, b, "None");
    case JINJA_BOOL: return jinja_sb_cstr(r, b, v.i ? "True" : "False");
    case JINJA_INT: return print_int(r, b, v.i);
    case JINJA_FLOAT: return jinja_print_float(r, b, v.f);
    case JINJA_STR:
        if (!v.s->markup) {
            return repr_str(r, b, v.s);
        }
        JINJA_TRY(jinja_sb_cstr(r, b, "Markup("));
        JINJA_TRY(repr_str(r, b, v.s));
        return jinja_sb_char(r, b, ')');
    case JINJA_LIST:
    case JINJA_TUPLE: return repr_list(r, b, v, depth);
    case JINJA_DICT: return repr_dict(r, b, v.d, depth);
    default: return repr_object(r, b, v, depth);
    }
}

int jinja_print_str(struct jinja_run *r, struct jinja_sb *b, struct jinja_val v)
{
    if (v.t == JINJA_STR) {
        return jinja_sb_add(r, b, v.s->p, v.s->n);
    }
    if (v.t == JINJA_UNDEF) {
        return 0;
    }
    return jinja_print_repr(r, b, v, 0);
}

int jinja_print_soft(struct jinja_run *r, struct jinja_val v, struct jinja_val *out)
{
    struct jinja_sb b = {0};

    if (v.t == JINJA_STR) {
        *out = v;
        return 0;
    }
    JINJA_TRY(jinja_print_str(r, &b, v));
    return jinja_sb_str(r, &b, out);
}

int jinja_print_escape(struct jinja_run *r, struct jinja_val v, struct jinja_val *out)
{
    struct jinja_sb b = {0};
    struct jinja_val s;
    size_t i;

    JINJA_TRY(jinja_print_soft(r, v, &s));
    if (s.s->markup) {
        *out = s;
        return 0;
    }
    for (i = 0; i < s.s->n; i++) {
        const char *with;
        switch (s.s->p[i]) {
        case '&': with = "&amp;"; break;
        case '<': with = "&lt;"; break;
        case '>': with = "&gt;"; break;
        case '\'': with = "&#39;"; break;
        case '"': with = "&#34;"; break;
        default: with = NULL; break;
        }
        if (with) {
            JINJA_TRY(jinja_sb_cstr(r, &b, with));
        } else {
            JINJA_TRY(jinja_sb_char(r, &b, s.s->p[i]));
        }
    }
    JINJA_TRY(jinja_sb_str(r, &b, out));
    out->s->markup = 1;
    return 0;
}

/* ---- json.dumps ---- */

struct dumper {
    struct jinja_run *r;
    struct jinja_sb *b;
    int ascii, sort, pretty;
    struct jinja_str *indent, *item_sep, *key_sep;
};

static int dump_hex(struct dumper *d, uint32_t unit)
{
    char text[16];
    snprintf(text, sizeof text, "\\u%04x", (unsigned)unit);
    return jinja_sb_cstr(d->r, d->b, text);
}

static int dump_escape(struct dumper *d, uint32_t cp, const char *p, size_t k)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    const char *hit = cp && cp < 0x80 ? strchr(from, (int)cp) : NULL;

    if (hit) {
        char two[2];
        two[0] = '\\';
        two[1] = to[hit - from];
        return jinja_sb_add(d->r, d->b, two, 2);
    }
    if (cp < 0x20 || (d->ascii && cp >= 0x7f && cp < 0x10000)) {
        if (cp == 0x7f) {
            return jinja_sb_add(d->r, d->b, p, k);
        }
        return dump_hex(d, cp);
    }
    if (d->ascii && cp >= 0x10000) {
        JINJA_TRY(dump_hex(d, 0xd800 + ((cp - 0x10000) >> 10)));
        return dump_hex(d, 0xdc00 + ((cp - 0x10000) & 0x3ff));
    }
    return jinja_sb_add(d->r, d->b, p, k);
}

static int dump_str(struct dumper *d, const char *p, size_t n)
{
    const char *end = p + n, *plain = p;

    JINJA_TRY(jinja_sb_char(d->r, d->b, '"'));
    while (p < end) {
        uint32_t cp;
        size_t k = jinja_uni_next(p, end, &cp);
        if (cp < 0x20 || cp == '"' || cp == '\\' || (d->ascii && cp >= 0x80)) {
            JINJA_TRY(jinja_sb_add(d->r, d->b, plain, (size_t)(p - plain)));
            JINJA_TRY(dump_escape(d, cp, p, k));
            plain = p + k;
        }
        p += k;
    }
    JINJA_TRY(jinja_sb_add(d->r, d->b, plain, (size_t)(p - plain)));
    return jinja_sb_char(d->r, d->b, '"');
}

static int dump_newline(struct dumper *d, int depth)
{
    int i;

    if (!d->pretty) {
        return 0;
    }
    JINJA_TRY(jinja_sb_char(d->r, d->b, '\n'));
    for (i = 0; i < depth; i++) {
        JINJA_TRY(jinja_sb_add(d->r, d->b, d->indent->p, d->indent->n));
    }
    return 0;
}

static int dump_scalar(struct dumper *d, struct jinja_val v)
{
    switch (v.t) {
    case JINJA_NONE: return jinja_sb_cstr(d->r, d->b, "null");
    case JINJA_BOOL: return jinja_sb_cstr(d->r, d->b, v.i ? "true" : "false");
    case JINJA_INT: return print_int(d->r, d->b, v.i);
    case JINJA_FLOAT:
        if (v.f != v.f) {
            return jinja_sb_cstr(d->r, d->b, "NaN");
        }
        if (isinf(v.f)) {
            return jinja_sb_cstr(d->r, d->b, v.f < 0 ? "-Infinity" : "Infinity");
        }
        return jinja_print_float(d->r, d->b, v.f);
    default:
        return jinja_fail(d->r, STATUS_INPUT, "Object of type %s is not JSON serializable",
                          jinja_value_type(v));
    }
}

static int dump_key(struct dumper *d, struct jinja_val k)
{
    struct jinja_sb text = {0};
    struct dumper sub = *d;

    if (k.t == JINJA_STR) {
        return dump_str(d, k.s->p, k.s->n);
    }
    if (k.t != JINJA_NONE && k.t != JINJA_BOOL && k.t != JINJA_INT && k.t != JINJA_FLOAT) {
        return jinja_fail(d->r, STATUS_INPUT, "keys must be str, int, float, bool or None, not %s",
                          jinja_value_type(k));
    }
    sub.b = &text;
    JINJA_TRY(dump_scalar(&sub, k));
    return dump_str(d, text.p, text.n);
}

static int dump_value(struct dumper *d, struct jinja_val v, int depth);

static int dump_dict(struct dumper *d, struct jinja_dict *src, int depth)
{
    struct jinja_pair *e = src->e;
    size_t i, n = src->n;

    if (!n) {
        return jinja_sb_cstr(d->r, d->b, "{}");
    }
    if (d->sort) {
        struct jinja_val *keys = jinja_alloc(d->r, 2 * n * sizeof *keys), *pos;
        struct jinja_pair *sorted = jinja_alloc(d->r, n * sizeof *sorted);
        if (!keys || !sorted) {
            return STATUS_NOMEM;
        }
        pos = keys + n;
        for (i = 0; i < n; i++) {
            keys[i] = e[i].k;
            pos[i] = jinja_int((int64_t)i);
        }
        JINJA_TRY(jinja_value_sort(d->r, keys, pos, n, 0));
        for (i = 0; i < n; i++) {
            sorted[i] = e[pos[i].i];
        }
        e = sorted;
    }
    JINJA_TRY(jinja_sb_char(d->r, d->b, '{'));
    for (i = 0; i < n; i++) {
        if (i) {
            JINJA_TRY(jinja_sb_add(d->r, d->b, d->item_sep->p, d->item_sep->n));
        }
        JINJA_TRY(dump_newline(d, depth + 1));
        JINJA_TRY(dump_key(d, e[i].k));
        JINJA_TRY(jinja_sb_add(d->r, d->b, d->key_sep->p, d->key_sep->n));
        JINJA_TRY(dump_value(d, e[i].v, depth + 1));
    }
    JINJA_TRY(dump_newline(d, depth));
    return jinja_sb_char(d->r, d->b, '}');
}

static int dump_list(struct dumper *d, struct jinja_list *l, int depth)
{
    size_t i;

    if (!l->n) {
        return jinja_sb_cstr(d->r, d->b, "[]");
    }
    JINJA_TRY(jinja_sb_char(d->r, d->b, '['));
    for (i = 0; i < l->n; i++) {
        if (i) {
            JINJA_TRY(jinja_sb_add(d->r, d->b, d->item_sep->p, d->item_sep->n));
        }
        JINJA_TRY(dump_newline(d, depth + 1));
        JINJA_TRY(dump_value(d, l->v[i], depth + 1));
    }
    JINJA_TRY(dump_newline(d, depth));
    return jinja_sb_char(d->r, d->b, ']');
}

static int dump_value(struct dumper *d, struct jinja_val v, int depth)
{
    if (depth > PRINT_MAX_NEST) {
        return jinja_fail(d->r, STATUS_INPUT, "a value is nested too deeply for tojson");
    }
    switch (v.t) {
    case JINJA_STR: return dump_str(d, v.s->p, v.s->n);
    case JINJA_DICT: return dump_dict(d, v.d, depth);
    case JINJA_LIST:
    case JINJA_TUPLE: return dump_list(d, v.l, depth);
    default: return dump_scalar(d, v);
    }
}

static int dump_indent(struct dumper *d, struct jinja_val v)
{
    struct jinja_sb b = {0};
    struct jinja_val s;
    int64_t i;

    if (v.t == JINJA_MISSING || v.t == JINJA_NONE) {
        return 0;
    }
    d->pretty = 1;
    if (v.t == JINJA_STR) {
        d->indent = v.s;
        return 0;
    }
    if (v.t != JINJA_INT && v.t != JINJA_BOOL) {
        return jinja_fail(d->r, STATUS_INPUT, "tojson: indent must be a number or a string");
    }
    if (v.i > JINJA_MAX_OUTPUT) {
        return jinja_fail(d->r, STATUS_NOMEM, "a string grows beyond %d MiB",
                          JINJA_MAX_OUTPUT >> 20);
    }
    for (i = 0; i < v.i; i++) {
        JINJA_TRY(jinja_sb_char(d->r, &b, ' '));
    }
    JINJA_TRY(jinja_sb_str(d->r, &b, &s));
    d->indent = s.s;
    return 0;
}

int jinja_print_json(struct jinja_run *r, struct jinja_val v, const struct jinja_args *a,
                     struct jinja_val *out)
{
    struct jinja_sb b = {0};
    struct dumper d = {.r = r, .b = &b};
    struct jinja_val arg[4], item, key; /* ensure_ascii, indent, separators, sort_keys */

    JINJA_TRY(
        jinja_object_bind(r, a, "tojson", "ensure_ascii indent separators sort_keys", 0, arg));
    d.ascii = jinja_value_truth(arg[0]);
    d.sort = jinja_value_truth(arg[3]);
    JINJA_TRY(dump_indent(&d, arg[1]));
    if (arg[2].t == JINJA_LIST || arg[2].t == JINJA_TUPLE) {
        if (arg[2].l->n != 2 || arg[2].l->v[0].t != JINJA_STR || arg[2].l->v[1].t != JINJA_STR) {
            return jinja_fail(r, STATUS_INPUT, "tojson: separators must be two strings");
        }
        item = arg[2].l->v[0];
        key = arg[2].l->v[1];
    } else {
        JINJA_TRY(jinja_value_str(r, d.pretty ? "," : ", ", d.pretty ? 1 : 2, &item));
        JINJA_TRY(jinja_value_str(r, ": ", 2, &key));
    }
    d.item_sep = item.s;
    d.key_sep = key.s;
    JINJA_TRY(dump_value(&d, v, 0));
    return jinja_sb_str(r, &b, out);
}
