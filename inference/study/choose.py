"""Choose policies on one split, show them on another: never on the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specexit.policy import ExitPolicy
from specexit.replay import NATURAL, Outcomes, Replay, Summary
from specexit.statistics import Interval, bootstrap_ratio


@dataclass(frozen=True)
class Chosen:
    """A policy and its figures.

    Attributes:
        policy: None where no policy of the family keeps the limit; then it is full thinking.
        chosen_on: figures on the split that it was chosen on.
        test: figures on the other split, with intervals.
        saved: `[n]` thinking tokens saved for each test question.
    """

    policy: ExitPolicy | None
    chosen_on: Summary
    test: Summary
    saved: NDArray[np.int64]


def best_under_limit(outcomes: Outcomes, limit: float) -> int | None:
    """Index of the policy that saves most among those with a rate of lost answers <= limit."""
    kept = np.flatnonzero(outcomes.lost.mean(1) <= limit + 1e-12)
    if not len(kept):
        return None
    tokens = outcomes.tokens.sum(1, dtype=np.int64)[kept]
    return int(kept[np.lexsort((outcomes.lost.sum(1)[kept], tokens))[0]])


def choose(
    policies: Sequence[ExitPolicy], choosing: Replay, testing: Replay, limit: float, *, seed: int
) -> Chosen:
    """The best policy under a loss limit on `choosing`, with its figures on `testing`."""
    outcomes = choosing.evaluate(policies)
    index = best_under_limit(outcomes, limit)
    policy = None if index is None else policies[index]
    return show(policy, choosing, testing, seed=seed)


def show(policy: ExitPolicy | None, choosing: Replay, testing: Replay, *, seed: int) -> Chosen:
    """Figures of one policy on both splits."""

    def on(replay: Replay) -> Outcomes:
        if policy is None:
            return replay.outcomes(replay.exits_at(np.full(len(replay.table), NATURAL)))
        return replay.evaluate([policy])

    tested = on(testing)
    return Chosen(
        policy=policy,
        chosen_on=choosing.summaries(on(choosing))[0],
        test=testing.summaries(tested, intervals=True, seed=seed)[0],
        saved=testing.think_tokens.astype(np.int64) - tested.tokens[0],
    )


def share_difference(a: Chosen, b: Chosen, testing: Replay, seed: int) -> Interval:
    """Paired interval of the difference of two oracle shares, over test questions."""
    possible = testing.think_tokens.astype(np.int64) - testing.table.t_star
    return bootstrap_ratio(a.saved - b.saved, possible, seed)


def pareto(outcomes: Outcomes) -> list[int]:
    """Indices of the policies that no other beats in both accuracy and thinking tokens.

    Sorted by tokens; of equal ones the first.
    """
    tokens = outcomes.tokens.mean(1)
    right = outcomes.correct.mean(1)
    front: list[int] = []
    best = -1.0
    for i in np.lexsort((np.arange(len(tokens)), -right, tokens)):
        if right[i] > best:
            front.append(int(i))
            best = float(right[i])
    return front
