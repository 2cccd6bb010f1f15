/* WordPiece and WordLevel: a word is cut greedily into the longest tokens, or is one token.
 *
 *     struct wordpiece *w = wordpiece_new(vocab);
 *     wordpiece_finish(w, &options, e);
 *     wordpiece_encode(w, word, len, &ids, e);
 *     wordpiece_free(w);
 *
 * Constant after wordpiece_finish but for a cache without locks: any thread. */
#ifndef TEXT_WORDPIECE_H
#define TEXT_WORDPIECE_H

#include <stddef.h>

struct err;
struct tokids;
struct vocab;
struct wordpiece;

struct wordpiece_options {
    const char *unk_token; /* of a word that cannot be cut; it may be missing until it is needed */
    const char *prefix;    /* before every token of a word but the first: "##" */
    size_t max_chars;      /* a longer word is unknown */
    int whole;             /* WordLevel: a word is one token or unknown */
};

struct wordpiece *wordpiece_new(const struct vocab *v); /* borrowed */
void wordpiece_free(struct wordpiece *w);               /* NULL is fine */
int wordpiece_finish(struct wordpiece *w, const struct wordpiece_options *o, struct err *e);
/* Appends the tokens of one word of valid UTF-8. STATUS_INPUT when it is unknown and the vocabulary
 * has no token for that. */
int wordpiece_encode(const struct wordpiece *w, const char *word, size_t len, struct tokids *out,
                     struct err *e);

#endif
