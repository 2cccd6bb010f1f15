/* MODEL_ARGS of Miles' launch scripts: the model's shape, which Megatron must be told. Here
 * config.json tells it, so what is given is held against it: a shape of another model means that
 * the wrong folder was given.
 *
 *     struct modelargs m;
 *     conf_add(c, modelargs_table, &m);
 *     ... conf_parse ...
 *     rc = modelargs_check(&m, wfile_arch(file), &e); */
#ifndef RL_MODELARGS_H
#define RL_MODELARGS_H

#include "base/conf.h"

struct arch;
struct err;

struct modelargs {
    int64_t layers, hidden, ffn, heads, groups, head_dim, vocab;
    int64_t q_latent, kv_latent, qk_dim, v_dim, qk_rope_dim, experts;
    int grouped, swiglu, no_bias, qkv_bias, qk_norm, untied, rope, interleaved, post_attn, post_mlp;
    int latent;
    char *norm, *positions;
    double norm_eps, theta, rotary;
    int mismatch; /* 0: refused, 1: told in the log */
};
extern const struct conf_opt modelargs_table[];

/* STATUS_INPUT with the first flag that does not agree; with --model-args-mismatch note all of them
 * are logged instead. */
int modelargs_check(const struct modelargs *m, const struct arch *a, struct err *e);

#endif
