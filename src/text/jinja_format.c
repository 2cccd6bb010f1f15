/* Owns Python's two string formatters: "%-5s" % x and "{:>5}".format(x). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja_int.h"

enum { FORMAT_MAX_WIDTH = 1 << 20, FORMAT_MAX_PREC = 300 };

struct spec {
    const char *fill;
    size_t nfill;
    char align; /* < > = ^ or 0 */
    char sign;  /* + - space or 0 */
    int alt, zero, grouping;
    int width, prec; /* -1: not given */
    char type;
};

/* Digits with an optional sign in front and a prefix like 0x, laid out in the width. */
static int put_padded(struct jinja_run *r, struct jinja_sb *b, const struct spec *s,
                      const char *sign, const char *body, size_t n, char default_align)
{
    size_t have = strlen(sign) + jinja_uni_count(body, n);
    size_t total = s->width > 0 && (size_t)s->width > have ? (size_t)s->width - have : 0;
    char align = s->align ? s->align : default_align;
    size_t left = align == '<' ? 0 : align == '^' ? total / 2 : total, i;
    const char *fill = s->fill ? s->fill : s->zero ? "0" : " ";
    size_t nfill = s->fill ? s->nfill : 1;

    if (align == '=') {
        JINJA_TRY(jinja_sb_cstr(r, b, sign));
    }
    for (i = 0; i < left; i++) {
        JINJA_TRY(jinja_sb_add(r, b, fill, nfill));
    }
    if (align != '=') {
        JINJA_TRY(jinja_sb_cstr(r, b, sign));
    }
    JINJA_TRY(jinja_sb_add(r, b, body, n));
    for (i = left; i < total; i++) {
        JINJA_TRY(jinja_sb_add(r, b, fill, nfill));
    }
    return 0;
}

static int put_str(struct jinja_run *r, struct jinja_sb *b, const struct spec *s,
                   const struct jinja_str *v)
{
    struct spec t = *s;
    size_t n = v->n;

    if (s->prec >= 0) {
        const char *p = v->p, *end = v->p + v->n;
        uint32_t cp;
        int i;
        for (i = 0; i < s->prec && p < end; i++) {
            p += jinja_uni_next(p, end, &cp);
        }
        n = (size_t)(p - v->p);
    }
    if (t.align == '=' || t.sign || t.alt || t.grouping) {
        return jinja_fail(r, STATUS_INPUT, "a text is formatted without =, sign, # and grouping");
    }
    return put_padded(r, b, &t, "", v->p, n, '<');
}

/* Inserts , or _ between groups of the digits that lead `text`; `extra` zeros come before them. */
static int group_digits(struct jinja_run *r, const char *text, int sep, int each, size_t extra,
                        struct jinja_sb *out)
{
    size_t n = 0, i;

    while (text[n] && strchr(each == 3 ? "0123456789" : "0123456789abcdefABCDEF", text[n])) {
        n++;
    }
    for (i = 0; i < n + extra; i++) {
        if (sep && i && (n + extra - i) % (size_t)each == 0) {
            JINJA_TRY(jinja_sb_char(r, out, (char)sep));
        }
        JINJA_TRY(jinja_sb_char(r, out, i < extra ? '0' : text[i - extra]));
    }
    return jinja_sb_cstr(r, out, text + n);
}

/* Zeros to put before the digits of `text` so that, grouped, it fills the width ("{:010,}"). */
static size_t group_zeros(const struct spec *s, const char *text, size_t more, int each)
{
    size_t digits = 0, rest, extra = 0;

    while (text[digits] >= '0' && text[digits] <= '9') {
        digits++;
    }
    rest = strlen(text + digits) + more;
    if (!s->zero || s->align || !s->grouping || !digits) {
        return 0;
    }
    while (digits + extra + (digits + extra - 1) / (size_t)each + rest < (size_t)s->width &&
           s->width > 0) {
        extra++;
    }
    return extra;
}

static void sign_text(const struct spec *s, int negative, const char *prefix, char out[4])
{
    size_t n = 0;

    if (negative) {
        out[n++] = '-';
    } else if (s->sign == '+' || s->sign == ' ') {
        out[n++] = s->sign;
    }
    strcpy(out + n, prefix);
}

