/* Owns the timing of a device's calls. A wrapper exists for each operation; it counts the work that
 * the operation cannot avoid (multiplications, bytes touched once), so that the table shows how far
 * each is from its bound. */
#include "cli/bench_prof.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "cli/bench.h"

static struct bench_prof *prof; /* the one that is on */

static const char *const bench_prof_names[BENCH_NOPS] = {
    "linear",  "linear_dx",   "linear_dw", "bias_dw",  "rmsnorm", "rmsnorm_bwd",
    "rope_kv", "rope_kv_bwd", "attn",      "attn_bwd", "glu",     "glu_bwd",
    "embed",   "embed_bwd",   "logp",      "logp_bwd", "exps",    "gather",
    "scatter", "copy",        "convert",   "sumsq",    "adamw",   "pack"};

/* ---- one call ----------------------------------------------------------------------------------
 */

/* The entry of the call that starts now. In the first round it is a new one. */
static struct bench_call *call_enter(enum bench_op op, int m, int n, int k)
{
    struct bench_call *c;
    if (prof->rounds == 0) {
        prof->call = mem_room(prof->call, sizeof *c, prof->n, &prof->cap);
        c = &prof->call[prof->n++];
        c->op = op;
        c->m = m;
        c->n = n;
        c->k = k;
    } else {
        ASSERT(prof->at < prof->n);
        c = &prof->call[prof->at];
        ASSERT(c->op == op && c->m == m && c->n == n && c->k == k);
    }
    prof->at++;
    return c;
}

static void call_leave(struct bench_call *c, double t0)
{
    double t = bench_now() - t0;
    prof->spent += t;
    if (prof->rounds == 0 || t < c->best) {
        c->best = t;
    }
}

static double size_of(const struct tensor *t)
{
    return t ? (double)t->rows * (double)t->cols * (double)dtype_size(t->dtype) : 0.0;
}

/* Times `run`; `work` fills in the first round what the call had to do. */
#define TIMED(op, m, n, k, work, run)                                                              \
    do {                                                                                           \
        struct bench_call *c = call_enter(op, (int)(m), (int)(n), (int)(k));                       \
        double t0;                                                                                 \
        if (prof->rounds == 0) {                                                                   \
            work;                                                                                  \
        }                                                                                          \
        t0 = bench_now();                                                                          \
        prof->real->run;                                                                           \
        call_leave(c, t0);                                                                         \
    } while (0)

/* Keys that the queries of all sequences see together. */
static double pairs_of(const struct rows *rows, const struct attn_shape *s)
{
    double n = 0.0;
    for (int i = 0; i < rows->n; i++) {
        int seen = rows->pos[i] + 1;
        n += s->window > 0 && seen > s->window ? s->window : seen;
    }
    return n;
}

/* Bytes of the keys and values that the sequences read. */
static double kv_bytes(const struct rows *rows, const struct attn_shape *s)
{
    double n = 0.0;
    for (int i = 0; i < rows->nseq; i++) {
        n += rows->seq[i].pos0 + rows->seq[i].nrows;
    }
    return n * 2.0 * s->n_kv_heads * s->head_dim * 2.0;
}

static struct leaf_rows leaves_copy(const struct leaf_rows *l)
{
    int32_t *start = mem_alloc(sizeof *start * (size_t)(l->n + 1));
    memcpy(start, l->start, sizeof *start * (size_t)(l->n + 1));
    return (struct leaf_rows){l->n, start};
}

/* ---- products ----------------------------------------------------------------------------------
 */

static void product_of(struct bench_call *c, const struct tensor *a, const struct tensor *b,
                       const struct tensor *y, const struct wview *w)
{
    c->flops = 2.0 * c->m * c->n * c->k;
    c->bytes = size_of(a) + size_of(b) + size_of(y) + (w ? 2.0 * w->n * w->k : 0.0);
    c->a = *a;
    c->b = b ? *b : *a;
    c->c = *y;
    c->w = w;
}

static void prof_linear(struct device *d, const struct tensor *x, const struct wview *w,
                        const struct tensor *bias, const struct tensor *residual, struct tensor *y)
{
    TIMED(BENCH_LINEAR, x->rows, w->n, w->k, product_of(c, x, residual, y, w),
          linear(d, x, w, bias, residual, y));
}

