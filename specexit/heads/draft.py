"""A trained draft of either method."""

from __future__ import annotations

from pathlib import Path

import torch

from specexit.errors import CheckpointError
from specexit.files import read_json
from specexit.heads.eagle3 import Eagle3Head
from specexit.heads.mtp import MtpHead

Draft = Eagle3Head | MtpHead


def is_eagle3(folder: str | Path) -> bool:
    """Whether a head's `config.json` names an EAGLE3 architecture; otherwise it is a target's, and
    the head an MTP layer.

    Raises:
        CheckpointError: there is no `config.json`.
    """
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise CheckpointError(f"head: {path} is missing; export the head again")
    return any("eagle3" in name.lower() for name in read_json(path).get("architectures") or [])


def load_draft(folder: str | Path, *, dtype: torch.dtype | None = torch.float32) -> Draft:
    """`Eagle3Head.load` or `MtpHead.load`."""
    return (Eagle3Head if is_eagle3(folder) else MtpHead).load(folder, dtype=dtype)
