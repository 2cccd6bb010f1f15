#!/usr/bin/env python3
"""Writes a large random model of Llama's kind as a Hugging Face folder, tensor by tensor and without
any package: for memory and speed, where the values do not matter.

    tools/random_model.py DIR [--layers 16] [--hidden 2048] [--vocab 128256] ...

The default sizes are those of Llama-3.2-1B (2.5 GB as bf16). For models whose values are compared,
see tools/tiny_model.py.
"""
import argparse
import array
import json
import random
import shutil
import struct
import sys
from pathlib import Path

import tiny_model

BLOCK = 1 << 20  # values drawn; larger tensors repeat them from places of their own


def bf16(x):
    """The upper half of the f32, rounded to nearest."""
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def shapes(a):
    """Names and shapes in the order of the file."""
    q, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
    yield "model.embed_tokens.weight", (a.vocab, a.hidden)
    for i in range(a.layers):
        p = f"model.layers.{i}."
        yield p + "input_layernorm.weight", (a.hidden,)
        yield p + "self_attn.q_proj.weight", (q, a.hidden)
        yield p + "self_attn.k_proj.weight", (kv, a.hidden)
        yield p + "self_attn.v_proj.weight", (kv, a.hidden)
        yield p + "self_attn.o_proj.weight", (a.hidden, q)
        yield p + "post_attention_layernorm.weight", (a.hidden,)
        yield p + "mlp.gate_proj.weight", (a.intermediate, a.hidden)
        yield p + "mlp.up_proj.weight", (a.intermediate, a.hidden)
        yield p + "mlp.down_proj.weight", (a.hidden, a.intermediate)
    yield "model.norm.weight", (a.hidden,)


def write_weights(path, a):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes(a):
        n = 2
        for s in shape:
            n *= s
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = random.Random(a.seed)
    block = array.array("H", (bf16(rng.gauss(0.0, 0.02)) for _ in range(BLOCK))).tobytes()
    ones = struct.pack("<H", bf16(1.0))
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes(a):
            left = header[name]["data_offsets"][1] - header[name]["data_offsets"][0]
            if len(shape) == 1:
                out.write(ones * shape[0])
                continue
            while left:
                skip = 2 * rng.randrange(BLOCK // 2)
                piece = block[skip : skip + min(left, len(block) - skip)]
                out.write(piece)
                left -= len(piece)


def write_texts(folder, a):
    tokenizer = tiny_model.small_tokenizer(a.vocab)
    specials = len(tiny_model.SPECIALS)
    tokenizer["added_tokens"] = tokenizer["added_tokens"][:specials]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    config = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>",
              "chat_template": tiny_model.CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config) + "\n")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": a.layers,
        "hidden_size": a.hidden,
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.kv_heads,
        "head_dim": a.head_dim,
        "intermediate_size": a.intermediate,
        "vocab_size": a.vocab,
        "max_position_embeddings": a.positions,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": tiny_model.BOS,
        "eos_token_id": tiny_model.EOS,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("dir", type=Path)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--layers", type=int, default=16)
    p.add_argument("--hidden", type=int, default=2048)
    p.add_argument("--heads", type=int, default=32)
    p.add_argument("--kv-heads", type=int, default=8)
    p.add_argument("--head-dim", type=int, default=64)
    p.add_argument("--intermediate", type=int, default=8192)
    p.add_argument("--vocab", type=int, default=128256)
    p.add_argument("--positions", type=int, default=131072)
    a = p.parse_args()
    if a.dir.exists() and any(a.dir.iterdir()):
        sys.exit(f"random_model.py: {a.dir} exists and is not empty")
    tmp = a.dir.with_name(a.dir.name + ".tmp")
    shutil.rmtree(tmp, ignore_errors=True)
    tmp.mkdir(parents=True)
    write_texts(tmp, a)
    write_weights(tmp / "model.safetensors", a)
    tmp.rename(a.dir)
    print(a.dir)


if __name__ == "__main__":
    main()
