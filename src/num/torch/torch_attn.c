/* The torch device's rope, KV pages and attention. The pages of a layer's keys are one dense array
 * of token slots, (n_pages * 64, kv heads * d), and so are its values: a sequence's keys are
 * gathered by slot into a dense array, then multiplied and masked. Scores are made in pieces of
 * queries, so memory does not grow with the square of the context. */
#include "base/status.h"
#include "num/torch/torch_int.h"

#define PIECE_MIN 64 /* queries that a piece has at least: gathering keys costs too */

/* ---- KV slots ----------------------------------------------------------------------------------
 */

/* Keys (which 0) or values (1) of a layer: (slots, kv heads * d). */
static struct aten *kv_slots(struct torch *t, const struct kv_store *kv, int layer, int which)
{
    int64_t width = (int64_t)kv->n_kv_heads * kv->head_dim;
    int64_t slots = (int64_t)kv->n_pages * PLAN_KV_BLOCK;
    int64_t at = ((int64_t)layer * 2 + which) * slots * width;
    return torch_blob(t, (char *)kv->data + at * (int64_t)dtype_size(kv->dtype),
                      torch_dtype(t, kv->dtype), 2, (int64_t[]){slots, width}, NULL, 0);
}

static int32_t slot_of(const struct row_seq *s, int pos)
{
    return s->pages[pos / PLAN_KV_BLOCK] * PLAN_KV_BLOCK + pos % PLAN_KV_BLOCK;
}

/* ---- rope --------------------------------------------------------------------------------------
 */

/* cos and sin of the rows' positions, (n, 1, rot / 2). */
struct turn {
    struct aten *cos, *sin;
    int64_t n, rot;
    int interleaved;
};

static struct turn turn_of(struct torch *t, const struct tensor *cos, const struct tensor *sin,
                           const struct attn_shape *s, const struct rows *rows)
{
    struct turn u = {.n = rows->n, .rot = s->rot, .interleaved = s->interleaved};
    struct aten *pos = torch_ints(t, rows->pos, rows->n);
    int64_t half = s->rot / 2, size[] = {rows->n, 1, half}, flat[] = {rows->n, half};
    struct aten *c =
        torch_op(t, "aten::index_select", "", "tit", torch_view(t, cos), (int64_t)0, pos);
    struct aten *n =
        torch_op(t, "aten::index_select", "", "tit", torch_view(t, sin), (int64_t)0, pos);
    u.cos = torch_strided(t, torch_dense(t, c, 2, flat), 0, 3, size, NULL);
    u.sin = torch_strided(t, torch_dense(t, n, 2, flat), 0, 3, size, NULL);
    return u;
}

/* Dense x (n, h, d) rotated, or with back = 1 the gradient through the rotation. */
static struct aten *turned(struct torch *t, const struct turn *u, struct aten *x, int64_t h,
                           int64_t d, int back)
{
    int64_t all[] = {u->n, h, d}, pair[] = {u->n, h, u->rot / 2}, rest[] = {u->n, h, d - u->rot};
    int64_t strides[] = {h * d, d, u->interleaved ? 2 : 1}, plain[] = {h * d, d, 1};
    int64_t other = u->interleaved ? 1 : u->rot / 2;
    struct aten *y = torch_empty(t, t->f32, 3, all);
    struct aten *a = torch_strided(t, x, 0, 3, pair, strides);
    struct aten *b = torch_strided(t, x, other, 3, pair, strides);
    struct aten *as = torch_mul(t, a, u->sin), *bs = torch_mul(t, b, u->sin);
    struct aten *ac = torch_mul(t, a, u->cos), *bc = torch_mul(t, b, u->cos);

    torch_put(t, torch_strided(t, y, 0, 3, pair, strides),
              back ? torch_add(t, ac, bs) : torch_sub(t, ac, bs));
    torch_put(t, torch_strided(t, y, other, 3, pair, strides),
              back ? torch_sub(t, bc, as) : torch_add(t, bc, as));
    if (u->rot < d) {
        torch_put(t, torch_strided(t, y, u->rot, 3, rest, plain),
                  torch_strided(t, x, u->rot, 3, rest, plain));
    }
    return y;
}

