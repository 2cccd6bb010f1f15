# shellcheck shell=bash
# The shape of Qwen3-32B, as config.json has it: the program holds one against the other.
# shellcheck disable=SC2034 # the recipe takes it
MODEL_ARGS=(
    --swiglu
    --num-layers 64
    --hidden-size 5120
    --ffn-hidden-size 25600
    --num-attention-heads 64
    --group-query-attention
    --num-query-groups 8
    --kv-channels 128
    --use-rotary-position-embeddings
    --disable-bias-linear
    --qk-layernorm
    --normalization RMSNorm
    --norm-epsilon 1e-6
    --rotary-base 1000000
    --vocab-size 151936
    --untie-embeddings-and-output-weights
)
