/* Owns the view of a model on disk as one list of tensors under Hugging Face's names, whatever file
 * they lie in. Opening checks everything that can be checked without reading values: the texts, the
 * architecture, and that every tensor the architecture needs is there with its shape. So a missing
 * shard or a wrong config is an error in the first second and not in the middle of a load. */
#include "model/wfile.h"

#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fsio.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/status.h"
#include "model/gguf.h"
#include "model/gguf_text.h"
#include "model/safetensors.h"

#define WFILE_MAX_TEXT   (16u << 20)
#define WFILE_MAX_BIG    (256u << 20) /* tokenizer.json, the index of shards */
#define WFILE_MAX_SHARDS 16384
#define WFILE_WANT       "give a Hugging Face folder or a .gguf file"

/* Where a tensor's values are: one of the two is set. */
struct wfile_src {
    const struct safetensors_tensor *st;
    const struct gguf_tensor *gg;
    int heads; /* above 0: rows of each head are interleaved in the file (llama's q and k) */
};

struct wfile {
    char *path;
    struct arch arch;
    struct wfile_tensor *tensors;
    struct wfile_src *src;
    int n, cap;
    struct map index;
    struct arena names;
    struct safetensors **shards;
    int n_shards;
    struct gguf *g;
    char *config, *tokenizer, *tokenizer_config, *generation_config, *chat_template, *tool_template;
};

/* ---- the list of tensors ---- */

static void wfile_grow(struct wfile *w)
{
    int cap = w->cap ? w->cap * 2 : 512;
    size_t old = (size_t)w->cap, want = (size_t)cap;
    w->tensors = mem_realloc(w->tensors, old * sizeof *w->tensors, want * sizeof *w->tensors);
    w->src = mem_realloc(w->src, old * sizeof *w->src, want * sizeof *w->src);
    w->cap = cap;
}

static int wfile_add(struct wfile *w, const char *name, int ndim, const int64_t *dim,
                     struct wfile_src src, struct err *e)
{
    struct wfile_tensor *t;

    if (w->n == w->cap) {
        wfile_grow(w);
    }
    t = &w->tensors[w->n];
    t->name = arena_strdup(&w->names, name);
    t->ndim = ndim;
    t->count = 1;
    for (int i = 0; i < 4; i++) {
        t->dim[i] = i < ndim ? dim[i] : 1;
        t->count *= t->dim[i];
    }
    w->src[w->n] = src;
    if (!map_put(&w->index, name, strlen(name), w->n)) {
        return ERR(e, STATUS_FORMAT, "%s: tensor %.200s is there twice", w->path, name);
    }
    w->n++;
    return STATUS_OK;
}

/* ---- what the architecture needs ---- */

static int wfile_need(const struct wfile *w, const char *name, int64_t rows, int64_t cols,
                      struct err *e)
{
    const struct wfile_tensor *t = wfile_find(w, name);
    int ndim = cols ? 2 : 1;

    if (!t) {
        return ERR(e, STATUS_FORMAT, "%s: tensor %s is missing", w->path, name);
    }
    if (t->ndim != ndim || t->dim[0] != rows || (cols && t->dim[1] != cols)) {
        return ERR(e, STATUS_FORMAT,
                   "%s: tensor %s has %d dimensions, %lld by %lld; config.json makes it %lld by "
                   "%lld",
                   w->path, name, t->ndim, (long long)t->dim[0], (long long)t->dim[1],
                   (long long)rows, (long long)(cols ? cols : 1));
    }
    return STATUS_OK;
}

static int wfile_need_layer(const struct wfile *w, int layer,
                            const struct arch_tensor need[ARCH_ROLES], struct err *e)
{
    char name[96];
    int rc = STATUS_OK;

    for (int i = 0; i < ARCH_ROLES && rc == STATUS_OK; i++) {
        if (need[i].tail) {
            snprintf(name, sizeof name, "%slayers.%d.%s", w->arch.prefix, layer, need[i].tail);
            rc = wfile_need(w, name, need[i].rows, need[i].cols, e);
        }
    }
    return rc;
}

