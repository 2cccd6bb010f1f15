# shellcheck shell=bash
# What every script of bench/ and tests/live/ shares: where the binary, the model and Python are.
#
#     . "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
#     lib_binary; lib_model; lib_python; lib_work
#     "$MILES" generate --hf-checkpoint "$MODEL" ...      "$PYTHON" ...      > "$WORK/out"
#
# Environment, all optional:
#     MILES_BUILD      build folder with the binary             default: build/ of this tree
#     MILES_SMOLLM2    model folder, fetched when absent        default: smollm2/ in the cache
#     MILES_ORACLES    Python venv, installed when absent       default: oracles/ in the cache
#     MILES_CACHE      the cache itself                         default: ~/.cache/miles
#     MILES_TEST_DATA  tokenizers, templates, math sets         no default
#     MILES_KEEP=1     keep the work folder of a script
#
# A script's last line is `name=value ...` on stdout; what it says on the way goes to stderr.

set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${MILES_CACHE:-$HOME/.cache/miles}

lib_say() {
    printf '%s\n' "$*" >&2
}

lib_die() {
    lib_say "${0##*/}: $*"
    exit 1
}

# Sets MILES, the program to run.
lib_binary() {
    local build=${MILES_BUILD:-$ROOT/build}
    [ -x "$build/miles" ] ||
        lib_die "no $build/miles: build it (cmake -S . -B build && cmake --build build) or set MILES_BUILD"
    MILES=$(cd "$build" && pwd)/miles
    export MILES_BUILD=${MILES%/miles}
}

# Sets MODEL, the folder of SmolLM2-135M-Instruct. Needs lib_binary: the import is done by miles.
lib_model() {
    MODEL=${MILES_SMOLLM2:-$CACHE/smollm2}
    if [ ! -f "$MODEL/config.json" ]; then
        lib_say "fetching the model into $MODEL"
        "$ROOT/tools/fetch_smollm2.sh" "$MODEL" >&2
    fi
    export MILES_SMOLLM2=$MODEL
}

# Sets PYTHON, an interpreter that has torch, transformers, tokenizers, trl and the others.
lib_python() {
    export MILES_ORACLES=${MILES_ORACLES:-$CACHE/oracles}
    export PYTHON=$MILES_ORACLES/bin/python
    "$ROOT/tools/setup.sh" oracles >&2
    # The packages must never look for models in the network, nor fork under loaded tokenizers.
    export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TOKENIZERS_PARALLELISM=false
}

# Sets DATA, the folder of test data. Without one the script is skipped visibly; CI does not skip.
lib_data() {
    DATA=${MILES_TEST_DATA:-}
    if [ -z "$DATA" ]; then
        [ "${CI:-}" != true ] || lib_die "MILES_TEST_DATA is not set"
        lib_say "SKIP: MILES_TEST_DATA is not set"
        exit 77
    fi
}

# Sets WORK, an empty folder that is gone when the script ends.
lib_work() {
    WORK=$(mktemp -d "${TMPDIR:-/tmp}/miles-${0##*/}.XXXXXX")
    trap lib_leave EXIT
    if [ "${MILES_KEEP:-0}" = 1 ]; then
        lib_say "work folder: $WORK"
    fi
}

# Processes that must not outlive the script: lib_ends PID.
LIB_PIDS=()
lib_ends() {
    LIB_PIDS+=("$1")
}

lib_leave() {
    local pid
    for pid in ${LIB_PIDS[@]+"${LIB_PIDS[@]}"}; do
        lib_end "$pid"
    done
    [ "${MILES_KEEP:-0}" = 1 ] || rm -rf "$WORK"
}

# lib_end PID: asks a process to end, and ends it when it has not after ten seconds. One that leads a
# process group takes its children with it.
lib_end() {
    local to=$1
    ! kill -0 -- "-$1" 2>/dev/null || to=-$1
    kill -TERM -- "$to" 2>/dev/null || return 0
    for _ in $(seq 100); do
        kill -0 -- "$to" 2>/dev/null || return 0
        sleep 0.1
    done
    kill -KILL -- "$to" 2>/dev/null || true
}

