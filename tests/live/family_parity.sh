#!/usr/bin/env bash
# Every family and every kind of rope against transformers, with random weights at a tiny size: logits and
# gradients in float32, top-1 agreement in bf16. Its table is the one of docs/models.md: with UPDATE=1 it is
# written there, else the committed rows must name the same models.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_python
lib_work

cmake --build "$MILES_BUILD" --target test_forward >&2
"$PYTHON" "$ROOT/tests/live/family_parity.py" "$MILES_BUILD/test_forward" "$WORK" \
    "$ROOT/tools/tiny_model.py" "$ROOT/docs/models.md" "${UPDATE:-0}"
