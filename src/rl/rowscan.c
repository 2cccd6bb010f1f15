/* Owns the fast look at JSON rows. Ten million rows are checked at open, so that a bad line stops a
 * run before its first token; the parser would take minutes for that. The rules here are narrower
 * than JSON's (few digits, little nesting, no surrogates): whatever falls outside is parsed. */
#include "rl/rowscan.h"

#include <stdint.h>
#include <string.h>

#define MAX_DEPTH  64
#define MAX_NUMBER 18 /* digits of a number that surely fits */

#define ONES  UINT64_C(0x0101010101010101)
#define HIGHS UINT64_C(0x8080808080808080)

/* High bit set in every byte of v that is zero, and perhaps in bytes after such a one. */
#define ZEROS(v) (((v)-ONES) & ~(v)&HIGHS)

void rowscan_keys(struct rowscan_keys *k, const char *input, const char *label,
                  const char *metadata, const char *tools)
{
    const char *key[ROWSCAN_NKEYS] = {input, label, metadata, tools};
    for (int i = 0; i < ROWSCAN_NKEYS; i++) {
        k->key[i] = key[i];
        k->len[i] = key[i] ? strlen(key[i]) : 0;
    }
}

int rowscan_blank(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (p[i] != ' ' && (p[i] < '\t' || p[i] > '\r')) {
            return 0;
        }
    }
    return 1;
}

static const char *skip_space(const char *p, const char *end)
{
    while (p < end && (*p == ' ' || *p == '\t' || *p == '\n' || *p == '\r')) {
        p++;
    }
    return p;
}

/* The first byte from p on that is not plain text of a string: a quote, a backslash, a control
 * character or the start of a character beyond ASCII. */
static const char *plain_text(const char *p, const char *end)
{
    while (end - p >= 8) {
        uint64_t v, bad;
        memcpy(&v, p, 8);
        bad = ZEROS(v ^ (ONES * '"')) | ZEROS(v ^ (ONES * '\\')) |
              ((v - ONES * 0x20) & ~v & HIGHS) | (v & HIGHS);
        if (bad) {
            break; /* one of the eight, found below */
        }
        p += 8;
    }
    while (p < end && (unsigned char)*p >= 0x20 && (unsigned char)*p < 0x80 && *p != '"' &&
           *p != '\\') {
        p++;
    }
    return p;
}

/* Bytes of the UTF-8 character at p, 0 when it is none. */
static int utf8_char(const unsigned char *p, const unsigned char *end)
{
    unsigned lo = 0x80, hi = 0xbf;
    int n;

    if (p[0] >= 0xc2 && p[0] <= 0xdf) {
        n = 2;
    } else if (p[0] >= 0xe0 && p[0] <= 0xef) {
        n = 3;
        lo = p[0] == 0xe0 ? 0xa0 : lo;
        hi = p[0] == 0xed ? 0x9f : hi;
    } else if (p[0] >= 0xf0 && p[0] <= 0xf4) {
        n = 4;
        lo = p[0] == 0xf0 ? 0x90 : lo;
        hi = p[0] == 0xf4 ? 0x8f : hi;
    } else {
        return 0;
    }
    if (end - p < n || p[1] < lo || p[1] > hi) {
        return 0;
    }
    for (int i = 2; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    return n;
}

static int hex4(const char *p, unsigned *out)
{
    unsigned v = 0;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        unsigned d;
        if (c >= '0' && c <= '9') {
            d = (unsigned)(c - '0');
        } else if (c >= 'a' && c <= 'f') {
            d = (unsigned)(c - 'a' + 10);
        } else if (c >= 'A' && c <= 'F') {
            d = (unsigned)(c - 'A' + 10);
        } else {
            return 0;
        }
        v = v << 4 | d;
    }
    *out = v;
    return 1;
}

/* p is behind the opening quote; returns what is behind the closing one, or NULL. *escaped is set
 * when the text is not written as it reads. */
