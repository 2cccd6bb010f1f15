/* KV pages: a fixed pool, handed out and taken back page by page. A page has as many holders as
 * read it; the prefix cache (engine/radix.h) is one of them. Each carries the version of the
 * weights that its rows were computed with.
 *
 *     struct kv_pool p; kv_open(&p, w, 1000, &e);
 *     int page = kv_take(&p, version);   -1 when none is free
 *     kv_share(&p, page); kv_give(&p, page);
 *     kv_close(&p); */
#ifndef ENGINE_KV_H
#define ENGINE_KV_H

#include <stdint.h>

#include "num/device.h"

struct err;
struct weights;

#define KV_MIXED                                                                                   \
    (-1) /* version of a page with rows of several versions: nobody else may read it               \
          */

struct kv_pool {
    struct kv_store store;
    int n, free;
    int idle;         /* pages that only the prefix cache holds */
    int32_t *stack;   /* free pages */
    int32_t *refs;    /* holders of each page */
    int64_t *version; /* of the weights behind each page's rows */
    uint8_t *cached;  /* 1: the prefix cache is one of the holders */
};

int kv_open(struct kv_pool *p, const struct weights *w, int pages, struct err *e);
void kv_close(struct kv_pool *p);
int kv_take(struct kv_pool *p, int64_t version);
void kv_share(struct kv_pool *p, int page);
void kv_give(struct kv_pool *p, int page);
/* The prefix cache becomes a holder of a page that somebody holds, or stops being one. */
void kv_cache(struct kv_pool *p, int page);
void kv_uncache(struct kv_pool *p, int page);
/* Copies the contents of a page, all layers and heads. */
void kv_copy(struct kv_pool *p, int from, int to);

#endif
