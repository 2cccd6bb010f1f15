#!/usr/bin/env bash
# `miles serve` with SmolLM2 under many clients of all sorts: bench/load.sh
#
# BENCH_CLIENTS (64) clients for BENCH_SECONDS (600): short requests, prompts of 7,000 tokens, disconnects, malformed
# bodies, slow readers, aborted requests (bench/load_client.py). At most BENCH_RUNNING (256) samples are computed at
# once, in a cache of BENCH_ROOM (65536) tokens. Fails when an answer is not the intended one, when a page of the
# cache is still held at the end, when the resident memory has grown by more than BENCH_GROWTH_MB (32), or when the
# server does not end with 0 after SIGTERM. Memory has grown by its largest value in the last fifth of the time less
# that in the second fifth; before, every page of the cache is touched once.
# Ends with load_requests=... load_errors=0 ttft_p50_ms=... ttft_p99_ms=... itl_p50_ms=... itl_p99_ms=...
# rss_growth_mb=... kv_leaked=0 (times of streamed requests, as the clients see them)

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_model
lib_work

lib_serve --sglang-max-running-requests "${BENCH_RUNNING:-256}" --sglang-max-total-tokens "${BENCH_ROOM:-65536}" \
    --sglang-max-queued-requests 16384

python3 "$ROOT/bench/load_client.py" "$URL" "$SERVER" "${BENCH_SECONDS:-600}" "${BENCH_CLIENTS:-64}" \
    "${BENCH_SEED:-1}" "$(sed -n 's/.*"vocab_size": *\([0-9]*\).*/\1/p' "$MODEL/config.json")" >"$WORK/out" || {
    tail -n 20 "$WORK/serve.err" >&2
    lib_die "the clients failed"
}
line=$(tail -n 1 "$WORK/out")
kill -TERM "$SERVER"
wait "$SERVER" || lib_die "miles serve ended with $? after SIGTERM; its log: $(tail -n 5 "$WORK/serve.err")"
echo "$line"
[[ $line == *" load_errors=0 "* ]] || lib_die "answers that were not intended"
[[ $line == *" kv_leaked=0" ]] || lib_die "pages of the cache are held by nobody"
awk -v mb="$(sed 's/.*rss_growth_mb=\([^ ]*\).*/\1/' <<<"$line")" -v limit="${BENCH_GROWTH_MB:-32}" \
    'BEGIN { exit !(mb <= limit) }' || lib_die "memory grows"
