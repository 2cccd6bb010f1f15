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
# The oracle in two halves side by side, torch with one thread in each.
oracle() {
    "$PYTHON" "$ROOT/tests/golden/rl/oracle.py" --cases "${CASES:-2200}" --seed "${SEED:-1}" --part "$1/2" \
        >"$WORK/cases$1.jsonl"
}
oracle 0 &
HALF=$!
oracle 1
wait $HALF
cat "$WORK/cases0.jsonl" "$WORK/cases1.jsonl" >"$WORK/cases.jsonl"
"$MILES_BUILD/golden_rl" "$WORK/cases.jsonl"
