/* What the tests of model/ share: a scratch folder, raw files, a small random generator, and
 * builders of GGUF bytes and of a tiny llama in both formats. */
#ifndef TESTS_MODEL_FIXTURE_H
#define TESTS_MODEL_FIXTURE_H

#include "support.h"

#include <unistd.h>

#include "base/buf.h"
#include "base/fsio.h"
#include "base/mem.h"
#include "base/status.h"

/* ---- files ---- */

static char fixture_dir[64];

static inline int fixture_setup(void **state)
{
    (void)state;
    strcpy(fixture_dir, "/tmp/miles-test-model-XXXXXX");
    return mkdtemp(fixture_dir) ? 0 : -1;
}

static inline int fixture_teardown(void **state)
{
    (void)state;
    return fsio_remove_tree(fixture_dir, NULL);
}

/* The path of `name` in the scratch folder, in a static buffer of 8 rotating entries. */
static inline const char *fixture_path(const char *name)
{
    static char path[8][256];
    static int next;
    next = (next + 1) % 8;
    snprintf(path[next], sizeof path[next], "%s/%s", fixture_dir, name);
    return path[next];
}

static inline void fixture_write(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static inline void fixture_text(const char *dir, const char *name, const char *text)
{
    char *path = fsio_join(dir, name);
    fixture_write(path, text, strlen(text));
    mem_free(path);
}

static inline uint32_t fixture_rand(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return (uint32_t)(*s >> 16);
}

/* ---- GGUF bytes ---- */

static inline void fixture_le(struct buf *b, uint64_t v, int n)
{
    for (int i = 0; i < n; i++) {
        buf_char(b, (char)(v >> (8 * i)));
    }
}

static inline void fixture_str(struct buf *b, const char *s)
{
    fixture_le(b, strlen(s), 8);
    buf_str(b, s);
}

static inline void fixture_header(struct buf *b, uint64_t n_tensors, uint64_t n_kv)
{
    buf_str(b, "GGUF");
    fixture_le(b, 3, 4);
    fixture_le(b, n_tensors, 8);
    fixture_le(b, n_kv, 8);
}

static inline void fixture_kv_str(struct buf *b, const char *key, const char *v)
{
    fixture_str(b, key);
    fixture_le(b, 8, 4);
    fixture_str(b, v);
}

static inline void fixture_kv_u32(struct buf *b, const char *key, uint32_t v)
{
    fixture_str(b, key);
    fixture_le(b, 4, 4);
    fixture_le(b, v, 4);
}

static inline void fixture_kv_bool(struct buf *b, const char *key, int v)
{
    fixture_str(b, key);
    fixture_le(b, 7, 4);
    fixture_le(b, (uint64_t)v, 1);
}

static inline void fixture_kv_f32(struct buf *b, const char *key, float v)
{
    uint32_t u;
    memcpy(&u, &v, 4);
    fixture_str(b, key);
    fixture_le(b, 6, 4);
    fixture_le(b, u, 4);
}

/* The head of an array: its elements follow. */
static inline void fixture_kv_array(struct buf *b, const char *key, int elem, uint64_t count)
{
    fixture_str(b, key);
    fixture_le(b, 9, 4);
    fixture_le(b, (uint64_t)elem, 4);
    fixture_le(b, count, 8);
}

static inline void fixture_tensor(struct buf *b, const char *name, int64_t d0, int64_t d1,
                                  uint32_t type, uint64_t offset)
{
    fixture_str(b, name);
    fixture_le(b, d1 ? 2 : 1, 4);
    fixture_le(b, (uint64_t)d0, 8);
    if (d1) {
        fixture_le(b, (uint64_t)d1, 8);
    }
    fixture_le(b, type, 4);
    fixture_le(b, offset, 8);
}

static inline void fixture_align(struct buf *b)
{
    while (b->len % 32) {
        buf_char(b, 0);
    }
}

/* ---- a tiny llama ---- */

/* 1 layer, hidden 64, 4 heads of 16 over 2 key-value heads, MLP 96, 12 tokens. */
enum { FIXTURE_HIDDEN = 64, FIXTURE_MLP = 96, FIXTURE_VOCAB = 12, FIXTURE_TENSORS = 11 };

struct fixture_shape {
    const char *gguf, *hf;
    int64_t rows, cols; /* cols 0: a vector */
};

static const struct fixture_shape fixture_shapes[FIXTURE_TENSORS] = {
    {"token_embd.weight", "model.embed_tokens.weight", 12, 64},
    {"blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight", 64, 0},
    {"blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight", 64, 64},
    {"blk.0.attn_k.weight", "model.layers.0.self_attn.k_proj.weight", 32, 64},
    {"blk.0.attn_v.weight", "model.layers.0.self_attn.v_proj.weight", 32, 64},
    {"blk.0.attn_output.weight", "model.layers.0.self_attn.o_proj.weight", 64, 64},
    {"blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight", 64, 0},
    {"blk.0.ffn_gate.weight", "model.layers.0.mlp.gate_proj.weight", 96, 64},
    {"blk.0.ffn_up.weight", "model.layers.0.mlp.up_proj.weight", 96, 64},
    {"blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight", 64, 96},
    {"output_norm.weight", "model.norm.weight", 64, 0},
};

static inline int64_t fixture_count(int i)
{
    return fixture_shapes[i].rows * (fixture_shapes[i].cols ? fixture_shapes[i].cols : 1);
}

static const char fixture_template[] = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}";

