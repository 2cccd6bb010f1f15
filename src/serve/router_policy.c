/* Owns the choice among workers. */
#include "serve/router_policy.h"

#include <string.h>

#include "base/status.h"
#include "serve/router_worker.h"

enum {
    PREFIX_BLOCKS = 8, /* of prefix_hash: a kilobyte */
    MAX_SESSIONS = 1 << 20
};

void router_policy_init(struct router_policy *p, const struct router_policy_opts *o)
{
    size_t blocks = o->max_bytes / ROUTER_KEY_BLOCK;

    memset(p, 0, sizeof *p);
    p->o = *o;
    if (o->kind == ROUTER_POLICY_CACHE_AWARE) {
        p->cache = router_cache_new(blocks > 0 ? blocks : 1);
    } else if (o->kind == ROUTER_POLICY_MANUAL) {
        p->cache = router_cache_new(MAX_SESSIONS);
    }
}

void router_policy_fini(struct router_policy *p)
{
    router_cache_free(p->cache);
    p->cache = NULL;
}

int router_policy_wants(const struct router_policy *p)
{
    switch (p->o.kind) {
    case ROUTER_POLICY_CACHE_AWARE:
    case ROUTER_POLICY_PREFIX_HASH: return 1;
    case ROUTER_POLICY_MANUAL:
    case ROUTER_POLICY_CONSISTENT_HASHING: return 2;
    default: return 0;
    }
}

double router_policy_random(struct router_policy *p)
{
    uint64_t step = ++p->random;
    return (double)(router_key_hash(p->o.seed, &step, sizeof step) >> 11) * 0x1p-53;
}

static int random_below(struct router_policy *p, int n)
{
    return (int)(router_policy_random(p) * n);
}

static struct router_worker *least_load(struct router_policy *p, struct router_worker *const *w,
                                        int n)
{
    int first = (int)(p->turn++ % (uint64_t)n), best = first;

    for (int i = 1; i < n; i++) {
        int at = (first + i) % n;
        if (w[at]->load < w[best]->load) {
            best = at;
        }
    }
    return w[best];
}

static struct router_worker *power_of_two(struct router_policy *p, struct router_worker *const *w,
                                          int n)
{
    int a = random_below(p, n), b;

    if (n == 1) {
        return w[0];
    }
    b = (a + 1 + random_below(p, n - 1)) % n;
    return w[a]->load <= w[b]->load ? w[a] : w[b];
}

/* 1 when a load is so much larger than the smallest that nothing else counts. */
static int is_apart(const struct router_policy *p, int load, int smallest)
{
    return load - smallest > p->o.balance_abs && load > p->o.balance_rel * smallest;
}

static int smallest_load(struct router_worker *const *w, int n)
{
    int least = w[0]->load;

    for (int i = 1; i < n; i++) {
        least = w[i]->load < least ? w[i]->load : least;
    }
    return least;
}

/* The worker with the highest hash together with the key: when one comes or goes, only its own keys
 * move. Those whose load is apart are passed over if `bounded`. */
static struct router_worker *by_hash(const struct router_policy *p, struct router_worker *const *w,
                                     int n, uint64_t key, int bounded)
{
    struct router_worker *best = NULL;
    uint64_t most = 0;
    int least = smallest_load(w, n);

    for (int i = 0; i < n; i++) {
        uint64_t h = router_key_hash(key, &w[i]->url_hash, sizeof key);
        if ((!best || h > most) && !(bounded && is_apart(p, w[i]->load, least))) {
            best = w[i];
            most = h;
        }
    }
    return best;
}

/* Those of the usable workers that the cache names: with fewest requests. */
static struct router_worker *of_slots(struct router_worker *const *w, int n, const uint16_t *slots,
                                      int nslots)
{
    struct router_worker *best = NULL;

    for (int i = 0; i < nslots; i++) {
        for (int j = 0; j < n; j++) {
            if (w[j]->slot == slots[i] && (!best || w[j]->load < best->load)) {
                best = w[j];
            }
        }
    }
    return best;
}

