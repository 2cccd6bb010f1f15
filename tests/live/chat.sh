#!/usr/bin/env bash
# A conversation with SmolLM2: tests/live/chat.sh
#
# From a pipe: the first answer is that of `miles generate`, each turn finds all rows of the turns before
# in the cache, and the same lines give the same text. In a terminal (tests/live/chat_tty.py): answers
# appear in pieces, Ctrl-C ends one and leaves the conversation, Ctrl-D ends that.
# Ends with turns=... cached_tokens=... pieces=...

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_model
lib_work

SAY=$WORK/say
printf 'What is the capital of France?\nAnd of Italy?\n\nWhich of the two is larger?\n' >"$SAY"

# talk NAME ARGS...: the conversation; answers to NAME, timing to NAME.err.
talk() {
    local name=$1
    shift
    "$MILES" chat --hf-checkpoint "$MODEL" --max-tokens 24 --timing "$@" <"$SAY" >"$WORK/$name" \
        2>"$WORK/$name.err" || {
        cat "$WORK/$name.err" >&2
        lib_die "miles chat failed"
    }
}

talk greedy --temperature 0
"$MILES" generate --hf-checkpoint "$MODEL" --max-tokens 24 --prompt "$(head -n 1 "$SAY")" >"$WORK/one"
live_equal "the first answer" "$(cat "$WORK/one")" "$(head -n "$(wc -l <"$WORK/one")" "$WORK/greedy")"

talk warm --temperature 1 --seed 7
talk again --temperature 1 --seed 7 --threads 1
live_equal "two runs" "$(cat "$WORK/warm")" "$(cat "$WORK/again")"

# All rows of a turn but that of its last token are there in the next.
cached=0
turns=0
known=0
while read -r prompt found said; do
    live_equal "cached tokens of turn $turns" "$found" "$known"
    known=$((prompt + said - 1))
    cached=$((cached + found))
    turns=$((turns + 1))
done < <(sed -n 's/prompt_tokens=\([0-9]*\) cached_tokens=\([0-9]*\) tokens=\([0-9]*\) .*/\1 \2 \3/p' \
    "$WORK/warm.err")
live_equal "turns" "$turns" 3

pieces=$(python3 "$ROOT/tests/live/chat_tty.py" "$MILES" "$MODEL")
echo "turns=$turns cached_tokens=$cached pieces=$pieces"
