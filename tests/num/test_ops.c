/* Conformance of the devices: every operation on every instruction set that this machine has gives
 * the bits of the reference device, on odd shapes and on values chosen to break it: exact ties,
 * signed zeros, magnitudes where sums cancel, products that underflow. A NaN must be a NaN at the
 * same place; its sign and payload are nobody's promise. */
#include "support.h"

#include <math.h>

#include "base/mem.h"
#include "base/status.h"
#include "base/thread.h"
#include "num/device_int.h"
#include "num/exact.h"

#if defined(__SANITIZE_ADDRESS__)
#define SLOW 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SLOW 1
#endif
#endif
#ifndef SLOW
#define SLOW 0
#endif

/* ---- devices -----------------------------------------------------------------------------------
 */

#define MAX_DEVICES 8

static struct device *devices[MAX_DEVICES]; /* the first is the reference */
static int n_devices;

static void add_device(const char *name, const char *isa, int threads)
{
    struct plan plan;
    struct err e = {0};
    int rc;
    plan_init(&plan, 4, 0);
    assert_true(n_devices < MAX_DEVICES);
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
            add_device("cpu", isas[i], 2);
        }
    }
    add_device("cpu", "auto", 1);
    add_device("cpu", "auto", 3);
    for (int i = 0; i < n_devices; i++) {
        print_message("%s %s, %d threads\n", devices[i]->name, devices[i]->isa,
                      pool_size(devices[i]->pool));
    }
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

/* ---- values ------------------------------------------------------------------------------------
 */

enum values {
    PLAIN, /* about normal */
    TIES,  /* multiples of 1/8 up to 2: sums are exact and fall on ties of bf16 */
    WIDE,  /* 2^-30 .. 2^30, zeros of both signs: cancellation */
    TINY,  /* 2^-70 .. 2^-56: products straddle the smallest normal number */
    MILD,  /* a quarter of plain: a softmax over many keys */
    WILD,  /* plain, with infinities, NaN and huge values strewn in */
    N_VALUES
};

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

static float rand_unit(void)
{
    return (float)(rand64() >> 40) * 0x1p-24f;
}

static float rand_value(enum values v)
{
    float sign = rand64() & 1 ? -1.0f : 1.0f;
    switch (v) {
    case TIES: return sign * (float)rand_below(17) / 8.0f;
    case WIDE:
        return rand_below(8) == 0 ? sign * 0.0f
                                  : sign * ldexpf(1.0f + rand_unit(), rand_below(61) - 30);
    case TINY: return sign * ldexpf(1.0f + rand_unit(), rand_below(15) - 70);
    case WILD:
        if (rand_below(150) == 0) {
            static const float odd[] = {INFINITY, NAN, 3e38f, 1e30f, 0.0f};
            return sign * odd[rand_below(5)];
        }
        break;
    default: break;
    }
    return (rand_unit() + rand_unit() + rand_unit() - 1.5f) * (v == MILD ? 0.5f : 2.0f);
}

/* ---- tensors and results -----------------------------------------------------------------------
 */

static struct tensor make(struct device *d, enum dtype type, int rows, int cols)
{
    struct tensor t;
    struct err e = {0};
    assert_ok(device_tensor(d, &t, type, rows, cols, &e), &e);
    return t;
}

static struct tensor filled(struct device *d, enum dtype type, int rows, int cols, enum values v)
{
    struct tensor t = make(d, type, rows, cols);
    float *p = malloc(sizeof(float) * (size_t)rows * (size_t)cols);
    for (int i = 0; i < rows * cols; i++) {
        p[i] = rand_value(v);
    }
    device_upload_f32(&t, p);
    free(p);
    return t;
}

/* A gradient that has already taken some sums in. */
static struct tensor grads(struct device *d, int rows, int cols)
{
    struct tensor t = make(d, DTYPE_I64, rows, cols);
    for (int r = 0; r < rows; r++) {
        for (int c = 0; c < cols; c++) {
            ((int64_t *)t.data)[r * t.ld + c] =
                (int64_t)(rand64() >> 20) - (int64_t)1 * (1ll << 43);
        }
    }
    return t;
}

/* Everything a case computed, in order. */
struct part {
    char name[40];
    enum dtype type;
    int cols;
    size_t from, bytes;
};
struct result {
    uint8_t *data;
    size_t n, cap;
    struct part parts[64];
    int n_parts;
};

static void keep_bytes(struct result *out, const void *p, size_t n)
{
    if (out->n + n > out->cap) {
        out->cap = (out->n + n) * 2;
        out->data = realloc(out->data, out->cap);
        assert_non_null(out->data);
    }
    memcpy(out->data + out->n, p, n);
    out->n += n;
    out->parts[out->n_parts - 1].bytes += n;
}

static void keep_part(struct result *out, const char *name, enum dtype type, int cols)
{
    struct part *p = &out->parts[out->n_parts++];
    assert_true(out->n_parts <= 64);
    snprintf(p->name, sizeof p->name, "%s", name);
    p->type = type;
    p->cols = cols;
    p->from = out->n;
    p->bytes = 0;
}

static void keep(struct result *out, const char *name, const struct tensor *t)
{
    keep_part(out, name, t->dtype, (int)t->cols);
    for (int64_t r = 0; r < t->rows; r++) {
        keep_bytes(out, device_host_row(t, r), (size_t)t->cols * dtype_size(t->dtype));
    }
}

static void keep_f32(struct result *out, const char *name, const float *p, int n)
{
    keep_part(out, name, DTYPE_F32, n);
    keep_bytes(out, p, sizeof(float) * (size_t)n);
}

/* Keeps the result and frees the tensor. */
static void take(struct result *out, const char *name, struct tensor *t)
{
    keep(out, name, t);
    device_tensor_free(t);
}

static float value_of(enum dtype type, const uint8_t *p)
{
    float f = 0.0f;
    uint16_t h;
    if (type == DTYPE_F32) {
        memcpy(&f, p, 4);
    } else if (type == DTYPE_BF16) {
        memcpy(&h, p, 2);
        f = dtype_from_bf16(h);
    }
    return f;
}

static void compare(const char *what, const struct result *a, const struct result *b)
{
    assert_int_equal(a->n_parts, b->n_parts);
    assert_int_equal(a->n, b->n);
    if (memcmp(a->data, b->data, a->n) == 0) {
        return;
    }
    for (int i = 0; i < a->n_parts; i++) {
        const struct part *p = &a->parts[i];
        size_t size = dtype_size(p->type);
        for (size_t at = 0; at < p->bytes; at += size) {
            const uint8_t *x = a->data + p->from + at, *y = b->data + p->from + at;
            float fx = value_of(p->type, x), fy = value_of(p->type, y);
            if (memcmp(x, y, size) != 0 && !(fx != fx && fy != fy)) {
                uint64_t ux = 0, uy = 0;
                memcpy(&ux, x, size);
                memcpy(&uy, y, size);
                fail_msg("%s, %s (%zu, %zu): %llx (%g), reference %llx (%g)", what, p->name,
                         at / size / (size_t)p->cols, at / size % (size_t)p->cols,
                         (unsigned long long)uy, (double)fy, (unsigned long long)ux, (double)fx);
            }
        }
    }
}

/* ---- cases -------------------------------------------------------------------------------------
 */

