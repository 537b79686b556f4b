"""What the built-in reasoner should write: a plan, the steps, then more re-checks than it needs.

A trace is a list of paragraphs. After ``derivation_end`` of them the right answer stands there;
all that follow are redundant, and each states the current answer. Where the problem makes the
reasoner slip, the first pass ends in a wrong answer, a re-check finds the forgotten carry, and the
later steps are done again: only then is the derivation at its end.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from specexit.tiny.columns import work
from specexit.tiny.problems import LETTERS, Problem, Solved, solve

# How many redundant paragraphs more or fewer than `expected_redundancy`; the middle one is also
# what greedy decoding does, since its stop probability passes one half there.
_SPREAD = (-2, -1, 0, 1, 2)
_SPREAD_WEIGHTS = (0.04, 0.14, 0.64, 0.14, 0.04)
_GUESS_AT_RANDOM = 0.5


@dataclass(frozen=True)
class Trace:
    """Thinking as paragraphs, with what the reasoner would answer after each of them.

    ``beliefs[k]`` is the answer after k paragraphs (``len(paragraphs) + 1`` entries); None where
    nothing has been derived that could be one, see `guess`.
    """

    paragraphs: tuple[str, ...]
    beliefs: tuple[int | None, ...]
    reached: tuple[int, ...]
    derivation_end: int
    answer: int

    @property
    def thinking(self) -> str:
        return "\n\n".join(self.paragraphs)

    @property
    def answer_text(self) -> str:
        return answer_text(self.answer)

    def guess(self, boundary: int, rng: random.Random) -> int:
        """The answer to train for an exit after ``boundary`` paragraphs.

        Before an answer is derived this is a guess: half the time the value reached so far, else
        any number, so the low confidence there is built in and not learnt.
        """
        belief = self.beliefs[boundary]
        if belief is not None:
            return belief
        return rng.randint(0, 999) if rng.random() < _GUESS_AT_RANDOM else self.reached[boundary]


def answer_text(answer: int) -> str:
    return f"The answer is \\boxed{{{answer}}}."


def expected_redundancy(problem: Problem) -> int:
    """Redundant paragraphs that the problem makes likely: more for long ones, products, stories."""
    products = sum(step.op == "*" for step in problem.steps)
    return 2 + (len(problem.steps) + 1) // 2 + min(products, 2) + int(problem.story)


def make_trace(problem: Problem, rng: random.Random) -> Trace:
    return _Writer(problem, rng).trace()


class _Writer:
    def __init__(self, problem: Problem, rng: random.Random) -> None:
        self.problem, self.rng = problem, rng
        self.true = solve(problem.steps)
        self.now = solve(problem.steps, problem.slip)
        self.paragraphs: list[str] = []
        self.beliefs: list[int | None] = [None]
        first = problem.steps[0].left
        assert isinstance(first, int)
        self.reached = [first]

    def trace(self) -> Trace:
        problem, count = self.problem, len(self.problem.steps)
        self._add(self._plan(), None, self.reached[0])
        for index in range(count):
            opening = "First" if index == 0 else "Next"
            self._derive(index, opening, last=index == count - 1)
        redundant = expected_redundancy(problem)
        redundant += self.rng.choices(_SPREAD, _SPREAD_WEIGHTS)[0]
        end = len(self.paragraphs)
        recapped = problem.story
        if recapped:
            self._recap()
            redundant -= 1
        checked = 0
        if problem.slip >= 0:
            for index in range(problem.slip):
                self._check(index)
            self._correct(problem.slip)
            for index in range(problem.slip + 1, count):
                self._derive(index, "Then", last=index == count - 1)
            end, checked = len(self.paragraphs), count
            redundant = max(1, redundant - problem.slip - 1)
        stated, again = False, 0
        for _ in range(redundant):
            if checked < count:
                self._check(checked)
                checked += 1
            elif not recapped:
                self._recap()
                recapped = True
            elif not stated:
                self._state()
                stated = True
            else:
                self._check(again % count, once_more=True)
                again += 1
        return Trace(
            tuple(self.paragraphs), tuple(self.beliefs), tuple(self.reached), end, problem.answer
        )

    def _add(self, text: str, belief: int | None, reached: int) -> None:
        self.paragraphs.append(text)
        self.beliefs.append(belief)
        self.reached.append(reached)

    def _plan(self) -> str:
        steps = self.problem.steps
        named = ", ".join(f"{LETTERS[i]}={step.symbols()}" for i, step in enumerate(steps))
        return f"{self.rng.choice(('Okay, I need', 'Okay, the plan is'))} {named}."

    def _worked(self, index: int, values: Solved, *, drop_carry: bool = False) -> str:
        """``b=a*2=83*2. Ones 3*2=6, tens 8*2=16, so b=166``"""
        step, (left, right, _) = self.problem.steps[index], values
        name = LETTERS[index]
        columns, result = work(left, step.op, right, drop_carry=drop_carry)
        assert result == values[2]
        head = f"{name}={step.symbols()}"
        if not step.is_literal():
            head += f"={left}{step.op}{right}"
        return f"{head}. {columns.capitalize()}, so {name}={result}"

    def _derive(self, index: int, opening: str, *, last: bool) -> None:
        values = self.now[index]
        drop = index == self.problem.slip and opening != "Then"
        text = f"{opening}, {self._worked(index, values, drop_carry=drop)}."
        if last:
            text += f" The answer is {values[2]}."
        self._add(text, values[2] if last else None, values[2])

    def _check(self, index: int, *, once_more: bool = False) -> None:
        """Go over one step again; it agrees."""
        opening = self.rng.choice(("Wait, let me check", "Wait, let me check", "Let me verify"))
        if once_more:
            opening = "Once more,"
        worked = self._worked(index, self.now[index])
        answer = self.now[-1][2]
        self._add(f"{opening} {worked}. Yes, the answer is {answer}.", answer, answer)

    def _correct(self, index: int) -> None:
        """Go over the step that slipped, and find the carry."""
        wrong, self.now = self.now[index][2], self.true
        worked = self._worked(index, self.true[index])
        text = f"Wait, let me check {worked}, not {wrong}. I forgot the carry."
        last = index == len(self.true) - 1
        result = self.true[index][2]
        if last:
            text += f" The answer is {result}."
        self._add(text, result if last else None, result)

    def _recap(self) -> None:
        parts = [
            f"{LETTERS[i]}={left}{step.op}{right}={result}"
            for i, (step, (left, right, result)) in enumerate(
                zip(self.problem.steps, self.now, strict=True)
            )
        ]
        answer = self.now[-1][2]
        text = f"Let me go over it again, {', '.join(parts)}. So the answer is {answer}."
        self._add(text, answer, answer)

    def _state(self) -> None:
        answer = self.now[-1][2]
        opening = self.rng.choice(("Hmm, I am sure that", "Hmm, it all agrees that"))
        self._add(f"{opening} the answer is {answer}.", answer, answer)
