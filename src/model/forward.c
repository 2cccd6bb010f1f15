/* Owns the order of a transformer's operations and the memory of its activations. Numbers are the
 * device's business. bf16 rounding happens at the outputs of the operations below; inside them, and
 * in the logits, values are f32. */
#include "model/forward.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"

struct forward_shape {
    int64_t cols;
    int f32;
};

/* Tensors of a layer in the order of struct forward_layer; cols 0: none. */
#define FORWARD_TENSORS 16
static void forward_shapes(const struct arch *a, struct forward_shape s[FORWARD_TENSORS])
{
    int64_t h = a->hidden, q = (int64_t)a->n_heads * a->head_dim;
    int64_t kv = (int64_t)a->n_kv_heads * a->head_dim, i = a->intermediate;
    int64_t post = a->post_norms ? h : 0, one = a->post_norms;
    const struct forward_shape t[FORWARD_TENSORS] = {
        {h, 0},          {h, 0},   {1, 1},    {q + 2 * kv, 0}, {q, 0},     {q, 0},
        {a->n_heads, 1}, {h, 0},   {h, 0},    {1, 1},          {2 * i, 0}, {i, 0},
        {post, 0},       {one, 1}, {post, 0}, {one, 1}};
    memcpy(s, t, sizeof t);
}

#define FORWARD_PLACE(t) ((int)(offsetof(struct forward_layer, t) / sizeof(struct tensor)))
#define FORWARD_ACT      FORWARD_PLACE(act)

/* 1: layer `l` keeps tensor `t` (its place in struct forward_layer) for itself. */
static int forward_own(const struct forward *f, int l, int t)
{
    if (!f->keep) {
        return 0;
    }
    if (f->recompute == FORWARD_FULL && l < f->recompute_layers) {
        return t == FORWARD_PLACE(h_in);
    }
    return f->recompute != FORWARD_SELECTIVE ||
           (t != FORWARD_PLACE(x1) && t != FORWARD_PLACE(x2) && t != FORWARD_ACT);
}

static void forward_set(struct forward *f, struct weights *w, int max_rows, int keep,
                        enum forward_recompute how, int layers)
{
    f->w = w;
    f->max_rows = max_rows;
    f->keep = keep;
    f->recompute = how;
    f->recompute_layers = layers > 0 ? layers : w->arch.n_layers;
    f->in_shared = -1;
}

int64_t forward_bytes(const struct weights *w, int max_rows, int keep, enum forward_recompute how,
                      int layers)
{
    struct forward_shape s[FORWARD_TENSORS];
    struct forward f;
    enum dtype half = device_half(w->dev);
    int64_t n = 3 * device_tensor_bytes(half, max_rows, w->arch.hidden);

    forward_set(&f, (struct weights *)(uintptr_t)w, max_rows, keep, how, layers);
    forward_shapes(&w->arch, s);
    for (int i = 0; i < FORWARD_TENSORS; i++) {
        int sets = 0, shared = 0;
        for (int l = 0; l < w->arch.n_layers; l++) {
            int own = forward_own(&f, l, i);
            sets += own;
            shared |= !own;
        }
        if (s[i].cols) {
            n += (sets + shared) *
                 device_tensor_bytes(s[i].f32 ? DTYPE_F32 : half, max_rows, s[i].cols);
        }
    }
    return n;
}

/* The layers' tensors: own ones, or the shared one made when the first layer asks for it. */
static int forward_tensors(struct forward *f, struct err *e)
{
    struct forward_shape s[FORWARD_TENSORS];
    struct tensor *shared = &f->shared.h_in;
    enum dtype half = device_half(f->w->dev);
    int rc = STATUS_OK;

    forward_shapes(&f->w->arch, s);
    for (int l = 0; rc == STATUS_OK && l < f->w->arch.n_layers; l++) {
        struct tensor *t = &f->layers[l].h_in;
        for (int i = 0; rc == STATUS_OK && i < FORWARD_TENSORS; i++) {
            int own = forward_own(f, l, i);
            if (!s[i].cols) {
                continue;
            }
            if (own || !shared[i].data) {
                rc = device_tensor(f->w->dev, own ? &t[i] : &shared[i], s[i].f32 ? DTYPE_F32 : half,
                                   f->max_rows, s[i].cols, e);
            }
            if (!own) {
                t[i] = tensor_rows(&shared[i], 0, f->max_rows);
            }
        }
    }
    return rc;
}

