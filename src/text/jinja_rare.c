/* Owns the filters that chat templates could use but hardly do: sizes, URLs, attributes; and two
 * methods of the same kind. */
#include <stdio.h>
#include <string.h>

#include "text/jinja_int.h"

static int number_of(struct jinja_run *r, struct jinja_val v, double *out)
{
    if (v.t == JINJA_INT || v.t == JINJA_BOOL) {
        *out = (double)v.i;
    } else if (v.t == JINJA_FLOAT) {
        *out = v.f;
    } else if (v.t == JINJA_UNDEF) {
        return jinja_value_undef_error(r, v);
    } else if (v.t != JINJA_STR || !jinja_str_parse_float(v.s->p, v.s->n, out)) {
        return jinja_fail(r, STATUS_INPUT, "could not convert %s to a number", jinja_value_type(v));
    }
    return 0;
}

int jinja_rare_filesizeformat(struct jinja_run *r, struct jinja_val in, const struct jinja_args *a,
                              struct jinja_val *out)
{
    static const char units[] = "kMGTPEZY";
    struct jinja_val binary;
    char text[64];
    double bytes, base, unit;
    int i = 0, two;

    JINJA_TRY(jinja_object_bind(r, a, "filesizeformat", "binary", 0, &binary));
    JINJA_TRY(number_of(r, in, &bytes));
    two = jinja_value_truth(binary);
    base = two ? 1024 : 1000;
    if (bytes != bytes || bytes > 1e300 || bytes < -1e15) {
        return jinja_fail(r, STATUS_INPUT, "a size is out of range");
    }
    if (bytes == 1) {
        return jinja_value_copy(r, "1 Byte", 6, out);
    }
    if (bytes < base) {
        snprintf(text, sizeof text, "%lld Bytes", (long long)bytes);
    } else {
        for (unit = base * base; i < 7 && bytes >= unit; i++) {
            unit *= base;
        }
        if (base * bytes / unit > 1e15) {
            return jinja_fail(r, STATUS_INPUT, "a size is out of range");
        }
        snprintf(text, sizeof text, "%.1f %c%sB", base * bytes / unit,
                 two && i == 0 ? 'K' : units[i], two ? "i" : "");
    }
    return jinja_value_copy(r, text, strlen(text), out);
}

/* str(v) with %XX for all but letters, digits and _.-~; in a query a blank is + and / is no
 * exception.
 */
static int quote(struct jinja_run *r, struct jinja_sb *b, struct jinja_val v, int query)
{
    struct jinja_val s;
    char hex[4];

    JINJA_TRY(jinja_print_soft(r, v, &s));
    for (size_t i = 0; i < s.s->n; i++) {
        unsigned char c = (unsigned char)s.s->p[i];
        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
            (c && strchr("_.-~", c)) || (c == '/' && !query)) {
            JINJA_TRY(jinja_sb_char(r, b, (char)c));
        } else if (c == ' ' && query) {
            JINJA_TRY(jinja_sb_char(r, b, '+'));
        } else {
            snprintf(hex, sizeof hex, "%%%02X", c);
            JINJA_TRY(jinja_sb_cstr(r, b, hex));
        }
    }
    return 0;
}

static int quote_pair(struct jinja_run *r, struct jinja_sb *b, struct jinja_val k,
                      struct jinja_val v)
{
    if (b->n) {
        JINJA_TRY(jinja_sb_char(r, b, '&'));
    }
    JINJA_TRY(quote(r, b, k, 1));
    JINJA_TRY(jinja_sb_char(r, b, '='));
    return quote(r, b, v, 1);
}

int jinja_rare_urlencode(struct jinja_run *r, struct jinja_val in, const struct jinja_args *a,
                         struct jinja_val *out)
{
    struct jinja_sb b = {0};
    struct jinja_list *items, *pair;

    JINJA_TRY(jinja_object_bind(r, a, "urlencode", "", 0, NULL));
    if (in.t == JINJA_DICT) {
        for (size_t i = 0; i < in.d->n; i++) {
            JINJA_TRY(quote_pair(r, &b, in.d->e[i].k, in.d->e[i].v));
        }
    } else if (in.t == JINJA_STR || !jinja_value_iterable(in)) {
        JINJA_TRY(quote(r, &b, in, 0));
    } else {
        JINJA_TRY(jinja_value_items(r, in, &items));
        for (size_t i = 0; i < items->n; i++) {
            if (!jinja_value_iterable(items->v[i])) {
                return jinja_fail(r, STATUS_INPUT, "urlencode needs pairs");
            }
            JINJA_TRY(jinja_value_items(r, items->v[i], &pair));
            if (pair->n != 2) {
                return jinja_fail(r, STATUS_INPUT, "urlencode needs pairs");
            }
            JINJA_TRY(quote_pair(r, &b, pair->v[0], pair->v[1]));
        }
    }
    return jinja_sb_str(r, &b, out);
}

