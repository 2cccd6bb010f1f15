/* The torch device: ATen through libtorch's stable C ABI, opened at run time. Tensors lie in
 * torch's memory; `data` of a tensor is their address there, which only torch looks at, through
 * views made for each operation. The same code serves torch:cpu and torch:cuda.
 *
 * It promises no bits: torch's products change with the batch, so rollout and trainer may differ in
 * the last digits, which is then a metric and not an error. Gradients are f64 sums held in tensors
 * of type I64 (as many bytes as the exact sums of the other devices). Operations allocate, from
 * torch's caching allocator. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "base/thread.h"
#include "num/torch/torch_int.h"

static const struct device_ops torch_table = {
    .linear = torch_linear,
    .linear_dx = torch_linear_dx,
    .linear_dw = torch_linear_dw,
    .bias_dw = torch_bias_dw,
    .rmsnorm = torch_rmsnorm,
    .rmsnorm_bwd = torch_rmsnorm_bwd,
    .rope_kv = torch_rope_kv,
    .rope_kv_bwd = torch_rope_kv_bwd,
    .attn = torch_attn,
    .attn_bwd = torch_attn_bwd,
    .glu = torch_glu,
    .glu_bwd = torch_glu_bwd,
    .embed = torch_embed,
    .embed_bwd = torch_embed_bwd,
    .logp = torch_logp,
    .logp_bwd = torch_logp_bwd,
    .exps = torch_exps,
    .gather = torch_gather,
    .scatter = torch_scatter,
    .copy = torch_copy,
    .convert = torch_copy,
    .sumsq = torch_sumsq,
    .adamw = torch_adamw,
    .pack = torch_pack,
};

/* ---- memory ------------------------------------------------------------------------------------
 */

static void *torch_alloc(struct device *d, size_t bytes)
{
    struct torch *t = torch_of(d);
    int64_t n = (int64_t)bytes, one = 1;
    struct torch_held h = {NULL, NULL};

    if (t->f.aoti_torch_empty_strided(1, &n, &one, t->u8, t->type, t->index, &h.owner)) {
        return NULL;
    }
    if (t->f.aoti_torch_zero_(h.owner) || t->f.aoti_torch_get_data_ptr(h.owner, &h.data)) {
        t->f.aoti_torch_delete_tensor_object(h.owner);
        return NULL;
    }
    if (t->nheld == t->cap_held) {
        int cap = t->cap_held ? 2 * t->cap_held : 256;
        t->held = mem_realloc(t->held, sizeof h * (size_t)t->cap_held, sizeof h * (size_t)cap);
        t->cap_held = cap;
    }
    t->held[t->nheld++] = h;
    return h.data;
}

static void torch_free(struct device *d, void *data)
{
    struct torch *t = torch_of(d);
    for (int i = t->nheld - 1; i >= 0; i--) {
        if (t->held[i].data == data) {
            t->f.aoti_torch_delete_tensor_object(t->held[i].owner);
            t->held[i] = t->held[--t->nheld];
            return;
        }
    }
    ASSERT(!data);
}

/* Host values of a tensor's shape, without padding. */
static struct aten *torch_host(struct torch *t, const struct tensor *x, const void *p,
                               enum dtype dtype)
{
    return torch_blob(t, (void *)(uintptr_t)p, torch_dtype(t, dtype), 2,
                      (int64_t[]){x->rows, x->cols}, NULL, 1);
}

static void torch_upload(struct tensor *x, const void *src, enum dtype from)
{
    struct torch *t = torch_of(x->dev);
    torch_put(t, torch_view(t, x), torch_host(t, x, src, from));
    torch_release(t, 0);
}

static void torch_download(const struct tensor *x, float *dst)
{
    struct torch *t = torch_of(x->dev);
    torch_put(t, torch_host(t, x, dst, DTYPE_F32), torch_view(t, x));
    torch_release(t, 0);
}

static void torch_zero(struct tensor *x)
{
    struct torch *t = torch_of(x->dev);
    int mark = t->ntemp;
    struct aten *v = torch_view(t, x);
    if (v && t->f.aoti_torch_zero_(v)) {
        torch_fail(t, "aten::zero_");
    }
    torch_release(t, mark);
}

/* All layers' keys and values of a page: (layers * 2, 64 * kv heads * d). */
static struct aten *torch_page(struct torch *t, struct kv_store *kv, int page)
{
    int64_t width = (int64_t)kv->n_kv_heads * kv->head_dim * PLAN_KV_BLOCK;
    int64_t size[] = {2 * (int64_t)kv->n_layers, width}, strides[] = {kv->n_pages * width, 1};
    return torch_blob(t, (char *)kv->data + page * width * (int64_t)dtype_size(kv->dtype),
                      torch_dtype(t, kv->dtype), 2, size, strides, 0);
}

