#!/usr/bin/env bash
# A request's answer does not depend on what else the server does: tests/live/serve_exact.sh
#
# EXACT_REQUESTS random requests (1000; 200 in CI) are asked alone, then again under load from 64 other streams, on servers
# with other limits, small caches (preemption), cache hits and misses, kills and restarts
# (tests/live/serve_exact.py). Then the trainer scores all samples: its log-probs must have the same bits, and a
# log-prob that was changed by one bit must be found. EXACT_MODEL=smollm2 takes the real model; EXACT_SEED is
# another list of requests.
# Ends with exact_requests=... exact_differences=0 preemptions=... cached_tokens=... restarts=...

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

if [ "${CI:-}" = true ]; then
    REQUESTS=${EXACT_REQUESTS:-200}
else
    REQUESTS=${EXACT_REQUESTS:-1000}
fi

lib_binary
lib_python
lib_work

case ${EXACT_MODEL:-tiny} in
tiny)
    MODEL=$WORK/model
    live_tiny "$MODEL" --family llama --vocab 512 --positions 2048
    ;;
smollm2)
    lib_model
    ;;
*)
    lib_die "EXACT_MODEL is tiny or smollm2, not $EXACT_MODEL"
    ;;
esac

"$PYTHON" "$ROOT/tests/live/serve_exact.py" "$MILES" "$MODEL" "$WORK" "$REQUESTS" \
    "${EXACT_SEED:-1}" >"$WORK/out" || {
    tail -n 20 "$WORK/serve.log" >&2
    lib_die "requests were not answered as they must be"
}

# trainer_diff NAME FOLDER TEMPERATURE: the mean distance of the samples' log-probs from the trainer's; sums are
# exact, so it is 0 when every distance is.
trainer_diff() {
    lib_train "$WORK/$1" --hf-checkpoint "$MODEL" --debug-train-only --num-rollout 1 \
        --load-debug-rollout-data "$2/{rollout_id}.jsonl" --rollout-temperature "$3" \
        --rollout-batch-size "$(cat "$2/count")" --n-samples-per-prompt 1 --rollout-max-context-len 2048 \
        --use-dynamic-batch-size --max-tokens-per-gpu 4096 --lr 1e-6
    lib_metric "$WORK/$1" train/train_rollout_logprob_abs_diff
}

for folder in "$WORK"/rollout/*; do
    temperature=${folder##*/}
    live_equal "trainer's log-probs at temperature $temperature" \
        "$(trainer_diff "train-$temperature" "$folder" "$temperature")" 0.0
    lib_say "temperature $temperature: $(cat "$folder/count") samples, the trainer's log-probs are the same"
done

# One bit of one log-prob.
folder=$WORK/changed
mkdir "$folder"
python3 - "$WORK/rollout/0.7" "$folder" <<'PY'
import json, struct, sys

lines = open(sys.argv[1] + "/0.jsonl").read().splitlines()
sample = json.loads(lines[2])
bits = struct.unpack("<I", struct.pack("<f", sample["rollout_log_probs"][0]))[0] ^ 1
sample["rollout_log_probs"][0] = struct.unpack("<f", struct.pack("<I", bits))[0]
head = json.loads(lines[0]) | {"samples": 1}
open(sys.argv[2] + "/0.jsonl", "w").write(json.dumps(head) + "\n" + json.dumps(sample) + "\n")
open(sys.argv[2] + "/count", "w").write("1")
PY
[ "$(trainer_diff train-changed "$folder" 0.7)" != 0.0 ] || lib_die "the trainer overlooks a changed bit"

line=$(tail -n 1 "$WORK/out")
echo "$line"
[[ $line == *" exact_differences=0 "* ]] || lib_die "answers differ"
