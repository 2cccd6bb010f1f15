/* Owns the parameters of a model: their layout, their packed views, their versions. The layout is
 * derived from struct arch alone, so every dense family passes through the same table. */
#include "model/weights.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "model/wfile.h"
#include "num/vmath.h"

int weights_default_leaves(const struct arch *a)
{
    int k = a->n_heads * a->head_dim;
    return plan_default_leaves(k < a->intermediate ? k : a->intermediate);
}

/* Next free parameter. */
static struct param *weights_add(struct weights *w, enum weights_kind kind, int rows, int cols)
{
    struct param *p = &w->params[w->nparams++];
    p->kind = kind;
    p->rows = rows;
    p->cols = cols;
    p->decay = kind != WEIGHTS_VECTOR;
    return p;
}

static void weights_part_add(struct param *p, int rows, const char *name)
{
    struct weights_part *t = &p->part[p->nparts];
    t->row0 = p->nparts ? p->part[p->nparts - 1].row0 + p->part[p->nparts - 1].rows : 0;
    t->rows = rows;
    snprintf(t->name, sizeof t->name, "%s", name);
    p->nparts++;
}

static void weights_layer_part(struct param *p, int rows, int layer, const char *name)
{
    char full[96];
    snprintf(full, sizeof full, "model.layers.%d.%s", layer, name);
    weights_part_add(p, rows, full);
}

static struct param *weights_vector(struct weights *w, int layer, const char *name, int n)
{
    struct param *p = weights_add(w, WEIGHTS_VECTOR, 1, n);
    weights_layer_part(p, 1, layer, name);
    return p;
}

/* A bias is a vector made of the same pieces as its matrix: its parts are column ranges. */
static struct param *weights_bias(struct weights *w, int layer, const char *const *names,
                                  const int *len, int n)
{
    struct param *p = weights_add(w, WEIGHTS_VECTOR, 1, 0);
    for (int i = 0; i < n; i++) {
        weights_layer_part(p, len[i], layer, names[i]);
        p->cols += len[i];
    }
    return p;
}

static void weights_layout(struct weights *w)
{
    const struct arch *a = &w->arch;
    int q = a->n_heads * a->head_dim, kv = a->n_kv_heads * a->head_dim, h = a->hidden;
    static const char *const bias[] = {"self_attn.q_proj.bias", "self_attn.k_proj.bias",
                                       "self_attn.v_proj.bias"};
    const int len[] = {q, kv, kv};

    w->embed = weights_add(w, WEIGHTS_EMBED, a->vocab, h);
    weights_part_add(w->embed, a->vocab, "model.embed_tokens.weight");
    for (int i = 0; i < a->n_layers; i++) {
        struct weights_layer *l = &w->layers[i];
        l->attn_norm = weights_vector(w, i, "input_layernorm.weight", h);
        l->qkv.w = weights_add(w, WEIGHTS_LINEAR, q + 2 * kv, h);
        weights_layer_part(l->qkv.w, q, i, "self_attn.q_proj.weight");
        weights_layer_part(l->qkv.w, kv, i, "self_attn.k_proj.weight");
        weights_layer_part(l->qkv.w, kv, i, "self_attn.v_proj.weight");
        if (a->qkv_bias) {
            l->qkv.bias = weights_bias(w, i, bias, len, 3);
        }
        if (a->qk_norm) {
            l->q_norm = weights_vector(w, i, "self_attn.q_norm.weight", a->head_dim);
            l->k_norm = weights_vector(w, i, "self_attn.k_norm.weight", a->head_dim);
        }
        l->o.w = weights_add(w, WEIGHTS_LINEAR, h, q);
        weights_layer_part(l->o.w, h, i, "self_attn.o_proj.weight");
        l->mlp_norm = weights_vector(w, i, "post_attention_layernorm.weight", h);
        l->gate_up.w = weights_add(w, WEIGHTS_LINEAR, 2 * a->intermediate, h);
        weights_layer_part(l->gate_up.w, a->intermediate, i, "mlp.gate_proj.weight");
        weights_layer_part(l->gate_up.w, a->intermediate, i, "mlp.up_proj.weight");
        l->down.w = weights_add(w, WEIGHTS_LINEAR, h, a->intermediate);
        weights_layer_part(l->down.w, h, i, "mlp.down_proj.weight");
    }
    w->final_norm = weights_add(w, WEIGHTS_VECTOR, 1, h);
    weights_part_add(w->final_norm, 1, "model.norm.weight");
    w->lm_head.w = w->embed;
    if (!a->tie_embeddings) {
        w->lm_head.w = weights_add(w, WEIGHTS_LINEAR, a->vocab, h);
        weights_part_add(w->lm_head.w, a->vocab, "lm_head.weight");
    }
}

