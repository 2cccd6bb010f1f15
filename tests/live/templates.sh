#!/usr/bin/env bash
# Chat templates: our interpreter against transformers' apply_chat_template, byte for byte, on every template
# of $MILES_TEST_DATA/templates; before that, `miles template` on folders without weights, and loss masks on real
# tokenizers (masks=N ... mismatched=K). Last line: templates=N renders=M mismatched=K.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_data
lib_binary
lib_python
lib_work
if [ ! -x "$MILES_BUILD/test_chat" ] || [ ! -x "$MILES_BUILD/test_chatmask" ]; then
    cmake --build "$MILES_BUILD" --target test_chat test_chatmask >&2
fi

# code WANT ARGS...: `miles template ARGS` ends with WANT.
code() {
    local want=$1 rc=0
    shift
    "$MILES" template "$@" >"$WORK/out" 2>"$WORK/err" || rc=$?
    [ "$rc" = "$want" ] || {
        cat "$WORK/out" "$WORK/err" >&2
        lib_die "miles template $*: exit $rc, wanted $want"
    }
}

# says TEXT: the command before this one wrote it, here or there.
says() {
    grep -qF -- "$1" "$WORK/out" "$WORK/err" || lib_die "no '$1' in: $(cat "$WORK/out" "$WORK/err")"
}

tok=$DATA/tokenizers
code 0 check --hf-checkpoint "$tok/qwen2.5"
says "single_turn=fit multi_turn=fit"
code 4 check --hf-checkpoint "$tok/qwen3"
says '<think>\nTwo and two.'
code 0 check --hf-checkpoint "$tok/qwen3" --chat-template-path "$DATA/templates/Qwen-Qwen2.5-7B-Instruct.jinja" --json
says '"multi_turn":true'
code 3 check --hf-checkpoint "$tok/gemma-4" --chat-template-path "$DATA/templates/google-gemma-2-2b-it.jinja"
says "no special token"
code 1 check --hf-checkpoint "$tok/gpt2" --chat-template-path "$WORK/none"
code 2 check --hf-checkpoint "$tok/qwen3" --kwargs 3
code 1 check --hf-checkpoint "$WORK/none"
echo '[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes", "step_loss_mask": 1}]' >"$WORK/chat"
code 0 render --hf-checkpoint "$tok/qwen3" --messages "$WORK/chat" --no-generation-prompt --kwargs '{"enable_thinking": false}'
printf '<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nYes<|im_end|>\n' | cmp - "$WORK/out"
code 0 render --hf-checkpoint "$tok/qwen3" --messages "$WORK/chat" --continue-field content
printf '<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nYes' | cmp - "$WORK/out"
code 0 render --hf-checkpoint "$tok/qwen2.5" --messages "$WORK/chat" --mask
[ "$(grep -c '^1' "$WORK/out")" = 3 ] || lib_die "the mask trains $(grep '^1' "$WORK/out")"
code 0 render --hf-checkpoint "$tok/qwen2.5" --messages "$WORK/chat" --mask --loss-mask-type distill_qwen --json
says "token 31 is not that"
echo '[{"role": }]' >"$WORK/chat"
code 2 render --hf-checkpoint "$tok/qwen3" --messages "$WORK/chat"
says "$WORK/chat:1:"

"$PYTHON" "$ROOT/tests/live/template_masks.py" >&2
"$PYTHON" "$ROOT/tests/live/templates.py" "$@"
