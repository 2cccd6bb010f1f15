#!/usr/bin/env bash
# GRPO on GLM-Z1-9B, engines beside the trainer: recipes/glm4-9b.sh [FLAGS...]
#
# Four shares of the machine train, four sample: mathematics with long answers.
# Written as Miles' launch scripts are, with their eight groups of arguments: only the launch line and
# the paths differ. Flags given here come last and win; --dry-run checks everything and plans memory.
# Environment:
#     MODEL        folder of GLM-Z1-9B-0414
#     DATA         prompts with messages under "prompt" and answers under "label"
#     EVAL_DATA    the same, for evaluation
#     SAVE         where run and checkpoints go          default: runs/glm4-9b
#     MILES_BUILD  build folder with the binary          default: build
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
MILES=${MILES_BUILD:-$ROOT/build}/miles
SAVE=${SAVE:-runs/glm4-9b}
: "${MODEL:?give the folder of GLM-Z1-9B-0414}"
: "${DATA:?give the file of prompts}"
: "${EVAL_DATA:?give the file for evaluation}"

# shellcheck source=models/glm4-9b.sh
. "$ROOT/recipes/models/glm4-9b.sh"

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
    --global-batch-size 256
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
    --tensor-model-parallel-size 2
    --sequence-parallel
    --pipeline-model-parallel-size 1
    --context-parallel-size 2
    --expert-model-parallel-size 1
    --expert-tensor-parallel-size 1
    --recompute-granularity full
    --recompute-method uniform
    --recompute-num-layers 1
    --use-dynamic-batch-size
    --max-tokens-per-gpu 4608
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --accumulate-allreduce-grads-in-fp32
    --attention-softmax-in-fp32
    --attention-backend flash
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
    --optimizer adam
    --lr 1e-6
    --lr-decay-style constant
    --weight-decay 0.1
    --adam-beta1 0.9
    --adam-beta2 0.98
)

SGLANG_ARGS=(
    --rollout-num-gpus-per-engine 1
)

exec "$MILES" train \
    --actor-num-nodes 1 \
    --actor-num-gpus-per-node 4 \
    --rollout-num-gpus 4 \
    "${MODEL_ARGS[@]}" \
    "${CKPT_ARGS[@]}" \
    "${ROLLOUT_ARGS[@]}" \
    "${EVAL_ARGS[@]}" \
    "${PERF_ARGS[@]}" \
    "${GRPO_ARGS[@]}" \
    "${OPTIMIZER_ARGS[@]}" \
    "${SGLANG_ARGS[@]}" \
    "$@"
