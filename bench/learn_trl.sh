#!/usr/bin/env bash
# TRL's curve on the addition recipe, for comparison: bench/learn_trl.sh
#
# Takes about half an hour on two cores. Environment: SEED (default 42), STEPS (default 120), OUT, the
# metrics file (default learn_trl-$SEED.jsonl in the cache); draw it with tools/plot_curve.py.

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

SEED=${SEED:-42}
STEPS=${STEPS:-120}
OUT=${OUT:-$CACHE/learn_trl-$SEED.jsonl}

lib_binary
lib_model
lib_python
lib_work
export OMP_NUM_THREADS=2

python3 "$ROOT/recipes/add_data.py" "$WORK/data"
lib_say "metrics: $OUT"
"$PYTHON" "$ROOT/bench/learn_trl.py" "$MODEL" "$WORK/data" "$OUT" "$STEPS" "$SEED" | tail -n 1
