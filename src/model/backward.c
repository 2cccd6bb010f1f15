/* Owns the reverse order of model/forward.c and the gradients' memory. Logits exist for logit_rows
 * rows at a time, whatever the number of tokens: log-probs and entropies are taken chunk by chunk,
 * and the backward pass computes a chunk's logits again from the row statistics (unless one chunk
 * held all). A chunk never cuts a leaf, so the sums are the same either way. */
#include "model/backward.h"

#include <string.h>

#include "base/mem.h"
#include "base/status.h"

struct backward_shape {
    size_t offset;
    enum dtype dtype;
    int64_t rows, cols;
};

#define BACKWARD_TENSORS 13
static void backward_shapes(const struct weights *w, int n, int logit_rows,
                            struct backward_shape *s)
{
    const struct arch *a = &w->arch;
    enum dtype half = device_half(w->dev);
    int64_t q = (int64_t)a->n_heads * a->head_dim, kv = (int64_t)a->n_kv_heads * a->head_dim;
    const struct backward_shape t[BACKWARD_TENSORS] = {
        {offsetof(struct backward, logits), DTYPE_F32, logit_rows, arch_outputs(a)},
        {offsetof(struct backward, dlogits), half, logit_rows, arch_outputs(a)},
        {offsetof(struct backward, dh), DTYPE_F32, n, a->hidden},
        {offsetof(struct backward, dy16), half, n, a->hidden},
        {offsetof(struct backward, dpick), half, n, a->hidden},
        {offsetof(struct backward, dx16), half, n, a->hidden},
        {offsetof(struct backward, dact), half, n, a->intermediate},
        {offsetof(struct backward, dgu), half, n, 2 * (int64_t)a->intermediate},
        {offsetof(struct backward, dattn), half, n, q},
        {offsetof(struct backward, dqkv), half, n, q + 2 * kv},
        {offsetof(struct backward, dq), DTYPE_F32, n, q},
        {offsetof(struct backward, dkv), DTYPE_F32, n, 2 * kv},
        {offsetof(struct backward, dout), DTYPE_F32, n, a->post_norms ? a->hidden : 0},
    };
    memcpy(s, t, sizeof t);
}

int64_t backward_bytes(const struct weights *w, int max_rows, int logit_rows)
{
    struct backward_shape s[BACKWARD_TENSORS];
    int64_t n = 0;
    backward_shapes(w, max_rows, logit_rows, s);
    for (int i = 0; i < BACKWARD_TENSORS; i++) {
        n += device_tensor_bytes(s[i].dtype, s[i].rows, s[i].cols);
    }
    return n + (int64_t)max_rows * 12;
}

int64_t backward_grad_bytes(const struct weights *w)
{
    int64_t n = 0;
    for (int i = 0; i < w->nparams; i++) {
        n += device_tensor_bytes(DTYPE_I64, w->params[i].rows, w->params[i].cols);
    }
    return n;
}

static struct tensor *backward_tensor(struct backward *b, const struct backward_shape *s)
{
    return (struct tensor *)((char *)b + s->offset);
}

int backward_open(struct forward *f, int logit_rows, struct backward **out, struct err *e)
{
    struct backward *b = mem_alloc(sizeof *b);
    struct weights *w = f->w;
    struct backward_shape s[BACKWARD_TENSORS];
    int rc = STATUS_OK;

    ASSERT(f->keep);
    b->f = f;
    b->logit_rows = logit_rows;
    b->grad = mem_alloc(sizeof *b->grad * (size_t)w->nparams);
    b->max = mem_alloc(sizeof(float) * (size_t)f->max_rows);
    b->logz = mem_alloc(sizeof(float) * (size_t)f->max_rows);
    b->ent = mem_alloc(sizeof(float) * (size_t)f->max_rows);
    b->chunk_leaf = mem_alloc(sizeof(int32_t) * ((size_t)f->max_rows + 1));
    backward_shapes(w, f->max_rows, logit_rows, s);
    for (int i = 0; rc == STATUS_OK && i < BACKWARD_TENSORS; i++) {
        if (s[i].cols) {
            rc = device_tensor(w->dev, backward_tensor(b, &s[i]), s[i].dtype, s[i].rows, s[i].cols,
                               e);
        }
    }
    for (int i = 0; rc == STATUS_OK && i < w->nparams; i++) {
        rc = device_tensor(w->dev, &b->grad[i], DTYPE_I64, w->params[i].rows, w->params[i].cols, e);
    }
    if (rc != STATUS_OK) {
        backward_close(b);
        return rc;
    }
    *out = b;
    return STATUS_OK;
}

