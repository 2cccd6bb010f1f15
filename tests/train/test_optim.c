/* AdamW against a double-precision reference written here: moments, bias correction, decay of
 * matrices only, clipping by the global norm, over several steps; the same bits on every device. */
#include "model/tinymodel.h"

#include <math.h>

#include "train/optim.h"

static const struct tinymodel_spec specs[] = {
    {"llama", 1, 1, 64, 2, 1, 32, 96, 77, 128, 0},
    {"qwen2", 0, 1, 64, 2, 2, 32, 64, 50, 128, 0}, /* biases, a separate output layer */
};

static struct err e;

/* ---- gradients as the backward pass leaves them: 64-bit integers in quanta ---- */

static struct tensor *grads_new(const struct tinymodel *m)
{
    struct tensor *g = mem_alloc(sizeof *g * (size_t)m->w->nparams);
    for (int i = 0; i < m->w->nparams; i++) {
        const struct param *p = &m->w->params[i];
        assert_ok(device_tensor(m->dev, &g[i], DTYPE_I64, p->rows, p->cols, &e), &e);
    }
    return g;
}

static void grads_free(const struct tinymodel *m, struct tensor *g)
{
    for (int i = 0; i < m->w->nparams; i++) {
        device_tensor_free(&g[i]);
    }
    mem_free(g);
}

static int64_t *grad_at(const struct tensor *g, int64_t r, int64_t c)
{
    return (int64_t *)g->data + r * g->ld + c;
}

/* Values of about `size`; every ninth is zero, some are tiny. */
static void grads_fill(const struct tinymodel *m, struct tensor *g, uint64_t seed, double size)
{
    for (int i = 0; i < m->w->nparams; i++) {
        for (int64_t r = 0; r < g[i].rows; r++) {
            for (int64_t c = 0; c < g[i].cols; c++) {
                uint64_t x = tinymodel_rand(&seed);
                double v = ((double)(x >> 11) * 0x1p-53 * 2.0 - 1.0) * size;
                v = x % 9 == 0 ? 0.0 : x % 7 == 0 ? v * 1e-6 : v;
                *grad_at(&g[i], r, c) = (int64_t)(v * 0x1p45);
            }
        }
    }
}

/* All masters, or moments, or rounded weights, as one array; free with mem_free. */
static float *snapshot(struct optim *o, char which)
{
    enum optim_part part = which == 'x'   ? OPTIM_MASTER
                           : which == 'm' ? OPTIM_M
                           : which == 'v' ? OPTIM_V
                                          : OPTIM_WEIGHT;
    float *out = mem_alloc(4 * (size_t)weights_count(o->w)), *p = out;
    for (int i = 0; i < o->w->nparams; i++) {
        const struct param *q = &o->w->params[i];
        for (int64_t r = 0; r < q->rows; r += OPTIM_ROWS) {
            int64_t n = q->rows - r < OPTIM_ROWS ? q->rows - r : OPTIM_ROWS;
            assert_ok(optim_read(o, part, i, r, n, p, &e), &e);
            p += n * q->cols;
        }
    }
    return out;
}

/* ---- the reference ---- */

struct ref {
    double *x, *m, *v; /* all parameters, one after the other */
    int64_t n;
    long step;
};

static void ref_open(struct ref *r, struct optim *o)
{
    float *all = snapshot(o, 'x');
    r->n = weights_count(o->w);
    r->x = mem_alloc(8 * (size_t)r->n);
    r->m = mem_alloc(8 * (size_t)r->n);
    r->v = mem_alloc(8 * (size_t)r->n);
    r->step = 0;
    for (int64_t k = 0; k < r->n; k++) {
        r->x[k] = (double)all[k];
    }
    mem_free(all);
}

static void ref_close(struct ref *r)
{
    mem_free(r->x);
    mem_free(r->m);
    mem_free(r->v);
}