struct shape {
    int m, n, k;        /* rows, outputs, inputs */
    int leaves, parts;  /* R; 3: ranges of q, k and v heads per leaf; 2: two ranges per leaf */
    int heads, kv, dim; /* attention */
    int norm;           /* heads are normed: 1 q, 2 k, 4 with 1 + w; rmsnorm: 1 with 1 + w */
    int rot, interleaved, act;
    int lens[4]; /* sequences */
    enum values values;
};

typedef void case_fn(struct device *d, const struct shape *s, struct result *out);

/* Runs a case on every device from the same random numbers. */
static void conform(const char *name, case_fn *fn, const struct shape *s)
{
    static uint64_t seed;
    struct result ref = {0};
    seed++;
    for (int i = 0; i < n_devices; i++) {
        struct result got = {0};
        char what[160];
        rand_state = seed * 1000003;
        fn(devices[i], s, i ? &got : &ref);
        snprintf(what, sizeof what, "%s on %s, %d threads, m %d n %d k %d R %d d %d values %d",
                 name, devices[i]->isa, pool_size(devices[i]->pool), s->m, s->n, s->k, s->leaves,
                 s->dim, s->values);
        if (i) {
            compare(what, &ref, &got);
            free(got.data);
        } else {
            assert_true(ref.n > 0);
        }
    }
    free(ref.data);
}

/* Fault flag as part of the result: devices agree on what overflows. */
static int keep_fault(struct device *d, struct result *out)
{
    float f = device_fault(d, NULL) ? 1.0f : 0.0f;
    keep_f32(out, "fault", &f, 1);
    return f != 0.0f;
}

/* Leaves over m rows: 256 each, a short one first, an empty one in between. */
static int cut_leaves(int m, int32_t *start)
{
    int n = 0, at = 0;
    start[0] = 0;
    if (m > 4) {
        at = 1 + rand_below(m / 3);
        start[++n] = at;
        start[++n] = at;
    }
    while (at < m) {
        at = at + PLAN_LEAF < m ? at + PLAN_LEAF : m;
        start[++n] = at;
    }
    return n;
}

static void leaves_of_k(struct leafset *s, int leaves, int k)
{
    memset(s, 0, sizeof *s);
    plan_leafset_add(s, leaves, (k + 31) / 32, 32, 0, k);
    plan_leafset_sort(s);
}

static void leaves_of_n(struct leafset *s, const struct shape *sh)
{
    memset(s, 0, sizeof *s);
    if (sh->parts == 3) {
        int q = sh->heads * sh->dim, kv = sh->kv * sh->dim;
        plan_leafset_add(s, sh->leaves, sh->heads, sh->dim, 0, q);
        plan_leafset_add(s, sh->leaves, sh->kv, sh->dim, q, q + kv);
        plan_leafset_add(s, sh->leaves, sh->kv, sh->dim, q + kv, q + 2 * kv);
    } else {
        plan_leafset_add(s, sh->leaves, (sh->n + 31) / 32, 32, 0, sh->n);
    }
    plan_leafset_sort(s);
}

static void case_linear(struct device *d, const struct shape *s, struct result *out)
{
    struct tensor w = filled(d, DTYPE_BF16, s->n, s->k, s->values);
    struct tensor x = filled(d, DTYPE_BF16, s->m, s->k, s->values);
    struct tensor dy = filled(d, DTYPE_BF16, s->m, s->n, s->values);
    struct tensor bias = filled(d, DTYPE_BF16, 1, s->n, s->values);
    struct wview v;
    struct err e = {0};

    assert_ok(device_wview(d, &v, s->n, s->k, 1, &e), &e);
    leaves_of_k(&v.kleaf, s->leaves, s->k);
    leaves_of_n(&v.nleaf, s);
    d->ops->pack(d, &w, &v);
    for (int kind = 0; kind < 4; kind++) {
        struct tensor y = filled(d, kind & 1 ? DTYPE_F32 : DTYPE_BF16, s->m, s->n, s->values);
        struct tensor res = filled(d, y.dtype, s->m, s->n, s->values),
                      y2 = make(d, y.dtype, s->m, s->n);
        d->ops->linear(d, &x, &v, kind & 2 ? &bias : NULL, kind & 2 ? &y : NULL, &y);
        d->ops->linear(d, &x, &v, kind & 2 ? NULL : &bias, &res, &y2);
        take(out, kind & 2 ? "linear, accumulated" : "linear", &y);
        take(out, "linear, residual", &y2);
        device_tensor_free(&res);
    }
    for (int kind = 0; kind < 2; kind++) {
        struct tensor dx = filled(d, kind ? DTYPE_F32 : DTYPE_BF16, s->m, s->k, PLAIN);
        d->ops->linear_dx(d, &dy, &v, &dx);
        take(out, "linear_dx", &dx);
    }
    device_wview_free(&v);
    device_tensor_free(&w);
    device_tensor_free(&x);
    device_tensor_free(&dy);
    device_tensor_free(&bias);
}

static void case_linear_dw(struct device *d, const struct shape *s, struct result *out)
{
    struct tensor x = filled(d, DTYPE_BF16, s->m, s->k, s->values);
    struct tensor dy = filled(d, DTYPE_BF16, s->m, s->n, s->values);
    struct tensor g = grads(d, s->n, s->k), gb = grads(d, 1, s->n);
    int32_t start[16];
    struct leaf_rows leaves = {cut_leaves(s->m, start), start};

    d->ops->linear_dw(d, &dy, &x, &leaves, &g);
    d->ops->bias_dw(d, &dy, &leaves, &gb);
    if (!keep_fault(d, out)) {
        keep(out, "linear_dw", &g);
        keep(out, "bias_dw", &gb);
    }
    device_tensor_free(&x);
    device_tensor_free(&dy);
    device_tensor_free(&g);
    device_tensor_free(&gb);
}

static void test_linear(void **state)
{
    static const struct shape shapes[] = {
        {.m = 1, .n = 64, .k = 64, .leaves = 1},
        {.m = 3, .n = 500, .k = 96, .leaves = 4}, /* 3 blocks in 4 leaves: one is empty */
        {.m = 7, .n = 32, .k = 32, .leaves = 8},
        {.m = 31, .n = 160, .k = 96, .leaves = 2, .parts = 3, .heads = 3, .kv = 1, .dim = 32},
        {.m = 33, .n = 320, .k = 160, .leaves = 4, .parts = 3, .heads = 3, .kv = 1, .dim = 64},
        {.m = 70, .n = 500, .k = 64, .leaves = 2},
        {.m = 70, .n = 48, .k = 544, .leaves = 8},
        {.m = 600, .n = 33, .k = 32, .leaves = 1}, /* several blocks of rows */
#if !SLOW
        {.m = 33, .n = 960, .k = 576, .leaves = 4, .parts = 3, .heads = 9, .kv = 3, .dim = 64},
        {.m = 17, .n = 40, .k = 1536, .leaves = 8},
#endif
    };
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (enum values v = 0; v < N_VALUES; v++) {
            struct shape s = shapes[i];
            s.values = v;
            if (s.m * s.n * s.k > 1500000 && v != (i % 2 ? WIDE : PLAIN)) {
                continue; /* large: one kind of values will do */
            }
            conform("linear", case_linear, &s);
        }
    }
}

