#!/usr/bin/env bash
# One training run, wherever its samples are drawn: tests/live/engines.sh
#
# A tiny random model is trained (a) in one process, (b) with two `miles serve` engines, (c) with two
# behind `miles router`, and with two and a router that somebody else started, which read the weights from
# a folder and are still there afterwards: the weights at the end are the same bits, and rollout and trainer differ by
# exactly 0 in every step. Then (d) an engine is killed by SIGKILL, and (e) stopped by SIGSTOP, at a
# random instant, KILLS times each (default 1): the same bits again. (f) The trainer is killed by
# SIGKILL: its engines are gone within seconds. (g) SIGTERM: it ends, its engines end, and the same command goes on to
# the same bits. After each,
# no process is left and nobody listens where the engines did.
#
# Ends with one line of figures.

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

KILLS=${KILLS:-1}
STEPS=${STEPS:-3}

lib_binary
lib_python
lib_work
live_tiny "$WORK/model" --family llama --vocab 512
MARK=engines-$$-$RANDOM
export ENGINES_MARK=$MARK # in the environment of every process that comes from here

python3 - "$WORK/prompts.jsonl" <<'PY'
import json, sys

with open(sys.argv[1], "w") as out:
    for i in range(40):
        text = f"{'the number ' * (i % 7)}{i * 37 % 101} and {i * 53 % 89} are"
        out.write(json.dumps({"prompt": text, "label": str(i)}) + "\n")
PY
# Any answer earns something and answers differ, so that every step moves the weights.
cat >"$WORK/reward.py" <<'PY'
def reward(args, sample):
    return sum(sample.response.encode()) % 7 / 7
PY

ARGS=(
    --hf-checkpoint "$WORK/model" --prompt-data "$WORK/prompts.jsonl" --input-key prompt
    --label-key label --rollout-shuffle --num-rollout "$STEPS" --rollout-batch-size 16
    --n-samples-per-prompt 8 --rollout-temperature 1 --rollout-max-response-len "${TOKENS:-160}"
    --custom-rm-path "$WORK/reward.py:reward" --use-dynamic-batch-size --max-tokens-per-gpu 4096
    --lr 1e-4 --lr-decay-style constant
)
TWO=(--rollout-num-gpus 2 --rollout-health-check-interval 0.5 --rollout-health-check-timeout 2)

