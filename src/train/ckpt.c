/* Owns the checkpoint format. Tensors are written row by row without the padding that a device
 * keeps, and masters as f32 however they are kept, so the bytes say nothing about the device that
 * wrote them. */
#include "train/ckpt.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

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
                      uint64_t *sum, struct err *e)
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
    *sum = safetensors_writer_sum(f);
    return safetensors_writer_commit(f, e);
}

/* ---- sums of files ---- */

#define CKPT_SUMS "sums.json"

static void ckpt_add_sum(json_t *sums, const char *name, uint64_t sum)
{
    char text[17];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)sum);
    json_object_set_new(sums, name, json_string(text));
}

/* What sums.json of the folder says, for json_decref; NULL: it has none. */
static int ckpt_read_sums(const char *dir, json_t **sums, struct err *e)
{
    char *path = fsio_join(dir, CKPT_SUMS), *text = NULL;
    json_error_t why;
    size_t len;
    int rc = STATUS_OK;

    *sums = NULL;
    if (!fsio_is_file(path)) {
        log_warn(CKPT, "%s has no " CKPT_SUMS ": what is read there cannot be checked", dir);
    } else {
        rc = fsio_read(path, 4096, &text, &len, e);
        *sums = rc == STATUS_OK ? json_loadb(text, len, 0, &why) : NULL;
        if (rc == STATUS_OK && !json_is_object(*sums)) {
            json_decref(*sums);
            *sums = NULL;
            rc = ERR(e, STATUS_FORMAT, "%s is damaged", path);
        }
    }
    mem_free(text);
    mem_free(path);
    return rc;
}

static int ckpt_check_sum(const json_t *sums, const char *path, uint64_t sum, struct err *e)
{
    const char *name = strrchr(path, '/') + 1, *want;
    char is[17];

    snprintf(is, sizeof is, "%016llx", (unsigned long long)sum);
    want = json_string_value(json_object_get(sums, name));
    if (sums && (!want || strcmp(is, want) != 0)) {
        return ERR(e, STATUS_FORMAT,
                   "%s is damaged: its sum is %s, " CKPT_SUMS
                   " has %.16s; to go on from an older checkpoint put its number into "
                   "latest_checkpointed_iteration.txt",
                   path, is, want ? want : "none");
    }
    return STATUS_OK;
}

/* One parameter's values of one kind, into buf (rows, cols). */
static int ckpt_fetch_param(const struct safetensors *f, const char *path, const struct optim *o,
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
    return rc;
}

static int ckpt_load_param(struct optim *o, const struct ckpt_set *s, int i, const float *buf,
                           const char *path, struct err *e)
{
    (void)path;
    return optim_write(o, s->part, i, buf, e);
}

/* Values of parts are compared; what a parameter has beside them is not in the file. */
static int ckpt_same_param(struct optim *o, const struct ckpt_set *s, int i, const float *buf,
                           const char *path, struct err *e)
{
    const struct param *p = &o->w->params[i];
    size_t block = (size_t)p->cols * (p->kind == WEIGHTS_VECTOR ? 1 : OPTIM_ROWS);
    float *own = mem_alloc(sizeof *own * block);
    int rc = STATUS_OK;

    for (int64_t r = 0; rc == STATUS_OK && r < p->rows; r += OPTIM_ROWS) {
        int64_t n = p->rows - r < OPTIM_ROWS ? p->rows - r : OPTIM_ROWS, at = 0;
        rc = optim_read(o, s->part, i, r, n, own, e);
        while (rc == STATUS_OK && at < n * p->cols &&
               memcmp(own + at, buf + r * p->cols + at, sizeof *own) == 0) {
            at++;
        }
        if (rc == STATUS_OK && at < n * p->cols) {
            rc = ERR(e, STATUS_NUMERIC, "%s, %s%s, row %lld, column %lld: %.9g there, %.9g here",
                     path, s->prefix, p->part[0].name, (long long)(r + at / p->cols),
                     (long long)(at % p->cols), (double)buf[r * p->cols + at], (double)own[at]);
        }
    }
    mem_free(own);
    return rc;
}

typedef int ckpt_param_fn(struct optim *o, const struct ckpt_set *s, int i, const float *buf,
                          const char *path, struct err *e);

