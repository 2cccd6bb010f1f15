/* Owns the parameters of a model: their layout, their packed views, their versions. The layout is
 * derived from struct arch alone, so every family passes through the same code. */
#include "model/weights.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "model/ropes.h"
#include "model/weights_int.h"
#include "model/wfile.h"
#include "model/wshare.h"
#include "num/exact.h"
#include "num/vmath.h"

#define WEIGHTS_PER_LAYER 14 /* parameters of a layer with everything */

int weights_default_leaves(const struct arch *a)
{
    int k = a->n_heads * a->head_dim;
    return plan_default_leaves(k < a->intermediate ? k : a->intermediate);
}

int weights_positions(const struct arch *a, int64_t context)
{
    int stretches = a->rope[ARCH_ATTN_FULL].kind == ARCH_ROPE_DYNAMIC;
    return stretches && context > a->max_positions && context <= INT_MAX ? (int)context
                                                                         : a->max_positions;
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

/* The tensors of one layer, by role. */
struct weights_names {
    struct weights *w;
    int layer;
    struct arch_tensor t[ARCH_ROLES];
};

static void weights_role_part(const struct weights_names *n, struct param *p, enum arch_role role)
{
    char full[96];
    snprintf(full, sizeof full, "%slayers.%d.%s", n->w->arch.prefix, n->layer, n->t[role].tail);
    weights_part_add(p, n->t[role].rows, full);
}

/* A matrix of one tensor or several over the same inputs; a role the model lacks is passed over. */
static struct param *weights_matrix(const struct weights_names *n, const enum arch_role *roles,
                                    int count)
{
    struct param *p = weights_add(n->w, WEIGHTS_LINEAR, 0, 0);
    for (int i = 0; i < count; i++) {
        if (n->t[roles[i]].tail) {
            weights_role_part(n, p, roles[i]);
            p->rows += n->t[roles[i]].rows;
            p->cols = n->t[roles[i]].cols;
        }
    }
    return p;
}

/* The same of vectors: a bias made of the pieces of its matrix, whose parts are column ranges. NULL
 * when the model has none. */
static struct param *weights_vector(const struct weights_names *n, const enum arch_role *roles,
                                    int count)
{
    struct param *p;
    if (!n->t[roles[0]].tail) {
        return NULL;
    }
    p = weights_add(n->w, WEIGHTS_VECTOR, 1, 0);
    for (int i = 0; i < count; i++) {
        weights_role_part(n, p, roles[i]);
        p->cols += n->t[roles[i]].rows;
    }
    return p;
}

static struct param *weights_norm(const struct weights_names *n, enum arch_role role)
{
    return weights_vector(n, &role, 1);
}

static void weights_layout_layer(struct weights *w, int i)
{
    static const enum arch_role qkv[] = {ARCH_Q, ARCH_K, ARCH_V}, o[] = {ARCH_O},
                                gate_up[] = {ARCH_GATE, ARCH_UP, ARCH_GATE_UP},
                                down[] = {ARCH_DOWN};
    static const enum arch_role qkv_bias[] = {ARCH_Q_BIAS, ARCH_K_BIAS, ARCH_V_BIAS},
                                o_bias[] = {ARCH_O_BIAS},
                                gate_up_bias[] = {ARCH_GATE_BIAS, ARCH_UP_BIAS},
                                down_bias[] = {ARCH_DOWN_BIAS};
    struct weights_layer *l = &w->layers[i];
    struct weights_names n = {.w = w, .layer = i};

    arch_layer_tensors(&w->arch, n.t);
    l->attn_norm = weights_norm(&n, ARCH_ATTN_NORM);
    l->qkv.w = weights_matrix(&n, qkv, 3);
    l->qkv.bias = weights_vector(&n, qkv_bias, 3);
    l->q_norm = weights_norm(&n, ARCH_Q_NORM);
    l->k_norm = weights_norm(&n, ARCH_K_NORM);
    l->o.w = weights_matrix(&n, o, 1);
    l->o.bias = weights_vector(&n, o_bias, 1);
    l->attn_post = weights_norm(&n, ARCH_ATTN_POST);
    l->mlp_norm = weights_norm(&n, ARCH_MLP_NORM);
    l->gate_up.w = weights_matrix(&n, gate_up, 3);
    l->gate_up.bias = weights_vector(&n, gate_up_bias, 2);
    l->down.w = weights_matrix(&n, down, 1);
    l->down.bias = weights_vector(&n, down_bias, 1);
    l->mlp_post = weights_norm(&n, ARCH_MLP_POST);
}

static void weights_layout(struct weights *w)
{
    const struct arch *a = &w->arch;
    char name[96];

    w->embed = weights_add(w, WEIGHTS_EMBED, a->vocab, a->hidden);
    snprintf(name, sizeof name, "%sembed_tokens.weight", a->prefix);
    weights_part_add(w->embed, a->vocab, name);
    for (int i = 0; i < a->n_layers; i++) {
        weights_layout_layer(w, i);
    }
    w->final_norm = weights_add(w, WEIGHTS_VECTOR, 1, a->hidden);
    snprintf(name, sizeof name, "%snorm.weight", a->prefix);
    weights_part_add(w->final_norm, a->hidden, name);
    w->lm_head.w = w->embed;
    if (a->value_head) {
        w->lm_head.w = weights_add(w, WEIGHTS_LINEAR, ARCH_VALUE_ROWS, a->hidden);
        weights_part_add(w->lm_head.w, 1, "score.weight");
        w->lm_head.bias = weights_add(w, WEIGHTS_VECTOR, 1, ARCH_VALUE_ROWS);
        weights_part_add(w->lm_head.bias, 1, "score.bias");
    } else if (!a->tie_embeddings) {
        w->lm_head.w = weights_add(w, WEIGHTS_LINEAR, a->vocab, a->hidden);
        weights_part_add(w->lm_head.w, a->vocab, a->head);
    }
}

/* The leaves of each contraction that tensor parallelism may split (contract C1). */
void weights_leaves(struct weights *w)
{
    const struct arch *a = &w->arch;
    int r = w->dev->plan.leaves, d = a->head_dim, inter = a->intermediate;
    int q = a->n_heads * d, kv = a->n_kv_heads * d, blocks = (inter + 31) / 32;

    memset(&w->vocab_leaves, 0, sizeof w->vocab_leaves);
    plan_leafset_add(&w->vocab_leaves, r, (arch_outputs(a) + 31) / 32, 32, 0, arch_outputs(a));
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

/* What stays as long as the weights do is made in the image, where there is one. Both processes
 * that read an image ask for the same in the same order, and so find the same places. */
static int weights_tensor(struct weights *w, struct tensor *t, enum dtype dtype, int64_t rows,
                          int64_t cols, struct err *e)
{
    int rc;

    w->dev->region = w->share ? wshare_region(w->share) : NULL;
    rc = device_tensor(w->dev, t, dtype, rows, cols, e);
    w->dev->region = NULL;
    return rc;
}

static int weights_view(struct weights *w, struct param *p, struct err *e)
{
    int rc;

    w->dev->region = w->share ? wshare_region(w->share) : NULL;
    rc = device_wview(w->dev, &p->view, p->rows, p->cols, w->transposes, e);
    w->dev->region = NULL;
    return rc;
}

static int weights_rope_table(struct weights *w, enum arch_attn kind, struct err *e)
{
    const struct arch *a = &w->arch;
    struct weights_rope *t = &w->rope[kind];
    size_t n = (size_t)w->positions * (size_t)(a->rot / 2);
    int rc = weights_tensor(w, &t->cos, DTYPE_F32, w->positions, a->rot / 2, e);
    float *c, *s;

    if (rc == STATUS_OK) {
        rc = weights_tensor(w, &t->sin, DTYPE_F32, w->positions, a->rot / 2, e);
    }
    if (rc != STATUS_OK || w->attached) {
        return rc;
    }
    c = mem_alloc(sizeof(float) * n);
    s = mem_alloc(sizeof(float) * n);
    ropes_tables(&a->rope[kind], a->rot, w->positions, w->positions, c, s);
    device_upload_f32(&t->cos, c);
    device_upload_f32(&t->sin, s);
    mem_free(c);
    mem_free(s);
    return STATUS_OK;
}

/* Pairs of rope tables: equal ropes share theirs. */
int weights_rope_count(const struct weights *w)
{
    const struct arch_rope *r = w->arch.rope;
    return memcmp(&r[ARCH_ATTN_FULL], &r[ARCH_ATTN_SLIDING], sizeof *r) == 0 ? 1 : 2;
}

/* One pair of tables for each rope that layers use. */
int weights_ropes(struct weights *w, struct err *e)
{
    const struct arch *a = &w->arch;
    int one = weights_rope_count(w) == 1;
    int rc = weights_rope_table(w, ARCH_ATTN_FULL, e);

    if (rc == STATUS_OK && !one) {
        rc = weights_rope_table(w, ARCH_ATTN_SLIDING, e);
    }
    for (int i = 0; i < a->n_layers; i++) {
        w->layers[i].rope = &w->rope[one ? ARCH_ATTN_FULL : a->attn[i]];
    }
    return rc;
}

/* A part's rows of w16: a matrix part is a range of rows, a vector part a range of columns. */
static struct tensor weights_part_view(const struct param *p, const struct weights_part *t)
{
    struct tensor v;
    if (p->kind != WEIGHTS_VECTOR) {
        return tensor_rows(&p->w16, t->row0, t->rows);
    }
    v = p->w16;
    if (t->rows < p->cols) {
        v.data = (char *)v.data + (size_t)t->row0 * dtype_size(v.dtype);
        v.cols = t->rows;
    }
    v.size = 0;
    return v;
}

/* Values into w16, which is made here when the parameter keeps no plain rows. */
static int weights_load(struct weights *w, weights_read_fn *read, void *arg, struct param *p,
                        void *buf, struct err *e)
{
    int rc = p->w16.data ? STATUS_OK
                         : device_tensor(w->dev, &p->w16, device_half(w->dev), p->rows, p->cols, e);
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

int weights_packed(const struct weights *w, const struct param *p)
{
    return p->kind == WEIGHTS_LINEAR || p == w->lm_head.w;
}

/* 1: the plain rows are needed beside the view: for lookups, or because the device cannot take them
 * out of the view again. */
static int weights_plain(const struct weights *w, const struct param *p)
{
    return p->kind != WEIGHTS_LINEAR || (w->trainable && !(w->dev->caps & DEVICE_SPLIT_STATE));
}

/* The memory that a parameter keeps. */
int weights_place(struct weights *w, struct param *p, struct err *e)
{
    int rc = STATUS_OK;

    if (weights_plain(w, p)) {
        rc = weights_tensor(w, &p->w16, device_half(w->dev), p->rows, p->cols, e);
    }
    if (rc == STATUS_OK && weights_packed(w, p)) {
        rc = weights_view(w, p, e);
    }
    return rc;
}

/* Packs the plain rows and lets go of those that are not kept. */
static void weights_pack(struct weights *w, struct param *p)
{
    if (p->view.fwd) {
        w->dev->ops->pack(w->dev, &p->w16, &p->view);
    }
    if (!weights_plain(w, p)) {
        device_tensor_free(&p->w16);
    }
}

int weights_shape(const struct arch *a, struct device *dev, int use, struct weights **out,
                  struct err *e)
{
    struct weights *w;
    int rc = weights_check(a, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    w = mem_alloc(sizeof *w);
    w->arch = *a;
    w->dev = dev;
    w->trainable = (use & WEIGHTS_TRAIN) != 0;
    w->transposes = w->trainable && !(use & WEIGHTS_NO_TRANSPOSES);
    w->refs = 1;
    w->positions = a->max_positions;
    w->params = mem_alloc(sizeof *w->params * (size_t)(a->n_layers * WEIGHTS_PER_LAYER + 4));
    w->layers = mem_alloc(sizeof *w->layers * (size_t)a->n_layers);
    weights_layout(w);
    *out = w;
    return STATUS_OK;
}

int64_t weights_bytes(const struct weights *w, int positions)
{
    int64_t rows = positions > 0 ? positions : w->arch.max_positions;
    int64_t n = device_tensor_bytes(DTYPE_F32, rows, w->arch.rot / 2) * 2 * weights_rope_count(w);
    for (int i = 0; i < w->nparams; i++) {
        const struct param *p = &w->params[i];
        if (weights_packed(w, p)) {
            n += device_wview_bytes(w->dev, p->rows, p->cols, w->transposes);
        }
        if (weights_plain(w, p)) {
            n += device_tensor_bytes(device_half(w->dev), p->rows, p->cols);
        }
    }
    return n;
}

static int weights_read_file(void *arg, const char *name, uint16_t *dst, int64_t count,
                             struct err *e)
{
    return wfile_read_bf16(arg, name, dst, count, e);
}

int weights_open(const struct wfile *f, struct device *dev, int use, int positions,
                 struct weights **out, struct err *e)
{
    return weights_build(wfile_arch(f), weights_read_file, (void *)f, dev, use, positions, out, e);
}

struct weights_critic {
    const struct wfile *f;
    uint64_t seed;
};

/* Normal values from pairs of uniform ones (Box and Muller). */
static void weights_draw(uint64_t seed, uint16_t *dst, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        double u = rng_uniform(seed, RNG_INIT, (uint64_t)i, 0, 0), s, c;
        double v = rng_uniform(seed, RNG_INIT, (uint64_t)i, 0, 1);
        double r2 = -2.0 * vmath_log(1.0 - u);
        vmath_sincos(6.283185307179586 * v, &s, &c);
        dst[i] = dtype_to_bf16((float)(0.02 * exact_sqrt(r2) * c));
    }
}

static int weights_read_critic(void *arg, const char *name, uint16_t *dst, int64_t count,
                               struct err *e)
{
    const struct weights_critic *c = arg;
    if (strncmp(name, "score.", 6) != 0 || wfile_find(c->f, name)) {
        return wfile_read_bf16(c->f, name, dst, count, e);
    }
    memset(dst, 0, sizeof *dst * (size_t)count);
    if (strcmp(name, "score.weight") == 0) {
        weights_draw(c->seed, dst, count);
    }
    return STATUS_OK;
}

int weights_open_critic(const struct wfile *f, struct device *dev, int use, int positions,
                        uint64_t seed, struct weights **out, struct err *e)
{
    struct weights_critic c = {f, seed};
    struct arch a = *wfile_arch(f);
    a.value_head = 1;
    return weights_build(&a, weights_read_critic, &c, dev, use, positions, out, e);
}

/* Bytes of the largest parameter in bf16. */
static size_t weights_largest(const struct weights *w)
{
    size_t largest = 0;
    for (int i = 0; i < w->nparams; i++) {
        size_t n = (size_t)w->params[i].rows * (size_t)w->params[i].cols * 2;
        largest = n > largest ? n : largest;
    }
    return largest;
}

static int weights_fill(struct weights *w, weights_read_fn *read, void *arg, struct err *e)
{
    size_t largest = weights_largest(w);
    void *buf = mem_map(largest);
    int rc = buf ? STATUS_OK : ERR(e, STATUS_NOMEM, "no memory to read the weights");

    for (int i = 0; i < w->nparams && rc == STATUS_OK; i++) {
        struct param *p = &w->params[i];
        rc = weights_place(w, p, e);
        if (rc == STATUS_OK) {
            rc = weights_load(w, read, arg, p, buf, e);
        }
        if (rc == STATUS_OK) {
            weights_pack(w, p);
        }
    }
    mem_unmap(buf, largest);
    return rc;
}

int weights_build(const struct arch *a, weights_read_fn *read, void *arg, struct device *dev,
                  int use, int positions, struct weights **out, struct err *e)
{
    struct weights *w;
    int rc = weights_shape(a, dev, use, &w, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    w->positions = positions > 0 ? positions : a->max_positions;
    if (use & WEIGHTS_SHARED) {
        rc = weights_image_make(w, e);
    }
    if (rc == STATUS_OK) {
        rc = weights_fill(w, read, arg, e);
    }
    if (rc == STATUS_OK) {
        weights_leaves(w);
        rc = weights_ropes(w, e);
    }
    if (rc != STATUS_OK) {
        weights_release(w);
        return rc;
    }
    if (w->share) {
        weights_image_ready(w, use);
    }
    *out = w;
    return STATUS_OK;
}

static int weights_alone(const struct weights *w, struct err *e)
{
    ASSERT(!w->trainable);
    if (w->share) {
        return ERR(e, STATUS_UNSUPPORTED,
                   "the weights are those of the run that started this program: it alone changes "
                   "them");
    }
    if (w->refs != 1) {
        return ERR(e, STATUS_FAIL, "weights version %lld are still held by %d readers",
                   (long long)w->version, w->refs - 1);
    }
    return STATUS_OK;
}

int weights_drop(struct weights *w, struct err *e)
{
    int rc = weights_alone(w, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    for (int i = 0; i < w->nparams; i++) {
        struct param *p = &w->params[i];
        device_tensor_free(&p->w16);
        memset(&p->w16, 0, sizeof p->w16);
        device_wview_free(&p->view);
        memset(&p->view, 0, sizeof p->view);
    }
    w->version++;
    w->dropped = 1;
    return STATUS_OK;
}

int weights_reload(struct weights *w, weights_read_fn *read, void *arg, struct err *e)
{
    void *buf;
    int rc = weights_alone(w, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    buf = mem_map(weights_largest(w));
    if (!buf) {
        return ERR(e, STATUS_NOMEM, "no memory to read the weights");
    }
    w->version++;
    for (int i = 0; rc == STATUS_OK && i < w->nparams; i++) {
        struct param *p = &w->params[i];
        device_tensor_free(&p->w16);
        memset(&p->w16, 0, sizeof p->w16);
        rc = weights_load(w, read, arg, p, buf, e);
        if (rc == STATUS_OK && w->dropped && weights_packed(w, p)) {
            rc = weights_view(w, p, e);
        }
        if (rc == STATUS_OK) {
            weights_pack(w, p);
        }
    }
    mem_unmap(buf, weights_largest(w));
    if (rc == STATUS_OK && w->dropped) {
        weights_leaves(w); /* they are part of the views */
        w->dropped = 0;
    }
    return rc;
}

int64_t weights_part_count(const struct param *p, int part)
{
    int rows = p->part[part].rows;
    return p->kind != WEIGHTS_VECTOR ? (int64_t)rows * p->cols : rows < p->cols ? rows : p->cols;
}

/* One parameter's values through buf, changed and packed; `tensor` is its first one's number. */
static int weights_patch_param(struct weights *w, struct param *p, const uint8_t *touched,
                               int tensor, weights_patch_fn *fn, void *arg, uint16_t *buf,
                               struct err *e)
{
    uint16_t *at = buf;
    int rc = STATUS_OK;

    for (int k = 0; rc == STATUS_OK && k < p->nparts; k++) {
        int64_t n = weights_part_count(p, k);
        rc = weights_read_bf16(w, p->part[k].name, at, n, e);
        if (rc == STATUS_OK && touched[tensor + k]) {
            fn(arg, tensor + k, at);
        }
        at += n;
    }
    if (rc == STATUS_OK && !p->w16.data) {
        rc = device_tensor(w->dev, &p->w16, device_half(w->dev), p->rows, p->cols, e);
    }
    at = buf;
    for (int k = 0; rc == STATUS_OK && k < p->nparts; k++) {
        struct tensor v = weights_part_view(p, &p->part[k]);
        device_upload_bf16(&v, at);
        at += weights_part_count(p, k);
    }
    if (rc == STATUS_OK) {
        weights_pack(w, p);
    }
    return rc;
}

int weights_patch(struct weights *w, const uint8_t *touched, weights_patch_fn *fn, void *arg,
                  struct err *e)
{
    int rc = weights_alone(w, e), tensor = 0;
    uint16_t *buf;

    ASSERT(!w->dropped);
    if (rc != STATUS_OK) {
        return rc;
    }
    buf = mem_map(weights_largest(w));
    if (!buf) {
        return ERR(e, STATUS_NOMEM, "no memory to change the weights");
    }
    w->version++;
    for (int i = 0; rc == STATUS_OK && i < w->nparams; i++) {
        struct param *p = &w->params[i];
        int any = 0;
        for (int k = 0; k < p->nparts; k++) {
            any |= touched[tensor + k];
        }
        rc = any ? weights_patch_param(w, p, touched, tensor, fn, arg, buf, e) : STATUS_OK;
        tensor += p->nparts;
    }
    mem_unmap(buf, weights_largest(w));
    return rc;
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
    for (int i = 0; i < ARCH_ATTN_KINDS; i++) {
        device_tensor_free(&w->rope[i].cos);
        device_tensor_free(&w->rope[i].sin);
    }
    wshare_close(w->share);
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
    weights_writing(w, 1);
    for (int i = 0; i < w->nparams; i++) {
        struct param *p = &w->params[i];
        if (p->view.fwd && p->w16.data) {
            w->dev->ops->pack(w->dev, &p->w16, &p->view);
        }
    }
    w->version++;
    weights_writing(w, 0);
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

/* Rows [row0, row0 + rows) of a weight that only its packed view holds. */
static int weights_unpack(struct weights *w, const struct param *p, int row0, int rows,
                          uint16_t *dst, struct err *e)
{
    struct tensor t;
    int step = rows < 1024 ? rows : 1024;
    int rc = device_tensor(w->dev, &t, DTYPE_BF16, step, p->cols, e);

    for (int r = 0; rc == STATUS_OK && r < rows; r += step) {
        struct tensor v = tensor_rows(&t, 0, rows - r < step ? rows - r : step);
        w->dev->ops->unpack(w->dev, &p->view, row0 + r, &v);
        for (int64_t i = 0; i < v.rows; i++, dst += p->cols) {
            memcpy(dst, device_host_row(&v, i), (size_t)p->cols * 2);
        }
    }
    if (rc == STATUS_OK) {
        device_tensor_free(&t);
    }
    return rc;
}

int weights_read_bf16(struct weights *w, const char *name, uint16_t *dst, int64_t count,
                      struct err *e)
{
    int row0, rows;
    struct param *p = weights_find(w, name, &row0, &rows);
    struct weights_part t;
    struct tensor v;

    if (!p && strcmp(name, w->arch.head) == 0 && w->arch.tie_embeddings) {
        /* a tied output layer is stored by some models beside the embedding */
        return weights_read_bf16(w, w->embed->part[0].name, dst, count, e);
    }
    if (!p || (!p->w16.data && !(w->dev->caps & DEVICE_SPLIT_STATE))) {
        return ERR(e, STATUS_NOTFOUND, "the model in memory has no tensor %s", name);
    }
    t.row0 = row0;
    t.rows = rows;
    v = p->w16.data ? weights_part_view(p, &t) : (struct tensor){.rows = rows, .cols = p->cols};
    if (v.rows * v.cols != count || device_half(w->dev) != DTYPE_BF16) {
        return ERR(e, STATUS_FORMAT, "tensor %s has %lld values, %lld were asked for", name,
                   (long long)(v.rows * v.cols), (long long)count);
    }
    if (!p->w16.data) {
        return weights_unpack(w, p, row0, rows, dst, e);
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
