/* Attention: every instruction set and thread count against the reference bit for bit; windows,
 * soft caps, head dimensions and groups, lengths across page, leaf and segment bounds; chunks and
 * decoding against the whole; accuracy against f64; finite differences. Keys and values are put
 * into pages directly, and what no sequence has written is NaN there. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "num/device_int.h"

#if defined(__SANITIZE_ADDRESS__)
#define SLOW 1
#else
#define SLOW 0
#endif

#define MAX_SEQ 4

struct shape {
    int heads, kv, dim, window;
    float softcap;
    int lens[MAX_SEQ];
    int wild; /* 1: tiny values, products near the smallest normal number; 2: infinities and NaN */
    int on;   /* sequences after the first that go on from it */
};

/* ---- random numbers, devices -------------------------------------------------------------------
 */

static uint64_t rand_state;

static uint64_t rand64(void)
{
    uint64_t z = rand_state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

static float rand_unit(void)
{
    return (float)(rand64() >> 40) * 0x1p-24f;
}

static float rand_value(int wild)
{
    if (wild == 2 && rand64() % 500 == 0) {
        static const float odd[] = {INFINITY, -INFINITY, NAN, 3e38f, -1e30f};
        return odd[rand64() % 5];
    }
    return (rand_unit() + rand_unit() + rand_unit() - 1.5f) * (wild == 1 ? 0x1p-63f : 2.0f);
}

static struct device *open_device(const char *name, const char *isa, int threads, int f32)
{
    struct device *d = NULL;
    struct plan plan;
    struct err e = {0};
    int rc;
    plan_init(&plan, 1, f32);
    rc = device_open(name, isa, threads, &plan, &d, &e);
    if (rc != STATUS_OK) {
        print_message("not tested: %s\n", e.msg);
        return NULL;
    }
    return d;
}

static const char *const isas[] = {"scalar", "avx2", "avx512", "amx"};

/* ---- one problem on one device -----------------------------------------------------------------
 */

struct problem {
    struct attn_shape as;
    int n, nseq;
    struct row_seq seq[MAX_SEQ];
    int32_t *pos, *pages;
    int n_pages;
    struct tensor q, dout, out, lse, dq, dkv;
    struct kv_store kv;
};

static struct tensor filled(struct device *d, enum dtype type, int rows, int cols, int wild)
{
    struct tensor t;
    struct err e = {0};
    float *v = malloc(sizeof *v * (size_t)rows * (size_t)cols);
    for (int i = 0; i < rows * cols; i++) {
        v[i] = rand_value(wild);
    }
    assert_int_equal(device_tensor(d, &t, type, rows, cols, &e), 0);
    device_upload_f32(&t, v);
    free(v);
    return t;
}

static void kv_set(struct kv_store *kv, size_t at, float v)
{
    if (kv->dtype == DTYPE_F32) {
        ((float *)kv->data)[at] = v;
    } else {
        ((uint16_t *)kv->data)[at] = dtype_to_bf16(v);
    }
}

/* The page that the first sequence fills in part, to another's page. */
static void copy_tail(struct problem *p, int from, int to, int n)
{
    for (int h = 0; h < p->kv.n_kv_heads; h++) {
        size_t key = kv_key_offset(&p->kv, from, 1, h), value = kv_value_offset(&p->kv, from, 1, h);
        size_t k2 = kv_key_offset(&p->kv, to, 1, h), v2 = kv_value_offset(&p->kv, to, 1, h);
        for (int i = 0; i < n * p->kv.head_dim; i++) {
            int slot = i % n, c = i / n;
            size_t k = kv_key_index(c, slot), v = kv_value_index(c, slot, p->kv.head_dim);
            size_t z = dtype_size(p->kv.dtype);
            memcpy((char *)p->kv.data + (k2 + k) * z, (char *)p->kv.data + (key + k) * z, z);
            memcpy((char *)p->kv.data + (v2 + v) * z, (char *)p->kv.data + (value + v) * z, z);
        }
    }
}

/* Same numbers on every device for the same shape. */
static void problem_open(struct problem *p, struct device *d, const struct shape *s)
{
    enum dtype half = device_half(d);
    struct err e = {0};
    int page = 1, q_cols = s->heads * s->dim;
    size_t elems;

    memset(p, 0, sizeof *p);
    rand_state = 12345;
    p->as.n_heads = s->heads;
    p->as.n_kv_heads = s->kv;
    p->as.head_dim = s->dim;
    p->as.scale = 1.0f / sqrtf((float)s->dim);
    p->as.window = s->window;
    p->as.softcap = s->softcap;
    for (int i = 0; i < MAX_SEQ && s->lens[i]; i++) {
        p->n_pages += ((i <= s->on ? s->lens[0] : 0) + s->lens[i]) / PLAN_KV_BLOCK + 1;
        p->n += s->lens[i];
        p->nseq++;
    }
    p->n_pages += 2;
    p->pos = malloc(sizeof *p->pos * (size_t)p->n);
    p->pages = malloc(sizeof *p->pages * (size_t)p->n_pages);
    assert_int_equal(device_kv(d, &p->kv, 2, s->kv, s->dim, p->n_pages, &e), 0);
    elems = p->kv.size / dtype_size(p->kv.dtype);
    for (size_t i = 0; i < elems; i++) {
        kv_set(&p->kv, i, s->wild ? NAN : rand_value(0) * 1e20f);
    }
    for (int i = 0, row = 0, at = 0; i < p->nseq; i++) {
        int on = i > 0 && i <= s->on, pos0 = on ? s->lens[0] : 0, tail = pos0 % PLAN_KV_BLOCK;
        p->seq[i] = (struct row_seq){row, s->lens[i], pos0, p->pages + at, on};
        for (int k = 0; k < pos0 / PLAN_KV_BLOCK; k++) {
            p->pages[at++] = p->pages[k];
        }
        for (int t = pos0; t < pos0 + s->lens[i]; t++, row++) {
            p->pos[row] = t;
            if (t % PLAN_KV_BLOCK == 0 || t == pos0) { /* every other page first, then the rest */
                p->pages[at++] = page;
                page = page + 2 < p->n_pages ? page + 2 : 2;
            }
            if (t == pos0 && tail) {
                copy_tail(p, p->pages[pos0 / PLAN_KV_BLOCK], p->pages[at - 1], tail);
            }
            for (int h = 0; h < s->kv; h++) {
                int pg = p->pages[at - 1], slot = t % PLAN_KV_BLOCK;
                for (int c = 0; c < s->dim; c++) {
                    kv_set(&p->kv, kv_key_offset(&p->kv, pg, 1, h) + kv_key_index(c, slot),
                           rand_value(s->wild) * (t >= 1024 ? 2.0f : 1.0f));
                    kv_set(&p->kv,
                           kv_value_offset(&p->kv, pg, 1, h) + kv_value_index(c, slot, s->dim),
                           rand_value(s->wild));
                }
            }
        }
    }
    p->q = filled(d, half, p->n, q_cols, s->wild);
    p->dout = filled(d, half, p->n, q_cols, s->wild);
    p->out = filled(d, half, p->n, q_cols, 0);
    p->lse = filled(d, DTYPE_F32, p->n, s->heads, 0);
    p->dq = filled(d, DTYPE_F32, p->n, q_cols, 0);
    p->dkv = filled(d, DTYPE_F32, p->n, 2 * s->kv * s->dim, 0);
}

static void problem_close(struct problem *p)
{
    struct tensor *all[] = {&p->q, &p->dout, &p->out, &p->lse, &p->dq, &p->dkv};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        device_tensor_free(all[i]);
    }
    device_kv_free(&p->kv);
    free(p->pos);
    free(p->pages);
}