static int put_int(struct jinja_run *r, struct jinja_sb *b, const struct spec *s, int64_t v)
{
    struct jinja_sb body = {0};
    uint64_t m = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    char text[72], sign[8], *p = text + sizeof text;
    unsigned base = s->type == 'x' || s->type == 'X' ? 16
                    : s->type == 'o'                 ? 8
                    : s->type == 'b'                 ? 2
                                                     : 10;
    const char *digits = s->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";

    if (s->grouping == ',' && base != 10) {
        return jinja_fail(r, STATUS_INPUT, "cannot specify ',' with '%c'", s->type);
    }
    if (s->type == 'c') {
        if (s->grouping || s->sign || s->alt) {
            return jinja_fail(r, STATUS_INPUT,
                              "a character is formatted without sign, # and groups");
        }
        if (v < 0 || v > 0x10ffff || (v >= 0xd800 && v <= 0xdfff)) {
            return jinja_fail(r, STATUS_INPUT, "%%c arg not in range(0x110000)");
        }
        JINJA_TRY(jinja_sb_cp(r, &body, (uint32_t)v));
        return put_padded(r, b, s, "", body.p, body.n, s->zero ? '=' : '>');
    }
    *--p = 0;
    do {
        *--p = digits[m % base];
        m /= base;
    } while (m);
    sign_text(s, v < 0,
              !s->alt || base == 10 ? ""
              : s->type == 'x'      ? "0x"
              : s->type == 'X'      ? "0X"
              : base == 8           ? "0o"
                                    : "0b",
              sign);
    JINJA_TRY(group_digits(r, p, s->grouping, base == 10 ? 3 : 4,
                           base == 10 ? group_zeros(s, p, strlen(sign), 3) : 0, &body));
    while (s->prec > 0 && body.n < (size_t)s->prec) { /* "%.3d" */
        JINJA_TRY(jinja_sb_char(r, &body, '0'));
        memmove(body.p + 1, body.p, body.n - 1);
        body.p[0] = '0';
    }
    return put_padded(r, b, s, sign, body.p, body.n, s->zero ? '=' : '>');
}

static int put_float(struct jinja_run *r, struct jinja_sb *b, const struct spec *s, double v)
{
    struct jinja_sb body = {0}, out = {0};
    char fmt[8], sign[8];
    int prec = s->prec < 0 ? 6 : s->prec, percent = s->type == '%';
    char type = percent ? 'f' : s->type == 'n' ? 'g' : s->type;
    int neg = signbit(v) && v == v;
    char *text;

    if (prec > FORMAT_MAX_PREC) {
        return jinja_fail(r, STATUS_INPUT, "a precision is too large");
    }
    v = fabs(percent ? v * 100 : v);
    text = jinja_alloc(r, 400 + FORMAT_MAX_PREC);
    if (!text) {
        return STATUS_NOMEM;
    }
    if (v != v || isinf(v)) {
        snprintf(text, 8, "%s", v != v ? "nan" : "inf");
        if (type >= 'A' && type <= 'Z') {
            snprintf(text, 8, "%s", v != v ? "NAN" : "INF");
        }
    } else if (!type && s->prec < 0) {
        JINJA_TRY(jinja_print_float(r, &body, v));
        JINJA_TRY(jinja_sb_char(r, &body, 0));
        text = body.p;
        body = (struct jinja_sb){0};
    } else {
        snprintf(fmt, sizeof fmt, "%%%s.*%c", s->alt ? "#" : "", type ? type : 'g');
        snprintf(text, 400 + FORMAT_MAX_PREC, fmt, type || prec ? prec : 1, v);
        if (!type && !strpbrk(text, ".e")) {
            strcat(text, ".0");
        }
    }
    sign_text(s, neg, "", sign);
    JINJA_TRY(group_digits(r, text, s->grouping, 3,
                           group_zeros(s, text, strlen(sign) + (size_t)percent, 3), &out));
    if (percent) {
        JINJA_TRY(jinja_sb_char(r, &out, '%'));
    }
    return put_padded(r, b, s, sign, out.p, out.n, s->zero ? '=' : '>');
}

/* ---- str.format ---- */

