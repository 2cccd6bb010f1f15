#!/usr/bin/env bash
# Seconds from exec to the first token, with a warm file cache: tests/live/first_token.sh
#
# The time of the whole process that makes one token, so an upper bound: the median of five, after
# one that warms the cache. Fails when it is not below LIMIT (default 1 second).

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

LIMIT=${LIMIT:-1}

lib_binary
lib_model
lib_work

# once: makes one token; the process's seconds go to stdout.
once() {
    local start=$EPOCHREALTIME
    "$MILES" generate --hf-checkpoint "$MODEL" --prompt "The capital of France is" --max-tokens 1 \
        --timing >"$WORK/out" 2>"$WORK/err" || {
        cat "$WORK/err" >&2
        lib_die "miles generate failed"
    }
    awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }'
}

once >/dev/null
[ -s "$WORK/out" ] || lib_die "miles generate printed nothing"
for _ in 1 2 3 4 5; do
    once
done >"$WORK/times"
cat "$WORK/out" "$WORK/err" >&2

seconds=$(lib_median <"$WORK/times")
echo "first_token_s=$seconds"
awk -v s="$seconds" -v limit="$LIMIT" 'BEGIN { exit !(s < limit) }' ||
    lib_die "not below $LIMIT s"
