"""Tiny tokenizers of the kinds that no vendor's file in the test data has, trained with the package.

write(folder, data) trains them on the texts of `data`, writes them and gives
{name: path of a tokenizer.json}. For a name that begins with "tiktoken" there is a second file
beside it, in tiktoken's format, that is to give the same tokens.
"""
import base64
import glob
import json
import os
import struct

from tokenizers import (Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def texts(data):
    out = []
    for path in sorted(glob.glob(os.path.join(data, "text/udhr/*.txt")))[::4]:
        with open(path, encoding="utf-8") as f:
            out += f.read().split("\n")[:40]
    with open(os.path.join(data, "gsm8k/test.jsonl"), encoding="utf-8") as f:
        out += [json.loads(line)["question"] for line in list(f)[:300]]
    return out


def darts(rules):
    """A precompiled_charsmap of {text: replacement}: a double-array trie and the replacements.

    A unit is label | leaf bit 8 | offset from bit 10, a leaf's value has bit 31; the child of a node
    for byte c lies at (node's base) xor c, its value at (base) xor 0.
    """
    text = b"".join(b.encode() + b"\0" for b in rules.values())
    starts, at = {}, 0
    for a, b in rules.items():
        starts[a.encode()] = at
        at += len(b.encode()) + 1
    root = {}
    for key, value in starts.items():
        node = root
        for c in key:
            node = node.setdefault(c, {})
        node[0] = value
    units, used = {0: 0}, {0}
    bases = set()

    def place(where, node):
        base = 1
        while base in bases or any((base ^ c) in used for c in node) or (base ^ where) >= 1 << 21:
            base += 1
        bases.add(base)
        used.update(base ^ c for c in node)
        units[where] = units.get(where, 0) | (base ^ where) << 10 | (1 << 8 if 0 in node else 0)
        for c, child in node.items():
            if c == 0:
                units[base] = child | 1 << 31
            else:
                units[base ^ c] = c
        for c, child in node.items():
            if c:
                place(base ^ c, child)

    place(0, root)
    size = (max(units) | 255) + 1
    trie = struct.pack("<%dI" % size, *(units.get(i, 0) for i in range(size)))
    return base64.b64encode(struct.pack("<I", len(trie)) + trie + text).decode()


RULES = {"\ufb01": "fi", "\u2460": "1", "\u00bd": "1/2", "\u212b": "\u00c5", "\u3000": " ",
         "\u00a0": " ", "\u200b": "", "\uff21": "A", "\uff22": "B", "a\u0301": "\u00e1",
         "e\u0301": "\u00e9", "\u30ac": "\u30ac", "\u2026": "...", "\t": " ", "\n": " ",
         "\u0130": "I", "\u1e9b\u0323": "\u1e69", "\u1100": "k", "\U0001d400": "A"}


def charsmap():
    return {"type": "Precompiled", "precompiled_charsmap": darts(RULES)}


def with_parts(tok, **parts):
    state = json.loads(tok.to_str())
    state.update(parts)
    return Tokenizer.from_str(json.dumps(state))


def trained(model, trainer, corpus, norm=None, pre=None, **parts):
    tok = Tokenizer(model)
    if norm:
        tok.normalizer = norm
    if pre:
        tok.pre_tokenizer = pre
    tok.train_from_iterator(corpus, trainer)
    return with_parts(tok, **parts)


def unigrams(corpus):
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=1500, special_tokens=special, unk_token="<unk>",
                                      show_progress=False)
    meta = pre_tokenizers.Metaspace()
    plain = trained(models.Unigram(), trainer, corpus, pre=meta)
    plain.decoder = decoders.Metaspace()
    plain.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
    yield "unigram", plain
    yield "unigram-nmt", with_parts(plain, normalizer={"type": "Sequence", "normalizers": [
        {"type": "Nmt"}, {"type": "NFKC"},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]})
    yield "unigram-charsmap", with_parts(plain, normalizer=charsmap(), pre_tokenizer={
        "type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, {
            "type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always",
            "split": True}]})
    yield "unigram-whole", with_parts(plain, pre_tokenizer=None, decoder=None)
    state = json.loads(plain.to_str())
    state["model"]["vocab"] += [["<0x%02X>" % b, -20.0] for b in range(256)]
    state["model"]["byte_fallback"] = True
    state["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "ByteFallback"}, {"type": "Metaspace", "replacement": "\u2581",
                                   "prepend_scheme": "always", "split": True}]}
    yield "unigram-bytes", Tokenizer.from_str(json.dumps(state))
    state["model"]["vocab"] = state["model"]["vocab"][:-40]
    state["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True,
                              "trim_offsets": True}
    yield "unigram-part", Tokenizer.from_str(json.dumps(state))


