"""Compares our tokenizer with the `tokenizers` package over all test text.

usage: tokenizer_parity.py PATH_TO_tok_pipe [FAMILY...]
A family is a folder of tokenizers/ in MILES_TEST_DATA, or one of the tiny tokenizers that
tokenizer_tiny.py trains. Ids must be equal with and without the post-processor's tokens, decoded
text must be equal with and without special tokens, and text decoded token by token must be the same.
TOKENIZERS_RANDOM is the number of random strings for each family; with TOKENIZERS_CORPUS=0 they are
all there is, beside the goldens. Prints a few differences of each
family and, last, `tokenizers=N lines=M mismatched=K`; exits 1 on any difference.
"""
import array
import glob
import json
import multiprocessing
import os
import random
import struct
import subprocess
import sys
import tempfile

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import tokenizer_tiny
from tokenizers import Tokenizer

DATA = os.environ["MILES_TEST_DATA"]
RANDOM = int(os.environ.get("TOKENIZERS_RANDOM", "20000"))
TOOL = sys.argv[1] if len(sys.argv) > 1 else ""
SHOWN = 3
BATCH = 2000
FAILED = 0xFFFFFFFF
PAIRS = {"qwen2": "qwen2.5", "llama-bpe": "llama-3.1", "llama-spm": "llama-2", "phi-3": "phi-3",
         "gpt-2": "gpt2", "gemma-4": "gemma-4"}
DOCUMENTS = {"gpt2_encoded_tokens": "gpt2", "llama_3.2_encoded": "llama-3.1",
             "llama_encoded": "llama-2"}
MODELS = {"distilgpt2": "gpt2", "coreml-projects/Llama-2-7b-chat-coreml": "llama-2",
          "pcuenq/Llama-3.2-1B-Instruct-tokenizer": "llama-3.1"}


def strings(value):
    """Every string inside a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for v in value.values():
            yield from strings(v)
    elif isinstance(value, list):
        for v in value:
            yield from strings(v)


def corpus():
    """Every text of the shared corpus: lines, and some whole files for what crosses lines."""
    for path in sorted(glob.glob(os.path.join(DATA, "gsm8k/*.jsonl")) +
                       glob.glob(os.path.join(DATA, "math/*.jsonl")) +
                       glob.glob(os.path.join(DATA, "text/*.jsonl"))):
        with open(path, encoding="utf-8") as f:
            for line in f:
                yield from strings(json.loads(line))
    for path in sorted(glob.glob(os.path.join(DATA, "text/*/*.txt"))):
        with open(path, encoding="utf-8", newline="") as f:
            text = f.read()
        lines = text.split("\n")
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


RANGES = [(0x20, 0x7F)] * 6 + [(0x9, 0xE), (0x20, 0x21), (0x80, 0x250), (0x2B0, 0x370),
                               (0x370, 0x600), (0x600, 0x780), (0x900, 0xE80), (0x1000, 0x2000),
                               (0x2000, 0x2100), (0x2100, 0x2C00), (0x3000, 0x3100),
                               (0x3400, 0xA000), (0xA000, 0xD800), (0xE000, 0x10000),
                               (0x10000, 0x20000), (0x1F300, 0x1FB00), (0x20000, 0x110000)]
PARTS = [" ", "  ", "\n", "\r\n", "\t", "\u3000", "a", "B", "1", "'s", "'LL", "\u0301", "\u0323",
         "\u00e9", "\uac00", "\u1100\u1161", "<", "|", ">", "\u2581", "\u0120", "\U00031350",
         "\u1c89", "\ufffd", "\x00", "\u212b", "\ufb01", "\u180e", "\x85", "\u200d", "\ufe0f"]


def odd(tok, rng, count):
    """Random strings of all Unicode, and around this tokenizer's own tokens, white space, marks."""
    added = [t.content for t in tok.get_added_tokens_decoder().values()] or ["<s>"]
    vocab = sorted(tok.get_vocab())
    pick, below = rng.random, rng.randrange
    for n in range(count):
        out = []
        if n % 2:
            lo, hi = RANGES[below(len(RANGES))]
            for _ in range(below(1, 20)):
                if pick() < .3:
                    lo, hi = RANGES[below(len(RANGES))]
                out.append(chr(int(lo + pick() * (hi - lo))))
        else:
            for _ in range(below(1, 10)):
                k = below(5)
                if k == 0:
                    out.append(added[below(len(added))])
                elif k == 1:
                    t = added[below(len(added))]
                    i = below(len(t))
                    out.append(t[i:] if n % 4 else t[:i + 1])
                elif k == 2:
                    out.append(vocab[below(len(vocab))])
                else:
                    out.append(PARTS[below(len(PARTS))])
        yield "".join(out)


