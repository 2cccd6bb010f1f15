#!/usr/bin/env bash
# The same training run ends in the same bits, however it is executed: tests/live/bitwise.sh
#
# Compares the SHA-256 of the exported weights of one short run, executed (a) twice, (b) with 1 and 2
# threads, (c) with engine batches of at most 3 and 64, (d) with 512 and 4096 tokens a micro-batch,
# (e) with every instruction set this CPU has, (f) stopped after each step and resumed from its
# checkpoint, (g) the same for ppo with its critic. In every step the log-probs of rollout and trainer must differ by exactly 0.
#
# A tiny random model by default; BITWISE_MODEL=smollm2 takes the real one, where (e) is a run of its
# own, one step of a few short answers: the scalar path computes every product one by one. STEPS:
# default 4. PARTS names what is run: "layout isa resume ppo", all by default; SmolLM2 has no ppo.
# Ends with bitwise_runs=... bitwise_distinct=..., which is 1 when all runs agree.

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

STEPS=${STEPS:-4}
PARTS=" ${PARTS:-layout isa resume ppo} "
ISA_STEPS=$STEPS
ISA_KIND=run # what the runs of (e) are compared with: runs of the same kind
ISA_ARGS=()

lib_binary
lib_work

RUN_ARGS=(
    --input-key prompt --label-key label --rollout-shuffle --num-rollout "$STEPS"
    --rollout-batch-size 8 --n-samples-per-prompt 8 --rollout-temperature 1
    --custom-rm-path "$WORK/reward.py:reward"
    --use-dynamic-batch-size --lr 1e-4 --lr-decay-style constant
)

case ${BITWISE_MODEL:-tiny} in
tiny)
    lib_python
    MODEL=$WORK/model
    live_tiny "$MODEL" --family llama --vocab 512
    RUN_ARGS+=(--rollout-max-response-len 24)
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
    ISA_STEPS=1
    ISA_KIND=short
    ISA_ARGS=(--rollout-batch-size 2 --n-samples-per-prompt 4 --rollout-max-response-len 6)
    RUN_ARGS+=(--rollout-max-response-len 20 --apply-chat-template)
    python3 "$ROOT/recipes/add_data.py" "$WORK"
    mv "$WORK/train.jsonl" "$WORK/prompts.jsonl"
    ;;
*)
    lib_die "BITWISE_MODEL is tiny or smollm2, not $BITWISE_MODEL"
    ;;
esac
RUN_ARGS+=(--hf-checkpoint "$MODEL" --prompt-data "$WORK/prompts.jsonl")

# Any answer earns something and answers differ, so that every step moves the weights.
cat >"$WORK/reward.py" <<'PY'
def reward(args, sample):
    return sum(sample.response.encode()) % 7 / 7
PY

runs=0
kind=run
declare -A hashes # "kind steps sha256" of every run that was made

steps_done() {
    lib_metric "$1" train/step | wc -l
}

# check_exact RUN_DIR: in each of its steps rollout and trainer agree to the bit, and a gradient moves
# the weights.
check_exact() {
    python3 - "$1/metrics.jsonl" <<'PY' || lib_die "the steps of $1 are not what they should be"
import json, sys

seen = 0
for line in open(sys.argv[1]):
    for key, value in json.loads(line).items():
        if key.endswith("forward_logp_max_diff"):
            seen += 1
            if value != 0:
                sys.exit(f"{key} = {value}")
        if key == "train/grad_norm" and value == 0:
            sys.exit("a step without a gradient")
if not seen:
    sys.exit("no forward_logp_max_diff in the metrics")
PY
}

# take NAME STEPS: counts the run in $WORK/NAME and remembers the weights it has after STEPS steps.
take() {
    local sha
    sha=$(sha256sum "$WORK/$1-hf/model.safetensors" | cut -d ' ' -f 1)
    runs=$((runs + 1))
    hashes["$kind $2 $sha"]=1
    lib_say "$(printf '%-22s %-5s %d steps  %s' "$1" "$kind" "$2" "$sha")"
    rm -rf "$WORK/$1-hf"
}

# run NAME STEPS ARGS...: a run of STEPS steps under its own name.
run() {
    local name=$1 steps=$2 dir=$WORK/$1
    shift 2
    lib_train "$dir" "${RUN_ARGS[@]}" --save "$dir-ckpt" --save-interval "$steps" \
        --save-hf "$dir-hf" --debug-exit-after-rollout "$steps" "$@"
    live_equal "steps of $name" "$(steps_done "$dir")" "$steps"
    check_exact "$dir"
    take "$name" "$steps"
    rm -rf "$dir-ckpt" "$dir-ckpt_critic"
}

