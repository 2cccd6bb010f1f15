/* Owns values: handles as temporaries, views of tensors, calls into the dispatcher. The first
 * failure inside torch is kept with its cause; what follows does nothing, so that operations need
 * no error paths of their own. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "num/torch/torch_int.h"

#define MAX_ARGS 8
#define MAX_DIMS 5

void torch_fail(struct torch *t, const char *what)
{
    const char *why = t->f.torch_exception_get_what_without_backtrace
                          ? t->f.torch_exception_get_what_without_backtrace()
                          : NULL;
    if (t->failed) {
        return;
    }
    t->failed = 1;
    snprintf(t->why, sizeof t->why, "torch failed in %s: %s", what, why ? why : "see above");
    t->why[strcspn(t->why, "\n")] = 0;
    log_error(TORCH, "%s", t->why);
}

struct aten *torch_keep(struct torch *t, struct aten *x)
{
    ASSERT(t->ntemp < TORCH_TEMPS);
    t->temp[t->ntemp++] = x;
    return x;
}

void torch_release(struct torch *t, int mark)
{
    while (t->ntemp > mark) {
        t->f.aoti_torch_delete_tensor_object(t->temp[--t->ntemp]);
    }
}

/* Takes the result of a call that makes a handle. */
static struct aten *torch_take(struct torch *t, int32_t failed, struct aten *x, const char *what)
{
    if (failed) {
        torch_fail(t, what);
        return NULL;
    }
    return torch_keep(t, x);
}

static void torch_dense_strides(int ndim, const int64_t *sizes, int64_t *strides)
{
    int64_t n = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        strides[i] = n;
        n *= sizes[i];
    }
}

int32_t torch_dtype(const struct torch *t, enum dtype d)
{
    return d == DTYPE_F32 ? t->f32 : d == DTYPE_BF16 ? t->bf16 : t->f64;
}

struct aten *torch_blob(struct torch *t, void *data, int32_t dtype, int ndim, const int64_t *sizes,
                        const int64_t *strides, int on_host)
{
    struct aten *x = NULL;
    int64_t dense[MAX_DIMS];
    int32_t rc;
    if (t->failed) {
        return NULL;
    }
    torch_dense_strides(ndim, sizes, dense);
    rc = t->f.aoti_torch_create_tensor_from_blob(data, ndim, sizes, strides ? strides : dense, 0,
                                                 dtype, on_host ? t->host : t->type,
                                                 on_host ? 0 : t->index, &x);
    return torch_take(t, rc, x, "a view");
}

struct aten *torch_empty(struct torch *t, int32_t dtype, int ndim, const int64_t *sizes)
{
    struct aten *x = NULL;
    int64_t dense[MAX_DIMS];
    int32_t rc;
    if (t->failed) {
        return NULL;
    }
    torch_dense_strides(ndim, sizes, dense);
    rc = t->f.aoti_torch_empty_strided(ndim, sizes, dense, dtype, t->type, t->index, &x);
    return torch_take(t, rc, x, "an allocation");
}

struct aten *torch_part(struct torch *t, const struct tensor *x, int64_t offset, int ndim,
                        const int64_t *sizes, const int64_t *strides)
{
    return torch_blob(t, (char *)x->data + offset * (int64_t)dtype_size(x->dtype),
                      torch_dtype(t, x->dtype), ndim, sizes, strides, 0);
}

struct aten *torch_block(struct torch *t, const struct tensor *x, int64_t r0, int64_t m, int64_t c0,
                         int64_t n)
{
    return torch_part(t, x, r0 * x->ld + c0, 2, (int64_t[]){m, n}, (int64_t[]){x->ld, 1});
}

struct aten *torch_view(struct torch *t, const struct tensor *x)
{
    return torch_block(t, x, 0, x->rows, 0, x->cols);
}

struct aten *torch_strided(struct torch *t, struct aten *x, int64_t offset, int ndim,
                           const int64_t *sizes, const int64_t *strides)
{
    struct aten *y = NULL;
    int64_t dense[MAX_DIMS];
    int32_t rc;
    if (t->failed) {
        return NULL;
    }
    torch_dense_strides(ndim, sizes, dense);
    rc = t->f.aoti_torch__reinterpret_tensor(x, ndim, sizes, strides ? strides : dense, offset, &y);
    return torch_take(t, rc, y, "a view");
}

struct aten *torch_dense(struct torch *t, struct aten *x, int ndim, const int64_t *sizes)
{
    struct aten *y = torch_empty(t, t->f32, ndim, sizes);
    torch_put(t, y, x);
    return y;
}

/* ---- the host's values -------------------------------------------------------------------------
 */

int32_t *torch_scratch(struct torch *t, int64_t n)
{
    if (t->cap_ints < n) {
        mem_free(t->ints);
        t->ints = mem_alloc(sizeof *t->ints * (size_t)n);
        t->cap_ints = n;
    }
    return t->ints;
}

struct aten *torch_ints(struct torch *t, const int32_t *v, int64_t n)
{
    struct aten *x = torch_empty(t, t->i64, 1, &n);
    torch_put(t, x, torch_blob(t, (void *)(uintptr_t)v, t->i32, 1, &n, NULL, 1));
    return x;
}

struct aten *torch_floats(struct torch *t, const float *v, int64_t n)
{
    int64_t size[] = {n, 1};
    struct aten *x = torch_empty(t, t->f32, 2, size);
    torch_put(t, x, torch_blob(t, (void *)(uintptr_t)v, t->f32, 2, size, NULL, 1));
    return x;
}