def wordpieces(corpus):
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=2000, special_tokens=special,
                                        show_progress=False)
    tok = trained(models.WordPiece(unk_token="[UNK]"), trainer, corpus,
                  norm=normalizers.BertNormalizer(), pre=pre_tokenizers.BertPreTokenizer())
    tok.decoder = decoders.WordPiece()
    tok.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    yield "bert-uncased", tok
    yield "bert-cased", with_parts(
        tok, normalizer={"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                         "strip_accents": None, "lowercase": False},
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": False})
    yield "bert-accents", with_parts(tok, normalizer={"type": "Sequence", "normalizers": [
        {"type": "NFD"}, {"type": "Lowercase"}, {"type": "StripAccents"},
        {"type": "Strip", "strip_left": True, "strip_right": True}]},
        pre_tokenizer={"type": "Whitespace"})
    yield "wordpiece-punct", with_parts(tok, pre_tokenizer={
        "type": "Sequence", "pretokenizers": [
            {"type": "CharDelimiterSplit", "delimiter": "e"},
            {"type": "Punctuation", "behavior": "MergedWithNext"},
            {"type": "Digits", "individual_digits": False}]})
    yield "wordpiece-fixed", with_parts(tok, normalizer={
        "type": "BertNormalizer", "clean_text": False, "handle_chinese_chars": False,
        "strip_accents": True, "lowercase": False}, pre_tokenizer={
            "type": "FixedLength", "length": 5})
    words = trained(models.WordLevel(unk_token="[UNK]"),
                    trainers.WordLevelTrainer(vocab_size=3000, special_tokens=special,
                                              show_progress=False),
                    corpus, pre=pre_tokenizers.Whitespace())
    yield "wordlevel", words


def bpes(corpus):
    special = ["<unk>", "<s>"]
    base = dict(vocab_size=1500, special_tokens=special, show_progress=False)
    suffix = trained(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"),
                     trainers.BpeTrainer(end_of_word_suffix="</w>", **base), corpus,
                     norm=normalizers.BertNormalizer(), pre=pre_tokenizers.Whitespace())
    suffix.decoder = decoders.BPEDecoder()
    yield "bpe-suffix", suffix
    yield "bpe-prefix", trained(
        models.BPE(unk_token="<unk>", continuing_subword_prefix="##", fuse_unk=True),
        trainers.BpeTrainer(continuing_subword_prefix="##", **base), corpus,
        pre=pre_tokenizers.WhitespaceSplit(),
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": True})
    clip = pre_tokenizers.Sequence([
        pre_tokenizers.Split(
            Regex(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"), "removed",
            invert=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    yield "bpe-clip", trained(
        models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"),
        trainers.BpeTrainer(end_of_word_suffix="</w>",
                            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **base), corpus,
        norm=normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]), pre=clip,
        decoder=BYTES)
    chars = trained(models.BPE(unk_token="<unk>"), trainers.BpeTrainer(**base), corpus,
                    pre=pre_tokenizers.WhitespaceSplit())
    yield "bpe-ctc", with_parts(chars, decoder={
        "type": "CTC", "pad_token": "a", "word_delimiter_token": "e", "cleanup": True})
    yield "bpe-chain", with_parts(chars, decoder={"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"Regex": "[aeiou]+"}, "content": "_"},
        {"type": "Strip", "content": "_", "start": 1, "stop": 0}, {"type": "Fuse"}]})
    yield "bpe-none", with_parts(chars, pre_tokenizer=None)
    yield "bpe-spelled", trained(
        models.BPE(), trainers.BpeTrainer(
            vocab_size=1500, show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()), corpus,
        norm=normalizers.ByteLevel(), decoder=BYTES)
    ranks = trained(models.BPE(), trainers.BpeTrainer(
        vocab_size=1500, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()), corpus,
        pre=pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(CL100K), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
        decoder=BYTES)
    yield "tiktoken", by_rank(ranks)


def by_rank(tok):
    """The tokenizer that tiktoken makes of the same tokens: any two neighbours that are a token
    together are merged, the lowest rank first."""
    state = json.loads(tok.to_str())
    vocab = state["model"]["vocab"]
    merges = []
    for token in sorted(vocab, key=vocab.get):
        cuts = [(token[:i], token[i:]) for i in range(1, len(token))]
        cuts = [c for c in cuts if c[0] in vocab and c[1] in vocab]
        merges += sorted(cuts, key=lambda c: (vocab[c[0]], vocab[c[1]]))
    state["model"].update(merges=merges, ignore_merges=True)
    tok = Tokenizer.from_str(json.dumps(state))
    for word in sorted(vocab, key=vocab.get)[300:] + ["\u0120the\u0120quick" * 9, "aabbccddeeff"]:
        if tok.model.tokenize(word) and [t.id for t in tok.model.tokenize(word)] != \
                rank_merge(vocab, word):
            raise RuntimeError("merges of ranks differ on " + word)
    return tok


def rank_merge(vocab, word):
    parts = [word] if word in vocab else list(word)
    while len(parts) > 1:
        pairs = [(vocab[a + b], i) for i, (a, b) in enumerate(zip(parts, parts[1:]))
                 if a + b in vocab]
        if not pairs:
            break
        i = min(pairs)[1]
        parts[i:i + 2] = [parts[i] + parts[i + 1]]
    return [vocab[p] for p in parts]


def tiktoken_lines(tok):
    """The vocabulary of a byte-level tokenizer in tiktoken's format."""
    byte = {}
    extra = 0
    for b in range(256):
        if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or 0xAE <= b:
            byte[chr(b)] = b
        else:
            byte[chr(0x100 + extra)] = b
            extra += 1
    rows = sorted((i, bytes(byte[c] for c in t)) for t, i in tok.get_vocab().items())
    return "".join("%s %d\n" % (base64.b64encode(t).decode(), i) for i, t in rows)


def write(folder, data):
    corpus = texts(data)
    out = {}
    for make in (unigrams, wordpieces, bpes):
        for name, tok in make(corpus):
            out[name] = os.path.join(folder, name + ".json")
            tok.save(out[name])
            if name.startswith("tiktoken"):
                with open(os.path.join(folder, name + ".tiktoken"), "w", encoding="ascii") as f:
                    f.write(tiktoken_lines(tok))
    return out