# left: processes that came from this script's runs. What grep is started for is not in the list yet.
left() {
    local f
    for f in $(grep -lzs "^ENGINES_MARK=$MARK\$" /proc/[0-9]*/environ || true); do
        f=${f#/proc/}
        echo "${f%/environ}"
    done
}

# clean NAME: nothing of the run is there any more, after SECONDS at most ($2, default 0).
clean() {
    local name=$1 url pids
    for _ in $(seq $((10 * ${2:-0} + 1))); do
        pids=$(left)
        [ -n "$pids" ] || break
        sleep 0.1
    done
    [ -z "$pids" ] || lib_die "$name left processes: $pids"
    for url in $(grep -ho 'http://127.0.0.1:[0-9]*' "$WORK/$name.log" | sort -u); do
        ! curl -s -m 2 -o /dev/null "$url/health" || lib_die "$name: somebody listens at $url"
    done
}

sha() {
    sha256sum "$WORK/$1-hf/model.safetensors" | cut -d ' ' -f 1
}

exact() {
    live_equal "steps of $1" "$(lib_metric "$WORK/$1" train/forward_logp_max_diff | wc -l)" "$STEPS"
    live_equal "forward_logp_max_diff of $1" \
        "$(lib_metric "$WORK/$1" train/forward_logp_max_diff | sort -u)" 0.0
}

run() {
    local name=$1
    shift
    lib_train "$WORK/$name" "${ARGS[@]}" --save "$WORK/$name-ckpt" --save-hf "$WORK/$name-hf" "$@"
    exact "$name"
    clean "$name"
    lib_say "$name: $(sha "$name")"
}

# start NAME ARGS...: a run in the background; sets TRAINER. up NAME: waits until it samples.
start() {
    local name=$1
    shift
    "$MILES" train --run-dir "$WORK/$name" "${ARGS[@]}" --save "$WORK/$name-ckpt" \
        --save-hf "$WORK/$name-hf" "$@" >"$WORK/$name.log" 2>&1 &
    TRAINER=$!
    lib_ends $TRAINER
}
up() {
    for _ in $(seq 600); do
        ! grep -q 'weight_sync: the engines have' "$WORK/$1.log" || return 0
        kill -0 $TRAINER 2>/dev/null || break
        sleep 0.1
    done
    tail -n 30 "$WORK/$1.log" >&2
    lib_die "$1 does not start to sample"
}

# engine NAME I: the process that engine I is now.
engine() {
    sed -n "s/.*engine $2 is process \([0-9]*\),.*/\1/p" "$WORK/$1.log" | tail -n 1
}

run in-process --colocate
run two "${TWO[@]}"
run router "${TWO[@]}" --use-miles-router --sglang-router-policy round_robin
# Servers that are not the run's own. They are none of its processes: without the mark.
serve() {
    : >"$WORK/$1.out"
    env -u ENGINES_MARK "$MILES" "$@" --port 0 >"$WORK/$1.out" 2>>"$WORK/others.err" &
    OTHER=$!
    lib_ends $OTHER
    for _ in $(seq 300); do
        OTHER_AT=$(sed -n 's|^ready url=http://\([^ ]*\) .*|\1|p' "$WORK/$1.out")
        [ -z "$OTHER_AT" ] || return 0
        sleep 0.1
    done
    lib_die "miles $1 does not start"
}
serve serve --hf-checkpoint "$WORK/model" --threads 1
one=$OTHER one_at=$OTHER_AT
serve serve --hf-checkpoint "$WORK/model" --threads 1
two=$OTHER two_at=$OTHER_AT
serve router
lib_train "$WORK/others" "${ARGS[@]}" --save "$WORK/others-ckpt" --save-hf "$WORK/others-hf" \
    --rollout-external --rollout-external-engine-addrs "$one_at" "$two_at" --rollout-backend miles \
    --sglang-router-ip "${OTHER_AT%:*}" --sglang-router-port "${OTHER_AT#*:}"
exact others
live_equal "processes left by others" "$(left)" ""
for at in "$one_at" "$two_at" "$OTHER_AT"; do
    curl -sf -m 10 -o /dev/null "http://$at/health" || lib_die "others: $at is gone"
done
for pid in "$one" "$two" "$OTHER"; do
    lib_end "$pid"
done
lib_say "others: $(sha others)"

live_equal "weights with engines of somebody else" "$(sha others)" "$(sha in-process)"
live_equal "weights with two engines" "$(sha two)" "$(sha in-process)"
live_equal "weights with a router" "$(sha router)" "$(sha in-process)"

# What a step of a run with engines takes: instants are drawn from it.
step_s=$(lib_metric "$WORK/two" perf/step_time | lib_median)

hits=0
lost=0
# hit SIGNAL K [ARGS...]: one engine gets the signal at a random instant of a random step. Drawn again
# when the run was faster than that.
hit() {
    local signal=$1 name=${1}-$2 step hit=0
    shift 2
    while [ $hit = 0 ]; do
        rm -rf "${WORK:?}/$name" "$WORK/$name-ckpt" "$WORK/$name-hf"
        start "$name" "${TWO[@]}" "$@"
        up "$name"
        step=$((RANDOM % STEPS))
        while [ "$(grep -c '^step ' "$WORK/$name.log")" -lt $step ] && kill -0 $TRAINER 2>/dev/null; do
            sleep 0.05
        done
        sleep "$(python3 -c "import random; print(random.random() * $step_s)")"
        kill -"$signal" "$(engine "$name" $((RANDOM % 2)))" 2>/dev/null && hit=1
        wait $TRAINER || {
            tail -n 30 "$WORK/$name.log" >&2
            lib_die "$name failed"
        }
        exact "$name"
        live_equal "weights after $name" "$(sha "$name")" "$(sha in-process)"
        clean "$name"
    done
    hits=$((hits + 1))
    lost=$((lost + $(grep -c WorkerCrashed "$WORK/$name.log" || true)))
    lib_say "$name in step $((step + 1)): the same bits"
}
for k in $(seq "$KILLS"); do
    hit KILL "$k"
    hit STOP "$k"
done
hit KILL router --use-miles-router
[ $lost -gt 0 ] || lib_die "no engine was seen lost"

start killed "${TWO[@]}" --use-miles-router
up killed
kill -KILL $TRAINER
from=$(date +%s%N)
wait $TRAINER 2>/dev/null || true
clean killed 10
gone=$(((($(date +%s%N) - from)) / 1000000))

start stopped "${TWO[@]}"
up stopped
kill -TERM $TRAINER
wait $TRAINER || lib_die "stopped: SIGTERM made it fail"
grep -q 'asked to stop' "$WORK/stopped.log" || lib_die "stopped: it did not hear of it"
clean stopped
run stopped "${TWO[@]}"
live_equal "weights of a run that was stopped and went on" "$(sha stopped)" "$(sha in-process)"

echo "engines_runs=4 engines_distinct=1 forward_logp_max_diff=0 hits=$hits lost=$lost trainer_kill_gone_ms=$gone left=0"
