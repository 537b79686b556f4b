"""Choosing, fronts and the ablation's rows, on tables whose answer is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference.study import ablate
from inference.study.ablate import AblateSettings
from inference.study.choose import best_under_limit, choose, pareto
from inference.study.families import Grid, families, subsets, thresholds_grid
from specexit.errors import ConfigError
from specexit.files import read_json
from specexit.policy import SIGNALS, Smoothing
from specexit.replay import Replay
from tests.unit.replay.tables import known_table, random_table

NONE = Smoothing(kind="none")


def test_seven_subsets_of_three_signals() -> None:
    assert len(set(subsets())) == 7
    assert {name for names in subsets() for name in names} == set(SIGNALS)


def test_thresholds_never_lie_on_a_recorded_value() -> None:
    replay = Replay(random_table(1, n=40))
    seen = replay.smoothed(NONE)[2].ravel()
    limits = [p.thresholds.remain for p in thresholds_grid(replay, ("remain",), NONE, Grid(50))]
    assert not np.isin(limits[:-1], seen).any()
    assert limits == sorted(limits)


def test_chosen_policy_keeps_the_limit_where_it_was_chosen() -> None:
    choosing, testing = (Replay(known_table(400, seed=s, noise=0.5)) for s in (0, 1))
    policies = thresholds_grid(choosing, ("remain",), NONE, Grid())
    chosen = choose(policies, choosing, testing, 0.02, seed=0)
    assert chosen.chosen_on.lost <= 0.02
    others = choosing.summaries(choosing.evaluate(policies))
    assert all(s.lost > 0.02 or s.think_tokens >= chosen.chosen_on.think_tokens for s in others)
    assert chosen.test.lost_ci is not None


def test_no_policy_under_the_limit_means_full_thinking() -> None:
    replay = Replay(known_table(100, shuffled=True))
    bold = thresholds_grid(replay, ("remain",), NONE, Grid(4))[-1:]
    assert best_under_limit(replay.evaluate(bold), 0.0) is None
    chosen = choose(bold, replay, replay, 0.0, seed=0)
    assert chosen.policy is None
    assert (chosen.test.saving, chosen.test.lost) == (0.0, 0.0)


def test_front_holds_exactly_the_policies_that_nothing_beats() -> None:
    replay = Replay(known_table(200, noise=0.8))
    policies = thresholds_grid(replay, ("remain", "progress"), NONE, Grid(10, 10))
    outcomes = replay.evaluate(policies)
    front = pareto(outcomes)
    points = list(zip(outcomes.tokens.mean(1), outcomes.correct.mean(1), strict=True))
    on_front = {points[i] for i in front}
    for tokens, right in points:
        beaten = any((t <= tokens and r >= right) and (t < tokens or r > right) for t, r in points)
        assert beaten == ((tokens, right) not in on_front)


def test_informative_signal_wins_over_uninformative_ones(tmp_path: Path) -> None:
    table = known_table(800, seed=4, noise=0.3)
    splits = ("calibration",) * 500 + ("test",) * 300
    replace(table, splits=splits, source={"kind": "memory"}).save(tmp_path / "table")
    report = tmp_path / "report.json"
    overrides = [f"tables={{m: {tmp_path / 'table'}}}", "grid_alone=40", "grid_together=4"]
    overrides += ["alphas=[0.3]", "patience=[1, 2]", "min_think_tokens=[0]"]
    assert ablate.main(["-q", "--json", str(report), *overrides]) == 0
    result = read_json(report)
    signals = {
        row["name"]: row["test"]["oracle_share"]
        for row in result["rows"]
        if row["axis"] == "signals" and row["limit"] == 0.01
    }
    assert len(signals) == 7
    assert signals["remain"] > 0.6
    assert signals["confidence"] < 0.2
    best = result["best"]["m"][-1]
    assert "remain" in best["policy"]["signals"]
    assert best["chosen_on"]["lost"] <= 0.01
    for row in result["rows"]:
        low, high = row["share_difference_ci"]
        assert low <= row["share_difference"] <= high


def test_families_cover_every_axis() -> None:
    replay = Replay(random_table(2, n=30, steps=True))
    made = families(replay, grid=Grid(5, 3))
    names: dict[str, list[str]] = {}
    for family in made:
        names.setdefault(family.axis, []).append(family.name)
        assert family.policies
    assert len(names["signals"]) == 7
    kinds = names["smoothing, remain"]
    for start in ("none", "token EWMA", "step EWMA", "mean of", "paragraph mean", "momentum"):
        assert any(name.startswith(start) for name in kinds), start
    assert names["patience"] == ["1", "2", "3"]


def test_live_confirmation_without_a_head_is_refused(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    settings = AblateSettings(
        tables={"m": str(tmp_path)}, live=ablate.LiveSettings(data=str(tmp_path))
    )
    assert settings.live is not None
    with pytest.raises(ConfigError, match="no folder for m"):
        ablate._confirm(settings, settings.live, rows, quiet=True)
