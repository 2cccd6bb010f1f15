/* Which worker gets a request.
 *
 *     router_policy_init(&p, &opts);
 *     w = router_policy_pick(&p, usable, n, &key, session, now);
 *     router_policy_forget(&p, slot);         a worker has gone
 *     router_policy_fini(&p);
 *
 * cache_aware         the worker that was sent the longest beginning of this prompt, if that is
 * more than `cache_threshold` of it, else the least loaded; when the loads are apart (largest -
 * smallest > balance_abs and largest > balance_rel * smallest) always the least loaded prefix_hash
 * by the hash of the prompt's first kilobyte, so that many routers agree without talking to each
 * other; workers whose load is apart are passed over least_load          fewest requests on their
 * way power_of_two        the less loaded of two random ones round_robin, random manual a session
 * stays where it was first put (at random, by load, or where the fewest sessions are)
 * consistent_hashing  by the hash of the session's name
 *
 * Requests without a prompt or a session, as the case may be, go to the least loaded. Of workers
 * with equal loads each is taken in turn. One thread at a time. */
#ifndef SERVE_ROUTER_POLICY_H
#define SERVE_ROUTER_POLICY_H

#include <stddef.h>
#include <stdint.h>

#include "serve/router_cache.h"

struct router_worker;

enum router_policy_kind {
    ROUTER_POLICY_CACHE_AWARE,
    ROUTER_POLICY_PREFIX_HASH,
    ROUTER_POLICY_LEAST_LOAD,
    ROUTER_POLICY_POWER_OF_TWO,
    ROUTER_POLICY_ROUND_ROBIN,
    ROUTER_POLICY_RANDOM,
    ROUTER_POLICY_MANUAL,
    ROUTER_POLICY_CONSISTENT_HASHING
};
/* In that order, for the choices of a flag. */
#define ROUTER_POLICY_CHOICES                                                                      \
    "cache_aware|prefix_hash|least_load|power_of_two|round_robin|random|manual|consistent_hashing"

enum router_policy_assign { /* of manual */
                            ROUTER_POLICY_ASSIGN_RANDOM,
                            ROUTER_POLICY_ASSIGN_MIN_LOAD,
                            ROUTER_POLICY_ASSIGN_MIN_GROUP
};

struct router_policy_opts {
    enum router_policy_kind kind;
    enum router_policy_assign assign;
    double cache_threshold, balance_rel;
    int64_t balance_abs;
    size_t max_bytes;  /* of prompts remembered */
    double max_idle_s; /* sessions not seen for so long are forgotten */
    uint64_t seed;
};

struct router_policy {
    struct router_policy_opts o;
    struct router_cache *cache; /* of prompts or of sessions; NULL for policies that need none */
    uint64_t turn, random;      /* how often each was asked */
    uint64_t hits, misses, balanced; /* of cache_aware; the last: loads were apart */
};

void router_policy_init(struct router_policy *p, const struct router_policy_opts *o);
void router_policy_fini(struct router_policy *p);
/* 1 when the policy looks at prompts; 2 when it looks at the session's name. */
int router_policy_wants(const struct router_policy *p);
/* One of the n usable workers; NULL when n is 0. `k` is the prompt's, or the session's one block;
 * it may have no blocks. */
struct router_worker *router_policy_pick(struct router_policy *p, struct router_worker *const *w,
                                         int n, const struct router_key *k, double now);
void router_policy_forget(struct router_policy *p, uint16_t slot);
/* The worker's prefix cache was emptied; sessions stay where they are. */
void router_policy_flush(struct router_policy *p, uint16_t slot);
/* In [0, 1). */
double router_policy_random(struct router_policy *p);

#endif
