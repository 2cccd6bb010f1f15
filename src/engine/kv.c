/* Owns the free list of KV pages. Pages are never cleared: what lies behind a sequence's last
 * position is not read (attention stops at the query's position). */
#include "engine/kv.h"

#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "model/weights.h"

int kv_open(struct kv_pool *p, const struct weights *w, int pages, struct err *e)
{
    const struct arch *a = &w->arch;
    int rc;

    memset(p, 0, sizeof *p);
    rc = device_kv(w->dev, &p->store, a->n_layers, a->n_kv_heads, a->head_dim, pages, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    p->n = p->free = pages;
    p->stack = mem_alloc(sizeof *p->stack * (size_t)pages);
    p->refs = mem_alloc(sizeof *p->refs * (size_t)pages);
    p->version = mem_alloc(sizeof *p->version * (size_t)pages);
    p->cached = mem_alloc((size_t)pages);
    for (int i = 0; i < pages; i++) {
        p->stack[i] = pages - 1 - i;
    }
    return STATUS_OK;
}

void kv_close(struct kv_pool *p)
{
    device_kv_free(&p->store);
    mem_free(p->stack);
    mem_free(p->refs);
    mem_free(p->version);
    mem_free(p->cached);
    memset(p, 0, sizeof *p);
}

int kv_take(struct kv_pool *p, int64_t version)
{
    int page;
    if (!p->free) {
        return -1;
    }
    page = p->stack[--p->free];
    p->refs[page] = 1;
    p->version[page] = version;
    return page;
}

void kv_share(struct kv_pool *p, int page)
{
    ASSERT(p->refs[page] > 0);
    p->idle -= p->cached[page] && p->refs[page] == 1;
    p->refs[page]++;
}

void kv_give(struct kv_pool *p, int page)
{
    ASSERT(p->refs[page] > p->cached[page]);
    p->refs[page]--;
    if (p->refs[page] == 0) {
        p->stack[p->free++] = page;
    } else {
        p->idle += p->cached[page] && p->refs[page] == 1;
    }
}

void kv_cache(struct kv_pool *p, int page)
{
    ASSERT(p->refs[page] > 0 && !p->cached[page]);
    p->refs[page]++;
    p->cached[page] = 1;
}

void kv_uncache(struct kv_pool *p, int page)
{
    ASSERT(p->cached[page]);
    p->idle -= p->refs[page] == 1;
    p->cached[page] = 0;
    kv_give(p, page);
}

void kv_copy(struct kv_pool *p, int from, int to)
{
    device_kv_copy(&p->store, from, to);
}
