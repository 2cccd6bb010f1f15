#!/usr/bin/env bash
# GRPO on Qwen2.5-0.5B-Instruct and GSM8K, to be repeated bit for bit: recipes/qwen2.5-0.5b-gsm8k.sh [FLAGS...]
#
# The flags by which Miles makes a run deterministic; here every run is.
# Written as Miles' launch scripts are, with their eight groups of arguments: only the launch line and
# the paths differ. Flags given here come last and win; --dry-run checks everything and plans memory.
# Environment:
#     MODEL        folder of Qwen2.5-0.5B-Instruct
#     DATA         prompts with messages under "prompt" and answers under "label"
#     EVAL_DATA    the same, for evaluation
#     SAVE         where run and checkpoints go          default: runs/qwen2.5-0.5b-gsm8k
#     MILES_BUILD  build folder with the binary          default: build
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
MILES=${MILES_BUILD:-$ROOT/build}/miles
SAVE=${SAVE:-runs/qwen2.5-0.5b-gsm8k}
: "${MODEL:?give the folder of Qwen2.5-0.5B-Instruct}"
: "${DATA:?give the file of prompts}"
: "${EVAL_DATA:?give the file for evaluation}"

# shellcheck source=models/qwen2.5-0.5b.sh
. "$ROOT/recipes/models/qwen2.5-0.5b.sh"

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
    --tensor-model-parallel-size 1
    --sequence-parallel
    --pipeline-model-parallel-size 1
    --context-parallel-size 1
    --expert-model-parallel-size 1
    --expert-tensor-parallel-size 1
    --use-dynamic-batch-size
    --max-tokens-per-gpu 9216
    --deterministic-mode
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
    --sglang-mem-fraction-static 0.7
    --sglang-enable-deterministic-inference
    --sglang-attention-backend flashinfer
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
