"""Rows of the bench's table: time figures of live systems, and rules replayed on the table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from inference.study import baselines
from inference.study.baselines import Baseline, Probes, Scores
from inference.study.compare import Question, begins
from inference.study.timed import Timed, seconds_to_valid
from specexit.calibration import most_losses
from specexit.replay import Exits, Replay, ReplayTable
from specexit.think import ThinkFormat

log = logging.getLogger(__name__)

Scored = tuple[str, str, Probes, Scores, Scores]
"""Name, publication, what it probes, scores on the calibration and on the test split."""


def timing(
    questions: Sequence[Question],
    many: Sequence[Timed],
    alone: Sequence[Timed],
    wall: float,
    tags: tuple[str, str],
    think: ThinkFormat,
) -> dict[str, Any]:
    """Time figures of one system.

    Args:
        many: answers of the batched run, which took `wall` seconds; `alone` of the other one.
    """
    seconds = np.array([a.seconds for a in alone])
    valid = [
        s
        for q, a in zip(questions, alone, strict=False)
        if (s := seconds_to_valid(q, a, tags, begins(q, a, think))) is not None
    ]
    answered = sum(
        seconds_to_valid(q, a, tags, begins(q, a, think)) is not None
        for q, a in zip(questions, many, strict=True)
    )
    return {
        "latency_s": float(seconds.mean()),
        "latency_p50_s": float(np.quantile(seconds, 0.5)),
        "latency_p99_s": float(np.quantile(seconds, 0.99)),
        "latency_n": len(alone),
        "ttva_s": float(np.mean(valid)) if valid else None,
        "ttva_n": len(valid),
        "tokens_per_s": sum(len(a.token_ids) for a in many) / wall,
        "valid_answers_per_s": answered / wall,
        "probe_tokens": sum(a.probe_tokens for a in many) / len(many),
        "latency_think_and_answer_tokens": sum(len(a.token_ids) for a in alone) / len(alone),
    }


def replay_rows(
    calibration: Replay,
    test: Replay,
    epsilon: float,
    delta: float,
    *,
    more: Sequence[Scored] = (),
    seed: int = 0,
) -> list[dict[str, Any]]:
    """The oracle and the baselines on the test split, each with its certified threshold.

    Args:
        more: further scored rules, such as trained probes.
    """
    rules = [b for b in baselines.BASELINES if _has_columns(test.table, b)]
    scored: list[Scored] = [
        (b.name, b.source, b.probes, b.score(calibration.table), b.score(test.table)) for b in rules
    ]
    rows = [_replay_row("oracle", "", test, test.oracle(), "none", seed)]
    for name, source, probes, on_calibration, on_test in [*scored, *more]:
        limit = baselines.certified(on_calibration, calibration, epsilon, delta)
        exits = test.exits_by_score(on_test, [limit])
        row = _replay_row(name, source, test, exits, probes, seed)
        rows.append(row | {"threshold": limit if np.isfinite(limit) else None})
    return rows


def certified_on(
    calibration: Replay, score: Callable[[ReplayTable], Scores], epsilon: float, delta: float
) -> float:
    """A live baseline's threshold, with the same guarantee as SpecExit's."""
    return baselines.certified(score(calibration.table), calibration, epsilon, delta)


def budget_of(calibration: Replay, epsilon: float, delta: float) -> int:
    """The smallest budget, from the largest down, whose losses the binomial test still allows."""
    budgets = np.arange(int(calibration.think_tokens.max()) + 8, 7, -8)
    exits = baselines.fixed_budget(calibration.table, budgets)
    lost = calibration.outcomes(exits).lost.sum(1)
    fails = np.flatnonzero(lost > most_losses(len(calibration.table), epsilon, delta))
    return int(budgets[max(0, (int(fails[0]) if len(fails) else len(budgets)) - 1)])


def _replay_row(
    name: str, source: str, test: Replay, exits: Exits, probes: Probes, seed: int
) -> dict[str, Any]:
    [s] = test.summaries(test.outcomes(exits), intervals=True, seed=seed)
    probed = float(baselines.probe_tokens(test.table, exits, probes).mean())
    return {
        "system": name,
        "source": "replay",
        "published": source or None,
        "n": s.n,
        "accuracy": s.accuracy,
        "accuracy_ci": list(s.accuracy_ci or ()),
        "lost": s.lost,
        "lost_ci": list(s.lost_ci or ()),
        "think_tokens": s.think_tokens,
        "think_tokens_ci": list(s.think_tokens_ci or ()),
        "output_tokens": None,  # trial answers end at their commit, those of live rows do not
        "probe_tokens": probed,
        "oracle_share": s.as_json()["oracle_share"],
        "latency_s": None,
        "ttva_s": None,
        "acceptance_length": None,
    }


def _has_columns(table: ReplayTable, rule: Baseline) -> bool:
    needs = {"paragraph entropy": table.entropy, "entropy after </think>": table.end_entropy}
    if rule.name in needs and needs[rule.name] is None:
        log.warning("%s: left out, the table has no entropies (record it offline)", rule.name)
        return False
    return True
