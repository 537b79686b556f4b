"""The demo's yardsticks: the oracle, and rules that look at the position only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from inference.study.baselines import fixed_budget
from specexit.dataset import Trace
from specexit.policy import ExitPolicy
from specexit.replay import Exits, Outcomes, Replay, ReplayTable
from specexit.statistics import bootstrap_mean, wilson


def oracle_row(traces: Sequence[Trace], seed: int) -> dict[str, Any]:
    """Exit at the minimal sufficient boundary of each trace: the limit of every policy.

    A trace without such a boundary thinks to its own end.
    """
    n = len(traces)
    right = [bool(t.correct if t.k_star is None else t.trial_correct[t.k_star]) for t in traces]
    think = [t.think_end - t.think_start if t.t_star is None else t.t_star for t in traces]
    around = [len(t.output_ids) - (t.think_end - t.think_start) for t in traces]
    return {
        "system": "oracle",
        "source": "replay",
        "n": n,
        "accuracy": sum(right) / n,
        "accuracy_ci": list(wilson(sum(right), n)),
        "lost": sum(bool(t.correct) and not r for t, r in zip(traces, right, strict=True)) / n,
        "think_tokens": sum(think) / n,
        "think_tokens_ci": list(bootstrap_mean(think, seed)),
        "output_tokens": (sum(think) + sum(around)) / n,
        "oracle_share": 1.0,
    }


def position_row(table: ReplayTable, epsilon: float, seed: int) -> dict[str, Any]:
    """Leave at the first paragraph end after B tokens, B chosen as the thresholds are.

    B is the smallest budget whose rate of lost answers on the calibration split is at most
    epsilon, the head's own limit; the row shows the test split.
    """
    calibration, test = Replay(table.of_split("calibration")), Replay(table.of_split("test"))
    budgets = _budgets(calibration)
    budget = _smallest(calibration, _exits_after(calibration, budgets), budgets, epsilon)
    exits = _exits_after(test, np.array([budget]))
    return _row("position only", test, exits, seed) | {"budget": int(budget)}


def policy_row(name: str, table: ReplayTable, policy: ExitPolicy, seed: int) -> dict[str, Any]:
    """A policy on the test split."""
    test = Replay(table.of_split("test"))
    return _row(name, test, test.exits([policy]), seed)


def budget_row(name: str, table: ReplayTable, epsilon: float, seed: int) -> dict[str, Any]:
    """vLLM's `thinking_token_budget`, chosen as the position rule's.

    It flatters that rule: live, a cut in the middle of a paragraph loses more.
    """
    calibration, test = Replay(table.of_split("calibration")), Replay(table.of_split("test"))
    budgets = _budgets(calibration)
    exits = fixed_budget(calibration.table, budgets)
    budget = _smallest(calibration, exits, budgets, epsilon)
    exits = fixed_budget(test.table, np.array([budget]))
    return _row(name, test, exits, seed) | {"budget": int(budget)}


def _row(name: str, test: Replay, exits: Exits, seed: int) -> dict[str, Any]:
    summary = test.summaries(test.outcomes(exits), intervals=True, seed=seed)[0]
    return {
        "system": name,
        "source": "replay",
        "n": summary.n,
        "accuracy": summary.accuracy,
        "accuracy_ci": list(summary.accuracy_ci or ()),
        "lost": summary.lost,
        "lost_ci": list(summary.lost_ci or ()),
        "think_tokens": summary.think_tokens,
        "think_tokens_ci": list(summary.think_tokens_ci or ()),
        "output_tokens": None,
        "oracle_share": summary.oracle_share,
    }


def _budgets(replay: Replay) -> Any:
    return np.arange(8, int(replay.think_tokens.max()) + 8, 8)


def _exits_after(replay: Replay, budgets: Any) -> Exits:
    return replay.exits_by_score(replay.table.boundaries, budgets - 0.5)


def _smallest(replay: Replay, exits: Exits, budgets: Any, epsilon: float) -> Any:
    outcomes: Outcomes = replay.outcomes(exits)
    kept = outcomes.lost.mean(1) <= epsilon
    # from the largest down, stop at the first that loses more: no lucky small budget
    bad = np.flatnonzero(~kept)
    return budgets[min(len(budgets) - 1, bad[-1] + 1 if len(bad) else 0)]
