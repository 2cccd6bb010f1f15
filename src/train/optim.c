/* Owns the optimizer's state and the rule that turns a gradient into new weights. Scalars of the
 * step are computed in doubles without libm. */
#include "train/optim.h"

#include <string.h>
#include <xxhash.h>

#include "base/mem.h"
#include "base/status.h"
#include "model/weights.h"
#include "num/exact.h"
#include "num/vmath.h"

#define OPTIM_KEY 0x6d696c65u

/* Types of a parameter's master and moments. */
static void optim_types(const struct weights *w, const struct optim_opts *o, enum dtype t[3])
{
    static const struct optim_opts none;
    o = o ? o : &none;
    t[0] = (w->dev->caps & DEVICE_SPLIT_STATE) && !o->f32_master ? DTYPE_I16 : DTYPE_F32;
    t[1] = o->m_bf16 ? DTYPE_BF16 : DTYPE_F32;
    t[2] = o->v_bf16 ? DTYPE_BF16 : DTYPE_F32;
}

int64_t optim_bytes(const struct weights *w, const struct optim_opts *opts)
{
    enum dtype t[3];
    int64_t n = 0;
    optim_types(w, opts, t);
    for (int i = 0; i < w->nparams; i++) {
        for (int k = 0; k < 3; k++) {
            n += device_tensor_bytes(t[k], w->params[i].rows, w->params[i].cols);
        }
    }
    return n;
}

int optim_open(struct weights *w, const struct optim_opts *opts, struct optim **out, struct err *e)
{
    struct optim *o;
    size_t n = sizeof(struct tensor) * (size_t)w->nparams;
    enum dtype type[3];
    int rc = STATUS_OK;

    ASSERT(w->trainable);
    optim_types(w, opts, type);
    if ((type[1] != DTYPE_F32 || type[2] != DTYPE_F32) && !(w->dev->caps & DEVICE_SPLIT_STATE)) {
        return ERR(e, STATUS_UNSUPPORTED, "device %s keeps Adam's moments in f32 only",
                   w->dev->name);
    }
    o = mem_alloc(sizeof *o);
    o->w = w;
    o->master = mem_alloc(n);
    o->m = mem_alloc(n);
    o->v = mem_alloc(n);
    o->grad_sum = mem_alloc(sizeof *o->grad_sum * (size_t)w->nparams);
    for (int i = 0; rc == STATUS_OK && i < w->nparams; i++) {
        const struct param *p = &w->params[i];
        rc = device_tensor(w->dev, &o->master[i], type[0], p->rows, p->cols, e);
        if (rc == STATUS_OK) {
            rc = device_tensor(w->dev, &o->m[i], type[1], p->rows, p->cols, e);
        }
        if (rc == STATUS_OK) {
            rc = device_tensor(w->dev, &o->v[i], type[2], p->rows, p->cols, e);
        }
        /* a split master starts as zero: the weight itself */
        for (int64_t r = 0; rc == STATUS_OK && type[0] == DTYPE_F32 && r < p->rows;
             r += OPTIM_ROWS) {
            int64_t k = p->rows - r < OPTIM_ROWS ? p->rows - r : OPTIM_ROWS;
            struct tensor t = tensor_rows(&o->master[i], r, k);
            float *x = mem_alloc((size_t)(k * p->cols) * 4);
            rc = optim_read(o, OPTIM_WEIGHT, i, r, k, x, e);
            device_upload_f32(&t, x);
            mem_free(x);
        }
    }
    if (rc != STATUS_OK) {
        optim_close(o);
        return rc;
    }
    *out = o;
    return STATUS_OK;
}

void optim_close(struct optim *o)
{
    if (!o) {
        return;
    }
    for (int i = 0; i < o->w->nparams; i++) {
        device_tensor_free(&o->master[i]);
        device_tensor_free(&o->m[i]);
        device_tensor_free(&o->v[i]);
    }
    device_tensor_free(&o->rows);
    mem_free(o->master);
    mem_free(o->m);
    mem_free(o->v);
    mem_free(o->grad_sum);
    mem_free(o);
}

static int optim_free_to_write(const struct optim *o, struct err *e)
{
    if (o->w->refs != 1) {
        return ERR(e, STATUS_FAIL, "weights version %lld are held by %d readers",
                   (long long)o->w->version, o->w->refs - 1);
    }
    return STATUS_OK;
}

/* The sum of squares of the whole gradient, and the digest of each parameter's. */
static void optim_sumsq(struct optim *o, struct tensor *grad, struct exact *sq)
{
    struct device *d = o->w->dev;

    exact_init(sq);
    for (int i = 0; i < o->w->nparams; i++) {
        struct exact one;
        exact_init(&one);
        device_settle(&grad[i]);
        d->ops->sumsq(d, &grad[i], &one);
        exact_carry(&one);
        o->grad_sum[i] = XXH3_64bits(one.w, sizeof one.w);
        exact_merge(sq, &one);
    }
    o->step_sums++;
}

