/* One suite of every operation, forward and backward, over every device: ref, cpu with each
 * instruction set of this machine, torch:cpu. The cpu must give the reference's bits. torch
 * promises no bits: its results must lie within a tolerance of the reference, given per result
 * below, once in bf16 and once in f32 without any rounding to bf16 (where cpu has no plan).
 *
 * A tolerance bounds |x - ref| / |ref| over the whole result (2-norms); the worst single value may
 * be off by 16 times that, relative to the largest value. What the bounds are made of:
 *
 * F32: both sides compute in f32 in different orders: a few 1e-7 times the root of the number of
 * terms, so 1e-5.
 *
 * ROUND: one rounding to bf16 of nearly equal f32 values: most are equal, those near a tie differ
 * by one unit, 2^-8 of the value. 2^-9 of the norm is far above what ties can make.
 *
 * TWICE: one side rounds once more inside: torch the product before it adds the residual, the
 * reference the probabilities before they weigh the values. Half a unit, 2^-9, on both.
 *
 * EXACT: moving values, 0.
 *
 * libtorch is taken from the venv that MILES_ORACLES names, where it must be there; else from the
 * system or python3's torch, and when there is none that part is skipped and says so. */
#include "support.h"

#include <glob.h>
#include <math.h>

#include "base/status.h"
#include "base/thread.h"
#include "num/device.h"
#include "num/exact.h"

#if defined(__SANITIZE_ADDRESS__)
#define ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#define ADDRESS_SANITIZER __has_feature(address_sanitizer)
#else
#define ADDRESS_SANITIZER 0
#endif

#define EXACT 0.0
#define F32   1e-5
#define ROUND 0x1p-9
#define TWICE 0x1p-8

/* ---- devices -----------------------------------------------------------------------------------
 */

#define MAX_DEVICES 8

static struct device *devices[2][MAX_DEVICES]; /* bf16 and f32 plans; the first is the reference */
static int n_devices[2];

static int add_device(const char *name, const char *how, int f32)
{
    struct plan plan;
    struct err e = {0};
    int rc;

    plan_init(&plan, 2, f32);
    assert_true(n_devices[f32] < MAX_DEVICES);
    rc = device_open(name, how, 2, &plan, &devices[f32][n_devices[f32]], &e);
    if (rc != STATUS_OK) {
        fprintf(stderr, "SKIP: %s %s is not tested: %s\n", name, how ? how : "", e.msg);
        return rc;
    }
    n_devices[f32]++;
    return STATUS_OK;
}

/* The folder of libtorch in the venv of the oracles; NULL when MILES_ORACLES is not set. */
static const char *oracle_libtorch(void)
{
    static char found[1024];
    const char *root = getenv("MILES_ORACLES");
    char pattern[1024];
    glob_t g;

    if (!root || !*root) {
        return NULL;
    }
    snprintf(pattern, sizeof pattern, "%s/lib/python3*/site-packages/torch/lib", root);
    if (glob(pattern, 0, NULL, &g) != 0) {
        fail_msg("MILES_ORACLES is set, but %s does not exist", pattern);
    }
    snprintf(found, sizeof found, "%s", g.gl_pathv[0]);
    globfree(&g);
    return found;
}

static int open_all(void **state)
{
    static const char *const isas[] = {"scalar", "avx2", "avx512", "amx"};
    const char *lib = oracle_libtorch();
    (void)state;

    assert_int_equal(add_device("ref", NULL, 0), STATUS_OK);
    assert_int_equal(add_device("ref", NULL, 1), STATUS_OK);
    for (int i = 0; i < 4; i++) {
        if (device_has_isa(isas[i])) {
            add_device("cpu", isas[i], 0);
        }
    }
    assert_true(n_devices[0] >= 2);
    for (int f32 = 0; f32 < 2; f32++) {
        int rc = add_device("torch:cpu", lib, f32);
        if (rc != STATUS_OK && lib) {
            fail_msg("MILES_ORACLES is set, but its libtorch does not open");
        }
        for (int i = 0; i < n_devices[f32]; i++) {
            print_message("%s %s%s\n", devices[f32][i]->name, devices[f32][i]->isa,
                          f32 ? ", f32" : "");
        }
    }
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    for (int f32 = 0; f32 < 2; f32++) {
        while (n_devices[f32]) {
            device_close(devices[f32][--n_devices[f32]]);
        }
    }
    return 0;
}

/* ---- values and results ------------------------------------------------------------------------
 */

static uint64_t rand_state;

