"""The automaton of a pattern before it is made deterministic: states, and sets of code points."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

MAX_CODE = 0x10FFFF

Ranges = tuple[tuple[int, int], ...]


def normal(ranges: list[tuple[int, int]]) -> Ranges:
    """Sorted, disjoint, merged."""
    out: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(high, out[-1][1]))
        else:
            out.append((low, high))
    return tuple(out)


def negate(ranges: Ranges) -> Ranges:
    """Every code point outside `ranges`."""
    out, low = [], 0
    for start, end in ranges:
        if low < start:
            out.append((low, start - 1))
        low = end + 1
    if low <= MAX_CODE:
        out.append((low, MAX_CODE))
    return tuple(out)


def fold(ranges: Ranges) -> Ranges:
    """Add the other case of every letter (simple case mapping; wide ranges are left alone)."""
    out = list(ranges)
    for low, high in ranges:
        if high - low > 0x3000:
            continue
        for code in range(low, high + 1):
            for other in (chr(code).lower(), chr(code).upper()):
                if len(other) == 1:
                    out.append((ord(other), ord(other)))
    return normal(out)


def contains(ranges: Ranges, code: int) -> bool:
    """Whether a code point lies in `ranges`."""
    index = bisect_right(ranges, (code, MAX_CODE)) - 1
    return index >= 0 and code <= ranges[index][1]


@dataclass(slots=True)
class State:
    """One state: consumes a character of `ranges`, or passes on without one.

    `kind`: `char`, `split` (to every state of `out`), `look` (pass if the next character lies in
    `ranges`, or the text ends), `word`/`not_word` (`\\b`/`\\B`), `text_start`, `text_end`,
    `line_start`, `line_end`, `save` (group boundary `slot`), `match`.
    """

    kind: str
    out: list[int] = field(default_factory=list)
    ranges: Ranges = ()
    slot: int = 0


@dataclass(slots=True)
class Program:
    """A compiled pattern: states, the first one, and the names of its groups."""

    states: list[State]
    start: int
    groups: int
    names: dict[str, int]
