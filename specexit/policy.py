"""The exit policy: its settings, and its rule for one request as plain Python (the reference)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from specexit.config import Settings
from specexit.split import SplitMode

SignalName = Literal["confidence", "progress", "remain"]
SIGNALS: tuple[SignalName, ...] = ("confidence", "progress", "remain")
Unit = Annotated[float, Field(ge=0, le=1)]


class Thresholds(Settings):
    """Limits of the smoothed signals; the paper's values."""

    confidence: Unit = 0.8
    """Exit needs confidence > this, in [0, 1]."""
    progress: Unit = 0.3
    """Exit needs progress > this, in [0, 1]."""
    remain: float = Field(200.0, ge=0)
    """Exit needs remain < this, in tokens."""


class Smoothing(Settings):
    """How the raw signals of the tokens become the ones that are compared."""

    kind: Literal["ewma", "none", "mean", "paragraph_mean", "momentum"] = "ewma"
    """`ewma` (DESIGN section 2) and `none` run in the engine; the others are for replay:
    `mean` over the last `window` tokens, `paragraph_mean` since the last boundary,
    `momentum`: EWMA plus the EWMA of its own change."""
    alpha: float = Field(0.1, gt=0, le=1)
    """Weight of the newest value."""
    unit: Literal["token", "step"] = "token"
    """`token`: every accepted thinking token updates, so exits do not depend on the number of
    drafts; `step`: the mean over a verification step's accepted tokens updates once (paper)."""
    window: int = Field(10, ge=1)
    """Tokens of the `mean` kind."""


MOST_TOKENS = 10**8  # fits the engine's 32-bit counters, the 10 % of a hard limit included


class ExitPolicy(Settings):
    """When thinking ends. The calibrated policy comes with the head; a request may override it."""

    enabled: bool = True
    """False: signals are neither computed nor acted on."""
    preset: Literal["default", "reference"] = "default"
    """`reference`: the published implementation (step mean, alpha 0.1, the EWMA is tested before
    the step's own signals are added, only the first split token of a step is tested)."""
    signals: tuple[SignalName, ...] = SIGNALS
    """The signals that must pass; any subset, all of them by default."""
    thresholds: Thresholds = Thresholds()
    """Limits of the smoothed signals."""
    smoothing: Smoothing = Smoothing()
    """EWMA and its alternatives."""
    patience: int = Field(1, ge=1, le=64)
    """Consecutive boundaries that must pass."""
    min_think_tokens: int = Field(0, ge=0, le=MOST_TOKENS)
    """Never exit before so many thinking tokens."""
    min_boundaries: int = Field(1, ge=1, le=MOST_TOKENS)
    """Never exit before this boundary (the first paragraph's end is boundary 1)."""
    max_think_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    """End the thinking at the next boundary after so many tokens, and anywhere at 10 % more."""
    step_split: SplitMode = "paragraph"
    """Where an exit may fall: at blank lines, or also before connectives."""
    exit_suffix: str = Field("", max_length=256)
    """Text forced after the think end, one token a step."""
    reenter: bool = False
    """Whether a request whose thinking was ended here may count as thinking again."""

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("preset") == "reference":
            given = values.get("smoothing") or {}
            if isinstance(given, dict):
                values = {**values, "smoothing": {"unit": "step", "alpha": 0.1, **given}}
        return values

    @model_validator(mode="after")
    def _check(self) -> ExitPolicy:
        if not self.signals and self.max_think_tokens is None:
            raise ValueError(
                "signals is empty and max_think_tokens is not set, so nothing could end the "
                "thinking; name a signal, set max_think_tokens, or set enabled: false"
            )
        if len(set(self.signals)) != len(self.signals):
            raise ValueError(f"signals names one twice: {list(self.signals)}")
        return self

    @property
    def hard_limit(self) -> int | None:
        """Thinking tokens after which the thinking ends anywhere: max_think_tokens + 10 %."""
        return None if self.max_think_tokens is None else -(-self.max_think_tokens * 11 // 10)

    def passes(self, smoothed: tuple[float, float, float]) -> bool:
        """Whether all enabled signals are on the right side of their thresholds."""
        confidence, progress, remain = smoothed
        t = self.thresholds
        checks = {
            "confidence": confidence > t.confidence,
            "progress": progress > t.progress,
            "remain": remain < t.remain,
        }
        return bool(self.signals) and all(checks[name] for name in self.signals)


Triple = tuple[float, float, float]


@dataclass
class ExitTracker:
    """The exit rule for one request, token by token: the reference that the engine must equal.

    `unit: token` only; a step-wise EWMA needs the engine's steps (`inference.hf` drives those).
    """

    policy: ExitPolicy
    tokens: int = 0
    boundary: int = 0
    streak: int = 0
    smoothed: Triple | None = None
    _trend: Triple = (0.0, 0.0, 0.0)
    _recent: deque[Triple] = field(default_factory=deque)

    def update(self, signals: Triple, is_boundary: bool) -> bool:
        """Take one thinking token's raw signals; True if the thinking must end after it."""
        self.tokens += 1
        self._smooth(signals)
        assert self.smoothed is not None
        return self.decide(self.smoothed, is_boundary)

    def decide(self, smoothed: Triple, is_boundary: bool) -> bool:
        """The rule itself, given the smoothed signals at the `tokens`-th thinking token."""
        policy = self.policy
        limit, hard = policy.max_think_tokens, policy.hard_limit
        if is_boundary:
            self.boundary += 1
            self.streak = self.streak + 1 if policy.passes(smoothed) else 0
            if policy.smoothing.kind == "paragraph_mean":
                self._recent.clear()
            if limit is not None and self.tokens >= limit:
                return True
            if (
                self.streak >= policy.patience
                and self.tokens >= policy.min_think_tokens
                and self.boundary >= policy.min_boundaries
            ):
                return True
        return hard is not None and self.tokens >= hard

    def _smooth(self, signals: Triple) -> None:
        s = self.policy.smoothing
        if s.kind in ("mean", "paragraph_mean"):
            self._recent.append(signals)
            if s.kind == "mean" and len(self._recent) > s.window:
                self._recent.popleft()
            n = len(self._recent)
            columns = zip(*self._recent, strict=True)
            c, p, r = (sum(column) / n for column in columns)
            self.smoothed = (c, p, r)
        elif s.kind == "none" or self.smoothed is None:
            self.smoothed = signals
        elif s.kind == "ewma":
            self.smoothed = _mix(s.alpha, signals, self.smoothed)
        else:  # momentum: Holt's linear smoothing, level and trend with the same weight
            level = _mix(s.alpha, signals, _add(self.smoothed, self._trend, 1))
            self._trend = _mix(s.alpha, _add(level, self.smoothed, -1), self._trend)
            self.smoothed = level


def _mix(alpha: float, new: Triple, old: Triple) -> Triple:
    a, b, c = (alpha * n + (1 - alpha) * o for n, o in zip(new, old, strict=True))
    return a, b, c


def _add(x: Triple, y: Triple, sign: int) -> Triple:
    a, b, c = (p + sign * q for p, q in zip(x, y, strict=True))
    return a, b, c
