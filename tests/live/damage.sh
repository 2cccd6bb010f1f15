#!/usr/bin/env bash
# Damaged run folders, and folders that two want: tests/live/damage.sh
#
# A run of a tiny model is killed in its third rollout. Then, again and again, one bit of one of its files is
# flipped and the same command goes on: it must refuse with the cause, or end in the very weights and optimizer
# state of the undisturbed run; `miles report`, `logs`, `diff`, `audit` and `replay` must end by themselves. Then
# flips that nothing but a checksum sees: digits of recorded rewards, values of moments, a row of the metrics.
# A second run on the same run folder or folder of weights is refused, and neither a pipe in the place of
# published weights nor a removed run folder goes unnoticed.
#
# FLIPS: of each file, default 1. SEED: of what is drawn; printed. Ends with
#     flips=N refused=R equal=E silent=0 crashed=0 refusals=K

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_python
lib_work

SEED=${SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
lib_say "SEED=$SEED"
live_tiny "$WORK/model" --family llama --vocab 512
"$PYTHON" "$ROOT/tests/live/damage.py" "$MILES" "$WORK" "$SEED" "${FLIPS:-1}"
