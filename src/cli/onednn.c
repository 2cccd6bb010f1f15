/* Owns the handle of oneDNN. The few functions of its C interface (version 3) that a product needs
 * are declared here by hand: their numbers are part of its stable binary interface. */
#include "cli/onednn.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/conf.h"
#include "base/mem.h"
#include "base/status.h"

enum {
    ONEDNN_CPU = 1,      /* engine kind */
    ONEDNN_IN_ORDER = 1, /* stream flags */
    ONEDNN_BF16 = 2,     /* data type */
    ONEDNN_F32 = 3,
    ONEDNN_ANY = 1,        /* format tag: the primitive chooses */
    ONEDNN_QUERY_IMPL = 8, /* name of the kernel */
    ONEDNN_QUERY_WEIGHTS = 131,
    ONEDNN_SRC = 1, /* arguments */
    ONEDNN_DST = 17,
    ONEDNN_WEIGHTS = 33,
    ONEDNN_DIMS = 12
};

struct onednn_version {
    int major, minor, patch;
    const char *hash;
    unsigned cpu_runtime, gpu_runtime;
};
struct onednn_arg {
    int arg;
    void *memory;
};

struct onednn {
    void *so, *engine, *stream;
    char about[64];
    const struct onednn_version *(*version)(void);
    int (*engine_create)(void **engine, int kind, size_t index);
    int (*engine_destroy)(void *engine);
    int (*stream_create)(void **stream, void *engine, unsigned flags);
    int (*stream_wait)(void *stream);
    int (*stream_destroy)(void *stream);
    int (*memory_desc_create_with_strides)(void **md, int ndims, const int64_t *dims, int type,
                                           const int64_t *strides);
    int (*memory_desc_create_with_tag)(void **md, int ndims, const int64_t *dims, int type,
                                       int tag);
    int (*memory_desc_destroy)(void *md);
    size_t (*memory_desc_get_size)(const void *md);
    int (*memory_create)(void **memory, const void *md, void *engine, void *handle);
    int (*memory_set_data_handle)(void *memory, void *handle);
    int (*memory_destroy)(void *memory);
    int (*matmul_primitive_desc_create)(void **pd, void *engine, const void *src,
                                        const void *weights, const void *bias, const void *dst,
                                        const void *attr);
    int (*reorder_primitive_desc_create)(void **pd, const void *src, void *src_engine,
                                         const void *dst, void *dst_engine, const void *attr);
    const void *(*primitive_desc_query_md)(const void *pd, int what, int index);
    int (*primitive_desc_query)(const void *pd, int what, int index, void *result);
    int (*primitive_desc_destroy)(void *pd);
    int (*primitive_create)(void **primitive, const void *pd);
    int (*primitive_execute)(const void *primitive, void *stream, int n,
                             const struct onednn_arg *args);
    int (*primitive_destroy)(void *primitive);
};

struct onednn_matmul {
    struct onednn *lib;
    int n, k;
    void *primitive, *pd;
    void *src, *weights, *dst; /* memory objects; their data is set at each run */
    size_t size;
};

static const struct {
    const char *name;
    size_t offset;
} onednn_symbols[] = {
#define S(f)                                                                                       \
    {                                                                                              \
        "dnnl_" #f, offsetof(struct onednn, f)                                                     \
    }
    S(version),
    S(engine_create),
    S(engine_destroy),
    S(stream_create),
    S(stream_wait),
    S(stream_destroy),
    S(memory_desc_create_with_strides),
    S(memory_desc_create_with_tag),
    S(memory_desc_destroy),
    S(memory_desc_get_size),
    S(memory_create),
    S(memory_set_data_handle),
    S(memory_destroy),
    S(matmul_primitive_desc_create),
    S(reorder_primitive_desc_create),
    S(primitive_desc_query_md),
    S(primitive_desc_query),
    S(primitive_desc_destroy),
    S(primitive_create),
    S(primitive_execute),
    S(primitive_destroy),
#undef S
};

#define ONEDNN_NSYMBOLS ((int)(sizeof onednn_symbols / sizeof onednn_symbols[0]))

/* Opens a library whose own dependencies lie beside it, where the loader does not look: each one
 * that it misses is opened first, by the name in the loader's message. */
static void *onednn_load(const char *path)
{
    const char *slash = strrchr(path, '/');
    for (int i = 0; i < 64; i++) {
        void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        const char *why = so ? NULL : dlerror(), *colon;
        char beside[2048];
        if (so || !slash || !why || !(colon = strchr(why, ':')) ||
            strncmp(why, path, (size_t)(colon - why)) == 0) {
            return so;
        }
        snprintf(beside, sizeof beside, "%.*s/%.*s", (int)(slash - path), path, (int)(colon - why),
                 why);
        if (!onednn_load(beside)) {
            return NULL;
        }
    }
    return NULL;
}

