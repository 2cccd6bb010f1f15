/* The CPU device's attention: rope and the writing of KV pages, attention forward and backward, cut
 * into tasks. */
#include <string.h>

#include "base/status.h"
#include "base/thread.h"
#include "num/cpu/cpu_int.h"

/* ---- rope and pages ----------------------------------------------------------------------------
 */

static const int32_t *cpu_row_seq(struct device *d, const struct rows *rows)
{
    int32_t *of = cpu_grow(&cpu_of(d)->index, sizeof(int32_t) * (size_t)rows->n);
    for (int s = 0; s < rows->nseq; s++) {
        for (int i = 0; i < rows->seq[s].nrows; i++) {
            of[rows->seq[s].row0 + i] = s;
        }
    }
    return of;
}

struct cpu_rope {
    const struct kern *k;
    struct kern_rope a;
    const struct rows *rows;
    const int32_t *row_seq; /* sequence of each row */
};

/* 16 rows, as far as they are neighbours in one page together. */
static void cpu_rope_task(void *arg, int task, int worker)
{
    const struct cpu_rope *t = arg;
    const int32_t *pos = t->rows->pos;
    int r = task * 16, end = t->rows->n - r < 16 ? t->rows->n : r + 16;

    (void)worker;
    while (r < end) {
        int seq = t->row_seq[r], page = pos[r] / PLAN_KV_BLOCK, n = 1;
        while (r + n < end && t->row_seq[r + n] == seq && pos[r + n] == pos[r] + n &&
               pos[r + n] / PLAN_KV_BLOCK == page) {
            n++;
        }
        t->k->rope_rows(&t->a, t->rows->seq[seq].pages[page], r, n);
        r += n;
    }
}

/* The base's tokens of the page that it fills in part, into the page of a sequence's own. */
static void cpu_base_task(void *arg, int task, int worker)
{
    const struct cpu_rope *t = arg;
    const struct kv_store *kv = t->a.kv;
    const struct row_seq *sq = &t->rows->seq[task], *base;
    int d = kv->head_dim, at = sq->pos0 / PLAN_KV_BLOCK, n = sq->pos0 % PLAN_KV_BLOCK;

    (void)worker;
    if (!sq->base || !n) {
        return;
    }
    base = &t->rows->seq[sq->base - 1];
    ASSERT(base->pos0 == 0 && base->nrows == sq->pos0);
    for (int h = 0; h < kv->n_kv_heads; h++) {
        const uint16_t *from =
            (const uint16_t *)kv->data + kv_key_offset(kv, base->pages[at], t->a.layer, h);
        uint16_t *to = (uint16_t *)kv->data + kv_key_offset(kv, sq->pages[at], t->a.layer, h);
        for (int c = 0; c < d; c += 2) {
            memcpy(to + kv_key_index(c, 0), from + kv_key_index(c, 0), (size_t)n * 4);
        }
        from += PLAN_KV_BLOCK * (size_t)d;
        to += PLAN_KV_BLOCK * (size_t)d;
        memcpy(to, from, (size_t)(n / 2) * (size_t)d * 4);
        for (int c = 0; n % 2 && c < d; c++) {
            to[kv_value_index(c, n - 1, d)] = from[kv_value_index(c, n - 1, d)];
        }
    }
}

void cpu_rope_kv(struct device *d, const struct tensor *qkv, const struct norm *q_norm,
                 const struct norm *k_norm, const struct tensor *cos, const struct tensor *sin,
                 const struct attn_shape *s, const struct rows *rows, struct kv_store *kv,
                 int layer, struct tensor *q)
{
    struct cpu_rope t = {&cpu_of(d)->k,
                         {qkv->data, qkv->ld, cos->data, sin->data, cos->ld, q_norm, k_norm, s,
                          rows->pos, kv, layer, q->data, q->ld},
                         rows,
                         cpu_row_seq(d, rows)};
    ASSERT(cos->ld == sin->ld && s->head_dim <= KERN_MAX_HEAD);
    pool_run(d->pool, cpu_rope_task, &t, ceil_div(rows->n, 16));
    for (int i = 0; i < rows->nseq; i++) {
        if (rows->seq[i].base) {
            pool_run(d->pool, cpu_base_task, &t, rows->nseq);
            break;
        }
    }
}

