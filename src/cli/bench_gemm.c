/* `miles bench gemm`: our products, in their fixed order and with the leaves that a model of that
 * shape gets by default, against oneDNN's with weights packed as it likes them.
 *
 * Both read their weights from one block of memory, each call the next part of it, so that neither
 * finds them in a cache; its random values stand for packed weights of either layout, since packing
 * only permutes. That both compute the same product is checked before, with real packed weights.
 * The two take turns of some milliseconds and a ratio is one of minima over the whole run, because
 * neighbours of a virtual machine slow both. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/conf.h"
#include "base/mem.h"
#include "base/status.h"
#include "cli/bench.h"
#include "cli/cmd.h"
#include "cli/onednn.h"
#include "num/device.h"

struct bench_gemm_opts {
    char *isa, *onednn, *match;
    int64_t threads, mib;
    double seconds;
    struct conf_ints rows;
};

#define O(f) offsetof(struct bench_gemm_opts, f)
static const struct conf_opt bench_gemm_table[] = {
    {"seconds", CONF_FLOAT, "150", "(0,100000]", "time to measure for; every shape at least twice",
     O(seconds), "measurement", NULL},
    {"rows", CONF_INTS, "1 4 16 32 64 128 512 2048", NULL, "rows of the activations", O(rows),
     "measurement", NULL},
    {"match", CONF_STR, NULL, NULL, "only layers whose name holds this text, as in SmolLM2/qkv",
     O(match), "measurement", NULL},
    {"weights-mib", CONF_INT, "1024", "[1,1048576]", "weights to rotate over", O(mib),
     "measurement", NULL},
    {"onednn", CONF_STR, NULL, NULL, "file of libdnnl.so.3", O(onednn), "measurement", NULL},
    {"threads", CONF_INT, "2", "[1,4096]", "of either side", O(threads), "machine", NULL},
    {"isa", CONF_STR, "auto", NULL, "auto, scalar, avx2, avx512 or amx", O(isa), "machine", NULL},
    {0}};
#undef O

static const struct bench_gemm_model {
    const char *name;
    int hidden, heads, kv_heads, head_dim, intermediate;
} bench_gemm_models[] = {
    {"SmolLM2", 576, 9, 3, 64, 1536},
    {"Qwen3-0.6B", 1024, 16, 8, 128, 3072},
    {"Llama-3.2-1B", 2048, 32, 8, 64, 8192},
    {"Llama-3-8B", 4096, 32, 8, 128, 14336},
};

#define NMODELS ((int)(sizeof bench_gemm_models / sizeof bench_gemm_models[0]))
#define NLAYERS 4

struct gemm_layer {
    char name[48];
    struct wview w; /* its data is set at each call */
};

struct gemm_case {
    const struct gemm_layer *layer;
    int m;
    struct onednn_matmul *mm;
    double ours, theirs; /* best seconds of one call */
};

struct gemm {
    struct device *dev;
    struct onednn *lib;
    struct gemm_layer layers[NMODELS * NLAYERS];
    int nlayers;
    struct gemm_case *cases;
    int ncases;
    char *weights; /* size bytes of random bf16 values */
    size_t size, next;
    uint16_t *x, *y;
    size_t xsize, ysize;
};

static void gemm_layer_add(struct gemm *g, const struct bench_gemm_opts *o, const char *model,
                           const char *part, int n, int k, int leaves, int units, int unit)
{
    struct gemm_layer *l = &g->layers[g->nlayers];
    snprintf(l->name, sizeof l->name, "%s/%s", model, part);
    if (o->match && !strstr(l->name, o->match)) {
        return;
    }
    l->w.dev = g->dev;
    l->w.n = n;
    l->w.k = k;
    plan_leafset_one(&l->w.kleaf, k);
    plan_leafset_one(&l->w.nleaf, n);
    if (leaves > 1) {
        memset(&l->w.kleaf, 0, sizeof l->w.kleaf);
        plan_leafset_add(&l->w.kleaf, leaves, units, unit, 0, k);
    }
    l->w.fwd_size = (size_t)((n + 31) / 32 * 32) * (size_t)k * 2;
    g->nlayers++;
}

