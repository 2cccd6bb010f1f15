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
# changes less, when the resident memory grows by more than FLEET_GROWTH (200; 20 is for ten minutes) bytes a sample, when
# an engine was lost or a sample asked for again, when the ledger has fewer answers or rewards than the run has finished,
# or when the run does not end with 0 after SIGTERM.
#
# Memory rises and falls with each rollout. Its growth is the slope of a line through the largest value of each rollout,
# and through the smallest, without those of the first fifth; the line is Theil's and Sen's, the median of the slopes
# between all pairs, which single values do not move. rss_growth_mb is that slope over those rollouts, of the largest
# values, rss_floor_growth_mb of the smallest; bytes_per_sample is the larger of both for a sample.
# Ends with samples_per_minute=N engines=1000 ledger=1 rss_growth_mb=X ... retries=0 lost=0

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
    "${FLEET_GROWTH:-200}" "${FLEET_GOAL:-100000}" "${FLEET_CPU_US:-600}" >"$WORK/out" <<'PY' || status=$?
import json, os, signal, sqlite3, statistics, sys, time

pid, run, seconds = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
each, engines = int(sys.argv[4]), int(sys.argv[5])
most_bytes, goal, most_us = (float(x) for x in sys.argv[6:])
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


rows, metrics = [], None


def rollouts():
    """How many are finished; their metrics are in rows."""
    global metrics
    if not metrics and os.path.exists(run + "/metrics.jsonl"):
        metrics = open(run + "/metrics.jsonl")
    while metrics:
        at, line = metrics.tell(), metrics.readline()
        if not line.endswith("\n"):
            metrics.seek(at)
            break
        if '"rollout/step"' in line:
            rows.append(json.loads(line))
    return len(rows)


def slope(values):
    """Of the line through (0, values[0]), (1, values[1]), ...: Theil's and Sen's."""
    pairs = [(b - a) / (j - i) for i, a in enumerate(values) for j, b in enumerate(values) if j > i]
    return statistics.median(pairs) if pairs else 0.0


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
t0, c0, n0, seen = time.time(), cpu(), rollouts(), []
done, t1, c1, peaks, floors = n0, t0, c0, [], []
while alive() and time.time() - t0 < seconds:
    time.sleep(0.05)
    now = rollouts()
    seen.append(rss_mb())
    if now > done:
        peaks.append(max(seen))
        floors.append(min(seen))
        done, t1, c1, seen = now, time.time(), cpu(), []
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
warm = len(peaks) // 5
if len(peaks) - warm < 8:
    sys.exit("fleet.sh: too few rollouts to say how memory grows: give more FLEET_SECONDS")
for name, values in ("largest", peaks), ("smallest", floors):
    print(f"resident memory, MB, {name} of each rollout:", *(f"{m:.0f}" for m in values), file=sys.stderr)
peaks, floors = peaks[warm:], floors[warm:]
grown = [slope(v) * (len(v) - 1) for v in (peaks, floors)]
each_bytes = max(slope(peaks), slope(floors)) * 2**20 / each
again, lost = (sum(r.get("rollout/" + k, 0) for r in rows) for k in ("engine_retries", "engines_lost"))
rate, cpu_us = 60 * samples / (t1 - t0), 1e6 * (c1 - c0) / samples
print(f"samples_per_minute={rate:.0f} engines={engines} ledger=1 rss_growth_mb={grown[0]:.1f} "
      f"rss_floor_growth_mb={grown[1]:.1f} bytes_per_sample={each_bytes:.1f} rss_mb={max(peaks):.0f} "
      f"rss_floor_mb={max(floors):.0f} cpu_us_per_sample={cpu_us:.0f} samples={samples} rollouts={done - n0} "
      f"seconds={t1 - t0:.0f} retries={again} lost={lost}")
if again or lost:
    sys.exit("fleet.sh: engines that never fail were asked again or lost")
if each_bytes > most_bytes:
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
