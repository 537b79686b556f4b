"""What is trained, as one module: draft, signal head, and the losses of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from specexit.heads.eagle3 import Eagle3Head
from specexit.heads.signal import SignalHead
from training.batch import Batch
from training.config import TokenSettings
from training.features import TargetStates
from training.losses import signal_losses, token_loss
from training.unroll import shift, step_mask, unroll


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
        return 64 if self.head.kind == "linear" else int(self.head.readout[0].weight.shape[0])

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


class StepOutput(NamedTuple):
    """Losses of a micro batch, already divided by the global counts.

    Attributes:
        token: `[]`, the decayed sum over draft steps.
        signals: `[3]`.
        per_step: `[ttt_steps]` losses, detached.
        matches: `[ttt_steps]` rows whose most likely draft token is the target's, detached.
        z: `[S, D]` output of the signal projection (for the balancer).
        signal_inputs: `[S, F]` that it read, detached.
    """

    token: Tensor
    signals: Tensor
    per_step: Tensor
    matches: Tensor
    z: Tensor
    signal_inputs: Tensor


@dataclass(frozen=True)
class Counts:
    """Divisors of a whole step, over all processes and micro batches."""

    tokens: tuple[float, ...]
    signals: float


class TrainModel(nn.Module):
    """Draft and signal head. `forward` is what DDP and DeepSpeed wrap."""

    def __init__(
        self,
        draft: Eagle3Head,
        signals: StandardisedSignals | None,
        settings: TokenSettings,
        *,
        freeze_draft: bool = False,
        bf16: bool = False,
    ) -> None:
        super().__init__()
        self.draft = draft
        self.signals = signals
        self.settings = settings
        self.freeze_draft = freeze_draft
        self.bf16 = bf16
        self.fc_inputs: Tensor | None = None
        self.fc_gradient: Tensor | None = None
        if freeze_draft:
            draft.requires_grad_(False)

    def forward(self, batch: Batch, states: TargetStates, counts: Counts) -> StepOutput:
        """Losses of a micro batch; see `StepOutput`."""
        steps = self.settings.ttt_steps
        zero = states.features.new_zeros((), dtype=torch.float32)
        token, per_step, matches = zero, zero.new_zeros(steps), zero.new_zeros(steps)
        raw = states.features
        if not self.bf16:
            raw = raw.float()
        with torch.autocast(raw.device.type, torch.bfloat16, enabled=self.bf16):
            features = self.draft.normalise(raw)
            if not self.freeze_draft:
                token, per_step, matches = self._token(batch, states, features, counts)
        z, inputs = zero.new_zeros(0, 1), zero.new_zeros(0, 1)
        signals = zero.new_zeros(3)
        if self.signals is not None:
            picked = features.flatten(0, 1)[batch.think_at]
            inputs = self.signals.standardise(picked)
            z = self.signals.head.project(inputs)
            signals = self._signal_losses(batch, z) / max(counts.signals, 1e-9)
        return StepOutput(token, signals, per_step, matches, z, inputs.detach())

    def _token(
        self, batch: Batch, states: TargetStates, features: Tensor, counts: Counts
    ) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.draft.fc(features)
        if hidden.requires_grad:
            self.fc_inputs = features.detach()
            hidden.register_hook(self._keep_gradient)
        total = hidden.new_zeros((), dtype=torch.float32)
        losses, matches = [], []
        outs = unroll(
            self.draft, hidden, batch.ids, batch.positions, batch.document, self.settings.ttt_steps
        )
        for k, out in enumerate(outs):
            mask = step_mask(batch.is_target, batch.document, k)
            logits = self.draft.logits(out[mask])
            target = states.at(shift_index(mask, k + 1))
            hard = states.draft_ids(shift(batch.ids, k + 2)[mask])
            soft = target.probabilities if self.settings.targets == "soft" else None
            loss = token_loss(logits, soft, hard) / max(counts.tokens[k], 1)
            total = total + self.settings.decay**k * loss
            losses.append(loss.detach())
            matches.append((logits.detach().argmax(-1) == target.best).sum() / counts.tokens[k])
        return total, torch.stack(losses), torch.stack(matches).float()

    def _keep_gradient(self, gradient: Tensor) -> None:
        self.fc_gradient = gradient.detach()

    def _signal_losses(self, batch: Batch, z: Tensor) -> Tensor:
        assert self.signals is not None
        head = self.signals.head
        if len(z) == 0:  # keep every parameter in the graph: DDP waits for all of them
            return sum((p.sum() for p in head.parameters()), z.new_zeros(3)) * 0.0
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


def shift_index(mask: Tensor, by: int) -> Tensor:
    """`[N]` flat places `by` to the right of the True entries of `mask [R, T]`."""
    return mask.flatten().nonzero().flatten() + by