/* A layer's tensor that the model does not use would be a computation left out. */
static int wfile_strangers(const struct wfile *w, const struct arch_tensor need[ARCH_ROLES],
                           struct err *e)
{
    size_t skip = strlen(w->arch.prefix);

    for (int i = 0; i < w->n; i++) {
        const char *name = w->tensors[i].name;
        int layer = -1, used = 0, known = 0;
        if (strncmp(name, w->arch.prefix, skip) != 0 ||
            sscanf(name + skip, "layers.%5d.%n", &layer, &used) != 1 || !used) {
            continue;
        }
        for (int r = 0; r < ARCH_ROLES; r++) {
            known |= need[r].tail && strcmp(name + skip + used, need[r].tail) == 0;
        }
        if (!known || layer < 0 || layer >= w->arch.n_layers) {
            return ERR(e, STATUS_UNSUPPORTED, "%s: tensor %s is none of a %s model's", w->path,
                       name, w->arch.family);
        }
    }
    return STATUS_OK;
}

/* Families of several parts spell their text part's names in more than one way. */
static void wfile_spelling(struct wfile *w)
{
    char name[96];

    for (int i = 0; arch_spelling(&w->arch, i); i++) {
        snprintf(name, sizeof name, "%sembed_tokens.weight", w->arch.prefix);
        if (wfile_find(w, name)) {
            return;
        }
    }
    arch_spelling(&w->arch, 0);
}

static int wfile_need_all(struct wfile *w, struct err *e)
{
    const struct arch *a = &w->arch;
    struct arch_tensor need[ARCH_ROLES];
    char name[96];
    int rc;

    wfile_spelling(w);
    arch_layer_tensors(a, need);
    snprintf(name, sizeof name, "%sembed_tokens.weight", a->prefix);
    rc = wfile_need(w, name, a->vocab, a->hidden, e);
    for (int i = 0; i < a->n_layers && rc == STATUS_OK; i++) {
        rc = wfile_need_layer(w, i, need, e);
    }
    if (rc == STATUS_OK) {
        snprintf(name, sizeof name, "%snorm.weight", a->prefix);
        rc = wfile_need(w, name, a->hidden, 0, e);
    }
    if (rc == STATUS_OK && !a->tie_embeddings) {
        rc = wfile_need(w, a->head, a->vocab, a->hidden, e);
    }
    return rc == STATUS_OK ? wfile_strangers(w, need, e) : rc;
}

/* ---- Hugging Face folder: the texts ---- */

/* Reads DIR/name; a missing file leaves *out NULL. */
static int wfile_text(const struct wfile *w, const char *name, size_t max, char **out,
                      struct err *e)
{
    char *path = fsio_join(w->path, name);
    size_t len = 0;
    int rc = STATUS_OK;

    if (fsio_is_file(path)) {
        rc = fsio_read(path, max, out, &len, e);
        if (rc == STATUS_OK && strlen(*out) != len) {
            rc = ERR(e, STATUS_FORMAT, "%s has a zero byte: not a text file", path);
        }
    }
    mem_free(path);
    return rc;
}

/* A template is a string, or a list of {"name", "template"} of which "default" and "tool_use" are
 * ours. */
static int wfile_template_value(struct wfile *w, const json_t *v, struct err *e)
{
    size_t i;
    json_t *one;

    if (json_is_string(v)) {
        w->chat_template = mem_strdup(json_string_value(v));
    } else if (json_is_array(v)) {
        json_array_foreach(v, i, one)
        {
            const char *name = json_string_value(json_object_get(one, "name"));
            const char *text = json_string_value(json_object_get(one, "template"));
            if (name && text && strcmp(name, "default") == 0 && !w->chat_template) {
                w->chat_template = mem_strdup(text);
            } else if (name && text && strcmp(name, "tool_use") == 0 && !w->tool_template) {
                w->tool_template = mem_strdup(text);
            }
        }
    } else if (v && !json_is_null(v)) {
        return ERR(e, STATUS_FORMAT,
                   "%s/tokenizer_config.json: chat_template is neither a text nor a list", w->path);
    }
    return STATUS_OK;
}

