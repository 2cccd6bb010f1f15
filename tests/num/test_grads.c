/* Gradients against central finite differences, and values against plain f64 formulas, on the
 * reference device in an f32 plan.
 *
 * A loss is the f64 sum of outputs times fixed random weights. Its derivative along one input is
 * taken from steps h = 1/16 and h/2, combined so that the error of order h^2 cancels. What remains
 * is a truncation of order h^4 times a fifth derivative (largest through the head norms) and the
 * outputs' f32 rounding divided by h. Neither is bounded here by proof: the bound, 1e-4 of the
 * tensor's largest gradient, is three times the worst difference measured over these cases (3.3e-5,
 * a head norm's weight; linear layers 5e-6). Leaving out or turning one term of a backward
 * operation was seen to give 4e-4 to 1 at the first place that fails. Gradients' own rounding to
 * 2^-45 is far below that. */
#include "support.h"

#include <math.h>

#include "base/status.h"
#include "num/device_int.h"
#include "num/exact.h"
#include "num/vmath.h"

#define STEP  0.0625f
#define BOUND 1e-4

static struct device *dev;

static int open_ref(void **state)
{
    struct plan plan;
    (void)state;
    plan_init(&plan, 2, 1);
    return device_open("ref", NULL, 2, &plan, &dev, NULL);
}

static int close_ref(void **state)
{
    (void)state;
    device_close(dev);
    return 0;
}

/* ---- values ------------------------------------------------------------------------------------
 */

static uint64_t rand_state = 1;

static uint64_t rand64(void)
{
    uint64_t z = rand_state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

/* In (-1, 1). */
static float rand_value(void)
{
    return (float)((double)(int64_t)rand64() * 0x1p-63);
}

static struct tensor make(enum dtype type, int rows, int cols)
{
    struct tensor t;
    struct err e = {0};
    assert_ok(device_tensor(dev, &t, type, rows, cols, &e), &e);
    return t;
}

static struct tensor filled(int rows, int cols)
{
    struct tensor t = make(DTYPE_F32, rows, cols);
    for (int r = 0; r < rows; r++) {
        for (int c = 0; c < cols; c++) {
            ((float *)t.data)[r * t.ld + c] = rand_value();
        }
    }
    return t;
}

static float *at(const struct tensor *t, int r, int c)
{
    return (float *)t->data + r * t->ld + c;
}

static double grad_at(const struct tensor *t, int r, int c)
{
    if (t->dtype == DTYPE_I64) {
        return (double)((int64_t *)t->data)[r * t->ld + c] * 0x1p-45;
    }
    return (double)*at(t, r, c);
}

/* Sum of y * weight, in f64. */
static double weighed(const struct tensor *y, const struct tensor *weight)
{
    double s = 0;
    for (int r = 0; r < (int)y->rows; r++) {
        for (int c = 0; c < (int)y->cols; c++) {
            s += (double)*at(y, r, c) * (double)*at(weight, r, c);
        }
    }
    return s;
}

static void free_all(struct tensor *const *t, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        device_tensor_free(t[i]);
    }
}

/* ---- differences -------------------------------------------------------------------------------
 */

typedef double loss_fn(void *arg);

static double central(loss_fn *loss, void *arg, float *x, float h)
{
    float keep = *x;
    double up, down, step;
    *x = keep + h;
    step = (double)*x;
    up = loss(arg);
    *x = keep - h;
    step -= (double)*x;
    down = loss(arg);
    *x = keep;
    return (up - down) / step;
}

/* Compares up to `samples` places of one input's gradient. */
static void check(const char *what, loss_fn *loss, void *arg, const struct tensor *x,
                  const struct tensor *grad, int samples)
{
    int n = (int)(x->rows * x->cols), step = n > samples ? n / samples : 1;
    double largest = 0;

    assert_int_equal(x->rows, grad->rows);
    assert_int_equal(x->cols, grad->cols);
    for (int i = 0; i < n; i++) {
        double g = fabs(grad_at(grad, i / (int)x->cols, i % (int)x->cols));
        largest = g > largest ? g : largest;
    }
    assert_true(largest > 1e-3); /* a gradient of zeros would pass anything */
    for (int i = (int)(rand64() % (uint64_t)step); i < n; i += step) {
        int r = i / (int)x->cols, c = i % (int)x->cols;
        double d1 = central(loss, arg, at(x, r, c), STEP);
        double d2 = central(loss, arg, at(x, r, c), STEP / 2);
        double fd = (4 * d2 - d1) / 3, g = grad_at(grad, r, c);
        if (!(fabs(fd - g) <= BOUND * largest)) {
            fail_msg("%s (%d, %d): gradient %.8g, difference %.8g, largest %.3g", what, r, c, g, fd,
                     largest);
        }
    }
}

