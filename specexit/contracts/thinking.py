"""Keep thinking away from an acceptor.

The gate reads the raw stream, cuts out thinking blocks and hands the rest to the inner acceptor.
Three ways to start:

- `True`: the prompt opened the thinking; the first think end closes it.
- `False`: no thinking; the inner acceptor reads everything (no gate at all).
- `"auto"`: a think start opens thinking. A think end *without* a start says that everything
  before it was thinking. Since that end may always still come, text without any tag commits only
  at the end of the stream: sound, but nothing is saved. Say `False` where you know.

Later blocks are cut out as well. A think end while no block is open, after thinking has been
seen, is plain text. A think start inside thinking changes nothing (blocks do not nest).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Self

from .base import Acceptor, Match
from .errors import ContractError

Thinking = bool | str
MAX_TAG_CHARS = 256


def gate(
    new_inner: Callable[[], Acceptor], thinking: Thinking, think_start: str, think_end: str
) -> Acceptor:
    """The acceptor that reads a raw stream for the acceptor that `new_inner` makes."""
    check_tags(thinking, think_start, think_end)
    if thinking is False:
        return new_inner()
    return ThinkGate(
        new_inner, "thinking" if thinking is True else "unknown", think_start, think_end
    )


def check_tags(thinking: Thinking, think_start: str, think_end: str) -> None:
    """Raise a `ContractError` for an unknown mode or a tag that cannot be told apart."""
    if thinking not in (True, False, "auto") or (
        isinstance(thinking, int) and thinking not in (0, 1)
    ):
        raise ContractError(f"thinking: {thinking!r} is not true, false or 'auto'")
    for field, tag in (("think_start", think_start), ("think_end", think_end)):
        if not isinstance(tag, str) or not 0 < len(tag) <= MAX_TAG_CHARS:
            raise ContractError(
                f"{field}: {tag!r} is not a text of 1 to {MAX_TAG_CHARS} characters"
            )
    if think_start in think_end or think_end in think_start:
        raise ContractError(f"think_end: {think_end!r} and think_start {think_start!r} overlap")


class ThinkGate(Acceptor):
    """Hand the text outside thinking blocks to `inner`; hold back what may become a tag."""

    __slots__ = (
        "_end",
        "_end_mark",
        "_held",
        "_inner",
        "_new_inner",
        "_pending",
        "_phase",
        "_start",
        "_start_mark",
    )

    def __init__(
        self,
        new_inner: Callable[[], Acceptor],
        phase: Literal["thinking", "unknown", "visible"],
        think_start: str,
        think_end: str,
    ) -> None:
        self._new_inner = new_inner
        self._inner = new_inner()
        self._phase = phase
        self._start = think_start
        self._end = think_end
        self._start_mark = think_start[0]
        self._end_mark = think_end[0]
        self._held = ""
        self._pending: Match | None = None

    def feed(self, text: str) -> Match | None:
        held = self._held
        if not held:
            # The common case in a few operations: no tag begins in this delta.
            if self._phase == "thinking":
                if self._end_mark not in text:
                    return None
            elif self._start_mark not in text:
                if self._phase == "visible":
                    return self._inner.feed(text)
                if self._end_mark not in text:
                    if self._pending is None:
                        self._pending = self._inner.feed(text)
                    return None
        return self._scan(held + text, len(held))

    def _scan(self, buffer: str, carried: int) -> Match | None:
        """Read `buffer`, whose first `carried` characters came with earlier deltas."""
        at = 0
        while True:
            cut, tag = self._next_tag(buffer, at)
            if tag is None:
                keep = self._partial(buffer, at)
                self._held = buffer[keep:]
                return self._show(buffer, at, keep, carried)
            match = self._show(buffer, at, cut, carried)
            if match is not None:
                return match
            at = cut + len(tag)
            if tag == self._end:
                if self._phase == "unknown":
                    self._inner = self._new_inner()
                    self._pending = None
                self._phase = "visible"
            else:
                self._phase = "thinking"
                if self._pending is not None:
                    return Match(self._pending.answer, cut - carried)

    def _tags(self) -> tuple[str, ...]:
        if self._phase == "thinking":
            return (self._end,)
        return (self._start,) if self._phase == "visible" else (self._start, self._end)

    def _next_tag(self, buffer: str, at: int) -> tuple[int, str | None]:
        """Where the next tag that matters in this phase begins, and which one it is."""
        found: list[tuple[int, str]] = []
        for tag in self._tags():
            cut = buffer.find(tag, at)
            if cut >= 0:
                found.append((cut, tag))
        return min(found) if found else (-1, None)

    def _partial(self, buffer: str, at: int) -> int:
        """The start of the longest tail of `buffer[at:]` that may still become a tag."""
        longest = max(map(len, self._tags())) - 1
        for cut in range(max(at, len(buffer) - longest), len(buffer)):
            tail = buffer[cut:]
            if any(tag.startswith(tail) for tag in self._tags()):
                return cut
        return len(buffer)

    def _show(self, buffer: str, at: int, cut: int, carried: int) -> Match | None:
        """Hand `buffer[at:cut]` to the inner acceptor, unless it is thinking."""
        if self._phase == "thinking" or at == cut or self._pending is not None:
            return None
        match = self._inner.feed(buffer[at:cut])
        if match is None:
            return None
        if self._phase == "unknown":
            self._pending = match
            return None
        return Match(match.answer, at + match.end - carried)

    def close(self) -> Match | None:
        if self._phase == "thinking":
            return None
        if self._pending is not None:
            return Match(self._pending.answer, 0)
        match = self._inner.feed(self._held) if self._held else None
        self._held = ""
        match = match or self._inner.close()
        return None if match is None else Match(match.answer, 0)

    def fork(self) -> Self:
        other = object.__new__(type(self))
        for slot in ThinkGate.__slots__:
            setattr(other, slot, getattr(self, slot))
        other._inner = self._inner.fork()
        return other
