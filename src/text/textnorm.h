/* The `normalizer` of tokenizer.json: what happens to text before it is cut into words.
 *
 *     struct textnorm *t; textnorm_open(json_object_get(root, "normalizer"), &t, e);
 *     textnorm_apply(t, s, n, &scratch, &buf, &changed, e);     (text is s when changed is 0)
 *     textnorm_close(t);
 *
 * Constant once open: any thread, each with its own scratch and buffer. */
#ifndef TEXT_TEXTNORM_H
#define TEXT_TEXTNORM_H

#include <stddef.h>

#include <jansson.h>

struct err;
struct buf;
struct rx_scratch;
struct textnorm;

/* spec may be NULL or JSON null: no change to any text. Kinds: NFC NFD NFKC NFKD, Prepend, Replace,
 * Strip, Lowercase, StripAccents, Nmt, BertNormalizer, Precompiled, ByteLevel, Sequence; others are
 * STATUS_UNSUPPORTED by name. */
int textnorm_open(const json_t *spec, struct textnorm **out, struct err *e);
void textnorm_close(struct textnorm *t);
/* s is valid UTF-8. With *changed the result is in out (cleared first), else it is s itself. */
int textnorm_apply(const struct textnorm *t, const char *s, size_t n, struct rx_scratch *w,
                   struct buf *out, int *changed, struct err *e);

#endif
