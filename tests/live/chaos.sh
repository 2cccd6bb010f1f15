#!/usr/bin/env bash
# A run whose engines, network, disk and controller fail, again and again: tests/live/chaos.sh
#
# Trains a tiny model with four `miles serve` engines, two that the run starts and two of somebody else's
# behind a proxy of ours, with a ledger, for CHAOS_SECONDS (default 1800, in CI 300). Weights travel as whole
# folders or as what changed: CHAOS_MODE=full or delta, else drawn from SEED. Meanwhile engines are killed,
# stopped and slowed down, connections refused, silenced, slowed and cut, a bit of the published weights is
# flipped, the disk of an engine and that of the run are full for a while, engines are taken out and added, by
# the control server and by the file of engines, and the run itself is killed and stopped and started by the
# same command. Each fault is drawn from SEED (printed) and written down with what came of it. Then the run
# ends, and a run in one process that nobody disturbed does as many steps: weights, optimizer state, metrics
# and the samples trained on must be the same. Ends with
#     ... faults=N kinds=K corruptions=N refused=N drained=N readmitted=N hangs=0 stale_tokens=0 lost_samples=0
#     recovery_p50_s=X recovery_p99_s=Y weights_equal=1
# A bit is flipped, and then an engine killed that must read it when it is back: again until the run has
# refused an engine for it. One that is used with such weights ends the script. So does a slow engine that is not drained.
# A fault's recovery begins when it is over (a kill is at once, flipped bits when they are refused, slowness when
# it is found) and ends when the engine has proven that it holds the weights in force and may get samples, if it
# was slow all that it can take; of the run, when it samples again.
#
# CHAOS_LOG: a file that the list of faults is copied to. CHAOS_KEEP: a folder for what is known of a failure.
# MORE: further flags.

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_python
lib_work

SEED=${SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
MODE=${CHAOS_MODE:-$([ $((SEED % 2)) = 0 ] && echo full || echo delta)}
lib_say "SEED=$SEED CHAOS_MODE=$MODE"
live_tiny "$WORK/model" --family llama --vocab 512
python3 - "$WORK/prompts.jsonl" <<'PY'
import json, sys

with open(sys.argv[1], "w") as out:
    for i in range(64):
        text = f"{'the number ' * (i % 7)}{i * 37 % 101} and {i * 53 % 89} are"
        out.write(json.dumps({"prompt": text, "label": str(i)}) + "\n")
PY
# Any answer earns something and answers differ, so that every step moves the weights.
cat >"$WORK/reward.py" <<'PY'
def reward(args, sample):
    return sum(sample.response.encode()) % 7 / 7
PY
# With many tokens that end an answer lengths differ.
mapfile -t ends < <(seq 20 120 470)
ARGS=(
    --hf-checkpoint "$WORK/model" --prompt-data "$WORK/prompts.jsonl" --input-key prompt
    --label-key label --rollout-shuffle --rollout-batch-size 12 --n-samples-per-prompt 4
    --rollout-temperature 1 --rollout-max-response-len "${TOKENS:-192}" --rollout-stop-token-ids "${ends[@]}"
    --custom-rm-path "$WORK/reward.py:reward" --use-dynamic-batch-size --max-tokens-per-gpu 4096
    --lr 1e-5 --lr-decay-style constant --save-interval 5
)
read -ra MORE <<<"${MORE:-}"

SPAN=${CHAOS_SECONDS:-$([ -n "${CI:-}" ] && echo 300 || echo 1800)}
rc=0
"$PYTHON" "$ROOT/tests/live/chaos.py" "$WORK" "$SEED" "$SPAN" "$MODE" "$WORK/model" -- \
    "$MILES" train "${ARGS[@]}" "${MORE[@]}" || rc=$?
[ -z "${CHAOS_LOG:-}" ] || cp "$WORK/faults.log" "$CHAOS_LOG"
exit $rc
