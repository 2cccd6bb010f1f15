# shellcheck shell=bash
# The shape of Qwen3-4B, as config.json has it: the program holds one against the other.
# shellcheck disable=SC2034 # the recipe takes it
MODEL_ARGS=(
    --swiglu
    --num-layers 36
    --hidden-size 2560
    --ffn-hidden-size 9728
    --num-attention-heads 32
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
)
