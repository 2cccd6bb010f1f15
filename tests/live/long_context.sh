#!/usr/bin/env bash
# Contexts of 32,768 tokens through `miles serve`, with a random model: tests/live/long_context.sh
#
# The same long prompts go to a server with two threads and chunks of 512, and to one with one thread and chunks of
# 2,048: tokens and log-probs must be the same text, and again when the prompt is in the cache and when four samples
# share it. What the server's memory grows by is bounded by what its keys and values and one chunk take: nothing
# grows with the square of the length. Ends with one line of figures.
#
#     LONG_TOKENS=32768   tokens of prompt and response

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_python
lib_work
LONG=${LONG_TOKENS:-32768}
MODEL=$WORK/model
live_tiny "$MODEL" --vocab 512 --hidden 256 --layers 4 --heads 4 --kv-heads 2 --head-dim 64 --intermediate 512 \
    --positions "$LONG"

lib_serve --threads 2 --sglang-max-total-tokens $((LONG * 2)) --sglang-max-running-requests 8
FIRST=$URL FIRST_PID=$SERVER
lib_serve --threads 1 --sglang-chunked-prefill-size 2048 --sglang-max-total-tokens $((LONG * 2)) \
    --sglang-max-running-requests 8
"$PYTHON" "$ROOT/tests/live/long_context.py" "$LONG" "$FIRST" "$FIRST_PID" "$URL"
