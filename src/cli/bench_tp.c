/* Owns the emulated ranks. A weight is cut once into the parts of the ranks, each packed as a
 * weight of its own: by rows where the input gradient's contraction is split (qkv, gate and up, the
 * output layer), by columns where the forward contraction is (attention output, down). Partial sums
 * are f32 and are joined pair by pair, which is C1's tree above the ranks' own subtrees. */
#include "cli/bench_tp.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "model/weights.h"
#include "num/vmath.h"

#define TP_RANKS PLAN_MAX_LEAVES
#define TP_LANES 16

enum {
    TP_IN,
    TP_IN2,
    TP_IN3,
    TP_IN4,
    TP_OUT,
    TP_OUT2,
    TP_OUT3,
    TP_WHOLE,
    TP_SUM,
    TP_SLOTS = TP_SUM + TP_RANKS
};

struct bench_tp {
    struct weights *w;
    struct device *d;
    const struct device_ops *real;
    const struct tensor *grad;
    int ranks, shards; /* of the weights; of attention */
    int bad;
    struct wview *part; /* (params, ranks) */
    char *made;
    struct kv_store kv[TP_RANKS];
    struct tensor slot[TP_SLOTS];
};

static struct bench_tp *tp; /* the one that is on */

/* ---- slices ------------------------------------------------------------------------------------
 */

/* Pieces of an index range that a rank owns, in its local order. */
struct slice {
    int n, total;
    int from[PLAN_MAX_RANGES], len[PLAN_MAX_RANGES];
};

static void slice_add(struct slice *s, int from, int len)
{
    s->from[s->n] = from;
    s->len[s->n++] = len;
    s->total += len;
}

/* The pieces of rank r, and its leafset over the local index. */
static struct slice slice_of(const struct leafset *all, int rank, int ranks, struct leafset *local)
{
    struct slice s = {0};
    int per = all->leaves / ranks, lo = rank * per;
    memset(local, 0, sizeof *local);
    local->leaves = per;
    for (int i = 0; i < all->n; i++) {
        if (all->r[i].leaf >= lo && all->r[i].leaf < lo + per) {
            local->r[local->n].start = s.total;
            local->r[local->n].end = s.total + all->r[i].end - all->r[i].start;
            local->r[local->n++].leaf = all->r[i].leaf - lo;
            slice_add(&s, all->r[i].start, all->r[i].end - all->r[i].start);
        }
    }
    return s;
}

/* A tensor that is gone when the slot is used again. */
static struct tensor *slot_take(int i, enum dtype dtype, int64_t rows, int64_t cols)
{
    struct tensor *t = &tp->slot[i];
    int64_t ld = cols == 1 ? 1 : (cols + 31) / 32 * 32;
    size_t need = ((size_t)(rows * ld) + 64) * dtype_size(dtype);
    if (t->size < need) {
        struct err e = {0};
        device_tensor_free(t);
        ASSERT(device_tensor(tp->d, t, dtype, rows, cols, &e) == STATUS_OK);
    }
    t->dtype = dtype;
    t->rows = rows;
    t->cols = cols;
    t->ld = ld;
    memset(t->data, 0, need);
    return t;
}

static char *cell(const struct tensor *t, int64_t r, int64_t c)
{
    return (char *)t->data + (size_t)(r * t->ld + c) * dtype_size(t->dtype);
}

/* Columns of the whole to and from a rank's own. */
static void cols_copy(const struct tensor *whole, const struct slice *s, const struct tensor *own,
                      int back)
{
    size_t size = dtype_size(whole->dtype);
    for (int64_t r = 0; r < own->rows; r++) {
        int at = 0;
        for (int i = 0; i < s->n; at += s->len[i++]) {
            char *w = cell(whole, r, s->from[i]), *o = cell(own, r, at);
            memcpy(back ? w : o, back ? o : w, size * (size_t)s->len[i]);
        }
    }
}

static struct tensor *cols_take(int slot, const struct tensor *whole, const struct slice *s)
{
    struct tensor *t = slot_take(slot, whole->dtype, whole->rows, s->total);
    cols_copy(whole, s, t, 0);
    return t;
}

