/* UTF-8 and Unicode as the tokenizer needs them: checking and repairing UTF-8, character classes,
 * normal forms and the byte alphabet of byte-level BPE.
 *
 *     if (unicode_valid_prefix(s, n) < n) {
 *         char *t = unicode_lossy(s, n, &tn);    (U+FFFD for what is not UTF-8; mem_free)
 *     }
 *
 * Classes and normal forms follow the `tokenizers` package, whose parts know different Unicode
 * versions; where the linked libraries differ from it, tables here decide. No state: any thread. */
#ifndef TEXT_UNICODE_H
#define TEXT_UNICODE_H

#include <stddef.h>
#include <stdint.h>

struct buf;

enum unicode_form { UNICODE_NFC, UNICODE_NFD, UNICODE_NFKC, UNICODE_NFKD };

/* Length of the longest prefix that is valid UTF-8 (n when all of it is). */
size_t unicode_valid_prefix(const char *s, size_t n);
/* Copy with each maximal invalid part replaced by U+FFFD. NUL-terminated, free with mem_free;
 * NULL when there is no memory. */
char *unicode_lossy(const char *s, size_t n, size_t *len);
/* First character of valid, non-empty UTF-8; returns its length in bytes. */
size_t unicode_next(const char *s, uint32_t *cp);
/* Last character of valid, non-empty UTF-8 of n bytes; returns its length in bytes. */
size_t unicode_prev(const char *s, size_t n, uint32_t *cp);
/* Length in bytes of the character whose first byte this is. */
size_t unicode_width(unsigned char first);
/* Writes cp (a valid code point) and returns its length. */
size_t unicode_put(uint32_t cp, char out[4]);

/* What the patterns of tokenizers tell apart. */
enum unicode_class {
    UNICODE_OTHER,
    UNICODE_UPPER,    /* Lu, Lt */
    UNICODE_LOWER,    /* Ll */
    UNICODE_CASELESS, /* Lm, Lo */
    UNICODE_MARK,
    UNICODE_NUMBER,
    UNICODE_PUNCT,
    UNICODE_SYMBOL,
    UNICODE_SPACE,   /* White_Space, but for */
    UNICODE_NEWLINE, /* \r and \n */
    UNICODE_NCLASSES
};

/* The class of any code point, as the package's regex library has it. */
enum unicode_class unicode_class(uint32_t cp);
int unicode_is_space(uint32_t cp);   /* White_Space */
int unicode_is_numeric(uint32_t cp); /* Nd, Nl, No */
int unicode_is_word(uint32_t cp);    /* Alphabetic, M, Nd, Pc, Join_Control */

/* Classes of the older parts of the package, each with the Unicode version of its own. */
int unicode_is_dropped(uint32_t cp);    /* what clean_text of the BertNormalizer takes out */
int unicode_is_nonspacing(uint32_t cp); /* Mn there */
int unicode_is_mark(uint32_t cp);       /* M for StripAccents */
int unicode_is_punct(uint32_t cp);      /* for the Punctuation and Bert pre-tokenizers */
/* Small letters of cp; their number, 1 or 2. */
size_t unicode_lower(uint32_t cp, uint32_t out[2]);
/* Length in bytes of the first grapheme cluster of valid, non-empty UTF-8. */
size_t unicode_grapheme(const char *s, size_t n);

/* Appends the normal form of valid UTF-8 to out. Linear in n, also for long runs of marks.
 * 0 or STATUS_NOMEM (ceiling of out, or no memory). */
int unicode_normalize(enum unicode_form form, const char *s, size_t n, struct buf *out);
/* 1 when the normal form of s is certainly s itself (a quick look, may say 0 for such text). */
int unicode_is_normal(enum unicode_form form, const char *s, size_t n);

/* A copy of valid UTF-8 in which characters younger than the regex library's tables are replaced by
 * older ones of the same class and the same length in bytes: match on it, cut the original at the
 * same offsets. NULL when s needs no replacing or there is no memory (*oom tells which). */
char *unicode_shadow(const char *s, size_t n, int *oom);

/* The byte alphabet of byte-level BPE: a printable character for each of the 256 bytes. */
uint32_t unicode_byte_char(uint8_t byte);
int unicode_char_byte(uint32_t cp); /* the byte, or -1 when cp stands for none */

#endif
