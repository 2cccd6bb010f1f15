/* Owns the checkpoint format. Tensors are written row by row without the padding that a device
 * keeps, so the bytes say nothing about the device that wrote them. */
#include "train/ckpt.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "model/safetensors.h"
#include "model/weights.h"
#include "train/optim.h"

json_t *ckpt_manifest(const struct plan *p)
{
    return json_pack("{s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:s}", "numerics_version", p->version, "leaves",
                     p->leaves, "kblock", p->kblock, "kv_block", p->kv_block, "kv_segment",
                     p->kv_segment, "leaf_tokens", p->leaf_tokens, "quantum_log2", p->quantum_log2,
                     "weights_dtype", p->f32 ? "float32" : "bfloat16");
}

/* One file of tensors: for each part of each parameter, prefix + name. */
struct ckpt_set {
    const char *prefix;
    const struct tensor *t; /* one per parameter */
};

static void ckpt_dims(const struct param *p, const struct weights_part *t, int *ndim,
                      int64_t dim[2])
{
    if (p->kind == WEIGHTS_VECTOR) {
        *ndim = 1;
        dim[0] = p->nparts > 1 ? t->rows : p->cols;
        dim[1] = 1;
    } else {
        *ndim = 2;
        dim[0] = t->rows;
        dim[1] = p->cols;
    }
}

/* Address of a part's row r. */
static float *ckpt_row(const struct param *p, const struct weights_part *t, const struct tensor *x,
                       int64_t r)
{
    if (p->kind == WEIGHTS_VECTOR) {
        return (float *)(uintptr_t)device_host_row(x, 0) + (p->nparts > 1 ? t->row0 : 0);
    }
    return (float *)(uintptr_t)device_host_row(x, t->row0 + r);
}

