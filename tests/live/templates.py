#!/usr/bin/env python3
"""Renders every chat template of $MILES_TEST_DATA/templates over the conversations of template_chats.py, once
with transformers' apply_chat_template and once with our interpreter (test_chat --render), and compares bytes.

An error must be an error on both sides, one of raise_exception with the same message. Generation marks must
stand at the same characters. The clock stands still on both sides. The small templates of template_snippets.py
and some thousand random ones (template_random.py) are compared too. The last line is `templates=N renders=M mismatched=K`, N being the templates that render at
least one conversation; the exit code is 1 when K is not 0 or N is below 206.

    MILES_BUILD=build MILES_TEST_DATA=DIR $MILES_ORACLES/bin/python tests/live/templates.py [-v] [NAME...]
    ... --random COUNT [--seed N]    random templates only
    ... --golden tests/golden    writes the answers for test_jinja (jinja_snippets.json) and test_chat (chat.json)
"""
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings

os.environ["TZ"] = "UTC"
time.tzset()

import jinja2  # noqa: E402
import tokenizers  # noqa: E402
import template_chats  # noqa: E402
import template_random  # noqa: E402
import template_snippets  # noqa: E402
import transformers  # noqa: E402
from transformers.utils import chat_template_utils  # noqa: E402

MUST_RENDER = 206
RANDOM = 2000
NOW = 1790000000  # a Monday in September 2026
NAMELESS = re.compile(r" object at 0x|generator object|built-in|<function")
MARK = re.compile(r"\{%[-+]?\s*generation\s")

# What test_chat checks without Python.
GOLDEN = ("HuggingFaceTB-SmolLM2-135M-Instruct", "Qwen-Qwen2.5-7B-Instruct", "Qwen-Qwen3-0.6B", "Qwen3-Coder", "Qwen3.5-4B",
          "Qwen-QwQ-32B", "miles-qwen3_fixed", "google-gemma-2-2b-it", "chatlib-zephyr", "trl-qwen3_training")
GOLDEN_CHATS = ("user", "user-nogen", "system-turns", "unicode", "think-False", "reasoning", "reasoning-last-nothink",
                "tools-system", "calls-chain", "calls-reasoning-text", "odd-role", "no-messages", "thinking-field",
                "continue-space", "continue-parts", "special-none")

SPECIAL = {
    "none": {},
    "both": {"bos_token": "<s>", "eos_token": "</s>"},
    "bos": {"bos_token": "<|begin|>"},
    "empty": {"bos_token": "", "eos_token": ""},
    "all": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>", "image_token": "<image>"},
}


class StoppedClock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(NOW, tz)


transformers.logging.set_verbosity_error()
chat_template_utils.datetime = StoppedClock
TOKENIZERS = {name: transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE()), **tokens)
              for name, tokens in SPECIAL.items()}
for name, tokens in SPECIAL.items():
    assert TOKENIZERS[name].special_tokens_map == tokens, (name, TOKENIZERS[name].special_tokens_map)


def oracle(text, chat):
    """('text', s, spans or None), ('raised', message, None) or ('error', what, None)"""
    try:
        args = dict(tools=chat["tools"], documents=chat["documents"], chat_template=text,
                    add_generation_prompt=chat["add_generation_prompt"])
        s = TOKENIZERS[chat["special"]].apply_chat_template(chat["messages"], tokenize=False,
                                                            continue_final_message=chat["continue"] or False,
                                                            **args, **chat["kwargs"])
        s.encode("utf-8")
        if chat["continue"] or not MARK.search(text):
            return "text", s, None
        _, marks = chat_template_utils.render_jinja_template(
            [chat["messages"]], return_assistant_tokens_mask=True, **args, **{**SPECIAL[chat["special"]], **chat["kwargs"]})
        return "text", s, [list(m) for m in marks[0]]
    except jinja2.exceptions.TemplateError as e:
        if type(e) is jinja2.exceptions.TemplateError:
            return "raised", str(e), None
        return "error", "%s: %s" % (type(e).__name__, e), None
    except Exception as e:
        return "error", "%s: %s" % (type(e).__name__, e), None


