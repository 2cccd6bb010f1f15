#!/usr/bin/env bash
# SGLang servers that a run starts, updates and ends leave nothing behind: tests/live/engines_sglang.sh
#
# TIMES runs (default 1) of two steps, five in the last, on a tiny random model with a live SGLang on the
# CPU: weights are published, proven and sampled from. After each: no process of the run, nobody listening
# at the engine's port, no temporary file, no shared memory that one of its processes had mapped, no
# weights on disk. In the last run SGLang itself is killed by SIGKILL in the middle, and is started again.
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

processes=0
shm=0
starts=0
# run NAME [kill]: one run, watched.
run() {
    local name=$1 pid url there steps=2 log=()
    [ "${2:-}" != kill ] || {
        steps=5 # four are left to notice it
        log=("$WORK/$name.log")
    }
    TMPDIR=$WORK/tmp "$MILES" train --run-dir "$WORK/$name" \
        --hf-checkpoint "$WORK/model" --prompt-data "$WORK/prompts.jsonl" --input-key prompt \
        --label-key label --num-rollout $steps --rollout-batch-size 4 --n-samples-per-prompt 4 \
        --rollout-max-response-len 16 --custom-rm-path "$WORK/reward.py:reward" \
        --use-dynamic-batch-size --max-tokens-per-gpu 4096 --lr 1e-4 --lr-decay-style constant \
        --rollout-backend sglang --sglang-command "$COMMAND" --sglang-log-level warning \
        >"$WORK/$name.log" 2>&1 &
    pid=$!
    lib_ends $pid
    python3 "$ROOT/tests/live/engines_sglang.py" watch $pid "$WORK/seen" ${log[@]+"${log[@]}"}
    wait $pid || {
        tail -n 40 "$WORK/$name.log" >&2
        lib_die "$name failed"
    }
    live_equal "proven publishes of $name" "$(grep -c 'weight_sync: the engines have' "$WORK/$name.log")" $steps
    there=$(python3 "$ROOT/tests/live/engines_sglang.py" left "$WORK/seen") || lib_die "$name did not end cleanly"
    processes=$((processes + ${there% *}))
    shm=$((shm + ${there#* }))
    live_equal "temporary files left by $name" "$(ls -A "$WORK/tmp")" ""
    live_equal "weights left by $name" "$(ls -A "$WORK/$name/weights")" ""
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
# A run has its trainer, a guard and some five processes of SGLang; less would mean that nobody looked.
[ $processes -ge $((6 * TIMES)) ] || lib_die "only $processes processes were seen"
echo "sglang_runs=$TIMES sglang_starts=$starts processes_seen=$processes shm_files_seen=$shm left=0"
