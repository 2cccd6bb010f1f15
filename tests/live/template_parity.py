#!/usr/bin/env python3
"""Renders every chat template of $MILES_TEST_DATA/templates with many conversations, once with jinja2
as transformers configures it and once with our interpreter (test_chat --render), and compares bytes.

A template is equal when every conversation gives the same text, or an error on both sides (for
raise_exception, the same message). The last line is `templates=N equal=M must_equal_failed=K ...`;
the exit code is 1 when a template of REQUIRED differs.

    MILES_BUILD=build MILES_TEST_DATA=DIR $MILES_ORACLES/bin/python tests/live/template_parity.py [-v] [NAME...]
    ... --golden tests/golden    writes jinja2's answers for test_jinja (jinja_snippets.json) and test_chat (chat.json)
"""
import json
import os
import re
import subprocess
import sys
import tempfile

import template_snippets
from transformers.utils.chat_template_utils import _compile_jinja_template

# Templates that differ from jinja2 for a reason that is written beside them; all others are required.
EXCUSED = {}

# Never to be excused: the families this program is first built for.
FAMILY = ("HuggingFaceTB-SmolLM2", "Qwen", "miles-qwen", "trl-qwen", "vllm-test-qwen", "chatlib-qwen")

# What test_chat checks without Python.
GOLDEN = ("HuggingFaceTB-SmolLM2-135M-Instruct", "Qwen-Qwen2.5-7B-Instruct", "Qwen-Qwen3-0.6B", "Qwen3-Coder", "Qwen3.5-4B",
          "Qwen-QwQ-32B", "miles-qwen3_fixed", "google-gemma-2-2b-it", "chatlib-zephyr")
GOLDEN_CHATS = ("user", "user-nogen", "system-turns", "unicode", "think-False", "reasoning", "reasoning-last-nothink",
                "tools-system", "calls-chain", "calls-reasoning-text", "odd-role", "no-messages")

CLOCK = re.compile(r"\b[0-2]\d:[0-5]\d:[0-5]\d\b")

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
    """(name, messages, tools, kwargs, add_generation_prompt)"""
    sysm = {"role": "system", "content": "You are a helpful assistant."}
    user = {"role": "user", "content": "Hello, how are you?"}
    asst = {"role": "assistant", "content": "I'm fine. <b>Thanks</b> & you?"}
    uni = {"role": "user", "content": "  naïve 日本語 🙂 \u00a0\u2028 İstanbul ß ΑΣ\n\tcode: `x < 1 && y > \"2\"`\r\nend  \n"}
    args = {"city": "Köln", "days": 3, "opts": {"wind": True, "Alt": 1.5}, "tags": ["a", "b\"c"], "unit": None}
    out = []

    def add(name, msgs, tools=None, gen=True, **kw):
        out.append((name, msgs, tools, kw, gen))

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
    return out


def oracle(text, msgs, tools, kwargs, gen, bos, eos):
    """('text', s), ('raised', message) or ('error', what)"""
    import jinja2
    try:
        compiled = _compile_jinja_template(text)
        extra = {"documents": None, "bos_token": bos, "eos_token": eos}
        extra.update(kwargs)
        s = compiled.render(messages=msgs, tools=tools, add_generation_prompt=gen, **extra)
        s.encode("utf-8")
        return "text", s
    except jinja2.exceptions.TemplateError as e:
        if type(e) is jinja2.exceptions.TemplateError:
            return "raised", str(e)
        return "error", "%s: %s" % (type(e).__name__, e)
    except Exception as e:
        return "error", "%s: %s" % (type(e).__name__, e)


def first_difference(a, b):
    i = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return "at %d: jinja2 %r, ours %r" % (i, a[max(0, i - 40):i + 60], b[max(0, i - 40):i + 60])


def run_ours(build, cases):
    """One result a case, in order; None when the program itself failed."""
    with tempfile.TemporaryFile("w+") as f:
        f.write("".join(json.dumps(c) + "\n" for c in cases))
        f.seek(0)
        got = subprocess.run([os.path.join(build, "test_chat"), "--render"], stdin=f, stdout=subprocess.PIPE, timeout=600)
    results = [json.loads(line) for line in got.stdout.decode("ascii").splitlines()]
    if got.returncode != 0 or len(results) != len(cases):
        print("test_chat --render ended with %d after %d of %d cases" % (got.returncode, len(results), len(cases)), file=sys.stderr)
        return None
    return results


def judge(kind, want, ours):
    """None when ours is what jinja2 gave, else why not."""
    if kind == "text":
        if "text" not in ours:
            return "ours failed: " + ours["error"]
        # the two sides ask strftime_now at different seconds
        a, b = CLOCK.sub("HH:MM:SS", want), CLOCK.sub("HH:MM:SS", ours["text"])
        return None if a == b else first_difference(a, b)
    if kind == "raised":
        return None if ours.get("error") == want[:1023] else "jinja2 raised %r, ours %r" % (want, ours)
    return None if "error" in ours else "jinja2 failed with %r, ours gave %r" % (want, ours["text"][:200])


