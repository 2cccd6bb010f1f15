# shellcheck shell=bash
# The shape of Llama-3.2-3B, as config.json has it: the program holds one against the other.
# shellcheck disable=SC2034 # the recipe takes it
MODEL_ARGS=(
    --swiglu
    --num-layers 28
    --hidden-size 3072
    --ffn-hidden-size 8192
    --num-attention-heads 24
    --group-query-attention
    --num-query-groups 8
    --kv-channels 128
    --use-rotary-position-embeddings
    --disable-bias-linear
    --normalization RMSNorm
    --norm-epsilon 1e-5
    --rotary-base 500000
    --vocab-size 128256
)