static void prof_linear_dx(struct device *d, const struct tensor *dy, const struct wview *w,
                           struct tensor *dx)
{
    TIMED(BENCH_LINEAR_DX, dy->rows, w->k, w->n, product_of(c, dy, NULL, dx, w),
          linear_dx(d, dy, w, dx));
}

static void prof_linear_dw(struct device *d, const struct tensor *dy, const struct tensor *x,
                           const struct leaf_rows *leaves, struct tensor *grad)
{
    TIMED(BENCH_LINEAR_DW, grad->rows, grad->cols, dy->rows,
          (product_of(c, dy, x, grad, NULL), c->leaves = leaves_copy(leaves)),
          linear_dw(d, dy, x, leaves, grad));
}

static void prof_bias_dw(struct device *d, const struct tensor *dy, const struct leaf_rows *leaves,
                         struct tensor *grad)
{
    TIMED(BENCH_BIAS_DW, dy->rows, dy->cols, 0, c->bytes = size_of(dy) + size_of(grad),
          bias_dw(d, dy, leaves, grad));
}

/* ---- attention ---------------------------------------------------------------------------------
 */

static void prof_rope_kv(struct device *d, const struct tensor *qkv, const struct norm *q_norm,
                         const struct norm *k_norm, const struct tensor *cos,
                         const struct tensor *sin, const struct attn_shape *s,
                         const struct rows *rows, struct kv_store *kv, int layer, struct tensor *q)
{
    TIMED(BENCH_ROPE_KV, qkv->rows, qkv->cols, 0, c->bytes = 2.0 * size_of(qkv),
          rope_kv(d, qkv, q_norm, k_norm, cos, sin, s, rows, kv, layer, q));
}

static void prof_rope_kv_bwd(struct device *d, const struct tensor *dq, const struct tensor *dkv,
                             const struct tensor *qkv, const struct norm *q_norm,
                             const struct norm *k_norm, const struct tensor *cos,
                             const struct tensor *sin, const struct attn_shape *s,
                             const struct rows *rows, const struct leaf_rows *leaves,
                             struct tensor *dqkv, struct tensor *grad_qn, struct tensor *grad_kn)
{
    TIMED(BENCH_ROPE_KV_BWD, qkv->rows, qkv->cols, 0,
          c->bytes =
              size_of(dq) + size_of(dkv) + size_of(dqkv) + (q_norm || k_norm ? size_of(qkv) : 0.0),
          rope_kv_bwd(d, dq, dkv, qkv, q_norm, k_norm, cos, sin, s, rows, leaves, dqkv, grad_qn,
                      grad_kn));
}

static void prof_attn(struct device *d, const struct tensor *q, const struct kv_store *kv,
                      int layer, const struct attn_shape *s, const struct rows *rows,
                      struct tensor *out, struct tensor *lse)
{
    TIMED(BENCH_ATTN, q->rows, q->cols, 0,
          (c->flops = 4.0 * s->n_heads * s->head_dim * pairs_of(rows, s),
           c->bytes = 2.0 * size_of(q) + kv_bytes(rows, s)),
          attn(d, q, kv, layer, s, rows, out, lse));
}

static void prof_attn_bwd(struct device *d, const struct tensor *dout, const struct tensor *q,
                          const struct tensor *out, const struct tensor *lse,
                          const struct kv_store *kv, int layer, const struct attn_shape *s,
                          const struct rows *rows, struct tensor *dq, struct tensor *dkv)
{
    TIMED(BENCH_ATTN_BWD, q->rows, q->cols, 0,
          (c->flops = 10.0 * s->n_heads * s->head_dim * pairs_of(rows, s),
           c->bytes = 3.0 * size_of(q) + size_of(dq) + size_of(dkv) + kv_bytes(rows, s)),
          attn_bwd(d, dout, q, out, lse, kv, layer, s, rows, dq, dkv));
}

/* ---- rows --------------------------------------------------------------------------------------
 */

static void prof_rmsnorm(struct device *d, const struct tensor *x, const struct norm *norm,
                         const struct tensor *residual, struct tensor *y, struct tensor *rstd)
{
    TIMED(BENCH_RMSNORM, x->rows, x->cols, 0,
          c->bytes = size_of(x) + size_of(residual) + size_of(y),
          rmsnorm(d, x, norm, residual, y, rstd));
}