static int put_escaped(struct jinja_run *r, struct jinja_sb *b, struct jinja_val v)
{
    struct jinja_val s;

    JINJA_TRY(jinja_print_soft(r, v, &s));
    JINJA_TRY(jinja_print_escape(r, s, &s));
    return jinja_sb_add(r, b, s.s->p, s.s->n);
}

int jinja_rare_xmlattr(struct jinja_run *r, struct jinja_val in, const struct jinja_args *a,
                       struct jinja_val *out)
{
    struct jinja_sb b = {0};
    struct jinja_val space;

    JINJA_TRY(jinja_object_bind(r, a, "xmlattr", "autospace", 0, &space));
    if (in.t == JINJA_UNDEF) {
        return jinja_value_undef_error(r, in);
    }
    if (in.t != JINJA_DICT) {
        return jinja_fail(r, STATUS_INPUT, "xmlattr needs a dict, not %s", jinja_value_type(in));
    }
    for (size_t i = 0; i < in.d->n; i++) {
        struct jinja_val k = in.d->e[i].k, v = in.d->e[i].v;
        if (v.t == JINJA_NONE || v.t == JINJA_UNDEF) {
            continue;
        }
        if (k.t != JINJA_STR) {
            return jinja_fail(r, STATUS_INPUT, "the name of an attribute is not a text");
        }
        for (size_t j = 0; j < k.s->n; j++) {
            if (!k.s->p[j] || strchr(" \t\n\r\f\v/>=", k.s->p[j])) {
                return jinja_fail(r, STATUS_INPUT, "invalid character in attribute name");
            }
        }
        if (b.n || space.t == JINJA_MISSING || jinja_value_truth(space)) {
            JINJA_TRY(jinja_sb_char(r, &b, ' '));
        }
        JINJA_TRY(put_escaped(r, &b, k));
        JINJA_TRY(jinja_sb_cstr(r, &b, "=\""));
        JINJA_TRY(put_escaped(r, &b, v));
        JINJA_TRY(jinja_sb_char(r, &b, '"'));
    }
    return jinja_sb_str(r, &b, out);
}

/* str.expandtabs */
int jinja_rare_expandtabs(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                          struct jinja_val *out)
{
    struct jinja_val size;
    struct jinja_sb b = {0};
    int64_t each = 8, column = 0;

    JINJA_TRY(jinja_object_bind(r, a, "expandtabs", "tabsize", 0, &size));
    if (size.t != JINJA_MISSING) {
        if (size.t != JINJA_INT && size.t != JINJA_BOOL) {
            return jinja_fail(r, STATUS_INPUT, "expandtabs() needs an integer");
        }
        each = size.i;
    }
    if (each > JINJA_MAX_OUTPUT) {
        return jinja_fail(r, STATUS_NOMEM, "a string grows beyond %d MiB", JINJA_MAX_OUTPUT >> 20);
    }
    for (const char *p = self.s->p, *end = p + self.s->n; p < end;) {
        uint32_t cp;
        size_t w = jinja_uni_next(p, end, &cp);
        if (cp == '\t') {
            int64_t k = each > 0 ? each - column % each : 0;
            column += k;
            while (k-- > 0) {
                JINJA_TRY(jinja_sb_char(r, &b, ' '));
            }
        } else {
            column = cp == '\n' || cp == '\r' ? 0 : column + 1;
            JINJA_TRY(jinja_sb_add(r, &b, p, w));
        }
        p += w;
    }
    return jinja_sb_str(r, &b, out);
}

/* dict.fromkeys(iterable, value) */
int jinja_rare_fromkeys(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                        struct jinja_val *out)
{
    struct jinja_val v = jinja_none();
    struct jinja_list *keys;

    (void)self;
    if (a->nkw || a->npos < 1 || a->npos > 2) {
        return jinja_fail(r, STATUS_INPUT, "fromkeys expected 1 or 2 arguments");
    }
    if (a->npos == 2) {
        v = a->pos[1];
    }
    JINJA_TRY(jinja_value_items(r, a->pos[0], &keys));
    JINJA_TRY(jinja_value_dict(r, out));
    for (size_t i = 0; i < keys->n; i++) {
        JINJA_TRY(jinja_value_put(r, out->d, keys->v[i], v));
    }
    return 0;
}