void backward_close(struct backward *b)
{
    struct backward_shape s[BACKWARD_TENSORS];
    if (!b) {
        return;
    }
    backward_shapes(b->f->w, 0, 0, s);
    for (int i = 0; i < BACKWARD_TENSORS; i++) {
        device_tensor_free(backward_tensor(b, &s[i]));
    }
    for (int i = 0; i < b->f->w->nparams; i++) {
        device_tensor_free(&b->grad[i]);
    }
    mem_free(b->grad);
    mem_free(b->max);
    mem_free(b->logz);
    mem_free(b->ent);
    mem_free(b->chunk_leaf);
    mem_free(b);
}

void backward_zero(struct backward *b)
{
    const struct weights *w = b->f->w;
    for (int i = 0; i < w->nparams; i++) {
        const struct param *p = &w->params[i];
        /* linear_dw is the first to write the gradient of a product's weight */
        if (weights_packed(w, p)) {
            device_forget(&b->grad[i]);
        } else {
            device_zero(&b->grad[i]);
        }
    }
}

static struct tensor *grad_of(struct backward *b, const struct param *p)
{
    return p ? &b->grad[p - b->f->w->params] : NULL;
}

/* Logits and statistics of entries [from, from + n). */
static void backward_stats(struct forward *f, struct tensor *logits, const struct backward_req *r,
                           int from, int n, float *logp, float *max, float *logz, float *ent)
{
    struct device *d = f->w->dev;
    const struct logit_spec spec = forward_logit_spec(&f->w->arch, r->temperature);
    struct tensor x = tensor_rows(logits, 0, n);
    forward_logits(f, r->idx + from, n, &x);
    if (f->w->arch.value_head) {
        x.cols = 1;
        if (logp) {
            device_download_f32(&x, logp + from);
        }
        return;
    }
    d->ops->logp(d, &x, &spec, r->target + from, &f->w->vocab_leaves, logp ? logp + from : NULL,
                 max ? max + from : NULL, logz ? logz + from : NULL, ent ? ent + from : NULL);
}

/* Hands the rows of a chunk to the request's function. */
static void backward_rows(const struct forward *f, const struct tensor *logits,
                          const struct backward_req *r, int from, int n, const float *max,
                          const float *logz)
{
    float *copy = mem_alloc(sizeof *copy * (size_t)f->w->arch.vocab);
    for (int i = 0; i < n; i++) {
        struct tensor x = tensor_rows(logits, i, 1);
        device_download_f32(&x, copy);
        r->row(r->row_arg, from + i, copy, max[from + i], logz[from + i]);
    }
    mem_free(copy);
}

void backward_score(struct forward *f, struct tensor *logits, const struct backward_req *r)
{
    int cap = (int)logits->rows;
    float *max = r->row ? mem_alloc(sizeof *max * 2 * (size_t)(r->n + 1)) : NULL;
    float *logz = r->row ? max + r->n : NULL;

    for (int from = 0; from < r->n; from += cap) {
        int n = r->n - from < cap ? r->n - from : cap;
        backward_stats(f, logits, r, from, n, r->logp, max, logz, r->entropy);
        if (r->row) {
            backward_rows(f, logits, r, from, n, max, logz);
        }
    }
    mem_free(max);
}

void backward_logp(struct backward *b, const struct backward_req *r)
{
    int cap = b->logit_rows;
    b->kept = r->n <= cap;
    for (int from = 0; from < r->n; from += cap) {
        backward_stats(b->f, &b->logits, r, from, r->n - from < cap ? r->n - from : cap, r->logp,
                       b->max, b->logz, r->entropy ? b->ent : NULL);
    }
    if (r->entropy) {
        memcpy(r->entropy, b->ent, sizeof(float) * (size_t)r->n);
    }
}

