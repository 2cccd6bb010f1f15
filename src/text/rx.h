/* Regular expressions written for Oniguruma (Ruby syntax, as tokenizer.json has them), run by
 * PCRE2.
 *
 *     struct rx *r; rx_open("\\p{N}{1,3}", 10, &r, e);
 *     struct rx_scratch w; rx_scratch_init(&w);
 *     struct rx_iter it; rx_iter_init(&it, r, text, len);
 *     while ((rc = rx_next(&it, &w, &start, &end, e)) == STATUS_OK) ...     (STATUS_END at the end)
 *     rx_scratch_fini(&w); rx_close(r);
 *
 * A compiled expression is constant: any number of threads, each with its own scratch. */
#ifndef TEXT_RX_H
#define TEXT_RX_H

#include <stddef.h>

struct err;
struct buf;
struct rx;
struct words;

struct rx_scratch {
    void *match;   /* pcre2_match_data, made on first use */
    void *context; /* pcre2_match_context */
    void *stack;   /* pcre2_jit_stack, made when the small one did not do */
};
struct rx_iter {
    const struct rx *rx;
    const char *s; /* valid UTF-8 */
    size_t n, pos, last;
    int matched; /* `last` is the end of a match */
};

/* STATUS_UNSUPPORTED names the construct that has no translation; STATUS_FORMAT a syntax error. */
int rx_open(const char *pattern, size_t len, struct rx **out, struct err *e);
/* The same, always with PCRE2: rx_open gives well-known patterns to the matchers of words.h. */
int rx_open_pcre(const char *pattern, size_t len, struct rx **out, struct err *e);
/* The matcher by hand, or NULL. It needs no shadow (unicode.h) of its text. */
const struct words *rx_words(const struct rx *r);
void rx_close(struct rx *r);

void rx_scratch_init(struct rx_scratch *w);
void rx_scratch_fini(struct rx_scratch *w);

void rx_iter_init(struct rx_iter *it, const struct rx *r, const char *s, size_t n);
/* The next match, as offsets; matches do not overlap. STATUS_OK, STATUS_END or an error. */
int rx_next(struct rx_iter *it, struct rx_scratch *w, size_t *start, size_t *end, struct err *e);

/* The PCRE2 form of an Oniguruma pattern, appended to out; exported for tests. */
int rx_translate(const char *pattern, size_t len, struct buf *out, struct err *e);

#endif
