/* A pull reader over JSON text, for the two parts of tokenizer.json that are too large for a tree:
 * the vocabulary and the merges (a quarter of a million strings each). Everything small in that
 * file goes to jansson.
 *
 *     struct jscan s; jscan_init(&s, text, len);
 *     if (jscan_open(&s, '{')) {
 *         while (jscan_more(&s, '}')) {
 *             jscan_string(&s, &key, &n); jscan_colon(&s); jscan_int(&s, &v);
 *         }
 *     }
 *     if (s.bad) ...      (the first error sticks; s.p is where it was)
 *
 * Strings are checked: valid UTF-8, no lone surrogates, no control characters. */
#ifndef TEXT_JSCAN_H
#define TEXT_JSCAN_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

struct jscan {
    const char *start, *p, *end;
    const char *bad; /* what is wrong, static text; NULL while all is well */
    int fresh;       /* a container was just opened: no comma before its first item */
    struct buf tmp;  /* the unescaped string, when it had escapes */
};

void jscan_init(struct jscan *s, const char *text, size_t len);
void jscan_fini(struct jscan *s);
/* The next character that is not white space, not consumed; 0 at the end or after an error. */
int jscan_peek(struct jscan *s);
/* Consumes '{' or '['. 1, or 0 with an error. */
int jscan_open(struct jscan *s, int bracket);
/* In a container: 1 when another item follows (its comma is consumed), 0 when `closing` was
 * consumed or on an error. */
int jscan_more(struct jscan *s, int closing);
int jscan_colon(struct jscan *s);
/* A string; *v is valid until the next call and not NUL-terminated. 1, or 0 with an error. */
int jscan_string(struct jscan *s, const char **v, size_t *n);
int jscan_int(struct jscan *s, int64_t *v);
int jscan_number(struct jscan *s, double *v); /* any number, finite */
/* Passes over one value of any kind, looking only at brackets and quotes. */
int jscan_skip(struct jscan *s);
/* Sets the error, unless there is one already. Returns 0. */
int jscan_fail(struct jscan *s, const char *what);

#endif
