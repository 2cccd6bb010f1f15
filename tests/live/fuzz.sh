#!/usr/bin/env bash
# Fuzzers: tests/live/fuzz.sh [NAME...]
#
# Builds the fuzzers of tests/fuzz (all but body, which takes the whole server) with clang, libFuzzer and
# the sanitizers, and runs each for FUZZ_SECONDS (30) from its committed corpus, FUZZ_JOBS (2) at a time;
# with names, only those. tests/fuzz/dict/NAME gives words, where it is there. Inputs that were found are
# kept in FUZZ_FOUND, by default found/ of the build: NAME/ the interesting ones, NAME-crash-... and the
# like the findings, which go into the corpus with the fix. The build is FUZZ_BUILD, by default
# ${MILES_BUILD}-fuzz. Last line:
#     fuzzers=N seconds=S findings=0

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

FUZZ_SECONDS=${FUZZ_SECONDS:-30}
FUZZ_JOBS=${FUZZ_JOBS:-2}
BUILD=${FUZZ_BUILD:-${MILES_BUILD:-$ROOT/build}-fuzz}
FOUND=${FUZZ_FOUND:-$BUILD/found}

names=("$@")
if [ $# = 0 ]; then
    for f in "$ROOT"/tests/fuzz/fuzz_*.c; do
        f=${f##*/fuzz_}
        [ "$f" = body.c ] || names+=("${f%.c}")
    done
fi

lib_work
CC=clang cmake -S "$ROOT" -B "$BUILD" -G Ninja -DMILES_FUZZ=ON -DMILES_SANITIZE=ON -DMILES_SCALAR=ON >&2
cmake --build "$BUILD" -j "$(nproc)" --target "${names[@]/#/fuzz_}" >&2

# Temporary files of the parsers stay in memory.
if [ -w /dev/shm ]; then
    export TMPDIR=/dev/shm
fi

# fuzz NAME: one fuzzer; its output goes to NAME.log. A limit for each input and for memory is part of
# what is tested.
fuzz() {
    local name=$1 args=()
    mkdir -p "$FOUND/$name"
    [ ! -f "$ROOT/tests/fuzz/dict/$name" ] || args+=("-dict=$ROOT/tests/fuzz/dict/$name")
    "$BUILD/fuzz_$name" "-max_total_time=$FUZZ_SECONDS" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        "-artifact_prefix=$FOUND/$name-" "${args[@]}" "$FOUND/$name" "$ROOT/tests/fuzz/corpus/$name" \
        >"$WORK/$name.log" 2>&1
}

pids=() # of the fuzzers, in the order of names
ends=() # what they ended with
for i in "${!names[@]}"; do
    if [ "$i" -ge "$FUZZ_JOBS" ]; then
        rc=0
        wait "${pids[i - FUZZ_JOBS]}" || rc=$?
        ends[i - FUZZ_JOBS]=$rc
    fi
    fuzz "${names[i]}" &
    pids+=($!)
    lib_ends $!
done
findings=0
for i in "${!names[@]}"; do
    rc=${ends[i]:-}
    if [ -z "$rc" ]; then
        rc=0
        wait "${pids[i]}" || rc=$?
    fi
    log=$WORK/${names[i]}.log
    lib_say "${names[i]}: $(sed -n 's/.*number_of_executed_units: *\([0-9]*\)/\1 inputs/p' "$log"), exit $rc"
    if [ "$rc" != 0 ]; then
        findings=$((findings + 1))
        grep -E '^==|SUMMARY|ERROR|Test unit written|^Base64|    #[0-9] ' "$log" | head -n 30 >&2 || true
        tail -n 5 "$log" >&2
    fi
done
echo "fuzzers=${#names[@]} seconds=$FUZZ_SECONDS findings=$findings"
[ $findings = 0 ]
