/* Owns the partition of a rollout into optimizer steps, micro-batches and ranks. Every order below
 * is total (ties are broken by index), so a plan is a function of its inputs on any machine. */
#include "train/pack.h"

#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/status.h"

/* A bin that grows while packing. */
struct vec {
    int64_t *v;
    int64_t n, cap, sum;
};

struct vecs {
    struct vec *v;
    int64_t n, cap;
};

static void vec_push(struct vec *b, int64_t item, int64_t weight)
{
    if (b->n == b->cap) {
        int64_t cap = b->cap ? b->cap * 2 : 4;
        b->v = mem_realloc(b->v, (size_t)b->n * sizeof *b->v, (size_t)cap * sizeof *b->v);
        b->cap = cap;
    }
    b->v[b->n++] = item;
    b->sum += weight;
}

static struct vec *vecs_push(struct vecs *b)
{
    if (b->n == b->cap) {
        int64_t cap = b->cap ? b->cap * 2 : 16;
        b->v = mem_realloc(b->v, (size_t)b->n * sizeof *b->v, (size_t)cap * sizeof *b->v);
        b->cap = cap;
    }
    memset(&b->v[b->n], 0, sizeof b->v[0]);
    return &b->v[b->n++];
}

static void vecs_fini(struct vecs *b)
{
    for (int64_t i = 0; i < b->n; i++) {
        mem_free(b->v[i].v);
    }
    mem_free(b->v);
    memset(b, 0, sizeof *b);
}

static void vecs_to_bins(const struct vecs *b, struct pack_bins *out)
{
    int64_t total = 0;
    for (int64_t i = 0; i < b->n; i++) {
        total += b->v[i].n;
    }
    out->n = b->n;
    out->start = mem_alloc((size_t)(b->n + 1) * sizeof *out->start);
    out->items = mem_alloc((size_t)(total + 1) * sizeof *out->items);
    for (int64_t i = 0; i < b->n; i++) {
        out->start[i + 1] = out->start[i] + b->v[i].n;
        if (b->v[i].n) {
            memcpy(out->items + out->start[i], b->v[i].v, (size_t)b->v[i].n * sizeof *b->v[i].v);
        }
    }
}

static void vecs_from_bins(const struct pack_bins *b, const int64_t *len, struct vecs *out)
{
    memset(out, 0, sizeof *out);
    for (int64_t i = 0; i < b->n; i++) {
        struct vec *v = vecs_push(out);
        for (int64_t j = b->start[i]; j < b->start[i + 1]; j++) {
            vec_push(v, b->items[j], len[b->items[j]]);
        }
    }
}

void pack_bins_fini(struct pack_bins *b)
{
    mem_free(b->start);
    mem_free(b->items);
    memset(b, 0, sizeof *b);
}

/* An item to sort: descending by weight, then by place. */
struct keyed {
    int64_t weight, place, item;
};

static int by_weight_desc(const void *pa, const void *pb)
{
    const struct keyed *a = pa, *b = pb;
    if (a->weight != b->weight) {
        return a->weight > b->weight ? -1 : 1;
    }
    return a->place < b->place ? -1 : a->place > b->place;
}

static struct keyed *keyed_new(const int64_t *items, int64_t n, const int64_t *len)
{
    struct keyed *k = mem_alloc((size_t)(n + 1) * sizeof *k);
    for (int64_t i = 0; i < n; i++) {
        int64_t item = items ? items[i] : i;
        k[i] = (struct keyed){len[item], i, item};
    }
    return k;
}

static void first_fit(const int64_t *items, int64_t n, const int64_t *len, int64_t cap,
                      int decreasing, struct vecs *out)
{
    struct keyed *k = keyed_new(items, n, len);
    memset(out, 0, sizeof *out);
    if (decreasing) {
        qsort(k, (size_t)n, sizeof *k, by_weight_desc);
    }
    for (int64_t i = 0; i < n; i++) {
        struct vec *to = NULL;
        for (int64_t b = 0; b < out->n && !to; b++) {
            if (out->v[b].sum <= cap - k[i].weight) {
                to = &out->v[b];
            }
        }
        vec_push(to ? to : vecs_push(out), k[i].item, k[i].weight);
    }
    mem_free(k);
}

