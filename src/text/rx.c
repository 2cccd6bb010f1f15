/* Owns the difference between two regex dialects. tokenizer.json holds Ruby-syntax patterns for
 * Oniguruma; PCRE2 reads most of them with the same meaning, and gives some another one: \s and \w
 * are other sets, \h is another class, {n,m}+ is possessive, ^ is not a line start. Each of those
 * is rewritten; what has no rewriting is refused by name, because a pattern that compiles and means
 * something else would give wrong tokens silently. */
#include "text/rx.h"

#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/status.h"
#include "text/unicode.h"
#include "text/words.h"

#define PATTERN_MAX (1u << 16)
#define MATCH_LIMIT 20000000u /* of one match: a hostile pattern ends in a fraction of a second */
#define STACK_MAX   (64u << 20)

/* \w in Oniguruma: the Unicode definition inside a class. Outside, characters below U+0100 go by a
 * Latin-1 table, where superscripts and fractions count too. */
#define CLASS_WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define WORD_SET   CLASS_WORD "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}"

/* White space and the rest, spelled out: PCRE2's own \s has U+180E, and only its newest versions
 * know the property by name. */
#define SPACE_SET                                                                                  \
    "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}"    \
    "\\x{205F}\\x{3000}"
#define NOT_SPACE_SET                                                                              \
    "\\x{0}-\\x{8}\\x{E}-\\x{1F}\\x{21}-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}"                   \
    "\\x{1681}-\\x{1FFF}\\x{200B}-\\x{2027}\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}"                 \
    "\\x{2060}-\\x{2FFF}\\x{3001}-\\x{10FFFF}"

struct rx {
    const struct words *words; /* then there is no code */
    pcre2_code *code;
    int jit;
};

/* ---- translation ---- */

#define GROUPS_MAX 256

struct trans {
    const char *s;
    size_t n, i;
    struct buf *out;
    struct err *e;
    size_t atom;               /* where the last atom starts in out; SIZE_MAX: none */
    size_t groups[GROUPS_MAX]; /* starts of the open groups in out */
    int depth;
};

static int refuse(const struct trans *t, const char *what)
{
    return ERR(t->e, STATUS_UNSUPPORTED, "regex with %s at byte %zu is not supported: %.*s", what,
               t->i, (int)(t->n > 200 ? 200 : t->n), t->s);
}

static int peek(const struct trans *t, size_t ahead)
{
    return t->i + ahead < t->n ? (unsigned char)t->s[t->i + ahead] : -1;
}

static int is_digit(int c)
{
    return c >= '0' && c <= '9';
}