struct cpu_rope_bwd {
    const struct kern *k;
    const struct tensor *qkv, *cos, *sin;
    const struct norm *qn, *kn; /* each or NULL */
    const struct attn_shape *s;
    const int32_t *pos;
    const struct tensor *dq, *dkv, *dqkv;
    float *dn; /* (rows, heads + kv, d) norm gradients of each row, or NULL */
};

static void cpu_rope_bwd_row(const void *arg, int r)
{
    const struct cpu_rope_bwd *t = arg;
    int d = t->s->head_dim, nh = t->s->n_heads, nkv = t->s->n_kv_heads;
    int pos = t->pos[r];
    const uint16_t *x = ROW16(t->qkv, r);
    const float *c = ROW32(t->cos, pos), *s = ROW32(t->sin, pos);
    const float *dq = ROW32(t->dq, r), *dkv = ROW32(t->dkv, r);
    uint16_t *out = ROW16(t->dqkv, r);
    float dx[KERN_MAX_HEAD], *dn = t->dn ? t->dn + (size_t)r * (size_t)((nh + nkv) * d) : NULL;

    for (int h = 0; h < nh + nkv; h++) {
        t->k->rope_head_bwd(h < nh ? dq + h * d : dkv + (h - nh) * d, x + h * d,
                            h < nh ? t->qn : t->kn, c, s, t->s, dx, dn ? dn + h * d : NULL);
        t->k->to_bf16(dx, d, out + h * d);
    }
    t->k->to_bf16(dkv + nkv * d, nkv * d, out + (nh + nkv) * d);
}

/* The gradient of the norm weight that heads [h0, h0 + heads) share, from each row's dn. */
struct cpu_heads {
    struct cpu *c;
    const float *dn; /* (rows, width) */
    int width, h0, heads, d;
    const struct leaf_rows *leaves;
    int64_t *grad;
};

static void cpu_heads_task(void *arg, int task, int worker)
{
    const struct cpu_heads *t = arg;
    const float scale = (float)((int64_t)1 << PLAN_QUANTUM);
    int bad = 0;
    (void)worker;
    for (int l = 0; l < t->leaves->n; l++) {
        bad |= t->c->k.heads_dw(t->dn + t->h0 * t->d + task * 16, t->width, t->heads, t->d,
                                t->leaves->start[l], t->leaves->start[l + 1], t->grad + task * 16,
                                scale);
    }
    if (bad) {
        atomic_store(&t->c->bad, 1);
    }
}

static void cpu_heads_dw(struct device *d, const float *dn, const struct attn_shape *s, int h0,
                         int heads, const struct leaf_rows *leaves, struct tensor *grad)
{
    int width = (s->n_heads + s->n_kv_heads) * s->head_dim;
    struct cpu_heads t = {cpu_of(d), dn, width, h0, heads, s->head_dim, leaves, grad->data};
    pool_run(d->pool, cpu_heads_task, &t, ceil_div(s->head_dim, 16));
}

void cpu_rope_kv_bwd(struct device *d, const struct tensor *dq, const struct tensor *dkv,
                     const struct tensor *qkv, const struct norm *q_norm, const struct norm *k_norm,
                     const struct tensor *cos, const struct tensor *sin, const struct attn_shape *s,
                     const struct rows *rows, const struct leaf_rows *leaves, struct tensor *dqkv,
                     struct tensor *grad_qn, struct tensor *grad_kn)
{
    struct cpu *c = cpu_of(d);
    struct cpu_rope_bwd t = {&c->k, qkv,       cos, sin, q_norm, k_norm,
                             s,     rows->pos, dq,  dkv, dqkv,   NULL};
    int width = (s->n_heads + s->n_kv_heads) * s->head_dim;

    if (q_norm || k_norm) {
        t.dn = cpu_grow(&c->shared, sizeof(float) * (size_t)rows->n * (size_t)width);
    }
    cpu_each_row(d, rows->n, 16, cpu_rope_bwd_row, &t);
    if (q_norm) {
        cpu_heads_dw(d, t.dn, s, 0, s->n_heads, leaves, grad_qn);
    }
    if (k_norm) {
        cpu_heads_dw(d, t.dn, s, s->n_heads, s->n_kv_heads, leaves, grad_kn);
    }
}

/* ---- attention ---------------------------------------------------------------------------------
 */

