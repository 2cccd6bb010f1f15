#!/usr/bin/env bash
# Chat templates: our interpreter against transformers' apply_chat_template, byte for byte, on every template
# of $MILES_TEST_DATA/templates; before that, loss masks on real tokenizers (masks=N ... mismatched=K). Last line:
# templates=N renders=M mismatched=K.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_data
lib_python
export MILES_BUILD=${MILES_BUILD:-$ROOT/build}
if [ ! -x "$MILES_BUILD/test_chat" ] || [ ! -x "$MILES_BUILD/test_chatmask" ]; then
    cmake --build "$MILES_BUILD" --target test_chat test_chatmask >&2
fi
"$PYTHON" "$ROOT/tests/live/template_masks.py" >&2
exec "$PYTHON" "$ROOT/tests/live/templates.py" "$@"
