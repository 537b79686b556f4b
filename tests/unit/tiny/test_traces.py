from __future__ import annotations

import random
import re

import pytest

from specexit.tiny.data import problems
from specexit.tiny.problems import Problem, make_problem
from specexit.tiny.traces import Trace, expected_redundancy, make_trace


@pytest.fixture(scope="module")
def main_set() -> list[tuple[Problem, Trace]]:
    return list(problems("heldout", 150, seed=5)) + list(problems("shifted", 100, seed=5))


def test_the_right_answer_stands_from_the_derivations_end_on(
    main_set: list[tuple[Problem, Trace]],
) -> None:
    for problem, trace in main_set:
        assert all(belief == problem.answer for belief in trace.beliefs[trace.derivation_end :])
        assert all(belief != problem.answer for belief in trace.beliefs[: trace.derivation_end])


def test_redundant_paragraphs_state_the_current_answer(
    main_set: list[tuple[Problem, Trace]],
) -> None:
    for problem, trace in main_set:
        assert len(trace.paragraphs) > trace.derivation_end
        for text in trace.paragraphs[trace.derivation_end :]:
            assert f"the answer is {problem.answer}." in text


def test_a_slip_is_corrected_before_the_derivations_end(
    main_set: list[tuple[Problem, Trace]],
) -> None:
    for problem, trace in main_set:
        said = [i for i, text in enumerate(trace.paragraphs) if "I forgot the carry" in text]
        assert len(said) == (problem.slip >= 0)
        if said:
            assert said[0] < trace.derivation_end
            wrong = trace.beliefs[len(problem.steps) + 1]
            assert wrong is not None
            assert wrong != problem.answer


def test_every_equation_holds_but_the_slip(main_set: list[tuple[Problem, Trace]]) -> None:
    for problem, trace in main_set:
        false = 0
        for column in re.findall(r"(?:nes|ens|eds) ([\d+*-]+)=(\d+)", trace.thinking):
            assert eval(column[0]) == int(column[1])
        for left, columns, result in re.findall(
            r"(\d+[+*-]\d+)\. (Ones[^.]*), so [a-f]=(\d+)", trace.thinking
        ):
            del columns
            false += eval(left) != int(result)
        assert false == (problem.slip >= 0)


def test_redundancy_follows_the_problem() -> None:
    rng = random.Random(1)
    short = make_problem(rng, family="calculation", steps=1, slip=False)
    long = make_problem(rng, family="shopping", steps=6, slip=False)
    assert expected_redundancy(long) > expected_redundancy(short)
    counts = [len(make_trace(long, rng).paragraphs) - 7 for _ in range(200)]
    assert max(set(counts), key=counts.count) == expected_redundancy(long)
    assert len(set(counts)) > 1


def test_guesses_come_only_before_an_answer_is_derived() -> None:
    rng = random.Random(2)
    problem = make_problem(rng, family="calculation", steps=3, slip=True)
    trace = make_trace(problem, rng)
    early = {trace.guess(1, rng) for _ in range(50)}
    assert len(early) > 10
    uncorrected = {trace.guess(4, rng) for _ in range(50)}
    assert uncorrected == {trace.beliefs[4]}
    assert {trace.guess(len(trace.paragraphs), rng) for _ in range(50)} == {problem.answer}
