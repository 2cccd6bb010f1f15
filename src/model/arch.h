/* The shape of a model, read from config.json (or GGUF metadata), as data: one struct for every
 * dense family, with named switches for what differs. No family has a forward pass of its own. */
#ifndef MODEL_ARCH_H
#define MODEL_ARCH_H

#include <stdint.h>

struct err;

#define ARCH_MAX_EOS 8

struct arch {
    char family[32]; /* config.json's model_type: "llama", "qwen2", "qwen3" */
    int n_layers;
    int hidden;
    int n_heads;
    int n_kv_heads;
    int head_dim;
    int intermediate;
    int vocab;         /* rows of the embedding: the real vocabulary, no padding */
    int max_positions; /* longest sequence the model was made for */
    float rms_eps;
    double rope_theta;
    int tie_embeddings; /* 1: lm_head shares the embedding's weight */
    int qkv_bias;       /* 1: q, k, v projections have a bias (Qwen2) */
    int qk_norm;        /* 1: RMS norm on each head of q and k before rope (Qwen3) */
    int bos_id;         /* -1 when there is none */
    int n_eos;
    int eos_id[ARCH_MAX_EOS]; /* tokens that end a turn: generation_config.json, else config.json */
};

/* Fills `a` from config.json's text. Refuses, naming the key, what we do not compute: rope scaling,
 * sliding windows in use, other activations, other families. */
int arch_parse(const char *config_json, struct arch *a, struct err *e);

/* Takes the tokens that end a turn from generation_config.json's text, which wins over config.json;
 * without eos_token_id there, `a` stays as it is. */
int arch_merge_generation(const char *generation_config_json, struct arch *a, struct err *e);

#endif