# resumed K: stops after step K, then goes on to the end from the checkpoint. The weights at the stop
# are those of a run of K steps; those at the end must be the same as of a run never stopped.
resumed() {
    local k=$1 name=stopped-after-$1
    local dir=$WORK/$name
    lib_train "$dir" "${RUN_ARGS[@]}" --save "$dir-ckpt" --save-interval 1 --save-hf "$dir-hf" \
        --debug-exit-after-rollout "$k"
    live_equal "steps of $name" "$(steps_done "$dir")" "$k"
    take "$name" "$k"
    lib_train "$dir-rest" "${RUN_ARGS[@]}" --load "$dir-ckpt" --save "$dir-ckpt" \
        --save-interval "$STEPS" --save-hf "$dir-rest-hf"
    live_equal "steps after $name" "$(steps_done "$dir-rest")" $((STEPS - k))
    check_exact "$dir-rest"
    take "$name-rest" "$STEPS"
    rm -rf "$dir-ckpt" "$dir-ckpt_critic"
}

# The instruction sets of this CPU, best last, as MILES_ISA takes them.
cpu_isas() {
    local flags
    flags=" $(grep -m 1 '^flags' /proc/cpuinfo | cut -d : -f 2) "
    echo scalar
    [[ $flags == *" avx2 "*" fma "* || $flags == *" fma "*" avx2 "* ]] && echo avx2
    [[ $flags == *" avx512f "* && $flags == *" avx512bw "* ]] && echo avx512
    [[ $flags == *" amx_bf16 "* && $flags == *" amx_tile "* ]] && echo amx
    return 0
}

TOKENS=(--max-tokens-per-gpu 4096)

layout_runs() {
    run first "$STEPS" "${TOKENS[@]}"
    run again "$STEPS" "${TOKENS[@]}"
    run threads-1 "$STEPS" "${TOKENS[@]}" --threads 1
    run threads-2 "$STEPS" "${TOKENS[@]}" --threads 2
    run batch-3 "$STEPS" "${TOKENS[@]}" --sglang-max-running-requests 3
    run batch-64 "$STEPS" "${TOKENS[@]}" --sglang-max-running-requests 64
    run tokens-512 "$STEPS" --max-tokens-per-gpu 512
    run tokens-4096 "$STEPS" --max-tokens-per-gpu 4096
}

isa_runs() {
    local have isa
    have=$(cpu_isas)
    kind=$ISA_KIND
    for isa in scalar avx2 avx512 amx; do
        if grep -qx "$isa" <<<"$have"; then
            MILES_ISA=$isa run "isa-$isa" "$ISA_STEPS" "${TOKENS[@]}" ${ISA_ARGS[@]+"${ISA_ARGS[@]}"}
        else
            lib_say "not run: $isa, this CPU does not have it"
        fi
    done
    kind=run
}

resume_runs() {
    local k
    local plain=("${RUN_ARGS[@]}")
    RUN_ARGS+=("${TOKENS[@]}")
    for k in $(seq $((STEPS - 1))); do
        resumed "$k"
    done
    RUN_ARGS=("${plain[@]}")
}

# Two optimizer steps of actor and critic a rollout. What the actor learns follows from the critic's
# values, so one hash tells of both.
ppo_runs() {
    kind=ppo
    RUN_ARGS+=(--advantage-estimator ppo --critic-lr 1e-3 --num-steps-per-rollout 2)
    run ppo "$STEPS" "${TOKENS[@]}"
    MILES_ISA=avx2 run ppo-tokens-512 "$STEPS" --max-tokens-per-gpu 512 --threads 1
    RUN_ARGS+=("${TOKENS[@]}")
    resumed $((STEPS / 2))
    kind=run
}

# Which runs there must be, as kind:steps.
expected=
case $PARTS in *" layout "*) expected+=" run:$STEPS" ;; esac
case $PARTS in *" isa "*) expected+=" $ISA_KIND:$ISA_STEPS" ;; esac
case $PARTS in *" resume "*) expected+=" $(seq -f run:%g "$STEPS" | xargs)" ;; esac
[ "${BITWISE_MODEL:-tiny}" = tiny ] || PARTS=${PARTS/ ppo / }
case $PARTS in *" ppo "*) expected+=" ppo:$((STEPS / 2)) ppo:$STEPS" ;; esac
[ -n "$expected" ] || lib_die "PARTS: layout, isa, resume, ppo"
for part in layout isa resume ppo; do
    case $PARTS in *" $part "*) "${part}_runs" ;; esac
done

# All runs of one kind and length agree, and every step has moved the weights: one hash for each.
distinct=0
for what in $expected; do
    n=$(printf '%s\n' "${!hashes[@]}" | grep -c "^${what/:/ } " || true)
    [ "$n" -ge 1 ] || lib_die "no run of ${what#*:} steps was made"
    [ "$n" -le "$distinct" ] || distinct=$n
done
moved=$(printf '%s\n' "${!hashes[@]}" | cut -d ' ' -f 3 | sort -u | wc -l)
lengths=$(printf '%s\n' "${!hashes[@]}" | cut -d ' ' -f 1,2 | sort -u | wc -l)
[ "$moved" -ge "$lengths" ] || lib_die "a step did not change the weights"

echo "bitwise_runs=$runs bitwise_distinct=$distinct"
[ "$distinct" = 1 ]
