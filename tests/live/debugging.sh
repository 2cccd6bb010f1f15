#!/usr/bin/env bash
# Everything by which a run is debugged, on a tiny random model: tests/live/debugging.sh
#
# (a) `miles diff`: equal runs are equal, whatever the number of threads; a change planted in data, seed,
# reward or learning rate is named by its step, phase, tensor and element. (b) TensorBoard, MLflow and
# wandb (offline) have the run's figures, read by their own packages; a tracker that is not there ends no
# run; the trace is JSON, also of a run that was killed. (c) `miles audit` finds nothing in a healthy run,
# and each thing that was planted. (d) A .pt dump of Miles is imported, audited and trained on; one that
# would run a program is refused and does not run it. (e) The checks of the first step say what was
# planted. (f) `miles logs` merges run and engines, `miles report` packs without secrets, and the signal
# phrases are in the logs.
#
# Ends with one line of figures.

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_python
lib_work
TRACKERS=$("$ROOT/tools/setup.sh" trackers)/bin/python
HELP=$ROOT/tests/live/debugging.py
live_tiny "$WORK/model" --family llama --vocab 512
python3 "$HELP" prompts "$WORK/prompts.jsonl"
for n in 7 5; do
    cat >"$WORK/reward$n.py" <<PY
def reward(args, sample):
    return sum(sample.response.encode()) % $n / 7
PY
done

STEPS=3
ARGS=(
    --hf-checkpoint "$WORK/model" --prompt-data "$WORK/prompts.jsonl" --input-key prompt --label-key label
    --rollout-shuffle --num-rollout "$STEPS" --rollout-batch-size 4 --n-samples-per-prompt 4
    --rollout-temperature 1 --rollout-max-response-len 24 --custom-rm-path "$WORK/reward7.py:reward"
    --use-dynamic-batch-size --max-tokens-per-gpu 2048 --lr 1e-3 --lr-decay-style constant
)
KEPT=(--save-interval 1)

# run NAME ARGS...: a run that keeps samples and checkpoints.
run() {
    local name=$1
    shift
    lib_train "$WORK/$name" "${ARGS[@]}" "${KEPT[@]}" --save "$WORK/$name-ckpt" \
        --dump-details "$WORK/$name-details" "$@"
}

# said FILE TEXT: the file has it.
said() {
    grep -qE -- "$2" "$1" || {
        tail -n 40 "$1" >&2
        lib_die "$1 does not say: $2"
    }
}

# ---- (a) diff ----

# differs NAME LINE: where a and the run part, by the last line of `miles diff`.
differs() {
    local code=0
    "$MILES" diff "$WORK/a" "$WORK/$1" >"$WORK/diff-$1" || code=$?
    live_equal "exit of diff a $1" $code "$([[ $2 == equal=1* ]] && echo 0 || echo 1)"
    if ! tail -n 1 "$WORK/diff-$1" | grep -qE -- "^$2"; then
        cat "$WORK/diff-$1" >&2
        lib_die "diff a $1: not $2"
    fi
}

