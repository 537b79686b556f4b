"""The draft and its token loss as one module: what DDP and DeepSpeed wrap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from specexit.heads.draft import Draft
from training.batch import Batch
from training.config import SignalSettings, TokenSettings
from training.draft import Source, signal_lag
from training.features import TargetStates
from training.losses import token_loss
from training.unroll import shift, step_mask, unroll


class StepOutput(NamedTuple):
    """Token losses of a micro batch, already divided by the global counts.

    Attributes:
        loss: `[]`, the decayed sum over draft steps.
        per_step: `[ttt_steps]` losses, detached.
        matches: `[ttt_steps]` share of rows whose most likely draft token is the target's.
        thinking: `[S, F]`, what the signal head reads of the thinking tokens; detached, unless its
            losses train the draft too.
    """

    loss: Tensor
    per_step: Tensor
    matches: Tensor
    thinking: Tensor


@dataclass(frozen=True)
class Counts:
    """Divisors of a whole step, over all processes and micro batches."""

    tokens: tuple[float, ...]
    signals: float


class DraftModel(nn.Module):
    """The draft with its unrolled loss.

    After a backward pass `fc_inputs [R, T, F]` and `fc_gradient [R, T, H]` are what `fc` read and
    the gradient at its output, for the balancer.
    """

    def __init__(
        self,
        draft: Draft,
        settings: TokenSettings,
        signals: SignalSettings | None = None,
        *,
        bf16: bool = False,
    ) -> None:
        super().__init__()
        self.draft = draft
        self.settings = settings
        self.source: Source = "features" if signals is None else signals.source
        self.joint = signals is not None and signals.joint
        self.bf16 = bf16
        self.fc_inputs: Tensor | None = None
        self.fc_gradient: Tensor | None = None

    def forward(self, batch: Batch, states: TargetStates, counts: Counts) -> StepOutput:
        """Losses of a micro batch; see `StepOutput`."""
        raw = self.draft.select(states.features, states.final)
        raw = raw if self.bf16 else raw.float()
        with torch.autocast(raw.device.type, torch.bfloat16, enabled=self.bf16):
            features = self.draft.inputs(raw, shift(batch.ids, 1), batch.positions)
            hidden = self.draft.fc(features)
            if hidden.requires_grad:
                self.fc_inputs = features.detach()
                hidden.register_hook(self._keep_gradient)
            loss, per_step, matches, out = self._unrolled(batch, states, hidden, counts)
        read = features if self.source == "features" else out
        rows = batch.think_at - signal_lag(self.draft, self.source)
        thinking = (read if self.joint else read.detach()).flatten(0, 1)[rows]
        return StepOutput(loss, per_step, matches, thinking)

    def _unrolled(
        self, batch: Batch, states: TargetStates, hidden: Tensor, counts: Counts
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Loss, losses and matches of the draft steps, and the first step's output."""
        total = hidden.new_zeros((), dtype=torch.float32)
        losses, matches = [], []
        first = hidden
        outs = unroll(
            self.draft, hidden, batch.ids, batch.positions, batch.document, self.settings.ttt_steps
        )
        for k, out in enumerate(outs):
            first = out if k == 0 else first
            mask = step_mask(batch.is_target, batch.document, k)
            logits = self.draft.logits(out[mask])
            # row p predicts token p + 2 + k: the target says which, at token p + 1 + k
            target = states.at(mask.flatten().nonzero().flatten() + k + 1)
            hard = states.draft_ids(shift(batch.ids, k + 2)[mask])
            soft = target.probabilities if self.settings.targets == "soft" else None
            divisor = max(counts.tokens[k], 1.0)
            loss = token_loss(logits, soft, hard) / divisor
            total = total + self.settings.decay**k * loss
            losses.append(loss.detach())
            matches.append((logits.detach().argmax(-1) == target.best).sum() / divisor)
        return total, torch.stack(losses), torch.stack(matches).float(), first

    def _keep_gradient(self, gradient: Tensor) -> None:
        self.fc_gradient = gradient.detach()
