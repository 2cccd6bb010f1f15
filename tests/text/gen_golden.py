"""Writes the goldens of tests/text: small tokenizers of every supported kind, and what the
`tokenizers` package makes of odd texts with them.

    python tests/text/gen_golden.py tests/golden          (the committed files)
    python tests/text/gen_golden.py DIR SEED              (other texts and settings, to hunt)

tokenizer_kinds.json has the other types of models and their parts, in the same form.
tokenizer_small.json: {"models": {name: model}, "configs": [{"model", "parts", "cases":
[[text, ids, ids with special tokens, other ids, their text, their text without special tokens]]}]}.
pretok.json: [[pre_tokenizer, text, pieces]].
"""
import json
import os
import random
import sys

import tokenizers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

SEED = int(sys.argv[2]) if len(sys.argv) > 2 else 1
RNG = random.Random(SEED)
CORPUS = ["the quick brown fox jumps over the lazy dog, then 12 more foxes jump 345 times.",
          "Let's see: don't stop; we've 1,000 apples & the other's are its' own.",
          "\u00e9t\u00e9 na\u00efve caf\u00e9 \u00fcber stra\u00dfe \u6f22\u5b57 \u304b\u306a "
          "\u0440\u0443\u0441\u0441\u043a\u0438\u0439",
          "def f(x):\n    return x + 1\n\n\nprint(f(2))  # two\t\ttabs",
          "a  b   c    d     e", "AAAA BBBB abababab hello hello world world"]

PARTS = ["the ", "quick", " fox", "12", "345", "a", "b", " ", "  ", "\n", "\r\n", "\t", "\u3000",
         "\u00a0", "\u2028", "\x85", "\u180e", "'s", "'S", "'ll", "don't", "\u00e9", "e\u0301",
         "\u0323\u0301", "\u6f22\u5b57", "\u304b", "\uac00", "\u1100\u1161\u11a8", "\ufb01",
         "\u212b", "\u00bd", "\u00b2", "\u0661", "\u2160", "_", "-", "...", "<s>", "</s>", "<b>",
         "<bb>", "[X]", "<mask>", "x<mask>y", " <mask> ", "\u00c5ng", "A\u030ang", "\u2581",
         "\u0120", "hello world", "\U0001f600", "\U0001f468\u200d\U0001f469", "\U00031350",
         "\u1c89", "\x00", "\ufeff", "0", "9", "$", "+", ",", ".", "!", "\U000116d0", "ABab",
         "\u01c5", "\u017f", "\u212a"]


def texts(n):
    out = ["", " ", "a", "\n", "the quick brown fox", "  two  spaces  ", "don't we've I'LL"]
    while len(out) < n:
        out.append("".join(RNG.choice(PARTS) for _ in range(RNG.randrange(1, 14))))
    return out