# lib_serve ARGS...: `miles serve` of $MODEL on a free port, in the background until the script ends.
# Sets SERVER, its process, and URL. Needs lib_binary, lib_model and lib_work.
lib_serve() {
    : >"$WORK/serve.out"
    "$MILES" serve --hf-checkpoint "$MODEL" --port 0 "$@" >"$WORK/serve.out" 2>"$WORK/serve.err" &
    SERVER=$!
    lib_ready "miles serve" 1200
}

# lib_ready NAME TENTHS: waits so long until process $SERVER says in $WORK/serve.out where it listens;
# it ends with the script. Sets URL.
lib_ready() {
    local name=$1 tenths=$2
    lib_ends "$SERVER"
    URL=
    for _ in $(seq "$tenths"); do
        URL=$(sed -n 's/^ready url=\([^ ]*\) .*/\1/p' "$WORK/serve.out")
        [ -z "$URL" ] || return 0
        kill -0 "$SERVER" 2>/dev/null || break
        sleep 0.1
    done
    cat "$WORK/serve.err" >&2
    lib_die "$name does not start"
}

# lib_sglang ARGS...: a live SGLang that serves $MODEL on CPU, on a free port, in the background until
# the script ends. Sets SGLANG, its process, and SGLANG_URL. It takes a minute or two to start. Needs
# lib_model and lib_work; installs SGLang when it is absent.
lib_sglang() {
    local venv=$CACHE/sglang port
    "$ROOT/tools/setup.sh" sglang >&2
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    SGLANG_URL=http://127.0.0.1:$port
    # In a process group of its own, because its processes do not all end with the first.
    LD_LIBRARY_PATH=$venv/cuda-stub${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PATH=$venv/bin:$PATH \
        HF_HUB_OFFLINE=1 SGLANG_USE_CPU_ENGINE=1 setsid "$venv/bin/python" -m sglang.launch_server \
        --model-path "$MODEL" --device cpu --host 127.0.0.1 --port "$port" --dtype bfloat16 \
        --attention-backend torch_native --sampling-backend pytorch --disable-overlap-schedule \
        --disable-radix-cache --skip-server-warmup --max-total-tokens 65536 "$@" >"$WORK/sglang.log" 2>&1 &
    SGLANG=$!
    lib_ends $SGLANG
    disown $SGLANG # it is slow to end, and nobody wants to read how it did
    for _ in $(seq 600); do
        ! curl -sf -m 30 "$SGLANG_URL/health" >/dev/null || return 0
        kill -0 $SGLANG 2>/dev/null || break
        sleep 1
    done
    tail -n 40 "$WORK/sglang.log" >&2
    lib_die "SGLang does not start"
}

# lib_train RUN_DIR ARGS...: one training run with its run folder at RUN_DIR. The log is kept beside
# it as RUN_DIR.log and shown when the run fails.
lib_train() {
    local dir=$1
    shift
    if ! "$MILES" train --run-dir "$dir" "$@" >"$dir.log" 2>&1; then
        tail -n 30 "$dir.log" >&2
        lib_die "miles train failed: $*"
    fi
}

# lib_metric RUN_DIR KEY: the values of KEY in RUN_DIR/metrics.jsonl, one a line, in file order.
lib_metric() {
    python3 -c '
import json, sys
with open(sys.argv[1]) as lines:
    for line in lines:
        record = json.loads(line)
        if sys.argv[2] in record:
            print(record[sys.argv[2]])
' "$1/metrics.jsonl" "$2"
}

# The median of the numbers on stdin.
lib_median() {
    python3 -c '
import statistics, sys
print("%.4g" % statistics.median(float(x) for x in sys.stdin.read().split()))'
}