static int parse_spec(struct jinja_run *r, const char *p, size_t n, struct spec *s)
{
    const char *end = p + n;
    uint32_t cp;
    size_t k;

    *s = (struct spec){.width = -1, .prec = -1};
    if (p < end) {
        k = jinja_uni_next(p, end, &cp);
        if (p + k < end && strchr("<>=^", p[k]) && p[k]) {
            s->fill = p;
            s->nfill = k;
            s->align = p[k];
            p += k + 1;
        } else if (*p && strchr("<>=^", *p)) {
            s->align = *p++;
        }
    }
    if (p < end && (*p == '+' || *p == '-' || *p == ' ')) {
        s->sign = *p++;
    }
    if (p < end && *p == '#') {
        s->alt = 1;
        p++;
    }
    if (p < end && *p == '0') {
        s->zero = 1;
        p++;
    }
    for (; p < end && *p >= '0' && *p <= '9'; p++) {
        s->width = (s->width < 0 ? 0 : s->width) * 10 + (*p - '0');
        if (s->width > FORMAT_MAX_WIDTH) {
            return jinja_fail(r, STATUS_INPUT, "a format width is too large");
        }
    }
    if (p < end && (*p == ',' || *p == '_')) {
        s->grouping = *p++;
    }
    if (p < end && *p == '.') {
        s->prec = 0;
        if (++p == end || *p < '0' || *p > '9') {
            return jinja_fail(r, STATUS_INPUT,
                              "a format specifier has no precision behind its dot");
        }
        for (; p < end && *p >= '0' && *p <= '9'; p++) {
            s->prec = s->prec * 10 + (*p - '0');
            if (s->prec > FORMAT_MAX_WIDTH) {
                return jinja_fail(r, STATUS_INPUT, "a precision is too large");
            }
        }
    }
    if (p < end) {
        s->type = *p++;
    }
    if (p < end) {
        return jinja_fail(r, STATUS_INPUT, "invalid format specifier");
    }
    return 0;
}

static int format_value(struct jinja_run *r, struct jinja_sb *b, struct jinja_val v,
                        const char *spec, size_t n)
{
    struct spec s;

    if (!n) {
        return jinja_print_str(r, b, v);
    }
    JINJA_TRY(parse_spec(r, spec, n, &s));
    if (s.type == 'n' && s.grouping) {
        return jinja_fail(r, STATUS_INPUT, "cannot specify '%c' with 'n'", s.grouping);
    }
    if (v.t == JINJA_STR && (!s.type || s.type == 's')) {
        return put_str(r, b, &s, v.s);
    }
    if ((v.t == JINJA_INT || v.t == JINJA_BOOL) && s.type && strchr("eEfFgG%", s.type)) {
        return put_float(r, b, &s, (double)v.i);
    }
    if ((v.t == JINJA_INT || v.t == JINJA_BOOL) && (!s.type || strchr("dbcoxXn", s.type)) &&
        s.prec < 0) {
        return put_int(r, b, &s, v.i);
    }
    if (v.t == JINJA_FLOAT && (!s.type || strchr("eEfFgGn%", s.type))) {
        return put_float(r, b, &s, v.f);
    }
    return jinja_fail(r, STATUS_INPUT, "unsupported format '%.*s' for an object of type '%s'",
                      n > 40 ? 40 : (int)n, spec, jinja_value_type(v));
}

struct formatter {
    struct jinja_run *r;
    const struct jinja_args *a;
    struct jinja_dict *map; /* format_map, else NULL */
    int64_t next;           /* automatic numbering */
    int escape;
};

static int field_lookup(struct formatter *f, const char *p, size_t n, struct jinja_val *out)
{
    struct jinja_val *hit;
    int64_t i = -1;
    size_t k;

    if (f->map) {
        hit = jinja_value_getn(f->map, p, n);
        if (!hit) {
            return jinja_fail(f->r, STATUS_INPUT, "key '%.*s' is missing", n > 60 ? 60 : (int)n, p);
        }
        *out = *hit;
        return 0;
    }
    if (n == 0) {
        i = f->next++;
    } else if (jinja_str_parse_int(p, n, 10, &i) != 1 || i < 0) {
        for (k = 0; k < f->a->nkw; k++) {
            if (f->a->kw[k].n == n && memcmp(f->a->kw[k].name, p, n) == 0) {
                *out = f->a->kw[k].v;
                return 0;
            }
        }
        return jinja_fail(f->r, STATUS_INPUT, "key '%.*s' is missing", n > 60 ? 60 : (int)n, p);
    }
    if ((size_t)i >= f->a->npos) {
        return jinja_fail(f->r, STATUS_INPUT,
                          "Replacement index %lld out of range for positional args tuple",
                          (long long)i);
    }
    *out = f->a->pos[i];
    return 0;
}

