"""Train signal heads alone, on kept features: many cheap epochs after the joint training.

The signals share no weight with the draft's token path (DESIGN section 2), so this continues the
joint training of the first head, and trains further kinds on the very same draft.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from tqdm import tqdm

from specexit.heads.signal import Kind, SignalHead
from training.balance import Balancer, Norms
from training.config import BalanceSettings, SignalSettings
from training.examples import Thinking, signal_weights
from training.losses import signal_losses
from training.optimiser import learning_rate
from training.signals import StandardisedSignals

log = logging.getLogger(__name__)
_VALIDATION_SHARE = 0.1
_EVALUATE_EVERY = 50


@dataclass(frozen=True)
class ThinkingFeatures:
    """Raw features `[T, F]` of one thinking, and its labels."""

    features: Tensor
    thinking: Thinking


def feature_statistics(items: Sequence[ThinkingFeatures]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation `[F]` over all thinking tokens, accumulated in fp64."""
    width = items[0].features.shape[1]
    total, squares, count = torch.zeros(width).double(), torch.zeros(width).double(), 0
    for item in items:
        x = item.features.double()
        total += x.sum(0)
        squares += x.square().sum(0)
        count += len(x)
    mean = total / max(1, count)
    variance = (squares / max(1, count) - mean.square()).clamp_min(0)
    return mean.float(), (variance.sqrt() + 1e-4).float()


@dataclass(frozen=True)
class _Compact:
    """What a kind reads of a thinking: M places `inputs [M, P, F]`, labels and weights."""

    inputs: Tensor
    labels: Tensor
    weight: Tensor


def _compact(
    item: ThinkingFeatures, kind: Kind, settings: SignalSettings, generator: torch.Generator
) -> _Compact:
    thinking = item.thinking
    if kind != "memory":
        weight = signal_weights(thinking, settings.boundary_weight, boundaries_only=False)
        between = (~thinking.boundary).nonzero().flatten()
        drawn = between[torch.randperm(len(between), generator=generator)]
        drawn = drawn[: settings.refine_tokens]
        weight[drawn] *= len(between) / max(1, len(drawn))
        places = torch.cat([thinking.boundary.nonzero().flatten(), drawn])
        inputs = item.features[places].float()[:, None]
        return _Compact(inputs, thinking.labels[places], weight[places])
    ends = thinking.boundary.nonzero().flatten()
    features = item.features.float()
    starts = [0, *(ends[:-1] + 1).tolist()]
    means = [features[a : b + 1].mean(0) for a, b in zip(starts, ends.tolist(), strict=False)]
    at = features[ends]
    mean = torch.stack(means) if means else at
    inputs = torch.stack([at, mean], 1)
    return _Compact(inputs, thinking.labels[ends], thinking.weight[ends])


def _logits(signals: StandardisedSignals, items: Sequence[_Compact]) -> tuple[Tensor, Tensor]:
    """z and logits of a batch, concatenated over its items."""
    head = signals.head
    inputs = torch.cat([item.inputs for item in items])
    z = head.project(signals.standardise(inputs))
    if head.kind != "memory":
        return z, head.forward(z[:, 0][None], z.new_zeros(1, len(z), dtype=torch.bool))[0]
    lengths = [len(item.labels) for item in items]
    padded = torch.nn.utils.rnn.pad_sequence(list(z.split(lengths)), batch_first=True)
    logits = head.paragraph_logits(padded[:, :, 0], padded[:, :, 1])
    return z, torch.cat([row[1 : n + 1] for row, n in zip(logits, lengths, strict=True)])