static int wfile_folder_template(struct wfile *w, struct err *e)
{
    json_error_t je;
    json_t *root;
    int rc = wfile_text(w, "chat_template.jinja", WFILE_MAX_TEXT, &w->chat_template, e);

    if (rc == STATUS_OK && w->chat_template) {
        rc = wfile_text(w, "additional_chat_templates/tool_use.jinja", WFILE_MAX_TEXT,
                        &w->tool_template, e);
    }
    if (rc != STATUS_OK || w->chat_template || !w->tokenizer_config) {
        return rc;
    }
    /* transformers writes a model_max_length of 31 digits, more than an integer holds. */
    root = json_loads(w->tokenizer_config, JSON_DECODE_INT_AS_REAL, &je);
    if (!root) {
        return ERR(e, STATUS_FORMAT, "%s/tokenizer_config.json: line %d: %s", w->path, je.line,
                   je.text);
    }
    rc = wfile_template_value(w, json_object_get(root, "chat_template"), e);
    json_decref(root);
    return rc;
}

static int wfile_ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), k = strlen(tail);
    return n >= k && strcmp(s + n - k, tail) == 0;
}

/* The file by which a folder shows itself as Megatron's torch_dist, into `mark`. */
static int wfile_is_torch_dist(const char *dir, char mark[64])
{
    DIR *d = opendir(dir);
    struct dirent *de;
    int found = 0;

    while (d && !found && (de = readdir(d))) {
        found = wfile_ends_with(de->d_name, ".distcp") || strcmp(de->d_name, "common.pt") == 0 ||
                strcmp(de->d_name, "metadata.json") == 0;
        if (found) {
            snprintf(mark, 64, "%.60s", de->d_name);
        }
    }
    if (d) {
        closedir(d);
    }
    return found;
}

/* Says what is wrong with a folder that has no config.json. */
static int wfile_no_config(const struct wfile *w, struct err *e)
{
    char mark[64];
    char *latest = fsio_join(w->path, "latest_checkpointed_iteration.txt");
    char *text = NULL, *sub = NULL;
    char step[32] = "";
    size_t len;
    int dist = wfile_is_torch_dist(w->path, mark);

    if (!dist && fsio_is_file(latest) && fsio_read(latest, 64, &text, &len, NULL) == STATUS_OK) {
        char *end;
        long n = strtol(text, &end, 10);
        if (end == text) {
            snprintf(step, sizeof step, "release");
        } else {
            snprintf(step, sizeof step, "iter_%07ld", n);
        }
        sub = fsio_join(w->path, step);
        dist = wfile_is_torch_dist(sub, mark);
    }
    mem_free(latest);
    mem_free(text);
    mem_free(sub);
    if (dist) {
        return ERR(e, STATUS_UNSUPPORTED,
                   "%s is a Megatron torch_dist checkpoint (%s%s%s); give the Hugging Face folder "
                   "of the model, or convert this one to Hugging Face format with Megatron's tools",
                   w->path, step, *step ? "/" : "", mark);
    }
    return ERR(e, STATUS_INPUT, "%s has no config.json; " WFILE_WANT, w->path);
}