static int is_alpha(int c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* \p{...}, \P{...}, \p{^...}: categories keep their name, scripts must not mean script extensions.
 */
static int trans_property(struct trans *t)
{
    static const char *const plain[] = {"Any",       "Alphabetic", "White_Space",
                                        "Uppercase", "Lowercase",  "Emoji"};
    int negate = peek(t, 1) == 'P';
    size_t a, b, k;
    int keep = 0;

    if (peek(t, 2) != '{') {
        return refuse(t, "a property without braces");
    }
    a = t->i + 3;
    for (b = a; b < t->n && t->s[b] != '}'; b++) {
        if (t->s[b] != '^' && t->s[b] != '_' && !is_alpha((unsigned char)t->s[b])) {
            return refuse(t, "this property name");
        }
    }
    if (a < b && t->s[a] == '^') {
        negate = !negate;
        a++;
    }
    if (b >= t->n || a >= b || memchr(t->s + a, '^', b - a)) {
        return refuse(t, "this property name");
    }
    keep = b - a <= 2;
    for (k = 0; k < sizeof plain / sizeof *plain; k++) {
        keep |= strlen(plain[k]) == b - a && memcmp(plain[k], t->s + a, b - a) == 0;
    }
    buf_str(t->out, negate ? "\\P{" : "\\p{");
    buf_str(t->out, keep ? "" : "sc:");
    buf_add(t->out, t->s + a, b - a);
    buf_char(t->out, '}');
    t->i = b + 1;
    return 0;
}

static int hex_value(int c)
{
    if (is_digit(c)) {
        return c - '0';
    }
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* \uHHHH, \xHH and \x{H...} become \x{H...}. */
static int trans_hex(struct trans *t)
{
    int u = peek(t, 1) == 'u';
    size_t i = t->i + 2;
    uint32_t cp = 0;
    int digits = 0;

    if (!u && peek(t, 2) == '{') {
        for (i++; i < t->n && hex_value((unsigned char)t->s[i]) >= 0 && digits < 8; i++, digits++) {
            cp = cp << 4 | (uint32_t)hex_value((unsigned char)t->s[i]);
        }
        if (i >= t->n || t->s[i] != '}') {
            digits = 0;
        }
        i++;
    } else {
        int want = u ? 4 : 2;
        for (; i < t->n && hex_value((unsigned char)t->s[i]) >= 0 && digits < want; i++, digits++) {
            cp = cp << 4 | (uint32_t)hex_value((unsigned char)t->s[i]);
        }
        if (digits < want || (!u && cp > 0x7F)) {
            digits = 0; /* a byte above 0x7F is a part of a character there */
        }
    }
    if (!digits || cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000)) {
        return refuse(t, "this character escape");
    }
    buf_printf(t->out, "\\x{%X}", (unsigned)cp);
    t->i = i;
    return 0;
}

/* An escape; the sets differ inside a class. */
static int trans_escape(struct trans *t, int in_class)
{
    int c = peek(t, 1);
    const char *put = NULL;

    switch (c) {
    case 'p':
    case 'P': return trans_property(t);
    case 'u':
    case 'x': return trans_hex(t);
    case 's': put = in_class ? SPACE_SET : "[" SPACE_SET "]"; break;
    case 'S': put = in_class ? NOT_SPACE_SET : "[^" SPACE_SET "]"; break;
    case 'd': put = "\\p{Nd}"; break;
    case 'D': put = "\\P{Nd}"; break;
    case 'w': put = in_class ? CLASS_WORD : "[" WORD_SET "]"; break;
    case 'W': put = in_class ? NULL : "[^" WORD_SET "]"; break;
    case 'h': put = in_class ? "0-9a-fA-F" : "[0-9a-fA-F]"; break;
    case 'H': put = in_class ? NULL : "[^0-9a-fA-F]"; break;
    case 'v': put = "\\x{B}"; break;
    case 'n': put = "\\n"; break;
    case 'r': put = "\\r"; break;
    case 't': put = "\\t"; break;
    case 'f': put = "\\f"; break;
    case 'a': put = "\\a"; break;
    case 'e': put = "\\e"; break;
    case 'b':
        put = in_class ? "\\x{8}"
                       : "(?:(?<=[" WORD_SET "])(?![" WORD_SET "])|(?<![" WORD_SET "])(?=[" WORD_SET
                         "]))";
        break;
    case 'A': put = in_class ? NULL : "\\A"; break;
    case 'z': put = in_class ? NULL : "\\z"; break;
    case 'Z': put = in_class ? NULL : "\\Z"; break;
    case 'R': put = in_class ? NULL : "\\R"; break;
    default: break;
    }
    if (put) {
        buf_str(t->out, put);
        t->i += 2;
        return 0;
    }
    if (c < 0 || is_alpha(c) || is_digit(c)) {
        return refuse(t, "this escape");
    }
    if (c < 0x80) {
        buf_char(t->out, '\\');
        buf_char(t->out, (char)c);
        t->i += 2;
    } else {
        size_t k = unicode_width((unsigned char)c);
        buf_add(t->out, t->s + t->i + 1, k);
        t->i += 1 + k;
    }
    return 0;
}

/* [:name:] inside a class. */
static int trans_posix(struct trans *t)
{
    static const struct {
        const char *name, *set;
    } sets[] = {
        {"[:alpha:]", "\\p{Alphabetic}"}, {"[:digit:]", "\\p{Nd}"},
        {"[:space:]", SPACE_SET},         {"[:alnum:]", "\\p{Alphabetic}\\p{Nd}"},
        {"[:punct:]", "\\p{P}\\p{S}"},    {"[:upper:]", "\\p{Uppercase}"},
        {"[:lower:]", "\\p{Lowercase}"},  {"[:word:]", CLASS_WORD},
        {"[:xdigit:]", "0-9a-fA-F"},
    };
    size_t k;

    for (k = 0; k < sizeof sets / sizeof *sets; k++) {
        size_t n = strlen(sets[k].name);
        if (t->n - t->i >= n && memcmp(t->s + t->i, sets[k].name, n) == 0) {
            buf_str(t->out, sets[k].set);
            t->i += n;
            return 0;
        }
    }
    return refuse(t, "a nested class");
}

static int trans_class(struct trans *t)
{
    int first = 1;
    int rc;

    buf_char(t->out, '[');
    t->i++;
    if (peek(t, 0) == '^') {
        buf_char(t->out, '^');
        t->i++;
    }
    for (;;) {
        int c = peek(t, 0);
        if (c < 0) {
            return ERR(t->e, STATUS_FORMAT, "regex with an open [: %.*s",
                       (int)(t->n > 200 ? 200 : t->n), t->s);
        }
        if (c == ']' && !first) {
            break;
        }
        rc = 0;
        if (c == ']') {
            buf_str(t->out, "\\]");
            t->i++;
        } else if (c == '[') {
            rc = trans_posix(t);
        } else if (c == '\\') {
            rc = trans_escape(t, 1);
        } else if (c == '&' && peek(t, 1) == '&') {
            rc = refuse(t, "a class intersection");
        } else {
            buf_char(t->out, (char)c);
            t->i++;
        }
        if (rc) {
            return rc;
        }
        first = 0;
    }
    buf_char(t->out, ']');
    t->i++;
    return 0;
}

/* "(" and what follows it, up to the group's contents. */
static int trans_open(struct trans *t)
{
    static const char *const heads[] = {
        "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"};
    size_t k, n;

    if (t->depth == GROUPS_MAX) {
        return refuse(t, "groups nested this deep");
    }
    t->groups[t->depth++] = t->out->len;
    t->atom = SIZE_MAX;
    if (peek(t, 1) != '?') {
        buf_str(t->out, "(?:"); /* nothing reads captures */
        t->i++;
        return 0;
    }
    for (k = 0; k < sizeof heads / sizeof *heads; k++) {
        n = strlen(heads[k]);
        if (t->n - t->i >= n && memcmp(t->s + t->i, heads[k], n) == 0) {
            buf_str(t->out, heads[k]);
            t->i += n;
            return 0;
        }
    }
    if (t->i == 0 && t->n >= 4 && memcmp(t->s, "(?i)", 4) == 0) {
        t->depth--;
        buf_str(t->out, "(?i)");
        t->i += 4;
        return 0;
    }
    return refuse(t, "this kind of group");
}

/* Puts a group around the last atom with its quantifier. */
static void wrap_atom(struct trans *t)
{
    size_t n = t->out->len - t->atom;
    char *copy = mem_strndup(t->out->data + t->atom, n);

    t->out->len = t->atom;
    buf_str(t->out, "(?:");
    buf_add(t->out, copy, n);
    buf_char(t->out, ')');
    mem_free(copy);
}

/* {n}, {n,}, {,m}, {n,m}; any other { is a literal. A + after it repeats, it is not possessive; a ?
 * after {n} makes it optional, not lazy. */
static int trans_brace(struct trans *t)
{
    size_t j = t->i + 1;
    size_t a = j;
    size_t b, c;
    int comma = 0;

    while (j < t->n && is_digit((unsigned char)t->s[j])) {
        j++;
    }
    b = j;
    if (j < t->n && t->s[j] == ',') {
        comma = 1;
        j++;
    }
    c = j;
    while (j < t->n && is_digit((unsigned char)t->s[j])) {
        j++;
    }
    if (j >= t->n || t->s[j] != '}' || (a == b && c == j) || t->atom == SIZE_MAX) {
        t->atom = t->out->len;
        buf_str(t->out, "\\{");
        t->i++;
        return 0;
    }
    if (b - a > 5 || j - c > 5) {
        return refuse(t, "this repeat count");
    }
    buf_char(t->out, '{');
    if (a == b) {
        buf_char(t->out, '0');
    }
    buf_add(t->out, t->s + a, b - a);
    if (comma) {
        buf_char(t->out, ',');
        buf_add(t->out, t->s + c, j - c);
    }
    buf_char(t->out, '}');
    t->i = j + 1;
    if (peek(t, 0) == '+' || (peek(t, 0) == '?' && !comma)) {
        wrap_atom(t);
    } else if (peek(t, 0) == '?') {
        buf_char(t->out, '?');
        t->i++;
    }
    return 0;
}

static int trans_one(struct trans *t)
{
    int c = peek(t, 0);

    switch (c) {
    case '\\': t->atom = t->out->len; return trans_escape(t, 0);
    case '[': t->atom = t->out->len; return trans_class(t);
    case '(': return trans_open(t);
    case ')':
        if (t->depth == 0) {
            return ERR(t->e, STATUS_FORMAT, "regex with a ) too many: %.*s",
                       (int)(t->n > 200 ? 200 : t->n), t->s);
        }
        t->atom = t->groups[--t->depth];
        break;
    case '{': return trans_brace(t);
    case '|':
    case '^':
    case '$': t->atom = SIZE_MAX; break;
    case '*':
    case '+':
    case '?': break;
    default: t->atom = t->out->len; break;
    }
    if (c < 0x80) {
        buf_char(t->out, (char)c);
        t->i++;
    } else {
        size_t k = unicode_width((unsigned char)c);
        buf_add(t->out, t->s + t->i, k);
        t->i += k;
    }
    return 0;
}

int rx_translate(const char *pattern, size_t len, struct buf *out, struct err *e)
{
    struct trans *t;
    int rc = 0;

    if (len > PATTERN_MAX || unicode_valid_prefix(pattern, len) < len) {
        return ERR(e, STATUS_FORMAT, "regex of %zu bytes is too long or not utf-8", len);
    }
    t = mem_alloc(sizeof *t);
    t->s = pattern;
    t->n = len;
    t->out = out;
    t->e = e;
    t->atom = SIZE_MAX;
    while (rc == 0 && t->i < t->n) {
        rc = trans_one(t);
    }
    if (rc == 0 && buf_status(out)) {
        rc = ERR(e, STATUS_UNSUPPORTED, "regex of %zu bytes is too long", len);
    }
    mem_free(t);
    return rc;
}

/* ---- compiling and matching ---- */

int rx_open(const char *pattern, size_t len, struct rx **out, struct err *e)
{
    const struct words *w = words_find(pattern, len);

    if (!w) {
        return rx_open_pcre(pattern, len, out, e);
    }
    *out = mem_alloc(sizeof **out);
    (*out)->words = w;
    return 0;
}

const struct words *rx_words(const struct rx *r)
{
    return r ? r->words : NULL;
}

int rx_open_pcre(const char *pattern, size_t len, struct rx **out, struct err *e)
{
    pcre2_compile_context *cc = NULL;
    struct rx *r = NULL;
    struct buf b;
    PCRE2_SIZE at = 0;
    int code = 0;
    int rc;

    buf_init(&b, 8 * PATTERN_MAX);
    rc = rx_translate(pattern, len, &b, e);
    if (rc) {
        goto out;
    }
    cc = pcre2_compile_context_create(NULL);
    if (!cc) {
        rc = ERR(e, STATUS_NOMEM, "no memory for a regex");
        goto out;
    }
    pcre2_set_newline(cc, PCRE2_NEWLINE_LF);
    r = mem_alloc(sizeof *r);
    r->code = pcre2_compile((PCRE2_SPTR)b.data, b.len,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                            &code, &at, cc);
    if (!r->code) {
        char text[128] = "";
        pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text);
        rc = ERR(e, STATUS_FORMAT, "regex %.*s: %s", (int)(len > 300 ? 300 : len), pattern, text);
        goto out;
    }
    r->jit = pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE) == 0;
    *out = r;
    r = NULL;