static void gemm_layers(struct gemm *g, const struct bench_gemm_opts *o)
{
    for (int i = 0; i < NMODELS; i++) {
        const struct bench_gemm_model *a = &bench_gemm_models[i];
        int q = a->heads * a->head_dim, kv = a->kv_heads * a->head_dim, in = a->intermediate;
        int r = plan_default_leaves(q < in ? q : in);
        gemm_layer_add(g, o, a->name, "qkv", q + 2 * kv, a->hidden, 1, 0, 0);
        gemm_layer_add(g, o, a->name, "o", a->hidden, q, r, a->heads, a->head_dim);
        gemm_layer_add(g, o, a->name, "gate_up", 2 * in, a->hidden, 1, 0, 0);
        gemm_layer_add(g, o, a->name, "down", a->hidden, in, r, in / 32, 32);
    }
}

/* Values in +-[2^-7, 2^-5), spread over all mantissas and both signs. */
static void gemm_fill(uint16_t *p, size_t n, uint64_t seed)
{
    uint64_t s = seed * 0x9e3779b97f4a7c15ull + 1;
    for (size_t i = 0; i < n; i++) {
        s = s * 6364136223846793005ull + 1442695040888963407ull;
        p[i] = (uint16_t)((s >> 33 & 0x80ff) | 0x3c00);
    }
}

static struct tensor gemm_tensor(struct gemm *g, void *data, int rows, int cols)
{
    struct tensor t = {g->dev, DTYPE_BF16, rows, cols, (cols + 31) / 32 * 32, data, 0, 0};
    return t;
}

/* The next `size` bytes of weights. */
static void *gemm_next(struct gemm *g, size_t size)
{
    void *p;
    if (g->next + size > g->size) {
        g->next = 0;
    }
    p = g->weights + g->next;
    g->next += (size + 4095) / 4096 * 4096;
    return p;
}

static void gemm_ours(struct gemm *g, const struct gemm_case *c, void *weights)
{
    struct tensor x = gemm_tensor(g, g->x, c->m, c->layer->w.k);
    struct tensor y = gemm_tensor(g, g->y, c->m, c->layer->w.n);
    struct wview w = c->layer->w;
    w.fwd = weights;
    g->dev->ops->linear(g->dev, &x, &w, NULL, NULL, &y);
}

/* Seconds of one call, from `calls` in a row. */
static double gemm_time(struct gemm *g, const struct gemm_case *c, int ours, int calls)
{
    double start = bench_now();
    for (int i = 0; i < calls; i++) {
        if (ours) {
            gemm_ours(g, c, gemm_next(g, c->layer->w.fwd_size));
        } else {
            onednn_matmul_run(c->mm, g->x, gemm_next(g, onednn_matmul_size(c->mm)), g->y);
        }
    }
    return (bench_now() - start) / calls;
}

/* One side's turn: some milliseconds of samples, or one. The other side's idle threads get time to
 * fall asleep before it, and its own are woken by a call that does not count. */
static void gemm_turn(struct gemm *g, struct gemm_case *c, int ours)
{
    double *best = ours ? &c->ours : &c->theirs, start;
    struct timespec pause = {0, 3000000};

    nanosleep(&pause, NULL);
    if (!(*best > 5e-3)) {
        gemm_time(g, c, ours, 1);
    }
    start = bench_now();
    do {
        int calls = *best < 2e-4 ? (int)(2e-4 / *best) + 1 : 1;
        double t = gemm_time(g, c, ours, calls);
        *best = t < *best ? t : *best;
    } while (bench_now() - start < 8e-3);
}