static int ckpt_write(const char *path, const struct weights *w, const struct ckpt_set *sets,
                      int nsets, struct err *e)
{
    struct safetensors_writer *f;
    char name[160];
    int64_t dim[2];
    int ndim, rc = safetensors_writer_open(path, &f, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    for (int pass = 0; rc == STATUS_OK && pass < 2; pass++) {
        if (pass == 1) {
            rc = safetensors_writer_begin(f, e);
        }
        for (int s = 0; s < nsets; s++) {
            for (int i = 0; rc == STATUS_OK && i < w->nparams; i++) {
                const struct param *p = &w->params[i];
                for (int j = 0; rc == STATUS_OK && j < p->nparts; j++) {
                    ckpt_dims(p, &p->part[j], &ndim, dim);
                    snprintf(name, sizeof name, "%s%s", sets[s].prefix, p->part[j].name);
                    if (pass == 0) {
                        rc = safetensors_writer_add(f, name, SAFETENSORS_F32, ndim, dim, e);
                        continue;
                    }
                    for (int64_t r = 0; rc == STATUS_OK && r < (ndim == 2 ? dim[0] : 1); r++) {
                        rc = safetensors_writer_write(f, ckpt_row(p, &p->part[j], &sets[s].t[i], r),
                                                      (size_t)(ndim == 2 ? dim[1] : dim[0]) * 4, e);
                    }
                }
            }
        }
    }
    if (rc != STATUS_OK) {
        safetensors_writer_abort(f);
        return rc;
    }
    return safetensors_writer_commit(f, e);
}

static int ckpt_read(const char *path, const struct weights *w, const struct ckpt_set *sets,
                     int nsets, struct err *e)
{
    struct safetensors *f;
    char name[160];
    int64_t dim[2];
    float *buf = NULL;
    int64_t cap = 0;
    int ndim, rc = safetensors_open(path, &f, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    for (int s = 0; s < nsets; s++) {
        for (int i = 0; rc == STATUS_OK && i < w->nparams; i++) {
            const struct param *p = &w->params[i];
            for (int j = 0; rc == STATUS_OK && j < p->nparts; j++) {
                const struct safetensors_tensor *t;
                int64_t count, cols;
                ckpt_dims(p, &p->part[j], &ndim, dim);
                count = dim[0] * dim[1];
                cols = ndim == 2 ? dim[1] : dim[0];
                snprintf(name, sizeof name, "%s%s", sets[s].prefix, p->part[j].name);
                t = safetensors_find(f, name);
                if (!t || t->count != count) {
                    rc = ERR(e, STATUS_FORMAT, "%s has no tensor %s of %lld values", path, name,
                             (long long)count);
                    break;
                }
                if (count > cap) {
                    mem_free(buf);
                    buf = mem_alloc((size_t)count * 4);
                    cap = count;
                }
                rc = safetensors_read_f32(t, buf, count, e);
                for (int64_t r = 0; rc == STATUS_OK && r < count / cols; r++) {
                    memcpy(ckpt_row(p, &p->part[j], &sets[s].t[i], r), buf + r * cols,
                           (size_t)cols * 4);
                }
            }
        }
    }
    mem_free(buf);
    safetensors_close(f);
    return rc;
}

static char *ckpt_dir(const char *dir, int64_t iteration, const char *suffix)
{
    char name[64];
    snprintf(name, sizeof name, "iter_%07lld%s", (long long)iteration, suffix);
    return fsio_join(dir, name);
}

static int ckpt_write_text(const char *dir, const char *name, const char *text, struct err *e)
{
    char *path = fsio_join(dir, name);
    int rc = fsio_write_atomic(path, text, strlen(text), e);
    mem_free(path);
    return rc;
}

static int ckpt_write_state(const char *tmp, int64_t iteration, const struct optim *o,
                            int with_optim, const json_t *state, struct err *e)
{
    json_t *j =
        json_pack("{s:i,s:I,s:I,s:b,s:o,s:O}", "format", 1, "iteration", (json_int_t)iteration,
                  "optimizer_step", (json_int_t)o->step, "with_optimizer", with_optim, "manifest",
                  ckpt_manifest(&o->w->dev->plan), "state", state);
    char *text = j ? json_dumps(j, JSON_INDENT(2)) : NULL;
    int rc = text ? ckpt_write_text(tmp, "state.json", text, e)
                  : ERR(e, STATUS_NOMEM, "no memory for the checkpoint's state");
    free(text);
    json_decref(j);
    return rc;
}

int ckpt_save(const char *dir, int64_t iteration, const struct optim *o, int with_optim,
              const json_t *state, struct err *e)
{
    struct ckpt_set model = {"", o->master};
    struct ckpt_set moments[2] = {{"exp_avg.", o->m}, {"exp_avg_sq.", o->v}};
    char *tmp = ckpt_dir(dir, iteration, ".tmp"), *final = ckpt_dir(dir, iteration, "");
    char *path = NULL, text[32];
    int rc = fsio_remove_tree(tmp, e);

    if (rc == STATUS_OK) {
        rc = fsio_mkdirs(tmp, e);
    }
    if (rc == STATUS_OK) {
        path = fsio_join(tmp, "model.safetensors");
        rc = ckpt_write(path, o->w, &model, 1, e);
    }
    if (rc == STATUS_OK && with_optim) {
        mem_free(path);
        path = fsio_join(tmp, "optim.safetensors");
        rc = ckpt_write(path, o->w, moments, 2, e);
    }
    if (rc == STATUS_OK) {
        rc = ckpt_write_state(tmp, iteration, o, with_optim, state, e);
    }
    if (rc == STATUS_OK) {
        rc = fsio_sync_dir(tmp, e);
    }
    if (rc == STATUS_OK) {
        rc = fsio_replace_dir(tmp, final, e);
    }
    if (rc == STATUS_OK) {
        snprintf(text, sizeof text, "%lld\n", (long long)iteration);
        rc = ckpt_write_text(dir, "latest_checkpointed_iteration.txt", text, e);
    }
    if (rc != STATUS_OK) {
        fsio_remove_tree(tmp, NULL);
    }
    mem_free(path);
    mem_free(tmp);
    mem_free(final);
    return rc;
}

int ckpt_latest(const char *dir, int64_t *iteration, struct err *e)
{
    char *path = fsio_join(dir, "latest_checkpointed_iteration.txt"), *text = NULL;
    size_t len;
    long long it;
    int rc = fsio_read(path, 64, &text, &len, e);

    if (rc == STATUS_OK) {
        if (strncmp(text, "release", 7) == 0 || sscanf(text, "%lld", &it) != 1 || it < 0) {
            rc = ERR(e, STATUS_FORMAT,
                     "%s does not name an iteration; give a checkpoint of miles, or a Hugging Face "
                     "folder with --hf-checkpoint",
                     path);
        } else {
            *iteration = it;
        }
    }
    mem_free(text);
    mem_free(path);
    return rc;
}

static int ckpt_check_manifest(const json_t *have, const struct plan *p, const char *dir,
                               struct err *e)
{
    json_t *want = ckpt_manifest(p);
    const char *key;
    json_t *v;
    int rc = STATUS_OK;
    json_object_foreach(want, key, v)
    {
        json_t *h = json_object_get(have, key);
        if (!h || !json_equal(h, v)) {
            char *a = h ? json_dumps(h, JSON_ENCODE_ANY) : NULL,
                 *b = json_dumps(v, JSON_ENCODE_ANY);
            rc = ERR(e, STATUS_INPUT,
                     "checkpoint %s was made with %s = %s, this run has %s: the bits would differ",
                     dir, key, a ? a : "nothing", b);
            free(a);
            free(b);
            break;
        }
    }
    json_decref(want);
    return rc;
}

int ckpt_load(const char *dir, int64_t iteration, struct optim *o, int *with_optim, json_t **state,
              struct err *e)
{
    struct ckpt_set model = {"", o->master};
    struct ckpt_set moments[2] = {{"exp_avg.", o->m}, {"exp_avg_sq.", o->v}};
    char *d = ckpt_dir(dir, iteration, ""), *path = fsio_join(d, "state.json"), *text = NULL;
    json_t *j = NULL, *inner;
    size_t len;
    int rc = fsio_read(path, 64 << 20, &text, &len, e);

    if (rc == STATUS_OK) {
        json_error_t je;
        j = json_loadb(text, len, 0, &je);
        if (!j || !json_is_object(json_object_get(j, "state"))) {
            rc = ERR(e, STATUS_FORMAT, "%s line %d: %s", path, j ? 0 : je.line,
                     j ? "no state object" : je.text);
        }
    }
    if (rc == STATUS_OK) {
        rc = ckpt_check_manifest(json_object_get(j, "manifest"), &o->w->dev->plan, d, e);
    }
    if (rc == STATUS_OK) {
        mem_free(path);
        path = fsio_join(d, "model.safetensors");
        rc = ckpt_read(path, o->w, &model, 1, e);
    }
    if (rc == STATUS_OK) {
        *with_optim = json_is_true(json_object_get(j, "with_optimizer"));
        if (*with_optim) {
            mem_free(path);
            path = fsio_join(d, "optim.safetensors");
            rc = ckpt_read(path, o->w, moments, 2, e);
            o->step = json_integer_value(json_object_get(j, "optimizer_step"));
        } else {
            for (int i = 0; i < o->w->nparams; i++) {
                device_zero(&o->m[i]);
                device_zero(&o->v[i]);
            }
            o->step = 0;
        }
    }
    if (rc == STATUS_OK) {
        rc = optim_push(o, e);
    }
    if (rc == STATUS_OK) {
        inner = json_object_get(j, "state");
        *state = json_incref(inner);
    }
    json_decref(j);
    mem_free(text);
    mem_free(path);
    mem_free(d);
    return rc;
}

int ckpt_clean(const char *dir, struct err *e)
{
    DIR *d = opendir(dir);
    struct dirent *de;
    int rc = STATUS_OK;
    if (!d) {
        return STATUS_OK;
    }
    while (rc == STATUS_OK && (de = readdir(d))) {
        size_t n = strlen(de->d_name);
        if (n > 9 && strncmp(de->d_name, "iter_", 5) == 0 &&
            strcmp(de->d_name + n - 4, ".tmp") == 0) {
            char *p = fsio_join(dir, de->d_name);
            log_info(CKPT, "removing %s, left by an interrupted save", p);
            rc = fsio_remove_tree(p, e);
            mem_free(p);
        }
    }
    closedir(d);
    return rc;
}
