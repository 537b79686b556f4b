"""`final_tag`: an answer between tags, `<final>...</final>`.

- V: that of the wrapped `contract`; without one, any text that is not blank (its answer is the
  text between the tags without blanks around).
- pi and evaluator: the first tag after the thinking whose content has an answer. An opening tag
  inside the content starts it anew ("put it in <answer> tags. <answer>5</answer>"). A tag that is
  still open at the end of the output counts, if `unclosed` (default true): models often forget it.
- commit: when the wrapped contract commits on the content, at the latest at the closing tag (with
  `unclosed: false`, only there). Sound under that evaluator, if the wrapped contract is.
- `open`, `close`: the tags, taken literally. `max_chars` bounds the content.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from .base import Acceptor, Contract, Match, Searching, check_bool, check_int
from .errors import ContractError

MAX_TAG_CHARS = 100


class TextAcceptor(Acceptor):
    """Everything up to the end, without blanks around; None when blank."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[str] = []

    def feed(self, text: str) -> Match | None:
        self._parts.append(text)
        return None

    def close(self) -> Match | None:
        text = "".join(self._parts).strip()
        return Match(text, 0) if text else None

    def fork(self) -> Self:
        other = copy.copy(self)
        other._parts = self._parts.copy()
        return other


class SettledAcceptor(Acceptor):
    """Has its answer, and waits for the end of the text."""

    __slots__ = ("_answer",)

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def feed(self, text: str) -> Match | None:
        return None

    def close(self) -> Match | None:
        return Match(self._answer, 0)

    def fork(self) -> Self:
        return self


class TagAcceptor(Acceptor):
    """Hands what stands between the tags to a fresh inner acceptor."""

    __slots__ = (
        "_close",
        "_held",
        "_inner",
        "_left",
        "_max_chars",
        "_new_inner",
        "_open",
        "_unclosed",
    )

    def __init__(
        self,
        new_inner: Callable[[], Acceptor],
        opening: str,
        closing: str,
        unclosed: bool,
        max_chars: int,
    ) -> None:
        self._new_inner = new_inner
        self._open = opening
        self._close = closing
        self._unclosed = unclosed
        self._max_chars = max_chars
        self._inner: Acceptor | None = None
        self._left = 0
        self._held = ""

    def feed(self, text: str) -> Match | None:
        if not self._held and self._open[0] not in text:  # no tag begins in this delta
            if self._inner is None:
                return None
            if self._close[0] not in text:
                return self._show(text)
        carried = len(self._held)
        buffer = self._held + text
        at = 0
        while True:
            cut, tag = self._next_tag(buffer, at)
            keep = cut if tag else self._partial(buffer, at)
            match = self._show(buffer[at:keep])
            if match is not None:
                return Match(match.answer, at + match.end - carried)
            if not tag:
                self._held = buffer[keep:]
                return None
            at = cut + len(tag)
            if tag == self._open:
                self._inner = self._new_inner()
                self._left = self._max_chars
            elif self._inner is not None:
                match = self._inner.close()
                self._inner = None
                if match is not None:
                    return Match(match.answer, at - carried)

    def _tags(self) -> tuple[str, ...]:
        return (self._open,) if self._inner is None else (self._open, self._close)

    def _next_tag(self, buffer: str, at: int) -> tuple[int, str]:
        found = [(cut, tag) for tag in self._tags() if (cut := buffer.find(tag, at)) >= 0]
        return min(found) if found else (-1, "")

    def _partial(self, buffer: str, at: int) -> int:
        """The start of the tail of `buffer[at:]` that may still become a tag."""
        tags = self._tags()
        longest = max(map(len, tags)) - 1
        for cut in range(max(at, len(buffer) - longest), len(buffer)):
            tail = buffer[cut:]
            if any(tag.startswith(tail) for tag in tags):
                return cut
        return len(buffer)

    def _show(self, text: str) -> Match | None:
        if self._inner is None or not text:
            return None
        match = self._inner.feed(text[: self._left])
        if match is not None and not self._unclosed:
            self._inner, match = SettledAcceptor(match.answer), None
        if match is None:
            self._left -= len(text)
            if self._left < 0:
                self._inner = None
        return match

    def close(self) -> Match | None:
        # Two or more characters of a tag are a tag that the end cut off, not text.
        match = self._show(self._held) if len(self._held) == 1 else None
        self._held = ""
        if match is None and self._inner is not None and self._unclosed:
            match = self._inner.close()
        return None if match is None else Match(match.answer, 0)

    def fork(self) -> Self:
        other = copy.copy(self)
        other._inner = None if self._inner is None else self._inner.fork()
        return other


@dataclass(frozen=True, kw_only=True)
class FinalTag(Searching):
    """An answer between tags, read by another contract."""

    name: ClassVar[str] = "final_tag"

    contract: Contract | None = None
    open: str = "<final>"
    close: str = "</final>"
    unclosed: bool = True
    max_chars: int = 20_000

    def __post_init__(self) -> None:
        super().__post_init__()
        for field, tag in (("open", self.open), ("close", self.close)):
            if not isinstance(tag, str) or not 0 < len(tag) <= MAX_TAG_CHARS:
                raise ContractError(
                    f"{field}: {tag!r} is not a text of 1 to {MAX_TAG_CHARS} characters"
                )
        if self.open in self.close or self.close in self.open:
            raise ContractError(f"close: {self.close!r} and open {self.open!r} overlap")
        check_bool("unclosed", self.unclosed)
        check_int("max_chars", self.max_chars, 1, 1_000_000)

    @classmethod
    def read_options(cls, options: dict[str, Any], path: str) -> dict[str, Any]:
        from .registry import contract

        options = super().read_options(options, path)
        if options.get("contract") is not None:
            inner = contract(options["contract"], path=f"{path}.contract", files=False)
            options["contract"] = inner
        return options

    @property
    def heuristic(self) -> bool:
        return super().heuristic or (self.contract is not None and self.contract.heuristic)

    def first(self) -> Acceptor:
        new_inner = TextAcceptor if self.contract is None else self.contract.acceptor
        return TagAcceptor(new_inner, self.open, self.close, self.unclosed, self.max_chars)

    def normalise(self, answer: Any) -> Any | None:
        if self.contract is not None:
            return self.contract.normalise(answer)
        if not isinstance(answer, str):
            return None
        return " ".join(answer.split()) or None

    def equal(self, a: Any, b: Any) -> bool:
        if self.contract is not None:
            return self.contract.equal(a, b)
        return super().equal(a, b)

    def score(self, answer: Any, gold: Any) -> bool:
        if self.contract is not None:
            return self.contract.score(answer, gold)
        return super().score(answer, gold)
