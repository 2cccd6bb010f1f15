/* Owns the checkpoint format. Tensors are written row by row without the padding that a device
 * keeps, and masters as f32 however they are kept, so the bytes say nothing about the device that
 * wrote them. */
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

/* One kind of tensor in a file: for each part of each parameter, prefix + name. */
struct ckpt_set {
    const char *prefix;
    enum optim_part part;
};

static const struct ckpt_set ckpt_model = {"", OPTIM_MASTER};
static const struct ckpt_set ckpt_moments[2] = {{"exp_avg.", OPTIM_M}, {"exp_avg_sq.", OPTIM_V}};

static enum safetensors_dtype ckpt_dtype(const struct optim *o, const struct ckpt_set *s)
{
    const struct tensor *t = s->part == OPTIM_M ? o->m : s->part == OPTIM_V ? o->v : o->master;
    return t->dtype == DTYPE_BF16 ? SAFETENSORS_BF16 : SAFETENSORS_F32;
}

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

/* First value of a part among its parameter's. */
static int64_t ckpt_offset(const struct param *p, const struct weights_part *t)
{
    return p->kind != WEIGHTS_VECTOR ? (int64_t)t->row0 * p->cols : p->nparts > 1 ? t->row0 : 0;
}

/* Writes n values as the file's type; bf16 ones are bf16 in memory too, so nothing is lost. */
static int ckpt_put(struct safetensors_writer *f, enum safetensors_dtype type, float *x, int64_t n,
                    struct err *e)
{
    uint16_t *h = (uint16_t *)x;
    if (type == SAFETENSORS_F32) {
        return safetensors_writer_write(f, x, (size_t)n * 4, e);
    }
    for (int64_t i = 0; i < n; i++) { /* in place: a half never passes a value not yet read */
        uint16_t v = dtype_to_bf16(x[i]);
        memcpy(h + i, &v, 2);
    }
    return safetensors_writer_write(f, h, (size_t)n * 2, e);
}

/* One part of a parameter, a block of rows at a time. */
static int ckpt_write_part(struct safetensors_writer *f, struct optim *o, const struct ckpt_set *s,
                           int i, const struct weights_part *t, float *buf, struct err *e)
{
    const struct param *p = &o->w->params[i];
    enum safetensors_dtype type = ckpt_dtype(o, s);
    int64_t dim[2];
    int ndim, rc;

    ckpt_dims(p, t, &ndim, dim);
    if (p->kind == WEIGHTS_VECTOR) {
        rc = optim_read(o, s->part, i, 0, 1, buf, e);
        return rc ? rc : ckpt_put(f, type, buf + ckpt_offset(p, t), dim[0], e);
    }
    rc = STATUS_OK;
    for (int64_t r = 0; rc == STATUS_OK && r < t->rows; r += OPTIM_ROWS) {
        int64_t n = t->rows - r < OPTIM_ROWS ? t->rows - r : OPTIM_ROWS;
        rc = optim_read(o, s->part, i, t->row0 + r, n, buf, e);
        rc = rc ? rc : ckpt_put(f, type, buf, n * p->cols, e);
    }
    return rc;
}

static int ckpt_write(const char *path, struct optim *o, const struct ckpt_set *sets, int nsets,
                      struct err *e)
{
    const struct weights *w = o->w;
    struct safetensors_writer *f;
    char name[160];
    int64_t dim[2], widest = 0;
    float *buf;
    int ndim, rc = safetensors_writer_open(path, &f, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    for (int i = 0; i < w->nparams; i++) {
        int64_t n =
            (int64_t)w->params[i].cols * (w->params[i].kind == WEIGHTS_VECTOR ? 1 : OPTIM_ROWS);
        widest = n > widest ? n : widest;
    }
    buf = mem_alloc((size_t)widest * 4);
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
                    rc = pass == 0 ? safetensors_writer_add(f, name, ckpt_dtype(o, &sets[s]), ndim,
                                                            dim, e)
                                   : ckpt_write_part(f, o, &sets[s], i, &p->part[j], buf, e);
                }
            }
        }
    }
    mem_free(buf);
    if (rc != STATUS_OK) {
        safetensors_writer_abort(f);
        return rc;
    }
    return safetensors_writer_commit(f, e);
}

