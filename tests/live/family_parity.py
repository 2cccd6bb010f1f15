"""Families against transformers: family_parity.py TEST_FORWARD WORK TINY_MODEL_PY MODELS_MD UPDATE (see
family_parity.sh).

In float32, against eager attention: the logits and each gradient tensor, as the norm of the difference
over the norm, within 1e-4 and 1e-3. In bf16, the share of positions whose largest logit is that of the
float32 model: over all models ours must not be below transformers'; of one model's 7,000 positions some near
ties may fall either way, so there 0.2% are allowed. The last line is name=value pairs.
"""
import json
import subprocess
import sys
from pathlib import Path

import torch
from safetensors import safe_open

import grad_parity as gp

# Windows are shorter than the sequences, soft caps bite, and both kinds of layers occur.
SMALL = ["--vocab", "384", "--hidden", "64", "--heads", "2", "--kv-heads", "1", "--head-dim", "32",
         "--intermediate", "96"]
LENGTHS = [70, 2, 33]
BATCH = 100
NEAR_TIES = 0.002


def rope(kind, **keys):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **keys}}


# name, family, what the table says of it, further options, keys of config.json, keys of the dump
MODELS = [
    ("llama", "llama", "Llama 2", ["--untied"], {}, {}),
    ("llama3", "llama", "Llama 3.1, 3.2 (rope llama3)", ["--heads", "4", "--kv-heads", "2"],
     rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
          original_max_position_embeddings=64), {}),
    ("llama-biases", "llama", "Llama with biases everywhere", [],
     {"attention_bias": True, "mlp_bias": True}, {}),
    ("llama-linear", "llama", "rope linear", [], rope("linear", factor=4.0), {}),
    ("llama-yarn", "llama", "rope yarn", [],
     rope("yarn", factor=4.0, original_max_position_embeddings=32), {}),
    ("llama-dynamic", "llama", "rope dynamic, beyond the model's length",
     ["--positions", "40"], rope("dynamic", factor=2.0), {"positions": 70}),
    ("mistral", "mistral", "Mistral (sliding window)", ["--untied", "--heads", "4", "--kv-heads", "2"],
     {"sliding_window": 24}, {}),
    ("qwen2", "qwen2", "Qwen2, Qwen2.5", [], {}, {}),
    ("qwen2-window", "qwen2", "Qwen2 with a window in its last layers", ["--layers", "3"],
     {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}, {}),
    ("qwen3", "qwen3", "Qwen3", ["--heads", "4", "--kv-heads", "2", "--head-dim", "64"], {}, {}),
    ("gemma2", "gemma2", "Gemma 2", ["--layers", "3", "--heads", "4", "--kv-heads", "2"],
     {"sliding_window": 24, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0,
      "query_pre_attn_scalar": 48}, {}),
    ("gemma3_text", "gemma3_text", "Gemma 3 (text)", ["--layers", "3"],
     {"sliding_window": 24, "query_pre_attn_scalar": 48, "final_logit_softcapping": 3.0,
      "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
      "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                          "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}, {}),
    ("gemma3", "gemma3", "Gemma 3 with a vision part, text only", ["--layers", "2"],
     {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"]}, {}),
    ("glm4", "glm4", "GLM-4 (model_type glm4)", ["--untied", "--heads", "4", "--kv-heads", "2"], {}, {}),
]


def make(tiny, work, name, family, options, keys):
    folder = work / name
    sets = [x for k, v in keys.items() for x in ("--set", f"{k}={json.dumps(v)}")]
    extra = [] if family != "qwen2" else ["--heads", "2"]
    subprocess.run([sys.executable, tiny, folder, "--family", family, "--seed", "7", *SMALL, *extra,
                    *options, *sets], check=True, stdout=sys.stderr)
    return folder


@torch.no_grad()
def picks(model, seqs):
    """The largest logit of every position; the sequences have one length."""
    ids = torch.tensor(seqs)
    return torch.cat([model(input_ids=part).logits.argmax(-1).flatten() for part in ids.split(20)])


def top1(dump, work, folder, lengths, more):
    """Shares of positions where bf16 picks the float32 model's token: ours, transformers'."""
    model = gp.load(folder, torch.float32)
    seqs = gp.sequences(gp.vocab_of(model), lengths, 1)
    want = picks(model, seqs)
    half = picks(gp.load(folder, torch.bfloat16), seqs)
    out = gp.ours(dump, work, folder, seqs, device="cpu", **more)
    with safe_open(out, "pt") as f:
        got = f.get_tensor("logits").argmax(-1)
    out.unlink()
    return (got == want).float().mean().item(), (half == want).float().mean().item()


def table(rows):
    lines = ["| Model | Logits, float32 | Gradients, float32 | Top-1 in bf16, miles | transformers |",
             "|---|---|---|---|---|"]
    for text, r, a, b in rows:
        lines.append(f"| {text} | {r.logits_rel:.1e} | {r.grads_rel:.1e} | {a:.2%} | {b:.2%} |")
    return "\n".join(lines)


def update(path, text, write):
    """The table stands between two marks. Figures vary with the libraries; what is listed must not."""
    begin, end = "<!-- table: tests/live/family_parity.sh -->\n", "\n<!-- end of table -->"
    old = path.read_text(encoding="utf-8")
    head, rest = old.split(begin)
    body, tail = rest.split(end)
    if write:
        path.write_text(head + begin + text + end + tail, encoding="utf-8")
    else:
        listed = [line.split("|")[1] for line in body.splitlines()]
        gp.check(listed == [line.split("|")[1] for line in text.splitlines()],
                 f"{path} lists other models; run with UPDATE=1")


def main():
    gp.quiet()
    dump, work, tiny = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    rows = []
    for name, family, text, options, keys, more in MODELS:
        folder = make(tiny, work, name, family, options, keys)
        lengths = [70, 70] if "positions" in more else LENGTHS
        r = gp.compare(dump, work, folder, lengths, **more)
        gp.check(r.logits_rel <= gp.LOGITS_BOUND, f"{name}: logits differ by {r.logits_rel:.3g}")
        a, b = top1(dump, work, folder, [70] * BATCH, more)
        gp.check(a >= b - NEAR_TIES, f"{name}: top-1 in bf16 {a:.2%}, transformers {b:.2%}")
        rows.append((text, r, a, b))
        print(f"{name}: top-1 in bf16 {a:.2%}, transformers {b:.2%}", file=sys.stderr)
    a, b = (sum(x) / len(rows) for x in zip(*[row[2:] for row in rows]))
    gp.check(a >= b, f"top-1 in bf16 {a:.3%} over all models, transformers {b:.3%}")
    update(Path(sys.argv[4]), table(rows), sys.argv[5] == "1")
    print(f"family_parity_models={len(rows)} top1_bf16={a:.4f} top1_transformers={b:.4f} "
          f"logits_max_rel={max(r.logits_rel for _, r, _, _ in rows):.3g} "
          f"grad_max_rel={max(r.grads_rel for _, r, _, _ in rows):.3g} failures={len(gp.failures)}")
    return bool(gp.failures)


if __name__ == "__main__":
    sys.exit(main())
