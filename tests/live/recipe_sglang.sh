#!/usr/bin/env bash
# Two steps of recipes/add-smollm2-sglang.sh, with fewer samples: tests/live/recipe_sglang.sh
#
# SmolLM2 and a live SGLang on the CPU, started and ended by the run. Every version of the weights must have been proven
# to be in the engine, the log-probs of SGLang and of the trainer must be as close as bf16 lets them be, and nothing
# may be left running. Ends with one line of figures.

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_model
lib_work
"$ROOT/tools/setup.sh" sglang >&2

SAVE=$WORK/run "$ROOT/recipes/add-smollm2-sglang.sh" --num-rollout 2 --rollout-batch-size 4 --n-samples-per-prompt 4 \
    --global-batch-size 16 --eval-interval 100 --skip-eval-before-train >"$WORK/out" 2>&1 &
lib_ends $!
wait $! || {
    tail -n 40 "$WORK/out" >&2
    lib_die "the recipe failed"
}
python3 - "$WORK/run/run/metrics.jsonl" "$WORK/out" <<'END'
import json
import sys

rows = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
steps = [row for row in rows if "train/mismatch_kl" in row]
log = open(sys.argv[2], encoding="utf-8").read()
kl = max(row["train/mismatch_kl"] for row in steps)
synced = log.count("weight_sync: the engines have version")
if len(steps) != 2 or synced != 3:  # before each step, and before the evaluation at the end
    sys.exit(f"{len(steps)} steps, {synced} versions proven:\n{log[-3000:]}")
if not 0 < kl < 0.02:
    sys.exit(f"KL of {kl} between SGLang and the trainer")
print(f"steps=2 versions_proven={synced} mismatch_kl={kl:.2e}")
END