static void prof_rmsnorm_bwd(struct device *d, const struct tensor *dy, const struct tensor *x,
                             const struct norm *norm, const struct tensor *rstd,
                             const struct leaf_rows *leaves, struct tensor *dx,
                             struct tensor *grad_w)
{
    TIMED(BENCH_RMSNORM_BWD, x->rows, x->cols, 0,
          c->bytes = size_of(dy) + size_of(x) + 2.0 * size_of(dx),
          rmsnorm_bwd(d, dy, x, norm, rstd, leaves, dx, grad_w));
}

static void prof_glu(struct device *d, const struct tensor *gu, enum act act, struct tensor *y)
{
    TIMED(BENCH_GLU, gu->rows, gu->cols, 0, c->bytes = size_of(gu) + size_of(y),
          glu(d, gu, act, y));
}

static void prof_glu_bwd(struct device *d, const struct tensor *dy, const struct tensor *gu,
                         enum act act, struct tensor *dgu)
{
    TIMED(BENCH_GLU_BWD, gu->rows, gu->cols, 0, c->bytes = size_of(dy) + 2.0 * size_of(gu),
          glu_bwd(d, dy, gu, act, dgu));
}

static void prof_embed(struct device *d, const struct tensor *table, const int32_t *ids,
                       float scale, struct tensor *y)
{
    TIMED(BENCH_EMBED, y->rows, y->cols, 0, c->bytes = 2.0 * size_of(y),
          embed(d, table, ids, scale, y));
}

static void prof_embed_bwd(struct device *d, const struct tensor *dy, const int32_t *ids,
                           float scale, struct tensor *grad)
{
    TIMED(BENCH_EMBED_BWD, dy->rows, dy->cols, 0, c->bytes = 5.0 * size_of(dy),
          embed_bwd(d, dy, ids, scale, grad));
}

static void prof_logp(struct device *d, struct tensor *logits, const struct logit_spec *spec,
                      const int32_t *target, const struct leafset *vleaf, float *logp, float *max,
                      float *logz, float *entropy)
{
    TIMED(BENCH_LOGP, logits->rows, logits->cols, 0, c->bytes = size_of(logits),
          logp(d, logits, spec, target, vleaf, logp, max, logz, entropy));
}

static void prof_logp_bwd(struct device *d, const struct tensor *logits,
                          const struct logit_spec *spec, const int32_t *target, const float *max,
                          const float *logz, const float *entropy, const float *g, const float *ge,
                          struct tensor *dlogits)
{
    TIMED(BENCH_LOGP_BWD, logits->rows, logits->cols, 0,
          c->bytes = size_of(logits) + size_of(dlogits),
          logp_bwd(d, logits, spec, target, max, logz, entropy, g, ge, dlogits));
}

static void prof_exps(struct device *d, const struct tensor *x, const float *max, struct tensor *y)
{
    TIMED(BENCH_EXPS, x->rows, x->cols, 0, c->bytes = 2.0 * size_of(x), exps(d, x, max, y));
}

static void prof_gather(struct device *d, const struct tensor *x, const int32_t *row,
                        struct tensor *y)
{
    TIMED(BENCH_GATHER, y->rows, y->cols, 0, c->bytes = 2.0 * size_of(y), gather(d, x, row, y));
}

static void prof_scatter(struct device *d, const struct tensor *x, const int32_t *row,
                         struct tensor *y)
{
    TIMED(BENCH_SCATTER, x->rows, x->cols, 0, c->bytes = size_of(x) + size_of(y),
          scatter(d, x, row, y));
}

static void prof_copy(struct device *d, const struct tensor *x, struct tensor *y)
{
    TIMED(BENCH_COPY, x->rows, x->cols, 0, c->bytes = 2.0 * size_of(x), copy(d, x, y));
}

static void prof_convert(struct device *d, const struct tensor *x, struct tensor *y)
{
    TIMED(BENCH_CONVERT, x->rows, x->cols, 0, c->bytes = size_of(x) + size_of(y), convert(d, x, y));
}

/* ---- optimizer ---------------------------------------------------------------------------------
 */

static void prof_sumsq(struct device *d, const struct tensor *grad, void *exact)
{
    TIMED(BENCH_SUMSQ, grad->rows, grad->cols, 0, c->bytes = size_of(grad), sumsq(d, grad, exact));
}

static void prof_pack(struct device *d, const struct tensor *w16, struct wview *view)
{
    TIMED(BENCH_PACK, w16->rows, w16->cols, 0,
          c->bytes = size_of(w16) + (double)view->fwd_size + (double)view->bwd_size,
          pack(d, w16, view));
}