/* "a.b[0]" */
static int field_value(struct formatter *f, const char *p, size_t n, struct jinja_val *out)
{
    size_t i = 0, from;

    while (i < n && p[i] != '.' && p[i] != '[') {
        i++;
    }
    JINJA_TRY(field_lookup(f, p, i, out));
    while (i < n) {
        if (p[i] == '.') {
            from = ++i;
            while (i < n && p[i] != '.' && p[i] != '[') {
                i++;
            }
            JINJA_TRY(jinja_object_attr(f->r, *out, p + from, i - from, out));
        } else {
            struct jinja_val key;
            int64_t num;
            from = ++i;
            while (i < n && p[i] != ']') {
                i++;
            }
            if (i == n) {
                return jinja_fail(f->r, STATUS_INPUT, "missing ']' in format string");
            }
            if (jinja_str_parse_int(p + from, i - from, 10, &num) == 1) {
                key = jinja_int(num);
            } else {
                JINJA_TRY(jinja_value_str(f->r, p + from, i - from, &key));
            }
            JINJA_TRY(jinja_object_item(f->r, *out, key, out));
            i++;
        }
    }
    return 0;
}

static int format_text(struct formatter *f, const char *p, size_t n, int depth, struct jinja_sb *b);

/* The inside of one {...}. */
static int format_field(struct formatter *f, const char *p, size_t n, int depth, struct jinja_sb *b)
{
    struct jinja_sb spec = {0}, text = {0};
    struct jinja_val v, s;
    size_t name = 0;
    char conv = 0;

    while (name < n && p[name] != ':' && p[name] != '!') {
        if (p[name] == '[') {
            while (name < n && p[name] != ']') {
                name++;
            }
            continue;
        }
        name++;
    }
    JINJA_TRY(field_value(f, p, name, &v));
    p += name;
    n -= name;
    if (n && *p == '!') {
        if (n < 2 || (n > 2 && p[2] != ':')) {
            return jinja_fail(f->r, STATUS_INPUT, "malformed conversion in format string");
        }
        conv = p[1];
        p += 2;
        n -= 2;
    }
    if (n) {
        JINJA_TRY(format_text(f, p + 1, n - 1, depth + 1, &spec));
    }
    if (conv == 'r' || conv == 's') {
        JINJA_TRY(conv == 'r' ? jinja_print_repr(f->r, &text, v, 0)
                              : jinja_print_str(f->r, &text, v));
        JINJA_TRY(jinja_sb_str(f->r, &text, &v));
    } else if (conv) {
        return jinja_fail(f->r, STATUS_UNSUPPORTED, "format conversion !%c", conv);
    }
    if (!f->escape) {
        return format_value(f->r, b, v, spec.p, spec.n);
    }
    text = (struct jinja_sb){0};
    JINJA_TRY(format_value(f->r, &text, v, spec.p, spec.n));
    JINJA_TRY(jinja_sb_str(f->r, &text, &s));
    s.s->markup = v.t == JINJA_STR && v.s->markup;
    JINJA_TRY(jinja_print_escape(f->r, s, &s));
    return jinja_sb_add(f->r, b, s.s->p, s.s->n);
}

static int format_text(struct formatter *f, const char *p, size_t n, int depth, struct jinja_sb *b)
{
    size_t i = 0;

    if (depth > 2) {
        return jinja_fail(f->r, STATUS_INPUT, "max string recursion exceeded in format");
    }
    while (i < n) {
        size_t from = i;
        int open = 1;
        if (p[i] == '}' || p[i] == '{') {
            if (i + 1 < n && p[i + 1] == p[i] && depth == 0) {
                JINJA_TRY(jinja_sb_char(f->r, b, p[i]));
                i += 2;
                continue;
            }
            if (p[i] == '}') {
                return jinja_fail(f->r, STATUS_INPUT, "Single '}' encountered in format string");
            }
            for (i++; i < n && open; i++) {
                open += (p[i] == '{') - (p[i] == '}');
            }
            if (open) {
                return jinja_fail(f->r, STATUS_INPUT, "expected '}' before end of string");
            }
            JINJA_TRY(format_field(f, p + from + 1, i - from - 2, depth, b));
            continue;
        }
        while (i < n && p[i] != '{' && p[i] != '}') {
            i++;
        }
        JINJA_TRY(jinja_sb_add(f->r, b, p + from, i - from));
    }
    return 0;
}

