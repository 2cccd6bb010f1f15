#!/usr/bin/env bash
# The openai Python package, unchanged, against `miles serve`: tests/live/openai_client.sh
#
# Chat, streams, log-probs, completions, errors as the package's exceptions and sixteen requests at once
# with SmolLM2; tools and reasoning with a model that says what a script tells it (scripted_model.py).
# Ends with openai=... openai_checks=...

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_model
lib_python
lib_work

KEY=live-$$
lib_serve --api-key "$KEY"
PLAIN=$URL
"$PYTHON" "$ROOT/tests/live/scripted_model.py" "$WORK/scripted"
MODEL=$WORK/scripted
lib_serve --sglang-tool-call-parser hermes --sglang-reasoning-parser qwen3
"$PYTHON" "$ROOT/tests/live/openai_client.py" "$PLAIN" "$KEY" "$URL"
