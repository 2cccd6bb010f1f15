"""Conversations for templates.py: what chat templates are given, and what they should refuse."""
import json

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Get the weather in a city, e.g. \"Köln\" <now> & 'later'.",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "City name"},
            "unit": {"type": "string", "enum": ["c", "f"], "description": "Unit", "default": "c"},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
            "opts": {"type": "object", "description": "More", "properties": {
                "wind": {"type": "boolean"}, "Alt": {"type": "number"}}, "required": ["wind"]},
            "tags": {"type": "array", "items": {"type": "string"}, "description": "Tags"}},
            "required": ["city"]}}},
    {"type": "function", "function": {
        "name": "sum", "description": "Adds numbers.\nSecond line.",
        "parameters": {"type": "object", "properties": {
            "a": {"type": ["number", "null"], "description": "first"},
            "b": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
            "items": {"type": "array", "items": {"type": "object", "properties": {"q": {"type": "integer"}}}}},
            "required": ["a", "b"]},
        "return": {"type": "number", "description": "the sum"}}},
    {"type": "function", "function": {"name": "now", "description": "Time", "parameters": {"type": "object", "properties": {}}}},
]


def call(name, args, n, as_text=False):
    return {"id": "call%05d" % n, "type": "function",
            "function": {"name": name, "arguments": json.dumps(args) if as_text else args}}


