"""A target's checkpoint with an MTP layer of MiMo's, for tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

LAYER = "model.mtp_layers.0."


def save_mimo(
    folder: Path, config: Any, state: Mapping[str, Tensor], *, copied_layer: int, **values: Any
) -> None:
    """Write a Qwen2's weights with an MTP layer made from one of its own, norms random.

    Args:
        values: further entries of `config.json`.
    """
    H, own = config.hidden_size, f"model.layers.{copied_layer}."
    tensors = {name: tensor.clone() for name, tensor in state.items()}
    for name in state:
        if name.startswith(own):
            tensors[LAYER + name.removeprefix(own)] = state[name].clone()
    for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        tensors[f"{LAYER}{name}.weight"] = torch.rand(H) + 0.5
    tensors[f"{LAYER}input_proj.weight"] = torch.randn(H, 2 * H) * 0.1
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    content = json.loads(config.to_json_string(use_diff=False))
    content |= {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1, **values}
    (folder / "config.json").write_text(json.dumps(content))
