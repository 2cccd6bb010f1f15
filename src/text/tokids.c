/* Owns the growing of lists of ids: by doubling, never in a small step. */
#include "text/tokids.h"

#include "base/mem.h"
#include "base/status.h"

int tokids_grow(struct tokids *l, size_t n)
{
    size_t cap = l->cap ? l->cap : 64;
    int32_t *v;

    if (n > SIZE_MAX / 16 - l->n) {
        return STATUS_NOMEM;
    }
    while (cap < l->n + n) {
        cap *= 2;
    }
    v = mem_try(cap * sizeof *v);
    if (!v) {
        return STATUS_NOMEM;
    }
    if (l->n) {
        memcpy(v, l->v, l->n * sizeof *v);
    }
    mem_free(l->v);
    l->v = v;
    l->cap = cap;
    return 0;
}