/* ---- linear ------------------------------------------------------------------------------------
 */

struct linear {
    struct tensor x, w, bias, weight, y;
    struct wview v;
};

static double linear_loss(void *arg)
{
    struct linear *l = arg;
    dev->ops->pack(dev, &l->w, &l->v);
    dev->ops->linear(dev, &l->x, &l->v, &l->bias, NULL, &l->y);
    return weighed(&l->y, &l->weight);
}

static void test_linear(void **state)
{
    enum { M = 37, N = 40, K = 64 };
    static const int32_t start[] = {0, 1, 20, 37};
    struct leaf_rows leaves = {3, start};
    struct linear l;
    struct tensor dx = make(DTYPE_F32, M, K), dw = make(DTYPE_I64, N, K);
    struct tensor db = make(DTYPE_I64, 1, N);
    struct tensor *const all[] = {&l.x, &l.w, &l.bias, &l.weight, &l.y, &dx, &dw, &db};
    struct err e = {0};
    double worst = 0;
    (void)state;

    l.x = filled(M, K);
    l.w = filled(N, K);
    l.bias = filled(1, N);
    l.weight = filled(M, N);
    l.y = make(DTYPE_F32, M, N);
    assert_ok(device_wview(dev, &l.v, N, K, 1, &e), &e);
    memset(&l.v.kleaf, 0, sizeof l.v.kleaf);
    memset(&l.v.nleaf, 0, sizeof l.v.nleaf);
    plan_leafset_add(&l.v.kleaf, 2, K / 32, 32, 0, K);
    plan_leafset_add(&l.v.nleaf, 2, 2, 32, 0, N);
    linear_loss(&l);
    for (int r = 0; r < M; r++) {
        for (int n = 0; n < N; n++) {
            double s = (double)*at(&l.bias, 0, n);
            for (int k = 0; k < K; k++) {
                s += (double)*at(&l.x, r, k) * (double)*at(&l.w, n, k);
            }
            worst = fmax(worst, fabs(s - (double)*at(&l.y, r, n)));
        }
    }
    assert_true(worst < 1e-5);
    dev->ops->linear_dx(dev, &l.weight, &l.v, &dx);
    dev->ops->linear_dw(dev, &l.weight, &l.x, &leaves, &dw);
    dev->ops->bias_dw(dev, &l.weight, &leaves, &db);
    check("linear_dx", linear_loss, &l, &l.x, &dx, 100);
    check("linear_dw", linear_loss, &l, &l.w, &dw, 100);
    check("bias_dw", linear_loss, &l, &l.bias, &db, 100);
    device_wview_free(&l.v);
    free_all(all, sizeof all / sizeof *all);
}

/* ---- norm --------------------------------------------------------------------------------------
 */

struct normed {
    struct tensor x, w, weight, res, y, rstd;
    struct norm n;
};

static double norm_loss(void *arg)
{
    struct normed *n = arg;
    dev->ops->rmsnorm(dev, &n->x, &n->n, &n->res, &n->y, &n->rstd);
    return weighed(&n->y, &n->weight);
}

