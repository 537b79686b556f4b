"""Labels of every thinking token, from the sufficient boundary and the trial answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from data_build.config import Label


@dataclass(frozen=True)
class Labels:
    """One value per thinking token, `[T]` float; `[t_star]` without `keep_redundant`."""

    confidence: list[float]
    progress: list[float]
    remain: list[float]


def make_labels(
    settings: Label,
    *,
    tokens: int,
    boundaries: Sequence[int],
    t_star: int,
    trial_logprob: Mapping[int, float],
    agrees: Mapping[int, bool],
    answer_logprob: float | None,
    token_logprobs: Sequence[float],
) -> Labels:
    """Labels of a trace.

    Args:
        tokens: T, the thinking tokens.
        boundaries: `[K + 1]` thinking tokens before each boundary.
        t_star: thinking tokens up to the sufficient boundary.
        trial_logprob, agrees: mean log-probability and agreement of the probed boundaries.
        answer_logprob: mean log-probability of the full output's answer, for the tokens after the
            last boundary; None where it is not known.
        token_logprobs: `[T]` of the target's own tokens.
    """
    if settings.confidence == "window":
        confidence = window_confidence(boundaries, token_logprobs)
    else:
        known = {k: math.exp(value) for k, value in trial_logprob.items()}
        if settings.confidence == "answer_agrees":
            known = {k: value if agrees[k] else 0.0 for k, value in known.items()}
        if answer_logprob is not None:
            known[len(boundaries)] = math.exp(answer_logprob)
        confidence = answer_confidence(tokens, boundaries, known)
    progress, remain = distance_labels(tokens, t_star)
    if not settings.keep_redundant:
        confidence, progress, remain = (x[:t_star] for x in (confidence, progress, remain))
    return Labels(confidence, progress, remain)


def distance_labels(tokens: int, t_star: int) -> tuple[list[float], list[float]]:
    """Progress `t / t_star` (1 after it) and remain `t_star - t` (0 after it), t = 1..tokens."""
    progress = [min(1.0, t / t_star) if t_star else 1.0 for t in range(1, tokens + 1)]
    remain = [float(max(0, t_star - t)) for t in range(1, tokens + 1)]
    return progress, remain


def answer_confidence(
    tokens: int, boundaries: Sequence[int], known: Mapping[int, float]
) -> list[float]:
    """Confidence of the boundary that ends each token's paragraph, `[tokens]`.

    Args:
        known: confidence of the probed boundaries; boundary `len(boundaries)` stands for the end
            of the thinking. Boundaries that were not probed lie on the line between their probed
            neighbours (by index); those outside take the nearest value.
    """
    ends = [*boundaries[1:], tokens]  # the last paragraph ends with the thinking
    values = [_between(known, k) for k in range(1, len(ends) + 1)]
    out: list[float] = []
    begin = 0
    for end, value in zip(ends, values, strict=True):
        out.extend([value] * (end - begin))
        begin = end
    return out


def _between(known: Mapping[int, float], k: int) -> float:
    if k in known:
        return known[k]
    below = max((j for j in known if j < k), default=None)
    above = min((j for j in known if j > k), default=None)
    if below is None or above is None:
        return known[above if below is None else below]  # type: ignore[index]
    share = (k - below) / (above - below)
    return known[below] + share * (known[above] - known[below])


def window_confidence(boundaries: Sequence[int], token_logprobs: Sequence[float]) -> list[float]:
    """Geometric mean probability of the paragraph's tokens up to and with each one, `[T]`."""
    starts = set(boundaries)
    out: list[float] = []
    total, count = 0.0, 0
    for t, value in enumerate(token_logprobs):
        if t in starts:
            total, count = 0.0, 0
        total, count = total + value, count + 1
        out.append(math.exp(total / count))
    return out