/* ---- partial sums ------------------------------------------------------------------------------
 */

static struct tensor *partial_take(int rank, int64_t rows, int64_t cols)
{
    return slot_take(TP_SUM + rank, DTYPE_F32, rows, cols);
}

static void partial_join(void)
{
    for (int w = 1; w < tp->ranks; w *= 2) {
        for (int i = 0; i < tp->ranks; i += 2 * w) {
            float *a = tp->slot[TP_SUM + i].data;
            const float *b = tp->slot[TP_SUM + i + w].data;
            int64_t n = tp->slot[TP_SUM + i].rows * tp->slot[TP_SUM + i].ld;
            for (int64_t k = 0; k < n; k++) {
                a[k] = a[k] + b[k];
            }
        }
    }
}

static float value_of(const struct tensor *t, int64_t r, int64_t c)
{
    return t->dtype == DTYPE_F32 ? *(const float *)cell(t, r, c)
                                 : dtype_from_bf16(*(const uint16_t *)cell(t, r, c));
}

/* y = residual + (sum + bias), rounded to y's type. */
static void partial_store(const struct tensor *bias, const struct tensor *residual,
                          struct tensor *y)
{
    const struct tensor *sum = &tp->slot[TP_SUM];
    for (int64_t r = 0; r < y->rows; r++) {
        for (int64_t c = 0; c < y->cols; c++) {
            float v = value_of(sum, r, c);
            v = bias ? v + value_of(bias, 0, c) : v;
            v = residual ? value_of(residual, r, c) + v : v;
            if (y->dtype == DTYPE_F32) {
                *(float *)cell(y, r, c) = v;
            } else {
                *(uint16_t *)cell(y, r, c) = dtype_to_bf16(v);
            }
        }
    }
}

/* ---- the parts of a weight ---------------------------------------------------------------------
 */

static struct param *param_of_view(const struct wview *v)
{
    for (int i = 0; i < tp->w->nparams; i++) {
        if (&tp->w->params[i].view == v) {
            return &tp->w->params[i];
        }
    }
    return NULL;
}

static int by_columns(const struct wview *v)
{
    return v->kleaf.leaves > 1;
}

/* The plain rows of a weight, which may exist in packed form only. */
static const struct tensor *whole_of(const struct param *p)
{
    struct tensor *t;
    if (p->w16.data) {
        return &p->w16;
    }
    t = slot_take(TP_WHOLE, DTYPE_BF16, p->rows, p->cols);
    tp->real->unpack(tp->d, &p->view, 0, t);
    return t;
}

/* Rank's part of a weight; NULL when it owns nothing of it. */
static struct wview *part_of(struct param *p, int rank, struct slice *s)
{
    size_t i = (size_t)(p - tp->w->params) * TP_RANKS + (size_t)rank;
    struct wview *v = &tp->part[i];
    struct leafset local;
    struct err e = {0};
    int cols = by_columns(&p->view);

    *s = slice_of(cols ? &p->view.kleaf : &p->view.nleaf, rank, tp->ranks, &local);
    if (s->total == 0 || tp->made[i]) {
        return s->total ? v : NULL;
    }
    if (cols) {
        struct tensor *w = cols_take(TP_IN, whole_of(p), s);
        ASSERT(device_wview(tp->d, v, p->rows, s->total, 1, &e) == STATUS_OK);
        v->kleaf = local;
        tp->real->pack(tp->d, w, v);
    } else {
        const struct tensor *whole = whole_of(p);
        struct tensor *w = slot_take(TP_IN, whole->dtype, s->total, p->cols);
        int at = 0;
        for (int k = 0; k < s->n; at += s->len[k++]) {
            for (int r = 0; r < s->len[k]; r++) {
                memcpy(cell(w, at + r, 0), cell(whole, s->from[k] + r, 0),
                       dtype_size(w->dtype) * (size_t)p->cols);
            }
        }
        ASSERT(device_wview(tp->d, v, s->total, p->cols, 1, &e) == STATUS_OK);
        v->nleaf = local;
        tp->real->pack(tp->d, w, v);
    }
    tp->made[i] = 1;
    return v;
}

