#!/usr/bin/env bash
# `miles train-async` against `miles train` on a recipe that samples longer than it trains: bench/train_async.sh
#
# SmolLM2 on the addition task with one `miles serve` engine, which samples four times as many prompts as are
# kept (--over-sampling-batch-size); engine and trainer have one core each (ENGINE and TRAINER: threads), so
# that both can work at once. STEPS rollouts each (default 8); the first two of each
# run are left out of the medians. Wall time of an iteration stands beside max(rollout, train) of the same run,
# which is the least that one step ahead can take; the staleness of the samples is the weight version of
# the trainer less that of the samples.
#
# ROLLOUT is the length of responses in tokens (default 32), BATCH the prompts (8), GROUP their samples (8).
# Needs two cores that nobody else uses.
# Ends with one line of figures.

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

STEPS=${STEPS:-8}
BATCH=${BATCH:-8}
lib_binary
lib_model
lib_work
python3 "$ROOT/recipes/add_data.py" "$WORK" >&2

ARGS=(
    --hf-checkpoint "$MODEL" --prompt-data "$WORK/train.jsonl" --input-key prompt --label-key label
    --apply-chat-template --rollout-shuffle --num-rollout "$STEPS" --rollout-batch-size "$BATCH"
    --n-samples-per-prompt "${GROUP:-8}" --rollout-temperature 1 --rollout-max-response-len "${ROLLOUT:-32}"
    --rollout-ignore-eos --over-sampling-batch-size $((4 * BATCH))
    --custom-rm-path "$ROOT/recipes/add_reward.py:last_integer"
    --use-dynamic-batch-size --max-tokens-per-gpu 4096 --lr 1e-5 --lr-decay-style constant
    --rollout-num-gpus 1 --rollout-threads-per-engine "${ENGINE:-1}" --threads "${TRAINER:-1}"
)

# run NAME COMMAND: the run in $WORK/NAME.
run() {
    lib_say "$2 ..."
    "$MILES" "$2" --run-dir "$WORK/$1" "${ARGS[@]}" >"$WORK/$1.log" 2>&1 || {
        tail -n 30 "$WORK/$1.log" >&2
        lib_die "miles $2 failed"
    }
}

# of NAME KEY: the median, without the first two.
of() {
    lib_metric "$WORK/$1" "$2" | tail -n +3 | lib_median
}

run sync train
run ahead train-async

stale=$(python3 - "$WORK/ahead/metrics.jsonl" <<'PY'
import json, sys

worst = 0
for line in open(sys.argv[1]):
    row = json.loads(line)
    if "rollout/step" in row:
        worst = max(worst, row["rollout/step"] - row["rollout/weight_version/min"])
print(worst)
PY
)
python3 - "$(of sync perf/step_time)" "$(of ahead perf/step_time)" "$(of ahead perf/rollout_time)" \
    "$(of ahead perf/train_time)" "$stale" <<'PY'
import sys

sync, ahead, rollout, train, stale = map(float, sys.argv[1:])
print(f"train_s={sync:.2f} train_async_s={ahead:.2f} rollout_s={rollout:.2f} trainer_s={train:.2f} "
      f"max_s={max(rollout, train):.2f} over_max={ahead / max(rollout, train):.3f} "
      f"speedup={sync / ahead:.2f} staleness_max={int(stale)}")
PY