/* The leaves of each contraction that tensor parallelism may split (contract C1). */
static void weights_leaves(struct weights *w)
{
    const struct arch *a = &w->arch;
    int r = w->dev->plan.leaves, d = a->head_dim, inter = a->intermediate;
    int q = a->n_heads * d, kv = a->n_kv_heads * d, blocks = (inter + 31) / 32;

    memset(&w->vocab_leaves, 0, sizeof w->vocab_leaves);
    plan_leafset_add(&w->vocab_leaves, r, (a->vocab + 31) / 32, 32, 0, a->vocab);
    w->lm_head.w->view.nleaf = w->vocab_leaves;
    for (int i = 0; i < a->n_layers; i++) {
        struct weights_layer *l = &w->layers[i];
        struct leafset *s = &l->qkv.w->view.nleaf;
        memset(s, 0, sizeof *s);
        plan_leafset_add(s, r, a->n_heads, d, 0, q);
        plan_leafset_add(s, r, a->n_kv_heads, d, q, q + kv);
        plan_leafset_add(s, r, a->n_kv_heads, d, q + kv, q + 2 * kv);
        plan_leafset_sort(s);
        s = &l->gate_up.w->view.nleaf;
        memset(s, 0, sizeof *s);
        plan_leafset_add(s, r, blocks, 32, 0, inter);
        plan_leafset_add(s, r, blocks, 32, inter, 2 * inter);
        plan_leafset_sort(s);
        s = &l->o.w->view.kleaf;
        memset(s, 0, sizeof *s);
        plan_leafset_add(s, r, a->n_heads, d, 0, q);
        s = &l->down.w->view.kleaf;
        memset(s, 0, sizeof *s);
        plan_leafset_add(s, r, blocks, 32, 0, inter);
    }
}

/* cos and sin of position times frequency; the frequency and the angle are rounded to f32 as the
 * reference implementations do. */
static int weights_rope(struct weights *w, int positions, struct err *e)
{
    const struct arch *a = &w->arch;
    int half = a->head_dim / 2;
    int rc = device_tensor(w->dev, &w->rope_cos, DTYPE_F32, positions, half, e);
    float *c, *s;

    if (rc == STATUS_OK) {
        rc = device_tensor(w->dev, &w->rope_sin, DTYPE_F32, positions, half, e);
    }
    if (rc != STATUS_OK) {
        return rc;
    }
    c = mem_alloc(sizeof(float) * (size_t)positions * (size_t)half);
    s = mem_alloc(sizeof(float) * (size_t)positions * (size_t)half);
    for (int i = 0; i < half; i++) {
        float f = (float)vmath_exp(-vmath_log(a->rope_theta) * 2.0 * i / a->head_dim);
        for (int p = 0; p < positions; p++) {
            double sn, cs;
            vmath_sincos((double)((float)p * f), &sn, &cs);
            c[(size_t)p * (size_t)half + (size_t)i] = (float)cs;
            s[(size_t)p * (size_t)half + (size_t)i] = (float)sn;
        }
    }
    device_upload_f32(&w->rope_cos, c);
    device_upload_f32(&w->rope_sin, s);
    mem_free(c);
    mem_free(s);
    return STATUS_OK;
}

