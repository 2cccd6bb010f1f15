#!/usr/bin/env python3
"""Writes the questions of the agent recipe as JSONL: agent_data.py DIR makes DIR/train.jsonl and
DIR/test.jsonl.

Products and differences of numbers that a small model cannot compute in its head, in words: 800 for
training, 100 held out. A line is {"prompt": [{"role", "content"}], "label": "4081"}.
"""
import json
import random
import sys
from pathlib import Path

HELD_OUT, TOTAL = 100, 900
FORMS = [("What is {a} times {b}?", lambda a, b: a * b),
         ("What is {a} minus {b}?", lambda a, b: a - b),
         ("What is {a} plus {b}?", lambda a, b: a + b)]


def questions():
    rng, seen = random.Random(0), {}
    while len(seen) < TOTAL:
        a, b = rng.randint(11, 999), rng.randint(11, 99)
        text, fn = rng.choice(FORMS)
        seen[text.format(a=a, b=b)] = str(fn(a, b))
    return list(seen.items())


def write(path, rows):
    with open(path, "w", encoding="utf-8") as out:
        for question, label in rows:
            row = {"prompt": [{"role": "user", "content": question}], "label": label}
            out.write(json.dumps(row) + "\n")


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: agent_data.py DIR")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    rows = questions()
    write(folder / "test.jsonl", rows[:HELD_OUT])
    write(folder / "train.jsonl", rows[HELD_OUT:])


if __name__ == "__main__":
    main()