static const char *scan_string(const char *p, const char *end, int *escaped)
{
    for (;;) {
        p = plain_text(p, end);
        if (p == end) {
            return NULL;
        }
        if (*p == '"') {
            return p + 1;
        }
        if (*p == '\\') {
            unsigned u;
            *escaped = 1;
            if (end - p < 2) {
                return NULL;
            }
            if (p[1] == 'u') {
                if (end - p < 6 || !hex4(p + 2, &u) || u == 0 || (u >= 0xd800 && u < 0xe000)) {
                    return NULL;
                }
                p += 6;
            } else if (strchr("\"\\/bfnrt", p[1]) && p[1]) {
                p += 2;
            } else {
                return NULL;
            }
        } else {
            int n = utf8_char((const unsigned char *)p, (const unsigned char *)end);
            if (!n) {
                return NULL;
            }
            p += n;
        }
    }
}

static const char *scan_digits(const char *p, const char *end)
{
    while (p < end && *p >= '0' && *p <= '9') {
        p++;
    }
    return p;
}

static const char *scan_number(const char *p, const char *end)
{
    const char *from;

    p += *p == '-';
    from = p;
    p = scan_digits(p, end);
    if (p == from || p - from > MAX_NUMBER || (*from == '0' && p - from > 1)) {
        return NULL;
    }
    if (p < end && *p == '.') {
        from = ++p;
        p = scan_digits(p, end);
        if (p == from || p - from > 2 * MAX_NUMBER) {
            return NULL;
        }
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
        p++;
        p += p < end && (*p == '+' || *p == '-');
        from = p;
        p = scan_digits(p, end);
        if (p == from || p - from > 2) {
            return NULL;
        }
    }
    return p;
}

static const char *scan_word(const char *p, const char *end, const char *word)
{
    size_t n = strlen(word);
    return (size_t)(end - p) >= n && memcmp(p, word, n) == 0 ? p + n : NULL;
}

static const char *scan_value(const char *p, const char *end, int depth);

/* A member's key and colon; returns the value's first byte. */
static const char *scan_key(const char *p, const char *end, const char **key, size_t *len)
{
    int escaped = 0;

    if (p == end || *p != '"') {
        return NULL;
    }
    *key = p + 1;
    p = scan_string(p + 1, end, &escaped);
    if (!p || escaped) { /* an escaped key might spell one of ours */
        return NULL;
    }
    *len = (size_t)(p - 1 - *key);
    p = skip_space(p, end);
    return p < end && *p == ':' ? skip_space(p + 1, end) : NULL;
}

/* What follows a value inside an array or object: the next one's first byte, or the end. */
static const char *scan_comma(const char *p, const char *end, char close, int *done)
{
    p = skip_space(p, end);
    if (p == end || (*p != ',' && *p != close)) {
        return NULL;
    }
    *done = *p == close;
    return *done ? p + 1 : skip_space(p + 1, end);
}

static const char *scan_object(const char *p, const char *end, int depth)
{
    int done = 0;

    p = skip_space(p + 1, end);
    if (p < end && *p == '}') {
        return p + 1;
    }
    while (p && !done) {
        const char *key;
        size_t len;
        p = scan_key(p, end, &key, &len);
        p = p ? scan_value(p, end, depth) : NULL;
        p = p ? scan_comma(p, end, '}', &done) : NULL;
    }
    return p;
}

static const char *scan_array(const char *p, const char *end, int depth)
{
    int done = 0;

    p = skip_space(p + 1, end);
    if (p < end && *p == ']') {
        return p + 1;
    }
    while (p && !done) {
        p = scan_value(p, end, depth);
        p = p ? scan_comma(p, end, ']', &done) : NULL;
    }
    return p;
}

static const char *scan_value(const char *p, const char *end, int depth)
{
    int escaped;

    if (p == end || depth == MAX_DEPTH) {
        return NULL;
    }
    switch (*p) {
    case '"': return scan_string(p + 1, end, &escaped);
    case '{': return scan_object(p, end, depth + 1);
    case '[': return scan_array(p, end, depth + 1);
    case 't': return scan_word(p, end, "true");
    case 'f': return scan_word(p, end, "false");
    case 'n': return scan_word(p, end, "null");
    case '-': return p + 1 < end ? scan_number(p, end) : NULL;
    default: return *p >= '0' && *p <= '9' ? scan_number(p, end) : NULL;
    }
}

