/* A growing list of token ids.
 *
 *     struct tokids l = {0};
 *     if (tokids_add(&l, ids, n)) ...      STATUS_NOMEM
 *     mem_free(l.v); */
#ifndef TEXT_TOKIDS_H
#define TEXT_TOKIDS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct tokids {
    int32_t *v;
    size_t n, cap;
};

/* Makes room for n more. 0 or STATUS_NOMEM. */
int tokids_grow(struct tokids *l, size_t n);

/* Appends n ids. 0 or STATUS_NOMEM. */
static inline int tokids_add(struct tokids *l, const int32_t *ids, size_t n)
{
    int rc = l->cap - l->n < n ? tokids_grow(l, n) : 0;

    if (rc == 0 && n) {
        memcpy(l->v + l->n, ids, n * sizeof *ids);
        l->n += n;
    }
    return rc;
}

#endif