static uint64_t rand64(void)
{
    uint64_t z = rand_state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

static int rand_below(int n)
{
    return (int)(rand64() % (uint64_t)n);
}

/* About normal with the given spread, a bf16 number. */
static float rand_value(float spread)
{
    float s = 0.0f;
    for (int i = 0; i < 4; i++) {
        s += (float)(rand64() >> 40) * 0x1p-24f - 0.5f;
    }
    return dtype_from_bf16(dtype_to_bf16(s * 1.7f * spread));
}

#define MAX_PARTS 48

/* What a case made on one device. */
struct result {
    struct {
        const char *name;
        double tol; /* of torch */
        float *v;
        int64_t n;
    } part[MAX_PARTS];
    int n;
};

static struct tensor make(struct device *d, enum dtype type, int64_t rows, int64_t cols)
{
    struct tensor t;
    struct err e = {0};
    assert_ok(device_tensor(d, &t, type, rows, cols, &e), &e);
    return t;
}

static struct tensor filled(struct device *d, enum dtype type, int64_t rows, int64_t cols,
                            float spread)
{
    struct tensor t = make(d, type, rows, cols);
    float *v = malloc(sizeof *v * (size_t)(rows * cols));
    for (int64_t i = 0; i < rows * cols; i++) {
        v[i] = rand_value(spread);
    }
    device_upload_f32(&t, v);
    free(v);
    return t;
}

static struct tensor half(struct device *d, int64_t rows, int64_t cols, float spread)
{
    return filled(d, device_half(d), rows, cols, spread);
}

static struct tensor half_empty(struct device *d, int64_t rows, int64_t cols)
{
    return make(d, device_half(d), rows, cols);
}

static float *part_room(struct result *out, const char *name, double tol, int64_t n)
{
    assert_true(out->n < MAX_PARTS);
    out->part[out->n].name = name;
    out->part[out->n].tol = tol;
    out->part[out->n].n = n;
    out->part[out->n].v = malloc(sizeof(float) * (size_t)n);
    return out->part[out->n++].v;
}

/* Keeps a tensor's values; tol is that of the bf16 plan, the f32 plan has F32 unless it is 0. */
static void keep(struct result *out, const char *name, double tol, const struct tensor *t)
{
    device_download_f32(t, part_room(out, name, tol, t->rows * t->cols));
}

static void take(struct result *out, const char *name, double tol, struct tensor *t)
{
    keep(out, name, tol, t);
    device_tensor_free(t);
}

static void keep_values(struct result *out, const char *name, double tol, const float *v, int64_t n)
{
    memcpy(part_room(out, name, tol, n), v, sizeof *v * (size_t)n);
}

static void compare_bits(const char *what, const struct device *d, const struct result *a,
                         const struct result *b)
{
    for (int i = 0; i < b->n; i++) {
        for (int64_t k = 0; k < b->part[i].n; k++) {
            if (memcmp(&a->part[i].v[k], &b->part[i].v[k], sizeof(float)) != 0) {
                fail_msg("%s, %s on %s %s: value %lld is %a, the reference has %a", what,
                         b->part[i].name, d->name, d->isa, (long long)k, (double)a->part[i].v[k],
                         (double)b->part[i].v[k]);
            }
        }
    }
}

static void compare_near(const char *what, const struct device *d, const struct result *a,
                         const struct result *b)
{
    for (int i = 0; i < b->n; i++) {
        double tol = b->part[i].tol, diff = 0, norm = 0, worst = 0, top = 0;
        if (d->plan.f32 && tol > F32) {
            tol = F32;
        }
        for (int64_t k = 0; k < b->part[i].n; k++) {
            double x = a->part[i].v[k], r = b->part[i].v[k];
            double e = x == r ? 0.0 : fabs(x - r);
            diff += e * e;
            norm += r * r;
            worst = !(e <= worst) ? e : worst;
            top = fabs(r) > top ? fabs(r) : top;
        }
        if (getenv("CONFORM_VERBOSE")) {
            print_message("%-28s %-28s %s %.2e of %.2e, worst %.2e\n", what, b->part[i].name,
                          d->plan.f32 ? "f32 " : "bf16", sqrt(diff / (norm > 0 ? norm : 1)), tol,
                          worst / (top > 0 ? top : 1));
        }
        if (!(sqrt(diff) <= tol * sqrt(norm) && worst <= 16.0 * tol * top)) {
            fail_msg("%s, %s on %s (%s): off by %.3g of its norm, worst value by %.3g of the "
                     "largest; %.3g is allowed",
                     what, b->part[i].name, d->name, d->plan.f32 ? "f32" : "bf16",
                     sqrt(diff / norm), worst / top, tol);
        }
    }
}

static void drop(struct result *r)
{
    while (r->n) {
        free(r->part[--r->n].v);
    }
}

/* Runs a case on every device with the same values and compares. */
static void conform(const char *what, void (*fn)(struct device *, const void *, struct result *),
                    const void *arg)
{
    for (int f32 = 0; f32 < 2; f32++) {
        struct result ref = {.n = 0}, r = {.n = 0};
        for (int i = 0; i < n_devices[f32]; i++) {
            struct device *d = devices[f32][i];
            struct err e = {0};
            rand_state = 20;
            fn(d, arg, i ? &r : &ref);
            assert_ok(device_fault(d, &e), &e);
            if (i == 0) {
                continue;
            }
            assert_int_equal(r.n, ref.n);
            if (strcmp(d->name, "cpu") == 0) {
                compare_bits(what, d, &r, &ref);
            } else {
                compare_near(what, d, &r, &ref);
            }
            drop(&r);
        }
        drop(&ref);
    }
}

/* ---- products ----------------------------------------------------------------------------------
 */

struct product {
    int m, n, k;
};

static void case_linear(struct device *d, const void *arg, struct result *out)
{
    const struct product *s = arg;
    static const int32_t bounds[] = {0, 3, 4, 1000};
    int32_t start[4];
    struct leaf_rows leaves = {3, start};
    struct tensor x = half(d, s->m, s->k, 1), w = half(d, s->n, s->k, 0.1f);
    struct tensor bias = half(d, 1, s->n, 1), res = half(d, s->m, s->n, 1);
    struct tensor dy = half(d, s->m, s->n, 1);
    struct tensor y = half_empty(d, s->m, s->n), z = make(d, DTYPE_F32, s->m, s->n);
    struct tensor dx = half_empty(d, s->m, s->k), dz = make(d, DTYPE_F32, s->m, s->k);
    struct tensor g = make(d, DTYPE_I64, s->n, s->k), gb = make(d, DTYPE_I64, 1, s->n);
    struct wview v;
    struct err e = {0};

    for (int i = 0; i < 4; i++) {
        start[i] = bounds[i] < s->m ? bounds[i] : s->m;
    }
    assert_ok(device_wview(d, &v, s->n, s->k, 1, &e), &e);
    d->ops->pack(d, &w, &v);
    d->ops->linear(d, &x, &v, NULL, NULL, &y);
    keep(out, "linear", ROUND, &y);
    d->ops->linear(d, &x, &v, &bias, NULL, &y);
    keep(out, "linear with bias", ROUND, &y);
    d->ops->linear(d, &x, &v, &bias, &res, &y);
    keep(out, "linear with residual", TWICE, &y);
    d->ops->linear(d, &x, &v, NULL, &y, &y);
    keep(out, "linear onto itself", TWICE, &y);
    d->ops->linear(d, &x, &v, NULL, NULL, &z);
    keep(out, "linear to f32", F32, &z);
    d->ops->linear_dx(d, &dy, &v, &dx);
    keep(out, "linear_dx", ROUND, &dx);
    d->ops->linear_dx(d, &dy, &v, &dz);
    keep(out, "linear_dx to f32", F32, &dz);
    for (int i = 0; i < 2; i++) { /* the second call adds */
        d->ops->linear_dw(d, &dy, &x, &leaves, &g);
        d->ops->bias_dw(d, &dy, &leaves, &gb);
    }
    keep(out, "linear_dw", F32, &g);
    keep(out, "bias_dw", F32, &gb);
    device_zero(&g);
    take(out, "zero", EXACT, &g);
    device_tensor_free(&gb);
    device_tensor_free(&x);
    device_tensor_free(&w);
    device_tensor_free(&bias);
    device_tensor_free(&res);
    device_tensor_free(&dy);
    device_tensor_free(&y);
    device_tensor_free(&z);
    device_tensor_free(&dx);
    device_tensor_free(&dz);
    device_wview_free(&v);
}

static void test_linear(void **state)
{
    static const struct product shapes[] = {
        {1, 64, 32}, {5, 96, 160}, {33, 500, 576}, {3, 2000, 576}};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        conform("products", case_linear, &shapes[i]);
    }
}

