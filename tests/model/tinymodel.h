/* Small random models for the tests of model/ and engine/: written as a Hugging Face folder with
 * bf16 weights, then opened on any device as the program opens a real one.
 *
 *     const char *dir = tinymodel_write(&spec);           inside fixture_dir
 *     struct tinymodel m;
 *     tinymodel_open(&m, dir, "cpu", "auto", 1, 2, 0, 1);
 *     ... m.w ...
 *     tinymodel_close(&m); */
#ifndef TESTS_MODEL_TINYMODEL_H
#define TESTS_MODEL_TINYMODEL_H

#include "model/fixture.h"

#include <math.h>

#include "model/safetensors.h"
#include "model/weights.h"
#include "model/wfile.h"
#include "num/device.h"

struct tinymodel_spec {
    const char *family; /* a model_type, or a name of tinymodel_kinds */
    int tied;
    int layers, hidden, heads, kv_heads, head_dim, mlp, vocab, positions;
    float sharp; /* scale of the final norm: peaked logits; 0 takes 1 */
};

/* What a kind of model adds to its config.json: switches on, windows that texts outgrow. */
static const struct tinymodel_kind {
    const char *name, *type, *more;
} tinymodel_kinds[] = {
    {"llama-bias", "llama",
     ", \"attention_bias\": true, \"mlp_bias\": true, \"rope_scaling\": {\"rope_type\": \"llama3\","
     " \"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0,"
     " \"original_max_position_embeddings\": 64}"},
    {"mistral", "mistral", ", \"sliding_window\": 37"},
    {"gemma2", "gemma2",
     ", \"sliding_window\": 37, \"attn_logit_softcapping\": 2.5, \"final_logit_softcapping\": 3.0,"
     " \"query_pre_attn_scalar\": 48"},
    {"gemma3", "gemma3_text",
     ", \"sliding_window\": 70, \"sliding_window_pattern\": 2, \"query_pre_attn_scalar\": 24"},
    {"glm4", "glm4", ""},
    {"llama-vision", "llama", ""}, /* beside it a tensor that is not a text model's */
};

struct tinymodel {
    struct wfile *file;
    struct device *dev;
    struct weights *w;
};

/* ---- random values ---- */