/* Heads [h0, h0 + h) of a tensor's rows, (n, h, d). */
static struct aten *heads_view(struct torch *t, const struct tensor *x, int64_t h0, int64_t h,
                               int64_t d)
{
    return torch_part(t, x, h0 * d, 3, (int64_t[]){x->rows, h, d}, (int64_t[]){x->ld, d, 1});
}

static struct aten *heads_dense(struct torch *t, const struct tensor *x, int64_t h0, int64_t h,
                                int64_t d)
{
    return torch_dense(t, heads_view(t, x, h0, h, d), 3, (int64_t[]){x->rows, h, d});
}

static struct aten *heads_roped(struct torch *t, const struct tensor *qkv, const struct norm *norm,
                                const struct turn *u, int64_t h0, int64_t h, int64_t d)
{
    struct aten *x = heads_dense(t, qkv, h0, h, d);
    if (norm) {
        x = torch_mul(t, torch_mul(t, x, torch_rstd(t, x, 2, norm->eps)),
                      torch_norm_weight(t, norm));
    }
    return turned(t, u, x, h, d, 0);
}

/* Tokens of bases that fill a page in part, into the pages of the sequences that go on from them.
 */
static void base_tails(struct torch *t, const struct rows *rows, const struct kv_store *kv,
                       int layer)
{
    int64_t n = 0;
    int32_t *slot;

    for (int i = 0; i < rows->nseq; i++) {
        n += rows->seq[i].base ? rows->seq[i].pos0 % PLAN_KV_BLOCK : 0;
    }
    if (!n) {
        return;
    }
    slot = torch_scratch(t, 2 * n);
    for (int i = 0, k = 0; i < rows->nseq; i++) {
        const struct row_seq *sq = &rows->seq[i];
        int pos = sq->pos0 / PLAN_KV_BLOCK * PLAN_KV_BLOCK;
        for (; sq->base && pos < sq->pos0; pos++, k++) {
            slot[k] = slot_of(&rows->seq[sq->base - 1], pos);
            slot[n + k] = slot_of(sq, pos);
        }
    }
    for (int which = 0; which < 2; which++) {
        struct aten *all = kv_slots(t, kv, layer, which);
        struct aten *x =
            torch_op(t, "aten::index_select", "", "tit", all, (int64_t)0, torch_ints(t, slot, n));
        torch_op(t, "aten::index_copy_", "", "titt", all, (int64_t)0, torch_ints(t, slot + n, n),
                 x);
    }
}

void torch_rope_kv(struct device *d, const struct tensor *qkv, const struct norm *q_norm,
                   const struct norm *k_norm, const struct tensor *cos, const struct tensor *sin,
                   const struct attn_shape *s, const struct rows *rows, struct kv_store *kv,
                   int layer, struct tensor *q)
{
    struct torch *t = torch_of(d);
    int64_t nh = s->n_heads, nkv = s->n_kv_heads, hd = s->head_dim, n = rows->n;
    int64_t flat[] = {n, nkv * hd};
    int32_t *slot;
    struct aten *at, *k, *half;
    struct turn u;

    if (!n) {
        return;
    }
    u = turn_of(t, cos, sin, s, rows);
    torch_put(t, heads_view(t, q, 0, nh, hd), heads_roped(t, qkv, q_norm, &u, 0, nh, hd));
    slot = torch_scratch(t, n);
    for (int i = 0; i < rows->nseq; i++) {
        const struct row_seq *sq = &rows->seq[i];
        for (int r = 0; r < sq->nrows; r++) {
            slot[sq->row0 + r] = slot_of(sq, sq->pos0 + r);
        }
    }
    at = torch_ints(t, slot, n);
    k = torch_strided(t, heads_roped(t, qkv, k_norm, &u, nh, nkv, hd), 0, 2, flat, NULL);
    half = torch_empty(t, torch_dtype(t, kv->dtype), 2, flat);
    torch_put(t, half, k);
    torch_op(t, "aten::index_copy_", "", "titt", kv_slots(t, kv, layer, 0), (int64_t)0, at, half);
    torch_op(t, "aten::index_copy_", "", "titt", kv_slots(t, kv, layer, 1), (int64_t)0, at,
             torch_block(t, qkv, 0, n, (nh + nkv) * hd, nkv * hd));
    base_tails(t, rows, kv, layer);
    torch_release(t, 0);
}

