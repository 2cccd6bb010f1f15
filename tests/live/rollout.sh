#!/usr/bin/env bash
# What a rollout keeps, drops, cuts and takes up again is decided in logical time: tests/live/rollout.sh
#
# A tiny random model is trained with dynamic sampling, oversampling and partial rollouts, (a) in one
# process with 1, 3, 8 and 64 samples at a time, (b) with one and with two `miles serve` engines,
# (c) stopped after each step and resumed from its checkpoint with the groups that were unfinished,
# (d) with functions of the user's in Python. The weights of (a), (b) and (c) are the same bits, though
# the engines were fast and slow; so are the figures of each step but those of time. Then the same
# without --partial-rollout, where what is unfinished is thrown away, and (e) with `miles train-async`:
# one step ahead in one process, with an engine that samples while the trainer trains, and resumed.
# (f) With --fully-async, where the order of arrival decides, samples are never older than
# --max-weight-staleness allows; killed by SIGKILL and started again, the run equals the replay of its ledger.
#
# STEPS: default 4. PARTS: "layout engines resume functions discard ahead endless", all by default.
# Ends with one line of figures.

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

STEPS=${STEPS:-4}
PARTS=" ${PARTS:-layout engines resume functions discard ahead endless} "

lib_binary
lib_python
lib_work
live_tiny "$WORK/model" --family llama --vocab 512
python3 - "$WORK/prompts.jsonl" <<'PY'
import json, sys

with open(sys.argv[1], "w") as out:
    for i in range(400):
        text = f"{'the number ' * (i % 7)}{i * 37 % 101} and {i * 53 % 89} are"
        out.write(json.dumps({"prompt": text, "label": str(i)}) + "\n")
PY
# About half of the groups have equal rewards.
cat >"$WORK/functions.py" <<'PY'
import statistics


def reward(args, sample):
    return float(sum(sample.response.encode()) % 5 == 0)


def keep(args, samples):
    return statistics.pstdev(s.reward for s in samples) > 0, "flat"


def newest(args, rollout_id, buffer, n):
    out = buffer[-n:]
    del buffer[-n:]
    return out


def short(args, groups):
    for group in groups:
        max(group, key=lambda s: s.response_length).remove_sample = True


def count(args, groups, data_source):
    assert all(len(g) == 4 for g in groups)
PY

# Sixteen of 512 tokens end a response: lengths of all kinds.
ARGS=(
    --hf-checkpoint "$WORK/model" --prompt-data "$WORK/prompts.jsonl" --input-key prompt
    --label-key label --rollout-shuffle --num-rollout "$STEPS" --rollout-batch-size 8
    --n-samples-per-prompt 4 --rollout-temperature 1 --rollout-max-response-len 96
    --rollout-stop-token-ids 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55
    --custom-rm-path "$WORK/functions.py:reward" --use-dynamic-batch-size --max-tokens-per-gpu 4096
    --lr 1e-3 --lr-decay-style constant --over-sampling-batch-size 12 --rollout-logical-concurrency 40
)
FILTER=(--dynamic-sampling-filter-path miles.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std)
PARTIAL=(--partial-rollout)

runs=0
declare -A hashes

# figures DIR...: what the steps of the runs measured, but for time and engines.
figures() {
    python3 - "$@" <<'PY'
import hashlib, json, sys

rows = []
for path in sys.argv[1:]:
    for line in open(path + "/metrics.jsonl"):
        row = json.loads(line)
        if "rollout/step" in row:
            rows.append({k: v for k, v in row.items()
                         if not k.startswith(("perf/", "rollout/engine", "rollout/wrong")) and "time" not in k})
print(hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:16])
PY
}

# train RUN_DIR ARGS...: as lib_train, by the command in $COMMAND.
COMMAND=train
train() {
    local dir=$1
    shift
    if ! "$MILES" "$COMMAND" --run-dir "$dir" "$@" >"$dir.log" 2>&1; then
        tail -n 30 "$dir.log" >&2
        lib_die "miles $COMMAND failed: $*"
    fi
}

