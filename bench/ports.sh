#!/usr/bin/env bash
# Samples a minute through the HTTP port against the engine in-process: bench/ports.sh
#
# One `miles serve` of SmolLM2 with two threads, and `miles bench ports` with the same engine options; turns of both
# alternate in one run, and both must give the same tokens and log-probs. PORTS_ROUNDS (5), PORTS_GROUPS (32),
# PORTS_SAMPLES (8), PORTS_TOKENS (64), PORTS_THREADS (2).
# Ends with ports_vs_inprocess=N inprocess_samples_per_min=... http_samples_per_min=... bit_equal=1 ...

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_model
lib_work

THREADS=${PORTS_THREADS:-2}
lib_serve --threads "$THREADS" --sglang-max-running-requests 256 --sglang-context-length 2048
"$MILES" bench ports --hf-checkpoint "$MODEL" --url "$URL" --threads "$THREADS" --max-running 256 --context 2048 \
    --rounds "${PORTS_ROUNDS:-5}" --groups "${PORTS_GROUPS:-32}" --samples "${PORTS_SAMPLES:-8}" \
    --max-tokens "${PORTS_TOKENS:-64}" >"$WORK/out" || lib_die "miles bench ports failed"
head -n -1 "$WORK/out" >&2
tail -n 1 "$WORK/out"
