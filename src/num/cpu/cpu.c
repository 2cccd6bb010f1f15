/* The CPU device: splits each operation over the pool's threads and calls the kernel table of the
 * chosen instruction set. How the work is split never shows in a result: each output value is
 * computed by one task, and gradients are integer sums. Scratch memory is per worker and only
 * grows. */
#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "base/thread.h"
#include "num/cpu/kern.h"
#include "num/device_int.h"
#include "num/exact.h"
#include "num/vmath.h"

struct cpu_scratch {
    void *p;
    size_t size;
};
struct cpu {
    struct kern k;
    struct cpu_scratch *worker; /* one per thread */
    struct cpu_scratch shared;  /* packed transposes of a weight gradient */
    struct cpu_scratch index;
    atomic_int bad;
};

static struct cpu *cpu_of(const struct device *d)
{
    return d->impl;
}

static void *cpu_grow(struct cpu_scratch *s, size_t n)
{
    if (s->size < n) {
        mem_unmap(s->p, s->size);
        s->p = mem_map(n);
        ASSERT(s->p);
        s->size = n;
    }
    return s->p;
}

static void cpu_scratch_all(struct device *d, size_t n)
{
    for (int i = 0; i < pool_size(d->pool); i++) {
        cpu_grow(&cpu_of(d)->worker[i], n);
    }
}

static int ceil_div(int a, int b)
{
    return (a + b - 1) / b;
}

/* ---- a loop over rows --------------------------------------------------------------------------
 */

typedef void cpu_row_fn(const void *arg, int row);
struct cpu_rows {
    cpu_row_fn *fn;
    const void *arg;
    int n, step;
};

static void cpu_rows_task(void *arg, int task, int worker)
{
    const struct cpu_rows *r = arg;
    int end = (task + 1) * r->step < r->n ? (task + 1) * r->step : r->n;
    (void)worker;
    for (int i = task * r->step; i < end; i++) {
        r->fn(r->arg, i);
    }
}

/* fn(arg, row) for every row, in parallel pieces of about `cost` rows. */
static void cpu_each_row(struct device *d, int n, int step, cpu_row_fn *fn, const void *arg)
{
    struct cpu_rows r = {fn, arg, n, step};
    pool_run(d->pool, cpu_rows_task, &r, ceil_div(n, step));
}

/* ---- products ----------------------------------------------------------------------------------
 */

struct cpu_gemm {
    struct kern_gemm g;
    const struct cpu *c;
    int mstep, nstep, ntasks;
};

static void cpu_gemm_task(void *arg, int task, int worker)
{
    const struct cpu_gemm *t = arg;
    int m0 = task / t->ntasks * t->mstep, n0 = task % t->ntasks * t->nstep;
    int m1 = m0 + t->mstep < t->g.m ? m0 + t->mstep : t->g.m;
    int n1 = n0 + t->nstep < t->g.n ? n0 + t->nstep : t->g.n;
    t->c->k.gemm(&t->g, m0, m1, n0, n1, t->c->worker[worker].p);
}

static void cpu_gemm_run(struct device *d, struct cpu_gemm *t)
{
    struct cpu *c = cpu_of(d);
    int threads = pool_size(d->pool);
    size_t kp = (size_t)t->g.ktiles * 32;

    t->c = c;
    cpu_scratch_all(d, (size_t)c->k.rows * kp * 4 + 2 * PLAN_MAX_LEAVES * 4096 + 4096);
    /* rows that stay in the second-level cache beside a column panel */
    t->mstep = (int)((768 << 10) / (kp * 2)) / 32 * 32;
    t->mstep = t->mstep < 32 ? 32 : t->mstep > 512 ? 512 : t->mstep;
    t->nstep = ceil_div(ceil_div(t->g.n, 32), threads * (t->g.m > 64 ? 2 : 4)) * 32;
    t->nstep = t->nstep < 64 ? 64 : t->nstep;
    t->ntasks = ceil_div(t->g.n, t->nstep);
    pool_run(d->pool, cpu_gemm_task, t, ceil_div(t->g.m, t->mstep) * t->ntasks);
}

static void cpu_linear(struct device *d, const struct tensor *x, const struct wview *w,
                       const struct tensor *bias, enum device_store how, struct tensor *y)
{
    struct cpu_gemm t;
    memset(&t, 0, sizeof t);
    t.g.a = x->data;
    t.g.lda = x->ld;
    t.g.b = w->fwd;
    t.g.ktiles = w->k / 32;
    t.g.m = (int)x->rows;
    t.g.n = w->n;
    t.g.k = w->k;
    t.g.leaves = &w->kleaf;
    t.g.c = y->data;
    t.g.ldc = y->ld;
    t.g.c_f32 = y->dtype == DTYPE_F32;
    t.g.accumulate = how == DEVICE_ACCUMULATE;
    t.g.bias = bias ? bias->data : NULL;
    cpu_gemm_run(d, &t);
}