static int wfile_folder_texts(struct wfile *w, int need_config, struct err *e)
{
    int rc;

    if ((rc = wfile_text(w, "config.json", WFILE_MAX_TEXT, &w->config, e))) {
        return rc;
    }
    if (!w->config && need_config) {
        return wfile_no_config(w, e);
    }
    if ((rc = wfile_text(w, "tokenizer.json", WFILE_MAX_BIG, &w->tokenizer, e)) ||
        (rc = wfile_text(w, "tokenizer_config.json", WFILE_MAX_TEXT, &w->tokenizer_config, e)) ||
        (rc = wfile_text(w, "generation_config.json", WFILE_MAX_TEXT, &w->generation_config, e))) {
        return rc;
    }
    return wfile_folder_template(w, e);
}

/* ---- Hugging Face folder: the tensors ---- */

static int wfile_add_st(struct wfile *w, const struct safetensors_tensor *t, struct err *e)
{
    struct wfile_src src = {t, NULL, 0};

    /* A table older versions of transformers stored; it is computed from rope_theta. */
    if (wfile_ends_with(t->name, "rotary_emb.inv_freq")) {
        return STATUS_OK;
    }
    if (t->ndim > 4) {
        return ERR(e, STATUS_UNSUPPORTED, "%s: tensor %.200s has %d dimensions, at most 4", w->path,
                   t->name, t->ndim);
    }
    return wfile_add(w, t->name, t->ndim, t->dim, src, e);
}

static int wfile_open_shard(struct wfile *w, const char *file, struct err *e)
{
    char *path = fsio_join(w->path, file);
    int rc = safetensors_open(path, &w->shards[w->n_shards], e);
    if (rc == STATUS_OK) {
        w->n_shards++;
    }
    mem_free(path);
    return rc;
}

static int wfile_by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The names of the shards in order, each once. */
static int wfile_shard_names(const struct wfile *w, json_t *weight_map, struct map *seen,
                             char ***out, struct err *e)
{
    const char *name;
    json_t *v;
    char **files;

    json_object_foreach(weight_map, name, v)
    {
        const char *file = json_string_value(v);
        /* A name from the file must not lead out of the folder. */
        if (!file || !*file || strchr(file, '/') || file[0] == '.') {
            return ERR(e, STATUS_FORMAT,
                       "%s/model.safetensors.index.json: %.200s has no plain file name", w->path,
                       name);
        }
        map_put(seen, file, strlen(file), 0);
    }
    if (seen->count == 0 || seen->count > WFILE_MAX_SHARDS) {
        return ERR(e, STATUS_FORMAT, "%s/model.safetensors.index.json lists %zu files", w->path,
                   seen->count);
    }
    files = mem_alloc(seen->count * sizeof *files);
    for (size_t i = 0; i < seen->count; i++) {
        files[i] = mem_strndup(seen->entries[i].key, seen->entries[i].len);
    }
    qsort(files, seen->count, sizeof *files, wfile_by_text);
    *out = files;
    return STATUS_OK;
}

/* Takes from each shard, in its order, what the index says is there, then looks for the rest. */
static int wfile_index_tensors(struct wfile *w, json_t *weight_map, char **files, struct err *e)
{
    const char *name;
    json_t *v;
    int rc = STATUS_OK;

    for (int s = 0; s < w->n_shards; s++) {
        for (int i = 0; i < safetensors_count(w->shards[s]) && rc == STATUS_OK; i++) {
            const struct safetensors_tensor *t = safetensors_at(w->shards[s], i);
            const char *file = json_string_value(json_object_get(weight_map, t->name));
            if (file && strcmp(file, files[s]) == 0) {
                rc = wfile_add_st(w, t, e);
            }
        }
    }
    if (rc != STATUS_OK) {
        return rc;
    }
    json_object_foreach(weight_map, name, v)
    {
        if (!wfile_find(w, name) && !wfile_ends_with(name, "rotary_emb.inv_freq")) {
            return ERR(e, STATUS_FORMAT,
                       "%s: tensor %.200s is not in %s, where the index says it is", w->path, name,
                       json_string_value(v));
        }
    }
    return STATUS_OK;
}

