#!/usr/bin/env bash
# Sampling with llama.cpp and with miles, in one run: bench/vs_llamacpp.sh
#
# SmolLM2-135M, two cores, the same prompts of about 70 tokens, 128 new tokens each at temperature 1 with
# log-probs, 1, 8, 32 and 128 sequences at once. llama.cpp runs the model as its package carries it, Q4_1:
# 98 MB of weights; miles runs it in bf16: 270 MB. Both keep it loaded and take turns, ROUNDS times (default
# 3); the other rests meanwhile. limit_share is our speed over that of reading the weights (1 sequence) or
# of the same products run bare (more), measured in the same run.

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_model
VENV=$("$ROOT/tools/setup.sh" llamacpp | tail -n 1)
lib_work
GGUF=$VENV/SmolLM2-135M-Instruct.Q4_1.gguf
"$ROOT/tools/fetch_smollm2.sh" --gguf "$GGUF"

"$VENV/bin/python" "$ROOT/bench/decode_peer.py" llamacpp "$MILES" "$MODEL" "$GGUF" \
    >"$WORK/out" || lib_die "the comparison with llama.cpp failed"
cat "$WORK/out"
