/* Owns the prefix cache's tree and its order of use. A node is a page, so the tree needs no memory
 * beyond one record per page of the pool, and nodes are never split: two sequences that part in the
 * middle of a page have a page each from there on. All records are in one ring by time of use, with
 * the root as its seam; a page is always used later than those below it, so the oldest is a leaf.
 */
#include "engine/radix.h"

#include <string.h>

#include "base/mem.h"
#include "base/status.h"

struct radix_node {
    int32_t parent;            /* -1: not in the tree */
    int32_t child, prev, next; /* first child; neighbours under the same parent; -1: none */
    int32_t newer, older;      /* ring by time of use */
    int32_t n;                 /* tokens whose rows are known */
    uint64_t born;             /* step that computes the last of them */
    int32_t tokens[PLAN_KV_BLOCK];
};

void radix_open(struct radix *t, struct kv_pool *kv)
{
    memset(t, 0, sizeof *t);
    t->kv = kv;
    t->node = mem_alloc(sizeof *t->node * (size_t)(kv->n + 1));
    for (int i = 0; i <= kv->n; i++) {
        t->node[i].parent = t->node[i].child = -1;
    }
    t->node[kv->n].newer = t->node[kv->n].older = kv->n;
}

void radix_close(struct radix *t)
{
    mem_free(t->node);
    memset(t, 0, sizeof *t);
}

void radix_tick(struct radix *t)
{
    t->clock++;
}

/* ---- the ring ---- */

static void radix_unlink(struct radix *t, int p)
{
    struct radix_node *x = &t->node[p];
    t->node[x->newer].older = x->older;
    t->node[x->older].newer = x->newer;
}

/* The root's `older` is the newest page, its `newer` the oldest. */
static void radix_newest(struct radix *t, int p)
{
    struct radix_node *x = &t->node[p], *root = &t->node[t->kv->n];
    x->newer = t->kv->n;
    x->older = root->older;
    t->node[x->older].newer = p;
    root->older = p;
}

/* A page was used, and with it all above it. */
static void radix_touch(struct radix *t, int p)
{
    for (; p != t->kv->n; p = t->node[p].parent) {
        radix_unlink(t, p);
        radix_newest(t, p);
    }
}

/* ---- the tree ---- */

static void radix_add(struct radix *t, int parent, int p)
{
    struct radix_node *x = &t->node[p], *up = &t->node[parent];
    ASSERT(x->parent < 0);
    kv_cache(t->kv, p);
    x->parent = parent;
    x->child = -1;
    x->prev = -1;
    x->next = up->child;
    if (up->child >= 0) {
        t->node[up->child].prev = p;
    }
    up->child = p;
    x->n = 0;
    radix_newest(t, p);
    t->count++;
}

static void radix_remove(struct radix *t, int p)
{
    struct radix_node *x = &t->node[p];
    ASSERT(x->parent >= 0 && x->child < 0);
    if (x->prev >= 0) {
        t->node[x->prev].next = x->next;
    } else {
        t->node[x->parent].child = x->next;
    }
    if (x->next >= 0) {
        t->node[x->next].prev = x->prev;
    }
    radix_unlink(t, p);
    x->parent = -1;
    t->count--;
    kv_uncache(t->kv, p);
}

static int radix_common(const struct radix_node *x, const int32_t *tokens, int n)
{
    int k = 0;
    n = n < x->n ? n : x->n;
    while (k < n && x->tokens[k] == tokens[k]) {
        k++;
    }
    return k;
}

/* The child that begins with most of tokens (n), or -1. settled: a page whose rows are computed in
 * this step is good only as a whole. */
static int radix_child(const struct radix *t, int64_t version, int parent, const int32_t *tokens,
                       int n, int settled, int *common)
{
    int best = -1;
    *common = 0;
    for (int c = t->node[parent].child; c >= 0 && *common < n; c = t->node[c].next) {
        const struct radix_node *x = &t->node[c];
        int k = t->kv->version[c] == version ? radix_common(x, tokens, n) : 0;
        if (k > *common && (!settled || k == PLAN_KV_BLOCK || x->born < t->clock)) {
            best = c;
            *common = k;
        }
    }
    return best;
}

int radix_match(struct radix *t, int64_t version, const int32_t *tokens, int n, int32_t *pages,
                int *part, int *npart)
{
    int at = t->kv->n, count = 0;

    *part = -1;
    *npart = 0;
    while (n > 0) {
        int m = n < PLAN_KV_BLOCK ? n : PLAN_KV_BLOCK, k;
        int c = radix_child(t, version, at, tokens, m, 1, &k);
        if (c < 0) {
            break;
        }
        kv_share(t->kv, c);
        at = c;
        if (k < PLAN_KV_BLOCK) {
            *part = c;
            *npart = k;
            break;
        }
        pages[count++] = c;
        tokens += k;
        n -= k;
    }
    radix_touch(t, at);
    return count;
}

/* Page p of the caller holds the rows of tokens (m) below `at`. Returns the page that the tree has
 * for them, or -1 when the walk ends here. */
