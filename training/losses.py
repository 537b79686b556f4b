"""Losses as pure functions; each is a weighted sum, divided by the caller."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def token_loss(logits: Tensor, soft: Tensor | None, hard: Tensor) -> Tensor:
    """Cross-entropy summed over rows.

    Args:
        logits: `[N, V_draft]`.
        soft: `[N, V_draft] float32` target probabilities, or None for hard targets.
        hard: `[N] int64` draft ids of the data's tokens.
    """
    log_probabilities = logits.float().log_softmax(-1)
    if soft is None:
        return F.nll_loss(log_probabilities, hard, reduction="sum")
    return -(soft * log_probabilities).sum()


def signal_losses(logits: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """The three signal losses, each summed with weights.

    Confidence and progress: squared error; remain: squared error of log1p. With `exp` as the
    activation log1p(exp(s)) = softplus(s), which never overflows.

    Args:
        logits: `[N, 3] float32`.
        labels: `[N, 3] float32`: confidence, progress, remain (tokens).
        weight: `[N] float32`.

    Returns:
        `[3]`.
    """
    predicted = torch.cat([torch.sigmoid(logits[:, :2]), F.softplus(logits[:, 2:])], -1)
    wanted = torch.cat([labels[:, :2], torch.log1p(labels[:, 2:])], -1)
    return ((predicted - wanted).square() * weight[:, None]).sum(0)