/* ---- norms and activations ---------------------------------------------------------------------
 */

static void case_norm(struct device *d, const void *arg, struct result *out)
{
    const struct product *s = arg;
    int32_t start[] = {0, s->m / 2, s->m};
    struct leaf_rows leaves = {2, start};
    struct tensor x = half(d, s->m, s->n, 2), w = half(d, 1, s->n, 1), dy = half(d, s->m, s->n, 1);
    struct tensor res = half(d, s->m, s->n, 1);

    for (int plus = 0; plus < 2; plus++) {
        struct norm norm = {&w, 1e-5f, plus};
        struct tensor y = half_empty(d, s->m, s->n), rstd = make(d, DTYPE_F32, s->m, 1);
        struct tensor dx = filled(d, DTYPE_F32, s->m, s->n, 1), g = make(d, DTYPE_I64, 1, s->n);
        d->ops->rmsnorm(d, &x, &norm, plus ? &res : NULL, &y, &rstd);
        keep(out, "rmsnorm", ROUND, &y);
        d->ops->rmsnorm(d, &x, &norm, NULL, &y, NULL);
        d->ops->rmsnorm_bwd(d, &dy, &x, &norm, &rstd, &leaves, &dx, &g);
        take(out, "rmsnorm without rstd", ROUND, &y);
        take(out, "rstd", F32, &rstd);
        take(out, "rmsnorm_bwd", F32, &dx);
        take(out, "rmsnorm_bwd weight", F32, &g);
    }
    device_tensor_free(&x);
    device_tensor_free(&w);
    device_tensor_free(&dy);
    device_tensor_free(&res);
}

