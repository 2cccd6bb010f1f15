/* The CPU device's products: how a product, an input gradient and a weight gradient are cut into
 * tasks, and how weights are packed. */
#include <string.h>

#include "base/thread.h"
#include "num/cpu/cpu_int.h"

/* ---- products ----------------------------------------------------------------------------------
 */

struct cpu_gemm {
    struct kern_gemm g;
    const struct cpu *c;
    int mtasks, ntasks; /* pieces of rows and of columns, of whole blocks of 32 */
};

/* Start of piece i of n. */
static int cpu_gemm_cut(int size, int i, int n)
{
    int at = (int)((int64_t)ceil_div(size, 32) * i / n) * 32;
    return at < size ? at : size;
}

/* Rows vary fastest, so that threads meet in the same columns of the weight at the same time. */
static void cpu_gemm_task(void *arg, int task, int worker)
{
    const struct cpu_gemm *t = arg;
    int m = task % t->mtasks, n = task / t->mtasks;
    t->c->k.gemm(&t->g, cpu_gemm_cut(t->g.m, m, t->mtasks), cpu_gemm_cut(t->g.m, m + 1, t->mtasks),
                 cpu_gemm_cut(t->g.n, n, t->ntasks), cpu_gemm_cut(t->g.n, n + 1, t->ntasks),
                 t->c->worker[worker].p);
}

/* Pieces of columns for each thread, at most `each`: as few blocks as can be for the thread that
 * has the most, in as many pieces as that allows. */
static int cpu_gemm_even(int nblocks, int each, int threads)
{
    int best = each;
    for (int i = each - 1; i > 0; i--) {
        if (i * ceil_div(nblocks, i * threads) < best * ceil_div(nblocks, best * threads)) {
            best = i;
        }
    }
    return best;
}

/* As many pieces as keep a thread busy for some 100 us each, a whole number for each thread: fewer
 * cost no start-up, more even out threads that are slowed down. Of many rows only two for each
 * thread: every piece of columns brings the rows into the second-level cache anew. */
static void cpu_gemm_split(struct cpu_gemm *t, int threads)
{
    double k = (double)t->g.ktiles * 32, weights = k * (double)t->g.n;
    double us = weights * 2 / 5e3 + weights * 2 * (double)t->g.m / 7e5;
    int each = us / 100 < threads ? 1 : (int)(us / 100) / threads, nblocks = ceil_div(t->g.n, 32);
    int most = t->g.m <= 256 ? 8 : 2, want;

    each = cpu_gemm_even(nblocks, each < most ? each : most, threads);
    want = each * threads;
    t->mtasks = t->g.m <= 128 ? 1 : ceil_div(t->g.m, 512);
    t->mtasks = t->mtasks > want ? ceil_div(t->mtasks, threads) * threads : t->mtasks;
    t->ntasks = ceil_div(want, t->mtasks);
    t->ntasks = t->ntasks > nblocks ? nblocks : t->ntasks;
}

/* Results that would only push other data out of the caches, and first be read in from memory. */
static int cpu_gemm_stream(const struct kern_gemm *g)
{
    size_t size = g->c_f32 ? 4 : 2, line = 63;
    return (size_t)g->m * (size_t)g->n * size >= CPU_STREAM &&
           (((uintptr_t)g->c | (size_t)g->ldc * size) & line) == 0;
}

static void cpu_gemm_run(struct device *d, struct cpu_gemm *t)
{
    struct cpu *c = cpu_of(d);

    t->c = c;
    t->g.stream = cpu_gemm_stream(&t->g);
    cpu_scratch_all(d, c->k.gemm_scratch ? c->k.gemm_scratch
                                         : (size_t)c->k.rows * (size_t)t->g.ktiles * 32 * 4);
    cpu_gemm_split(t, pool_size(d->pool));
    pool_run(d->pool, cpu_gemm_task, t, t->mtasks * t->ntasks);
}

void cpu_linear(struct device *d, const struct tensor *x, const struct wview *w,
                const struct tensor *bias, const struct tensor *residual, struct tensor *y)
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
    t.g.residual = residual ? residual->data : NULL;
    t.g.ldr = residual ? residual->ld : 0;
    t.g.bias = bias ? bias->data : NULL;
    cpu_gemm_run(d, &t);
}