def first_difference(a, b):
    i = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return "at %d: transformers %r, ours %r" % (i, a[max(0, i - 40):i + 60], b[max(0, i - 40):i + 60])


def run_ours(build, lines, renders):
    """The results of the lines that render, in order; None when the program itself failed."""
    with tempfile.TemporaryFile("w+") as f:
        f.write("".join(json.dumps(c) + "\n" for c in lines))
        f.seek(0)
        got = subprocess.run([os.path.join(build, "test_chat"), "--render"], stdin=f, stdout=subprocess.PIPE, timeout=600)
    results = [json.loads(line) for line in got.stdout.decode("ascii").splitlines()]
    if got.returncode != 0 or len(results) != renders:
        print("test_chat --render ended with %d after %d of %d renders" % (got.returncode, len(results), renders), file=sys.stderr)
        return None
    return results


def our_chat(chat):
    return dict(chat, special=SPECIAL[chat["special"]], now=NOW)


def judge(kind, want, spans, ours):
    """None when ours is what transformers gave, else why not."""
    if kind == "text":
        if "text" not in ours:
            return "ours failed: " + ours["error"]
        if want != ours["text"]:
            return first_difference(want, ours["text"])
        return None if spans is None or spans == ours["spans"] else "marks %r, ours %r" % (spans, ours["spans"])
    if kind == "raised":
        return None if ours.get("error") == want[:1023] else "transformers raised %r, ours %r" % (want, ours)
    return None if "error" in ours else "transformers failed with %r, ours gave %r" % (want, ours["text"][:200])


def snippet_chat():
    return {"name": "snippet", "messages": [{"role": "user", "content": "x"}], "tools": None, "kwargs": template_snippets.VARS,
            "documents": None, "add_generation_prompt": False, "continue": None, "special": "none"}


def check_snippets(build, golden):
    """The number of snippets and of those that differ. `golden` names a folder to write them to."""
    chat = snippet_chat()
    wants = [(t, oracle(t, chat)) for t in template_snippets.snippets()]
    lines = [dict(our_chat(chat), template=t) for t, _ in wants]
    ours = run_ours(build, lines, len(wants))
    if ours is None:
        return len(wants), len(wants)
    bad = 0
    for (t, (kind, want, spans)), got in zip(wants, ours):
        why = judge(kind, want, spans, got)
        if why and t not in template_snippets.DIFFERENT:
            bad += 1
            print("snippet %r\n    %s" % (t, why))
    if golden:
        rows = [{"template": t, kind: want} for t, (kind, want, _) in wants if t not in template_snippets.DIFFERENT]
        for row in rows:
            if "error" in row:
                row["error"] = True  # that it fails matters, not Python's words
        with open(os.path.join(golden, "jinja_snippets.json"), "w", encoding="utf-8") as f:
            json.dump({"now": NOW, "vars": template_snippets.VARS, "cases": rows}, f, ensure_ascii=True, indent=0)
            f.write("\n")
    return len(wants), bad


def check_random(build, count, seed):
    """The number of random templates compared, and of those that differ."""
    chat = snippet_chat()
    made = template_random.templates(count, seed)
    ours = run_ours(build, [dict(our_chat(chat), template=t) for t in made], count)
    compared = bad = 0
    for t, got in zip(made, ours or []):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python compiles what jinja2 made of odd constants
            kind, want, spans = oracle(t, chat)
        if NAMELESS.search(str(want)):
            continue  # objects without a text of their own
        compared += 1
        # a message of raise_exception is compared where templates raise on purpose
        why = None if kind == "raised" and "error" in got else judge(kind, want, spans, got)
        if why:
            bad += 1
            print("random %r\n    %s" % (t, why))
    return compared, bad if ours else count