static void case_glu(struct device *d, const void *arg, struct result *out)
{
    const struct product *s = arg;
    struct tensor gu = half(d, s->m, 2 * s->n, 2), dy = half(d, s->m, s->n, 1);
    for (int i = 0; i < 2; i++) {
        enum act act = i ? ACT_GELU_TANH : ACT_SILU;
        struct tensor y = half_empty(d, s->m, s->n), dgu = half_empty(d, s->m, 2 * s->n);
        d->ops->glu(d, &gu, act, &y);
        d->ops->glu_bwd(d, &dy, &gu, act, &dgu);
        take(out, i ? "glu gelu" : "glu silu", ROUND, &y);
        take(out, i ? "glu_bwd gelu" : "glu_bwd silu", ROUND, &dgu);
    }
    device_tensor_free(&gu);
    device_tensor_free(&dy);
}

static void test_norm(void **state)
{
    static const struct product shapes[] = {{1, 32, 0}, {7, 576, 0}, {40, 96, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        conform("norms", case_norm, &shapes[i]);
        conform("activations", case_glu, &shapes[i]);
    }
}

/* ---- rope and attention ------------------------------------------------------------------------
 */

struct heads {
    struct attn_shape shape;
    int normed, plus_one;
    int len[4]; /* tokens of each sequence, 0 ends */
    int on;     /* 1: the others go on from the first */
};

#define PAGES     12
#define POSITIONS 400

struct attn_run {
    struct device *d;
    const struct heads *s;
    struct kv_store kv;
    struct tensor cos, sin, qw, kw;
    struct norm qn, kn;
    int32_t pages[4][8];
};

static void attn_run_open(struct attn_run *a, struct device *d, const struct heads *s)
{
    const struct attn_shape *h = &s->shape;
    struct err e = {0};
    int page = 0;

    memset(a, 0, sizeof *a);
    a->d = d;
    a->s = s;
    assert_ok(device_kv(d, &a->kv, 2, h->n_kv_heads, h->head_dim, PAGES + 1, &e), &e);
    a->cos = filled(d, DTYPE_F32, POSITIONS, h->rot / 2, 0.7f);
    a->sin = filled(d, DTYPE_F32, POSITIONS, h->rot / 2, 0.7f);
    a->qw = half(d, 1, h->head_dim, 1);
    a->kw = half(d, 1, h->head_dim, 1);
    a->qn = (struct norm){&a->qw, 1e-6f, s->plus_one};
    a->kn = (struct norm){&a->kw, 1e-5f, s->plus_one};
    for (int i = 0; i < 4 && s->len[i]; i++) {
        int base = s->on && i ? s->len[0] : 0;
        for (int p = 0; p * PLAN_KV_BLOCK < base + s->len[i]; p++) {
            /* pages in no order */
            a->pages[i][p] = p < base / PLAN_KV_BLOCK ? a->pages[0][p] : (page++ * 5 + 3) % PAGES;
        }
    }
    assert_true(page <= PAGES);
}

static void attn_run_close(struct attn_run *a)
{
    device_kv_free(&a->kv);
    device_tensor_free(&a->cos);
    device_tensor_free(&a->sin);
    device_tensor_free(&a->qw);
    device_tensor_free(&a->kw);
}

/* Tokens [from, to) of every sequence that has them, as one batch; layer 1 of two. */
static struct rows attn_rows(const struct attn_run *a, int from, int to, struct row_seq *seq,
                             int32_t *pos)
{
    struct rows r = {0, 0, seq, pos};
    for (int i = 0; i < 4 && a->s->len[i]; i++) {
        int on = a->s->on && i, base = on ? a->s->len[0] : 0;
        int end = base + (to < a->s->len[i] ? to : a->s->len[i]);
        if (from >= end) {
            continue;
        }
        seq[r.nseq++] = (struct row_seq){r.n, end - base - from, base + from, a->pages[i], on};
        for (int p = base + from; p < end; p++) {
            pos[r.n++] = p;
        }
    }
    return r;
}

static void attn_forward(struct attn_run *a, const struct rows *r, const struct tensor *qkv,
                         struct tensor *q, struct tensor *o, struct tensor *lse)
{
    const struct norm *qn = a->s->normed ? &a->qn : NULL, *kn = a->s->normed ? &a->kn : NULL;
    a->d->ops->rope_kv(a->d, qkv, qn, kn, &a->cos, &a->sin, &a->s->shape, r, &a->kv, 1, q);
    a->d->ops->attn(a->d, q, &a->kv, 1, &a->s->shape, r, o, lse);
}

/* Whole sequences, forward and backward. */
static void case_attn(struct device *d, const void *arg, struct result *out)
{
    const struct heads *s = arg;
    const struct attn_shape *h = &s->shape;
    int nq = h->n_heads * h->head_dim, nkv = h->n_kv_heads * h->head_dim;
    struct row_seq seq[4];
    int32_t pos[4 * POSITIONS], start[3] = {0};
    struct leaf_rows leaves = {2, start};
    struct attn_run a;
    struct tensor qkv, q, o, lse, dout, dq, dkv, dqkv, gq, gk;
    struct rows r;

    attn_run_open(&a, d, s);
    r = attn_rows(&a, 0, POSITIONS, seq, pos);
    start[1] = r.n / 2;
    start[2] = r.n;
    qkv = half(d, r.n, nq + 2 * nkv, 1);
    dout = half(d, r.n, nq, 1);
    q = half_empty(d, r.n, nq);
    o = half_empty(d, r.n, nq);
    lse = make(d, DTYPE_F32, r.n, h->n_heads);
    dq = make(d, DTYPE_F32, r.n, nq);
    dkv = make(d, DTYPE_F32, r.n, 2 * nkv);
    dqkv = half_empty(d, r.n, nq + 2 * nkv);
    gq = make(d, DTYPE_I64, 1, h->head_dim);
    gk = make(d, DTYPE_I64, 1, h->head_dim);
    attn_forward(&a, &r, &qkv, &q, &o, &lse);
    keep(out, "rope, queries", ROUND, &q);
    keep(out, "attn", TWICE, &o);
    keep(out, "attn lse", d->plan.f32 ? F32 : ROUND, &lse);
    d->ops->attn_bwd(d, &dout, &q, &o, &lse, &a.kv, 1, h, &r, &dq, &dkv);
    /* q, k, v and out were rounded on the way in: they may differ by a unit */
    keep(out, "attn_bwd queries", TWICE, &dq);
    keep(out, "attn_bwd keys and values", TWICE, &dkv);
    d->ops->rope_kv_bwd(d, &dq, &dkv, &qkv, s->normed ? &a.qn : NULL, s->normed ? &a.kn : NULL,
                        &a.cos, &a.sin, h, &r, &leaves, &dqkv, s->normed ? &gq : NULL,
                        s->normed ? &gk : NULL);
    take(out, "rope_kv_bwd", TWICE, &dqkv);
    take(out, "rope_kv_bwd query norm", TWICE, &gq);
    take(out, "rope_kv_bwd key norm", TWICE, &gk);
    device_tensor_free(&qkv);
    device_tensor_free(&dout);
    device_tensor_free(&q);
    device_tensor_free(&o);
    device_tensor_free(&lse);
    device_tensor_free(&dq);
    device_tensor_free(&dkv);
    attn_run_close(&a);
}

/* The same tokens in a prefill of 70 and then one by one (decode), from copied pages at the end. */
static void case_decode(struct device *d, const void *arg, struct result *out)
{
    const struct heads *s = arg;
    const struct attn_shape *h = &s->shape;
    int nq = h->n_heads * h->head_dim, nkv = h->n_kv_heads * h->head_dim;
    struct row_seq seq[4];
    int32_t pos[4 * POSITIONS];
    struct attn_run a;

    attn_run_open(&a, d, s);
    for (int from = 0, to = 70; to < 76; from = to, to++) {
        struct rows r = attn_rows(&a, from, to, seq, pos);
        struct tensor qkv, q, o;
        if (to == 75) { /* the first sequence goes on with a copy of its last page */
            int last = (to - 1) / PLAN_KV_BLOCK;
            device_kv_copy(&a.kv, a.pages[0][last], PAGES);
            a.pages[0][last] = PAGES;
        }
        qkv = half(d, r.n, nq + 2 * nkv, 1);
        q = half_empty(d, r.n, nq);
        o = half_empty(d, r.n, nq);
        attn_forward(&a, &r, &qkv, &q, &o, NULL);
        take(out, from ? "decode" : "prefill", TWICE, &o);
        device_tensor_free(&qkv);
        device_tensor_free(&q);
    }
    attn_run_close(&a);
}

static void test_attn(void **state)
{
    static const struct heads cases[] = {
        {{.n_heads = 3, .n_kv_heads = 3, .head_dim = 32, .scale = 0.18f, .rot = 32},
         .len = {90, 1, 30}},
        {{.n_heads = 6, .n_kv_heads = 2, .head_dim = 64, .scale = 0.125f, .rot = 64},
         .normed = 1,
         .len = {130, 250}},
        {{.n_heads = 4, .n_kv_heads = 1, .head_dim = 64, .scale = 0.1f, .window = 37, .rot = 32},
         .len = {140, 80}},
        {{.n_heads = 4,
          .n_kv_heads = 2,
          .head_dim = 64,
          .scale = 0.125f,
          .window = 64,
          .softcap = 5.0f,
          .rot = 64},
         .normed = 1,
         .plus_one = 1,
         .len = {150, 77}},
        {{.n_heads = 2,
          .n_kv_heads = 2,
          .head_dim = 64,
          .scale = 0.125f,
          .softcap = 20.0f,
          .rot = 32,
          .interleaved = 1},
         .len = {100, 75, 64}},
        {{.n_heads = 6, .n_kv_heads = 2, .head_dim = 64, .scale = 0.125f, .rot = 64},
         .len = {70, 20, 1, 65},
         .on = 1},
        {{.n_heads = 2, .n_kv_heads = 1, .head_dim = 32, .scale = 0.2f, .window = 40, .rot = 32},
         .normed = 1,
         .len = {64, 30, 70},
         .on = 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        conform("attention", case_attn, &cases[i]);
        if (!cases[i].on) {
            conform("decoding", case_decode, &cases[i]);
        }
    }
}

/* ---- log-probs ---------------------------------------------------------------------------------
 */

static void case_logp(struct device *d, const void *arg, struct result *out)
{
    const struct product *s = arg;
    static const struct logit_spec specs[] = {
        {1.0f, 0.0f}, {0.7f, 0.0f}, {0.0f, 0.0f}, {0.9f, 4.0f}};
    struct leafset leaves;
    float g[64], ge[64], logp[64] = {0}, max[64], logz[64], entropy[64];
    int32_t target[64];

    plan_leafset_one(&leaves, s->n);
    for (int r = 0; r < s->m; r++) {
        g[r] = rand_value(1);
        ge[r] = rand_value(0.01f);
        target[r] = r % 4 == 2 ? -1 : rand_below(s->n);
    }
    for (int i = 0; i < 4; i++) {
        struct tensor x = filled(d, DTYPE_F32, s->m, s->n, 4), dx = half_empty(d, s->m, s->n);
        struct tensor dx2 = half_empty(d, s->m, s->n), ex = make(d, DTYPE_F32, s->m, s->n);
        d->ops->logp(d, &x, &specs[i], target, &leaves, logp, max, logz, entropy);
        keep_values(out, "logp", F32, logp, s->m);
        keep_values(out, "max", F32, max, s->m);
        keep_values(out, "logz", F32, logz, s->m);
        keep_values(out, "entropy", F32, entropy, s->m);
        d->ops->logp_bwd(d, &x, &specs[i], target, max, logz, entropy, g, ge, &dx);
        d->ops->logp_bwd(d, &x, &specs[i], target, max, logz, NULL, g, NULL, &dx2);
        d->ops->exps(d, &x, max, &ex);
        take(out, "logits", F32, &x);
        take(out, "logp_bwd", ROUND, &dx);
        take(out, "logp_bwd without entropy", ROUND, &dx2);
        take(out, "exps", F32, &ex);
    }
}

/* Masked tokens have a logit of minus infinity: no probability, no NaN. */
static void case_logp_masked(struct device *d, const void *arg, struct result *out)
{
    static const float row[] = {1.0f, -INFINITY, 2.0f, 0.5f, -INFINITY, -1.0f, 3.0f, 0.0f};
    static const int32_t target = 2;
    static const float g = 0.5f, ge = 0.25f;
    struct logit_spec spec = {1.0f, 0.0f};
    struct leafset leaves;
    struct tensor x = make(d, DTYPE_F32, 1, 8), dx = half_empty(d, 1, 8);
    float logp, max, logz, entropy;
    (void)arg;
    plan_leafset_one(&leaves, 8);
    device_upload_f32(&x, row);
    d->ops->logp(d, &x, &spec, &target, &leaves, &logp, &max, &logz, &entropy);
    keep_values(out, "logp", F32, &logp, 1);
    keep_values(out, "entropy", F32, &entropy, 1);
    d->ops->logp_bwd(d, &x, &spec, &target, &max, &logz, &entropy, &g, &ge, &dx);
    take(out, "logp_bwd", ROUND, &dx);
    device_tensor_free(&x);
}

static void test_logp(void **state)
{
    static const struct product shapes[] = {{1, 64, 0}, {9, 1000, 0}, {9, 60000, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        conform("log-probs", case_logp, &shapes[i]);
    }
    conform("masked log-probs", case_logp_masked, NULL);
}

/* ---- rows --------------------------------------------------------------------------------------
 */

static void case_rows(struct device *d, const void *arg, struct result *out)
{
    const struct product *s = arg;
    struct tensor table = half(d, s->k, s->n, 1), dy = filled(d, DTYPE_F32, s->m, s->n, 1);
    struct tensor y = half_empty(d, s->m, s->n), z = make(d, DTYPE_F32, s->k, s->n);
    struct tensor g = make(d, DTYPE_I64, s->k, s->n), b = half_empty(d, s->m, s->n);
    struct tensor part;
    int32_t ids[64], rows[64];

    for (int r = 0; r < s->m; r++) {
        ids[r] = rand_below(s->k / 2); /* some twice */
        rows[r] = s->k - 1 - r;
    }
    d->ops->embed(d, &table, ids, 1.0f, &y);
    keep(out, "embed", EXACT, &y);
    d->ops->embed(d, &table, ids, 5.5f, &y);
    keep(out, "embed, scaled", ROUND, &y);
    d->ops->embed_bwd(d, &dy, ids, 1.0f, &g);
    d->ops->embed_bwd(d, &dy, ids, 3.0f, &g);
    take(out, "embed_bwd", F32, &g);
    d->ops->gather(d, &table, ids, &y);
    keep(out, "gather", EXACT, &y);
    d->ops->scatter(d, &dy, rows, &z);
    keep(out, "scatter", EXACT, &z);
    for (int r = 1; r < s->m; r++) {
        rows[r] = r % 3 ? rows[r] : rows[0];
    }
    d->ops->scatter(d, &dy, rows, &z);
    keep(out, "scatter sums", F32, &z);
    part = tensor_rows(&z, s->k - s->m, s->m);
    d->ops->copy(d, &dy, &part);
    take(out, "copy into rows", EXACT, &z);
    d->ops->convert(d, &dy, &b);
    take(out, "convert", EXACT, &b);
    device_tensor_free(&table);
    device_tensor_free(&dy);
    device_tensor_free(&y);
}

static void test_rows(void **state)
{
    static const struct product shapes[] = {{1, 24, 40}, {31, 100, 90}, {60, 576, 200}};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        conform("rows", case_rows, &shapes[i]);
    }
}

/* ---- optimizer ---------------------------------------------------------------------------------
 */

/* A gradient comes from embed_bwd: the only way in that all devices share. */
static struct tensor some_grad(struct device *d, int m, int n)
{
    struct tensor g = make(d, DTYPE_I64, m, n), dy = filled(d, DTYPE_F32, m, n, 0.1f);
    int32_t ids[64];
    for (int i = 0; i < m; i++) {
        ids[i] = i;
    }
    d->ops->embed_bwd(d, &dy, ids, 1.0f, &g);
    device_tensor_free(&dy);
    return g;
}

static void case_optimizer(struct device *d, const void *arg, struct result *out)
{
    const struct product *s = arg;
    struct tensor p = filled(d, DTYPE_F32, s->m, s->n, 1), m = make(d, DTYPE_F32, s->m, s->n);
    struct tensor v = make(d, DTYPE_F32, s->m, s->n), w = half_empty(d, s->m, s->n);
    struct adam_step step = {3e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.19f, 0.3122499f, 0.73f};
    struct exact x;
    float sum;

    for (int decay = 0; decay < 2; decay++) {
        struct tensor g = some_grad(d, s->m, s->n);
        exact_init(&x);
        d->ops->sumsq(d, &g, &x);
        assert_int_equal(exact_status(&x), STATUS_OK);
        sum = (float)exact_value(&x);
        keep_values(out, "sumsq", F32, &sum, 1);
        d->ops->adamw(d, &(struct adam_param){&g, &p, &m, &v, &w, NULL, decay, 0}, &step);
        device_tensor_free(&g);
    }
    take(out, "adamw master", F32, &p);
    take(out, "adamw m", F32, &m);
    take(out, "adamw v", F32, &v);
    take(out, "adamw weight", ROUND, &w);
}

static void test_optimizer(void **state)
{
    static const struct product shapes[] = {{1, 33, 0}, {7, 576, 0}, {60, 100, 0}, {60, 10000, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        conform("optimizer", case_optimizer, &shapes[i]);
    }
}

/* ---- what a user meets -------------------------------------------------------------------------
 */

static void test_open(void **state)
{
    struct plan plan;
    struct device *d = NULL;
    struct err e = {0};
    (void)state;
    plan_init(&plan, 2, 0);
    assert_int_equal(device_open("torch:tpu", NULL, 1, &plan, &d, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "torch:cuda"));
    assert_int_equal(device_open("torch:cuda:x", NULL, 1, &plan, &d, &e), STATUS_INPUT);
    assert_int_equal(device_open("torch", NULL, 1, &plan, &d, &e), STATUS_INPUT);
    /* without libtorch: one sentence that says what to install */
    assert_int_equal(device_open("torch:cpu", "/nonexistent", 1, &plan, &d, &e), STATUS_NOTFOUND);
    assert_non_null(strstr(e.msg, "pip install torch"));
    assert_non_null(strstr(e.msg, "--libtorch"));
    assert_null(strchr(e.msg, '\n'));
    assert_null(d);
}

/* What torch refuses is told by device_fault, once, and the device goes on afterwards; memory that
 * is not there is an error at once. */
static void test_refusals(void **state)
{
    int ran = 0;
    (void)state;
    if (ADDRESS_SANITIZER) { /* its C runtime cannot catch what libtorch throws */
        skip();
    }
    for (int i = 0; i < n_devices[0]; i++) {
        struct device *d = devices[0][i];
        struct tensor x, y, z, huge;
        struct wview v;
        struct err e = {0};
        float got[96] = {0};
        if (strncmp(d->name, "torch", 5) != 0) {
            continue;
        }
        x = half(d, 3, 64, 1);
        y = half_empty(d, 3, 32);
        z = half(d, 3, 32, 1);
        assert_ok(device_wview(d, &v, 32, 96, 0, &e), &e); /* 96 inputs, x has 64 */
        d->ops->linear(d, &x, &v, NULL, NULL, &y);
        d->ops->copy(d, &z, &y); /* does nothing: the fault is not told yet */
        assert_int_equal(device_fault(d, &e), STATUS_FAIL);
        assert_non_null(strstr(e.msg, "aten::linear"));
        assert_int_equal(device_fault(d, &e), STATUS_OK);
        d->ops->copy(d, &z, &y);
        device_download_f32(&y, got);
        assert_true(got[0] != 0.0f);
        assert_int_equal(device_tensor(d, &huge, DTYPE_F32, (int64_t)1 << 32, 1 << 20, &e),
                         STATUS_NOMEM);
        device_tensor_free(&huge);
        device_tensor_free(&x);
        device_tensor_free(&y);
        device_tensor_free(&z);
        device_wview_free(&v);
        ran++;
    }
    if (!ran) {
        skip();
    }
}

/* Only cpu and ref promise bits. */
static void test_caps(void **state)
{
    (void)state;
    for (int f32 = 0; f32 < 2; f32++) {
        for (int i = 0; i < n_devices[f32]; i++) {
            struct device *d = devices[f32][i];
            unsigned exact = DEVICE_ROW_EXACT | DEVICE_LAYOUT_EXACT;
            int torch = strncmp(d->name, "torch", 5) == 0;
            assert_int_equal(d->caps & exact, torch ? 0 : exact);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open),      cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_caps),      cmocka_unit_test(test_linear),
        cmocka_unit_test(test_norm),      cmocka_unit_test(test_attn),
        cmocka_unit_test(test_logp),      cmocka_unit_test(test_rows),
        cmocka_unit_test(test_optimizer),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
