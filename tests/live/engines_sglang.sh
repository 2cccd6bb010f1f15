#!/usr/bin/env bash
# SGLang servers that a run starts, updates and ends leave nothing behind: tests/live/engines_sglang.sh
#
# TIMES runs (default 1) of two steps on a tiny random model with a live SGLang on the CPU: weights are
# published, proven and sampled from. After each: no process of the run, nobody listening at the engine's
# port, no temporary file, no shared memory that one of its processes had mapped, no weights on disk. In
# the last run SGLang itself is killed by SIGKILL in the middle, and is started again.
#
# It takes a minute or two a run. Skipped where SGLang is not installed (tools/setup.sh sglang).
# Ends with one line of figures.

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

TIMES=${TIMES:-1}
VENV=$CACHE/sglang

if [ ! -x "$VENV/bin/python" ]; then
    [ "${CI:-}" != true ] || "$ROOT/tools/setup.sh" sglang >&2
    [ -x "$VENV/bin/python" ] || {
        lib_say "SKIP: there is no SGLang in $VENV"
        exit 77
    }
fi
lib_binary
lib_python
lib_work
live_tiny "$WORK/model" --family llama --vocab 512 --hidden 128
MARK=sglang-$$-$RANDOM

python3 - "$WORK/prompts.jsonl" <<'PY'
import json, sys

with open(sys.argv[1], "w") as out:
    for i in range(40):
        out.write(json.dumps({"prompt": f"{i * 37 % 101} and {i} are", "label": str(i)}) + "\n")
PY
cat >"$WORK/reward.py" <<'PY'
def reward(args, sample):
    return sum(sample.response.encode()) % 7 / 7
PY
mkdir "$WORK/tmp"

COMMAND="env LD_LIBRARY_PATH=$VENV/cuda-stub PATH=$VENV/bin:$PATH HF_HUB_OFFLINE=1 SGLANG_USE_CPU_ENGINE=1
    $VENV/bin/python -m sglang.launch_server --model-path {model} --device cpu --host {host} --port {port}
    --nccl-port {nccl_port} --dtype bfloat16 --attention-backend torch_native --sampling-backend pytorch
    --disable-overlap-schedule --disable-radix-cache --skip-server-warmup --max-total-tokens 65536"

# left: processes that came from the run.
left() {
    local f
    for f in $(grep -lzs "^ENGINES_MARK=$MARK\$" /proc/[0-9]*/environ || true); do
        f=${f#/proc/}
        echo "${f%/environ}"
    done
}

# mapped: files in /dev/shm that these have mapped.
mapped() {
    local pids
    pids=$(left)
    # shellcheck disable=SC2046,SC2086
    [ -z "$pids" ] || { grep -hos '/dev/shm/[^ ]*' $(printf '/proc/%s/maps ' $pids) || true; } | sort -u
}

seen=0
starts=0
# run NAME [kill]: one run, watched.
run() {
    local name=$1 pid victim url file
    ENGINES_MARK=$MARK TMPDIR=$WORK/tmp "$MILES" train --run-dir "$WORK/$name" \
        --hf-checkpoint "$WORK/model" --prompt-data "$WORK/prompts.jsonl" --input-key prompt \
        --label-key label --num-rollout 2 --rollout-batch-size 4 --n-samples-per-prompt 4 \
        --rollout-max-response-len 16 --custom-rm-path "$WORK/reward.py:reward" \
        --use-dynamic-batch-size --max-tokens-per-gpu 4096 --lr 1e-4 --lr-decay-style constant \
        --rollout-backend sglang --sglang-command "$COMMAND" --sglang-log-level warning \
        >"$WORK/$name.log" 2>&1 &
    pid=$!
    lib_ends $pid
    : >"$WORK/shm"
    victim=
    while kill -0 $pid 2>/dev/null; do
        mapped >>"$WORK/shm"
        if [ "${2:-}" = kill ] && [ -z "$victim" ] && grep -q 'weight_sync: the engines have' "$WORK/$name.log"; then
            victim=$(sed -n 's/.*engine 0 is process \([0-9]*\),.*/\1/p' "$WORK/$name.log" | tail -n 1)
            kill -KILL "$(pgrep -P "$victim" | head -n 1)"
        fi
        sleep 2
    done
    wait $pid || {
        tail -n 40 "$WORK/$name.log" >&2
        lib_die "$name failed"
    }
    live_equal "proven publishes of $name" "$(grep -c 'weight_sync: the engines have' "$WORK/$name.log")" 2
    live_equal "processes left by $name" "$(left)" ""
    live_equal "temporary files left by $name" "$(ls -A "$WORK/tmp")" ""
    live_equal "weights left by $name" "$(ls -A "$WORK/$name/weights")" ""
    for file in $(sort -u "$WORK/shm"); do
        seen=$((seen + 1))
        [ ! -e "$file" ] || lib_die "$name left $file"
    done
    for url in $(grep -ho 'http://127.0.0.1:[0-9]*' "$WORK/$name.log" | sort -u); do
        ! curl -s -m 2 -o /dev/null "$url/health" || lib_die "$name: somebody listens at $url"
    done
    starts=$((starts + $(grep -c 'engine 0 is process' "$WORK/$name.log")))
    lib_say "$name: nothing left"
}

for k in $(seq "$TIMES"); do
    if [ "$k" = "$TIMES" ]; then
        run "run-$k" kill
        grep -q WorkerCrashed "$WORK/run-$k.log" || lib_die "nobody saw that SGLang was killed"
    else
        run "run-$k"
    fi
done
echo "sglang_runs=$TIMES sglang_starts=$starts shm_files_seen=$seen left=0"
