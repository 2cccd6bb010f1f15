#!/usr/bin/env bash
# Teaches SmolLM2-135M-Instruct to use a tool, on a CPU: recipes/agent-smollm2.sh [FLAGS...]
#
# GRPO on an agent of two turns (examples/python/agent_python.py): the model writes a calculation, a
# sandboxed Python computes it, the model answers with the result. A greedy evaluation on 100 held-out
# questions every five steps. Flags given here come last and win. Environment:
#     SEED             seed of the run                           default: 42
#     SAVE             where run, checkpoints and export go      default: runs/agent-smollm2-$SEED
#     MILES_BUILD      build folder with the binary              default: build
#     MILES_SMOLLM2    model folder, fetched when absent         default: ~/.cache/miles/smollm2
#     PYTHON           an interpreter that has `openai`          default: that of tools/setup.sh oracles
# Started again with the same SAVE, it goes on from the last checkpoint.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
MILES=${MILES_BUILD:-$ROOT/build}/miles
CACHE=${MILES_CACHE:-$HOME/.cache/miles}
MODEL=${MILES_SMOLLM2:-$CACHE/smollm2}
PYTHON=${PYTHON:-${MILES_ORACLES:-$CACHE/oracles}/bin/python}
SEED=${SEED:-42}
SAVE=${SAVE:-runs/agent-smollm2-$SEED}
DATA=$SAVE/data

if [ ! -f "$MODEL/config.json" ]; then
    "$ROOT/tools/fetch_smollm2.sh" "$MODEL"
fi
mkdir -p "$SAVE"
python3 "$ROOT/recipes/agent_data.py" "$DATA"

CKPT_ARGS=(
    --hf-checkpoint "$MODEL"
    --load "$SAVE/checkpoint"
    --save "$SAVE/checkpoint"
    --save-interval 10
    --save-keep 1
    --save-hf "$SAVE/hf"
    --run-dir "$SAVE/run"
)

ROLLOUT_ARGS=(
    --prompt-data "$DATA/train.jsonl"
    --input-key prompt
    --label-key label
    --apply-chat-template
    --rollout-shuffle
    --rollout-seed "$SEED"
    --num-rollout 25
    --rollout-batch-size 8
    --n-samples-per-prompt 8
    --rollout-max-response-len 128
    --rollout-max-context-len 256
    --rollout-temperature 0.8
)

AGENT_ARGS=(
    --custom-agent-function-path "$ROOT/examples/python/agent_python.py:run"
    --reward-python "$PYTHON"
    --hook-timeout 120
)

EVAL_ARGS=(
    --eval-interval 5
    --eval-prompt-data tool "$DATA/test.jsonl"
    --eval-temperature 0
    --eval-max-response-len 128
)

PERF_ARGS=(
    --use-dynamic-batch-size
    --max-tokens-per-gpu 4096
)

GRPO_ARGS=(
    --advantage-estimator grpo
    --eps-clip 0.2
)

OPTIMIZER_ARGS=(
    --lr 3e-5
    --lr-decay-style constant
    --weight-decay 0
    --adam-beta1 0.9
    --adam-beta2 0.99
    --seed "$SEED"
)

SGLANG_ARGS=(
    --rollout-backend miles
    --rollout-num-gpus 1
    --sglang-max-running-requests 64
)

exec "$MILES" train \
    "${CKPT_ARGS[@]}" \
    "${ROLLOUT_ARGS[@]}" \
    "${AGENT_ARGS[@]}" \
    "${EVAL_ARGS[@]}" \
    "${PERF_ARGS[@]}" \
    "${GRPO_ARGS[@]}" \
    "${OPTIMIZER_ARGS[@]}" \
    "${SGLANG_ARGS[@]}" \
    "$@"