/* ---- products ----------------------------------------------------------------------------------
 */

static void tp_linear(struct device *d, const struct tensor *x, const struct wview *w,
                      const struct tensor *bias, const struct tensor *residual, struct tensor *y)
{
    struct param *p = param_of_view(w);
    struct slice s;
    ASSERT(p);
    for (int r = 0; r < tp->ranks; r++) {
        struct wview *v = part_of(p, r, &s);
        if (by_columns(w)) {
            struct tensor *sum = partial_take(r, y->rows, y->cols);
            if (v) {
                tp->real->linear(d, cols_take(TP_IN, x, &s), v, NULL, NULL, sum);
            }
        } else if (v) {
            struct tensor *b = bias ? cols_take(TP_IN2, bias, &s) : NULL;
            struct tensor *z = residual ? cols_take(TP_IN3, residual, &s) : NULL;
            struct tensor *own = slot_take(TP_OUT, y->dtype, y->rows, s.total);
            tp->real->linear(d, x, v, b, z, own);
            cols_copy(y, &s, own, 1);
        }
    }
    if (by_columns(w)) {
        partial_join();
        partial_store(bias, residual, y);
    }
}

static void tp_linear_dx(struct device *d, const struct tensor *dy, const struct wview *w,
                         struct tensor *dx)
{
    struct param *p = param_of_view(w);
    struct slice s;
    ASSERT(p);
    for (int r = 0; r < tp->ranks; r++) {
        struct wview *v = part_of(p, r, &s);
        if (!by_columns(w)) {
            struct tensor *sum = partial_take(r, dx->rows, dx->cols);
            if (v) {
                tp->real->linear_dx(d, cols_take(TP_IN, dy, &s), v, sum);
            }
        } else if (v) {
            struct tensor *own = slot_take(TP_OUT, dx->dtype, dx->rows, s.total);
            tp->real->linear_dx(d, dy, v, own);
            cols_copy(dx, &s, own, 1);
        }
    }
    if (!by_columns(w)) {
        partial_join();
        partial_store(NULL, NULL, dx);
    }
}

static void grad_add(const struct tensor *own, struct tensor *grad, int64_t from, int64_t row,
                     int64_t col, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; r++) {
        const int64_t *a = (const int64_t *)cell(own, col < 0 ? from + r : r, col < 0 ? 0 : from);
        int64_t *b = (int64_t *)cell(grad, row + r, col < 0 ? 0 : col);
        for (int64_t c = 0; c < cols; c++) {
            b[c] += a[c];
        }
    }
}

static void tp_linear_dw(struct device *d, const struct tensor *dy, const struct tensor *x,
                         const struct leaf_rows *leaves, struct tensor *grad)
{
    struct param *p = NULL;
    struct slice s;
    for (int i = 0; i < tp->w->nparams; i++) {
        p = tp->grad[i].data == grad->data ? &tp->w->params[i] : p;
    }
    ASSERT(p);
    device_settle(grad);
    for (int r = 0; r < tp->ranks; r++) {
        struct tensor *own;
        int at = 0;
        if (!part_of(p, r, &s)) {
            continue;
        }
        if (by_columns(&p->view)) {
            own = slot_take(TP_OUT, DTYPE_I64, grad->rows, s.total);
            tp->real->linear_dw(d, dy, cols_take(TP_IN, x, &s), leaves, own);
        } else {
            own = slot_take(TP_OUT, DTYPE_I64, s.total, grad->cols);
            tp->real->linear_dw(d, cols_take(TP_IN, dy, &s), x, leaves, own);
        }
        for (int k = 0; k < s.n; at += s.len[k++]) {
            if (by_columns(&p->view)) {
                grad_add(own, grad, at, 0, s.from[k], grad->rows, s.len[k]);
            } else {
                grad_add(own, grad, at, s.from[k], -1, s.len[k], grad->cols);
            }
        }
    }
}