run a --colocate
run same --colocate
run threads --colocate --threads 1
run seed --colocate --rollout-seed 43
run reward --colocate --custom-rm-path "$WORK/reward5.py:reward"
run lr --colocate --lr 2e-3
run loss --colocate --calculate-per-token-loss
run determinism --colocate --debug-determinism
sed 's/ are"/ be"/' "$WORK/prompts.jsonl" >"$WORK/other.jsonl"
run data --colocate --prompt-data "$WORK/other.jsonl"
# the sampling seed without another order of prompts: only tokens differ
lib_train "$WORK/hot" "${ARGS[@]}" --colocate --rollout-temperature 0.9
differs same "equal=1 steps=$STEPS"
differs threads "equal=1 steps=$STEPS"
differs determinism "equal=1 steps=$STEPS"
differs seed 'equal=0 rollout=0 step=0 phase=data tensor=- element=0:0'
differs reward 'equal=0 rollout=0 step=0 phase=rewards tensor=- element=[0-9]+:0'
differs loss 'equal=0 rollout=[0-9] step=0 phase=gradient tensor=model\.embed_tokens\.weight element=[0-9]+,[0-9]+'
differs lr 'equal=0 rollout=0 step=0 phase=weights tensor=model\.embed_tokens\.weight element=0,[0-9]+'
differs data 'equal=0 rollout=[0-9]+ step=0 phase=data tensor=- element=[0-9]+:[0-9]+'
differs hot 'equal=0 rollout=0 step=0 phase=tokens tensor=- element=-'
said "$WORK/diff-hot" 'did not keep the samples.*--dump-details'
said "$WORK/diff-lr" 'options that differ: lr 0.001 and 0.002$'
# a run that was stopped and went on has the same hashes, and a replay leaves them as they are
run again --colocate --debug-exit-after-rollout 1
run again --colocate
differs again "equal=1 steps=$STEPS"
cmp -s "$WORK/a/hashes.jsonl" "$WORK/again/hashes.jsonl" || lib_die "hashes of a run that went on"
"$MILES" replay "$WORK/again" >"$WORK/replay.log" 2>&1 || lib_die "replay: $(tail -n 3 "$WORK/replay.log")"
cmp -s "$WORK/a/hashes.jsonl" "$WORK/again/hashes.jsonl" || lib_die "a replay wrote hashes"
# a checkpoint of another run: the first weights differ
lib_train "$WORK/warm" "${ARGS[@]}" --colocate --load "$WORK/lr-ckpt" --start-rollout-id 0
differs warm 'equal=0 rollout=0 step=- phase=weights'
diffs=11

# ---- (b) trackers and traces ----

mkdir "$WORK/mlruns" "$WORK/wandb"
MLFLOW_ALLOW_FILE_STORE=true WANDB_MODE=offline run tracked --colocate --reward-python "$TRACKERS" \
    --use-wandb --wandb-mode offline --wandb-dir "$WORK/wandb" --wandb-project miles --wandb-group tiny \
    --use-mlflow --mlflow-tracking-uri "file://$WORK/mlruns" --use-tensorboard \
    --tensorboard-dir "$WORK/tb" --rm-url http://me:hunter2@nowhere/x
differs tracked "equal=1 steps=$STEPS"
want=$(python3 -c '
import json, sys
for line in open(sys.argv[1]):
    row = json.loads(line)
    print(row["rollout/step"], repr(round(row["rollout/raw_reward"], 6)))' "$WORK/tracked/metrics.jsonl")
live_equal "steps" "$(wc -l <<<"$want")" "$STEPS"
for folder in "$WORK/tb" "$WORK/tracked/tensorboard"; do
    live_equal "$folder" "$("$TRACKERS" "$HELP" tensorboard "$folder" rollout/raw_reward)" "$want"
done
live_equal "MLflow" \
    "$(MLFLOW_ALLOW_FILE_STORE=true "$TRACKERS" "$HELP" mlflow "file://$WORK/mlruns" rollout/raw_reward)" "$want"
find "$WORK/wandb" -name '*.wandb' -exec grep -qa rollout/raw_reward {} + || lib_die "wandb has no metrics"
# a Python without them: a warning each, and the run ends well
lib_train "$WORK/bare" "${ARGS[@]}" --colocate --use-wandb --use-mlflow --reward-python "$PYTHON"
said "$WORK/bare.log" 'wandb: .*wandb.*the run goes on without it'
said "$WORK/bare.log" 'mlflow: .*mlflow.*the run goes on without it'
live_equal "steps without trackers" "$(grep -c '^step ' "$WORK/bare.log")" "$STEPS"

spans=$(python3 "$HELP" trace "$WORK/a/trace.json" closed)
for span in loop:rollout loop:train loop:save trainer:train_step checkpoint:save_model "engine 0:generate"; do
    [[ " $spans " == *" $span "* ]] || lib_die "no span $span in: $spans"
done
"$MILES" train --run-dir "$WORK/killed" "${ARGS[@]}" --colocate --num-rollout 100000 >"$WORK/killed.log" 2>&1 &
TRAINER=$!
lib_ends $TRAINER
for _ in $(seq 300); do
    ! grep -qs '^step 3/' "$WORK/killed.log" || break
    sleep 0.1
done
kill -KILL $TRAINER
wait $TRAINER 2>/dev/null || true
spans=$(python3 "$HELP" trace "$WORK/killed/trace.json" cut)
[[ " $spans " == *" loop:train "* ]] || lib_die "a killed run's trace: $spans"

# ---- (c) audit ----

# audit FILES... LINE: the last line of `miles audit`.
audit() {
    local want=${*: -1} code=0
    "$MILES" audit "${@:1:$#-1}" >"$WORK/audit" 2>"$WORK/audit.err" || code=$?
    live_equal "audit ${*:1:1}" "$(tail -n 1 "$WORK/audit")" "$want"
    live_equal "exit of audit ${*:1:1}" $code "$([[ $want =~ (changed|mismatch)=[1-9]|diff=(0\.|[1-9]) ]] && echo 3 || echo 0)"
}
audit "$WORK/a" "samples=$((STEPS * 16)) reward_changed=0 token_mismatch=0 logp_max_diff=0"
audit "$WORK/a" --custom-rm-path "$WORK/reward5.py:reward" --rollout 0 --no-logp \
    "samples=16 reward_changed=$(python3 -c '
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])][1:]
print(sum(sum(r["response"].encode()) % 7 != sum(r["response"].encode()) % 5 for r in rows))' \
        "$WORK/a-details/rollout_data/0.jsonl") token_mismatch=0 logp_max_diff=-"
