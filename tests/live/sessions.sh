#!/usr/bin/env bash
# Agents through the session server, and a training run with agents: tests/live/sessions.sh
#
# AGENTS (64) agents talk to a tiny model through `miles session serve` for TURNS (600; 10000 for the long
# proof) turns: the tokens that are to be trained are those that were generated, and their log-probs are
# those of the engine for the whole conversation, bit for bit (sessions.py). Then every error of the server,
# hostile input, and clients that leave. Then runs of `miles train` whose agents raise, hang, die and
# branch: a run that is killed and goes on ends in the weights of one that was not, and nothing is left
# behind. Ends with agents=... turns=... differences=0 ... checks=... train_checks=...

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lib_binary
lib_python
lib_work

MODEL=$WORK/model
live_tiny "$MODEL" --family llama --vocab 512
lib_serve --sglang-max-running-requests 64
ENGINE=$URL

# sessions VAR ARGS...: a session server; its address in VAR.
sessions() {
    local var=$1
    shift
    : >"$WORK/serve.out"
    "$MILES" session serve --hf-checkpoint "$MODEL" --port 0 --max-seq-len 1024 "$@" \
        >"$WORK/serve.out" 2>>"$WORK/sessions.err" &
    SERVER=$!
    lib_ready "miles session serve" 100
    printf -v "$var" %s "$URL"
}

sessions V1 --upstream "$ENGINE"
FIRST=$SERVER
sessions V2 --upstream "$ENGINE" --use-session-server v2
sessions DEAD --upstream http://127.0.0.1:9 --request-timeout-s 2 --session-idle-s 2
talked=$("$PYTHON" "$ROOT/tests/live/sessions.py" "$V1" "$V2" "$DEAD" "$ENGINE") || lib_die "$talked"
lib_say "$talked"
kill -TERM "$FIRST"
wait "$FIRST" || lib_die "the session server did not end well"

# Tools: a model that calls them.
TINY=$MODEL MODEL=$WORK/scripted
"$PYTHON" "$ROOT/tests/live/scripted_model.py" "$MODEL"
lib_serve
sessions TOOLS --upstream "$URL" --tool-call-parser hermes
tooled=$("$PYTHON" "$ROOT/tests/live/sessions_tools.py" "$TOOLS") || lib_die "$tooled"
MODEL=$TINY

# ---- training ----

trained=0
cat >"$WORK/agents.py" <<'PY'
import asyncio
import json
import os
import time

from miles_c.agent import call


def ask(base_url, messages, **more):
    body = dict({"model": "x", "messages": messages}, **more)
    return json.loads(call(base_url, "POST", "/v1/chat/completions", body))["choices"][0]


async def ask_soon(*args, **more):
    return await asyncio.get_running_loop().run_in_executor(None, lambda: ask(*args, **more))


async def plain(base_url, prompt, request_kwargs, metadata, **kwargs):
    """Two turns; the reward is made of what was said."""
    kwargs = dict(request_kwargs, max_tokens=6, logit_bias={"2": 4.0})
    one = await ask_soon(base_url, prompt, **kwargs)
    said = one["message"]["content"] or ""
    if one["finish_reason"] == "stop":
        two = await ask_soon(base_url, prompt + [one["message"], {"role": "user", "content": "go on"}],
                             **kwargs)
        said += two["message"]["content"] or ""
    return {"reward": sum(said.encode()) % 7 / 7, "said": len(said)}


def unruly(base_url, prompt, request_kwargs, metadata, label):
    """A plain function that raises, hangs or dies for some prompts."""
    if label == "2":
        raise ValueError("no such place")
    ask(base_url, prompt, max_tokens=4)
    if label == "3":
        time.sleep(60)
    if label == "4":
        os.kill(os.getpid(), 9)
    return float(len(prompt[0]["content"]) % 3)


async def branches(base_url, prompt, request_kwargs, metadata):
    """Two continuations of one first answer."""
    kwargs = dict(request_kwargs, max_tokens=4, logit_bias={"2": 4.0})
    one = await ask_soon(base_url, prompt, **kwargs)
    if one["finish_reason"] != "stop":
        return 0.0
    said = 0
    for text in ("left", "right"):
        two = await ask_soon(base_url, prompt + [one["message"], {"role": "user", "content": text}],
                             **kwargs)
        said += len(two["message"]["content"] or "")
    return 1.0 + said


def execute(name, params):
    return f"{name} says {params}"


SPECS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
PY
python3 - "$WORK/prompts.jsonl" <<'PY'
import json, sys

with open(sys.argv[1], "w") as out:
    for i in range(24):
        text = f"{'word ' * (i % 5)}{i * 37 % 101}"
        out.write(json.dumps({"prompt": [{"role": "user", "content": text}], "label": str(i)}) + "\n")
