"""AdamW whose groups are clipped apart, under every engine."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from training.sharding import local


class GroupClippedAdamW(torch.optim.AdamW):
    """AdamW that clips each parameter group by its own gradient norm, inside `step`.

    The signals then cannot change the token path through a common clip. Clipping here, and not
    between backward and step, works the same under DDP and under ZeRO, where the gradients that
    arrive are each process's flat partition of a group.

    Args:
        groups: parameter groups; `clip` is the largest norm, `name` is for the log.
        sharded: gradients are parts of different processes (ZeRO, FSDP2): add their squares up.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        sharded: bool = False,
    ) -> None:
        super().__init__(groups, lr=lr, betas=betas)
        self.sharded = sharded
        self.last_norms: dict[str, float] = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Clip every group, then update. `last_norms` keeps the norms before clipping."""
        for group in self.param_groups:
            gradients = [local(p.grad) for p in group["params"] if p.grad is not None]
            if not gradients:
                continue
            norms = torch.stack([g.float().norm() for g in gradients])
            total = norms.square().sum()
            if self.sharded:
                dist.all_reduce(total)
            norm = total.sqrt()
            scale = (group["clip"] / (norm + 1e-6)).clamp(max=1.0)
            for gradient in gradients:
                gradient.mul_(scale.to(gradient.dtype))
            self.last_norms[group["name"]] = float(norm)
        return super().step(closure)


def learning_rate(step: int, *, total: int, warmup: int, peak: float, floor_ratio: float) -> float:
    """Linear warm-up to `peak`, then a cosine down to `peak * floor_ratio` at the last step."""
    if step < warmup:
        return peak * (step + 1) / warmup
    along = (step - warmup) / max(1, total - 1 - warmup)
    floor = peak * floor_ratio
    return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, along)))
