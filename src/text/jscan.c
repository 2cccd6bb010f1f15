/* Owns reading of JSON without a tree. jansson takes 50 ms for a 49,000-token vocabulary, most of
 * it in the hash table and in small allocations; reading the same text in place takes a tenth, and
 * the vocabulary is on the way to the first token. */
#include "text/jscan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "text/unicode.h"

#define STRING_MAX (1u << 20)
#define DEPTH_MAX  512

void jscan_init(struct jscan *s, const char *text, size_t len)
{
    memset(s, 0, sizeof *s);
    s->start = s->p = text;
    s->end = text + len;
    buf_init(&s->tmp, STRING_MAX);
}

void jscan_fini(struct jscan *s)
{
    buf_fini(&s->tmp);
}

int jscan_fail(struct jscan *s, const char *what)
{
    if (!s->bad) {
        s->bad = what;
    }
    return 0;
}

int jscan_peek(struct jscan *s)
{
    if (s->bad) {
        return 0;
    }
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\n' || *s->p == '\t' || *s->p == '\r')) {
        s->p++;
    }
    return s->p < s->end ? (unsigned char)*s->p : 0;
}

int jscan_open(struct jscan *s, int bracket)
{
    if (jscan_peek(s) != bracket) {
        return jscan_fail(s, bracket == '{' ? "an object was expected" : "an array was expected");
    }
    s->p++;
    s->fresh = 1;
    return 1;
}

int jscan_more(struct jscan *s, int closing)
{
    int c = jscan_peek(s);

    if (c == closing && c) {
        s->p++;
        s->fresh = 0;
        return 0;
    }
    if (!s->fresh) {
        if (c != ',') {
            return jscan_fail(s, "a comma was expected");
        }
        s->p++;
        c = jscan_peek(s);
    }
    s->fresh = 0;
    if (c == 0 || c == closing) {
        return jscan_fail(s, "an item was expected");
    }
    return 1;
}

int jscan_colon(struct jscan *s)
{
    if (jscan_peek(s) != ':') {
        return jscan_fail(s, "a colon was expected");
    }
    s->p++;
    return 1;
}

static int hex4(const char *p, const char *end, uint32_t *v)
{
    int i;

    *v = 0;
    if (end - p < 4) {
        return 0;
    }
    for (i = 0; i < 4; i++) {
        int c = (unsigned char)p[i];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0) {
            return 0;
        }
        *v = *v << 4 | (uint32_t)d;
    }
    return 1;
}

/* \uXXXX, with the second half of a surrogate pair; s->p is after the u. */
static int escape_unicode(struct jscan *s)
{
    uint32_t hi, lo;
    char out[4];

    if (!hex4(s->p, s->end, &hi)) {
        return jscan_fail(s, "a \\u escape without four hex digits");
    }
    s->p += 4;
    if (hi >= 0xD800 && hi < 0xE000) {
        if (hi >= 0xDC00 || s->end - s->p < 6 || s->p[0] != '\\' || s->p[1] != 'u' ||
            !hex4(s->p + 2, s->end, &lo) || lo < 0xDC00 || lo >= 0xE000) {
            return jscan_fail(s, "a lone surrogate");
        }
        s->p += 6;
        hi = 0x10000 + ((hi - 0xD800) << 10) + (lo - 0xDC00);
    }
    buf_add(&s->tmp, out, unicode_put(hi, out));
    return 1;
}

/* The rest of a string with escapes, into s->tmp; s->p is inside it. */
static int string_slow(struct jscan *s)
{
    static const char from[] = "\"\\/bfnrt";
    static const char to[] = "\"\\/\b\f\n\r\t";

    for (;;) {
        const char *q = s->p;
        const char *f;
        while (q < s->end && *q != '"' && *q != '\\' && (unsigned char)*q >= 0x20) {
            q++;
        }
        buf_add(&s->tmp, s->p, (size_t)(q - s->p));
        s->p = q;
        if (q >= s->end || (unsigned char)*q < 0x20) {
            return jscan_fail(s, "a string without an end");
        }
        s->p++;
        if (*q == '"') {
            return buf_status(&s->tmp) ? jscan_fail(s, "a string that is too long") : 1;
        }
        if (s->p >= s->end || *s->p == 0) {
            return jscan_fail(s, "a string without an end");
        }
        f = strchr(from, *s->p);
        if (f) {
            buf_char(&s->tmp, to[f - from]);
            s->p++;
        } else if (*s->p == 'u') {
            s->p++;
            if (!escape_unicode(s)) {
                return 0;
            }
        } else {
            return jscan_fail(s, "an unknown escape");
        }
    }
}