static int radix_put(struct radix *t, int64_t version, int at, const int32_t *tokens, int m, int p,
                     int settled)
{
    struct radix_node *x = &t->node[p];
    int k, c = radix_child(t, version, at, tokens, m, 0, &k);

    if (c >= 0 && k == m) { /* known */
        return c == p || settled ? c : -1;
    }
    if (c >= 0 && k == t->node[c].n && c != p) { /* ours goes further than that page */
        radix_remove(t, c);
        c = -1;
    }
    if (c != p) {
        radix_add(t, at, p);
    }
    memcpy(x->tokens + x->n, tokens + x->n, sizeof *tokens * (size_t)(m - x->n));
    x->n = m;
    x->born = t->clock;
    return p;
}

void radix_insert(struct radix *t, int64_t version, const int32_t *tokens, int n, int32_t *pages,
                  int settled)
{
    int at = t->kv->n;

    for (int i = 0; n > 0; i++) {
        int m = n < PLAN_KV_BLOCK ? n : PLAN_KV_BLOCK, c;
        if ((m < PLAN_KV_BLOCK && !settled) || t->kv->version[pages[i]] != version) {
            break;
        }
        c = radix_put(t, version, at, tokens, m, pages[i], settled);
        if (c < 0) {
            break;
        }
        at = c;
        if (c != pages[i] && m == PLAN_KV_BLOCK) {
            kv_share(t->kv, c);
            kv_give(t->kv, pages[i]);
            pages[i] = c;
        }
        tokens += m;
        n -= m;
    }
    radix_touch(t, at);
}

int radix_evict(struct radix *t)
{
    for (int p = t->node[t->kv->n].newer; p != t->kv->n; p = t->node[p].newer) {
        if (t->kv->refs[p] == 1 && t->node[p].child < 0) {
            radix_remove(t, p);
            t->evicted++;
            return 1;
        }
    }
    return 0;
}

void radix_forget(struct radix *t, int64_t version, const int32_t *tokens, int n)
{
    int at = t->kv->n;

    while (n > 0) {
        int m = n < PLAN_KV_BLOCK ? n : PLAN_KV_BLOCK, k;
        int c = radix_child(t, version, at, tokens, m, 0, &k);
        if (c < 0 || k < t->node[c].n) { /* what is known goes another way, or further */
            break;
        }
        at = c;
        tokens += k;
        n = k < PLAN_KV_BLOCK ? 0 : n - k;
    }
    while (at != t->kv->n && t->kv->refs[at] == 1 && t->node[at].child < 0) {
        int up = t->node[at].parent;
        radix_remove(t, at);
        at = up;
    }
}

void radix_clear(struct radix *t)
{
    /* the oldest is a leaf */
    while (t->node[t->kv->n].newer != t->kv->n) {
        radix_remove(t, t->node[t->kv->n].newer);
    }
}

static int radix_check_node(const struct radix *t, int p, struct err *e)
{
    const struct radix_node *x = &t->node[p];
    int idle = t->kv->refs[p] == 1;

    if (!t->kv->cached[p] || t->kv->refs[p] < 1) {
        return ERR(e, STATUS_FAIL, "page %d is in the tree but free", p);
    }
    if (x->parent != t->kv->n && t->node[x->parent].n != PLAN_KV_BLOCK) {
        return ERR(e, STATUS_FAIL, "page %d hangs below one of %d tokens", p, t->node[x->parent].n);
    }
    if (x->n < 1 || x->n > PLAN_KV_BLOCK) {
        return ERR(e, STATUS_FAIL, "page %d has %d tokens", p, x->n);
    }
    for (int c = x->child; c >= 0; c = t->node[c].next) {
        if (t->node[c].parent != p || (idle && t->kv->refs[c] > 1)) {
            return ERR(e, STATUS_FAIL, "page %d below %d is held, or not its child", c, p);
        }
    }
    for (int c = t->node[x->parent].child; c >= 0; c = t->node[c].next) {
        int shorter = x->n < t->node[c].n ? x->n : t->node[c].n;
        if (c != p && t->kv->version[c] == t->kv->version[p] &&
            radix_common(&t->node[c], x->tokens, x->n) == shorter) {
            return ERR(e, STATUS_FAIL, "pages %d and %d begin alike", c, p);
        }
    }
    return STATUS_OK;
}

int radix_check(const struct radix *t, struct err *e)
{
    int n = 0, idle = 0, rc = STATUS_OK;

    for (int p = t->node[t->kv->n].newer; rc == STATUS_OK && p != t->kv->n; p = t->node[p].newer) {
        for (int q = t->node[p].newer; q != t->kv->n; q = t->node[q].newer) {
            if (t->node[q].parent == p) {
                return ERR(e, STATUS_FAIL, "page %d was used after %d above it", q, p);
            }
        }
        rc = radix_check_node(t, p, e);
        idle += t->kv->refs[p] == 1;
        n++;
    }
    if (rc == STATUS_OK && (n != t->count || idle != t->kv->idle)) {
        rc = ERR(e, STATUS_FAIL, "%d pages (%d idle) in the tree, counted %d (%d)", n, idle,
                 t->count, t->kv->idle);
    }
    return rc;
}
