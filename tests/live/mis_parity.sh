#!/usr/bin/env bash
# The policy loss with every correction for the mismatch of rollout and trainer (TIS, IcePop, MIS with
# rejection) against an implementation of its own in torch, float64: values, gradients and metrics of
# random steps with masks, empty responses and log-probs that are not finite. CASES: how many.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_python
lib_work

cmake --build "$MILES_BUILD" --target test_mis >&2
"$PYTHON" "$ROOT/tests/live/mis_parity.py" "$MILES_BUILD/test_mis" "$WORK" "${CASES:-500}"
