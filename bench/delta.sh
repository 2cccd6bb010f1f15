#!/usr/bin/env bash
# What weights cost on the way to engines when only changes travel: bench/delta.sh
#
# SmolLM2 through STEPS real GRPO steps of recipes/add-smollm2.sh (default 50) with one engine of `miles serve`
# and --update-weight-transfer-mode disk-delta, once for each learning rate in LRS (default: 1e-6 and the
# recipe's own 3e-5). The engine proves all tensors at every version. A line for each rate:
#     lr=... delta_bytes_share=... changed=... full_bytes_share=... encode_s=... apply_s=... versions=N equal=N
# shares are of the bytes of all weights in bf16, means over versions; seconds are medians. Runs are kept in
# DELTA_OUT (default runs/delta): one that is finished is not run again, one that was stopped goes on.

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

STEPS=${STEPS:-50}
LRS=${LRS:-1e-6 3e-5}
OUT=${DELTA_OUT:-runs/delta}

lib_binary
lib_model

figures() {
    python3 - "$1" "$2" <<'PY'
import glob
import json
import re
import statistics
import sys

out, lr = sys.argv[1:]
rows = [json.loads(line) for line in open(f"{out}/run/metrics.jsonl", encoding="utf-8")]
rows = [r for r in rows if "perf/delta_share" in r]
some, full = ([r for r in rows if bool(r["perf/delta_full"]) == f] for f in (False, True))
log = "".join(open(f, encoding="utf-8").read() for f in glob.glob(f"{out}/run/engines/*.log"))
apply = [float(s) for s in re.findall(r"taken: 1 versions.* applied in ([0-9.]+) s", log)]
proven = len(re.findall(r"the engines have version \d+, proven", open(f"{out}.log", encoding="utf-8").read()))
mean = lambda key, r: statistics.mean(x[key] for x in r)
print(f"lr={lr} delta_bytes_share={mean('perf/delta_share', some):.4f} changed={mean('perf/delta_changed', some):.4f} "
      f"full_bytes_share={mean('perf/delta_share', full):.4f} "
      f"encode_s={statistics.median(r['perf/delta_encode_time'] for r in some):.3f} "
      f"apply_s={statistics.median(apply):.3f} versions={len(rows)} equal={proven}")
PY
}

# How many steps a run has behind it.
steps() {
    if [ -f "$1/run/metrics.jsonl" ]; then
        lib_metric "$1/run" perf/step_time | wc -l
    else
        echo 0
    fi
}

last=
for lr in $LRS; do
    dir=$OUT/lr$lr
    if [ "$(steps "$dir")" -lt "$STEPS" ]; then
        lib_say "lr $lr: $STEPS steps"
        mkdir -p "$OUT"
        SAVE=$dir "$ROOT/recipes/add-smollm2.sh" --num-rollout "$STEPS" --lr "$lr" --eval-interval 1000 \
            --save-interval 10 --rollout-num-gpus 1 --update-weight-transfer-mode disk-delta \
            --check-weight-update-equal >>"$dir.log" 2>&1 || {
            tail -n 30 "$dir.log" >&2
            lib_die "the run failed"
        }
    fi
    last+="$(figures "$dir" "$lr")"$'\n'
done
printf '%s' "$last"
