/* The CPU device's attention: rope and the writing of KV pages, attention forward and backward, cut
 * into tasks. */
#include <string.h>

#include "base/thread.h"
#include "num/cpu/cpu_int.h"
#include "num/exact.h"
#include "num/vmath.h"

/* ---- rope and pages ----------------------------------------------------------------------------
 */

struct cpu_rope {
    const struct kern *k;
    const struct tensor *qkv, *cos, *sin;
    const struct norm *qn, *kn; /* each or NULL */
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
        t->k->rope_head(x + h * d, t->qn, c, s, t->s, y);
        t->k->to_bf16(y, d, q + h * d);
    }
    for (int h = 0; h < nkv; h++) {
        uint16_t *kp = kv + kv_key_offset(t->kv, page, t->layer, h);
        uint16_t *vp = kv + kv_value_offset(t->kv, page, t->layer, h);
        t->k->rope_head(x + (nh + h) * d, t->kn, c, s, t->s, y);
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

void cpu_rope_kv(struct device *d, const struct tensor *qkv, const struct norm *q_norm,
                 const struct norm *k_norm, const struct tensor *cos, const struct tensor *sin,
                 const struct attn_shape *s, const struct rows *rows, struct kv_store *kv,
                 int layer, struct tensor *q)
{
    struct cpu_rope t;
    memset(&t, 0, sizeof t);
    t.k = &cpu_of(d)->k;
    t.qkv = qkv;
    t.qn = q_norm;
    t.kn = k_norm;
    t.cos = cos;
    t.sin = sin;
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
        t->k->rope_head_bwd(h < nh ? dq + h * d : dkv + (h - nh) * d, x + h * d,
                            h < nh ? t->qn : t->kn, c, s, t->s, dx, dn ? dn + h * d : NULL);
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

void cpu_rope_kv_bwd(struct device *d, const struct tensor *dq, const struct tensor *dkv,
                     const struct tensor *qkv, const struct norm *q_norm, const struct norm *k_norm,
                     const struct tensor *cos, const struct tensor *sin, const struct attn_shape *s,
                     const struct rows *rows, const struct leaf_rows *leaves, struct tensor *dqkv,
                     struct tensor *grad_qn, struct tensor *grad_kn)
{
    struct cpu *c = cpu_of(d);
    struct cpu_rope t;
    int width = (s->n_heads + s->n_kv_heads) * s->head_dim, bad = 0;

    memset(&t, 0, sizeof t);
    t.k = &c->k;
    t.qkv = qkv;
    t.qn = q_norm;
    t.kn = k_norm;
    t.cos = cos;
    t.sin = sin;
    t.s = s;
    t.rows = rows;
    t.dq = dq;
    t.dkv = dkv;
    t.dqkv = dqkv;
    if (q_norm || k_norm) {
        t.dn = cpu_grow(&c->shared, sizeof(float) * (size_t)rows->n * (size_t)width);
    }
    cpu_each_row(d, rows->n, 16, cpu_rope_bwd_row, &t);
    if (q_norm) {
        bad |= cpu_norm_leaves(t.dn, width, 0, s->n_heads, s->head_dim, leaves, grad_qn->data);
    }
    if (k_norm) {
        bad |= cpu_norm_leaves(t.dn, width, s->n_heads, s->n_kv_heads, s->head_dim, leaves,
                               grad_kn->data);
    }
    if (bad) {
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

void cpu_attn_fwd(struct device *d, const struct tensor *q, const struct kv_store *kv, int layer,
                  const struct attn_shape *s, const struct rows *rows, struct tensor *out,
                  struct tensor *lse)
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

void cpu_attn_bwd(struct device *d, const struct tensor *dout, const struct tensor *q,
                  const struct tensor *out, const struct tensor *lse, const struct kv_store *kv,
                  int layer, const struct attn_shape *s, const struct rows *rows, struct tensor *dq,
                  struct tensor *dkv)
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
