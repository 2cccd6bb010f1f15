# shellcheck shell=bash
# The shape of GLM-4-9B-0414 and GLM-Z1-9B-0414, as config.json has it: the program holds one against the other.
# shellcheck disable=SC2034 # the recipe takes it
MODEL_ARGS=(
    --swiglu
    --num-layers 40
    --hidden-size 4096
    --ffn-hidden-size 13696
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 2
    --kv-channels 128
    --use-rotary-position-embeddings
    --rotary-percent 0.5
    --rotary-interleaved
    --rotary-base 10000
    --no-rope-fusion
    --disable-bias-linear
    --add-qkv-bias
    --post-self-attn-layernorm
    --post-mlp-layernorm
    --normalization RMSNorm
    --norm-epsilon 1e-5
    --vocab-size 151552
    --untie-embeddings-and-output-weights
)
