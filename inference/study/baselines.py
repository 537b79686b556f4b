"""Other rules for ending a thinking, as scores at the boundaries of a replay table.

Every rule exits at the first boundary whose score is above a threshold, so all of them share one
evaluation (`Replay.exits_by_score`) and one way of choosing the threshold (`certified`). What a
rule must generate to know its score is its probing cost (`Baseline.probe_tokens`).

| rule | from | score at boundary k |
|---|---|---|
| `position_only` | - | thinking tokens so far |
| `deer` | DEER, arXiv 2504.15895 | geometric mean probability of a trial answer |
| `repeated_answer` | Certaindex, arXiv 2412.20993 | times in a row that the trial answer came |
| `entropy_after_end` | EAT, arXiv 2509.26522 | minus the EMA variance of entropy after `</think>` |
| `paragraph_entropy` | - | minus the mean next-token entropy of the paragraph |
| `SufficiencyProbe` | arXiv 2504.05419 | probability that the answer is settled (`probes.py`) |
| `AttentionProbe` | Terminator, arXiv 2603.12529 | votes of the last ten tokens (`probes.py`) |

Differences from the papers, all of them in the rule's favour or forced by the table: probes fall
at paragraph boundaries (DEER: at transition words; Certaindex: every so many tokens), the
trial answer is cut where the contract commits, and thresholds are calibrated, not fixed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from specexit.calibration import most_losses
from specexit.errors import ConfigError
from specexit.replay import NATURAL, Exits, Replay, ReplayTable

Scores = NDArray[np.float64]

Probes = Literal["none", "end", "trial"]


@dataclass(frozen=True)
class Baseline:
    """A rule.

    Attributes:
        name: what tables call it.
        source: where it was published, empty for a plain yardstick.
        score: table -> `[sum (K + 1)]`, NaN where it cannot exit.
        probes: what it generates at every boundary: a trial answer, only a think end, nothing.
    """

    name: str
    source: str
    score: Callable[[ReplayTable], Scores]
    probes: Probes = "none"


def position_only(table: ReplayTable) -> Scores:
    """Thinking tokens so far; boundary 0 cannot exit."""
    return _after_start(table, table.boundaries.astype(np.float64))


def deer(table: ReplayTable) -> Scores:
    """`exp(mean log-probability)` of the greedy trial answer (DEER, section 3)."""
    return _after_start(table, np.exp(table.trial_logprob.astype(np.float64)))


def repeated_answer(table: ReplayTable) -> Scores:
    """Length of the run of equal, valid trial answers that ends at each boundary (>= 1)."""
    run = np.zeros(len(table.boundaries))
    for i in range(len(table)):
        answers = table.answer_id[table.boundaries_of(i)]
        count = 0
        start = int(table.boundary_offsets[i])
        for k, answer in enumerate(answers):
            if not k:  # boundary 0 is not probed
                continue
            count = 0 if answer < 0 else count + 1 if k > 1 and answer == answers[k - 1] else 1
            run[start + k] = count
    return _after_start(table, run)


def entropy_after_end(table: ReplayTable, alpha: float = 0.2) -> Scores:
    """Minus the debiased exponential moving variance of the entropy after a think end (EAT).

    Raises:
        ConfigError: the table has no such entropies (live-recorded tables have none).
    """
    if table.end_entropy is None:
        raise ConfigError("entropy_after_end: the table has no end_entropy; record it offline")
    out = np.full(len(table.boundaries), np.nan)
    for i in range(len(table)):
        where = table.boundaries_of(i)
        mean = variance = 0.0
        for n, value in enumerate(table.end_entropy[where].tolist(), start=1):
            mean += alpha * (value - mean)
            variance += alpha * ((value - mean / (1 - (1 - alpha) ** n)) ** 2 - variance)
            out[where.start + n - 1] = -variance / (1 - (1 - alpha) ** n)
    return _after_start(table, out)


def paragraph_entropy(table: ReplayTable) -> Scores:
    """Minus the mean entropy of the target's predictions over the paragraph that ends there.

    Raises:
        ConfigError: the table has no entropies.
    """
    if table.entropy is None:
        raise ConfigError("paragraph_entropy: the table has no entropy; record it offline")
    total = np.concatenate([[0.0], np.cumsum(table.entropy, dtype=np.float64)])
    trace = np.repeat(np.arange(len(table)), np.diff(table.boundary_offsets))
    stop = table.token_offsets[trace] + table.boundaries
    start = np.concatenate([[0], stop[:-1]])
    out = np.full(len(stop), np.nan)
    real = table.boundaries > 0
    out[real] = -(total[stop[real]] - total[start[real]]) / (stop - start)[real]
    return out


BASELINES = (
    Baseline("position only", "", position_only),
    Baseline("paragraph entropy", "", paragraph_entropy),
    Baseline("DEER-style", "arXiv 2504.15895", deer, probes="trial"),
    Baseline("repeated answer", "arXiv 2412.20993", repeated_answer, probes="trial"),
    Baseline("entropy after </think>", "arXiv 2509.26522", entropy_after_end, probes="end"),
)


def no_thinking(table: ReplayTable) -> Exits:
    """Exit at boundary 0, right after the think start."""
    return Replay(table).exits_at(np.zeros((1, len(table)), np.int32))


def fixed_budget(table: ReplayTable, budgets: NDArray[np.int64]) -> Exits:
    """Cut after exactly B tokens, as `thinking_token_budget` does: `[B]` policies.

    A cut inside a paragraph has no recorded trial answer; that of the paragraph's start stands in
    (`is_exact` is False there).
    """
    marks = table.padded(table.boundaries, np.iinfo(np.int32).max)
    total = table.think_tokens[None]
    before = (marks[None] <= budgets[:, None, None]).sum(2) - 1
    natural = budgets[:, None] >= total
    tokens = np.where(natural, total, budgets[:, None]).astype(np.int32)
    at = np.where(natural, NATURAL, before).astype(np.int32)
    exact = natural | (
        np.take_along_axis(marks[None], np.maximum(at, 0)[:, :, None], 2)[:, :, 0] == tokens
    )
    return Exits(at, tokens, exact)


def probe_tokens(table: ReplayTable, exits: Exits, probes: Probes = "trial") -> NDArray[np.int64]:
    """Tokens that probing every boundary up to the exit generates, `[P, N]`; the think end counts.

    The exit's own probe is not thrown away, so it is not counted.
    """
    trial = table.trial_tokens.astype(np.int64) * (probes == "trial")
    cost = table.padded(trial + (probes != "none"), 0)
    cost[:, 0] = 0  # boundary 0 is not probed
    spent = np.concatenate([np.zeros((len(table), 1), np.int64), np.cumsum(cost, 1)], 1)
    at = np.where(exits.boundary == NATURAL, cost.shape[1], exits.boundary)
    return spent[np.arange(len(table)), at]


def certified(
    scores: Scores, replay: Replay, epsilon: float, delta: float, *, grid: int = 400
) -> float:
    """The threshold of a score under the same guarantee as SpecExit's (`specexit.calibration`).

    Thresholds are tried from safe to bold, and the last one before the losses exceed what the
    binomial test allows is taken; infinity where none passes. The grid holds quantiles of the
    scores, which looks at the calibration split's scores but never at its answers.
    """
    values = scores[np.isfinite(scores)]
    if not len(values):
        return float("inf")
    tried = np.unique(np.quantile(values, np.linspace(0, 1, grid)))
    middles = (tried[1:] + tried[:-1]) / 2
    limits = np.concatenate([[tried[0] - 1], middles, [np.inf]])[::-1]  # safe ones first
    lost = replay.outcomes(replay.exits_by_score(scores, limits)).lost.sum(1)
    fails = np.flatnonzero(lost > most_losses(len(replay.table), epsilon, delta))
    last = (int(fails[0]) if len(fails) else len(limits)) - 1
    return float(limits[max(0, last)])


def _after_start(table: ReplayTable, scores: Scores) -> Scores:
    """Boundary 0 lies before any thinking: a rule that watches thinking cannot exit there."""
    out = scores.astype(np.float64).copy()
    out[table.boundary_offsets[:-1]] = np.nan
    return out
