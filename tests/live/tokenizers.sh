#!/usr/bin/env bash
# Our tokenizer against the `tokenizers` package: every tokenizer in the test data and some tiny ones
# trained here, on every text of text/, gsm8k/ and math/, on the golden encodings, on every character
# of Unicode and on TOKENIZERS_RANDOM random strings each (20,000). Arguments, if any, name the
# tokenizers to take. About 10 minutes of CPU for all; CI takes a quarter of them, by the commit's
# hash. Last line: tokenizers=N lines=M mismatched=K

. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
lib_data
lib_python

build=${MILES_BUILD:-$ROOT/build}
[ -f "$build/CMakeCache.txt" ] ||
    lib_die "no build in $build: run cmake -S . -B build, or set MILES_BUILD"
cmake --build "$build" --target tok_pipe miles >&2

# tokenize NAME ARGS...: the command with a tokenizer of the test data.
tokenize() {
    local dir=$DATA/tokenizers/$1
    shift
    "$build/miles" tokenize --hf-checkpoint "$dir" "$@"
}

# refused CODE WORD ARGS...: the command ends with the code and names the cause.
refused() {
    local code=0 want=$1 word=$2 said
    shift 2
    said=$("$build/miles" tokenize "$@" 2>&1) || code=$?
    [ $code = "$want" ] && [[ $said == *"$word"* ]] ||
        lib_die "tokenize $*: exit code $code, not $want, or without '$word': $said"
}

text=$'Hello, w\u00f6rld \u6f22\u5b57 \U0001f600\n  two "quoted"'
for name in smollm2 qwen3 llama-2 gemma-4; do
    ids=$(printf '%s' "$text" | tokenize $name)
    live_equal "$name back from $ids" "$(echo "$ids" | tokenize $name --decode)" "$text"
    live_equal "$name as JSON" "$(tokenize $name --json "$text" | tr -d '{}[]":ids' | tr , ' ')" "$ids"
done
refused 2 "column 3" --hf-checkpoint "$DATA/tokenizers/gpt2" --decode "1 x"
refused 2 "no token has id" --hf-checkpoint "$DATA/tokenizers/gpt2" --decode 99999999
refused 2 "hf-checkpoint" text
refused 1 "tokenizer.json" --hf-checkpoint "$DATA" text
if [ $# = 0 ] && [ "${CI:-}" = true ]; then
    quarter=$((16#$(git -C "$ROOT" rev-parse --short=4 HEAD | cut -c1-4) % 4))
    case $quarter in
    0) set -- smollm2 qwen2.5 llama-3.1 mistral-nemo llama-2 \
        unigram bert-uncased bpe-suffix tiktoken wordlevel ;;
    1) set -- smollm2 qwen3 gpt2 gpt-oss mistral-7b-v0.3 \
        unigram-nmt unigram-bytes bert-cased bpe-prefix bpe-ctc ;;
    2) set -- smollm2 qwen3.6 deepseek-v3 cl100k phi-3 \
        unigram-charsmap unigram-part wordpiece-punct bpe-clip bpe-none ;;
    *) set -- smollm2 deepseek-v4 gpt-neox-20b claude-legacy gemma-4 \
        unigram-whole wordpiece-fixed bert-accents bpe-chain bpe-spelled ;;
    esac
    lib_say "tokenizers of this commit: $*"
fi
exec env MILES_TEST_DATA="$DATA" "$PYTHON" "$ROOT/tests/live/tokenizer_parity.py" \
    "$build/tok_pipe" "$@"