# take NAME KIND DIR...: remembers the weights and figures of a whole run.
take() {
    local name=$1 kind=$2 sha
    shift 2
    sha=$(sha256sum "$WORK/$name-hf/model.safetensors" | cut -d ' ' -f 1)
    runs=$((runs + 1))
    hashes["$kind $sha $(figures "$@")"]=1
    lib_say "$(printf '%-18s %-8s %s' "$name" "$kind" "$sha")"
    rm -rf "$WORK/$name-hf" "$WORK/$name-ckpt"
}

run() {
    local name=$1 kind=$2
    shift 2
    train "$WORK/$name" "${ARGS[@]}" --save "$WORK/$name-ckpt" --save-hf "$WORK/$name-hf" "$@"
    take "$name" "$kind" "$WORK/$name"
}

sum() {
    lib_metric "$WORK/$1" "$2" | python3 -c 'import sys; print(int(sum(float(x) for x in sys.stdin)))'
}

layout_runs() {
    local slots
    for slots in 1 3 8 64; do
        run "slots-$slots" partial "${FILTER[@]}" "${PARTIAL[@]}" --sglang-max-running-requests $slots
    done
}

engines_runs() {
    run engine partial "${FILTER[@]}" "${PARTIAL[@]}" --rollout-num-gpus 1
    run engines partial "${FILTER[@]}" "${PARTIAL[@]}" --rollout-num-gpus 2 --sglang-max-running-requests 5
}

# resumed KIND K ARGS...: stops after step K and goes on from the checkpoint.
resumed() {
    local kind=$1 k=$2 name=$1-stopped-$2
    shift 2
    train "$WORK/$name" "${ARGS[@]}" "${FILTER[@]}" "${PARTIAL[@]}" --save "$WORK/$name-ckpt" \
        --save-interval 1 --debug-exit-after-rollout "$k"
    train "$WORK/$name-rest" "${ARGS[@]}" "${FILTER[@]}" "${PARTIAL[@]}" --load "$WORK/$name-ckpt" \
        --save "$WORK/$name-ckpt" --save-hf "$WORK/$name-hf" "$@"
    take "$name" "$kind" "$WORK/$name" "$WORK/$name-rest"
}

resume_runs() {
    local k
    for k in $(seq $((STEPS - 1))); do
        resumed partial "$k" --sglang-max-running-requests "$k"
    done
}

ahead_runs() {
    COMMAND=train-async
    run ahead ahead "${FILTER[@]}" "${PARTIAL[@]}"
    run ahead-engine ahead "${FILTER[@]}" "${PARTIAL[@]}" --rollout-num-gpus 1
    resumed ahead 2 --rollout-num-gpus 1
    COMMAND=train
}

# stale NAME...: the most that a sample's weights were behind those of its step.
stale() {
    python3 - "$@" <<'PY'
import json, sys

worst = 0
for path in sys.argv[1:]:
    for line in open(path + "/metrics.jsonl"):
        row = json.loads(line)
        if "rollout/step" in row:
            worst = max(worst, row["rollout/step"] - row["rollout/weight_version/min"])
print(worst)
PY
}