/* An object with exactly one "role", which is text. */
static const char *scan_message(const char *p, const char *end)
{
    int done = 0, roles = 0;

    if (p == end || *p != '{') {
        return NULL;
    }
    p = skip_space(p + 1, end);
    while (p && !done) {
        const char *key;
        size_t len;
        p = scan_key(p, end, &key, &len);
        if (p && len == 4 && memcmp(key, "role", 4) == 0) {
            roles += p < end && *p == '"' ? 1 : 2;
        }
        p = p ? scan_value(p, end, 3) : NULL;
        p = p ? scan_comma(p, end, '}', &done) : NULL;
    }
    return roles == 1 ? p : NULL;
}

static const char *scan_prompt(const char *p, const char *end)
{
    int done = 0;

    if (p < end && *p == '"') {
        return scan_value(p, end, 1);
    }
    if (p == end || *p != '[') {
        return NULL;
    }
    p = skip_space(p + 1, end);
    while (p && !done) {
        p = scan_message(p, end);
        p = p ? scan_comma(p, end, ']', &done) : NULL;
    }
    return p;
}

/* The value of one of the wanted keys, which has the type it must have. A bit of *seen for each
 * key found; a second one of the same name is not for us to judge. */
static const char *scan_member(const struct rowscan_keys *k, const char *key, size_t len,
                               const char *p, const char *end, unsigned *seen)
{
    unsigned is = 0;

    for (int i = 0; i < ROWSCAN_NKEYS; i++) {
        if (k->key[i] && len == k->len[i] && memcmp(key, k->key[i], len) == 0) {
            is |= 1u << i;
        }
    }
    if (is & *seen) {
        return NULL;
    }
    *seen |= is;
    if (p == end || ((is & 1u << ROWSCAN_METADATA) && *p != '{' && *p != 'n') ||
        ((is & 1u << ROWSCAN_TOOLS) && *p != '[' && *p != 'n')) {
        return NULL;
    }
    return is & 1u << ROWSCAN_INPUT ? scan_prompt(p, end) : scan_value(p, end, 1);
}

int rowscan_sure(const struct rowscan_keys *k, const char *p, size_t n)
{
    const char *end = p + n;
    unsigned seen = 0,
             need = 1u << ROWSCAN_INPUT | (k->key[ROWSCAN_LABEL] ? 1u << ROWSCAN_LABEL : 0);
    int done = 0;

    p = skip_space(p, end);
    if (p == end || *p != '{') {
        return 0;
    }
    p = skip_space(p + 1, end);
    while (p && !done) {
        const char *key;
        size_t len;
        p = scan_key(p, end, &key, &len);
        p = p ? scan_member(k, key, len, p, end, &seen) : NULL;
        p = p ? scan_comma(p, end, '}', &done) : NULL;
    }
    return p && (seen & need) == need && skip_space(p, end) == end;
}

/* The next byte that a string or a bracket turns on. */
static const char *next_mark(const char *p, const char *end)
{
    while (p < end && !strchr("\"{}[],", *p) && (unsigned char)*p > ' ') {
        p++;
    }
    return p;
}

/* Behind the closing quote of a string, by backslashes alone. */
static const char *string_end(const char *p, const char *end)
{
    while (p < end) {
        p = plain_text(p, end);
        if (p == end || *p == '"') {
            return p == end ? NULL : p + 1;
        }
        p += *p == '\\' ? 2 : 1;
    }
    return NULL;
}

size_t rowscan_value(const char *p, size_t n)
{
    const char *from = p, *end = p + n;
    size_t depth = 0;

    while (p < end) {
        const char *at = p;
        switch (*p) {
        case '"': p = string_end(p + 1, end); break;
        case '{':
        case '[':
            depth++;
            p++;
            break;
        case '}':
        case ']':
            if (!depth) {
                return 0;
            }
            depth--;
            p++;
            break;
        case ',':
            if (!depth) {
                return 0;
            }
            p++;
            break;
        case ' ':
        case '\t':
        case '\n':
        case '\r':
            if (!depth) {
                return 0;
            }
            p++;
            break;
        default:
            p = next_mark(p, end);
            if (p == at) {
                return 0; /* a control character or NUL between values */
            }
            if (p == end && !depth) {
                return 0; /* a number may go on */
            }
            break;
        }
        if (!p) {
            return 0;
        }
        if (!depth) {
            return (size_t)(p - from);
        }
    }
    return 0;
}