static void cpu_linear_dx(struct device *d, const struct tensor *dy, const struct wview *w,
                          struct tensor *dx)
{
    struct cpu_gemm t;
    memset(&t, 0, sizeof t);
    t.g.a = dy->data;
    t.g.lda = dy->ld;
    t.g.b = w->bwd;
    t.g.ktiles = ceil_div(w->n, 32);
    t.g.m = (int)dy->rows;
    t.g.n = w->k;
    t.g.k = w->n;
    t.g.leaves = &w->nleaf;
    t.g.c = dx->data;
    t.g.ldc = dx->ld;
    t.g.c_f32 = dx->dtype == DTYPE_F32;
    cpu_gemm_run(d, &t);
}

struct cpu_dw {
    struct kern_dw g;
    struct cpu *c;
    const struct tensor *dy, *x;
    const struct leaf_rows *leaves;
    const int32_t *tile_row;  /* first row of each t tile */
    const int32_t *tile_rows; /* rows in it */
    uint16_t *dyt, *xp;
    int nstep;
};

static void cpu_dw_pack(void *arg, int task, int worker)
{
    struct cpu_dw *t = arg;
    size_t row = (size_t)t->tile_row[task];
    (void)worker;
    t->c->k.pack_dyt((const uint16_t *)t->dy->data + row * (size_t)t->dy->ld, t->dy->ld,
                     t->tile_rows[task], 0, (t->g.n + 15) / 16 * 16, task, t->g.ttiles, t->dyt);
    t->c->k.pack_xp((const uint16_t *)t->x->data + row * (size_t)t->x->ld, t->x->ld,
                    t->tile_rows[task], t->g.k, task, t->xp);
}

static void cpu_dw_task(void *arg, int task, int worker)
{
    struct cpu_dw *t = arg;
    int n0 = task * t->nstep, n1 = n0 + t->nstep < t->g.n ? n0 + t->nstep : t->g.n;
    if (t->c->k.dw(&t->g, n0, n1, t->c->worker[worker].p)) {
        atomic_store(&t->c->bad, 1);
    }
}

static void cpu_linear_dw(struct device *d, const struct tensor *dy, const struct tensor *x,
                          const struct leaf_rows *leaves, struct tensor *grad)
{
    struct cpu *c = cpu_of(d);
    struct cpu_dw t;
    int tiles = 0, n = (int)grad->rows, k = (int)grad->cols;
    int32_t *tb0, *row, *cnt;
    size_t nblocks = (size_t)ceil_div(n, 32) * 2;

    for (int l = 0; l < leaves->n; l++) {
        tiles += ceil_div(leaves->start[l + 1] - leaves->start[l], 32);
    }
    if (!tiles) {
        return;
    }
    tb0 = cpu_grow(&c->index, sizeof(int32_t) * ((size_t)leaves->n + 1 + 2 * (size_t)tiles));
    row = tb0 + leaves->n + 1;
    cnt = row + tiles;
    tiles = 0;
    for (int l = 0; l < leaves->n; l++) {
        tb0[l] = tiles;
        for (int r = leaves->start[l]; r < leaves->start[l + 1]; r += 32) {
            row[tiles] = r;
            cnt[tiles++] = leaves->start[l + 1] - r < 32 ? leaves->start[l + 1] - r : 32;
        }
    }
    tb0[leaves->n] = tiles;

    memset(&t, 0, sizeof t);
    t.c = c;
    t.dy = dy;
    t.x = x;
    t.leaves = leaves;
    t.tile_row = row;
    t.tile_rows = cnt;
    t.dyt = cpu_grow(&c->shared, (nblocks + (size_t)(k / 16)) * (size_t)tiles * 1024);
    t.xp = t.dyt + nblocks * (size_t)tiles * 512;
    t.g.dyt = t.dyt;
    t.g.xp = t.xp;
    t.g.ttiles = tiles;
    t.g.ktiles = k / 16;
    t.g.n = n;
    t.g.k = k;
    t.g.nleaf = leaves->n;
    t.g.tb0 = tb0;
    t.g.grad = grad->data;
    t.g.ldg = grad->ld;
    t.g.scale = (float)((int64_t)1 << PLAN_QUANTUM);
    cpu_scratch_all(d, 65536);
    pool_run(d->pool, cpu_dw_pack, &t, tiles);
    t.nstep = ceil_div(ceil_div(n, 32), pool_size(d->pool) * 4) * 32;
    pool_run(d->pool, cpu_dw_task, &t, ceil_div(n, t.nstep));
}

/* ---- column sums over leaves -------------------------------------------------------------------
 */