#define CPU_ATTN_ROWS 64 /* rows of one task of a long prefill */

/* Rows of one sequence that make a task for each kv head; cut further at the segments of its keys
 * when there are too few of them for the threads. */
struct cpu_piece {
    int seq, r0, r1;
    int seg0, nseg; /* first segment, segments */
    size_t parts;   /* where its unfinished segments lie */
};

/* A sequence and those that go on from it: sequences [first, end). */
struct cpu_bundle {
    int first, end;
};

/* A leaf of queries, and of keys. */
struct cpu_unit {
    int seq, leaf;
};

struct cpu_attn {
    struct kern_attn_bwd a;
    const struct cpu *c;
    int nkv, group;
    const struct cpu_piece *piece;
    const int32_t *item; /* of a split pass: piece of each (piece, segment) */
    const int32_t *item_seg;
    float *parts;
    /* backward */
    const struct cpu_bundle *whole; /* those that one task takes per kv head */
    struct cpu_unit *unit;          /* else all leaves of one bundle, in the order of joining */
    int units, u0, u1;              /* a wave: leaves [u0, u1) of them */
    size_t stride;                  /* floats of one leaf's parts */
};

static void cpu_attn_args(struct device *d, struct cpu_attn *t, const struct tensor *q,
                          const struct kv_store *kv, int layer, const struct attn_shape *s,
                          const struct rows *rows, const struct tensor *out,
                          const struct tensor *lse)
{
    memset(t, 0, sizeof *t);
    t->c = cpu_of(d);
    t->nkv = s->n_kv_heads;
    t->group = s->n_heads / s->n_kv_heads;
    t->a.f.q = q->data;
    t->a.f.ldq = q->ld;
    t->a.f.kv = kv;
    t->a.f.layer = layer;
    t->a.f.s = *s;
    t->a.f.rows = rows;
    t->a.f.out = out->data;
    t->a.f.ldo = out->ld;
    t->a.f.lse = lse ? lse->data : NULL;
    t->a.f.ldl = lse ? lse->ld : 0;
    cpu_scratch_all(d, kern_attn_scratch(s->head_dim, t->group));
}

static void cpu_attn_task(void *arg, int task, int worker)
{
    const struct cpu_attn *t = arg;
    const struct cpu_piece *p = &t->piece[task / t->nkv];
    t->c->k.attn(&t->a.f, p->seq, task % t->nkv, p->r0, p->r1, 0, NULL, t->c->worker[worker].p);
}

/* Floats of one segment's unfinished rows, of one kv head. */
static size_t cpu_piece_floats(const struct cpu_attn *t, const struct cpu_piece *p)
{
    return (size_t)(p->r1 - p->r0) * (size_t)t->group * (size_t)(t->a.f.s.head_dim + 2);
}

static float *cpu_piece_parts(const struct cpu_attn *t, const struct cpu_piece *p, int kvh)
{
    return t->parts + p->parts + (size_t)kvh * (size_t)p->nseg * cpu_piece_floats(t, p);
}

static void cpu_attn_segment_task(void *arg, int task, int worker)
{
    const struct cpu_attn *t = arg;
    int i = task / t->nkv, kvh = task % t->nkv, seg = t->item_seg[i];
    const struct cpu_piece *p = &t->piece[t->item[i]];
    t->c->k.attn(&t->a.f, p->seq, kvh, p->r0, p->r1, (p->seg0 + seg) * PLAN_KV_SEGMENT,
                 cpu_piece_parts(t, p, kvh) + (size_t)seg * cpu_piece_floats(t, p),
                 t->c->worker[worker].p);
}

static void cpu_attn_join_task(void *arg, int task, int worker)
{
    const struct cpu_attn *t = arg;
    const struct cpu_piece *p = &t->piece[task / t->nkv];
    (void)worker;
    t->c->k.attn_join(&t->a.f, p->seq, task % t->nkv, p->r0, p->r1, p->nseg,
                      cpu_piece_parts(t, p, task % t->nkv));
}

void cpu_attn_fwd(struct device *d, const struct tensor *q, const struct kv_store *kv, int layer,
                  const struct attn_shape *s, const struct rows *rows, struct tensor *out,
                  struct tensor *lse)
{
    struct cpu *c = cpu_of(d);
    struct cpu_attn t;
    struct cpu_piece *piece;
    int n = 0, items = 0, threads = pool_size(d->pool);
    int32_t *item;
    size_t floats = 0;

