/* KV pages: a fixed pool, handed out and taken back page by page, with reference counts so that
 * samples of one prompt share its full pages.
 *
 *     struct kv_pool p; kv_open(&p, w, 1000, &e);
 *     int page = kv_take(&p);            -1 when none is free
 *     kv_share(&p, page); kv_give(&p, page);
 *     kv_close(&p); */
#ifndef ENGINE_KV_H
#define ENGINE_KV_H

#include <stdint.h>

#include "num/device.h"

struct err;
struct weights;

struct kv_pool {
    struct kv_store store;
    int n, free;
    int32_t *stack; /* free pages */
    int32_t *refs;  /* holders of each page */
};

int kv_open(struct kv_pool *p, const struct weights *w, int pages, struct err *e);
void kv_close(struct kv_pool *p);
int kv_take(struct kv_pool *p);
void kv_share(struct kv_pool *p, int page);
void kv_give(struct kv_pool *p, int page);
/* Copies the contents of a page, all layers and heads. */
void kv_copy(struct kv_pool *p, int from, int to);

#endif
