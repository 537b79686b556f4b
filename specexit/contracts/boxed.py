r"""`boxed_integer`: the integer in the first box.

- V: integers in `[min, max]` (default 0 to 999, as in AIME), written as plain decimal text.
- pi and evaluator: the first complete `\boxed{}`/`\fbox{}` after the thinking whose content is
  such an integer; thousands separators, units, leading zeros and LaTeX dress are read through.
- commit: at the box's closing brace. Sound under that evaluator.
- A grader that takes the *last* box may differ where a model retracts: `evaluator: last` then
  commits only at the end of the output.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from .base import Acceptor, Searching, check_int
from .box import BoxAcceptor
from .errors import ContractError
from .latex import number_text

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