/* Gradient of heads [h0, h0 + h) of qkv from that of the rotated heads. */
static void heads_bwd(struct torch *t, const struct tensor *dy, const struct tensor *qkv,
                      const struct norm *norm, const struct turn *u, int64_t h0, int64_t h,
                      int64_t d, const struct leaf_rows *leaves, struct tensor *dqkv,
                      struct tensor *grad)
{
    struct aten *dx = turned(t, u, heads_dense(t, dy, 0, h, d), h, d, 1);
    if (norm) {
        int64_t r0 = leaves->start[0], n = leaves->start[leaves->n] - r0;
        struct aten *x = heads_dense(t, qkv, h0, h, d), *r = torch_rstd(t, x, 2, norm->eps);
        struct aten *xh = torch_mul(t, x, r), *share = torch_mul(t, dx, xh), *g;
        share = torch_strided(t, share, r0 * h * d, 2, (int64_t[]){n * h, d}, NULL);
        torch_grad(t, grad, 0, 1, torch_sum(t, share, 0));
        g = torch_mul(t, dx, torch_norm_weight(t, norm));
        dx = torch_sub(t, g, torch_mul(t, xh, torch_mean(t, torch_mul(t, g, xh), 2)));
        dx = torch_mul(t, r, dx);
    }
    torch_put(t, heads_view(t, dqkv, h0, h, d), dx);
}

void torch_rope_kv_bwd(struct device *d, const struct tensor *dq, const struct tensor *dkv,
                       const struct tensor *qkv, const struct norm *q_norm,
                       const struct norm *k_norm, const struct tensor *cos,
                       const struct tensor *sin, const struct attn_shape *s,
                       const struct rows *rows, const struct leaf_rows *leaves, struct tensor *dqkv,
                       struct tensor *grad_qn, struct tensor *grad_kn)
{
    struct torch *t = torch_of(d);
    int64_t nh = s->n_heads, nkv = s->n_kv_heads, hd = s->head_dim;
    struct turn u;

    if (!rows->n) {
        return;
    }
    u = turn_of(t, cos, sin, s, rows);
    heads_bwd(t, dq, qkv, q_norm, &u, 0, nh, hd, leaves, dqkv, grad_qn);
    heads_bwd(t, dkv, qkv, k_norm, &u, nh, nkv, hd, leaves, dqkv, grad_kn);
    torch_put(t, heads_view(t, dqkv, nh + nkv, nkv, hd), heads_view(t, dkv, nkv, nkv, hd));
    torch_release(t, 0);
}

/* ---- attention ---------------------------------------------------------------------------------
 */

/* b sequences side by side, each with m queries and room for n keys. Arrays have the heads of one
 * key head together: queries (b, kv, m, group, d), keys (b, kv, n, d), scores (b kv, m group, n).
 */
struct work {
    struct torch *t;
    const struct attn_shape *s;
    int64_t b, m, n, kv, group, d;
};

static struct work work_of(struct torch *t, const struct attn_shape *s, int64_t b, int64_t m,
                           int64_t n)
{
    return (struct work){.t = t,
                         .s = s,
                         .b = b,
                         .m = m,
                         .n = n,
                         .kv = s->n_kv_heads,
                         .group = s->n_heads / s->n_kv_heads,
                         .d = s->head_dim};
}

/* Rows of a (rows, heads * d) array as (b kv, m group, d) in f32. x has b * m rows, `row` apart. */
static struct aten *by_key_head(const struct work *w, struct aten *x)
{
    int64_t size[] = {w->b, w->kv, w->m, w->group, w->d};
    int64_t flat[] = {w->b * w->kv, w->m * w->group, w->d};
    return torch_strided(w->t, torch_dense(w->t, x, 5, size), 0, 3, flat, NULL);
}

