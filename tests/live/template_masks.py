#!/usr/bin/env python3
"""Loss masks of conversations (test_chatmask --mask) on real tokenizers: `marks` against transformers'
return_assistant_tokens_mask, `qwen`, `qwen3` and `distill_qwen` against what Miles' rules say of transformers'
renders, `prefix` against renders of every prefix. Last line: masks=N mismatched=K.

    MILES_BUILD=build MILES_TEST_DATA=DIR $MILES_ORACLES/bin/python tests/live/template_masks.py [-v]
"""
import json
import logging
import os
import subprocess
import sys
import tempfile

import template_chats
import transformers

logging.getLogger("transformers").setLevel(logging.ERROR)

# Tokenizer and the templates it is tried with, besides the marked ones.
PAIRS = {
    "qwen2.5": ("Qwen-Qwen2.5-7B-Instruct", "trl-qwen2_5_training"),
    "qwen3": ("Qwen-Qwen3-0.6B", "miles-qwen3_fixed", "trl-qwen3_training", "trl-qwen3_5_think_training", "trl-gptoss_training"),
    "llama-3.1": ("meta-llama-Llama-3.1-8B-Instruct", "trl-llama3_training"),
    "smollm2": ("HuggingFaceTB-SmolLM2-135M-Instruct", "trl-lfm2_training"),
    "deepseek-v3": ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "trl-deepseekv3_training"),
    "gemma-4": ("google-gemma-2-2b-it", "trl-gemma3_training", "trl-gemma_training"),
    "phi-3": ("microsoft-Phi-3.5-mini-instruct", "trl-phi3_training"),
    "llama-2": ("chatlib-zephyr", "trl-llama3_training"),
    "mistral-nemo": ("trl-cohere2_training",),
}
CHATS = ("user", "turns", "system-turns", "ends-assistant", "unicode", "emoji", "spaces", "reasoning", "reasoning-last", "inline-think",
         "calls-chain", "calls-results-text", "call-result-end", "quotes", "specials-in-text", "two-thinks", "long", "assistant-first")


def chats():
    out = [c for c in template_chats.conversations() if c["name"] in CHATS]
    first = [c for c in out if c["name"] == "system-turns"][0]
    some = [dict(m, step_loss_mask=i % 2) if m["role"] == "assistant" else m for i, m in enumerate(first["messages"] * 2)]
    return out + [dict(first, name="some-turns", messages=some)]


def first_of(small, big):
    return [i for i in range(len(big) - len(small) + 1) if big[i:i + len(small)] == small]


class Oracle:
    """What transformers and Miles' rules give, as (ids, mask); any exception stands for a refusal."""

    def __init__(self, tok, template):
        self.tok, self.template = tok, template

    def ids(self, messages, tools=None, gen=False):
        return self.tok(self.text(messages, tools, gen), add_special_tokens=False)["input_ids"]

    def text(self, messages, tools=None, gen=False):
        return self.tok.apply_chat_template(messages, tools=tools, tokenize=False, chat_template=self.template, add_generation_prompt=gen)

    def marks(self, messages, tools):
        out = self.tok.apply_chat_template(messages, tools=tools, chat_template=self.template, return_dict=True, return_assistant_tokens_mask=True)
        return out["input_ids"], out["assistant_masks"]

    def lengths(self):
        word = "FOR TESTING ONLY"
        pair = [{"role": "user", "content": word}] * 2
        small, both = self.tok(word, add_special_tokens=False)["input_ids"], self.ids(pair)
        one, two = first_of(small, both)
        tail = len(both) - len(small) - two
        system = one - (two - one - tail - len(small))
        if system < 0:
            raise ValueError("a slice from the end")
        return system, len(self.ids(pair, gen=True)) - len(both)

    def by_message(self, messages, tools, dummy):
        system, header = self.lengths()
        ndummy = len(self.ids([dummy])) if dummy else 0
        ids, mask = [], []
        for i, m in enumerate(messages):
            if not dummy:
                mine = self.ids([m], tools if i == 0 else None)
            elif i == 0:
                mine = self.ids([m, dummy], tools)[:-ndummy]
            else:
                mine = self.ids([dummy, m])[ndummy:]
            if i > 0 and m["role"] != "system":
                mine = mine[system:]
            trained = m["role"] == "assistant" and m.get("step_loss_mask", 1) == 1
            if m["role"] == "assistant" and len(mine) < header:
                raise ValueError("shorter than its header")
            ids += mine
            mask += [0] * header + [1] * (len(mine) - header) if trained else [0] * len(mine)
        self.ids(messages, tools)  # the whole must be accepted, too
        return ids, mask

    def qwen(self, messages, tools):
        if "<｜Assistant｜>" in self.tok.get_vocab():
            return self.distill_qwen(messages, tools)
        return self.by_message(messages, tools, None)

    def qwen3(self, messages, tools):
        return self.by_message(messages, tools, {"role": "user", "content": "FOR CALCULATING LOSS MASK ONLY"})

    def distill_qwen(self, messages, tools):
        prompt = self.ids(messages[:1], tools, True)
        answer = self.tok(messages[-1]["content"], add_special_tokens=False)["input_ids"]
        self.ids(messages, tools)
        return prompt + answer, [0] * len(prompt) + [int(messages[-1].get("step_loss_mask", 1) == 1)] * len(answer)

    def prefix(self, messages, tools):
        whole = self.text(messages, tools)
        enc = self.tok(whole, add_special_tokens=False, return_offsets_mapping=True)
        mask = [0] * len(enc["input_ids"])
        for i, m in enumerate(messages):
            if m["role"] != "assistant" or m.get("step_loss_mask", 1) != 1:
                continue
            before, after = self.text(messages[:i], tools, True), self.text(messages[:i + 1], tools)
            if not whole.startswith(before) or not whole.startswith(after):
                raise ValueError("not a prefix")
            for k, (a, b) in enumerate(enc["offset_mapping"]):
                if b > len(before) and a < len(after):
                    mask[k] = 1
        return enc["input_ids"], mask


