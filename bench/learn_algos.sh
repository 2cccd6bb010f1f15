#!/usr/bin/env bash
# Does an algorithm teach? bench/learn_algos.sh ALGO [ALGO ...], each one of
#     grpo gspo ppo reinforce_plus_plus rloo cispo
#
# Runs recipes/add-smollm2.sh with that algorithm until 20 minutes of training are used up (sum of
# perf/step_time over all attempts; evaluations are not counted) or the recipe's 150 rollouts are done, and
# says how many points of the 100 held-out sums it gained. Started again it goes on; a finished one is
# only read. Last line of each: algo=X start=.. end=.. gain=.. minutes=.. Environment:
#     LEARN_ALGOS_OUT   folder of the runs          default: runs/learn_algos
#     MINUTES           of training                 default: 20
#     ROLLOUTS          rollouts at most, to try    default: those of the recipe
#     SEED              seed of the runs            default: 1
#     CURVES            PNG of all curves to write  default: none
# Fails when one gains less than 30 points.

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

OUT=${LEARN_ALGOS_OUT:-runs/learn_algos}
MINUTES=${MINUTES:-20}
ROLLOUTS=${ROLLOUTS:-1000000}
SEED=${SEED:-1}
CHUNK=10 # rollouts of an attempt: an evaluation at its end

[ $# -gt 0 ] || lib_die "which algorithm? grpo gspo ppo reinforce_plus_plus rloo cispo"
lib_binary
lib_model

# Sets FLAGS to what the algorithm has other than the recipe. Those with a ratio to clip take two steps per
# rollout, so that there is one.
flags_of() {
    case $1 in
    grpo | rloo) FLAGS=(--advantage-estimator "$1") ;;
    gspo) FLAGS=(--advantage-estimator gspo --eps-clip 3e-3 --eps-clip-high 4e-3 --num-steps-per-rollout 2) ;;
    cispo) FLAGS=(--advantage-estimator cispo --eps-clip 0.2 --eps-clip-high 0.28 --num-steps-per-rollout 2) ;;
    reinforce_plus_plus) FLAGS=(--advantage-estimator reinforce_plus_plus --normalize-advantages) ;;
    ppo)
        # The value head is new: it learns alone at first, and faster.
        FLAGS=(--advantage-estimator ppo --normalize-advantages --critic-lr 1e-4 --num-critic-only-steps 5
            --value-clip 0.5)
        ;;
    *) lib_die "$1 is none of grpo gspo ppo reinforce_plus_plus rloo cispo" ;;
    esac
}

# figures FILE: rollouts done, seconds of training, first score, last score within the time.
figures() {
    python3 - "$1" "$MINUTES" <<'PY'
import json
import os
import sys

rollouts, seconds, first, last = 0, 0.0, 0.0, 0.0
for line in open(sys.argv[1], encoding="utf-8") if os.path.exists(sys.argv[1]) else []:
    row = json.loads(line)
    if "perf/step_time" in row:
        seconds += row["perf/step_time"]
        rollouts = row["rollout/step"] + 1
    if "eval/add" in row:
        score = 100 * row["eval/add"]
        first = score if row["eval/step"] == 0 else first
        last = score if seconds <= 60 * float(sys.argv[2]) * 1.02 else last
print(f"{rollouts} {seconds:.0f} {first:.0f} {last:.0f}")
PY
}

bad=0
curves=()
for algo in "$@"; do
    flags_of "$algo"
    dir=$OUT/$algo
    metrics=$dir/run/metrics.jsonl
    read -r count seconds start end < <(figures "$metrics")
    while [ "$count" -lt 150 ] && [ "$count" -lt "$ROLLOUTS" ] && [ "$seconds" -lt $((60 * MINUTES)) ]; do
        chunk=$((ROLLOUTS - count < CHUNK ? ROLLOUTS - count : CHUNK))
        lib_say "$algo: $count rollouts in $seconds s, $start% -> $end%"
        SEED=$SEED SAVE=$dir "$ROOT/recipes/add-smollm2.sh" "${FLAGS[@]}" --save-interval $CHUNK \
            --debug-exit-after-rollout "$chunk" >&2
        read -r count seconds start end < <(figures "$metrics")
    done
    echo "algo=$algo start=$start end=$end gain=$((end - start))" \
        "minutes=$(awk -v s="$seconds" 'BEGIN { printf "%.1f", s / 60 }')"
    [ $((end - start)) -ge 30 ] || bad=1
    curves+=("$algo=$metrics")
done
if [ -n "${CURVES:-}" ]; then
    lib_python
    "$PYTHON" "$ROOT/tools/plot_curve.py" "$CURVES" "${curves[@]}" >&2
fi
exit $bad
