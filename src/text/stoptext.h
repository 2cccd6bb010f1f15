/* The text of a growing response, and the stop strings that end it. What could still become part of
 * a stop string is not shown.
 *
 *     struct stoptext t; stoptext_init(&t, tok, 1, stops, nstops, max);
 *     if (stoptext_push(&t, ids, n, 0, &e) == STATUS_END) ...    t.matched ends it
 *     show t.text.data up to t.shown;
 *     stoptext_fini(&t); */
#ifndef TEXT_STOPTEXT_H
#define TEXT_STOPTEXT_H

#include "base/buf.h"
#include "text/tokstream.h"

struct err;

struct stoptext_stop {
    const char *s;
    size_t n;
};

struct stoptext {
    struct tokstream stream;
    struct buf text;
    const struct stoptext_stop *stops; /* borrowed */
    int nstops;
    size_t longest;
    size_t shown;                        /* bytes that no stop string will take back */
    const struct stoptext_stop *matched; /* NULL: none yet */
    size_t matched_at;                   /* where in the text it begins */
};

/* tok may be NULL: there is no text then, and nothing stops. */
void stoptext_init(struct stoptext *t, const struct tokenizer *tok, int skip_special,
                   const struct stoptext_stop *stops, int nstops, size_t max);
void stoptext_fini(struct stoptext *t);
/* ids (n) begin with the tokens of the calls before; `last`: none will follow, all text is shown.
 * STATUS_END when a stop string is complete: the earliest in the text. */
int stoptext_push(struct stoptext *t, const int32_t *ids, size_t n, int last, struct err *e);

#endif
