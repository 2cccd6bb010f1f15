/* The `decoder` of tokenizer.json: token texts back to text.
 *
 *     struct detok *d; detok_open(json_object_get(root, "decoder"), &d, e);
 *     detok_token(d, text, len, &buf);            (the bytes of one token, for streaming)
 *     detok_run(d, strings, n, &buf, e);          (the whole chain over all tokens)
 *     detok_close(d);
 *
 * Constant once open: any thread. */
#ifndef TEXT_DETOK_H
#define TEXT_DETOK_H

#include <stddef.h>

#include <jansson.h>

struct err;
struct buf;
struct detok;

struct detok_string {
    const char *s;
    size_t n;
};

/* spec may be NULL or JSON null: token texts joined by spaces, as the package does. Kinds:
 * ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace, WordPiece, BPEDecoder, CTC, Sequence;
 * others are STATUS_UNSUPPORTED by name. */
int detok_open(const json_t *spec, struct detok **out, struct err *e);
void detok_close(struct detok *d);
/* 1 when the text is just the tokens' bytes (detok_token) one after the other. */
int detok_is_bytes(const struct detok *d);
/* Appends what one token stands for, wherever it is in a text. */
void detok_token(const struct detok *d, const char *text, size_t len, struct buf *out);
/* Appends the text of all tokens, valid UTF-8. */
int detok_run(const struct detok *d, const struct detok_string *tok, size_t n, struct buf *out,
              struct err *e);

#endif
