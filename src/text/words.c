/* Owns the matching of the patterns that cut text into words before byte-level BPE. Each pattern is
 * a list of alternatives tried in order at one place; the class of the first character or two
 * decides which can match, so no alternative is tried twice. test_words.c compares every matcher
 * with PCRE2 on its pattern.
 *
 * The classes of all characters are a table of bytes, filled a page of 256 at a time when a
 * character of it is first met. */
#include "text/words.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "text/unicode.h"

#define SET(c)   (1u << (c))
#define UPPER    SET(UNICODE_UPPER)
#define LOWER    SET(UNICODE_LOWER)
#define CASELESS SET(UNICODE_CASELESS)
#define MARK     SET(UNICODE_MARK)
#define NUMBER   SET(UNICODE_NUMBER)
#define PUNCT    SET(UNICODE_PUNCT)
#define SYMBOL   SET(UNICODE_SYMBOL)
#define NEWLINE  SET(UNICODE_NEWLINE)
#define LETTERS  (UPPER | LOWER | CASELESS)
#define SPACES   (SET(UNICODE_SPACE) | NEWLINE)
#define ALL      (SET(UNICODE_NCLASSES) - 1u)

static uint8_t class_table[0x110000];
static atomic_uchar class_ready[0x1100];
static pthread_mutex_t class_lock = PTHREAD_MUTEX_INITIALIZER;

static void __attribute__((noinline)) class_fill(uint32_t page)
{
    uint32_t i;

    pthread_mutex_lock(&class_lock);
    if (!atomic_load_explicit(&class_ready[page], memory_order_relaxed)) {
        for (i = 0; i < 256; i++) {
            class_table[page << 8 | i] = (uint8_t)unicode_class(page << 8 | i);
        }
        atomic_store_explicit(&class_ready[page], 1, memory_order_release);
    }
    pthread_mutex_unlock(&class_lock);
}

/* The set that holds just the class of the character at s, and the character's length. */
static inline unsigned set_at(const char *s, size_t *k)
{
    uint32_t cp = (unsigned char)*s;

    *k = 1;
    if (cp >= 0x80) {
        *k = unicode_next(s, &cp);
    }
    if (!atomic_load_explicit(&class_ready[cp >> 8], memory_order_acquire)) {
        class_fill(cp >> 8);
    }
    return SET(class_table[cp]);
}

/* The end of the characters of a set that start at i. */
static inline size_t run(const char *s, size_t n, size_t i, unsigned set)
{
    size_t k;

    while (i < n && (set_at(s + i, &k) & set)) {
        i += k;
    }
    return i;
}

/* The same, but at most `max` characters. */
static inline size_t run_max(const char *s, size_t n, size_t i, unsigned set, int max)
{
    size_t k;

    while (max-- > 0 && i < n && (set_at(s + i, &k) & set)) {
        i += k;
    }
    return i;
}

/* \s*[\r\n]+ (with newlines), \s+(?!\S), \s+: white space starts at i. */
static inline size_t white(const char *s, size_t n, size_t i, int newlines)
{
    size_t at = i;
    size_t last = i;
    size_t line = 0;
    size_t k;
    unsigned c;

    while (at < n && ((c = set_at(s + at, &k)) & SPACES)) {
        last = at;
        at += k;
        line = c & NEWLINE ? at : line;
    }
    if (newlines && line) {
        return line;
    }
    return at == n || last == i ? at : last; /* the last one goes to the word that follows */
}

/* 's|'t|'re|'ve|'m|'ll|'d at i: its length or 0. Without case the long s is an s too. */
static inline size_t contraction(const char *s, size_t n, size_t i, int caseless)
{
    int c, d;

    if (n - i < 2 || s[i] != '\'') {
        return 0;
    }
    c = (unsigned char)s[i + 1];
    if (caseless && c >= 'A' && c <= 'Z') {
        c |= 0x20;
    }
    switch (c) {
    case 's':
    case 't':
    case 'm':
    case 'd': return 2;
    case 'r':
    case 'v':
    case 'l': break;
    case 0xC5: return caseless && n - i >= 3 && (unsigned char)s[i + 2] == 0xBF ? 3 : 0;
    default: return 0;
    }
    if (n - i < 3) {
        return 0;
    }
    d = (unsigned char)s[i + 2];
    if (caseless && d >= 'A' && d <= 'Z') {
        d |= 0x20;
    }
    return d == (c == 'l' ? 'l' : 'e') ? 3 : 0;
}

/* ---- one match at a place: its end, or 0 ---- */

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static inline size_t match_gpt2(const char *s, size_t n, size_t i)
{
    size_t k = contraction(s, n, i, 0);
    size_t at = i;
    unsigned c;

    if (k) {
        return i + k;
    }
    if (s[i] == ' ' && i + 1 < n) {
        at++;
    }
    c = set_at(s + at, &k);
    if (c & SPACES) {
        return white(s, n, i, 0);
    }
    return run(s, n, at + k,
               c & LETTERS  ? LETTERS
               : c & NUMBER ? NUMBER
                            : ALL & ~(SPACES | LETTERS | NUMBER));
}