struct cpu_cols {
    struct cpu *c;
    const struct tensor *dy, *x, *rstd;
    const struct leaf_rows *leaves;
    int64_t *grad;
};

static void cpu_cols_task(void *arg, int task, int worker)
{
    struct cpu_cols *t = arg;
    const float scale = (float)((int64_t)1 << PLAN_QUANTUM);
    int bad = 0;
    (void)worker;
    for (int l = 0; l < t->leaves->n; l++) {
        int r0 = t->leaves->start[l], r1 = t->leaves->start[l + 1];
        bad |= t->x ? t->c->k.rmsnorm_dw(t->dy->data, t->dy->ld, t->x->data, t->x->ld,
                                         t->rstd->data, r0, r1, task * 16, t->grad, scale)
                    : t->c->k.bias_dw(t->dy->data, t->dy->ld, r0, r1, task * 16, t->grad, scale);
    }
    if (bad) {
        atomic_store(&t->c->bad, 1);
    }
}

static void cpu_bias_dw(struct device *d, const struct tensor *dy, const struct leaf_rows *leaves,
                        struct tensor *grad)
{
    struct cpu_cols t = {cpu_of(d), dy, NULL, NULL, leaves, grad->data};
    pool_run(d->pool, cpu_cols_task, &t, ceil_div((int)grad->cols, 16));
}

/* ---- norms -------------------------------------------------------------------------------------
 */

struct cpu_norm {
    const struct kern *k;
    const struct tensor *dy, *x, *w, *y;
    float eps;
    float *rstd;
    int64_t rld;
    const struct tensor *dx;
};

#define ROW16(t, r) ((uint16_t *)(t)->data + (size_t)(r) * (size_t)(t)->ld)
#define ROW32(t, r) ((float *)(t)->data + (size_t)(r) * (size_t)(t)->ld)

static void cpu_norm_row(const void *arg, int r)
{
    const struct cpu_norm *t = arg;
    t->k->rmsnorm(ROW16(t->x, r), t->w->data, (int)t->x->cols, t->eps, ROW16(t->y, r),
                  t->rstd ? t->rstd + r : NULL);
}

static void cpu_rmsnorm(struct device *d, const struct tensor *x, const struct tensor *w, float eps,
                        struct tensor *y, struct tensor *rstd)
{
    struct cpu_norm t = {&cpu_of(d)->k, NULL, x, w, y, eps, rstd ? rstd->data : NULL, 0, NULL};
    cpu_each_row(d, (int)x->rows, 32, cpu_norm_row, &t);
}

static void cpu_norm_bwd_row(const void *arg, int r)
{
    const struct cpu_norm *t = arg;
    t->k->rmsnorm_bwd(ROW16(t->dy, r), ROW16(t->x, r), t->w->data, (int)t->x->cols, t->rstd[r],
                      ROW32(t->dx, r));
}

static void cpu_rmsnorm_bwd(struct device *d, const struct tensor *dy, const struct tensor *x,
                            const struct tensor *w, const struct tensor *rstd,
                            const struct leaf_rows *leaves, struct tensor *dx,
                            struct tensor *grad_w)
{
    struct cpu_norm t = {&cpu_of(d)->k, dy, x, w, NULL, 0.0f, rstd->data, 0, dx};
    struct cpu_cols c = {cpu_of(d), dy, x, rstd, leaves, grad_w->data};
    cpu_each_row(d, (int)x->rows, 32, cpu_norm_bwd_row, &t);
    pool_run(d->pool, cpu_cols_task, &c, ceil_div((int)x->cols, 16));
}

/* ---- rope and pages ----------------------------------------------------------------------------
 */

struct cpu_rope {
    const struct kern *k;
    const struct tensor *qkv, *qn, *kn, *cos, *sin;
    float eps;
    const struct attn_shape *s;
    const struct rows *rows;
    struct kv_store *kv;
    int layer;
    const struct tensor *q;
    const int32_t *row_seq; /* sequence of each row */
    const struct tensor *dq, *dkv, *dqkv;
    float *dn; /* (rows, heads + kv, d) norm gradients of each row, or NULL */
};