    cpu_attn_args(d, &t, q, kv, layer, s, rows, out, lse);
    piece = cpu_grow(&c->index, sizeof *piece * (size_t)(rows->n + rows->nseq));
    for (int i = 0; i < rows->nseq; i++) {
        const struct row_seq *sq = &rows->seq[i];
        for (int r = 0; r < sq->nrows; r += CPU_ATTN_ROWS) {
            struct cpu_piece *p = &piece[n++];
            p->seq = i;
            p->r0 = r;
            p->r1 = r + CPU_ATTN_ROWS < sq->nrows ? r + CPU_ATTN_ROWS : sq->nrows;
            p->seg0 = kern_attn_first(s, sq->pos0 + r) / PLAN_KV_SEGMENT;
            p->nseg = (sq->pos0 + p->r1 - 1) / PLAN_KV_SEGMENT - p->seg0 + 1;
            p->parts = floats;
            floats += (size_t)p->nseg * (size_t)t.nkv * cpu_piece_floats(&t, p);
            items += p->nseg;
        }
    }
    t.piece = piece;
    if (n * t.nkv >= 4 * threads || items == n || threads == 1) {
        pool_run(d->pool, cpu_attn_task, &t, n * t.nkv);
        return;
    }
    t.parts = cpu_grow(&c->shared, floats * sizeof(float) + sizeof(int32_t) * 2 * (size_t)items);
    item = (int32_t *)(t.parts + floats);
    t.item = item;
    t.item_seg = item + items;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < piece[i].nseg; j++, item++) {
            item[0] = i;
            item[items] = j;
        }
    }
    pool_run(d->pool, cpu_attn_segment_task, &t, items * t.nkv);
    pool_run(d->pool, cpu_attn_join_task, &t, n * t.nkv);
}

static int cpu_leaves(const struct row_seq *sq)
{
    return ceil_div(sq->nrows, PLAN_LEAF);
}

static void cpu_attn_bwd_task(void *arg, int task, int worker)
{
    const struct cpu_attn *t = arg;
    const struct cpu_bundle *b = &t->whole[task / t->nkv];
    for (int i = b->first; i < b->end; i++) {
        t->c->k.attn_bwd(&t->a, i, task % t->nkv, 0, cpu_leaves(&t->a.f.rows->seq[i]), NULL,
                         t->c->worker[worker].p);
    }
}

/* Where leaf u of the wave keeps its parts. */
static float *cpu_unit_parts(const struct cpu_attn *t, int u, int kvh)
{
    return t->parts + (size_t)(kvh * (t->u1 - t->u0) + u - t->u0) * t->stride;
}

static void cpu_attn_leaf_task(void *arg, int task, int worker)
{
    const struct cpu_attn *t = arg;
    int n = t->u1 - t->u0, kvh = task / n, u = t->u1 - 1 - task % n; /* the longest first */
    const struct cpu_unit *x = &t->unit[u];
    t->c->k.attn_bwd(&t->a, x->seq, kvh, x->leaf, x->leaf + 1, cpu_unit_parts(t, u, kvh),
                     t->c->worker[worker].p);
}

/* The keys of one unit: what the leaves of the wave have of them, one after the other. */
static void cpu_attn_leaf_join(void *arg, int task, int worker)
{
    const struct cpu_attn *t = arg;
    const struct cpu_unit *to = &t->unit[task / t->nkv];
    const struct row_seq *sq = &t->a.f.rows->seq[to->seq];
    int kvh = task % t->nkv, j0 = sq->pos0 + to->leaf * PLAN_LEAF, j1 = j0 + PLAN_LEAF;
    int end = sq->pos0 + sq->nrows;

    (void)worker;
    j1 = j1 < end ? j1 : end;
    for (int u = t->u0; u < t->u1; u++) {
        const struct cpu_unit *x = &t->unit[u];
        if (x->seq == to->seq || !sq->base) {
            t->c->k.attn_bwd_join(&t->a, x->seq, kvh, x->leaf, j0, j1, cpu_unit_parts(t, u, kvh));
        }
    }
}

#define CPU_ATTN_PARTS ((size_t)1 << 20) /* floats that the parts of a wave may take at least */

