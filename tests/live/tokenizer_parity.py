"""Compares our tokenizer with the `tokenizers` package, line by line, over all test text.

usage: tokenizer_parity.py PATH_TO_test_tokenizer [FAMILY...]
Ids must be equal with and without the post-processor's tokens, decoded text must be equal with and
without special tokens. MILES_TEST_DATA names the data. Prints a few differences of each family and,
last, `tokenizer_lines=N tokenizer_diffs=N ...`; exits 1 on any difference.
"""
import glob
import json
import os
import random
import subprocess
import sys
import tempfile

from tokenizers import Tokenizer

DATA = os.environ["MILES_TEST_DATA"]
FAMILIES = ["smollm2", "qwen2.5", "qwen3", "qwen3.6", "llama-3.1", "gpt2", "deepseek-v3",
            "deepseek-v4", "gpt-oss", "cl100k", "mistral-nemo", "gpt-neox-20b", "claude-legacy",
            "llama-2", "mistral-7b-v0.3", "phi-3", "gemma-4"]
SHOWN = 5


def jsonl(path, *keys):
    with open(os.path.join(DATA, path), encoding="utf-8") as f:
        for line in f:
            row = json.loads(line)
            for key in keys:
                yield row[key]


def corpus():
    """Every text of the shared corpus: lines, and some whole files for what crosses lines."""
    yield from jsonl("gsm8k/train.jsonl", "question", "answer")
    yield from jsonl("gsm8k/test.jsonl", "question", "answer")
    yield from jsonl("text/edge_cases.jsonl", "text")
    yield from jsonl("text/code_samples.jsonl", "text")
    for path in sorted(glob.glob(os.path.join(DATA, "text/*/*.txt"))):
        with open(path, encoding="utf-8", newline="") as f:
            text = f.read()
        lines = text.split("\n")
        if os.path.basename(path) in ("UnicodeData.txt", "PropList.txt"):
            lines = lines[::20]
        yield from lines
        if len(text) < 100000:
            yield text
        if os.path.basename(path) == "NormalizationTest.txt":
            for line in lines:
                fields = line.split("#")[0].split(";")
                if len(fields) >= 5:
                    for field in fields[:5]:
                        yield "a" + "".join(chr(int(x, 16)) for x in field.split()) + "b"


def characters():
    """Every character of Unicode in a few surroundings, in texts of 64."""
    cps = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
    cps = [c for c in cps if c < 0x32400 or c % 64 == 0 or 0xE0000 <= c < 0xE0200]
    for i in range(0, len(cps), 64):
        yield " ".join("a%c1 %c" % (c, c) for c in cps[i:i + 64])
        yield "".join(map(chr, cps[i:i + 64]))


def odd(tok, rng):
    """Random strings around this tokenizer's own added tokens, white space and marks."""
    added = [t.content for t in tok.get_added_tokens_decoder().values()]
    vocab = list(tok.get_vocab())
    vocab.sort()
    parts = [" ", "  ", "\n", "\t", "\u3000", "a", "B", "1", "'s", "\u0301", "\u0323", "\u00e9",
             "\uac00", "\u1100\u1161", "<", "|", ">", "\u2581", "\u0120", "\U00031350", "\u1c89",
             "\ufffd", "\x00", "\u212b", "\ufb01", "\u180e", "\x85"]
    for _ in range(3000):
        out = []
        for _ in range(rng.randrange(1, 12)):
            k = rng.randrange(4)
            if k == 0:
                out.append(rng.choice(added))
            elif k == 1:
                t = rng.choice(added)
                out.append(t[rng.randrange(len(t)):] if rng.random() < .5 else
                           t[:rng.randrange(len(t)) + 1])
            elif k == 2:
                out.append(rng.choice(vocab))
            else:
                out.append(rng.choice(parts))
        yield "".join(out)
    for n in (300, 5000):
        yield "a" * n
        yield " " * n
        yield "ab" * n
        yield "\u0323\u0301" * n
        yield "\n " * n


def bad_bytes(rng):
    """Bytes that are not UTF-8, as the package sees them after a lossy decode."""
    yield b"\xff\xfe ab\xc3"
    for _ in range(500):
        raw = bytearray("caf\u00e9 \u6f22\u5b57 \U0001f600 x".encode())
        for _ in range(rng.randrange(1, 4)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        yield bytes(raw)


def run(tool, path, requests):
    """Answers of the filter, in order."""
    with tempfile.TemporaryFile("w+", encoding="ascii") as f:
        for r in requests:
            f.write(json.dumps(r) + "\n")
        f.seek(0)
        p = subprocess.run([tool, "--stdin", path], stdin=f, stdout=subprocess.PIPE, check=False)
    if p.returncode:
        sys.exit("the filter failed on " + path)
    return [json.loads(line) for line in p.stdout.decode().splitlines()]


def compare(name, what, texts, ours, theirs):
    diffs = [i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b]
    if len(ours) != len(theirs):
        print("%s: %s: %d answers for %d" % (name, what, len(ours), len(theirs)))
        return max(1, len(diffs))
    for i in diffs[:SHOWN]:
        print("%s: %s differs on %r\n  ours   %r\n  theirs %r" %
              (name, what, texts[i][:300], ours[i][:300], theirs[i][:300]))
    return len(diffs)


def family(tool, name, texts):
    path = os.path.join(DATA, "tokenizers", name, "tokenizer.json")
    tok = Tokenizer.from_file(path)
    tok.no_truncation()
    tok.no_padding()
    rng = random.Random(7)
    texts = texts + list(odd(tok, rng))
    raw = list(bad_bytes(rng))
    requests = [{"text": t} for t in texts] + [{"hex": b.hex()} for b in raw]
    texts = texts + [b.decode("utf-8", "replace") for b in raw]
    ours = run(tool, path, requests)
    theirs = []
    for i in range(0, len(texts), 2000):
        theirs += [x.ids for x in tok.encode_batch(texts[i:i + 2000], add_special_tokens=False)]
    diffs = compare(name, "encode", texts, ours, theirs)

    few = texts[::50]
    got = run(tool, path, [{"text": t, "special": True} for t in few])
    want = [x.ids for x in tok.encode_batch(few, add_special_tokens=True)]
    diffs += compare(name, "encode with special", few, got, want)

    size = tok.get_vocab_size(with_added_tokens=True) + 50
    lists = theirs[::5] + [[i] for i in range(0, size, 7)]
    lists += [[rng.randrange(size) for _ in range(rng.randrange(1, 30))] for _ in range(3000)]
    for skip in (False, True):
        got = run(tool, path, [{"ids": x, "skip": skip} for x in lists])
        want = [tok.decode(x, skip_special_tokens=skip) for x in lists]
        diffs += compare(name, "decode", lists, got, want)
    count = len(texts) + len(few) + 2 * len(lists)
    print("%-16s %7d lines %d diffs" % (name, count, diffs), flush=True)
    return count, diffs


def main():
    tool = sys.argv[1]
    names = sys.argv[2:] or FAMILIES
    texts = list(corpus()) + list(characters())
    lines = diffs = 0
    for name in names:
        n, d = family(tool, name, texts)
        lines += n
        diffs += d
    print("tokenizer_lines=%d tokenizer_diffs=%d tokenizer_families=%d" %
          (lines, diffs, len(names)))
    return 1 if diffs else 0


if __name__ == "__main__":
    sys.exit(main())
