/* Owns how weights lie in memory that several processes map (model/wshare.h): the one that makes
 * the image describes it, and others find every tensor by laying it out once more. What the layout
 * follows from is compared first, the layout itself last, so nothing is read from a wrong place. */
#include <stdio.h>
#include <string.h>

#include "base/region.h"
#include "base/sha256.h"
#include "base/status.h"
#include "model/weights_int.h"
#include "model/wshare.h"

static void weights_layout_put(struct sha256 *h, const char *name, const struct weights *w,
                               const void *at)
{
    const struct region *r = wshare_region(w->share);
    int64_t offset = at ? (const char *)at - r->base : -1;

    sha256_update(h, name, strlen(name) + 1);
    sha256_update(h, &offset, sizeof offset);
}

/* Numbers of the shape that change results and not the layout. */
static void weights_layout_shape(struct sha256 *h, const struct arch *a)
{
    const double f[] = {a->rms_eps, a->score_dim, a->attn_softcap, a->final_softcap};
    const int32_t n[] = {a->n_layers,     a->hidden,        a->n_heads,     a->n_kv_heads,
                         a->head_dim,     a->intermediate,  a->vocab,       a->tie_embeddings,
                         (int32_t)a->act, a->norm_plus_one, a->embed_scale, a->rot,
                         a->interleaved,  a->window};

    sha256_update(h, a->family, strlen(a->family) + 1);
    sha256_update(h, f, sizeof f);
    sha256_update(h, n, sizeof n);
    sha256_update(h, a->attn, (size_t)a->n_layers);
}

static void weights_layout_sum(const struct weights *w, uint8_t out[32])
{
    struct sha256 h;

    sha256_init(&h);
    weights_layout_shape(&h, &w->arch);
    for (int i = 0; i < w->nparams; i++) {
        const struct param *p = &w->params[i];
        const int32_t size[] = {p->rows, p->cols};
        sha256_update(&h, size, sizeof size);
        weights_layout_put(&h, p->part[0].name, w, p->w16.data);
        weights_layout_put(&h, "forward", w, p->view.fwd);
        weights_layout_put(&h, "transpose", w, p->view.bwd);
    }
    for (int i = 0; i < weights_rope_count(w); i++) {
        weights_layout_put(&h, "cos", w, w->rope[i].cos.data);
        weights_layout_put(&h, "sin", w, w->rope[i].sin.data);
    }
    sha256_final(&h, out);
}

static void weights_form(const struct weights *w, int use, struct wshare_form *f)
{
    memset(f, 0, sizeof *f);
    snprintf(f->packing, sizeof f->packing, "%s", w->dev->name);
    f->plan = w->dev->plan;
    f->use = use;
    f->positions = w->positions;
    weights_layout_sum(w, f->layout);
}

int weights_image_make(struct weights *w, struct err *e)
{
    /* every tensor may end with less than an alignment unused */
    int64_t bytes = weights_bytes(w, w->positions) + (int64_t)(w->nparams * 3 + 8) * REGION_ALIGN;

    if (w->dev->mem) {
        return ERR(e, STATUS_UNSUPPORTED, "weights on %s cannot be shared with other processes",
                   w->dev->name);
    }
    return wshare_create((size_t)bytes, &w->share, e);
}

void weights_image_ready(struct weights *w, int use)
{
    struct wshare_form f;

    weights_form(w, use, &f);
    wshare_describe(w->share, &f);
}

static int weights_same_form(const struct wshare_form *f, const struct device *d, struct err *e)
{
    const struct plan *a = &f->plan, *b = &d->plan;
    const struct {
        const char *what;
        int theirs, ours;
    } all[] = {{"numerics version", a->version, b->version},
               {"leaves", a->leaves, b->leaves},
               {"kblock", a->kblock, b->kblock},
               {"kv block", a->kv_block, b->kv_block},
               {"kv segment", a->kv_segment, b->kv_segment},
               {"leaf tokens", a->leaf_tokens, b->leaf_tokens},
               {"quantum", a->quantum_log2, b->quantum_log2},
               {"f32", a->f32, b->f32}};

    if (strncmp(f->packing, d->name, sizeof f->packing) != 0) {
        return ERR(e, STATUS_INPUT, "the shared weights are packed for device %.15s, this is %s",
                   f->packing, d->name);
    }
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (all[i].theirs != all[i].ours) {
            return ERR(e, STATUS_INPUT, "the shared weights have %s %d, this program %d",
                       all[i].what, all[i].theirs, all[i].ours);
        }
    }
    return STATUS_OK;
}

static int weights_attach_to(struct weights *w, const struct wshare_form *f, struct err *e)
{
    struct wshare_form ours;
    struct err why = {0};
    int rc = STATUS_OK;

    w->positions = f->positions;
    for (int i = 0; i < w->nparams && rc == STATUS_OK; i++) {
        rc = weights_place(w, &w->params[i], &why);
    }
    if (rc == STATUS_OK) {
        weights_leaves(w);
        rc = weights_ropes(w, &why);
    }
    if (rc != STATUS_OK) { /* more than the image holds */
        return ERR(e, STATUS_INPUT, "the shared weights are those of a smaller model: %.200s",
                   why.msg);
    }
    weights_form(w, f->use, &ours);
    if (memcmp(ours.layout, f->layout, sizeof ours.layout) != 0) {
        char a[65], b[65];
        sha256_digits(f->layout, a);
        sha256_digits(ours.layout, b);
        return ERR(e, STATUS_INPUT,
                   "the shared weights are those of another model: layout %.16s, %s has %.16s", a,
                   w->arch.family, b);
    }
    return STATUS_OK;
}

int weights_attach(int fd, const struct arch *a, struct device *dev, struct weights **out,
                   struct err *e)
{
    struct wshare *s;
    const struct wshare_form *f;
    struct weights *w = NULL;
    int rc = wshare_attach(fd, &s, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    f = wshare_form(s);
    rc = weights_same_form(f, dev, e);
    if (rc == STATUS_OK) {
        rc = weights_shape(a, dev, f->use, &w, e);
    }
    if (rc != STATUS_OK) {
        wshare_close(s);
        return rc;
    }
    w->share = s;
    w->attached = 1;
    rc = weights_attach_to(w, f, e);
    if (rc != STATUS_OK) {
        weights_release(w);
        return rc;
    }
    w->trainable = w->transposes = 0;                 /* that was where the image was laid out */
    (void)weights_follow(w, wshare_version(s), NULL); /* fails while it is being written */
    *out = w;
    return STATUS_OK;
}

int weights_share_fd(const struct weights *w)
{
    return w->share && !w->attached ? wshare_fd(w->share) : -1;
}

void weights_writing(struct weights *w, int on)
{
    ASSERT(!w->attached);
    if (w->share) {
        wshare_writing(w->share, on, w->version);
    }
}

int weights_follow(struct weights *w, int64_t version, struct err *e)
{
    int rc;

    if (!w->attached) {
        return ERR(e, STATUS_INPUT, "these weights are not shared with another process");
    }
    rc = wshare_follow(w->share, version, e);
    if (rc == STATUS_OK) {
        w->version = version;
    }
    return rc;
}

int weights_steady(const struct weights *w)
{
    return !w->attached || wshare_steady(w->share);
}