static double ref_step(struct ref *r, const struct weights *w, const struct tensor *g,
                       const struct optim_hyper *h)
{
    double sq = 0.0, norm, scale = 1.0;
    int64_t k = 0;
    for (int i = 0; i < w->nparams; i++) {
        for (int64_t j = 0; j < g[i].rows; j++) {
            for (int64_t c = 0; c < g[i].cols; c++) {
                double q = (double)*grad_at(&g[i], j, c) * 0x1p-45;
                sq += q * q;
            }
        }
    }
    norm = sqrt(sq);
    if (h->clip > 0.0 && norm > h->clip) {
        scale = h->clip / norm;
    }
    r->step++;
    for (int i = 0; i < w->nparams; i++) {
        int matrix = w->params[i].rows > 1;
        for (int64_t j = 0; j < g[i].rows; j++) {
            for (int64_t c = 0; c < g[i].cols; c++, k++) {
                double q = (double)*grad_at(&g[i], j, c) * 0x1p-45 * scale;
                r->m[k] = h->beta1 * r->m[k] + (1.0 - h->beta1) * q;
                r->v[k] = h->beta2 * r->v[k] + (1.0 - h->beta2) * q * q;
                if (matrix) {
                    r->x[k] -= h->lr * h->weight_decay * r->x[k];
                }
                r->x[k] -= h->lr * (r->m[k] / (1.0 - pow(h->beta1, (double)r->step))) /
                           (sqrt(r->v[k] / (1.0 - pow(h->beta2, (double)r->step))) + h->eps);
            }
        }
    }
    return norm;
}

static void near(double got, double want, double tolerance, const char *what, int param)
{
    if (!(fabs(got - want) <= tolerance)) {
        fail_msg("%s of parameter %d: %.9g, the reference has %.9g", what, param, got, want);
    }
}

/* Masters, moments and the rounded weights against the reference. Moments in bf16 are near. */
static void compare(struct optim *o, const struct ref *r, double lr)
{
    float *x = snapshot(o, 'x'), *m = snapshot(o, 'm'), *v = snapshot(o, 'v'),
          *w = snapshot(o, 'w');
    int coarse = o->m[0].dtype == DTYPE_BF16; /* and then the second moment is too */
    double far_m = coarse ? 2e-4 : 5e-9, far_v = coarse ? 0.05 : 3e-5, far_x = coarse ? 0.5 : 2e-4;
    for (int64_t k = 0; k < r->n; k++) {
        near(x[k], r->x[k], 3e-7 * fabs(r->x[k]) + far_x * lr, "master", (int)k);
        near(m[k], r->m[k], 2e-6 * fabs(r->m[k]) + far_m, "exp_avg", (int)k);
        near(v[k], r->v[k], far_v * fabs(r->v[k]) + 1e-18, "exp_avg_sq", (int)k);
        assert_true(w[k] == dtype_from_bf16(dtype_to_bf16(x[k])));
    }
    mem_free(x);
    mem_free(m);
    mem_free(v);
    mem_free(w);
}

/* ---- tests ---- */

static void against_reference(void **state)
{
    static const struct optim_hyper steps[] = {
        {1e-3, 0.9, 0.999, 1e-8, 0.1, 0.0}, {2e-3, 0.9, 0.999, 1e-8, 0.0, 0.0},
        {1e-3, 0.9, 0.95, 1e-8, 0.01, 1.0}, {5e-4, 0.8, 0.98, 1e-6, 0.1, 0.25},
        {1e-3, 0.9, 0.999, 1e-8, 0.1, 1e9},
    };
    (void)state;
    for (int k = 0; k < 6; k++) {
        struct optim_opts form = {k / 2 == 2, k / 2 == 2, k / 2 == 1};
        struct tinymodel m;
        struct optim *o;
        struct tensor *g;
        struct ref r;
        tinymodel_open(&m, tinymodel_write(&specs[k % 2]), "cpu", "auto", 2, 0, 0, 1);
        assert_ok(optim_open(m.w, &form, &o, &e), &e);
        g = grads_new(&m);
        ref_open(&r, o);
        compare(o, &r, 0.0); /* masters start as the weights */
        for (int i = 0; i < 5; i++) {
            int64_t version = m.w->version;
            double norm = 0.0, want;
            grads_fill(&m, g, (uint64_t)i + 1, i == 3 ? 1e-3 : 0.02);
            want = ref_step(&r, m.w, g, &steps[i]);
            assert_ok(optim_step(o, g, &steps[i], &norm, &e), &e);
            near(norm, want, want * 1e-6, "norm", -1);
            compare(o, &r, steps[i].lr);
            assert_int_equal(o->step, i + 1);
            assert_int_equal(m.w->version, version + 1);
        }
        ref_close(&r);
        grads_free(&m, g);
        optim_close(o);
        tinymodel_close(&m);
    }
}

