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
    const char *family; /* llama, qwen2 (bias on q, k, v) or qwen3 (norms on q and k) */
    int tied;
    int layers, hidden, heads, kv_heads, head_dim, mlp, vocab, positions;
    float sharp; /* scale of the final norm: peaked logits; 0 takes 1 */
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
    struct tinymodel_shape t[64];
};

static inline void tinymodel_add(struct tinymodel_list *l, int layer, const char *name,
                                 int64_t rows, int64_t cols, float mean, float width)
{
    struct tinymodel_shape *t = &l->t[l->n++];
    assert_true(l->n <= 64);
    if (layer < 0) {
        snprintf(t->name, sizeof t->name, "%s", name);
    } else {
        snprintf(t->name, sizeof t->name, "model.layers.%d.%s", layer, name);
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

static inline void tinymodel_shapes(const struct tinymodel_spec *s, struct tinymodel_list *l)
{
    int h = s->hidden, q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    float wh = tinymodel_width(h), sharp = s->sharp > 0.0f ? s->sharp : 1.0f;

    l->n = 0;
    tinymodel_add(l, -1, "model.embed_tokens.weight", s->vocab, h, 0.0f, s->tied ? wh : 1.0f);
    for (int i = 0; i < s->layers; i++) {
        tinymodel_add(l, i, "input_layernorm.weight", h, 0, 1.0f, 0.3f);
        tinymodel_add(l, i, "self_attn.q_proj.weight", q, h, 0.0f, wh);
        tinymodel_add(l, i, "self_attn.k_proj.weight", kv, h, 0.0f, wh);
        tinymodel_add(l, i, "self_attn.v_proj.weight", kv, h, 0.0f, wh);
        if (strcmp(s->family, "qwen2") == 0) {
            tinymodel_add(l, i, "self_attn.q_proj.bias", q, 0, 0.0f, 0.5f);
            tinymodel_add(l, i, "self_attn.k_proj.bias", kv, 0, 0.0f, 0.5f);
            tinymodel_add(l, i, "self_attn.v_proj.bias", kv, 0, 0.0f, 0.5f);
        }
        if (strcmp(s->family, "qwen3") == 0) {
            tinymodel_add(l, i, "self_attn.q_norm.weight", s->head_dim, 0, 1.0f, 0.3f);
            tinymodel_add(l, i, "self_attn.k_norm.weight", s->head_dim, 0, 1.0f, 0.3f);
        }
        tinymodel_add(l, i, "self_attn.o_proj.weight", h, q, 0.0f, tinymodel_width(q));
        tinymodel_add(l, i, "post_attention_layernorm.weight", h, 0, 1.0f, 0.3f);
        tinymodel_add(l, i, "mlp.gate_proj.weight", s->mlp, h, 0.0f, wh);
        tinymodel_add(l, i, "mlp.up_proj.weight", s->mlp, h, 0.0f, wh);
        tinymodel_add(l, i, "mlp.down_proj.weight", h, s->mlp, 0.0f, tinymodel_width(s->mlp));
    }
    tinymodel_add(l, -1, "model.norm.weight", h, 0, sharp, 0.3f * sharp);
    if (!s->tied) {
        tinymodel_add(l, -1, "lm_head.weight", s->vocab, h, 0.0f, wh);
    }
}

static inline int64_t tinymodel_count(const struct tinymodel_shape *t)
{
    return t->rows * (t->cols ? t->cols : 1);
}

static inline void tinymodel_config(const struct tinymodel_spec *s, const char *dir)
{
    char text[1024];
    int n = snprintf(text, sizeof text,
                     "{\"model_type\": \"%s\", \"hidden_size\": %d, \"num_hidden_layers\": %d,"
                     " \"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"head_dim\": %d,"
                     " \"intermediate_size\": %d, \"vocab_size\": %d,"
                     " \"max_position_embeddings\": %d, \"rms_norm_eps\": 1e-05,"
                     " \"rope_theta\": 10000.0, \"hidden_act\": \"silu\","
                     " \"tie_word_embeddings\": %s, \"bos_token_id\": 1, \"eos_token_id\": [2, 5]}",
                     s->family, s->hidden, s->layers, s->heads, s->kv_heads, s->head_dim, s->mlp,
                     s->vocab, s->positions, s->tied ? "true" : "false");
    assert_true(n > 0 && n < (int)sizeof text);
    fixture_text(dir, "config.json", text);
}

/* Writes the model and returns its folder, valid as fixture_path's results are. */
static inline const char *tinymodel_write(const struct tinymodel_spec *s)
{
    static int number;
    struct tinymodel_list *l = mem_alloc(sizeof *l);
    struct safetensors_writer *w;
    struct err e = {0};
    uint64_t seed = (uint64_t)number + 1;
    char name[32], *path;
    const char *dir;

    snprintf(name, sizeof name, "tiny-%d", number++);
    dir = fixture_path(name);
    assert_ok(fsio_mkdirs(dir, &e), &e);
    tinymodel_config(s, dir);
    tinymodel_shapes(s, l);
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
