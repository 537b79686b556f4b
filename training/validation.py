"""Losses on held-out traces while training, and whether they are the best so far."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from training.packing import pack, share
from training.resume import save_best

if TYPE_CHECKING:
    from training.loop import Trainer

HIGHER_IS_BETTER = {"loss_token": False, "loss_signals": False, "acceptance": True}


def validation_rows(lengths: list[int], indices: range, capacity: int) -> list[list[int]]:
    """The held-out sequences in packed rows."""
    short = [i for i in indices if lengths[i] <= capacity]
    return pack(lengths, short, capacity) + [[i] for i in indices if lengths[i] > capacity]


@torch.no_grad()
def validate(trainer: Trainer) -> dict[str, float]:
    """Figures over all held-out traces, with averaged weights where there are some.

    Returns:
        `valid_loss_token`; `valid_acceptance`, tokens of a verification step if the draft steps'
        matches were independent; `valid_loss_signals`, where signals are trained.
    """
    config, accelerator = trainer.config, trainer.accelerator
    counts = trainer.counts(trainer.held_out)
    size = max(1, config.batch.rows // config.batch.accumulation)
    steps = config.token.ttt_steps
    sums = torch.zeros(2 + steps, device=accelerator.device)
    signals = trainer.signals
    with trainer.averaged_weights():
        trainer.wrapped.eval()
        for begin in range(0, len(trainer.held_out), size):
            parts = share(trainer.held_out[begin : begin + size], accelerator.num_processes)
            batch = trainer.collate(parts[accelerator.process_index])
            out = trainer.wrapped(batch, trainer.run.source.states(batch), counts)
            sums[0] += out.loss
            sums[2:] += out.matches
            if signals is not None:
                sums[1] += signals.evaluate(batch, out.thinking, counts.signals)
        trainer.wrapped.train()
    loss_token, loss_signals, *matches = accelerator.reduce(sums, "sum").tolist()
    reached = [math.prod(matches[: k + 1]) for k in range(steps)]
    found = {"valid_loss_token": loss_token, "valid_acceptance": 1 + sum(reached)}
    return found | ({"valid_loss_signals": loss_signals} if signals is not None else {})


def validate_and_keep_best(trainer: Trainer) -> None:
    """Log the held-out figures; write the trainer's state where it is the best so far."""
    found = validate(trainer)
    trainer.write_log({"step": trainer.step} | found)
    metric = trainer.config.checkpoint.best
    if metric is None:
        return
    value, best = found[f"valid_{metric}"], trainer.best
    before = best["value"] if best is not None and best["metric"] == metric else None
    if is_better(metric, value, before):
        trainer.best = {"metric": metric, "value": value, "step": trainer.step}
        save_best(trainer)


def is_better(metric: str, value: float, best: float | None) -> bool:
    """Whether a value beats the best so far; one that is not finite never does."""
    if not math.isfinite(value):
        return False
    if best is None:
        return True
    return value > best if HIGHER_IS_BETTER[metric] else value < best