/* The same rows as a five-dimensional view of a tensor, for reading and writing. */
static struct aten *row_view(const struct work *w, const struct tensor *x, int64_t row0, int64_t d)
{
    int64_t size[] = {w->b, w->kv, w->m, w->group, d};
    int64_t strides[] = {w->m * x->ld, w->group * d, x->ld, d, 1};
    return torch_part(w->t, x, row0 * x->ld, 5, size, strides);
}

/* The (b kv, m group, d) result as (b, kv, m, group, d). */
static struct aten *unfold(const struct work *w, struct aten *x, int64_t d)
{
    return torch_strided(w->t, x, 0, 5, (int64_t[]){w->b, w->kv, w->m, w->group, d}, NULL);
}

/* Keys or values at b * n slots, (b kv, n, d) in f32. */
static struct aten *keys_at(const struct work *w, const struct kv_store *kv, int layer, int which,
                            struct aten *slots)
{
    struct torch *t = w->t;
    int64_t width = w->kv * w->d, size[] = {w->b, w->kv, w->n, w->d};
    int64_t strides[] = {w->n * width, w->d, width, 1};
    struct aten *x = torch_op(t, "aten::index_select", "", "tit", kv_slots(t, kv, layer, which),
                              (int64_t)0, slots);
    x = torch_dense(t, torch_strided(t, x, 0, 4, size, strides), 4, size);
    return torch_strided(t, x, 0, 3, (int64_t[]){w->b * w->kv, w->n, w->d}, NULL);
}

static struct aten *bmm(struct torch *t, struct aten *x, struct aten *y)
{
    return torch_op(t, "aten::bmm", "", "tt", x, y);
}

static struct aten *transposed(struct torch *t, struct aten *x)
{
    return torch_op(t, "aten::transpose", "int", "tii", x, (int64_t)1, (int64_t)2);
}

/* Where a query must not look: (b, 1, m, 1, n) bool. last[i] is the newest key of query i, counted
 * like the keys from the first that is there. */
static struct aten *forbidden(const struct work *w, struct aten *last)
{
    struct torch *t = w->t;
    int64_t keys[] = {1, 1, 1, 1, w->n}, queries[] = {w->b, 1, w->m, 1, 1};
    struct aten *p = torch_strided(t, last, 0, 5, queries, NULL), *j, *no;
    int32_t *count = torch_scratch(t, w->n);
    for (int64_t i = 0; i < w->n; i++) {
        count[i] = (int32_t)i;
    }
    j = torch_strided(t, torch_ints(t, count, w->n), 0, 5, keys, NULL);
    no = torch_op(t, "aten::gt", "Tensor", "tt", j, p);
    if (w->s->window > 0) {
        struct aten *first = torch_sub(t, torch_f32(t, p), torch_scalar(t, (float)w->s->window));
        no = torch_op(t, "aten::logical_or", "", "tt", no,
                      torch_op(t, "aten::le", "Tensor", "tt", torch_f32(t, j), first));
    }
    return no;
}

/* Scaled and capped scores of dense queries and keys; the forbidden ones are still there. */
static struct aten *scores(const struct work *w, struct aten *q, struct aten *k)
{
    struct torch *t = w->t;
    struct aten *x = torch_scale(t, bmm(t, q, transposed(t, k)), w->s->scale);
    if (w->s->softcap > 0.0f) {
        x = torch_un(t, "aten::tanh", torch_scale(t, x, 1.0f / w->s->softcap));
        x = torch_scale(t, x, w->s->softcap);
    }
    return x;
}

/* Sets x (b kv, m group, n) to v where it is forbidden. */
static void blank(const struct work *w, struct aten *x, struct aten *no, float v)
{
    torch_op(w->t, "aten::masked_fill_", "Tensor", "ttt", unfold(w, x, w->n), no,
             torch_scalar(w->t, v));
}

