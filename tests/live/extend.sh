#!/usr/bin/env bash
# Every extension point with an example of it, in real runs of a tiny model: tests/live/extend.sh
#
# Checks what the examples do, not that they ran: the Python and the C loss against the built-in one,
# the same bits for other micro-batches, a parameter that a hook writes in the exported weights, a run
# that is resumed behind hooks, and what is said of functions that cannot be loaded or called. Ends
# with hooks=... examples=... failed=0.

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_python
lib_work

EX=$ROOT/examples/python
live_tiny "$WORK/model" --family llama --vocab 512
python3 - "$WORK/prompts.jsonl" <<'PY'
import json, sys

with open(sys.argv[1], "w") as out:
    for i in range(24):
        text = f"{'the number ' * (i % 5)}{i * 37 % 101} and {i * 53 % 89} are"
        out.write(json.dumps({"prompt": text, "label": str(i)}) + "\n")
PY
cat >"$WORK/reward.py" <<'PY'
def reward(args, sample):
    return sum(sample.response.encode()) % 7 / 7
PY
for p in reward loss hooks family; do
    cc -shared -fPIC -Wall -Wextra -Werror -I "$ROOT/include" -o "$WORK/$p.so" \
        "$ROOT/examples/plugins/$p.c" -lm
done

RUN=(--hf-checkpoint "$WORK/model" --prompt-data "$WORK/prompts.jsonl" --input-key prompt
    --label-key label --rollout-shuffle --num-rollout 2 --rollout-batch-size 4
    --n-samples-per-prompt 4 --num-steps-per-rollout 2 --rollout-max-response-len 16
    --rollout-stop-token-ids 11 47 83 119 155 191 227 263 299 335 371 407 443 479 # of other lengths
    --use-dynamic-batch-size --max-tokens-per-gpu 256 --lr 1e-4 --lr-decay-style constant
    --reward-python "$PYTHON")
REWARD=(--custom-rm-path "$WORK/reward.py:reward")

declare -A used # flag and kind of every hook that a run was made with
examples=0

