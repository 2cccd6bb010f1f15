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