/* Weights that make sense and whose total is a number. */
static int check_weights(const int64_t *w, int64_t n, struct err *e)
{
    int64_t total = 0;
    for (int64_t i = 0; i < n; i++) {
        if (w[i] < 0 || w[i] > INT64_MAX / 4 - total) {
            return ERR(e, STATUS_INPUT, "item %lld of weight %lld cannot be packed", (long long)i,
                       (long long)w[i]);
        }
        total += w[i];
    }
    return 0;
}

int pack_first_fit(const int64_t *len, int64_t n, int64_t cap, int decreasing,
                   struct pack_bins *out, struct err *e)
{
    struct vecs b;
    int rc = check_weights(len, n, e);
    if (rc) {
        return rc;
    }
    first_fit(NULL, n, len, cap, decreasing, &b);
    vecs_to_bins(&b, out);
    vecs_fini(&b);
    return 0;
}

/* Splits the heaviest bin that can be split; 0 when none can. */
static int split_once(struct vecs *b, const int64_t *len)
{
    int64_t best = -1;
    struct vec half[2] = {{0}, {0}};
    struct keyed *k;

    for (int64_t i = 0; i < b->n; i++) {
        if (b->v[i].n > 1 && (best < 0 || b->v[i].sum >= b->v[best].sum)) {
            best = i;
        }
    }
    if (best < 0) {
        return 0;
    }
    k = keyed_new(b->v[best].v, b->v[best].n, len);
    qsort(k, (size_t)b->v[best].n, sizeof *k, by_weight_desc);
    for (int64_t i = 0; i < b->v[best].n; i++) {
        vec_push(&half[half[0].sum <= half[1].sum ? 0 : 1], k[i].item, k[i].weight);
    }
    mem_free(k);
    mem_free(b->v[best].v);
    b->v[best] = half[0];
    *vecs_push(b) = half[1];
    return 1;
}

static int split_to(struct vecs *b, const int64_t *len, int64_t target, struct err *e)
{
    while (b->n < target) {
        if (!split_once(b, len)) {
            return ERR(e, STATUS_INPUT,
                       "%lld samples cannot fill the %lld micro-batches this layout needs",
                       (long long)b->n, (long long)target);
        }
    }
    return 0;
}

int pack_split(const int64_t *len, struct pack_bins *bins, int64_t target, struct err *e)
{
    struct vecs b;
    int rc;
    vecs_from_bins(bins, len, &b);
    rc = split_to(&b, len, target, e);
    if (rc == 0) {
        pack_bins_fini(bins);
        vecs_to_bins(&b, bins);
    }
    vecs_fini(&b);
    return rc;
}

/* --- Karmarkar-Karp --- */

/* A set of items as a chain through next[]; joining two is constant work. */
struct kk_set {
    int64_t sum, count, head, tail;
    const int64_t *next;
};

/* k sets in descending order, of which the first m hold items. */
struct kk_state {
    struct kk_set *sets;
    int64_t m, k;
};

/* Order of sets: sum, then number of items, then the items themselves. Negative when a < b. */
static int kk_cmp(const struct kk_set *a, const struct kk_set *b)
{
    if (a->sum != b->sum) {
        return a->sum < b->sum ? -1 : 1;
    }
    if (a->count != b->count) {
        return a->count < b->count ? -1 : 1;
    }
    for (int64_t i = a->head, j = b->head, n = a->count; n; n--) {
        if (i != j) {
            return i < j ? -1 : 1;
        }
        i = a->next[i];
        j = b->next[j];
    }
    return 0;
}

static int kk_desc(const void *a, const void *b)
{
    return kk_cmp(b, a);
}

static int64_t kk_spread(const struct kk_state *s)
{
    return s->sets[0].sum - (s->m == s->k ? s->sets[s->k - 1].sum : 0);
}

/* 1 when a is to be merged before b. */
static int kk_before(const struct kk_state *a, const struct kk_state *b)
{
    int64_t sa = kk_spread(a), sb = kk_spread(b);
    return sa != sb ? sa > sb : kk_cmp(&a->sets[0], &b->sets[0]) > 0;
}

static void heap_down(struct kk_state *h, int64_t n, int64_t i)
{
    for (;;) {
        int64_t c = 2 * i + 1;
        struct kk_state t;
        if (c >= n) {
            return;
        }
        if (c + 1 < n && kk_before(&h[c + 1], &h[c])) {
            c++;
        }
        if (!kk_before(&h[c], &h[i])) {
            return;
        }
        t = h[i];
        h[i] = h[c];
        h[c] = t;
        i = c;
    }
}