static void cpu_rope_row(const void *arg, int r)
{
    const struct cpu_rope *t = arg;
    int d = t->s->head_dim, nh = t->s->n_heads, nkv = t->s->n_kv_heads;
    int pos = t->rows->pos[r], slot = pos % PLAN_KV_BLOCK;
    int page = t->rows->seq[t->row_seq[r]].pages[pos / PLAN_KV_BLOCK];
    const uint16_t *x = ROW16(t->qkv, r);
    const float *c = ROW32(t->cos, pos), *s = ROW32(t->sin, pos);
    uint16_t *q = ROW16(t->q, r), *kv = t->kv->data;
    float y[512];

    for (int h = 0; h < nh; h++) {
        t->k->rope_head(x + h * d, t->qn ? t->qn->data : NULL, t->eps, c, s, d, y);
        t->k->to_bf16(y, d, q + h * d);
    }
    for (int h = 0; h < nkv; h++) {
        uint16_t *kp = kv + kv_key_offset(t->kv, page, t->layer, h);
        uint16_t *vp = kv + kv_value_offset(t->kv, page, t->layer, h);
        t->k->rope_head(x + (nh + h) * d, t->kn ? t->kn->data : NULL, t->eps, c, s, d, y);
        for (int i = 0; i < d; i++) {
            kp[kv_key_index(i, slot)] = dtype_to_bf16(y[i]);
        }
        memcpy(vp + slot * d, x + (nh + nkv + h) * d, (size_t)d * 2);
    }
}

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

static void cpu_rope_kv(struct device *d, const struct tensor *qkv, const struct tensor *q_norm,
                        const struct tensor *k_norm, float eps, const struct tensor *cos,
                        const struct tensor *sin, const struct attn_shape *s,
                        const struct rows *rows, struct kv_store *kv, int layer, struct tensor *q)
{
    struct cpu_rope t;
    memset(&t, 0, sizeof t);
    t.k = &cpu_of(d)->k;
    t.qkv = qkv;
    t.qn = q_norm;
    t.kn = k_norm;
    t.cos = cos;
    t.sin = sin;
    t.eps = eps;
    t.s = s;
    t.rows = rows;
    t.kv = kv;
    t.layer = layer;
    t.q = q;
    t.row_seq = cpu_row_seq(d, rows);
    cpu_each_row(d, rows->n, 16, cpu_rope_row, &t);
}

static void cpu_rope_bwd_row(const void *arg, int r)
{
    const struct cpu_rope *t = arg;
    int d = t->s->head_dim, nh = t->s->n_heads, nkv = t->s->n_kv_heads;
    int pos = t->rows->pos[r];
    const uint16_t *x = ROW16(t->qkv, r);
    const float *c = ROW32(t->cos, pos), *s = ROW32(t->sin, pos);
    const float *dq = ROW32(t->dq, r), *dkv = ROW32(t->dkv, r);
    uint16_t *out = ROW16(t->dqkv, r);
    float dx[512], *dn = t->dn ? t->dn + (size_t)r * (size_t)((nh + nkv) * d) : NULL;

    for (int h = 0; h < nh + nkv; h++) {
        const struct tensor *n = h < nh ? t->qn : t->kn;
        t->k->rope_head_bwd(h < nh ? dq + h * d : dkv + (h - nh) * d, x + h * d, n ? n->data : NULL,
                            t->eps, c, s, d, dx, dn ? dn + h * d : NULL);
        t->k->to_bf16(dx, d, out + h * d);
    }
    t->k->to_bf16(dkv + nkv * d, nkv * d, out + (nh + nkv) * d);
}

/* Sums the rows' norm gradients: a leaf in row and head order, in f32; leaves exactly. */
static int cpu_norm_leaves(const float *dn, int width, int h0, int heads, int d,
                           const struct leaf_rows *leaves, int64_t *grad)
{
    const float scale = (float)((int64_t)1 << PLAN_QUANTUM);
    int bad = 0;
    for (int l = 0; l < leaves->n; l++) {
        for (int i = 0; i < d; i++) {
            float s = 0.0f, q;
            for (int r = leaves->start[l]; r < leaves->start[l + 1]; r++) {
                for (int h = h0; h < h0 + heads; h++) {
                    s = s + dn[(size_t)r * (size_t)width + (size_t)(h * d + i)];
                }
            }
            q = s * scale;
            if (!(q < 0x1p63f && q > -0x1p63f)) {
                bad = 1;
            } else {
                /* adding and taking away 2^23 rounds small values; large ones are integers */
                float big = q < 0 ? -8388608.0f : 8388608.0f;
                float rounded = q < 8388608.0f && q > -8388608.0f ? (q + big) - big : q;
                bad |= __builtin_add_overflow(grad[i], (int64_t)rounded, &grad[i]);
            }
        }
    }
    return bad;
}

static void cpu_rope_kv_bwd(struct device *d, const struct tensor *dq, const struct tensor *dkv,
                            const struct tensor *qkv, const struct tensor *q_norm,
                            const struct tensor *k_norm, float eps, const struct tensor *cos,
                            const struct tensor *sin, const struct attn_shape *s,
                            const struct rows *rows, const struct leaf_rows *leaves,
                            struct tensor *dqkv, struct tensor *grad_qn, struct tensor *grad_kn)
{
    struct cpu *c = cpu_of(d);
    struct cpu_rope t;
    int width = (s->n_heads + s->n_kv_heads) * s->head_dim;