static void test_linear_dw(void **state)
{
    static const struct shape shapes[] = {
        {.m = 1, .n = 64, .k = 64},  {.m = 3, .n = 500, .k = 96},  {.m = 33, .n = 48, .k = 64},
        {.m = 70, .n = 17, .k = 32}, {.m = 600, .n = 40, .k = 64},
    };
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (enum values v = 0; v < N_VALUES; v++) {
            struct shape s = shapes[i];
            s.values = v;
            conform("linear_dw", case_linear_dw, &s);
        }
    }
}

/* Hundreds of short leaves of very different sizes, as the gradients of a batch of samples are:
 * sums that are kept in halves fill up, are flushed and start anew, and some leaves are too large
 * for them. dim: the largest exponent of dy. */
static void case_dw_leaves(struct device *d, const struct shape *s, struct result *out)
{
    struct tensor x = filled(d, DTYPE_BF16, s->m, s->k, PLAIN),
                  dy = make(d, DTYPE_BF16, s->m, s->n);
    struct tensor g = grads(d, s->n, s->k), h = grads(d, s->n, s->k);
    float *p = malloc(sizeof(float) * (size_t)s->m * (size_t)s->n);
    int32_t *start = malloc(sizeof *start * (size_t)(s->m + 1));
    struct leaf_rows leaves = {0, start};

    for (int at = 0; at < s->m;) {
        int end = at + 1 + rand_below(rand_below(9) == 0 ? PLAN_LEAF : 40);
        int e = s->dim - rand_below(30);
        end = end < s->m ? end : s->m;
        for (int i = at * s->n; i < end * s->n; i++) {
            p[i] = ldexpf(rand_value(PLAIN), e);
        }
        start[leaves.n++] = at;
        at = end;
    }
    start[leaves.n] = s->m;
    device_upload_f32(&dy, p);
    d->ops->linear_dw(d, &dy, &x, &leaves, &g);
    assert_int_equal(device_fault(d, NULL), STATUS_OK);
    keep(out, "linear_dw of many leaves", &g);
    device_forget(&h); /* what it holds is no part of the sum */
    d->ops->linear_dw(d, &dy, &x, &leaves, &h);
    assert_int_equal(device_fault(d, NULL), STATUS_OK);
    assert_int_equal(h.fresh, 0);
    keep(out, "linear_dw into a forgotten gradient", &h);
    free(p);
    free(start);
    device_tensor_free(&h);
    device_tensor_free(&x);
    device_tensor_free(&dy);
    device_tensor_free(&g);
}

static void test_dw_leaves(void **state)
{
    (void)state;
    for (int e = -30; e <= 6; e += 3) {
        struct shape s = {.m = 4000, .n = e % 2 ? 48 : 33, .k = 64, .dim = e};
        conform("linear_dw", case_dw_leaves, &s);
    }
}

static void case_norm(struct device *d, const struct shape *s, struct result *out)
{
    struct tensor x = filled(d, DTYPE_BF16, s->m, s->n, s->values);
    struct tensor w = filled(d, DTYPE_BF16, 1, s->n, s->values);
    struct tensor dy = filled(d, DTYPE_BF16, s->m, s->n, s->values);
    struct tensor y = make(d, DTYPE_BF16, s->m, s->n), y2 = make(d, DTYPE_BF16, s->m, s->n);
    struct tensor rstd = make(d, DTYPE_F32, s->m, 1);
    struct tensor dx = filled(d, DTYPE_F32, s->m, s->n, s->values);
    struct tensor g = grads(d, 1, s->n);
    struct tensor y3 = filled(d, DTYPE_BF16, s->m, s->n, s->values);
    const struct norm norm = {&w, 1e-5f, s->norm}, other = {&w, 1e-6f, !s->norm};
    int32_t start[16];
    struct leaf_rows leaves = {cut_leaves(s->m, start), start};

    d->ops->rmsnorm(d, &x, &norm, NULL, &y, &rstd);
    d->ops->rmsnorm(d, &x, &other, &dy, &y2, NULL);
    d->ops->rmsnorm(d, &x, &norm, &y3, &y3, NULL);
    take(out, "rmsnorm onto itself", &y3);
    keep(out, "rmsnorm", &y);
    keep(out, "rstd", &rstd);
    keep(out, "rmsnorm without rstd", &y2);
    d->ops->rmsnorm_bwd(d, &dy, &x, &norm, &rstd, &leaves, &dx, &g);
    keep(out, "rmsnorm_bwd", &dx);
    if (!keep_fault(d, out)) {
        keep(out, "rmsnorm_bwd weight", &g);
    }
    device_tensor_free(&x);
    device_tensor_free(&w);
    device_tensor_free(&dy);
    device_tensor_free(&y);
    device_tensor_free(&y2);
    device_tensor_free(&rstd);
    device_tensor_free(&dx);
    device_tensor_free(&g);
}

static void test_norm(void **state)
{
    static const struct shape shapes[] = {
        {.m = 1, .n = 64},  {.m = 3, .n = 576},  {.m = 7, .n = 100},   {.m = 31, .n = 48},
        {.m = 33, .n = 33}, {.m = 70, .n = 128}, {.m = 300, .n = 960},
    };
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (enum values v = 0; v < N_VALUES; v++) {
            struct shape s = shapes[i];
            s.values = v;
            s.norm = i % 2;
            conform("rmsnorm", case_norm, &s);
        }
    }
}

/* ---- attention ---------------------------------------------------------------------------------
 */

#define MAX_ROWS 1400

/* Sequences of a case, their pages shuffled over the store. */
struct batch {
    struct rows rows;
    struct row_seq seq[4];
    int32_t pos[MAX_ROWS], pages[4][32];
    int32_t start[64]; /* leaves: 256 tokens from each sequence's start */
    struct leaf_rows leaves;
    int n_pages;
};

static void batch_fill(struct batch *b, const struct shape *s)
{
    int32_t free_pages[128];
    memset(b, 0, sizeof *b);
    b->n_pages = 3; /* some stay unused */
    for (int i = 0; i < 4 && s->lens[i]; i++) {
        b->n_pages += (s->lens[i] + PLAN_KV_BLOCK - 1) / PLAN_KV_BLOCK;
    }
    for (int i = 0; i < b->n_pages; i++) {
        int j = rand_below(i + 1);
        free_pages[i] = free_pages[j];
        free_pages[j] = i;
    }
    for (int i = 0, page = 0; i < 4 && s->lens[i]; i++) {
        struct row_seq *q = &b->seq[b->rows.nseq++];
        q->row0 = b->rows.n;
        q->nrows = s->lens[i];
        q->pages = b->pages[i];
        for (int p = 0; p * PLAN_KV_BLOCK < s->lens[i]; p++) {
            b->pages[i][p] = free_pages[page++];
        }
        for (int t = 0; t < s->lens[i]; t++) {
            b->pos[b->rows.n++] = t;
            if (t % PLAN_LEAF == 0) {
                b->start[b->leaves.n++] = b->rows.n - 1;
            }
        }
    }
    b->start[b->leaves.n] = b->rows.n;
    b->leaves.start = b->start;
    b->rows.seq = b->seq;
    b->rows.pos = b->pos;
}

struct rope {
    struct tensor cos, sin, q_norm, k_norm;
};