/* Adds what r->row_loss makes of entries [from, from + n) to their dlogits. */
static void backward_row_losses(struct backward *b, const struct backward_req *r, int from, int n,
                                const struct tensor *logits, struct tensor *dlogits)
{
    int vocab = b->f->w->arch.vocab;
    size_t cols = (size_t)logits->cols;
    float *x = mem_alloc(3 * sizeof *x * cols), *d = x + cols, *sum = d + cols;

    ASSERT(b->f->w->arch.final_softcap == 0.0f);
    for (int i = 0; i < n; i++) {
        struct tensor lg = tensor_rows(logits, i, 1), dl = tensor_rows(dlogits, i, 1);
        device_download_f32(&lg, x);
        device_download_f32(&dl, sum);
        memset(d, 0, sizeof *d * cols);
        r->row_loss(r->row_loss_arg, from + i, vocab, x, d);
        for (int k = 0; k < vocab; k++) {
            sum[k] += d[k] / r->temperature;
        }
        device_upload_f32(&dl, sum);
    }
    mem_free(x);
}

/* The output layer: dlogits, the gradient of its rows (into dpick), its weight gradient. */
static void backward_output(struct backward *b, const struct backward_req *r)
{
    struct forward *f = b->f;
    struct device *d = f->w->dev;
    const struct device_ops *op = d->ops;
    const struct logit_spec spec = forward_logit_spec(&f->w->arch, r->temperature);
    int l = 0;

    while (l < r->nleaf) {
        int from = r->leaf[l], end = l + 1;
        int n;
        struct tensor x, dx, lg, dl;
        struct leaf_rows leaves;
        while (end < r->nleaf && r->leaf[end + 1] - from <= b->logit_rows) {
            end++;
        }
        n = r->leaf[end] - from;
        ASSERT(n <= b->logit_rows);
        lg = tensor_rows(&b->logits, b->kept ? from : 0, n);
        dl = tensor_rows(&b->dlogits, 0, n);
        x = tensor_rows(&f->picked, 0, n);
        dx = tensor_rows(&b->dpick, from, n);
        if (!b->kept) {
            backward_stats(f, &lg, r, from, n, NULL, NULL, NULL, NULL);
        } else {
            op->gather(d, &f->hidden, r->idx + from, &x);
        }
        if (f->w->arch.value_head) {
            struct tensor dv = dl; /* the other columns stay zero */
            dv.cols = 1;
            device_upload_f32(&dv, r->g + from);
        } else {
            op->logp_bwd(d, &lg, &spec, r->target + from, b->max + from, b->logz + from,
                         b->ent + from, r->g + from, r->ge ? r->ge + from : NULL, &dl);
            if (r->row_loss) {
                backward_row_losses(b, r, from, n, &lg, &dl);
            }
        }
        op->linear_dx(d, &dl, &f->w->lm_head.w->view, &dx);
        for (int i = l; i <= end; i++) {
            b->chunk_leaf[i - l] = r->leaf[i] - from;
        }
        leaves = (struct leaf_rows){end - l, b->chunk_leaf};
        op->linear_dw(d, &dl, &x, &leaves, grad_of(b, f->w->lm_head.w));
        if (f->w->lm_head.bias) {
            op->bias_dw(d, &dl, &leaves, grad_of(b, f->w->lm_head.bias));
        }
        l = end;
    }
    device_settle(grad_of(b, f->w->lm_head.w)); /* embed_bwd may add to it, with no leaf too */
}

/* dy = the gradient of a linear layer's output, from dh behind the residual and, when the model has
 * one, the norm of that output. Adds the gradients of that norm's weight and of the bias. */
static void backward_out(struct backward *b, const struct param *post, const struct param *bias,
                         const struct tensor *out, const struct tensor *rstd,
                         const struct leaf_rows *leaves, struct tensor *dy)
{
    struct device *d = b->f->w->dev;
    const struct norm norm = forward_norm(&b->f->w->arch, post);
    struct tensor dh = tensor_rows(&b->dh, 0, dy->rows);

    d->ops->convert(d, &dh, dy);
    if (post) {
        struct tensor dout = tensor_rows(&b->dout, 0, dy->rows);
        device_zero(&dout);
        d->ops->rmsnorm_bwd(d, dy, out, &norm, rstd, leaves, &dout, grad_of(b, post));
        d->ops->convert(d, &dout, dy);
    }
    if (bias) {
        d->ops->bias_dw(d, dy, leaves, grad_of(b, bias));
    }
}