def refine_signals(
    start: StandardisedSignals | None,
    kind: Kind,
    items: Sequence[ThinkingFeatures],
    settings: SignalSettings,
    balance: BalanceSettings,
    *,
    seed: int,
    clip: float = 1.0,
    progress: bool = True,
    on_log: Callable[[dict[str, float]], None] | None = None,
) -> StandardisedSignals:
    """Train a head of `kind`; the epoch that is best on a tenth of the traces wins.

    Args:
        start: continue from this one (joint training); None starts afresh.
        items: thinkings of the training split.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # initial weights and dropout
        signals = start
        if signals is None:
            signals = new_signals(kind, items, settings)
        compact = [_compact(i, kind, settings, generator) for i in items]
        compact = [c for c in compact if len(c.labels) and bool(c.weight.any())]
        order = torch.randperm(len(compact), generator=generator).tolist()
        held = max(1, int(len(compact) * _VALIDATION_SHARE)) if len(compact) > 1 else 0
        validation = [compact[i] for i in order[:held]]
        training = [compact[i] for i in order[held:]]
        balancer = Balancer(balance)
        parameters = [*signals.head.parameters(), *balancer.parameters()]
        optimiser = torch.optim.AdamW(
            parameters, lr=settings.lr, weight_decay=settings.weight_decay
        )
        size = min(settings.refine_batch, len(training))
        per_epoch = -(-len(training) // size)
        total = per_epoch * settings.refine_epochs
        best: tuple[float, dict[str, Tensor]] = (float("inf"), {})
        bar = tqdm(total=total, desc=f"signals ({kind})", disable=not progress)
        step = 0
        for _ in range(settings.refine_epochs):
            shuffled = torch.randperm(len(training), generator=generator).tolist()
            for i in range(0, len(shuffled), size):
                batch = [training[j] for j in shuffled[i : i + size]]
                rate = learning_rate(
                    step,
                    total=total,
                    warmup=min(50, total // 10),
                    peak=settings.lr,
                    floor_ratio=0.0,
                )
                for group in optimiser.param_groups:
                    group["lr"] = rate
                losses, norms = _losses_and_norms(
                    signals, batch, balancer, step % balance.every == 0
                )
                loss = balancer.combine(losses)
                optimiser.zero_grad()
                loss.backward()
                clip_grad_norm_(parameters, clip)
                optimiser.step()
                if norms is not None:
                    balancer.update(norms)
                step += 1
                bar.update()
                if step % _EVALUATE_EVERY == 0 or step == total:
                    value = _validate(signals, validation or training)
                    if on_log is not None:
                        on_log({"refine_step": step, "validation": value} | balancer.report())
                    if value < best[0]:
                        state = signals.state_dict()
                        best = (value, {k: copy.deepcopy(v) for k, v in state.items()})
        bar.close()
        if best[1]:
            signals.load_state_dict(best[1])
        log.info("signals (%s): validation loss %.4f", kind, best[0])
    return signals.eval()


def new_signals(
    kind: Kind, items: Sequence[ThinkingFeatures], settings: SignalSettings
) -> StandardisedSignals:
    """A fresh head with the statistics of these features."""
    width = items[0].features.shape[1]
    head = SignalHead(kind, width, rows=settings.rows, readout_size=settings.readout_size)
    signals = StandardisedSignals(head, settings.dropout)
    mean, deviation = feature_statistics(items)
    signals.mean.copy_(mean)
    signals.deviation.copy_(deviation)
    return signals.train()


def _losses_and_norms(
    signals: StandardisedSignals, batch: Sequence[_Compact], balancer: Balancer, measure: bool
) -> tuple[Tensor, Norms | None]:
    _, logits = _logits(signals, batch)
    labels = torch.cat([b.labels for b in batch])
    weight = torch.cat([b.weight for b in batch])
    losses = signal_losses(logits, labels, weight) / weight.sum()
    losses = losses * losses.new_tensor(balancer.settings.loss_scale)
    if not measure or balancer.settings.mode != "gradient":
        return losses, None
    rows = signals.head.projection.weight
    norms = torch.stack(
        [torch.autograd.grad(one, rows, retain_graph=True)[0].norm() for one in losses]
    )
    return losses, Norms(norms, norms.log().mean().exp())


@torch.no_grad()
def _validate(signals: StandardisedSignals, items: Sequence[_Compact]) -> float:
    """Plain sum of the three losses."""
    signals.eval()
    total, weight = torch.zeros(3), 0.0
    for i in range(0, len(items), 64):
        part = items[i : i + 64]
        _, logits = _logits(signals, part)
        w = torch.cat([b.weight for b in part])
        total += signal_losses(logits, torch.cat([b.labels for b in part]), w)
        weight += float(w.sum())
    signals.train()
    return float(total.sum()) / max(weight, 1e-9)
