from __future__ import annotations

import random
import re

import pytest

from specexit.errors import ConfigError
from specexit.tiny.problems import FAMILIES, MAX_STEPS, Problem, make_problem, solve


def _draw(family: str, steps: int, slip: bool, shifted: bool, n: int = 15) -> list[Problem]:
    rng = random.Random(f"{family} {steps} {slip} {shifted}")
    return [
        make_problem(rng, family=family, steps=steps, slip=slip, shifted=shifted) for _ in range(n)
    ]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("steps", range(1, MAX_STEPS + 1))
@pytest.mark.parametrize("shifted", [False, True])
def test_every_value_on_the_way_is_a_boxed_integer(family: str, steps: int, shifted: bool) -> None:
    for problem in _draw(family, steps, False, shifted):
        assert len(problem.steps) == steps
        assert problem.slip == -1
        assert all(0 <= value <= 999 for values in solve(problem.steps) for value in values)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("steps", [3, 4, 6])
def test_a_slip_changes_the_answer_and_stays_in_range(family: str, steps: int) -> None:
    for problem in _draw(family, steps, True, False, n=5):
        wrong = solve(problem.steps, problem.slip)
        assert wrong[-1][2] != problem.answer
        assert all(0 <= value <= 999 for values in wrong for value in values)


def _expression(question: str) -> int:
    match = re.search(r"[\d(][\d()+*-]*\d\)?(?:[+*-]\d+)*", question)
    assert match
    return int(eval(match.group()))


def _one_person(question: str) -> int:
    first, *changes = re.findall(r"[^.]+[.?]", question)[:-1]
    value = int(re.findall(r"\d+", first)[0])
    for sentence in changes:
        amount = int(re.findall(r"\d+", sentence)[0])
        if "times" in sentence:
            value *= amount
        elif re.search(r"loses|gives|sells", sentence):
            value -= amount
        else:
            value += amount
    return value


def _shop(question: str) -> int:
    at = re.findall(r"buys (\d+) \w+ at (\d+) each", question)
    if at:
        total = sum(int(a) * int(b) for a, b in at)
    else:
        prices = {good: int(price) for good, price in re.findall(r"The (\w+) cost (\d+)", question)}
        bought = re.search(r"buys ([^.]+)\.", question)
        assert bought
        items = re.findall(r"(\d+) (\w+)", bought[1])
        total = sum(int(pieces) * prices[good] for pieces, good in items)
    paid = re.search(r"pays with (\d+)", question)
    return int(paid[1]) - total if paid else total


def _read(problem: Problem) -> int:
    """The answer as somebody who only reads the question finds it."""
    if problem.family == "shopping":
        return _shop(problem.question)
    return (_one_person if problem.story else _expression)(problem.question)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shifted", [False, True])
def test_the_question_says_what_the_steps_compute(family: str, shifted: bool) -> None:
    for steps in range(1, MAX_STEPS + 1):
        for problem in _draw(family, steps, False, shifted):
            assert _read(problem) == problem.answer, problem.question


def test_unknown_families_and_lengths_are_refused() -> None:
    rng = random.Random(0)
    with pytest.raises(ConfigError, match="'chess'"):
        make_problem(rng, family="chess", steps=2, slip=False)
    with pytest.raises(ConfigError, match="steps: 9"):
        make_problem(rng, family="shopping", steps=9, slip=False)
