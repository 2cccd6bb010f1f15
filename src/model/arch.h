/* The shape of a model, read from config.json (or GGUF metadata), as data: one struct for every
 * family, with named switches for what differs. A family is one row of a table in arch.c; no family
 * has a forward pass of its own. */
#ifndef MODEL_ARCH_H
#define MODEL_ARCH_H

#include <stdint.h>

#include "num/device.h"

struct err;

#define ARCH_MAX_EOS    8
#define ARCH_MAX_LAYERS 512

/* What a layer does to let tokens see each other. Kinds below ARCH_ATTN_KINDS are computed; the
 * others have a name so that a model of theirs is refused by it. */
enum arch_attn {
    ARCH_ATTN_FULL,
    ARCH_ATTN_SLIDING, /* only the last `window` positions */
    ARCH_ATTN_KINDS,
    ARCH_ATTN_LATENT = ARCH_ATTN_KINDS, /* keys and values from a low-rank latent */
    ARCH_ATTN_LINEAR,                   /* gated linear attention: a recurrent state */
};

enum arch_mlp {
    ARCH_MLP_DENSE,
    ARCH_MLP_EXPERTS, /* routed experts beside shared ones; not computed */
};

enum arch_rope_kind {
    ARCH_ROPE_DEFAULT,
    ARCH_ROPE_LINEAR,
    ARCH_ROPE_DYNAMIC,
    ARCH_ROPE_LLAMA3,
    ARCH_ROPE_YARN,
};

/* How positions become angles; model/ropes.h computes it. What a kind does not use is 0. */
struct arch_rope {
    enum arch_rope_kind kind;
    int original; /* positions the model was first trained on: llama3, yarn, dynamic */
    int truncate; /* yarn: its range of dimensions is cut to whole ones */
    double theta, factor;
    double low_freq, high_freq;  /* llama3 */
    double beta_fast, beta_slow; /* yarn */
    double attention_factor;     /* yarn: cos and sin are multiplied by it */
};

/* A layer's tensors by what they do. */
enum arch_role {
    ARCH_ATTN_NORM, /* before attention */
    ARCH_Q,
    ARCH_K,
    ARCH_V,
    ARCH_O,
    ARCH_Q_BIAS,
    ARCH_K_BIAS,
    ARCH_V_BIAS,
    ARCH_O_BIAS,
    ARCH_Q_NORM,
    ARCH_K_NORM,
    ARCH_ATTN_POST, /* norm of attention's output, before the residual is added */
    ARCH_MLP_NORM,
    ARCH_GATE,
    ARCH_UP,
    ARCH_GATE_UP, /* both in one tensor */
    ARCH_DOWN,
    ARCH_GATE_BIAS,
    ARCH_UP_BIAS,
    ARCH_DOWN_BIAS,
    ARCH_MLP_POST,
    ARCH_ROLES
};

struct arch_tensor {
    const char *tail; /* Hugging Face's name behind "<prefix>layers.<i>." */
    int rows, cols;   /* cols 0: a vector of rows values */
};

struct arch {
    char family[32]; /* config.json's model_type: "llama", "gemma2" */
    char prefix[32]; /* of its tensors' names: "model." */
    char head[48];   /* the output layer's name */
    int n_layers;
    int hidden;
    int n_heads;
    int n_kv_heads;
    int head_dim;
    int intermediate;
    int vocab;         /* rows of the embedding: the real vocabulary, no padding */
    int max_positions; /* longest sequence the model was made for */
    float rms_eps;
    int tie_embeddings; /* 1: lm_head shares the embedding's weight */
    int value_head;     /* 1: a critic's value and its bias instead of logits; set by
                           weights_open_critic, never by a file */

    enum act act;
    int norm_plus_one;   /* norms multiply by 1 + w */
    int qk_norm;         /* RMS norm on each head of q and k before rope */
    int post_norms;      /* norms of attention's and the MLP's output, too */
    int qkv_bias;        /* the projections have a bias: q, k, v; */
    int o_bias;          /* attention's output; */
    int mlp_bias;        /* gate, up and down */
    int fused_gate_up;   /* gate and up are one tensor of the file */
    int embed_scale;     /* embeddings are multiplied by sqrt(hidden) */
    float score_dim;     /* scores are divided by its root: head_dim, or query_pre_attn_scalar */
    float attn_softcap;  /* of scores; 0: none */
    float final_softcap; /* of logits; 0: none */

    int rot;         /* leading dimensions of a head that rope turns */
    int interleaved; /* rope pairs are neighbours */
    int window;      /* of sliding layers */
    struct arch_rope rope[ARCH_ATTN_KINDS];
    uint8_t attn[ARCH_MAX_LAYERS]; /* enum arch_attn of each layer */

    /* For layer kinds to come; all 0 in a model that is accepted. */
    enum arch_mlp mlp;
    int n_experts, experts_per_token, n_shared_experts;
    int kv_latent, q_latent; /* ranks of latent attention */

    int bos_id; /* -1 when there is none */
    int n_eos;
    int eos_id[ARCH_MAX_EOS]; /* tokens that end a turn: generation_config.json, else config.json */
};

/* Rows of a critic's output layer: the first gives the value, the others are zeros, because
 * products take so many at a time. */
#define ARCH_VALUE_ROWS 32

/* Rows of the output layer. */
static inline int arch_outputs(const struct arch *a)
{
    return a->value_head ? ARCH_VALUE_ROWS : a->vocab;
}

/* Fills `a` from config.json's text. Refuses, naming the key, what we do not compute. */
int arch_parse(const char *config_json, struct arch *a, struct err *e);

/* Adds a row to the table of families: JSON {"model_type": its name in config.json, "like": a
 * family of ours, and what differs}. What may differ: section, prefix, head, attn_post, mlp_norm,
 * mlp_post (names); bias (never, qkv, attention_bias_qkv, attention_bias_qkvo), sliding (never,
 * all, last, most), sliding_every; head_dim, heads, kv_heads, vocab, positions, window, theta,
 * partial, attn_softcap, final_softcap, rms_eps (defaults of config.json's keys); and as true or
 * false qk_norm, norm_plus_one, embed_scale, query_pre_attn_scalar, attn_logit_softcapping,
 * final_logit_softcapping, interleaved_rope, partial_rotary_factor, gate_up_proj, mlp_bias, gelu,
 * tie_word_embeddings. For the life of the process; before the first model is opened. */
int arch_add(const char *row_json, struct err *e);

/* Takes the tokens that end a turn from generation_config.json's text, which wins over config.json;
 * without eos_token_id there, `a` stays as it is. */
int arch_merge_generation(const char *generation_config_json, struct arch *a, struct err *e);

/* The tensors that a layer of this model has; a role it has not is left with tail NULL. */
void arch_layer_tensors(const struct arch *a, struct arch_tensor t[ARCH_ROLES]);

/* Names that the family's files use: the i-th spelling of prefix and output layer, into `a`.
 * Returns 0 when there is no i-th. The 0th is what arch_parse sets. */
int arch_spelling(struct arch *a, int i);

#endif
