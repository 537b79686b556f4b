"""A deterministic automaton for the leftmost-longest match of a pattern, built lazily.

Its nodes are sets of pattern states, grouped by where their attempt began (oldest first). Moves are
made as texts need them: on single characters, and, remembered by the searches, on whole deltas
(`leaps`): a stream says the same tokens again and again. Dropped when more than `MAX_CACHED` are
remembered.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .program import Program, State, contains
from .skip import skip_pattern

MAX_CACHED = 20_000
_WORD = re.compile(r"[0-9A-Za-z_]")


class Node:
    """`groups`: pattern states per attempt, oldest attempt first. The flags say what precedes."""

    __slots__ = ("groups", "idle", "leaps", "line_start", "locked", "moves", "text_start", "word")

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
        self.text_start = text_start
        self.line_start = line_start
        self.word = word
        self.idle = not groups and not locked and not text_start
        self.moves: dict[str, Move] = {}
        self.leaps: dict[str, Leap] = {}


class Move(NamedTuple):
    """What one character does."""

    node: Node
    sources: tuple[int, ...] | None  # attempt i of `node` was sources[i]; -1 begins here
    before: int | None  # attempt that matches up to the character
    after: int | None  # attempt that matches up to and including it (-1: begins here)
    plain: bool  # nothing changes but the node


class Leap(NamedTuple):
    """What a whole delta does in which no match begins or ends to be known."""

    node: Node
    origins: tuple[int, ...] | None
    """Attempt i of `node` was origins[i], or began at offset -1 - origins[i]; None: no change."""


Threads = tuple[int, ...]


class Advance(NamedTuple):
    """Threads after a character: for each the one it was, and the group boundaries it passed."""

    threads: Threads
    origins: tuple[tuple[int, tuple[int, ...]], ...]


class Automaton:
    """A compiled pattern, shared by all searches for it. A match has at most `max_chars`."""

    def __init__(self, program: Program, max_chars: int) -> None:
        self.program = program
        self.max_chars = max_chars
        self.skip = skip_pattern(program)
        self._nodes: dict[tuple, Node] = {}
        self._roots: dict[str, Node] = {}
        self._advances: dict[tuple[Node, Threads, str, str], Advance] = {}
        self._cached = 0

    def node(
        self,
        groups: tuple[frozenset[int], ...],
        locked: bool,
        text_start: bool,
        line_start: bool,
        word: bool,
    ) -> Node:
        key = (groups, locked, text_start, line_start, word)
        found = self._nodes.get(key)
        if found is None:
            found = self._nodes[key] = Node(*key)
            self._cached += 1 + sum(map(len, groups)) // 8  # large sets count for more
        return found

    def root(self, before: str) -> Node:
        """The state in which no attempt lives, after the text `before`."""
        last = before[-1:]
        found = self._roots.get(last)
        if found is None:
            word = _WORD.match(last) is not None
            found = self.node((), False, not last, last in ("", "\n"), word)
            self._roots[last] = found
            self._cached += 1
        return found

    def _close(self, node: Node, seeds: frozenset[int], char: str | None) -> tuple[set[int], bool]:
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
            elif passes(node, state, char):
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
            self._close(Node((), False, bool(start), bool(line), bool(word)), seeds, char)[1]
            for start, line, word in contexts
            for char in (None, "\n", "a", " ")
        )

    def move(self, node: Node, char: str) -> Move:
        """The transition of `node` on `char`, built and remembered."""
        if self._cached > MAX_CACHED:
            self._forget()
            node = self.node(node.groups, node.locked, node.text_start, node.line_start, node.word)
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
        made = Move(target, None if identity else tuple(sources), before, after, plain)
        node.moves[char] = made
        self._cached += 1
        return made

    def advance(self, before: Node, threads: Threads, char: str, following: str) -> Advance:
        """Let the `threads`, the preferred first, read `char` ("": only follow what reads nothing).

        `before`: what precedes what they see next, the character `following` ("": the end).
        """
        key = (before, threads, char, following)
        found = self._advances.get(key)
        if found is None:
            found = self._advances[key] = self._advance(*key)
            self._cached += 1 + len(threads) // 8
        return found

    def _advance(self, before: Node, threads: Threads, char: str, following: str) -> Advance:
        states = self.program.states
        seen: set[int] = set()
        out: list[tuple[int, int, tuple[int, ...]]] = []
        for source, thread in enumerate(threads):
            if not char:
                start = thread
            elif states[thread].kind == "char" and contains(states[thread].ranges, ord(char)):
                start = states[thread].out[0]
            else:
                continue
            stack: list[tuple[int, tuple[int, ...]]] = [(start, ())]
            while stack:
                index, saved = stack.pop()
                if index in seen:
                    continue
                seen.add(index)
                state = states[index]
                if state.kind in ("char", "match"):
                    out.append((index, source, saved))
                elif state.kind == "save":
                    stack.append((state.out[0], (*saved, state.slot)))
                elif passes(before, state, following or None):
                    stack.extend((target, saved) for target in reversed(state.out))
        return Advance(tuple(o[0] for o in out), tuple(o[1:] for o in out))

    def remember(self, node: Node, text: str, leap: Leap) -> None:
        """Keep what the delta `text` does to `node`."""
        if self._cached > MAX_CACHED:
            self._forget()
        node.leaps[text] = leap
        self._cached += 1

    def _forget(self) -> None:
        """Start over. Searches go on from the nodes that they hold, which lead to new ones."""
        for node in self._nodes.values():
            node.moves.clear()
            node.leaps.clear()
        self._nodes.clear()
        self._roots.clear()
        self._advances.clear()
        self._cached = 0

    def at_end(self, node: Node) -> int | None:
        """The oldest attempt that matches where the text ends."""
        for source, group in enumerate(node.groups):
            if self._close(node, group, None)[1]:
                return source
        return None

    def without_oldest(self, node: Node) -> Node:
        """The state after the oldest attempt was given up."""
        return self.node(node.groups[1:], node.locked, node.text_start, node.line_start, node.word)


def passes(node: Node, state: State, char: str | None) -> bool:
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