static void rope_make(struct device *d, struct rope *r, int dim, int rot, enum values v)
{
    r->cos = filled(d, DTYPE_F32, MAX_ROWS, rot / 2, PLAIN);
    r->sin = filled(d, DTYPE_F32, MAX_ROWS, rot / 2, PLAIN);
    r->q_norm = filled(d, DTYPE_BF16, 1, dim, v);
    r->k_norm = filled(d, DTYPE_BF16, 1, dim, v);
}

static void rope_free(struct rope *r)
{
    device_tensor_free(&r->cos);
    device_tensor_free(&r->sin);
    device_tensor_free(&r->q_norm);
    device_tensor_free(&r->k_norm);
}

static void keep_kv(struct result *out, const struct kv_store *kv)
{
    size_t bytes = device_kv_page_bytes(kv->dev, kv->n_layers, kv->n_kv_heads, kv->head_dim);
    keep_part(out, "pages", kv->dtype, (int)kv_head_elems(kv));
    keep_bytes(out, kv->data, bytes * (size_t)kv->n_pages);
}

static void case_attn(struct device *d, const struct shape *s, struct result *out)
{
    static struct batch b;
    struct attn_shape as = {.n_heads = s->heads,
                            .n_kv_heads = s->kv,
                            .head_dim = s->dim,
                            .scale = 1.0f / sqrtf((float)s->dim),
                            .rot = s->rot ? s->rot : s->dim,
                            .interleaved = s->interleaved};
    int n, q_cols = s->heads * s->dim, kv_cols = 2 * s->kv * s->dim;
    struct tensor qkv, q, o, o2, lse, dout, dq, dkv, dqkv, gq, gk;
    struct tensor *const all[] = {&qkv, &q, &o, &o2, &lse, &dout, &dq, &dkv, &dqkv, &gq, &gk};
    struct kv_store kv;
    struct rope rope;
    const struct norm qn = {&rope.q_norm, 1e-6f, s->norm >> 2 & 1};
    const struct norm kn = {&rope.k_norm, 1e-5f, s->norm >> 2 & 1};
    struct err e = {0};

    batch_fill(&b, s);
    n = b.rows.n;
    qkv = filled(d, DTYPE_BF16, n, q_cols + kv_cols, s->values);
    for (int r = 0; r < n; r++) { /* a later segment's maximum is often the larger */
        uint16_t *p = (uint16_t *)qkv.data + r * qkv.ld;
        for (int c = 0; b.pos[r] >= PLAN_KV_SEGMENT && c < q_cols + kv_cols; c++) {
            p[c] = dtype_to_bf16(dtype_from_bf16(p[c]) * 2.0f);
        }
    }
    q = make(d, DTYPE_BF16, n, q_cols);
    o = make(d, DTYPE_BF16, n, q_cols);
    o2 = make(d, DTYPE_BF16, n, q_cols);
    lse = make(d, DTYPE_F32, n, s->heads);
    dout = filled(d, DTYPE_BF16, n, q_cols, s->values);
    dq = filled(d, DTYPE_F32, n, q_cols, PLAIN);
    dkv = filled(d, DTYPE_F32, n, kv_cols, PLAIN);
    dqkv = make(d, DTYPE_BF16, n, q_cols + kv_cols);
    gq = grads(d, 1, s->dim);
    gk = grads(d, 1, s->dim);
    rope_make(d, &rope, s->dim, as.rot, s->values);
    assert_ok(device_kv(d, &kv, 2, s->kv, s->dim, b.n_pages, &e), &e);

    d->ops->rope_kv(d, &qkv, s->norm & 1 ? &qn : NULL, s->norm & 2 ? &kn : NULL, &rope.cos,
                    &rope.sin, &as, &b.rows, &kv, 1, &q);
    keep(out, "q", &q);
    keep_kv(out, &kv);
    d->ops->attn(d, &q, &kv, 1, &as, &b.rows, &o, &lse);
    d->ops->attn(d, &q, &kv, 1, &as, &b.rows, &o2, NULL);
    keep(out, "attn", &o);
    keep(out, "attn without lse", &o2);
    keep(out, "lse", &lse);
    d->ops->attn_bwd(d, &dout, &q, &o, &lse, &kv, 1, &as, &b.rows, &dq, &dkv);
    keep(out, "attn_bwd dq", &dq);
    keep(out, "attn_bwd dkv", &dkv);
    d->ops->rope_kv_bwd(d, &dq, &dkv, &qkv, s->norm & 1 ? &qn : NULL, s->norm & 2 ? &kn : NULL,
                        &rope.cos, &rope.sin, &as, &b.rows, &b.leaves, &dqkv,
                        s->norm & 1 ? &gq : NULL, s->norm & 2 ? &gk : NULL);
    keep(out, "rope_kv_bwd", &dqkv);
    if (!keep_fault(d, out)) {
        keep(out, "q norm's gradient", &gq);
        keep(out, "k norm's gradient", &gk);
    }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        device_tensor_free(all[i]);
    }
    rope_free(&rope);
    device_kv_free(&kv);
}

static void test_attn(void **state)
{
    static const struct shape shapes[] = {
        {.heads = 1, .kv = 1, .dim = 32, .lens = {1}},
        {.heads = 3, .kv = 1, .dim = 64, .lens = {65, 7, 1}, .norm = 3},
        {.heads = 2, .kv = 2, .dim = 128, .lens = {31, 70}, .norm = 3},
        {.heads = 6, .kv = 2, .dim = 64, .lens = {33, 3, 64, 2}},
        {.heads = 3, .kv = 1, .dim = 32, .lens = {130}, .norm = 3},
        {.heads = 2, .kv = 1, .dim = 64, .lens = {9, 40}, .norm = 7, .rot = 32},
        {.heads = 2, .kv = 1, .dim = 32, .lens = {30}, .norm = 1, .rot = 8},
        {.heads = 2, .kv = 1, .dim = 64, .lens = {33}, .norm = 6, .rot = 32, .interleaved = 1},
        {.heads = 1, .kv = 1, .dim = 96, .lens = {20}, .rot = 96, .interleaved = 1},
    };
    static const struct shape long_ones[] = {
        {.heads = 3, .kv = 1, .dim = 32, .lens = {257, 300}, .norm = 3}, /* leaves */
#if !SLOW
        {.heads = 1, .kv = 1, .dim = 32, .lens = {1150, 5}, .values = MILD}, /* segments */
#endif
    };
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (enum values v = 0; v < N_VALUES; v++) {
            struct shape s = shapes[i];
            s.values = v;
            conform("attention", case_attn, &s);
        }
    }
    for (size_t i = 0; i < sizeof long_ones / sizeof *long_ones; i++) {
        conform("attention", case_attn, &long_ones[i]);
    }
}

/* Columns of `heads` heads of x, d apart, into y from column `to` on. */
static void take_heads(const struct tensor *x, int h0, int heads, int d, const struct tensor *y,
                       int to)
{
    size_t size = dtype_size(x->dtype);
    for (int64_t r = 0; r < x->rows; r++) {
        memcpy((char *)y->data + (size_t)(r * y->ld + to) * size,
               (const char *)x->data + (size_t)(r * x->ld + h0 * d) * size,
               (size_t)(heads * d) * size);
    }
}

