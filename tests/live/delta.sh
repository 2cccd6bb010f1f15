#!/usr/bin/env bash
# Weights that travel as what changed: tests/live/delta.sh
#
# A tiny random model is trained STEPS steps (default 10) with two `miles serve` engines: (a) over shared
# memory; (b) with --update-weight-transfer-mode disk-delta through a folder, by xor and by overwrite; (c) the
# same through nginx and a relay that cuts 20% of the connections and damages 5% (tests/live/delta.py), with an
# engine killed by SIGKILL on the way. Engines prove all tensors at every version; the weights at the end are
# the same bits as those of (a). Then two engines take the versions of (c) one by one and by leaps: wrong bases,
# damaged and missing files change nothing, and every way to a version ends in the same sums. Last line:
#     versions=N refused=N delta_equal=1 cut=N damaged=N resumed=N ...

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

STEPS=${STEPS:-10}

lib_binary
lib_python
lib_work
"$ROOT/tools/setup.sh" nginx >&2
live_tiny "$WORK/model" --family llama --vocab 512

python3 - "$WORK/prompts.jsonl" <<'PY'
import json, sys

with open(sys.argv[1], "w") as out:
    for i in range(40):
        out.write(json.dumps({"prompt": f"{i * 37 % 101} and {i * 53 % 89} are", "label": str(i)}) + "\n")
PY
cat >"$WORK/reward.py" <<'PY'
def reward(args, sample):
    return sum(sample.response.encode()) % 7 / 7
PY
ARGS=(
    --hf-checkpoint "$WORK/model" --prompt-data "$WORK/prompts.jsonl" --input-key prompt
    --label-key label --rollout-shuffle --num-rollout "$STEPS" --rollout-batch-size 8
    --n-samples-per-prompt 4 --rollout-temperature 1 --rollout-max-response-len 64
    --custom-rm-path "$WORK/reward.py:reward" --use-dynamic-batch-size --max-tokens-per-gpu 4096
    --lr 3e-5 --lr-decay-style constant
    --rollout-num-gpus 2 --rollout-health-check-interval 0.5 --check-weight-update-equal
)
DELTA=(--update-weight-transfer-mode disk-delta --update-weight-delta-full-interval 4)

sha() {
    sha256sum "$WORK/$1-hf/model.safetensors" | cut -d ' ' -f 1
}

# run NAME ARGS...: trained to the end, every version proven.
run() {
    local name=$1
    shift
    lib_train "$WORK/$name" "${ARGS[@]}" --save-hf "$WORK/$name-hf" "$@"
    proven "$name"
}
proven() {
    live_equal "versions proven in $1" "$(grep -c 'the engines have version .*, proven' "$WORK/$1.log")" "$STEPS"
    live_equal "forward_logp_max_diff of $1" \
        "$(lib_metric "$WORK/$1" train/forward_logp_max_diff | sort -u)" 0.0
}

run shared
run xor "${DELTA[@]}"
run overwrite "${DELTA[@]}" --update-weight-delta-encoding overwrite
live_equal "weights by xor" "$(sha xor)" "$(sha shared)"
live_equal "weights by overwrite" "$(sha overwrite)" "$(sha shared)"
live_equal "files left" "$(find "$WORK/xor/weights" -type f)" ""
live_equal "rows with figures" "$(lib_metric "$WORK/xor" perf/delta_share | wc -l)" "$STEPS"