def write_chat_golden(folder, path):
    """The templates of GOLDEN with the conversations of GOLDEN_CHATS, for test_chat."""
    rows = []
    for name in GOLDEN:
        text = read_template(folder, name)
        for chat in template_chats.conversations():
            if chat["name"] in GOLDEN_CHATS:
                kind, want, spans = oracle(text, chat)
                row = dict(our_chat(chat), template=name + ".jinja")
                row[kind] = want if kind != "error" else True
                if spans is not None:
                    row["spans"] = spans
                rows.append(row)
    with open(path, "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(json.dumps(r) for r in rows) + "\n]\n")


def read_template(folder, name):
    with open(os.path.join(folder, name + ".jinja"), encoding="utf-8", newline="") as f:
        return f.read()


def main():
    verbose = "-v" in sys.argv
    build = os.environ.get("MILES_BUILD", "build")
    folder = os.path.join(os.environ["MILES_TEST_DATA"], "templates")
    golden = sys.argv[sys.argv.index("--golden") + 1] if "--golden" in sys.argv else None
    wanted = [a for a in sys.argv[1:] if not a.startswith("-") and a != golden]
    names = sorted(n[:-6] for n in os.listdir(folder) if n.endswith(".jinja"))
    names = [n for n in names if not wanted or any(w in n for w in wanted)]
    if "--random" in sys.argv:
        seed = int(sys.argv[sys.argv.index("--seed") + 1]) if "--seed" in sys.argv else int(time.time())
        compared, bad = check_random(build, int(sys.argv[sys.argv.index("--random") + 1]), seed)
        print("seed=%d random=%d mismatched=%d" % (seed, compared, bad))
        return 1 if bad else 0
    nsnippets, mismatched = check_snippets(build, golden)
    if golden:
        write_chat_golden(folder, os.path.join(golden, "chat.json"))
        return 1 if mismatched else 0
    chats = [json.loads(json.dumps(c)) for c in template_chats.conversations()]  # what crosses to the other side
    lines = [dict(our_chat(c), define="chat " + c["name"]) for c in chats]
    expected = []
    for name in names:
        text = read_template(folder, name)
        lines.append({"define": "template " + name, "template": text})
        for c in chats:
            expected.append((name, c["name"], oracle(text, c)))
            lines.append({"render": ["template " + name, "chat " + c["name"]]})
    results = run_ours(build, lines, len(expected))
    if results is None:
        return 1
    bad, rendered, counts, marks = {}, set(), {"text": 0, "raised": 0, "error": 0}, 0
    for (name, cname, (kind, want, spans)), ours in zip(expected, results):
        why = judge(kind, want, spans, ours)
        counts[kind] += 1
        marks += bool(spans)
        if why:
            bad.setdefault(name, []).append((cname, why))
        elif kind == "text":
            rendered.add(name)
    for name, cases in sorted(bad.items()):
        print("differs: %s in %d of %d" % (name, len(cases), len(chats)))
        for cname, why in cases if verbose else cases[:1]:
            print("    %s: %s" % (cname, why))
    mismatched += sum(len(c) for c in bad.values())
    nrandom, bad_random = check_random(build, RANDOM, 1)
    mismatched += bad_random
    for name in sorted(set(names) - rendered):
        print("renders nothing: %s" % name)
    print("files=%d conversations=%d texts=%d raised=%d errors=%d with_marks=%d snippets=%d random=%d"
          % (len(names), len(chats), counts["text"], counts["raised"], counts["error"], marks, nsnippets, nrandom))
    print("templates=%d renders=%d mismatched=%d" % (len(rendered), len(expected) + nsnippets + nrandom, mismatched))
    return 1 if mismatched or (not wanted and len(rendered) < MUST_RENDER) else 0


if __name__ == "__main__":
    sys.exit(main())