def check_snippets(build, golden):
    """The number of snippets and of those that differ. `golden` names a file to write them to."""
    wants = [(t, oracle(t, [], None, template_snippets.VARS, False, "", "")) for t in template_snippets.snippets()]
    ours = run_ours(build, [{"template": t, "messages": [], "kwargs": template_snippets.VARS} for t, _ in wants])
    if ours is None:
        return len(wants), len(wants)
    bad = 0
    for (t, (kind, want)), got in zip(wants, ours):
        why = judge(kind, want, got)
        if why and t not in template_snippets.DIFFERENT:
            bad += 1
            print("snippet %r\n    %s" % (t, why))
    if golden:
        rows = [{"template": t, kind: want} for t, (kind, want) in wants if t not in template_snippets.DIFFERENT]
        for row in rows:
            if "error" in row:
                row["error"] = True  # that it fails matters, not Python's words
        with open(os.path.join(golden, "jinja_snippets.json"), "w", encoding="utf-8") as f:
            json.dump({"vars": template_snippets.VARS, "cases": rows}, f, ensure_ascii=True, indent=0)
            f.write("\n")
    return len(wants), bad


def write_chat_golden(folder, path):
    """The templates of GOLDEN with the conversations of GOLDEN_CHATS, for test_chat."""
    rows = []
    for name in GOLDEN:
        text = read_template(folder, name)
        for cname, msgs, tools, kwargs, gen in conversations():
            if cname not in GOLDEN_CHATS:
                continue
            kind, want = oracle(text, msgs, tools, kwargs, gen, "<s>", "</s>")
            rows.append({"name": cname, "template": name + ".jinja", "messages": msgs, "tools": tools, "kwargs": kwargs,
                         "add_generation_prompt": gen, "bos": "<s>", "eos": "</s>", kind: want if kind != "error" else True})
    with open(path, "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(json.dumps(r) for r in rows) + "\n]\n")


def read_template(folder, name):
    with open(os.path.join(folder, name + ".jinja"), encoding="utf-8", newline="") as f:
        return f.read()


def main():
    verbose = "-v" in sys.argv
    wanted = [a for a in sys.argv[1:] if not a.startswith("-")]
    build = os.environ.get("MILES_BUILD", "build")
    data = os.environ.get("MILES_TEST_DATA")
    if not data:
        print("MILES_TEST_DATA is not set: no templates to compare", file=sys.stderr)
        return 1 if os.environ.get("CI") == "true" else 77
    folder = os.path.join(data, "templates")
    names = sorted(n[:-6] for n in os.listdir(folder) if n.endswith(".jinja"))
    if wanted:
        names = [n for n in names if any(w in n for w in wanted)]
    golden = sys.argv[sys.argv.index("--golden") + 1] if "--golden" in sys.argv else None
    nsnippets, bad_snippets = check_snippets(build, golden)
    if golden:
        write_chat_golden(folder, os.path.join(golden, "chat.json"))
        return 1 if bad_snippets else 0
    chats = conversations()
    expected, lines = [], []
    for name in names:
        path = os.path.join(folder, name + ".jinja")
        text = read_template(folder, name)
        for cname, msgs, tools, kwargs, gen in chats:
            case = {"messages": msgs, "tools": tools, "kwargs": kwargs, "add_generation_prompt": gen,
                    "bos": "<s>", "eos": "</s>", "template_path": path}
            case = json.loads(json.dumps(case))  # what crosses to the other side
            expected.append((name, cname, oracle(text, case["messages"], case["tools"], case["kwargs"], gen, "<s>", "</s>")))
            lines.append(case)
    results = run_ours(build, lines)
    if results is None:
        return 1
    bad, texts, one_turn = {}, 0, set()
    for (name, cname, (kind, want)), ours in zip(expected, results):
        why = judge(kind, want, ours)
        texts += kind == "text"
        if why:
            bad.setdefault(name, []).append((cname, why))
        elif kind == "text" and cname == "user":
            one_turn.add(name)
    for name, cases in sorted(bad.items()):
        print("differs: %s in %d of %d%s" % (name, len(cases), len(chats), " (excused: %s)" % EXCUSED[name] if name in EXCUSED else ""))
        for cname, why in cases if verbose else cases[:1]:
            print("    %s: %s" % (cname, why))
    must = [n for n in names if n not in EXCUSED or n.startswith(FAMILY)]
    failed = [n for n in must if n in bad]
    print("templates=%d equal=%d one_turn_equal=%d cases=%d texts=%d must_equal=%d snippets=%d snippets_failed=%d must_equal_failed=%d"
          % (len(names), len(names) - len(bad), len(one_turn), len(expected), texts, len(must), nsnippets, bad_snippets, len(failed)))
    return 1 if failed or bad_snippets else 0


if __name__ == "__main__":
    sys.exit(main())
