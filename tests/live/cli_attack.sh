#!/usr/bin/env bash
# The program against bad flags, bad files, bad rewards, full disks and signals: tests/live/cli_attack.sh
#
# Every attack must end with the right exit code (0 done, 1 failed, 2 wrong usage), say the cause, and
# leave nothing behind: no process, no temporary file. A run that is stopped (SIGTERM, SIGINT) or
# killed (SIGKILL) again and again and then resumed must export the same weights as one left alone,
# with every metrics row there once. Ends with cli_attacks=... failures=...; needs no network.

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_python
lib_work

export CLI_ATTACK_ID=${WORK##*.}-$$ # marks every process that is ours
attacks=0
failures=0

fail() {
    failures=$((failures + 1))
    lib_say "FAILED: $*"
}

# check WHAT COMMAND...: one attack more, which fails when the command does.
check() {
    local what=$1
    shift
    attacks=$((attacks + 1))
    "$@" || fail "$what"
}

# attack NAME CODE TEXT COMMAND...: the command ends with CODE and says TEXT.
attack() {
    local name=$1 code=$2 text=$3 rc=0
    shift 3
    attacks=$((attacks + 1))
    timeout -k 5 60 "$@" >"$WORK/out" 2>&1 </dev/null || rc=$?
    if [ "$rc" != "$code" ]; then
        fail "$name: exit code $rc, $code was expected: $(tail -n 2 "$WORK/out" | tr '\n' ' ')"
    elif ! grep -qF -- "$text" "$WORK/out"; then
        fail "$name: no \"$text\" in: $(tail -n 2 "$WORK/out" | tr '\n' ' ')"
    fi
}

# Processes that carry our mark, this script's own helpers aside.
alive() {
    python3 - <<'PY'
import os

mark = ("CLI_ATTACK_ID=" + os.environ["CLI_ATTACK_ID"]).encode()
mine = {os.getpid(), os.getppid()}
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open(f"/proc/{pid}/environ", "rb") as f:
            found = mark in f.read().split(b"\0")
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            line = f.read().replace(b"\0", b" ")[:100]
    except OSError:
        continue
    if found and int(pid) not in mine:
        print(pid, line)
PY
}

# nothing_left WHAT: no process of ours runs and no temporary file lies about. Killed children need a
# moment to go.
nothing_left() {
    local left i
    attacks=$((attacks + 1))
    for i in $(seq 50); do
        left=$(alive)
        [ -n "$left" ] || break
        sleep 0.1
    done
    [ -z "$left" ] || fail "$1 left the processes $left (after $i looks)"
    left=$(find "$WORK" -name '*.tmp' | head -n 3)
    [ -z "$left" ] || fail "$1 left the files $left"
}

live_tiny "$WORK/model" --family llama --vocab 512
MODEL=$WORK/model
SUM=$(cat "$MODEL"/* | sha256sum)

python3 - "$WORK/p.jsonl" <<'PY'
import json, sys

with open(sys.argv[1], "w") as out:
    for i in range(20):
        out.write(json.dumps({"prompt": f"the number {i} and {i * 7 % 13} are", "label": str(i)}) + "\n")
PY
cat >"$WORK/r.py" <<'PY'
import os, time


def score(args, sample):
    return sum(sample.response.encode()) % 7 / 7


def slow(args, sample):
    time.sleep(0.01)
    return score(args, sample)


def some(args, sample):
    if sample.group_index % 3 == 1:
        raise ValueError("not this one")
    return score(args, sample)


def table(args, sample):
    return {"score": score(args, sample), "why": "x"}


def raises(args, sample):
    raise ValueError("no reward today")


def hangs(args, sample):
    time.sleep(1000)


def quits(args, sample):
    os._exit(3)


def text(args, sample):
    return "good"
PY

TRAIN=("$MILES" train --hf-checkpoint "$MODEL" --prompt-data "$WORK/p.jsonl" --input-key prompt
    --label-key label --rollout-shuffle --num-rollout 2 --rollout-batch-size 2
    --n-samples-per-prompt 4 --rollout-max-response-len 8 --lr 1e-3
    --use-dynamic-batch-size --max-tokens-per-gpu 512 --threads 1 --run-dir "$WORK/run")
SCORED=("${TRAIN[@]}" --custom-rm-path "$WORK/r.py:score")

# ---- flags ------------------------------------------------------------------------------------

attack "no command" 2 "usage: miles" "$MILES"
attack "unknown command" 2 "unknown command trian" "$MILES" trian
attack "help" 0 "generate" "$MILES" --help
attack "version" 0 "miles " "$MILES" --version
attack "help of train" 0 "--rollout-batch-size" "$MILES" train --help
attack "misspelt flag" 2 "--num-rollout" "${SCORED[@]}" --num-rolout 3
attack "flag without value" 2 "--lr" "${SCORED[@]}" --lr
attack "word for a number" 2 "--lr" "${SCORED[@]}" --lr fast
attack "number out of range" 2 "--rollout-top-p" "${SCORED[@]}" --rollout-top-p 1.5
attack "unknown choice" 2 "grpo" "${SCORED[@]}" --advantage-estimator grp
attack "stray word" 2 "stray" "${SCORED[@]}" stray
attack "no model" 2 "--hf-checkpoint" "$MILES" train --prompt-data x
attack "no reward" 2 "--custom-rm-path" "${TRAIN[@]}"
attack "flags that exclude each other" 2 "exclude" "${SCORED[@]}" --debug-rollout-only \
    --load-debug-rollout-data "$WORK/x.jsonl"
attack "flag that does nothing yet" 1 "not supported yet" "${SCORED[@]}" --lora-rank 8
attack "flag that has no place here" 1 "does not apply here" "${SCORED[@]}" --optimizer sgd
attack "empty stop text" 2 "1 to 4096 bytes" "${SCORED[@]}" --rollout-stop ""
attack "too many leaves" 2 "--numeric-leaves" "${SCORED[@]}" --numeric-leaves 16
attack "response beyond the context" 2 "context" "${SCORED[@]}" --rollout-max-response-len 5000
attack "batch that does not divide" 2 "--global-batch-size" "${SCORED[@]}" --global-batch-size 3

# ---- files ------------------------------------------------------------------------------------

attack "missing model" 1 "$WORK/none" "${SCORED[@]}" --hf-checkpoint "$WORK/none"
attack "missing prompts" 1 "$WORK/none.jsonl" "${SCORED[@]}" --prompt-data "$WORK/none.jsonl"
: >"$WORK/empty.jsonl"
attack "empty prompts" 2 "empty.jsonl: no prompts" "${SCORED[@]}" --prompt-data "$WORK/empty.jsonl"
printf '{"prompt": "a", "label": "1"}\n\n{"prompt": oops}\n' >"$WORK/bad.jsonl"
attack "malformed line" 2 "bad.jsonl:3:" "${SCORED[@]}" --prompt-data "$WORK/bad.jsonl"
printf '{"prompt": "a", "label": "1"}\n{"label": "1"}\n' >"$WORK/bad.jsonl"
attack "line without prompt" 2 "bad.jsonl:2:" "${SCORED[@]}" --prompt-data "$WORK/bad.jsonl"
printf '{"prompt": "a", "label": "1"}\n{"prompt": "", "label": "1"}\n' >"$WORK/bad.jsonl"
attack "empty prompt" 2 "bad.jsonl:2:" "${SCORED[@]}" --prompt-data "$WORK/bad.jsonl"
printf '{"prompt": "\xff", "label": "1"}\n' >"$WORK/bad.jsonl"
attack "prompt that is no text" 2 "bad.jsonl:1:" "${SCORED[@]}" --prompt-data "$WORK/bad.jsonl"
attack "all prompts too long" 2 "too long" "${SCORED[@]}" --rollout-max-prompt-len 1
{
    cat "$WORK/p.jsonl"
    printf '{"prompt": "%0200d", "label": "1"}\n' 1 2
} >"$WORK/long.jsonl"
attack "evaluation prompts left out" 0 "2 prompts" "${SCORED[@]}" --eval-interval 2 \
    --eval-prompt-data e "$WORK/long.jsonl" --eval-max-prompt-len 60

copy() {
    rm -rf "$WORK/m"
    cp -r "$MODEL" "$WORK/m"
}
copy
rm "$WORK/m/tokenizer.json"
attack "model without tokenizer" 1 "tokenizer.json" "${SCORED[@]}" --hf-checkpoint "$WORK/m"
for size in 0 7 100 5000 200000; do
    copy
    truncate -s $size "$WORK/m/model.safetensors"
    attack "weights cut at $size" 1 "model.safetensors" "${SCORED[@]}" --hf-checkpoint "$WORK/m"
done
copy
truncate -s 40 "$WORK/m/config.json"
attack "cut config" 1 "config.json" "${SCORED[@]}" --hf-checkpoint "$WORK/m"
copy
truncate -s 2000 "$WORK/m/tokenizer.json"
attack "cut tokenizer" 1 "tokenizer" "${SCORED[@]}" --hf-checkpoint "$WORK/m"
attack "run folder under a file" 2 "p.jsonl/x" "${SCORED[@]}" --run-dir "$WORK/p.jsonl/x"
attack "checkpoints under a file" 2 "p.jsonl/x" "${SCORED[@]}" --save "$WORK/p.jsonl/x"
attack "export over the model" 2 "--save-hf" "${SCORED[@]}" --save-hf "$MODEL"
mkdir "$WORK/mine"
echo '{}' >"$WORK/mine/config.json"
echo 'years of work' >"$WORK/mine/thesis.txt"
attack "export over a user's folder" 2 "thesis.txt" "${SCORED[@]}" --save-hf "$WORK/mine"
check "an export removed a user's file" test -f "$WORK/mine/thesis.txt"

# ---- generate and import ----------------------------------------------------------------------

GEN=("$MILES" generate --hf-checkpoint "$MODEL" --threads 1 --max-tokens 4)
attack "generate" 0 "" "${GEN[@]}" --prompt hello
attack "empty prompt" 2 "0 tokens" "${GEN[@]}" --prompt "" --raw
attack "prompt that is no text" 2 "UTF-8" "${GEN[@]}" --prompt $'\xff\xfe'
attack "unknown instruction set" 1 "avx3" "${GEN[@]}" --prompt x --isa avx3
attack "three leaves" 2 "--numeric-leaves" "${GEN[@]}" --prompt x --numeric-leaves 3
attack "too many tokens" 2 "" "${GEN[@]}" --prompt x --max-tokens 5000
attack "output to a full disk" 1 "" bash -c '"$@" >/dev/full' - "${GEN[@]}" --prompt hello
attack "import of nothing" 1 "none.gguf" "$MILES" import "$WORK/none.gguf" "$WORK/imported"
attack "import of another file" 1 "p.jsonl" "$MILES" import "$WORK/p.jsonl" "$WORK/imported"
attack "import usage" 2 "usage" "$MILES" import one

# ---- rewards ----------------------------------------------------------------------------------

attack "reward that raises" 1 "no reward today" "${TRAIN[@]}" --custom-rm-path "$WORK/r.py:raises"
attack "reward that exits" 1 "exit status 3" "${TRAIN[@]}" --custom-rm-path "$WORK/r.py:quits" \
    --reward-workers 2
attack "reward that hangs" 1 "no reward within" "${TRAIN[@]}" --custom-rm-path "$WORK/r.py:hangs" \
    --reward-timeout 0.1 --reward-workers 8 --n-samples-per-prompt 2 --rollout-batch-size 1
attack "reward that is text" 1 "rewards failed" "${TRAIN[@]}" --custom-rm-path "$WORK/r.py:text"
attack "no such function" 2 "nosuch" "${TRAIN[@]}" --custom-rm-path "$WORK/r.py:nosuch"
attack "no such file" 2 "none.py" "${TRAIN[@]}" --custom-rm-path "$WORK/none.py:f"
attack "no such grader" 2 "mathh" "${TRAIN[@]}" --rm-type mathh
attack "no such Python" 1 "/none/python" "${SCORED[@]}" --reward-python /none/python
attack "object without a key" 1 "--reward-key" "${TRAIN[@]}" --custom-rm-path "$WORK/r.py:table"
attack "some rewards fail" 0 "not this one" "${TRAIN[@]}" --custom-rm-path "$WORK/r.py:some"
check "failed groups are not counted" grep -q '"rollout/reward_failed_groups":[1-9]' \
    "$WORK/run/metrics.jsonl"

# ---- saved rollouts ---------------------------------------------------------------------------

attack "dump" 0 "step 2/2" "${TRAIN[@]}" --custom-rm-path "$WORK/r.py:table" --reward-key score \
    --save-debug-rollout-data "$WORK/d/{rollout_id}.jsonl"
REPLAY=("${TRAIN[@]}" --debug-train-only --load-debug-rollout-data "$WORK/d/{rollout_id}.jsonl")
attack "train on a dump" 0 "step 2/2" "${REPLAY[@]}"
sed 3q "$WORK/d/1.jsonl" >"$WORK/d/cut" && mv "$WORK/d/cut" "$WORK/d/1.jsonl"
attack "cut dump" 1 "1.jsonl has 2 samples" "${REPLAY[@]}"
sed -i '3s/.*/{"tokens": [1, "x"], "response_length": 1}/' "$WORK/d/1.jsonl"
attack "malformed dump" 2 "1.jsonl line 3" "${REPLAY[@]}"
sed -i 's/"rollout_log_probs":[^]]*\]/"rollout_log_probs":null/' "$WORK/d/0.jsonl"
attack "dump without log-probs" 2 "log-probs" "${REPLAY[@]}" --use-rollout-logprobs --kl-coef 0.1
nothing_left "all that failed"

# ---- full disk, bad checkpoints ---------------------------------------------------------------

KEEP=("${SCORED[@]}" --save "$WORK/keep" --load "$WORK/keep" --save-interval 1)
attack "a run that saves" 0 "step 2/2" "${KEEP[@]}"
BEFORE=$(find "$WORK/keep" -path "$WORK/keep/run" -prune -o ! -name lock -type f -exec sha256sum {} + | sort)
# shellcheck disable=SC2016
attack "full disk" 1 "cannot write" bash -c 'ulimit -f 100; exec "$@"' - "${KEEP[@]}" --num-rollout 4 \
    --disk-wait 1
check "a full disk hurt a checkpoint" test "$BEFORE" = \
    "$(find "$WORK/keep" -path "$WORK/keep/run" -prune -o ! -name lock -type f -exec sha256sum {} + | sort)"
nothing_left "a full disk"
attack "another number of leaves" 2 "leaves" "${KEEP[@]}" --num-rollout 3 --numeric-leaves 4
attack "other bundles" 2 "bundle_rows" "${KEEP[@]}" --num-rollout 3 --numeric-bundle 0
cp -r "$WORK/keep" "$WORK/hurt"
HURT=("${SCORED[@]}" --load "$WORK/hurt" --num-rollout 3)
truncate -s 20000 "$WORK/hurt/iter_0000001/optim.safetensors"
attack "cut moments" 1 "optim.safetensors" "${HURT[@]}"
rm -r "$WORK/hurt/iter_0000001"
attack "missing checkpoint" 1 "iter_0000001" "${HURT[@]}"
echo release >"$WORK/hurt/latest_checkpointed_iteration.txt"
attack "another program's checkpoint" 1 "latest_checkpointed_iteration.txt" "${HURT[@]}"

# ---- signals ----------------------------------------------------------------------------------

STEPS=8
# start NAME: the long run under its own name, in the background as a group of its own. PID is set.
start() {
    setsid "${TRAIN[@]}" --num-rollout $STEPS --custom-rm-path "$WORK/r.py:slow" \
        --reward-workers 1 --run-dir "$WORK/$1-run" --save "$WORK/$1-ckpt" --load "$WORK/$1-ckpt" \
        --save-interval 1 --save-hf "$WORK/$1-hf" --eval-interval 4 \
        --eval-prompt-data e "$WORK/p.jsonl@[0:3]" >>"$WORK/$1.log" 2>&1 </dev/null &
    PID=$!
}

# finish NAME: waits for the run; its exit code is in RC.
finish() {
    RC=0
    wait "$PID" 2>/dev/null || RC=$?
}

# steps NAME: steps in the metrics so far.
steps() {
    grep -c '"rollout/step"' "$WORK/$1-run/metrics.jsonl" 2>/dev/null || true
}

# wait_steps NAME N: until the run has made N steps, 20 s at most.
wait_steps() {
    local i n
    for i in $(seq 1000); do
        n=$(steps "$1")
        [ "${n:-0}" -lt "$2" ] || return 0
        sleep 0.02
    done
    fail "$1 did not reach step $2 in $i looks"
}

sha() {
    sha256sum "$WORK/$1-hf/model.safetensors" | cut -d ' ' -f 1
}

# complete NAME: weights as of the undisturbed run, each metrics row once, nothing left.
complete() {
    check "$1: other weights than an undisturbed run" test "$(sha "$1")" = "$WANT"
    check "$1: rows of the metrics" test "$(lib_metric "$WORK/$1-run" rollout/step | tr '\n' ' ')" = \
        "$(seq -s ' ' 0 $((STEPS - 1))) "
    check "$1: rows of the evaluations" test \
        "$(lib_metric "$WORK/$1-run" eval/step | tr '\n' ' ')" = "0 4 8 "
    nothing_left "$1"
}

start whole
finish
check "the undisturbed run failed: $(tail -n 1 "$WORK/whole.log")" test $RC = 0
WANT=$(sha whole)
complete whole

# stopped NAME SIGNAL TARGET: stops by a signal in the middle, then goes on.
stopped() {
    local made
    start "$1"
    wait_steps "$1" 3
    kill -s "$2" -- "$3$PID"
    finish
    check "$1: exit code $RC after the signal" test $RC = 0
    made=$(steps "$1")
    check "$1: stopped after $made steps" test "$made" -ge 3 -a "$made" -lt $STEPS
    check "$1: no checkpoint of step $made" test \
        "$(cat "$WORK/$1-ckpt/latest_checkpointed_iteration.txt")" = $((made - 1))
    nothing_left "$1"
    start "$1"
    finish
    check "$1: exit code $RC when resumed" test $RC = 0
    complete "$1"
}
stopped term TERM ""
stopped ctrl-c INT - # the whole group, as a terminal does

# killed again and again, at any moment
RANDOM=7
kills=0
start killed
while [ $kills -lt 8 ]; do
    sleep "0.$((RANDOM % 8 + 1))"
    kill -KILL "$PID" 2>/dev/null || break
    finish
    kills=$((kills + 1))
    start killed
done
finish
check "killed: exit code $RC" test $RC = 0
check "killed: only $kills kills" test $kills -ge 4
complete killed

# a second signal ends a run that waits for a reward that never comes
start_hanging() {
    setsid "${TRAIN[@]}" --custom-rm-path "$WORK/r.py:hangs" --reward-timeout 50 \
        --run-dir "$WORK/hang-run" >"$WORK/hang.log" 2>&1 </dev/null &
    PID=$!
}
start_hanging
for _ in $(seq 200); do
    [ ! -s "$WORK/hang-run/manifest.json" ] || break
    sleep 0.05
done
sleep 0.3
kill -TERM "$PID"
sleep 0.2
kill -TERM "$PID"
finish
check "hanging: exit code $RC after two signals" test $RC = 143
nothing_left hanging

check "the model was changed" test "$(cat "$MODEL"/* | sha256sum)" = "$SUM"

echo "cli_attacks=$attacks failures=$failures"
[ "$failures" = 0 ]