static int same(const struct optim *o, const float *a, const float *b)
{
    return memcmp(a, b, 4 * (size_t)weights_count(o->w)) == 0;
}

/* With a zero gradient only the decay moves anything: matrices shrink, vectors keep every bit. */
static void decay(void **state)
{
    struct optim_hyper h = {0.5, 0.9, 0.999, 1e-8, 0.5, 1.0};
    struct tinymodel m;
    struct optim *o;
    struct tensor *g;
    float *before, *after;
    double norm = 1.0;
    int vectors = 0, matrices = 0;
    int64_t k = 0;
    (void)state;
    tinymodel_open(&m, tinymodel_write(&specs[1]), "cpu", "auto", 1, 0, 0, 1);
    assert_ok(optim_open(m.w, NULL, &o, &e), &e);
    g = grads_new(&m);
    before = snapshot(o, 'x');
    assert_ok(optim_step(o, g, &h, &norm, &e), &e);
    assert_true(norm == 0.0);
    after = snapshot(o, 'x');
    for (int i = 0; i < m.w->nparams; i++) {
        const struct param *p = &m.w->params[i];
        int vector =
            strstr(p->part[0].name, "norm") != NULL || strstr(p->part[0].name, "bias") != NULL;
        vectors += vector;
        matrices += !vector;
        for (int64_t c = 0; c < (int64_t)p->rows * p->cols; c++, k++) {
            uint16_t hi;
            int16_t rem;
            dtype_split(before[k] * 0.75f, &hi, &rem); /* as masters are kept */
            assert_true(after[k] == (vector ? before[k] : dtype_join(hi, rem)));
        }
    }
    assert_true(vectors == 4 && matrices == 6);
    mem_free(before);
    mem_free(after);
    grads_free(&m, g);
    optim_close(o);
    tinymodel_close(&m);
}

/* Bias correction: the first step moves each weight by lr against its gradient's sign, however
 * large that is; without a gradient nothing moves. */
static void first_step(void **state)
{
    struct optim_hyper h = {1e-2, 0.9, 0.999, 1e-20, 0.0, 0.0};
    struct tinymodel m;
    struct optim *o;
    struct tensor *g;
    float *before, *after;
    double norm;
    int64_t k = 0;
    (void)state;
    tinymodel_open(&m, tinymodel_write(&specs[0]), "cpu", "auto", 1, 0, 0, 1);
    assert_ok(optim_open(m.w, NULL, &o, &e), &e);
    g = grads_new(&m);
    grads_fill(&m, g, 3, 0.5);
    before = snapshot(o, 'x');
    assert_ok(optim_step(o, g, &h, &norm, &e), &e);
    grads_fill(&m, g, 3, 0.5);
    after = snapshot(o, 'x');
    for (int i = 0; i < m.w->nparams; i++) {
        for (int64_t r = 0; r < g[i].rows; r++) {
            for (int64_t c = 0; c < g[i].cols; c++, k++) {
                int64_t q = *grad_at(&g[i], r, c);
                double want = q > 0 ? -h.lr : q < 0 ? h.lr : 0.0;
                near((double)after[k] - (double)before[k], want, 2e-7 + 1e-4 * h.lr, "step", i);
            }
        }
    }
    mem_free(before);
    mem_free(after);
    grads_free(&m, g);
    optim_close(o);
    tinymodel_close(&m);
}

/* Clipping to c equals the same step with a gradient scaled by c / norm, and is off at 0. The norm
 * that is reported is the one before. */
