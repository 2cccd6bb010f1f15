#!/usr/bin/env bash
# Supervised training of SmolLM2-135M-Instruct on sums, on a CPU: recipes/add-smollm2-sft.sh [FLAGS...]
#
# The data of recipes/add-smollm2.sh with its labels as answers, two passes over it, with a greedy
# evaluation on 100 held-out sums. No samples are drawn for training. Flags given here come last and win.
# Environment: SEED, SAVE, MILES_BUILD, MILES_SMOLLM2 as in recipes/add-smollm2.sh.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
MILES=${MILES_BUILD:-$ROOT/build}/miles
MODEL=${MILES_SMOLLM2:-${MILES_CACHE:-$HOME/.cache/miles}/smollm2}
SEED=${SEED:-42}
SAVE=${SAVE:-runs/add-smollm2-sft-$SEED}
DATA=$SAVE/data

if [ ! -f "$MODEL/config.json" ]; then
    "$ROOT/tools/fetch_smollm2.sh" "$MODEL"
fi
mkdir -p "$SAVE"
python3 "$ROOT/recipes/add_data.py" "$DATA"

CKPT_ARGS=(
    --hf-checkpoint "$MODEL"
    --load "$SAVE/checkpoint"
    --save "$SAVE/checkpoint"
    --save-interval 25
    --save-hf "$SAVE/hf"
    --run-dir "$SAVE/run"
)

SFT_ARGS=(
    --loss-type sft_loss
    --loss-mask-type prefix
    --calculate-per-token-loss
    --prompt-data "$DATA/train.jsonl"
    --input-key prompt
    --label-key label
    --rollout-shuffle
    --rollout-seed "$SEED"
    --num-epoch 2
    --rollout-batch-size 32
)

EVAL_ARGS=(
    --custom-rm-path "$ROOT/recipes/add_reward.py:last_integer"
    --eval-interval 25
    --eval-prompt-data add "$DATA/test.jsonl"
    --eval-temperature 0
    --rollout-max-response-len 20
)

PERF_ARGS=(
    --use-dynamic-batch-size
    --max-tokens-per-gpu 4096
)

OPTIMIZER_ARGS=(
    --lr 1e-4
    --lr-decay-style linear
    --weight-decay 0
    --adam-beta2 0.99
    --seed "$SEED"
)

exec "$MILES" train \
    "${CKPT_ARGS[@]}" \
    "${SFT_ARGS[@]}" \
    "${EVAL_ARGS[@]}" \
    "${PERF_ARGS[@]}" \
    "${OPTIMIZER_ARGS[@]}" \
    "$@"
