#!/usr/bin/env bash
# Rewards, advantages, losses, corrections, reducers, distillation, packing and log-softmax, values and
# gradients, against an implementation of their own in torch, float64 (tests/golden/rl/oracle.py):
# every estimator with every correction and KL estimate, masks, empty responses, groups of one, groups
# without a spread, numbers that are none. CASES: how many; SEED: which ones.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_python
lib_work

cmake --build "$MILES_BUILD" --target golden_rl >&2
"$PYTHON" "$ROOT/tests/golden/rl/oracle.py" --cases "${CASES:-2200}" --seed "${SEED:-1}" \
    >"$WORK/cases.jsonl"
"$MILES_BUILD/golden_rl" "$WORK/cases.jsonl"