static int forward_open_as(struct weights *w, int max_rows, int keep, enum forward_recompute how,
                           int layers, struct forward **out, struct err *e)
{
    struct forward *f = mem_alloc(sizeof *f);
    const struct arch *a = &w->arch;
    enum dtype half = device_half(w->dev);
    int rc;

    forward_set(f, w, max_rows, keep, how, layers);
    f->layers = mem_alloc(sizeof *f->layers * (size_t)a->n_layers);
    for (int k = 0; k < ARCH_ATTN_KINDS; k++) {
        f->shape[k] = (struct attn_shape){.n_heads = a->n_heads,
                                          .n_kv_heads = a->n_kv_heads,
                                          .head_dim = a->head_dim,
                                          .scale = 1.0f / sqrtf(a->score_dim),
                                          .window = k == ARCH_ATTN_SLIDING ? a->window : 0,
                                          .softcap = a->attn_softcap,
                                          .rot = a->rot,
                                          .interleaved = a->interleaved};
    }
    rc = forward_tensors(f, e);
    if (rc == STATUS_OK) {
        rc = device_tensor(w->dev, &f->h_out, half, max_rows, a->hidden, e);
    }
    if (rc == STATUS_OK) {
        rc = device_tensor(w->dev, &f->hidden, half, max_rows, a->hidden, e);
    }
    if (rc == STATUS_OK) {
        rc = device_tensor(w->dev, &f->picked, half, max_rows, a->hidden, e);
    }
    if (rc == STATUS_OK) {
        rc = device_tensor(w->dev, &f->rstd_out, DTYPE_F32, max_rows, 1, e);
    }
    if (rc != STATUS_OK) {
        forward_close(f);
        return rc;
    }
    *out = f;
    return STATUS_OK;
}

int forward_open(struct weights *w, int max_rows, int keep, struct forward **out, struct err *e)
{
    return forward_open_as(w, max_rows, keep, FORWARD_KEEP_ALL, 0, out, e);
}

int forward_open_recompute(struct weights *w, int max_rows, enum forward_recompute how, int layers,
                           struct forward **out, struct err *e)
{
    return forward_open_as(w, max_rows, 1, how, layers, out, e);
}

void forward_close(struct forward *f)
{
    if (!f) {
        return;
    }
    for (int l = 0; l < f->w->arch.n_layers; l++) {
        struct tensor *t = &f->layers[l].h_in;
        for (int i = 0; i < FORWARD_TENSORS; i++) {
            device_tensor_free(&t[i]); /* a view is left alone */
        }
    }
    for (int i = 0; i < FORWARD_TENSORS; i++) {
        device_tensor_free(&f->shared.h_in + i);
    }
    device_tensor_free(&f->h_out);
    device_tensor_free(&f->hidden);
    device_tensor_free(&f->picked);
    device_tensor_free(&f->rstd_out);
    mem_free(f->layers);
    mem_free(f);
}

/* The first n rows of every tensor of a layer. */
static struct forward_layer forward_rows(const struct forward_layer *l, int n)
{
    struct forward_layer v = *l;
    struct tensor *t = &v.h_in;
    for (int i = 0; i < FORWARD_TENSORS; i++) {
        t[i].rows = n;
        t[i].size = 0;
    }
    return v;
}

static const struct tensor *vector_of(const struct param *p)
{
    return p ? &p->w16 : NULL;
}

struct norm forward_norm(const struct arch *a, const struct param *p)
{
    return (struct norm){p ? &p->w16 : NULL, a->rms_eps, a->norm_plus_one};
}

/* Rounded as the embeddings are: transformers keeps the factor in their type. */
float forward_embed_scale(const struct weights *w)
{
    float s = w->arch.embed_scale ? sqrtf((float)w->arch.hidden) : 1.0f;
    return w->dev->plan.f32 ? s : dtype_from_bf16(dtype_to_bf16(s));
}

/* y = residual + the layer's output x W^T, through a norm of its own when the model has one. */
static void forward_output(struct forward *f, const struct tensor *x, const struct linear *w,
                           const struct param *post, const struct tensor *residual,
                           struct tensor *out, struct tensor *rstd, struct tensor *y)
{
    struct device *d = f->w->dev;
    const struct norm norm = forward_norm(&f->w->arch, post);

    if (post) {
        d->ops->linear(d, x, &w->w->view, vector_of(w->bias), NULL, out);
        d->ops->rmsnorm(d, out, &norm, residual, y, rstd);
    } else {
        d->ops->linear(d, x, &w->w->view, vector_of(w->bias), residual, y);
    }
}

/* Layer i from its input on. next: where its output goes, NULL when nobody needs it. */
static void forward_layer_run(struct forward *f, int i, const struct rows *rows,
                              struct kv_store *kv, struct tensor *next)
{
    struct weights *w = f->w;
    struct device *d = w->dev;
    const struct device_ops *op = d->ops;
    const struct weights_layer *p = &w->layers[i];
    const struct norm n1 = forward_norm(&w->arch, p->attn_norm);
    const struct norm n2 = forward_norm(&w->arch, p->mlp_norm);
    const struct norm qn = forward_norm(&w->arch, p->q_norm);
    const struct norm kn = forward_norm(&w->arch, p->k_norm);
    const struct attn_shape *shape = &f->shape[w->arch.attn[i]];
    struct forward_layer l = forward_rows(&f->layers[i], rows->n);
    struct tensor spare = tensor_rows(&f->picked, 0, rows->n);

