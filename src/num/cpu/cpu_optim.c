/* The CPU device's optimizer: the gradient's norm, and AdamW in one pass over memory. A task takes
 * 32 rows, which is one row of tiles of both packed forms: it reads the weight's rows (from the
 * tiles when they are its only form), updates them in cache and packs them again. */
#include <string.h>

#include "base/mem.h"
#include "base/thread.h"
#include "num/cpu/cpu_int.h"
#include "num/exact.h"

#define CPU_CHUNK 65536

static const double cpu_quantum = 1.0 / (double)((int64_t)1 << PLAN_QUANTUM);

struct cpu_sumsq {
    struct cpu *c;
    const struct tensor *grad;
};

static int64_t cpu_elems(const struct tensor *t)
{
    return t->rows * t->ld;
}

static void cpu_sumsq_task(void *arg, int task, int worker)
{
    const struct cpu_sumsq *t = arg;
    int64_t from = (int64_t)task * CPU_CHUNK, n = cpu_elems(t->grad) - from;
    n = n < CPU_CHUNK ? n : CPU_CHUNK;
    for (int64_t i = 0; i < n; i += 32) {
        exact_add(t->c->worker[worker].p,
                  t->c->k.sumsq32((const int64_t *)t->grad->data + from + i, cpu_quantum));
    }
}

void cpu_sumsq_fn(struct device *d, const struct tensor *grad, void *exact)
{
    struct cpu_sumsq t = {cpu_of(d), grad};
    int n = pool_size(d->pool);
    cpu_scratch_all(d, sizeof(struct exact)); /* each worker's own sum */
    for (int i = 0; i < n; i++) {
        exact_init(t.c->worker[i].p);
    }
    pool_run(d->pool, cpu_sumsq_task, &t, (int)((cpu_elems(grad) + CPU_CHUNK - 1) / CPU_CHUNK));
    for (int i = 0; i < n; i++) {
        exact_merge(exact, t.c->worker[i].p);
    }
}

struct cpu_adam {
    struct cpu *c;
    const struct adam_param *p;
    const struct adam_step *s;
};

/* Rows [row, row + rows) of one parameter, row by row; w holds their weights. */
static void cpu_adamw_rows(const struct cpu_adam *t, int64_t row, int rows, uint16_t *w, int64_t ld)
{
    const struct adam_param *p = t->p;
    struct kern_adamw a;

    memset(&a, 0, sizeof a);
    a.n = (int)(p->grad->cols + 15) / 16 * 16;
    a.decay = p->decay;
    a.key = p->key;
    a.quantum = cpu_quantum;
    a.s = t->s;
    for (int i = 0; i < rows; i++) {
        int64_t r = row + i;
        a.index = (uint32_t)(r * p->grad->cols);
        a.grad = (int64_t *)p->grad->data + r * p->grad->ld;
        a.w16 = w + i * ld;
        a.p = p->master->dtype == DTYPE_F32 ? ROW32(p->master, r) : NULL;
        a.rem = a.p ? NULL : (int16_t *)p->master->data + r * p->master->ld;
        a.m = p->m->dtype == DTYPE_F32 ? ROW32(p->m, r) : NULL;
        a.m16 = a.m ? NULL : ROW16(p->m, r);
        a.v = p->v->dtype == DTYPE_F32 ? ROW32(p->v, r) : NULL;
        a.v16 = a.v ? NULL : ROW16(p->v, r);
        t->c->k.adamw(&a);
    }
}

/* Packs 32 rows (`rows` of them real), the block number nb32 of their matrix. */
static void cpu_pack_block(const struct kern *k, const uint16_t *w, int64_t ld, int rows, int nb32,
                           struct wview *v)
{
    size_t tiles = (size_t)(v->k / 32), ntiles = (size_t)ceil_div(v->n, 32);
    uint16_t *fwd = (uint16_t *)v->fwd + (size_t)nb32 * 2 * tiles * 512;

    for (int i = 0; i * 16 < rows; i++) {
        k->pack_fwd(w, ld, rows, v->k, i, fwd);
    }
    for (int kb = 0; v->bwd && kb < v->k / 16; kb++) {
        /* as the only block of a matrix of 32 rows, put where it belongs */
        k->pack_bwd(w + kb * 16, ld, rows, v->k, 0,
                    (uint16_t *)v->bwd + ((size_t)(kb / 2) * ntiles + (size_t)nb32) * 1024 +
                        (size_t)(kb % 2) * 512);
    }
}

