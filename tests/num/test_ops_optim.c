/* The optimizer's operations on every device: each form of masters, moments and weights gives the
 * reference device's bits, f32 masters and split ones give the same bits, packed weights follow the
 * step, and moments in bf16 keep their mean. */
#include "support.h"

#include <math.h>

#include "base/mem.h"
#include "base/status.h"
#include "num/device_int.h"
#include "num/exact.h"

#define MAX_DEVICES 8

static struct device *devices[MAX_DEVICES]; /* the first is the reference */
static int n_devices;
static struct err e;

static void add_device(const char *name, const char *isa, int threads)
{
    struct plan plan;
    int rc;
    plan_init(&plan, 4, 0);
    rc = device_open(name, isa, threads, &plan, &devices[n_devices], &e);
    if (rc == STATUS_UNSUPPORTED && strcmp(isa, "amx") == 0) {
        print_message("not tested: %s\n", e.msg); /* the system may keep AMX to itself */
        return;
    }
    assert_ok(rc, &e);
    n_devices++;
}

static int open_all(void **state)
{
    static const char *const isas[] = {"scalar", "avx2", "avx512", "amx"};
    (void)state;
    add_device("ref", "auto", 2);
    for (int i = 0; i < 4; i++) {
        if (device_has_isa(isas[i])) {
            add_device("cpu", isas[i], 1 + i % 2);
        }
    }
    add_device("cpu", "auto", 3);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    while (n_devices) {
        device_close(devices[--n_devices]);
    }
    return 0;
}

