#!/usr/bin/env bash
# GRPO on Qwen3-0.6B with the defaults of the FSDP backend: recipes/qwen3-0.6b-fsdp.sh [FLAGS...]
#
# The smallest of Miles' recipes: one share of the machine, school mathematics.
# Written as Miles' launch scripts are, with their eight groups of arguments: only the launch line and
# the paths differ. Flags given here come last and win; --dry-run checks everything and plans memory.
# Environment:
#     MODEL        folder of Qwen3-0.6B
#     DATA         prompts with messages under "prompt" and answers under "label"
#     EVAL_DATA    the same, for evaluation
#     SAVE         where run and checkpoints go          default: runs/qwen3-0.6b-fsdp
#     MILES_BUILD  build folder with the binary          default: build
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
MILES=${MILES_BUILD:-$ROOT/build}/miles
SAVE=${SAVE:-runs/qwen3-0.6b-fsdp}
: "${MODEL:?give the folder of Qwen3-0.6B}"
: "${DATA:?give the file of prompts}"
: "${EVAL_DATA:?give the file for evaluation}"

# shellcheck source=models/qwen3-0.6b.sh
. "$ROOT/recipes/models/qwen3-0.6b.sh"

CKPT_ARGS=(
    --hf-checkpoint "$MODEL"
    --ref-load "$MODEL"
    --load "$SAVE/checkpoint"
    --save "$SAVE/checkpoint"
    --save-interval 20
)

ROLLOUT_ARGS=(
    --prompt-data "$DATA"
    --input-key prompt
    --label-key label
    --apply-chat-template
    --rollout-shuffle
    --rm-type math
    --num-rollout 100
    --rollout-batch-size 32
    --n-samples-per-prompt 8
    --rollout-max-response-len 1024
    --rollout-temperature 1
    --global-batch-size 256
    --balance-data
)

EVAL_ARGS=(
    --eval-interval 20
    --eval-prompt-data gsm8k "$EVAL_DATA"
    --n-samples-per-eval-prompt 1
    --eval-max-response-len 1024
    --eval-top-k 1
)

PERF_ARGS=(
    --gradient-checkpointing
    --use-dynamic-batch-size
    --max-tokens-per-gpu 9216
    --attn-implementation flash_attention_2
    --update-weight-buffer-size 536870912
)

GRPO_ARGS=(
    --advantage-estimator grpo
    --use-kl-loss
    --kl-loss-coef 0.00
    --kl-loss-type low_var_kl
    --entropy-coef 0.00
    --eps-clip 0.2
    --eps-clip-high 0.28
)

OPTIMIZER_ARGS=(
    --lr 1e-6
    --lr-decay-style constant
    --weight-decay 0.1
    --adam-beta1 0.9
    --adam-beta2 0.98
)

SGLANG_ARGS=(
    --rollout-num-gpus-per-engine 1
    --sglang-mem-fraction-static 0.6
    --sglang-decode-log-interval 1000
)

exec "$MILES" train \
    --train-backend fsdp \
    --actor-num-nodes 1 \
    --actor-num-gpus-per-node 1 \
    --num-gpus-per-node 1 \
    --colocate \
    "${MODEL_ARGS[@]}" \
    "${CKPT_ARGS[@]}" \
    "${ROLLOUT_ARGS[@]}" \
    "${EVAL_ARGS[@]}" \
    "${PERF_ARGS[@]}" \
    "${GRPO_ARGS[@]}" \
    "${OPTIMIZER_ARGS[@]}" \
    "${SGLANG_ARGS[@]}" \
    "$@"