/* A part's rows of w16: a matrix part is a range of rows, a vector part a range of columns. */
static struct tensor weights_part_view(const struct param *p, const struct weights_part *t)
{
    struct tensor v;
    if (p->kind != WEIGHTS_VECTOR) {
        return tensor_rows(&p->w16, t->row0, t->rows);
    }
    v = p->w16;
    if (p->nparts > 1) {
        v.data = (char *)v.data + (size_t)t->row0 * dtype_size(v.dtype);
        v.cols = t->rows;
    }
    v.size = 0;
    return v;
}

static int weights_load(struct weights *w, weights_read_fn *read, void *arg, struct param *p,
                        void *buf, struct err *e)
{
    int rc = device_tensor(w->dev, &p->w16, device_half(w->dev), p->rows, p->cols, e);
    for (int i = 0; rc == STATUS_OK && i < p->nparts; i++) {
        struct tensor v = weights_part_view(p, &p->part[i]);
        rc = read(arg, p->part[i].name, buf, v.rows * v.cols, e);
        if (rc == STATUS_OK) {
            device_upload_bf16(&v, buf);
        }
    }
    return rc;
}

static int weights_check(const struct arch *a, struct err *e)
{
    if (a->head_dim % 32 != 0 || a->head_dim > 512) {
        return ERR(e, STATUS_UNSUPPORTED, "head_dim %d: a multiple of 32 up to 512 is needed",
                   a->head_dim);
    }
    if (a->hidden % 32 != 0 || a->intermediate % 32 != 0) {
        return ERR(e, STATUS_UNSUPPORTED,
                   "hidden size %d and intermediate size %d must be multiples of 32", a->hidden,
                   a->intermediate);
    }
    if (a->n_heads % a->n_kv_heads != 0) {
        return ERR(e, STATUS_FORMAT, "%d query heads cannot share %d kv heads evenly", a->n_heads,
                   a->n_kv_heads);
    }
    return STATUS_OK;
}

static int weights_read_file(void *arg, const char *name, uint16_t *dst, int64_t count,
                             struct err *e)
{
    return wfile_read_bf16(arg, name, dst, count, e);
}

int weights_open(const struct wfile *f, struct device *dev, int trainable, int positions,
                 struct weights **out, struct err *e)
{
    return weights_build(wfile_arch(f), weights_read_file, (void *)f, dev, trainable, positions,
                         out, e);
}

