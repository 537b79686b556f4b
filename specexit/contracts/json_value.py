r"""`json`: a complete JSON value that satisfies a schema.

- V: JSON values of the kind `root` that satisfy `schema` (JSON Schema 2020-12), so required fields
  are present; with `field`, the value of that member is the answer.
- pi and evaluator: the first such value after the thinking, prose and code fences around it or
  not. A complete value that fails the schema is passed over whole, and so is one without any key
  that is joined to a word or bracket (`\text{}`, `x[1]`). A value that breaks off *after its first
  key* (or at a limit) was meant to be the answer: the next one must then begin a line, so that
  fragments of it are no answers.
- commit: at the closing bracket. Sound under that evaluator. `}` inside a string, a fence inside a
  string, an escape that is cut in half decide nothing. A number or literal at the top level
  (`root: any`) waits for a blank.
- strict (default) means `json.loads`: raw newlines in strings and LaTeX backslashes are errors, and
  so are NaN and Infinity. `lenient: true` takes control characters and backslashes as they are
  (`\(` is two characters, but `\t` of `\times` is a tab, as JSON has it).
- duplicate keys: the last counts (as `json.loads`); `duplicate_keys: refuse` makes them an error.
- limits: `max_depth` (64), `max_chars` (100,000): beyond them a value is broken.
"""

from __future__ import annotations

import copy
import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Self

from .base import Acceptor, Match, Searching, check_bool, check_choice, check_int
from .errors import ContractError
from .json_scanner import JsonScanner, Step
from .schema import JsonSchema, value_key

ROOTS = ("object", "array", "container", "any")
_OPENING = {
    "object": re.compile(r"\{"),
    "array": re.compile(r"\["),
    "container": re.compile(r"[{\[]"),
    "any": re.compile(r"[{\[]"),
}
_TAIL = 40
_JOINED = re.compile(r"[0-9A-Za-z_\\^}\])$]")
_FENCE_INFO = re.compile(r"`{3,} ?[0-9A-Za-z]*\Z")
BROKEN = object()


class JsonAcceptor(Acceptor):
    """Looks for an opening bracket, then follows the value to its end."""

    __slots__ = (
        "_anything",
        "_contract",
        "_joined",
        "_left",
        "_line",
        "_opening",
        "_scanner",
        "_wary",
    )

    def __init__(self, contract: Json, *, fresh: bool = True) -> None:
        self._contract = contract
        self._opening = _OPENING[contract.kind]
        self._anything = contract.kind == "any" and fresh
        self._scanner: JsonScanner | None = None
        self._left = 0  # characters that the value may still have
        self._line = "" if fresh else " "  # the end of what was passed over
        self._joined = False  # the value is joined to the text before it
        self._wary = False  # a value broke: the next must begin a line

    def feed(self, text: str) -> Match | None:
        if self._scanner is None and "{" not in text and "[" not in text and not self._anything:
            self._line = (self._line + text)[-_TAIL:]  # nearly every delta of prose
            return None
        if self._scanner is not None and len(text) < self._left and self._scanner.plain(text):
            self._left -= len(text)  # nearly every delta of a value
            self._line = text
            return None
        at, size = 0, len(text)
        while at < size:
            if self._scanner is None:
                at = self._find(text, at)
                continue
            before = at
            step, at = self._scanner.feed(text, at, min(size, at + self._left))
            self._left -= at - before
            if step is Step.DONE:
                # `x[1]` and `\text{}` are no JSON, `json{"a": 1}` is.
                prose = self._joined and not self._scanner.members
                answer = None if prose else self._contract.read(self._scanner.text())
                self._leave(broken=answer is BROKEN)
                if prose:
                    self._line = text[at - 1]
                elif answer is not None and answer is not BROKEN:
                    return Match(answer, at)
            elif step is Step.BROKEN or not self._left:
                last = (self._line + text[:at])[-1:]
                self._leave(broken=True)
                self._line = " " if last == "\n" else last
        if self._scanner is not None and text:
            self._line = text
        return None

    def _leave(self, *, broken: bool) -> None:
        scanner = self._scanner
        assert scanner is not None
        meant = scanner.members > 0 or scanner.too_deep or not self._left
        self._wary = self._wary or (broken and meant)
        self._scanner = None
        self._line = " "

    def _find(self, text: str, at: int) -> int:
        """Open a scanner at the next place where a value may begin; the index to go on from."""
        if self._anything:
            blank = len(text) - len(text[at:].lstrip(" \t\r\n"))
            if blank < len(text):
                self._anything = False
                self._open()
            return blank
        found = self._opening.search(text, at)
        cut = len(text) if found is None else found.start()
        self._line = (self._line + text[at:cut])[-_TAIL:]
        if found is None:
            return cut
        line = self._line.rpartition("\n")[2]
        if self._wary and line:
            self._line += text[cut]
            return cut + 1
        self._joined = _JOINED.match(line[-1:]) is not None and not _FENCE_INFO.search(line)
        self._open()
        return cut

    def _open(self) -> None:
        self._scanner = JsonScanner(self._contract.max_depth, self._contract.lenient)
        self._left = self._contract.max_chars

    def close(self) -> Match | None:
        scanner = self._scanner
        if scanner is None or not scanner.number_may_end():
            return None
        answer = self._contract.read(scanner.text())
        return None if answer is None or answer is BROKEN else Match(answer, 0)

    def fork(self) -> Self:
        other = copy.copy(self)
        other._scanner = None if self._scanner is None else self._scanner.fork()
        return other


