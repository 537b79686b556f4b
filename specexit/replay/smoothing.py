"""Smoothed signals at every boundary of all traces at once, as `ExitTracker` computes them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specexit.errors import ConfigError
from specexit.policy import Smoothing
from specexit.replay.table import ReplayTable

FloatArray = NDArray[np.float64]


def smoothed_at_boundaries(
    table: ReplayTable, smoothing: Smoothing, *, reference: bool = False
) -> FloatArray:
    """Smoothed signals right after each boundary token.

    Args:
        reference: the published implementation's order, in which the EWMA is tested before the
            step's own signals are added (`unit: step` only).

    Returns:
        `[sum (K + 1), 3] float64`, in the table's boundary order. Entries of boundary 0 are NaN:
        no token has been seen there.

    Raises:
        ConfigError: `unit: step` on a table that has no record of the steps.
    """
    x = table.signals.astype(np.float64)
    is_first = np.zeros(len(table.boundaries), bool)
    is_first[table.boundary_offsets[:-1]] = True
    trace = np.repeat(np.arange(len(table)), np.diff(table.boundary_offsets))
    last = table.token_offsets[trace] + table.boundaries - 1  # token that ends the paragraph
    out = np.full((len(table.boundaries), 3), np.nan)
    real = ~is_first & (table.boundaries > 0)
    if smoothing.kind == "none":
        out[real] = x[last[real]]
    elif smoothing.kind == "mean":
        out[real] = _window_mean(x, last[real], table.token_offsets[trace[real]], smoothing.window)
    elif smoothing.kind == "paragraph_mean":
        previous = np.concatenate([[0], table.boundaries[:-1]])
        start = table.token_offsets[trace] + previous
        out[real] = _range_mean(x, start[real], last[real] + 1)
    elif smoothing.unit == "step":
        out[real] = _step_ewma(table, x, smoothing.alpha, reference)[last[real]]
    else:
        scan = _ewma if smoothing.kind == "ewma" else _holt
        padded = scan(_pad(x, table.token_offsets), smoothing.alpha)
        out[real] = padded[table.boundaries[real] - 1, trace[real]]
    return out


def _pad(x: FloatArray, offsets: NDArray[np.int64]) -> FloatArray:
    """Packed `[sum T, 3]` -> `[max T, N, 3]`, zeros beyond each trace's end."""
    counts = np.diff(offsets)
    out = np.zeros((len(counts), int(counts.max(initial=0)), 3))
    out[np.arange(out.shape[1]) < counts[:, None]] = x
    return np.ascontiguousarray(out.transpose(1, 0, 2))


def _ewma(x: FloatArray, alpha: float) -> FloatArray:
    """EWMA along the first axis, the first value as is."""
    out = x.copy()
    for t in range(1, len(x)):
        out[t] = alpha * x[t] + (1 - alpha) * out[t - 1]
    return out


def _holt(x: FloatArray, alpha: float) -> FloatArray:
    """Holt's linear smoothing along the first axis: level and trend with the same weight."""
    out = x.copy()
    trend = np.zeros_like(x[0])
    for t in range(1, len(x)):
        out[t] = alpha * x[t] + (1 - alpha) * (out[t - 1] + trend)
        trend = alpha * (out[t] - out[t - 1]) + (1 - alpha) * trend
    return out


def _window_mean(
    x: FloatArray, last: NDArray[np.int64], start: NDArray[np.int64], window: int
) -> FloatArray:
    """Mean of `x[max(start, last - window + 1) : last + 1]` for each entry of `last`."""
    return _range_mean(x, np.maximum(start, last - window + 1), last + 1)


def _range_mean(x: FloatArray, start: NDArray[np.int64], stop: NDArray[np.int64]) -> FloatArray:
    """Means of `x[start:stop]`, added up oldest first as the tracker does."""
    counts = stop - start
    total = np.zeros((len(start), x.shape[1]))
    for i in range(int(counts.max(initial=0))):
        inside = i < counts
        total[inside] += x[start[inside] + i]
    return total / counts[:, None]


def _step_ewma(table: ReplayTable, x: FloatArray, alpha: float, reference: bool) -> FloatArray:
    """Per token, the EWMA of step means after (`reference`: before) the token's own step."""
    if table.step is None:
        raise ConfigError(
            "policy.smoothing.unit: step needs the verification steps of each trace, and this "
            "replay table has none; record it live, or use unit: token"
        )
    out = np.empty_like(x)
    for i in range(len(table)):
        tokens = table.tokens_of(i)
        steps = table.step[tokens]
        starts = np.flatnonzero(np.r_[True, steps[1:] != steps[:-1]]) if len(steps) else steps[:0]
        starts = starts.astype(np.int64)
        stops = np.append(starts[1:], len(steps))
        means = _range_mean(x[tokens], starts, stops)
        smooth = _ewma(means, alpha)
        if reference:  # nothing has been seen at the first step: no signal passes
            smooth = np.concatenate([np.full((1, 3), np.nan), smooth[:-1]])
        out[tokens] = np.repeat(smooth, stops - starts, axis=0)
    return out