    memset(&t, 0, sizeof t);
    t.k = &c->k;
    t.qkv = qkv;
    t.qn = q_norm;
    t.kn = k_norm;
    t.cos = cos;
    t.sin = sin;
    t.eps = eps;
    t.s = s;
    t.rows = rows;
    t.dq = dq;
    t.dkv = dkv;
    t.dqkv = dqkv;
    if (q_norm) {
        t.dn = cpu_grow(&c->shared, sizeof(float) * (size_t)rows->n * (size_t)width);
    }
    cpu_each_row(d, rows->n, 16, cpu_rope_bwd_row, &t);
    if (q_norm && (cpu_norm_leaves(t.dn, width, 0, s->n_heads, s->head_dim, leaves, grad_qn->data) |
                   cpu_norm_leaves(t.dn, width, s->n_heads, s->n_kv_heads, s->head_dim, leaves,
                                   grad_kn->data))) {
        atomic_store(&c->bad, 1);
    }
}

/* ---- attention ---------------------------------------------------------------------------------
 */

#define CPU_ATTN_ROWS 64 /* rows of one task of a long prefill */

struct cpu_attn {
    struct kern_attn_bwd a;
    const struct cpu *c;
    const int32_t *task_seq, *task_row;
    int nkv;
};

static void cpu_attn_task(void *arg, int task, int worker)
{
    const struct cpu_attn *t = arg;
    int i = task / t->nkv, seq = t->task_seq[i], r0 = t->task_row[i];
    int r1 = r0 + CPU_ATTN_ROWS, n = t->a.f.rows->seq[seq].nrows;
    t->c->k.attn(&t->a.f, seq, task % t->nkv, r0, r1 < n ? r1 : n, t->c->worker[worker].p);
}

static void cpu_attn_bwd_task(void *arg, int task, int worker)
{
    const struct cpu_attn *t = arg;
    t->c->k.attn_bwd(&t->a, task / t->nkv, task % t->nkv, t->c->worker[worker].p);
}

static void cpu_attn_args(struct device *d, struct cpu_attn *t, const struct tensor *q,
                          const struct kv_store *kv, int layer, const struct attn_shape *s,
                          const struct rows *rows, const struct tensor *out,
                          const struct tensor *lse)
{
    int longest = 0;
    memset(t, 0, sizeof *t);
    t->c = cpu_of(d);
    t->nkv = s->n_kv_heads;
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
    for (int i = 0; i < rows->nseq; i++) {
        int end = rows->seq[i].pos0 + rows->seq[i].nrows;
        longest = end > longest ? end : longest;
    }
    cpu_scratch_all(d, kern_attn_scratch(longest, s->head_dim));
}

static void cpu_attn_fwd(struct device *d, const struct tensor *q, const struct kv_store *kv,
                         int layer, const struct attn_shape *s, const struct rows *rows,
                         struct tensor *out, struct tensor *lse)
{
    struct cpu_attn t;
    int32_t *seq, *row;
    int n = 0;

    cpu_attn_args(d, &t, q, kv, layer, s, rows, out, lse);
    seq = cpu_grow(&cpu_of(d)->index, sizeof(int32_t) * 2 * (size_t)(rows->n + rows->nseq));
    row = seq + rows->n + rows->nseq;
    for (int i = 0; i < rows->nseq; i++) {
        for (int r = 0; r < rows->seq[i].nrows; r += CPU_ATTN_ROWS) {
            seq[n] = i;
            row[n++] = r;
        }
    }
    t.task_seq = seq;
    t.task_row = row;
    pool_run(d->pool, cpu_attn_task, &t, n * t.nkv);
}

static void cpu_attn_bwd(struct device *d, const struct tensor *dout, const struct tensor *q,
                         const struct tensor *out, const struct tensor *lse,
                         const struct kv_store *kv, int layer, const struct attn_shape *s,
                         const struct rows *rows, struct tensor *dq, struct tensor *dkv)
{
    struct cpu_attn t;
    cpu_attn_args(d, &t, q, kv, layer, s, rows, out, lse);
    t.a.dout = dout->data;
    t.a.lddo = dout->ld;
    t.a.dq = dq->data;
    t.a.lddq = dq->ld;
    t.a.dkv = dkv->data;
    t.a.lddkv = dkv->ld;
    pool_run(d->pool, cpu_attn_bwd_task, &t, rows->nseq * t.nkv);
}

/* ---- elementwise, embedding, logits ------------------------------------------------------------
 */

struct cpu_two {
    const struct kern *k;
    struct cpu *c;
    const struct tensor *a, *b, *o;
    const int32_t *ids;
};