static void kk_join(struct kk_set *to, const struct kk_set *from, int64_t *next)
{
    if (to->count == 0) {
        *to = *from;
        return;
    }
    next[to->tail] = from->head;
    to->tail = from->tail;
    to->sum += from->sum;
    to->count += from->count;
}

/* Largest sets of a meet the smallest of b; b's array is freed. */
static void kk_merge(struct kk_state *a, struct kk_state *b, int64_t *next)
{
    int64_t k = a->k, room = a->m + b->m < k ? a->m + b->m : k, n = 0;
    struct kk_set *sets = mem_alloc((size_t)room * sizeof *sets);

    for (int64_t i = 0; i < k && n < room; i++) {
        struct kk_set s = {0};
        if (i < a->m) {
            s = a->sets[i];
        } else if (k - 1 - i >= b->m) {
            continue;
        }
        if (k - 1 - i < b->m) {
            kk_join(&s, &b->sets[k - 1 - i], next);
        }
        sets[n++] = s;
    }
    qsort(sets, (size_t)n, sizeof *sets, kk_desc);
    mem_free(a->sets);
    mem_free(b->sets);
    a->sets = sets;
    a->m = n;
    b->sets = NULL;
}

static int by_weight_asc(const void *pa, const void *pb)
{
    const struct keyed *a = pa, *b = pb;
    if (a->weight != b->weight) {
        return a->weight < b->weight ? -1 : 1;
    }
    return a->item < b->item ? -1 : a->item > b->item;
}

/* First states: one item each, or blocks of k items of like weight when counts must be equal. */
static int64_t kk_init(const int64_t *w, int64_t n, int64_t k, int equal, const int64_t *next,
                       struct kk_state **out)
{
    int64_t per = equal ? k : 1, ns = n / per;
    struct kk_state *st = mem_alloc((size_t)(ns + 1) * sizeof *st);
    struct keyed *order = keyed_new(NULL, n, w);

    if (equal) {
        qsort(order, (size_t)n, sizeof *order, by_weight_asc);
    }
    for (int64_t i = 0; i < ns; i++) {
        st[i] = (struct kk_state){mem_alloc((size_t)per * sizeof(struct kk_set)), per, k};
        for (int64_t j = 0; j < per; j++) {
            const struct keyed *o = &order[i * per + j];
            st[i].sets[j] = (struct kk_set){o->weight, 1, o->item, o->item, next};
        }
        qsort(st[i].sets, (size_t)per, sizeof(struct kk_set), kk_desc);
    }
    mem_free(order);
    *out = st;
    return ns;
}

static int by_value(const void *pa, const void *pb)
{
    int64_t a = *(const int64_t *)pa, b = *(const int64_t *)pb;
    return a < b ? -1 : a > b;
}

int pack_karmarkar_karp(const int64_t *weight, int64_t n, int64_t k, int equal,
                        struct pack_bins *out, struct err *e)
{
    struct kk_state *h;
    int64_t ns, *next;
    int rc = check_weights(weight, n, e);

    if (rc) {
        return rc;
    }
    if (k < 1 || n < k || (equal && n % k != 0)) {
        return ERR(e, STATUS_INPUT, "%lld items cannot be dealt to %lld sets%s", (long long)n,
                   (long long)k, equal ? " of equal count" : "");
    }
    next = mem_alloc((size_t)n * sizeof *next);
    ns = kk_init(weight, n, k, equal, next, &h);
    for (int64_t i = ns / 2; i-- > 0;) {
        heap_down(h, ns, i);
    }
    while (ns > 1) {
        struct kk_state first = h[0];
        h[0] = h[--ns];
        heap_down(h, ns, 0);
        kk_merge(&first, &h[0], next);
        h[0] = first;
        heap_down(h, ns, 0);
    }
    if (h[0].m < k) {
        rc = ERR(e, STATUS_INPUT, "%lld items leave one of %lld sets empty", (long long)n,
                 (long long)k);
    } else {
        out->n = k;
        out->start = mem_alloc((size_t)(k + 1) * sizeof *out->start);
        out->items = mem_alloc((size_t)(n + 1) * sizeof *out->items);
        for (int64_t b = 0, at = 0; b < k; b++) {
            const struct kk_set *s = &h[0].sets[b];
            for (int64_t i = s->head, c = 0; c < s->count; c++, i = next[i]) {
                out->items[at++] = i;
            }
            qsort(out->items + out->start[b], (size_t)s->count, sizeof *out->items, by_value);
            out->start[b + 1] = at;
        }
    }
    mem_free(h[0].sets);
    mem_free(h);
    mem_free(next);
    return rc;
}

