"""Search a stream for the leftmost-longest match of a pattern, in linear time.

A match is reported once nothing older or longer can still come, so what is reported is what
`search` with longest-match semantics finds in the whole text, whatever follows. RE2 in its
longest-match mode is the oracle in the tests.

Time: one dictionary look-up for a delta whose effect is known (`Node.leaps`), one per character
where it is not, else at most proportional to the pattern. Memory, of the text: what the oldest
living attempt covers, at most `max_chars`.
"""

from __future__ import annotations

import copy
from collections import deque
from typing import NamedTuple, Self

from .automaton import Automaton, Leap, Node
from .captures import Groups, captures

MAX_LEAP = 24  # characters of a delta whose effect is remembered; tokens are shorter


class Found(NamedTuple):
    """The match: its groups (0 is the whole), and `end` as in `Match`."""

    groups: Groups
    end: int


class Search:
    """One search through one stream."""

    __slots__ = (
        "_automaton",
        "_best",
        "_kept",
        "_kept_at",
        "_last",
        "_node",
        "_position",
        "_starts",
    )

    def __init__(self, automaton: Automaton, *, fresh: bool = True) -> None:
        """`fresh=False`: the search begins in the middle of a text (after a blank)."""
        self._automaton = automaton
        self._last = "" if fresh else " "  # the last delta that was not empty
        self._node = automaton.root(self._last)
        self._starts: list[int] = []  # of the living attempts, oldest first
        self._best: tuple[int, int] | None = None
        self._position = 0
        self._kept: deque[str] = deque()  # the text, from before the oldest attempt on
        self._kept_at = 0  # where it begins

    def feed(self, text: str) -> Found | None:
        """Read `text`; the match if nothing that follows can change it."""
        leap = self._node.leaps.get(text)
        if leap is None:
            return self._read(text) if text else None
        if self._starts or leap.origins:
            return self._jump(leap, text)
        self._node = leap.node  # nearly every delta: nothing lives, nothing begins
        self._position += len(text)
        self._last = text
        return None

    def _jump(self, leap: Leap, text: str) -> Found | None:
        """Take a known move, unless it is too long for the oldest attempt."""
        starts, base = self._starts, self._position
        end = base + len(text)
        if starts and end - starts[0] >= self._automaton.max_chars:
            return self._read(text)
        self._node, origins = leap
        if origins is not None:
            starts = self._starts = [starts[o] if o >= 0 else base - 1 - o for o in origins]
        if starts or self._best is not None:
            self._keep(base, text)
        else:
            self._kept.clear()
        self._position = end
        self._last = text
        return None

    def _read(self, text: str) -> Found | None:
        """As `feed`, character by character; remember the effect where that is possible."""
        base, size, at = self._position, len(text), 0
        before, old, best = self._node, self._starts, self._best
        dropped = False
        while at < size:
            if self._node.idle and self._automaton.skip is not None:
                at = self._skip(text, at)
                if at == size:
                    break
            # No attempt passes its limit before `stop`.
            oldest = self._starts[0] if self._starts else base + at
            at, over = self._walk(
                text, at, min(size, oldest + self._automaton.max_chars - base), base
            )
            if over:
                return self._report(base, text, at)
            if self._starts and base + at - self._starts[0] >= self._automaton.max_chars:
                dropped = True
                self._starts = self._starts[1:]
                self._node = self._automaton.without_oldest(self._node)
                if self._node.locked and not self._node.groups:
                    return self._report(base, text, at)
        if self._starts or self._best is not None:
            self._keep(base, text)
        else:
            self._kept.clear()
        self._position = base + size
        self._last = text
        if size <= MAX_LEAP and not dropped and self._best is best:
            self._automaton.remember(before, text, self._leap(before, old, base))
        return None

    def _skip(self, text: str, at: int) -> int:
        """Go to where an attempt can begin, from a node without any."""
        skip = self._automaton.skip
        assert skip is not None
        if at:
            found = skip.search(text, at)
            cut = len(text) if found is None else found.start()
        else:
            found = skip.search(self._last[-1] + text, 1)
            cut = len(text) if found is None else found.start() - 1
        if cut:
            self._node = self._automaton.root(text[cut - 1])
        return cut

    def _walk(self, text: str, at: int, stop: int, base: int) -> tuple[int, bool]:
        """Take moves up to `stop`, or to where the search is over or no attempt lives.

        Gives the index behind the last character used, and whether the search is over.
        """
        node, automaton = self._node, self._automaton
        for index in range(at, stop):
            char = text[index]
            move = node.moves.get(char) or automaton.move(node, char)
            node = move.node
            if move.plain:
                continue
            here, starts = base + index, self._starts
            if move.before is not None:
                self._best = (starts[move.before], here)
            if move.after is not None:
                self._best = (here if move.after < 0 else starts[move.after], here + 1)
            if move.sources is not None:
                self._starts = [here if s < 0 else starts[s] for s in move.sources]
            if not node.groups:
                if node.locked:
                    self._node = node
                    return index + (move.after is not None), True
                if automaton.skip is not None:
                    self._node = node
                    return index + 1, False
        self._node = node
        return stop, False

    def _leap(self, before: Node, old: list[int], base: int) -> Leap:
        """The effect of the delta just read, which began at `base`."""
        if self._starts == old:
            return Leap(self._node, None)
        origins = (base - 1 - s if s >= base else old.index(s) for s in self._starts)
        return Leap(self._node, tuple(origins))

    def _keep(self, base: int, text: str) -> None:
        """Keep `text` for the match, and what precedes it from one character before the oldest."""
        kept = self._kept
        if not kept:
            last = self._last[-MAX_LEAP:]
            kept.append(last)
            self._kept_at = base - len(last)
        starts, best = self._starts, self._best
        oldest = starts[0] if starts else base + len(text)
        if best is not None and best[0] < oldest:
            oldest = best[0]
        if len(text) > MAX_LEAP and oldest - 1 > base:  # a long piece is not kept whole
            kept.clear()
            self._kept_at = oldest - 1
            text = text[oldest - 1 - base :]
        kept.append(text)
        while self._kept_at + len(kept[0]) < oldest:
            self._kept_at += len(kept.popleft())

    def _report(self, base: int, text: str, end: int) -> Found:
        assert self._best is not None
        low, high = self._best
        if text:
            self._keep(base, text)
        offset = self._kept_at
        whole = "".join(self._kept)
        return Found(captures(self._automaton, whole, low - offset, high - offset), end)

    @property
    def alive(self) -> bool:
        """Whether an attempt lives, or the first has not begun."""
        return bool(self._node.groups) or not self._last

    def close(self) -> Found | None:
        """End of the text: the best match there is."""
        source = self._automaton.at_end(self._node)
        if source is not None:
            self._best = (self._starts[source], self._position)
        return None if self._best is None else self._report(self._position, "", 0)

    def fork(self) -> Self:
        """An independent copy."""
        other = copy.copy(self)
        other._kept = self._kept.copy()
        return other