static void *onednn_find(const char *path, struct err *e)
{
    const char *cache = conf_env("MILES_CACHE"), *home = conf_env("HOME");
    char buf[2048];
    void *so;

    if (!path) {
        path = conf_env("MILES_ONEDNN");
    }
    if (path) {
        so = onednn_load(path);
        if (!so) {
            const char *why = dlerror();
            ERR(e, STATUS_NOTFOUND, "cannot open oneDNN: %s", why ? why : path);
        }
        return so;
    }
    snprintf(buf, sizeof buf, "%s%s/onednn/lib/libdnnl.so.3",
             cache  ? cache
             : home ? home
                    : "",
             cache ? "" : "/.cache/miles");
    so = onednn_load(buf);
    if (!so) {
        so = dlopen("libdnnl.so.3", RTLD_NOW | RTLD_LOCAL);
    }
    if (!so) {
        ERR(e, STATUS_NOTFOUND,
            "oneDNN (libdnnl.so.3) is needed to compare with: run tools/setup.sh onednn, or name "
            "the file in MILES_ONEDNN");
    }
    return so;
}

int onednn_open(const char *path, struct onednn **out, struct err *e)
{
    void *so = onednn_find(path, e);
    struct onednn *lib;
    const struct onednn_version *v;

    if (!so) {
        return STATUS_NOTFOUND;
    }
    lib = mem_alloc(sizeof *lib);
    lib->so = so;
    for (int i = 0; i < ONEDNN_NSYMBOLS; i++) {
        void *p = dlsym(so, onednn_symbols[i].name);
        if (!p) {
            onednn_close(lib);
            return ERR(e, STATUS_UNSUPPORTED, "this oneDNN has no %s: version 3 is needed",
                       onednn_symbols[i].name);
        }
        memcpy((char *)lib + onednn_symbols[i].offset, &p, sizeof p);
    }
    v = lib->version();
    snprintf(lib->about, sizeof lib->about, "oneDNN %d.%d.%d, threads by %s", v->major, v->minor,
             v->patch,
             v->cpu_runtime == 2   ? "OpenMP"
             : v->cpu_runtime == 4 ? "TBB"
                                   : "its own runtime");
    if (lib->engine_create(&lib->engine, ONEDNN_CPU, 0) != 0 ||
        lib->stream_create(&lib->stream, lib->engine, ONEDNN_IN_ORDER) != 0) {
        onednn_close(lib);
        return ERR(e, STATUS_FAIL, "oneDNN has no CPU engine here");
    }
    *out = lib;
    return STATUS_OK;
}

void onednn_close(struct onednn *lib)
{
    if (lib) {
        if (lib->stream) {
            lib->stream_destroy(lib->stream);
        }
        if (lib->engine) {
            lib->engine_destroy(lib->engine);
        }
        mem_free(lib); /* its threads may still run: the library is never unloaded */
    }
}

const char *onednn_about(const struct onednn *lib)
{
    return lib->about;
}

/* y (a, c) of type `result` = x (a, b) W (b, c): x with strides xs, W packed as the library likes
 * when ws is NULL. */
static int onednn_matmul_make(struct onednn *lib, int a, int b, int c, const int64_t *xs,
                              const int64_t *ws, int result, struct onednn_matmul **out)
{
    int64_t xd[ONEDNN_DIMS] = {a, b}, wd[ONEDNN_DIMS] = {b, c}, yd[ONEDNN_DIMS] = {a, c};
    int64_t ys[ONEDNN_DIMS] = {c, 1};
    struct onednn_matmul *mm = mem_alloc(sizeof *mm);
    void *x = NULL, *w = NULL, *y = NULL;
    int bad;

    mm->lib = lib;
    mm->n = c;
    mm->k = b;
    bad = lib->memory_desc_create_with_strides(&x, 2, xd, ONEDNN_BF16, xs) ||
          (ws ? lib->memory_desc_create_with_strides(&w, 2, wd, ONEDNN_BF16, ws)
              : lib->memory_desc_create_with_tag(&w, 2, wd, ONEDNN_BF16, ONEDNN_ANY)) ||
          lib->memory_desc_create_with_strides(&y, 2, yd, result, ys) ||
          lib->matmul_primitive_desc_create(&mm->pd, lib->engine, x, w, NULL, y, NULL);
    if (!bad) {
        const void *packed = lib->primitive_desc_query_md(mm->pd, ONEDNN_QUERY_WEIGHTS, 0);
        mm->size = lib->memory_desc_get_size(packed);
        bad = lib->primitive_create(&mm->primitive, mm->pd) ||
              lib->memory_create(&mm->src, x, lib->engine, NULL) ||
              lib->memory_create(&mm->weights, packed, lib->engine, NULL) ||
              lib->memory_create(&mm->dst, y, lib->engine, NULL);
    }
    lib->memory_desc_destroy(x);
    lib->memory_desc_destroy(w);
    lib->memory_desc_destroy(y);
    if (bad) {
        onednn_matmul_free(mm);
        return STATUS_FAIL;
    }
    *out = mm;
    return STATUS_OK;
}