endless_runs() {
    local worst rollouts=$((2 * STEPS)) pid
    local args=(--run-dir "$WORK/endless" "${ARGS[@]/--over-sampling-batch-size/--async-max-concurrent-samples}"
        "${FILTER[@]}" --num-rollout "$rollouts" --fully-async --max-weight-staleness 1 --rollout-num-gpus 1
        --load "$WORK/endless-ckpt" --save "$WORK/endless-ckpt" --save-interval 1)
    "$MILES" train-async "${args[@]}" >"$WORK/endless.log" 2>&1 &
    pid=$!
    lib_ends $pid
    for _ in $(seq 1200); do # until some steps are made, then in the midst of one
        [ "$(grep -c '^step ' "$WORK/endless.log")" -lt 2 ] && kill -0 $pid 2>/dev/null || break
        sleep 0.05
    done
    kill -KILL $pid 2>/dev/null || true
    wait $pid 2>/dev/null || true
    "$MILES" train-async "${args[@]}" >>"$WORK/endless.log" 2>&1 || {
        tail -n 30 "$WORK/endless.log" >&2
        lib_die "endless: the killed run does not go on"
    }
    "$MILES" replay "$WORK/endless" >"$WORK/endless-replay.log" 2>&1 || {
        tail -n 30 "$WORK/endless-replay.log" >&2
        lib_die "endless: it is not what its ledger says"
    }
    grep -q "^replay=equal rollouts=$rollouts " "$WORK/endless-replay.log" || lib_die "endless: not all was replayed"
    grep -q 'Continuous async rollout worker started' "$WORK/endless.log" ||
        lib_die "endless: no word of the worker"
    # one version behind the engines, which are at most one behind the trainer
    worst=$(stale "$WORK/endless")
    [ "$worst" -le 2 ] || lib_die "endless: a sample was $worst versions old"
    lib_say "endless: killed, went on, equal to its replay; samples were at most $worst versions behind"
    runs=$((runs + 1))
}

functions_runs() {
    local mine=(--dynamic-sampling-filter-path "$WORK/functions.py:keep" "${PARTIAL[@]}"
        --buffer-filter-path "$WORK/functions.py:newest" --mask-offpolicy-in-partial-rollout
        --rollout-sample-filter-path "$WORK/functions.py:short"
        --rollout-all-samples-process-path "$WORK/functions.py:count"
        --rollout-submission-granularity sample)
    run mine-2 mine "${mine[@]}" --sglang-max-running-requests 2
    run mine-64 mine "${mine[@]}"
}

discard_runs() {
    run discard-2 discard "${FILTER[@]}" --sglang-max-running-requests 2
    run discard-64 discard "${FILTER[@]}"
    run discard-engine discard "${FILTER[@]}" --rollout-num-gpus 1
}

kinds=
for part in layout engines resume functions discard ahead endless; do
    case $PARTS in
    *" $part "*)
        "${part}_runs"
        case $part in functions) kinds+=" mine" ;; discard | ahead) kinds+=" $part" ;; endless) ;; *) kinds+=" partial" ;; esac
        ;;
    esac
done
[ $runs -gt 0 ] || lib_die "PARTS: layout, engines, resume, functions, discard, ahead, endless"

distinct=0
for kind in $kinds; do
    n=$(printf '%s\n' "${!hashes[@]}" | grep -c "^$kind " || true)
    [ "$n" -le "$distinct" ] || distinct=$n
done
some=$(find "$WORK" -maxdepth 1 -type d \( -name 'slots-64' -o -name 'engine' -o -name 'mine-64' \) | head -n 1)
if [ -n "$some" ]; then
    some=${some##*/}
    went_on=$(sum "$some" rollout/partial/resumed_groups)
    cut=$(sum "$some" rollout/partial/samples)
    [ "$went_on" -gt 0 ] && [ "$cut" -gt 0 ] || lib_die "$some: nothing was cut and taken up again"
    lib_say "$some: $went_on groups went on, $cut samples were cut, $(sum "$some" rollout/wasted_tokens) tokens wasted"
fi
for name in slots-1 slots-64 engine; do
    [ ! -d "$WORK/$name" ] || lib_say "$name: share of the rollout's time that logical time cost: $(
        lib_metric "$WORK/$name" perf/logical_time_overhead | lib_median)"
done

[ -n "$kinds" ] || distinct=1 # what was run has no bits to compare
echo "rollout_runs=$runs rollout_distinct=$distinct"
[ "$distinct" = 1 ]
