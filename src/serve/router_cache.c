/* Owns a table of blocks by hash, and their order of use. A block's hash stands for the whole
 * beginning up to it, so that a table serves as well as a tree: the longest known beginning is the
 * last hash of a chain that is found. Touching the last block first keeps every block older than
 * those before it, so that what is thrown out never leaves a gap.
 *
 * All memory is reserved once; the system gives pages as they are used. */
#include "serve/router_cache.h"

#include <string.h>

#include "base/mem.h"
#include "base/status.h"

#define NONE UINT32_MAX

struct cache_block {
    uint64_t hash;
    double used;
    uint32_t chain;        /* the next of its bucket */
    uint32_t newer, older; /* in the order of use */
    uint16_t workers[ROUTER_CACHE_WORKERS];
    uint16_t n;
};

struct router_cache {
    struct cache_block *blocks;
    uint32_t *buckets; /* 1 + index, 0 is empty */
    size_t max, nbuckets;
    uint32_t used; /* blocks ever handed out */
    uint32_t free; /* list of those given back, by chain */
    uint32_t newest, oldest;
    size_t count;
    uint32_t of[ROUTER_CACHE_SLOTS];
};

struct router_cache *router_cache_new(size_t max_blocks)
{
    struct router_cache *c = mem_alloc(sizeof *c);

    ASSERT(max_blocks > 0 && max_blocks < NONE);
    c->max = max_blocks;
    c->nbuckets = 64;
    while (c->nbuckets < max_blocks) {
        c->nbuckets *= 2;
    }
    c->blocks = mem_map(sizeof *c->blocks * c->max);
    c->buckets = mem_map(sizeof *c->buckets * c->nbuckets);
    ASSERT(c->blocks && c->buckets);
    c->free = c->newest = c->oldest = NONE;
    return c;
}

void router_cache_free(struct router_cache *c)
{
    if (c) {
        mem_unmap(c->blocks, sizeof *c->blocks * c->max);
        mem_unmap(c->buckets, sizeof *c->buckets * c->nbuckets);
        mem_free(c);
    }
}

static uint32_t *bucket_of(const struct router_cache *c, uint64_t hash)
{
    return &c->buckets[hash & (c->nbuckets - 1)];
}

static uint32_t find_block(const struct router_cache *c, uint64_t hash)
{
    uint32_t i = *bucket_of(c, hash);

    while (i && c->blocks[i - 1].hash != hash) {
        i = c->blocks[i - 1].chain;
    }
    return i ? i - 1 : NONE;
}

static void unlink_use(struct router_cache *c, uint32_t i)
{
    struct cache_block *b = &c->blocks[i];

    *(b->newer == NONE ? &c->newest : &c->blocks[b->newer].older) = b->older;
    *(b->older == NONE ? &c->oldest : &c->blocks[b->older].newer) = b->newer;
}

static void link_use(struct router_cache *c, uint32_t i)
{
    struct cache_block *b = &c->blocks[i];

    b->newer = NONE;
    b->older = c->newest;
    *(c->newest == NONE ? &c->oldest : &c->blocks[c->newest].newer) = i;
    c->newest = i;
}

static void drop_block(struct router_cache *c, uint32_t i)
{
    struct cache_block *b = &c->blocks[i];
    uint32_t *at = bucket_of(c, b->hash);

    while (*at != i + 1) {
        at = &c->blocks[*at - 1].chain;
    }
    *at = b->chain;
    unlink_use(c, i);
    for (int k = 0; k < b->n; k++) {
        c->of[b->workers[k]]--;
    }
    b->n = 0;
    b->chain = c->free;
    c->free = i;
    c->count--;
}

static uint32_t new_block(struct router_cache *c, uint64_t hash)
{
    uint32_t i, *bucket = bucket_of(c, hash);

    if (c->free == NONE && c->used == c->max) {
        drop_block(c, c->oldest);
    }
    if (c->free != NONE) {
        i = c->free;
        c->free = c->blocks[i].chain;
    } else {
        i = c->used++;
    }
    c->blocks[i].hash = hash;
    c->blocks[i].n = 0;
    c->blocks[i].chain = *bucket;
    *bucket = i + 1;
    c->count++;
    return i;
}

/* Puts the worker first among those of the block. */
static void mark_block(struct router_cache *c, struct cache_block *b, uint16_t slot)
{
    int at = 0;

    while (at < b->n && b->workers[at] != slot) {
        at++;
    }
    if (at == b->n) { /* not yet among them */
        c->of[slot]++;
        if (b->n == ROUTER_CACHE_WORKERS) {
            c->of[b->workers[--at]]--;
        } else {
            b->n++;
        }
    }
    memmove(b->workers + 1, b->workers, sizeof *b->workers * (size_t)at);
    b->workers[0] = slot;
}

int router_cache_find(const struct router_cache *c, const struct router_key *k,
                      const uint8_t *usable, uint16_t out[ROUTER_CACHE_WORKERS], int *nout)
{
    int best = 0;

    *nout = 0;
    for (int i = 0; i < k->n; i++) {
        uint32_t at = find_block(c, k->hash[i]);
        const struct cache_block *b;
        int n = 0;
        if (at == NONE) {
            break;
        }
        b = &c->blocks[at];
        for (int j = 0; j < b->n; j++) {
            n += usable[b->workers[j]] != 0;
        }
        if (n == 0) {
            continue; /* a worker that went may have been sent more than those that are left */
        }
        best = i + 1;
        *nout = 0;
        for (int j = 0; j < b->n; j++) {
            if (usable[b->workers[j]]) {
                out[(*nout)++] = b->workers[j];
            }
        }
    }
    return best;
}

void router_cache_add(struct router_cache *c, const struct router_key *k, uint16_t slot, double now)
{
    int n = (size_t)k->n <= c->max ? k->n : (int)c->max;

    ASSERT(slot < ROUTER_CACHE_SLOTS);
    for (int i = n - 1; i >= 0; i--) {
        uint32_t at = find_block(c, k->hash[i]);
        if (at == NONE) {
            at = new_block(c, k->hash[i]);
        } else {
            unlink_use(c, at);
        }
        link_use(c, at);
        c->blocks[at].used = now;
        mark_block(c, &c->blocks[at], slot);
    }
}

void router_cache_forget(struct router_cache *c, uint16_t slot)
{
    for (uint32_t i = c->oldest, newer; i != NONE && c->of[slot] > 0; i = newer) {
        struct cache_block *b = &c->blocks[i];
        int at = 0;
        newer = b->newer;
        while (at < b->n && b->workers[at] != slot) {
            at++;
        }
        if (at == b->n) {
            continue;
        }
        if (b->n == 1) {
            drop_block(c, i);
            continue;
        }
        b->n--;
        memmove(b->workers + at, b->workers + at + 1, sizeof *b->workers * (size_t)(b->n - at));
        c->of[slot]--;
    }
}

void router_cache_expire(struct router_cache *c, double before)
{
    while (c->oldest != NONE && c->blocks[c->oldest].used < before) {
        drop_block(c, c->oldest);
    }
}

size_t router_cache_blocks(const struct router_cache *c)
{
    return c->count;
}

size_t router_cache_blocks_of(const struct router_cache *c, uint16_t slot)
{
    return c->of[slot];
}
