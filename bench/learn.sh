#!/usr/bin/env bash
# Does the recipe teach? bench/learn.sh runs recipes/add-smollm2.sh on three seeds and checks the result.
#
# For each seed: points gained within six minutes of training, score at the end, minutes (evaluation
# not counted), the exported folder scored by transformers, and the largest difference between rollout
# and trainer log-probs. Printed beside it: what the untouched model scores. Environment:
#     SEEDS       seeds to run                       default: 1 2 3
#     LEARN_OUT   folder of the runs                 default: runs/learn
#     CURVE       PNG of the curves to write         default: none
#     TRL_CURVE   metrics of bench/learn_trl.sh, drawn beside them
# A seed whose run is finished is not run again, one that was stopped goes on from its checkpoint.

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

SEEDS=${SEEDS:-1 2 3}
OUT=${LEARN_OUT:-runs/learn}

lib_binary
lib_model
lib_python

# What a run's metrics say: points gained in six minutes, final score, minutes, largest difference.
figures() {
    python3 - "$1" <<'PY'
import json
import sys

seconds, first, best, last, diff, steps = 0.0, None, 0.0, 0.0, 0.0, 0
for line in open(sys.argv[1], encoding="utf-8"):
    row = json.loads(line)
    seconds += row.get("perf/step_time", 0.0)
    steps += "perf/step_time" in row
    diff = max(diff, row.get("train/forward_logp_max_diff", 0.0))
    if "eval/add" in row:
        last = 100 * row["eval/add"]
        first = last if first is None else first
        if seconds <= 360:
            best = max(best, last - first)
print(f"{best:.0f} {last:.0f} {seconds / 60:.1f} {diff:g} {steps} {first:.0f}")
PY
}

gains="" ends="" minutes="" exports="" diffs="" bad=0
curves=()
for seed in $SEEDS; do
    dir=$OUT/seed$seed
    if [ ! -f "$dir/hf/config.json" ]; then
        lib_say "seed $seed"
        SEED=$seed SAVE=$dir "$ROOT/recipes/add-smollm2.sh" >&2
    fi
    read -r gain end min diff steps start < <(figures "$dir/run/metrics.jsonl")
    export_score=$("$PYTHON" "$ROOT/tests/live/eval_transformers.py" "$dir/hf" "$dir/data/test.jsonl" \
        2>/dev/null | sed -n 's/.*transformers_accuracy=\([0-9]*\).*/\1/p' | tail -n 1)
    lib_say "seed $seed: $start% -> $end% in $min min ($steps steps), +$gain points in six minutes," \
        "transformers $export_score%, forward_logp_max_diff $diff"
    awk -v g="$gain" -v e="$end" -v m="$min" -v d="$diff" -v x="$export_score" \
        'BEGIN { exit !(g >= 45 && e > 85 && m <= 20 && d == 0 && x - e <= 2 && e - x <= 2) }' || bad=1
    gains+=${gains:+,}$gain ends+=${ends:+,}$end minutes+=${minutes:+,}$min
    exports+=${exports:+,}$export_score diffs+=${diffs:+,}$diff
    curves+=("miles#$seed=$dir/run/metrics.jsonl")
done
"$PYTHON" "$ROOT/tests/live/eval_transformers.py" "$MODEL" "$OUT/seed${SEEDS%% *}/data/test.jsonl" \
    --baseline 2>/dev/null | tail -n 6 >&2
if [ -n "${CURVE:-}" ]; then
    [ -z "${TRL_CURVE:-}" ] || curves+=("TRL=$TRL_CURVE")
    "$PYTHON" "$ROOT/tools/plot_curve.py" "$CURVE" "${curves[@]}" >&2
fi
[ $bad = 0 ] || lib_say "learn.sh: a seed misses its mark"
echo "gain_6min=$gains end=$ends minutes=$minutes transformers=$exports forward_logp_max_diff=$diffs"
exit $bad
