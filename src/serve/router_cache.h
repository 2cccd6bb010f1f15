/* What the workers' prefix caches are likely to hold: which of them were sent which blocks of
 * prompts. Bounded: the blocks not seen for the longest time are forgotten first, and of one prompt
 * the last before the first.
 *
 *     struct router_cache *c = router_cache_new(1 << 19);
 *     n = router_cache_find(c, &key, usable, out, &nout);    the longest known beginning
 *     router_cache_add(c, &key, slot, now);
 *     router_cache_forget(c, slot);                          a worker has gone
 *     router_cache_free(c);
 *
 * Workers are named by small numbers, their slots. One thread at a time. */
#ifndef SERVE_ROUTER_CACHE_H
#define SERVE_ROUTER_CACHE_H

#include <stddef.h>
#include <stdint.h>

#include "serve/router_key.h"

enum {
    ROUTER_CACHE_WORKERS = 8, /* of one block; the ones that were sent it last */
    ROUTER_CACHE_SLOTS = 4096
};

struct router_cache;

struct router_cache *router_cache_new(size_t max_blocks);
void router_cache_free(struct router_cache *c); /* NULL is fine */
/* Blocks of k that were sent to a worker whose usable[slot] is set, 0 when there are none; these
 * workers, the latest first, in out. */
int router_cache_find(const struct router_cache *c, const struct router_key *k,
                      const uint8_t *usable, uint16_t out[ROUTER_CACHE_WORKERS], int *nout);
void router_cache_add(struct router_cache *c, const struct router_key *k, uint16_t slot,
                      double now);
void router_cache_forget(struct router_cache *c, uint16_t slot);
/* Forgets what was not seen since `before`. */
void router_cache_expire(struct router_cache *c, double before);
/* Blocks known, of all and of one worker. */
size_t router_cache_blocks(const struct router_cache *c);
size_t router_cache_blocks_of(const struct router_cache *c, uint16_t slot);

#endif