/* One piece of attention: dense queries, `slots` and `last` as above. The results are dense. */
static void attn_piece(const struct work *w, struct aten *q, const struct kv_store *kv, int layer,
                       struct aten *slots, struct aten *last, struct aten **out, struct aten **lse)
{
    struct torch *t = w->t;
    struct aten *x = scores(w, q, keys_at(w, kv, layer, 0, slots));
    struct aten *p;
    blank(w, x, forbidden(w, last), -__builtin_inff());
    p = torch_op(t, "aten::_softmax", "", "tib", x, (int64_t)2, 0);
    *out = bmm(t, p, keys_at(w, kv, layer, 1, slots));
    *lse = torch_op(t, "aten::logsumexp", "", "tlb", x, (int64_t)2, 1);
}

/* The first key that any of the queries from pos on sees. */
static int first_key(const struct attn_shape *s, int pos)
{
    return s->window > 0 && pos - s->window + 1 > 0 ? pos - s->window + 1 : 0;
}

/* Queries of one sequence that make a piece: all heads against all keys. */
static int64_t piece_queries(const struct torch *t, const struct attn_shape *s, int64_t keys)
{
    int64_t n = t->scores / ((int64_t)s->n_heads * (keys ? keys : 1));
    return n > PIECE_MIN ? n : PIECE_MIN;
}

/* Slots of keys [from, from + n) and the newest key of m queries from position pos on. */
static void indices(struct torch *t, const struct row_seq *sq, int from, int64_t n, int pos,
                    int64_t m, struct aten **slots, struct aten **last)
{
    int32_t *v = torch_scratch(t, n + m);
    for (int64_t j = 0; j < n; j++) {
        v[j] = slot_of(sq, from + (int)j);
    }
    for (int64_t i = 0; i < m; i++) {
        v[n + i] = pos + (int32_t)i - from;
    }
    *slots = torch_ints(t, v, n);
    *last = torch_ints(t, v + n, m);
}

static void attn_seq(struct torch *t, const struct tensor *q, const struct kv_store *kv, int layer,
                     const struct attn_shape *s, const struct row_seq *sq, struct tensor *out,
                     struct tensor *lse)
{
    int64_t step = piece_queries(t, s, sq->pos0 + sq->nrows);
    for (int64_t i = 0; i < sq->nrows; i += step, torch_release(t, 0)) {
        int64_t m = step < sq->nrows - i ? step : sq->nrows - i, row = sq->row0 + i;
        int pos = sq->pos0 + (int)i, from = first_key(s, pos);
        struct work w = work_of(t, s, 1, m, pos + m - from);
        struct aten *slots, *last, *o, *l;
        indices(t, sq, from, w.n, pos, m, &slots, &last);
        attn_piece(&w, by_key_head(&w, row_view(&w, q, row, w.d)), kv, layer, slots, last, &o, &l);
        torch_put(t, row_view(&w, out, row, w.d), unfold(&w, o, w.d));
        if (lse) {
            torch_put(t, row_view(&w, lse, row, 1), unfold(&w, l, 1));
        }
    }
}

/* Sequences seq[list[0..b)] of one query each, padded to the longest. */
static void attn_decode(struct torch *t, const struct tensor *q, const struct kv_store *kv,
                        int layer, const struct attn_shape *s, const struct rows *rows,
                        const int32_t *list, int64_t b, int64_t n, struct tensor *out,
                        struct tensor *lse)
{
    struct work w = work_of(t, s, b, 1, n);
    int32_t *v = torch_scratch(t, b * (n + 2));
    struct aten *slots, *last, *at, *x, *o, *l;
    int64_t flat[] = {b, w.kv * w.group * w.d}, lflat[] = {b, w.kv * w.group};
    int64_t size[] = {b, w.kv, 1, w.group, w.d};
    int64_t strides[] = {flat[1], w.group * w.d, flat[1], w.d, 1};
    struct aten *half;

