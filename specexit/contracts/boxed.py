r"""`boxed_integer` and `boxed_math`: what stands in the first box.

`boxed_integer`:

- V: integers in `[min, max]` (default 0 to 999, as in AIME), written as plain decimal text.
- pi and evaluator: the first complete `\boxed{}`/`\fbox{}` after the thinking whose content is
  such an integer; thousands separators, units, leading zeros and LaTeX dress are read through.
- commit: at the box's closing brace. Sound under that evaluator.
- A grader that takes the *last* box may differ where a model retracts: `evaluator: last` then
  commits only at the end of the output.

`boxed_math` is the same for any mathematics: V is every content that is not empty and no
placeholder, the answer is the LaTeX in the box without what dresses it, and two answers are equal
when their texts are, or their numbers, or when math-verify (extra `math`, time-limited) says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from .base import Acceptor, Searching, check_int
from .box import BoxAcceptor
from .errors import ContractError
from .latex import number_text, plain_math, tidy, unwrap
from .math_judge import same_math

_INTEGER = re.compile(r"-?[0-9]+\Z")
MAX_BOX_CHARS = 1_000
_HUGE = 10**18


@dataclass(frozen=True, kw_only=True)
class BoxedInteger(Searching):
    """An integer in a box; the answer is its plain decimal text (`"73"` for `\\boxed{073}`)."""

    name: ClassVar[str] = "boxed_integer"

    min: int = 0
    max: int = 999

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("min", self.min, -_HUGE, _HUGE)
        check_int("max", self.max, -_HUGE, _HUGE)
        if self.min > self.max:
            raise ContractError(f"max: {self.max} is below min ({self.min})")

    def first(self) -> Acceptor:
        return BoxAcceptor(self.normalise, MAX_BOX_CHARS)

    def normalise(self, answer: Any) -> str | None:
        if isinstance(answer, bool) or answer is None:
            return None
        number = number_text(str(answer)[:MAX_BOX_CHARS])
        if number is None or not _INTEGER.match(number) or len(number) > 20:
            return None
        return number if self.min <= int(number) <= self.max else None


_PLACEHOLDER = re.compile(
    r"(?:\\[lcd]?dots|\.{2,}|…|\?+|_+|(?:your |the |final )*answer(?: here)?|x{3,}|\\square)\Z",
    re.I,
)


@dataclass(frozen=True, kw_only=True)
class BoxedMath(Searching):
    """Mathematics in a box; the answer is its LaTeX."""

    name: ClassVar[str] = "boxed_math"

    def first(self) -> Acceptor:
        return BoxAcceptor(self.normalise, MAX_BOX_CHARS)

    def normalise(self, answer: Any) -> str | None:
        if isinstance(answer, bool) or answer is None:
            return None
        text = unwrap(str(answer)[:MAX_BOX_CHARS])
        says_nothing = not tidy(text).strip("\\()[]{}$.,; ")
        return None if says_nothing or _PLACEHOLDER.match(text) else text

    def equal(self, a: Any, b: Any) -> bool:
        left, right = self.normalise(a), self.normalise(b)
        if left is None or right is None:
            return False
        if plain_math(left) == plain_math(right):
            return True
        numbers = number_text(left), number_text(right)
        if None not in numbers:
            return numbers[0] == numbers[1]
        return same_math(left, right)

    def score(self, answer: Any, gold: Any) -> bool:
        return self.equal(answer, gold)