static float gemm_value(uint16_t v)
{
    uint32_t u = (uint32_t)v << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* Both sides with the same weight, packed by each: the largest difference, relative to the norm of
 * a value. */
static int gemm_check(struct gemm *g, struct gemm_case *c, struct err *e)
{
    int n = c->layer->w.n, k = c->layer->w.k;
    size_t elems = (size_t)n * (size_t)k, outs = (size_t)c->m * (size_t)n, wide = 0;
    struct wview v = c->layer->w;
    struct tensor w;
    char *packed;
    uint16_t *y;
    double norm = 0, worst = 0;
    int rc = device_tensor(g->dev, &w, DTYPE_BF16, n, k, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    wide = v.fwd_size > onednn_matmul_size(c->mm) ? v.fwd_size : onednn_matmul_size(c->mm);
    packed = mem_map(wide);
    y = mem_map(outs * 2);
    if (!packed || !y) {
        rc = ERR(e, STATUS_NOMEM, "no memory to check a (%d, %d) weight", n, k);
    } else {
        gemm_fill(w.data, elems, 3); /* k is a multiple of 32: rows have no padding */
        rc = onednn_matmul_pack(c->mm, w.data, packed, e);
    }
    if (rc == STATUS_OK) {
        onednn_matmul_run(c->mm, g->x, packed, y);
        v.fwd = packed;
        g->dev->ops->pack(g->dev, &w, &v);
        gemm_ours(g, c, packed);
        for (size_t i = 0; i < outs; i++) {
            double a = gemm_value(y[i]), d = fabs(a - (double)gemm_value(g->y[i]));
            norm += a * a;
            worst = d > worst || isnan(d) ? d : worst;
        }
        norm = sqrt(norm / (double)outs);
        if (!(worst <= 0.05 * norm)) {
            rc = ERR(e, STATUS_NUMERIC, "%s, %d rows: the two products differ by %g of %g",
                     c->layer->name, c->m, worst, norm);
        }
    }
    mem_unmap(packed, wide);
    mem_unmap(y, outs * 2);
    device_tensor_free(&w);
    return rc;
}

static int gemm_open(struct gemm *g, const struct bench_gemm_opts *o, struct err *e)
{
    struct plan plan;
    size_t largest = 0;
    int rc;

    plan_init(&plan, 1, 0);
    bench_pin((int)o->threads);
    rc = device_open("cpu", o->isa, (int)o->threads, &plan, &g->dev, e);
    if (rc == STATUS_OK) {
        rc = onednn_open(o->onednn, &g->lib, e);
    }
    if (rc != STATUS_OK) {
        return rc;
    }
    gemm_layers(g, o);
    g->cases = mem_alloc(sizeof *g->cases * (size_t)(g->nlayers + 1) * (size_t)o->rows.n);
    for (int i = 0; i < g->nlayers; i++) {
        for (int64_t j = 0; j < o->rows.n; j++) {
            struct gemm_case *c = &g->cases[g->ncases];
            const struct wview *w = &g->layers[i].w;
            size_t size = w->fwd_size, m = (size_t)o->rows.v[j];
            c->layer = &g->layers[i];
            c->m = (int)m;
            c->ours = c->theirs = INFINITY;
            rc = onednn_matmul_new(g->lib, c->m, w->n, w->k, &c->mm, e);
            if (rc != STATUS_OK) {
                return rc;
            }
            g->ncases++;
            size = size > onednn_matmul_size(c->mm) ? size : onednn_matmul_size(c->mm);
            largest = size > largest ? size : largest;
            g->xsize = m * (size_t)w->k * 2 > g->xsize ? m * (size_t)w->k * 2 : g->xsize;
            g->ysize = m * (size_t)w->n * 2 > g->ysize ? m * (size_t)w->n * 2 : g->ysize;
        }
    }
    if (!g->ncases) {
        return ERR(e, STATUS_INPUT, "--match %s fits no layer", o->match ? o->match : "");
    }
    g->size = (size_t)o->mib << 20 > largest ? (size_t)o->mib << 20 : largest;
    g->weights = mem_map(g->size);
    g->x = mem_map(g->xsize);
    g->y = mem_map(g->ysize);
    if (!g->weights || !g->x || !g->y) {
        return ERR(e, STATUS_NOMEM, "no memory for %zu bytes of weights", g->size);
    }
    gemm_fill((uint16_t *)(void *)g->weights, g->size / 2, 1);
    gemm_fill(g->x, g->xsize / 2, 2);
    return STATUS_OK;
}

static void gemm_close(struct gemm *g)
{
    for (int i = 0; i < g->ncases; i++) {
        onednn_matmul_free(g->cases[i].mm);
    }
    mem_free(g->cases);
    mem_unmap(g->weights, g->size);
    mem_unmap(g->x, g->xsize);
    mem_unmap(g->y, g->ysize);
    onednn_close(g->lib);
    device_close(g->dev);
}

static void gemm_report(const struct gemm *g)
{
    double sum[2] = {0, 0}, worst = INFINITY;
    int n[2] = {0, 0};

    printf("%-22s %6s %5s %5s %2s %10s %10s %8s %8s %6s\n", "layer", "n", "k", "rows", "R",
           "ours us", "oneDNN us", "GFLOP/s", "GB/s", "ratio");
    for (int i = 0; i < g->ncases; i++) {
        const struct gemm_case *c = &g->cases[i];
        const struct wview *w = &c->layer->w;
        double ratio = c->theirs / c->ours, values = (double)w->n * (double)w->k;
        int large = c->m > 32;
        printf("%-22s %6d %5d %5d %2d %10.1f %10.1f %8.0f %8.1f %6.2f\n", c->layer->name, w->n,
               w->k, c->m, w->kleaf.leaves, c->ours * 1e6, c->theirs * 1e6,
               2e-9 * values * c->m / c->ours, 2e-9 * values / c->ours, ratio);
        sum[large] += log(ratio);
        n[large]++;
        worst = ratio < worst ? ratio : worst;
    }
    printf("gemm_small_vs_onednn=%.3f gemm_large_vs_onednn=%.3f worst=%.3f\n",
           n[0] ? exp(sum[0] / n[0]) : NAN, n[1] ? exp(sum[1] / n[1]) : NAN, worst);
}

static int gemm_run(struct gemm *g, const struct bench_gemm_opts *o, struct err *e)
{
    double start;
    int rounds = 0, rc;

    printf("# miles %s, %d threads; %s, %s; %zu MiB of weights\n", g->dev->isa, (int)o->threads,
           onednn_about(g->lib), onednn_matmul_kernel(g->cases[0].mm), g->size >> 20);
    for (int i = 0; i < g->ncases; i++) {
        if (g->cases[i].m <= 64 && (rc = gemm_check(g, &g->cases[i], e)) != STATUS_OK) {
            return rc;
        }
    }
    start = bench_now();
    while (rounds < 2 || bench_now() - start < o->seconds) {
        for (int i = 0; i < g->ncases; i++) {
            if (rounds >= 2 && bench_now() - start >= o->seconds) {
                break;
            }
            gemm_turn(g, &g->cases[i], rounds % 2);
            gemm_turn(g, &g->cases[i], !(rounds % 2));
        }
        rounds++;
    }
    printf("# %d rounds in %.0f s\n", rounds, bench_now() - start);
    gemm_report(g);
    return STATUS_OK;
}

static int gemm_all(const void *opts, struct err *e)
{
    const struct bench_gemm_opts *o = opts;
    struct gemm g;
    int rc;

    for (int64_t i = 0; i < o->rows.n; i++) {
        if (o->rows.v[i] < 1 || o->rows.v[i] > 65536) {
            return ERR(e, STATUS_INPUT, "--rows takes numbers from 1 to 65536");
        }
    }
    memset(&g, 0, sizeof g);
    rc = gemm_open(&g, o, e);
    rc = rc == STATUS_OK ? gemm_run(&g, o, e) : rc;
    gemm_close(&g);
    return rc;
}

int bench_gemm(int argc, char **argv)
{
    struct bench_gemm_opts o;
    return bench_main(argc, argv, bench_gemm_table, &o, gemm_all);
}