/* The gradients of the heads' norms, the heads dealt out to `ranks` that each run alone. */
static void run_ranks(struct device *d, const struct shape *s, int ranks, struct result *out)
{
    static struct batch b;
    int dim = s->dim, nh = s->heads / ranks, nkv = s->kv / ranks, n;
    struct attn_shape as = {.n_heads = nh, .n_kv_heads = nkv, .head_dim = dim, .rot = dim};
    struct tensor qkv, dq, dkv, gq, gk;
    struct rope rope;
    const struct norm qn = {&rope.q_norm, 1e-6f, 0}, kn = {&rope.k_norm, 1e-6f, 0};

    rand_state = 42;
    batch_fill(&b, s);
    n = b.rows.n;
    qkv = filled(d, DTYPE_BF16, n, (s->heads + 2 * s->kv) * dim, s->values);
    dq = filled(d, DTYPE_F32, n, s->heads * dim, s->values);
    dkv = filled(d, DTYPE_F32, n, 2 * s->kv * dim, s->values);
    rope_make(d, &rope, dim, dim, PLAIN);
    gq = grads(d, 1, dim);
    gk = grads(d, 1, dim);
    for (int i = 0; i < ranks; i++) {
        struct tensor x = make(d, DTYPE_BF16, n, (nh + 2 * nkv) * dim);
        struct tensor a = make(d, DTYPE_F32, n, nh * dim);
        struct tensor c = make(d, DTYPE_F32, n, 2 * nkv * dim);
        struct tensor y = make(d, DTYPE_BF16, n, (nh + 2 * nkv) * dim);
        take_heads(&qkv, i * nh, nh, dim, &x, 0);
        take_heads(&qkv, s->heads + i * nkv, nkv, dim, &x, nh * dim);
        take_heads(&dq, i * nh, nh, dim, &a, 0);
        take_heads(&dkv, i * nkv, nkv, dim, &c, 0);
        d->ops->rope_kv_bwd(d, &a, &c, &x, &qn, &kn, &rope.cos, &rope.sin, &as, &b.rows, &b.leaves,
                            &y, &gq, &gk);
        device_tensor_free(&x);
        device_tensor_free(&a);
        device_tensor_free(&c);
        device_tensor_free(&y);
    }
    keep(out, "q norm's gradient", &gq);
    keep(out, "k norm's gradient", &gk);
    device_tensor_free(&qkv);
    device_tensor_free(&dq);
    device_tensor_free(&dkv);
    device_tensor_free(&gq);
    device_tensor_free(&gk);
    rope_free(&rope);
}

/* Tensor parallelism may lay every head elsewhere: the sums know nothing of it. */
static void test_norm_ranks(void **state)
{
    static const struct shape s = {
        .heads = 8, .kv = 4, .dim = 32, .lens = {100, 270, 3}, .values = PLAIN};
    struct result ref = {0};
    (void)state;
    run_ranks(devices[0], &s, 1, &ref);
    for (int i = 0; i < n_devices; i++) {
        for (int ranks = 1; ranks <= 4; ranks *= 2) {
            struct result got = {0};
            char what[80];
            snprintf(what, sizeof what, "norms of heads on %d ranks, %s", ranks, devices[i]->isa);
            run_ranks(devices[i], &s, ranks, &got);
            compare(what, &ref, &got);
            free(got.data);
        }
    }
    free(ref.data);
}

/* The same sequence in pieces: `first` rows, then `chunk` at a time; each piece in a batch with a
 * piece of another sequence when `company`. Keeps the first sequence's rows. */
static void run_chunks(struct device *d, const struct shape *s, int first, int chunk, int company,
                       struct result *out)
{
    static struct batch b;
    struct attn_shape as = {.n_heads = s->heads,
                            .n_kv_heads = s->kv,
                            .head_dim = s->dim,
                            .scale = 0.125f,
                            .rot = s->dim};
    int len = s->lens[0], cols = (s->heads + 2 * s->kv) * s->dim, q_cols = s->heads * s->dim;
    struct tensor all, other;
    struct kv_store kv;
    struct rope rope;
    const struct norm qn = {&rope.q_norm, 1e-6f, 0}, kn = {&rope.k_norm, 1e-6f, 0};
    struct err e = {0};

    rand_state = 42;
    batch_fill(&b, s);
    all = filled(d, DTYPE_BF16, len, cols, s->values);
    other = filled(d, DTYPE_BF16, s->lens[1], cols, s->values);
    rope_make(d, &rope, s->dim, s->dim, PLAIN);
    assert_ok(device_kv(d, &kv, 1, s->kv, s->dim, b.n_pages, &e), &e);
    keep_part(out, "chunked attention", DTYPE_BF16, q_cols);
    for (int at = 0; at < len;) {
        int n = at ? chunk : first, more = 0;
        struct row_seq seq[2] = {{0, n, at, b.pages[0], 0}, {0, 0, 0, b.pages[1], 0}};
        int32_t pos[2 * MAX_ROWS];
        struct tensor x, q, o, part;
        struct rows rows = {.nseq = 1, .seq = seq, .pos = pos};
        n = seq[0].nrows = rows.n = n < len - at ? n : len - at;
        if (company && at < s->lens[1]) { /* the other sequence comes first in the batch */
            more = at + n < s->lens[1] ? n : s->lens[1] - at;
            seq[1] = seq[0];
            seq[0] = (struct row_seq){0, more, at, b.pages[1], 0};
            seq[1].row0 = more;
            rows.n += more;
            rows.nseq = 2;
        }
        x = make(d, DTYPE_BF16, rows.n, cols);
        q = make(d, DTYPE_BF16, rows.n, q_cols);
        o = make(d, DTYPE_BF16, rows.n, q_cols);
        for (int r = 0; r < rows.n; r++) {
            const struct tensor *from = r < more ? &other : &all;
            pos[r] = at + (r < more ? r : r - more);
            memcpy((char *)x.data + (size_t)(r * x.ld) * 2, device_host_row(from, pos[r]),
                   (size_t)cols * 2);
        }
        d->ops->rope_kv(d, &x, &qn, &kn, &rope.cos, &rope.sin, &as, &rows, &kv, 0, &q);
        d->ops->attn(d, &q, &kv, 0, &as, &rows, &o, NULL);
        part = tensor_rows(&o, more, n);
        for (int r = 0; r < n; r++) {
            keep_bytes(out, device_host_row(&part, r), (size_t)q_cols * 2);
        }
        device_tensor_free(&x);
        device_tensor_free(&q);
        device_tensor_free(&o);
        at += n;
    }
    device_tensor_free(&all);
    device_tensor_free(&other);
    rope_free(&rope);
    device_kv_free(&kv);
}

/* Prefill at once, in chunks, token by token, alone and in company: one result. */
static void test_chunks(void **state)
{
    static const struct {
        int first, chunk;
    } cuts[] = {{1, 1}, {7, 7}, {64, 64}, {100, 31}, {50, 1}};
    struct shape s = {.heads = 3, .kv = 1, .dim = 32, .lens = {150, 90}};
    (void)state;
    for (enum values v = PLAIN; v <= WIDE; v++) {
        struct result ref = {0};
        s.values = v;
        run_chunks(devices[0], &s, s.lens[0], 1, 0, &ref);
        for (int i = 0; i < n_devices; i++) {
            for (int c = 0; c < 5; c++) {
                struct result got = {0};
                char what[80];
                snprintf(what, sizeof what, "chunks of %d on %s", cuts[c].chunk, devices[i]->isa);
                run_chunks(devices[i], &s, cuts[c].first, cuts[c].chunk, c % 2, &got);
                compare(what, &ref, &got);
                free(got.data);
            }
        }
        free(ref.data);
    }
}

