"""Where in a text a match can begin: a compiled expression that passes over the rest."""

from __future__ import annotations

import re

from .program import MAX_CODE, Program, Ranges, normal

_PREFIX = 3  # characters that the search for a beginning looks at
_MAX_BRANCHES = 24
_WORD = re.compile(r"[0-9A-Za-z_]")

Prefix = tuple[Ranges, ...]


def skip_pattern(program: Program) -> re.Pattern[str] | None:
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
