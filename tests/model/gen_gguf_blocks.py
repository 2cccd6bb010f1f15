"""Writes tests/golden/gguf_blocks.json: random blocks of the types of src/model/gguf_quant.c and their values by
the `gguf` package, rounded to bf16.

    python3 tests/model/gen_gguf_blocks.py > tests/golden/gguf_blocks.json
"""
import json
import sys

import gguf
import numpy as np
import torch

TYPES = gguf.GGMLQuantizationType
# type, the places of its half-precision scales inside a block
KINDS = [(TYPES.F16, None), (TYPES.BF16, None), (TYPES.Q4_0, [0]), (TYPES.Q4_1, [0, 2]), (TYPES.Q4_K, [0, 2]),
         (TYPES.Q5_0, [0]), (TYPES.Q6_K, [208]), (TYPES.Q8_0, [0])]
BLOCKS = 6


def blocks(rng, kind, scales):
    values, size = gguf.GGML_QUANT_SIZES[kind]
    if scales is None:
        x = (rng.standard_normal((1, 64)) * 2.0 ** rng.integers(-14, 10, (1, 64))).astype(np.float32)
        return gguf.quants.quantize(x, kind).view(np.uint8).reshape(1, -1)
    raw = rng.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
    for at in scales:  # finite, of both signs, one below the smallest normal half
        d = (rng.standard_normal(BLOCKS) * 2.0 ** rng.integers(-12, 3, BLOCKS)).astype(np.float16)
        d[-1] = np.float16(3e-6)
        raw[:, at:at + 2] = d.view(np.uint8).reshape(BLOCKS, 2)
    return raw


def main():
    rng = np.random.default_rng(4)
    out = []
    for kind, scales in KINDS:
        raw = blocks(rng, kind, scales)
        f32 = gguf.quants.dequantize(raw, kind).reshape(-1)
        bf16 = torch.from_numpy(f32.copy()).to(torch.bfloat16).view(torch.int16).numpy().astype("<u2")
        out.append({"type": int(kind), "name": kind.name, "blocks": raw.tobytes().hex(),
                    "bf16": bf16.tobytes().hex()})
    json.dump(out, sys.stdout, indent=0)
    print()


if __name__ == "__main__":
    main()