static void norm_case(int plus_one)
{
    enum { M = 6, H = 50 };
    static const int32_t start[] = {0, 4, 6};
    struct leaf_rows leaves = {2, start};
    struct normed n = {.x = filled(M, H),
                       .w = filled(1, H),
                       .weight = filled(M, H),
                       .res = filled(M, H),
                       .y = make(DTYPE_F32, M, H),
                       .rstd = make(DTYPE_F32, M, 1)};
    struct tensor dx = filled(M, H), before = make(DTYPE_F32, M, H), dw = make(DTYPE_I64, 1, H);
    struct tensor *const all[] = {&n.x, &n.w, &n.weight, &n.res, &n.y, &n.rstd, &dx, &before, &dw};

    n.n = (struct norm){&n.w, 1e-3f, plus_one};
    norm_loss(&n);
    for (int r = 0; r < M; r++) {
        double ss = 0;
        for (int c = 0; c < H; c++) {
            ss += (double)*at(&n.x, r, c) * (double)*at(&n.x, r, c);
        }
        for (int c = 0; c < H; c++) {
            double w = (double)*at(&n.w, 0, c) + plus_one;
            double y = (double)*at(&n.x, r, c) / sqrt(ss / H + 1e-3) * w;
            assert_true(fabs(y + (double)*at(&n.res, r, c) - (double)*at(&n.y, r, c)) < 1e-6);
        }
    }
    dev->ops->copy(dev, &dx, &before);
    dev->ops->rmsnorm_bwd(dev, &n.weight, &n.x, &n.n, &n.rstd, &leaves, &dx, &dw);
    for (int i = 0; i < M * H; i++) { /* it adds to what was there */
        *at(&dx, i / H, i % H) -= *at(&before, i / H, i % H);
    }
    check("rmsnorm_bwd", norm_loss, &n, &n.x, &dx, 300);
    check("rmsnorm_bwd weight", norm_loss, &n, &n.w, &dw, 300);
    free_all(all, sizeof all / sizeof *all);
}

static void test_norm(void **state)
{
    (void)state;
    norm_case(0);
    norm_case(1);
}

/* ---- rope and attention ------------------------------------------------------------------------
 */

struct attention {
    struct attn_shape s;
    struct rows rows;
    struct row_seq seq[2];
    int32_t pos[400], pages[2][8];
    int norm; /* of heads: 1; 2: by 1 + w, and half of a head is turned, in neighbouring pairs */
    struct tensor qkv, qn, kn, cos, sin, weight, q, out, lse;
    struct norm qnorm, knorm;
    struct kv_store kv;
};

static double attention_loss(void *arg)
{
    struct attention *a = arg;
    dev->ops->rope_kv(dev, &a->qkv, a->norm ? &a->qnorm : NULL, a->norm ? &a->knorm : NULL, &a->cos,
                      &a->sin, &a->s, &a->rows, &a->kv, 0, &a->q);
    dev->ops->attn(dev, &a->q, &a->kv, 0, &a->s, &a->rows, &a->out, &a->lse);
    return weighed(&a->out, &a->weight);
}

static void attention_open(struct attention *a, int heads, int kv, int dim, int norm, int len0,
                           int len1)
{
    int n = len0 + len1, page = 0;
    struct err e = {0};

    memset(a, 0, sizeof *a);
    a->s = (struct attn_shape){.n_heads = heads,
                               .n_kv_heads = kv,
                               .head_dim = dim,
                               .scale = 1.0f / sqrtf((float)dim),
                               .rot = norm == 2 ? dim / 2 : dim,
                               .interleaved = norm == 2};
    a->qnorm = (struct norm){&a->qn, 1e-2f, norm == 2};
    a->knorm = (struct norm){&a->kn, 1e-2f, norm == 2};
    a->norm = norm;
    a->seq[0] = (struct row_seq){0, len0, 0, a->pages[0], 0};
    a->seq[1] = (struct row_seq){len0, len1, 0, a->pages[1], 0};
    a->rows = (struct rows){n, len1 ? 2 : 1, a->seq, a->pos};
    for (int s = 0; s < 2; s++) {
        for (int t = 0; t < a->seq[s].nrows; t++) {
            a->pos[a->seq[s].row0 + t] = t;
            if (t % PLAN_KV_BLOCK == 0) {
                a->pages[s][t / PLAN_KV_BLOCK] = page++;
            }
        }
    }
    a->qkv = filled(n, (heads + 2 * kv) * dim);
    a->qn = filled(1, dim);
    a->kn = filled(1, dim);
    a->cos = make(DTYPE_F32, 400, dim / 2);
    a->sin = make(DTYPE_F32, 400, dim / 2);
    for (int p = 0; p < 400; p++) {
        for (int i = 0; i < a->s.rot / 2; i++) {
            *at(&a->cos, p, i) = (float)cos(p * pow(100.0, -2.0 * i / dim));
            *at(&a->sin, p, i) = (float)sin(p * pow(100.0, -2.0 * i / dim));
        }
    }
    a->weight = filled(n, heads * dim);
    a->q = make(DTYPE_F32, n, heads * dim);
    a->out = make(DTYPE_F32, n, heads * dim);
    a->lse = make(DTYPE_F32, n, heads);
    assert_ok(device_kv(dev, &a->kv, 1, kv, dim, page, &e), &e);
}