int optim_step(struct optim *o, struct tensor *grad, const struct optim_hyper *h, double *norm,
               struct err *e)
{
    struct device *d = o->w->dev;
    struct exact sq;
    struct adam_step s;
    int rc = optim_free_to_write(o, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    optim_sumsq(o, grad, &sq);
    if (exact_status(&sq) != STATUS_OK) {
        return ERR(e, STATUS_NUMERIC, "the gradient's norm is not finite");
    }
    *norm = exact_sqrt(exact_value(&sq));
    s.lr = (float)h->lr;
    s.beta1 = (float)h->beta1;
    s.beta2 = (float)h->beta2;
    s.eps = (float)h->eps;
    s.weight_decay = (float)h->weight_decay;
    s.bias1 = (float)(1.0 - vmath_powi(h->beta1, (long)(o->step + 1)));
    s.bias2_sqrt = (float)exact_sqrt(1.0 - vmath_powi(h->beta2, (long)(o->step + 1)));
    s.grad_scale = 1.0f;
    if (h->clip > 0.0 && *norm > 0.0) {
        double f = h->clip / (*norm + 1e-6);
        s.grad_scale = f < 1.0 ? (float)f : 1.0f;
    }
    weights_writing(o->w, 1);
    for (int i = 0; i < o->w->nparams; i++) {
        struct param *p = &o->w->params[i];
        struct adam_param a = {&grad[i],
                               &o->master[i],
                               &o->m[i],
                               &o->v[i],
                               p->w16.data ? &p->w16 : NULL,
                               p->view.fwd ? &p->view : NULL,
                               p->decay,
                               dtype_hash(dtype_hash(OPTIM_KEY, (uint32_t)i), (uint32_t)o->step)};
        d->ops->adamw(d, &a, &s);
    }
    o->w->version++;
    weights_writing(o->w, 0);
    o->step++;
    return STATUS_OK;
}

void optim_reset(struct optim *o)
{
    for (int i = 0; i < o->w->nparams; i++) {
        device_zero(&o->m[i]);
        device_zero(&o->v[i]);
    }
    o->step = 0;
}

/* Plain rows of a weight: a view of them, or a copy when only the packed form is kept. */
static int optim_rows(struct optim *o, int i, int64_t row0, int64_t n, struct tensor *out,
                      struct err *e)
{
    const struct param *p = &o->w->params[i];
    int rc;

    if (p->w16.data) {
        *out = tensor_rows(&p->w16, row0, n);
        return STATUS_OK;
    }
    if (o->rows.cols != p->cols) {
        device_tensor_free(&o->rows);
        rc = device_tensor(o->w->dev, &o->rows, device_half(o->w->dev), OPTIM_ROWS, p->cols, e);
        if (rc != STATUS_OK) {
            o->rows.cols = 0;
            return rc;
        }
    }
    *out = tensor_rows(&o->rows, 0, n);
    o->w->dev->ops->unpack(o->w->dev, &p->view, row0, out);
    return STATUS_OK;
}

int optim_read(struct optim *o, enum optim_part part, int i, int64_t row0, int64_t n, float *x,
               struct err *e)
{
    const struct tensor *own = part == OPTIM_M ? o->m : part == OPTIM_V ? o->v : o->master;
    struct tensor t = {0};
    int rc;

    if (part == OPTIM_M || part == OPTIM_V || (part == OPTIM_MASTER && own[i].dtype == DTYPE_F32)) {
        t = tensor_rows(&own[i], row0, n);
        device_download_f32(&t, x);
        return STATUS_OK;
    }
    if (o->alone && !o->w->params[i].w16.data) {
        o->w->dev->ops->unpack_alone(o->w->dev, &o->w->params[i].view, row0, n, x);
    } else {
        rc = optim_rows(o, i, row0, n, &t, e);
        if (rc != STATUS_OK) {
            return rc;
        }
        device_download_f32(&t, x);
    }
    for (int64_t r = 0; part == OPTIM_MASTER && r < n; r++) {
        const int16_t *rem = device_host_row(&o->master[i], row0 + r);
        for (int64_t c = 0; c < o->w->params[i].cols; c++, x++) {
            *x = dtype_join(dtype_to_bf16(*x), rem[c]);
        }
    }
    return STATUS_OK;
}

int optim_reader(const struct optim *o, struct optim *out, struct err *e)
{
    const struct device *d = o->w->dev;

    if (d->mem || (d->ops->unpack && !d->ops->unpack_alone)) {
        return ERR(e, STATUS_UNSUPPORTED, "the device's memory is read by one thread only");
    }
    *out = *o;
    memset(&out->rows, 0, sizeof out->rows);
    out->alone = 1;
    return STATUS_OK;
}

/* Masters to weights, through plain rows that live as long as this unless they are kept. */
static int optim_write_master(struct optim *o, int i, const float *x, struct err *e)
{
    struct param *p = &o->w->params[i];
    struct device *d = o->w->dev;
    struct tensor w = p->w16;
    int rc = STATUS_OK;

    if (!w.data) {
        rc = device_tensor(d, &w, device_half(d), p->rows, p->cols, e);
    }
    if (rc != STATUS_OK) {
        return rc;
    }
    weights_writing(o->w, 1);
    device_upload_f32(&w, x);
    if (o->master[i].dtype == DTYPE_F32) {
        device_upload_f32(&o->master[i], x);
    }
    for (int64_t r = 0; o->master[i].dtype == DTYPE_I16 && r < p->rows; r++) {
        int16_t *rem = (int16_t *)(uintptr_t)device_host_row(&o->master[i], r);
        for (int64_t c = 0; c < p->cols; c++, x++) {
            uint16_t hi;
            dtype_split(*x, &hi, &rem[c]);
        }
    }
    if (p->view.fwd) {
        d->ops->pack(d, &w, &p->view);
    }
    weights_writing(o->w, 0);
    if (!p->w16.data) {
        device_tensor_free(&w);
    }
    return STATUS_OK;
}

int optim_write(struct optim *o, enum optim_part part, int i, const float *x, struct err *e)
{
    int rc = optim_free_to_write(o, e);

    ASSERT(part != OPTIM_WEIGHT);
    if (rc != STATUS_OK) {
        return rc;
    }
    if (part == OPTIM_MASTER) {
        return optim_write_master(o, i, x, e);
    }
    device_upload_f32(part == OPTIM_M ? &o->m[i] : &o->v[i], x);
    return STATUS_OK;
}