static void clipping(void **state)
{
    const struct optim_opts whole = {.f32_master = 1}; /* two of them on the same weights */
    struct tinymodel m;
    struct tensor *g, *half;
    struct optim *a, *b;
    double norm, norm2;
    float *xa, *xb;
    struct optim_hyper h = {1e-3, 0.9, 0.999, 1e-3, 0.0, 0.0};
    const char *dir = tinymodel_write(&specs[0]);
    (void)state;
    tinymodel_open(&m, dir, "cpu", "auto", 1, 0, 0, 1);
    g = grads_new(&m);
    half = grads_new(&m);
    grads_fill(&m, g, 5, 0.1);
    for (int i = 0; i < m.w->nparams; i++) {
        for (int64_t k = 0; k < g[i].rows * g[i].ld; k++) {
            ((int64_t *)g[i].data)[k] &= ~(int64_t)1;
            ((int64_t *)half[i].data)[k] = ((int64_t *)g[i].data)[k] / 2;
        }
    }
    assert_ok(optim_open(m.w, &whole, &a, &e), &e);
    assert_ok(optim_open(m.w, &whole, &b, &e), &e);
    assert_ok(optim_step(b, half, &h, &norm2, &e), &e);
    xb = snapshot(b, 'x');
    h.clip = norm2;
    assert_ok(optim_step(a, g, &h, &norm, &e), &e);
    near(norm, 2.0 * norm2, 1e-9 * norm, "norm", -1);
    grads_fill(&m, g, 5, 0.1);
    xa = snapshot(a, 'x');
    for (int64_t k = 0; k < weights_count(m.w); k++) {
        near(xa[k], xb[k], 1e-6 * fabs((double)xb[k]) + 2e-5 * h.lr, "clipped master", -1);
    }
    mem_free(xa);
    optim_close(a);
    mem_free(xb);
    optim_close(b);

    /* a bound above the norm changes no bit */
    assert_ok(optim_open(m.w, &whole, &a, &e), &e);
    assert_ok(optim_open(m.w, &whole, &b, &e), &e);
    h.clip = 0.0;
    assert_ok(optim_step(a, g, &h, &norm, &e), &e);
    h.clip = norm * 1.01;
    grads_fill(&m, g, 5, 0.1);
    assert_ok(optim_step(b, g, &h, &norm2, &e), &e);
    assert_true(norm == norm2);
    xa = snapshot(a, 'x');
    xb = snapshot(b, 'x');
    assert_true(same(a, xa, xb));
    mem_free(xa);
    mem_free(xb);
    optim_close(a);
    optim_close(b);
    grads_free(&m, g);
    grads_free(&m, half);
    tinymodel_close(&m);
}

/* Three steps give the same bits on the reference device and on every instruction set, with any
 * number of threads, for each form of the moments; and masters kept whole give those of split ones.
 */
static void same_bits(void **state)
{
    static const char *const isas[] = {"ref", "scalar", "avx2", "avx512", "amx"};
    static const struct optim_opts forms[] = {{0, 0, 0}, {0, 0, 1}, {1, 1, 0}, {0, 1, 1}};
    struct optim_hyper h = {1e-3, 0.9, 0.98, 1e-8, 0.1, 0.5};
    const char *dir = tinymodel_write(&specs[1]);
    (void)state;
    for (int f = 0; f < 4; f++) {
        static float *want[4];
        static double want_norm[3];
        int fresh = f != 1; /* 1 must equal 0 */
        for (int k = 0; k < 10; k++) {
            struct tinymodel m;
            struct optim *o;
            struct tensor *g;
            const char *isa = isas[k / 2];
            if (k >= 2 && !device_has_isa(isa)) {
                continue;
            }
            tinymodel_open(&m, dir, k < 2 ? "ref" : "cpu", k < 2 ? "auto" : isa, 1 + k % 2, 0, 0,
                           1);
            assert_ok(optim_open(m.w, &forms[f], &o, &e), &e);
            g = grads_new(&m);
            for (int i = 0; i < 3; i++) {
                double norm;
                grads_fill(&m, g, (uint64_t)i + 9, 0.01);
                assert_ok(optim_step(o, g, &h, &norm, &e), &e);
                assert_true(fresh || norm == want_norm[i]);
                want_norm[i] = norm;
            }
            for (int i = 0; i < 4; i++) {
                float *got = snapshot(o, "xmvw"[i]);
                if (!fresh && !same(o, got, want[i])) {
                    fail_msg("%c differs on %s with %d threads, form %d", "xmvw"[i], isa, 1 + k % 2,
                             f);
                }
                mem_free(want[i]);
                want[i] = got;
            }
            fresh = 0;
            grads_free(&m, g);
            optim_close(o);
            tinymodel_close(&m);
        }
        for (int i = 0; f == 3 && i < 4; i++) {
            mem_free(want[i]);
            want[i] = NULL;
        }
    }
}

