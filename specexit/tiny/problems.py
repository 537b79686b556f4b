"""Problems of the built-in reasoner: two families over one kind of step, ``left op right``.

``calculation`` is a chain of operations (an expression, or a story about one person), ``shopping``
totals the prices of several goods. Both need the same column arithmetic, so a very small model can
learn them together. Every value on the way lies in 0..999.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specexit.errors import ConfigError
from specexit.tiny import wording
from specexit.tiny.columns import apply, forgets_carry, work

FAMILIES = ("calculation", "shopping")
LETTERS = "abcdefgh"
MAX_STEPS = 6
MAX_VALUE = 999
_TRIES = 2000


@dataclass(frozen=True)
class Ref:
    """The result of an earlier step, by index."""

    index: int


Operand = int | Ref


@dataclass(frozen=True)
class Step:
    left: Operand
    op: str
    right: Operand

    def symbols(self) -> str:
        """As the plan writes it: ``45+38`` or ``a*2``."""
        return f"{_symbol(self.left)}{self.op}{_symbol(self.right)}"

    def is_literal(self) -> bool:
        return isinstance(self.left, int) and isinstance(self.right, int)


@dataclass(frozen=True)
class Problem:
    """A question with its steps; ``slip`` is the step whose carry is forgotten at first, or -1."""

    family: str
    question: str
    steps: tuple[Step, ...]
    story: bool
    slip: int

    @property
    def answer(self) -> int:
        return solve(self.steps)[-1][2]


Solved = tuple[int, int, int]  # left value, right value, result


def solve(steps: Sequence[Step], slip: int = -1) -> list[Solved]:
    """Values of every step in order; the step ``slip`` drops its carry. May leave 0..999."""
    solved: list[Solved] = []
    for index, step in enumerate(steps):
        left, right = (
            solved[operand.index][2] if isinstance(operand, Ref) else operand
            for operand in (step.left, step.right)
        )
        if index == slip:
            result = work(left, step.op, right, drop_carry=True)[1]
        else:
            result = apply(left, step.op, right)
        solved.append((left, right, result))
    return solved


def make_problem(
    rng: random.Random, *, family: str, steps: int, slip: bool, shifted: bool = False
) -> Problem:
    """Draw a problem of ``steps`` steps that makes the reasoner slip exactly once, or never.

    ``shifted`` takes the wording that training never shows. Raises ConfigError for an unknown
    family or a number of steps out of range.
    """
    if family not in _MAKERS:
        raise ConfigError(f"family: {family!r} is not one of {', '.join(FAMILIES)}")
    if not 1 <= steps <= MAX_STEPS:
        raise ConfigError(f"steps: {steps} is not in [1, {MAX_STEPS}]")
    for _ in range(_TRIES):
        drawn, question, story = _MAKERS[family](rng, steps, slip, shifted)
        slip_at = _slip_index(drawn)
        if slip_at is not None and (slip_at >= 0) == slip and len(drawn) == steps:
            return Problem(family, question, tuple(drawn), story, slip_at)
    raise RuntimeError(f"no {family} problem with {steps} steps in {_TRIES} tries")  # our fault


def _slip_index(steps: Sequence[Step]) -> int | None:
    """The one step that slips, -1 for none, None where the values or the slips do not fit."""
    true = solve(steps)
    if not steps or not _in_range(true):
        return None
    slips = _slipping(steps, true)
    if not slips:
        return -1
    if len(slips) > 1:
        return None
    wrong = solve(steps, slips[0])
    fits = _in_range(wrong) and wrong[-1][2] != true[-1][2] and _slipping(steps, wrong) == slips
    return slips[0] if fits else None


def _in_range(solved: Sequence[Solved]) -> bool:
    return all(0 <= value <= MAX_VALUE for values in solved for value in values)


def _slipping(steps: Sequence[Step], solved: Sequence[Solved]) -> list[int]:
    pairs = enumerate(zip(steps, solved, strict=True))
    return [i for i, (step, (left, right, _)) in pairs if forgets_carry(left, step.op, right)]


def _symbol(operand: Operand) -> str:
    return LETTERS[operand.index] if isinstance(operand, Ref) else str(operand)


def _amount(rng: random.Random, slip: bool) -> int:
    """A number to add or take away; while looking for a slip it often ends in nine."""
    value = rng.randint(100, 299) if rng.random() < 0.25 else rng.randint(6, 99)
    return value - value % 10 + 9 if slip and rng.random() < 0.5 else value


# --- calculation -----------------------------------------------------------------------------


def _calculation(
    rng: random.Random, count: int, slip: bool, shifted: bool
) -> tuple[list[Step], str, bool]:
    start = value = rng.randint(11, 199)
    steps: list[Step] = []
    for index in range(count):
        op = rng.choice("++--*")
        for _ in range(20):
            right = rng.randint(2, 5) if op == "*" else _amount(rng, slip and op == "+")
            if 12 <= apply(value, op, right) <= MAX_VALUE:
                break
        else:
            return [], "", False
        steps.append(Step(Ref(index - 1) if index else start, op, right))
        value = apply(value, op, right)
    story = rng.random() < 0.5
    changes = [(step.op, int(step.right)) for step in steps if isinstance(step.right, int)]
    if story:
        return steps, wording.one_person(rng, start, changes, shifted), True
    return steps, wording.expression(rng, start, changes, shifted), False


# --- shopping --------------------------------------------------------------------------------


def _shopping(
    rng: random.Random, count: int, slip: bool, shifted: bool
) -> tuple[list[Step], str, bool]:
    """Several goods at a price each: 2g-1 steps for the total of g goods, one more for change."""
    goods, pays = (count + 1) // 2, count % 2 == 0
    steps: list[Step] = []
    bought: list[tuple[int, int]] = []
    total: Operand | None = None
    value = 0
    for _ in range(goods):
        price, pieces = rng.randint(11, 20 + 150 // goods), rng.randint(2, 5)
        if slip and goods > 1 and rng.random() < 0.4:
            price, pieces = price - price % 10 + 3, 3  # the product ends in nine
        bought.append((price, pieces))
        steps.append(Step(price, "*", pieces))
        product = Ref(len(steps) - 1)
        value += price * pieces
        if total is not None:
            steps.append(Step(total, "+", product))
        total = Ref(len(steps) - 1)
    paid = 0
    if pays and total is not None:
        paid = value + rng.randint(11, 299)
        steps.append(Step(paid, "-", total))
    if slip and goods < 2:
        return [], "", True
    return steps, wording.shop(rng, bought, paid, shifted), True


_Maker = Callable[[random.Random, int, bool, bool], tuple[list[Step], str, bool]]
_MAKERS: dict[str, _Maker] = {
    "calculation": _calculation,
    "shopping": _shopping,
}
