/* Owns the escaping of JSON strings. Bytes above 127 pass through as UTF-8, as Hugging Face's own
 * files have them. */
#include "model/jtext.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/status.h"

/* The bytes of the UTF-8 character at s, 0 when there is none within n bytes. */
static size_t jtext_char(const unsigned char *s, size_t n)
{
    uint32_t c;
    size_t len;

    if (s[0] < 0x80) {
        return 1;
    }
    len = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || len > n) {
        return 0;
    }
    c = s[0] & (0xffu >> (len + 1));
    for (size_t i = 1; i < len; i++) {
        if ((s[i] & 0xc0) != 0x80) {
            return 0;
        }
        c = c << 6 | (s[i] & 0x3f);
    }
    if ((len == 3 && (c < 0x800 || (c >= 0xd800 && c <= 0xdfff))) ||
        (len == 4 && (c < 0x10000 || c > 0x10ffff))) {
        return 0;
    }
    return len;
}

int jtext_utf8(const char *s, size_t n)
{
    const unsigned char *p = (const unsigned char *)s;
    while (n) {
        size_t k = jtext_char(p, n);
        if (!k) {
            return 0;
        }
        p += k;
        n -= k;
    }
    return 1;
}

static void jtext_escape(struct buf *b, unsigned char c)
{
    switch (c) {
    case '"': buf_add(b, "\\\"", 2); break;
    case '\\': buf_add(b, "\\\\", 2); break;
    case '\n': buf_add(b, "\\n", 2); break;
    case '\r': buf_add(b, "\\r", 2); break;
    case '\t': buf_add(b, "\\t", 2); break;
    default: buf_printf(b, "\\u%04x", c); break;
    }
}

/* Whether eight bytes are ASCII that a JSON string holds as it is. */
static int jtext_plain8(const char *s)
{
    const uint64_t ones = UINT64_C(0x0101010101010101), highs = ones << 7;
    uint64_t v, quote, slash;

    memcpy(&v, s, 8);
    quote = v ^ (ones * '"');
    slash = v ^ (ones * '\\');
    /* a borrow out of a byte that is small enough sets its high bit */
    return !(
        (((quote - ones) & ~quote) | ((slash - ones) & ~slash) | ((v - ones * 0x20) & ~v) | v) &
        highs);
}

int jtext_string(struct buf *b, const char *s, size_t n)
{
    size_t from = 0, i = 0;

    buf_char(b, '"');
    while (i < n) {
        unsigned char c = (unsigned char)s[i];
        if (n - i >= 8 && jtext_plain8(s + i)) {
            i += 8;
        } else if (c < 0x20 || c == '"' || c == '\\') {
            buf_add(b, s + from, i - from);
            jtext_escape(b, c);
            from = ++i;
        } else {
            size_t k = jtext_char((const unsigned char *)s + i, n - i);
            if (!k) {
                return STATUS_FORMAT;
            }
            i += k;
        }
    }
    buf_add(b, s + from, n - from);
    buf_char(b, '"');
    return STATUS_OK;
}

void jtext_real(struct buf *b, double v)
{
    char s[40];
    if (v > -1e15 && v < 1e15 && (double)(int64_t)v == v) {
        buf_printf(b, "%lld.0", (long long)v);
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(s, sizeof s, "%.*g", digits, v);
        if (strtod(s, NULL) == v) {
            break;
        }
    }
    buf_str(b, s);
    if (!strpbrk(s, ".e")) {
        buf_str(b, ".0");
    }
}
