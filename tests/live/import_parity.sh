#!/usr/bin/env bash
# `miles import` against transformers on the same GGUF files: SmolLM2 (Q4_1, Q8_0, F32) and tiny models
# of every family with every tensor type. Weights bit by bit, logits, tokens, the loading of the folder.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_python
lib_work

"$ROOT/tools/fetch_smollm2.sh" --gguf "$WORK/smollm2.gguf"
"$PYTHON" "$ROOT/tests/live/import_parity.py" "$MILES" "$WORK"
