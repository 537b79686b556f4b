"""Rows of the bench: keys, thresholds under the guarantee, times read off deltas."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from inference.study import baselines, bench_replay
from inference.study.bench_rows import budget_of, replay_rows, timing
from inference.study.compare import Question, begins, is_right, think_tokens
from inference.study.systems import Answered
from inference.study.timed import Timed, seconds_to_valid
from specexit.calibration import most_losses
from specexit.replay import Replay
from specexit.think import ThinkFormat
from tests.unit.replay.tables import known_table

TAGS = ("<think>", "</think>")
THINK = ThinkFormat((1,), (2,))
QUESTION = Question("q", "", [1], "7", '{"type": "boxed_integer"}', 0)


def test_budget_is_the_smallest_whose_losses_are_allowed() -> None:
    replay = Replay(known_table(400, noise=0.3))
    budget = budget_of(replay, 0.05, 0.1)
    allowed = most_losses(400, 0.05, 0.1)
    exits = baselines.fixed_budget(replay.table, np.array([budget, budget - 8]))
    lost = replay.outcomes(exits).lost.sum(1)
    assert lost[0] <= allowed < lost[1]


def test_replayed_rows_hold_the_documented_keys() -> None:
    table = known_table(400, noise=0.3)
    table = replace(table, entropy=table.signals[:, 0])
    replay = Replay(table)
    rows = replay_rows(replay, Replay(known_table(300, seed=1)), 0.02, 0.1)
    rows += replay_rows(replay, replay, 0.02, 0.1)
    names = [row["system"] for row in rows]
    assert "oracle" in names
    assert "paragraph entropy" in names
    for row in rows:
        for key in ("n", "accuracy", "accuracy_ci", "think_tokens", "lost"):
            assert row[key] is not None, key
        assert {"output_tokens", "latency_s", "ttva_s", "acceptance_length"} <= row.keys()
        assert "oracle_share" in row
    assert next(r for r in rows if r["system"] == "oracle")["oracle_share"] == 1.0


def test_time_to_a_valid_answer_is_that_of_the_closing_brace() -> None:
    deltas = [(1.0, "<think>\nit is \\boxed{3}"), (2.0, "</think> so \\boxed{7"), (3.0, "}. Bye")]
    answered = Timed(seconds=4.0, deltas=deltas)
    assert seconds_to_valid(QUESTION, answered, TAGS) == 3.0
    assert seconds_to_valid(QUESTION, Timed(seconds=4.0, deltas=deltas[:2]), TAGS) is None


def test_timing_counts_valid_answers_against_the_wall_clock() -> None:
    good = Timed(token_ids=[1] * 10, seconds=2.0, deltas=[(1.5, "</think>\\boxed{7}")])
    bad = Timed(token_ids=[1] * 30, seconds=4.0, deltas=[(4.0, "</think>none")])
    found = timing([QUESTION] * 2, [good, bad], [good, bad], 8.0, TAGS, THINK)
    assert found["latency_s"] == 3.0
    assert (found["ttva_s"], found["ttva_n"]) == (1.5, 1)
    assert found["tokens_per_s"] == 5.0
    assert found["valid_answers_per_s"] == 1 / 8


def test_replay_speed_is_measured_on_the_asked_number_of_traces() -> None:
    result = bench_replay.measure(bench_replay.random_table(50, 0), repeats=1)
    assert result["traces"] == 50
    assert result["policies_per_s"] > 0
    assert result["policies"] == len(bench_replay.grid())


def test_text_that_begins_inside_the_thinking_is_read_as_such() -> None:
    """The prompt opened the thinking, as the templates of reasoning models do."""
    opened = replace(QUESTION, prompt_ids=[5, *THINK.start_ids], gold="7")
    cut_off = Answered(token_ids=[6] * 9, text="maybe \\boxed{7}? wait, check")
    assert not is_right(opened, cut_off, THINK)
    assert think_tokens(opened, cut_off, THINK) == 9
    answered = Answered(token_ids=[6, 2, 6], text="is it?</think>\\boxed{7}")
    assert is_right(opened, answered, THINK)


def test_answer_without_thinking_counts_no_thinking_token() -> None:
    opened = replace(QUESTION, prompt_ids=[5, *THINK.start_ids], gold="7")
    deltas = [(1.0, "\\boxed{7}"), (9.0, ". Bye")]
    given = Timed(
        token_ids=[6] * 4, text="\\boxed{7}. Bye", seconds=9.0, deltas=deltas, suffix=THINK.end_ids
    )
    assert is_right(opened, given, THINK)
    assert think_tokens(opened, given, THINK) == 0
    assert seconds_to_valid(opened, given, TAGS, begins(opened, given, THINK)) == 1.0