/* ---- the profile -------------------------------------------------------------------------------
 */

static struct device_ops prof_table = {
    .linear = prof_linear,
    .linear_dx = prof_linear_dx,
    .linear_dw = prof_linear_dw,
    .bias_dw = prof_bias_dw,
    .rmsnorm = prof_rmsnorm,
    .rmsnorm_bwd = prof_rmsnorm_bwd,
    .rope_kv = prof_rope_kv,
    .rope_kv_bwd = prof_rope_kv_bwd,
    .attn = prof_attn,
    .attn_bwd = prof_attn_bwd,
    .glu = prof_glu,
    .glu_bwd = prof_glu_bwd,
    .embed = prof_embed,
    .embed_bwd = prof_embed_bwd,
    .logp = prof_logp,
    .logp_bwd = prof_logp_bwd,
    .exps = prof_exps,
    .gather = prof_gather,
    .scatter = prof_scatter,
    .copy = prof_copy,
    .convert = prof_convert,
    .sumsq = prof_sumsq,
    .pack = prof_pack,
};

void bench_prof_init(struct bench_prof *p, struct device *d)
{
    ASSERT(!prof);
    memset(p, 0, sizeof *p);
    p->dev = d;
    p->real = d->ops;
    prof_table.adamw = d->ops->adamw; /* has no place in the runs that are profiled */
    prof_table.unpack = d->ops->unpack;
}

void bench_prof_fini(struct bench_prof *p)
{
    ASSERT(prof != p);
    for (int i = 0; i < p->n; i++) {
        mem_free((void *)p->call[i].leaves.start);
    }
    mem_free(p->call);
    memset(p, 0, sizeof *p);
}

void bench_prof_begin(struct bench_prof *p)
{
    prof = p;
    p->dev->ops = &prof_table;
    p->at = 0;
    p->spent = 0.0;
    p->t0 = bench_now();
}

void bench_prof_end(struct bench_prof *p)
{
    double t = bench_now() - p->t0, rest = t - p->spent;
    p->dev->ops = p->real;
    prof = NULL;
    ASSERT(p->at == p->n);
    if (p->rounds == 0 || rest < p->rest) {
        p->rest = rest;
    }
    if (p->rounds == 0 || t < p->best_round) {
        p->best_round = t;
    }
    p->rounds++;
}

void bench_prof_once(struct bench_prof *p, const struct wview *w, int64_t rows)
{
    int64_t seen = 0;
    for (int i = 0; i < p->n; i++) {
        struct bench_call *c = &p->call[i];
        if (c->op == BENCH_LINEAR && c->w == w) {
            c->again = seen >= rows;
            seen += c->m;
        }
    }
}

void bench_prof_bare(struct bench_prof *p)
{
    for (int i = 0; i < p->n; i++) {
        struct bench_call *c = &p->call[i];
        double t0 = bench_now(), t;
        if (c->op == BENCH_LINEAR) {
            p->real->linear(p->dev, &c->a, c->w, NULL, NULL, &c->c);
        } else if (c->op == BENCH_LINEAR_DX) {
            p->real->linear_dx(p->dev, &c->a, c->w, &c->c);
        } else if (c->op == BENCH_LINEAR_DW) {
            p->real->linear_dw(p->dev, &c->a, &c->b, &c->leaves, &c->c);
        } else {
            continue;
        }
        t = bench_now() - t0;
        if (p->bare_rounds == 0 || t < c->bare) {
            c->bare = t;
        }
    }
    p->bare_rounds++;
}

/* ---- the table ---------------------------------------------------------------------------------
 */

/* Calls of one kind. */
struct prof_line {
    const struct bench_call *c;
    int calls;
    double best, bare, theirs, flops, bytes; /* sums */
    double least, least_bare;                /* shortest call */
};

#define PROF_LINES 512

static int prof_same(const struct bench_call *a, const struct bench_call *b)
{
    return a->op == b->op && a->again == b->again && a->m == b->m && a->n == b->n && a->k == b->k;
}