static int find_known(const struct router_policy *p, struct router_worker *const *w, int n,
                      const struct router_key *k, uint16_t *slots, int *nslots)
{
    uint8_t usable[ROUTER_CACHE_SLOTS] = {0};

    for (int i = 0; i < n; i++) {
        usable[w[i]->slot] = 1;
    }
    return router_cache_find(p->cache, k, usable, slots, nslots);
}

static struct router_worker *cache_aware(struct router_policy *p, struct router_worker *const *w,
                                         int n, const struct router_key *k, double now)
{
    uint16_t slots[ROUTER_CACHE_WORKERS];
    struct router_worker *best = NULL;
    int nslots, known, most = 0, least = smallest_load(w, n);

    for (int i = 0; i < n; i++) {
        most = w[i]->load > most ? w[i]->load : most;
    }
    if (k->n > 0 && is_apart(p, most, least)) {
        p->balanced++;
    } else if (k->n > 0) {
        known = find_known(p, w, n, k, slots, &nslots);
        if ((double)router_key_bytes(k, known) > p->o.cache_threshold * (double)k->len) {
            best = of_slots(w, n, slots, nslots);
        }
        *(best ? &p->hits : &p->misses) += 1;
    }
    if (!best) {
        best = least_load(p, w, n);
    }
    router_cache_add(p->cache, k, best->slot, now);
    return best;
}

static struct router_worker *min_group(const struct router_policy *p,
                                       struct router_worker *const *w, int n)
{
    struct router_worker *best = w[0];

    for (int i = 1; i < n; i++) {
        if (router_cache_blocks_of(p->cache, w[i]->slot) <
            router_cache_blocks_of(p->cache, best->slot)) {
            best = w[i];
        }
    }
    return best;
}

static struct router_worker *manual(struct router_policy *p, struct router_worker *const *w, int n,
                                    const struct router_key *k, double now)
{
    uint16_t slots[ROUTER_CACHE_WORKERS];
    struct router_worker *best = NULL;
    int nslots;

    router_cache_expire(p->cache, now - p->o.max_idle_s);
    if (k->n == 0) {
        return least_load(p, w, n);
    }
    if (find_known(p, w, n, k, slots, &nslots) > 0) {
        best = of_slots(w, n, slots, 1); /* where it was last */
    } else {
        best = p->o.assign == ROUTER_POLICY_ASSIGN_RANDOM      ? w[random_below(p, n)]
               : p->o.assign == ROUTER_POLICY_ASSIGN_MIN_GROUP ? min_group(p, w, n)
                                                               : least_load(p, w, n);
    }
    router_cache_add(p->cache, k, best->slot, now);
    return best;
}

struct router_worker *router_policy_pick(struct router_policy *p, struct router_worker *const *w,
                                         int n, const struct router_key *k, double now)
{
    if (n == 0) {
        return NULL;
    }
    switch (p->o.kind) {
    case ROUTER_POLICY_CACHE_AWARE: return cache_aware(p, w, n, k, now);
    case ROUTER_POLICY_PREFIX_HASH:
        if (k->n > 0) {
            int at = k->n < PREFIX_BLOCKS ? k->n : PREFIX_BLOCKS;
            return by_hash(p, w, n, k->hash[at - 1], 1);
        }
        return least_load(p, w, n);
    case ROUTER_POLICY_LEAST_LOAD: return least_load(p, w, n);
    case ROUTER_POLICY_POWER_OF_TWO: return power_of_two(p, w, n);
    case ROUTER_POLICY_ROUND_ROBIN: return w[p->turn++ % (uint64_t)n];
    case ROUTER_POLICY_RANDOM: return w[random_below(p, n)];
    case ROUTER_POLICY_MANUAL: return manual(p, w, n, k, now);
    case ROUTER_POLICY_CONSISTENT_HASHING:
        return k->n > 0 ? by_hash(p, w, n, k->hash[0], 0) : least_load(p, w, n);
    }
    ASSERT(0);
    return NULL;
}

void router_policy_forget(struct router_policy *p, uint16_t slot)
{
    if (p->cache) {
        router_cache_forget(p->cache, slot);
    }
}

void router_policy_flush(struct router_policy *p, uint16_t slot)
{
    if (p->o.kind == ROUTER_POLICY_CACHE_AWARE) {
        router_cache_forget(p->cache, slot);
    }
}
