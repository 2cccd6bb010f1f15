"""Times torch + transformers on one model: torch_step.py MODEL train|prefill BATCH LENGTH STEPS

bf16, two threads, random tokens. `train` is forward, cross-entropy, backward and AdamW (fused, on the
bf16 weights); `prefill` is the forward pass with the last token's logits. One step warms up and is
not shown; then prints one line `step SECONDS` for each.
"""
import os
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import AutoModelForCausalLM


def main():
    model, what = sys.argv[1], sys.argv[2]
    batch, length, steps = (int(x) for x in sys.argv[3:6])
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    torch.manual_seed(7)
    net = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    tokens = torch.randint(0, net.config.vocab_size, (batch, length))

    def train():
        net(tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def prefill():
        with torch.no_grad():
            net(tokens, logits_to_keep=1)

    if what == "train":
        net.train()
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-6, fused=True)
        step = train
    else:
        net.eval()
        step = prefill
    for i in range(steps + 1):
        start = time.perf_counter()
        step()
        if i > 0:
            print("step", time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