int weights_build(const struct arch *a, weights_read_fn *read, void *arg, struct device *dev,
                  int trainable, int positions, struct weights **out, struct err *e)
{
    struct weights *w;
    int64_t largest = 0;
    void *buf = NULL;
    int rc = weights_check(a, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    w = mem_alloc(sizeof *w);
    w->arch = *a;
    w->dev = dev;
    w->trainable = trainable;
    w->refs = 1;
    w->params = mem_alloc(sizeof *w->params * (size_t)(a->n_layers * 10 + 4));
    w->layers = mem_alloc(sizeof *w->layers * (size_t)a->n_layers);
    weights_layout(w);
    for (int i = 0; i < w->nparams; i++) {
        int64_t n = (int64_t)w->params[i].rows * w->params[i].cols;
        largest = n > largest ? n : largest;
    }
    buf = mem_map((size_t)largest * 2);
    if (!buf) {
        rc = ERR(e, STATUS_NOMEM, "no memory to read the weights");
        goto out;
    }
    for (int i = 0; i < w->nparams; i++) {
        struct param *p = &w->params[i];
        rc = weights_load(w, read, arg, p, buf, e);
        if (rc == STATUS_OK && (p->kind == WEIGHTS_LINEAR || p == w->lm_head.w)) {
            rc = device_wview(dev, &p->view, p->rows, p->cols, trainable, e);
        }
        if (rc != STATUS_OK) {
            goto out;
        }
        if (p->view.fwd) {
            dev->ops->pack(dev, &p->w16, &p->view);
            if (!trainable && p->kind == WEIGHTS_LINEAR) {
                device_tensor_free(&p->w16);
            }
        }
    }
    weights_leaves(w);
    rc = weights_rope(w, positions > 0 ? positions : a->max_positions, e);
out:
    mem_unmap(buf, (size_t)largest * 2);
    if (rc != STATUS_OK) {
        weights_release(w);
        return rc;
    }
    *out = w;
    return STATUS_OK;
}

struct weights *weights_acquire(struct weights *w)
{
    w->refs++;
    return w;
}

void weights_release(struct weights *w)
{
    if (!w || --w->refs > 0) {
        return;
    }
    for (int i = 0; i < w->nparams; i++) {
        device_tensor_free(&w->params[i].w16);
        device_wview_free(&w->params[i].view);
    }
    device_tensor_free(&w->rope_cos);
    device_tensor_free(&w->rope_sin);
    mem_free(w->params);
    mem_free(w->layers);
    mem_free(w);
}

int weights_publish(struct weights *w, struct err *e)
{
    if (w->refs != 1) {
        return ERR(e, STATUS_FAIL, "weights version %lld are still held by %d readers",
                   (long long)w->version, w->refs - 1);
    }
    for (int i = 0; i < w->nparams; i++) {
        struct param *p = &w->params[i];
        if (p->view.fwd) {
            w->dev->ops->pack(w->dev, &p->w16, &p->view);
        }
    }
    w->version++;
    return STATUS_OK;
}

struct param *weights_find(struct weights *w, const char *name, int *row0, int *rows)
{
    for (int i = 0; i < w->nparams; i++) {
        for (int j = 0; j < w->params[i].nparts; j++) {
            const struct weights_part *t = &w->params[i].part[j];
            if (strcmp(t->name, name) == 0) {
                *row0 = t->row0;
                *rows = t->rows;
                return &w->params[i];
            }
        }
    }
    return NULL;
}

int weights_read_bf16(struct weights *w, const char *name, uint16_t *dst, int64_t count,
                      struct err *e)
{
    int row0, rows;
    struct param *p = weights_find(w, name, &row0, &rows);
    struct weights_part t;
    struct tensor v;

    if (!p || !p->w16.data) {
        /* a tied output layer is stored by some models beside the embedding */
        if (strcmp(name, "lm_head.weight") == 0 && w->arch.tie_embeddings && w->embed->w16.data) {
            return weights_read_bf16(w, "model.embed_tokens.weight", dst, count, e);
        }
        return ERR(e, STATUS_NOTFOUND, "the model in memory has no tensor %s", name);
    }
    t.row0 = row0;
    t.rows = rows;
    v = weights_part_view(p, &t);
    if (v.rows * v.cols != count || v.dtype != DTYPE_BF16) {
        return ERR(e, STATUS_FORMAT, "tensor %s has %lld values, %lld were asked for", name,
                   (long long)(v.rows * v.cols), (long long)count);
    }
    if (!device_host_row(&v, 0)) { /* a device that only hands out f32: bf16 passes unchanged */
        float *all = mem_map((size_t)count * 4);
        if (!all) {
            return ERR(e, STATUS_NOMEM, "no memory for a copy of tensor %s", name);
        }
        device_download_f32(&v, all);
        for (int64_t i = 0; i < count; i++) {
            dst[i] = dtype_to_bf16(all[i]);
        }
        mem_unmap(all, (size_t)count * 4);
        return STATUS_OK;
    }
    for (int64_t r = 0; r < v.rows; r++) {
        memcpy(dst + r * v.cols, device_host_row(&v, r), (size_t)v.cols * 2);
    }
    return STATUS_OK;
}

int64_t weights_count(const struct weights *w)
{
    int64_t n = 0;
    for (int i = 0; i < w->nparams; i++) {
        n += (int64_t)w->params[i].rows * w->params[i].cols;
    }
    return n;
}
