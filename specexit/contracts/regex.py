r"""`regex`: text that a pattern describes.

- V: what `pattern` matches (its `group`, by name or number, where given).
- pi and evaluator: the leftmost-longest match after the thinking, so the order of alternatives
  decides nothing: `(yes|y)` and `(y|yes)` both read `yes`. A match has at most `max_chars`.
- commit: once no older and no longer match can come. Sound under that evaluator. A pattern that
  ends openly (`.*`) waits for what ends it.
- engine: a lazy automaton of our own, linear in the text (RE2 has no streaming interface; it is
  the oracle in the tests). Syntax: see `specexit.contracts.pattern`.
- Limits: pattern length, automaton states, repeats; a pattern that matches nothing is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from .automaton import Automaton
from .base import Acceptor, Searching, check_bool, check_int
from .errors import ContractError
from .limits import MAX_PATTERN_CHARS
from .pattern import compile_pattern
from .pattern_acceptor import Groups, PatternAcceptor

MAX_STATES = 500


@dataclass(frozen=True, kw_only=True)
class Regex(Searching):
    """The leftmost-longest match of a pattern."""

    name: ClassVar[str] = "regex"

    pattern: str
    group: int | str = 0
    ignore_case: bool = False
    max_chars: int = 1_000

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.pattern, str):
            raise ContractError(f"pattern: {self.pattern!r} is not a text")
        if not 0 < len(self.pattern) <= MAX_PATTERN_CHARS:
            raise ContractError(
                f"pattern: {len(self.pattern)} characters, 1 to {MAX_PATTERN_CHARS} allowed"
            )
        check_bool("ignore_case", self.ignore_case)
        check_int("max_chars", self.max_chars, 1, 10_000)
        machine = _automaton(self.pattern, self.ignore_case, self.max_chars)
        if machine.nullable():
            raise ContractError("pattern: matches the empty text, so it would commit to nothing")
        if isinstance(self.group, str):
            if self.group not in machine.program.names:
                raise ContractError(f"group: the pattern has no group named {self.group!r}")
        else:
            check_int("group", self.group, 0, machine.program.groups)

    def first(self) -> Acceptor:
        return self._machine(fresh=True)

    def again(self) -> Acceptor:
        return self._machine(fresh=False)

    def _machine(self, fresh: bool) -> Acceptor:
        machine = _automaton(self.pattern, self.ignore_case, self.max_chars)
        return PatternAcceptor(machine, self._read, fresh=fresh)

    def _read(self, groups: Groups) -> str | None:
        names = _automaton(self.pattern, self.ignore_case, self.max_chars).program.names
        return groups[names[self.group] if isinstance(self.group, str) else self.group]

    def normalise(self, answer: Any) -> str | None:
        return answer if isinstance(answer, str) else None


@lru_cache(maxsize=64)
def _automaton(pattern: str, ignore_case: bool, max_chars: int) -> Automaton:
    program = compile_pattern(pattern, max_states=MAX_STATES, ignore_case=ignore_case)
    return Automaton(program, max_chars)
