"""Replay against the sequential rule, and against tables whose answer is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specexit.errors import ConfigError
from specexit.files import read_json, write_json
from specexit.policy import SIGNALS, ExitPolicy, ExitTracker, Smoothing, Thresholds
from specexit.replay import NATURAL, Replay, ReplayTable
from tests.unit.replay.tables import known_table, random_table, trace

SMOOTHINGS = st.builds(
    Smoothing,
    kind=st.sampled_from(["ewma", "none", "mean", "paragraph_mean", "momentum"]),
    alpha=st.floats(0.01, 1.0),
    window=st.integers(1, 12),
)
POLICIES = st.builds(
    ExitPolicy,
    signals=st.sets(st.sampled_from(SIGNALS), min_size=1).map(tuple),
    thresholds=st.builds(
        Thresholds,
        confidence=st.floats(0.1, 0.9),
        progress=st.floats(0.1, 0.9),
        remain=st.floats(20, 380),
    ),
    smoothing=SMOOTHINGS,
    patience=st.integers(1, 3),
    min_think_tokens=st.integers(0, 30),
    min_boundaries=st.integers(1, 4),
    max_think_tokens=st.none() | st.integers(1, 50),
)


def sequential_exit(table: ReplayTable, i: int, policy: ExitPolicy) -> tuple[int, int, bool]:
    """Boundary, tokens and exactness of trace i's exit by `ExitTracker`, token by token."""
    tracker = ExitTracker(policy)
    marks = set(table.boundaries[table.boundaries_of(i)][1:].tolist())
    for t, signals in enumerate(table.signals[table.tokens_of(i)].tolist(), start=1):
        if tracker.update(tuple(signals), t in marks):
            return tracker.boundary, t, t in marks
    return NATURAL, int(table.think_tokens[i]), True


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.lists(POLICIES, min_size=1, max_size=8))
def test_replay_equals_the_sequential_rule(seed: int, policies: list[ExitPolicy]) -> None:
    table = random_table(seed)
    exits = Replay(table).exits(policies)
    for p, policy in enumerate(policies):
        for i in range(len(table)):
            boundary, tokens, exact = sequential_exit(table, i, policy)
            found = (exits.boundary[p, i], exits.tokens[p, i], bool(exits.is_exact[p, i]))
            if not exact and tokens == table.think_tokens[i]:
                assert found[1] == tokens  # a hard limit on the last token is the natural end
            else:
                assert found == (boundary, tokens, exact)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.05, 1.0), st.sampled_from(["default", "reference"]))
def test_step_ewma_equals_a_step_by_step_loop(seed: int, alpha: float, preset: str) -> None:
    """`default` adds the step's mean before the test, `reference` (as published) after it."""
    table = random_table(seed, steps=True)
    assert table.step is not None
    policy = ExitPolicy(
        preset=preset,
        signals=("progress",),
        thresholds=Thresholds(progress=0.5),
        smoothing=Smoothing(unit="step", alpha=alpha),
    )
    exits = Replay(table).exits([policy])
    for i in range(len(table)):
        rows, steps = table.signals[table.tokens_of(i)], table.step[table.tokens_of(i)]
        marks = table.boundaries[table.boundaries_of(i)].tolist()
        smooth, expected = float("nan"), NATURAL
        for step in np.unique(steps):
            inside = np.flatnonzero(steps == step)
            mean = float(rows[inside, 1].astype(np.float64).mean())
            updated = mean if np.isnan(smooth) else alpha * mean + (1 - alpha) * smooth
            ends = [marks.index(t + 1) for t in inside if t + 1 in marks]
            tested = smooth if preset == "reference" else updated
            if ends and tested > 0.5:
                expected = ends[0]
                break
            smooth = updated
        assert exits.boundary[0, i] == expected


def test_step_ewma_refuses_a_table_without_steps() -> None:
    policy = ExitPolicy(smoothing=Smoothing(unit="step"))
    with pytest.raises(ConfigError, match=r"record it live, or use unit: token"):
        Replay(random_table(0)).exits([policy])


def test_best_policy_of_a_noiseless_table_is_the_oracle() -> None:
    replay = Replay(known_table(50))
    policy = ExitPolicy(
        signals=("remain",), thresholds=Thresholds(remain=5), smoothing=Smoothing(kind="none")
    )
    [summary] = replay.summaries(replay.evaluate([policy]))
    assert (summary.oracle_share, summary.lost, summary.early) == (1.0, 0.0, 0.0)
    [oracle] = replay.summaries(replay.outcomes(replay.oracle()))
    assert summary.think_tokens == oracle.think_tokens == summary.oracle_think_tokens


def test_too_loose_a_threshold_loses_answers_and_passes_the_oracle() -> None:
    replay = Replay(known_table(50))
    policy = ExitPolicy(
        signals=("remain",), thresholds=Thresholds(remain=15), smoothing=Smoothing(kind="none")
    )
    outcomes = replay.evaluate([policy])
    assert (outcomes.lost[0] == (replay.table.k_star > 1)).all()
    assert (outcomes.early == outcomes.lost).all()
    assert replay.summaries(outcomes)[0].oracle_share > 1


