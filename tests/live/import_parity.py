"""Compares `miles import` with transformers: import_parity.py MILES WORK (see import_parity.sh).

The last line is name=value pairs; the exit status is 1 when anything differs that must not.

Weights, logits and the folder's loading must be equal to the bit. Tokens must be equal to those of
transformers' own tokenizer of the file under the pre-tokenizer that the file names: "smollm" splits single
digits off first, as the model's published tokenizer and llama.cpp do. transformers leaves that step out,
so in some texts ("x  3", " \u00bc") its ids are others than the model was trained on. These are counted and
printed; without that step ours must equal transformers' in every text, or it is a failure.
"""
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors import safe_open
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, logging

ROOT = Path(__file__).resolve().parent.parent.parent
TYPES = gguf.GGMLQuantizationType
failures = []


def check(ok, text):
    if not ok:
        failures.append(text)
        print("FAIL:", text, file=sys.stderr)


def from_gguf(path):
    """The model that transformers makes of the file, in bf16."""
    return AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True))


def compare_weights(model, folder):
    """Every tensor of the folder against the model's; returns (tensors, different)."""
    want = model.state_dict()
    if model.config.tie_word_embeddings:
        want.pop("lm_head.weight", None)
    different = 0
    with safe_open(folder / "model.safetensors", "pt") as f:
        names = set(f.keys())
        check(names == set(want), f"{folder.name}: names differ: {names ^ set(want)}")
        for name in sorted(names & set(want)):
            a, b = f.get_tensor(name), want[name]
            same = a.dtype == b.dtype == torch.bfloat16 and a.shape == b.shape
            same = same and torch.equal(a.view(torch.int16), b.view(torch.int16))
            different += not same
            check(same, f"{folder.name}: {name} differs")
    return len(names), different


def compare_logits(model, folder, ids):
    """The folder as transformers loads it against the model: the largest difference of logits."""
    ours = AutoModelForCausalLM.from_pretrained(folder)
    check(ours.dtype == torch.bfloat16, f"{folder.name}: loaded as {ours.dtype}")
    for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                "intermediate_size", "vocab_size", "max_position_embeddings", "rms_norm_eps",
                "rope_parameters", "tie_word_embeddings", "hidden_act", "bos_token_id",
                "eos_token_id", "pad_token_id", "model_type", "head_dim"):
        a, b = getattr(ours.config, key, None), getattr(model.config, key, None)
        check(a == b, f"{folder.name}: config {key} is {a}, transformers has {b}")
    with torch.no_grad():
        a, b = ours(ids).logits, model(ids).logits
    diff = (a.float() - b.float()).abs().max().item()
    check(torch.equal(a, b), f"{folder.name}: logits differ by {diff}")
    return diff


def run_import(miles, source, folder):
    subprocess.run([miles, "import", source, folder], check=True, stdout=sys.stderr)


# ---- tokens ----

def corpus():
    """Texts to tokenise: hard ones, and the sets of $MILES_TEST_DATA where it is given."""
    texts = ["", " ", "a", "  12", "x  3", "\n\n1. one", "12345", "hello<|im_end|>\n<|im_start|>user",
             "é\u0301 naïve 你好 🙂", "don't we'll I'M", "tab\t\t7", "<repo_name>x<|endoftext|>", "a\u00a0 9"]
    data = os.environ.get("MILES_TEST_DATA")
    if data:
        for name in ("gsm8k/train.jsonl", "gsm8k/test.jsonl"):
            with open(Path(data, name), encoding="utf-8") as lines:
                for line in lines:
                    row = json.loads(line)
                    texts += [row["question"], row["answer"]]
    else:
        print("MILES_TEST_DATA is not set: a dozen texts only", file=sys.stderr)
    return texts


def compare_tokens(source, folder):
    """Returns (texts, different, texts in which transformers' missing digit step shows)."""
    theirs = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    ours = AutoTokenizer.from_pretrained(folder)
    published = Tokenizer.from_str(theirs.backend_tokenizer.to_str())
    published.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True),
         pre_tokenizers.ByteLevel(add_prefix_space=False)])
    plain = Tokenizer.from_str(ours.backend_tokenizer.to_str())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    different = known = 0
    texts = corpus()
    for text in texts:
        ids = ours.encode(text, add_special_tokens=False)
        same = ids == published.encode(text, add_special_tokens=False).ids
        their_ids = theirs.encode(text, add_special_tokens=False)
        same = same and plain.encode(text, add_special_tokens=False).ids == their_ids
        if not same:
            different += 1
            print(f"tokens of {text[:60]!r} differ", file=sys.stderr)
        known += ids != their_ids
        check(ours.decode(ids) == theirs.decode(ids), f"the text of {text[:60]!r} differs")
    check(different == 0, f"{different} of {len(texts)} texts have other tokens")
    chat = [{"role": "user", "content": "What is 17 + 25?"}]
    check(ours.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
          == theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True),
          "the chat template renders differently")
    for key in ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id"):
        check(getattr(ours, key) == getattr(theirs, key), f"tokenizer {key} differs")
    data = os.environ.get("MILES_TEST_DATA")
    if data:
        real = json.loads(Path(data, "tokenizers/smollm2/tokenizer.json").read_text("utf-8"))
        made = json.loads(Path(folder, "tokenizer.json").read_text("utf-8"))
        check(real == made, "tokenizer.json is not the one of the test data")
    return len(texts), different, known


