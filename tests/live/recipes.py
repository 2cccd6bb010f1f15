"""config.json of the models that recipes/ are written for: their shapes, without weights.

    recipes.py DIR                   writes DIR/NAME/config.json for each of them
"""
import json
import sys
from pathlib import Path


def config(family, arch, layers, hidden, ffn, heads, kv, vocab, **more):
    return {"model_type": family, "architectures": [arch], "num_hidden_layers": layers, "hidden_size": hidden,
            "intermediate_size": ffn, "num_attention_heads": heads, "num_key_value_heads": kv,
            "vocab_size": vocab, "hidden_act": "silu", "torch_dtype": "bfloat16", "bos_token_id": 1,
            "eos_token_id": 2, **more}


def qwen3(layers, hidden, ffn, heads, tied):
    return config("qwen3", "Qwen3ForCausalLM", layers, hidden, ffn, heads, 8, 151936, head_dim=128,
                  rms_norm_eps=1e-6, rope_theta=1000000, attention_bias=False, tie_word_embeddings=tied,
                  max_position_embeddings=40960)


def qwen2(layers, hidden, ffn, heads):
    return config("qwen2", "Qwen2ForCausalLM", layers, hidden, ffn, heads, 2, 151936, rms_norm_eps=1e-6,
                  rope_theta=1000000.0, tie_word_embeddings=True, max_position_embeddings=32768)


MODELS = {
    "glm4-9b": config("glm4", "Glm4ForCausalLM", 40, 4096, 13696, 32, 2, 151552, head_dim=128,
                      rms_norm_eps=1e-5, rope_theta=10000.0, partial_rotary_factor=0.5, attention_bias=True,
                      tie_word_embeddings=False, max_position_embeddings=32768),
    "qwen3-0.6b": qwen3(28, 1024, 3072, 16, True),
    "qwen3-1.7b": qwen3(28, 2048, 6144, 16, True),
    "qwen3-4b": qwen3(36, 2560, 9728, 32, True),
    "qwen3-8b": qwen3(36, 4096, 12288, 32, False),
    "qwen3-32b": qwen3(64, 5120, 25600, 64, False),
    "qwen2.5-0.5b": qwen2(24, 896, 4864, 14),
    "qwen2.5-3b": qwen2(36, 2048, 11008, 16),
    "llama3.2-3b": config("llama", "LlamaForCausalLM", 28, 3072, 8192, 24, 8, 128256, head_dim=128,
                          rms_norm_eps=1e-5, rope_theta=500000.0, tie_word_embeddings=True,
                          rope_scaling={"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
                                        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
                          max_position_embeddings=131072),
}

for name, c in MODELS.items():
    folder = Path(sys.argv[1], name)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(c, indent=2) + "\n")
