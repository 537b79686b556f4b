"""Sizes, limits and folders of the demo."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from specexit.config import Settings


class DemoSettings(Settings):
    """Sizes and limits of the demo."""

    train_questions: int = Field(2000, ge=20)
    """Questions whose traces train the head."""
    calibration_questions: int = Field(700, ge=20)
    """Questions whose traces choose the thresholds."""
    test_questions: int = Field(500, ge=10)
    """Held-out questions that every system answers."""
    latency_questions: int = Field(40, ge=1)
    """Of those, the ones also answered one at a time."""
    batch_latency_questions: int = Field(40, ge=8)
    """Of those, the ones also answered in batches of 8."""
    num_speculative_tokens: int = Field(3, ge=1)
    """Draft tokens a step."""
    epsilon: float = Field(0.01, gt=0, lt=1)
    """Limit on the rate of lost answers."""
    delta: float = Field(0.1, gt=0, lt=1)
    """Probability with which the calibration may miss that limit."""
    max_tokens: int = Field(1400, ge=64)
    """Longest output."""
    processes: int = Field(2, ge=1)
    """Copies of the engine that build the data; the comparison uses at most two."""
    dtype: str = "float32"
    """float32 makes all systems agree token by token; bfloat16 has ties."""
    target: str | None = None
    """Folder of another reasoner that answers the same questions; null: the built-in one."""
    seed: int = 0
    """Seed of questions, training and intervals."""


@dataclass(frozen=True)
class Places:
    """Folders of a demo run."""

    out: Path
    target: Path

    @property
    def data(self) -> Path:
        """The labelled data set."""
        return self.out / "data"

    @property
    def head(self) -> Path:
        """The draft head with the `memory` signal head."""
        return self.out / "head"

    @property
    def linear(self) -> Path:
        """The same draft with the `linear` signal head."""
        return self.out / "head-linear"

    def table(self, head: Path) -> Path:
        """The replay table of a head."""
        return self.out / f"replay-{head.name}"
