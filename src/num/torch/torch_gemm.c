/* The torch device's products. Into bf16 they are torch's own bf16 products (f32 inside, rounded at
 * the end). Into f32 the operands go through f32 in pieces, unless the device multiplies bf16 into
 * f32 by itself. */
#include "num/torch/torch_int.h"

/* The rows [n0, n0 + n) of a weight, (n, k). */
static struct aten *weight_rows(struct torch *t, const struct wview *w, int64_t n0, int64_t n)
{
    enum dtype half = device_half(w->dev);
    return torch_blob(t, (char *)w->fwd + n0 * w->k * (int64_t)dtype_size(half),
                      torch_dtype(t, half), 2, (int64_t[]){n, w->k}, NULL, 0);
}

/* a (m, k) b (k, n) in f32. */
static struct aten *mm_f32(struct torch *t, struct aten *a, struct aten *b)
{
    if (t->mm_f32) {
        return torch_op(t, "aten::mm", "dtype", "ttd", a, b, t->f32);
    }
    return torch_op(t, "aten::mm", "", "tt", torch_f32(t, a), torch_f32(t, b));
}

/* Rows of a weight that make one piece. */
static int64_t piece_rows(const struct torch *t, int64_t k)
{
    int64_t n = t->chunk / (k ? k : 1);
    return n > 64 ? n : 64;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void linear_f32(struct torch *t, const struct tensor *x, const struct wview *w,
                       const struct tensor *bias, const struct tensor *residual, struct tensor *y)
{
    struct aten *a = torch_view(t, x);
    int64_t step = piece_rows(t, w->k);
    int mark;

    if (!t->mm_f32) {
        a = torch_f32(t, a);
    }
    mark = t->ntemp;
    for (int64_t n0 = 0; n0 < w->n; n0 += step, torch_release(t, mark)) {
        int64_t n = least(step, w->n - n0);
        struct aten *wt = torch_op(t, "aten::t", "", "t", weight_rows(t, w, n0, n));
        struct aten *z = mm_f32(t, a, wt);
        if (bias) {
            z = torch_add(t, z, torch_f32(t, torch_block(t, bias, 0, 1, n0, n)));
        }
        if (residual) {
            z = torch_add(t, z, torch_f32(t, torch_block(t, residual, 0, x->rows, n0, n)));
        }
        torch_put(t, torch_block(t, y, 0, x->rows, n0, n), z);
    }
}

void torch_linear(struct device *d, const struct tensor *x, const struct wview *w,
                  const struct tensor *bias, const struct tensor *residual, struct tensor *y)
{
    struct torch *t = torch_of(d);
    struct aten *a, *z, *wr;
    int64_t n = w->n;

    if (!x->rows) {
        return;
    }
    if (y->dtype == DTYPE_F32) {
        linear_f32(t, x, w, bias, residual, y);
        torch_release(t, 0);
        return;
    }
    a = torch_view(t, x);
    wr = weight_rows(t, w, 0, n);
    if (bias) {
        struct aten *b = torch_part(t, bias, 0, 1, &n, (int64_t[]){1});
        z = torch_op(t, "aten::linear", "", "ttT", a, wr, b);
    } else {
        z = torch_op(t, "aten::linear", "", "tt-", a, wr);
    }
    if (residual) {
        z = torch_add(t, torch_f32(t, torch_view(t, residual)), torch_f32(t, z));
    }
    torch_put(t, torch_view(t, y), z);
    torch_release(t, 0);
}

void torch_linear_dx(struct device *d, const struct tensor *dy, const struct wview *w,
                     struct tensor *dx)
{
    struct torch *t = torch_of(d);
    struct aten *sum, *out;
    int64_t step = t->mm_f32 ? w->n : piece_rows(t, w->k);

    if (!dy->rows) {
        return;
    }
    out = torch_view(t, dx);
    if (dx->dtype != DTYPE_F32) {
        torch_put(t, out,
                  torch_op(t, "aten::mm", "", "tt", torch_view(t, dy), weight_rows(t, w, 0, w->n)));
        torch_release(t, 0);
        return;
    }
    for (int64_t n0 = 0; n0 < w->n; n0 += step, torch_release(t, 1)) {
        int64_t n = least(step, w->n - n0);
        sum = mm_f32(t, torch_block(t, dy, 0, dy->rows, n0, n), weight_rows(t, w, n0, n));
        torch_put(t, out, n0 ? torch_add(t, out, sum) : sum);
    }
    torch_release(t, 0);
}

void torch_linear_dw(struct device *d, const struct tensor *dy, const struct tensor *x,
                     const struct leaf_rows *leaves, struct tensor *grad)
{
    struct torch *t = torch_of(d);
    int64_t r0 = leaves->start[0], rows = leaves->start[leaves->n] - r0;
    int64_t step = piece_rows(t, grad->cols);
    struct aten *a;
    int mark;

    device_settle(grad);
    if (!rows) {
        return;
    }
    a = torch_block(t, x, r0, rows, 0, x->cols);
    if (!t->mm_f32) {
        a = torch_f32(t, a);
    }
    mark = t->ntemp;
    for (int64_t n0 = 0; n0 < grad->rows; n0 += step, torch_release(t, mark)) {
        int64_t n = least(step, grad->rows - n0);
        struct aten *dyt = torch_op(t, "aten::t", "", "t", torch_block(t, dy, r0, rows, n0, n));
        torch_grad(t, grad, n0, n, mm_f32(t, dyt, a));
    }
    torch_release(t, 0);
}

void torch_bias_dw(struct device *d, const struct tensor *dy, const struct leaf_rows *leaves,
                   struct tensor *grad)
{
    struct torch *t = torch_of(d);
    int64_t r0 = leaves->start[0], rows = leaves->start[leaves->n] - r0;
    if (rows) {
        struct aten *a = torch_f32(t, torch_block(t, dy, r0, rows, 0, dy->cols));
        torch_grad(t, grad, 0, 1, torch_sum(t, a, 0));
    }
    torch_release(t, 0);
}

/* A view is a dense copy of the rows: w16 may be freed, and the engine may read on while the next
 * version is made. */
void torch_pack(struct device *d, const struct tensor *w16, struct wview *view)
{
    struct torch *t = torch_of(d);
    torch_put(t, weight_rows(t, view, 0, view->n), torch_view(t, w16));
    torch_release(t, 0);
}
