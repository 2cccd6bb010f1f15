#!/usr/bin/env bash
# `miles serve` with SmolLM2 and real clients: tests/live/serve_api.sh
#
# Python's urllib and the openai package talk to it (tests/live/serve_api.py): SGLang's native API, OpenAI's,
# weights, and equal answers alone and under load. Then SIGTERM comes while a request runs: it is answered,
# and the program ends with 0. Ends with checks=... drained=1

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_model
lib_python
lib_work

KEY=live-$$
lib_serve --api-key "$KEY" --served-model-name smollm2

checks=$("$PYTHON" "$ROOT/tests/live/serve_api.py" "$URL" "$KEY" "$MODEL")

"$PYTHON" - "$URL" "$KEY" >"$WORK/last" <<'END' &
import json, sys, urllib.request
body = {"text": "Once", "sampling_params": {"max_new_tokens": 64, "ignore_eos": True}}
request = urllib.request.Request(sys.argv[1] + "/generate", json.dumps(body).encode(),
                                 {"Authorization": "Bearer " + sys.argv[2]})
print(json.load(urllib.request.urlopen(request))["meta_info"]["completion_tokens"])
END
LAST=$!
until curl -sf "$URL/metrics" | grep -q '^sglang:num_running_reqs{[^}]*} 1'; do
    kill -0 $LAST 2>/dev/null || break
    sleep 0.02
done
kill -TERM $SERVER
wait $LAST || lib_die "a request was not answered after SIGTERM"
wait $SERVER || lib_die "miles serve ended with $? after SIGTERM"
live_equal "tokens of the last request" "$(cat "$WORK/last")" 64
echo "$checks drained=1"
