/* Owns the optimizer's state and the rule that turns a gradient into new weights. Scalars of the
 * step are computed in doubles without libm. */
#include "train/optim.h"

#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "model/weights.h"
#include "num/exact.h"
#include "num/vmath.h"

int64_t optim_bytes(const struct weights *w)
{
    return weights_count(w) * 12;
}

int optim_open(struct weights *w, struct optim **out, struct err *e)
{
    struct optim *o = mem_alloc(sizeof *o);
    size_t n = sizeof(struct tensor) * (size_t)w->nparams;
    float *buf = NULL;
    int64_t largest = 0;
    int rc = STATUS_OK;

    ASSERT(w->trainable);
    o->w = w;
    o->master = mem_alloc(n);
    o->m = mem_alloc(n);
    o->v = mem_alloc(n);
    for (int i = 0; i < w->nparams; i++) {
        int64_t count = (int64_t)w->params[i].rows * w->params[i].cols;
        largest = count > largest ? count : largest;
    }
    buf = mem_map((size_t)largest * 4);
    if (!buf) {
        rc = ERR(e, STATUS_NOMEM, "no memory for the optimizer");
    }
    for (int i = 0; rc == STATUS_OK && i < w->nparams; i++) {
        const struct param *p = &w->params[i];
        rc = device_tensor(w->dev, &o->master[i], DTYPE_F32, p->rows, p->cols, e);
        if (rc == STATUS_OK) {
            rc = device_tensor(w->dev, &o->m[i], DTYPE_F32, p->rows, p->cols, e);
        }
        if (rc == STATUS_OK) {
            rc = device_tensor(w->dev, &o->v[i], DTYPE_F32, p->rows, p->cols, e);
        }
        if (rc == STATUS_OK) {
            device_download_f32(&p->w16, buf);
            device_upload_f32(&o->master[i], buf);
        }
    }
    mem_unmap(buf, (size_t)largest * 4);
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
    mem_free(o->master);
    mem_free(o->m);
    mem_free(o->v);
    mem_free(o);
}

int optim_step(struct optim *o, struct tensor *grad, const struct optim_hyper *h, double *norm,
               struct err *e)
{
    struct device *d = o->w->dev;
    struct exact sq;
    struct adam_step s;
    int rc;

    if (o->w->refs != 1) {
        return ERR(e, STATUS_FAIL, "weights version %lld are held by %d readers",
                   (long long)o->w->version, o->w->refs - 1);
    }
    exact_init(&sq);
    for (int i = 0; i < o->w->nparams; i++) {
        d->ops->sumsq(d, &grad[i], &sq);
    }
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
    for (int i = 0; i < o->w->nparams; i++) {
        struct param *p = &o->w->params[i];
        d->ops->adamw(d, &grad[i], &o->master[i], &o->m[i], &o->v[i], &s, p->decay, &p->w16);
    }
    rc = weights_publish(o->w, e);
    if (rc == STATUS_OK) {
        o->step++;
    }
    return rc;
}

int optim_push(struct optim *o, struct err *e)
{
    int64_t version = o->w->version;
    int rc;
    for (int i = 0; i < o->w->nparams; i++) {
        o->w->dev->ops->convert(o->w->dev, &o->master[i], &o->w->params[i].w16);
    }
    rc = weights_publish(o->w, e);
    o->w->version = version;
    return rc;
}