int jinja_format_method(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                        struct jinja_val *out)
{
    struct formatter f = {.r = r, .a = a, .escape = self.s->markup};
    struct jinja_sb b = {0};

    JINJA_TRY(format_text(&f, self.s->p, self.s->n, 0, &b));
    JINJA_TRY(jinja_sb_str(r, &b, out));
    out->s->markup = self.s->markup;
    return 0;
}

int jinja_format_map_method(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                            struct jinja_val *out)
{
    struct formatter f = {.r = r, .a = a, .escape = self.s->markup};
    struct jinja_sb b = {0};
    struct jinja_val map;

    JINJA_TRY(jinja_object_bind(r, a, "format_map", "mapping", 1, &map));
    if (map.t != JINJA_DICT) {
        return jinja_fail(r, STATUS_INPUT, "format_map() needs a dict");
    }
    f.map = map.d;
    JINJA_TRY(format_text(&f, self.s->p, self.s->n, 0, &b));
    JINJA_TRY(jinja_sb_str(r, &b, out));
    out->s->markup = self.s->markup;
    return 0;
}

/* ---- % ---- */

struct percent {
    struct jinja_run *r;
    struct jinja_val arg;
    size_t used;
    int escape;
};

static int percent_next(struct percent *p, struct jinja_val *out)
{
    if (p->arg.t == JINJA_TUPLE ? p->used >= p->arg.l->n : p->used > 0) {
        return jinja_fail(p->r, STATUS_INPUT, "not enough arguments for format string");
    }
    *out = p->arg.t == JINJA_TUPLE ? p->arg.l->v[p->used] : p->arg;
    p->used++;
    return 0;
}

static int percent_number(struct percent *p, const char **q, const char *end, int *out)
{
    struct jinja_val v;

    if (*q < end && **q == '*') {
        JINJA_TRY(percent_next(p, &v));
        if (v.t != JINJA_INT || v.i < 0 || v.i > FORMAT_MAX_WIDTH) {
            return jinja_fail(p->r, STATUS_INPUT, "* wants a small int");
        }
        *out = (int)v.i;
        (*q)++;
        return 0;
    }
    for (; *q < end && **q >= '0' && **q <= '9'; (*q)++) {
        *out = (*out < 0 ? 0 : *out) * 10 + (**q - '0');
        if (*out > FORMAT_MAX_WIDTH) {
            return jinja_fail(p->r, STATUS_INPUT, "a format width is too large");
        }
    }
    return 0;
}

static int percent_put(struct percent *p, struct spec *s, struct jinja_val v, struct jinja_sb *b)
{
    struct jinja_sb text = {0};
    struct jinja_val t;

    if (s->type && strchr("src", s->type)) { /* these flags say nothing to texts */
        s->sign = 0;
        s->alt = s->zero = 0;
    }
    switch (s->type) {
    case 's':
    case 'r':
        JINJA_TRY(s->type == 'r' ? jinja_print_repr(p->r, &text, v, 0)
                                 : jinja_print_str(p->r, &text, v));
        JINJA_TRY(jinja_sb_str(p->r, &text, &t));
        if (p->escape) {
            t.s->markup = s->type == 's' && v.t == JINJA_STR && v.s->markup;
            JINJA_TRY(jinja_print_escape(p->r, t, &t));
        }
        s->align = s->align ? s->align : '>';
        return put_str(p->r, b, s, t.s);
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
        if (v.t == JINJA_FLOAT && fabs(v.f) < 9e18 && strchr("diu", s->type)) {
            v = jinja_int((int64_t)v.f);
        }
        if (v.t != JINJA_INT && v.t != JINJA_BOOL) {
            return jinja_fail(p->r, STATUS_INPUT, "%%%c format: a number is required, not %s",
                              s->type, jinja_value_type(v));
        }
        s->type = strchr("diu", s->type) ? 'd' : s->type;
        return put_int(p->r, b, s, v.i);
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        if (v.t != JINJA_INT && v.t != JINJA_BOOL && v.t != JINJA_FLOAT) {
            return jinja_fail(p->r, STATUS_INPUT, "must be real number, not %s",
                              jinja_value_type(v));
        }
        return put_float(p->r, b, s, v.t == JINJA_FLOAT ? v.f : (double)v.i);
    case 'c':
        s->align = s->align ? s->align : '>';
        if (v.t == JINJA_STR && jinja_value_ncp(v.s) == 1) {
            return put_str(p->r, b, s, v.s);
        }
        if (v.t == JINJA_INT || v.t == JINJA_BOOL) {
            return put_int(p->r, b, s, v.i);
        }
        return jinja_fail(p->r, STATUS_INPUT, "%%c requires int or char");
    default: return jinja_fail(p->r, STATUS_INPUT, "unsupported format character '%c'", s->type);
    }
}