static int wfile_sharded(struct wfile *w, const char *index_text, struct err *e)
{
    json_error_t je;
    json_t *root = json_loads(index_text, JSON_REJECT_DUPLICATES, &je);
    json_t *weight_map = json_object_get(root, "weight_map");
    struct map seen;
    char **files = NULL;
    int rc = STATUS_OK;

    map_init(&seen);
    if (!json_is_object(weight_map)) {
        rc = ERR(e, STATUS_FORMAT, "%s/model.safetensors.index.json: %s", w->path,
                 root ? "no weight_map" : je.text);
        goto out;
    }
    rc = wfile_shard_names(w, weight_map, &seen, &files, e);
    if (rc != STATUS_OK) {
        goto out;
    }
    w->shards = mem_alloc(seen.count * sizeof *w->shards);
    for (size_t i = 0; i < seen.count && rc == STATUS_OK; i++) {
        rc = wfile_open_shard(w, files[i], e);
    }
    if (rc == STATUS_OK) {
        rc = wfile_index_tensors(w, weight_map, files, e);
    }
out:
    for (size_t i = 0; files && i < seen.count; i++) {
        mem_free(files[i]);
    }
    mem_free(files);
    map_fini(&seen);
    json_decref(root);
    return rc;
}

static int wfile_has(const struct wfile *w, const char *name)
{
    char *path = fsio_join(w->path, name);
    int yes = fsio_is_file(path);
    mem_free(path);
    return yes;
}

static int wfile_folder_tensors(struct wfile *w, struct err *e)
{
    char *index = NULL;
    int rc;

    if (wfile_has(w, "model.safetensors")) {
        w->shards = mem_alloc(sizeof *w->shards);
        rc = wfile_open_shard(w, "model.safetensors", e);
        for (int i = 0; rc == STATUS_OK && i < safetensors_count(w->shards[0]); i++) {
            rc = wfile_add_st(w, safetensors_at(w->shards[0], i), e);
        }
        return rc;
    }
    rc = wfile_text(w, "model.safetensors.index.json", WFILE_MAX_BIG, &index, e);
    if (rc == STATUS_OK && index) {
        rc = wfile_sharded(w, index, e);
    } else if (rc == STATUS_OK) {
        int bin = wfile_has(w, "pytorch_model.bin") || wfile_has(w, "pytorch_model.bin.index.json");
        rc = ERR(e, STATUS_INPUT,
                 "%s has no model.safetensors%s; give a folder with safetensors weights or a .gguf "
                 "file",
                 w->path, bin ? " (pytorch_model.bin is not read)" : "");
    }
    mem_free(index);
    return rc;
}

/* ---- GGUF ---- */