def runs():
    for n in (300, 5000):
        for unit in ("a", " ", "ab", "\u0323\u0301", "\n ", "\u6f22", "a\u0301", "<"):
            yield unit * n


def bad_bytes(rng):
    """Bytes that are not UTF-8, as the package sees them after a lossy decode."""
    yield b"\xff\xfe ab\xc3"
    for _ in range(500):
        raw = bytearray("caf\u00e9 \u6f22\u5b57 \U0001f600 x".encode())
        for _ in range(rng.randrange(1, 4)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        yield bytes(raw)


class Ours:
    """The tool on one tokenizer.json."""

    def __init__(self, path):
        other = path[:-5] + ".tiktoken"
        path = other if os.path.exists(other) else path
        self.p = subprocess.Popen([TOOL, path, "2"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, op, items):
        head = op.encode()
        parts = [struct.pack("<I", len(items))]
        for x in items:
            parts += [head, struct.pack("<I", len(x)), x]
        if not items:
            return []
        self.p.stdin.write(b"".join(parts))
        self.p.stdin.flush()
        out = []
        read = self.p.stdout.read
        for _ in items:
            raw = read(4)
            if len(raw) < 4:
                raise RuntimeError("the tool ended")
            n, = struct.unpack("<I", raw)
            out.append(None if n == FAILED else read(n) if n else b"")
        return out

    def close(self):
        self.p.stdin.close()
        return self.p.wait()


def packed(ids):
    return array.array("i", ids).tobytes()


def unpacked(raw):
    return None if raw is None else list(array.array("i", raw))


class Family:
    def __init__(self, name, path):
        self.name = name
        self.tok = Tokenizer.from_file(path)
        self.tok.no_truncation()
        self.tok.no_padding()
        self.encode = getattr(self.tok, "encode_batch_fast", self.tok.encode_batch)
        self.ours = Ours(path)
        self.lines = self.diffs = 0

    def compare(self, what, shown, ours, theirs, show=repr):
        self.lines += len(shown)
        if ours == theirs:
            return
        for s, a, b in zip(shown, ours, theirs):
            if a != b:
                self.diffs += 1
                if self.diffs <= SHOWN:
                    print("%s: %s differs on %.300r\n  ours   %.300s\n  theirs %.300s" %
                          (self.name, what, s, show(a), show(b)), flush=True)

    def decode(self, lists, op="d"):
        want = [t.encode("utf-8", "surrogatepass") for t in
                self.tok.decode_batch(lists, skip_special_tokens=op == "D")]
        raw = [packed(x) for x in lists]
        self.compare("decode " + op, lists, self.ours.ask(op, raw), want)
        return raw, want

    def batch(self, texts, k):
        """Ids of all, and of some also with special tokens, back to text, and as a stream."""
        raw = [t.encode("utf-8") for t in texts]
        ids = [x.ids for x in self.encode(texts, add_special_tokens=False)]
        self.compare("encode", texts, self.ours.ask("e", raw), [packed(x) for x in ids],
                     unpacked_text)
        part = ids[k % 3::3]
        packs, want = self.decode(part)
        whole = [i for i, w in enumerate(want) if b"\xef\xbf\xbd" not in w]
        self.compare("stream", [part[i] for i in whole],
                     self.ours.ask("s", [packs[i] for i in whole]), [want[i] for i in whole])
        few, some = raw[k % 11::11], texts[k % 11::11]
        want = [x.ids for x in self.encode(some, add_special_tokens=True)]
        self.compare("encode with special", some, self.ours.ask("E", few),
                     [packed(x) for x in want], unpacked_text)
        self.decode(want, "D")

    def texts(self, source):
        todo, size, k = [], 0, 0
        for t in source:
            todo.append(t)
            size += len(t)
            if len(todo) == BATCH or size > 1 << 20:
                self.batch(todo, k)
                todo, size, k = [], 0, k + 1
        if todo:
            self.batch(todo, k)

    def odd_bytes(self, rng):
        raw = list(bad_bytes(rng))
        want = [packed(x.ids) for x in
                self.encode([b.decode("utf-8", "replace") for b in raw], add_special_tokens=False)]
        self.compare("encode of bytes", raw, self.ours.ask("e", raw), want, unpacked_text)

    def odd_ids(self, rng):
        size = self.tok.get_vocab_size(with_added_tokens=True) + 50
        lists = [[i] for i in range(0, size, 7)]
        lists += [[rng.randrange(size) for _ in range(rng.randrange(1, 30))] for _ in range(3000)]
        for i in range(0, len(lists), BATCH):
            self.decode(lists[i:i + BATCH], "d")
            self.decode(lists[i:i + BATCH], "D")

    def golden(self, texts, ids, op="e"):
        self.compare("golden", texts, self.ours.ask(op, [t.encode() for t in texts]),
                     [packed(x) for x in ids], unpacked_text)

    def goldens(self):
        folder = os.path.join(DATA, "tokenizers", "golden")
        for pair in (p for p, f in PAIRS.items() if f == self.name):
            with open(os.path.join(folder, pair + ".inp.txt"), encoding="utf-8", newline="") as f:
                texts = f.read().split("\n__ggml_vocab_test__\n")
            with open(os.path.join(folder, pair + ".out.txt"), encoding="utf-8") as f:
                ids = [[int(x) for x in line.split()] for line in f.read().split("\n")]
            self.golden(texts[:len(ids)], ids[:len(texts)])
        for doc in (d for d, f in DOCUMENTS.items() if f == self.name):
            with open(os.path.join(folder, doc + ".json"), encoding="utf-8") as f:
                row = json.load(f)
            self.golden([row["text"]], [row["token_ids"]], "E")
        with open(os.path.join(folder, "hf_tokenizer_tests.json"), encoding="utf-8") as f:
            models = json.load(f)
        for model in (m for m, f in MODELS.items() if f == self.name):
            rows = models[model]
            self.golden([r["input"] for r in rows], [r["encoded"]["input_ids"] for r in rows], "E")


def unpacked_text(raw):
    return repr(unpacked(raw))


def family(job):
    """A panic of the package must end as a failure, not as a pool that waits for ever."""
    try:
        return check(*job)
    except BaseException as e:
        print("%s: %s: %s" % (job[0], type(e).__name__, e), flush=True)
        return 0, 1


def check(name, path, small):
    f = Family(name, path)
    rng = random.Random(name)
    f.goldens()
    f.odd_bytes(rng)
    f.odd_ids(rng)
    f.texts(runs())
    f.texts(odd(f.tok, rng, RANDOM))
    if os.environ.get("TOKENIZERS_CORPUS", "1") != "0":
        f.texts(t for i, t in enumerate(corpus()) if not small or i % 7 == 0)
        f.texts(t for i, t in enumerate(characters()) if not small or i % 3 == 0)
    if f.ours.close():
        f.diffs += 1
    print("%-24s %8d lines %d mismatched" % (name, f.lines, f.diffs), flush=True)
    return f.lines, f.diffs


def main():
    folders = sorted(os.path.basename(os.path.dirname(p)) for p in
                     glob.glob(os.path.join(DATA, "tokenizers", "*", "tokenizer.json")))
    with tempfile.TemporaryDirectory(prefix="miles_tokenizers.") as tmp:
        tiny = tokenizer_tiny.write(tmp, DATA)
        jobs = []
        for name in sys.argv[2:] or folders + sorted(tiny):
            path = tiny.get(name, os.path.join(DATA, "tokenizers", name, "tokenizer.json"))
            jobs.append((name, path, name in tiny))
        with multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0)),
                                                       maxtasksperchild=4) as pool:
            rows = pool.map(family, jobs, chunksize=1)
    lines, diffs = sum(r[0] for r in rows), sum(r[1] for r in rows)
    print("tokenizers=%d lines=%d mismatched=%d" % (len(rows), lines, diffs))
    return 1 if diffs or not lines else 0


if __name__ == "__main__":
    sys.exit(main())
