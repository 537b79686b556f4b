"""A tiny random MiMo: a target with an MTP layer in the same folder, and signals for it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from specexit.checkpoint import HeadMetadata, save_signal_head, target_facts
from specexit.heads.signal import SignalHead
from tests.engine.chaos import END, EOS, SPLIT, START, VOCABULARY, H, make_tokenizer
from tests.mimo_checkpoint import LAYER, save_mimo

EPSILON = 1e-6


def make_mimo(folder: Path, kind: str = "linear", seed: int = 3) -> Path:
    """Write target, MTP layer and signal head into one folder, as `--model FOLDER` needs them."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=len(VOCABULARY),
        hidden_size=H,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        eos_token_id=EOS,
        pad_token_id=0,
        initializer_range=0.1,
        rms_norm_eps=EPSILON,
    )
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(config).float()
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_(0, 1)
        model.model.norm.weight.uniform_(0.5, 1.5)
        rows = model.lm_head.weight
        rows.normal_(0, 0.4)
        rows[[0, EOS, START]] = 0
        rows[END] *= 0.3
        rows[SPLIT] *= 1.3
        rows[len(VOCABULARY) - 6 :] = 0
    save_mimo(folder, config, model.state_dict(), copied_layer=0)
    make_tokenizer(folder)
    head = SignalHead(kind, 2 * H, rows=8, readout_size=16)  # type: ignore[arg-type]
    save_signal_head(
        folder,
        head,
        HeadMetadata(
            method="mtp",
            kind=head.kind,
            rows=head.rows,
            readout_size=16,
            in_features=2 * H,
            think_start_ids=(START,),
            think_end_ids=(END,),
            target=target_facts(folder),
        ),
    )
    return folder


@torch.no_grad()
def features(folder: Path, ids: list[int]) -> Tensor:
    """`[T, 2H]`: features of every token by transformers; those of token 0 are zero."""
    from safetensors.torch import load_file
    from transformers import AutoConfig, Qwen2ForCausalLM

    tensors = load_file(str(folder / "model.safetensors"))
    model = Qwen2ForCausalLM(AutoConfig.from_pretrained(str(folder))).float().eval()
    model.load_state_dict({k: v for k, v in tensors.items() if ".mtp_layers." not in k})
    last: list[Tensor] = []  # vLLM's MiMo returns its states before the final norm
    model.model.layers[-1].register_forward_hook(lambda _m, _i, out: last.append(out))
    model.model(torch.tensor([ids]))
    hidden = last[0][0]
    embeddings = tensors["model.embed_tokens.weight"][ids]
    states = _rms(hidden, tensors[f"{LAYER}hidden_layernorm.weight"])
    tokens = _rms(embeddings, tensors[f"{LAYER}token_layernorm.weight"])
    rows = torch.cat([states[:-1], tokens[1:]], -1)
    return torch.cat([rows.new_zeros(1, 2 * H), rows])


def _rms(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON) * weight
