"""Intervals for what is measured: proportions, means over questions, ratios of sums, and AUC.

Pure NumPy. Every bootstrap resamples whole questions and is seeded: same input, same interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEVEL = 0.95
RESAMPLES = 2000
_BLOCK = 1 << 21  # counts of drawn questions held at once


class Interval(NamedTuple):
    """A two-sided confidence interval."""

    low: float
    high: float


def wilson(k: int, n: int, level: float = LEVEL) -> Interval:
    """Wilson's score interval of a proportion (JASA 22, 1927): `k` of `n`.

    Raises:
        ValueError: not 0 <= k <= n, or n = 0.
    """
    _check_counts(k, n)
    z = NormalDist().inv_cdf(0.5 + level / 2)
    p, z2 = k / n, z * z
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = z / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    low = 0.0 if k == 0 else max(0.0, centre - half)  # the bound itself, without rounding
    high = 1.0 if k == n else min(1.0, centre + half)
    return Interval(low, high)


def clopper_pearson(k: int, n: int, level: float = LEVEL) -> Interval:
    """Exact interval of a proportion (Biometrika 26, 1934): never covers less than `level`.

    Raises:
        ValueError: not 0 <= k <= n, or n = 0.
    """
    _check_counts(k, n)
    tail = (1 - level) / 2
    return Interval(_lower_bound(k, n, tail), binomial_upper_bound(k, n, tail))


def binomial_upper_bound(k: int, n: int, delta: float) -> float:
    """Smallest p with P(Binomial(n, p) <= k) <= delta: an exact one-sided upper bound."""
    _check_counts(k, n)
    if k == n:
        return 1.0
    return _bisect(lambda p: binomial_cdf(k, n, p) <= delta)


def binomial_cdf(k: int, n: int, p: float) -> float:
    """P(Binomial(n, p) <= k), summed exactly (in logarithms, from the largest term)."""
    if k < 0:
        return 0.0
    if k >= n or p <= 0:
        return 1.0
    if p >= 1:
        return 0.0
    log_p, log_q, log_n = math.log(p), math.log1p(-p), math.lgamma(n + 1)
    terms = [
        log_n - math.lgamma(i + 1) - math.lgamma(n - i + 1) + i * log_p + (n - i) * log_q
        for i in range(k + 1)
    ]
    top = max(terms)
    return min(1.0, math.exp(top) * math.fsum(math.exp(t - top) for t in terms))


def bootstrap_mean(
    values: ArrayLike, seed: int = 0, *, level: float = LEVEL, resamples: int = RESAMPLES
) -> Interval:
    """Percentile bootstrap interval of a mean over questions.

    Args:
        values: `[n]`, one number a question.
    """
    x = _vector(values, "values")
    means = [counts @ x / len(x) for counts in _resampled_counts(len(x), resamples, seed)]
    return _percentiles(np.concatenate(means), level)


def paired_bootstrap(
    a: ArrayLike, b: ArrayLike, seed: int = 0, *, level: float = LEVEL, resamples: int = RESAMPLES
) -> Interval:
    """Interval of mean(a) - mean(b), where `a[i]` and `b[i]` belong to the same question.

    Raises:
        ValueError: the two differ in length.
    """
    x, y = _vector(a, "a"), _vector(b, "b")
    if len(x) != len(y):
        raise ValueError(f"paired_bootstrap: a has {len(x)} values and b {len(y)}; pair them")
    return bootstrap_mean(x - y, seed, level=level, resamples=resamples)


def bootstrap_ratio(
    numerator: ArrayLike,
    denominator: ArrayLike,
    seed: int = 0,
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
) -> Interval:
    """Interval of sum(numerator) / sum(denominator), questions resampled in pairs.

    For a share of the oracle's saving: tokens saved over tokens that the oracle saves. Resamples
    whose denominator is 0 are left out; `nan` bounds where all are.
    """
    x, y = _vector(numerator, "numerator"), _vector(denominator, "denominator")
    if len(x) != len(y):
        raise ValueError(f"bootstrap_ratio: {len(x)} numerators and {len(y)} denominators")
    ratios = []
    for counts in _resampled_counts(len(x), resamples, seed):
        above, below = counts @ x, counts @ y
        ratios.append(above[below != 0] / below[below != 0])
    return _percentiles(np.concatenate(ratios), level)


def auc(scores: ArrayLike, labels: ArrayLike) -> float:
    """Probability that a positive scores above a negative, ties counting half.

    Args:
        scores: `[n]`, higher means positive.
        labels: `[n]`, true for positives.

    Returns:
        In [0, 1]; `nan` where a class is empty.
    """
    s, y = _scores(scores, labels)
    return float(_weighted_auc(s, y, np.ones((1, len(s))))[0])


def auc_interval(
    scores: ArrayLike,
    labels: ArrayLike,
    seed: int = 0,
    *,
    groups: ArrayLike | None = None,
    level: float = LEVEL,
    resamples: int = 500,
) -> Interval:
    """Bootstrap interval of `auc`.

    Args:
        groups: `[n]`, the question that each score belongs to; whole questions are resampled
            (boundaries of one trace are not independent). None: every score is a question.
    """
    s, y = _scores(scores, labels)
    ids = (
        np.arange(len(s))
        if groups is None
        else np.unique(np.asarray(groups), return_inverse=True)[1]
    )
    n = int(ids.max()) + 1
    found = [
        _weighted_auc(s, y, row[ids][None])[0]
        for counts in _resampled_counts(n, resamples, seed)
        for row in counts
    ]
    values = np.array(found)
    return _percentiles(values[~np.isnan(values)], level)


def _weighted_auc(
    scores: NDArray[np.float64], labels: NDArray[np.bool_], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """AUC `[B]` under `B` weightings `[B, n]` of the same scores."""
    order = np.argsort(scores, kind="stable")
    ranked, positive = scores[order], labels[order]
    w = weights[:, order]
    starts = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])  # groups of equal scores
    above = np.add.reduceat(np.where(positive, w, 0.0), starts, axis=1)
    below = np.add.reduceat(np.where(positive, 0.0, w), starts, axis=1)
    beaten = below.cumsum(1) - below / 2
    pairs = above.sum(1) * below.sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(pairs > 0, (above * beaten).sum(1) / pairs, np.nan)


def _resampled_counts(n: int, resamples: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """How often each of n questions is drawn in each resample: `[resamples, n]`, in blocks."""
    block = max(1, min(resamples, _BLOCK // n))
    for part, start in enumerate(range(0, resamples, block)):
        size = min(block, resamples - start)
        if size == resamples:
            yield _counts(n, size, seed, part)  # small enough to keep: the same for every figure
        else:
            yield _counts.__wrapped__(n, size, seed, part)


@lru_cache(maxsize=4)
def _counts(n: int, resamples: int, seed: int, part: int) -> NDArray[np.float64]:
    random = np.random.default_rng([seed, part])
    drawn = random.integers(0, n, (resamples, n)) + n * np.arange(resamples)[:, None]
    counts = np.bincount(drawn.ravel(), minlength=resamples * n).astype(np.float64)
    counts = counts.reshape(resamples, n)
    counts.setflags(write=False)
    return counts


def _percentiles(values: NDArray[np.float64], level: float) -> Interval:
    if not len(values):
        return Interval(math.nan, math.nan)
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def _lower_bound(k: int, n: int, tail: float) -> float:
    if k == 0:
        return 0.0
    return _bisect(lambda p: 1 - binomial_cdf(k - 1, n, p) > tail)


def _bisect(is_above: Callable[[float], bool]) -> float:
    """The point in [0, 1] where a monotone test turns true."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if is_above(middle):
            high = middle
        else:
            low = middle
    return (low + high) / 2


def _vector(values: ArrayLike, name: str) -> NDArray[np.float64]:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or not len(x):
        raise ValueError(f"{name}: shape {x.shape}; give a non-empty list of numbers")
    return x


def _scores(scores: ArrayLike, labels: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    s, y = _vector(scores, "scores"), np.asarray(labels).astype(bool)
    if s.shape != y.shape:
        raise ValueError(f"auc: {len(s)} scores and {len(y)} labels")
    return s, y


def _check_counts(k: int, n: int) -> None:
    if not 0 <= k <= n or n == 0:
        raise ValueError(f"{k} of {n} is not a proportion; need 0 <= k <= n and n > 0")
