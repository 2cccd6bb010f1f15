#!/usr/bin/env python3
"""Makes a tiny random model as a Hugging Face folder (bf16 safetensors), for tests.

    tools/tiny_model.py DIR --family llama [--seed 0] [--layers 2] [--hidden 64] ...
        [--set sliding_window=24] [--set 'rope_parameters={"rope_type": "linear", ...}']

Families: llama, mistral, qwen2, qwen3, gemma2, gemma3_text, gemma3 (with a tiny vision part), glm4. --set
gives a key of the (text) config a value in JSON.

With the default vocabulary of 49152 the tokenizer is SmolLM2's, from $MILES_TEST_DATA; with a smaller
one (--vocab 512) a byte-level BPE of that size is made here. Both have SmolLM2's chat template and its
ids of <|im_start|> (1) and <|im_end|> (2). A qwen2 model splits text as Qwen2 does, because transformers
imposes that on the family, whatever tokenizer.json says. Needs torch and transformers (tools/setup.sh
oracles).
"""
import argparse
import json
import os
import shutil
import string
import sys
from pathlib import Path

SMOLLM2_VOCAB = 49152
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
BOS, EOS = 1, 2
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)
FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "gemma3", "glm4"]
VISION = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
          "image_size": 28, "patch_size": 14}
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_alphabet():
    """The character that stands for each byte in a byte-level vocabulary, as GPT-2 has it."""
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(b) if b in printing else chr(next(others)) for b in range(256)]


def small_tokenizer(vocab_size):
    """tokenizer.json with the 256 bytes, merges of letter pairs up to vocab_size, then reserved ids,
    so that every id of the model has a text."""
    alphabet = byte_alphabet()
    tokens = SPECIALS + alphabet
    letters = string.ascii_lowercase
    pairs = [(alphabet[ord(" ")], c) for c in letters]
    pairs += [(a, b) for a in letters for b in letters]
    merges = pairs[: vocab_size - len(tokens)]
    tokens = tokens + [a + b for a, b in merges]
    reserved = [f"<|reserved_{i}|>" for i in range(vocab_size - len(tokens))]
    vocab = {token: i for i, token in enumerate(tokens + reserved)}
    added = [
        {
            "id": vocab[token],
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for token in SPECIALS + reserved
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {**byte_level, "use_regex": True},
            ],
        },
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [f"{a} {b}" for a, b in merges],
        },
    }


def split_as_qwen2(tokenizer):
    tokenizer["normalizer"] = {"type": "NFC"}
    tokenizer["pre_tokenizer"]["pretokenizers"] = [
        {
            "type": "Split",
            "pattern": {"Regex": QWEN2_SPLIT},
            "behavior": "Isolated",
            "invert": False,
        },
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
    ]


def write_tokenizer(folder, args):
    if args.vocab == SMOLLM2_VOCAB:
        data = os.environ.get("MILES_TEST_DATA")
        if not data:
            sys.exit("tiny_model.py: MILES_TEST_DATA is not set; it has SmolLM2's tokenizer "
                     "(or make a small one with --vocab 512)")
        source = Path(data, "tokenizers/smollm2/tokenizer.json")
        tokenizer = json.loads(source.read_text(encoding="utf-8"))
    else:
        tokenizer = small_tokenizer(args.vocab)
    if args.family == "qwen2":
        split_as_qwen2(tokenizer)
    text = json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":"))
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    config = {
        "bos_token": SPECIALS[BOS],
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": SPECIALS[EOS],
        "model_max_length": args.positions,
        "pad_token": SPECIALS[EOS],
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": SPECIALS[0],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def make_model(args):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    sizes = {
        "num_hidden_layers": args.layers,
        "hidden_size": args.hidden,
        "num_attention_heads": args.heads,
        "num_key_value_heads": args.kv_heads,
        "intermediate_size": args.intermediate,
        "vocab_size": args.vocab,
        "max_position_embeddings": args.positions,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": not args.untied,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": EOS,
    }
    if args.family != "qwen2":
        sizes["head_dim"] = args.head_dim
    elif args.head_dim * args.heads != args.hidden:
        sys.exit("tiny_model.py: qwen2 has no head_dim of its own: heads * head-dim must be hidden")
    if args.family.startswith("gemma3"):
        del sizes["rope_parameters"]  # one for each kind of layer: the family's defaults
    for setting in args.set:
        key, _, value = setting.partition("=")
        sizes[key] = json.loads(value)
    torch.manual_seed(args.seed)
    if args.family == "gemma3":
        config = AutoConfig.for_model("gemma3", text_config=sizes, vision_config=VISION,
                                      mm_tokens_per_image=4)
        model = AutoModelForImageTextToText.from_config(config)
    else:
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(args.family, **sizes))
    # Wider than the usual 0.02, and no ones and zeros: flat logits and neutral norms hide mistakes.
    one = 0.0 if args.family.startswith("gemma") else 1.0  # Gemma's norms multiply by 1 + w
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape)
            if "norm" in name:
                p.copy_(one + 0.1 * noise)
            else:
                p.copy_((args.std if "embed" not in name else 0.08) * noise)
    return model.to(torch.bfloat16)


def parse_args():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("dir", type=Path)
    p.add_argument("--family", choices=FAMILIES, default="llama")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--hidden", type=int, default=64)
    p.add_argument("--heads", type=int, default=2)
    p.add_argument("--kv-heads", type=int, default=1)
    p.add_argument("--head-dim", type=int, default=32)
    p.add_argument("--intermediate", type=int, default=128)
    p.add_argument("--vocab", type=int, default=SMOLLM2_VOCAB)
    p.add_argument("--positions", type=int, default=2048)
    p.add_argument("--std", type=float, default=0.05, help="of the matrices; embeddings have 0.08")
    p.add_argument("--untied", action="store_true", help="lm_head with a weight of its own")
    p.add_argument("--set", action="append", default=[], metavar="KEY=JSON",
                   help="a further key of config.json")
    args = p.parse_args()
    if args.vocab < len(SPECIALS) + 256:
        p.error(f"--vocab must be at least {len(SPECIALS) + 256}")
    return args


def main():
    args = parse_args()
    if args.dir.exists() and any(args.dir.iterdir()):
        sys.exit(f"tiny_model.py: {args.dir} exists and is not empty")
    # Made beside its place and renamed, so that a half-made folder is never found under the name.
    tmp = args.dir.with_name(args.dir.name + ".tmp")
    shutil.rmtree(tmp, ignore_errors=True)
    tmp.mkdir(parents=True)
    write_tokenizer(tmp, args)
    make_model(args).save_pretrained(tmp)
    tmp.rename(args.dir)
    print(args.dir)


if __name__ == "__main__":
    main()