static void attention_close(struct attention *a)
{
    struct tensor *const all[] = {&a->qkv,    &a->qn, &a->kn,  &a->cos, &a->sin,
                                  &a->weight, &a->q,  &a->out, &a->lse};
    free_all(all, sizeof all / sizeof *all);
    device_kv_free(&a->kv);
}

/* Head h of row r (query heads, key heads, value heads) after norm and rotation, f64. */
static void plain_head(const struct attention *a, int r, int h, double *y)
{
    int d = a->s.head_dim, nh = a->s.n_heads, pos = a->pos[r];
    double x[128], ss = 0;
    const struct tensor *w = h < nh ? &a->qn : &a->kn;

    for (int i = 0; i < d; i++) {
        x[i] = (double)*at(&a->qkv, r, h * d + i);
        ss += x[i] * x[i];
    }
    if (h >= nh + a->s.n_kv_heads) {
        memcpy(y, x, sizeof(double) * (size_t)d);
        return;
    }
    for (int i = 0; a->norm && i < d; i++) {
        x[i] = x[i] / sqrt(ss / d + 1e-2) * ((a->norm == 2) + (double)*at(w, 0, i));
    }
    memcpy(y, x, sizeof(double) * (size_t)d);
    for (int i = 0; i < a->s.rot / 2; i++) {
        double f = pos * pow(100.0, -2.0 * i / d);
        int j = a->s.interleaved ? 2 * i : i, k = a->s.interleaved ? j + 1 : i + d / 2;
        y[j] = x[j] * cos(f) - x[k] * sin(f);
        y[k] = x[k] * cos(f) + x[j] * sin(f);
    }
}

/* softmax(q K^T) V of one row and head, f64; returns the log of the sum of exponentials. */
static double plain_attention(const struct attention *a, const struct row_seq *sq, int t, int h,
                              double *out)
{
    int d = a->s.head_dim, nh = a->s.n_heads, kvh = h / (nh / a->s.n_kv_heads);
    double q[128], k[128], v[128], z = 0;

    plain_head(a, sq->row0 + t, h, q);
    memset(out, 0, sizeof(double) * (size_t)d);
    for (int j = 0; j <= t; j++) {
        double s = 0, p;
        plain_head(a, sq->row0 + j, nh + kvh, k);
        plain_head(a, sq->row0 + j, nh + a->s.n_kv_heads + kvh, v);
        for (int i = 0; i < d; i++) {
            s += q[i] * k[i];
        }
        p = exp(s * (double)a->s.scale);
        z += p;
        for (int i = 0; i < d; i++) {
            out[i] += p * v[i];
        }
    }
    for (int i = 0; i < d; i++) {
        out[i] /= z;
    }
    return log(z);
}

static void attention_values(const struct attention *a)
{
    double o[128];
    for (int s = 0; s < a->rows.nseq; s++) {
        const struct row_seq *sq = &a->seq[s];
        for (int t = 0; t<sq->nrows; t += t> 60 ? 13 : 1) {
            for (int h = 0; h < a->s.n_heads; h++) {
                double lse = plain_attention(a, sq, t, h, o);
                assert_true(fabs(lse - (double)*at(&a->lse, sq->row0 + t, h)) < 5e-6);
                for (int i = 0; i < a->s.head_dim; i++) {
                    double y = (double)*at(&a->out, sq->row0 + t, h * a->s.head_dim + i);
                    assert_true(fabs(o[i] - y) < 5e-6);
                }
            }
        }
    }
}

