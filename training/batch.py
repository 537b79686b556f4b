"""Rows of packed sequences as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from training.examples import Example, signal_weights


@dataclass(frozen=True)
class Batch:
    """R rows of T tokens that hold N thinkings of S tokens in all.

    Attributes:
        ids: `[R, T] int64`, 0 in padding.
        positions: `[R, T] int64`, from 0 in each sequence.
        document: `[R, T] int64`, number of the sequence in its row, -1 in padding.
        is_target: `[R, T] bool`.
        think_at: `[S] int64`, place of each thinking token in the flattened `[R * T]`.
        think_row: `[S] int64`, number of its thinking, 0..N-1.
        think_step: `[S] int64`, its index in the thinking.
        labels: `[S, 3] float32`.
        boundary: `[S] bool`.
        weight: `[S] float32` of the signal losses.
        examples: indices of the sequences, row by row.
    """

    ids: Tensor
    positions: Tensor
    document: Tensor
    is_target: Tensor
    think_at: Tensor
    think_row: Tensor
    think_step: Tensor
    labels: Tensor
    boundary: Tensor
    weight: Tensor
    examples: tuple[int, ...]

    def to(self, device: torch.device | str) -> Batch:
        """The same on another device."""
        moved: dict[str, Any] = {
            f.name: v.to(device, non_blocking=True) if isinstance(v, Tensor) else v
            for f in fields(self)
            for v in [getattr(self, f.name)]
        }
        return Batch(**moved)


def collate(
    examples: Sequence[Example],
    rows: Sequence[Sequence[int]],
    *,
    boundary_weight: float,
    boundaries_only: bool,
) -> Batch:
    """Tensors of packed rows; an empty list gives one row of padding."""
    width = max([2, *(sum(len(examples[i]) for i in row) for row in rows)])
    R = max(1, len(rows))
    ids = torch.zeros(R, width, dtype=torch.int64)
    positions = torch.zeros(R, width, dtype=torch.int64)
    document = torch.full((R, width), -1, dtype=torch.int64)
    is_target = torch.zeros(R, width, dtype=torch.bool)
    at: list[Tensor] = []
    row_of: list[Tensor] = []
    step: list[Tensor] = []
    labels: list[Tensor] = []
    boundary: list[Tensor] = []
    weight: list[Tensor] = []
    order: list[int] = []
    for r, row in enumerate(rows):
        begin = 0
        for number, i in enumerate(row):
            one = examples[i]
            end = begin + len(one)
            ids[r, begin:end] = one.ids
            positions[r, begin:end] = torch.arange(len(one))
            document[r, begin:end] = number
            is_target[r, begin:end] = one.is_target
            order.append(i)
            if one.thinking is not None:
                T = len(one.thinking.labels)
                steps = torch.arange(T)
                at.append(r * width + begin + one.thinking.start + steps)
                row_of.append(torch.full((T,), len(row_of), dtype=torch.int64))
                step.append(steps)
                labels.append(one.thinking.labels)
                boundary.append(one.thinking.boundary)
                weight.append(signal_weights(one.thinking, boundary_weight, boundaries_only))
            begin = end
    none = torch.zeros(0, dtype=torch.int64)
    return Batch(
        ids,
        positions,
        document,
        is_target,
        torch.cat([none, *at]),
        torch.cat([none, *row_of]),
        torch.cat([none, *step]),
        torch.cat([torch.zeros(0, 3), *labels]),
        torch.cat([torch.zeros(0, dtype=torch.bool), *boundary]),
        torch.cat([torch.zeros(0), *weight]),
        tuple(order),
    )
