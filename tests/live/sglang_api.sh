#!/usr/bin/env bash
# tests/conform/sglang_api.py against `miles serve`, and against a live SGLang: tests/live/sglang_api.sh
#
# Both serve SmolLM2. Every run compares with the answers of SGLang that tests/golden/sglang_api.json
# holds. SGLang itself runs when it is installed already (tools/setup.sh sglang: 11 GB), and with
# CONFORM_SGLANG=1 in any case; CONFORM_SGLANG=0 leaves it out. CONFORM_RECORD=1 writes its answers down
# anew. On two idle cores SGLang takes a minute to start and two for the checks.
# Ends with conform_miles=N failed_miles=0 conform_sglang=M failed_sglang=0 known_sglang=K

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_model
lib_work

SUITE=$ROOT/tests/conform/sglang_api.py
WITH=${CONFORM_SGLANG:-}
if [ -z "$WITH" ]; then
    WITH=0
    [ ! -f "$CACHE/sglang/cuda-stub/libcuda.so.1" ] || WITH=1
fi

# suite KIND URL ARGS...: one run; its last line goes into the file named KIND.
suite() {
    local kind=$1 url=$2
    shift 2
    lib_say "$kind:"
    python3 "$SUITE" "$url" --kind "$kind" --key "$KEY" "$@" >"$WORK/$kind" || {
        cat "$WORK/$kind" >&2
        lib_die "$kind fails checks"
    }
}

KEY=conform-$$
lib_serve --sglang-max-running-requests 32 --api-key "$KEY"
suite miles "$URL"
lib_end "$SERVER"

if [ "$WITH" = 1 ]; then
    lib_sglang --api-key "$KEY" --enable-metrics
    if [ "${CONFORM_RECORD:-0}" = 1 ]; then
        suite sglang "$SGLANG_URL" --record
    else
        suite sglang "$SGLANG_URL"
    fi
    echo "$(tail -n 1 "$WORK/miles") $(tail -n 1 "$WORK/sglang")"
else
    echo "$(tail -n 1 "$WORK/miles") conform_sglang=not_run"
fi
