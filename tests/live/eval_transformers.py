"""Scores a Hugging Face folder on the addition set with transformers, greedily.

The bf16 weights are computed with in float32: bf16 logits tie, and a tie decides a greedy answer.

    eval_transformers.py MODEL TEST.jsonl              the recipe's own wording
    eval_transformers.py MODEL TEST.jsonl --baseline   also two other wordings and five shots, to see
                                                       what an untouched model can be asked to do

An answer is right when its last run of digits is the label. The last line is
`transformers_accuracy=...`, in percent; with --baseline also best_wording=... and five_shot=...
"""
import argparse
import json
import os
import re

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

NEW_TOKENS = 20
BATCH = 25

# {q} is the sum as in "12+7". The first wording is the recipe's.
WORDINGS = (
    "What is {q}? Answer with the number only.",
    "{q}=",
    "Calculate {q} and give only the result.",
)
# Pairs outside the set (an operand above 30), so that no held-out answer is given away.
SHOTS = ((31, 12), (7, 35), (40, 23), (18, 33), (36, 9))


def chat(question, shots=()):
    messages = []
    for a, b in shots:
        messages.append({"role": "user", "content": WORDINGS[0].format(q=f"{a}+{b}")})
        # The model repeats the sum before its result when left alone; bare numbers score lower.
        messages.append({"role": "assistant", "content": f"{a} + {b} = {a + b}"})
    return messages + [{"role": "user", "content": question}]


def answer(model, tokenizer, chats):
    """The greedy answers to a list of message lists."""
    answers = []
    for i in range(0, len(chats), BATCH):
        texts = [
            tokenizer.apply_chat_template(c, tokenize=False, add_generation_prompt=True)
            for c in chats[i : i + BATCH]
        ]
        batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        with torch.no_grad():
            out = model.generate(**batch, max_new_tokens=NEW_TOKENS, do_sample=False)
        new = out[:, batch.input_ids.shape[1] :]
        answers += tokenizer.batch_decode(new, skip_special_tokens=True)
    return answers


def score(model, tokenizer, chats, labels):
    """Percent of right answers."""
    right = 0
    for text, label in zip(answer(model, tokenizer, chats), labels):
        numbers = re.findall(r"\d+", text)
        right += bool(numbers) and numbers[-1] == label
    return 100 * right / len(labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("test")
    parser.add_argument("--baseline", action="store_true")
    args = parser.parse_args()

    with open(args.test, encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    labels = [row["label"] for row in rows]
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    tokenizer.padding_side = "left"
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()

    result = score(model, tokenizer, [row["prompt"] for row in rows], labels)
    line = f"transformers_accuracy={result:.1f}"
    if args.baseline:
        sums = [re.search(r"\d+\+\d+", row["prompt"][-1]["content"]).group() for row in rows]
        best = result
        for wording in WORDINGS[1:]:
            other = score(model, tokenizer, [chat(wording.format(q=q)) for q in sums], labels)
            print(f"{other:5.1f}%  {wording!r}")
            best = max(best, other)
        asked = [chat(WORDINGS[0].format(q=q), SHOTS) for q in sums]
        line += f" best_wording={best:.1f} five_shot={score(model, tokenizer, asked, labels):.1f}"
    print(line)


if __name__ == "__main__":
    main()
