"""Write the built-in reasoner as a GGUF file, for llama.cpp."""

from __future__ import annotations

import json
from pathlib import Path

MODEL = Path(__file__).parents[2] / "specexit" / "tiny" / "model"
_TENSORS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(path: Path) -> None:
    """Write the reasoner to `path`, in float32."""
    import gguf
    from safetensors.torch import load_file

    config = json.loads((MODEL / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    _add_tokenizer(writer, config["vocab_size"], config["eos_token_id"])
    for name, tensor in load_file(MODEL / "model.safetensors").items():
        writer.add_tensor(_gguf_name(name), tensor.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_name(name: str) -> str:
    stem = name.removeprefix("model.").removesuffix(".weight")
    if stem in ("embed_tokens", "norm"):
        return {"embed_tokens": "token_embd.weight", "norm": "output_norm.weight"}[stem]
    _, layer, part = stem.split(".", 2)
    return f"blk.{layer}.{_TENSORS[part]}.weight"


def _add_tokenizer(writer, size: int, end: int) -> None:
    import gguf

    tokenizer = json.loads((MODEL / "tokenizer.json").read_text())
    tokens = {index: text for text, index in tokenizer["model"]["vocab"].items()}
    types = dict.fromkeys(tokens, gguf.TokenType.NORMAL)
    for token in tokenizer["added_tokens"]:
        tokens[token["id"]] = token["content"]
        types[token["id"]] = (
            gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED
        )
    merges = tokenizer["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([tokens.get(i, f"[unused{i}]") for i in range(size)])
    writer.add_token_types([types.get(i, gguf.TokenType.UNUSED) for i in range(size)])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    writer.add_eos_token_id(end)
    writer.add_add_bos_token(False)
    writer.add_chat_template((MODEL / "chat_template.jinja").read_text())
