"""Writes tests/golden/ropes.json: transformers' frequencies and attention factors of scaled rope.

    python3 tests/model/gen_ropes.py > tests/golden/ropes.json
"""
import json
import sys

from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

# rope_parameters, head size, max_position_embeddings, longest context of the run
CASES = [
    ({"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}, 64, 2048, 2048),
    ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192, "rope_theta": 500000.0}, 128, 131072, 131072),
    ({"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192, "rope_theta": 500000.0}, 64, 131072, 131072),
    ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768,
      "rope_theta": 1000000.0}, 128, 131072, 131072),
    ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096, "rope_theta": 10000.0,
      "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False}, 64, 16384, 16384),
    ({"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "rope_theta": 10000.0,
      "mscale": 1.0, "mscale_all_dim": 0.5}, 64, 163840, 163840),
    ({"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}, 64, 2048, 2048),
    ({"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}, 64, 2048, 5000),
]


def main():
    out = []
    for rope, dim, positions, limit in CASES:
        config = LlamaConfig(hidden_size=2 * dim, num_attention_heads=2, head_dim=dim,
                             max_position_embeddings=positions, rope_parameters=dict(rope))
        freq, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, seq_len=limit)
        out.append({"rope": rope, "dim": dim, "positions": positions, "limit": limit,
                    "factor": factor, "frequencies": [float(f"{x:.9g}") for x in freq.tolist()]})
    json.dump(out, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