static void attention_case(int heads, int kv, int dim, int norm, int len0, int len1, int samples)
{
    struct attention *a = malloc(sizeof *a);
    int n = len0 + len1;
    int32_t start[8];
    struct leaf_rows leaves = {0, start};
    struct tensor dq = make(DTYPE_F32, n, heads * dim), dkv = make(DTYPE_F32, n, 2 * kv * dim);
    struct tensor dqkv = make(DTYPE_F32, n, (heads + 2 * kv) * dim);
    struct tensor gq = make(DTYPE_I64, 1, dim), gk = make(DTYPE_I64, 1, dim);
    struct tensor *const all[] = {&dq, &dkv, &dqkv, &gq, &gk};

    attention_open(a, heads, kv, dim, norm, len0, len1);
    for (int s = 0; s < a->rows.nseq; s++) {
        for (int t = 0; t < a->seq[s].nrows; t += PLAN_LEAF) {
            start[leaves.n++] = a->seq[s].row0 + t;
        }
    }
    start[leaves.n] = n;
    attention_loss(a);
    attention_values(a);
    dev->ops->attn_bwd(dev, &a->weight, &a->q, &a->out, &a->lse, &a->kv, 0, &a->s, &a->rows, &dq,
                       &dkv);
    dev->ops->rope_kv_bwd(dev, &dq, &dkv, &a->qkv, norm ? &a->qnorm : NULL, norm ? &a->knorm : NULL,
                          &a->cos, &a->sin, &a->s, &a->rows, &leaves, &dqkv, norm ? &gq : NULL,
                          norm ? &gk : NULL);
    check("attention", attention_loss, a, &a->qkv, &dqkv, samples);
    if (norm) {
        check("q norm", attention_loss, a, &a->qn, &gq, samples);
        check("k norm", attention_loss, a, &a->kn, &gk, samples);
    }
    free_all(all, sizeof all / sizeof *all);
    attention_close(a);
    free(a);
}

static void test_attention(void **state)
{
    (void)state;
    attention_case(3, 1, 32, 0, 9, 5, 80);
    attention_case(4, 2, 32, 1, 7, 3, 60);
    attention_case(2, 2, 64, 1, 5, 0, 60);
    attention_case(2, 1, 32, 0, 70, 3, 16); /* two pages */
    attention_case(2, 1, 64, 2, 9, 4, 60);
}

static void test_attention_leaves(void **state)
{
    (void)state;
    attention_case(1, 1, 32, 1, 259, 0, 5); /* two leaves of queries */
}

/* ---- gated units
 * ------------------------------------------------------------------------------------
 */

struct glu {
    struct tensor gu, weight, y;
    enum act act;
};

static double glu_loss(void *arg)
{
    struct glu *s = arg;
    dev->ops->glu(dev, &s->gu, s->act, &s->y);
    return weighed(&s->y, &s->weight);
}

static double plain_act(enum act act, double g)
{
    if (act == ACT_SILU) {
        return g / (1 + exp(-g));
    }
    return 0.5 * g * (1 + tanh(sqrt(2 / acos(-1.0)) * (g + 0.044715 * g * g * g)));
}

static void glu_case(enum act act)
{
    enum { M = 4, I = 32 };
    struct glu s = {filled(M, 2 * I), filled(M, I), make(DTYPE_F32, M, I), act};
    struct tensor d = make(DTYPE_F32, M, 2 * I);
    struct tensor *const all[] = {&s.gu, &s.weight, &s.y, &d};

    for (int i = 0; i < M * I; i++) { /* gates to both sides of the bend */
        *at(&s.gu, i / I, i % I) *= 5;
    }
    glu_loss(&s);
    for (int i = 0; i < M * I; i++) {
        double g = (double)*at(&s.gu, i / I, i % I), u = (double)*at(&s.gu, i / I, I + i % I);
        assert_true(fabs(plain_act(act, g) * u - (double)*at(&s.y, i / I, i % I)) < 2e-6);
    }
    dev->ops->glu_bwd(dev, &s.weight, &s.gu, act, &d);
    check("glu_bwd", glu_loss, &s, &s.gu, &d, 1000);
    free_all(all, sizeof all / sizeof *all);
}

static void test_glu(void **state)
{
    (void)state;
    glu_case(ACT_SILU);
    glu_case(ACT_GELU_TANH);
}

/* ---- log-probabilities -------------------------------------------------------------------------
 */

struct logp {
    struct tensor x, work;
    struct logit_spec spec;
    float g[4], ge[4], logp[4], max[4], logz[4], entropy[4];
    int32_t target[4];
    struct leafset leaves;
};

