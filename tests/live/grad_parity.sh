#!/usr/bin/env bash
# Logits and gradients of every parameter against transformers in float32: a tiny random model of each
# family and SmolLM2. Ours come from the reference device in an f32 plan (test_forward --dump).
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_model
lib_python
lib_work

cmake --build "$MILES_BUILD" --target test_forward >&2
# One that needs no test data: a vocabulary of its own. Qwen2 heads are hidden / heads wide.
live_tiny "$WORK/llama" --family llama --vocab 512
live_tiny "$WORK/llama-untied" --family llama --vocab 512 --untied --heads 4 --kv-heads 4 --seed 1
live_tiny "$WORK/qwen2" --family qwen2 --vocab 512 --hidden 96 --heads 3 --seed 2
live_tiny "$WORK/qwen3" --family qwen3 --vocab 512 --heads 4 --kv-heads 2 --head-dim 64 --seed 3
"$PYTHON" "$ROOT/tests/live/grad_parity.py" "$MILES_BUILD/test_forward" "$WORK" \
    "$WORK/llama" "$WORK/llama-untied" "$WORK/qwen2" "$WORK/qwen3" "$MODEL"