static void cpu_swiglu_row(const void *arg, int r)
{
    const struct cpu_two *t = arg;
    t->k->swiglu(ROW16(t->a, r), (int)t->o->cols, ROW16(t->o, r));
}

static void cpu_swiglu(struct device *d, const struct tensor *gu, struct tensor *y)
{
    struct cpu_two t = {&cpu_of(d)->k, NULL, gu, NULL, y, NULL};
    cpu_each_row(d, (int)y->rows, 16, cpu_swiglu_row, &t);
}

static void cpu_swiglu_bwd_row(const void *arg, int r)
{
    const struct cpu_two *t = arg;
    t->k->swiglu_bwd(ROW16(t->a, r), ROW16(t->b, r), (int)t->a->cols, ROW16(t->o, r));
}

static void cpu_swiglu_bwd(struct device *d, const struct tensor *dy, const struct tensor *gu,
                           struct tensor *dgu)
{
    struct cpu_two t = {&cpu_of(d)->k, NULL, dy, gu, dgu, NULL};
    cpu_each_row(d, (int)dy->rows, 16, cpu_swiglu_bwd_row, &t);
}

static void cpu_gather_row(const void *arg, int r)
{
    const struct cpu_two *t = arg;
    size_t sz = dtype_size(t->a->dtype);
    memcpy((char *)t->o->data + (size_t)r * (size_t)t->o->ld * sz,
           (const char *)t->a->data + (size_t)t->ids[r] * (size_t)t->a->ld * sz,
           (size_t)t->a->cols * sz);
}

static void cpu_gather(struct device *d, const struct tensor *x, const int32_t *row,
                       struct tensor *y)
{
    struct cpu_two t = {NULL, NULL, x, NULL, y, row};
    cpu_each_row(d, (int)y->rows, 64, cpu_gather_row, &t);
}

static void cpu_scatter(struct device *d, const struct tensor *x, const int32_t *row,
                        struct tensor *y)
{
    size_t sz = dtype_size(y->dtype);
    (void)d;
    memset(y->data, 0, (size_t)y->rows * (size_t)y->ld * sz);
    for (int i = 0; i < (int)x->rows; i++) {
        memcpy((char *)y->data + (size_t)row[i] * (size_t)y->ld * sz,
               (const char *)x->data + (size_t)i * (size_t)x->ld * sz, (size_t)x->cols * sz);
    }
}

static void cpu_embed_bwd_cols(void *arg, int task, int worker)
{
    const struct cpu_two *t = arg;
    int c0 = task * 64, n = (int)t->a->cols - c0 < 64 ? (int)t->a->cols - c0 : 64;
    (void)worker;
    for (int r = 0; r < (int)t->a->rows; r++) {
        int64_t *g = (int64_t *)t->o->data + (size_t)t->ids[r] * (size_t)t->o->ld + c0;
        if (t->k->add_row(ROW32(t->a, r) + c0, n, g, (float)((int64_t)1 << PLAN_QUANTUM))) {
            atomic_store(&t->c->bad, 1);
        }
    }
}

static void cpu_embed_bwd(struct device *d, const struct tensor *dy, const int32_t *ids,
                          struct tensor *grad)
{
    struct cpu_two t = {&cpu_of(d)->k, cpu_of(d), dy, NULL, grad, ids};
    pool_run(d->pool, cpu_embed_bwd_cols, &t, ceil_div((int)dy->cols, 64));
}

static void cpu_copy_row(const void *arg, int r)
{
    const struct cpu_two *t = arg;
    size_t bytes = (size_t)t->a->ld * dtype_size(t->a->dtype);
    memcpy((char *)t->o->data + (size_t)r * bytes, (const char *)t->a->data + (size_t)r * bytes,
           bytes);
}

static void cpu_copy(struct device *d, const struct tensor *x, struct tensor *y)
{
    struct cpu_two t = {NULL, NULL, x, NULL, y, NULL};
    if (x->data != y->data) {
        cpu_each_row(d, (int)x->rows, 128, cpu_copy_row, &t);
    }
}

static void cpu_convert_row(const void *arg, int r)
{
    const struct cpu_two *t = arg;
    t->k->to_bf16(ROW32(t->a, r), (int)t->a->ld, ROW16(t->o, r));
}

static void cpu_convert(struct device *d, const struct tensor *x, struct tensor *y)
{
    struct cpu_two t = {&cpu_of(d)->k, NULL, x, NULL, y, NULL};
    cpu_each_row(d, (int)x->rows, 32, cpu_convert_row, &t);
}

struct cpu_logp {
    const struct kern *k;
    const struct tensor *x, *dx;
    float t;
    const int32_t *target;
    const struct leafset *leaves;
    float *logp, *max, *logz, *entropy;
    const float *g, *ge;
};

