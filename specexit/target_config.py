"""A target's `transformers` config, also for MiMo, which `transformers` does not know."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def read_target_config(target: str | Path) -> Any:
    """`AutoConfig.from_pretrained`; MiMo, a Qwen2 with an MTP layer, as a Qwen2 config.

    MiMo's own configuration class is code in its repository, which is not run here.
    """
    from transformers import AutoConfig, PreTrainedConfig, Qwen2Config

    values, _ = PreTrainedConfig.get_config_dict(str(target))
    if values.get("model_type") != "mimo":
        return AutoConfig.from_pretrained(str(target))
    kept = {n: v for n, v in values.items() if n not in ("auto_map", "model_type")}
    config = Qwen2Config.from_dict(kept)
    config.model_type = "mimo"  # what the engine reads, so that heads compare equal
    return config
