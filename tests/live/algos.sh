#!/usr/bin/env bash
# Algorithms through the whole loop, on a tiny random model: tests/live/algos.sh
#
# (a) Every estimator trains two rollouts, with two steps each. (b) How steps are cut into micro-batches
# and log-probs into chunks changes no bit, and neither does --keep-old-actor where nothing is old.
# A rollout that was sampled ahead has older weights as its old policy: where the engine has the trainer's
# bits its own log-probs are that, and read from a file they are computed with a kept copy, to the same bits.
# (c) --ref-update-interval moves the reference, and a run that was stopped goes on with the moved one.
# (d) --reset-optimizer-states, --allow-partial-train-step and --use-dynamic-global-batch-size do what
# they say. (e) A teacher behind HTTP gives the bits of one in the process; one that is not there is
# named. (f) Supervised training: the loss falls, alike with Miles' own flags, and bad rows are told.
# Ends with one line of figures.

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_python
lib_work
live_tiny "$WORK/model" --family llama --vocab 512
live_tiny "$WORK/teacher" --family llama --vocab 512 --seed 2

python3 - "$WORK" <<'PY'
import json, sys

with open(sys.argv[1] + "/prompts.jsonl", "w") as out:
    for i in range(24):
        text = f"{'the number ' * (i % 5)}{i * 37 % 101} and {i * 53 % 89} are"
        out.write(json.dumps({"prompt": text, "label": str(i)}) + "\n")
with open(sys.argv[1] + "/chats.jsonl", "w") as out:
    for i in range(32):
        chat = [{"role": "user", "content": f"say {i}"}, {"role": "assistant", "content": "aha " * (1 + i % 4)}]
        if i % 3 == 0:
            chat += [{"role": "user", "content": "more"}, {"role": "assistant", "content": "no " * 3}]
        if i % 8 == 1:
            chat[1]["step_loss_mask"] = 0
        out.write(json.dumps({"messages": chat}) + "\n")
with open(sys.argv[1] + "/bad.jsonl", "w") as out:
    out.write(json.dumps({"messages": "a text without an answer"}) + "\n")
PY
cat >"$WORK/reward.py" <<'PY'
def reward(args, sample):
    return sum(sample.response.encode()) % 7 / 7
PY
cat >"$WORK/chat.jinja" <<'END'
{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }};{% endgeneration %}{% else %}{{ m.content }};{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}
END

MODEL_ARGS=(--hf-checkpoint "$WORK/model" --lr 1e-3 --lr-decay-style constant)
ARGS=(
    "${MODEL_ARGS[@]}" --prompt-data "$WORK/prompts.jsonl" --input-key prompt --label-key label --rollout-shuffle
    --num-rollout 2 --rollout-batch-size 6 --n-samples-per-prompt 4 --rollout-max-response-len 24
    --use-dynamic-batch-size --max-tokens-per-gpu 1024
)
RM=(--custom-rm-path "$WORK/reward.py:reward")
checks=0

# run NAME ARGS...: trains, and exports its weights.
run() {
    local name=$1
    shift
    lib_train "$WORK/$name" --save-hf "$WORK/$name-hf" "$@"
}
sha() {
    sha256sum "$WORK/$1-hf/model.safetensors" | cut -d ' ' -f 1
}
same() {
    live_equal "weights of $1 and $2" "$(sha "$1")" "$(sha "$2")"
    checks=$((checks + 1))
}
other() {
    [ "$(sha "$1")" != "$(sha "$2")" ] || lib_die "$1 and $2 end with the same weights"
    checks=$((checks + 1))
}
# steps NAME: optimizer steps, as the last row counts them, and samples left out.
last() {
    lib_metric "$WORK/$1" "$2" | tail -n 1
}