# ---- tiny models ----

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name):
    stem, kind = name.rsplit(".", 1)
    layer = re.match(r"model\.layers\.(\d+)\.(.*)", stem)
    if layer:
        return f"blk.{layer[1]}.{NAMES[layer[2]]}.{kind}"
    return f"{NAMES[stem]}.{kind}"


def permute(w, heads):
    """What llama.cpp's converter does to the q and k of llama."""
    rows, cols = w.shape
    return w.reshape(heads, 2, rows // heads // 2, cols).swapaxes(1, 2).reshape(rows, cols)


def write_gguf(folder, path, family):
    """The folder's model as a GGUF file whose matrices take the types we read in turn."""
    config = json.loads((folder / "config.json").read_text())
    vocab = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    special = {t["id"] for t in vocab["added_tokens"]}
    w = gguf.GGUFWriter(path, family)
    w.add_name("tiny")
    w.add_block_count(config["num_hidden_layers"])
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(config["hidden_size"])
    w.add_feed_forward_length(config["intermediate_size"])
    w.add_head_count(config["num_attention_heads"])
    w.add_head_count_kv(config["num_key_value_heads"])
    w.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    w.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if "head_dim" in config:
        w.add_key_length(config["head_dim"])
        w.add_value_length(config["head_dim"])
    tokens = sorted(vocab["model"]["vocab"], key=vocab["model"]["vocab"].get)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2" if family != "llama" else "smollm")
    w.add_token_list(tokens)
    w.add_token_types([3 if i in special else 1 for i in range(len(tokens))])
    w.add_token_merges(vocab["model"]["merges"])
    w.add_bos_token_id(config["bos_token_id"])
    w.add_eos_token_id(config["eos_token_id"])
    w.add_pad_token_id(config["pad_token_id"])
    kinds = [TYPES.Q4_1, TYPES.Q8_0, TYPES.F16, TYPES.F32, TYPES.BF16, TYPES.Q4_0, TYPES.Q5_0]
    with safe_open(folder / "model.safetensors", "pt") as f:
        for n, name in enumerate(sorted(f.keys())):
            value = f.get_tensor(name).float().numpy()
            if family == "llama" and ("q_proj" in name or "k_proj" in name):
                value = permute(value, config["num_attention_heads" if "q_proj" in name
                                              else "num_key_value_heads"])
            kind = kinds[n % len(kinds)] if value.ndim == 2 else TYPES.F32
            w.add_tensor(gguf_name(name), gguf.quants.quantize(np.ascontiguousarray(value), kind),
                         raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def tiny_models(miles, work):
    total = different = 0
    # transformers reads no head size from a qwen3 file: 128, its default, is the one both know.
    for family, more in (("llama", []), ("llama", ["--untied"]), ("qwen2", ["--untied"]),
                         ("qwen3", ["--head-dim", "128"])):
        tag = family + ("-untied" if "--untied" in more else "")
        source, path, folder = work / f"{tag}-hf", work / f"{tag}.gguf", work / f"{tag}-ours"
        subprocess.run([sys.executable, ROOT / "tools/tiny_model.py", source, "--family", family,
                        "--vocab", "512", "--heads", "4", "--kv-heads", "2", "--hidden", "128", *more],
                       check=True, stdout=sys.stderr)
        write_gguf(source, path, family)
        run_import(miles, path, folder)
        model = from_gguf(path)
        n, bad = compare_weights(model, folder)
        compare_logits(model, folder, torch.arange(40).reshape(1, 40) * 11 % 512)
        total += n
        different += bad
    return total, different


def main():
    miles, work = sys.argv[1], Path(sys.argv[2])
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    source, folder = work / "smollm2.gguf", work / "smollm2-ours"
    run_import(miles, source, folder)
    model = from_gguf(source)
    tensors, different = compare_weights(model, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("The capital of France is Paris. 12 + 30 = 42", return_tensors="pt").input_ids
    diff = compare_logits(model, folder, ids)
    texts, other, known = compare_tokens(source, folder)
    tiny, tiny_different = tiny_models(miles, work)
    print(f"tensors={tensors} tensors_different={different} logits_max_diff={diff:g} "
          f"tiny_tensors={tiny} tiny_tensors_different={tiny_different} "
          f"texts={texts} texts_different={other} "
          f"texts_transformers_lacks_digit_split={known} failures={len(failures)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
