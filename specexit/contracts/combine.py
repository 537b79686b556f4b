"""Combinators: contracts made of contracts.

- `any_of`: the answer of whichever of `contracts` commits first; at the same character, and at the
  end of the output, the one listed first. V is the union.
- `all_of`: all of `contracts` have an answer; the answer is the list of theirs (or, where `names`
  are given, an object). It commits with the last of them.
- `after_think`: the wrapped contract on what stands outside thinking blocks, whatever the caller
  says about thinking: for callers that cannot be told (see `specexit.contracts.thinking`).

Each is sound under the evaluator that it runs, if its parts are.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from .base import Acceptor, Contract, Match
from .errors import ContractError
from .thinking import check_tags, gate

MAX_PARTS = 16


class AnyAcceptor(Acceptor):
    """Runs all machines side by side; the earliest match wins."""

    __slots__ = ("_machines",)

    def __init__(self, machines: list[Acceptor]) -> None:
        self._machines = machines

    def feed(self, text: str) -> Match | None:
        best: Match | None = None
        for machine in self._machines:
            match = machine.feed(text)
            if match is not None and (best is None or match.end < best.end):
                best = match
        return best

    def close(self) -> Match | None:
        return next((m for m in (machine.close() for machine in self._machines) if m), None)

    def fork(self) -> Self:
        other = copy.copy(self)
        other._machines = [machine.fork() for machine in self._machines]
        return other


class AllAcceptor(Acceptor):
    """Runs all machines side by side until each has matched."""

    __slots__ = ("_machines", "_matches", "_names")

    def __init__(self, machines: list[Acceptor], names: tuple[str, ...]) -> None:
        self._machines = machines
        self._names = names
        self._matches: list[Match | None] = [None] * len(machines)

    def feed(self, text: str) -> Match | None:
        end = 0
        for index, machine in enumerate(self._machines):
            if self._matches[index] is None:
                match = self._matches[index] = machine.feed(text)
                end = end if match is None else max(end, match.end)
        return self._match(end)

    def close(self) -> Match | None:
        for index, machine in enumerate(self._machines):
            if self._matches[index] is None:
                self._matches[index] = machine.close()
        return self._match(0)

    def _match(self, end: int) -> Match | None:
        answers = [match.answer for match in self._matches if match is not None]
        if len(answers) < len(self._machines):
            return None
        return Match(dict(zip(self._names, answers, strict=True)) if self._names else answers, end)

    def fork(self) -> Self:
        other = copy.copy(self)
        other._machines = [machine.fork() for machine in self._machines]
        other._matches = self._matches.copy()
        return other


@dataclass(frozen=True, kw_only=True)
class _Parts(Contract):
    contracts: tuple[Contract, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.contracts, tuple) or not 0 < len(self.contracts) <= MAX_PARTS:
            raise ContractError(f"contracts: not a list of 1 to {MAX_PARTS} contracts")
        for index, part in enumerate(self.contracts):
            if not isinstance(part, Contract):
                raise ContractError(f"contracts[{index}]: {part!r} is not a contract")

    @classmethod
    def read_options(cls, options: dict[str, Any], path: str) -> dict[str, Any]:
        from .registry import contract

        options = super().read_options(options, path)
        parts = options.get("contracts")
        if isinstance(parts, tuple):
            options["contracts"] = tuple(
                contract(part, path=f"{path}.contracts[{index}]", files=False)
                for index, part in enumerate(parts)
            )
        return options

    @property
    def heuristic(self) -> bool:
        return any(part.heuristic for part in self.contracts)


@dataclass(frozen=True, kw_only=True)
class AnyOf(_Parts):
    """Whichever contract commits first."""

    name: ClassVar[str] = "any_of"

    def acceptor(self) -> Acceptor:
        return AnyAcceptor([part.acceptor() for part in self.contracts])

    def valid(self, answer: Any) -> bool:
        return any(part.valid(answer) for part in self.contracts)

    def equal(self, a: Any, b: Any) -> bool:
        return any(part.equal(a, b) for part in self.contracts)

    def score(self, answer: Any, gold: Any) -> bool:
        return any(part.score(answer, gold) for part in self.contracts)


@dataclass(frozen=True, kw_only=True)
class AllOf(_Parts):
    """Every contract; the answer is the list (or object) of their answers."""

    name: ClassVar[str] = "all_of"

    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.names and (
            len(set(self.names)) != len(self.contracts) or len(self.names) != len(self.contracts)
        ):
            raise ContractError(f"names: not {len(self.contracts)} different names")

    def acceptor(self) -> Acceptor:
        return AllAcceptor([part.acceptor() for part in self.contracts], self.names)

    def _answers(self, answer: Any) -> list[Any] | None:
        """The parts' answers, in order."""
        if self.names and isinstance(answer, dict) and set(answer) == set(self.names):
            return [answer[name] for name in self.names]
        whole = not self.names and isinstance(answer, list | tuple)
        return list(answer) if whole and len(answer) == len(self.contracts) else None

    def valid(self, answer: Any) -> bool:
        answers = self._answers(answer)
        return answers is not None and all(
            part.valid(item) for part, item in zip(self.contracts, answers, strict=True)
        )

    def equal(self, a: Any, b: Any) -> bool:
        left, right = self._answers(a), self._answers(b)
        if left is None or right is None:
            return False
        return all(
            part.equal(*pair) for part, *pair in zip(self.contracts, left, right, strict=True)
        )

    def score(self, answer: Any, gold: Any) -> bool:
        left, right = self._answers(answer), self._answers(gold)
        if left is None or right is None:
            return False
        return all(
            part.score(*pair) for part, *pair in zip(self.contracts, left, right, strict=True)
        )


@dataclass(frozen=True, kw_only=True)
class AfterThink(Contract):
    """A contract on the text outside thinking blocks."""

    name: ClassVar[str] = "after_think"

    contract: Contract
    thinking: bool | str = "auto"
    think_start: str = "<think>"
    think_end: str = "</think>"

    def __post_init__(self) -> None:
        if not isinstance(self.contract, Contract):
            raise ContractError(f"contract: {self.contract!r} is not a contract")
        check_tags(self.thinking, self.think_start, self.think_end)

    @classmethod
    def read_options(cls, options: dict[str, Any], path: str) -> dict[str, Any]:
        from .registry import contract

        options = super().read_options(options, path)
        if "contract" in options:
            inner = contract(options["contract"], path=f"{path}.contract", files=False)
            options["contract"] = inner
        return options

    @property
    def heuristic(self) -> bool:
        return self.contract.heuristic

    def acceptor(self) -> Acceptor:
        return gate(self.contract.acceptor, self.thinking, self.think_start, self.think_end)

    def valid(self, answer: Any) -> bool:
        return self.contract.valid(answer)

    def equal(self, a: Any, b: Any) -> bool:
        return self.contract.equal(a, b)

    def score(self, answer: Any, gold: Any) -> bool:
        return self.contract.score(answer, gold)