static void cpu_adamw_task(void *arg, int task, int worker)
{
    const struct cpu_adam *t = arg;
    const struct adam_param *p = t->p;
    int64_t row = (int64_t)task * 32, left = p->grad->rows - row, ld;
    int rows = left < 32 ? (int)left : 32;
    uint16_t *w;

    if (p->w16) {
        w = ROW16(p->w16, row);
        ld = p->w16->ld;
    } else {
        w = t->c->worker[worker].p;
        ld = p->view->k;
        for (int i = 0; i * 16 < rows; i++) {
            t->c->k.unpack_fwd(p->view->fwd, p->view->k, task * 2 + i, w + i * 16 * ld, ld);
        }
    }
    cpu_adamw_rows(t, row, rows, w, ld);
    if (p->view) {
        cpu_pack_block(&t->c->k, w, ld, rows, task, p->view);
    }
}

void cpu_adamw(struct device *d, const struct adam_param *p, const struct adam_step *s)
{
    struct cpu_adam t = {cpu_of(d), p, s};
    if (!p->w16) {
        cpu_scratch_all(d, (size_t)p->view->k * 32 * 2);
    }
    pool_run(d->pool, cpu_adamw_task, &t, ceil_div((int)p->grad->rows, 32));
}

/* ---- from tiles --------------------------------------------------------------------------------
 */

struct cpu_unpack {
    struct cpu *c;
    const struct wview *v;
    struct tensor *w;
    int64_t row0;
};

static void cpu_unpack_task(void *arg, int task, int worker)
{
    const struct cpu_unpack *t = arg;
    int nb = (int)(t->row0 / 16) + task, k = t->v->k;
    uint16_t *rows = t->c->worker[worker].p;

    t->c->k.unpack_fwd(t->v->fwd, k, nb, rows, k);
    for (int i = 0; i < 16; i++) {
        int64_t r = (int64_t)nb * 16 + i - t->row0;
        if (r >= 0 && r < t->w->rows) {
            memcpy(ROW16(t->w, r), rows + (size_t)i * (size_t)k, (size_t)k * 2);
        }
    }
}

void cpu_unpack_fn(struct device *d, const struct wview *view, int64_t row0, struct tensor *w16)
{
    struct cpu_unpack t = {cpu_of(d), view, w16, row0};
    cpu_scratch_all(d, (size_t)view->k * 16 * 2);
    pool_run(d->pool, cpu_unpack_task, &t, (int)((row0 + w16->rows + 15) / 16 - row0 / 16));
}

void cpu_unpack_alone(const struct device *d, const struct wview *view, int64_t row0, int64_t n,
                      float *x)
{
    size_t k = (size_t)view->k;
    uint16_t *rows = mem_alloc(16 * k * sizeof *rows);

    for (int64_t nb = row0 / 16; nb * 16 < row0 + n; nb++) {
        cpu_of(d)->k.unpack_fwd(view->fwd, view->k, (int)nb, rows, view->k);
        for (int64_t r = nb * 16 < row0 ? row0 : nb * 16; r < nb * 16 + 16 && r < row0 + n; r++) {
            const uint16_t *in = rows + (size_t)(r - nb * 16) * k;
            float *out = x + (size_t)(r - row0) * k;
            for (size_t c = 0; c < k; c++) {
                out[c] = dtype_from_bf16(in[c]);
            }
        }
    }
    mem_free(rows);
}

struct cpu_panel {
    struct cpu *c;
    const struct wview *v;
    int kb0;
    uint16_t *out;
};

static void cpu_panel_task(void *arg, int task, int worker)
{
    const struct cpu_panel *t = arg;
    (void)worker;
    t->c->k.fwd_to_bwd(t->v->fwd, t->v->n, t->v->k, t->kb0 + task,
                       t->out + (size_t)(task / 2) * (size_t)ceil_div(t->v->n, 32) * 1024 +
                           (size_t)(task % 2) * 512);
}

/* dx = dy W of a weight that has no transpose: that is made panel by panel, a panel being some of
 * W's columns. Each column of the result is computed as it always is. */
void cpu_linear_dx_panels(struct device *d, const struct tensor *dy, const struct wview *w,
                          struct tensor *dx)
{
    struct cpu *c = cpu_of(d);
    size_t block = (size_t)ceil_div(w->n, 32) * 1024; /* bytes of 16 columns */
    int step = (int)(DEVICE_PANEL / block) / 4 * 64;

    step = step < 64 ? 64 : step;
    for (int k0 = 0; k0 < w->k; k0 += step) {
        int cols = w->k - k0 < step ? w->k - k0 : step;
        struct cpu_panel t = {c, w, k0 / 16, NULL};
        struct wview v = *w;
        struct tensor y = *dx;
        t.out = cpu_grow(&c->panel, (size_t)(cols / 16) * block + 4096);
        pool_run(d->pool, cpu_panel_task, &t, cols / 16);
        v.k = cols;
        v.bwd = t.out;
        y.cols = cols;
        y.data = (char *)dx->data + (size_t)k0 * dtype_size(dx->dtype);
        cpu_linear_dx(d, dy, &v, &y);
    }
}