static void forward(struct problem *p, struct device *d)
{
    struct rows rows = {p->n, p->nseq, p->seq, p->pos};
    d->ops->attn(d, &p->q, &p->kv, 1, &p->as, &rows, &p->out, &p->lse);
}

static void backward(struct problem *p, struct device *d)
{
    struct rows rows = {p->n, p->nseq, p->seq, p->pos};
    d->ops->attn_bwd(d, &p->dout, &p->q, &p->out, &p->lse, &p->kv, 1, &p->as, &rows, &p->dq,
                     &p->dkv);
}

/* Bits, but any NaN equals any other. */
static void same(const char *what, const struct shape *s, const struct tensor *a,
                 const struct tensor *b)
{
    for (int64_t r = 0; r < a->rows; r++) {
        const char *x = device_host_row(a, r), *y = device_host_row(b, r);
        size_t size = dtype_size(a->dtype);
        for (int64_t c = 0; c < a->cols; c++, x += size, y += size) {
            float u, v;
            uint16_t h;
            if (memcmp(x, y, size) == 0) {
                continue;
            }
            memcpy(&u, x, 4 < size ? 4 : size);
            memcpy(&v, y, 4 < size ? 4 : size);
            if (a->dtype == DTYPE_BF16) {
                memcpy(&h, x, 2);
                u = dtype_from_bf16(h);
                memcpy(&h, y, 2);
                v = dtype_from_bf16(h);
            }
            if (u == u || v == v) {
                fail_msg("%s (%d, %d): %a, reference %a; heads %d/%d d %d window %d cap %g len %d "
                         "wild %d on %d",
                         what, (int)r, (int)c, (double)u, (double)v, s->heads, s->kv, s->dim,
                         s->window, (double)s->softcap, s->lens[0], s->wild, s->on);
            }
        }
    }
}

