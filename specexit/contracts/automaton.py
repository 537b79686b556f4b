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

from .pattern import MAX_CODE, Program, Ranges, State, contains, normal

MAX_CACHED = 20_000
_PREFIX = 3  # characters that the search for a beginning looks at
_MAX_BRANCHES = 24
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
    plain: bool  # nothing changes but the state


class Automaton:
    """A compiled pattern, shared by all searches for it."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._nodes: dict[tuple, _Node] = {}
        self._cached = 0
        self.skip = _skip_pattern(program)
        self._roots: dict[str | None, _Node] = {}

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
        found = self._roots.get(previous)
        if found is None:
            found = self._roots[previous] = self.node(
                (),
                False,
                previous is None,
                previous is None or previous == "\n",
                previous is not None and _WORD.match(previous) is not None,
            )
            self._cached += 1
        return found

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
            self._roots.clear()
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
        # Without attempts before and after, the walk may skip: that move is not plain either.
        plain = identity and before is None and after is None and bool(groups)
        made = _Move(target, None if identity else tuple(sources), before, after, plain)
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
        # The set state; None while no attempt lives and `skip` can tell where the next begins.
        self._node: _Node | None = automaton.root(None) if fresh else None
        self._starts: list[int] = []
        self._best: tuple[int, int] | None = None
        self._position = 0
        self._kept: deque[tuple[int, str]] = deque()  # (offset, piece), from the oldest attempt on

    def feed(self, text: str) -> Found | None:
        automaton, at = self._automaton, 0
        if self._node is None and automaton.skip is not None:
            # The common case in a few operations: nothing begins in this delta.
            seen = f"{self._previous}{text}"
            found = automaton.skip.search(seen, 1)
            if found is None:
                if self._kept:
                    self._kept.clear()
                self._position += len(text)
                self._previous = seen[-1]
                return None
            at = found.start() - 1
        base, size = self._position, len(text)
        while at < size:
            if self._node is None:
                if automaton.skip is not None:
                    found = automaton.skip.search(text, at)
                    if found is None:
                        break
                    at = found.start()
                self._node = automaton.root(text[at - 1] if at else self._previous)
            # No attempt passes its limit before `stop`.
            oldest = self._starts[0] if self._starts else base + at
            at, over = self._walk(text, at, min(size, oldest + self._max_chars - base), base)
            if over:
                return self._report(base, text, at)
            if self._starts and base + at - self._starts[0] >= self._max_chars:
                assert self._node is not None
                self._starts = self._starts[1:]
                self._node = automaton.without_oldest(self._node)
                if self._node.locked and not self._node.groups:
                    return self._report(base, text, at)
        if size:
            if self._starts or self._best is not None:
                self._append(base, text, self._oldest())
            elif self._kept:
                self._kept.clear()
            self._position = base + size
            self._previous = text[-1]
        return None

    def _walk(self, text: str, at: int, stop: int, base: int) -> tuple[int, bool]:
        """Take transitions up to `stop`, or to where the search is over or no attempt lives.

        Gives the index behind the last character used, and whether the search is over.
        """
        node, automaton = self._node, self._automaton
        assert node is not None
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
                    self._node = None
                    return index + 1, False
        self._node = node
        return stop, False

    def _append(self, base: int, text: str, oldest: int) -> None:
        kept = self._kept
        if not kept and self._previous is not None:
            base, text = base - 1, self._previous + text
        cut = max(0, oldest - 1 - base)
        kept.append((base + cut, text[cut:]))
        while kept[0][0] + len(kept[0][1]) <= oldest - 1:
            kept.popleft()

    def _oldest(self) -> int:
        starts = self._starts[:1]
        if self._best is not None:
            starts.append(self._best[0])
        return min(starts)

    def _report(self, base: int, text: str, end: int) -> Found:
        assert self._best is not None
        if text:
            self._append(base, text, self._best[0])
        offset = self._kept[0][0]
        text = "".join(piece for _, piece in self._kept)
        low, high = self._best
        return Found(self._automaton.groups(text, low - offset, high - offset), end)

    def close(self) -> Found | None:
        source = None if self._node is None else self._automaton.at_end(self._node)
        if source is not None:
            self._best = (self._starts[source], self._position)
        return None if self._best is None else self._report(self._position, "", 0)

    def fork(self) -> Self:
        other = copy.copy(self)
        other._kept = self._kept.copy()
        return other


Prefix = tuple[Ranges, ...]


def _skip_pattern(program: Program) -> re.Pattern[str] | None:
    """Where an attempt can begin in the middle of a text; None when nearly everywhere.

    It looks at up to `_PREFIX` characters, and never passes over a true beginning: where the delta
    ends too soon it stops for the automaton to decide. Attempts that begin at the start of the text
    only are left out.
    """
    branches: dict[tuple[Ranges, bool], set[Prefix]] = {}
    for bounded, prefix in _prefixes(program, program.start, _PREFIX):
        if not prefix:
            return None
        branches.setdefault((prefix[0], bounded), set()).add(prefix[1:])
    first = normal([span for ranges, _ in branches for span in ranges])
    if sum(high - low + 1 for low, high in first) > MAX_CODE // 2:
        return None
    if not first:
        return re.compile(r"(?!)")
    parts = []
    for (ranges, bounded), rests in branches.items():
        rest = "" if () in rests or len(rests) > _MAX_BRANCHES else _rest_pattern(rests)
        word = r"(?<![0-9A-Za-z_][\s\S])" if bounded else ""
        parts.append(f"(?<={_class(ranges)}){word}{rest}")
    return re.compile(f"{_class(first)}(?:{'|'.join(parts)})")


def _rest_pattern(rests: set[Prefix]) -> str:
    options = [r"\Z"]
    heads: dict[Ranges, set[Prefix]] = {}
    for prefix in rests:
        heads.setdefault(prefix[0], set()).add(prefix[1:])
    for ranges, tails in sorted(heads.items()):
        options.append(_class(ranges) + ("" if () in tails else _rest_pattern(tails)))
    return f"(?:{'|'.join(options)})"


def _prefixes(program: Program, start: int, depth: int) -> set[tuple[bool, Prefix]]:
    """Class sequences with which a match from `start` can begin, and whether at a word's start."""
    found: set[tuple[bool, Prefix]] = set()
    seen: set[tuple[int, bool]] = set()
    stack = [(start, False)]
    while stack:
        index, bounded = stack.pop()
        if (index, bounded) in seen:
            continue
        seen.add((index, bounded))
        state = program.states[index]
        if state.kind == "char":
            tails = {()} if depth == 1 else _tails(program, state.out[0], depth - 1)
            in_word = all(low == high and _WORD.match(chr(low)) for low, high in state.ranges)
            found.update((bounded and in_word, (state.ranges, *tail)) for tail in tails)
        elif state.kind == "match":
            found.add((False, ()))
        elif state.kind != "text_start":
            stack.extend((target, bounded or state.kind == "word") for target in state.out)
    return found


def _tails(program: Program, start: int, depth: int) -> set[Prefix]:
    """As `_prefixes`, without the mark; only the empty one where there are too many."""
    tails = {prefix for _, prefix in _prefixes(program, start, depth)}
    return {()} if () in tails or len(tails) > _MAX_BRANCHES else tails


def _class(ranges: Ranges) -> str:
    return "[" + "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in ranges) + "]"


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
