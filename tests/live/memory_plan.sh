#!/usr/bin/env bash
# The memory that `miles train` plans before it allocates against what it uses: tests/live/memory_plan.sh
#
# SmolLM2 with whole activations, with recomputed ones, and with everything that saves memory; the
# weights after the steps must be the same bits where only memory differs. Then a step of the recipe
# add-smollm2.sh and one of bench/vs_trl.sh, whose samples are far fewer or shorter than the micro-batch
# and the running samples that the flags allow, and one whose bundles do not fill a micro-batch. With MEMORY_PLAN_1B=1 also a random model of
# Llama-3.2-1B's shape, which takes 20 GiB of memory and some minutes.
# Ends with runs=... worst_off_percent=... [peak_1b_gib=...]: each run is within 5% of its plan, and
# the 1B step stays under 22 GiB.

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_model
lib_work

# Any answer earns something and answers differ, so that every step moves the weights.
cat >"$WORK/reward.py" <<'PY'
def reward(args, sample):
    return sum(sample.response.encode()) % 7 / 7
PY
python3 "$ROOT/recipes/add_data.py" "$WORK"

runs=0
worst=0

# plan NAME: checks the plan in NAME.log against the peak; leaves PEAK (MiB).
plan() {
    local name=$1 planned off
    read -r PEAK planned < <(sed -n \
        's/.*memory used: \([0-9.]*\) MiB at most, \([0-9.]*\) MiB were planned.*/\1 \2/p' \
        "$WORK/$name.log")
    [ -n "${planned:-}" ] || lib_die "no plan in $WORK/$name.log"
    off=$(awk -v p="$PEAK" -v q="$planned" 'BEGIN { printf "%.2f", (q - p) / p * 100 }')
    lib_say "$(printf '%-12s planned %s MiB, used %s MiB, %s%% off' "$name" "$planned" "$PEAK" "$off")"
    runs=$((runs + 1))
    worst=$(awk -v a="$worst" -v b="$off" 'BEGIN { b = b < 0 ? -b : b; print (b > a ? b : a) }')
}

# run NAME ARGS...: trains and checks.
run() {
    local name=$1
    shift
    lib_train "$WORK/$name" --prompt-data "$WORK/train.jsonl" --input-key prompt --label-key label \
        --custom-rm-path "$WORK/reward.py:reward" --rollout-temperature 1 --rollout-ignore-eos \
        --lr 1e-5 --lr-decay-style constant --apply-chat-template --use-dynamic-batch-size "$@"
    plan "$name"
}

SMOL=(--hf-checkpoint "$MODEL" --num-rollout 1 --rollout-batch-size 2 --n-samples-per-prompt 4
    --rollout-max-response-len 120 --max-tokens-per-gpu 1100 --sglang-max-running-requests 8)
sha() {
    sha256sum "$WORK/$1-hf/model.safetensors" | cut -d ' ' -f 1
}
same() {
    run "$1" "${SMOL[@]}" --save "$WORK/ckpt" --save-interval 1 --no-save-optim \
        --save-hf "$WORK/$1-hf" "${@:2}"
    rm -rf "$WORK/ckpt"
}
same whole
most=$PEAK
same selective --recompute-granularity selective
same full --recompute-granularity full --no-weight-transposes
live_equal "weights with selective recomputation" "$(sha whole)" "$(sha selective)"
live_equal "weights with full recomputation" "$(sha whole)" "$(sha full)"
awk -v a="$PEAK" -v b="$most" 'BEGIN { exit !(a < 0.85 * b) }' ||
    lib_die "full recomputation uses $PEAK MiB, keeping all $most"
run bf16 "${SMOL[@]}" --recompute-granularity full --no-weight-transposes \
    --use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16
# A prompt's samples are more than half of a micro-batch: the other half stays empty.
run half --hf-checkpoint "$MODEL" --num-rollout 1 --rollout-batch-size 4 --n-samples-per-prompt 4 \
    --rollout-max-response-len 120 --max-tokens-per-gpu 1000 --sglang-max-running-requests 16 \
    --use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16
run vs_trl --hf-checkpoint "$MODEL" --num-rollout 1 --rollout-batch-size 4 --n-samples-per-prompt 8 \
    --rollout-max-response-len 64 --max-tokens-per-gpu 4096
SAVE=$WORK/add "$ROOT/recipes/add-smollm2.sh" --num-rollout 1 --no-save-optim \
    --custom-rm-path "$WORK/reward.py:reward" >"$WORK/add.log" 2>&1 || {
    tail -n 30 "$WORK/add.log" >&2
    lib_die "the recipe failed"
}
plan add

result=""
if [ "${MEMORY_PLAN_1B:-0}" = 1 ]; then
    # kept when MEMORY_PLAN_MODEL names a folder for it
    big=${MEMORY_PLAN_MODEL:-$WORK/1b}
    [ -f "$big/config.json" ] || python3 "$ROOT/tools/random_model.py" "$big" >&2
    run 1b --hf-checkpoint "$big" --num-rollout 1 --rollout-batch-size 1 --n-samples-per-prompt 4 \
        --rollout-max-response-len 40 --max-tokens-per-gpu 1024 --sglang-max-running-requests 4 \
        --recompute-granularity full --no-weight-transposes --use-precision-aware-optimizer \
        --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16
    gib=$(awk -v p="$PEAK" 'BEGIN { printf "%.2f", p / 1024 }')
    result=" peak_1b_gib=$gib"
    awk -v g="$gib" 'BEGIN { exit !(g < 22) }' || lib_die "the 1B step takes $gib GiB"
fi
echo "runs=$runs worst_off_percent=$worst$result"
awk -v w="$worst" 'BEGIN { exit !(w <= 5) }'