def cases(data):
    for name, templates in PAIRS.items():
        path = os.path.join(data, "tokenizers", name, "tokenizer.json")
        special = {"bos_token": "<s>", "eos_token": "</s>"}
        tok = transformers.PreTrainedTokenizerFast(tokenizer_file=path)
        tok._special_tokens_map.update(special)  # for the template only: the vocabulary stays as it is
        for template in templates:
            with open(os.path.join(data, "templates", template + ".jinja"), encoding="utf-8", newline="") as f:
                text = f.read()
            oracle = Oracle(tok, text)
            for chat in chats():
                for kind in ("marks",) if template.endswith("_training") else ("qwen", "qwen3", "distill_qwen", "prefix"):
                    line = {"tokenizer": path, "template": text, "kind": kind, "messages": chat["messages"], "tools": chat["tools"], "special": special}
                    try:
                        want = getattr(oracle, kind)(chat["messages"], chat["tools"])
                    except Exception as e:
                        want = e
                    yield "%s %s %s %s" % (name, template, chat["name"], kind), line, want


def main():
    build, data = os.environ.get("MILES_BUILD", "build"), os.environ["MILES_TEST_DATA"]
    every = list(cases(data))
    with tempfile.TemporaryFile("w+") as f:
        f.write("".join(json.dumps(line) + "\n" for _, line, _ in every))
        f.seek(0)
        got = subprocess.run([os.path.join(build, "test_chatmask"), "--mask"], stdin=f, stdout=subprocess.PIPE, timeout=600)
    results = [json.loads(line) for line in got.stdout.decode("ascii").splitlines()]
    if got.returncode != 0 or len(results) != len(every):
        print("test_chatmask --mask ended with %d after %d of %d" % (got.returncode, len(results), len(every)), file=sys.stderr)
        return 1
    bad = refused = trained = 0
    for (name, _, want), ours in zip(every, results):
        if isinstance(want, Exception):
            refused += 1
            why = None if "error" in ours else "refused there (%s: %s), not here" % (type(want).__name__, str(want)[:200])
        elif "error" in ours:
            why = "ours failed: " + ours["error"]
        else:
            trained += sum(want[1])
            why = None if ours["ids"] == want[0] and ours["mask"] == want[1] else "ids %s, first mask that differs %s" % (
                ours["ids"] == want[0], next((i for i, (a, b) in enumerate(zip(ours["mask"], want[1])) if a != b), None))
        if why:
            bad += 1
            if bad <= 20 or "-v" in sys.argv:
                print("%s: %s" % (name, why))
    print("masks=%d refused=%d trained_tokens=%d mismatched=%d" % (len(every), refused, trained, bad))
    return 1 if bad or trained == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
