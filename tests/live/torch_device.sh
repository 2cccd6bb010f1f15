#!/usr/bin/env bash
# The torch device beside the cpu device: tests/live/torch_device.sh
#
# First tests/conform's suite of every operation, with this libtorch. Then:
# (a) Without libtorch the program says in one sentence what to install. (b) `generate` gives the
# same first token's log-prob on both. (c) Ten GRPO steps over the same saved rollouts: the losses
# agree within LOSS_TOL and the gradient norms within NORM_TOL of the cpu's. (d) A few steps with
# rollouts of its own: no token counts as exact, the difference of log-probs is a metric; its
# checkpoint is resumed and its exported weights are read by the cpu device.
#
# The tolerances: both devices round activations to bf16 at the same places, 2^-9 each, but add in
# other orders, so about one value in a thousand lands on the other side of a tie; the residual is
# rounded once more on torch, and attention's probabilities are rounded on cpu only. The tiny model's
# gradient norms agree to 1e-3. SmolLM2 has 30 layers, after which log-probs differ by 0.04 a token
# (root of the mean square, as between any two orders of bf16 sums). A loss is a mean of advantages
# times ratios of such log-probs, over about 180 tokens: 0.04 / sqrt(180) = 3e-3 is one standard
# deviation, and five are allowed. The same noise weighs the tokens of a gradient: norms differ by 1 to
# 4%, and 10% are allowed.
#
# A tiny random model by default; TORCH_MODEL=smollm2 takes the real one. STEPS: default 10.
# Ends with torch_steps=... loss_max_diff=... grad_norm_max_rel=... rollout_logp_diff=...

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

STEPS=${STEPS:-10}

lib_binary
lib_python
lib_work

ARGS=(
    --input-key prompt --label-key label --rollout-shuffle --rollout-temperature 1
    --custom-rm-path "$WORK/reward.py:reward" --n-samples-per-prompt 4
    --use-dynamic-batch-size --max-tokens-per-gpu 2048 --lr 1e-5 --lr-decay-style constant
    --use-kl-loss --kl-loss-coef 0.05 --entropy-coef 0.01
)

case ${TORCH_MODEL:-tiny} in
tiny)
    MODEL=$WORK/model
    live_tiny "$MODEL" --family llama --vocab 512
    LOSS_TOL=2e-4 NORM_TOL=0.005
    ARGS+=(--rollout-batch-size 8 --rollout-max-response-len 24)
    python3 - "$WORK/prompts.jsonl" <<'PY'
import json, sys

with open(sys.argv[1], "w") as out:
    for i in range(40):
        text = f"{'the number ' * (i % 7)}{i * 37 % 101} and {i * 53 % 89} are"
        out.write(json.dumps({"prompt": text, "label": str(i)}) + "\n")
PY
    ;;
smollm2)
    lib_model
    LOSS_TOL=1.5e-2 NORM_TOL=0.1
    # Adam's first steps are signs: what is noise in a gradient moves a weight by a whole --lr.
    ARGS+=(--rollout-batch-size 4 --rollout-max-response-len 16 --apply-chat-template --lr 1e-6)
    python3 "$ROOT/recipes/add_data.py" "$WORK"
    mv "$WORK/train.jsonl" "$WORK/prompts.jsonl"
    ;;
*)
    lib_die "TORCH_MODEL is tiny or smollm2, not $TORCH_MODEL"
    ;;
esac
ARGS+=(--hf-checkpoint "$MODEL" --prompt-data "$WORK/prompts.jsonl")

# Any answer earns something and answers differ, so that every step has a gradient.
cat >"$WORK/reward.py" <<'PY'
def reward(args, sample):
    return sum(sample.response.encode()) % 7 / 7
PY

libs=("$MILES_ORACLES"/lib/python3*/site-packages/torch/lib)
[ -f "${libs[0]}/libtorch_cpu.so" ] || lib_die "no libtorch_cpu.so in ${libs[0]}"
TORCH=(--device torch:cpu --libtorch "${libs[0]}")

# OpenMP threads that wait in a loop take the cores from each other when tests share a machine.
export OMP_WAIT_POLICY=passive

cmake --build "$MILES_BUILD" --target test_device_conform >&2
"$MILES_BUILD/test_device_conform" >&2 || lib_die "an operation is out of its tolerance"

# (a)
if "$MILES" generate --hf-checkpoint "$MODEL" --prompt hello --max-tokens 1 --device torch:cpu \
    --libtorch "$WORK/nowhere" >"$WORK/none.out" 2>"$WORK/none.err"; then
    lib_die "a folder without libtorch was accepted"