/* ---- attention ---------------------------------------------------------------------------------
 */

/* Shard i of n: its shape and its columns of q, of (k, v) and of (q, k, v). */
struct shard {
    struct attn_shape shape;
    struct slice q, kv, qkv, heads;
};

static struct shard shard_of(const struct attn_shape *s, int i)
{
    struct shard h = {.shape = *s};
    int d = s->head_dim, nh = s->n_heads / tp->shards, nkv = s->n_kv_heads / tp->shards;
    h.shape.n_heads = nh;
    h.shape.n_kv_heads = nkv;
    slice_add(&h.heads, i * nh, nh);
    slice_add(&h.q, i * nh * d, nh * d);
    slice_add(&h.kv, i * nkv * d, nkv * d);
    slice_add(&h.kv, (s->n_kv_heads + i * nkv) * d, nkv * d);
    slice_add(&h.qkv, i * nh * d, nh * d);
    slice_add(&h.qkv, (s->n_heads + i * nkv) * d, nkv * d);
    slice_add(&h.qkv, (s->n_heads + s->n_kv_heads + i * nkv) * d, nkv * d);
    return h;
}

static void tp_rope_kv(struct device *d, const struct tensor *qkv, const struct norm *q_norm,
                       const struct norm *k_norm, const struct tensor *cos,
                       const struct tensor *sin, const struct attn_shape *s,
                       const struct rows *rows, struct kv_store *kv, int layer, struct tensor *q)
{
    (void)kv;
    for (int i = 0; i < tp->shards; i++) {
        struct shard h = shard_of(s, i);
        struct tensor *own = slot_take(TP_OUT, q->dtype, q->rows, h.q.total);
        tp->real->rope_kv(d, cols_take(TP_IN, qkv, &h.qkv), q_norm, k_norm, cos, sin, &h.shape,
                          rows, &tp->kv[i], layer, own);
        cols_copy(q, &h.q, own, 1);
    }
}

static void tp_attn(struct device *d, const struct tensor *q, const struct kv_store *kv, int layer,
                    const struct attn_shape *s, const struct rows *rows, struct tensor *out,
                    struct tensor *lse)
{
    (void)kv;
    for (int i = 0; i < tp->shards; i++) {
        struct shard h = shard_of(s, i);
        struct tensor *own = slot_take(TP_OUT, out->dtype, out->rows, h.q.total);
        struct tensor *l = lse ? slot_take(TP_OUT2, DTYPE_F32, lse->rows, h.heads.total) : NULL;
        tp->real->attn(d, cols_take(TP_IN, q, &h.q), &tp->kv[i], layer, &h.shape, rows, own, l);
        cols_copy(out, &h.q, own, 1);
        if (lse) {
            cols_copy(lse, &h.heads, l, 1);
        }
    }
}

static void tp_attn_bwd(struct device *d, const struct tensor *dout, const struct tensor *q,
                        const struct tensor *out, const struct tensor *lse,
                        const struct kv_store *kv, int layer, const struct attn_shape *s,
                        const struct rows *rows, struct tensor *dq, struct tensor *dkv)
{
    (void)kv;
    for (int i = 0; i < tp->shards; i++) {
        struct shard h = shard_of(s, i);
        struct tensor *odq = slot_take(TP_OUT, dq->dtype, dq->rows, h.q.total);
        struct tensor *odkv = slot_take(TP_OUT2, dkv->dtype, dkv->rows, h.kv.total);
        tp->real->attn_bwd(d, cols_take(TP_IN, dout, &h.q), cols_take(TP_IN2, q, &h.q),
                           cols_take(TP_IN3, out, &h.q), cols_take(TP_IN4, lse, &h.heads),
                           &tp->kv[i], layer, &h.shape, rows, odq, odkv);
        cols_copy(dq, &h.q, odq, 1);
        cols_copy(dkv, &h.kv, odkv, 1);
    }
}

