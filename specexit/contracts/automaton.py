"""Search a stream for the leftmost-longest match of a pattern, in linear time.

A lazy automaton: its states are sets of pattern states, grouped by where their attempt began
(oldest first), and are built as the text needs them. A match is reported once nothing older or
longer can still come, so what is reported is what `search` with longest-match semantics finds in
the whole text, whatever follows. RE2 in its longest-match mode is the oracle in the tests.

Time per character: one dictionary look-up once the states exist, else at most proportional to the
pattern. Memory: the states' cache is dropped when it passes `MAX_CACHED`; of the text, what the
oldest living attempt covers, at most `max_chars`.
"""

from __future__ import annotations

import copy
import re
from collections import deque
from typing import NamedTuple, Self

from .pattern import MAX_CODE, Program, State, contains, normal

MAX_CACHED = 20_000
_WORD = re.compile(r"[0-9A-Za-z_]")


class Found(NamedTuple):
    """The match: its groups (0 is the whole), and `end` as in `Match`."""

    groups: list[str | None]
    end: int


class _Node:
    """A set state. `groups`: pattern states per attempt, oldest attempt first."""

    __slots__ = ("groups", "line_start", "locked", "moves", "text_start", "word")

    def __init__(
        self,
        groups: tuple[frozenset[int], ...],
        locked: bool,
        text_start: bool,
        line_start: bool,
        word: bool,
    ) -> None:
        self.groups = groups
        self.locked = locked  # a match exists: no younger attempt can win
        self.text_start = text_start  # what precedes the next character
        self.line_start = line_start
        self.word = word
        self.moves: dict[str, _Move] = {}


class _Move(NamedTuple):
    node: _Node
    sources: tuple[int, ...] | None  # attempt i of `node` was sources[i]; -1 begins here
    before: int | None  # attempt that matches up to the character
    after: int | None  # attempt that matches up to and including it (-1: begins here)