@dataclass(frozen=True, kw_only=True)
class Json(Searching):
    """A complete JSON value that satisfies a schema."""

    name: ClassVar[str] = "json"

    schema: Any = None
    root: str = "auto"
    field: str | None = None
    lenient: bool = False
    duplicate_keys: str = "last"
    max_depth: int = 64
    max_chars: int = 100_000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("root", self.root, ("auto", *ROOTS))
        check_bool("lenient", self.lenient)
        check_choice("duplicate_keys", self.duplicate_keys, ("last", "refuse"))
        check_int("max_depth", self.max_depth, 1, 128)
        check_int("max_chars", self.max_chars, 2, 10_000_000)
        if self.field is not None and not isinstance(self.field, str):
            raise ContractError(f"field: {self.field!r} is not the name of a member")
        if self.schema is not None:
            _schema(_frozen(self.schema))

    @property
    def kind(self) -> str:
        """The root kind; `auto` goes by the schema's type."""
        if self.root != "auto":
            return self.root
        if not isinstance(self.schema, dict) or "type" not in self.schema:
            return "container"
        kind = self.schema["type"]
        return kind if kind in ("object", "array") else "any"

    def __hash__(self) -> int:
        return hash((self.kind, self.field, _frozen(self.schema)))

    @classmethod
    def read_options(cls, options: dict[str, Any], path: str) -> dict[str, Any]:
        return options

    def first(self) -> Acceptor:
        return JsonAcceptor(self)

    def again(self) -> Acceptor:
        return JsonAcceptor(self, fresh=False)

    def read(self, text: str) -> Any:
        """The answer in a complete JSON text; None if it is not valid, `BROKEN` if not JSON."""
        try:
            value = json.loads(
                text,
                strict=not self.lenient,
                parse_constant=_refuse_constant,
                object_pairs_hook=_no_duplicates if self.duplicate_keys == "refuse" else None,
            )
        except (ValueError, RecursionError):
            return BROKEN
        return self._answer(value)

    def _answer(self, value: Any) -> Any:
        if not self._satisfies(value):
            return None
        if self.field is None:
            return value
        return value.get(self.field) if isinstance(value, dict) else None

    def _satisfies(self, value: Any) -> bool:
        kinds: dict[str, Any] = {"object": dict, "array": list, "container": (dict, list)}
        if not isinstance(value, kinds.get(self.kind, object)):
            return False
        return self.schema is None or _schema(_frozen(self.schema)).valid(value)

    def normalise(self, answer: Any) -> Any | None:
        return answer

    def valid(self, answer: Any) -> bool:
        return answer is not None and (self.field is not None or self._satisfies(answer))

    def equal(self, a: Any, b: Any) -> bool:
        """JSON equality: 1 equals 1.0 but not true, the order of members does not count."""
        if a is None or b is None:
            return False
        return json.dumps(value_key(a), sort_keys=True) == json.dumps(value_key(b), sort_keys=True)

    def score(self, answer: Any, gold: Any) -> bool:
        """As `equal`; a gold label that is JSON text is read, and texts compare without blanks."""
        if answer is None or gold is None or self.equal(answer, gold):
            return answer is not None and gold is not None
        if not isinstance(gold, str):
            return False
        try:
            if self.equal(answer, json.loads(gold)):
                return True
        except ValueError:
            pass
        return isinstance(answer, str | int | float) and str(answer).split() == gold.split()


def _frozen(schema: Any) -> str:
    return json.dumps(schema, sort_keys=True)


@lru_cache(maxsize=64)
def _schema(text: str) -> JsonSchema:
    return JsonSchema(json.loads(text), "schema")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("duplicate key")
    return dict(pairs)
