r"""`report`: an agent's report with required fields and sections.

- V: objects that hold a text for every name in `fields` and `sections`; with `values`, only certain
  texts for a field.
- A *field* is a line `Name: value` (markdown around the name, a list mark before it); its value is
  the rest of that line and must not be blank. The first valid one counts.
- A *section* is a heading line (`## Name`, `**Name**`, `Name:` alone on its line) and the lines up
  to the next heading (any markdown heading, or a required name) or the `end` line; they must not
  all be blank. The first such section counts.
- pi and evaluator: the object of these texts, when all are present.
- commit: when the last required part is over: a field at the end of its line, a section at the end
  of the line that ends it. So give `end` (such as `END OF REPORT`) where a section comes last, or
  it waits for the end of the output. Sound under that evaluator.
- Headings and fields inside code fences are text.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from .base import Acceptor, Contract, Match, check_int
from .errors import ContractError

MAX_NAMES = 64
MAX_NAME_CHARS = 100
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_HEADING = re.compile(r"#{1,6}[ \t]")
_MARKS = " \t*_`"
_BULLET = re.compile(r"(?:[-*+>]\s+|#{1,6}\s+|[0-9]{1,3}[.)]\s+)?")
_COLON = re.compile("[:：]")
_LONGEST = 2 * MAX_NAME_CHARS  # where a line's name must be over


def _key(name: str) -> str:
    """Names compare without case, runs of blanks, numbering and markdown marks."""
    return re.sub(r"\s+", " ", re.sub(r"\A\d+[.)]\s*", "", name.strip(_MARKS))).casefold()


def _split(text: str) -> tuple[str, str]:
    """Name and value of a line `- **Name:** value`; empty where there is no name."""
    colon = _COLON.search(text, 0, _LONGEST)
    if colon is None:
        return "", ""
    begin = _BULLET.match(text).end()  # type: ignore[union-attr]
    return _key(text[begin : colon.start()]), text[colon.end() :].strip(_MARKS)


class ReportAcceptor(Acceptor):
    """Reads line by line; keeps the parts found so far and the open section."""

    __slots__ = ("_contract", "_fence", "_found", "_left", "_line", "_open", "_section", "_words")

    def __init__(self, contract: Report) -> None:
        self._contract = contract
        self._line: list[str] = []
        self._fence = ""
        self._found: dict[str, str] = {}
        self._open: str | None = None  # the section that is being read
        self._section: list[str] = []
        self._left = contract.max_chars
        words = {_key(name).split()[0] for name in contract.names}
        self._words = tuple(words | ({contract.end.casefold()} if contract.end else set()))

    def feed(self, text: str) -> Match | None:
        if "\n" not in text and len(text) <= self._left:
            self._left -= len(text)
            self._line.append(text)
            return None
        if self._left <= 0 and not self._line:
            return None  # past the limit nothing is read
        at = 0
        while True:
            cut = text.find("\n", at)
            piece = (text[at:] if cut < 0 else text[at:cut])[: max(0, self._left)]
            self._left -= len(piece)
            if piece:
                self._line.append(piece)
            if cut < 0:
                return None
            if self._end_line():
                return Match(self._answer(), cut)
            at = cut + 1

    def _end_line(self) -> bool:
        """A line is over; whether the report is complete now."""
        line = "".join(self._line)
        self._line = []
        fence = _FENCE.match(line)
        if self._fence:
            if fence and fence[1].startswith(self._fence) and not line.strip(" `~"):
                self._fence = ""
            self._keep(line)
            return False
        if fence:
            self._fence = fence[1]
            self._keep(line)
            return False
        lowered = line.casefold()
        if lowered.lstrip()[:1] != "#" and not any(word in lowered for word in self._words):
            self._keep(line)  # neither a heading nor a field
            return False
        name, is_heading = self._heading(line)
        if is_heading:
            self._close_section()
            wanted = name in self._contract.section_keys and name not in self._found
            self._open = name if wanted else None
        elif not self._read_field(line):
            self._keep(line)
        return self._complete()

    def _heading(self, line: str) -> tuple[str, bool]:
        """The name of a heading, and whether the line is one that ends a section."""
        text = line.strip()
        if self._contract.end and text == self._contract.end:
            return "", True
        if _HEADING.match(text):
            name = _key(text.strip("# \t").strip(_MARKS + ":："))
            return name, _split(text)[0] not in self._contract.field_keys
        name = _key(text.strip(_MARKS + "-+:：")) if len(text) <= _LONGEST else ""
        return name, name in self._contract.section_keys

    def _read_field(self, line: str) -> bool:
        name, value = _split(line.strip())
        if name not in self._contract.field_keys or name in self._found or not value:
            return False
        allowed = self._contract.allowed(name)
        if allowed is not None:
            forms = {text.casefold(): text for text in allowed}
            if value.rstrip(".").casefold() not in forms:
                return False
            value = forms[value.rstrip(".").casefold()]
        self._found[name] = value
        return True

    def _keep(self, line: str) -> None:
        if self._open is not None:
            self._section.append(line)

    def _close_section(self) -> None:
        text = "\n".join(self._section).strip()
        if self._open is not None and text:
            self._found[self._open] = text
        self._open = None
        self._section = []

    def _complete(self) -> bool:
        return len(self._found) == len(self._contract.names)

    def _answer(self) -> dict[str, str]:
        return {name: self._found[_key(name)] for name in self._contract.names}

    def close(self) -> Match | None:
        if self._line:
            self._end_line()
        self._close_section()
        return Match(self._answer(), 0) if self._complete() else None

    def fork(self) -> Self:
        other = copy.copy(self)
        other._line = self._line.copy()
        other._found = self._found.copy()
        other._section = self._section.copy()
        return other


@dataclass(frozen=True, kw_only=True)
class Report(Contract):
    """Required fields and sections."""

    name: ClassVar[str] = "report"

    fields: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()
    values: dict[str, list[str]] = field(default_factory=dict)
    end: str = ""
    max_chars: int = 200_000

    def __post_init__(self) -> None:
        check_int("max_chars", self.max_chars, 1, 10_000_000)
        if not isinstance(self.end, str) or len(self.end) > MAX_NAME_CHARS:
            raise ContractError(f"end: not a text of at most {MAX_NAME_CHARS} characters")
        seen: set[str] = set()
        for option, names in (("fields", self.fields), ("sections", self.sections)):
            if not isinstance(names, tuple) or len(names) > MAX_NAMES:
                raise ContractError(f"{option}: not a list of at most {MAX_NAMES} names")
            for index, name in enumerate(names):
                where = f"{option}[{index}]"
                if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS:
                    raise ContractError(f"{where}: not a text of 1 to {MAX_NAME_CHARS} characters")
                if not _key(name) or re.search(r"[*_`:：\n]", name):
                    raise ContractError(f"{where}: {name!r} holds one of * _ ` : or a newline")
                if _key(name) in seen:
                    raise ContractError(f"{where}: {name!r} is there twice")
                seen.add(_key(name))
        if not seen:
            raise ContractError("fields: name at least one field, or one section in sections")
        self._check_values()

    def _check_values(self) -> None:
        if not isinstance(self.values, dict):
            raise ContractError("values: not an object of lists")
        for name, allowed in self.values.items():
            if _key(name) not in self.field_keys:
                raise ContractError(f"values.{name}: no such field in fields")
            texts = isinstance(allowed, list) and all(isinstance(text, str) for text in allowed)
            if not texts or not allowed:
                raise ContractError(f"values.{name}: not a list of texts")

    def __hash__(self) -> int:
        return hash((self.fields, self.sections, self.end, self.max_chars))

    @classmethod
    def read_options(cls, options: dict[str, Any], path: str) -> dict[str, Any]:
        return {
            key: tuple(value) if key != "values" and isinstance(value, list) else value
            for key, value in options.items()
        }

    @property
    def names(self) -> tuple[str, ...]:
        """Every required name, as the contract writes it."""
        return self.fields + self.sections

    @property
    def field_keys(self) -> frozenset[str]:
        """The fields' names in the form in which they compare."""
        return frozenset(map(_key, self.fields))

    @property
    def section_keys(self) -> frozenset[str]:
        """The sections' names in the form in which they compare."""
        return frozenset(map(_key, self.sections))

    def allowed(self, key: str) -> list[str] | None:
        """The texts that a field may have; None where any will do."""
        return next((texts for name, texts in self.values.items() if _key(name) == key), None)

    def acceptor(self) -> Acceptor:
        return ReportAcceptor(self)

    def normalise(self, answer: Any) -> dict[str, str] | None:
        if not isinstance(answer, dict):
            return None
        given = {_key(str(name)): value for name, value in answer.items()}
        out = {}
        for name in self.names:
            value = given.get(_key(name))
            if not isinstance(value, str) or not value.strip():
                return None
            out[name] = " ".join(value.split())
        return out