# (a)
for algo in grpo gspo reinforce_plus_plus reinforce_plus_plus_baseline ppo dr_grpo rloo cispo; do
    extra=()
    [[ $algo != reinforce* ]] || extra=(--normalize-advantages --kl-coef 0.01)
    run "$algo" "${ARGS[@]}" "${RM[@]}" --advantage-estimator "$algo" --num-steps-per-rollout 2 "${extra[@]}"
    live_equal "steps of $algo" "$(last "$algo" train/step)" 3
    checks=$((checks + 1))
done
other grpo gspo
other grpo rloo
other grpo cispo

# (b)
run cut "${ARGS[@]}" "${RM[@]}" --num-steps-per-rollout 2 --balance-by-flops --max-tokens-per-gpu 150 \
    --log-probs-chunk-size 64 --log-probs-max-tokens-per-gpu 100 --keep-old-actor --use-rollout-entropy
same grpo cut
awk -v h="$(last cut rollout/entropy)" 'BEGIN { exit !(h > 4 && h < 6.3) }' || # ln 512 is 6.24
    lib_die "rollout/entropy is $(last cut rollout/entropy)"

AHEAD=("${ARGS[@]}" "${RM[@]}" --num-rollout 4 --keep-old-actor)
"$MILES" train-async --run-dir "$WORK/ahead" --save-hf "$WORK/ahead-hf" "${AHEAD[@]}" \
    --save-debug-rollout-data "$WORK/ahead-{rollout_id}.jsonl" >"$WORK/ahead.log" 2>&1 ||
    lib_die "$(tail -n 3 "$WORK/ahead.log")"
run copies "${AHEAD[@]}" --debug-train-only --load-debug-rollout-data "$WORK/ahead-{rollout_id}.jsonl"
same ahead copies
live_equal "versions that were not kept" "$(lib_metric "$WORK/copies" train/old_actor_missing | sort -u)" 0
"$MILES" train --run-dir "$WORK/nearest" --save-hf "$WORK/nearest-hf" "${ARGS[@]}" --num-rollout 4 --debug-train-only \
    --load-debug-rollout-data "$WORK/ahead-{rollout_id}.jsonl" >"$WORK/nearest.log" 2>&1 ||
    lib_die "$(tail -n 3 "$WORK/nearest.log")"
other ahead nearest

# (c)
REF=("${ARGS[@]}" "${RM[@]}" --use-kl-loss --kl-loss-coef 0.5 --kl-loss-type low_var_kl --num-rollout 4)
run still "${REF[@]}"
run moved "${REF[@]}" --ref-update-interval 1
other still moved
run half "${REF[@]}" --ref-update-interval 1 --save "$WORK/ck" --load "$WORK/ck" --save-interval 1 \
    --debug-exit-after-rollout 2
run whole "${REF[@]}" --ref-update-interval 1 --save "$WORK/ck" --load "$WORK/ck" --save-interval 1
same moved whole
live_equal "kl_loss after the reference moved" "$(last moved train/kl_loss)" 0.0
[ "$(last still train/kl_loss)" != 0.0 ] || lib_die "the reference of still moved"

# (d)
run reset "${ARGS[@]}" "${RM[@]}" --num-steps-per-rollout 2 --reset-optimizer-states
other grpo reset
run partial "${ARGS[@]}" "${RM[@]}" --global-batch-size 10 --allow-partial-train-step
live_equal "steps of partial" "$(last partial train/step)" 5
run one "${ARGS[@]}" "${RM[@]}" --global-batch-size 12 --use-dynamic-global-batch-size
live_equal "samples in the step of one" "$(last one train/samples_left_out)" ""
run plain "${ARGS[@]}" "${RM[@]}"
same one plain

# (e)
run near "${ARGS[@]}" --use-opd --opd-type megatron --opd-teacher-load "$WORK/teacher"
MODEL=$WORK/teacher lib_serve --sglang-max-running-requests 16 --sglang-max-total-tokens 4096
run far "${ARGS[@]}" --use-opd --opd-type sglang --opd-teacher-urls "default=$URL"
same near far
run scripts "${ARGS[@]}" --use-opd --opd-type sglang --rm-url "$URL/generate" \
    --custom-rm-path miles.rollout.on_policy_distillation.reward_func