/* An image that a reader holds is never written: the step is refused and nothing has changed. */
static void held_weights(void **state)
{
    struct optim_hyper h = {1e-2, 0.9, 0.999, 1e-8, 0.1, 0.0};
    struct tinymodel m;
    struct optim *o;
    struct tensor *g;
    float *before[4];
    double norm;
    int64_t version;
    (void)state;
    tinymodel_open(&m, tinymodel_write(&specs[0]), "cpu", "auto", 1, 0, 0, 1);
    assert_ok(optim_open(m.w, NULL, &o, &e), &e);
    g = grads_new(&m);
    grads_fill(&m, g, 1, 0.1);
    for (int i = 0; i < 4; i++) {
        before[i] = snapshot(o, "xmvw"[i]);
    }
    version = m.w->version;
    weights_acquire(m.w);
    assert_int_equal(optim_step(o, g, &h, &norm, &e), STATUS_FAIL);
    assert_int_equal(o->step, 0);
    assert_int_equal(m.w->version, version);
    for (int i = 0; i < 4; i++) {
        float *now = snapshot(o, "xmvw"[i]);
        if (!same(o, now, before[i])) {
            fail_msg("%c was changed under a reader", "xmvw"[i]);
        }
        mem_free(now);
        mem_free(before[i]);
    }
    weights_release(m.w);
    assert_ok(optim_step(o, g, &h, &norm, &e), &e);
    assert_int_equal(o->step, 1);
    grads_free(&m, g);
    optim_close(o);
    tinymodel_close(&m);
}

/* Writing masters rounds them into the weights and leaves the version alone; they and the moments
 * come back as they were written. */
static void write_back(void **state)
{
    static const struct optim_opts forms[] = {{0, 0, 0}, {0, 0, 1}, {1, 1, 0}};
    static const int64_t bytes[] = {10, 12, 6};
    (void)state;
    for (int f = 0; f < 3; f++) {
        struct tinymodel m;
        struct optim *o;
        int64_t version, n;
        float *w, *x, *y;
        tinymodel_open(&m, tinymodel_write(&specs[0]), "cpu", "auto", 1, 0, 0, 1);
        assert_ok(optim_open(m.w, &forms[f], &o, &e), &e);
        n = weights_count(m.w);
        x = snapshot(o, 'x');
        for (int64_t i = 0; i < n; i++) {
            x[i] = x[i] * 1.01f + 0.001f;
        }
        version = m.w->version;
        for (int64_t i = 0, k = 0; i < m.w->nparams; i++) {
            weights_acquire(m.w);
            assert_int_equal(optim_write(o, OPTIM_MASTER, (int)i, x + k, &e), STATUS_FAIL);
            weights_release(m.w);
            assert_ok(optim_write(o, OPTIM_MASTER, (int)i, x + k, &e), &e);
            k += (int64_t)m.w->params[i].rows * m.w->params[i].cols;
        }
        assert_int_equal(m.w->version, version);
        w = snapshot(o, 'w');
        y = snapshot(o, 'x');
        for (int64_t i = 0; i < n; i++) {
            assert_true(w[i] == dtype_from_bf16(dtype_to_bf16(x[i])));
        }
        assert_true(same(o, x, y));
        mem_free(y);
        for (int64_t i = 0, k = 0; i < m.w->nparams; i++) {
            assert_ok(optim_write(o, OPTIM_V, (int)i, w + k, &e), &e);
            k += (int64_t)m.w->params[i].rows * m.w->params[i].cols;
        }
        y = snapshot(o, 'v');
        assert_true(same(o, w, y));
        mem_free(y);
        mem_free(w);
        mem_free(x);
        assert_in_range(optim_bytes(m.w, &forms[f]), bytes[f] * n,
                        bytes[f] * n * 101 / 100 + 30000);
        optim_close(o);
        optim_close(NULL);
        tinymodel_close(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_reference), cmocka_unit_test(decay),
        cmocka_unit_test(first_step),        cmocka_unit_test(clipping),
        cmocka_unit_test(same_bits),         cmocka_unit_test(held_weights),
        cmocka_unit_test(write_back),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
