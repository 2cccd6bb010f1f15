#!/usr/bin/env bash
# Distillation from a live SGLang: tests/live/opd_sglang.sh
#
# SmolLM2 is its own teacher, behind SGLang on the CPU: the sampled tokens' difference and those of the
# candidates (SGLang's token_ids_logprob and top_logprobs_num) must be as small as other kernels in bf16
# make them, and not zero. Ends with one line of figures.

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_model
lib_work
lib_sglang
python3 "$ROOT/recipes/add_data.py" "$WORK/data"

# kl NAME ARGS...: opd_reverse_kl of one rollout.
kl() {
    local name=$1 value
    shift
    lib_train "$WORK/$name" --hf-checkpoint "$MODEL" --prompt-data "$WORK/data/train.jsonl" --input-key prompt \
        --apply-chat-template --num-rollout 1 --rollout-batch-size 4 --n-samples-per-prompt 2 \
        --rollout-max-response-len 12 --use-dynamic-batch-size --max-tokens-per-gpu 1024 \
        --use-opd --opd-type sglang --opd-teacher-urls "default=$SGLANG_URL" "$@"
    value=$(lib_metric "$WORK/$name" train/opd_reverse_kl)
    awk -v x="$value" 'BEGIN { exit !(x != 0 && x < 0.1 && x > -0.1) }' || lib_die "$name: opd_reverse_kl $value"
    printf '%s' "$value"
}

sampled=$(kl sampled)
student=$(kl student --opd-log-prob-top-k 4)
union=$(kl union --opd-log-prob-top-k 4 --opd-top-k-strategy union --opd-reward-weight-mode teacher_p)
echo "opd_sampled=$sampled opd_student=$student opd_union=$union failed=0"