/* --- schedule --- */

int64_t pack_flops(const struct pack_model *m, int64_t s)
{
    int64_t h = m->hidden, q, kv, attn;
    if (m->kv_lora > 0) {
        int64_t qk = m->qk_nope + m->qk_rope;
        q = m->q_lora > 0 ? 2 * s * m->q_lora * (h + m->heads * qk) : 2 * s * h * m->heads * qk;
        kv = 2 * s * (m->kv_lora * (h + m->heads * (m->qk_nope + m->v_dim)) + h * m->qk_rope);
        attn = m->heads * s * s * qk + m->heads * s * s * m->v_dim;
    } else {
        q = 2 * s * h * m->heads * m->head_dim;
        kv = 4 * s * h * m->kv_heads * m->head_dim;
        attn = 2 * m->heads * s * s * m->head_dim;
    }
    return m->layers * (q + kv + attn + 2 * s * h * h + 6 * s * h * m->ffn) + 2 * s * h * m->vocab;
}

void pack_plan_fini(struct pack_plan *p)
{
    mem_free(p->rollouts);
    mem_free(p->nmb);
    mem_free(p->mb_first);
    mem_free(p->mb);
    mem_free(p->items);
    memset(p, 0, sizeof *p);
}

int64_t pack_micro(const struct pack_plan *p, int64_t s, int64_t r, int64_t b, const int64_t **idx)
{
    int64_t at;
    ASSERT(s >= 0 && s < p->nsteps && r >= 0 && r < p->dp && b >= 0 && b < p->nmb[s]);
    at = p->mb_first[s] + r * p->nmb[s] + b;
    *idx = p->items + p->mb[at];
    return p->mb[at + 1] - p->mb[at];
}

int pack_trim(int64_t n, int64_t global_batch, int64_t *kept, struct err *e)
{
    ASSERT(global_batch >= 1);
    if (n < global_batch) {
        return ERR(e, STATUS_INPUT, "%lld samples do not fill one global batch of %lld",
                   (long long)n, (long long)global_batch);
    }
    *kept = n / global_batch * global_batch;
    return 0;
}

/* What the steps of one call share. */
struct job {
    const struct pack_opts *o;
    const int64_t *len;
    int64_t *cost;          /* weight for balancing: FLOPs or tokens */
    int64_t *order, *first; /* samples by rollout: order[first[r] .. first[r+1]) */
    int64_t nrollouts, align;
};

static void job_fini(struct job *j)
{
    mem_free(j->cost);
    mem_free(j->order);
    mem_free(j->first);
}

/* FLOPs of huge models overflow sums: halve all until the total is safe. */
static void fit_costs(int64_t *cost, int64_t n)
{
    for (;;) {
        double total = 0;
        for (int64_t i = 0; i < n; i++) {
            total += (double)cost[i];
        }
        if (total < 0x1p60) {
            return;
        }
        for (int64_t i = 0; i < n; i++) {
            cost[i] /= 2;
        }
    }
}

static void group_rollouts(struct job *j, int64_t n, const int64_t *rollout_id)
{
    struct map m;
    int64_t *id = mem_alloc((size_t)(n + 1) * sizeof *id);

    map_init(&m);
    for (int64_t i = 0; i < n; i++) {
        const int64_t *key = rollout_id ? &rollout_id[i] : &i;
        if (!map_get(&m, (const char *)key, sizeof *key, &id[i])) {
            id[i] = (int64_t)m.count;
            map_put(&m, (const char *)key, sizeof *key, id[i]);
        }
    }
    j->nrollouts = (int64_t)m.count;
    map_fini(&m);
    j->order = mem_alloc((size_t)(n + 1) * sizeof *j->order);
    j->first = mem_alloc((size_t)(j->nrollouts + 2) * sizeof *j->first);
    for (int64_t i = 0; i < n; i++) {
        j->first[id[i] + 2]++;
    }
    for (int64_t r = 0; r < j->nrollouts; r++) {
        j->first[r + 2] += j->first[r + 1];
    }
    for (int64_t i = 0; i < n; i++) {
        j->order[j->first[id[i] + 1]++] = i;
    }
    mem_free(id);
}

