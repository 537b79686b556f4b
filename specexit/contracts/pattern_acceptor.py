"""An acceptor that searches for a pattern and reads an answer from its groups."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Self

from .automaton import Automaton
from .base import Acceptor, Match
from .captures import Groups
from .pattern import compile_pattern
from .search import Search


@lru_cache(maxsize=64)
def automaton(pattern: str, max_chars: int) -> Automaton:
    """The automaton of a built-in pattern; its states are shared by all outputs."""
    return Automaton(compile_pattern(pattern, max_states=40_000), max_chars)


def only_group(groups: Groups) -> str | None:
    """The group that took part; the built-in patterns have one per alternative."""
    return next((group for group in groups[1:] if group is not None), None)


class PatternAcceptor(Acceptor):
    """The first match that `read` turns into an answer; other matches are passed over.

    `whole`: what the whole text may be where there is no such match; known at its end only.
    """

    __slots__ = ("_automaton", "_read", "_search", "_whole")

    def __init__(
        self,
        machine: Automaton,
        read: Callable[[Groups], Any | None],
        *,
        fresh: bool = True,
        whole: Automaton | None = None,
    ) -> None:
        self._automaton = machine
        self._read = read
        self._search = Search(machine, fresh=fresh)
        self._whole = Search(whole) if whole is not None and fresh else None

    def feed(self, text: str) -> Match | None:
        if self._whole is not None:
            self._whole.feed(text)
            if not self._whole.alive:
                self._whole = None
        at = 0
        while (found := self._search.feed(text)) is not None:
            at += found.end
            answer = self._read(found.groups)
            if answer is not None:
                return Match(answer, at)
            self._search = Search(self._automaton, fresh=False)
            text = text[found.end :]
        return None

    def close(self) -> Match | None:
        for search in (self._search, self._whole):
            found = None if search is None else search.close()
            answer = None if found is None else self._read(found.groups)
            if answer is not None:
                return Match(answer, 0)
        return None

    def fork(self) -> Self:
        other = copy.copy(self)
        other._search = self._search.fork()
        other._whole = None if self._whole is None else self._whole.fork()
        return other
