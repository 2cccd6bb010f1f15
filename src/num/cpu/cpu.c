/* The CPU device: splits each operation over the pool's threads and calls the kernel table of the
 * chosen instruction set. How the work is split never shows in a result: each output value is
 * computed by one task, and gradients are integer sums. Scratch memory is per worker and only
 * grows. */
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "base/thread.h"
#include "num/cpu/cpu_int.h"

void *cpu_grow(struct cpu_scratch *s, size_t n)
{
    if (s->size < n) {
        mem_unmap(s->p, s->size);
        s->p = mem_map(n);
        ASSERT(s->p);
        s->size = n;
    }
    return s->p;
}

void cpu_scratch_all(struct device *d, size_t n)
{
    for (int i = 0; i < pool_size(d->pool); i++) {
        cpu_grow(&cpu_of(d)->worker[i], n);
    }
}

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

void cpu_each_row(struct device *d, int n, int step, cpu_row_fn *fn, const void *arg)
{
    struct cpu_rows r = {fn, arg, n, step};
    pool_run(d->pool, cpu_rows_task, &r, ceil_div(n, step));
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
    .glu = cpu_glu,
    .glu_bwd = cpu_glu_bwd,
    .embed = cpu_embed,
    .embed_bwd = cpu_embed_bwd,
    .logp = cpu_logp_fn,
    .logp_bwd = cpu_logp_bwd,
    .exps = cpu_exps,
    .gather = cpu_gather,
    .scatter = cpu_scatter,
    .copy = cpu_copy,
    .convert = cpu_convert,
    .sumsq = cpu_sumsq_fn,
    .adamw = cpu_adamw,
    .pack = cpu_pack_fn,
    .unpack = cpu_unpack_fn,
    .unpack_alone = cpu_unpack_alone,
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
    d->caps = DEVICE_ROW_EXACT | DEVICE_LAYOUT_EXACT | DEVICE_SPLIT_STATE;
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
        mem_unmap(c->norms.p, c->norms.size);
        mem_unmap(c->panel.p, c->panel.size);
        mem_free(c->worker);
        mem_free(c);
    }
}
