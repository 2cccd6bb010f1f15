/* The `pre_tokenizer` of tokenizer.json: cuts normalized text into the words that BPE works on.
 *
 *     struct pretok *p; pretok_open(json_object_get(root, "pre_tokenizer"), &p, e);
 *     struct pretok_work w; pretok_work_init(&w);
 *     pretok_run(p, text, len, 1, &w, e);
 *     for (i = 0; i < w.n; i++) use(w.piece[i].s, w.piece[i].n);
 *     pretok_work_fini(&w); pretok_close(p);
 *
 * Constant once open: any thread, each with its own work. */
#ifndef TEXT_PRETOK_H
#define TEXT_PRETOK_H

#include <stddef.h>

#include <jansson.h>

#include "base/mem.h"
#include "text/rx.h"

struct err;
struct pretok;

struct pretok_piece {
    const char *s;      /* the word */
    const char *shadow; /* during a run: what the expressions look at, of the same length */
    size_t n;
    int first; /* starts where the whole text starts */
};
struct pretok_cut {
    size_t a, b;
    int match;
};
struct pretok_work {
    struct pretok_piece *piece; /* the result of the last run; points into its text or the arena */
    size_t n, cap;
    struct pretok_piece *next;
    size_t nnext, capnext;
    struct pretok_cut *cut;
    size_t ncut, capcut;
    struct rx_scratch rx;
    struct arena arena;
    int failed; /* an array could not grow */
};

/* spec may be NULL or JSON null: the text is one word. Kinds: ByteLevel, Digits, Split, Metaspace,
 * Whitespace, WhitespaceSplit, BertPreTokenizer, Punctuation, CharDelimiterSplit, FixedLength,
 * Sequence; others are STATUS_UNSUPPORTED by name. */
int pretok_open(const json_t *spec, struct pretok **out, struct err *e);
void pretok_close(struct pretok *p);
/* 1 when words leave as bytes for a byte-level vocabulary. */
int pretok_is_byte_level(const struct pretok *p);
/* Words of ByteLevel leave spelled in the byte alphabet: for models that take no bytes. */
void pretok_keep_spelled(struct pretok *p);
/* When all that is done is to cut text at the matches of one well-known pattern: its matcher, for
 * a caller that takes the words one by one. Else NULL. */
const struct words *pretok_words(const struct pretok *p);

void pretok_work_init(struct pretok_work *w);
void pretok_work_fini(struct pretok_work *w);
/* Cuts valid UTF-8; `first` tells that it is the start of the whole text. Pieces are valid until
 * the next run on this work, and as long as s. */
int pretok_run(const struct pretok *p, const char *s, size_t n, int first, struct pretok_work *w,
               struct err *e);

#endif