static const char *const fixture_tokens[FIXTURE_VOCAB] = {
    "<|end|>",  "<|start|>", "a",  "b",       "c",
    "\304\240", "\304\240a", "ab", "<think>", "<\357\275\234x\357\275\234>",
    "abc",      "\"",
};
static const int fixture_types[FIXTURE_VOCAB] = {3, 3, 1, 1, 1, 1, 1, 1, 4, 3, 1, 1};

/* The metadata of the tiny llama, 21 keys; `pre` is tokenizer.ggml.pre. */
static inline void fixture_llama_meta(struct buf *b, const char *pre)
{
    fixture_kv_str(b, "general.architecture", "llama");
    fixture_kv_str(b, "general.name", "tiny");
    fixture_kv_u32(b, "llama.block_count", 1);
    fixture_kv_u32(b, "llama.context_length", 256);
    fixture_kv_u32(b, "llama.embedding_length", FIXTURE_HIDDEN);
    fixture_kv_u32(b, "llama.feed_forward_length", FIXTURE_MLP);
    fixture_kv_u32(b, "llama.attention.head_count", 4);
    fixture_kv_u32(b, "llama.attention.head_count_kv", 2);
    fixture_kv_u32(b, "llama.rope.dimension_count", 16);
    fixture_kv_f32(b, "llama.rope.freq_base", 100000.0f);
    fixture_kv_f32(b, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    fixture_kv_str(b, "tokenizer.ggml.model", "gpt2");
    fixture_kv_str(b, "tokenizer.ggml.pre", pre);
    fixture_kv_array(b, "tokenizer.ggml.tokens", 8, FIXTURE_VOCAB);
    for (int i = 0; i < FIXTURE_VOCAB; i++) {
        fixture_str(b, fixture_tokens[i]);
    }
    fixture_kv_array(b, "tokenizer.ggml.token_type", 5, FIXTURE_VOCAB);
    for (int i = 0; i < FIXTURE_VOCAB; i++) {
        fixture_le(b, (uint64_t)fixture_types[i], 4);
    }
    fixture_kv_array(b, "tokenizer.ggml.merges", 8, 3);
    fixture_str(b, "a b");
    fixture_str(b, "\xc4\xa0 a");
    fixture_str(b, "ab c");
    fixture_kv_u32(b, "tokenizer.ggml.bos_token_id", 1);
    fixture_kv_u32(b, "tokenizer.ggml.eos_token_id", 0);
    fixture_kv_u32(b, "tokenizer.ggml.eot_token_id", 9);
    fixture_kv_u32(b, "tokenizer.ggml.padding_token_id", 0);
    fixture_kv_str(b, "tokenizer.chat_template", fixture_template);
}

/* The tiny llama as a GGUF file: norms in F32, the others in Q8_0 with d = 2^-7 and the bytes
 * q(i) = (i * 37 + tensor * 11) % 255 - 127 over the file's order. */
static inline int fixture_q(int tensor, int64_t i)
{
    return (int)((i * 37 + tensor * 11) % 255) - 127;
}

static inline void fixture_llama_gguf(struct buf *b, const char *pre)
{
    uint64_t offset = 0;

    fixture_header(b, FIXTURE_TENSORS, 21);
    fixture_llama_meta(b, pre);
    for (int i = 0; i < FIXTURE_TENSORS; i++) {
        const struct fixture_shape *s = &fixture_shapes[i];
        fixture_tensor(b, s->gguf, s->cols ? s->cols : s->rows, s->cols ? s->rows : 0,
                       s->cols ? 8 : 0, offset);
        offset += (uint64_t)(s->cols ? fixture_count(i) / 32 * 34 : s->rows * 4);
        offset = (offset + 31) / 32 * 32;
    }
    fixture_align(b);
    for (int i = 0; i < FIXTURE_TENSORS; i++) {
        for (int64_t k = 0; k < fixture_count(i); k++) {
            float f = (float)fixture_q(i, k) / 128.0f;
            uint32_t u;
            memcpy(&u, &f, 4);
            if (!fixture_shapes[i].cols) {
                fixture_le(b, u, 4);
                continue;
            }
            if (k % 32 == 0) {
                fixture_le(b, 0x2000, 2); /* the half 2^-7 */
            }
            buf_char(b, (char)fixture_q(i, k));
        }
        fixture_align(b);
    }
    assert_int_equal(buf_status(b), 0);
}

static const char fixture_config[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 64,"
    " \"num_hidden_layers\": 1, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
    " \"intermediate_size\": 96, \"vocab_size\": 12, \"max_position_embeddings\": 256,"
    " \"rms_norm_eps\": 1e-05, \"rope_theta\": 100000.0, \"rope_scaling\": null,"
    " \"hidden_act\": \"silu\", \"tie_word_embeddings\": true, \"torch_dtype\": \"float32\","
    " \"bos_token_id\": 1, \"eos_token_id\": 0}";

#endif