/* ---- every device the same ---------------------------------------------------------------------
 */

static void check_shape(const struct shape *s, int with_bwd)
{
    struct device *ref = open_device("ref", "auto", 2, 0);
    struct problem a, b;

    problem_open(&a, ref, s);
    forward(&a, ref);
    if (with_bwd) {
        backward(&a, ref);
    }
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        /* the plain kernels, and values out of the ordinary, with two threads only */
        int few = i == 0 || s->wild;
        for (int threads = few ? 2 : 1; threads <= (few ? 2 : 3); threads++) {
            struct device *d =
                device_has_isa(isas[i]) ? open_device("cpu", isas[i], threads, 0) : 0;
            char what[64];
            if (!d) {
                continue;
            }
            problem_open(&b, d, s);
            forward(&b, d);
            snprintf(what, sizeof what, "out, %s, %d threads", isas[i], threads);
            same(what, s, &b.out, &a.out);
            snprintf(what, sizeof what, "lse, %s, %d threads", isas[i], threads);
            same(what, s, &b.lse, &a.lse);
            if (with_bwd) {
                backward(&b, d);
                snprintf(what, sizeof what, "dq, %s, %d threads", isas[i], threads);
                same(what, s, &b.dq, &a.dq);
                snprintf(what, sizeof what, "dkv, %s, %d threads", isas[i], threads);
                same(what, s, &b.dkv, &a.dkv);
            }
            problem_close(&b);
            device_close(d);
        }
    }
    problem_close(&a);
    device_close(ref);
}

static void test_shapes(void **state)
{
    static const struct shape shapes[] = {
        {3, 1, 64, 0, 0.0f, {65, 7, 1, 110}, 0, 0},
        {2, 2, 32, 0, 0.0f, {63, 64, 130}, 0, 0},
        {2, 1, 80, 0, 0.0f, {70, 33}, 0, 0},
        {4, 1, 96, 0, 30.0f, {90}, 0, 0},
        {2, 1, 128, 50, 0.0f, {131, 49, 50, 51}, 0, 0},
        {1, 1, 256, 64, 50.0f, {100}, 0, 0},
        {8, 1, 32, 1, 0.0f, {80}, 0, 0},
        {6, 2, 64, 63, 20.0f, {129, 64}, 0, 0},
        {2, 1, 32, 65, 0.0f, {300, 257}, 0, 0},
        {1, 1, 32, 256, 5.0f, {520}, 0, 0},
        {3, 1, 32, 0, 0.0f, {513}, 0, 0},
        {1, 1, 16, 100, 0.0f, {260}, 0, 0},
        {3, 1, 64, 0, 0.0f, {300, 32, 33}, 0, 0},
        {1, 1, 64, 0, 0.0f, {400}, 0, 0},
        {2, 1, 64, 40, 0.0f, {330, 129}, 0, 0},
        {2, 2, 64, 100, 0.0f, {290}, 0, 0},
        {2, 1, 64, 20, 0.0f, {310}, 0, 0},
        {4, 1, 64, 1, 0.0f, {70}, 0, 0},
        {2, 1, 64, 256, 0.0f, {515}, 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int wild = 0; wild < 3; wild++) {
            struct shape s = shapes[i];
            s.wild = wild;
            check_shape(&s, 1);
        }
    }
}

/* Sequences that go on from another, which starts the pass: at a page's and a leaf's bounds and
 * beside them, with windows, beside others, and longer than a leaf. */