planted() {
    python3 "$HELP" plant "$WORK/a-details/rollout_data/0.jsonl" "$WORK/planted.jsonl" "$1"
    audit "$WORK/planted.jsonl" --hf-checkpoint "$WORK/model" --custom-rm-path "$WORK/reward7.py:reward" \
        "samples=16 $2"
}
planted reward 'reward_changed=1 token_mismatch=0 logp_max_diff=0'
planted token 'reward_changed=0 token_mismatch=1 logp_max_diff=0'
planted text 'reward_changed=1 token_mismatch=1 logp_max_diff=0'
planted logp 'reward_changed=0 token_mismatch=0 logp_max_diff=0.5'
audits=6

# ---- (d) dumps of Miles ----

"$PYTHON" "$HELP" pt "$WORK/a-details/rollout_data/0.jsonl" "$WORK/data_0.pt"
python3 "$ROOT/tools/import_dump.py" "$WORK/data_0.pt" --out "$WORK/imported/{rollout_id}.jsonl" 2>/dev/null
audit "$WORK/imported/0.jsonl" --hf-checkpoint "$WORK/model" --custom-rm-path "$WORK/reward7.py:reward" \
    'samples=16 reward_changed=0 token_mismatch=0 logp_max_diff=0'
# the imported samples train as the saved ones do
for from in "$WORK/a-details/rollout_data" "$WORK/imported"; do
    name=train-only-$(basename "$from")
    lib_train "$WORK/$name" "${ARGS[@]}" --num-rollout 1 --debug-train-only \
        --load-debug-rollout-data "$from/{rollout_id}.jsonl"
done
"$MILES" diff "$WORK/train-only-rollout_data" "$WORK/train-only-imported" >"$WORK/diff" ||
    lib_die "imported samples: $(cat "$WORK/diff")"
lib_train "$WORK/half" "${ARGS[@]}" --num-rollout 1 --debug-train-only --rollout-batch-size 2 \
    --load-debug-rollout-data "$WORK/a-details/rollout_data/{rollout_id}.jsonl" \
    --load-debug-rollout-data-subsample 0.5
