"""Weights of the signal losses.

`gradient`: with g_i the norm of the gradient of loss i on the projection rows that it trains, and
g_token that of the token loss on `fc`, the weight is w_i = clip(rho * EMA(g_token) / EMA(g_i)), so
a task with a small gradient gets a large weight. It applies from the next step. The norms are those
of the gradient averaged over processes, from activations alone, so they are the same under DDP and
every ZeRO stage:

- signals: exactly `delta_i^T X` with delta_i = dL_i/dz, and z the projection's output;
- token: `R delta^T X` with a small random sign matrix R (a Johnson-Lindenstrauss sketch).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from training.config import BalanceSettings

TASKS = ("confidence", "progress", "remain")
_SKETCH_ROWS = 16


def sketch(gradient: Tensor, inputs: Tensor, step: int) -> Tensor:
    """`[16, F]` whose norm estimates that of `gradient^T inputs` (`[N, H]`, `[N, F]`)."""
    generator = torch.Generator().manual_seed(step)
    signs = torch.randint(0, 2, (_SKETCH_ROWS, gradient.shape[1]), generator=generator) * 2.0 - 1
    rows = gradient.float() @ signs.to(gradient.device).T / _SKETCH_ROWS**0.5
    return rows.T @ inputs.float()


def mean_over_processes(x: Tensor) -> Tensor:
    """All-reduce mean; itself in a single process."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(x)
        x = x / dist.get_world_size()
    return x


@dataclass
class Norms:
    """Gradient norms of one step, averaged over processes: `signals [3]`, `token []`."""

    signals: Tensor
    token: Tensor


class GradientMeter:
    """Adds up one step's per-task gradients over its micro batches.

    Args:
        step: number of the step, the seed of the sketch.
    """

    def __init__(self, step: int) -> None:
        self.step = step
        self._signals: Tensor | None = None
        self._token: Tensor | None = None

    def add(
        self,
        signal_gradients: Tensor,
        signal_inputs: Tensor,
        token_gradient: Tensor | None,
        token_inputs: Tensor | None,
    ) -> None:
        """Take in a micro batch.

        Args:
            signal_gradients: `[3, N, D]`, dL_i/dz of the unweighted losses.
            signal_inputs: `[N, F]`, what the projection read.
            token_gradient, token_inputs: `[M, H]`, `[M, F]` of `fc`; None without a token loss.
        """
        signals = torch.einsum("ind,nf->idf", signal_gradients.float(), signal_inputs.float())
        self._signals = signals if self._signals is None else self._signals + signals
        if token_gradient is not None and token_inputs is not None:
            token = sketch(token_gradient, token_inputs, self.step)
            self._token = token if self._token is None else self._token + token

    def norms(self) -> Norms:
        """Norms of the gradients averaged over processes; one all-reduce.

        Without a token loss the signals are compared with their own geometric mean.
        """
        assert self._signals is not None, "nothing was added"
        parts = [self._signals.flatten()]
        if self._token is not None:
            parts.append(self._token.flatten())
        both = mean_over_processes(torch.cat(parts))
        size = self._signals.numel()
        signals = both[:size].view(3, -1).norm(dim=1)
        token = both[size:].norm() if len(parts) == 2 else signals.log().mean().exp()
        return Norms(signals.cpu(), token.cpu())


class Balancer(nn.Module):
    """Holds the weights; `uncertainty` has three trainable log-variances.

    Buffers: `norms [4] float64` running gradient norms (token first, NaN before the first
    measure) and `weights [3] float64`.
    """

    norms: Tensor
    weights: Tensor

    def __init__(self, settings: BalanceSettings) -> None:
        super().__init__()
        self.settings = settings
        self.register_buffer("norms", torch.full((4,), float("nan"), dtype=torch.float64))
        self.register_buffer("weights", torch.tensor(settings.weights, dtype=torch.float64))
        if settings.mode == "uncertainty":
            self.log_variance = nn.Parameter(torch.zeros(3))

    def combine(self, losses: Tensor, share: float = 1.0) -> Tensor:
        """Weighted sum of the three signal losses `[3]`.

        Args:
            share: of the global batch that these losses are a part of, over processes and
                micro batches: what does not depend on the losses is counted once in all.
        """
        if self.settings.mode == "uncertainty":
            precision = torch.exp(-self.log_variance)
            return (precision * losses).sum() + 0.5 * share * self.log_variance.sum()
        return (losses * self.weights.to(losses)).sum()

    @torch.no_grad()
    def update(self, measured: Norms) -> None:
        """Take one measurement in; `gradient` changes the weights from the next step on."""
        new = torch.cat([measured.token.reshape(1), measured.signals]).double()
        s = self.settings
        self.norms.copy_(
            torch.where(self.norms.isnan(), new, s.ema * self.norms + (1 - s.ema) * new)
        )
        if s.mode == "gradient":
            wanted = s.ratio * self.norms[0] / self.norms[1:].clamp_min(1e-30)
            self.weights.copy_(wanted.clamp(s.min_weight, s.max_weight))

    def report(self) -> dict[str, float]:
        """For the log: weights and running norms by name."""
        weights = self.weights
        if self.settings.mode == "uncertainty":
            weights = torch.exp(-self.log_variance.detach())
        record = {f"weight_{n}": float(w) for n, w in zip(TASKS, weights, strict=True)}
        record |= {
            f"grad_{n}": float(g) for n, g in zip(("token", *TASKS), self.norms, strict=True)
        }
        return record
