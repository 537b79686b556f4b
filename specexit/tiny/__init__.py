"""The built-in reasoner: a tiny Qwen3 that thinks too long and sometimes corrects itself."""

from __future__ import annotations

from pathlib import Path

from specexit.errors import ConfigError
from specexit.tiny.data import questions

__all__ = ["model_path", "questions"]

_FOLDER = Path(__file__).resolve().parent / "model"


def model_path() -> Path:
    """Folder of the shipped model, for transformers and vLLM.

    Raises:
        ConfigError: the weights are not installed.
    """
    if not (_FOLDER / "model.safetensors").is_file():
        raise ConfigError(
            f"tiny: no model.safetensors in {_FOLDER}; install a release that ships it, or remake "
            "it with `specexit tiny train --out DIR` and pass DIR as the target"
        )
    return _FOLDER