/* One parameter's values of one kind. */
static int ckpt_read_param(const struct safetensors *f, const char *path, struct optim *o,
                           const struct ckpt_set *s, int i, float *buf, struct err *e)
{
    const struct param *p = &o->w->params[i];
    char name[160];
    int64_t dim[2];
    int ndim, rc = STATUS_OK;

    if (p == o->w->lm_head.w || p == o->w->lm_head.bias) { /* a critic's head has rows of zeros */
        memset(buf, 0, sizeof *buf * (size_t)p->rows * (size_t)p->cols);
    }
    for (int j = 0; rc == STATUS_OK && j < p->nparts; j++) {
        const struct safetensors_tensor *t;
        int64_t count;
        ckpt_dims(p, &p->part[j], &ndim, dim);
        count = dim[0] * dim[1];
        snprintf(name, sizeof name, "%s%s", s->prefix, p->part[j].name);
        t = safetensors_find(f, name);
        if (!t || t->count != count) {
            return ERR(e, STATUS_FORMAT, "%s has no tensor %s of %lld values", path, name,
                       (long long)count);
        }
        if (t->dtype != SAFETENSORS_BF16 && ckpt_dtype(o, s) == SAFETENSORS_BF16) {
            return ERR(e, STATUS_INPUT,
                       "%s has %s as %s: reading it as bf16 would change the run; give "
                       "--exp-avg-dtype and --exp-avg-sq-dtype as it was trained",
                       path, name, t->dtype_name);
        }
        rc = safetensors_read_f32(t, buf + ckpt_offset(p, &p->part[j]), count, e);
    }
    return rc ? rc : optim_write(o, s->part, i, buf, e);
}

static int ckpt_read(const char *path, struct optim *o, const struct ckpt_set *sets, int nsets,
                     struct err *e)
{
    const struct weights *w = o->w;
    struct safetensors *f;
    int64_t largest = 0;
    float *buf;
    int rc = safetensors_open(path, &f, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    for (int i = 0; i < w->nparams; i++) {
        int64_t n = (int64_t)w->params[i].rows * w->params[i].cols;
        largest = n > largest ? n : largest;
    }
    buf = mem_map((size_t)largest * 4);
    if (!buf) {
        rc = ERR(e, STATUS_NOMEM, "no memory to read %s", path);
    }
    for (int s = 0; s < nsets; s++) {
        for (int i = 0; rc == STATUS_OK && i < w->nparams; i++) {
            rc = ckpt_read_param(f, path, o, &sets[s], i, buf, e);
        }
    }
    mem_unmap(buf, (size_t)largest * 4);
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
                  plan_manifest(&o->w->dev->plan), "state", state);
    char *text = j ? json_dumps(j, JSON_INDENT(2)) : NULL;
    int rc = text ? ckpt_write_text(tmp, "state.json", text, e)
                  : ERR(e, STATUS_NOMEM, "no memory for the checkpoint's state");
    free(text);
    json_decref(j);
    return rc;
}

int ckpt_save(const char *dir, int64_t iteration, struct optim *o, int with_optim,
              const json_t *state, struct err *e)
{
    char *tmp = ckpt_dir(dir, iteration, ".tmp"), *final = ckpt_dir(dir, iteration, "");
    char *path = NULL, text[32];
    int rc = fsio_remove_tree(tmp, e);

    if (rc == STATUS_OK) {
        rc = fsio_mkdirs(tmp, e);
    }
    if (rc == STATUS_OK) {
        path = fsio_join(tmp, "model.safetensors");
        rc = ckpt_write(path, o, &ckpt_model, 1, e);
    }
    if (rc == STATUS_OK && with_optim) {
        mem_free(path);
        path = fsio_join(tmp, "optim.safetensors");
        rc = ckpt_write(path, o, ckpt_moments, 2, e);
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
    json_t *want = plan_manifest(p);
    struct plan_clash c;
    int rc = STATUS_OK;

    if (!plan_agree(have, want, &c)) {
        rc = ERR(e, STATUS_INPUT,
                 "checkpoint %s was made with %s = %s, this run has %s: the bits would differ", dir,
                 c.key, c.have, c.want);
    }
    json_decref(want);
    return rc;
}

int ckpt_load(const char *dir, int64_t iteration, struct optim *o, int *with_optim, json_t **state,
              struct err *e)
{
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
        rc = ckpt_read(path, o, &ckpt_model, 1, e);
    }
    if (rc == STATUS_OK) {
        *with_optim = json_is_true(json_object_get(j, "with_optimizer"));
        if (*with_optim) {
            mem_free(path);
            path = fsio_join(d, "optim.safetensors");
            rc = ckpt_read(path, o, ckpt_moments, 2, e);
            o->step = json_integer_value(json_object_get(j, "optimizer_step"));
        } else {
            optim_reset(o);
        }
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
