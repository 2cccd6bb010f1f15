#!/usr/bin/env bash
# The prefix cache of `miles serve`, counted to the token, with SmolLM2: tests/live/prefix_cache.sh
#
# 64 samples of one 2,000-token prompt cost one prefill, as a group and as 64 requests; prompts that begin alike,
# responses that are gone on with and the turns of a chat are found again; a flush and new weights empty the cache
# (tests/live/prefix_cache.py). Ends with cached_checks=... chat_turns=... chat_cached=... and how many times as
# long as one sample 64 took: group_time_ratio=... separate_time_ratio=...

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_model
lib_python
lib_work
lib_serve --sglang-chunked-prefill-size 512

"$PYTHON" "$ROOT/tests/live/prefix_cache.py" "$URL" "$MODEL" || {
    cat "$WORK/serve.err" >&2
    lib_die "the cache is not what it should be"
}
