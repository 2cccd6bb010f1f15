#!/usr/bin/env bash
# The recipes that are written after Miles' launch scripts: tests/live/recipes.sh
#
# Each is checked by a dry run with nothing of its model but config.json, whose shape its MODEL_ARGS must
# be, and must plan memory; with the shape of another model it must be refused. The one of GLM4 then
# trains two steps on a tiny random GLM4 with Qwen3's tokenizer: the same script, and flags behind it that
# make it small. Ends with recipes=10 planned=10 trained=1 failed=0.

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_data
lib_python
lib_work

python3 "$ROOT/tests/live/recipes.py" "$WORK/models"
export DATA=$MILES_TEST_DATA/math/math_train.jsonl EVAL_DATA=$MILES_TEST_DATA/math/aime24.jsonl

recipes=0
planned=0
failed=0

fail() {
    lib_say "$*"
    failed=$((failed + 1))
}

# shape_of RECIPE: the file of recipes/models that it reads.
shape_of() {
    sed -n 's,^\. "$ROOT/recipes/models/\(.*\)\.sh"$,\1,p' "$1"
}

for recipe in "$ROOT"/recipes/*.sh; do
    shape=$(shape_of "$recipe")
    [ -n "$shape" ] || continue
    name=$(basename "$recipe" .sh)
    recipes=$((recipes + 1))
    if MODEL=$WORK/models/$shape SAVE=$WORK/$name "$recipe" --dry-run >"$WORK/$name.out" 2>"$WORK/$name.err" &&
        grep -q '^dry_run=ok planned_mib=' "$WORK/$name.out" &&
        grep -q 'memory plan: .* in all' "$WORK/$name.err"; then
        planned=$((planned + 1))
        lib_say "$(printf '%-22s %s' "$name" "$(cat "$WORK/$name.out")")"
    else
        fail "$name: $(tail -n 3 "$WORK/$name.err")"
    fi
    [ ! -e "$WORK/$name" ] || fail "$name: a dry run made $WORK/$name"
    other=qwen3-0.6b
    [ "$shape" != $other ] || other=qwen3-4b
    if MODEL=$WORK/models/$other SAVE=$WORK/$name "$recipe" --dry-run >"$WORK/$name.out" 2>"$WORK/$name.err"; then
        fail "$name: takes the shape of $other for its own"
    fi
    grep -q "but the model's config.json has" "$WORK/$name.err" || fail "$name: the other shape is not named"
done

# A tiny GLM4 that speaks Qwen3's tokens.
live_tiny "$WORK/tiny" --family glm4 --vocab 151936 --hidden 64 --heads 2 --kv-heads 1 --head-dim 32 \
    --intermediate 64 --untied --set eos_token_id=151645 --set pad_token_id=151643
cp "$MILES_TEST_DATA"/tokenizers/qwen3/tokenizer*.json "$WORK/tiny"
cp "$MILES_TEST_DATA/templates/Qwen-Qwen3-0.6B.jinja" "$WORK/tiny/chat_template.jinja"
rm -f "$WORK/tiny/generation_config.json"
head -n 64 "$DATA" >"$WORK/data.jsonl"
head -n 2 "$EVAL_DATA" >"$WORK/eval.jsonl"
trained=0
if MODEL=$WORK/tiny SAVE=$WORK/run DATA=$WORK/data.jsonl EVAL_DATA=$WORK/eval.jsonl "$ROOT/recipes/glm4-9b.sh" \
    --model-args-mismatch note --num-rollout 2 --rollout-batch-size 4 --n-samples-per-prompt 2 \
    --global-batch-size 8 --rollout-max-response-len 8 --eval-max-response-len 8 \
    --n-samples-per-eval-prompt 1 --rollout-max-prompt-len 512 --rollout-num-gpus 1 --save-interval 2 \
    --skip-eval-before-train --run-dir "$WORK/run/run" >"$WORK/train.out" 2>"$WORK/train.err"; then
    steps=$(grep -c '"train/loss"' "$WORK/run/run/metrics.jsonl" || true)
    if [ "$steps" = 2 ] && [ -f "$WORK/run/checkpoint/latest_checkpointed_iteration.txt" ]; then
        trained=1
    else
        fail "glm4-9b: $steps steps were trained, not 2"
    fi
else
    fail "glm4-9b: $(tail -n 5 "$WORK/train.err")"
fi
for flag in tensor-model-parallel-size context-parallel-size sequence-parallel attention-backend num-layers; do
    grep -q -e "--$flag.*:" "$WORK/train.err" || fail "glm4-9b: --$flag is taken in silence"
done

echo "recipes=$recipes planned=$planned trained=$trained failed=$failed"
[ "$failed" = 0 ] && [ "$planned" = "$recipes" ] && [ "$trained" = 1 ]
