#!/usr/bin/env bash
# One controller, many engines: finished samples a minute on one core: bench/fleet.sh
#
# `miles train --debug-rollout-only` on one core, with its ledger and a reward, against FLEET_ENGINES (1000) engines of
# bench/fleet_engines.c on the other: loop, port, ledger and reward are a real run's, and training takes no time. Every
# engine has an address of its own, and answers a request after FLEET_MIN_MS (500) to FLEET_MAX_MS (2000) with
# FLEET_TOKENS (256) made-up tokens and log-probs a sample. A rollout has FLEET_GROUPS (1024) prompts of FLEET_SAMPLES
# (8) samples; FLEET_RM (math) is the reward, FLEET_KIND (miles) how engines are spoken to: as to `miles serve`, which
# takes a prompt's samples in one request, or as to `sglang`, one by one.
#
# It runs for FLEET_SECONDS (120) behind the first rollout and fails below FLEET_GOAL (100000) samples a minute, above
# FLEET_CPU_US (600) of the controller's processor time a sample, which is as much and which other work on the machine
# changes less, when the resident memory has grown by more than FLEET_GROWTH_MB (32), when the ledger has fewer answers
# or rewards than the run has finished, or when the run does not end with 0 after SIGTERM. Memory has grown by its
# largest value in the last fifth of the time less that in the second fifth.
# Ends with samples_per_minute=N engines=1000 ledger=1 rss_growth_mb=X ...

# shellcheck source=../tests/live/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../tests/live/lib.sh"

lib_binary
lib_python
lib_work

ENGINES=${FLEET_ENGINES:-1000}
GROUPS_EACH=${FLEET_GROUPS:-1024}
SAMPLES=${FLEET_SAMPLES:-8}
KIND=${FLEET_KIND:-miles}
TOKENS=${FLEET_TOKENS:-256}

cmake --build "$MILES_BUILD" --target fleet_engines >&2
live_tiny "$WORK/model" --family llama
MODEL=$WORK/model
python3 - "$WORK/prompts.jsonl" <<'PY'
import json, sys

with open(sys.argv[1], "w") as out:
    for i in range(10000):
        text = f"Natalia sold clips to {i} of her friends, and then half as many. How many in all?"
        out.write(json.dumps({"prompt": [{"role": "user", "content": text}], "label": str(i + i // 2)}) + "\n")
PY

# What a real engine of this model says of itself and of its weights.
lib_serve --threads 1
curl -sf "$URL/get_server_info" >"$WORK/info.json"
curl -sf -X POST -H 'Content-Type: application/json' -d '{"action":"checksum"}' "$URL/weights_checker" \
    >"$WORK/sums.json"
lib_end "$SERVER"

: >"$WORK/serve.out"
taskset -c 1 "$MILES_BUILD/fleet_engines" --engines "$ENGINES" --info "$WORK/info.json" --sums "$WORK/sums.json" \
    --urls "$WORK/urls" --tokens "$TOKENS" --min-ms "${FLEET_MIN_MS:-500}" --max-ms "${FLEET_MAX_MS:-2000}" \
    >"$WORK/serve.out" 2>"$WORK/serve.err" &
SERVER=$!
lib_ready fleet_engines 100
mapfile -t urls <"$WORK/urls"

taskset -c 0 "$MILES" train --debug-rollout-only --save "$WORK/save" --run-dir "$WORK/run" --hf-checkpoint "$MODEL" \
    --prompt-data "$WORK/prompts.jsonl" --input-key prompt --label-key label --apply-chat-template \
    --rollout-backend "$KIND" --rollout-external --rollout-external-engine-addrs "${urls[@]}" \
    --rollout-batch-size "$GROUPS_EACH" --n-samples-per-prompt "$SAMPLES" --num-rollout 1000000 \
    --rollout-max-response-len "$TOKENS" --rollout-temperature 1 --rm-type "${FLEET_RM:-math}" \
    >"$WORK/run.log" 2>&1 &
RUN=$!
lib_ends "$RUN"

status=0
python3 - "$RUN" "$WORK/run" "${FLEET_SECONDS:-120}" "$((GROUPS_EACH * SAMPLES))" "$ENGINES" \
    "${FLEET_GROWTH_MB:-32}" "${FLEET_GOAL:-100000}" "${FLEET_CPU_US:-600}" >"$WORK/out" <<'PY' || status=$?
import os, signal, sqlite3, sys, time

pid, run, seconds = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
each, engines = int(sys.argv[4]), int(sys.argv[5])
most_mb, goal, most_us = (float(x) for x in sys.argv[6:])
tick = os.sysconf("SC_CLK_TCK")


def alive():
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def cpu():
    f = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(f[11]) + int(f[12])) / tick


def rss_mb():
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def rollouts():
    try:
        return sum(1 for line in open(run + "/metrics.jsonl") if '"rollout/step"' in line)
    except OSError:
        return 0


def answers():
    """Answers and rewards on record."""
    db = sqlite3.connect(f"file:{run}/ledger.db?mode=ro", uri=True, timeout=60)
    try:
        return tuple(db.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in ("answers", "rewards"))
    finally:
        db.close()


start = time.time()
while alive() and rollouts() < 1 and time.time() - start < 300:
    time.sleep(0.2)
if not alive() or rollouts() < 1:
    sys.exit("fleet.sh: no rollout was finished")
# The first one warms up.
t0, c0, n0, trace = time.time(), cpu(), rollouts(), []
done, t1, c1 = n0, t0, c0
while alive() and time.time() - t0 < seconds:
    time.sleep(0.25)
    now = rollouts()
    trace.append((time.time() - t0, rss_mb()))
    if now > done:
        done, t1, c1 = now, time.time(), cpu()
if not alive():
    sys.exit("fleet.sh: the run ended by itself")
os.kill(pid, signal.SIGTERM)
samples = (done - n0) * each
if not samples:
    sys.exit("fleet.sh: no second rollout was finished: give more FLEET_SECONDS")
while alive() and time.time() - t0 < seconds + 120:
    time.sleep(0.1)
kept = answers()
if min(kept) < done * each:
    sys.exit(f"fleet.sh: {done * each} samples were finished, the ledger has {kept} answers and rewards")
span = trace[-1][0]
fifths = [max(m for t, m in trace if min(4, int(5 * t / span)) == i) for i in range(5)]
print("resident memory in each fifth, MB:", *(f"{m:.1f}" for m in fifths), file=sys.stderr)
growth = fifths[4] - fifths[1]
rate, cpu_us = 60 * samples / (t1 - t0), 1e6 * (c1 - c0) / samples
print(f"samples_per_minute={rate:.0f} engines={engines} ledger=1 rss_growth_mb={growth:.1f} "
      f"cpu_us_per_sample={cpu_us:.0f} rss_mb={trace[-1][1]:.0f} samples={samples} "
      f"seconds={t1 - t0:.0f}")
if growth > most_mb:
    sys.exit("fleet.sh: memory grows")
if rate < goal or cpu_us > most_us:
    sys.exit("fleet.sh: the goal is missed")
PY
if [ "$status" -ne 0 ]; then
    cat "$WORK/out" >&2
    tail -n 20 "$WORK/run.log" >&2
    exit 1
fi
wait "$RUN" || lib_die "the run ended with $? after SIGTERM: $(tail -n 5 "$WORK/run.log")"
tail -n 1 "$WORK/out"