    for (int64_t i = 0; i < b; i++) {
        const struct row_seq *sq = &rows->seq[list[i]];
        int from = first_key(s, sq->pos0);
        for (int64_t j = 0; j < n; j++) {
            int pos = from + (int)j;
            v[i * n + j] = slot_of(sq, pos <= sq->pos0 ? pos : sq->pos0);
        }
        v[b * n + i] = sq->pos0 - from;
        v[b * (n + 1) + i] = sq->row0;
    }
    slots = torch_ints(t, v, b * n);
    last = torch_ints(t, v + b * n, b);
    at = torch_ints(t, v + b * (n + 1), b);
    x = torch_op(t, "aten::index_select", "", "tit", torch_view(t, q), (int64_t)0, at);
    x = by_key_head(&w, torch_strided(t, x, 0, 5, size, strides));
    attn_piece(&w, x, kv, layer, slots, last, &o, &l);
    half = torch_empty(t, torch_dtype(t, out->dtype), 2, flat);
    torch_put(t, half, torch_strided(t, o, 0, 2, flat, NULL));
    torch_op(t, "aten::index_copy_", "", "titt", torch_view(t, out), (int64_t)0, at, half);
    if (lse) {
        torch_op(t, "aten::index_copy_", "", "titt", torch_view(t, lse), (int64_t)0, at,
                 torch_strided(t, l, 0, 2, lflat, NULL));
    }
    torch_release(t, 0);
}

#define DECODE_MAX 256 /* sequences decoded together */

void torch_attn(struct device *d, const struct tensor *q, const struct kv_store *kv, int layer,
                const struct attn_shape *s, const struct rows *rows, struct tensor *out,
                struct tensor *lse)
{
    struct torch *t = torch_of(d);
    int32_t list[DECODE_MAX];
    int64_t b = 0, longest = 0;

    for (int i = 0; i < rows->nseq; i++) {
        const struct row_seq *sq = &rows->seq[i];
        int64_t keys = sq->pos0 + 1 - first_key(s, sq->pos0);
        int64_t widest = keys > longest ? keys : longest;
        if (sq->nrows > 1) {
            attn_seq(t, q, kv, layer, s, sq, out, lse);
        }
        if (sq->nrows != 1) {
            continue;
        }
        if (b == DECODE_MAX || (b && (b + 1) * widest * s->n_heads > 16 * t->scores)) {
            attn_decode(t, q, kv, layer, s, rows, list, b, longest, out, lse);
            b = 0;
            widest = keys;
        }
        list[b++] = i;
        longest = widest;
    }
    if (b) {
        attn_decode(t, q, kv, layer, s, rows, list, b, longest, out, lse);
    }
}

/* ---- attention's gradient ----------------------------------------------------------------------
 */

/* Dense keys of a sequence from 0 on and the gradients that pieces add to, (kv, all, d) f32. */
struct key_grads {
    struct aten *k, *v, *dk, *dv;
    int64_t all;
};

/* Keys [from, from + n) of one of them. */
static struct aten *key_range(const struct work *w, struct aten *x, int64_t all, int64_t from)
{
    return torch_strided(w->t, x, from * w->d, 3, (int64_t[]){w->kv, w->n, w->d},
                         (int64_t[]){all * w->d, w->d, 1});
}

static void add_to(struct torch *t, struct aten *sum, struct aten *x)
{
    torch_put(t, sum, torch_add(t, sum, x));
}

struct attn_grad {
    const struct tensor *dout, *q, *out, *lse;
    struct tensor *dq;
};

/* p = exp(score - lse), ds = p (dp - sum(dout out)), then back through cap and scale. */
static void attn_bwd_piece(const struct work *w, const struct attn_grad *a, int64_t row, int from,
                           struct aten *last, const struct key_grads *g)
{
    struct torch *t = w->t;
    struct aten *q = by_key_head(w, row_view(w, a->q, row, w->d));
    struct aten *dy = by_key_head(w, row_view(w, a->dout, row, w->d));
    struct aten *o = by_key_head(w, row_view(w, a->out, row, w->d));
    struct aten *k = key_range(w, g->k, g->all, from), *v = key_range(w, g->v, g->all, from);
    struct aten *x = scores(w, q, k), *lse, *p, *ds, *mean;
    int64_t one[] = {w->kv, w->m * w->group, 1}, five[] = {1, w->kv, w->m, w->group, 1};

