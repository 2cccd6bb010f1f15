#!/usr/bin/env bash
# Sampling with SGLang on CPU and with `miles serve`, in one run: bench/vs_sglang.sh
#
# SmolLM2-135M in bf16, two cores, the same prompts of about 70 tokens, 128 new tokens each at temperature
# 1 with log-probs, 1, 8, 32 and 128 sequences in one request to /generate. Both servers stay up and take
# turns, ROUNDS times (default 3); the other rests meanwhile. limit_share is our speed, through the server,
# over that of reading the weights (1 sequence) or of the same products run bare (more), measured in the
# same run. SGLang runs as it does on CPUs without its own kernels: torch_native attention.

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_model
lib_python
lib_work
lib_serve --threads 2 --sglang-max-running-requests 256 --sglang-context-length 2048
# At rest it asks for requests without a pause unless told to sleep.
lib_sglang --context-length 2048 --max-running-requests 256 --sleep-on-idle

"$PYTHON" "$ROOT/bench/decode_peer.py" sglang "$MILES" "$MODEL" \
    "$SGLANG_URL" "$SGLANG" "$URL" "$SERVER" >"$WORK/out" ||
    lib_die "the comparison with SGLang failed"
cat "$WORK/out"
