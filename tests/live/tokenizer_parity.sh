#!/usr/bin/env bash
# Our tokenizer against the `tokenizers` package on every line of the test text, for every family of
# tokenizers in the test data: 10 to 20 minutes of CPU. Arguments, if any, name the families to
# take; smollm2 alone is done in a minute. CI takes a quarter of the families, by the commit's hash.
# Last line: tokenizer_lines=N tokenizer_diffs=N tokenizer_families=N

. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
lib_data
lib_python

build=${MILES_BUILD:-$ROOT/build}
tool=$build/test_tokenizer
[ -f "$build/CMakeCache.txt" ] ||
    lib_die "no build in $build: run cmake -S . -B build, or set MILES_BUILD"
cmake --build "$build" --target test_tokenizer >&2
if [ $# = 0 ] && [ "${CI:-}" = true ]; then
    quarter=$((16#$(git -C "$ROOT" rev-parse --short=4 HEAD | cut -c1-4) % 4))
    case $quarter in
    0) set -- smollm2 qwen2.5 llama-3.1 mistral-nemo llama-2 ;;
    1) set -- smollm2 qwen3 gpt2 gpt-oss mistral-7b-v0.3 ;;
    2) set -- smollm2 qwen3.6 deepseek-v3 cl100k phi-3 ;;
    *) set -- smollm2 deepseek-v4 gpt-neox-20b claude-legacy gemma-4 ;;
    esac
    lib_say "families of this commit: $*"
fi
exec env MILES_TEST_DATA="$DATA" "$PYTHON" "$ROOT/tests/live/tokenizer_parity.py" "$tool" "$@"
