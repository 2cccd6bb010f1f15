#!/usr/bin/env bash
# A run that cannot be lost: tests/live/crash.sh
#
# Trains a tiny model with dynamic sampling, partial rollouts, a Python reward and a checkpoint every step,
# once undisturbed, and then again and again while it is killed: by SIGKILL at a drawn instant, at a drawn
# point of the ledger's commits, now and then by SIGTERM, and started by the same command until it ends.
# Then once by SIGTERM while it is too busy to obey within --stop-timeout, with the k-th write, sync or
# rename failing, and on a disk that is full, from the start or from a checkpoint on, until somebody makes
# room. Both ways of SQLite take turns.
# Every run must end like the undisturbed one: weights, optimizer state and state of the last checkpoint by
# their bytes; the ledger's events, answers and rewards; the metrics but perf/*, eval/duration_seconds and
# what an attempt counts of its own (rollout/engine*, rollout/wrong_version_answers). No answer or reward
# that was recorded at a kill may be asked for again. The undisturbed run equals its replay.
#
# KILLS: kills in all, default 20. FAULTS: runs with failing calls, default 6. STEPS: rollouts of a run,
# default 4. SEED: of what is drawn; printed. MODEL=smollm2: the real model, with shorter runs.
# COMMAND=train-async: the other command. MORE: further flags, such as "--rollout-backend miles". With
# --fully-async among them, which takes FAULTS=0, runs are held against the replay of their own ledgers.
# PLAIN=1: without oversampling and partial rollouts. WITH="generate teacher", or one of them: samples are
# made by a function that calls engines; a teacher behind HTTP is asked about every sample. WITH=rollout: whole
# rollouts and evaluations are made by a function; WITH=source: prompts come from a class. Ends with
#     kills=N terms=T faults=F full_disks=D ... diverged=0 lost_samples=0 recorded_answers_asked_again=0 ...

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_python
lib_work

SEED=${SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
lib_say "SEED=$SEED"
ARGS=(
    --input-key prompt --label-key label --rollout-shuffle --rollout-temperature 1
    --custom-rm-path "$WORK/reward.py:reward" --reward-key score --use-dynamic-batch-size
    --max-tokens-per-gpu 2048 --lr 1e-4 --lr-decay-style constant --save-interval 1
    --prompt-data "$WORK/prompts.jsonl" --rollout-batch-size 4 --n-samples-per-prompt 4
    --dynamic-sampling-filter-path check_reward_nonzero_std
)
read -ra MORE <<<"${MORE:-}"
TEACHER=()
case " ${WITH:-} " in *" generate "*)
    PLAIN=1
    MORE+=(--rollout-backend miles --rollout-num-gpus 1 --rollout-max-prompt-len 64
        --custom-generate-function-path "$ROOT/examples/python/rollouts.py:generate")
    ;;
esac
case " ${WITH:-} " in *" teacher "*)
    TEACHER=(teacher)
    MORE+=(--use-opd --opd-type sglang --opd-log-prob-top-k 2 --opd-top-k-strategy union)
    ;;
esac
case " ${WITH:-} " in *" rollout "*)
    PLAIN=1
    MORE+=(--rollout-backend miles --rollout-num-gpus 1 --rollout-max-prompt-len 64
        --rollout-function-path "$WORK/reward.py:Rolled" --eval-function-path "$WORK/reward.py:Evaluated")
    ;;
esac
case " ${WITH:-} " in *" source "*)
    MORE+=(--rollout-max-prompt-len 64 --data-source-path "$ROOT/examples/python/rollouts.py:Sums")
    ;;
esac
[ "${PLAIN:-0}" = 1 ] || ARGS+=(--over-sampling-batch-size 6 --partial-rollout)
case ${MODEL:-tiny} in
tiny)
    MODEL=$WORK/model
    live_tiny "$MODEL" --family llama --vocab 512
    # With many tokens that end an answer lengths differ, and samples are cut off and go on.
    mapfile -t ends < <(seq 20 30 470)
    ARGS+=(--rollout-max-response-len 40 --num-rollout "${STEPS:-4}" --eval-interval 2
        --rollout-logical-concurrency 12 --rollout-stop-token-ids "${ends[@]}"
        --eval-prompt-data one "$WORK/eval.jsonl" two "$WORK/eval.jsonl")
    ;;
smollm2)
    lib_model
    ARGS+=(--rollout-max-response-len 16 --num-rollout "${STEPS:-3}")
    ;;
*)
    lib_die "MODEL is tiny or smollm2, not $MODEL"
    ;;
esac
ARGS+=(--hf-checkpoint "$MODEL")

# Each call is written down, in a file of the attempt. Some rewards fail: their groups are replaced.
cat >"$WORK/reward.py" <<PY
import sys

sys.path.insert(0, "$ROOT/examples/python")
PY
cat >>"$WORK/reward.py" <<'PY'
import os
import time

import rollouts


class Rolled(rollouts.Rollout):
    async def __call__(self, input):
        with open(os.environ["CRASH_CALLS"] + ".rolled", "a") as out:
            out.write(f"{input.rollout_id} {int(isinstance(self, rollouts.Evaluate))}\n")
        return await super().__call__(input)


class Evaluated(Rolled, rollouts.Evaluate):
    pass


def slow_log(rollout_id, args, samples, metrics, seconds):
    if rollout_id == int(os.environ["CRASH_SLOW"]):
        open(os.environ["CRASH_CALLS"] + ".slow", "w").close()
        time.sleep(60)
    return False


def reward(args, sample):
    with open(os.environ["CRASH_CALLS"], "a") as out:
        out.write(f"{sample.index} {' '.join(map(str, sample.tokens))}\n")
    value = sum(sample.response.encode())
    if value % 29 == 1:
        raise ValueError("no reward for this one")
    return {"score": value % 3 / 3, "bytes": value}
PY
python3 - "$WORK" <<'PY'
import json, sys

for name, n in (("prompts", 40), ("eval", 3)):
    with open(f"{sys.argv[1]}/{name}.jsonl", "w") as out:
        for i in range(n):
            text = f"{name} {'the number ' * (i % 7)}{i * 37 % 101} and {i * 53 % 89} are"
            out.write(json.dumps({"prompt": text, "label": str(i)}) + "\n")
PY

"$PYTHON" "$ROOT/tests/live/crash.py" "$WORK" "$SEED" "${KILLS:-20}" "${FAULTS:-6}" "${TEACHER[@]}" -- \
    "$MILES" "${COMMAND:-train}" "${ARGS[@]}" "${MORE[@]}"