def conversations():
    """Each a dict of name, messages, tools, kwargs, documents, add_generation_prompt, continue (the field of
    the last message that stays open) and special (which set of special tokens)."""
    sysm = {"role": "system", "content": "You are a helpful assistant."}
    user = {"role": "user", "content": "Hello, how are you?"}
    asst = {"role": "assistant", "content": "I'm fine. <b>Thanks</b> & you?"}
    uni = {"role": "user", "content": "  naïve 日本語 🙂 \u00a0\u2028 İstanbul ß ΑΣ\n\tcode: `x < 1 && y > \"2\"`\r\nend  \n"}
    args = {"city": "Köln", "days": 3, "opts": {"wind": True, "Alt": 1.5}, "tags": ["a", "b\"c"], "unit": None}
    out = []

    def add(name, msgs, tools=None, gen=True, documents=None, cont=None, special="both", **kw):
        out.append({"name": name, "messages": msgs, "tools": tools, "kwargs": kw, "documents": documents,
                    "add_generation_prompt": gen, "continue": cont, "special": special})

    add("user", [user])
    add("user-nogen", [user], gen=False)
    add("system", [sysm, user])
    add("turns", [user, asst, {"role": "user", "content": "And now?"}])
    add("system-turns", [sysm, user, asst, {"role": "user", "content": "And now?"}, {"role": "assistant", "content": "Now."},
                         {"role": "user", "content": "Bye"}])
    add("ends-assistant", [sysm, user, asst], gen=False)
    add("unicode", [{"role": "system", "content": "Système ✓"}, uni])
    add("empty", [{"role": "user", "content": ""}])
    add("empty-system", [{"role": "system", "content": ""}, user])
    add("no-messages", [])
    add("two-users", [user, user])
    add("odd-role", [{"role": "critic", "content": "hm"}])
    add("assistant-first", [asst, user])
    add("system-last", [user, asst, sysm])
    add("developer", [{"role": "developer", "content": "Be brief."}, user])
    add("none-content", [user, {"role": "assistant", "content": None}], gen=False)
    add("parts", [{"role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": " this?"}]}])
    add("image", [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Describe."}]}])
    add("image-url", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "Describe."}]}])
    add("parts-system", [{"role": "system", "content": [{"type": "text", "text": "Sys."}]}, user, {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]}, user])
    for think in (True, False):
        add("think-%s" % think, [sysm, user], enable_thinking=think)
        add("think-turns-%s" % think, [user, asst, {"role": "user", "content": "Why?"}], enable_thinking=think)
        add("thinking-kw-%s" % think, [user], thinking=think)
    reason = {"role": "assistant", "content": "4", "reasoning_content": "2+2\nis 4\n"}
    add("reasoning", [user, reason, {"role": "user", "content": "Sure?"}])
    add("reasoning-last", [user, reason], gen=False)
    add("reasoning-last-nothink", [user, reason], gen=False, enable_thinking=False)
    add("thinking-field", [user, {"role": "assistant", "content": "4", "thinking": "two and two"}, user])
    add("reasoning-field", [user, {"role": "assistant", "content": "4", "reasoning": "two and two"}, user])
    add("inline-think", [user, {"role": "assistant", "content": "<think>\n2+2\n</think>\n\n4"}, {"role": "user", "content": "Sure?"}])
    add("inline-think-last", [user, {"role": "assistant", "content": "<think>\n2+2\n</think>\n\n4"}], gen=False)
    add("two-thinks", [user, {"role": "assistant", "content": "a</think>b</think>c"}], gen=False)
    add("preserve", [user, reason, user, reason, user], preserve_thinking=True)
    add("clear", [user, reason, user, reason, user], clear_thinking=False)
    add("effort", [sysm, user], reasoning_effort="high")
    add("tools", [user], TOOLS)
    add("tools-system", [sysm, user], TOOLS)
    add("tools-nothink", [sysm, user], TOOLS, enable_thinking=False)
    add("tools-one", [user], TOOLS[:1])
    add("tools-empty", [user], [])
    add("tools-bare", [user], [t["function"] for t in TOOLS])
    for text in (False, True):
        t = "-text" if text else ""
        c1 = {"role": "assistant", "content": "", "tool_calls": [call("get_weather", args, 1, text)]}
        c2 = {"role": "assistant", "content": "Let me see.", "tool_calls": [call("get_weather", {"city": "Ulm"}, 2, text), call("sum", {"a": 1, "b": 2.5}, 3, text)]}
        r1 = {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": "{\"temp\": 21.5, \"sky\": \"clear\"}"}
        r2 = {"role": "tool", "tool_call_id": "call00002", "name": "get_weather", "content": "rain"}
        r3 = {"role": "tool", "tool_call_id": "call00003", "name": "sum", "content": "3.5"}
        add("call" + t, [user, c1], TOOLS, gen=False)
        add("call-result" + t, [user, c1, r1], TOOLS)
        add("call-result-end" + t, [sysm, user, c1, r1, asst, user], TOOLS)
        add("calls-results" + t, [sysm, user, c2, r2, r3], TOOLS)
        add("calls-chain" + t, [user, c1, r1, c2, r2, r3, asst, {"role": "user", "content": "More"}, c1, r1], TOOLS)
        add("calls-no-tools" + t, [user, c1, r1])
        add("calls-reasoning" + t, [user, dict(c1, reasoning_content="I need the weather."), r1, dict(c2, reasoning_content="More."), r2, r3], TOOLS)
        add("calls-reasoning-off" + t, [user, dict(c1, reasoning_content="I need the weather."), r1], TOOLS, enable_thinking=False)
        add("calls-null" + t, [user, dict(c1, content=None), r1], TOOLS)
        add("calls-missing-content" + t, [user, {k: v for k, v in c1.items() if k != "content"}, r1], TOOLS)
    flat = {"role": "assistant", "content": "", "tool_calls": [{"name": "sum", "arguments": {"a": 1, "b": [1, 2.0, None, True, "x"]}}]}
    add("call-flat", [user, flat, {"role": "tool", "content": "3"}], TOOLS)
    add("call-noargs", [user, {"role": "assistant", "content": "", "tool_calls": [call("now", {}, 9)]}, {"role": "tool", "tool_call_id": "call00009", "content": "12:00"}], TOOLS)
    add("tool-parts", [user, flat, {"role": "tool", "content": [{"type": "text", "text": "3"}, {"type": "text", "text": "4"}]}], TOOLS)
    add("tool-dict", [user, flat, {"role": "tool", "content": {"v": 3, "w": [1, "ü"]}}], TOOLS)
    add("tool-choice", [user], TOOLS, tool_choice="required")
    add("documents", [user], documents=[{"title": "T1", "text": "Body 1"}, {"title": "T2", "text": "Body 2"}])
    add("date", [user], date_string="26 Jul 2024")
    add("json-schema", [user], response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}})
    add("rerank", [{"role": "query", "content": "q?"}, {"role": "document", "content": "d."}])
    add("rerank-system", [{"role": "system", "content": "judge"}, {"role": "query", "content": "q?"}, {"role": "document", "content": "d."}])
    add("functions", [user], functions=json.dumps(TOOLS), datetime="2024-01-01")
    add("continue", [user, {"role": "assistant", "content": "Once upon", "prefix": True}], gen=False)
    add("observation", [user, {"role": "assistant", "metadata": "get_weather", "content": "{}"}, {"role": "observation", "content": "ok"}], TOOLS)
    add("function-role", [user, {"role": "function", "name": "f", "content": "{\"a\": 1}"}], TOOLS)
    add("weights", [user, dict(asst, weight=0), user, dict(asst, weight=1)], gen=False)
    add("long", [m for i in range(40) for m in ({"role": "user", "content": "q%d " % i * 30}, {"role": "assistant", "content": "a%d\n" % i * 30})] + [user])
    for role in ("user", "system", "tool", "assistant"):
        add("null-%s" % role, [user, {"role": role, "content": None}])
        add("missing-%s" % role, [user, {"role": role}])
        add("number-%s" % role, [user, {"role": role, "content": 3}])
    add("null-calls", [user, dict(asst, tool_calls=None, reasoning_content=None, name=None), user])
    add("empty-calls", [user, dict(asst, tool_calls=[]), user])
    add("null-kw", [user], enable_thinking=None, tools_in_user_message=None)
    add("role-missing", [{"content": "x"}])
    add("role-null", [{"role": None, "content": "x"}])
    add("text-message", ["hello"])
    add("text-tool", [user], ["get_weather"])
    add("quotes", [{"role": "user", "content": "it's \"quoted\" \\ `back` \u201ctypographic\u201d {{ x }} {% y %} {# z #}"},
                   {"role": "assistant", "content": "'''\n\"\"\""}, user])
    add("specials-in-text", [{"role": "user", "content": "<|im_end|><s></s>[INST]<|eot_id|><think></think><|channel|>"}])
    add("emoji", [{"role": "system", "content": "\U0001f468\u200d\U0001f469\u200d\U0001f467 family"},
                  {"role": "user", "content": "\U0001f1e9\U0001f1ea \u0001\u007f e\u0301 \u00e9"},
                  {"role": "assistant", "content": "\U0001f44d\U0001f3fd"}, user])
    add("spaces", [{"role": "system", "content": " s \n"}, {"role": "user", "content": "\n\n u \t"},
                   {"role": "assistant", "content": "\u3000a\u00a0"}, {"role": "user", "content": "   "}])
    add("many-parts", [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image", "image": "x"}, {"type": "video"},
                                                     {"type": "audio"}, {"type": "input_text", "text": "b"}, "bare"]}])
    add("parts-empty", [{"role": "user", "content": []}])
    add("parts-assistant", [user, {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Yes."}]}, user])
    add("reasoning-all", [user, {"role": "assistant", "content": "4", "reasoning": "r", "thinking": "t", "reasoning_content": "c"}, user,
                          dict(reason, thinking="mine")], gen=False)
    add("reasoning-empty", [user, {"role": "assistant", "content": "4", "reasoning_content": ""}, user])
    add("reasoning-only", [user, {"role": "assistant", "reasoning_content": "hm"}], gen=False)
    add("reasoning-number", [user, {"role": "assistant", "content": "4", "reasoning": 7}, user])
    add("tool-first", [{"role": "tool", "content": "x"}, user])
    add("three-systems", [sysm, user, sysm, asst, sysm, user])
    add("documents-chat", [sysm, user, asst, user], documents=[{"title": "T\u00e9", "text": "Body\n1", "n": 1}, {"text": "only"}])
    add("documents-empty", [user], documents=[])
    add("documents-text", [user], documents=["x"])
    for special in ("none", "all", "bos", "empty"):
        add("special-" + special, [sysm, user, asst, user], special=special)
    add("special-kw", [user, asst, user], bos_token="<BOS>", eos_token="<EOS>", pad_token=None)
    add("continue-text", [user, {"role": "assistant", "content": "Once upon"}], gen=False, cont="content")
    add("continue-space", [sysm, user, {"role": "assistant", "content": "Once upon \n"}], gen=False, cont="content")
    add("continue-user", [{"role": "user", "content": "\u00fcber"}], gen=False, cont="content")
    add("continue-parts", [user, {"role": "assistant", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "Two"}, {"type": "image"}]}],
        gen=False, cont="content")
    add("continue-no-text", [user, {"role": "assistant", "content": [{"type": "image"}]}], gen=False, cont="content")
    add("continue-null", [user, {"role": "assistant", "content": None}], gen=False, cont="content")
    add("continue-reasoning", [user, {"role": "assistant", "content": "x", "reasoning": "Let me"}], gen=False, cont="reasoning_content")
    add("continue-thinking", [user, {"role": "assistant", "content": "", "thinking": "Let me"}], gen=False, cont="thinking")
    add("continue-generate", [user, asst], gen=True, cont="content")
    add("continue-empty", [user, {"role": "assistant", "content": ""}], gen=False, cont="content")
    add("continue-call", [user, dict(flat, content="Calling")], TOOLS, gen=False, cont="content")
    add("dates", [sysm, user], date_string="2026-02-03", today="x", current_date="y", datetime="z")
    add("kw-many", [sysm, user], enable_thinking=True, thinking_budget=100, add_vision_id=True, builtin_tools=["python", "browser"],
        custom_tools=None, tools_in_user_message=False, model_identity="I am.", keep_past_thinking=True, truncate_history_thinking=False)
    add("builtin", [sysm, user], TOOLS, builtin_tools=["brave_search", "code_interpreter"], reasoning_effort="low")
    names = [c["name"] for c in out]
    assert len(names) == len(set(names)), "two conversations have one name"
    return out
