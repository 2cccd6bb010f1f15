#!/usr/bin/env bash
# `miles router` in front of three `miles serve` with a tiny random model: tests/live/router.sh
#
# tests/live/router.py drives it: the share of prompt tokens that the workers' prefix caches hold, with
# cache_aware against round_robin; a worker killed by SIGKILL under load, with no request failed and every answer
# in the bits of a worker asked alone; the worker back again; a worker removed while it works; streams; a client
# that leaves; OpenAI's client; and what the router costs. Where a live SGLang is installed (tools/setup.sh
# sglang), it answers through the router too. Ends with one line of figures.
#
#     ROUTER_SGLANG=0  leaves SGLang out

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_python
lib_work

if [ "${ROUTER_SGLANG:-1}" = 1 ] && [ -x "$CACHE/sglang/bin/python" ]; then
    lib_model
    lib_sglang
    export SGLANG_URL
fi
live_tiny "$WORK/model" --family llama --vocab 512 --hidden 128 --layers 2

"$PYTHON" "$ROOT/tests/live/router.py" "$MILES" "$WORK/model" "$WORK"
