"""The signal head in the joint training: small, whole on every process, with its own optimiser.

It reads the features that the draft's `fc` reads, without a gradient back into them. So the signals
never change the token path, whatever engine (DDP, ZeRO) holds the draft.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from specexit.heads.signal import SignalHead
from training.balance import Balancer, GradientMeter
from training.batch import Batch
from training.config import BalanceSettings, OptimSettings, SignalSettings
from training.losses import signal_losses
from training.optimiser import GroupClippedAdamW


class StandardisedSignals(nn.Module):
    """A signal head that is trained on standardised features; `fold` gives one for raw features.

    Buffers: `mean`, `deviation` `[F] float32`.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, head: SignalHead, dropout: float) -> None:
        super().__init__()
        self.head = head
        self.dropout = nn.Dropout(dropout)
        width = head.projection.in_features
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("deviation", torch.ones(width))

    @property
    def readout_size(self) -> int:
        """Hidden width of the readout (the default where there is none)."""
        if self.head.kind == "linear":
            return 64
        return int(self.head.state_dict()["readout.0.bias"].numel())

    def standardise(self, features: Tensor) -> Tensor:
        """`[N, F]` of any dtype -> `[N, F] float32`, with dropout while training."""
        return self.dropout((features.float() - self.mean) / self.deviation)

    @torch.no_grad()
    def fold(self) -> SignalHead:
        """The same head on raw features: P' = P / sd, b' = b - P' mean."""
        folded = SignalHead(
            self.head.kind,
            self.head.projection.in_features,
            rows=self.head.rows,
            readout_size=self.readout_size,
        )
        folded.load_state_dict({k: v.cpu() for k, v in self.head.state_dict().items()})
        weight = folded.projection.weight.double() / self.deviation.cpu().double()
        folded.projection.weight.copy_(weight)
        folded.projection.bias.sub_(weight @ self.mean.cpu().double())
        return folded.eval()


class SignalStep(NamedTuple):
    """What a backward pass of the signal losses found.

    Attributes:
        losses: `[3]` before the scale, this process's part of the global mean.
        gradients: `[3, S, D]`, dL_i/dz of the scaled losses; zeros unless measured.
        inputs: `[S, F]`, what the projection read.
        into_features: `[S, F]`, gradient of the weighted sum, where the features need one.
    """

    losses: Tensor
    gradients: Tensor
    inputs: Tensor
    into_features: Tensor | None


class SignalTrainer:
    """Losses, balance and updates of the first signal head during the joint training."""

    def __init__(
        self,
        signals: StandardisedSignals,
        settings: SignalSettings,
        balance: BalanceSettings,
        optim: OptimSettings,
        device: torch.device,
    ) -> None:
        self.signals = signals.to(device).train()
        self.balancer = Balancer(balance).to(device)
        groups = [
            {
                "name": "signals",
                "params": list(signals.head.parameters()),
                "weight_decay": settings.weight_decay,
                "clip": optim.clip,
            }
        ]
        learned = list(self.balancer.parameters())
        if learned:
            groups.append(
                {"name": "balance", "params": learned, "weight_decay": 0.0, "clip": optim.clip}
            )
        self.optimiser = GroupClippedAdamW(groups, lr=settings.lr, betas=optim.betas)

    def measures_at(self, step: int) -> bool:
        """Whether gradient norms are due."""
        s = self.balancer.settings
        return s.mode != "uncertainty" and step % s.every == 0

    def backward(
        self, batch: Batch, features: Tensor, total_weight: float, measure: bool, share: float = 1.0
    ) -> SignalStep:
        """Add a micro batch's gradients to the signal head, not to what made the features.

        Args:
            features: `[S, F]` of the thinking tokens.
            total_weight: divisor over the whole global batch.
            measure: also give `dL_i/dz`.
            share: 1 over the processes and micro batches of the global batch.
        """
        leaf = features.detach().requires_grad_(features.requires_grad)
        inputs = self.signals.standardise(leaf)
        z = self.signals.head.project(inputs)
        losses = self._losses(batch, z) / max(total_weight, 1e-9)
        scaled = losses * losses.new_tensor(self.balancer.settings.loss_scale)
        gradients = z.new_zeros(3, *z.shape)
        if measure and len(z):
            found = [torch.autograd.grad(x, z, retain_graph=True)[0] for x in scaled]
            gradients = torch.stack(found)
        self.balancer.combine(scaled, share).backward()
        return SignalStep(losses.detach(), gradients, inputs.detach(), leaf.grad)

    @torch.no_grad()
    def evaluate(self, batch: Batch, features: Tensor, total_weight: float) -> Tensor:
        """`[]`, plain sum of the three losses without dropout, divided as in `backward`."""
        self.signals.eval()
        z = self.signals.head.project(self.signals.standardise(features))
        losses = self._losses(batch, z) / max(total_weight, 1e-9)
        self.signals.train()
        return losses.sum()

    def step(self, learning_rate: float, meter: GradientMeter | None) -> None:
        """Sum the gradients over processes, update, and take the measured norms in."""
        parameters = [p for g in self.optimiser.param_groups for p in g["params"]]
        _sum_gradients(parameters)
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate
        self.optimiser.step()
        self.optimiser.zero_grad()
        if meter is not None:
            self.balancer.update(meter.norms())  # the new weights hold from the next step on

    def _losses(self, batch: Batch, z: Tensor) -> Tensor:
        head = self.signals.head
        if len(z) == 0:
            return z.sum() * z.new_zeros(3)
        if head.kind != "memory":
            logits = head.forward(z[None], batch.boundary[None])[0]
            return signal_losses(logits, batch.labels, batch.weight)
        N, T = int(batch.think_row.max()) + 1, int(batch.think_step.max()) + 1
        padded = z.new_zeros(N, T, z.shape[1]).index_put((batch.think_row, batch.think_step), z)
        boundary = torch.zeros(N, T, dtype=torch.bool, device=z.device)
        boundary[batch.think_row, batch.think_step] = batch.boundary
        logits = head.boundary_logits(padded, boundary)
        number = boundary.cumsum(1)[batch.think_row, batch.think_step]
        picked = batch.boundary
        rows = logits[batch.think_row[picked], number[picked]]
        return signal_losses(rows, batch.labels[picked], batch.weight[picked])


def _sum_gradients(parameters: list[nn.Parameter]) -> None:
    """All-reduce the gradients in one buffer; nothing to do in a single process."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat)
    begin = 0
    for parameter, g in zip(parameters, grads, strict=True):
        parameter.grad = flat[begin : begin + g.numel()].view_as(g).clone()
        begin += g.numel()
