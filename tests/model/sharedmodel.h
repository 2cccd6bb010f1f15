/* A trainer's side of shared weights for tests: a small model in an image, and an optimizer that
 * changes all of it in place.
 *
 *     struct sharedmodel t;
 *     sharedmodel_open(&t, dir, 2);                          two leaves
 *     struct tinymodel m;
 *     sharedmodel_attach(&m, dir, weights_share_fd(t.m.w), "scalar", 2);
 *     sharedmodel_step(&t);                                  m.w has other values now
 *     tinymodel_close(&m);
 *     sharedmodel_close(&t); */
#ifndef TESTS_MODEL_SHAREDMODEL_H
#define TESTS_MODEL_SHAREDMODEL_H

#include "model/tinymodel.h"

#include "train/optim.h"

struct sharedmodel {
    struct tinymodel m;
    struct optim *o;
    struct tensor *grad;
    uint64_t seed;
};

static inline void sharedmodel_open(struct sharedmodel *t, const char *dir, int leaves)
{
    struct err e = {0};

    memset(t, 0, sizeof *t);
    tinymodel_open(&t->m, dir, "cpu", "auto", 1, leaves, 0, WEIGHTS_TRAIN | WEIGHTS_SHARED);
    assert_ok(optim_open(t->m.w, NULL, &t->o, &e), &e);
    t->grad = mem_alloc(sizeof *t->grad * (size_t)t->m.w->nparams);
    for (int i = 0; i < t->m.w->nparams; i++) {
        const struct param *p = &t->m.w->params[i];
        assert_ok(device_tensor(t->m.dev, &t->grad[i], DTYPE_I64, p->rows, p->cols, &e), &e);
    }
}

static inline void sharedmodel_close(struct sharedmodel *t)
{
    for (int i = 0; i < t->m.w->nparams; i++) {
        device_tensor_free(&t->grad[i]);
    }
    mem_free(t->grad);
    optim_close(t->o);
    tinymodel_close(&t->m);
}

/* One step along random gradients: every value moves. */
static inline void sharedmodel_step(struct sharedmodel *t)
{
    const struct optim_hyper h = {0.05, 0.9, 0.98, 1e-8, 0.0, 0.0};
    struct err e = {0};
    double norm;

    for (int i = 0; i < t->m.w->nparams; i++) {
        struct tensor *g = &t->grad[i];
        for (int64_t k = 0; k < g->rows * g->ld; k++) {
            ((int64_t *)g->data)[k] = (int64_t)(tinymodel_value(&t->seed) * 0x1p45f);
        }
    }
    assert_ok(optim_step(t->o, t->grad, &h, &norm, &e), &e);
}

static inline void sharedmodel_attach(struct tinymodel *m, const char *dir, int fd, const char *isa,
                                      int leaves)
{
    struct plan plan;
    struct err e = {0};

    assert_ok(wfile_open(dir, &m->file, &e), &e);
    plan_init(&plan, leaves, 0);
    assert_ok(device_open("cpu", isa, 1, &plan, &m->dev, &e), &e);
    assert_ok(weights_attach(fd, wfile_arch(m->file), m->dev, &m->w, &e), &e);
}

#endif
