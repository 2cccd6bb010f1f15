/* Owns devices: choosing the instruction set, and the memory of tensors, weights and KV pages of
 * the devices whose memory is the host's. */
#include "num/device.h"

#include <string.h>

#include "base/conf.h"
#include "base/mem.h"
#include "base/region.h"
#include "base/status.h"
#include "base/thread.h"
#include "num/device_int.h"

#if MILES_X86
/* Asking the compiler's run-time support also checks that the system saves the registers. */
static int device_cpu_has(const char *isa)
{
    __builtin_cpu_init();
    if (strcmp(isa, "avx2") == 0) {
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    }
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static unsigned device_cpuid7(unsigned sub, int edx)
{
    unsigned a = 7, b, c = sub, d;
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    (void)b;
    return edx ? d : a;
}

/* CPUID leaf 7: EDX bits 22 AMX-BF16 and 24 AMX-TILE; subleaf 1, EAX bit 5 AVX512-BF16. */
static int device_cpu_has_amx(void)
{
    unsigned d = device_cpuid7(0, 1), a = device_cpuid7(1, 0);
    return (d >> 22 & 1u) && (d >> 24 & 1u) && (a >> 5 & 1u);
}
#endif

int device_has_isa(const char *isa)
{
    if (strcmp(isa, "scalar") == 0) {
        return 1;
    }
#if MILES_X86
    if (strcmp(isa, "avx2") == 0 || strcmp(isa, "avx512") == 0) {
        return device_cpu_has(isa);
    }
    if (strcmp(isa, "amx") == 0) {
        return device_cpu_has("avx512") && device_cpu_has_amx();
    }
#endif
    return 0;
}

const char *device_best_isa(void)
{
    static const char *const order[] = {"amx", "avx512", "avx2"};
    for (int i = 0; i < 3; i++) {
        if (device_has_isa(order[i])) {
            return order[i];
        }
    }
    return "scalar";
}

static int device_open_cpu(struct device *d, const char *isa, struct err *e)
{
    int rc, automatic = !isa || strcmp(isa, "auto") == 0;
    const char *forced = automatic ? conf_env("MILES_ISA") : NULL;

    d->name = "cpu";
    if (forced && strcmp(forced, "auto") != 0) {
        isa = forced;
        automatic = 0;
    }
    isa = automatic ? device_best_isa() : isa;
    if (!device_has_isa(isa)) {
        return ERR(e, STATUS_UNSUPPORTED, "this machine has no %s; the best it has is %s", isa,
                   device_best_isa());
    }
    rc = cpu_open(d, isa, e);
    if (rc != STATUS_OK && automatic && strcmp(isa, "amx") == 0) {
        rc = cpu_open(d, "avx512", e); /* the system keeps AMX to itself */
    }
    return rc;
}

int device_open(const char *name, const char *how, int threads, const struct plan *plan,
                struct device **out, struct err *e)
{
    int torch = strncmp(name, "torch:", 6) == 0, rc = STATUS_OK;
    struct device *d;

    if (!torch && strcmp(name, "cpu") != 0 && strcmp(name, "ref") != 0) {
        return ERR(e, STATUS_INPUT, "unknown device %s: cpu, torch:cpu or torch:cuda", name);
    }
    if (strcmp(name, "cpu") == 0 && plan->f32) {
        return ERR(e, STATUS_UNSUPPORTED, "f32 without rounding runs on the ref device only");
    }
    if (plan->leaves < 1 || plan->leaves > PLAN_MAX_LEAVES ||
        (plan->leaves & (plan->leaves - 1)) != 0) {
        return ERR(e, STATUS_INPUT, "--numeric-leaves %d: 1, 2, 4 or 8 are possible", plan->leaves);
    }
    d = mem_alloc(sizeof *d);
    d->plan = *plan;
    d->pool = pool_new(threads);
    if (strcmp(name, "ref") == 0) {
        d->name = "ref";
        d->isa = "c";
        d->ops = &ops_ref_table;
        d->caps = DEVICE_ROW_EXACT | DEVICE_LAYOUT_EXACT | (plan->f32 ? 0 : DEVICE_SPLIT_STATE);
    } else if (torch) {
        rc = torch_open(d, name + 6, how, e);
    } else {
        rc = device_open_cpu(d, how, e);
    }
    if (rc != STATUS_OK) {
        device_close(d);
        return rc;
    }
    *out = d;
    return STATUS_OK;
}

void device_close(struct device *d)
{
    if (d) {
        if (d->mem) {
            d->mem->close(d);
        } else if (d->impl) {
            cpu_close(d);
        }
        pool_free(d->pool);
        mem_free(d);
    }
}

int device_fault(struct device *d, struct err *e)
{
    int bad;

    if (d->mem) {
        return d->mem->fault(d, e);
    }
    bad = d->fault | (d->impl ? cpu_take_fault(d) : 0);
    d->fault = 0;
    if (bad) {
        return ERR(e, STATUS_NUMERIC,
                   "a gradient left the range of the exact sum (|g| < 2^%d), or is not a number",
                   63 - PLAN_QUANTUM);
    }
    return STATUS_OK;
}

static int device_map(struct device *d, void **p, size_t *size, size_t want, const char *what,
                      struct err *e)
{
    *p = d->region ? region_take(d->region, want) : d->mem ? d->mem->alloc(d, want) : mem_map(want);
    if (!*p) {
        return ERR(e, STATUS_NOMEM, "no memory for %s (%.1f MiB)", what, (double)want / 1048576.0);
    }
    *size = d->region ? 0 : want;
    return STATUS_OK;
}

/* A transpose, which only training reads. */
static int device_map_bwd(struct device *d, struct wview *v, size_t want, struct err *e)
{
    static const char what[] = "a packed weight's transpose";

    if (!d->region) {
        return device_map(d, &v->bwd, &v->bwd_size, want, what, e);
    }
    v->bwd = region_take_top(d->region, want);
    return v->bwd ? STATUS_OK
                  : ERR(e, STATUS_NOMEM, "no memory for %s (%.1f MiB)", what,
                        (double)want / 1048576.0);
}

static void device_unmap(struct device *d, void *p, size_t size)
{
    if (d && d->mem) {
        d->mem->free(d, p);
    } else if (size) {
        mem_unmap(p, size);
    }
}

static int64_t device_ld(int64_t cols)
{
    return cols == 1 ? 1 : (cols + 31) / 32 * 32;
}

int64_t device_tensor_bytes(enum dtype dtype, int64_t rows, int64_t cols)
{
    /* 64 values of slack: vector loads of a last short row stay inside */
    return (rows * device_ld(cols) + 64) * (int64_t)dtype_size(dtype);
}

int device_tensor(struct device *d, struct tensor *t, enum dtype dtype, int64_t rows, int64_t cols,
                  struct err *e)
{
    memset(t, 0, sizeof *t);
    t->dev = d;
    t->dtype = dtype;
    t->rows = rows;
    t->cols = cols;
    t->ld = device_ld(cols);
    return device_map(d, &t->data, &t->size, (size_t)device_tensor_bytes(dtype, rows, cols),
                      "a tensor", e);
}

void device_tensor_free(struct tensor *t)
{
    if (t && t->size) {
        device_unmap(t->dev, t->data, t->size);
        t->data = NULL;
        t->size = 0;
    }
}

int device_wview(struct device *d, struct wview *v, int n, int k, int with_bwd, struct err *e)
{
    size_t fwd = (size_t)((n + 31) / 32 * 32) * (size_t)k * 2;
    int rc;

    memset(v, 0, sizeof *v);
    v->dev = d;
    v->n = n;
    v->k = k;
    plan_leafset_one(&v->kleaf, k);
    plan_leafset_one(&v->nleaf, n);
    if (d->mem) {
        v->fwd_size = (size_t)n * (size_t)k * dtype_size(device_half(d)); /* plain rows */
        return device_map(d, &v->fwd, &v->fwd_size, v->fwd_size, "a weight", e);
    }
    if (k % 32 != 0) {
        return ERR(e, STATUS_UNSUPPORTED,
                   "a linear layer with %d inputs: a multiple of 32 is needed", k);
    }
    if (strcmp(d->name, "ref") == 0) {
        v->fwd_size = (size_t)n * (size_t)k * 4; /* plain rows, f32 */
        return device_map(d, &v->fwd, &v->fwd_size, v->fwd_size, "a weight", e);
    }
    rc = device_map(d, &v->fwd, &v->fwd_size, fwd, "a packed weight", e);
    if (rc == STATUS_OK && with_bwd) {
        rc = device_map_bwd(d, v, fwd, e);
    }
    return rc;
}

int64_t device_wview_bytes(const struct device *d, int n, int k, int with_bwd)
{
    if (strcmp(d->name, "ref") == 0) {
        return (int64_t)n * k * 4;
    }
    return (int64_t)((n + 31) / 32 * 32) * k * (with_bwd ? 4 : 2);
}

void device_wview_free(struct wview *v)
{
    if (v) {
        device_unmap(v->dev, v->fwd, v->fwd_size);
        device_unmap(v->dev, v->bwd, v->bwd_size);
        v->fwd = v->bwd = NULL;
    }
}

int64_t device_dw_bytes(const struct device *d, int n, int k, int rows, int leaves)
{
    /* both operands in tiles of 32 rows, no tile across two leaves */
    int64_t tiles = (rows + 31) / 32 + leaves;
    return d->impl ? tiles * ((int64_t)(n + 31) / 32 * 2 + k / 16) * 1024 : 0;
}

int64_t device_dx_bytes(const struct device *d, int n, int k)
{
    int64_t whole = (int64_t)((n + 31) / 32 * 32) * k * 2;
    return !d->impl ? 0 : whole < DEVICE_PANEL ? whole : DEVICE_PANEL;
}

size_t device_kv_page_bytes(const struct device *d, int n_layers, int n_kv_heads, int head_dim)
{
    return (size_t)n_layers * (size_t)n_kv_heads * (size_t)head_dim * PLAN_KV_BLOCK * 2 *
           dtype_size(device_half(d));
}

int device_kv(struct device *d, struct kv_store *kv, int n_layers, int n_kv_heads, int head_dim,
              int n_pages, struct err *e)
{
    memset(kv, 0, sizeof *kv);
    kv->dev = d;
    kv->dtype = device_half(d);
    kv->n_layers = n_layers;
    kv->n_kv_heads = n_kv_heads;
    kv->head_dim = head_dim;
    kv->n_pages = n_pages;
    return device_map(d, &kv->data, &kv->size,
                      device_kv_page_bytes(d, n_layers, n_kv_heads, head_dim) * (size_t)n_pages +
                          4096,
                      "KV pages", e);
}

void device_kv_free(struct kv_store *kv)
{
    if (kv) {
        device_unmap(kv->dev, kv->data, kv->size);
        kv->data = NULL;
        kv->size = 0;
    }
}

void device_kv_copy(struct kv_store *kv, int from, int to)
{
    size_t bytes = device_kv_page_bytes(kv->dev, kv->n_layers, kv->n_kv_heads, kv->head_dim);
    if (kv->dev->mem) {
        kv->dev->mem->kv_copy(kv, from, to);
    } else {
        memcpy((char *)kv->data + (size_t)to * bytes, (char *)kv->data + (size_t)from * bytes,
               bytes);
    }
}

void device_upload_f32(struct tensor *t, const float *src)
{
    if (t->dev->mem) {
        t->dev->mem->upload(t, src, DTYPE_F32);
        return;
    }
    for (int64_t r = 0; r < t->rows; r++, src += t->cols) {
        if (t->dtype == DTYPE_F32) {
            memcpy((float *)t->data + r * t->ld, src, (size_t)t->cols * 4);
        } else {
            uint16_t *p = (uint16_t *)t->data + r * t->ld;
            for (int64_t c = 0; c < t->cols; c++) {
                p[c] = dtype_to_bf16(src[c]);
            }
        }
    }
}

void device_upload_bf16(struct tensor *t, const uint16_t *src)
{
    if (t->dev->mem) {
        t->dev->mem->upload(t, src, DTYPE_BF16);
        return;
    }
    for (int64_t r = 0; r < t->rows; r++, src += t->cols) {
        if (t->dtype == DTYPE_BF16) {
            memcpy((uint16_t *)t->data + r * t->ld, src, (size_t)t->cols * 2);
        } else {
            float *p = (float *)t->data + r * t->ld;
            for (int64_t c = 0; c < t->cols; c++) {
                p[c] = dtype_from_bf16(src[c]);
            }
        }
    }
}

void device_download_f32(const struct tensor *t, float *dst)
{
    const double quantum = 1.0 / (double)((int64_t)1 << PLAN_QUANTUM);
    if (t->dev->mem) {
        t->dev->mem->download(t, dst);
        return;
    }
    for (int64_t r = 0; r < t->rows; r++) {
        for (int64_t c = 0; c < t->cols; c++) {
            int64_t i = r * t->ld + c;
            *dst++ = t->dtype == DTYPE_F32 ? ((const float *)t->data)[i]
                     : t->dtype == DTYPE_BF16
                         ? dtype_from_bf16(((const uint16_t *)t->data)[i])
                         : (float)((double)((const int64_t *)t->data)[i] * quantum);
        }
    }
}

void device_forget(struct tensor *t)
{
    t->fresh = 1;
}

void device_settle(struct tensor *t)
{
    if (t->fresh) {
        device_zero(t);
    }
}

void device_zero(struct tensor *t)
{
    t->fresh = 0;
    if (t->dev->mem) {
        t->dev->mem->zero(t);
        return;
    }
    memset(t->data, 0, (size_t)t->rows * (size_t)t->ld * dtype_size(t->dtype));
}

const void *device_host_row(const struct tensor *t, int64_t row)
{
    if (t->dev->mem) {
        return NULL;
    }
    return (const char *)t->data + (size_t)(row * t->ld) * dtype_size(t->dtype);
}
