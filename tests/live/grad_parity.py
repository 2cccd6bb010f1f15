"""Compares our logits and gradients with transformers': grad_parity.py TEST_FORWARD WORK MODEL... (see
grad_parity.sh; family_parity.py uses it too). The last model is a large one and gets short sequences.

Both sides compute in float32 from the same bf16 weights. J is the mean of all next-token log-probs.
The small models are also compared on a bundle: samples of one prompt, which ours computes once.
Logits must agree within 1e-4, each gradient tensor within 1e-3 of its norm. The last line is name=value
pairs; the exit status is 1 when anything differs more.
"""
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, logging

LOGITS_BOUND = 1e-4
GRAD_BOUND = 1e-3
failures = []


@dataclass
class Result:
    logits: float  # largest difference of a logit
    logits_rel: float  # difference of all logits, by their norm
    grads_rel: float  # the worst tensor's difference of gradients, by its norm
    tensors: int


def check(ok, text):
    if not ok:
        failures.append(text)
        print("FAIL:", text, file=sys.stderr)


def quiet():
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def sequences(vocab, lengths, seed):
    g = torch.Generator().manual_seed(seed)
    return [torch.randint(vocab, (n,), generator=g).tolist() for n in lengths]


def load(folder, dtype):
    config = AutoConfig.from_pretrained(folder)
    auto = AutoModelForImageTextToText if "vision_config" in config.to_dict() else AutoModelForCausalLM
    return auto.from_pretrained(folder, dtype=dtype, attn_implementation="eager").train(False)


def vocab_of(model):
    return model.config.get_text_config().vocab_size


def theirs(model, seqs, bundle=False):
    """Logits of all positions, one sequence at a time so that no padding takes part; gradients stay in
    the model. In a bundle all go on from the first, whose tokens count once."""
    prompt = len(seqs[0]) if bundle else 0
    count = sum(len(s) for s in seqs) - (1 if bundle else len(seqs))
    texts = [seqs[0] + s for s in seqs[1:]] if bundle else seqs
    logits = []
    for i, s in enumerate(texts):
        ids = torch.tensor([s])
        out = model(input_ids=ids).logits[0]
        logp = torch.log_softmax(out[:-1], dim=-1).gather(1, ids[0, 1:, None])
        known = prompt if i else 0  # rows that an earlier sample had
        (logp[max(known - 1, 0):].sum() / count).backward()
        logits.append(out.detach()[known:])
    return torch.cat(logits)


def ours(dump, work, folder, seqs, **more):
    """Runs the dump and returns the file with "logits" and every gradient."""
    tokens, out = work / "tokens.json", work / "out.safetensors"
    tokens.write_text(json.dumps({"sequences": seqs, **more}))
    subprocess.run([dump, "--dump", folder, tokens, out], check=True)
    return out


def relative(a, b):
    return ((a - b).norm() / b.norm()).item()


def compare(dump, work, folder, lengths, **more):
    model = load(folder, torch.float32)
    seqs = sequences(vocab_of(model), lengths, len(lengths))
    start = time.monotonic()
    out = ours(dump, work, folder, seqs, **more)
    seconds = time.monotonic() - start
    want = theirs(model, seqs, more.get("bundle", False))
    # parts that text does not reach (vision) have no gradient, on either side; transformers writes a
    # text part's tensors under another name than the model has them
    params = {n.replace("model.language_model.", "language_model.model."): p
              for n, p in model.named_parameters() if p.grad is not None}
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
            check(b.norm().item() > 0, f"{folder.name}: the gradient of {name} is zero")
            rel = relative(a, b)
            check(rel <= GRAD_BOUND, f"{folder.name}: the gradient of {name} differs by {rel:.3g}")
            if not rel <= worst:
                worst, worst_name = rel, name
    out.unlink()
    print(f"{folder.name}: {len(params)} tensors, {sum(lengths)} tokens, ours in {seconds:.1f} s, "
          f"logits up to {want.abs().max().item():.3g} differ by {diff:.3g}, "
          f"gradients by {worst:.3g} ({worst_name})", file=sys.stderr)
    return Result(diff, relative(got, want), worst, len(params))


def main():
    quiet()
    dump, work = sys.argv[1], Path(sys.argv[2])
    folders = [Path(a) for a in sys.argv[3:]]
    logits, grads = 0.0, 0.0
    for folder in folders:
        # over a page's end (64) for the small ones
        small = folder != folders[-1]
        runs = [compare(dump, work, folder, [70, 2, 33] if small else [12, 12])]
        if small:
            runs.append(compare(dump, work, folder, [70, 20, 1, 63], bundle=True))
        logits, grads = max(logits, *(r.logits for r in runs)), max(grads, *(r.grads_rel for r in runs))
    print(f"grad_parity_models={len(folders)} logits_max_diff={logits:.3g} grad_max_rel={grads:.3g} "
          f"failures={len(failures)}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