static int wfile_gguf_tensors(struct wfile *w, struct err *e)
{
    int permuted = strcmp(w->arch.family, "llama") == 0;

    for (int i = 0; i < gguf_tensor_count(w->g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(w->g, i);
        struct wfile_src src = {NULL, t, 0};
        int64_t dim[4];
        char name[128];
        int rc = gguf_text_name(t->name, name, sizeof name, e);

        if (rc == STATUS_OK && !t->readable) {
            rc = gguf_rows_f32(t, 0, 0, NULL, e);
        }
        if (rc != STATUS_OK) {
            err_prefix(e, "%s", w->path);
            return rc;
        }
        for (int k = 0; k < t->ndim; k++) {
            dim[k] = t->dim[t->ndim - 1 - k];
        }
        if (permuted && wfile_ends_with(name, ".q_proj.weight")) {
            src.heads = w->arch.n_heads;
        } else if (permuted && wfile_ends_with(name, ".k_proj.weight")) {
            src.heads = w->arch.n_kv_heads;
        }
        rc = wfile_add(w, name, t->ndim, dim, src, e);
        if (rc != STATUS_OK) {
            return rc;
        }
    }
    return STATUS_OK;
}

static int wfile_gguf_texts(struct wfile *w, struct err *e)
{
    struct gguf_text t;
    int rc = gguf_open(w->path, &w->g, e);

    if (rc == STATUS_OK) {
        rc = gguf_text_make(w->g, &t, e);
    }
    if (rc == STATUS_OK) {
        w->config = t.config;
        w->generation_config = t.generation_config;
        w->tokenizer = t.tokenizer;
        w->tokenizer_config = t.tokenizer_config;
        w->chat_template = t.chat_template;
    }
    return rc;
}

/* ---- open, close ---- */

/* The prefix names the file that a parser, which sees only text, cannot know. */
static int wfile_parse_arch(struct wfile *w, struct err *e)
{
    int rc = arch_parse(w->config, &w->arch, e);
    if (rc == STATUS_OK && w->generation_config) {
        rc = arch_merge_generation(w->generation_config, &w->arch, e);
    }
    if (rc != STATUS_OK && e) {
        err_prefix(e, "%s", w->path);
    }
    return rc;
}

/* How much of a model is opened. */
enum wfile_what { WFILE_ALL, WFILE_SHAPE, WFILE_TEXTS };

static int wfile_load(struct wfile *w, enum wfile_what what, struct err *e)
{
    int folder = fsio_is_dir(w->path);
    int rc;

    if (!folder && !fsio_is_file(w->path)) {
        return ERR(e, STATUS_NOTFOUND, "%s does not exist; " WFILE_WANT, w->path);
    }
    if (!folder && wfile_ends_with(w->path, ".safetensors")) {
        return ERR(e, STATUS_INPUT, "%s is one file of a model; give its folder", w->path);
    }
    rc = folder ? wfile_folder_texts(w, what != WFILE_TEXTS, e) : wfile_gguf_texts(w, e);
    if (rc == STATUS_OK && what == WFILE_TEXTS && !w->tokenizer) {
        rc = ERR(e, STATUS_INPUT, "%s has no tokenizer.json", w->path);
    }
    if (rc != STATUS_OK || what == WFILE_TEXTS) {
        return rc;
    }
    rc = wfile_parse_arch(w, e);
    if (rc == STATUS_OK && what == WFILE_SHAPE) {
        return rc;
    }
    if (rc == STATUS_OK) {
        rc = folder ? wfile_folder_tensors(w, e) : wfile_gguf_tensors(w, e);
    }
    return rc == STATUS_OK ? wfile_need_all(w, e) : rc;
}

static int wfile_open_as(const char *path, enum wfile_what what, struct wfile **out, struct err *e)
{
    struct wfile *w = mem_alloc(sizeof *w);
    int rc;

    w->path = mem_strdup(path);
    arena_init(&w->names, 1 << 16);
    map_init(&w->index);
    rc = wfile_load(w, what, e);
    if (rc != STATUS_OK) {
        wfile_close(w);
        return rc;
    }
    *out = w;
    return STATUS_OK;
}

int wfile_open(const char *path, struct wfile **out, struct err *e)
{
    return wfile_open_as(path, WFILE_ALL, out, e);
}

int wfile_open_texts(const char *path, struct wfile **out, struct err *e)
{
    return wfile_open_as(path, WFILE_TEXTS, out, e);
}

int wfile_open_shape(const char *path, struct wfile **out, struct err *e)
{
    return wfile_open_as(path, WFILE_SHAPE, out, e);
}

void wfile_close(struct wfile *w)
{
    if (!w) {
        return;
    }
    for (int i = 0; i < w->n_shards; i++) {
        safetensors_close(w->shards[i]);
    }
    gguf_close(w->g);
    map_fini(&w->index);
    arena_fini(&w->names);
    mem_free(w->shards);
    mem_free(w->tensors);
    mem_free(w->src);
    mem_free(w->config);
    mem_free(w->tokenizer);
    mem_free(w->tokenizer_config);
    mem_free(w->generation_config);
    mem_free(w->chat_template);
    mem_free(w->tool_template);
    mem_free(w->path);
    mem_free(w);
}

/* ---- reading ---- */

const struct arch *wfile_arch(const struct wfile *w)
{
    return &w->arch;
}

int wfile_tensor_count(const struct wfile *w)
{
    return w->n;
}

const struct wfile_tensor *wfile_tensor_at(const struct wfile *w, int i)
{
    ASSERT(i >= 0 && i < w->n);
    return &w->tensors[i];
}

const struct wfile_tensor *wfile_find(const struct wfile *w, const char *name)
{
    int64_t i;
    return map_get(&w->index, name, strlen(name), &i) ? &w->tensors[i] : NULL;
}

/* llama.cpp stores the two halves of a head's rope pairs row by row in turn; Hugging Face has the
 * first half, then the second. Gives the file's row of Hugging Face's row r. */
static int64_t wfile_file_row(int64_t r, int64_t head_rows)
{
    int64_t h = r / head_rows, in = r % head_rows, half = head_rows / 2;
    return h * head_rows + in % half * 2 + in / half;
}

static int wfile_lookup(const struct wfile *w, const char *name, int64_t count,
                        const struct wfile_src **src, struct err *e)
{
    const struct wfile_tensor *t = wfile_find(w, name);

    if (!t) {
        return ERR(e, STATUS_NOTFOUND, "%s: no tensor %.200s", w->path, name);
    }
    if (t->count != count) {
        return ERR(e, STATUS_INPUT, "%s: tensor %.200s has %lld values, %lld were asked for",
                   w->path, name, (long long)t->count, (long long)count);
    }
    *src = &w->src[t - w->tensors];
    return STATUS_OK;
}

/* Reads the rows of a GGUF tensor in Hugging Face's order; exactly one of f32 and bf16 is set. */
static int wfile_read_gguf(const struct wfile_src *src, float *f32, uint16_t *bf16, struct err *e)
{
    const struct gguf_tensor *t = src->gg;
    int64_t cols = t->dim[0], rows = t->count / cols;
    int rc = STATUS_OK;

    if (!src->heads) {
        return f32 ? gguf_rows_f32(t, 0, rows, f32, e) : gguf_rows_bf16(t, 0, rows, bf16, e);
    }
    /* The shapes were checked at open: a head has head_dim rows, an even number. */
    for (int64_t r = 0; r < rows && rc == STATUS_OK; r++) {
        int64_t from = wfile_file_row(r, rows / src->heads);
        rc = f32 ? gguf_rows_f32(t, from, 1, f32 + r * cols, e)
                 : gguf_rows_bf16(t, from, 1, bf16 + r * cols, e);
    }
    return rc;
}

int wfile_read_f32(const struct wfile *w, const char *name, float *dst, int64_t count,
                   struct err *e)
{
    const struct wfile_src *src = NULL;
    int rc = wfile_lookup(w, name, count, &src, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    return src->st ? safetensors_read_f32(src->st, dst, count, e)
                   : wfile_read_gguf(src, dst, NULL, e);
}

int wfile_read_bf16(const struct wfile *w, const char *name, uint16_t *dst, int64_t count,
                    struct err *e)
{
    const struct wfile_src *src = NULL;
    int rc = wfile_lookup(w, name, count, &src, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    return src->st ? safetensors_read_bf16(src->st, dst, count, e)
                   : wfile_read_gguf(src, NULL, dst, e);
}

const char *wfile_config_json(const struct wfile *w)
{
    return w->config;
}

const char *wfile_tokenizer_json(const struct wfile *w)
{
    return w->tokenizer;
}

const char *wfile_tokenizer_config_json(const struct wfile *w)
{
    return w->tokenizer_config;
}

const char *wfile_generation_config_json(const struct wfile *w)
{
    return w->generation_config;
}

const char *wfile_tool_template(const struct wfile *w)
{
    return w->tool_template;
}

const char *wfile_chat_template(const struct wfile *w)
{
    return w->chat_template;
}
