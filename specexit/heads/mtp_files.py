"""An MTP layer in checkpoints: names of its family, experts one by one or stacked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from specexit.errors import CheckpointError
from specexit.files import atomic_path, read_json
from specexit.heads.mtp_family import MtpFamily

WEIGHTS = "model.safetensors"
SHARED = ("model.embed_tokens.weight", "lm_head.weight")
_PARTS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}


def checkpoint_name(name: str, prefix: str, family: MtpFamily) -> str:
    """Name of a head's tensor in a checkpoint."""
    part, _, rest = name.partition(".")
    middle = family.names[part]
    return prefix + (f"{middle}.{rest}" if middle else rest)


def read_layer(
    folder: Path, expected: Mapping[str, tuple[int, ...]], prefix: str, family: MtpFamily
) -> dict[str, Tensor]:
    """The tensors of an MTP layer, by the head's own names.

    Args:
        expected: name -> shape of every tensor of the head.

    Raises:
        CheckpointError: a tensor is missing, of another shape, or quantised.
    """
    files = _files(folder)
    tensors = {}
    for name, shape in expected.items():
        tensor = _read(files, folder, checkpoint_name(name, prefix, family))
        if tensor.dtype.itemsize < 2:
            raise CheckpointError(
                f"target: {folder}: {name} is stored as {tensor.dtype}; train from a copy in "
                "bfloat16"
            )
        if tuple(tensor.shape) != shape:
            raise CheckpointError(
                f"target: {folder}: {name} is {tuple(tensor.shape)}, its config.json says {shape}"
            )
        tensors[name] = tensor
    return tensors


def read_shared(folder: Path) -> tuple[Tensor, Tensor] | None:
    """Embedding and output layer `[V, H]`, which are one where they are tied; None where they have
    other names."""
    files = _files(folder)
    if SHARED[0] not in files:
        return None
    embedding = _read(files, folder, SHARED[0])
    return embedding, _read(files, folder, SHARED[1]) if SHARED[1] in files else embedding


def has_layer(folder: Path, prefix: str, family: MtpFamily) -> bool:
    """Whether a checkpoint holds an MTP layer."""
    return checkpoint_name("fc.weight", prefix, family) in _files(folder)


def write_head(
    folder: Path,
    state: Mapping[str, Tensor],
    shared: Mapping[str, Tensor],
    prefix: str,
    family: MtpFamily,
    dtype: torch.dtype,
) -> None:
    """Write a draft's `model.safetensors`.

    Args:
        state: of the head, by its own names.
        shared: further tensors by checkpoint name, which engines need beside the layer.
        dtype: of the stored weights; the bias of a router keeps its own.
    """
    tensors = dict(shared)
    for name, tensor in state.items():
        tensors |= _split(checkpoint_name(name, prefix, family), tensor)
    stored = {
        n: t.detach().to(t.dtype if n.endswith("correction_bias") else dtype).cpu().contiguous()
        for n, t in tensors.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_path(folder / WEIGHTS) as temporary:
        # clones, since a tied output layer is the embedding itself
        save_file({n: t.clone() for n, t in stored.items()}, str(temporary), {"format": "pt"})


def _split(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Stacked experts `[E, ..., ...]` one by one, anything else as it is."""
    base, _, last = name.rpartition(".")
    if not base.endswith(".experts"):
        return {name: tensor}
    parts = _PARTS[last]
    return {
        f"{base}.{e}.{part}.weight": half
        for e, expert in enumerate(tensor)
        for part, half in zip(parts, expert.chunk(len(parts)), strict=True)
    }


def _files(folder: Path) -> dict[str, Path]:
    """Tensor name -> file of a local, possibly sharded, checkpoint."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        table = read_json(index)["weight_map"]
        return {name: folder / file for name, file in table.items()}
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"target: {folder} is no local folder with *.safetensors files")
    names: dict[str, Path] = {}
    for file in files:
        with safe_open(str(file), framework="pt") as f:
            names |= dict.fromkeys(f.keys(), file)
    return names


def _read(files: Mapping[str, Path], folder: Path, name: str) -> Tensor:
    """One tensor; stacked experts may be stored one by one."""
    if name in files:
        with safe_open(str(files[name]), framework="pt") as f:
            return f.get_tensor(name)
    base, _, last = name.rpartition(".")
    if not (base.endswith(".experts") and f"{base}.0.{_PARTS[last][0]}.weight" in files):
        raise CheckpointError(
            f"target: {folder} has no {name}; its checkpoint carries no whole MTP layer"
        )
    experts: list[Tensor] = []
    while f"{base}.{len(experts)}.{_PARTS[last][0]}.weight" in files:
        parts = [f"{base}.{len(experts)}.{part}.weight" for part in _PARTS[last]]
        experts.append(torch.cat([_read(files, folder, part) for part in parts]))
    return torch.stack(experts)