def test_repaired_answers_are_counted_apart_from_lost_ones() -> None:
    made = trace(0, [0, 5], 10, [False, True])
    made = replace(made, correct=False, trial_correct=[False, True])
    replay = Replay(ReplayTable.from_traces([made], [np.full((10, 3), 0.9)]))
    outcomes = replay.outcomes(replay.exits_at([1]))
    assert (outcomes.gained[0, 0], outcomes.lost[0, 0], outcomes.correct[0, 0]) == (1, 0, 1)


def test_without_gold_the_full_answer_is_the_reference() -> None:
    made = trace(0, [0, 5, 8], 10, [False, False, True], gold=False)
    replay = Replay(ReplayTable.from_traces([made], [np.full((10, 3), 0.9)]))
    outcomes = replay.outcomes(replay.exits_at([[1], [2], [NATURAL]]))
    assert outcomes.lost[:, 0].tolist() == [True, False, False]


def test_disabled_policy_never_exits() -> None:
    table = random_table(3)
    policy = ExitPolicy(enabled=False, max_think_tokens=1)
    exits = Replay(table).exits([policy])
    assert (exits.boundary == NATURAL).all()
    assert (exits.tokens[0] == table.think_tokens).all()


def test_policy_of_another_step_split_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"policy\.step_split: 'discourse'"):
        Replay(random_table(0)).exits([ExitPolicy(step_split="discourse")])


def test_score_rule_exits_at_the_first_score_above_the_threshold() -> None:
    table = known_table(20)
    replay = Replay(table)
    scores = table.boundaries.astype(float)
    exits = replay.exits_by_score(scores, [-1, 0, 35, 1000])
    assert [set(row.tolist()) for row in exits.boundary] == [{0}, {1}, {4}, {NATURAL}]
    assert exits.tokens[2].tolist() == [40] * 20
    assert set(replay.exits_by_score(scores, [35], patience=3).boundary[0].tolist()) == {6}


def test_saved_table_loads_as_it_was(tmp_path: Path) -> None:
    table = random_table(5, n=30, steps=True)
    ends = table.boundaries.astype(np.float32)
    entropy = np.abs(table.signals[:, 0])
    table = replace(table, entropy=entropy, end_entropy=ends, source={"head": "h"})
    table.save(tmp_path)
    again = ReplayTable.load(tmp_path)
    for name, value in vars(table).items():
        found = getattr(again, name)
        if isinstance(value, np.ndarray):
            assert found.dtype == value.dtype, name
            assert np.array_equal(found, value), name
        else:
            assert found == value, name


def test_selected_rows_are_those_traces() -> None:
    table = random_table(6, n=10, steps=True)
    part = table.select([7, 2])
    assert part.ids == ("q7", "q2")
    assert np.array_equal(part.signals[part.tokens_of(0)], table.signals[table.tokens_of(7)])
    assert np.array_equal(
        part.boundaries[part.boundaries_of(1)], table.boundaries[table.boundaries_of(2)]
    )
    assert part.k_star.tolist() == table.k_star[[7, 2]].tolist()


def test_other_format_version_is_refused(tmp_path: Path) -> None:
    random_table(0).save(tmp_path)
    write_json(
        tmp_path / "replay.json", read_json(tmp_path / "replay.json") | {"format_version": 9}
    )
    with pytest.raises(ConfigError, match="format version 9"):
        ReplayTable.load(tmp_path)


def test_folder_that_lost_a_file_is_refused(tmp_path: Path) -> None:
    random_table(0).save(tmp_path)
    (tmp_path / "table" / "00000.parquet").unlink()
    with pytest.raises(ConfigError, match=r"holds 0 traces, its replay\.json says 12"):
        ReplayTable.load(tmp_path)


def test_folder_without_a_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="specexit replay record"):
        ReplayTable.load(tmp_path)


def test_unprobed_boundary_is_refused() -> None:
    made = replace(trace(0, [0, 5], 10, [True, True]), probed=[True, False])
    with pytest.raises(ConfigError, match="1 boundaries without a trial"):
        ReplayTable.from_traces([made], [np.full((10, 3), 0.9)])


def test_signals_of_another_length_are_refused() -> None:
    made = trace(0, [0, 5], 10, [True, True])
    with pytest.raises(ConfigError, match=r"10 thinking tokens, its signals have shape \(9, 3\)"):
        ReplayTable.from_traces([made], [np.full((9, 3), 0.9)])
    with pytest.raises(ConfigError, match="steps and signals differ in length"):
        ReplayTable.from_traces([made], [np.full((10, 3), 0.9)], steps=[np.zeros(0, np.int32)])


def test_intervals_hold_the_estimates() -> None:
    replay = Replay(known_table(200, noise=0.8, wrong=0.1))
    policy = ExitPolicy(
        signals=("remain",), thresholds=Thresholds(remain=5), smoothing=Smoothing(kind="none")
    )
    [s] = replay.summaries(replay.evaluate([policy]), intervals=True)
    assert 0 < s.lost < 1
    for name in ("accuracy", "lost", "net_loss", "think_tokens", "saving", "oracle_share"):
        low, high = getattr(s, f"{name}_ci")
        assert low < getattr(s, name) < high, name