# nginx passes the folder on; each connection is one file.
mkdir -p "$WORK/store" "$WORK/nginx"
cat >"$WORK/nginx.conf" <<CONF
daemon off;
worker_processes 1;
pid $WORK/nginx/pid;
error_log $WORK/nginx/error.log;
events { worker_connections 256; }
http {
    access_log $WORK/nginx/access.log;
    client_body_temp_path $WORK/nginx/body;
    proxy_temp_path $WORK/nginx/proxy;
    fastcgi_temp_path $WORK/nginx/fastcgi;
    uwsgi_temp_path $WORK/nginx/uwsgi;
    scgi_temp_path $WORK/nginx/scgi;
    keepalive_timeout 0;
    server {
        listen unix:$WORK/nginx/socket;
        location /weights/ { alias $WORK/store/; }
    }
}
CONF
[ "$(id -u)" != 0 ] || sed -i '1i user root;' "$WORK/nginx.conf"
PATH=$PATH:/usr/sbin nginx -c "$WORK/nginx.conf" -p "$WORK/nginx" 2>>"$WORK/nginx/start.log" &
lib_ends $!
for _ in $(seq 100); do
    [ ! -S "$WORK/nginx/socket" ] || break
    sleep 0.1
done
[ -S "$WORK/nginx/socket" ] || lib_die "nginx does not start: $(cat "$WORK/nginx/start.log")"
python3 "$ROOT/tests/live/delta.py" relay "$WORK/nginx/socket" "$WORK/relay.json" "${SEED:-1}" &
lib_ends $!
for _ in $(seq 100); do
    [ ! -s "$WORK/relay.json" ] || break
    sleep 0.1
done
count() {
    python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$WORK/relay.json" "$1"
}

: >"$WORK/relayed.log"
port=$(count port)
"$MILES" train --run-dir "$WORK/relayed" "${ARGS[@]}" --save-hf "$WORK/relayed-hf" "${DELTA[@]}" \
    --update-weight-disk-dir "$WORK/store" --update-weight-delta-keep-seconds 1000 \
    --update-weight-delta-url "http://127.0.0.1:$port/weights" >"$WORK/relayed.log" 2>&1 &
TRAINER=$!
lib_ends $TRAINER
# An engine is killed when the run is half done; what was published is copied before the run removes it.
for _ in $(seq 1200); do
    [ "$(grep -c '^step ' "$WORK/relayed.log")" -lt $((STEPS / 2)) ] || break
    kill -0 $TRAINER 2>/dev/null || break
    sleep 0.02
done
kill -KILL "$(sed -n 's/.*engine 1 is process \([0-9]*\),.*/\1/p' "$WORK/relayed.log")"
mkdir "$WORK/kept"
while kill -0 $TRAINER 2>/dev/null; do
    cp -n "$WORK/store"/weight_v*.json "$WORK/kept/" 2>/dev/null || true
    cp -rn "$WORK/store/chunks" "$WORK/kept/" 2>/dev/null || true
    sleep 0.05
done
wait $TRAINER || {
    tail -n 30 "$WORK/relayed.log" >&2
    lib_die "the run through the relay failed"
}
proven relayed
live_equal "weights through the relay" "$(sha relayed)" "$(sha shared)"
grep -q 'WorkerCrashed: engine 1' "$WORK/relayed.log" || lib_die "no engine was seen lost"
cut=$(count cut) damaged=$(count damaged)
[ "$cut" -gt 0 ] || lib_die "the relay cut nothing"
sum_of() {
    sed -n "s/.*weight_sync: version .* taken: $1/\1/p" "$WORK"/relayed/engines/*.log |
        awk '{ n += $1 } END { print n + 0 }'
}
resumed=$(sum_of '.*(\([0-9]*\) resumed, .*')
again=$(sum_of '.*resumed, \([0-9]*\) again).*')
taken=$(cat "$WORK"/relayed/engines/*.log | grep -c 'weight_sync: version .* taken')
grep -hq 'taken: [2-9] versions' "$WORK"/relayed/engines/engine_1.log || lib_die "the killed engine did not catch up"

# Two engines and what the run published.
urls=()
export MODEL=$WORK/model
for _ in 1 2; do
    lib_serve --threads 1
    urls+=("$URL")
done
engines=$(python3 "$ROOT/tests/live/delta.py" engine "${urls[@]}" "$WORK/kept")

echo "versions=$STEPS $engines delta_equal=1 taken=$taken connections=$(count connections) cut=$cut damaged=$damaged resumed=$resumed again=$again"
