#!/usr/bin/env bash
# Sampling with vLLM's CPU build and with miles, in one run: bench/vs_vllm.sh
#
# SmolLM2-135M in bf16, two cores, the same prompts of about 70 tokens, 128 new tokens each at temperature
# 1 with log-probs, 1, 8, 32 and 128 sequences at once. Both keep the model loaded and take turns, ROUNDS
# times (default 3); the other rests meanwhile. limit_share is our speed over that of reading the weights
# (1 sequence) or of the same products run bare (more), measured in the same run. vLLM is installed when it
# is absent (6 GB), and takes minutes to start.

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_model
VENV=$("$ROOT/tools/setup.sh" vllm | tail -n 1)
lib_work

export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export VLLM_CPU_KVCACHE_SPACE=4 VLLM_CPU_OMP_THREADS_BIND=0-1 VLLM_LOGGING_LEVEL=WARNING
export VLLM_NO_USAGE_STATS=1 VLLM_CACHE_ROOT=$VENV/cache
# What it compiles at its start is built with the tools of its venv.
PATH=$VENV/bin:$PATH "$VENV/bin/python" "$ROOT/bench/decode_peer.py" vllm "$MILES" "$MODEL" \
    >"$WORK/out" || lib_die "the comparison with vLLM failed"
cat "$WORK/out"