/* One large bundle: a few leaves at a time, each to memory of its own, joined in order. */
static void cpu_attn_bwd_waves(struct device *d, struct cpu_attn *t, const struct cpu_bundle *b)
{
    int wave = ceil_div(2 * pool_size(d->pool), t->nkv), keys = 0, many;

    t->units = 0;
    for (int i = b->first; i < b->end; i++) {
        const struct row_seq *sq = &t->a.f.rows->seq[i];
        for (int l = 0; l < cpu_leaves(sq); l++) {
            int j0, n = kern_leaf_keys(&t->a.f.s, sq, l, &j0) - j0;
            t->unit[t->units++] = (struct cpu_unit){i, l};
            keys = n > keys ? n : keys;
        }
    }
    t->stride = (size_t)keys * (size_t)(2 * t->a.f.s.head_dim);
    many = (int)(CPU_ATTN_PARTS / (t->stride * (size_t)t->nkv));
    wave = many > wave ? many : wave;
    wave = wave < t->units ? wave : t->units;
    t->parts = cpu_grow(&cpu_of(d)->shared, sizeof(float) * (size_t)(wave * t->nkv) * t->stride);
    for (t->u0 = 0; t->u0 < t->units; t->u0 = t->u1) {
        t->u1 = t->u0 + wave < t->units ? t->u0 + wave : t->units;
        pool_run(d->pool, cpu_attn_leaf_task, t, (t->u1 - t->u0) * t->nkv);
        pool_run(d->pool, cpu_attn_leaf_join, t, t->u1 * t->nkv);
    }
}

/* Twice the pairs of queries and keys of a bundle; *leaves: its leaves. */
static double cpu_attn_cost(const struct rows *rows, const struct cpu_bundle *b, int *leaves)
{
    double cost = 0.0;
    *leaves = 0;
    for (int i = b->first; i < b->end; i++) {
        const struct row_seq *sq = &rows->seq[i];
        cost += (double)sq->nrows * (2.0 * sq->pos0 + sq->nrows);
        *leaves += cpu_leaves(sq);
    }
    return cost;
}

static struct cpu_bundle cpu_bundle_at(const struct rows *rows, int first)
{
    struct cpu_bundle b = {first, first + 1};
    ASSERT(rows->seq[first].pos0 == 0);
    while (b.end < rows->nseq && rows->seq[b.end].base) {
        ASSERT(rows->seq[b.end].base == first + 1);
        b.end++;
    }
    return b;
}

void cpu_attn_bwd(struct device *d, const struct tensor *dout, const struct tensor *q,
                  const struct tensor *out, const struct tensor *lse, const struct kv_store *kv,
                  int layer, const struct attn_shape *s, const struct rows *rows, struct tensor *dq,
                  struct tensor *dkv)
{
    struct cpu_attn t;
    int threads = pool_size(d->pool), n = 0, leaves;
    size_t nseq = (size_t)rows->nseq, units = nseq + (size_t)(rows->n / PLAN_LEAF);
    struct cpu_bundle *whole, b;
    double total = 0.0;

    cpu_attn_args(d, &t, q, kv, layer, s, rows, out, lse);
    whole = cpu_grow(&cpu_of(d)->index, sizeof *whole * nseq + sizeof *t.unit * units);
    t.unit = (struct cpu_unit *)(whole + nseq);
    t.a.dout = dout->data;
    t.a.lddo = dout->ld;
    t.a.dq = dq->data;
    t.a.lddq = dq->ld;
    t.a.dkv = dkv->data;
    t.a.lddkv = dkv->ld;
    for (int i = 0; i < rows->nseq; i = b.end) {
        b = cpu_bundle_at(rows, i);
        total += cpu_attn_cost(rows, &b, &leaves) * t.nkv;
    }
    for (int i = 0; i < rows->nseq; i = b.end) {
        b = cpu_bundle_at(rows, i);
        if (cpu_attn_cost(rows, &b, &leaves) > total / (4 * threads) && threads > 1 && leaves > 1) {
            cpu_attn_bwd_waves(d, &t, &b);
        } else {
            whole[n++] = b;
        }
    }
    t.whole = whole;
    pool_run(d->pool, cpu_attn_bwd_task, &t, n * t.nkv);
}