/* sums: of ckpt_read_sums; NULL: the file is not checked. */
static int ckpt_read(const char *path, const json_t *sums, struct optim *o,
                     const struct ckpt_set *sets, int nsets, ckpt_param_fn *fn, struct err *e)
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
    rc = rc ? rc : ckpt_check_sum(sums, path, sums ? safetensors_sum(f) : 0, e);
    for (int s = 0; s < nsets; s++) {
        for (int i = 0; rc == STATUS_OK && i < w->nparams; i++) {
            rc = ckpt_fetch_param(f, path, o, &sets[s], i, buf, e);
            rc = rc ? rc : fn(o, &sets[s], i, buf, path, e);
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

/* The text of state.json; free with free, NULL when there is no memory. */
static char *ckpt_state_text(int64_t iteration, const struct optim *o, int with_optim,
                             const json_t *state)
{
    json_t *j =
        json_pack("{s:i,s:I,s:I,s:b,s:o,s:O}", "format", 1, "iteration", (json_int_t)iteration,
                  "optimizer_step", (json_int_t)o->step, "with_optimizer", with_optim, "manifest",
                  plan_train_manifest(&o->w->dev->plan), "state", state);
    /* sorted: objects that were read from a checkpoint have their keys in another order */
    char *text = j ? json_dumps(j, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    json_decref(j);
    return text;
}

int ckpt_place(const char *dir, int64_t iteration,
               int (*fill)(void *arg, const char *tmp, struct err *e), void *arg, struct err *e)
{
    char *tmp = ckpt_dir(dir, iteration, ".tmp"), *final = ckpt_dir(dir, iteration, "");
    char text[32];
    int rc = fsio_remove_tree(tmp, e);

    rc = rc == STATUS_OK ? fsio_mkdirs(tmp, e) : rc;
    rc = rc == STATUS_OK ? fill(arg, tmp, e) : rc;
    rc = rc == STATUS_OK ? fsio_sync_dir(tmp, e) : rc;
    rc = rc == STATUS_OK ? fsio_replace_dir(tmp, final, e) : rc;
    if (rc == STATUS_OK) {
        snprintf(text, sizeof text, "%lld\n", (long long)iteration);
        rc = ckpt_write_text(dir, "latest_checkpointed_iteration.txt", text, e);
    }
    if (rc != STATUS_OK) {
        fsio_remove_tree(tmp, NULL);
    }
    mem_free(tmp);
    mem_free(final);
    return rc;
}

/* What is in a checkpoint; text is that of state.json. */
struct ckpt_parts {
    struct optim *o;
    int with_optim;
    const char *state;
};

static int ckpt_fill(void *arg, const char *tmp, struct err *e)
{
    const struct ckpt_parts *p = arg;
    char *path = fsio_join(tmp, "model.safetensors"), *text = NULL;
    json_t *sums = json_object();
    uint64_t sum = 0;
    int rc = ckpt_write(path, p->o, &ckpt_model, 1, &sum, e);

    mem_free(path);
    ckpt_add_sum(sums, "model.safetensors", sum);
    if (rc == STATUS_OK && p->with_optim) {
        path = fsio_join(tmp, "optim.safetensors");
        rc = ckpt_write(path, p->o, ckpt_moments, 2, &sum, e);
        mem_free(path);
        ckpt_add_sum(sums, "optim.safetensors", sum);
    }
    rc = rc == STATUS_OK ? ckpt_write_text(tmp, "state.json", p->state, e) : rc;
    ckpt_add_sum(sums, "state.json", XXH3_64bits(p->state, strlen(p->state)));
    text = json_dumps(sums, JSON_INDENT(2) | JSON_SORT_KEYS);
    if (rc == STATUS_OK) {
        rc = text ? ckpt_write_text(tmp, CKPT_SUMS, text, e)
                  : ERR(e, STATUS_NOMEM, "no memory for a checkpoint's sums");
    }
    free(text);
    json_decref(sums);
    return rc;
}

static int ckpt_make(const char *dir, int64_t iteration, struct optim *o, int with_optim,
                     const char *state, struct err *e)
{
    struct ckpt_parts p = {o, with_optim, state};
    return ckpt_place(dir, iteration, ckpt_fill, &p, e);
}

int ckpt_save(const char *dir, int64_t iteration, struct optim *o, int with_optim,
              const json_t *state, struct err *e)
{
    char *text = ckpt_state_text(iteration, o, with_optim, state);
    int rc = text ? ckpt_make(dir, iteration, o, with_optim, text, e)
                  : ERR(e, STATUS_NOMEM, "no memory for the checkpoint's state");
    free(text);
    return rc;
}

/* ---- beside other work ---- */

struct ckpt_writer {
    char *dir, *text;
    int64_t iteration;
    struct optim view;
    int with_optim;
    pthread_t thread;
    int running; /* there is a thread to join */
    atomic_int done;
    int rc;
    struct err err;
};

static void *ckpt_thread(void *arg)
{
    struct ckpt_writer *w = arg;
    w->rc = ckpt_make(w->dir, w->iteration, &w->view, w->with_optim, w->text, &w->err);
    atomic_store(&w->done, 1);
    return NULL;
}

int ckpt_begin(const char *dir, int64_t iteration, struct optim *o, int with_optim,
               const json_t *state, struct ckpt_writer **out, struct err *e)
{
    struct ckpt_writer *w = mem_alloc(sizeof *w);

    w->dir = mem_strdup(dir);
    w->text = ckpt_state_text(iteration, o, with_optim, state);
    w->iteration = iteration;
    w->with_optim = with_optim;
    if (w->text && optim_reader(o, &w->view, NULL) == STATUS_OK &&
        pthread_create(&w->thread, NULL, ckpt_thread, w) == 0) {
        w->running = 1;
    } else {
        w->rc = ckpt_save(dir, iteration, o, with_optim, state, &w->err);
        w->done = 1;
    }
    (void)e;
    *out = w;
    return STATUS_OK;
}

int ckpt_poll(struct ckpt_writer *w, int wait, struct err *e)
{
    int rc;

    if (!wait && !atomic_load(&w->done)) {
        return STATUS_AGAIN;
    }
    if (w->running) {
        pthread_join(w->thread, NULL);
    }
    rc = w->rc;
    if (rc != STATUS_OK && e) {
        *e = w->err;
    }
    free(w->text);
    mem_free(w->dir);
    mem_free(w);
    return rc;
}

/* ---- which are kept ---- */

struct ckpt_kept {
    int64_t iteration, bytes;
};

static int ckpt_newest_first(const void *x, const void *y)
{
    const struct ckpt_kept *a = x, *b = y;
    return (a->iteration < b->iteration) - (a->iteration > b->iteration);
}

/* Whole checkpoints of dir, newest first; *list is the caller's. */
static size_t ckpt_list(const char *dir, struct ckpt_kept **list)
{
    struct fsio_names l;
    size_t n = 0, cap = 0;

    *list = NULL;
    fsio_list(dir, &l, NULL);
    for (size_t i = 0; i < l.n; i++) {
        long long it;
        int used = 0;
        char *path;
        if (sscanf(l.name[i], "iter_%lld%n", &it, &used) != 1 || l.name[i][used]) {
            continue;
        }
        if (n == cap) {
            ASSERT(mem_grow((void **)list, &cap, 64, sizeof **list));
        }
        path = fsio_join(dir, l.name[i]);
        (*list)[n++] = (struct ckpt_kept){it, fsio_folder_bytes(path)};
        mem_free(path);
    }
    fsio_names_fini(&l);
    if (n) {
        qsort(*list, n, sizeof **list, ckpt_newest_first);
    }
    return n;
}

/* A folder that is being removed has a name that ckpt_clean knows. */
static int ckpt_remove(const char *dir, int64_t iteration, struct err *e)
{
    char *path = ckpt_dir(dir, iteration, ""), *gone = ckpt_dir(dir, iteration, ".old.tmp");
    int rc = fsio_remove_tree(gone, e);

    rc = rc == STATUS_OK ? fsio_rename_dir(path, gone, e) : rc;
    rc = rc == STATUS_OK ? fsio_remove_tree(gone, e) : rc;
    mem_free(path);
    mem_free(gone);
    return rc;
}

int ckpt_latest_of(const char *dir, int64_t stride, int64_t *iteration, struct err *e)
{
    struct ckpt_kept *list;
    int64_t latest;
    int rc = ckpt_latest(dir, &latest, e);
    size_t n, i = 0;

    if (rc != STATUS_OK || (latest + 1) % stride == 0) {
        *iteration = rc == STATUS_OK ? latest : *iteration;
        return rc;
    }
    n = ckpt_list(dir, &list);
    while (i < n && (list[i].iteration > latest || (list[i].iteration + 1) % stride != 0)) {
        i++;
    }
    if (i < n) {
        *iteration = list[i].iteration;
    } else {
        rc = ERR(e, STATUS_NOTFOUND, "%s has no checkpoint to go on from", dir);
    }
    mem_free(list);
    return rc;
}

int ckpt_retain(const char *dir, int64_t keep, int64_t bytes, int64_t stride, int64_t *oldest,
                struct err *e)
{
    struct ckpt_kept *list;
    size_t n = ckpt_list(dir, &list);
    int64_t latest = -1, sum = 0, kept = 0, gone = 0;
    int rc = ckpt_latest(dir, &latest, e);

    *oldest = -1;
    rc = rc == STATUS_NOTFOUND ? STATUS_OK : rc;
    for (size_t i = 0; rc == STATUS_OK && latest >= 0 && i < n; i++) {
        int stays = list[i].iteration >= latest;
        if (!stays && !gone) {
            stays =
                *oldest < 0 || ((!keep || kept < keep) && (!bytes || sum + list[i].bytes <= bytes));
        }
        if (stays) {
            sum += list[i].bytes;
            kept += list[i].iteration <= latest;
            if (list[i].iteration <= latest && (list[i].iteration + 1) % stride == 0) {
                *oldest = list[i].iteration;
            }
        } else {
            rc = ckpt_remove(dir, list[i].iteration, e);
            gone++;
        }
    }
    if (gone) {
        log_info(CKPT, "%lld old checkpoints removed from %s, %lld are kept", (long long)gone, dir,
                 (long long)kept);
    }
    mem_free(list);
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
    json_t *want = plan_train_manifest(p);
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

/* state.json, checked; for json_decref. */
static int ckpt_load_state(const char *d, const json_t *sums, json_t **out, struct err *e)
{
    char *path = fsio_join(d, "state.json"), *text = NULL;
    json_error_t why = {0};
    json_t *j = NULL;
    size_t len;
    int rc = fsio_read(path, 64 << 20, &text, &len, e);

    rc = rc ? rc : ckpt_check_sum(sums, path, XXH3_64bits(text, len), e);
    if (rc == STATUS_OK) {
        j = json_loadb(text, len, 0, &why);
        if (!j || !json_is_object(json_object_get(j, "state"))) {
            rc = ERR(e, STATUS_FORMAT, "%s line %d: %s", path, j ? 0 : why.line,
                     j ? "no state object" : why.text);
            json_decref(j);
        }
    }
    *out = rc == STATUS_OK ? j : NULL;
    mem_free(text);
    mem_free(path);
    return rc;
}

int ckpt_load(const char *dir, int64_t iteration, struct optim *o, int *with_optim, json_t **state,
              struct err *e)
{
    char *d = ckpt_dir(dir, iteration, ""), *model = fsio_join(d, "model.safetensors");
    char *moments = fsio_join(d, "optim.safetensors");
    json_t *j = NULL, *sums = NULL;
    int rc = fsio_is_dir(d) ? ckpt_read_sums(d, &sums, e) : STATUS_OK;

    rc = rc ? rc : ckpt_load_state(d, sums, &j, e);
    rc = rc ? rc : ckpt_check_manifest(json_object_get(j, "manifest"), &o->w->dev->plan, d, e);
    rc = rc ? rc : ckpt_read(model, sums, o, &ckpt_model, 1, ckpt_load_param, e);
    if (rc == STATUS_OK) {
        *with_optim = json_is_true(json_object_get(j, "with_optimizer"));
        if (*with_optim) {
            rc = ckpt_read(moments, sums, o, ckpt_moments, 2, ckpt_load_param, e);
            o->step = json_integer_value(json_object_get(j, "optimizer_step"));
        } else {
            optim_reset(o);
        }
    }
    if (rc == STATUS_OK) {
        *state = json_incref(json_object_get(j, "state"));
    }
    json_decref(j);
    json_decref(sums);
    mem_free(d);
    mem_free(model);
    mem_free(moments);
    return rc;
}

int ckpt_compare(const char *dir, int64_t iteration, struct optim *o, struct err *e)
{
    char *d = ckpt_dir(dir, iteration, ""), *model = fsio_join(d, "model.safetensors");
    char *moments = fsio_join(d, "optim.safetensors");
    int rc = ckpt_read(model, NULL, o, &ckpt_model, 1, ckpt_same_param, e);

    if (rc == STATUS_OK && fsio_is_file(moments)) {
        rc = ckpt_read(moments, NULL, o, ckpt_moments, 2, ckpt_same_param, e);
    }
    mem_free(d);
    mem_free(model);
    mem_free(moments);
    return rc;
}

int ckpt_clean(const char *dir, struct err *e)
{
    struct fsio_names l;
    int rc = STATUS_OK;

    fsio_list(dir, &l, NULL); /* a missing folder has none */
    for (size_t i = 0; rc == STATUS_OK && i < l.n; i++) {
        size_t n = strlen(l.name[i]);
        if (n > 9 && strncmp(l.name[i], "iter_", 5) == 0 &&
            strcmp(l.name[i] + n - 4, ".tmp") == 0) {
            char *p = fsio_join(dir, l.name[i]);
            log_info(CKPT, "removing %s, left by an interrupted save", p);
            rc = fsio_remove_tree(p, e);
            mem_free(p);
        }
    }
    fsio_names_fini(&l);
    return rc;
}
