/* Owns the way to libtorch: where it is looked for, opening it, its table of functions. It is
 * opened once and stays open until the process ends, because its static objects do not survive
 * unloading.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/conf.h"
#include "base/fsio.h"
#include "base/mem.h"
#include "base/proc.h"
#include "base/status.h"
#include "num/torch/torch_int.h"

#define TORCH_LIB_HELP                                                                             \
    "install it with `pip install torch`, or name the folder of libtorch_cpu.so with --libtorch"

/* Opens DIR/NAME or DIR/lib/NAME (a wheel's folder), or with dir NULL whatever the system's search
 * path has. */
static void *torch_lib_load(const char *dir, const char *name)
{
    char path[4096];
    void *lib;
    if (!dir) {
        return dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (!fsio_is_file(path)) {
        snprintf(path, sizeof path, "%s/lib/%s", dir, name);
    }
    lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return lib;
}

/* The folder of python3's torch, without importing it. NULL when there is none. */
static char *torch_lib_ask_python(void)
{
    static const char *const argv[] = {
        "python3", "-c",
        "import importlib.util as u\n"
        "s = u.find_spec('torch')\n"
        "print(s.submodule_search_locations[0] if s and s.submodule_search_locations else '')",
        NULL};
    struct proc_opts o = {.argv = argv, .request_fd = -1, .reply_fd = 1, .life_fd = -1};
    struct proc p;
    struct buf b;
    size_t len;
    char *dir = NULL;

    if (proc_spawn(&p, &o, NULL) != STATUS_OK) {
        return NULL;
    }
    buf_init(&b, 8192);
    if (proc_read_line(&p, &b, proc_now() + 20.0, &len, NULL) == STATUS_OK && len > 1) {
        dir = mem_strndup(b.data, len - 1);
    }
    proc_end(&p);
    buf_fini(&b);
    return dir;
}

static int torch_lib_fill(struct torch_abi *f, void *lib, struct err *e)
{
#define TORCH_LIB_GET(result, name, parameters)                                                    \
    {                                                                                              \
        void *p = dlsym(lib, #name);                                                               \
        memcpy(&f->name, &p, sizeof p);                                                            \
    }
#define TORCH_LIB_NEED(result, name, parameters)                                                   \
    TORCH_LIB_GET(result, name, parameters)                                                        \
    if (!f->name) {                                                                                \
        return ERR(e, STATUS_UNSUPPORTED,                                                          \
                   "this libtorch has no " #name ": version 2.10 or newer is needed; "             \
                   "" TORCH_LIB_HELP);                                                             \
    }
    void *p;
    TORCH_ABI_FUNCTIONS(TORCH_LIB_NEED)
    TORCH_ABI_OPTIONAL(TORCH_LIB_GET)
    p = dlsym(lib, "_Znwm");
    memcpy(&f->new_bytes, &p, sizeof p);
    if (f->aoti_torch_abi_version() < TORCH_ABI_OLDEST) {
        uint64_t v = f->aoti_torch_abi_version();
        return ERR(e, STATUS_UNSUPPORTED,
                   "libtorch %d.%d is too old: version 2.10 or newer is needed; " TORCH_LIB_HELP,
                   (int)(v >> 56), (int)(v >> 48 & 255));
    }
    if (!f->torch_new_stable_ivalue && !f->new_bytes) {
        return ERR(e, STATUS_UNSUPPORTED, "this libtorch offers no operator new");
    }
    return STATUS_OK;
#undef TORCH_LIB_GET
#undef TORCH_LIB_NEED
}

/* torch takes its number of threads from OpenMP, which reads it from the environment while it is
 * loaded; the stable interface has no call for it. */
static void *torch_lib_search(const char *dir, const char *name, int threads, char **found)
{
    const char *before = conf_env("OMP_NUM_THREADS");
    char *saved = mem_strdup(before), number[16];
    void *lib;

    snprintf(number, sizeof number, "%d", threads);
    setenv("OMP_NUM_THREADS", number, 1);
    *found = mem_strdup(dir);
    lib = torch_lib_load(dir, name);
    if (!lib && !dir) {
        *found = torch_lib_ask_python();
        lib = *found ? torch_lib_load(*found, name) : NULL;
    }
    if (saved) {
        setenv("OMP_NUM_THREADS", saved, 1);
    } else {
        unsetenv("OMP_NUM_THREADS");
    }
    mem_free(saved);
    return lib;
}

int torch_lib_open(struct torch_abi *f, const char *dir, int cuda, int threads, struct err *e)
{
    char *found = NULL;
    void *lib = torch_lib_search(dir, "libtorch_cpu.so", threads, &found);
    int rc = STATUS_OK;

    if (!lib && found && (!dir || fsio_is_dir(dir))) {
        const char *why = dlerror();
        rc = ERR(e, STATUS_NOTFOUND, "libtorch cannot be opened in %s (%s): " TORCH_LIB_HELP, found,
                 why ? why : "no reason given");
    } else if (!lib) {
        rc =
            ERR(e, STATUS_NOTFOUND, "--device torch needs libtorch 2.10 or newer: " TORCH_LIB_HELP);
    }
    if (rc == STATUS_OK) {
        rc = torch_lib_fill(f, lib, e);
    }
    if (rc == STATUS_OK && cuda && !torch_lib_load(found, "libtorch_cuda.so")) {
        const char *why = dlerror();
        rc = ERR(e, STATUS_NOTFOUND,
                 "--device torch:cuda needs the CUDA build of libtorch (%s): install it with "
                 "`pip install torch` on a machine with a GPU",
                 why ? why : "no reason given");
    }
    mem_free(found);
    return rc;
}