out:
    rx_close(r);
    pcre2_compile_context_free(cc);
    buf_fini(&b);
    return rc;
}

void rx_close(struct rx *r)
{
    if (r) {
        pcre2_code_free(r->code);
        mem_free(r);
    }
}

void rx_scratch_init(struct rx_scratch *w)
{
    memset(w, 0, sizeof *w);
}

void rx_scratch_fini(struct rx_scratch *w)
{
    pcre2_match_data_free(w->match);
    pcre2_match_context_free(w->context);
    pcre2_jit_stack_free(w->stack);
    rx_scratch_init(w);
}

void rx_iter_init(struct rx_iter *it, const struct rx *r, const char *s, size_t n)
{
    memset(it, 0, sizeof *it);
    it->rx = r;
    it->s = s;
    it->n = n;
}

static int scratch_ready(struct rx_scratch *w)
{
    if (!w->match) {
        w->match = pcre2_match_data_create(1, NULL); /* only the whole match is read */
    }
    if (!w->context) {
        w->context = pcre2_match_context_create(NULL);
        if (w->context) {
            pcre2_set_match_limit(w->context, MATCH_LIMIT);
        }
    }
    return w->match && w->context;
}

static int search(const struct rx_iter *it, struct rx_scratch *w)
{
    PCRE2_SPTR s = (PCRE2_SPTR)it->s;
    int rc;

    if (!it->rx->jit) {
        return pcre2_match(it->rx->code, s, it->n, it->pos, PCRE2_NO_UTF_CHECK, w->match,
                           w->context);
    }
    rc = pcre2_jit_match(it->rx->code, s, it->n, it->pos, PCRE2_NO_UTF_CHECK, w->match, w->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && !w->stack) {
        w->stack = pcre2_jit_stack_create(1u << 20, STACK_MAX, NULL);
        if (w->stack) {
            pcre2_jit_stack_assign(w->context, NULL, w->stack);
            rc = pcre2_jit_match(it->rx->code, s, it->n, it->pos, PCRE2_NO_UTF_CHECK, w->match,
                                 w->context);
        }
    }
    return rc;
}