void torch_read(struct torch *t, struct aten *x, float *dst, int64_t n)
{
    int64_t size[] = {n, 1};
    if (dst) {
        torch_put(t, torch_blob(t, dst, t->f32, 2, size, NULL, 1), x);
    }
}

/* ---- operators ---------------------------------------------------------------------------------
 */

static uint64_t torch_optional(struct torch *t, uint64_t v)
{
    uint64_t *p = NULL;
    if (t->f.torch_new_stable_ivalue) {
        t->f.torch_new_stable_ivalue(&p);
    } else {
        p = t->f.new_bytes(sizeof *p);
    }
    ASSERT(p);
    *p = v;
    return (uint64_t)(uintptr_t)p;
}

static uint64_t torch_list(struct torch *t, int64_t v)
{
    void *list = NULL;
    t->f.torch_new_list_reserve_size(1, &list);
    t->f.torch_list_push_back(list, (uint64_t)v);
    return (uint64_t)(uintptr_t)list;
}

static uint64_t torch_tensor_arg(struct torch *t, struct aten *x)
{
    struct aten *own = NULL;
    ASSERT(x);
    t->f.aoti_torch_new_tensor_handle(x, &own);
    return (uint64_t)(uintptr_t)own;
}

static uint64_t torch_string_arg(struct torch *t, const char *s)
{
    void *own = NULL;
    t->f.torch_new_string_handle(s, strlen(s), &own);
    return (uint64_t)(uintptr_t)own;
}

struct aten *torch_op(struct torch *t, const char *op, const char *overload, const char *form, ...)
{
    uint64_t stack[MAX_ARGS] = {0};
    va_list ap;

    if (t->failed) {
        return NULL;
    }
    ASSERT(strlen(form) <= MAX_ARGS);
    va_start(ap, form);
    for (int i = 0; form[i]; i++) {
        switch (form[i]) {
        case 't': stack[i] = torch_tensor_arg(t, va_arg(ap, struct aten *)); break;
        case 'T':
            stack[i] = torch_optional(t, torch_tensor_arg(t, va_arg(ap, struct aten *)));
            break;
        case 'i': stack[i] = (uint64_t)va_arg(ap, int64_t); break;
        case 'b':
        case 'd': stack[i] = (uint64_t)(uint32_t)va_arg(ap, int); break;
        case 'D': stack[i] = torch_optional(t, (uint64_t)(uint32_t)va_arg(ap, int)); break;
        case 'l': stack[i] = torch_list(t, va_arg(ap, int64_t)); break;
        case 'L': stack[i] = torch_optional(t, torch_list(t, va_arg(ap, int64_t))); break;
        case 's': stack[i] = torch_string_arg(t, va_arg(ap, const char *)); break;
        default: ASSERT(form[i] == '-'); break;
        }
    }
    va_end(ap);
    if (t->f.torch_call_dispatcher(op, overload, stack, t->version)) {
        torch_fail(t, op);
        return NULL;
    }
    return torch_keep(t, (struct aten *)(uintptr_t)stack[0]);
}

struct aten *torch_f32(struct torch *t, struct aten *x)
{
    return torch_op(t, "aten::to", "dtype", "tdbb-", x, t->f32, 0, 0);
}

struct aten *torch_scalar(struct torch *t, float v)
{
    struct aten *x = NULL;
    int32_t rc;
    if (t->failed) {
        return NULL;
    }
    rc = t->f.aoti_torch_scalar_to_tensor_float32(v, &x);
    return torch_take(t, rc, x, "a scalar");
}

struct aten *torch_axpy(struct torch *t, struct aten *x, double alpha, struct aten *y)
{
    struct aten *z = NULL;
    int32_t rc;
    if (t->failed) {
        return NULL;
    }
    rc = t->f.aoti_torch_aten_subtract_Tensor(y, x, -alpha, &z);
    return torch_take(t, rc, z, "aten::subtract");
}

struct aten *torch_add(struct torch *t, struct aten *x, struct aten *y)
{
    return torch_axpy(t, y, 1.0, x);
}

struct aten *torch_sub(struct torch *t, struct aten *x, struct aten *y)
{
    return torch_axpy(t, y, -1.0, x);
}

struct aten *torch_mul(struct torch *t, struct aten *x, struct aten *y)
{
    return torch_op(t, "aten::mul", "Tensor", "tt", x, y);
}

struct aten *torch_div(struct torch *t, struct aten *x, struct aten *y)
{
    return torch_op(t, "aten::div", "Tensor", "tt", x, y);
}

struct aten *torch_scale(struct torch *t, struct aten *x, float by)
{
    return torch_mul(t, x, torch_scalar(t, by));
}

struct aten *torch_sum(struct torch *t, struct aten *x, int64_t dim)
{
    return torch_op(t, "aten::sum", "dim_IntList", "tLb-", x, dim, 1);
}

struct aten *torch_mean(struct torch *t, struct aten *x, int64_t dim)
{
    return torch_op(t, "aten::mean", "dim", "tLb-", x, dim, 1);
}

struct aten *torch_un(struct torch *t, const char *op, struct aten *x)
{
    return torch_op(t, op, "", "t", x);
}

void torch_put(struct torch *t, struct aten *dst, struct aten *src)
{
    if (!t->failed && t->f.aoti_torch_copy_(dst, src, 0)) {
        torch_fail(t, "aten::copy_");
    }
}

void torch_grad(struct torch *t, struct tensor *grad, int64_t r0, int64_t rows, struct aten *x)
{
    struct aten *g = torch_block(t, grad, r0, rows, 0, grad->cols);
    torch_put(t, g, torch_add(t, g, x));
}
