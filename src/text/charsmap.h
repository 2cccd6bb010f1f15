/* The character map of SentencePiece models (`precompiled_charsmap`): a double-array trie from
 * byte strings to their replacements.
 *
 *     struct charsmap *m; charsmap_open(base64, n, &m, e);
 *     charsmap_apply(m, s, n, &out);
 *     charsmap_close(m);
 *
 * Constant once open: any thread. */
#ifndef TEXT_CHARSMAP_H
#define TEXT_CHARSMAP_H

#include <stddef.h>

struct buf;
struct err;
struct charsmap;

int charsmap_open(const char *base64, size_t n, struct charsmap **out, struct err *e);
void charsmap_close(struct charsmap *m);
/* Appends the mapped form of valid UTF-8. */
void charsmap_apply(const struct charsmap *m, const char *s, size_t n, struct buf *out);

#endif