static void test_bases(void **state)
{
    static const struct shape shapes[] = {
        {3, 1, 64, 0, 0.0f, {44, 16, 1, 15}, .on = 3},
        {6, 2, 64, 0, 0.0f, {64, 33, 70, 40}, .on = 2},
        {2, 1, 32, 0, 0.0f, {129, 2, 64, 63}, .on = 3},
        {2, 1, 64, 40, 0.0f, {90, 100, 3, 20}, .on = 3},
        {2, 2, 64, 300, 0.0f, {257, 300, 20}, .on = 2},
        {1, 1, 64, 0, 0.0f, {1, 256, 257}, .on = 2},
        {2, 1, 80, 0, 10.0f, {63, 5, 30}, .on = 1},
        {1, 1, 32, 20, 0.0f, {70, 60, 1}, .on = 2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int wild = 0; wild < 3; wild++) {
            struct shape s = shapes[i];
            s.wild = wild;
            check_shape(&s, 1);
        }
    }
}

/* Across segments: joined maxima, windows that begin inside one, leaves beyond. */
static void test_segments(void **state)
{
    static const struct shape shapes[] = {
        {1, 1, 32, 0, 0.0f, {1090, 5}, 0, 0},
        {2, 1, 32, 300, 10.0f, {1300}, 0, 0},
        {1, 1, 32, 1024, 0.0f, {2100}, 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        check_shape(&shapes[i], !SLOW && shapes[i].lens[0] < 2000);
    }
}

/* ---- chunks ------------------------------------------------------------------------------------
 */

/* The first sequence's rows [from, n) in chunks against the whole. */
static void check_chunks(struct device *d, const struct shape *s, int from, int chunk)
{
    struct problem p;
    struct tensor whole, lse;
    struct err e = {0};

    problem_open(&p, d, s);
    forward(&p, d);
    assert_int_equal(device_tensor(d, &whole, p.out.dtype, p.n, p.out.cols, &e), 0);
    assert_int_equal(device_tensor(d, &lse, DTYPE_F32, p.n, p.lse.cols, &e), 0);
    d->ops->copy(d, &p.out, &whole);
    d->ops->copy(d, &p.lse, &lse);
    for (int at = from; at < p.seq[0].nrows; at += chunk) {
        int n = p.seq[0].nrows - at < chunk ? p.seq[0].nrows - at : chunk;
        struct row_seq seq = {0, n, at, p.seq[0].pages, 0};
        struct rows rows = {n, 1, &seq, p.pos + at};
        struct tensor q = tensor_rows(&p.q, at, n), out = tensor_rows(&p.out, at, n);
        struct tensor l = tensor_rows(&p.lse, at, n);
        for (int i = 0; i < n; i++) {
            memset((char *)out.data + (size_t)i * (size_t)out.ld * dtype_size(out.dtype), 0xff,
                   (size_t)out.cols * dtype_size(out.dtype));
        }
        d->ops->attn(d, &q, &p.kv, 1, &p.as, &rows, &out, &l);
    }
    same("chunks", s, &p.out, &whole);
    same("lse of chunks", s, &p.lse, &lse);
    device_tensor_free(&whole);
    device_tensor_free(&lse);
    problem_close(&p);
}

static void test_chunks(void **state)
{
    static const struct shape shapes[] = {
        {3, 1, 64, 0, 0.0f, {200}, 0, 0},
        {3, 1, 64, 70, 30.0f, {200}, 1, 0},
        {2, 1, 80, 33, 0.0f, {150}, 0, 0},
    };
    static const struct shape longer = {3, 1, 64, 0, 0.0f, {3300}, 0, 0};
    static const struct shape sliding = {3, 1, 64, 1500, 0.0f, {3300}, 0, 0};
    (void)state;
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        for (int threads = i ? 1 : 2; threads <= (i ? 3 : 2); threads++) {
            struct device *d =
                device_has_isa(isas[i]) ? open_device("cpu", isas[i], threads, 0) : 0;
            if (!d) {
                continue;
            }
            for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
                check_chunks(d, &shapes[k], 0, 1);
                check_chunks(d, &shapes[k], 0, 7);
                check_chunks(d, &shapes[k], 64, 64);
                check_chunks(d, &shapes[k], 0, 100);
            }
            if (i >= 1 && !SLOW) { /* decoding with many segments, split over threads or not */
                check_chunks(d, &longer, 3290, 1);
                check_chunks(d, &longer, 3000, 37);
                check_chunks(d, &sliding, 2990, 100);
                check_chunks(d, &sliding, 3295, 1);
            }
            device_close(d);
        }
    }
}

