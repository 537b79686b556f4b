"""Where policies exit on recorded traces, and what that costs: vectorised over policies.

The rule is `specexit.policy.ExitTracker`'s; the two are equal on every table (property test).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specexit.errors import ConfigError
from specexit.policy import SIGNALS, ExitPolicy, Smoothing
from specexit.replay.smoothing import smoothed_at_boundaries
from specexit.replay.summary import Summary, summarise
from specexit.replay.table import ReplayTable

NATURAL = -1
"""Exit boundary of a trace that thinks to its own end."""
_BLOCK = 1 << 19  # (policy, trace, boundary) cells compared at once

IntArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]


class Exits(NamedTuple):
    """Where P policies end the thinking of N traces.

    Attributes:
        boundary: `[P, N] int32`, the boundary of the exit, `NATURAL` where there is none. An exit
            between two boundaries (a hard limit) has the one before it.
        tokens: `[P, N] int32`, thinking tokens generated.
        is_exact: `[P, N] bool`, False for exits between boundaries: no trial answer was recorded
            there, so that of the boundary before stands in.
    """

    boundary: IntArray
    tokens: IntArray
    is_exact: BoolArray


class Outcomes(NamedTuple):
    """What P policies do to N traces, each array `[P, N]`.

    Attributes:
        boundary, tokens, is_exact: as in `Exits`.
        answer_tokens: tokens of the answer after the thinking.
        correct: the answer is right. Without gold, the full output's answer counts as right.
        lost: right with full thinking, wrong after the exit.
        gained: wrong with full thinking, right after the exit.
        early: the exit came before the minimal sufficient boundary (or there is none).
    """

    boundary: IntArray
    tokens: IntArray
    is_exact: BoolArray
    answer_tokens: IntArray
    correct: BoolArray
    lost: BoolArray
    gained: BoolArray
    early: BoolArray


class Replay:
    """Evaluates policies on one table. Smoothed signals are computed once per smoothing."""

    def __init__(self, table: ReplayTable) -> None:
        self.table = table
        self.think_tokens = table.think_tokens
        natural_correct = np.where(table.full_correct < 0, 1, table.full_correct)
        correct = np.where(table.correct < 0, table.agrees, table.correct)
        has_gold = np.repeat(table.full_correct >= 0, np.diff(table.boundary_offsets))
        correct = np.where(has_gold, correct, table.agrees)
        # [N, K + 2]: boundaries 0..K, then the natural end in the last column
        self._correct = self._with_natural(correct.astype(bool), natural_correct.astype(bool))
        self._tokens = self._with_natural(table.boundaries, self.think_tokens)
        self._answer = self._with_natural(table.trial_tokens, table.answer_tokens)
        self._marks = table.padded(table.boundaries, np.iinfo(np.int32).max)[:, 1:]  # [N, K]
        self._smoothed: dict[tuple[Any, ...], NDArray[np.float64]] = {}

    def evaluate(self, policies: Sequence[ExitPolicy]) -> Outcomes:
        """Outcomes of each policy, in order."""
        return self.outcomes(self.exits(policies))

    def exits(self, policies: Sequence[ExitPolicy]) -> Exits:
        """Where each policy exits.

        Raises:
            ConfigError: a policy splits steps in another way than the table, or needs recorded
                steps that it lacks.
        """
        shape = (len(policies), len(self.table))
        boundary, tokens = np.full(shape, NATURAL, np.int32), np.zeros(shape, np.int32)
        is_exact = np.ones(shape, bool)
        groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for i, policy in enumerate(policies):
            groups[_group_key(policy)].append(i)
        for members in groups.values():
            for rows in _blocks(members, self._marks.size):
                part = self._exits_of_group([policies[i] for i in rows])
                boundary[rows], tokens[rows], is_exact[rows] = part
        return Exits(boundary, tokens, is_exact)

    def exits_by_score(
        self, scores: ArrayLike, thresholds: ArrayLike, *, patience: int = 1
    ) -> Exits:
        """Exits of the rule "first boundary whose score is above the threshold".

        Args:
            scores: `[sum (K + 1)]`, one number a boundary (boundary 0 included), NaN never exits.
            thresholds: `[P]`.
            patience: consecutive boundaries that must be above.
        """
        padded = self.table.padded(np.asarray(scores, np.float64), np.nan)
        limits = np.asarray(thresholds, np.float64).reshape(-1)
        parts = []
        for rows in _blocks(range(len(limits)), padded.size):
            passes = _streaks(padded > limits[rows][:, None, None], patience)
            hit = passes.any(2)
            parts.append(np.where(hit, passes.argmax(2), NATURAL))
        return self.exits_at(np.concatenate(parts))

    def exits_at(self, boundary: ArrayLike) -> Exits:
        """Exits at given boundaries: `[P, N]` or `[N]`, `NATURAL` for none."""
        at = np.atleast_2d(np.asarray(boundary, np.int32))
        return Exits(at, self._look_up(self._tokens, at), np.ones(at.shape, bool))

    def oracle(self) -> Exits:
        """Exits at the minimal sufficient boundary: the limit for what keeps every answer."""
        return self.exits_at(self.table.k_star)

    def outcomes(self, exits: Exits) -> Outcomes:
        """Judge exits by the recorded trial answers."""
        at = exits.boundary
        correct = self._look_up(self._correct, at)
        full = self._correct[:, -1]
        k_star = self.table.k_star
        early = (at != NATURAL) & ((at < k_star) | (k_star < 0))
        return Outcomes(
            boundary=at,
            tokens=exits.tokens,
            is_exact=exits.is_exact,
            answer_tokens=self._look_up(self._answer, at),
            correct=correct,
            lost=full & ~correct,
            gained=~full & correct,
            early=early,
        )

    def summaries(
        self, outcomes: Outcomes, *, intervals: bool = False, seed: int = 0
    ) -> list[Summary]:
        """One `Summary` a policy; with bootstrap intervals over questions if asked."""
        table = self.table
        return [
            summarise(
                full_correct=self._correct[:, -1],
                think_full=self.think_tokens,
                think_oracle=table.t_star,
                correct=outcomes.correct[i],
                lost=outcomes.lost[i],
                gained=outcomes.gained[i],
                early=outcomes.early[i],
                think=outcomes.tokens[i],
                answer=outcomes.answer_tokens[i],
                exited=outcomes.boundary[i] != NATURAL,
                is_exact=outcomes.is_exact[i],
                seed=seed if intervals else None,
            )
            for i in range(len(outcomes.tokens))
        ]

    def smoothed(self, smoothing: Smoothing, *, reference: bool = False) -> NDArray[np.float64]:
        """Smoothed signals `[3, N, K]` after boundaries 1..K, NaN beyond a trace's last one."""
        key = (smoothing.kind, smoothing.alpha, smoothing.unit, smoothing.window, reference)
        if key not in self._smoothed:
            flat = smoothed_at_boundaries(self.table, smoothing, reference=reference)
            columns = [self.table.padded(flat[:, c], np.nan)[:, 1:] for c in range(3)]
            self._smoothed[key] = np.ascontiguousarray(np.stack(columns))
        return self._smoothed[key]

    def _exits_of_group(self, policies: list[ExitPolicy]) -> tuple[IntArray, IntArray, BoolArray]:
        """Exits of policies that differ in their thresholds only: `[P, N]` each."""
        first = policies[0]
        if first.step_split != self.table.step_split:
            raise ConfigError(
                f"policy.step_split: {first.step_split!r}, but the replay table was recorded with "
                f"{self.table.step_split!r}; record another table or change the policy"
            )
        marks, total = self._marks, self.think_tokens
        shape = (len(policies), *marks.shape)
        hits = np.zeros(shape, bool)
        if first.enabled:
            hits = self._passes(policies, shape)
            if first.max_think_tokens is not None:
                hits |= (marks >= first.max_think_tokens) & (marks <= total[:, None])
        hit = hits.any(2)
        at = np.where(hit, hits.argmax(2) + 1, NATURAL).astype(np.int32)
        tokens = self._look_up(self._tokens, at)
        is_exact = np.ones(at.shape, bool)
        hard = first.hard_limit if first.enabled else None
        if hard is not None and (over := tokens > hard).any():
            before = (marks <= hard).sum(1).astype(np.int32)
            at = np.where(over, before, at)
            tokens = np.where(over, np.int32(hard), tokens)
            is_exact = ~over
        return at, tokens, is_exact

    def _passes(self, policies: list[ExitPolicy], shape: tuple[int, ...]) -> BoolArray:
        """Where the signals end the thinking, `[P, N, K]`."""
        first = policies[0]
        if not first.signals:
            return np.zeros(shape, bool)
        reference = first.preset == "reference"
        smoothed = self.smoothed(first.smoothing, reference=reference)
        passes: BoolArray | None = None
        for name in first.signals:
            limits = np.array([getattr(p.thresholds, name) for p in policies])[:, None, None]
            values = smoothed[SIGNALS.index(name)]
            ok = values < limits if name == "remain" else values > limits
            passes = ok if passes is None else np.logical_and(passes, ok, out=passes)
        assert passes is not None
        if reference:
            passes &= self._first_of_step()
        passes = _streaks(passes, first.patience)
        if first.min_boundaries > 1:
            passes[:, :, : first.min_boundaries - 1] = False
        if first.min_think_tokens > 0:
            passes &= self._marks >= first.min_think_tokens
        return passes

    def _first_of_step(self) -> BoolArray:
        """Whether each boundary `[N, K]` is the first one in its verification step."""
        table = self.table
        assert table.step is not None  # the smoothing has refused tables without steps
        trace = np.repeat(np.arange(len(table)), np.diff(table.boundary_offsets))
        token = np.maximum(table.token_offsets[trace] + table.boundaries - 1, 0)
        steps = table.padded(table.step[token], NATURAL)[:, 1:]
        return np.concatenate(
            [np.ones((len(table), 1), bool), steps[:, 1:] != steps[:, :-1]], axis=1
        )[:, : steps.shape[1]]

    def _with_natural(self, column: NDArray[Any], natural: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([self.table.padded(column, 0), natural[:, None]], axis=1)

    def _look_up(self, table: NDArray[Any], boundary: NDArray[Any]) -> NDArray[Any]:
        """`table [N, K + 2]` at `boundary [P, N]`; `NATURAL` reads the last column."""
        return table[np.arange(len(table)), boundary]


def _streaks(passes: BoolArray, patience: int) -> BoolArray:
    """Whether the last `patience` boundaries all pass; `passes [..., K]`."""
    out = passes
    for back in range(1, min(patience, passes.shape[-1] + 1)):
        shifted = np.zeros_like(passes)
        shifted[..., back:] = passes[..., : passes.shape[-1] - back]
        out = out & shifted
    return out


def _group_key(policy: ExitPolicy) -> tuple[Any, ...]:
    s = policy.smoothing
    return (
        policy.enabled,
        policy.preset,
        policy.signals,
        (s.kind, s.alpha, s.unit, s.window),
        policy.patience,
        policy.min_think_tokens,
        policy.min_boundaries,
        policy.max_think_tokens,
        policy.step_split,
    )


def _blocks(members: Sequence[int], cells: int) -> Iterator[list[int]]:
    size = max(1, _BLOCK // max(1, cells))
    for start in range(0, len(members), size):
        yield list(members[start : start + size])
