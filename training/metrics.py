"""Figures of merit as pure functions of arrays, with bootstrap intervals over traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def r2(predicted: Array, wanted: Array) -> float:
    """Coefficient of determination; NaN where the labels do not vary."""
    spread = ((wanted - wanted.mean()) ** 2).sum()
    return float(1 - ((predicted - wanted) ** 2).sum() / spread) if spread > 0 else float("nan")


def auc(score: Array, positive: NDArray[np.bool_]) -> float:
    """Probability that a positive scores above a negative, ties counted half; NaN without both."""
    n_positive = int(positive.sum())
    n_negative = len(positive) - n_positive
    if not n_positive or not n_negative:
        return float("nan")
    _, inverse, counts = np.unique(score, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    rank = (last - (counts - 1) / 2)[inverse]
    u = rank[positive].sum() - n_positive * (n_positive + 1) / 2
    return float(u / (n_positive * n_negative))


def bootstrap(
    values: Sequence[Array], statistic: Callable[..., float], *, rounds: int = 500, seed: int = 0
) -> list[float] | None:
    """95 % interval of a statistic, resampling traces.

    Args:
        values: one array `[m, columns]` for each trace; `statistic` is called with their columns.

    Returns:
        `[low, high]`, or None where fewer than two traces or no finite round exist.
    """
    if len(values) < 2:
        return None
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(rounds):
        picked = generator.integers(0, len(values), len(values))
        columns = np.concatenate([values[i] for i in picked]).T
        found.append(statistic(*columns))
    finite = np.array([x for x in found if np.isfinite(x)])
    if not len(finite):
        return None
    low, high = np.quantile(finite, [0.025, 0.975])
    return [float(low), float(high)]


def calibration_curve(predicted: Array, wanted: Array, bins: int = 10) -> list[dict[str, float]]:
    """Mean prediction and mean label in equal bins of the prediction; empty bins are left out."""
    edges = np.clip((predicted * bins).astype(int), 0, bins - 1)
    curve = []
    for b in range(bins):
        inside = edges == b
        if inside.any():
            row = {"predicted": float(predicted[inside].mean())}
            row |= {"observed": float(wanted[inside].mean()), "n": int(inside.sum())}
            curve.append(row)
    return curve


def ridge_scores(train_x: Array, train_y: Array, test_x: Array, penalty: float = 10.0) -> Array:
    """Scores of a ridge regression on standardised features: a probe of what they hold."""
    mean, deviation = train_x.mean(0), train_x.std(0) + 1e-4
    x = (train_x - mean) / deviation
    target = train_y - train_y.mean()
    solution = np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ target)
    return ((test_x - mean) / deviation) @ solution + train_y.mean()