static void backward_layer(struct backward *b, int i, const struct rows *rows, struct kv_store *kv,
                           const struct leaf_rows *leaves)
{
    struct forward *f = b->f;
    struct device *d = f->w->dev;
    const struct device_ops *op = d->ops;
    const struct weights_layer *p = &f->w->layers[i];
    struct forward_layer l = forward_again(f, i, rows, kv);
    const struct norm n1 = forward_norm(&f->w->arch, p->attn_norm);
    const struct norm n2 = forward_norm(&f->w->arch, p->mlp_norm);
    const struct norm qn = forward_norm(&f->w->arch, p->q_norm);
    const struct norm kn = forward_norm(&f->w->arch, p->k_norm);
    const struct attn_shape *shape = &f->shape[f->w->arch.attn[i]];
    int n = rows->n;
    struct tensor dh = tensor_rows(&b->dh, 0, n), dy = tensor_rows(&b->dy16, 0, n);
    struct tensor dx = tensor_rows(&b->dx16, 0, n), dact = tensor_rows(&b->dact, 0, n);
    struct tensor dgu = tensor_rows(&b->dgu, 0, n), dattn = tensor_rows(&b->dattn, 0, n);
    struct tensor dqkv = tensor_rows(&b->dqkv, 0, n), dq = tensor_rows(&b->dq, 0, n);
    struct tensor dkv = tensor_rows(&b->dkv, 0, n);

    /* mlp */
    backward_out(b, p->mlp_post, p->down.bias, &l.mlp_out, &l.rstd4, leaves, &dy);
    op->linear_dx(d, &dy, &p->down.w->view, &dact);
    op->linear_dw(d, &dy, &l.act, leaves, grad_of(b, p->down.w));
    op->glu_bwd(d, &dact, &l.gu, f->w->arch.act, &dgu);
    if (p->gate_up.bias) {
        op->bias_dw(d, &dgu, leaves, grad_of(b, p->gate_up.bias));
    }
    op->linear_dx(d, &dgu, &p->gate_up.w->view, &dx);
    op->linear_dw(d, &dgu, &l.x2, leaves, grad_of(b, p->gate_up.w));
    op->rmsnorm_bwd(d, &dx, &l.h_mid, &n2, &l.rstd2, leaves, &dh, grad_of(b, p->mlp_norm));
    /* attention */
    backward_out(b, p->attn_post, p->o.bias, &l.attn_out, &l.rstd3, leaves, &dy);
    op->linear_dx(d, &dy, &p->o.w->view, &dattn);
    op->linear_dw(d, &dy, &l.attn, leaves, grad_of(b, p->o.w));
    op->attn_bwd(d, &dattn, &l.q, &l.attn, &l.lse, kv, i, shape, rows, &dq, &dkv);
    op->rope_kv_bwd(d, &dq, &dkv, &l.qkv, p->q_norm ? &qn : NULL, p->k_norm ? &kn : NULL,
                    &p->rope->cos, &p->rope->sin, shape, rows, leaves, &dqkv, grad_of(b, p->q_norm),
                    grad_of(b, p->k_norm));
    op->linear_dx(d, &dqkv, &p->qkv.w->view, &dx);
    op->linear_dw(d, &dqkv, &l.x1, leaves, grad_of(b, p->qkv.w));
    if (p->qkv.bias) {
        op->bias_dw(d, &dqkv, leaves, grad_of(b, p->qkv.bias));
    }
    op->rmsnorm_bwd(d, &dx, &l.h_in, &n1, &l.rstd1, leaves, &dh, grad_of(b, p->attn_norm));
}

void backward_run(struct backward *b, const struct rows *rows, const int32_t *tokens,
                  struct kv_store *kv, const struct leaf_rows *leaves, const struct backward_req *r)
{
    struct forward *f = b->f;
    struct device *d = f->w->dev;
    const struct device_ops *op = d->ops;
    int n = rows->n;
    struct tensor dh = tensor_rows(&b->dh, 0, n), dy = tensor_rows(&b->dy16, 0, n);
    struct tensor picked = tensor_rows(&b->dpick, 0, r->n), out = tensor_rows(&f->h_out, 0, n);
    struct tensor rstd = tensor_rows(&f->rstd_out, 0, n);
    const struct norm last = forward_norm(&f->w->arch, f->w->final_norm);

    ASSERT(n == f->n);
    backward_output(b, r);
    op->scatter(d, &picked, r->idx, &dy);
    device_zero(&dh);
    op->rmsnorm_bwd(d, &dy, &out, &last, &rstd, leaves, &dh, grad_of(b, f->w->final_norm));
    for (int i = f->w->arch.n_layers - 1; i >= 0; i--) {
        backward_layer(b, i, rows, kv, leaves);
    }
    op->embed_bwd(d, &dh, tokens, forward_embed_scale(f->w), grad_of(b, f->w->embed));
}
