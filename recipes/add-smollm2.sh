#!/usr/bin/env bash
# Teaches SmolLM2-135M-Instruct to add two numbers, on a CPU: recipes/add-smollm2.sh [FLAGS...]
#
# GRPO on 800 sums of operands 1 to 30, with a greedy evaluation on 100 held-out sums every ten
# steps. Flags given here come last and win. Environment:
#     SEED             seed of the run                           default: 42
#     SAVE             where run, checkpoints and export go      default: runs/add-smollm2-$SEED
#     MILES_BUILD      build folder with the binary              default: build
#     MILES_SMOLLM2    model folder, fetched when absent         default: ~/.cache/miles/smollm2
# Started again with the same SAVE, it goes on from the last checkpoint.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
MILES=${MILES_BUILD:-$ROOT/build}/miles
MODEL=${MILES_SMOLLM2:-${MILES_CACHE:-$HOME/.cache/miles}/smollm2}
SEED=${SEED:-42}
SAVE=${SAVE:-runs/add-smollm2-$SEED}
DATA=$SAVE/data

if [ ! -f "$MODEL/config.json" ]; then
    "$ROOT/tools/fetch_smollm2.sh" "$MODEL"
fi
mkdir -p "$SAVE"
python3 "$ROOT/recipes/add_data.py" "$DATA"

# The architecture is read from the model folder's config.json.
MODEL_ARGS=()

CKPT_ARGS=(
    --hf-checkpoint "$MODEL"
    --load "$SAVE/checkpoint"
    --save "$SAVE/checkpoint"
    --save-interval 50
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
    --num-rollout 150
    --rollout-batch-size 16
    --n-samples-per-prompt 8
    --rollout-max-response-len 20
    --rollout-temperature 1
    --custom-rm-path "$ROOT/recipes/add_reward.py:last_integer"
)

EVAL_ARGS=(
    --eval-interval 10
    --eval-prompt-data add "$DATA/test.jsonl"
    --eval-temperature 0
    --eval-max-response-len 20
)

PERF_ARGS=(
    --use-dynamic-batch-size
    --max-tokens-per-gpu 4096
)

# No KL term: the reward is exact, so nothing has to hold the model back.
GRPO_ARGS=(
    --advantage-estimator grpo
    --eps-clip 0.2
)

OPTIMIZER_ARGS=(
    --lr 3e-5
    --lr-decay-style linear
    --weight-decay 0
    --adam-beta1 0.9
    --adam-beta2 0.99
    --seed "$SEED"
)

SGLANG_ARGS=(
    --sglang-max-running-requests 128
)

exec "$MILES" train \
    "${MODEL_ARGS[@]}" \
    "${CKPT_ARGS[@]}" \
    "${ROLLOUT_ARGS[@]}" \
    "${EVAL_ARGS[@]}" \
    "${PERF_ARGS[@]}" \
    "${GRPO_ARGS[@]}" \
    "${OPTIMIZER_ARGS[@]}" \
    "${SGLANG_ARGS[@]}" \
    "$@"