static double logp_loss(void *arg)
{
    struct logp *l = arg;
    double s = 0;
    dev->ops->copy(dev, &l->x, &l->work);
    dev->ops->logp(dev, &l->work, &l->spec, l->target, &l->leaves, l->logp, l->max, l->logz,
                   l->entropy);
    for (int r = 0; r < 4; r++) {
        s += (l->target[r] >= 0 ? (double)l->g[r] * (double)l->logp[r] : 0) +
             (double)l->ge[r] * (double)l->entropy[r];
    }
    return s;
}

static double plain_logit(const struct logit_spec *s, double x)
{
    double cap = (double)s->softcap;
    return (cap > 0 ? cap * tanh(x / cap) : x) / (double)s->temperature;
}

static void test_logp(void **state)
{
    enum { V = 77 };
    static const struct logit_spec specs[] = {
        {1.0f, 0.0f}, {0.7f, 0.0f}, {1.9f, 0.0f}, {1.0f, 2.5f}, {0.7f, 4.0f}};
    (void)state;
    for (int t = 0; t < 5; t++) {
        struct logp l = {.x = filled(4, V),
                         .work = make(DTYPE_F32, 4, V),
                         .spec = specs[t],
                         .g = {1, -2, 0.5f, 0},
                         .ge = {0.3f, 0, -0.2f, 1},
                         .target = {3, 76, 40, -1}};
        struct tensor dx = make(DTYPE_F32, 4, V);
        struct tensor *const all[] = {&l.x, &l.work, &dx};

        plan_leafset_add(&l.leaves, 2, 3, 32, 0, V);
        for (int i = 0; i < 4 * V; i++) {
            *at(&l.x, i / V, i % V) *= 3;
        }
        logp_loss(&l);
        for (int r = 0; r < 4; r++) {
            double z = 0, h = 0, top = (double)l.max[r];
            for (int c = 0; c < V; c++) {
                double x = plain_logit(&l.spec, (double)*at(&l.x, r, c));
                z += exp(x - top);
                assert_true(x < top + 1e-5);
            }
            for (int c = 0; c < V; c++) {
                double lp = plain_logit(&l.spec, (double)*at(&l.x, r, c)) - top - log(z);
                h -= exp(lp) * lp;
                assert_true(c != l.target[r] || fabs(lp - (double)l.logp[r]) < 3e-6);
            }
            assert_true(fabs(log(z) - (double)l.logz[r]) < 2e-6);
            assert_true(fabs(h - (double)l.entropy[r]) < 5e-6);
        }
        dev->ops->logp_bwd(dev, &l.work, &l.spec, l.target, l.max, l.logz, l.entropy, l.g, l.ge,
                           &dx);
        check("logp_bwd", logp_loss, &l, &l.x, &dx, 1000);
        free_all(all, sizeof all / sizeof *all);
    }
}

/* Four logits whose log-prob and entropy are known. */
static void test_logp_known(void **state)
{
    static const float want[2][3] = {{1.0f, -0.440189699f, 0.947536964f},
                                     {0.7f, -0.270673831f, 0.702027977f}};
    (void)state;
    for (int t = 0; t < 2; t++) {
        struct logit_spec spec = {want[t][0], 0.0f};
        struct tensor x = make(DTYPE_F32, 1, 4);
        struct leafset leaves = {0};
        float logp, entropy;
        int32_t target = 2;

        for (int i = 0; i < 4; i++) {
            *at(&x, 0, i) = (float)((i + 1) % 4);
        }
        plan_leafset_add(&leaves, 2, 1, 32, 0, 4);
        dev->ops->logp(dev, &x, &spec, &target, &leaves, &logp, NULL, NULL, &entropy);
        assert_true(fabsf(logp - want[t][1]) < 1e-7f);
        assert_true(fabsf(entropy - want[t][2]) < 2e-7f);
        device_tensor_free(&x);
    }
}

/* ---- embedding ---------------------------------------------------------------------------------
 */

struct embed {
    struct tensor table, weight, y;
    const int32_t *ids;
    float scale;
};

static double embed_loss(void *arg)
{
    struct embed *m = arg;
    dev->ops->embed(dev, &m->table, m->ids, m->scale, &m->y);
    return weighed(&m->y, &m->weight);
}

