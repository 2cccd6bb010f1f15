/* The prefix cache: which KV pages hold the rows of which tokens. A tree whose nodes are pages: the
 * path from the root to a page spells the tokens whose rows the pages on it hold. A page at the end
 * of a path may be filled in part; the sequence that took it from the pool goes on writing behind
 * what the tree knows of it, everybody else copies it first.
 *
 *     struct radix t; radix_open(&t, &pool);
 *     n = radix_match(&t, version, tokens, ntokens, pages, &part, &npart);
 *     ... compute the rest ...
 *     radix_insert(&t, version, tokens, ntokens, pages, 1);
 *     radix_evict(&t);                     the page least recently used goes back to the pool
 *     radix_close(&t);
 *
 * Memory is taken when opened. Who holds a page of the tree holds all pages above it: so what only
 * the tree holds can be freed from the leaves up, oldest first. */
#ifndef ENGINE_RADIX_H
#define ENGINE_RADIX_H

#include <stdint.h>

#include "engine/kv.h"

struct err;
struct radix_node;

struct radix {
    struct kv_pool *kv;
    struct radix_node *node; /* (kv->n + 1): by page; the last is the root */
    int count;               /* pages in the tree */
    uint64_t clock;          /* steps: rows of pages inserted in this one are not there yet */
    int64_t evicted;
};

void radix_open(struct radix *t, struct kv_pool *kv);
void radix_close(struct radix *t); /* the pool may be closed before */
/* A step begins. */
void radix_tick(struct radix *t);

/* The longest prefix of tokens (n) whose rows are there under `version`. Whole pages go to
 * pages[], shared with the caller; their number is returned. When a further page begins with some
 * of the next tokens, *part is that page, shared too, and *npart their number; else *part is -1.
 * Its rows may be copied at once: none of them is computed in this step. */
int radix_match(struct radix *t, int64_t version, const int32_t *tokens, int n, int32_t *pages,
                int *part, int *npart);

/* Makes the first n tokens' rows known. settled 0: they are computed in this step; whole pages
 * only. settled 1: they are there; where the tree has a page with the same rows, the caller's is
 * exchanged for it. Pages of another version end the walk. */
void radix_insert(struct radix *t, int64_t version, const int32_t *tokens, int n, int32_t *pages,
                  int settled);

/* Frees the page that only the tree holds and that was used longest ago. 0 when there is none. */
int radix_evict(struct radix *t);
/* Forgets the pages of these tokens, from the end, as far as nobody holds them or goes on from
 * them.
 */
void radix_forget(struct radix *t, int64_t version, const int32_t *tokens, int n);
/* Forgets everything; pages that others hold stay theirs. */
void radix_clear(struct radix *t);
/* STATUS_FAIL with the cause when the tree contradicts itself or its pool; for tests. */
int radix_check(const struct radix *t, struct err *e);

#endif
