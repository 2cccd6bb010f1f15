#!/usr/bin/env bash
# The recipe of add-smollm2.sh with SGLang as the engine, on a CPU: recipes/add-smollm2-sglang.sh [FLAGS...]
#
# SGLang runs as a server of its own, gets the weights after every step and samples at most 16 tokens.
# Its log-probs are not the trainer's to the bit, so the loss is corrected with --use-tis; what the
# difference is, the run says after its first step (docs/mismatch.md). Flags given here come last and win.
# Environment, beside that of add-smollm2.sh:
#     SAVE             where run, checkpoints and export go      default: runs/add-smollm2-sglang-$SEED
#     MILES_SGLANG     virtual environment with SGLang, made when absent
#                                                                default: ~/.cache/miles/sglang
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
SGLANG=${MILES_SGLANG:-${MILES_CACHE:-$HOME/.cache/miles}/sglang}
export SEED=${SEED:-42}
export SAVE=${SAVE:-runs/add-smollm2-sglang-$SEED}

if [ ! -x "$SGLANG/bin/python" ]; then
    "$ROOT/tools/setup.sh" sglang
fi
# SGLang looks for CUDA's driver library even where it computes on the CPU.
ENVIRONMENT=(
    "LD_LIBRARY_PATH=$SGLANG/cuda-stub${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    "PATH=$SGLANG/bin:$PATH"
    HF_HUB_OFFLINE=1
    SGLANG_USE_CPU_ENGINE=1
    "OMP_NUM_THREADS={threads}"
    SGLANG_HEALTH_CHECK_TIMEOUT=240 # its check is a sample of one token, which waits for a whole batch
)

# In braces stands what the run fills in.
SERVER=(
    "$SGLANG/bin/python" -m sglang.launch_server
    --model-path "{model}" --host "{host}" --port "{port}"
    --device cpu --dtype bfloat16
    --attention-backend torch_native --sampling-backend pytorch
    --disable-overlap-schedule --disable-radix-cache --skip-server-warmup --sleep-on-idle
    --max-total-tokens 65536
)

ENGINE_ARGS=(
    --rollout-backend sglang
    --rollout-num-gpus 1
    --rollout-health-check-timeout 300
    --sglang-command "env ${ENVIRONMENT[*]@Q} ${SERVER[*]@Q}"
)

exec "$ROOT/recipes/add-smollm2.sh" \
    "${ENGINE_ARGS[@]}" \
    --rollout-max-response-len 16 \
    --eval-max-response-len 16 \
    --use-tis \
    "$@"