/* (?i:'s|...)|[^\r\n\p{L}\p{N}]?[word]+|\p{N}{1,digits}| ?[^\s word \p{N}]+[\r\n]*|\s*[\r\n]+|
 * \s+(?!\S)|\s+ */
static inline size_t match_cl(const char *s, size_t n, size_t i, unsigned word, int digits)
{
    unsigned other = ALL & ~(SPACES | word | NUMBER);
    size_t k = contraction(s, n, i, 1);
    size_t k2;
    unsigned c;

    if (k) {
        return i + k;
    }
    c = set_at(s + i, &k);
    if (c & word) {
        return run(s, n, i + k, word);
    }
    if (c & NUMBER) {
        return run_max(s, n, i + k, NUMBER, digits - 1);
    }
    if (i + k < n && !(c & NEWLINE)) {
        unsigned next = set_at(s + i + k, &k2);
        if (next & word) {
            return run(s, n, i + k + k2, word);
        }
        if (s[i] == ' ' && (next & other)) {
            return run(s, n, run(s, n, i + k + k2, other), NEWLINE);
        }
    }
    if (c & other) {
        return run(s, n, run(s, n, i + k, other), NEWLINE);
    }
    return white(s, n, i, 1);
}

/* [upper]*[lower]+ from i, where both sets have the letters without case and the marks. */
static inline size_t cased(const char *s, size_t n, size_t i)
{
    size_t end = 0;
    size_t at = i;
    size_t k;
    unsigned c;

    while (at < n && ((c = set_at(s + at, &k)) & (UPPER | CASELESS | MARK))) {
        at += k;
        end = c & UPPER ? end : at;
    }
    if (at < n && (set_at(s + at, &k) & LOWER)) {
        return run(s, n, at + k, LOWER | CASELESS | MARK);
    }
    return end; /* given back up to the last one that is in both */
}

/* [^\r\n\p{L}\p{N}]?[upper]*[lower]+, else [^\r\n\p{L}\p{N}]?[upper]+[lower]*; 0 when neither. */
static inline size_t cased_word(const char *s, size_t n, size_t i, unsigned c, size_t k)
{
    int prefix = !(c & (NEWLINE | LETTERS | NUMBER));
    size_t end = 0;
    size_t at;

    if (prefix) {
        end = i + k < n ? cased(s, n, i + k) : 0;
    }
    if (!end && (c & (LETTERS | MARK))) {
        end = cased(s, n, i);
    }
    if (!end && prefix) {
        at = run(s, n, i + k, UPPER | CASELESS | MARK);
        end = at > i + k ? run(s, n, at, LOWER | CASELESS | MARK) : 0;
    }
    if (!end && (c & (UPPER | CASELESS | MARK))) {
        end = run(s, n, run(s, n, i + k, UPPER | CASELESS | MARK), LOWER | CASELESS | MARK);
    }
    return end;
}

/* cased words, each with (?i:'s|...)? when `short_forms`|\p{N}{1,digits}|
 * ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
static inline size_t match_o200k(const char *s, size_t n, size_t i, int short_forms, int digits)
{
    const unsigned other = ALL & ~(SPACES | LETTERS | NUMBER);
    size_t k, k2;
    unsigned c = set_at(s + i, &k);
    size_t end;

    if (c & NUMBER) {
        return run_max(s, n, i + k, NUMBER, digits - 1);
    }
    end = c & NEWLINE ? 0 : cased_word(s, n, i, c, k);
    if (end) {
        return end < n && short_forms ? end + contraction(s, n, end, 1) : end;
    }
    if (s[i] == ' ' && i + 1 < n && (set_at(s + i + 1, &k2) & other)) {
        end = run(s, n, i + 1 + k2, other);
    } else if (c & other) {
        end = run(s, n, i + k, other);
    } else {
        return white(s, n, i, 1);
    }
    while (end < n && (s[end] == '\r' || s[end] == '\n' || s[end] == '/')) {
        end++;
    }
    return end;
}

static inline int ascii_letter(int c)
{
    c |= 0x20;
    return c >= 'a' && c <= 'z';
}

/* [ASCII punctuation][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|
 * \s*[\r\n]+|\s+(?!\S)|\s+ */
