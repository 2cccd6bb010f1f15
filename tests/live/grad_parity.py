"""Compares our logits and gradients with transformers': grad_parity.py TEST_FORWARD WORK MODEL... (see
grad_parity.sh). The last model is a large one and gets short sequences.

Both sides compute in float32 from the same bf16 weights. J is the mean of all next-token log-probs.
Logits must agree within 1e-4, each gradient tensor within 1e-3 of its norm. The last line is name=value
pairs; the exit status is 1 when anything differs more.
"""
import json
import subprocess
import sys
import time
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, logging

LOGITS_BOUND = 1e-4
GRAD_BOUND = 1e-3
failures = []


def check(ok, text):
    if not ok:
        failures.append(text)
        print("FAIL:", text, file=sys.stderr)


def sequences(vocab, lengths, seed):
    g = torch.Generator().manual_seed(seed)
    return [torch.randint(vocab, (n,), generator=g).tolist() for n in lengths]


def theirs(model, seqs):
    """Logits of all positions, one sequence at a time so that no padding takes part; gradients stay in
    the model."""
    count = sum(len(s) - 1 for s in seqs)
    logits = []
    for s in seqs:
        ids = torch.tensor([s])
        out = model(input_ids=ids).logits[0]
        logp = torch.log_softmax(out[:-1], dim=-1).gather(1, ids[0, 1:, None])
        (logp.sum() / count).backward()
        logits.append(out.detach())
    return torch.cat(logits)


def compare(dump, work, folder, lengths):
    """Returns (largest difference of a logit, largest relative difference of a gradient)."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager").train(False)
    seqs = sequences(model.config.vocab_size, lengths, len(lengths))
    tokens, out = work / "tokens.json", work / "out.safetensors"
    tokens.write_text(json.dumps({"sequences": seqs}))
    start = time.monotonic()
    subprocess.run([dump, "--dump", folder, tokens, out], check=True)
    seconds = time.monotonic() - start
    want = theirs(model, seqs)
    params = dict(model.named_parameters())
    worst, worst_name = 0.0, ""
    with safe_open(out, "pt") as f:
        names = set(f.keys()) - {"logits"}
        check(names == set(params), f"{folder.name}: names differ: {names ^ set(params)}")
        got = f.get_tensor("logits")
        check(got.shape == want.shape, f"{folder.name}: logits have shape {got.shape}")
        diff = (got - want).abs().max().item()
        check(diff <= LOGITS_BOUND, f"{folder.name}: logits differ by {diff:.3g}")
        for name in sorted(names & set(params)):
            a, b = f.get_tensor(name), params[name].grad
            check(a.shape == b.shape, f"{folder.name}: {name} has shape {a.shape}")
            norm = b.norm().item()
            check(norm > 0, f"{folder.name}: the gradient of {name} is zero")
            rel = ((a - b).norm() / b.norm()).item()
            check(rel <= GRAD_BOUND, f"{folder.name}: the gradient of {name} differs by {rel:.3g}")
            if not rel <= worst:
                worst, worst_name = rel, name
    out.unlink()
    print(f"{folder.name}: {len(params)} tensors, {sum(lengths)} tokens, ours in {seconds:.1f} s, "
          f"logits up to {want.abs().max().item():.3g} differ by {diff:.3g}, "
          f"gradients by {worst:.3g} ({worst_name})", file=sys.stderr)
    return diff, worst


def main():
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    dump, work = sys.argv[1], Path(sys.argv[2])
    folders = [Path(a) for a in sys.argv[3:]]
    logits, grads = 0.0, 0.0
    for folder in folders:
        # over a page's end (64) for the small ones
        lengths = [12, 12] if folder == folders[-1] else [70, 2, 33]
        a, b = compare(dump, work, folder, lengths)
        logits, grads = max(logits, a), max(grads, b)
    print(f"grad_parity_models={len(folders)} logits_max_diff={logits:.3g} grad_max_rel={grads:.3g} "
          f"failures={len(failures)}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
