"""Tensors that FSDP2 shards over processes (`DTensor`), as plain ones and back."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def local(tensor: Tensor) -> Tensor:
    """This process's part, sharing its memory; a plain tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every tensor in full; all processes must call it together where one is sharded."""
    return {n: t.full_tensor() if isinstance(t, DTensor) else t for n, t in tensors.items()}


def sharded_like(tensor: Tensor, example: Tensor) -> Tensor:
    """A full tensor, sharded as an example of its shape is; as it is for a plain example."""
    if not isinstance(example, DTensor) or tensor.shape != example.shape:
        return tensor
    moved = tensor.to(torch.device(example.device))
    return distribute_tensor(moved, example.device_mesh, example.placements)