same near scripts
for how in only-student only-teacher intersection union xor; do
    TOP=("${ARGS[@]}" --num-rollout 1 --use-opd --opd-type sglang --opd-teacher-urls "default=$URL"
        --opd-log-prob-top-k 5 --opd-top-k-strategy "$how")
    run "$how" "${TOP[@]}"
    run "$how-each" "${TOP[@]}" --opd-topk-per-position
    same "$how" "$how-each" # the same numbers, asked for in two ways
    awk -v d="$(last "$how" train/opd_reverse_kl)" 'BEGIN { exit !(d != 0 && d < 20 && d > -20) }' ||
        lib_die "$how: opd_reverse_kl is $(last "$how" train/opd_reverse_kl)"
done
other only-student only-teacher
other union xor
# A teacher that is the model itself has nothing to say, to the last bit.
lib_end "$SERVER"
MODEL=$WORK/model lib_serve --sglang-max-running-requests 16 --sglang-max-total-tokens 4096
for how in only-student union; do
    run "self-$how" "${ARGS[@]}" --num-rollout 1 --use-opd --opd-type sglang --opd-teacher-urls "default=$URL" \
        --opd-log-prob-top-k 3 --opd-top-k-strategy "$how"
    live_equal "opd_reverse_kl of self-$how" "$(last "self-$how" train/opd_reverse_kl)" 0.0
    checks=$((checks + 1))
done
lib_end "$SERVER"
! "$MILES" train --run-dir "$WORK/gone" "${ARGS[@]}" --use-opd --opd-type sglang --opd-timeout 2 \
    --opd-teacher-urls "default=$URL" >"$WORK/gone.log" 2>&1 || lib_die "a teacher that is gone is not missed"
grep -q 'teacher of sample 0: no answer' "$WORK/gone.log" || lib_die "$(tail -n 3 "$WORK/gone.log")"
! "$MILES" train --run-dir "$WORK/gone" "${ARGS[@]}" --use-opd --opd-type sglang \
    --opd-teacher-urls "math=$URL" >"$WORK/gone.log" 2>&1 || lib_die "an unknown teacher is not missed"
grep -q 'neither its teacher' "$WORK/gone.log" || lib_die "$(tail -n 3 "$WORK/gone.log")"

# (f)
SFT=(
    "${MODEL_ARGS[@]}" --prompt-data "$WORK/chats.jsonl" --input-key messages --rollout-batch-size 16 --num-rollout 12
    --loss-type sft_loss --loss-mask-type auto --chat-template-path "$WORK/chat.jinja"
    --calculate-per-token-loss --use-dynamic-batch-size --max-tokens-per-gpu 1024
)
run sft "${SFT[@]}"
first=$(lib_metric "$WORK/sft" train/loss | sed -n 1p)
end=$(last sft train/loss)
awk -v a="$first" -v b="$end" 'BEGIN { exit !(b < 0.6 * a) }' || lib_die "the loss goes from $first to $end"
run recipe "${SFT[@]}" --rollout-function-path miles.rollout.sft_rollout.generate_rollout --debug-train-only \
    --disable-compute-advantages-and-returns
same sft recipe
run prefix "${SFT[@]}" --loss-mask-type prefix --num-rollout 2
! "$MILES" train --run-dir "$WORK/bad" "${SFT[@]}" --prompt-data "$WORK/bad.jsonl" >"$WORK/bad.log" 2>&1 ||
    lib_die "a text without an answer is trained on"
grep -q 'a text without an answer: give --label-key' "$WORK/bad.log" || lib_die "$(tail -n 3 "$WORK/bad.log")"

echo "estimators=8 checks=$checks sft_loss_first=$first sft_loss_last=$end failed=0"