    op->rmsnorm(d, &l.h_in, &n1, NULL, &l.x1, &l.rstd1);
    op->linear(d, &l.x1, &p->qkv.w->view, vector_of(p->qkv.bias), NULL, &l.qkv);
    op->rope_kv(d, &l.qkv, p->q_norm ? &qn : NULL, p->k_norm ? &kn : NULL, &p->rope->cos,
                &p->rope->sin, shape, rows, kv, i, &l.q);
    op->attn(d, &l.q, kv, i, shape, rows, &l.attn, f->keep ? &l.lse : NULL);
    forward_output(f, &l.attn, &p->o, p->attn_post, &l.h_in, &l.attn_out, &l.rstd3, &l.h_mid);
    op->rmsnorm(d, &l.h_mid, &n2, NULL, &l.x2, &l.rstd2);
    op->linear(d, &l.x2, &p->gate_up.w->view, vector_of(p->gate_up.bias), NULL, &l.gu);
    op->glu(d, &l.gu, w->arch.act, &l.act);
    if (next || p->mlp_post) { /* a norm behind it needs the output itself */
        forward_output(f, &l.act, &p->down, p->mlp_post, &l.h_mid, &l.mlp_out, &l.rstd4,
                       next ? next : &spare);
    }
    if (!forward_own(f, i, FORWARD_ACT)) {
        f->in_shared = i;
    }
}

void forward_run(struct forward *f, const struct rows *rows, const int32_t *tokens,
                 struct kv_store *kv)
{
    struct weights *w = f->w;
    const struct device_ops *op = w->dev->ops;
    const struct norm final = forward_norm(&w->arch, w->final_norm);
    int n = rows->n;
    struct tensor in = tensor_rows(&f->layers[0].h_in, 0, n);
    struct tensor out = tensor_rows(&f->h_out, 0, n), last = tensor_rows(&f->hidden, 0, n);
    struct tensor rstd = tensor_rows(&f->rstd_out, 0, n);

    ASSERT(n <= f->max_rows);
    f->n = n;
    op->embed(w->dev, &w->embed->w16, tokens, forward_embed_scale(w), &in);
    for (int i = 0; i < w->arch.n_layers; i++) {
        int more = i + 1 < w->arch.n_layers;
        struct tensor next = more ? tensor_rows(&f->layers[i + 1].h_in, 0, n) : out;
        forward_layer_run(f, i, rows, kv, &next);
    }
    op->rmsnorm(w->dev, &out, &final, NULL, &last, &rstd);
}

struct forward_layer forward_again(struct forward *f, int i, const struct rows *rows,
                                   struct kv_store *kv)
{
    struct weights *w = f->w;
    const struct device_ops *op = w->dev->ops;
    struct forward_layer l = forward_rows(&f->layers[i], rows->n);

    ASSERT(f->keep && rows->n == f->n);
    if (f->in_shared == i || f->recompute == FORWARD_KEEP_ALL) {
        return l;
    }
    if (f->recompute == FORWARD_FULL && i < f->recompute_layers) {
        forward_layer_run(f, i, rows, kv, NULL);
    } else if (f->recompute == FORWARD_SELECTIVE) {
        const struct norm n1 = forward_norm(&w->arch, w->layers[i].attn_norm);
        const struct norm n2 = forward_norm(&w->arch, w->layers[i].mlp_norm);
        op->rmsnorm(w->dev, &l.h_in, &n1, NULL, &l.x1, &l.rstd1);
        op->rmsnorm(w->dev, &l.h_mid, &n2, NULL, &l.x2, &l.rstd2);
        op->glu(w->dev, &l.gu, w->arch.act, &l.act);
        f->in_shared = i;
    }
    return l;
}

void forward_logits(struct forward *f, const int32_t *idx, int n, struct tensor *logits)
{
    struct device *d = f->w->dev;
    struct tensor x = tensor_rows(&f->picked, 0, n), y = tensor_rows(logits, 0, n);
    const struct param *bias = f->w->lm_head.bias;
    ASSERT(n <= f->max_rows && n <= logits->rows);
    d->ops->gather(d, &f->hidden, idx, &x);
    d->ops->linear(d, &x, &f->w->lm_head.w->view, bias ? &bias->w16 : NULL, NULL, &y);
}

struct logit_spec forward_logit_spec(const struct arch *a, float temperature)
{
    return (struct logit_spec){temperature, a->final_softcap};
}
