/* Hand-written matchers for the Split patterns of today's model families: what the regex library
 * would find, a dozen times faster.
 *
 *     const struct words *w = words_find(pattern, len);       NULL: not one of them
 *     size_t a = 0, b;
 *     while (words_next(w, s, n, &a, &b)) { ... [a, b) ...; a = b; }
 *
 * Classes of characters are those of the `tokenizers` package. Constant, any thread. */
#ifndef TEXT_WORDS_H
#define TEXT_WORDS_H

#include <stddef.h>

struct words;

/* The matcher of a pattern, compared as text. */
const struct words *words_find(const char *pattern, size_t len);
/* The patterns that have one; NULL behind the last. For tests. */
const char *words_pattern(size_t i);
/* The pattern of a family by name (gpt2, cl100k, o200k, qwen2, ...); NULL: none of that name. */
const char *words_named(const char *name);
/* The first match that starts at *a or later in valid UTF-8: 1 with [*a, *b), or 0. */
int words_next(const struct words *w, const char *s, size_t n, size_t *a, size_t *b);

#endif