int onednn_matmul_new(struct onednn *lib, int m, int n, int k, struct onednn_matmul **out,
                      struct err *e)
{
    const int64_t xs[ONEDNN_DIMS] = {k, 1};
    if (onednn_matmul_make(lib, m, k, n, xs, NULL, ONEDNN_BF16, out) != STATUS_OK) {
        return ERR(e, STATUS_FAIL, "oneDNN has no bf16 product of shape (%d, %d, %d)", m, n, k);
    }
    return STATUS_OK;
}

int onednn_matmul_new_grad(struct onednn *lib, int n, int k, int t, struct onednn_matmul **out,
                           struct err *e)
{
    const int64_t xs[ONEDNN_DIMS] = {1, n}, ws[ONEDNN_DIMS] = {k, 1};
    if (onednn_matmul_make(lib, n, t, k, xs, ws, ONEDNN_F32, out) != STATUS_OK) {
        return ERR(e, STATUS_FAIL, "oneDNN has no gradient of shape (%d, %d, %d)", n, k, t);
    }
    return STATUS_OK;
}

void onednn_matmul_free(struct onednn_matmul *mm)
{
    if (mm) {
        mm->lib->memory_destroy(mm->src);
        mm->lib->memory_destroy(mm->weights);
        mm->lib->memory_destroy(mm->dst);
        mm->lib->primitive_destroy(mm->primitive);
        mm->lib->primitive_desc_destroy(mm->pd);
        mem_free(mm);
    }
}

size_t onednn_matmul_size(const struct onednn_matmul *mm)
{
    return mm->size;
}

const char *onednn_matmul_kernel(const struct onednn_matmul *mm)
{
    const char *name = "?";
    mm->lib->primitive_desc_query(mm->pd, ONEDNN_QUERY_IMPL, 0, &name);
    return name;
}

int onednn_matmul_pack(struct onednn_matmul *mm, const uint16_t *w, void *packed, struct err *e)
{
    struct onednn *lib = mm->lib;
    int64_t dims[ONEDNN_DIMS] = {mm->k, mm->n}, strides[ONEDNN_DIMS] = {1, mm->k};
    void *md = NULL, *from = NULL, *pd = NULL, *p = NULL;
    const void *to_md = lib->primitive_desc_query_md(mm->pd, ONEDNN_QUERY_WEIGHTS, 0);
    struct onednn_arg args[2];
    int bad;

    lib->memory_set_data_handle(mm->weights, packed);
    bad = lib->memory_desc_create_with_strides(&md, 2, dims, ONEDNN_BF16, strides) ||
          lib->memory_create(&from, md, lib->engine, (void *)(uintptr_t)w) ||
          lib->reorder_primitive_desc_create(&pd, md, lib->engine, to_md, lib->engine, NULL) ||
          lib->primitive_create(&p, pd);
    if (!bad) {
        args[0].arg = ONEDNN_SRC;
        args[0].memory = from;
        args[1].arg = ONEDNN_DST;
        args[1].memory = mm->weights;
        bad = lib->primitive_execute(p, lib->stream, 2, args) || lib->stream_wait(lib->stream);
    }
    lib->primitive_destroy(p);
    lib->primitive_desc_destroy(pd);
    lib->memory_destroy(from);
    lib->memory_desc_destroy(md);
    return bad ? ERR(e, STATUS_FAIL, "oneDNN cannot pack a (%d, %d) weight", mm->n, mm->k)
               : STATUS_OK;
}

void onednn_matmul_run(struct onednn_matmul *mm, const uint16_t *x, const void *packed, void *y)
{
    struct onednn *lib = mm->lib;
    struct onednn_arg args[3] = {
        {ONEDNN_SRC, mm->src}, {ONEDNN_WEIGHTS, mm->weights}, {ONEDNN_DST, mm->dst}};
    int bad;

    lib->memory_set_data_handle(mm->src, (void *)(uintptr_t)x);
    lib->memory_set_data_handle(mm->weights, (void *)(uintptr_t)packed);
    lib->memory_set_data_handle(mm->dst, y);
    bad = lib->primitive_execute(mm->primitive, lib->stream, 3, args) ||
          lib->stream_wait(lib->stream);
    ASSERT(!bad);
}