static int prof_lines(const struct bench_prof *p, struct prof_line *lines)
{
    int n = 0;
    for (int i = 0; i < p->n; i++) {
        const struct bench_call *c = &p->call[i];
        struct prof_line *l;
        int j = 0;
        while (j < n && !prof_same(lines[j].c, c)) {
            j++;
        }
        l = &lines[j];
        if (j == n) {
            ASSERT(n < PROF_LINES);
            memset(l, 0, sizeof *l);
            l->c = c;
            l->least = c->best;
            l->least_bare = c->bare;
            n++;
        }
        l->calls++;
        l->best += c->best;
        l->bare += c->bare;
        l->theirs += c->theirs;
        l->flops += c->flops;
        l->bytes += c->bytes;
        l->least = c->best < l->least ? c->best : l->least;
        l->least_bare = c->bare < l->least_bare ? c->bare : l->least_bare;
    }
    for (int i = 0; p->by_kind && i < n; i++) {
        lines[i].best = lines[i].least * lines[i].calls;
        lines[i].bare = lines[i].least_bare * lines[i].calls;
    }
    return n;
}

double bench_prof_seconds(const struct bench_prof *p)
{
    struct prof_line lines[PROF_LINES];
    int n = prof_lines(p, lines);
    double t = p->rest;
    for (int i = 0; i < n; i++) {
        t += lines[i].best;
    }
    return t;
}

double bench_prof_bare_seconds(const struct bench_prof *p)
{
    struct prof_line lines[PROF_LINES];
    int n = prof_lines(p, lines);
    double t = 0.0;
    for (int i = 0; i < n; i++) {
        const struct prof_line *l = &lines[i];
        double fast = l->theirs > 0.0 && l->theirs < l->bare ? l->theirs : l->bare;
        t += l->c->again ? 0.0 : fast;
    }
    return t + bench_prof_attn_seconds(p);
}

double bench_prof_attn_seconds(const struct bench_prof *p)
{
    double t = 0.0;
    for (int i = 0; i < p->n; i++) {
        const struct bench_call *c = &p->call[i];
        t += c->op == BENCH_ATTN || c->op == BENCH_ATTN_BWD ? c->flops : 0.0;
    }
    return p->bare_rounds ? t / bench_prof_rate(p) : 0.0;
}

double bench_prof_rate(const struct bench_prof *p)
{
    struct prof_line lines[PROF_LINES];
    int n = prof_lines(p, lines);
    double rate = 0.0;
    for (int i = 0; i < n; i++) {
        double r = lines[i].bare > 0.0 ? lines[i].flops / lines[i].bare : 0.0;
        rate = r > rate ? r : rate;
    }
    return rate;
}

void bench_prof_print(const struct bench_prof *p, const char *title, double rate, double read)
{
    struct prof_line lines[PROF_LINES];
    int n = prof_lines(p, lines);
    double all = bench_prof_seconds(p);

    printf("\n%s: %.2f ms (a whole round: %.2f ms), %d calls; bounds: %.0f GFLOP/s, %.1f GB/s\n",
           title, all * 1e3, p->best_round * 1e3, p->n, rate * 1e-9, read * 1e-9);
    printf("  %-12s %-20s %5s %9s %6s %8s %8s %7s %8s %9s\n", "op", "shape", "calls", "ms", "share",
           "GFLOP/s", "GB/s", "bound", "bare ms", "oneDNN ms");
    for (int i = 0; i < n; i++) {
        const struct prof_line *l = &lines[i];
        double by_flops = rate > 0.0 ? l->flops / rate : 0.0, by_bytes = l->bytes / read;
        double bound = by_flops > by_bytes ? by_flops : by_bytes;
        char shape[64], bare[64] = "";
        if (l->c->k) {
            snprintf(shape, sizeof shape, "%dx%dx%d%s", l->c->m, l->c->n, l->c->k,
                     l->c->again ? " again" : "");
            if (p->bare_rounds) {
                snprintf(bare, sizeof bare, "%8.2f %9.2f", l->bare * 1e3, l->theirs * 1e3);
            }
        } else {
            snprintf(shape, sizeof shape, "%dx%d", l->c->m, l->c->n);
        }
        printf("  %-12s %-20s %5d %9.3f %5.1f%% %8.0f %8.1f %6.0f%% %s\n",
               bench_prof_names[l->c->op], shape, l->calls, l->best * 1e3, l->best / all * 100.0,
               l->flops / l->best * 1e-9, l->bytes / l->best * 1e-9, bound / l->best * 100.0, bare);
    }
    printf("  %-12s %-20s %5s %9.3f %5.1f%%\n", "between", "", "", p->rest * 1e3,
           p->rest / all * 100.0);
}