/* Rank r of all: its query heads, and the key heads of which it is the first owner. */
static struct shard rank_heads(const struct attn_shape *s, int r)
{
    struct shard h = {.shape = *s};
    int d = s->head_dim, nh = s->n_heads / tp->ranks;
    int k0 = (r * s->n_kv_heads + tp->ranks - 1) / tp->ranks;
    int nkv = ((r + 1) * s->n_kv_heads + tp->ranks - 1) / tp->ranks - k0;
    h.shape.n_heads = nh;
    h.shape.n_kv_heads = nkv;
    slice_add(&h.q, r * nh * d, nh * d);
    slice_add(&h.kv, k0 * d, nkv * d);
    slice_add(&h.kv, (s->n_kv_heads + k0) * d, nkv * d);
    slice_add(&h.qkv, r * nh * d, nh * d);
    slice_add(&h.qkv, (s->n_heads + k0) * d, nkv * d);
    slice_add(&h.qkv, (s->n_heads + s->n_kv_heads + k0) * d, nkv * d);
    return h;
}

/* The norms' weights are whole on every rank; each sums its own heads' leaves. */
static void tp_rope_kv_bwd(struct device *d, const struct tensor *dq, const struct tensor *dkv,
                           const struct tensor *qkv, const struct norm *q_norm,
                           const struct norm *k_norm, const struct tensor *cos,
                           const struct tensor *sin, const struct attn_shape *s,
                           const struct rows *rows, const struct leaf_rows *leaves,
                           struct tensor *dqkv, struct tensor *grad_qn, struct tensor *grad_kn)
{
    for (int r = 0; r < tp->ranks; r++) {
        struct shard h = rank_heads(s, r);
        struct tensor *own = slot_take(TP_OUT, dqkv->dtype, dqkv->rows, h.qkv.total);
        struct tensor *gq = slot_take(TP_OUT2, DTYPE_I64, 1, s->head_dim);
        struct tensor *gk = slot_take(TP_OUT3, DTYPE_I64, 1, s->head_dim);
        tp->real->rope_kv_bwd(d, cols_take(TP_IN, dq, &h.q), cols_take(TP_IN2, dkv, &h.kv),
                              cols_take(TP_IN3, qkv, &h.qkv), q_norm, k_norm, cos, sin, &h.shape,
                              rows, leaves, own, gq, gk);
        cols_copy(dqkv, &h.qkv, own, 1);
        if (q_norm) {
            grad_add(gq, grad_qn, 0, 0, 0, 1, s->head_dim);
        }
        if (k_norm) {
            grad_add(gk, grad_kn, 0, 0, 0, 1, s->head_dim);
        }
    }
}

/* ---- the vocabulary ----------------------------------------------------------------------------
 */

static float lanes_sum(float s[TP_LANES])
{
    for (int w = TP_LANES / 2; w; w /= 2) {
        for (int i = 0; i < w; i++) {
            s[i] = s[i] + s[i + w];
        }
    }
    return s[0];
}

/* Each rank sums exp(x - max) over its leaves, joins them, and the ranks join theirs. */
static float vocab_sum(const float *e, const struct leafset *all)
{
    float rank[TP_RANKS];
    for (int r = 0; r < tp->ranks; r++) {
        int per = all->leaves / tp->ranks;
        float leaf[PLAN_MAX_LEAVES] = {0};
        for (int i = 0; i < all->n; i++) {
            int l = all->r[i].leaf - r * per;
            float lane[TP_LANES] = {0};
            if (l < 0 || l >= per) {
                continue;
            }
            for (int c = all->r[i].start; c < all->r[i].end; c++) {
                int k = (c - all->r[i].start) % TP_LANES;
                lane[k] = lane[k] + e[c];
            }
            leaf[l] = lanes_sum(lane);
        }
        for (int w = 1; w < per; w *= 2) {
            for (int i = 0; i < per; i += 2 * w) {
                leaf[i] = leaf[i] + leaf[i + w];
            }
        }
        rank[r] = leaf[0];
    }
    for (int w = 1; w < tp->ranks; w *= 2) {
        for (int i = 0; i < tp->ranks; i += 2 * w) {
            rank[i] = rank[i] + rank[i + w];
        }
    }
    return rank[0];
}