# run NAME ARGS...: a run, its exported weights in $WORK/NAME-hf; counts the hooks in ARGS.
run() {
    local name=$1 arg flag=
    shift
    for arg; do
        case $flag in
        --*-path)
            case $arg in
            http*) used["$flag url"]=1 ;;
            *.so:*) used["$flag so"]=1 ;;
            *) used["$flag py"]=1 ;;
            esac
            case $arg in "$EX"* | "$WORK"/*.so:*) examples=$((examples + 1)) ;; esac
            ;;
        esac
        flag=$arg
    done
    lib_train "$WORK/$name" "${RUN[@]}" --save-hf "$WORK/$name-hf" "$@"
}

sha() {
    sha256sum "$WORK/$1-hf/model.safetensors" | cut -d ' ' -f 1
}

# near WHAT A B METRIC TOLERANCE [STEPS]: the metric of the first STEPS steps (all) of two runs agrees. Losses are means of
# terms of order one, in f32 here and in torch: where they cancel, the rounding of those terms is left, so a hundredth counts as
# the least size.
near() {
    paste <(lib_metric "$WORK/$2" "$4") <(lib_metric "$WORK/$3" "$4") | head -n "${6:-1000}" |
        awk -v t="$5" '{ d = $1 - $2; if (d < 0) d = -d; m = $1 < 0 ? -$1 : $1
            if (d > t * (m + 1e-2)) bad = 1; n++ } END { exit bad || n < 1 }' ||
        lib_die "$1: $4 of $2 and $3 differ: $(lib_metric "$WORK/$2" "$4" | tr '\n' ' ') and $(
            lib_metric "$WORK/$3" "$4" | tr '\n' ' ')"
}

# refused TEXT ARGS...: a run that must not start, and says why.
refused() {
    local text=$1
    shift
    if "$MILES" train "${RUN[@]}" --run-dir "$WORK/refused" "$@" >"$WORK/said" 2>&1; then
        lib_die "it ran: $*"
    fi
    grep -qF -- "$text" "$WORK/said" || lib_die "no \"$text\" in: $(tail -3 "$WORK/said")"
}

lib_say "losses"
run built-in "${REWARD[@]}" --entropy-coef 0.01
run py-loss "${REWARD[@]}" --entropy-coef 0.01 --loss-type custom_loss \
    --custom-loss-function-path "$EX/losses.py:ppo"
for m in train/loss train/pg_loss train/entropy_loss train/grad_norm; do
    near "a loss in Python" built-in py-loss $m 1e-4
done
run py-loss-cut "${REWARD[@]}" --entropy-coef 0.01 --loss-type custom_loss \
    --custom-loss-function-path "$EX/losses.py:ppo" --max-tokens-per-gpu 64
live_equal "a Python loss in other micro-batches" "$(sha py-loss)" "$(sha py-loss-cut)"
run plain "${REWARD[@]}"
run so-loss "${REWARD[@]}" --loss-type custom_loss --custom-loss-function-path "$WORK/loss.so:ppo"
for m in train/loss train/pg_loss train/grad_norm; do
    near "a loss in C" plain so-loss $m 1e-4
done
run so-rows "${REWARD[@]}" --num-steps-per-rollout 1 --loss-type custom_loss \
    --custom-loss-function-path "$WORK/loss.so:sharp"
run one-step "${REWARD[@]}" --num-steps-per-rollout 1
# from the second step on other tokens may be sampled
near "a loss over rows of logits" one-step so-rows train/grad_norm 1e-3 1
run so-rows-cut "${REWARD[@]}" --num-steps-per-rollout 1 --loss-type custom_loss \
    --custom-loss-function-path "$WORK/loss.so:sharp" --max-tokens-per-gpu 64
live_equal "a loss over rows in other micro-batches" "$(sha so-rows)" "$(sha so-rows-cut)"
run py-parts "${REWARD[@]}" --use-tis --custom-tis-function-path "$EX/losses.py:soft_tis" \
    --custom-pg-loss-reducer-function-path "$EX/losses.py:sum_over_longest"
run so-parts "${REWARD[@]}" --use-tis --custom-tis-function-path "$WORK/loss.so:soft_tis" \
    --custom-pg-loss-reducer-function-path "$WORK/loss.so:over_longest"
for m in train/pg_loss train/grad_norm train/soft_tis; do
    near "a correction and a reducer in Python and C" py-parts so-parts $m 1e-4
done
[ "$(sha plain)" != "$(sha py-parts)" ] || lib_die "the reducer changed nothing"

lib_say "rewards"
run py-reward --custom-rm-path "$EX/rewards.py:digits" \
    --custom-reward-post-process-path "$EX/rewards.py:centre"
run so-reward --custom-rm-path "$WORK/reward.so:digits" \
    --custom-reward-post-process-path "$WORK/reward.so:digits"
live_equal "rewards in Python and in C" "$(sha py-reward)" "$(sha so-reward)"
run py-group --group-rm --custom-rm-path "$EX/rewards.py:best_of_group"

lib_say "filters"
run py-filters "${REWARD[@]}" --over-sampling-batch-size 6 --partial-rollout \
    --dynamic-sampling-filter-path "$EX/filters.py:spread" \
    --buffer-filter-path "$EX/filters.py:newest_first" \
    --rollout-sample-filter-path "$EX/filters.py:drop_truncated" \
    --rollout-all-samples-process-path "$EX/filters.py:count"
run so-filters "${REWARD[@]}" \
    --dynamic-sampling-filter-path "$WORK/hooks.so:keep_all" \
    --rollout-all-samples-process-path "$WORK/hooks.so:say"
live_equal "a filter in C that keeps everything" "$(sha so-filters)" "$(sha plain)"
"$PYTHON" - "$WORK/port" <<'PY' &
import http.server, json, sys

class Keep(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        call = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert call["hook"] in ("dynamic-sampling-filter-path", "custom-rm-path"), call["hook"]
        reward = sum(call["argv"][0]["response"].encode()) % 7 / 7 if "rm" in call["hook"] else None
        answer = {"keep": True} if reward is None else reward
        body = json.dumps({"value": answer}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Keep)
with open(sys.argv[1] + ".new", "w") as out:
    out.write(str(server.server_port))
import os
os.rename(sys.argv[1] + ".new", sys.argv[1])
server.serve_forever()
PY
SERVICE=$!
lib_ends $SERVICE
for _ in $(seq 100); do
    [ -e "$WORK/port" ] && break
    sleep 0.1
done
URL=http://127.0.0.1:$(cat "$WORK/port")/
run url --custom-rm-path "$URL" --dynamic-sampling-filter-path "$URL"
live_equal "a reward and a filter over HTTP" "$(sha url)" "$(sha plain)"
lib_end $SERVICE

lib_say "rollouts"
OWN=(--rollout-backend miles --rollout-num-gpus 1 --rollout-max-prompt-len 64)
run generate "${REWARD[@]}" "${OWN[@]}" --save-debug-rollout-data "$WORK/generate-{rollout_id}.jsonl" \
    --custom-generate-function-path "$EX/rollouts.py:generate"
run generate-again "${REWARD[@]}" "${OWN[@]}" \
    --custom-generate-function-path "$EX/rollouts.py:generate"
live_equal "a generate function twice" "$(sha generate)" "$(sha generate-again)"
python3 - "$WORK/generate-0.jsonl" <<'PY' || lib_die "the samples are not what the generate function made"
import json, sys

samples = [json.loads(line) for line in open(sys.argv[1])][1:]
assert len(samples) == 16, len(samples)
for s in samples:
    mask, prompt = s["loss_mask"], s["tokens"][: len(s["tokens"]) - s["response_length"]]
    assert len(mask) == s["response_length"] and mask.count(0) == 1, mask
    assert s["tokens"][len(prompt) + mask.index(0)] == s["tokens"][0]
PY
run source "${REWARD[@]}" --rollout-max-prompt-len 64 --data-source-path "$EX/rollouts.py:Sums"
run rollout "${OWN[@]}" --rollout-function-path "$EX/rollouts.py:Rollout" --rm-type f1 \
    --eval-function-path "$EX/rollouts.py:Evaluate" --eval-interval 1
live_equal "groups that the rollout function told" \
    "$(lib_metric "$WORK/rollout" rollout/groups | tr '\n' ' ')" "4.0 4.0 "
[ "$(lib_metric "$WORK/rollout" eval/mine | wc -l)" = 3 ] || lib_die "no evaluations of the function"

lib_say "a family of models"
live_tiny "$WORK/model-qwen3" --family qwen3 --vocab 512
cp -r "$WORK/model-qwen3" "$WORK/model-quiet"
sed -i 's/"model_type": "qwen3"/"model_type": "quiet_llama"/' "$WORK/model-quiet/config.json"
run qwen3 "${REWARD[@]}" --hf-checkpoint "$WORK/model-qwen3"
run quiet "${REWARD[@]}" --hf-checkpoint "$WORK/model-quiet" \
    --custom-model-provider-path "$WORK/family.so:quiet_llama"
live_equal "a family that a plugin describes" "$(sha qwen3)" "$(sha quiet)"

lib_say "hooks"
run py-hooks "${REWARD[@]}" --save "$WORK/py-hooks-ckpt" --save-interval 1 \
    --eval-prompt-data tiny "$WORK/prompts.jsonl" --eval-interval 2 --skip-eval-before-train \
    --custom-megatron-init-path "$EX/hooks.py:init" \
    --custom-megatron-before-log-prob-hook-path "$EX/hooks.py:zero_bias" \
    --custom-megatron-before-train-step-hook-path "$EX/hooks.py:watch_norm" \
    --custom-megatron-post-save-hook-path "$EX/hooks.py:saved" \
    --rollout-data-postprocess-path "$EX/hooks.py:before_training" \
    --custom-rollout-log-function-path "$EX/hooks.py:log_rollout" \
    --custom-eval-rollout-log-function-path "$EX/hooks.py:log_eval" \
    --custom-convert-samples-to-train-data-path "$EX/hooks.py:convert"
live_equal "lines of the post-save hook" "$(wc -l <"$WORK/py-hooks-ckpt/saved.jsonl")" 2
live_equal "norms that the step hook told" "$(lib_metric "$WORK/py-hooks" train/weight_norm | wc -l)" 2
run py-shrink "${REWARD[@]}" \
    --custom-megatron-before-train-step-hook-path "$EX/hooks.py:shrink"
run so-shrink "${REWARD[@]}" --custom-megatron-before-train-step-hook-path "$WORK/hooks.so:shrink" \
    --custom-megatron-init-path "$WORK/hooks.so:say"
live_equal "a parameter written in Python and in C" "$(sha py-shrink)" "$(sha so-shrink)"
[ "$(sha plain)" != "$(sha py-shrink)" ] || lib_die "what the hook wrote is not in the weights"
RUN_SAVED=("${RUN[@]}")
run stopped "${REWARD[@]}" --save "$WORK/stopped-ckpt" --save-interval 1 \
    --debug-exit-after-rollout 1 --custom-megatron-before-train-step-hook-path "$EX/hooks.py:shrink"
run resumed "${REWARD[@]}" --load "$WORK/stopped-ckpt" \
    --custom-megatron-before-train-step-hook-path "$EX/hooks.py:shrink"
RUN=("${RUN_SAVED[@]}")
live_equal "a run resumed behind a hook that writes" "$(sha resumed)" "$(sha py-shrink)"

lib_say "what is refused"
cat >"$WORK/bad.py" <<'PY'
import torch

def two(args, batch):
    return 0

def constant(args, batch, logits, reducer):
    return torch.zeros(()), {}

def raises(args, batch, logits, reducer):
    return batch["no such key"], {}

def wants_logits(args, batch, logits, reducer):
    return logits.sum(), {}

value = 3
PY
LOSS=("${REWARD[@]}" --loss-type custom_loss --custom-loss-function-path)
refused "takes 2 positional arguments, the call has 4" "${LOSS[@]}" "$WORK/bad.py:two"
refused "is not a function" "${LOSS[@]}" "$WORK/bad.py:value"
refused "has no function none" "${LOSS[@]}" "$WORK/bad.py:none"
refused "depends on neither log-probs nor entropies" "${LOSS[@]}" "$WORK/bad.py:constant"
refused "KeyError: 'no such key' ($WORK/bad.py:10)" "${LOSS[@]}" "$WORK/bad.py:raises"
refused "a loss over all logits is a .so" "${LOSS[@]}" "$WORK/bad.py:wants_logits"
refused "No module named 'no_such_package'" "${LOSS[@]}" no_such_package.loss
refused "no symbol none" "${LOSS[@]}" "$WORK/loss.so:none"
refused "has no function \`loss\`" "${LOSS[@]}" "$WORK/loss.so:soft_tis"
refused quiet_llama "${REWARD[@]}" --hf-checkpoint "$WORK/model-quiet"
refused "cannot be made over the network" "${LOSS[@]}" http://127.0.0.1:1/

echo "hooks=${#used[@]} examples=$examples failed=0"
