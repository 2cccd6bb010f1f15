/* Owns the methods of str. Positions are code points, as in Python; the bytes underneath are
 * UTF-8, where searching works on bytes because no code point starts inside another. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_int.h"

enum { STR_UPPER, STR_LOWER, STR_TITLE, STR_CAPITALIZE, STR_SWAP };

static int str_arg(struct jinja_run *r, struct jinja_val v, const char *what, struct jinja_str **s)
{
    *s = v.s;
    if (v.t != JINJA_STR) {
        return jinja_fail(r, STATUS_INPUT, "%s: must be str, not %s", what, jinja_value_type(v));
    }
    return 0;
}

static int int_arg(struct jinja_run *r, struct jinja_val v, const char *what, int64_t dflt,
                   int64_t *out)
{
    *out = dflt;
    if (v.t == JINJA_MISSING) {
        return 0;
    }
    if (v.t != JINJA_INT && v.t != JINJA_BOOL) {
        return jinja_fail(r, STATUS_INPUT, "%s: '%s' object cannot be interpreted as an integer",
                          what, jinja_value_type(v));
    }
    *out = v.i;
    return 0;
}

/* ---- case ---- */

/* Greek sigma at the end of a word has a lower case of its own. */
static int final_sigma(const struct jinja_str *s, const char *p, size_t k)
{
    const char *q = p, *end = s->p + s->n;
    uint32_t cp = 0;
    int before = 0;

    while (q > s->p) {
        q -= jinja_uni_prev(s->p, q, &cp);
        if (!jinja_uni_case_ignorable(cp)) {
            before = jinja_uni_cased(cp);
            break;
        }
    }
    if (!before) {
        return 0;
    }
    for (q = p + k; q < end;) {
        q += jinja_uni_next(q, end, &cp);
        if (!jinja_uni_case_ignorable(cp)) {
            return !jinja_uni_cased(cp);
        }
    }
    return 1;
}

static int case_lower(const struct jinja_str *s, const char *p, size_t k, uint32_t cp,
                      uint32_t out[3])
{
    if (cp == 0x3a3) {
        out[0] = final_sigma(s, p, k) ? 0x3c2 : 0x3c3;
        return 1;
    }
    return jinja_uni_to_lower(cp, out);
}

int jinja_str_case(struct jinja_run *r, struct jinja_val self, int mode, struct jinja_val *out)
{
    const struct jinja_str *s = self.s;
    const char *p = s->p, *end = s->p + s->n;
    struct jinja_sb b = {0};
    int prev_cased = 0, first = 1;

    while (p < end) {
        uint32_t cp, to[3] = {0};
        size_t k = jinja_uni_next(p, end, &cp);
        int n, i;
        if (mode == STR_UPPER) {
            n = jinja_uni_to_upper(cp, to);
        } else if (mode == STR_SWAP) {
            n = jinja_uni_upper(cp)   ? case_lower(s, p, k, cp, to)
                : jinja_uni_lower(cp) ? jinja_uni_to_upper(cp, to)
                                      : (to[0] = cp, 1);
        } else if ((mode == STR_CAPITALIZE && first) || (mode == STR_TITLE && !prev_cased)) {
            n = jinja_uni_to_title(cp, to);
        } else {
            n = case_lower(s, p, k, cp, to);
        }
        for (i = 0; i < n; i++) {
            JINJA_TRY(jinja_sb_cp(r, &b, to[i]));
        }
        prev_cased = mode == STR_TITLE && jinja_uni_cased(cp);
        first = 0;
        p += k;
    }
    JINJA_TRY(jinja_sb_str(r, &b, out));
    out->s->markup = s->markup;
    return 0;
}

