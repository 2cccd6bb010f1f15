#!/usr/bin/env bash
# bench/load.sh for a short time, as far as it goes: tests/live/load.sh
#
# 20 seconds are too short to tell growth from the first use of memory: the limit is only a safeguard.

export BENCH_SECONDS=${BENCH_SECONDS:-20} BENCH_ROOM=${BENCH_ROOM:-16384} BENCH_GROWTH_MB=${BENCH_GROWTH_MB:-256}
exec "$(dirname "${BASH_SOURCE[0]}")/../../bench/load.sh"
