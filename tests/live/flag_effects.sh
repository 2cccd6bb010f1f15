#!/usr/bin/env bash
# Small flags of Miles do what they say: tests/live/flag_effects.sh
#
# Runs of three steps of a tiny model, each with one flag, whose effect is looked up where it must show:
# the exported weights, the checkpoints, the samples, the log, the exit code.
# Ends with effects=N failed=0.

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_python
lib_work

live_tiny "$WORK/model" --family llama --vocab 512
python3 - "$WORK" <<'PY'
import json, sys

with open(sys.argv[1] + "/prompts.jsonl", "w") as out:
    for i in range(12):
        out.write(json.dumps({"prompt": f"the number {i * 37 % 101} and", "label": str(i)}) + "\n")
with open(sys.argv[1] + "/reward.py", "w") as out:
    out.write('''
def reward(args, sample):
    return sum(sample.response.encode()) % 7 / 7

def named(args, sample):
    score = reward(args, sample)
    return {"score": score, "kind": "high" if score > 0.5 else "low"}
''')
PY

effects=0
failed=0

# holds WHAT COMMAND...: counts an effect that shows when the command succeeds.
holds() {
    local what=$1
    shift
    effects=$((effects + 1))
    if ! "$@"; then
        failed=$((failed + 1))
        lib_say "$what: it does not show"
    fi
}

# run NAME ARGS...: a run of three steps; leaves NAME/ (run folder), NAME.log, NAME-hf.
run() {
    local name=$1
    shift
    "$MILES" train --run-dir "$WORK/$name" --hf-checkpoint "$WORK/model" --prompt-data "$WORK/prompts.jsonl" \
        --input-key prompt --label-key label --num-rollout 3 --rollout-batch-size 4 --n-samples-per-prompt 4 \
        --rollout-max-response-len 8 --custom-rm-path "$WORK/reward.py:reward" --use-dynamic-batch-size \
        --max-tokens-per-gpu 512 --lr 1e-3 --lr-decay-style constant --save-hf "$WORK/$name-hf" \
        --save "$WORK/$name-ckpt" "$@" >"$WORK/$name.out" 2>"$WORK/$name.log"
}

# ok NAME ARGS...: the same, and it must succeed.
ok() {
    run "$@" || lib_die "$1: $(tail -n 3 "$WORK/$1.log")"
}

sha() {
    sha256sum "$1/model.safetensors" | cut -d ' ' -f 1
}
same() {
    [ "$(sha "$WORK/$1-hf")" = "$(sha "$WORK/$2-hf")" ]
}
differ() {
    ! same "$1" "$2"
}
logged() {
    grep -q -e "$2" "$WORK/$1.log"
}

ok whole --save-interval 1 --debug-rollout-print-every 2
holds "--debug-rollout-print-every" [ "$(python3 -c '
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1]) if line.startswith("{")]
assert all(r["prompt"] and r["response"] and "reward" in r for r in rows)
print(sorted({r["rollout_id"] for r in rows}), len(rows))' "$WORK/whole.out")" = "[0, 2] 32" ]

# ---- checkpoints

ok step0 --load "$WORK/whole-ckpt" --ckpt-step 0
holds "--ckpt-step" logged step0 "resuming after rollout 0"
holds "--ckpt-step goes on to the same bits" same step0 whole
ok fresh --load "$WORK/whole-ckpt" --ckpt-step 0 --no-load-optim
holds "--no-load-optim" logged fresh "without optimizer state"
holds "--no-load-optim begins with other moments" differ fresh whole
ok tuned --load "$WORK/whole-ckpt" --finetune
holds "--finetune" [ "$(lib_metric "$WORK/tuned" rollout/step | sed -n 1p)" = 0 ]
holds "--finetune begins with the weights" differ tuned whole
touch "$WORK/save-now"
ok sentinel --save-trigger-sentinel "$WORK/save-now"
holds "--save-trigger-sentinel saves" [ -d "$WORK/sentinel-ckpt/iter_0000000" ]
holds "--save-trigger-sentinel is used up" [ ! -e "$WORK/save-now" ]

# ---- the algorithm

