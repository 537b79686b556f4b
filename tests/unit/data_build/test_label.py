"""Labels of the signals."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_build.config import Label
from data_build.label import answer_confidence, distance_labels, make_labels, window_confidence


@given(st.integers(1, 60), st.data())
def test_progress_and_remain_meet_at_the_sufficient_token(tokens: int, data: st.DataObject) -> None:
    t_star = data.draw(st.integers(0, tokens))
    progress, remain = distance_labels(tokens, t_star)
    for t in range(1, tokens + 1):
        assert 0 < progress[t - 1] <= 1
        assert remain[t - 1] == max(0, t_star - t)
        assert (progress[t - 1] == 1) == (t >= t_star)
        if t <= t_star:
            assert progress[t - 1] == t / t_star


def test_confidence_of_a_paragraph_is_that_of_the_boundary_that_ends_it() -> None:
    # Boundaries at 0, 2 and 5 of 7 tokens; 3 stands for the end of the thinking.
    assert answer_confidence(7, [0, 2, 5], {0: 0.1, 1: 0.2, 2: 0.5, 3: 1.0}) == (
        [0.2] * 2 + [0.5] * 3 + [1.0] * 2
    )


def test_confidence_between_probes_lies_on_the_line_and_outside_it_is_flat() -> None:
    known = {1: 0.2, 3: 0.6}
    values = answer_confidence(5, [0, 1, 2, 3, 4], known)
    assert values == pytest.approx([0.2, 0.4, 0.6, 0.6, 0.6])


def test_window_confidence_starts_over_in_each_paragraph() -> None:
    logprobs = [-1.0, -3.0, -0.5, -0.5]
    assert window_confidence([0, 2], logprobs) == pytest.approx(
        [math.exp(-1), math.exp(-2), math.exp(-0.5), math.exp(-0.5)]
    )


def labels(**settings: object) -> list[list[float]]:
    made = make_labels(
        Label(**settings),  # type: ignore[arg-type]
        tokens=4,
        boundaries=[0, 1, 3],
        t_star=3,
        trial_logprob={0: math.log(0.9), 1: math.log(0.8), 2: math.log(0.7)},
        agrees={0: False, 1: False, 2: True},
        answer_logprob=math.log(0.6),
        token_logprobs=[-1.0] * 4,
    )
    return [made.confidence, made.progress, made.remain]


def test_a_confident_but_disagreeing_trial_counts_nothing_with_answer_agrees() -> None:
    assert labels(confidence="answer")[0] == pytest.approx([0.8, 0.7, 0.7, 0.6])
    assert labels(confidence="answer_agrees")[0] == pytest.approx([0.0, 0.7, 0.7, 0.6])


def test_the_redundant_tail_can_be_cut() -> None:
    assert [len(x) for x in labels()] == [4, 4, 4]
    assert [len(x) for x in labels(keep_redundant=False)] == [3, 3, 3]


def test_no_thinking_needed_means_progress_one_everywhere() -> None:
    assert distance_labels(3, 0) == ([1.0] * 3, [0.0] * 3)
