# shellcheck shell=bash
# The shape of Qwen2.5-3B, as config.json has it: the program holds one against the other.
# shellcheck disable=SC2034 # the recipe takes it
MODEL_ARGS=(
    --swiglu
    --num-layers 36
    --hidden-size 2048
    --ffn-hidden-size 11008
    --num-attention-heads 16
    --group-query-attention
    --num-query-groups 2
    --use-rotary-position-embeddings
    --disable-bias-linear
    --add-qkv-bias
    --normalization RMSNorm
    --norm-epsilon 1e-6
    --rotary-base 1000000
    --vocab-size 151936
)