/* A window that covers everything is no window, whatever else is beside. */
static void test_wide_window(void **state)
{
    struct shape s = {3, 1, 64, 0, 0.0f, {150}, 0, 0};
    struct device *d = open_device("cpu", "auto", 2, 0);
    struct problem a, b;
    (void)state;
    problem_open(&a, d, &s);
    s.window = 150;
    problem_open(&b, d, &s);
    forward(&a, d);
    forward(&b, d);
    backward(&a, d);
    backward(&b, d);
    same("out", &s, &b.out, &a.out);
    same("dq", &s, &b.dq, &a.dq);
    same("dkv", &s, &b.dkv, &a.dkv);
    problem_close(&a);
    problem_close(&b);
    device_close(d);
}

/* ---- accuracy ----------------------------------------------------------------------------------
 */

static double value(const struct tensor *t, int r, int c)
{
    const void *row = device_host_row(t, r);
    return t->dtype == DTYPE_F32 ? (double)((const float *)row)[c]
                                 : (double)dtype_from_bf16(((const uint16_t *)row)[c]);
}

static double kv_value(const struct problem *p, int key, int h, int c, int want_value)
{
    int page = p->seq[0].pages[key / PLAN_KV_BLOCK], slot = key % PLAN_KV_BLOCK;
    size_t at = want_value
                    ? kv_value_offset(&p->kv, page, 1, h) + kv_value_index(c, slot, p->as.head_dim)
                    : kv_key_offset(&p->kv, page, 1, h) + kv_key_index(c, slot);
    return p->kv.dtype == DTYPE_F32 ? (double)((const float *)p->kv.data)[at]
                                    : (double)dtype_from_bf16(((const uint16_t *)p->kv.data)[at]);
}

/* Output and gradients in f64 from the textbook, of the first sequence. */
static void textbook(const struct problem *p, double *out, double *dq, double *dkv)
{
    int n = p->seq[0].nrows, d = p->as.head_dim, nh = p->as.n_heads, nkv = p->as.n_kv_heads;
    double *w = malloc(sizeof *w * (size_t)n), *slope = malloc(sizeof *slope * (size_t)n);
    memset(dkv, 0, sizeof *dkv * (size_t)(n * 2 * nkv * d));
    for (int i = 0; i < n; i++) {
        for (int h = 0; h < nh; h++) {
            int kvh = h / (nh / nkv), j0 = p->as.window ? i - p->as.window + 1 : 0;
            double m = -INFINITY, z = 0.0, mean = 0.0;
            j0 = j0 > 0 ? j0 : 0;
            for (int j = j0; j <= i; j++) {
                w[j] = 0.0;
                for (int c = 0; c < d; c++) {
                    w[j] += value(&p->q, i, h * d + c) * kv_value(p, j, kvh, c, 0);
                }
                w[j] *= (double)p->as.scale;
                slope[j] = 1.0;
                if (p->as.softcap > 0.0f) {
                    double t = tanh(w[j] / (double)p->as.softcap);
                    w[j] = (double)p->as.softcap * t;
                    slope[j] = 1.0 - t * t;
                }
                m = w[j] > m ? w[j] : m;
            }
            for (int j = j0; j <= i; j++) {
                w[j] = exp(w[j] - m);
                z += w[j];
            }
            for (int c = 0; c < d; c++) {
                double o = 0.0;
                for (int j = j0; j <= i; j++) {
                    o += w[j] / z * kv_value(p, j, kvh, c, 1);
                }
                out[i * nh * d + h * d + c] = o;
                dq[i * nh * d + h * d + c] = 0.0;
                mean += o * value(&p->dout, i, h * d + c);
            }
            for (int j = j0; j <= i; j++) {
                double dp = 0.0, ds;
                for (int c = 0; c < d; c++) {
                    dp += value(&p->dout, i, h * d + c) * kv_value(p, j, kvh, c, 1);
                }
                ds = w[j] / z * (dp - mean) * slope[j] * (double)p->as.scale;
                for (int c = 0; c < d; c++) {
                    dq[i * nh * d + h * d + c] += ds * kv_value(p, j, kvh, c, 0);
                    dkv[j * 2 * nkv * d + kvh * d + c] += ds * value(&p->q, i, h * d + c);
                    dkv[j * 2 * nkv * d + (nkv + kvh) * d + c] +=
                        w[j] / z * value(&p->dout, i, h * d + c);
                }
            }
        }
    }
    free(w);
    free(slope);
}

/* Norm of the difference over the norm. */
static double distance(const struct tensor *t, const double *want)
{
    double diff = 0.0, norm = 0.0;
    for (int r = 0; r < (int)t->rows; r++) {
        for (int c = 0; c < (int)t->cols; c++) {
            double w = want[r * (int)t->cols + c], e = value(t, r, c) - w;
            diff += e * e;
            norm += w * w;
        }
    }
    return sqrt(diff / norm);
}