class Automaton:
    """A compiled pattern, shared by all searches for it."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._nodes: dict[tuple, _Node] = {}
        self._cached = 0
        self.first = _first_class(program)

    def node(
        self,
        groups: tuple[frozenset[int], ...],
        locked: bool,
        text_start: bool,
        line_start: bool,
        word: bool,
    ) -> _Node:
        key = (groups, locked, text_start, line_start, word)
        found = self._nodes.get(key)
        if found is None:
            found = self._nodes[key] = _Node(*key)
            self._cached += 1
        return found

    def root(self, previous: str | None) -> _Node:
        """The state in which no attempt lives, after the character `previous`."""
        return self.node(
            (),
            False,
            previous is None,
            previous is None or previous == "\n",
            previous is not None and _WORD.match(previous) is not None,
        )

    def _close(self, node: _Node, seeds: frozenset[int], char: str | None) -> tuple[set[int], bool]:
        """Follow what consumes nothing, the next character (None: the end) being known.

        Gives the consuming states and whether the match state was reached.
        """
        states = self.program.states
        seen: set[int] = set()
        consuming: set[int] = set()
        matched = False
        stack = list(seeds)
        while stack:
            index = stack.pop()
            if index in seen:
                continue
            seen.add(index)
            state = states[index]
            kind = state.kind
            if kind == "char":
                consuming.add(index)
            elif kind == "match":
                matched = True
            elif _passes(node, state, char):
                stack.extend(state.out)
        return consuming, matched

    def _rest(self, seeds: set[int], text_start: bool, line_start: bool) -> tuple[set[int], bool]:
        """Follow what consumes nothing and needs no next character; keep what must wait."""
        states = self.program.states
        seen: set[int] = set()
        waiting: set[int] = set()
        matched = False
        stack = list(seeds)
        while stack:
            index = stack.pop()
            if index in seen:
                continue
            seen.add(index)
            kind = states[index].kind
            if kind == "match":
                matched = True
            elif kind in ("split", "save"):
                stack.extend(states[index].out)
            elif kind == "line_start":
                if line_start:
                    stack.extend(states[index].out)
            elif kind != "text_start" or text_start:
                waiting.add(index)
        return waiting, matched

    def nullable(self) -> bool:
        """Whether the pattern may match the empty text somewhere."""
        seeds = frozenset((self.program.start,))
        contexts = [(start, line, word) for start in (0, 1) for line in (0, 1) for word in (0, 1)]
        return any(
            self._close(_Node((), False, bool(start), bool(line), bool(word)), seeds, char)[1]
            for start, line, word in contexts
            for char in (None, "\n", "a", " ")
        )

    def move(self, node: _Node, char: str) -> _Move:
        """The transition of `node` on `char`, built and remembered."""
        if self._cached > MAX_CACHED:
            self._nodes.clear()
            self._cached = 0
            node = self.node(node.groups, node.locked, node.text_start, node.line_start, node.word)
            node.moves.clear()
        states = self.program.states
        code = ord(char)
        line_start = char == "\n"
        seeds = [(index, group) for index, group in enumerate(node.groups)]
        if not node.locked:
            seeds.append((-1, frozenset((self.program.start,))))
        locked, before, after = node.locked, None, None
        taken: set[int] = set()
        groups: list[frozenset[int]] = []
        sources: list[int] = []
        for source, group in seeds:
            consuming, matched = self._close(node, group, char)
            stepped: set[int] = set()
            for index in consuming:
                if contains(states[index].ranges, code):
                    stepped.update(states[index].out)
            waiting, ends = self._rest(stepped, False, line_start)
            waiting -= taken
            taken |= waiting
            if waiting:
                groups.append(frozenset(waiting))
                sources.append(source)
            if matched and source >= 0:
                before, locked = source, True
            if ends:
                after, locked = source, True
            if (matched and source >= 0) or ends:
                break
        target = self.node(tuple(groups), locked, False, line_start, _WORD.match(char) is not None)
        identity = sources == list(range(len(node.groups)))
        made = _Move(target, None if identity else tuple(sources), before, after)
        node.moves[char] = made
        self._cached += 1
        return made

    def at_end(self, node: _Node) -> int | None:
        """The oldest attempt that matches where the text ends."""
        for source, group in enumerate(node.groups):
            if self._close(node, group, None)[1]:
                return source
        return None

    def without_oldest(self, node: _Node) -> _Node:
        """The state after the oldest attempt was given up."""
        return self.node(node.groups[1:], node.locked, node.text_start, node.line_start, node.word)

    def groups(self, text: str, start: int, end: int) -> list[str | None]:
        """The groups of the match `text[start:end]` (first alternative first), 0 the whole."""
        slots = _captures(self, text, start, end) if self.program.groups else {}
        found: list[str | None] = [text[start:end]]
        for group in range(1, self.program.groups + 1):
            low, high = slots.get(2 * group), slots.get(2 * group + 1)
            found.append(None if low is None or high is None else text[low:high])
        return found


class Search:
    """One search through one stream."""

    __slots__ = (
        "_automaton",
        "_best",
        "_kept",
        "_max_chars",
        "_node",
        "_position",
        "_previous",
        "_starts",
    )

    def __init__(self, automaton: Automaton, max_chars: int, *, fresh: bool = True) -> None:
        """`fresh=False`: the search begins in the middle of a text (after a blank)."""
        self._automaton = automaton
        self._max_chars = max_chars
        self._previous: str | None = None if fresh else " "
        self._node = automaton.root(self._previous)
        self._starts: list[int] = []
        self._best: tuple[int, int] | None = None
        self._position = 0
        self._kept: deque[tuple[int, str]] = deque()  # (offset, piece), from the oldest attempt on

    def feed(self, text: str) -> Found | None:
        base, size, at = self._position, len(text), 0
        first = self._automaton.first
        while at < size:
            node = self._node
            if first is not None and not node.groups and not node.locked:
                found = first.search(text, at)
                if found is None:
                    break
                if found.start() > at:
                    at = found.start()
                    self._node = self._automaton.root(text[at - 1])
            # No attempt passes its limit before `stop`.
            stop = min(
                size, (self._starts[0] if self._starts else base + at) + self._max_chars - base
            )
            ended = self._walk(text, at, stop, base)
            if ended is not None:
                return self._report(base, text, ended)
            at = stop
            if self._starts and base + at - self._starts[0] >= self._max_chars:
                self._starts = self._starts[1:]
                self._node = self._automaton.without_oldest(self._node)
                if self._node.locked and not self._node.groups:
                    return self._report(base, text, at)
        if size:
            if at < size:
                self._node = self._automaton.root(text[-1])
            self._keep(base, text)
        return None

    def _walk(self, text: str, at: int, stop: int, base: int) -> int | None:
        """Take the transitions of `text[at:stop]`; where the search ended, or None."""
        node, automaton = self._node, self._automaton
        for index in range(at, stop):
            char = text[index]
            move = node.moves.get(char) or automaton.move(node, char)
            node = move.node
            if move.sources is None and move.before is None and move.after is None:
                continue
            here, starts = base + index, self._starts
            if move.before is not None:
                self._best = (starts[move.before], here)
            if move.after is not None:
                self._best = (here if move.after < 0 else starts[move.after], here + 1)
            if move.sources is not None:
                self._starts = [here if s < 0 else starts[s] for s in move.sources]
            if node.locked and not node.groups:
                self._node = node
                return index + 1 if move.after is not None else index
        self._node = node
        return None

    def _keep(self, base: int, text: str) -> None:
        """Remember `text` from one character before the oldest attempt on."""
        oldest = self._oldest()
        if oldest is None:
            self._kept.clear()
        else:
            self._append(base, text, oldest)
        self._position = base + len(text)
        self._previous = text[-1]

    def _append(self, base: int, text: str, oldest: int) -> None:
        kept = self._kept
        if not kept and self._previous is not None:
            base, text = base - 1, self._previous + text
        cut = max(0, oldest - 1 - base)
        kept.append((base + cut, text[cut:]))
        while kept[0][0] + len(kept[0][1]) <= oldest - 1:
            kept.popleft()

    def _oldest(self) -> int | None:
        starts = self._starts[:1]
        if self._best is not None:
            starts.append(self._best[0])
        return min(starts) if starts else None

    def _report(self, base: int, text: str, end: int) -> Found:
        assert self._best is not None
        if text:
            self._append(base, text, self._best[0])
        offset = self._kept[0][0]
        text = "".join(piece for _, piece in self._kept)
        low, high = self._best
        return Found(self._automaton.groups(text, low - offset, high - offset), end)

    def close(self) -> Found | None:
        source = self._automaton.at_end(self._node)
        if source is not None:
            self._best = (self._starts[source], self._position)
        return None if self._best is None else self._report(self._position, "", 0)

    def fork(self) -> Self:
        other = copy.copy(self)
        other._kept = self._kept.copy()
        return other


def _first_class(program: Program) -> re.Pattern[str] | None:
    """A class of the characters that can begin a match; None when nearly all can."""
    seen: set[int] = set()
    ranges: list[tuple[int, int]] = []
    stack = [program.start]
    while stack:
        index = stack.pop()
        if index in seen:
            continue
        seen.add(index)
        state = program.states[index]
        if state.kind == "char":
            ranges += state.ranges
        elif state.kind == "match":
            return None
        else:
            stack.extend(state.out)
    merged = normal(ranges)
    if sum(high - low + 1 for low, high in merged) > MAX_CODE // 2:
        return None
    return re.compile("[" + "".join(_span(low, high) for low, high in merged) + "]")


def _span(low: int, high: int) -> str:
    return f"\\U{low:08x}-\\U{high:08x}"


def _passes(node: _Node, state: State, char: str | None) -> bool:
    """Whether a state that consumes nothing lets through, between `node` and `char`."""
    kind = state.kind
    if kind in ("split", "save"):
        return True
    if kind == "look":
        return char is None or contains(state.ranges, ord(char))
    if kind in ("word", "not_word"):
        next_word = char is not None and _WORD.match(char) is not None
        return (node.word != next_word) == (kind == "word")
    if kind == "text_start":
        return node.text_start
    if kind == "line_start":
        return node.line_start
    return char is None or (kind == "line_end" and char == "\n")


Thread = tuple[int, dict[int, int]]


def _captures(automaton: Automaton, text: str, start: int, end: int) -> dict[int, int]:
    """Group boundaries of the match `text[start:end]`: threads in order of preference."""
    states = automaton.program.states
    threads = _follow(automaton, text, start, [(automaton.program.start, {})])
    for at in range(start, end):
        code = ord(text[at])
        stepped = [
            (states[index].out[0], slots)
            for index, slots in threads
            if states[index].kind == "char" and contains(states[index].ranges, code)
        ]
        threads = _follow(automaton, text, at + 1, stepped)
    return next((slots for index, slots in threads if states[index].kind == "match"), {})


def _follow(automaton: Automaton, text: str, at: int, seeds: list[Thread]) -> list[Thread]:
    """The consuming (or matching) threads behind `seeds`, the preferred first."""
    node = automaton.root(text[at - 1] if at else None)
    char = text[at] if at < len(text) else None
    seen: set[int] = set()
    out: list[Thread] = []
    stack = seeds[::-1]
    while stack:
        index, slots = stack.pop()
        if index in seen:
            continue
        seen.add(index)
        state = automaton.program.states[index]
        if state.kind in ("char", "match"):
            out.append((index, slots))
        elif state.kind == "save":
            stack.append((state.out[0], {**slots, state.slot: at}))
        elif _passes(node, state, char):
            stack.extend((target, slots) for target in reversed(state.out))
    return out