PY
RUN=(--hf-checkpoint "$MODEL" --prompt-data "$WORK/prompts.jsonl" --input-key prompt --label-key label
    --apply-chat-template --rollout-backend miles --rollout-num-gpus 1 --num-rollout 3 --rollout-batch-size 4
    --n-samples-per-prompt 4 --global-batch-size 16 --rollout-max-response-len 64 --use-dynamic-batch-size
    --max-tokens-per-gpu 512 --lr 1e-4 --lr-decay-style constant --reward-python "$PYTHON")

train() {
    local name=$1
    shift
    "$MILES" train "${RUN[@]}" --run-dir "$WORK/$name" --save-hf "$WORK/$name-hf" "$@" 2>"$WORK/$name.err" ||
        lib_die "$name: $(tail -n 3 "$WORK/$name.err")"
}

# metric NAME KEY: the sum of a metric over the rows of a run.
metric() {
    python3 - "$WORK/$1/metrics.jsonl" "$2" <<'PY'
import json, sys

rows = [json.loads(line) for line in open(sys.argv[1])]
print(sum(r.get(sys.argv[2], 0) for r in rows))
PY
}

weights() {
    sha256sum <"$WORK/$1-hf/model.safetensors"
}

# Every sampled token has the trainer's log-prob, bit for bit, or the run would have ended.
train plain --custom-agent-function-path "$WORK/agents.py:plain" --save "$WORK/plain-ckpt" --log-multi-turn
exact=$(metric plain train/exact_tokens)
sampled=$(python3 -c 'import json, sys
print(sum(round(16 * json.loads(r)["multi_turn/wo_obs_response_length/response_length_mean"]) for r in open(sys.argv[1])))' \
    "$WORK/plain/metrics.jsonl")
# samples whose advantage is zero are not computed
[ $((10 * exact)) -ge $((7 * sampled)) ] || lib_die "$exact of $sampled sampled tokens were compared"
trained=$((trained + 1))

# The same again, killed twice: no recorded sample is asked for again, and the same bits come out.
killed=0
for sign in ledger.db metrics.jsonl; do # as soon as the file has something
    setsid "$MILES" train "${RUN[@]}" --run-dir "$WORK/kill" --save-hf "$WORK/kill-hf" --save "$WORK/kill-ckpt" \
        --custom-agent-function-path "$WORK/agents.py:plain" 2>"$WORK/kill.err" &
    pid=$!
    while [ ! -s "$WORK/kill/$sign" ] && kill -0 "$pid" 2>/dev/null; do
        sleep 0.01
    done
    if kill -KILL "$pid" 2>/dev/null; then killed=$((killed + 1)); fi
    wait "$pid" 2>/dev/null || true
done
[ "$killed" = 2 ] || lib_die "of two runs $killed were killed"
train kill --custom-agent-function-path "$WORK/agents.py:plain" --save "$WORK/kill-ckpt"
live_equal "weights of a run that was killed" "$(weights plain)" "$(weights kill)"
"$MILES" replay "$WORK/plain" >"$WORK/replay.out" 2>&1 || lib_die "replay: $(tail -n 3 "$WORK/replay.out")"
trained=$((trained + 2))

# Two engines behind a router, each conversation at one of them: the same bits.
train router --custom-agent-function-path "$WORK/agents.py:plain" --rollout-num-gpus 2 --use-miles-router
live_equal "weights of a run with a router" "$(weights plain)" "$(weights router)"
trained=$((trained + 1))

# Agents that raise, take too long or die: their groups are replaced, and counted.
train unruly --custom-agent-function-path "$WORK/agents.py:unruly" --hook-timeout 3
failed=$(metric unruly rollout/reward_failed_groups)
[ "${failed%.*}" -eq 3 ] || lib_die "$failed groups of unruly agents failed, not 3"
for word in "no such place" "within 3 s" "died"; do
    grep -q "$word" "$WORK/unruly.err" || lib_die "the log does not say '$word' of an unruly agent"
done
trained=$((trained + 4))

# Branches: more samples than were asked for, trained together.
train tree --use-session-server v2 --custom-agent-function-path "$WORK/agents.py:branches" \
    --save-debug-rollout-data "$WORK/tree-{rollout_id}.json"
many=$(python3 -c 'import collections, json, sys
rows = [json.loads(r) for p in sys.argv[1:] for r in open(p)]
ids = collections.Counter(r["rollout_id"] for r in rows if "index" in r)
print(sum(n == 2 for n in ids.values()))' "$WORK"/tree-*.json)
[ "$many" -ge 3 ] || lib_die "only $many agents of 48 have two samples"
trained=$((trained + 2))

# The built-in loop of tools.
train tools --generate-execute-tool-function-path "$WORK/agents.py:execute" \
    --generate-tool-specs-path "$WORK/agents.py:SPECS" --generate-tool-call-parser qwen \
    --generate-max-turns 3 --rm-type random
trained=$((trained + 1))

for pid in $(pgrep -f "$WORK/agents.py" || true); do
    lib_die "process $pid was left behind"
done
echo "$talked $tooled train_checks=$trained kills=$killed"