static void check_accuracy(int f32, const struct shape *s, double bound)
{
    struct device *d = open_device("ref", "auto", 2, f32);
    struct problem p;
    double *out, *dq, *dkv, eo, eq, ek;
    size_t cols = (size_t)(s->heads * s->dim), kcols = (size_t)(2 * s->kv * s->dim);

    problem_open(&p, d, s);
    out = malloc(sizeof *out * (size_t)p.n * cols);
    dq = malloc(sizeof *dq * (size_t)p.n * cols);
    dkv = malloc(sizeof *dkv * (size_t)p.n * kcols);
    forward(&p, d);
    backward(&p, d);
    textbook(&p, out, dq, dkv);
    eo = distance(&p.out, out);
    eq = distance(&p.dq, dq);
    ek = distance(&p.dkv, dkv);
    print_message("%s d %d window %d cap %g: out %.2e dq %.2e dkv %.2e\n", f32 ? "f32" : "bf16",
                  s->dim, s->window, (double)s->softcap, eo, eq, ek);
    assert_true(eo < bound && eq < bound && ek < bound);
    free(out);
    free(dq);
    free(dkv);
    problem_close(&p);
    device_close(d);
}

static void test_accuracy(void **state)
{
    static const struct shape shapes[] = {
        {3, 1, 64, 0, 0.0f, {150}, 0, 0},
        {2, 1, 80, 40, 0.0f, {150}, 0, 0},
        {2, 2, 32, 0, 3.0f, {150}, 0, 0},
        {4, 2, 32, 100, 5.0f, {280}, 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        check_accuracy(1, &shapes[i], 2e-6);
        check_accuracy(0, &shapes[i], 1e-2);
    }
}

/* ---- finite differences ------------------------------------------------------------------------
 */

static double loss(struct problem *p, struct device *d)
{
    double sum = 0.0;
    forward(p, d);
    for (int r = 0; r < p->n; r++) {
        for (int c = 0; c < (int)p->out.cols; c++) {
            sum += value(&p->out, r, c) * value(&p->dout, r, c);
        }
    }
    return sum;
}

static void check_slope(struct problem *p, struct device *d, float *x, double want,
                        const char *what)
{
    float keep = *x, h = 1e-2f;
    double up, down, got;
    *x = keep + h;
    up = loss(p, d);
    *x = keep - h;
    down = loss(p, d);
    *x = keep;
    got = (up - down) / (2.0 * (double)h);
    if (fabs(got - want) > 2e-3 * (1.0 + fabs(want))) {
        fail_msg("%s: finite difference %g, gradient %g", what, got, want);
    }
}

static void test_differences(void **state)
{
    static const struct shape shapes[] = {
        {2, 1, 32, 0, 0.0f, {70}, 0, 0},
        {2, 1, 32, 9, 0.0f, {70}, 0, 0},
        {2, 1, 32, 0, 2.0f, {40}, 0, 0},
        {4, 2, 16, 20, 1.5f, {70}, 0, 0},
    };
    struct device *d = open_device("ref", "auto", 2, 1);
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const struct shape *s = &shapes[i];
        struct problem p;
        problem_open(&p, d, s);
        forward(&p, d);
        backward(&p, d);
        for (int k = 0; k < 12; k++) {
            int r = (int)(rand64() % (uint64_t)p.n), c = (int)(rand64() % (uint64_t)p.q.cols);
            int h = (int)(rand64() % (uint64_t)s->kv), e = (int)(rand64() % (uint64_t)s->dim);
            int page = p.seq[0].pages[r / PLAN_KV_BLOCK], slot = r % PLAN_KV_BLOCK;
            float *data = p.kv.data;
            check_slope(&p, d, (float *)p.q.data + r * p.q.ld + c, value(&p.dq, r, c), "dq");
            check_slope(&p, d, data + kv_key_offset(&p.kv, page, 1, h) + kv_key_index(e, slot),
                        value(&p.dkv, r, h * s->dim + e), "dk");
            check_slope(&p, d,
                        data + kv_value_offset(&p.kv, page, 1, h) + kv_value_index(e, slot, s->dim),
                        value(&p.dkv, r, (s->kv + h) * s->dim + e), "dv");
        }
        problem_close(&p);
    }
    device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),      cmocka_unit_test(test_bases),
        cmocka_unit_test(test_segments),    cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_wide_window), cmocka_unit_test(test_accuracy),
        cmocka_unit_test(test_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
