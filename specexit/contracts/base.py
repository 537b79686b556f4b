"""What a contract and its acceptor are.

An output contract is `(V, A, pi, valid, commit)`: the answers it allows, an incremental acceptor,
the projection of a whole output onto an answer, validity, and the rule that says when the answer
is final. Here one machine, the acceptor, is both the commit rule and the projection: `project`
runs it over the whole text. It decides on what it has read and never takes a decision back, so
`commit(y)` implies `pi(y + z) = pi(y)` for every `z` by construction.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, NamedTuple, Self

from .errors import ContractError


class Match(NamedTuple):
    """A final answer found in a delta.

    `end` counts characters from the start of the delta that brought the decision: everything
    before it is kept. A character that only ends the answer (the blank after a number) is not.
    """

    answer: Any
    end: int


class Acceptor(ABC):
    """An incremental state machine over the characters of one output.

    `feed` costs time proportional to its delta; memory is bounded by the contract. After a match
    the acceptor is spent: callers feed it no more.
    """

    __slots__ = ()

    @abstractmethod
    def feed(self, text: str) -> Match | None:
        """Read `text`; return the match if the answer became final in it."""

    @abstractmethod
    def close(self) -> Match | None:
        """End of the output: accept what only lacked a terminator. `end` is 0."""

    @abstractmethod
    def fork(self) -> Self:
        """An independent copy of the state."""


@dataclass(frozen=True, kw_only=True)
class Contract(ABC):
    """Base of all contracts: a frozen value whose fields are its options."""

    name: ClassVar[str] = ""

    @property
    def heuristic(self) -> bool:
        """True where a continuation may still change the evaluator's answer after a commit."""
        return False

    @abstractmethod
    def acceptor(self) -> Acceptor:
        """A fresh machine for one output (the visible text, without thinking)."""

    def project(
        self,
        text: str,
        *,
        thinking: bool | str = "auto",
        think_start: str = "<think>",
        think_end: str = "</think>",
    ) -> Any | None:
        """The evaluator: the answer of a whole output, or None. Thinking is never read."""
        from .thinking import gate

        machine = gate(self.acceptor, thinking, think_start, think_end)
        match = machine.feed(text) or machine.close()
        return None if match is None else match.answer

    def valid(self, answer: Any) -> bool:
        """Whether `answer` lies in the contract's answer space V."""
        return self.normalise(answer) is not None

    def normalise(self, answer: Any) -> Any | None:
        """The canonical form of an answer or of a gold label, or None outside V."""
        return answer

    def equal(self, a: Any, b: Any) -> bool:
        """Whether two answers are the same answer. None equals nothing."""
        if a is None or b is None:
            return False
        left, right = self.normalise(a), self.normalise(b)
        return left is not None and right is not None and bool(left == right)

    def score(self, answer: Any, gold: Any) -> bool:
        """Whether `answer` is right, given the gold label."""
        return self.equal(answer, gold)

    def spec(self) -> dict[str, Any]:
        """A JSON-able form; `contract(c.spec()) == c`. Options at their default are left out."""
        out: dict[str, Any] = {"type": self.name}
        for field in fields(self):
            value = getattr(self, field.name)
            default = field.default
            if default is MISSING and field.default_factory is not MISSING:
                default = field.default_factory()
            if value != default:
                out[field.name] = _plain(value)
        return out

    @classmethod
    def from_spec(cls, options: dict[str, Any], path: str) -> Self:
        """Build from the options of a spec (without `type`); `path` prefixes error messages."""
        known = {field.name for field in fields(cls)}
        for key in options:
            if key not in known:
                allowed = ", ".join(sorted(known)) or "none"
                raise ContractError(
                    f"{path}.{key}: {cls.name} has no such option (options: {allowed})"
                )
        for field in fields(cls):
            required = field.default is MISSING and field.default_factory is MISSING
            if required and field.name not in options:
                raise ContractError(f"{path}.{field.name}: missing; {cls.name} needs it")
        values = cls.read_options(options, path)
        try:
            return cls(**values)
        except ContractError as error:  # the fields name themselves; say where they are
            raise ContractError(f"{path}.{error}") from None
        except TypeError as error:
            raise ContractError(f"{path}: {cls.name}: {error}") from None

    @classmethod
    def read_options(cls, options: dict[str, Any], path: str) -> dict[str, Any]:
        """Turn the JSON values of a spec into field values."""
        return {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Contract):
        return value.spec()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return json.loads(json.dumps(value))
    return value


def check_int(field: str, value: Any, low: int, high: int) -> None:
    """Raise a `ContractError` naming `field` unless `low <= value <= high`."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ContractError(f"{field}: {value!r} is not an integer in [{low}, {high}]")


def check_bool(field: str, value: Any) -> None:
    """Raise a `ContractError` naming `field` unless `value` is true or false."""
    if not isinstance(value, bool):
        raise ContractError(f"{field}: {value!r} is not true or false")


def check_choice(field: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Raise a `ContractError` naming `field` unless `value` is one of `allowed`."""
    if value not in allowed:
        raise ContractError(f"{field}: {value!r} is not one of {', '.join(allowed)}")


@dataclass(frozen=True, kw_only=True)
class Searching(Contract):
    """A contract that looks for its answer in free text, where more than one may stand.

    `evaluator: first` (default) takes the first valid answer, and commits as soon as it is final.
    `evaluator: last` takes the last one, so it commits at the end of the output only; with
    `quiet_chars: n` it also commits once n characters brought no other answer, which is a
    *heuristic*: the model may still retract.
    """

    evaluator: str = "first"
    quiet_chars: int = 0

    def __post_init__(self) -> None:
        check_choice("evaluator", self.evaluator, ("first", "last"))
        check_int("quiet_chars", self.quiet_chars, 0, 1_000_000)
        if self.quiet_chars and self.evaluator == "first":
            raise ContractError("quiet_chars: only evaluator 'last' waits; the first is final")

    @property
    def heuristic(self) -> bool:
        return self.quiet_chars > 0

    def acceptor(self) -> Acceptor:
        if self.evaluator == "first":
            return self.first()
        from .last import LastAcceptor

        return LastAcceptor(self.first(), self.again, self.quiet_chars)

    @abstractmethod
    def first(self) -> Acceptor:
        """A machine that finds the first valid answer."""

    def again(self) -> Acceptor:
        """The same machine for the text after a match, where no output begins."""
        return self.first()