/* The same over the bound of a segment: chunks that straddle it, and decoding across it. */
static void test_chunks_segment(void **state)
{
    static const struct {
        int first, chunk;
    } cuts[] = {{1050, 1}, {1010, 1}, {100, 100}};
    struct shape s = {.heads = 3, .kv = 1, .dim = 32, .lens = {1050, 20}};
    struct result ref = {0};
    (void)state;
    run_chunks(devices[0], &s, s.lens[0], 1, 0, &ref);
    for (int i = 1; i < n_devices; i++) {
        for (int c = 0; c < 3; c++) {
            struct result got = {0};
            run_chunks(devices[i], &s, cuts[c].first, cuts[c].chunk, c % 2, &got);
            compare(devices[i]->isa, &ref, &got);
            free(got.data);
        }
    }
    free(ref.data);
}

/* ---- elementwise, logits, rows -----------------------------------------------------------------
 */

/* Both directions; frees gu and dy. */
static void run_glu(struct device *d, enum act act, struct tensor *gu, struct tensor *dy,
                    struct result *out)
{
    struct tensor y = make(d, DTYPE_BF16, dy->rows, dy->cols);
    struct tensor dgu = make(d, DTYPE_BF16, gu->rows, gu->cols);

    d->ops->glu(d, gu, act, &y);
    d->ops->glu_bwd(d, dy, gu, act, &dgu);
    take(out, "glu", &y);
    take(out, "glu_bwd", &dgu);
    device_tensor_free(gu);
    device_tensor_free(dy);
}

static void case_glu(struct device *d, const struct shape *s, struct result *out)
{
    struct tensor gu = filled(d, DTYPE_BF16, s->m, 2 * s->n, s->values);
    struct tensor dy = filled(d, DTYPE_BF16, s->m, s->n, s->values);

    run_glu(d, (enum act)s->act, &gu, &dy, out);
}

static void test_glu(void **state)
{
    static const int rows[] = {1, 3, 7, 31, 33, 70};
    (void)state;
    for (int i = 0; i < 6; i++) {
        for (enum values v = 0; v < N_VALUES; v++) {
            struct shape s = {.m = rows[i], .n = 32 * (i + 1), .values = v};
            conform("swiglu", case_glu, &s);
            s.act = ACT_GELU_TANH;
            conform("geglu", case_glu, &s);
        }
    }
}

/* Every gate that a bf16 can be, but NaNs, whose bits are not defined. */
static void case_gates(struct device *d, const struct shape *s, struct result *out)
{
    struct tensor gu = make(d, DTYPE_BF16, 64, 2048);
    struct tensor dy = filled(d, DTYPE_BF16, 64, 1024, PLAIN);

    for (int i = 0; i < 65536; i++) {
        uint16_t *at = (uint16_t *)gu.data + (size_t)(i / 1024) * (size_t)gu.ld + i % 1024;
        *at = (uint16_t)((i & 0x7fff) > 0x7f80 ? 0 : i);
        at[1024] = 0x3f81;
    }
    run_glu(d, (enum act)s->act, &gu, &dy, out);
}

static void test_gates(void **state)
{
    struct shape s = {0};
    (void)state;
    conform("swiglu, every gate", case_gates, &s);
    s.act = ACT_GELU_TANH;
    conform("geglu, every gate", case_gates, &s);
}

static void case_logp(struct device *d, const struct shape *s, struct result *out)
{
    static const struct logit_spec specs[] = {
        {1.0f, 0.0f}, {0.7f, 0.0f}, {0.0f, 0.0f}, {1.0f, 30.0f}, {0.7f, 1.5f}};
    struct leafset leaves;
    float g[80], ge[80];
    int32_t target[80];

    if (s->parts == 2) { /* leaves of two ranges each */
        memset(&leaves, 0, sizeof leaves);
        plan_leafset_add(&leaves, s->leaves, s->n / 64, 32, 0, s->n / 64 * 32);
        plan_leafset_add(&leaves, s->leaves, s->n / 64 + 1, 32, s->n / 64 * 32, s->n);
        plan_leafset_sort(&leaves);
    } else {
        leaves_of_k(&leaves, s->leaves, s->n);
    }
    for (int r = 0; r < s->m; r++) {
        g[r] = r % 5 == 3 ? 0.0f : rand_value(PLAIN);
        ge[r] = r % 3 == 1 ? 0.0f : rand_value(PLAIN) * 0.01f;
        target[r] = r % 4 == 2 ? -1 : rand_below(s->n);
    }
    for (int i = 0; i < 5; i++) {
        const struct logit_spec *spec = &specs[i];
        struct tensor x = filled(d, DTYPE_F32, s->m, s->n, s->values);
        struct tensor dx = make(d, DTYPE_BF16, s->m, s->n), dx2 = make(d, DTYPE_BF16, s->m, s->n);
        struct tensor ex = make(d, DTYPE_F32, s->m, s->n);
        float logp[80] = {0}, max[80], logz[80], entropy[80], logp2[80] = {0};
        struct tensor x2 = make(d, DTYPE_F32, s->m, s->n);

        if (s->values == PLAIN) { /* tokens that a mask took away */
            for (int r = 0; r < s->m; r++) {
                ((float *)x.data)[r * x.ld + rand_below(s->n)] = -INFINITY;
            }
        }
        d->ops->copy(d, &x, &x2);
        d->ops->logp(d, &x, spec, target, &leaves, logp, max, logz, entropy);
        d->ops->logp(d, &x2, spec, target, &leaves, logp2, NULL, NULL, NULL);
        keep(out, "logits over temperature", &x);
        keep_f32(out, "logp", logp, s->m);
        keep_f32(out, "logp alone", logp2, s->m);
        keep_f32(out, "max", max, s->m);
        keep_f32(out, "logz", logz, s->m);
        keep_f32(out, "entropy", entropy, s->m);
        d->ops->logp_bwd(d, &x, spec, target, max, logz, entropy, g, ge, &dx);
        d->ops->logp_bwd(d, &x, spec, target, max, logz, NULL, g, NULL, &dx2);
        d->ops->exps(d, &x, max, &ex);
        for (int64_t c = s->n; c < dx.ld; c++) { /* products read a row's padding */
            assert_int_equal(((uint16_t *)dx.data)[c], 0);
        }
        take(out, "logp_bwd", &dx);
        take(out, "logp_bwd without entropy", &dx2);
        take(out, "exps", &ex);
        take(out, "copy", &x2);
        device_tensor_free(&x);
    }
}

