#!/usr/bin/env bash
# Chat templates: our interpreter against transformers' apply_chat_template, byte for byte, on every template
# of $MILES_TEST_DATA/templates. Last line: templates=N renders=M mismatched=K.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_data
lib_python
export MILES_BUILD=${MILES_BUILD:-$ROOT/build}
if [ ! -x "$MILES_BUILD/test_chat" ]; then
    cmake --build "$MILES_BUILD" --target test_chat >&2
fi
exec "$PYTHON" "$ROOT/tests/live/templates.py" "$@"
