#!/usr/bin/env python3
"""Writes the addition set as JSONL: add_data.py DIR makes DIR/train.jsonl and DIR/test.jsonl.

All 900 pairs of operands from 1 to 30 in one fixed shuffled order: the first 100 are held out, the
other 800 are for training. A line is {"prompt": [{"role", "content"}], "label": "42"}.
"""
import json
import random
import sys
from pathlib import Path

HELD_OUT = 100


def question(a, b):
    return f"What is {a}+{b}? Answer with the number only."


def split():
    """(train, test): lists of operand pairs."""
    pairs = [(a, b) for a in range(1, 31) for b in range(1, 31)]
    random.Random(0).shuffle(pairs)
    return pairs[HELD_OUT:], pairs[:HELD_OUT]


def write(path, pairs):
    with open(path, "w", encoding="utf-8") as out:
        for a, b in pairs:
            row = {
                "prompt": [{"role": "user", "content": question(a, b)}],
                "label": str(a + b),
            }
            out.write(json.dumps(row) + "\n")


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: add_data.py DIR")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    train, test = split()
    write(folder / "train.jsonl", train)
    write(folder / "test.jsonl", test)


if __name__ == "__main__":
    main()