static void test_logp(void **state)
{
    static const struct shape shapes[] = {
        {.m = 1, .n = 500, .leaves = 4},
        {.m = 3, .n = 32, .leaves = 1},
        {.m = 7, .n = 49, .leaves = 2},
        {.m = 31, .n = 1000, .leaves = 8},
        {.m = 33, .n = 500, .leaves = 2},
        {.m = 70, .n = 333, .leaves = 4},
        {.m = 5, .n = 310, .leaves = 2, .parts = 2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (enum values v = 0; v < N_VALUES; v++) {
            struct shape s = shapes[i];
            s.values = v;
            conform("logp", case_logp, &s);
        }
    }
}

static void case_rows(struct device *d, const struct shape *s, struct result *out)
{
    struct tensor table = filled(d, DTYPE_BF16, s->k, s->n, s->values);
    struct tensor dy = filled(d, DTYPE_F32, s->m, s->n, s->values), g = grads(d, s->k, s->n);
    struct tensor y = make(d, DTYPE_BF16, s->m, s->n), z = make(d, DTYPE_F32, s->m, s->n);
    struct tensor sc = filled(d, DTYPE_F32, s->k, s->n, PLAIN), b = make(d, DTYPE_BF16, s->m, s->n);
    struct tensor sb = filled(d, DTYPE_BF16, s->k, s->n, PLAIN);
    int32_t ids[80], rows[80];

    for (int r = 0; r < s->m; r++) {
        ids[r] = rand_below(s->k);
        rows[r] = r % 7 == 5 ? s->k - 4 : s->k - 1 - r; /* some to one row */
    }
    d->ops->embed(d, &table, ids, 1.0f, &y);
    keep(out, "embed", &y);
    d->ops->embed(d, &table, ids, 33.75f, &y);
    keep(out, "embed, scaled", &y);
    d->ops->embed_bwd(d, &dy, ids, 1.0f, &g);
    d->ops->embed_bwd(d, &dy, ids, 33.75f, &g);
    if (!keep_fault(d, out)) {
        keep(out, "embed_bwd", &g);
    }
    d->ops->gather(d, &sc, ids, &z);
    d->ops->scatter(d, &dy, rows, &sc);
    d->ops->convert(d, &dy, &b);
    d->ops->scatter(d, &b, rows, &sb);
    take(out, "gather", &z);
    take(out, "scatter", &sc);
    take(out, "scatter bf16", &sb);
    take(out, "convert", &b);
    device_tensor_free(&table);
    device_tensor_free(&dy);
    device_tensor_free(&g);
    device_tensor_free(&y);
}

static void test_rows(void **state)
{
    (void)state;
    for (enum values v = 0; v < N_VALUES; v++) {
        static const int rows[] = {1, 3, 31, 70};
        for (int i = 0; i < 4; i++) {
            struct shape s = {.m = rows[i], .n = 24 + 47 * i, .k = 90, .values = v};
            conform("embed and rows", case_rows, &s);
        }
    }
}

/* ---- row exactness -----------------------------------------------------------------------------
 */

/* Each row of a product, a norm and a log-prob alone and inside batches. */
/* Contractions so long that many rows are computed in chunks of them: the same bits as few rows,
 * which are not, and on every instruction set. The reference would take too long. */
static void test_long_rows(void **state)
{
    enum { M = 97, N = 40, K = 8192 };
    static const int leaves[] = {1, 5, 8};
    (void)state;
    for (int l = 0; l < 3; l++) {
        float *first = NULL;
        for (int i = 0; i < n_devices; i++) {
            struct device *d = devices[i];
            struct tensor x, w, y, part;
            struct wview v;
            struct err e = {0};
            size_t size = sizeof(float) * M * 64;
            if (strcmp(d->name, "cpu") != 0) {
                continue;
            }
            rand_state = 11;
            x = filled(d, DTYPE_BF16, M, K, PLAIN);
            w = filled(d, DTYPE_BF16, N, K, PLAIN);
            y = make(d, DTYPE_F32, M, N);
            part = make(d, DTYPE_F32, M, N);
            assert_int_equal(y.ld, 64);
            assert_ok(device_wview(d, &v, N, K, 0, &e), &e);
            leaves_of_k(&v.kleaf, leaves[l], K);
            d->ops->pack(d, &w, &v);
            d->ops->linear(d, &x, &v, NULL, NULL, &y);
            for (int r = 0; r < M; r += 20) {
                int rows = r + 20 < M ? 20 : M - r;
                struct tensor xs = tensor_rows(&x, r, rows), ys = tensor_rows(&part, r, rows);
                d->ops->linear(d, &xs, &v, NULL, NULL, &ys);
            }
            assert_memory_equal(y.data, part.data, size);
            if (!first) {
                first = mem_alloc(size);
                memcpy(first, y.data, size);
            }
            assert_memory_equal(y.data, first, size);
            device_wview_free(&v);
            device_tensor_free(&x);
            device_tensor_free(&w);
            device_tensor_free(&y);
            device_tensor_free(&part);
        }
        mem_free(first);
    }
}

static void test_row_alone(void **state)
{
    static const int cuts[] = {1, 2, 5, 16, 17, 32, 33, 69};
    (void)state;
    for (int i = 0; i < n_devices; i++) {
        struct device *d = devices[i];
        struct tensor x, w, y, part, nw, n, npart;
        const struct norm norm = {&nw, 1e-5f, 0};
        struct wview v;
        struct err e = {0};
        rand_state = 7;
        x = filled(d, DTYPE_BF16, 70, 160, WIDE);
        w = filled(d, DTYPE_BF16, 100, 160, WIDE);
        nw = filled(d, DTYPE_BF16, 1, 160, WIDE);
        y = make(d, DTYPE_F32, 70, 100);
        part = make(d, DTYPE_F32, 70, 100);
        n = make(d, DTYPE_BF16, 70, 160);
        npart = make(d, DTYPE_BF16, 70, 160);
        assert_ok(device_wview(d, &v, 100, 160, 0, &e), &e);
        leaves_of_k(&v.kleaf, 4, 160);
        d->ops->pack(d, &w, &v);
        d->ops->linear(d, &x, &v, NULL, NULL, &y);
        d->ops->rmsnorm(d, &x, &norm, NULL, &n, NULL);
        for (int c = 0; c < 8; c++) {
            device_zero(&part);
            device_zero(&npart);
            for (int r = 0; r < 70; r += cuts[c]) {
                int rows = r + cuts[c] < 70 ? cuts[c] : 70 - r;
                struct tensor xs = tensor_rows(&x, r, rows), ys = tensor_rows(&part, r, rows);
                struct tensor ns = tensor_rows(&npart, r, rows);
                d->ops->linear(d, &xs, &v, NULL, NULL, &ys);
                d->ops->rmsnorm(d, &xs, &norm, NULL, &ns, NULL);
            }
            assert_memory_equal(y.data, part.data, sizeof(float) * 70 * (size_t)y.ld);
            assert_memory_equal(n.data, npart.data, 2 * 70 * (size_t)n.ld);
        }
        device_wview_free(&v);
        device_tensor_free(&x);
        device_tensor_free(&w);
        device_tensor_free(&nw);
        device_tensor_free(&y);
        device_tensor_free(&part);
        device_tensor_free(&n);
        device_tensor_free(&npart);
    }
}

/* Leaves may be computed in any grouping: the gradient of all equals the sum of calls. */
static void test_leaf_grouping(void **state)
{
    static const int32_t start[] = {0, 40, 41, 97, 130};
    (void)state;
    for (int i = 0; i < n_devices; i++) {
        struct device *d = devices[i];
        struct tensor dy, x, whole, apart;
        struct leaf_rows all = {4, start};
        rand_state = 11;
        dy = filled(d, DTYPE_BF16, 130, 48, PLAIN);
        x = filled(d, DTYPE_BF16, 130, 64, PLAIN);
        whole = make(d, DTYPE_I64, 48, 64);
        apart = make(d, DTYPE_I64, 48, 64);
        d->ops->linear_dw(d, &dy, &x, &all, &whole);
        for (int l = 3; l >= 0; l--) {
            int32_t one[2] = {0, start[l + 1] - start[l]};
            struct leaf_rows leaf = {1, one};
            struct tensor dys = tensor_rows(&dy, start[l], one[1]);
            struct tensor xs = tensor_rows(&x, start[l], one[1]);
            d->ops->linear_dw(d, &dys, &xs, &leaf, &apart);
        }
        assert_memory_equal(whole.data, apart.data, 8 * 48 * (size_t)whole.ld);
        assert_true(((int64_t *)whole.data)[0] != 0);
        device_fault(d, NULL);
        device_tensor_free(&dy);
        device_tensor_free(&x);
        device_tensor_free(&whole);
        device_tensor_free(&apart);
    }
}

/* ---- rounding and overflow of exact sums -------------------------------------------------------
 */

/* Adds one value to a gradient that holds `before`; returns whether the device reports a fault. */
static int add_one(struct device *d, float leaf, int64_t before, int64_t *after)
{
    struct tensor dy = make(d, DTYPE_F32, 1, 32), g = make(d, DTYPE_I64, 1, 32);
    int32_t id = 0;
    int fault;
    ((float *)dy.data)[5] = leaf;
    ((int64_t *)g.data)[5] = before;
    d->ops->embed_bwd(d, &dy, &id, 1.0f, &g);
    fault = device_fault(d, NULL) == STATUS_NUMERIC;
    assert_int_equal(device_fault(d, NULL), STATUS_OK); /* asking clears it */
    *after = ((int64_t *)g.data)[5];
    device_tensor_free(&dy);
    device_tensor_free(&g);
    return fault;
}

static void test_quantum(void **state)
{
    static const struct {
        float leaf;
        int64_t before, after;
        int fault;
    } t[] = {
        {0x1p-45f, 0, 1, 0},
        {0x1p-46f, 0, 0, 0},        /* half a quantum: to even */
        {0x3p-46f, 0, 2, 0},        /* one and a half: to even */
        {-0x1p-46f, 10, 10, 0},     /* */
        {-0x5p-46f, 0, -2, 0},      /* two and a half: to even */
        {0x1.000002p-46f, 0, 1, 0}, /* a hair more */
        {-0.0f, 3, 3, 0},
        {1.0f, 0, (int64_t)1 << 45, 0},
        {0x1.fffffep17f, 0, (int64_t)0xffffff << 39, 0}, /* the largest leaf */
        {-0x1.fffffep17f, 0, -((int64_t)0xffffff << 39), 0},
        {0x1.ffcp17f, 0, (int64_t)0x1ffc << 50, 0},
        {0x1p18f, 0, 0, 1},
        {-0x1p18f, 0, 0, 1},
        {INFINITY, 0, 0, 1},
        {NAN, 0, 0, 1},
        {0x1p-45f, INT64_MAX, 0, 1},
        {0x1p-45f, INT64_MAX - 1, INT64_MAX, 0},
        {-0x1p-45f, INT64_MIN, 0, 1},
        {-0x1p-45f, INT64_MIN + 1, INT64_MIN, 0},
        {0x1p17f, (int64_t)1 << 62, 0, 1},
    };
    (void)state;
    for (int i = 0; i < n_devices; i++) {
        for (size_t k = 0; k < sizeof t / sizeof *t; k++) {
            int64_t after;
            int fault = add_one(devices[i], t[k].leaf, t[k].before, &after);
            if (fault != t[k].fault || (!fault && after != t[k].after)) {
                fail_msg("%s: %a to %lld: fault %d, %lld", devices[i]->isa, (double)t[k].leaf,
                         (long long)t[k].before, fault, (long long)after);
            }
        }
    }
}

/* A NaN stays one whatever its payload: rounding it like a number would make it an infinity or a
 * zero. Ties go to even, the largest numbers to infinity, subnormals keep their bits. */
static void test_convert(void **state)
{
    static const uint32_t in[] = {0x7fffffff, 0xffffffff, 0x7f800001, 0xff800001, 0x7fc12345,
                                  0x7f800000, 0xff800000, 0x7f7fffff, 0x3f808000, 0x3f818000,
                                  0x3f808001, 0x80000000, 0x00000001, 0x00018000};
    static const uint16_t want[] = {0x7fff, 0xffff, 0x7fc0, 0xffc0, 0x7fc1, 0x7f80, 0xff80,
                                    0x7f80, 0x3f80, 0x3f82, 0x3f81, 0x8000, 0x0000, 0x0002};
    enum { N = sizeof in / sizeof *in };
    (void)state;
    for (int i = 0; i < n_devices; i++) {
        struct tensor x = make(devices[i], DTYPE_F32, 1, N);
        struct tensor y = make(devices[i], DTYPE_BF16, 1, N);
        memcpy(x.data, in, sizeof in);
        devices[i]->ops->convert(devices[i], &x, &y);
        assert_memory_equal(y.data, want, sizeof want);
        device_tensor_free(&x);
        device_tensor_free(&y);
    }
}

/* A block of a product against an order written down here: even and odd chains, then their sum. */
static void test_block_order(void **state)
{
    float even = 0, odd = 0;
    float x[32], w[32], y;
    (void)state;
    rand_state = 5;
    for (int i = 0; i < 32; i++) {
        x[i] = dtype_from_bf16(dtype_to_bf16(rand_value(PLAIN)));
        w[i] = dtype_from_bf16(dtype_to_bf16(rand_value(PLAIN)));
        if (i % 2) {
            odd = fmaf(x[i], w[i], odd);
        } else {
            even = fmaf(x[i], w[i], even);
        }
    }
    for (int i = 0; i < n_devices; i++) {
        struct device *d = devices[i];
        struct tensor tx = make(d, DTYPE_BF16, 1, 32), tw = make(d, DTYPE_BF16, 1, 32);
        struct tensor ty = make(d, DTYPE_F32, 1, 1);
        struct wview v;
        struct err e = {0};
        device_upload_f32(&tx, x);
        device_upload_f32(&tw, w);
        assert_ok(device_wview(d, &v, 1, 32, 0, &e), &e);
        d->ops->pack(d, &tw, &v);
        d->ops->linear(d, &tx, &v, NULL, NULL, &ty);
        device_download_f32(&ty, &y);
        assert_true(y == even + odd);
        device_wview_free(&v);
        device_tensor_free(&tx);
        device_tensor_free(&tw);
        device_tensor_free(&ty);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),        cmocka_unit_test(test_linear_dw),
        cmocka_unit_test(test_dw_leaves),     cmocka_unit_test(test_norm),
        cmocka_unit_test(test_attn),          cmocka_unit_test(test_norm_ranks),
        cmocka_unit_test(test_chunks),        cmocka_unit_test(test_chunks_segment),
        cmocka_unit_test(test_glu),           cmocka_unit_test(test_gates),
        cmocka_unit_test(test_logp),          cmocka_unit_test(test_rows),
        cmocka_unit_test(test_row_alone),     cmocka_unit_test(test_long_rows),
        cmocka_unit_test(test_leaf_grouping), cmocka_unit_test(test_quantum),
        cmocka_unit_test(test_block_order),   cmocka_unit_test(test_convert),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