static uint64_t rand64(uint64_t *s)
{
    uint64_t x = *s += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

/* ---- one parameter ----------------------------------------------------------------------------
 */

enum values { PLAIN, TIES, WIDE, WILD, N_VALUES };

/* Where a parameter starts, the same on every device. */
struct start {
    int rows, cols;
    float *x, *m, *v;
    int64_t *g;
};

static float value(uint64_t *s, enum values kind)
{
    static const float odd[] = {INFINITY, NAN, 3e38f, 1e-30f, 0.0f};
    float u = (float)(rand64(s) >> 40) * 0x1p-24f, sign = rand64(s) & 1 ? -1.0f : 1.0f;
    switch (kind) {
    case TIES: /* half way between two bf16 values, above even and odd ones */
        return sign * dtype_join((uint16_t)(0x3f80 + rand64(s) % 64), 0x7fff) * 1.0000001f;
    case WIDE: return sign * ldexpf(1.0f + u, (int)(rand64(s) % 61) - 30);
    case WILD: return rand64(s) % 50 ? sign * u : sign * odd[rand64(s) % 5];
    default: return sign * u;
    }
}

static struct start start_new(int rows, int cols, enum values kind, uint64_t seed)
{
    size_t n = (size_t)rows * (size_t)cols;
    struct start t = {
        rows, cols, mem_alloc(n * 4), mem_alloc(n * 4), mem_alloc(n * 4), mem_alloc(n * 8)};
    for (size_t i = 0; i < n; i++) {
        uint16_t hi;
        int16_t rem;
        dtype_split(value(&seed, kind), &hi, &rem); /* a master that a step can have left */
        t.x[i] = dtype_join(hi, rem);
        t.m[i] = dtype_from_bf16(dtype_to_bf16(value(&seed, kind)));
        t.v[i] = dtype_from_bf16(dtype_to_bf16(fabsf(value(&seed, kind))));
        t.g[i] = rand64(&seed) % 9 == 0    ? 0
                 : rand64(&seed) % 17 == 0 ? (int64_t)rand64(&seed)
                                           : (int64_t)(rand64(&seed) >> 20) - (1ll << 43);
    }
    return t;
}

static void start_free(struct start *t)
{
    mem_free(t->x);
    mem_free(t->m);
    mem_free(t->v);
    mem_free(t->g);
}

enum rows_form { ROWS_ONLY, ROWS_AND_VIEW, VIEW_ONLY };

struct form {
    enum dtype master, m, v;
    enum rows_form rows;
    int with_bwd;
};

struct held {
    struct tensor g, x, m, v, w;
    struct wview view;
    struct adam_param p;
};

static struct tensor make(struct device *d, enum dtype t, int rows, int cols)
{
    struct tensor x;
    assert_ok(device_tensor(d, &x, t, rows, cols, &e), &e);
    return x;
}

static void held_open(struct held *h, struct device *d, const struct start *t, const struct form *f)
{
    struct tensor w = make(d, DTYPE_BF16, t->rows, t->cols);
    memset(h, 0, sizeof *h);
    h->g = make(d, DTYPE_I64, t->rows, t->cols);
    h->x = make(d, f->master, t->rows, t->cols);
    h->m = make(d, f->m, t->rows, t->cols);
    h->v = make(d, f->v, t->rows, t->cols);
    device_upload_f32(&h->m, t->m);
    device_upload_f32(&h->v, t->v);
    for (int r = 0; r < t->rows; r++) {
        for (int c = 0; c < t->cols; c++) {
            int64_t i = (int64_t)r * t->cols + c;
            uint16_t hi;
            int16_t rem;
            dtype_split(t->x[i], &hi, &rem);
            ((uint16_t *)w.data)[r * w.ld + c] = hi;
            ((int64_t *)h->g.data)[r * h->g.ld + c] = t->g[i];
            if (f->master == DTYPE_I16) {
                ((int16_t *)h->x.data)[r * h->x.ld + c] = rem;
            } else {
                ((float *)h->x.data)[r * h->x.ld + c] = t->x[i];
            }
        }
    }
    h->p = (struct adam_param){&h->g, &h->x, &h->m, &h->v, NULL, NULL, 0, 0};
    if (f->rows != ROWS_ONLY) {
        assert_ok(device_wview(d, &h->view, t->rows, t->cols, f->with_bwd, &e), &e);
        d->ops->pack(d, &w, &h->view);
        h->p.view = &h->view;
    }
    if (f->rows == VIEW_ONLY) {
        device_tensor_free(&w);
    } else {
        h->w = w;
        h->p.w16 = &h->w;
    }
}

static void held_close(struct held *h)
{
    device_tensor_free(&h->g);
    device_tensor_free(&h->x);
    device_tensor_free(&h->m);
    device_tensor_free(&h->v);
    device_tensor_free(&h->w);
    device_wview_free(&h->view);
}

/* The weights as rows: those of the view when it is there, checked against the plain ones. */
static uint16_t *held_weights(struct held *h, struct device *d)
{
    int64_t rows = h->g.rows, cols = h->g.cols;
    uint16_t *out = mem_alloc((size_t)(rows * cols) * 2);
    struct tensor w = h->w;
    if (h->p.view) {
        w = make(d, DTYPE_BF16, (int)rows, (int)cols);
        d->ops->unpack(d, &h->view, 0, &w);
    }
    for (int64_t r = 0; r < rows; r++) {
        memcpy(out + r * cols, device_host_row(&w, r), (size_t)cols * 2);
        if (h->p.w16 && h->p.view) {
            assert_memory_equal(device_host_row(&h->w, r), device_host_row(&w, r),
                                (size_t)cols * 2);
        }
    }
    if (h->p.view) {
        device_tensor_free(&w);
    }
    return out;
}

static float *held_master(struct held *h, const uint16_t *w)
{
    int64_t rows = h->g.rows, cols = h->g.cols;
    float *out = mem_alloc((size_t)(rows * cols) * 4);
    for (int64_t i = 0; i < rows * cols; i++) {
        int64_t at = i / cols * h->x.ld + i % cols;
        out[i] = h->x.dtype == DTYPE_F32 ? ((float *)h->x.data)[at]
                                         : dtype_join(w[i], ((int16_t *)h->x.data)[at]);
    }
    return out;
}

static float *held_moment(const struct tensor *t)
{
    float *out = mem_alloc((size_t)(t->rows * t->cols) * 4);
    device_download_f32(t, out);
    return out;
}

static void same(const float *a, const float *b, int64_t n, const char *what, struct device *d,
                 int form)
{
    for (int64_t i = 0; i < n; i++) {
        if (memcmp(&a[i], &b[i], 4) != 0 && !(a[i] != a[i] && b[i] != b[i])) {
            fail_msg("%s %lld on %s, form %d: %.9g, expected %.9g", what, (long long)i, d->isa,
                     form, (double)b[i], (double)a[i]);
        }
    }
}

static void step_twice(struct device *d, struct held *h, const struct start *t)
{
    const struct adam_step s = {3e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.19f, 0.3122499f, 0.73f};
    for (int decay = 0; decay < 2; decay++) {
        for (int r = 0; r < t->rows; r++) {
            memcpy((int64_t *)h->g.data + r * h->g.ld, t->g + (size_t)r * (size_t)t->cols,
                   (size_t)t->cols * 8);
        }
        h->p.decay = decay;
        h->p.key = 77u + (uint32_t)decay;
        d->ops->adamw(d, &h->p, &s);
        for (int r = 0; r < t->rows; r++) {
            for (int c = 0; c < t->cols; c++) {
                /* the gradient is read only */
                assert_true(((int64_t *)h->g.data)[r * h->g.ld + c] == t->g[r * t->cols + c]);
            }
        }
    }
}

/* ---- tests ------------------------------------------------------------------------------------
 */

static const struct form forms[] = {
    {DTYPE_F32, DTYPE_F32, DTYPE_F32, ROWS_ONLY, 0},
    {DTYPE_I16, DTYPE_F32, DTYPE_F32, ROWS_ONLY, 0},
    {DTYPE_I16, DTYPE_F32, DTYPE_F32, ROWS_AND_VIEW, 1},
    {DTYPE_I16, DTYPE_F32, DTYPE_F32, VIEW_ONLY, 1},
    {DTYPE_I16, DTYPE_BF16, DTYPE_BF16, VIEW_ONLY, 0},
    {DTYPE_I16, DTYPE_BF16, DTYPE_F32, ROWS_AND_VIEW, 0},
    {DTYPE_F32, DTYPE_F32, DTYPE_BF16, VIEW_ONLY, 1},
};
#define N_FORMS 7

/* Two steps in every form: each device has the reference's masters, moments and weights, and the
 * masters and weights do not depend on how the master is kept nor where the weight is. */
static void conform(int rows, int cols, enum values kind, uint64_t seed)
{
    struct start t = start_new(rows, cols, kind, seed);
    int64_t n = (int64_t)rows * cols;
    float *first = NULL;
    for (int f = 0; f < N_FORMS; f++) {
        float *want[3] = {NULL, NULL, NULL};
        if (forms[f].rows != ROWS_ONLY && cols % 32 != 0) {
            continue;
        }
        for (int i = 0; i < n_devices; i++) {
            struct device *d = devices[i];
            struct held h;
            float *got[3];
            uint16_t *w;
            held_open(&h, d, &t, &forms[f]);
            step_twice(d, &h, &t);
            w = held_weights(&h, d);
            got[0] = held_master(&h, w);
            got[1] = held_moment(&h.m);
            got[2] = held_moment(&h.v);
            for (int64_t k = 0; k < n; k++) { /* the weight is the rounded master */
                float x = got[0][k];
                assert_true(x != x || w[k] == dtype_to_bf16(x));
            }
            for (int k = 0; k < 3; k++) {
                if (i == 0) {
                    want[k] = got[k];
                } else {
                    same(want[k], got[k], n, k == 0 ? "master" : k == 1 ? "m" : "v", d, f);
                    mem_free(got[k]);
                }
            }
            mem_free(w);
            held_close(&h);
        }
        if (f == 0) {
            first = want[0];
            want[0] = NULL;
        } else if (forms[f].m == DTYPE_F32 && forms[f].v == DTYPE_F32) {
            same(first, want[0], n, "master of another form", devices[0], f);
        }
        for (int k = 0; k < 3; k++) {
            mem_free(want[k]);
        }
    }
    mem_free(first);
    start_free(&t);
}

static void test_forms(void **state)
{
    static const int shapes[][2] = {{1, 33}, {1, 576}, {7, 64}, {47, 96}, {96, 160}, {130, 500}};
    (void)state;
    for (uint64_t i = 0; i < 6; i++) {
        for (enum values v = 0; v < N_VALUES; v++) {
            conform(shapes[i][0], shapes[i][1], v, i * 10 + v);
        }
    }
}

/* The packed forms after a step are those that pack makes of the new rows; a weight without a
 * transpose gives the same input gradient. */
static void test_views(void **state)
{
    static const int shapes[][2] = {{32, 64}, {47, 96}, {130, 352}, {80, 1056}};
    (void)state;
    for (int k = 0; k < 4; k++) {
        struct start t = start_new(shapes[k][0], shapes[k][1], PLAIN, 500 + (uint64_t)k);
        for (int i = 1; i < n_devices; i++) {
            struct device *d = devices[i];
            struct held h;
            struct tensor w = make(d, DTYPE_BF16, t.rows, t.cols), dy, dx[2];
            struct wview fresh, bare;
            uint16_t *rows;
            held_open(&h, d, &t, &forms[3]);
            step_twice(d, &h, &t);
            rows = held_weights(&h, d);
            device_upload_bf16(&w, rows);
            assert_ok(device_wview(d, &fresh, t.rows, t.cols, 1, &e), &e);
            d->ops->pack(d, &w, &fresh);
            assert_memory_equal(fresh.fwd, h.view.fwd, fresh.fwd_size);
            assert_memory_equal(fresh.bwd, h.view.bwd, fresh.bwd_size);

            dy = make(d, DTYPE_BF16, 5, t.rows);
            for (int r = 0; r < 5; r++) {
                for (int c = 0; c < t.rows; c++) {
                    uint64_t s = (uint64_t)(r * 1000 + c);
                    ((uint16_t *)dy.data)[r * dy.ld + c] = dtype_to_bf16(value(&s, PLAIN));
                }
            }
            bare = fresh;
            bare.bwd = NULL;
            for (int b = 0; b < 2; b++) {
                dx[b] = make(d, DTYPE_F32, 5, t.cols);
                d->ops->linear_dx(d, &dy, b ? &bare : &fresh, &dx[b]);
            }
            for (int r = 0; r < 5; r++) {
                assert_memory_equal(device_host_row(&dx[0], r), device_host_row(&dx[1], r),
                                    (size_t)t.cols * 4);
            }
            /* some rows only */
            w.rows = 13 < t.rows - 9 ? 13 : t.rows - 9;
            device_zero(&w);
            d->ops->unpack(d, &fresh, 9, &w);
            for (int r = 0; r < w.rows; r++) {
                assert_memory_equal(device_host_row(&w, r), rows + (size_t)(9 + r) * (size_t)t.cols,
                                    (size_t)t.cols * 2);
            }
            mem_free(rows);
            device_tensor_free(&w);
            device_tensor_free(&dy);
            device_tensor_free(&dx[0]);
            device_tensor_free(&dx[1]);
            device_wview_free(&fresh);
            held_close(&h);
        }
        start_free(&t);
    }
}

/* Every f32 around a few bf16 values comes back from its two halves, but for the stated one. */
static void test_split(void **state)
{
    static const uint32_t tops[] = {0x0000, 0x0001, 0x3f7f, 0x3f80, 0x3f81, 0x7f7e,
                                    0x7f7f, 0x8000, 0xbf80, 0xff7f, 0x0080, 0x7f80};
    (void)state;
    for (size_t i = 0; i < sizeof tops / sizeof *tops; i++) {
        for (uint32_t low = 0; low < 0x10000; low++) {
            uint32_t u = tops[i] << 16 | low, back;
            float f, g;
            uint16_t hi;
            int16_t rem;
            memcpy(&f, &u, 4);
            if (f != f) {
                continue;
            }
            dtype_split(f, &hi, &rem);
            assert_int_equal(hi, dtype_to_bf16(f));
            g = dtype_join(hi, rem);
            memcpy(&back, &g, 4);
            assert_int_equal(back, low == 0x8000 && tops[i] % 2 == 0 ? u - 1 : u);
            assert_int_equal(dtype_to_bf16(g), hi);
        }
    }
}

/* A second moment in bf16 that gets no gradient falls by beta2 each step, in the mean, though a
 * step's change is a quarter of its last place; and it does so in small steps. Two keys differ. */
static void test_mean(void **state)
{
    const struct adam_step s = {1e-4f, 0.9f, 0.999f, 1e-8f, 0.0f, 1.0f, 1.0f, 1.0f};
    const struct form f = {DTYPE_I16, DTYPE_BF16, DTYPE_BF16, ROWS_ONLY, 0};
    struct start t = start_new(64, 256, PLAIN, 9);
    struct device *d = devices[n_devices - 1];
    struct held h;
    double sum = 0.0, want = 1.0, m = 0.0;
    float *v;
    int64_t n = 64 * 256, distinct = 0;
    (void)state;
    for (int64_t i = 0; i < n; i++) {
        t.v[i] = 1.0f;
        t.m[i] = 1.0f;
        t.g[i] = 0;
    }
    held_open(&h, d, &t, &f);
    for (uint32_t step = 0; step < 300; step++) {
        h.p.key = dtype_hash(3, step);
        d->ops->adamw(d, &h.p, &s);
        want *= (double)0.999f;
        if (step == 9) {
            float *p = held_moment(&h.m);
            for (int64_t i = 0; i < n; i++) {
                m += (double)p[i] / (double)n;
            }
            mem_free(p);
        }
    }
    v = held_moment(&h.v);
    for (int64_t i = 0; i < n; i++) {
        sum += (double)v[i];
        distinct += v[i] != v[0];
    }
    assert_true(fabs(sum / (double)n - want) < 0.002 * want); /* 0.741 */
    assert_true(fabs(m - pow(0.9, 10)) < 0.002);
    assert_true(distinct > n / 4);
    mem_free(v);
    held_close(&h);
    start_free(&t);
}

/* The gradient's norm is the same exact sum everywhere, over the whole range of the integers. */
static void test_sumsq(void **state)
{
    (void)state;
    for (int k = 0; k < 3; k++) {
        int rows = k == 0 ? 1 : k == 1 ? 7 : 300, cols = k == 0 ? 33 : k == 1 ? 576 : 500;
        struct start t = start_new(rows, cols, PLAIN, 70 + (uint64_t)k);
        struct exact first;
        for (int r = 0; r < rows; r++) {
            t.g[r * cols] = r % 2 ? INT64_MAX - r : INT64_MIN + r;
        }
        for (int i = 0; i < n_devices; i++) {
            struct device *d = devices[i];
            struct held h;
            struct exact x;
            held_open(&h, d, &t, &forms[0]);
            exact_init(&x);
            d->ops->sumsq(d, &h.g, &x);
            exact_carry(&x);
            assert_true(exact_status(&x) == STATUS_OK && exact_value(&x) > 1e9);
            if (i == 0) {
                first = x;
            }
            assert_memory_equal(first.w, x.w, sizeof x.w);
            held_close(&h);
        }
        start_free(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split), cmocka_unit_test(test_forms), cmocka_unit_test(test_views),
        cmocka_unit_test(test_mean),  cmocka_unit_test(test_sumsq),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
