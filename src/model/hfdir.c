/* Owns the layout of an exported folder. Tensors stream through one buffer of the largest one's
 * size, so a model of any size is written with little memory. */
#include "model/hfdir.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/fsio.h"
#include "base/mem.h"
#include "base/status.h"
#include "model/jtext.h"
#include "model/safetensors.h"
#include "model/wfile.h"

#define HFDIR_SHARD_BYTES 5000000000
#define HFDIR_MAX_INDEX   (256u << 20)

struct hfdir {
    const struct wfile *src;
    const char *tmp; /* the folder under construction */
    hfdir_tensor_fn *get;
    void *arg;
    int n;         /* tensors */
    int *shard_of; /* of each tensor */
    int n_shards;
    int64_t total; /* bytes of all tensors */
    uint16_t *values;
};

/* ---- texts ---- */

static int hfdir_text(const struct hfdir *h, const char *name, const char *text, struct err *e)
{
    char *path;
    int rc;

    if (!text) {
        return STATUS_OK;
    }
    path = fsio_join(h->tmp, name);
    rc = fsio_write_atomic(path, text, strlen(text), e);
    mem_free(path);
    return rc;
}

/* The weights are written in bf16 whatever they were read from, and readers go by config.json. */
static int hfdir_config(const struct hfdir *h, struct err *e)
{
    static const char *const keys[] = {"dtype", "torch_dtype"};
    const char *text = wfile_config_json(h->src);
    json_error_t je;
    json_t *root = json_loads(text, 0, &je);
    int have = 0, wrong = 0, rc;
    char *made = NULL;

    if (!root) {
        return ERR(e, STATUS_FORMAT, "config.json: line %d: %s", je.line, je.text);
    }
    for (int i = 0; i < 2; i++) {
        json_t *v = json_object_get(root, keys[i]);
        if (v) {
            have = 1;
            wrong |= !json_is_string(v) || strcmp(json_string_value(v), "bfloat16") != 0;
            json_object_set_new(root, keys[i], json_string("bfloat16"));
        }
    }
    if (!have) {
        json_object_set_new(root, "dtype", json_string("bfloat16"));
    }
    if (wrong || !have) {
        made = json_dumps(root, JSON_INDENT(2));
    }
    rc = hfdir_text(h, "config.json", made ? made : text, e);
    free(made);
    json_decref(root);
    return rc;
}

static int hfdir_texts(const struct hfdir *h, struct err *e)
{
    int rc;
    if ((rc = hfdir_config(h, e)) ||
        (rc = hfdir_text(h, "generation_config.json", wfile_generation_config_json(h->src), e)) ||
        (rc = hfdir_text(h, "tokenizer.json", wfile_tokenizer_json(h->src), e)) ||
        (rc = hfdir_text(h, "tokenizer_config.json", wfile_tokenizer_config_json(h->src), e))) {
        return rc;
    }
    return hfdir_text(h, "chat_template.jinja", wfile_chat_template(h->src), e);
}

/* ---- weights ---- */

/* Fills shards in order; a tensor that does not fit any more opens the next one. */
static int hfdir_plan(struct hfdir *h, int64_t shard_bytes, struct err *e)
{
    int64_t used = 0, largest = 0;

    h->n = wfile_tensor_count(h->src);
    h->shard_of = mem_alloc(((size_t)h->n + 1) * sizeof *h->shard_of);
    h->n_shards = 1;
    for (int i = 0; i < h->n; i++) {
        const struct wfile_tensor *t = wfile_tensor_at(h->src, i);
        int64_t bytes = t->count * 2;
        if (used && bytes > shard_bytes - used) {
            h->n_shards++;
            used = 0;
        }
        h->shard_of[i] = h->n_shards - 1;
        used += bytes;
        h->total += bytes;
        largest = bytes > largest ? bytes : largest;
    }
    h->values = mem_try((size_t)largest);
    if (!h->values) {
        return ERR(e, STATUS_NOMEM, "no memory for a tensor of %lld bytes", (long long)largest);
    }
    return STATUS_OK;
}

static void hfdir_shard_name(const struct hfdir *h, int s, char out[64])
{
    if (h->n_shards == 1) {
        snprintf(out, 64, "model.safetensors");
    } else {
        snprintf(out, 64, "model-%05d-of-%05d.safetensors", s + 1, h->n_shards);
    }
}

static int hfdir_shard_data(const struct hfdir *h, struct safetensors_writer *w, int s,
                            struct err *e)
{
    int rc = STATUS_OK;

