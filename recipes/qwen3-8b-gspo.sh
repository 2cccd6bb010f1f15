#!/usr/bin/env bash
# GSPO on Qwen3-8B, two optimizer steps a rollout: recipes/qwen3-8b-gspo.sh [FLAGS...]
#
# Ratios of whole sequences, with the small clips that they need.
# Written as Miles' launch scripts are, with their eight groups of arguments: only the launch line and
# the paths differ. Flags given here come last and win; --dry-run checks everything and plans memory.
# Environment:
#     MODEL        folder of Qwen3-8B
#     DATA         prompts with messages under "prompt" and answers under "label"
#     EVAL_DATA    the same, for evaluation
#     SAVE         where run and checkpoints go          default: runs/qwen3-8b-gspo
#     MILES_BUILD  build folder with the binary          default: build
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
MILES=${MILES_BUILD:-$ROOT/build}/miles
SAVE=${SAVE:-runs/qwen3-8b-gspo}
: "${MODEL:?give the folder of Qwen3-8B}"
: "${DATA:?give the file of prompts}"
: "${EVAL_DATA:?give the file for evaluation}"

# shellcheck source=models/qwen3-8b.sh
. "$ROOT/recipes/models/qwen3-8b.sh"

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
    --rm-type deepscaler
    --num-rollout 3000
    --rollout-batch-size 32
    --n-samples-per-prompt 8
    --rollout-max-response-len 8192
    --rollout-temperature 0.8
    --global-batch-size 128
    --balance-data
)

EVAL_ARGS=(
    --eval-interval 20
    --eval-prompt-data aime "$EVAL_DATA"
    --n-samples-per-eval-prompt 16
    --eval-max-response-len 16384
    --eval-top-p 0.7
)

PERF_ARGS=(
    --tensor-model-parallel-size 4
    --sequence-parallel
    --pipeline-model-parallel-size 1
    --context-parallel-size 1
    --recompute-granularity full
    --recompute-method uniform
    --recompute-num-layers 1
    --use-dynamic-batch-size
    --max-tokens-per-gpu 10240
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --accumulate-allreduce-grads-in-fp32
    --attention-softmax-in-fp32
    --attention-backend flash
)

GRPO_ARGS=(
    --advantage-estimator gspo
    --use-kl-loss
    --kl-loss-coef 0.00
    --kl-loss-type k3
    --eps-clip 3e-4
    --eps-clip-high 4e-4
)

OPTIMIZER_ARGS=(
    --optimizer adam
    --lr 1e-6
    --lr-decay-style constant
    --weight-decay 0.1
    --adam-beta1 0.9
    --adam-beta2 0.98
)

SGLANG_ARGS=(
    --rollout-num-gpus-per-engine 2
    --sglang-mem-fraction-static 0.7
)

exec "$MILES" train \
    --actor-num-nodes 1 \
    --actor-num-gpus-per-node 8 \
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
