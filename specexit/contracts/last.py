"""Take the last answer instead of the first: run the same machine again and again."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Self

from .base import Acceptor, Match


class LastAcceptor(Acceptor):
    """Keeps the latest match of a restarted inner machine.

    Commits at `close`, or, where `quiet_chars` is positive, at exactly that many characters after
    the latest match (heuristic).
    """

    __slots__ = ("_answer", "_inner", "_new_inner", "_quiet", "_since")

    def __init__(
        self, inner: Acceptor, new_inner: Callable[[], Acceptor], quiet_chars: int
    ) -> None:
        self._new_inner = new_inner
        self._inner = inner
        self._quiet = quiet_chars
        self._answer: Any | None = None
        self._since = 0

    def feed(self, text: str) -> Match | None:
        at = 0
        while at < len(text):
            piece = text[at:] if at else text
            if self._quiet and self._answer is not None:
                piece = piece[: self._quiet - self._since]
            match = self._inner.feed(piece)
            if match is not None:
                self._answer = match.answer
                self._inner = self._new_inner()
                self._since = 0
                at += match.end
                if match.end == 0:  # the ending character may begin the next answer
                    continue
            else:
                at += len(piece)
                self._since += len(piece)
                if self._answer is not None and self._quiet and self._since >= self._quiet:
                    return Match(self._answer, at)
        return None

    def close(self) -> Match | None:
        match = self._inner.close()
        answer = self._answer if match is None else match.answer
        return None if answer is None else Match(answer, 0)

    def fork(self) -> Self:
        other = copy.copy(self)
        other._inner = self._inner.fork()
        return other