static void cpu_logp_row(const void *arg, int r)
{
    const struct cpu_logp *t = arg;
    float *x = ROW32(t->x, r), m, sums[2], lz;
    t->k->logits_row(x, (int)t->x->cols, t->t, t->leaves, &m, sums, t->entropy != NULL);
    lz = vmath_logf(sums[0]);
    if (t->logp && t->target[r] >= 0) {
        t->logp[r] = (x[t->target[r]] - m) - lz;
    }
    if (t->max) {
        t->max[r] = m;
    }
    if (t->logz) {
        t->logz[r] = lz;
    }
    if (t->entropy) {
        t->entropy[r] = lz - sums[1] / sums[0];
    }
}

static void cpu_logp_fn(struct device *d, struct tensor *logits, float temperature,
                        const int32_t *target, const struct leafset *vleaf, float *logp, float *max,
                        float *logz, float *entropy)
{
    struct cpu_logp t = {&cpu_of(d)->k, logits, NULL, temperature, target, vleaf,
                         logp,          max,    logz, entropy,     NULL,   NULL};
    cpu_each_row(d, (int)logits->rows, 1, cpu_logp_row, &t);
}

static void cpu_logp_bwd_row(const void *arg, int r)
{
    const struct cpu_logp *t = arg;
    float inv = t->t > 0.0f ? 1.0f / t->t : 1.0f;
    t->k->dlogits_row(ROW32(t->x, r), (int)t->x->cols, (int)t->dx->ld, inv, t->target[r], t->max[r],
                      t->logz[r], t->entropy ? t->entropy[r] : 0.0f, t->g[r],
                      t->ge ? t->ge[r] : 0.0f, ROW16(t->dx, r));
}

static void cpu_logp_bwd(struct device *d, const struct tensor *logits, float temperature,
                         const int32_t *target, const float *max, const float *logz,
                         const float *entropy, const float *g, const float *ge,
                         struct tensor *dlogits)
{
    struct cpu_logp t = {&cpu_of(d)->k,
                         logits,
                         dlogits,
                         temperature,
                         target,
                         NULL,
                         NULL,
                         (float *)(uintptr_t)max,
                         (float *)(uintptr_t)logz,
                         (float *)(uintptr_t)entropy,
                         g,
                         ge};
    cpu_each_row(d, (int)logits->rows, 1, cpu_logp_bwd_row, &t);
}

static void cpu_exps_row(const void *arg, int r)
{
    const struct cpu_logp *t = arg;
    t->k->exps(ROW32(t->x, r), (int)t->x->cols, t->max[r], ROW32(t->dx, r));
}

static void cpu_exps(struct device *d, const struct tensor *x, const float *max, struct tensor *y)
{
    struct cpu_logp t;
    memset(&t, 0, sizeof t);
    t.k = &cpu_of(d)->k;
    t.x = x;
    t.dx = y;
    t.max = (float *)(uintptr_t)max;
    cpu_each_row(d, (int)x->rows, 1, cpu_exps_row, &t);
}

/* ---- optimizer ---------------------------------------------------------------------------------
 */

#define CPU_CHUNK 65536

struct cpu_opt {
    const struct kern *k;
    struct tensor *grad, *master, *m, *v, *w16;
    const struct adam_step *s;
    int decay;
    struct cpu *c;
};

static int64_t cpu_elems(const struct tensor *t)
{
    return t->rows * t->ld;
}

static void cpu_sumsq_task(void *arg, int task, int worker)
{
    struct cpu_opt *t = arg;
    int64_t from = (int64_t)task * CPU_CHUNK, n = cpu_elems(t->grad) - from;
    const double quantum = 1.0 / (double)((int64_t)1 << PLAN_QUANTUM);
    n = n < CPU_CHUNK ? n : CPU_CHUNK;
    for (int64_t i = 0; i < n; i += 32) {
        exact_add(t->c->worker[worker].p,
                  t->k->sumsq32((int64_t *)t->grad->data + from + i, quantum));
    }
}

static void cpu_sumsq(struct device *d, const struct tensor *grad, void *exact)
{
    struct tensor g = *grad;
    struct cpu_opt t;
    int n = pool_size(d->pool);
    memset(&t, 0, sizeof t);
    cpu_scratch_all(d, sizeof(struct exact)); /* each worker's own sum */
    t.k = &cpu_of(d)->k;
    t.grad = &g;
    t.c = cpu_of(d);
    for (int i = 0; i < n; i++) {
        exact_init(t.c->worker[i].p);
    }
    pool_run(d->pool, cpu_sumsq_task, &t, (int)((cpu_elems(grad) + CPU_CHUNK - 1) / CPU_CHUNK));
    for (int i = 0; i < n; i++) {
        exact_merge(exact, t.c->worker[i].p);
    }
}