/* KK over FLOPs into as many bins as the tokens need; the cap itself is not enforced. */
static int flops_bins(const struct job *j, const int64_t *items, int64_t n, int64_t cap,
                      struct vecs *out, struct err *e)
{
    int64_t tokens = 0, count, *cost;
    struct pack_bins kk;
    int rc;

    for (int64_t i = 0; i < n; i++) {
        tokens += j->len[items[i]];
    }
    count = tokens / cap + (tokens % cap != 0);
    count = count > 1 ? count : 1;
    memset(out, 0, sizeof *out);
    if (count >= n) {
        for (int64_t i = 0; i < n; i++) {
            vec_push(vecs_push(out), items[i], j->len[items[i]]);
        }
        return 0;
    }
    cost = mem_alloc((size_t)n * sizeof *cost);
    for (int64_t i = 0; i < n; i++) {
        cost[i] = j->cost[items[i]];
    }
    rc = pack_karmarkar_karp(cost, n, count, 0, &kk, e);
    mem_free(cost);
    if (rc) {
        return rc;
    }
    for (int64_t b = 0; b < kk.n; b++) {
        struct vec *v = vecs_push(out);
        for (int64_t i = kk.start[b]; i < kk.start[b + 1]; i++) {
            vec_push(v, items[kk.items[i]], j->len[items[kk.items[i]]]);
        }
    }
    pack_bins_fini(&kk);
    return 0;
}

static int dynamic_bins(const struct job *j, const int64_t *items, int64_t n, struct vecs *out,
                        struct err *e)
{
    int64_t cap = j->o->max_tokens * j->o->cp, target;
    int rc = 0;

    if (j->o->flops) {
        rc = flops_bins(j, items, n, cap, out, e);
    } else {
        first_fit(items, n, j->len, cap, 1, out);
    }
    if (rc) {
        return rc;
    }
    target = (out->n + j->align - 1) / j->align * j->align;
    return split_to(out, j->len, target > j->align ? target : j->align, e);
}

static int static_bins(const struct job *j, const int64_t *items, int64_t n, struct vecs *out,
                       struct err *e)
{
    int64_t mbs = j->o->micro_batch;
    memset(out, 0, sizeof *out);
    for (int64_t i = 0; i < n; i++) {
        struct vec *v = i % mbs == 0 ? vecs_push(out) : &out->v[out->n - 1];
        vec_push(v, items[i], j->len[items[i]]);
    }
    if (out->n % j->align != 0) {
        return ERR(e, STATUS_INPUT,
                   "static micro-batches: %lld samples make %lld micro-batches of %lld, which is "
                   "no multiple of %lld (data-parallel size times pipeline group)",
                   (long long)n, (long long)out->n, (long long)mbs, (long long)j->align);
    }
    return 0;
}

/* Which bins each rank takes: rank_bins gets dp sets of bin indices, ascending. */
static int deal(const struct job *j, const struct vecs *bins, struct pack_bins *out, struct err *e)
{
    int64_t dp = j->o->dp, per = bins->n / dp, *w;
    int rc;

    if (!j->o->balance_data && !j->o->flops) {
        out->n = dp;
        out->start = mem_alloc((size_t)(dp + 1) * sizeof *out->start);
        out->items = mem_alloc((size_t)(bins->n + 1) * sizeof *out->items);
        for (int64_t r = 0; r < dp; r++) {
            for (int64_t b = 0; b < per; b++) {
                out->items[r * per + b] = r + b * dp;
            }
            out->start[r + 1] = (r + 1) * per;
        }
        return 0;
    }
    w = mem_alloc((size_t)bins->n * sizeof *w);
    for (int64_t b = 0; b < bins->n; b++) {
        for (int64_t i = 0; i < bins->v[b].n; i++) {
            w[b] += j->cost[bins->v[b].v[i]];
        }
    }
    rc = pack_karmarkar_karp(w, bins->n, dp, 1, out, e);
    mem_free(w);
    return rc;
}