#define CASE_METHOD(name, mode)                                                                    \
    static int m_##name(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,    \
                        struct jinja_val *out)                                                     \
    {                                                                                              \
        JINJA_TRY(jinja_object_bind(r, a, #name, "", 0, NULL));                                    \
        return jinja_str_case(r, self, mode, out);                                                 \
    }
CASE_METHOD(upper, STR_UPPER)
CASE_METHOD(lower, STR_LOWER)
CASE_METHOD(title, STR_TITLE)
CASE_METHOD(capitalize, STR_CAPITALIZE)
CASE_METHOD(swapcase, STR_SWAP)

/* ---- strip ---- */

static int in_chars(uint32_t cp, const char *chars, size_t n)
{
    const char *end = chars + n;

    while (chars < end) {
        uint32_t c;
        chars += jinja_uni_next(chars, end, &c);
        if (c == cp) {
            return 1;
        }
    }
    return 0;
}

int jinja_str_strip(struct jinja_run *r, struct jinja_val self, const char *chars, size_t nchars,
                    int sides, struct jinja_val *out)
{
    const char *p = self.s->p, *end = p + self.s->n;
    uint32_t cp;

    while ((sides & 1) && p < end) {
        size_t k = jinja_uni_next(p, end, &cp);
        JINJA_TRY(jinja_charge(r, nchars));
        if (chars ? !in_chars(cp, chars, nchars) : !jinja_uni_space(cp)) {
            break;
        }
        p += k;
    }
    while ((sides & 2) && end > p) {
        size_t k = jinja_uni_prev(p, end, &cp);
        JINJA_TRY(jinja_charge(r, nchars));
        if (chars ? !in_chars(cp, chars, nchars) : !jinja_uni_space(cp)) {
            break;
        }
        end -= k;
    }
    if (p == self.s->p && end == p + self.s->n) {
        *out = self;
        return 0;
    }
    return jinja_value_sub(r, self.s, (size_t)(p - self.s->p), (size_t)(end - p), out);
}

static int strip_method(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                        int sides, struct jinja_val *out)
{
    struct jinja_val arg;
    struct jinja_str *chars = NULL;

    JINJA_TRY(jinja_object_bind(r, a, "strip", "chars", 0, &arg));
    if (arg.t != JINJA_MISSING && arg.t != JINJA_NONE) {
        JINJA_TRY(str_arg(r, arg, "strip", &chars));
    }
    return jinja_str_strip(r, self, chars ? chars->p : NULL, chars ? chars->n : 0, sides, out);
}

static int m_strip(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                   struct jinja_val *out)
{
    return strip_method(r, self, a, 3, out);
}

static int m_lstrip(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                    struct jinja_val *out)
{
    return strip_method(r, self, a, 1, out);
}

static int m_rstrip(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                    struct jinja_val *out)
{
    return strip_method(r, self, a, 2, out);
}

/* ---- split ---- */

/* The part of self between the byte offsets, appended to l (and put at the front by the caller for
 * rsplit). */
static int add_part(struct jinja_run *r, struct jinja_val self, size_t from, size_t to,
                    struct jinja_list *l)
{
    struct jinja_val v;
    JINJA_TRY(jinja_value_sub(r, self.s, from, to - from, &v));
    return jinja_value_append(r, l, v);
}

static int split_space(struct jinja_run *r, struct jinja_val self, int64_t max,
                       struct jinja_list *l)
{
    const char *base = self.s->p, *p = base, *end = p + self.s->n;
    uint32_t cp;

    for (;;) {
        const char *q;
        while (p < end && (q = p + jinja_uni_next(p, end, &cp), jinja_uni_space(cp))) {
            p = q;
        }
        if (p == end) {
            return 0;
        }
        if (max-- == 0) {
            return add_part(r, self, (size_t)(p - base), self.s->n, l);
        }
        q = p;
        while (q < end) {
            size_t k = jinja_uni_next(q, end, &cp);
            if (jinja_uni_space(cp)) {
                break;
            }
            q += k;
        }
        JINJA_TRY(add_part(r, self, (size_t)(p - base), (size_t)(q - base), l));
        p = q;
    }
}

static int rsplit_space(struct jinja_run *r, struct jinja_val self, int64_t max,
                        struct jinja_list *l)
{
    const char *base = self.s->p, *end = base + self.s->n;
    uint32_t cp;
    size_t k;

    for (;;) {
        const char *q;
        while (end > base && (k = jinja_uni_prev(base, end, &cp), jinja_uni_space(cp))) {
            end -= k;
        }
        if (end == base) {
            return 0;
        }
        if (max-- == 0) {
            return add_part(r, self, 0, (size_t)(end - base), l);
        }
        q = end;
        while (q > base && (k = jinja_uni_prev(base, q, &cp), !jinja_uni_space(cp))) {
            q -= k;
        }
        JINJA_TRY(add_part(r, self, (size_t)(q - base), (size_t)(end - base), l));
        end = q;
    }
}

static int split_sep(struct jinja_run *r, struct jinja_val self, const struct jinja_str *sep,
                     int64_t max, struct jinja_list *l)
{
    size_t at = 0;

    while (max-- != 0) {
        const char *hit = memmem(self.s->p + at, self.s->n - at, sep->p, sep->n);
        size_t to;
        if (!hit) {
            break;
        }
        to = (size_t)(hit - self.s->p);
        JINJA_TRY(add_part(r, self, at, to, l));
        at = to + sep->n;
    }
    return add_part(r, self, at, self.s->n, l);
}

/* What a backward search costs at worst: it compares at every position. */
static int charge_search(struct jinja_run *r, const struct jinja_str *s,
                         const struct jinja_str *what)
{
    return jinja_charge(r, s->n * (1 + what->n / 32));
}

/* The last occurrence of sep in the first n bytes, or -1. */
static int64_t rfind_bytes(const char *p, size_t n, const struct jinja_str *sep)
{
    size_t i;

    if (sep->n > n) {
        return -1;
    }
    for (i = n - sep->n + 1; i-- > 0;) {
        if (memcmp(p + i, sep->p, sep->n) == 0) {
            return (int64_t)i;
        }
    }
    return -1;
}

static int rsplit_sep(struct jinja_run *r, struct jinja_val self, const struct jinja_str *sep,
                      int64_t max, struct jinja_list *l)
{
    size_t end = self.s->n;

    JINJA_TRY(charge_search(r, self.s, sep));
    while (max-- != 0) {
        int64_t hit = rfind_bytes(self.s->p, end, sep);
        if (hit < 0) {
            break;
        }
        JINJA_TRY(add_part(r, self, (size_t)hit + sep->n, end, l));
        end = (size_t)hit;
    }
    return add_part(r, self, 0, end, l);
}

static int split_method(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                        int from_right, struct jinja_val *out)
{
    struct jinja_val arg[2];
    struct jinja_str *sep = NULL;
    int64_t max;
    size_t i;

    JINJA_TRY(jinja_object_bind(r, a, "split", "sep maxsplit", 0, arg));
    JINJA_TRY(int_arg(r, arg[1], "split", -1, &max));
    JINJA_TRY(jinja_charge(r, self.s->n));
    JINJA_TRY(jinja_value_list(r, JINJA_LIST, 0, out));
    if (arg[0].t != JINJA_MISSING && arg[0].t != JINJA_NONE) {
        JINJA_TRY(str_arg(r, arg[0], "split", &sep));
        if (!sep->n) {
            return jinja_fail(r, STATUS_INPUT, "empty separator");
        }
    }
    max = max < 0 ? -1 : max;
    if (!from_right) {
        return sep ? split_sep(r, self, sep, max, out->l) : split_space(r, self, max, out->l);
    }
    JINJA_TRY(sep ? rsplit_sep(r, self, sep, max, out->l) : rsplit_space(r, self, max, out->l));
    for (i = 0; i < out->l->n / 2; i++) {
        struct jinja_val t = out->l->v[i];
        out->l->v[i] = out->l->v[out->l->n - 1 - i];
        out->l->v[out->l->n - 1 - i] = t;
    }
    return 0;
}

static int m_split(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                   struct jinja_val *out)
{
    return split_method(r, self, a, 0, out);
}

static int m_rsplit(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                    struct jinja_val *out)
{
    return split_method(r, self, a, 1, out);
}

int jinja_str_splitlines(struct jinja_run *r, struct jinja_val self, int keep,
                         struct jinja_val *out)
{
    const char *base = self.s->p, *p = base, *line = base, *end = base + self.s->n;

    JINJA_TRY(jinja_value_list(r, JINJA_LIST, 0, out));
    JINJA_TRY(jinja_charge(r, self.s->n));
    while (p < end) {
        uint32_t cp;
        size_t k = jinja_uni_next(p, end, &cp);
        if (!jinja_uni_linebreak(cp)) {
            p += k;
            continue;
        }
        k += cp == '\r' && p + 1 < end && p[1] == '\n';
        JINJA_TRY(
            add_part(r, self, (size_t)(line - base), (size_t)(p - base) + (keep ? k : 0), out->l));
        p += k;
        line = p;
    }
    return line < end ? add_part(r, self, (size_t)(line - base), self.s->n, out->l) : 0;
}

static int m_splitlines(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                        struct jinja_val *out)
{
    struct jinja_val keep;
    JINJA_TRY(jinja_object_bind(r, a, "splitlines", "keepends", 0, &keep));
    return jinja_str_splitlines(r, self, jinja_value_truth(keep), out);
}

static int partition(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                     int from_right, struct jinja_val *out)
{
    struct jinja_val arg;
    struct jinja_str *sep;
    const char *hit;
    int64_t at;
    size_t n = self.s->n, from, to;

    JINJA_TRY(jinja_object_bind(r, a, "partition", "sep", 1, &arg));
    JINJA_TRY(str_arg(r, arg, "partition", &sep));
    if (!sep->n) {
        return jinja_fail(r, STATUS_INPUT, "empty separator");
    }
    JINJA_TRY(charge_search(r, self.s, sep));
    hit = memmem(self.s->p, n, sep->p, sep->n);
    at = from_right ? rfind_bytes(self.s->p, n, sep) : hit ? hit - self.s->p : -1;
    from = at >= 0 ? (size_t)at : from_right ? 0 : n;
    to = at >= 0 ? (size_t)at + sep->n : from;
    JINJA_TRY(jinja_value_list(r, JINJA_TUPLE, 3, out));
    JINJA_TRY(jinja_value_sub(r, self.s, 0, from, &out->l->v[0]));
    JINJA_TRY(jinja_value_sub(r, self.s, from, to - from, &out->l->v[1]));
    return jinja_value_sub(r, self.s, to, n - to, &out->l->v[2]);
}

static int m_partition(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                       struct jinja_val *out)
{
    return partition(r, self, a, 0, out);
}

static int m_rpartition(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                        struct jinja_val *out)
{
    return partition(r, self, a, 1, out);
}

/* ---- search ---- */

/* self[start:end] of find, count, startswith and the like, in bytes; *base is its first code point
 * position. -1 in *ok when start lies behind the end. */
static int window(struct jinja_run *r, struct jinja_val self, const struct jinja_val *arg,
                  struct jinja_val *sub, int64_t *base, int *ok)
{
    int64_t n, start = 0;

    *ok = 1;
    *base = 0;
    *sub = self;
    if (arg[0].t == JINJA_MISSING && arg[1].t == JINJA_MISSING) {
        return 0;
    }
    JINJA_TRY(jinja_value_len(r, self, &n));
    if (arg[0].t == JINJA_INT || arg[0].t == JINJA_BOOL) {
        start = arg[0].i < 0 ? (arg[0].i < -n ? 0 : arg[0].i + n) : arg[0].i;
    }
    *ok = start <= n;
    *base = start;
    return jinja_value_slice(r, self, arg[0], arg[1], jinja_missing(), sub);
}

static int find_method(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                       int from_right, int must, struct jinja_val *out)
{
    struct jinja_val arg[3], sub;
    struct jinja_str *what;
    int64_t base, at;
    const char *hit;
    int ok;

    JINJA_TRY(jinja_object_bind(r, a, "find", "sub start end", 1, arg));
    JINJA_TRY(str_arg(r, arg[0], "find", &what));
    JINJA_TRY(window(r, self, arg + 1, &sub, &base, &ok));
    JINJA_TRY(charge_search(r, self.s, what));
    hit = memmem(sub.s->p, sub.s->n, what->p, what->n);
    at = from_right ? rfind_bytes(sub.s->p, sub.s->n, what) : hit ? hit - sub.s->p : -1;
    if (at < 0 || !ok) {
        if (must) {
            return jinja_fail(r, STATUS_INPUT, "substring not found");
        }
        *out = jinja_int(-1);
        return 0;
    }
    *out = jinja_int(base + (int64_t)jinja_uni_count(sub.s->p, (size_t)at));
    return 0;
}

static int m_find(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                  struct jinja_val *out)
{
    return find_method(r, self, a, 0, 0, out);
}

static int m_rfind(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                   struct jinja_val *out)
{
    return find_method(r, self, a, 1, 0, out);
}

static int m_index(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                   struct jinja_val *out)
{
    return find_method(r, self, a, 0, 1, out);
}

static int m_rindex(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                    struct jinja_val *out)
{
    return find_method(r, self, a, 1, 1, out);
}

static int m_count(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                   struct jinja_val *out)
{
    struct jinja_val arg[3], sub;
    struct jinja_str *what;
    int64_t base, n = 0;
    const char *p, *end;
    int ok;

    JINJA_TRY(jinja_object_bind(r, a, "count", "sub start end", 1, arg));
    JINJA_TRY(str_arg(r, arg[0], "count", &what));
    JINJA_TRY(window(r, self, arg + 1, &sub, &base, &ok));
    JINJA_TRY(jinja_charge(r, self.s->n));
    if (!what->n) {
        *out = jinja_int(ok ? jinja_value_ncp(sub.s) + 1 : 0);
        return 0;
    }
    p = sub.s->p;
    end = p + sub.s->n;
    while ((p = memmem(p, (size_t)(end - p), what->p, what->n))) {
        n++;
        p += what->n;
    }
    *out = jinja_int(n);
    return 0;
}

static int ends_match(const struct jinja_str *s, const struct jinja_str *with, int at_end)
{
    return with->n <= s->n && memcmp(s->p + (at_end ? s->n - with->n : 0), with->p, with->n) == 0;
}

static int affix_method(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                        int at_end, struct jinja_val *out)
{
    struct jinja_val arg[3], sub;
    struct jinja_str *with;
    int64_t base;
    size_t i;
    int ok, yes = 0;

    JINJA_TRY(
        jinja_object_bind(r, a, at_end ? "endswith" : "startswith", "prefix start end", 1, arg));
    JINJA_TRY(window(r, self, arg + 1, &sub, &base, &ok));
    if (arg[0].t == JINJA_TUPLE) {
        for (i = 0; i < arg[0].l->n; i++) {
            JINJA_TRY(str_arg(r, arg[0].l->v[i], "startswith", &with));
            yes |= ends_match(sub.s, with, at_end);
        }
    } else {
        JINJA_TRY(str_arg(r, arg[0], at_end ? "endswith" : "startswith", &with));
        yes = ends_match(sub.s, with, at_end);
    }
    *out = jinja_bool(yes && ok);
    return 0;
}

static int m_startswith(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                        struct jinja_val *out)
{
    return affix_method(r, self, a, 0, out);
}

static int m_endswith(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                      struct jinja_val *out)
{
    return affix_method(r, self, a, 1, out);
}

static int remove_affix(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                        int at_end, struct jinja_val *out)
{
    struct jinja_val arg;
    struct jinja_str *with;

    JINJA_TRY(jinja_object_bind(r, a, "removeprefix", "prefix", 1, &arg));
    JINJA_TRY(str_arg(r, arg, "removeprefix", &with));
    *out = self;
    if (!ends_match(self.s, with, at_end)) {
        return 0;
    }
    return jinja_value_sub(r, self.s, at_end ? 0 : with->n, self.s->n - with->n, out);
}

static int m_removeprefix(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                          struct jinja_val *out)
{
    return remove_affix(r, self, a, 0, out);
}

static int m_removesuffix(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                          struct jinja_val *out)
{
    return remove_affix(r, self, a, 1, out);
}

/* ---- building ---- */

int jinja_str_replace(struct jinja_run *r, struct jinja_str *s, struct jinja_str *from,
                      struct jinja_str *to, int64_t count, struct jinja_val *out)
{
    struct jinja_sb b = {0};
    const char *p = s->p, *end = s->p + s->n;

    JINJA_TRY(jinja_charge(r, s->n));
    while (count != 0) {
        const char *hit = from->n ? memmem(p, (size_t)(end - p), from->p, from->n) : p;
        uint32_t cp;
        if (!hit) {
            break;
        }
        count--;
        JINJA_TRY(jinja_sb_add(r, &b, p, (size_t)(hit - p)));
        JINJA_TRY(jinja_sb_add(r, &b, to->p, to->n));
        p = hit + from->n;
        if (!from->n) { /* an empty pattern matches between all characters */
            size_t k;
            if (p == end) {
                break;
            }
            k = jinja_uni_next(p, end, &cp);
            JINJA_TRY(jinja_sb_add(r, &b, p, k));
            p += k;
        }
    }
    JINJA_TRY(jinja_sb_add(r, &b, p, (size_t)(end - p)));
    return jinja_sb_str(r, &b, out);
}

static int m_replace(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                     struct jinja_val *out)
{
    struct jinja_val arg[3];
    struct jinja_str *from, *to;
    int64_t count;

    JINJA_TRY(jinja_object_bind(r, a, "replace", "old new count", 2, arg));
    JINJA_TRY(str_arg(r, arg[0], "replace", &from));
    JINJA_TRY(str_arg(r, arg[1], "replace", &to));
    JINJA_TRY(int_arg(r, arg[2], "replace", -1, &count));
    if (self.s->markup) {
        JINJA_TRY(jinja_print_escape(r, arg[1], &arg[1]));
        to = arg[1].s;
    }
    JINJA_TRY(jinja_str_replace(r, self.s, from, to, count, out));
    out->s->markup = self.s->markup;
    return 0;
}

static int m_join(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                  struct jinja_val *out)
{
    struct jinja_sb b = {0};
    struct jinja_list *items;
    struct jinja_val arg;
    size_t i;

    JINJA_TRY(jinja_object_bind(r, a, "join", "iterable", 1, &arg));
    JINJA_TRY(jinja_value_items(r, arg, &items));
    for (i = 0; i < items->n; i++) {
        struct jinja_val v = items->v[i];
        if (self.s->markup) {
            JINJA_TRY(jinja_print_escape(r, v, &v));
        } else if (v.t != JINJA_STR) {
            return jinja_fail(r, STATUS_INPUT, "sequence item %zu: expected str instance, %s found",
                              i, jinja_value_type(v));
        }
        if (i) {
            JINJA_TRY(jinja_sb_add(r, &b, self.s->p, self.s->n));
        }
        JINJA_TRY(jinja_sb_add(r, &b, v.s->p, v.s->n));
    }
    JINJA_TRY(jinja_sb_str(r, &b, out));
    out->s->markup = self.s->markup;
    return 0;
}

/* ljust, rjust, center, zfill: `left` and `right` pads of one character. */
static int pad(struct jinja_run *r, struct jinja_val self, int64_t left, int64_t right,
               const char *fill, size_t nfill, struct jinja_val *out)
{
    struct jinja_sb b = {0};

    if (left > JINJA_MAX_OUTPUT || right > JINJA_MAX_OUTPUT) {
        return jinja_fail(r, STATUS_NOMEM, "a string grows beyond %d MiB", JINJA_MAX_OUTPUT >> 20);
    }
    while (left-- > 0) {
        JINJA_TRY(jinja_sb_add(r, &b, fill, nfill));
    }
    JINJA_TRY(jinja_sb_add(r, &b, self.s->p, self.s->n));
    while (right-- > 0) {
        JINJA_TRY(jinja_sb_add(r, &b, fill, nfill));
    }
    JINJA_TRY(jinja_sb_str(r, &b, out));
    out->s->markup = self.s->markup;
    return 0;
}

static int pad_method(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                      int how, struct jinja_val *out)
{
    struct jinja_val arg[2];
    struct jinja_str *fill = NULL;
    int64_t width, n, left;

    JINJA_TRY(jinja_object_bind(r, a, "center", "width fillchar", 1, arg));
    JINJA_TRY(int_arg(r, arg[0], "center", 0, &width));
    if (arg[1].t != JINJA_MISSING) {
        JINJA_TRY(str_arg(r, arg[1], "center", &fill));
        if (jinja_value_ncp(fill) != 1) {
            return jinja_fail(r, STATUS_INPUT, "the fill character must be one character");
        }
    }
    n = jinja_value_ncp(self.s);
    n = width > n ? width - n : 0;
    left = how == 'l' ? 0 : how == 'r' ? n : n / 2 + (n & width & 1);
    return pad(r, self, left, n - left, fill ? fill->p : " ", fill ? fill->n : 1, out);
}

static int m_ljust(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                   struct jinja_val *out)
{
    return pad_method(r, self, a, 'l', out);
}

static int m_rjust(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                   struct jinja_val *out)
{
    return pad_method(r, self, a, 'r', out);
}

static int m_center(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                    struct jinja_val *out)
{
    return pad_method(r, self, a, 'c', out);
}

static int m_zfill(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                   struct jinja_val *out)
{
    struct jinja_val arg, rest;
    struct jinja_sb b = {0};
    int64_t width;
    int sign = self.s->n && (self.s->p[0] == '-' || self.s->p[0] == '+');

    JINJA_TRY(jinja_object_bind(r, a, "zfill", "width", 1, &arg));
    JINJA_TRY(int_arg(r, arg, "zfill", 0, &width));
    JINJA_TRY(jinja_value_sub(r, self.s, (size_t)sign, self.s->n - (size_t)sign, &rest));
    JINJA_TRY(jinja_sb_add(r, &b, self.s->p, (size_t)sign));
    width -= jinja_value_ncp(self.s);
    JINJA_TRY(pad(r, rest, width, 0, "0", 1, &rest));
    JINJA_TRY(jinja_sb_add(r, &b, rest.s->p, rest.s->n));
    return jinja_sb_str(r, &b, out);
}

/* ---- is... ---- */

/* Every code point passes, and there is at least one. */
static int all_of(const struct jinja_str *s, int (*fn)(uint32_t))
{
    const char *p = s->p, *end = s->p + s->n;

    while (p < end) {
        uint32_t cp;
        p += jinja_uni_next(p, end, &cp);
        if (!fn(cp)) {
            return 0;
        }
    }
    return s->n > 0;
}

/* islower, isupper: a cased code point, and none of the other case. */
static int case_is(const struct jinja_str *s, int upper)
{
    const char *p = s->p, *end = s->p + s->n;
    int any = 0;

    while (p < end) {
        uint32_t cp;
        p += jinja_uni_next(p, end, &cp);
        if (jinja_uni_title(cp) || (upper ? jinja_uni_lower(cp) : jinja_uni_upper(cp))) {
            return 0;
        }
        any |= upper ? jinja_uni_upper(cp) : jinja_uni_lower(cp);
    }
    return any;
}

static int title_is(const struct jinja_str *s)
{
    const char *p = s->p, *end = s->p + s->n;
    int any = 0, prev = 0;

    while (p < end) {
        uint32_t cp;
        p += jinja_uni_next(p, end, &cp);
        if (jinja_uni_upper(cp) || jinja_uni_title(cp)) {
            if (prev) {
                return 0;
            }
            prev = any = 1;
        } else if (jinja_uni_lower(cp)) {
            if (!prev) {
                return 0;
            }
            any = 1;
        } else {
            prev = 0;
        }
    }
    return any;
}

static int is_alnum(uint32_t cp)
{
    return jinja_uni_alpha(cp) || jinja_uni_numeric(cp) || jinja_uni_digit(cp);
}

static int is_ascii(uint32_t cp)
{
    return cp < 0x80;
}

static int is_ident(uint32_t cp)
{
    return cp == '_' || jinja_uni_alpha(cp) || jinja_uni_decimal(cp);
}

#define IS_METHOD(name, expr)                                                                      \
    static int m_##name(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,    \
                        struct jinja_val *out)                                                     \
    {                                                                                              \
        const struct jinja_str *s = self.s;                                                        \
        JINJA_TRY(jinja_object_bind(r, a, #name, "", 0, NULL));                                    \
        *out = jinja_bool(expr);                                                                   \
        return jinja_charge(r, s->n);                                                              \
    }
IS_METHOD(isdigit, all_of(s, jinja_uni_digit))
IS_METHOD(isdecimal, all_of(s, jinja_uni_decimal))
IS_METHOD(isnumeric, all_of(s, jinja_uni_numeric))
IS_METHOD(isalpha, all_of(s, jinja_uni_alpha))
IS_METHOD(isalnum, all_of(s, is_alnum))
IS_METHOD(isspace, all_of(s, jinja_uni_space))
IS_METHOD(isascii, s->n == 0 || all_of(s, is_ascii))
IS_METHOD(isprintable, s->n == 0 || all_of(s, jinja_uni_printable))
IS_METHOD(isidentifier, all_of(s, is_ident) && !(s->p[0] >= '0' && s->p[0] <= '9'))
IS_METHOD(islower, case_is(s, 0))
IS_METHOD(isupper, case_is(s, 1))
IS_METHOD(istitle, title_is(s))

static const struct jinja_method_def str_methods[] = {
    {"strip", m_strip, 0},
    {"lstrip", m_lstrip, 0},
    {"rstrip", m_rstrip, 0},
    {"split", m_split, 0},
    {"rsplit", m_rsplit, 0},
    {"splitlines", m_splitlines, 0},
    {"partition", m_partition, 0},
    {"rpartition", m_rpartition, 0},
    {"startswith", m_startswith, 0},
    {"endswith", m_endswith, 0},
    {"removeprefix", m_removeprefix, 0},
    {"removesuffix", m_removesuffix, 0},
    {"replace", m_replace, 0},
    {"join", m_join, 0},
    {"format", jinja_format_method, 0},
    {"format_map", jinja_format_map_method, 0},
    {"upper", m_upper, 0},
    {"lower", m_lower, 0},
    {"casefold", m_lower, 0},
    {"title", m_title, 0},
    {"capitalize", m_capitalize, 0},
    {"swapcase", m_swapcase, 0},
    {"find", m_find, 0},
    {"rfind", m_rfind, 0},
    {"index", m_index, 0},
    {"rindex", m_rindex, 0},
    {"count", m_count, 0},
    {"ljust", m_ljust, 0},
    {"rjust", m_rjust, 0},
    {"center", m_center, 0},
    {"zfill", m_zfill, 0},
    {"isdigit", m_isdigit, 0},
    {"isdecimal", m_isdecimal, 0},
    {"isnumeric", m_isnumeric, 0},
    {"isalpha", m_isalpha, 0},
    {"isalnum", m_isalnum, 0},
    {"isspace", m_isspace, 0},
    {"isascii", m_isascii, 0},
    {"isprintable", m_isprintable, 0},
    {"isidentifier", m_isidentifier, 0},
    {"islower", m_islower, 0},
    {"isupper", m_isupper, 0},
    {"istitle", m_istitle, 0},
    {"encode", NULL, 0},
    {"expandtabs", jinja_rare_expandtabs, 0},
    {"maketrans", NULL, 0},
    {"translate", NULL, 0},
};

const struct jinja_method_def *jinja_str_method(const char *p, size_t n)
{
    size_t i;

    for (i = 0; i < sizeof str_methods / sizeof *str_methods; i++) {
        if (strlen(str_methods[i].name) == n && memcmp(str_methods[i].name, p, n) == 0) {
            return &str_methods[i];
        }
    }
    return NULL;
}

/* ---- numbers in text ---- */

static void trim_bytes(const char **p, const char **end)
{
    uint32_t cp;
    size_t k;

    while (*p < *end && (k = jinja_uni_next(*p, *end, &cp), jinja_uni_space(cp))) {
        *p += k;
    }
    while (*end > *p && (k = jinja_uni_prev(*p, *end, &cp), jinja_uni_space(cp))) {
        *end -= k;
    }
}

/* Copies without the underscores Python allows between digits; 0 when malformed or too long. */
static int plain_number(const char *p, const char *end, char *out, size_t cap)
{
    size_t n = 0;
    char prev = 0;

    for (; p < end; p++) {
        if (*p == '_') {
            if (!prev || prev == '_' || p + 1 == end || prev == '+' || prev == '-') {
                return 0;
            }
        } else if (n + 1 >= cap || *p == 0) {
            return 0;
        } else {
            out[n++] = *p;
        }
        prev = *p;
    }
    out[n] = 0;
    return n > 0;
}

int jinja_str_parse_int(const char *p, size_t n, int base, int64_t *v)
{
    const char *end = p + n;
    char text[80], *stop, *q = text;
    long long x;

    trim_bytes(&p, &end);
    if (!plain_number(p, end, text, sizeof text)) {
        return 0;
    }
    q += *q == '+' || *q == '-';
    if (!((*q >= '0' && *q <= '9') || ((*q | 32) >= 'a' && (*q | 32) <= 'z'))) {
        return 0;
    }
    if (q[0] == '0' && ((q[1] | 32) == 'o' || (q[1] | 32) == 'b') &&
        (base == 0 || base == ((q[1] | 32) == 'o' ? 8 : 2))) {
        base = (q[1] | 32) == 'o' ? 8 : 2;
        memmove(q, q + 2, strlen(q + 2) + 1);
    }
    errno = 0;
    x = strtoll(text, &stop, base);
    if (stop == text || *stop) {
        return 0;
    }
    *v = x;
    return errno ? -1 : 1;
}

int jinja_str_parse_float(const char *p, size_t n, double *v)
{
    const char *end = p + n;
    char text[400], *stop;

    trim_bytes(&p, &end);
    if (!plain_number(p, end, text, sizeof text) || strpbrk(text, "xXpP(")) {
        return 0;
    }
    *v = strtod(text, &stop);
    return *stop == 0;
}