static void cpu_adamw_task(void *arg, int task, int worker)
{
    struct cpu_opt *t = arg;
    int64_t from = (int64_t)task * CPU_CHUNK, n = cpu_elems(t->grad) - from;
    (void)worker;
    n = n < CPU_CHUNK ? n : CPU_CHUNK;
    t->k->adamw((int64_t *)t->grad->data + from, (float *)t->master->data + from,
                (float *)t->m->data + from, (float *)t->v->data + from,
                (uint16_t *)t->w16->data + from, (int)n, 1.0 / (double)((int64_t)1 << PLAN_QUANTUM),
                t->s, t->decay);
}

static void cpu_adamw(struct device *d, struct tensor *grad, struct tensor *master,
                      struct tensor *m, struct tensor *v, const struct adam_step *s, int decay,
                      struct tensor *w16)
{
    struct cpu_opt t = {&cpu_of(d)->k, grad, master, m, v, w16, s, decay, NULL};
    pool_run(d->pool, cpu_adamw_task, &t, (int)((cpu_elems(grad) + CPU_CHUNK - 1) / CPU_CHUNK));
}

struct cpu_pack {
    const struct kern *k;
    const struct tensor *w;
    struct wview *v;
    int nblocks;
};

static void cpu_pack_task(void *arg, int task, int worker)
{
    const struct cpu_pack *t = arg;
    (void)worker;
    if (task < t->nblocks) {
        t->k->pack_fwd(t->w->data, t->w->ld, t->v->n, t->v->k, task, t->v->fwd);
    } else {
        t->k->pack_bwd(t->w->data, t->w->ld, t->v->n, t->v->k, task - t->nblocks, t->v->bwd);
    }
}

static void cpu_pack_fn(struct device *d, const struct tensor *w16, struct wview *view)
{
    struct cpu_pack t = {&cpu_of(d)->k, w16, view, ceil_div(view->n, 16)};
    pool_run(d->pool, cpu_pack_task, &t, t.nblocks + (view->bwd ? view->k / 16 : 0));
}

static const struct device_ops cpu_table = {
    .linear = cpu_linear,
    .linear_dx = cpu_linear_dx,
    .linear_dw = cpu_linear_dw,
    .bias_dw = cpu_bias_dw,
    .rmsnorm = cpu_rmsnorm,
    .rmsnorm_bwd = cpu_rmsnorm_bwd,
    .rope_kv = cpu_rope_kv,
    .rope_kv_bwd = cpu_rope_kv_bwd,
    .attn = cpu_attn_fwd,
    .attn_bwd = cpu_attn_bwd,
    .swiglu = cpu_swiglu,
    .swiglu_bwd = cpu_swiglu_bwd,
    .embed = cpu_gather,
    .embed_bwd = cpu_embed_bwd,
    .logp = cpu_logp_fn,
    .logp_bwd = cpu_logp_bwd,
    .exps = cpu_exps,
    .gather = cpu_gather,
    .scatter = cpu_scatter,
    .copy = cpu_copy,
    .convert = cpu_convert,
    .sumsq = cpu_sumsq,
    .adamw = cpu_adamw,
    .pack = cpu_pack_fn,
};

int cpu_take_fault(struct device *d)
{
    return atomic_exchange(&cpu_of(d)->bad, 0);
}

int cpu_open(struct device *d, const char *isa, struct err *e)
{
    struct cpu *c = mem_alloc(sizeof *c);
    if (strcmp(isa, "scalar") == 0) {
        c->k = scalar_kern;
#if MILES_X86
    } else if (strcmp(isa, "avx2") == 0) {
        c->k = avx2_kern;
    } else if (strcmp(isa, "avx512") == 0) {
        c->k = avx512_kern;
    } else if (strcmp(isa, "amx") == 0 && amx_fill(&c->k)) {
        ;
#endif
    } else {
        mem_free(c);
        return ERR(e, STATUS_UNSUPPORTED, "no kernels for instruction set %s here", isa);
    }
    c->worker = mem_alloc(sizeof *c->worker * (size_t)pool_size(d->pool));
    d->impl = c;
    d->isa = c->k.name;
    d->ops = &cpu_table;
    d->caps = DEVICE_ROW_EXACT | DEVICE_LAYOUT_EXACT;
    return STATUS_OK;
}

void cpu_close(struct device *d)
{
    struct cpu *c = d->impl;
    if (c) {
        for (int i = 0; i < pool_size(d->pool); i++) {
            mem_unmap(c->worker[i].p, c->worker[i].size);
        }
        mem_unmap(c->shared.p, c->shared.size);
        mem_unmap(c->index.p, c->index.size);
        mem_free(c->worker);
        mem_free(c);
    }
}
