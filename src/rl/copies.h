/* Copies of the model beside the one that is trained: the reference, and the versions that engines
 * sampled with (--ref-update-interval, --keep-old-actor).
 *
 *     struct copies c = {.actor = w, .ref = ref, .src = file};
 *     copies_open(&c, 2, &e);              room for two kept versions
 *     copies_keep(&c, &e);                 the actor as it is now, in place of the oldest
 *     w = copies_find(&c, version);        NULL: not kept
 *     copies_update_ref(&c, &e);
 *     copies_close(&c);
 *
 * A copy holds the actor's bf16 weights, packed as the actor's are: what is computed with it has
 * the bits that the actor's version had. */
#ifndef RL_COPIES_H
#define RL_COPIES_H

#include <stdint.h>

struct err;
struct weights;
struct wfile;

#define COPIES_MAX 2

struct copies {
    struct weights *actor, *ref; /* borrowed; ref may be NULL */
    const struct wfile *src;     /* borrowed: shapes */
    struct weights *kept[COPIES_MAX];
    int64_t version[COPIES_MAX]; /* -1: nothing kept yet */
    int n, next;
};

int copies_open(struct copies *c, int n, struct err *e);
void copies_close(struct copies *c);
/* Does nothing when the version is kept already. */
int copies_keep(struct copies *c, struct err *e);
struct weights *copies_find(const struct copies *c, int64_t version);
int copies_update_ref(struct copies *c, struct err *e);
/* The reference as a Hugging Face folder, and back from one. */
int copies_write_ref(struct copies *c, const char *dir, struct err *e);
int copies_read_ref(struct copies *c, const char *dir, struct err *e);

#endif