    for (int i = 0; i < h->n && rc == STATUS_OK; i++) {
        const struct wfile_tensor *t = wfile_tensor_at(h->src, i);
        if (h->shard_of[i] == s) {
            rc = safetensors_writer_add(w, t->name, SAFETENSORS_BF16, t->ndim, t->dim, e);
        }
    }
    if (rc == STATUS_OK) {
        rc = safetensors_writer_begin(w, e);
    }
    for (int i = 0; i < h->n && rc == STATUS_OK; i++) {
        const struct wfile_tensor *t = wfile_tensor_at(h->src, i);
        if (h->shard_of[i] != s) {
            continue;
        }
        rc = h->get(h->arg, t->name, h->values, t->count, e);
        if (rc == STATUS_OK) {
            rc = safetensors_writer_write(w, h->values, (size_t)t->count * 2, e);
        }
    }
    return rc;
}

static int hfdir_shard(const struct hfdir *h, int s, struct err *e)
{
    struct safetensors_writer *w = NULL;
    char name[64];
    char *path;
    int rc;

    hfdir_shard_name(h, s, name);
    path = fsio_join(h->tmp, name);
    rc = safetensors_writer_open(path, &w, e);
    mem_free(path);
    if (rc != STATUS_OK) {
        return rc;
    }
    rc = hfdir_shard_data(h, w, s, e);
    if (rc != STATUS_OK) {
        safetensors_writer_abort(w);
        return rc;
    }
    return safetensors_writer_commit(w, e);
}

static int hfdir_index(const struct hfdir *h, struct err *e)
{
    struct buf b;
    int rc;

    buf_init(&b, HFDIR_MAX_INDEX);
    buf_printf(&b, "{\n  \"metadata\": {\n    \"total_size\": %lld\n  },\n  \"weight_map\": {",
               (long long)h->total);
    for (int i = 0; i < h->n; i++) {
        const char *name = wfile_tensor_at(h->src, i)->name;
        char file[64];
        hfdir_shard_name(h, h->shard_of[i], file);
        buf_str(&b, i ? ",\n    " : "\n    ");
        jtext_string(&b, name, strlen(name));
        buf_printf(&b, ": \"%s\"", file);
    }
    buf_str(&b, "\n  }\n}\n");
    rc = buf_status(&b);
    rc = rc == STATUS_OK ? hfdir_text(h, "model.safetensors.index.json", b.data, e)
                         : ERR(e, rc, "the index of %d tensors is too large", h->n);
    buf_fini(&b);
    return rc;
}

static int hfdir_weights(struct hfdir *h, int64_t shard_bytes, struct err *e)
{
    int rc = hfdir_plan(h, shard_bytes, e);

    for (int s = 0; s < h->n_shards && rc == STATUS_OK; s++) {
        rc = hfdir_shard(h, s, e);
    }
    if (rc == STATUS_OK && h->n_shards > 1) {
        rc = hfdir_index(h, e);
    }
    mem_free(h->shard_of);
    mem_free(h->values);
    return rc;
}

/* ---- the folder ---- */

/* What stands under the name is not ours to remove. */
static int hfdir_check_free(const char *dir, struct err *e)
{
    DIR *d = opendir(dir);
    struct dirent *de;
    int rc = STATUS_OK;

    if (!d) {
        return errno == ENOENT
                   ? STATUS_OK
                   : ERR(e, STATUS_INPUT, "cannot write the folder %s: %s", dir, strerror(errno));
    }
    while (rc == STATUS_OK && (de = readdir(d))) {
        if (strcmp(de->d_name, ".") != 0 && strcmp(de->d_name, "..") != 0) {
            rc = ERR(e, STATUS_INPUT, "%s exists and is not empty; give a new folder", dir);
        }
    }
    closedir(d);
    return rc;
}

int hfdir_write_shards(const char *dir, const struct wfile *src, hfdir_tensor_fn *get_bf16,
                       void *arg, int64_t shard_bytes, struct err *e)
{
    struct hfdir h;
    size_t n = strlen(dir);
    char *to, *tmp;
    int rc;

    memset(&h, 0, sizeof h);
    while (n > 1 && dir[n - 1] == '/') {
        n--;
    }
    if (n == 0) {
        return ERR(e, STATUS_INPUT, "no folder to write to was given");
    }
    to = mem_strndup(dir, n);
    tmp = mem_alloc(n + 5);
    snprintf(tmp, n + 5, "%s.tmp", to);
    h.src = src;
    h.get = get_bf16;
    h.arg = arg;
    h.tmp = tmp;
    if ((rc = hfdir_check_free(to, e)) || (rc = fsio_remove_tree(tmp, e)) ||
        (rc = fsio_mkdirs(tmp, e))) {
        goto out;
    }
    if ((rc = hfdir_texts(&h, e)) || (rc = hfdir_weights(&h, shard_bytes, e)) ||
        (rc = fsio_rename_dir(tmp, to, e))) {
        fsio_remove_tree(tmp, NULL);
    }
out:
    mem_free(to);
    mem_free(tmp);
    return rc;
}

int hfdir_write(const char *dir, const struct wfile *src, hfdir_tensor_fn *get_bf16, void *arg,
                struct err *e)
{
    return hfdir_write_shards(dir, src, get_bf16, arg, HFDIR_SHARD_BYTES, e);
}
