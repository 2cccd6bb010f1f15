#!/usr/bin/env bash
# New weights into engines that run: tests/live/wsync.sh
#
# A trainer (tests/rl/wsync_demo.c) holds SmolLM2 in shared memory and moves all of it, three times. Two
# `miles serve` read that memory (--weights-fd); a live SGLang reads a folder. At each version both kinds
# prove what they hold by sums over their tensors, both miles servers answer with the same bits, a wrong
# version is refused, and nothing is sampled while values change (tests/live/wsync.py). WSYNC_SGLANG=0
# leaves SGLang out. Last line:
#     versions=3 checks=N failed=0 ...
# seconds of a publish and of its proof, memory of the engines' processes

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_model
lib_work
cmake --build "$MILES_BUILD" --target wsync_demo >&2
SGLANG_URL=
if [ "${WSYNC_SGLANG:-1}" = 1 ]; then
    lib_sglang
fi
python3 "$ROOT/tests/live/wsync.py" "$MILES" "$MILES_BUILD/wsync_demo" "$MODEL" "$WORK" "$SGLANG_URL"
