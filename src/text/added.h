/* Added tokens: texts that are cut out whole before anything else sees them (<|im_start|> and the
 * like), found leftmost first, longest of those.
 *
 *     struct added a; added_init(&a);
 *     added_put(&a, &token);                   (once per token; text is copied)
 *     added_finish(&a);
 *     added_next(&a, text, len, &pos, &hit)    (1 while there are hits)
 *     added_fini(&a);
 *
 * Constant after added_finish: any thread. */
#ifndef TEXT_ADDED_H
#define TEXT_ADDED_H

#include <stddef.h>
#include <stdint.h>

struct added_token {
    const char *text; /* what is looked for; owned by the set once put */
    size_t len;
    int32_t id;
    unsigned char single_word;    /* no word character may touch it */
    unsigned char lstrip, rstrip; /* takes the white space beside it */
};
struct added {
    struct added_token *tok; /* sorted by text after added_finish */
    size_t n, cap;
    uint32_t first[257]; /* tokens whose text starts with byte c: first[c] to first[c + 1] */
};
struct added_hit {
    size_t start, end; /* with the white space that was taken */
    int32_t id;
};
struct added_pos {
    size_t scan;  /* where to look next */
    size_t taken; /* the end of the last hit */
};

void added_init(struct added *a);
void added_fini(struct added *a);
/* A text put twice keeps the first. An empty text is ignored. 0 or STATUS_NOMEM. */
int added_put(struct added *a, const struct added_token *t);
void added_finish(struct added *a);
/* The next hit in valid UTF-8; pos starts zeroed. 1 and *hit, or 0 at the end. */
int added_next(const struct added *a, const char *s, size_t n, struct added_pos *pos,
               struct added_hit *hit);

#endif
