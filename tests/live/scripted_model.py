"""Makes a model that says what it is told to: scripted_model.py DIR

A folder as any other (llama, bf16, two dozen kB of interesting weights): attention and MLP are zero, so that
the hidden state is the last token's embedding, and the head gives each token of a script the one that
follows it. What it says depends on how the prompt ends, which the chat template decides:

    a question                  calls of the tools `weather` (twice) in <tool_call>, if tools are given
    a question without tools    some thinking in <think>, then an answer
    what a tool said            an answer

Needs torch and safetensors (tools/setup.sh oracles).
"""
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from tiny_model import small_tokenizer  # noqa: E402

VOCAB, HIDDEN, EOS = 1024, 64, 2
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}</tool_call>{% endfor %}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if messages[-1].role == 'tool' %}<|say|>{% elif tools %}<|call|>{% else %}<|think|>{% endif %}"
    "{% endif %}"
)
# The first of each is special, no text: the end of the prompt. No token is there twice.
SCRIPTS = [
    ["<|call|>", "Let me", " look.", "<tool_call>", "\n{\"name\": \"weather\", ", "\"arguments\": ",
     "{\"city\": \"Paris\"", ", \"days\": 2}}", "\n</tool_call>", "\n<tool_call>\n",
     "{\"name\": \"weather\",", " \"arguments\": {\"city\": \"Rome\"}}", "</tool_call>"],
    ["<|think|>", "<think>\n", "The user", " greets", " me.", "\n</think>\n\n", "Good", " day", " to you."],
    ["<|say|>", "It is", " sunny", " in Paris", " and Rome."],
]


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = small_tokenizer(VOCAB)
    vocab, added = tokenizer["model"]["vocab"], tokenizer["added_tokens"]
    spare = [t for t in added if t["content"].startswith("<|reserved_")]
    for token, piece in zip(spare, [p for s in SCRIPTS for p in s], strict=False):
        del vocab[token["content"]]
        vocab[piece] = token["id"]
        token.update(content=piece, special=piece.startswith("<|"))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": TEMPLATE,
         "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512}))
    (folder / "config.json").write_text(json.dumps(
        {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
         "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
         "head_dim": 32, "vocab_size": VOCAB, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
         "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu", "torch_dtype": "bfloat16",
         "bos_token_id": 1, "eos_token_id": EOS}))
    embed, head = torch.zeros(VOCAB, HIDDEN), torch.zeros(VOCAB, HIDDEN)
    embed[:, 0] = 1.0
    head[EOS, 0] = 4.0  # after anything else the turn ends
    slot = 1
    for script in SCRIPTS:
        for piece, following in zip(script, script[1:] + ["<|im_end|>"]):
            embed[vocab[piece]] = torch.eye(HIDDEN)[slot]
            head[vocab[following], slot] = 4.0
            slot += 1
    layer = "model.layers.0."
    weights = {"model.embed_tokens.weight": embed, "lm_head.weight": head,
               "model.norm.weight": torch.ones(HIDDEN),
               layer + "input_layernorm.weight": torch.ones(HIDDEN),
               layer + "post_attention_layernorm.weight": torch.ones(HIDDEN)}
    for name, rows, cols in (("self_attn.q_proj", 64, 64), ("self_attn.k_proj", 32, 64),
                             ("self_attn.v_proj", 32, 64), ("self_attn.o_proj", 64, 64),
                             ("mlp.gate_proj", 96, 64), ("mlp.up_proj", 96, 64), ("mlp.down_proj", 64, 96)):
        weights[f"{layer}{name}.weight"] = torch.zeros(rows, cols)
    save_file({k: v.to(torch.bfloat16).contiguous() for k, v in weights.items()},
              folder / "model.safetensors", metadata={"format": "pt"})


main()