static void torch_kv_copy(struct kv_store *kv, int from, int to)
{
    struct torch *t = torch_of(kv->dev);
    torch_put(t, torch_page(t, kv, to), torch_page(t, kv, from));
    torch_release(t, 0);
}

static int torch_fault(struct device *d, struct err *e)
{
    struct torch *t = torch_of(d);
    if (t->failed) {
        t->failed = 0;
        torch_release(t, 0);
        return ERR(e, STATUS_FAIL, "%s", t->why);
    }
    return STATUS_OK;
}

static void torch_close(struct device *d)
{
    struct torch *t = torch_of(d);
    torch_release(t, 0);
    for (int i = 0; i < t->nheld; i++) {
        t->f.aoti_torch_delete_tensor_object(t->held[i].owner);
    }
    mem_free(t->held);
    mem_free(t->ints);
    mem_free(t);
}

static const struct device_mem torch_mem = {
    .close = torch_close,
    .fault = torch_fault,
    .alloc = torch_alloc,
    .free = torch_free,
    .upload = torch_upload,
    .download = torch_download,
    .zero = torch_zero,
    .kv_copy = torch_kv_copy,
};

/* ---- opening -----------------------------------------------------------------------------------
 */

/* "cpu", "cuda" or "cuda:N". */
static int torch_parse(const char *name, int *cuda, int *index, struct err *e)
{
    char end;
    *cuda = *index = 0;
    if (strcmp(name, "cpu") == 0) {
        return STATUS_OK;
    }
    *cuda = 1;
    if (strcmp(name, "cuda") == 0 ||
        (sscanf(name, "cuda:%d%c", index, &end) == 1 && *index >= 0 && *index < 1024)) {
        return STATUS_OK;
    }
    return ERR(e, STATUS_INPUT, "unknown device torch:%s: torch:cpu, torch:cuda or torch:cuda:N",
               name);
}

static void torch_constants(struct torch *t, int cuda, int index)
{
    const struct torch_abi *f = &t->f;
    t->version = f->aoti_torch_abi_version();
    t->host = f->aoti_torch_device_type_cpu();
    t->type = cuda ? f->aoti_torch_device_type_cuda() : t->host;
    t->index = index;
    /* what fills a GPU; what stays in a core's cache */
    t->chunk = cuda ? (int64_t)16 << 20 : (int64_t)512 << 10;
    t->scores = cuda ? (int64_t)64 << 20 : (int64_t)256 << 10;
    t->bf16 = f->aoti_torch_dtype_bfloat16();
    t->f32 = f->aoti_torch_dtype_float32();
    t->f64 = f->aoti_torch_dtype_float64();
    t->u8 = f->aoti_torch_dtype_uint8();
    t->i32 = f->aoti_torch_dtype_int32();
    t->i64 = f->aoti_torch_dtype_int64();
    snprintf(t->isa, sizeof t->isa, "libtorch %d.%d", (int)(t->version >> 56 & 255),
             (int)(t->version >> 48 & 255));
}

/* Whether the device multiplies bf16 into f32: CUDA does, the CPU has no such kernel. A first
 * operation also tells whether the device is there at all. */
static void torch_try(struct torch *t, int f32_plan)
{
    struct aten *x = torch_empty(t, t->bf16, 2, (int64_t[]){8, 8}), *a = NULL, *b = NULL;
    uint64_t stack[3];

    if (x && t->type != t->host && !f32_plan) {
        t->f.aoti_torch_new_tensor_handle(x, &a);
        t->f.aoti_torch_new_tensor_handle(x, &b);
        stack[0] = (uint64_t)(uintptr_t)a;
        stack[1] = (uint64_t)(uintptr_t)b;
        stack[2] = (uint64_t)t->f32;
        t->mm_f32 = !t->f.torch_call_dispatcher("aten::mm", "dtype", stack, t->version);
        if (t->mm_f32) {
            torch_keep(t, (struct aten *)(uintptr_t)stack[0]);
        }
    } else if (x) {
        torch_mul(t, x, x);
    }
    torch_release(t, 0);
}

int torch_open(struct device *d, const char *name, const char *dir, struct err *e)
{
    struct torch *t = mem_alloc(sizeof *t);
    int cuda, index, rc = torch_parse(name, &cuda, &index, e);

    d->impl = t;
    if (rc == STATUS_OK) {
        rc = torch_lib_open(&t->f, dir, cuda, pool_size(d->pool), e);
    }
    if (rc != STATUS_OK) {
        mem_free(t);
        d->impl = NULL;
        return rc;
    }
    d->mem = &torch_mem;
    d->name = cuda ? "torch:cuda" : "torch:cpu";
    d->isa = t->isa;
    d->ops = &torch_table;
    d->caps = 0;
    torch_constants(t, cuda, index);
    t->f.aoti_torch_grad_mode_set_enabled(false);
    torch_try(t, d->plan.f32);
    return torch_fault(d, e);
}
