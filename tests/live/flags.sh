#!/usr/bin/env bash
# Every flag of Miles has an answer, and the program gives it: tests/live/flags.sh
#
# `miles flags --check` holds docs/miles-flags.tsv against the program; every flag that does nothing here
# is given with another value than its default and must be refused or told in the log, with its sentence;
# every combination of docs/miles-rules.tsv must be refused, or pass a dry run. Where the documents that
# the list was made from are there ($MILES_REFERENCE), every flag they name must be in the list,
# and the numbers they give as defaults must be the program's.
# Ends with names=... defaults=... flags=... refused=... told=... silent=0 rules=... failed=0.

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_work

REFERENCE=${MILES_REFERENCE:-$ROOT/../shared/reference}
"$MILES" flags --check "$ROOT/docs/miles-flags.tsv"
"$MILES" flags --tsv "$ROOT/docs/miles-flags.tsv" | cmp - "$ROOT/docs/miles-flags.tsv" ||
    lib_die "docs/miles-flags.tsv is not current: run tools/flags_doc.sh"

# What the check must find: an answer that is not the program's, a name without one, a name too few.
wrong() {
    local what=$1 said=$2
    if "$MILES" flags --check "$WORK/planted.tsv" >"$WORK/planted.out" 2>&1; then
        lib_die "miles flags --check does not find $what"
    fi
    grep -q -e "$said" "$WORK/planted.out" || lib_die "$what: \"$said\" is not said: $(cat "$WORK/planted.out")"
}
sed '/^lora-rank\t/s/planned/works/' "$ROOT/docs/miles-flags.tsv" >"$WORK/planted.tsv"
wrong "another state" 'state of --lora-rank is "works", the program says "planned"'
{
    cat "$ROOT/docs/miles-flags.tsv"
    printf 'no-such-flag\tx\tint\t-\tworks\tnothing\n'
} >"$WORK/planted.tsv"
wrong "an unknown name" 'unanswered=1$'
sed '/^lora-rank\t/d' "$ROOT/docs/miles-flags.tsv" >"$WORK/planted.tsv"
wrong "a missing name" 'lora-rank has an answer and is not in'
sed '5s/\t/ /' "$ROOT/docs/miles-flags.tsv" >"$WORK/planted.tsv"
wrong "a torn row" ':5: 5 columns, not 6'
"$MILES" flags --tensor-model-parallel-size | grep -q 'no way to split it changes a bit' ||
    lib_die "miles flags does not take a flag as it is written"
"$MILES" flags 'tensor-*' | grep -q '^--tensor-model-parallel-size: inapplicable, accepted' ||
    lib_die "miles flags does not show a flag"
if "$MILES" flags nothing-like-it >/dev/null 2>&1; then
    lib_die "miles flags finds what is not there"
fi

# The shape of a small model is enough for a dry run.
mkdir "$WORK/model"
cat >"$WORK/model/config.json" <<'JSON'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
 "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 512,
 "max_position_embeddings": 2048, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "hidden_act": "silu",
 "tie_word_embeddings": true, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2}
JSON
printf '{"question": "1+1", "answer": "2"}\n' >"$WORK/data.jsonl"
python3 "$(dirname "${BASH_SOURCE[0]}")/flags.py" "$MILES" "$ROOT/docs" "$WORK" "$WORK/model" \
    "$WORK/data.jsonl" "$REFERENCE"
