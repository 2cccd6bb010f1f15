#!/usr/bin/env bash
# `miles reward serve` and its clients: tests/live/reward_serve.sh
#
# Python clients (tests/live/reward_serve.py) call it as Miles does, with every type at once and with hostile
# bodies; its workers are killed under load; more is asked than it takes. Then `miles train --rm-type remote_rm` of a
# tiny model asks it: the weights have the bits of the same run with the reward in its own process, also
# when prompts name the type, when groups are scored whole, and when the workers, and then the whole
# server, are killed in the middle. At last SIGTERM: it ends with 0
# and leaves no process behind. Ends with checks=... runs=... distinct=1

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_python
lib_work

# Any answer earns something and answers differ, so that every step moves the weights.
cat >"$WORK/reward.py" <<'PY'
import time


def reward(args, sample):
    return sum(sample.response.encode()) % 7 / 7


def group(args, samples):
    return [reward(args, s) for s in samples]


def length(args, sample):
    time.sleep(0.005)
    return len(sample.response) / 7


def slow(args, sample):
    time.sleep(0.05)
    return 0.5
PY

# serve PORT ARGS...: a reward server in the background. Sets SERVER and URL.
serve() {
    local port=$1
    shift
    : >"$WORK/serve.out"
    "$MILES" reward serve --port "$port" "$@" >"$WORK/serve.out" 2>>"$WORK/serve.err" &
    SERVER=$!
    lib_ready "miles reward serve" 600
}

# leave: SIGTERM; it ends with 0, and its workers are gone.
leave() {
    local workers pid
    workers=$(pgrep -P $SERVER || true)
    kill -TERM $SERVER
    wait $SERVER || lib_die "miles reward serve ended with $? after SIGTERM"
    for pid in $workers; do
        ! kill -0 "$pid" 2>/dev/null || lib_die "process $pid outlived the server"
    done
}

checks=0
client() {
    local n
    n=$("$PYTHON" "$ROOT/tests/live/reward_serve.py" "$@")
    lib_say "$1: $n checks"
    checks=$((checks + n))
}

serve 0 --rm-type math
client clients "$URL"
client hostile "$URL"
leave
serve 0 --reward-python "$PYTHON"
client types "$URL"
leave
serve 0 --custom-rm-path "$WORK/reward.py:length" --reward-workers 2
client kills "$URL" $SERVER
leave
serve 0 --custom-rm-path "$WORK/reward.py:slow" --reward-workers 2 --max-queued 8
client full "$URL"
leave

# ---- a training run ----

live_tiny "$WORK/model" --family llama --vocab 512
python3 - "$WORK/prompts.jsonl" <<'PY'
import json, sys

with open(sys.argv[1], "w") as out:
    for i in range(40):
        text = f"{'the number ' * (i % 7)}{i * 37 % 101} and {i * 53 % 89} are"
        out.write(json.dumps({"prompt": text, "label": str(i)}) + "\n")
PY
sed 's/}$/, "metadata": {"rm_type": "remote_rm"}}/' "$WORK/prompts.jsonl" >"$WORK/named.jsonl"

runs=0
declare -A hashes
# run NAME ARGS...
run() {
    local name=$1 sha
    shift
    lib_train "$WORK/$name" --hf-checkpoint "$WORK/model" --prompt-data "$WORK/prompts.jsonl" \
        --input-key prompt --label-key label --rollout-shuffle --num-rollout 3 --rollout-batch-size 8 \
        --n-samples-per-prompt 8 --rollout-temperature 1 --rollout-max-response-len 24 \
        --use-dynamic-batch-size --max-tokens-per-gpu 4096 --lr 1e-4 --lr-decay-style constant \
        --save-hf "$WORK/$name-hf" "$@"
    sha=$(sha256sum "$WORK/$name-hf/model.safetensors" | cut -d ' ' -f 1)
    lib_say "$(printf '%-16s %s' "$name" "$sha")"
    hashes[$sha]=1
    runs=$((runs + 1))
    live_equal "failed groups of $name" "$(lib_metric "$WORK/$name" rollout/reward_failed_groups |
        sort -u)" 0
}

run direct --custom-rm-path "$WORK/reward.py:reward"
serve 0 --custom-rm-path "$WORK/reward.py:reward" --reward-workers 2
run remote --rm-type remote_rm --rm-url "$URL"
run named --prompt-data "$WORK/named.jsonl" --rm-url "$URL" --rm-send-metadata
run group --group-rm --custom-rm-path "$WORK/reward.py:group"

# Its workers die again and again.
(
    while sleep 0.3; do
        pid=$(pgrep -P $SERVER python | shuf -n 1)
        [ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null || true
    done
) &
KILLER=$!
lib_ends $KILLER
run workers-killed --rm-type remote_rm --rm-url "$URL/reward" --reward-timeout 120
kill $KILLER
wait $KILLER 2>/dev/null || true

SEEN=$(curl -s "$URL/metrics" | sed -n "s/^miles_reward_samples_total //p")
# The server dies in the middle of the run, and comes again on the same port.
(
    port=${URL##*:}
    for _ in $(seq 1200); do
        [ "$(curl -s "$URL/metrics" | sed -n 's/^miles_reward_samples_total //p')" -lt $((SEEN + 40)) ] || break
        sleep 0.02
    done
    kill -KILL $SERVER
    sleep 1
    exec "$MILES" reward serve --port "$port" --custom-rm-path "$WORK/reward.py:reward" >"$WORK/again.out" 2>&1
) &
AGAIN=$!
lib_ends $AGAIN
run server-killed --rm-type remote_rm --rm-url "$URL" --reward-timeout 120
wait $SERVER 2>/dev/null && lib_die "the server was not killed"
SERVER=$AGAIN
leave

[ ${#hashes[@]} = 1 ] || lib_die "the runs end in different weights"
echo "checks=$checks runs=$runs distinct=${#hashes[@]}"