int jscan_string(struct jscan *s, const char **v, size_t *n)
{
    const char *q;
    unsigned high = 0;

    if (jscan_peek(s) != '"') {
        return jscan_fail(s, "a string was expected");
    }
    q = ++s->p;
    while (q < s->end && *q != '"' && *q != '\\' && (unsigned char)*q >= 0x20) {
        high |= (unsigned char)*q;
        q++;
    }
    if (q < s->end && *q == '"') {
        *v = s->p;
        *n = (size_t)(q - s->p);
        s->p = q + 1;
        if (*n > STRING_MAX) {
            return jscan_fail(s, "a string that is too long");
        }
        if (high < 0x80) {
            return 1;
        }
    } else {
        buf_clear(&s->tmp);
        if (!string_slow(s)) {
            return 0;
        }
        *v = s->tmp.data;
        *n = s->tmp.len;
    }
    if (unicode_valid_prefix(*v, *n) < *n) {
        return jscan_fail(s, "a string that is not utf-8");
    }
    return 1;
}

int jscan_int(struct jscan *s, int64_t *v)
{
    int neg = jscan_peek(s) == '-';
    int64_t x = 0;
    int digits = 0;

    if (neg) {
        s->p++;
    }
    while (!s->bad && s->p < s->end && *s->p >= '0' && *s->p <= '9') {
        if (++digits > 18) {
            return jscan_fail(s, "a number that is too large");
        }
        x = x * 10 + (*s->p++ - '0');
    }
    if (!digits || (s->p < s->end && (*s->p == '.' || *s->p == 'e' || *s->p == 'E'))) {
        return jscan_fail(s, "a whole number was expected");
    }
    *v = neg ? -x : x;
    return 1;
}

/* A plain decimal such as -1.25 in place: its digits as a whole number below 2^53 and a power of
 * ten up to 22 are exact doubles, so that one division rounds as strtod does. 0: it is not that
 * plain, and nothing was read. */
static int number_plain(struct jscan *s, double *v)
{
    static const double tens[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                  1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                  1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    const char *p = s->p, *begin, *point = NULL;
    int neg = p < s->end && *p == '-';
    uint64_t m = 0;

    begin = p += neg;
    for (; p < s->end && ((*p >= '0' && *p <= '9') || (*p == '.' && !point)); p++) {
        if (*p == '.') {
            point = p;
        } else if (m >= ((uint64_t)1 << 53) / 10 || p - begin > 22) {
            return 0;
        } else {
            m = m * 10 + (uint64_t)(*p - '0');
        }
    }
    if (p == begin || point == begin || (point && p == point + 1) ||
        (p < s->end && (*p == 'e' || *p == 'E' || *p == '.' || *p == '+' || *p == '-'))) {
        return 0;
    }
    *v = (double)m / tens[point ? p - point - 1 : 0];
    *v = neg ? -*v : *v;
    s->p = p;
    return 1;
}

int jscan_number(struct jscan *s, double *v)
{
    char text[64];
    int c = jscan_peek(s);
    size_t n = 0;
    char *end;

    if (!s->bad && number_plain(s, v)) {
        return 1;
    }
    while (!s->bad && s->p + n < s->end && n + 1 < sizeof text && s->p[n] &&
           strchr("+-.0123456789eE", s->p[n])) {
        text[n] = s->p[n];
        n++;
    }
    text[n] = 0;
    *v = strtod(text, &end);
    if (!(c == '-' || (c >= '0' && c <= '9')) || *end || !isfinite(*v)) {
        return jscan_fail(s, "a number was expected");
    }
    s->p += n;
    return 1;
}

/* Moves past a string without reading it; s->p is at the opening quote. */
static int skip_string(struct jscan *s)
{
    const char *q = s->p + 1;

    while (q < s->end && *q != '"') {
        q += *q == '\\' ? 2 : 1;
    }
    if (q >= s->end) {
        return jscan_fail(s, "a string without an end");
    }
    s->p = q + 1;
    return 1;
}

/* 1: a number, true, false or null ends before it. */
static int ends_word(char c)
{
    switch (c) {
    case ',':
    case ']':
    case '}':
    case ':':
    case '[':
    case '{':
    case '"':
    case ' ':
    case '\n':
    case '\t':
    case '\r':
    case 0: return 1;
    default: return 0;
    }
}

int jscan_skip(struct jscan *s)
{
    int depth = 0;

    do {
        int c = jscan_peek(s);
        if (c == '"') {
            if (!skip_string(s)) {
                return 0;
            }
        } else if (c == '{' || c == '[') {
            s->p++;
            if (++depth > DEPTH_MAX) {
                return jscan_fail(s, "brackets nested too deep");
            }
        } else if (c == '}' || c == ']') {
            if (depth == 0) {
                return jscan_fail(s, "a value was expected");
            }
            s->p++;
            depth--;
        } else if (c == ',' || c == ':') {
            if (depth == 0) {
                return jscan_fail(s, "a value was expected");
            }
            s->p++;
        } else if (c == 0) {
            return jscan_fail(s, "the text ends inside a value");
        } else {
            while (s->p < s->end && !ends_word(*s->p)) {
                s->p++;
            }
        }
    } while (depth > 0);
    s->fresh = 0;
    return 1;
}