/* One conversion; *q is behind the percent sign. */
static int percent_one(struct percent *p, const char **q, const char *end, struct jinja_sb *b)
{
    struct spec s = {.width = -1, .prec = -1};
    struct jinja_val v = jinja_missing(), *hit;

    if (*q < end && **q == '(') {
        const char *close = memchr(*q, ')', (size_t)(end - *q));
        if (!close || p->arg.t != JINJA_DICT) {
            return jinja_fail(p->r, STATUS_INPUT,
                              close ? "format requires a mapping" : "incomplete format key");
        }
        hit = jinja_value_getn(p->arg.d, *q + 1, (size_t)(close - *q - 1));
        if (!hit) {
            return jinja_fail(p->r, STATUS_INPUT, "a key of the format string is missing");
        }
        v = *hit;
        *q = close + 1;
    }
    for (; *q < end && **q && strchr("-+ #0", **q); (*q)++) {
        s.align = **q == '-' ? '<' : s.align;
        s.sign = **q == '+' || (**q == ' ' && s.sign != '+') ? **q : s.sign;
        s.alt |= **q == '#';
        s.zero |= **q == '0';
    }
    s.zero &= !s.align;
    JINJA_TRY(percent_number(p, q, end, &s.width));
    if (*q < end && **q == '.') {
        (*q)++;
        s.prec = 0;
        JINJA_TRY(percent_number(p, q, end, &s.prec));
    }
    while (*q < end && **q && strchr("hlL", **q)) {
        (*q)++;
    }
    if (*q == end) {
        return jinja_fail(p->r, STATUS_INPUT, "incomplete format");
    }
    s.type = *(*q)++;
    if (s.type == '%') {
        return jinja_sb_char(p->r, b, '%');
    }
    if (v.t == JINJA_MISSING) {
        JINJA_TRY(percent_next(p, &v));
    }
    return percent_put(p, &s, v, b);
}

/* What Python takes for a mapping here: it may be left unused. */
static int has_getitem(struct jinja_val v)
{
    return v.t == JINJA_DICT || v.t == JINJA_LIST || v.t == JINJA_RANGE || v.t == JINJA_UNDEF;
}

int jinja_format_percent(struct jinja_run *r, struct jinja_val fmt, struct jinja_val arg,
                         struct jinja_val *out)
{
    struct percent p = {.r = r, .arg = arg, .escape = fmt.s->markup};
    struct jinja_sb b = {0};
    const char *q = fmt.s->p, *end = q + fmt.s->n;

    while (q < end) {
        const char *hit = memchr(q, '%', (size_t)(end - q));
        JINJA_TRY(jinja_sb_add(r, &b, q, (size_t)((hit ? hit : end) - q)));
        if (!hit) {
            break;
        }
        q = hit + 1;
        JINJA_TRY(percent_one(&p, &q, end, &b));
    }
    if (arg.t == JINJA_TUPLE ? p.used < arg.l->n : !p.used && !has_getitem(arg)) {
        return jinja_fail(r, STATUS_INPUT, "not all arguments converted during string formatting");
    }
    JINJA_TRY(jinja_sb_str(r, &b, out));
    out->s->markup = fmt.s->markup;
    return 0;
}