    lse = torch_dense(t, row_view(w, a->lse, row, 1), 5, five);
    lse = torch_strided(t, lse, 0, 3, one, NULL);
    p = torch_un(t, "aten::exp", torch_sub(t, x, lse));
    blank(w, p, forbidden(w, last), 0.0f);
    mean = torch_sum(t, torch_mul(t, dy, o), 2);
    ds = torch_mul(t, p, torch_sub(t, bmm(t, dy, transposed(t, v)), mean));
    if (w->s->softcap > 0.0f) {
        struct aten *c = torch_scale(t, x, 1.0f / w->s->softcap);
        ds = torch_sub(t, ds, torch_mul(t, ds, torch_mul(t, c, c)));
    }
    ds = torch_scale(t, ds, w->s->scale);
    torch_put(t, row_view(w, a->dq, row, w->d), unfold(w, bmm(t, ds, k), w->d));
    add_to(t, key_range(w, g->dk, g->all, from), bmm(t, transposed(t, ds), q));
    add_to(t, key_range(w, g->dv, g->all, from), bmm(t, transposed(t, p), dy));
}

/* Gradients of n keys from `from` on to their rows: [dk | dv], added where `add`. */
static void key_rows(const struct work *w, const struct key_grads *g, int64_t from, int64_t n,
                     int64_t row, int add, const struct tensor *dkv)
{
    struct torch *t = w->t;
    int64_t size[] = {w->kv, n, w->d}, strides[] = {w->d, dkv->ld, 1};
    int64_t dense[] = {g->all * w->d, w->d, 1};

    for (int which = 0; n && which < 2; which++) {
        struct aten *x = torch_strided(t, which ? g->dv : g->dk, from * w->d, 3, size, dense);
        struct aten *y = torch_part(t, dkv, row * dkv->ld + which * w->kv * w->d, 3, size, strides);
        torch_put(t, y, add ? torch_add(t, y, x) : x);
    }
}

static void attn_bwd_seq(struct torch *t, const struct attn_grad *a, const struct kv_store *kv,
                         int layer, const struct attn_shape *s, const struct rows *rows,
                         const struct row_seq *sq, struct tensor *dkv)
{
    int64_t keys = sq->pos0 + sq->nrows, step = piece_queries(t, s, 3 * keys);
    struct work all = work_of(t, s, 1, 1, keys);
    struct key_grads g = {.all = keys};
    int64_t size[] = {all.kv, keys, all.d};
    struct aten *slots, *last;
    int mark;

    indices(t, sq, 0, keys, 0, 1, &slots, &last);
    g.k = keys_at(&all, kv, layer, 0, slots);
    g.v = keys_at(&all, kv, layer, 1, slots);
    g.dk = torch_empty(t, t->f32, 3, size);
    g.dv = torch_empty(t, t->f32, 3, size);
    if (!t->failed) {
        t->f.aoti_torch_zero_(g.dk);
        t->f.aoti_torch_zero_(g.dv);
    }
    mark = t->ntemp;
    for (int64_t i = 0; i < sq->nrows; i += step, torch_release(t, mark)) {
        int64_t m = step < sq->nrows - i ? step : sq->nrows - i;
        int pos = sq->pos0 + (int)i, from = first_key(s, pos);
        struct work w = work_of(t, s, 1, m, pos + m - from);
        indices(t, sq, from, 1, pos, m, &slots, &last);
        attn_bwd_piece(&w, a, sq->row0 + i, from, last, &g);
    }
    key_rows(&all, &g, sq->pos0, sq->nrows, sq->row0, 0, dkv);
    if (sq->base) {
        key_rows(&all, &g, 0, sq->pos0, rows->seq[sq->base - 1].row0, 1, dkv);
    }
    torch_release(t, 0);
}

void torch_attn_bwd(struct device *d, const struct tensor *dout, const struct tensor *q,
                    const struct tensor *out, const struct tensor *lse, const struct kv_store *kv,
                    int layer, const struct attn_shape *s, const struct rows *rows,
                    struct tensor *dq, struct tensor *dkv)
{
    struct attn_grad a = {dout, q, out, lse, dq};
    for (int i = 0; i < rows->nseq; i++) {
        ASSERT(rows->seq[i].pos0 == 0 || rows->seq[i].base);
        if (rows->seq[i].nrows) {
            attn_bwd_seq(torch_of(d), &a, kv, layer, s, rows, &rows->seq[i], dkv);
        }
    }
}