fi
live_equal "lines of the refusal" "$(grep -vc ' warn ' "$WORK/none.err")" 1
grep -q 'pip install torch' "$WORK/none.err" || lib_die "it does not say what to install"
[ ! -s "$WORK/none.out" ] || lib_die "it printed something without a device"

# (b)
# first_logp MODEL ARGS...: the log-prob of the first token of an answer.
first_logp() {
    local model=$1
    shift
    "$MILES" generate --hf-checkpoint "$model" --prompt "The capital of France is" --raw \
        --max-tokens 12 --logprobs "$@" >"$WORK/gen.out"
    lib_say "$(head -n 1 "$WORK/gen.out")"
    awk -F '\t' '/^  [0-9]+\t/ { print $2; exit }' "$WORK/gen.out"
}
# same_logp MODEL: both devices give it nearly the same.
same_logp() {
    local a b
    a=$(first_logp "$1")
    b=$(first_logp "$1" "${TORCH[@]}")
    awk -v a="$a" -v b="$b" 'BEGIN { d = a - b; exit !(a != "" && b != "" && d < 0.05 && d > -0.05) }' ||
        lib_die "the first token's log-prob is $a on cpu and $b on torch"
}
same_logp "$MODEL"

# (c)
SAVED="$WORK/saved-{rollout_id}.jsonl"
lib_train "$WORK/rollouts" "${ARGS[@]}" --num-rollout "$STEPS" --save-debug-rollout-data "$SAVED"
REPLAY=("${ARGS[@]}" --num-rollout "$STEPS" --debug-train-only --load-debug-rollout-data "$SAVED")
lib_train "$WORK/cpu" "${REPLAY[@]}"
lib_train "$WORK/torch" "${REPLAY[@]}" "${TORCH[@]}"
compared=$(python3 - "$WORK" "$STEPS" "$LOSS_TOL" "$NORM_TOL" <<'PY'
import json, sys

work, steps, loss_tol, norm_tol = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])


def read(name):
    rows = (json.loads(line) for line in open(f"{work}/{name}/metrics.jsonl"))
    return [(r["train/loss"], r["train/grad_norm"]) for r in rows if "train/grad_norm" in r]


cpu, torch = read("cpu"), read("torch")
for i, (a, b) in enumerate(zip(cpu, torch)):
    print(f"step {i}: loss {a[0]:.6f} {b[0]:.6f}  norm {a[1]:.5f} {b[1]:.5f}", file=sys.stderr)
if len(cpu) != steps or len(torch) != steps:
    sys.exit(f"{len(cpu)} and {len(torch)} steps instead of {steps}")
if len({b[1] for b in torch}) < steps or min(b[1] for b in torch) <= 0:
    sys.exit("a step had no gradient of its own")
loss = max(abs(a[0] - b[0]) for a, b in zip(cpu, torch))
norm = max(abs(a[1] - b[1]) / a[1] for a, b in zip(cpu, torch))
print(f"loss_max_diff={loss:.2e} grad_norm_max_rel={norm:.2e}")
if not (loss <= loss_tol and norm <= norm_tol):
    sys.exit(f"loss off by {loss}, norm by {norm}: {loss_tol} and {norm_tol} are allowed")
PY
) || lib_die "the devices disagree: $compared"

# (d)
lib_train "$WORK/own" "${ARGS[@]}" --num-rollout 2 "${TORCH[@]}" --save "$WORK/ckpt" \
    --save-interval 2 --save-hf "$WORK/hf"
live_equal "steps with rollouts" "$(lib_metric "$WORK/own" train/step | wc -l)" 2
live_equal "exact tokens" "$(lib_metric "$WORK/own" train/exact_tokens | sort -u)" 0
diff=$(lib_metric "$WORK/own" train/train_rollout_logprob_abs_diff | sort -g | tail -n 1)
[ -n "$diff" ] || lib_die "the difference of log-probs is not in the metrics"
awk -v d="$diff" 'BEGIN { exit !(d >= 0 && d < 0.1) }' ||
    lib_die "rollout and trainer differ by $diff a token"
lib_train "$WORK/rest" "${ARGS[@]}" --num-rollout 3 "${TORCH[@]}" --load "$WORK/ckpt"
live_equal "steps after resuming" "$(lib_metric "$WORK/rest" train/step | wc -l)" 1
cmp -s "$MODEL/model.safetensors" "$WORK/hf/model.safetensors" && lib_die "the weights did not move"
same_logp "$WORK/hf"

echo "torch_steps=$STEPS $compared rollout_logp_diff=$diff"