int rx_next(struct rx_iter *it, struct rx_scratch *w, size_t *start, size_t *end, struct err *e)
{
    if (it->rx->words) {
        *start = it->pos;
        if (!words_next(it->rx->words, it->s, it->n, start, end)) {
            return STATUS_END;
        }
        it->pos = *end;
        return STATUS_OK;
    }
    if (!scratch_ready(w)) {
        return ERR(e, STATUS_NOMEM, "no memory to match a regex");
    }
    while (it->pos <= it->n) {
        PCRE2_SIZE *ov;
        int rc = search(it, w);
        if (rc == PCRE2_ERROR_NOMATCH) {
            break;
        }
        if (rc < 0) {
            char text[128] = "";
            pcre2_get_error_message(rc, (PCRE2_UCHAR *)text, sizeof text);
            return ERR(e, STATUS_FAIL, "regex stopped at byte %zu of %zu: %s", it->pos, it->n,
                       text);
        }
        ov = pcre2_get_ovector_pointer(w->match);
        if (ov[0] == ov[1] && it->matched && it->last == ov[1]) {
            /* An empty match right after a match does not count. */
            it->pos += it->pos < it->n ? unicode_width((unsigned char)it->s[it->pos]) : 1;
            continue;
        }
        if (ov[1] < ov[0]) {
            return ERR(e, STATUS_FAIL, "regex match ends before it starts");
        }
        *start = ov[0];
        *end = ov[1];
        it->pos = ov[1];
        it->last = ov[1];
        it->matched = 1;
        return STATUS_OK;
    }
    it->pos = it->n + 1;
    return STATUS_END;
}
