#!/usr/bin/env bash
# The same GRPO step in TRL and in miles, in one run: bench/vs_trl.sh
#
# 32 samples of 4 prompts, 64 new tokens each whatever the model says, bf16, two threads. Both sides
# take turns, ROUNDS times (default 2), STEPS steps each (default 3); the first step of a turn warms
# up and is not counted; the figures are medians over the others. miles gets a reward that gives every
# group a gradient: a group without one would skip its backward pass, which TRL computes.

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

ROUNDS=${ROUNDS:-2}
STEPS=${STEPS:-3}
THREADS=2

lib_binary
lib_model
lib_python
lib_work
export OMP_NUM_THREADS=$THREADS

python3 "$ROOT/recipes/add_data.py" "$WORK/data"
PROMPTS=$WORK/data/train.jsonl

# Each turn adds its counted steps, one number a line, to $WORK/trl or $WORK/miles.
trl_turn() {
    "$PYTHON" "$ROOT/bench/trl_step.py" "$MODEL" "$PROMPTS" "$STEPS" >"$WORK/out" 2>"$WORK/err" || {
        tail -n 20 "$WORK/err" >&2
        lib_die "the TRL step failed"
    }
    awk '$1 == "step" && ++n > 1 { print $2 }' "$WORK/out" >>"$WORK/trl"
}

miles_turn() {
    local run=$WORK/run$1
    lib_train "$run" \
        --hf-checkpoint "$MODEL" --threads "$THREADS" \
        --prompt-data "$PROMPTS" --input-key prompt --label-key label --apply-chat-template \
        --rollout-shuffle --num-rollout "$STEPS" --rollout-batch-size 4 --n-samples-per-prompt 8 \
        --rollout-max-response-len 64 --rollout-ignore-eos --rollout-temperature 1 \
        --custom-rm-path "$ROOT/bench/hash_reward.py:bit" \
        --use-dynamic-batch-size --max-tokens-per-gpu 4096 \
        --lr 1e-6 --lr-decay-style constant
    lib_metric "$run" perf/step_time | tail -n +2 >>"$WORK/miles"
}

for round in $(seq "$ROUNDS"); do
    trl_turn
    miles_turn "$round"
    lib_say "round $round: trl $(tail -n 1 "$WORK/trl") s, miles $(tail -n 1 "$WORK/miles") s"
done

want=$((ROUNDS * (STEPS - 1)))
for side in trl miles; do
    [ "$(wc -l <"$WORK/$side")" = $want ] || lib_die "$side did not report $want steps"
done
trl=$(lib_median <"$WORK/trl")
miles=$(lib_median <"$WORK/miles")
speedup=$(awk -v a="$trl" -v b="$miles" 'BEGIN { printf "%.2f", a / b }')
echo "trl_step_s=$trl miles_step_s=$miles grpo_step_speedup=$speedup"
