#!/usr/bin/env bash
# Agents through the session server in front of a live SGLang: tests/live/sessions_sglang.sh
#
# A tiny random model behind SGLang on the CPU, and a proxy that writes down what SGLang was asked and what it said
# (sessions_sglang.py). AGENTS (6) agents talk through `miles session serve`; then `miles train` makes two steps with an
# agent, with new weights between them. Every token that is to be trained must be one that SGLang sampled, with its
# log-prob, in the context in which it was sampled, and nothing that SGLang said may be missing. Ends with
#     turns=... generated=... trained=... differences=0 train_turns=... train_generated=... train_trained=... ...

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_python
lib_work
MODEL=$WORK/model
live_tiny "$MODEL" --family llama --vocab 512 --hidden 128
lib_sglang

# serve NAME COMMAND...: a server in the background; its address in URL.
serve() {
    local name=$1
    shift
    : >"$WORK/serve.out"
    "$@" >"$WORK/serve.out" 2>"$WORK/serve.err" &
    SERVER=$!
    lib_ready "$name" 200
}

serve "the proxy" "$PYTHON" "$ROOT/tests/live/sessions_sglang.py" record "$SGLANG_URL" "$WORK/log"
PROXY=$URL
serve "miles session serve" "$MILES" session serve --hf-checkpoint "$MODEL" --port 0 --max-seq-len 1024 \
    --upstream "$PROXY"
talked=$("$PYTHON" "$ROOT/tests/live/sessions_sglang.py" talk "$URL" "$WORK/log") || lib_die "talk: $talked"
lib_say "$talked"

cat >"$WORK/agent.py" <<'PY'
import asyncio
import json

from miles_c.agent import call


async def run(base_url, prompt, request_kwargs):
    """Two turns, the second if the first came to its end; the reward is made of what was said."""
    loop, said = asyncio.get_running_loop(), ""
    messages, body = list(prompt), dict(request_kwargs, max_tokens=8, logit_bias={"2": 4.0})
    for _ in range(2):
        raw = await loop.run_in_executor(None, call, base_url, "POST", "/v1/chat/completions",
                                         dict(body, model="x", messages=messages))
        choice = json.loads(raw)["choices"][0]
        said += choice["message"]["content"] or ""
        messages += [choice["message"], {"role": "user", "content": "go on"}]
        if choice["finish_reason"] != "stop":
            break
    return sum(said.encode()) % 7 / 7
PY
python3 - "$WORK/prompts.jsonl" <<'PY'
import json, sys

with open(sys.argv[1], "w") as out:
    for i in range(8):
        text = f"{'word ' * (i % 5)}{i * 37 % 101}"
        out.write(json.dumps({"prompt": [{"role": "user", "content": text}], "label": str(i)}) + "\n")
PY
lib_train "$WORK/run" --hf-checkpoint "$MODEL" --prompt-data "$WORK/prompts.jsonl" --input-key prompt --label-key label \
    --custom-generate-function-path miles.rollout.generate_hub.agentic_tool_call.generate \
    --custom-agent-function-path "$WORK/agent.py:run" --use-session-server --reward-python "$PYTHON" \
    --rollout-backend sglang --rollout-external --rollout-external-engine-addrs "$PROXY" --num-rollout 2 \
    --rollout-batch-size 4 --n-samples-per-prompt 2 --global-batch-size 8 --rollout-max-response-len 64 \
    --use-dynamic-batch-size --max-tokens-per-gpu 512 --lr 1e-3 --lr-decay-style constant \
    --save-debug-rollout-data "$WORK/rollout-{rollout_id}.json"
trained=$("$PYTHON" "$ROOT/tests/live/sessions_sglang.py" trained "$WORK/log" "$WORK"/rollout-*.json) ||
    lib_die "train: $trained"
versions=$(grep -c 'weight_sync: the engines have version' "$WORK/run.log") || lib_die "no weights were sent"
echo "$talked $(printf '%s' "$trained" | sed 's/\([a-z]*=\)/train_\1/g') versions_proven=$versions"