static inline uint64_t tinymodel_rand(uint64_t *s)
{
    uint64_t z = *s += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

/* In [0, 1). */
static inline double tinymodel_unit(uint64_t *s)
{
    return (double)(tinymodel_rand(s) >> 11) * 0x1p-53;
}

/* In (-1, 1). */
static inline float tinymodel_value(uint64_t *s)
{
    return (float)(2.0 * tinymodel_unit(s) - 1.0);
}

static inline int tinymodel_below(uint64_t *s, int n)
{
    return (int)(tinymodel_rand(s) % (uint64_t)n);
}

/* ---- the folder ---- */

struct tinymodel_shape {
    char name[96];
    int64_t rows, cols; /* cols 0: a vector */
    float mean, width;
};

struct tinymodel_list {
    int n;
    struct tinymodel_shape t[128];
};

/* Of a layer; -1: of the whole model; -2: under its full name. */
static inline void tinymodel_add(struct tinymodel_list *l, const struct arch *a, int layer,
                                 const char *name, int64_t rows, int64_t cols, float mean,
                                 float width)
{
    struct tinymodel_shape *t = &l->t[l->n++];
    assert_true(l->n <= 128);
    if (layer < 0) {
        snprintf(t->name, sizeof t->name, "%s%s", layer == -1 ? a->prefix : "", name);
    } else {
        snprintf(t->name, sizeof t->name, "%slayers.%d.%s", a->prefix, layer, name);
    }
    t->rows = rows;
    t->cols = cols;
    t->mean = mean;
    t->width = width;
}

/* A matrix over k inputs whose outputs keep the size of its inputs. */
static inline float tinymodel_width(int k)
{
    return sqrtf(3.0f / (float)k);
}

/* What the architecture of the folder's config.json asks for. */
static inline void tinymodel_shapes(const struct tinymodel_spec *s, const struct arch *a,
                                    struct tinymodel_list *l)
{
    struct arch_tensor t[ARCH_ROLES];
    float sharp = s->sharp > 0.0f ? s->sharp : 1.0f, wh = tinymodel_width(a->hidden);
    float one = a->norm_plus_one ? 0.0f : 1.0f;
    float embed = s->tied ? wh : 1.0f;

    l->n = 0;
    arch_layer_tensors(a, t);
    tinymodel_add(l, a, -1, "embed_tokens.weight", a->vocab, a->hidden, 0.0f,
                  a->embed_scale && !s->tied ? embed / sqrtf((float)a->hidden) : embed);
    for (int i = 0; i < a->n_layers; i++) {
        for (int r = 0; r < ARCH_ROLES; r++) {
            int bias = t[r].tail && strstr(t[r].tail, "bias"), norm = !t[r].cols && !bias;
            if (t[r].tail) {
                tinymodel_add(l, a, i, t[r].tail, t[r].rows, t[r].cols, norm ? one : 0.0f,
                              norm   ? 0.3f
                              : bias ? 0.5f
                                     : tinymodel_width(t[r].cols));
            }
        }
    }
    tinymodel_add(l, a, -1, "norm.weight", a->hidden, 0, sharp - (1.0f - one), 0.3f * sharp);
    if (strcmp(s->family, "llama-vision") == 0) {
        tinymodel_add(l, a, -2, "vision_tower.weight", 5, 3, 0.0f, 1.0f);
    }
    if (!s->tied) {
        tinymodel_add(l, a, -2, a->head, a->vocab, a->hidden, 0.0f, wh);
    }
}

static inline int64_t tinymodel_count(const struct tinymodel_shape *t)
{
    return t->rows * (t->cols ? t->cols : 1);
}

static inline void tinymodel_config(const struct tinymodel_spec *s, const char *dir, struct arch *a)
{
    const struct tinymodel_kind *k = NULL;
    struct err e = {0};
    char text[2048];
    int n;

    for (size_t i = 0; i < sizeof tinymodel_kinds / sizeof *tinymodel_kinds; i++) {
        if (strcmp(tinymodel_kinds[i].name, s->family) == 0) {
            k = &tinymodel_kinds[i];
        }
    }
    n = snprintf(text, sizeof text,
                 "{\"model_type\": \"%s\", \"hidden_size\": %d, \"num_hidden_layers\": %d,"
                 " \"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"head_dim\": %d,"
                 " \"intermediate_size\": %d, \"vocab_size\": %d,"
                 " \"max_position_embeddings\": %d, \"rms_norm_eps\": 1e-05,"
                 " \"tie_word_embeddings\": %s, \"bos_token_id\": 1, \"eos_token_id\": [2, 5]%s}",
                 k ? k->type : s->family, s->hidden, s->layers, s->heads, s->kv_heads, s->head_dim,
                 s->mlp, s->vocab, s->positions, s->tied ? "true" : "false", k ? k->more : "");
    assert_true(n > 0 && n < (int)sizeof text);
    fixture_text(dir, "config.json", text);
    assert_ok(arch_parse(text, a, &e), &e);
}

/* Writes the model and returns its folder, valid as fixture_path's results are. */
static inline const char *tinymodel_write(const struct tinymodel_spec *s)
{
    static int number;
    struct tinymodel_list *l = mem_alloc(sizeof *l);
    struct safetensors_writer *w;
    struct arch *a = mem_alloc(sizeof *a);
    struct err e = {0};
    uint64_t seed = (uint64_t)number + 1;
    char name[32], *path;
    const char *dir;

    snprintf(name, sizeof name, "tiny-%d", number++);
    dir = fixture_path(name);
    assert_ok(fsio_mkdirs(dir, &e), &e);
    tinymodel_config(s, dir, a);
    tinymodel_shapes(s, a, l);
    path = fsio_join(dir, "model.safetensors");
    assert_ok(safetensors_writer_open(path, &w, &e), &e);
    for (int i = 0; i < l->n; i++) {
        assert_ok(safetensors_writer_add(w, l->t[i].name, SAFETENSORS_BF16, l->t[i].cols ? 2 : 1,
                                         (int64_t[]){l->t[i].rows, l->t[i].cols}, &e),
                  &e);
    }
    assert_ok(safetensors_writer_begin(w, &e), &e);
    for (int i = 0; i < l->n; i++) {
        for (int64_t k = 0; k < tinymodel_count(&l->t[i]); k++) {
            uint16_t h = dtype_to_bf16(l->t[i].mean + l->t[i].width * tinymodel_value(&seed));
            assert_ok(safetensors_writer_write(w, &h, 2, &e), &e);
        }
    }
    assert_ok(safetensors_writer_commit(w, &e), &e);
    mem_free(path);
    mem_free(l);
    mem_free(a);
    return dir;
}

/* leaves 0 takes the model's default. */
static inline void tinymodel_open(struct tinymodel *m, const char *dir, const char *device,
                                  const char *isa, int threads, int leaves, int f32, int trainable)
{
    struct plan plan;
    struct err e = {0};

    assert_ok(wfile_open(dir, &m->file, &e), &e);
    plan_init(&plan, leaves ? leaves : weights_default_leaves(wfile_arch(m->file)), f32);
    assert_ok(device_open(device, isa, threads, &plan, &m->dev, &e), &e);
    assert_ok(weights_open(m->file, m->dev, trainable, 0, &m->w, &e), &e);
}

static inline void tinymodel_close(struct tinymodel *m)
{
    weights_release(m->w);
    device_close(m->dev);
    wfile_close(m->file);
}

#endif
