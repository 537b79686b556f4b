"""Muon for many small matrices on a CPU: those of one shape are orthogonalised together in float32.

`torch.optim.Muon` goes matrix by matrix in bfloat16, which costs more than the whole backward pass
on processors without bfloat16 arithmetic. Update rule after K. Jordan's Muon (quintic Newton-Schulz
iteration, Nesterov momentum), scaled by ``0.2 sqrt(max(rows, columns))`` so that a learning rate
of AdamW's size fits (Liu et al., "Muon is scalable for LLM training", section 2.2).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


class BatchedMuon(torch.optim.Optimizer):
    def __init__(
        self,
        matrices: Iterable[torch.nn.Parameter],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.01,
        iterations: int = 5,
    ) -> None:
        by_shape: dict[tuple[int, ...], list[torch.nn.Parameter]] = {}
        for matrix in matrices:
            if matrix.ndim != 2:
                raise ValueError(f"Muon takes matrices, not shape {tuple(matrix.shape)}")
            by_shape.setdefault(tuple(matrix.shape), []).append(matrix)
        groups = [{"params": params} for params in by_shape.values()]
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "iterations": iterations,
        }
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            params, momentum = group["params"], group["momentum"]
            grads = torch.stack([p.grad for p in params])
            state = self.state[params[0]]
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(grads)
            state["momentum"].lerp_(grads, 1 - momentum)
            update = orthogonalise(grads.lerp(state["momentum"], momentum), group["iterations"])
            scale = group["lr"] * 0.2 * max(params[0].shape) ** 0.5
            for param, direction in zip(params, update, strict=True):
                param.mul_(1 - group["lr"] * group["weight_decay"]).sub_(direction, alpha=scale)


def orthogonalise(matrices: torch.Tensor, iterations: int = 5) -> torch.Tensor:
    """Nearly orthogonal factors of ``matrices`` [N, R, C] float32: singular values near 1."""
    a, b, c = _COEFFICIENTS
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x
