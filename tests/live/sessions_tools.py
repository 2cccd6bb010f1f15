"""Tools through a session: sessions_tools.py URL, a session server in front of the model of
scripted_model.py, which calls a tool twice and then answers. The built-in loop, and the openai package.
Prints tool_checks=N; the first check that fails ends it."""
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import openai

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
from miles_c.agent import ToolLoop, call, samples_of  # noqa: E402
from miles_c.types import Sample  # noqa: E402

URL = sys.argv[1]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
CHECKS = 0


def check(ok, what):
    global CHECKS
    if not ok:
        sys.exit(f"sessions_tools.py: {what}")
    CHECKS += 1


def opened():
    return json.loads(call(URL, "POST", "/sessions", {"sampling_params": {"temperature": 0}}))["session_id"]


def sample(session):
    blob = call(URL, "POST", f"/sessions/{session}/samples")
    one, = samples_of(blob, Sample(prompt="", metadata={}))
    call(URL, "DELETE", f"/sessions/{session}")
    return one


def judge(one, name):
    roles = [m["role"] for m in one.metadata["messages"]]
    check(roles == ["user", "assistant", "tool", "tool", "assistant"], f"{name}: {roles}")
    calls = one.metadata["messages"][1]["tool_calls"]
    check([c["function"]["arguments"]["city"] for c in calls] == ["Paris", "Rome"], f"{name}: calls")
    check(one.metadata["messages"][-1]["content"] == "It is sunny in Paris and Rome.", f"{name}: answer")
    origins = [g["origin"] for g in one.segments]
    check(origins == [0, 1, 0], f"{name}: segments {origins}")
    trained = sum(one.loss_mask)
    check(trained == sum(g["len"] for g in one.segments if g["origin"] == 0), f"{name}: mask")
    check("sun" in one.response and one.status is Sample.Status.COMPLETED, f"{name}: response")


def execute(name, params):
    if params["city"] == "Rome":
        raise ValueError("no sun today")  # the policy is told
    return f"{name} of {params['city']}: sun"


async def loop():
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump(TOOLS, f)
        f.flush()
        tools = ToolLoop(execute, SimpleNamespace(generate_max_turns=4, generate_tool_specs_path=f.name))
    session = opened()
    result = await tools(f"{URL}/sessions/{session}", "What is the weather?", {"max_tokens": 64}, {})
    check(result["agent_metrics"]["total_tool_time"] >= 0, "time in tools")
    one = sample(session)
    judge(one, "loop")
    check(one.metadata["messages"][3]["content"] == "error: no sun today", "an error is told")
    session = opened()
    tools.turns = 1
    await tools(f"{URL}/sessions/{session}", "What is the weather?", {"max_tokens": 64}, {})
    check(sample(session).metadata["round_number"] == 1, "--generate-max-turns")


def client():
    session = opened()
    ask = openai.OpenAI(base_url=f"{URL}/sessions/{session}/v1", api_key="x", max_retries=0).chat.completions
    messages = [{"role": "user", "content": "What is the weather?"}]
    first = ask.create(model="x", messages=messages, tools=TOOLS, max_tokens=64).choices[0]
    check(first.finish_reason == "tool_calls" and len(first.message.tool_calls) == 2, "openai: calls")
    messages.append(first.message)
    messages += [{"role": "tool", "tool_call_id": c.id, "content": "sun"} for c in first.message.tool_calls]
    second = ask.create(model="x", messages=messages, tools=TOOLS, max_tokens=64).choices[0]
    check(second.message.content == "It is sunny in Paris and Rome.", "openai: answer")
    judge(sample(session), "openai")


asyncio.run(loop())
client()
print(f"tool_checks={CHECKS}")