static void tp_logp(struct device *d, struct tensor *logits, const struct logit_spec *spec,
                    const int32_t *target, const struct leafset *vleaf, float *logp, float *max,
                    float *logz, float *entropy)
{
    size_t n = (size_t)logits->rows;
    float *m = mem_alloc(sizeof *m * n), *z = mem_alloc(sizeof *z * n);
    struct tensor *e;

    tp->real->logp(d, logits, spec, target, vleaf, logp, m, z, entropy);
    e = slot_take(TP_OUT, DTYPE_F32, logits->rows, logits->cols);
    tp->real->exps(d, logits, m, e);
    for (int64_t r = 0; r < logits->rows; r++) {
        float v = vmath_logf(vocab_sum((const float *)cell(e, r, 0), vleaf));
        tp->bad += memcmp(&v, &z[r], sizeof v) != 0;
    }
    if (max) {
        memcpy(max, m, sizeof *m * n);
    }
    if (logz) {
        memcpy(logz, z, sizeof *z * n);
    }
    mem_free(m);
    mem_free(z);
}

/* ---- the device --------------------------------------------------------------------------------
 */

static struct device_ops tp_table;

struct bench_tp *bench_tp_new(struct weights *w, int ranks, const struct kv_store *kv)
{
    struct bench_tp *t = mem_alloc(sizeof *t);
    struct err e = {0};
    size_t n = (size_t)w->nparams * TP_RANKS;

    ASSERT(ranks <= w->dev->plan.leaves && w->dev->plan.leaves % ranks == 0);
    t->w = w;
    t->d = w->dev;
    t->real = w->dev->ops;
    t->ranks = ranks;
    t->shards = ranks < w->arch.n_kv_heads ? ranks : w->arch.n_kv_heads;
    ASSERT(w->arch.n_kv_heads % t->shards == 0);
    t->part = mem_alloc(sizeof *t->part * n);
    t->made = mem_alloc(n);
    for (int i = 0; i < t->shards; i++) {
        ASSERT(device_kv(t->d, &t->kv[i], kv->n_layers, kv->n_kv_heads / t->shards, kv->head_dim,
                         kv->n_pages, &e) == STATUS_OK);
    }
    return t;
}

void bench_tp_free(struct bench_tp *t)
{
    if (!t) {
        return;
    }
    for (int i = 0; i < t->w->nparams * TP_RANKS; i++) {
        if (t->made[i]) {
            device_wview_free(&t->part[i]);
        }
    }
    for (int i = 0; i < t->shards; i++) {
        device_kv_free(&t->kv[i]);
    }
    for (int i = 0; i < TP_SLOTS; i++) {
        device_tensor_free(&t->slot[i]);
    }
    mem_free(t->part);
    mem_free(t->made);
    mem_free(t);
}

void bench_tp_poison(struct bench_tp *t)
{
    for (int i = 0; i < t->shards; i++) {
        memset(t->kv[i].data, 0xff, t->kv[i].size);
    }
}

void bench_tp_on(struct bench_tp *t, const struct tensor *grad)
{
    ASSERT(!tp && t->d->ops == t->real);
    t->grad = grad;
    tp = t;
    tp_table = *t->real;
    tp_table.linear = tp_linear;
    tp_table.linear_dx = tp_linear_dx;
    tp_table.linear_dw = tp_linear_dw;
    tp_table.rope_kv = tp_rope_kv;
    tp_table.rope_kv_bwd = tp_rope_kv_bwd;
    tp_table.attn = tp_attn;
    tp_table.attn_bwd = tp_attn_bwd;
    tp_table.logp = tp_logp;
    t->d->ops = &tp_table;
}

int bench_tp_off(struct bench_tp *t)
{
    int bad = t->bad;
    ASSERT(tp == t);
    t->bad = 0;
    t->d->ops = t->real;
    tp = NULL;
    return bad;
}