void cpu_linear_dx(struct device *d, const struct tensor *dy, const struct wview *w,
                   struct tensor *dx)
{
    struct cpu_gemm t;
    if (!w->bwd) {
        cpu_linear_dx_panels(d, dy, w, dx);
        return;
    }
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
    int nblocks, kblocks; /* of 16 columns */
    float *dysq, *xsq;    /* (tiles, blocks) sums of squares, when dw_norms asks for them */
    int nstep;
};

static void cpu_dw_pack(void *arg, int task, int worker)
{
    struct cpu_dw *t = arg;
    size_t row = (size_t)t->tile_row[task];
    (void)worker;
    t->c->k.pack_dyt((const uint16_t *)t->dy->data + row * (size_t)t->dy->ld, t->dy->ld,
                     t->tile_rows[task], t->nblocks * 16, task, t->g.ttiles, t->dyt,
                     t->dysq ? t->dysq + (size_t)task * (size_t)t->nblocks : NULL);
    t->c->k.pack_xp((const uint16_t *)t->x->data + row * (size_t)t->x->ld, t->x->ld,
                    t->tile_rows[task], t->g.k, task, t->g.ttiles, t->xp,
                    t->xsq ? t->xsq + (size_t)task * (size_t)t->kblocks : NULL);
}

static void cpu_dw_task(void *arg, int task, int worker)
{
    struct cpu_dw *t = arg;
    int n0 = task * t->nstep, n1 = n0 + t->nstep < t->g.n ? n0 + t->nstep : t->g.n;
    if (t->c->k.dw(&t->g, n0, n1, t->c->worker[worker].p)) {
        atomic_store(&t->c->bad, 1);
    }
}

void cpu_linear_dw(struct device *d, const struct tensor *dy, const struct tensor *x,
                   const struct leaf_rows *leaves, struct tensor *grad)
{
    struct cpu *c = cpu_of(d);
    struct cpu_dw t;
    int tiles = 0, n = (int)grad->rows, k = (int)grad->cols;
    int32_t *tb0, *row, *cnt;
    float *dyn = NULL, *xn = NULL;
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
    t.dyt = cpu_grow(&c->shared, (nblocks + (size_t)ceil_div(k, 32) * 2) * (size_t)tiles * 1024);
    t.xp = t.dyt + nblocks * (size_t)tiles * 512;
    t.g.dyt = t.dyt;
    t.g.xp = t.xp;
    t.g.ttiles = tiles;
    t.g.n = n;
    t.g.k = k;
    t.g.nleaf = leaves->n;
    t.g.tb0 = tb0;
    t.g.grad = grad->data;
    t.g.ldg = grad->ld;
    t.g.scale = (float)((int64_t)1 << PLAN_QUANTUM);
    t.g.fresh = grad->fresh && c->k.dw_norms;
    if (!t.g.fresh) {
        device_settle(grad);
    }
    grad->fresh = 0;
    t.nblocks = ceil_div(n, 16);
    t.kblocks = k / 16;
    cpu_scratch_all(d, KERN_DW_SCRATCH);
    if (c->k.dw_norms) {
        size_t blocks = (size_t)(t.nblocks + t.kblocks + 2);
        dyn = cpu_grow(&c->norms, 4 * blocks * (size_t)(tiles + leaves->n));
        xn = dyn + (size_t)(t.nblocks + 1) / 2 * (size_t)leaves->n;
        t.dysq = xn + (size_t)(t.kblocks + 1) / 2 * (size_t)leaves->n;
        t.xsq = t.dysq + (size_t)t.nblocks * (size_t)tiles;
    }
    pool_run(d->pool, cpu_dw_pack, &t, tiles);
    if (c->k.dw_norms) {
        c->k.dw_norms(t.dysq, t.nblocks, leaves->n, tb0, dyn);
        c->k.dw_norms(t.xsq, t.kblocks, leaves->n, tb0, xn);
        t.g.dyn = dyn;
        t.g.xn = xn;
    }
    t.nstep = ceil_div(ceil_div(n, 32), pool_size(d->pool) * 4) * 32;
    pool_run(d->pool, cpu_dw_task, &t, ceil_div(n, t.nstep));
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

void cpu_pack_fn(struct device *d, const struct tensor *w16, struct wview *view)
{
    struct cpu_pack t = {&cpu_of(d)->k, w16, view, ceil_div(view->n, 32) * 2};
    pool_run(d->pool, cpu_pack_task, &t, t.nblocks + (view->bwd ? view->k / 16 : 0));
}
