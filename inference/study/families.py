"""Families of policies: what an ablation compares. A family is one idea with all its thresholds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from specexit.policy import SIGNALS, ExitPolicy, SignalName, Smoothing, Thresholds
from specexit.replay import Replay, ReplayTable


@dataclass(frozen=True)
class Family:
    """Policies that differ in their thresholds only.

    Attributes:
        axis: what is varied: signals, smoothing, patience, min_tokens.
        name: the value on that axis.
        policies: the threshold grid.
    """

    axis: str
    name: str
    policies: list[ExitPolicy]


@dataclass(frozen=True)
class Grid:
    """How finely thresholds are tried.

    Attributes:
        alone: values of the threshold of a signal that is used alone.
        together: values of each threshold where several are combined.
    """

    alone: int = 200
    together: int = 14


def subsets() -> list[tuple[SignalName, ...]]:
    """The seven non-empty subsets of the three signals."""
    return [c for size in (1, 2, 3) for c in itertools.combinations(SIGNALS, size)]


def smoothings(table: ReplayTable, alphas: Sequence[float]) -> Iterator[tuple[str, Smoothing]]:
    """Names and settings of the smoothings that a table can replay."""
    yield "none", Smoothing(kind="none")
    for alpha in alphas:
        yield f"token EWMA {alpha:g}", Smoothing(alpha=alpha)
    if table.step is not None:
        for alpha in alphas:
            yield f"step EWMA {alpha:g}", Smoothing(alpha=alpha, unit="step")
    for window in (10, 40):
        yield f"mean of {window}", Smoothing(kind="mean", window=window)
    yield "paragraph mean", Smoothing(kind="paragraph_mean")
    for alpha in alphas:
        yield f"momentum {alpha:g}", Smoothing(kind="momentum", alpha=alpha)


def families(
    replay: Replay,
    *,
    alphas: Sequence[float] = (0.05, 0.1, 0.3, 0.6),
    patience: Sequence[int] = (1, 2, 3),
    min_think_tokens: Sequence[int] = (0, 32, 96),
    grid: Grid | None = None,
) -> list[Family]:
    """All families of an ablation of one head.

    Args:
        replay: of the split on which thresholds are chosen; their grids are its quantiles.
    """
    grid = grid or Grid()
    split, plain = replay.table.step_split, Smoothing(kind="none")
    made = []
    for names in subsets():
        policies = thresholds_grid(replay, names, plain, grid)
        made.append(Family("signals", " + ".join(names), policies))
    for name, smoothing in smoothings(replay.table, alphas):
        policies = thresholds_grid(replay, SIGNALS, smoothing, grid)
        made.append(Family("smoothing, all signals", name, policies))
        alone = thresholds_grid(replay, ("remain",), smoothing, grid)
        made.append(Family("smoothing, remain", name, alone))
    alone = thresholds_grid(replay, ("remain",), plain, grid)
    for n in patience:
        changed = [p.model_copy(update={"patience": n}) for p in alone]
        made.append(Family("patience", str(n), changed))
    for n in min_think_tokens:
        changed = [p.model_copy(update={"min_think_tokens": n}) for p in alone]
        made.append(Family("min_think_tokens", str(n), changed))
    return [
        Family(f.axis, f.name, [p.model_copy(update={"step_split": split}) for p in f.policies])
        for f in made
    ]


def thresholds_grid(
    replay: Replay, names: Sequence[SignalName], smoothing: Smoothing, grid: Grid
) -> list[ExitPolicy]:
    """Policies over the quantiles of the smoothed signals at boundaries, bold ones last."""
    smoothed = replay.smoothed(smoothing)
    count = grid.alone if len(names) == 1 else grid.together
    values = []
    for name in names:
        column = smoothed[SIGNALS.index(name)]
        column = column[~np.isnan(column)]
        # finer towards the safe end, where the loss limits lie
        safe = (
            1 - np.geomspace(1, 0.002, count) if name != "remain" else np.geomspace(0.002, 1, count)
        )
        limits = np.unique(np.quantile(column, safe)) if len(column) else np.zeros(1)
        values.append(_between(limits))
    return [
        ExitPolicy(
            signals=tuple(names),
            smoothing=smoothing,
            thresholds=_thresholds(dict(zip(names, chosen, strict=True))),
        )
        for chosen in itertools.product(*values)
    ]


def _between(limits: np.ndarray) -> list[float]:
    """Half way between neighbours: a threshold on a recorded value would hang on its rounding."""
    if len(limits) == 1:
        return [float(limits[0])]
    middle = (limits[1:] + limits[:-1]) / 2
    return [float(v) for v in np.concatenate([middle, limits[-1:]])]


def _thresholds(chosen: dict[SignalName, float]) -> Thresholds:
    c, p = (min(1.0, max(0.0, chosen.get(n, 0.0))) for n in ("confidence", "progress"))
    return Thresholds(confidence=c, progress=p, remain=max(0.0, chosen.get("remain", 0.0)))