mkdir "$WORK/hostile"
python3 "$HELP" hostile "$WORK/hostile"
hostile=0
for pt in "$WORK"/hostile/*.pt; do
    code=0
    "$PYTHON" "$ROOT/tools/import_dump.py" "$pt" --out "$WORK/hostile/out.jsonl" 2>"$WORK/hostile/err" || code=$?
    live_equal "exit of import_dump.py $pt" $code 3
    said "$WORK/hostile/err" 'refused: it asks for'
    [ ! -e "$WORK/hostile/ran" ] || lib_die "$pt was run"
    hostile=$((hostile + 1))
done

# ---- (e) the first step ----

checks() {
    lib_train "$WORK/check" "${ARGS[@]}" --colocate --num-rollout 1 "$@"
}
said "$WORK/a.log" 'check: rewards are from'
said "$WORK/a.log" 'check: forward_logp_max_diff 0 over'
said "$WORK/a.log" 'check: first step: [0-9]+ checks'
checks --use-kl-loss --kl-loss-coef 0.01
said "$WORK/check.log" 'actor and reference agree bit for bit'
echo 'def zero(args, sample): return 0' >"$WORK/zero.py"
checks --custom-rm-path "$WORK/zero.py:zero"
said "$WORK/check.log" 'warn check: all 16 rewards are 0: is --label-key'
said "$WORK/check.log" 'warn check: the gradient is 0'
checks --rollout-max-response-len 4
said "$WORK/check.log" 'warn check: all 16 responses were cut'
checks --apply-chat-template
said "$WORK/check.log" 'check: the chat template is fit'

# ---- (f) logs, report, phrases ----

cat >"$WORK/dies.py" <<'PY'
import os
def reward(args, sample):
    if sample.index == 3 and not os.path.exists(args.run_dir + "/died"):
        open(args.run_dir + "/died", "w").close()
        os._exit(7)
    return sum(sample.response.encode()) % 7 / 7
PY
run engines --rollout-num-gpus 2 --custom-rm-path "$WORK/dies.py:reward" \
    --wandb-key 0123456789abcdef0123456789abcdef01234567
"$MILES" logs "$WORK/engines" >"$WORK/merged"
awk '{ if ($1 < last) exit 1; last = $1 }' "$WORK/merged" || lib_die "logs are not in the order of time"
for source in run engine_0 engine_1; do
    awk -v s=$source '$2 == s { n++ } END { exit !n }' "$WORK/merged" || lib_die "no line of $source"
done
"$MILES" logs "$WORK/engines" --level warn --grep WorkerCrashed >"$WORK/merged.warn"
said "$WORK/merged.warn" 'warn +reward: WorkerCrashed: a reward worker was lost'
spans=$(python3 "$HELP" trace "$WORK/engines/trace.json" closed)
for span in "loop:weight_sync" "engine 0:weight_sync: take" "engine 1:weight_sync: proof" "engine 1:ready"; do
    [[ " $spans " == *" $span "* ]] || lib_die "no span $span in: $spans"
done
for phrase in 'Loaded checkpoint from' weight_sync forward_logp_max_diff WorkerCrashed; do
    said "$WORK/engines/log.txt" "$phrase"
done
timeout 3 "$MILES" logs "$WORK/a" --follow >"$WORK/followed" &
FOLLOW=$!
lib_ends $FOLLOW
sleep 1
printf '2030-01-01T00:00:00.000Z info train: written later\n' >>"$WORK/a/log.txt"
wait $FOLLOW || true
said "$WORK/followed" '2030-01-01T00:00:00.000Z run +info +train: written later'
for end in tar.gz tar.zst; do
    "$MILES" report "$WORK/engines" --output "$WORK/report.$end" >/dev/null
done
mkdir "$WORK/report"
tar -xzf "$WORK/report.tar.gz" -C "$WORK/report"
for name in config.json manifest.json log.txt metrics.jsonl hashes.jsonl machine.txt files.txt engines/engine_0.log; do
    [ -s "$WORK/report/miles-report-engines/$name" ] || lib_die "the report has no $name"
done
! grep -rq 0123456789abcdef "$WORK/report" "$WORK/engines" || lib_die "a key was written down"
"$MILES" report "$WORK/tracked" --output "$WORK/tracked.tgz" >/dev/null
! tar -xzOf "$WORK/tracked.tgz" | grep -q hunter2 || lib_die "a password is in the report"
"$PYTHON" - "$WORK/report.tar.zst" <<'PY'
import sys
assert open(sys.argv[1], "rb").read(4) == b"\x28\xb5\x2f\xfd"
PY

hash_share=$(python3 -c '
import json, statistics, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
print("%.2g" % (100 * statistics.median(r["perf/hash_time"] / r["perf/step_time"] for r in rows)))' "$WORK/a/metrics.jsonl")
echo "diffs=$diffs audits=$audits hostile_refused=$hostile hash_percent_of_tiny_step=$hash_share failed=0"
