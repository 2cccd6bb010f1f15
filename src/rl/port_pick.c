/* Owns a heap of engines by what they have to do. */
#include "rl/port_pick.h"

#include <string.h>

#include "base/mem.h"
#include "base/status.h"

void port_pick_init(struct port_pick *k, int engines)
{
    memset(k, 0, sizeof *k);
    port_pick_grow(k, engines);
}

void port_pick_fini(struct port_pick *k)
{
    mem_free(k->heap);
    mem_free(k->at);
    mem_free(k->load);
    memset(k, 0, sizeof *k);
}

void port_pick_grow(struct port_pick *k, int engines)
{
    size_t old = sizeof(int) * (size_t)k->n, bytes = sizeof(int) * (size_t)engines;

    ASSERT(engines >= k->n);
    k->heap = mem_realloc(k->heap, old, bytes);
    k->at = mem_realloc(k->at, old, bytes);
    k->load = mem_realloc(k->load, old, bytes);
    for (int i = k->n; i < engines; i++) {
        k->at[i] = -1;
    }
    k->n = engines;
}

static int port_pick_before(const struct port_pick *k, int a, int b)
{
    return k->load[a] < k->load[b] || (k->load[a] == k->load[b] && a < b);
}

static void port_pick_put(struct port_pick *k, int at, int engine)
{
    k->heap[at] = engine;
    k->at[engine] = at;
}

/* The engine at a place, which may be too low or too high, goes where it belongs. */
static void port_pick_settle(struct port_pick *k, int at)
{
    int engine = k->heap[at], child;

    for (; at > 0 && port_pick_before(k, engine, k->heap[(at - 1) / 2]); at = (at - 1) / 2) {
        port_pick_put(k, at, k->heap[(at - 1) / 2]);
    }
    while ((child = 2 * at + 1) < k->count) {
        child += child + 1 < k->count && port_pick_before(k, k->heap[child + 1], k->heap[child]);
        if (!port_pick_before(k, k->heap[child], engine)) {
            break;
        }
        port_pick_put(k, at, k->heap[child]);
        at = child;
    }
    port_pick_put(k, at, engine);
}

void port_pick_set(struct port_pick *k, int engine, int load)
{
    int at = k->at[engine];

    k->idle -= at >= 0 && k->load[engine] == 0;
    k->idle += load == 0;
    k->load[engine] = load;
    if (load >= 0) {
        if (at < 0) {
            at = k->count++;
            port_pick_put(k, at, engine);
        }
        port_pick_settle(k, at);
    } else if (at >= 0) {
        k->at[engine] = -1;
        if (at < --k->count) {
            port_pick_put(k, at, k->heap[k->count]);
            port_pick_settle(k, at);
        }
    }
}

int port_pick_least(const struct port_pick *k)
{
    return k->count ? k->heap[0] : -1;
}
