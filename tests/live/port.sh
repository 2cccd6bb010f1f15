#!/usr/bin/env bash
# One suite over every rollout port, with SmolLM2: tests/live/port.sh
#
# tests/conform/test_port_conform.c against the engine in-process, `miles serve` with a
# key, and a live SGLang when it is installed (tools/setup.sh sglang: 11 GB) or with
# CONFORM_SGLANG=1; CONFORM_SGLANG=0 leaves it out. Needs the test program in the build folder:
# cmake --build build --target test_port_conform.
# Ends with port_checks=N failed=0 miles_equal_samples=... sglang_checks=...

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_model
lib_work

SUITE=$MILES_BUILD/test_port_conform
[ -x "$SUITE" ] || lib_die "no $SUITE: cmake --build $MILES_BUILD --target test_port_conform"
WITH=${CONFORM_SGLANG:-}
if [ -z "$WITH" ]; then
    WITH=0
    [ ! -f "$CACHE/sglang/cuda-stub/libcuda.so.1" ] || WITH=1
fi

# suite KIND URL: one run; sets CHECKS and EQUAL.
suite() {
    lib_say "$1:"
    "$SUITE" "$1" "$2" "$MODEL" "$KEY" >"$WORK/$1.out" 2>"$WORK/$1.err" || {
        cat "$WORK/$1.out" "$WORK/$1.err" >&2
        lib_die "$1 fails checks"
    }
    CHECKS=$(sed -n 's/^port_checks=\([0-9]*\) failed=0 .*/\1/p' "$WORK/$1.out")
    EQUAL=$(sed -n 's/.* equal_samples=\([0-9]*\)$/\1/p' "$WORK/$1.out")
    [ -n "$CHECKS" ] || lib_die "$1 does not say how many checks it made"
}

KEY=port-$$
lib_serve --sglang-max-running-requests 32 --sglang-max-total-tokens 65536 --api-key "$KEY"
suite miles "$URL"
ALL=$CHECKS
MILES_EQUAL=$EQUAL
[ "$MILES_EQUAL" -gt 0 ] || lib_die "no sample was compared with the engine in-process"
lib_end "$SERVER"

SGLANG_CHECKS=not_run
if [ "$WITH" = 1 ]; then
    lib_sglang --api-key "$KEY"
    suite sglang "$SGLANG_URL"
    SGLANG_CHECKS=$CHECKS
    ALL=$((ALL + CHECKS))
fi
echo "port_checks=$ALL failed=0 miles_equal_samples=$MILES_EQUAL sglang_checks=$SGLANG_CHECKS"