static inline size_t match_deepseek(const char *s, size_t n, size_t i)
{
    const unsigned word = LETTERS | MARK;
    const unsigned other = PUNCT | SYMBOL;
    size_t k, k2;
    unsigned c = set_at(s + i, &k);
    unsigned next = 0;

    if (i + k < n) {
        next = set_at(s + i + k, &k2);
    }
    if ((c & other) && k == 1 && next && ascii_letter((unsigned char)s[i + 1])) {
        for (i += 2; i < n && ascii_letter((unsigned char)s[i]); i++) {
        }
        return i;
    }
    if (c & word) {
        return run(s, n, i + k, word);
    }
    if (!(c & (NEWLINE | other)) && (next & word)) {
        return run(s, n, i + k + k2, word);
    }
    if (c & other) {
        return run(s, n, run(s, n, i + k, other), NEWLINE);
    }
    if (s[i] == ' ' && (next & other)) {
        return run(s, n, run(s, n, i + k + k2, other), NEWLINE);
    }
    return c & SPACES ? white(s, n, i, 1) : 0;
}

/* [一-龥぀-ゟ゠-ヿ]+: U+4E00 to U+9FA5, U+3040 to U+30FF; all are three bytes from E3 to E9.
 */
static inline size_t match_cjk(const char *s, size_t n, size_t i)
{
    size_t at = i;
    uint32_t cp;

    while (at < n && (unsigned char)s[at] >= 0xE3 && (unsigned char)s[at] <= 0xE9) {
        unicode_next(s + at, &cp);
        if (!((cp >= 0x4E00 && cp <= 0x9FA5) || (cp >= 0x3040 && cp <= 0x30FF))) {
            break;
        }
        at += 3;
    }
    return at > i ? at : 0;
}

/* ---- the search ---- */

#define SEARCH(name, call)                                                                         \
    static int name(const char *s, size_t n, size_t *a, size_t *b)                                 \
    {                                                                                              \
        size_t i;                                                                                  \
        for (i = *a; i < n; i += unicode_width((unsigned char)s[i])) {                             \
            size_t end = call;                                                                     \
            if (end) {                                                                             \
                *a = i;                                                                            \
                *b = end;                                                                          \
                return 1;                                                                          \
            }                                                                                      \
        }                                                                                          \
        return 0;                                                                                  \
    }

static inline size_t match_number(const char *s, size_t n, size_t i, int digits)
{
    size_t end = run_max(s, n, i, NUMBER, digits);

    return end > i ? end : 0;
}

SEARCH(next_gpt2, match_gpt2(s, n, i))
SEARCH(next_cl100k, match_cl(s, n, i, LETTERS, 3))
SEARCH(next_qwen2, match_cl(s, n, i, LETTERS, 1))
SEARCH(next_qwen35, match_cl(s, n, i, LETTERS | MARK, 1))
SEARCH(next_o200k, match_o200k(s, n, i, 1, 3))
SEARCH(next_tekken, match_o200k(s, n, i, 0, 1))
SEARCH(next_deepseek, match_deepseek(s, n, i))
SEARCH(next_number3, match_number(s, n, i, 3))
SEARCH(next_cjk, match_cjk(s, n, i))

struct words {
    const char *name;
    const char *pattern;
    int (*next)(const char *s, size_t n, size_t *a, size_t *b);
};

#define SHORT_FORMS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WHITE       "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CASED_UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define PREFIX      "[^\\r\\n\\p{L}\\p{N}]?"

static const struct words words_table[] = {
    {"gpt2", "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
     next_gpt2},
    {"cl100k", SHORT_FORMS "|" PREFIX "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" WHITE,
     next_cl100k},
    {"qwen2", SHORT_FORMS "|" PREFIX "\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" WHITE,
     next_qwen2},
    {"qwen3.5",
     SHORT_FORMS "|" PREFIX "[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" WHITE,
     next_qwen35},
    {"o200k",
     PREFIX CASED_UPPER "*" CASED_LOWER "+" SHORT_FORMS "?|" PREFIX CASED_UPPER "+" CASED_LOWER
                        "*" SHORT_FORMS "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" WHITE,
     next_o200k},
    {"tekken",
     PREFIX CASED_UPPER "*" CASED_LOWER "+|" PREFIX CASED_UPPER "+" CASED_LOWER
                        "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" WHITE,
     next_tekken},
    {"deepseek",
     "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
     "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|"
     "\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
     next_deepseek},
    {"deepseek-numbers", "\\p{N}{1,3}", next_number3},
    {"deepseek-cjk", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", next_cjk},
};

#define NWORDS (sizeof words_table / sizeof *words_table)

const struct words *words_find(const char *pattern, size_t len)
{
    size_t i;

    for (i = 0; i < NWORDS; i++) {
        if (strlen(words_table[i].pattern) == len &&
            memcmp(words_table[i].pattern, pattern, len) == 0) {
            return &words_table[i];
        }
    }
    return NULL;
}

const char *words_pattern(size_t i)
{
    return i < NWORDS ? words_table[i].pattern : NULL;
}

const char *words_named(const char *name)
{
    size_t i;

    for (i = 0; i < NWORDS; i++) {
        if (strcmp(words_table[i].name, name) == 0) {
            return words_table[i].pattern;
        }
    }
    return NULL;
}

int words_next(const struct words *w, const char *s, size_t n, size_t *a, size_t *b)
{
    return w->next(s, n, a, b);
}