ok clip --use-tis --tis-clip 0.9
ok threshold --use-tis --tis-threshold 0.9
ok tis --use-tis
holds "--tis-threshold is --tis-clip" same clip threshold
holds "--tis-threshold" differ tis threshold
ok frozen --debug-disable-optimizer
ok frozen2 --debug-disable-optimizer --num-rollout 1
holds "--debug-disable-optimizer leaves the weights" same frozen frozen2
holds "--debug-disable-optimizer" differ frozen whole
holds "--debug-disable-optimizer computes gradients" [ "$(lib_metric "$WORK/frozen" train/grad_norm | wc -l)" = 3 ]
ok saving --gradient-checkpointing
holds "--gradient-checkpointing changes no bit" same saving whole
ok fsdp --train-backend fsdp
ok given --weight-decay 0 --adam-beta2 0.95
holds "--train-backend fsdp has its defaults" same fsdp given
holds "--train-backend fsdp" differ fsdp whole
ok split --tensor-model-parallel-size 2 --actor-num-nodes 2 --colocate --offload-train --attention-backend flash
holds "a layout of many ranks changes no bit" same split whole
holds "what has no effect is kept with the run" [ "$(python3 -c '
import json, sys
print(json.load(open(sys.argv[1]))["without_effect"]["tensor-model-parallel-size"])' "$WORK/split/config.json")" = 2 ]
ok named --custom-rm-path "$WORK/reward.py:named" --reward-key score --log-reward-category kind
holds "--log-reward-category" [ "$(python3 -c '
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
rows = [r for r in rows if "rollout/raw_reward" in r]
shares = [r.get("rollout/error_cat/high", 0) + r.get("rollout/error_cat/low", 0) for r in rows]
print(len(rows), all(abs(s - 1) < 1e-9 for s in shares))' "$WORK/named/metrics.jsonl")" = "3 True" ]

# ---- prompts of the user's own: no file is read

ok source --disable-rollout-global-dataset --prompt-data /nonexistent --rollout-max-prompt-len 64 \
    --data-source-path "$ROOT/examples/python/rollouts.py:Sums"
holds "--disable-rollout-global-dataset" [ "$(lib_metric "$WORK/source" rollout/step | wc -l)" = 3 ]
holds "--disable-rollout-global-dataset tells of a file" logged source "prompt-data /nonexistent: not read"

# ---- stop strings: what is sampled is the beginning of what is sampled without

DUMP=(--save-debug-rollout-data "$WORK/{rollout_id}-NAME.jsonl" --num-rollout 1 --rollout-max-response-len 24)
ok plain "${DUMP[@]//NAME/plain}"
ok stopped "${DUMP[@]//NAME/stopped}" --rollout-stop a "<|endoftext|>" "e r"
ok served "${DUMP[@]//NAME/served}" --rollout-stop a "<|endoftext|>" "e r" --rollout-num-gpus 2
stops() {
    python3 - "$WORK" "$1" <<'PY'
import json, sys

def rows(name):
    lines = list(open(f"{sys.argv[1]}/0-{name}.jsonl"))[1:]
    return [json.loads(line) for line in lines]

ended = 0
for whole, cut in zip(rows("plain"), rows(sys.argv[2])):
    n = cut["response_length"]
    assert whole["tokens"][: len(cut["tokens"])] == cut["tokens"], "other tokens"
    found = [s for s in ("a", "<|endoftext|>", "e r") if s in cut["response"]]
    assert bool(found) == (len(cut["tokens"]) < len(whole["tokens"]) or bool(found))
    if len(cut["tokens"]) < len(whole["tokens"]):
        ended += 1
        assert found and cut["status"] == "completed", cut
    elif not found:
        assert cut["status"] == whole["status"]
assert ended > 3, ended
PY
}
holds "--rollout-stop" stops stopped
holds "--rollout-stop of a server" stops served
holds "--rollout-stop is the same everywhere" same stopped served

# ---- engines of their own

ENGINE=(--rollout-num-gpus 1 --save-debug-rollout-data "$WORK/dump-{rollout_id}.jsonl")
versions() {
    python3 -c '
import json, sys
seen = set()
for i in range(3):
    for line in list(open(f"{sys.argv[1]}/dump-{i}.jsonl"))[1:]:
        seen |= set(json.loads(line)["weight_versions"])
print(*sorted(seen))' "$WORK"
}
ok remote "${ENGINE[@]}" --debug-weight-sync 1
holds "engines follow the weights" [ "$(versions)" = "0 1 2" ]
holds "--debug-weight-sync asks" logged remote "weight_sync: version 1: .* is asked"
holds "--debug-weight-sync hears" logged remote "weight_sync: version 1: .* answers the proof with 200"
holds "an engine of its own changes no bit" same remote whole
ok skipped "${ENGINE[@]}" --debug-skip-weight-update
holds "--debug-skip-weight-update" [ "$(versions)" = 0 ]

# ---- assertions

ok norms --ci-test --ci-save-grad-norm "$WORK/norms.json"
ok again --ci-test --ci-load-grad-norm "$WORK/norms.json" --ci-metric-checker-key rollout/raw_reward \
    --ci-metric-checker-threshold 0.01
holds "--ci-load-grad-norm" [ "$(python3 -c 'import json,sys; print(len(json.load(open(sys.argv[1]))))' "$WORK/norms.json")" = 3 ]
fails() {
    ! run "$@"
}
holds "--ci-load-grad-norm fails" fails other --ci-load-grad-norm "$WORK/norms.json" --rollout-seed 7
holds "--ci-load-grad-norm says" logged other "more than 3% away"
holds "--ci-metric-checker-threshold fails" fails low --ci-metric-checker-key rollout/raw_reward \
    --ci-metric-checker-threshold 2
holds "--ci-metric-checker-threshold says" logged low "rollout/raw_reward came to"

# ---- a configuration file

cat >"$WORK/run.yaml" <<'YAML'
lr: 0
apply_chat_template_kwargs:
  enable_thinking: false
YAML
ok file --custom-config-path "$WORK/run.yaml"
holds "--custom-config-path wins over flags" logged file "lr overrides --lr"
holds "--custom-config-path" same file frozen
printf 'lr: 1\n  bad: [1\n' >"$WORK/bad.yaml"
holds "a bad file is refused" fails bad --custom-config-path "$WORK/bad.yaml"
holds "a bad file has a line and a column" logged bad "bad.yaml:2:[0-9]*: "

echo "effects=$effects failed=$failed"
[ "$failed" = 0 ]