def train_bytes():
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.train_from_iterator(CORPUS * 3, trainers.BpeTrainer(
        vocab_size=380, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return json.loads(tok.to_str())["model"]


def train_chars():
    tok = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    tok.train_from_iterator(CORPUS[:2] * 3, trainers.BpeTrainer(
        vocab_size=150, special_tokens=["<unk>"], show_progress=False))
    model = json.loads(tok.to_str())["model"]
    vocab = model["vocab"]
    for b in range(256):
        vocab.setdefault("<0x%02X>" % b, len(vocab))
    return model


def merges_as_strings(model):
    out = dict(model)
    out["merges"] = [" ".join(m) for m in model["merges"]]
    return out


def model_set():
    a, b = train_bytes(), train_chars()
    few = {k: v for k, v in a["vocab"].items() if k not in ("\u00c3", "!", "\u0120")}
    used = set(few)
    return {
        "bytes": a,
        "bytes-strings": merges_as_strings(a),
        "bytes-ignore": dict(a, ignore_merges=True),
        "bytes-gaps": dict(a, vocab=few, merges=[m for m in a["merges"]
                                                 if m[0] in used and m[1] in used]),
        "bytes-unk": dict(a, vocab=few, unk_token="~", fuse_unk=False,
                          merges=[m for m in a["merges"] if m[0] in used and m[1] in used]),
        "bytes-fuse": dict(a, vocab=few, unk_token="~", fuse_unk=True,
                           merges=[m for m in a["merges"] if m[0] in used and m[1] in used]),
        "chars": b,
        "chars-unk": dict(b, byte_fallback=False, fuse_unk=False),
        "chars-fuse": dict(b, byte_fallback=False, fuse_unk=True),
        "chars-drop": dict(b, byte_fallback=False, unk_token=None),
        "chars-part": dict(b, vocab={k: v for k, v in b["vocab"].items() if k != "<0xE6>"}),
    }


def byte_level(regex=True, prefix=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True,
            "use_regex": regex}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def seq(*items):
    return {"type": "Sequence", "pretokenizers": list(items)}


def added(i, content, special=False, **kw):
    t = {"id": i, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": not special, "special": special}
    t.update(kw)
    return t


CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
BEHAVIORS = ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
PATTERNS = [r"\s", r"\s+", r"\w+", r"\W", r"\d", r"\p{N}{1,3}", r"[^\s\w]+", r"\h+", r"\bt",
            r"^.", r".$", r"x*", r"a?", r"\p{Han}+", r"\p{^L}+", r"\P{L}",
            r"[\u4e00-\u9fa5\u3040-\u309f]+", r"(?i)THE|fox", r"(?i:s)", r"[[:punct:]]+",
            r"[[:alpha:]\d]+", r"[\w\s]+", r"(?=\d)", r"(?<=a)b", r"\p{L}{2}+", r"\p{L}{2,3}?",
            r"[a-c]{,2}b", r"(a|b)+", r"\A.", r".\z", r"[^\S]", r"\x{e9}",
            r"\s*[\r\n]+|\s+(?!\S)|\s+", CL100K, r"[ab]++b?", r"\p{M}+", r"\v|\t", r"{", r"a{x}",
            r"\.", r"[\]\[\-]",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
            r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
            r"\p{Lu}\p{Ll}*|\p{Lt}"]
TEMPLATE = {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                       {"Sequence": {"id": "A", "type_id": 0}},
                       {"SpecialToken": {"id": "</s>", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}},
                     {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [5], "tokens": ["<s>"]},
                               "</s>": {"id": "</s>", "ids": [6, 7], "tokens": ["</s>", "</s>"]}}}
BYTES = {"pre_tokenizer": byte_level(), "decoder": byte_level()}
META = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
LLAMA = {"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"},
    {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}


def random_added(n, strips=False):
    """Added tokens with random flags; ids follow the model's."""
    pool = ["<s>", "</s>", "<b>", "<bb>", "<mask>", "[X]", "fox", "  ", "\u00c5ng", "e\u0301",
            "\ufb01", " a", "the", "1", "'s", "\u6f22", "<", "b ", "\n"]
    out = []
    if strips:  # a token that is empty once normalized makes the package panic
        pool = [p for p in pool if p.strip()]
    for i, content in enumerate(RNG.sample(pool, RNG.randrange(2, 9))):
        out.append(added(i + n, content, RNG.random() < .5, single_word=RNG.random() < .3,
                         lstrip=RNG.random() < .3, rstrip=RNG.random() < .3,
                         normalized=RNG.random() < .5))
    return out


def fix_ids(model, tokens):
    """Ids as the package will give them."""
    nxt = len(model["vocab"])
    for t in tokens:
        if t["content"] in model["vocab"]:
            t["id"] = model["vocab"][t["content"]]
        else:
            t["id"] = nxt
            nxt += 1
    return tokens


def config_list(ms):
    n = len(ms["bytes"]["vocab"])
    norm = [None, {"type": "NFC"}, {"type": "NFKC"}, {"type": "NFD"}, {"type": "NFKD"},
            {"type": "Sequence", "normalizers": []},
            {"type": "Sequence", "normalizers": [
                {"type": "NFD"}, {"type": "Strip", "strip_left": True, "strip_right": True},
                {"type": "Replace", "pattern": {"Regex": r"\p{Mn}+"}, "content": "~"},
                {"type": "Replace", "pattern": {"String": "a"}, "content": "bb"},
                {"type": "Prepend", "prepend": "_"}]}]
    out = [("bytes", BYTES), ("bytes-strings", BYTES), ("bytes-gaps", BYTES), ("bytes-unk", BYTES),
           ("bytes-fuse", BYTES),
           ("bytes-ignore", dict(BYTES, pre_tokenizer=seq(split(CL100K), byte_level(False)))),
           ("bytes", dict(BYTES, pre_tokenizer=byte_level(True, True))),
           ("bytes", dict(BYTES, pre_tokenizer=byte_level(False, True))),
           ("bytes", dict(BYTES, pre_tokenizer=seq({"type": "Digits", "individual_digits": True},
                                                   byte_level()))),
           ("bytes", dict(BYTES, pre_tokenizer=seq({"type": "Digits", "individual_digits": False},
                                                   byte_level(True, True)))),
           ("bytes", dict(BYTES, pre_tokenizer=seq(
               byte_level(), {"type": "Digits", "individual_digits": False},
               split("[0-9][0-9]")))),
           ("bytes", dict(BYTES, post_processor=TEMPLATE)),
           ("bytes", dict(BYTES, post_processor={"type": "Sequence",
                                                 "processors": [byte_level(), TEMPLATE]})),
           ("bytes", dict(BYTES, post_processor={"type": "RobertaProcessing", "sep": ["</s>", 9],
                                                 "cls": ["<s>", 8], "trim_offsets": True,
                                                 "add_prefix_space": False})),
           ("bytes", {"pre_tokenizer": byte_level()})]
    for x in norm:
        out.append(("bytes", dict(BYTES, normalizer=x, added_tokens=random_added(n, True))))
    for _ in range(12):
        out.append(("bytes", dict(BYTES, normalizer=RNG.choice(norm),
                                  added_tokens=random_added(n, True))))
    for name in ("chars", "chars-unk", "chars-fuse", "chars-drop", "chars-part"):
        out.append((name, {"pre_tokenizer": META, "decoder": LLAMA}))
    for scheme in ("first", "always", "never"):
        for sp in (True, False):
            m = dict(META, prepend_scheme=scheme, split=sp)
            out.append(("chars", {"pre_tokenizer": m, "decoder": m, "added_tokens": random_added(
                len(ms["chars"]["vocab"]))}))
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    out.append(("chars", {"decoder": LLAMA, "added_tokens": random_added(len(ms["chars"]["vocab"])),
                          "normalizer": {"type": "Sequence", "normalizers": [
                              {"type": "Prepend", "prepend": "\u2581"}, space]}}))
    out.append(("chars", {"decoder": LLAMA, "normalizer": space,
                          "pre_tokenizer": split(" ", "MergedWithPrevious", kind="String")}))
    return out


def train_kind(model, trainer, pre):
    tok = Tokenizer(model)
    tok.pre_tokenizer = pre
    tok.train_from_iterator(CORPUS * 3, trainer)
    return json.loads(tok.to_str())["model"]


def kind_set():
    """Models of the other types."""
    quiet = {"show_progress": False, "vocab_size": 180}
    special = ["[UNK]", "[CLS]", "[SEP]"]
    unigram = train_kind(models.Unigram(), trainers.UnigramTrainer(
        special_tokens=["<unk>", "</s>"], unk_token="<unk>", **quiet), pre_tokenizers.Metaspace())
    fallback = dict(unigram, byte_fallback=True, vocab=unigram["vocab"] + [
        ["<0x%02X>" % b, -15.0] for b in range(256)])
    return {
        "unigram": unigram,
        "unigram-bytes": fallback,
        "wordpiece": train_kind(models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer(
            special_tokens=special, **quiet), pre_tokenizers.BertPreTokenizer()),
        "wordlevel": train_kind(models.WordLevel(unk_token="[UNK]"), trainers.WordLevelTrainer(
            special_tokens=special, **quiet), pre_tokenizers.Whitespace()),
        "suffix": train_kind(
            models.BPE(unk_token="[UNK]", end_of_word_suffix="</w>"), trainers.BpeTrainer(
                special_tokens=special, end_of_word_suffix="</w>", **quiet),
            pre_tokenizers.Whitespace()),
        "prefix": train_kind(
            models.BPE(unk_token="[UNK]", continuing_subword_prefix="##", fuse_unk=True),
            trainers.BpeTrainer(special_tokens=special, continuing_subword_prefix="##", **quiet),
            pre_tokenizers.WhitespaceSplit()),
    }


def kind_list():
    meta = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    piece = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    bert = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
            "strip_accents": None, "lowercase": True}
    out = [("unigram", {"pre_tokenizer": meta, "decoder": meta}),
           ("unigram", {"normalizer": {"type": "Sequence", "normalizers": [
               {"type": "Nmt"}, {"type": "NFKD"}, {"type": "Lowercase"},
               {"type": "StripAccents"}]}}),
           ("unigram", {"normalizer": {"type": "ByteLevel"}, "pre_tokenizer": meta}),
           ("unigram", {"pre_tokenizer": byte_level(), "decoder": byte_level()}),
           ("unigram-bytes", {"pre_tokenizer": meta, "decoder": {"type": "Sequence", "decoders": [
               {"type": "ByteFallback"}, meta]}}),
           ("wordpiece", {"normalizer": bert, "pre_tokenizer": {"type": "BertPreTokenizer"},
                          "decoder": piece, "post_processor": {
                              "type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]}}),
           ("wordpiece", {"normalizer": dict(bert, strip_accents=True, lowercase=False),
                          "pre_tokenizer": {"type": "WhitespaceSplit"},
                          "decoder": dict(piece, cleanup=False)}),
           ("wordpiece", {"pre_tokenizer": {"type": "FixedLength", "length": 4}}),
           ("wordlevel", {"pre_tokenizer": {"type": "Whitespace"}, "decoder": {
               "type": "CTC", "pad_token": "o", "word_delimiter_token": "e", "cleanup": True}}),
           ("wordlevel", {"pre_tokenizer": {"type": "CharDelimiterSplit", "delimiter": " "},
                          "decoder": {"type": "Sequence", "decoders": [
                              {"type": "Replace", "pattern": {"Regex": "[aeiou]+"},
                               "content": "_"}, {"type": "Fuse"}]}}),
           ("suffix", {"pre_tokenizer": {"type": "Whitespace"},
                       "decoder": {"type": "BPEDecoder", "suffix": "</w>"}}),
           ("prefix", {"pre_tokenizer": {"type": "WhitespaceSplit"}, "decoder": piece})]
    for behavior in BEHAVIORS:
        out.append(("wordpiece", {"decoder": piece, "pre_tokenizer": {
            "type": "Punctuation", "behavior": behavior}}))
    return out


def write(name, ms, configs):
    out = {"about": "written by tests/text/gen_golden.py with tokenizers " + tokenizers.__version__,
           "models": ms, "configs": cases_of(ms, configs)}
    with open(os.path.join(sys.argv[1], name), "w", encoding="ascii") as f:
        json.dump(out, f, separators=(",", ":"))
        f.write("\n")


def cases_of(ms, list_):
    configs = []
    for name, parts in list_:
        whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
                 "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
                 "model": ms[name]}
        whole.update(parts)
        fix_ids(ms[name], whole["added_tokens"])
        tok = Tokenizer.from_str(json.dumps(whole))
        top = tok.get_vocab_size() + 3
        cases = []
        for text in texts(60 if SEED > 1 else 14):
            ids = tok.encode(text, add_special_tokens=False).ids
            both = tok.encode(text, add_special_tokens=True).ids
            odd = ids + [RNG.randrange(top) for _ in range(3)]
            cases.append([text, ids, both, odd, tok.decode(odd, skip_special_tokens=False),
                          tok.decode(odd, skip_special_tokens=True)])
        configs.append({"model": name, "parts": parts, "cases": cases})
    return configs


def main():
    ms = model_set()
    write("tokenizer_small.json", ms, config_list(ms))
    rows = []
    for pattern in PATTERNS:
        for behavior in BEHAVIORS if SEED > 1 else RNG.sample(BEHAVIORS, 2):
            for invert in (False, True) if SEED > 1 else (RNG.random() < .3,):
                spec = split(pattern, behavior, invert)
                tok = Tokenizer(models.BPE())
                state = json.loads(tok.to_str())
                state["pre_tokenizer"] = spec
                pre = Tokenizer.from_str(json.dumps(state)).pre_tokenizer
                for text in texts(12)[1:] if SEED > 1 else texts(10)[5:]:
                    rows.append([spec, text, [p for p, _ in pre.pre_tokenize_str(text)]])
    with open(os.path.join(sys.argv[1], "pretok.json"), "w", encoding="ascii") as f:
        json.dump(rows, f, separators=(",", ":"))
        f.write("\n")
    write("tokenizer_kinds.json", kind_set(), kind_list())


main()
