"""Settings of a training run; the defaults made the shipped weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

from specexit.errors import ConfigError


@dataclass(frozen=True)
class TrainSettings:
    """Everything that fixes the weights on one machine.

    Attributes:
        steps: number of batches.
        tokens: at most so many in a batch, padding counted.
        learning_rate: of the matrices (Muon) and of all else (AdamW) alike.
        warmup: steps of linear warm-up.
        hold: share of the run before the cosine decay begins.
        final: learning rate at the end, as a share of `learning_rate`.
        threads: CPU threads; another number adds in another order.
        checkpoint_every: steps between checkpoints of the unfinished run.
    """

    steps: int = 2400
    seed: int = 0
    tokens: int = 2048
    learning_rate: float = 3e-3
    warmup: int = 60
    hold: float = 0.1
    final: float = 0.01
    threads: int = 1
    checkpoint_every: int = 100

    def __post_init__(self) -> None:
        for name in ("steps", "tokens", "warmup", "threads", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: {getattr(self, name)} is not a positive number")
        if not 0 <= self.hold < 1:
            raise ConfigError(f"hold: {self.hold} is not in [0, 1)")

    def rate(self, step: int) -> float:
        """Learning rate at `step`: warm up, hold, then a half cosine down to `final`."""
        progress = step / self.steps
        factor = 1.0
        if progress > self.hold:
            phase = (progress - self.hold) / (1 - self.hold)
            factor = self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * phase))
        return self.learning_rate * factor * min(1.0, (step + 1) / self.warmup)