/* One step of the rollouts [from, to): appends its micro-batches to the plan. */
static int plan_step(const struct job *j, int64_t from, int64_t to, struct pack_plan *p,
                     struct err *e)
{
    const int64_t *items = j->order + j->first[from];
    int64_t n = j->first[to] - j->first[from], s = p->nsteps, at = p->mb_first[s];
    struct vecs bins = {0};
    struct pack_bins ranks = {0};
    int rc =
        j->o->dynamic ? dynamic_bins(j, items, n, &bins, e) : static_bins(j, items, n, &bins, e);

    rc = rc ? rc : deal(j, &bins, &ranks, e);
    if (rc == 0) {
        for (int64_t i = 0; i < bins.n; i++) {
            const struct vec *v = &bins.v[ranks.items[i]];
            memcpy(p->items + p->nitems, v->v, (size_t)v->n * sizeof *v->v);
            p->nitems += v->n;
            p->mb[++at] = p->nitems;
        }
        p->rollouts[s] = to - from;
        p->nmb[s] = bins.n / j->o->dp;
        p->mb_first[s + 1] = at;
        p->nsteps++;
    }
    vecs_fini(&bins);
    pack_bins_fini(&ranks);
    return rc;
}

static int check_opts(const struct pack_opts *o, int64_t n, const int64_t *len, struct err *e)
{
    if (o->dp < 1 || o->cp < 1 || o->global_batch < 1) {
        return ERR(e, STATUS_INPUT, "data parallel %lld, context parallel %lld, global batch %lld",
                   (long long)o->dp, (long long)o->cp, (long long)o->global_batch);
    }
    if (o->dynamic ? o->max_tokens < 1 || o->max_tokens > INT64_MAX / o->cp : o->micro_batch < 1) {
        return ERR(e, STATUS_INPUT,
                   o->dynamic ? "dynamic batches need a bound on tokens"
                              : "static batches need a micro-batch size");
    }
    if (o->flops && !o->dynamic) {
        return ERR(e, STATUS_INPUT, "balancing by flops needs dynamic batches");
    }
    return check_weights(len, n, e);
}

int pack_schedule(const struct pack_opts *o, int64_t n, const int64_t *total_len,
                  const int64_t *rollout_id, struct pack_plan *out, struct err *e)
{
    struct job j = {.o = o, .len = total_len};
    struct pack_plan p = {.dp = o->dp};
    int64_t full, rest;
    int rc = check_opts(o, n, total_len, e);

    if (rc) {
        return rc;
    }
    j.align = o->dp * (o->mb_group > 1 ? o->mb_group : 1);
    j.cost = mem_alloc((size_t)(n + 1) * sizeof *j.cost);
    for (int64_t i = 0; i < n; i++) {
        j.cost[i] = o->flops ? pack_flops(o->flops, total_len[i]) : total_len[i];
    }
    fit_costs(j.cost, n);
    group_rollouts(&j, n, rollout_id);
    full = j.nrollouts / o->global_batch;
    rest = j.nrollouts % o->global_batch;
    p.rollouts = mem_alloc((size_t)(full + 1) * sizeof *p.rollouts);
    p.nmb = mem_alloc((size_t)(full + 1) * sizeof *p.nmb);
    p.mb_first = mem_alloc((size_t)(full + 2) * sizeof *p.mb_first);
    p.mb = mem_alloc((size_t)(n + 2) * sizeof *p.mb);
    p.items = mem_alloc((size_t)(n + 1) * sizeof *p.items);
    if (full == 0 && !(o->allow_partial && o->dynamic)) {
        rc = ERR(e, STATUS_INPUT, "%lld rollouts do not fill one step of %lld",
                 (long long)j.nrollouts, (long long)o->global_batch);
    }
    for (int64_t s = 0; s < full && rc == 0; s++) {
        rc = plan_step(&j, s * o->global_batch, (s + 1) * o->global_batch, &p, e);
    }
    if (rc == 0 && rest && o->allow_partial && o->dynamic &&
        j.first[j.nrollouts] - j.first[j.nrollouts - rest] >= o->dp) {
        rc = plan_step(&j, j.nrollouts - rest, j.nrollouts, &p, e);
    }
    job_fini(&j);
    if (rc) {
        pack_plan_fini(&p);
        return rc;
    }
    p.dropped = n - p.nitems;
    *out = p;
    return 0;
}