static void test_embed(void **state)
{
    static const int32_t ids[] = {3, 0, 3, 3, 6};
    (void)state;
    for (int scaled = 0; scaled < 2; scaled++) {
        struct embed m = {filled(8, 40), filled(5, 40), make(DTYPE_F32, 5, 40), ids,
                          scaled ? 5.5f : 1.0f};
        struct tensor g = make(DTYPE_I64, 8, 40);
        struct tensor *const all[] = {&m.table, &m.weight, &m.y, &g};

        dev->ops->embed_bwd(dev, &m.weight, ids, m.scale, &g);
        check("embed_bwd", embed_loss, &m, &m.table, &g, 1000);
        free_all(all, sizeof all / sizeof *all);
    }
}

/* ---- optimizer ---------------------------------------------------------------------------------
 */

/* Three steps of AdamW as its paper has it, in f64. */
static void test_adamw(void **state)
{
    enum { R = 3, C = 40 };
    struct tensor g = make(DTYPE_I64, R, C), p = filled(R, C), m = make(DTYPE_F32, R, C);
    struct tensor v = make(DTYPE_F32, R, C), w = make(DTYPE_F32, R, C);
    struct tensor *const all[] = {&g, &p, &m, &v, &w};
    double dp[R * C], dm[R * C] = {0}, dv[R * C] = {0}, sum;
    const double lr = 1e-2, b1 = 0.9, b2 = 0.99, eps = 1e-8, wd = 0.1, clip = 0.5;
    (void)state;

    for (int i = 0; i < R * C; i++) {
        dp[i] = (double)*at(&p, i / C, i % C);
    }
    for (int t = 1; t <= 3; t++) {
        struct adam_step s = {(float)lr,
                              (float)b1,
                              (float)b2,
                              (float)eps,
                              (float)wd,
                              (float)(1 - vmath_powi(b1, t)),
                              (float)sqrt(1 - vmath_powi(b2, t)),
                              (float)clip};
        struct exact x;
        sum = 0;
        for (int i = 0; i < R * C; i++) {
            double q = (double)rand_value(), gr;
            ((int64_t *)g.data)[i / C * g.ld + i % C] = (int64_t)(q * 0x1p45);
            sum += q * q;
            gr = q * clip;
            dm[i] = b1 * dm[i] + (1 - b1) * gr;
            dv[i] = b2 * dv[i] + (1 - b2) * gr * gr;
            dp[i] = dp[i] * (1 - lr * wd) - lr * (dm[i] / (1 - vmath_powi(b1, t))) /
                                                (sqrt(dv[i] / (1 - vmath_powi(b2, t))) + eps);
        }
        exact_init(&x);
        dev->ops->sumsq(dev, &g, &x);
        assert_true(fabs(exact_value(&x) - sum) < 1e-6 * sum);
        dev->ops->adamw(dev, &(struct adam_param){&g, &p, &m, &v, &w, NULL, 1, 0}, &s);
        for (int i = 0; i < R * C; i++) {
            assert_true(fabs(dp[i] - (double)*at(&p, i / C, i % C)) < 2e-6);
            assert_true(*at(&p, i / C, i % C) == *at(&w, i / C, i % C));
        }
    }
    /* without decay a weight whose gradient is zero and was always zero stays */
    device_zero(&m);
    device_zero(&g);
    dev->ops->adamw(dev, &(struct adam_param){&g, &p, &m, &v, &w, NULL, 0, 0},
                    &(struct adam_step){1e-2f, 0.9f, 0.99f, 1e-8f, 0.1f, 1.0f, 1.0f, 1.0f});
    assert_true(memcmp(device_host_row(&p, 0), device_host_row(&w, 0), sizeof(float) * C) == 0);
    assert_true(fabs(dp[0] - (double)*at(&p, 0, 0)) < 2e-6);
    free_all(all, sizeof all / sizeof *all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),     cmocka_unit_test(test_norm),
        cmocka_unit_test(test_attention),  cmocka_unit_test(test_attention_leaves),
        cmocka_unit_test(test_glu),        cmocka_unit_test(test_logp),
        cmocka_unit_test(test_logp_known), cmocka_unit_test(test_embed),
        cmocka_unit_test(test_adamw),
    };
    return cmocka_run_group_tests(tests, open_ref, close_ref);
}
