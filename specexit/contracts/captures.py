"""What the groups of a match hold, once it is known where the match lies."""

from __future__ import annotations

from .automaton import Automaton, passes
from .program import contains

Groups = list[str | None]
_Thread = tuple[int, dict[int, int]]


def captures(automaton: Automaton, text: str, start: int, end: int) -> Groups:
    """The groups of the match `text[start:end]` (first alternative first), 0 the whole."""
    program = automaton.program
    slots = _slots(automaton, text, start, end) if program.groups else {}
    found: Groups = [text[start:end]]
    for group in range(1, program.groups + 1):
        low, high = slots.get(2 * group), slots.get(2 * group + 1)
        found.append(None if low is None or high is None else text[low:high])
    return found


def _slots(automaton: Automaton, text: str, start: int, end: int) -> dict[int, int]:
    """Group boundaries: threads in order of preference."""
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


def _follow(automaton: Automaton, text: str, at: int, seeds: list[_Thread]) -> list[_Thread]:
    """The consuming (or matching) threads behind `seeds`, the preferred first."""
    node = automaton.root(text[at - 1 : at] if at else "")
    char = text[at] if at < len(text) else None
    seen: set[int] = set()
    out: list[_Thread] = []
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
        elif passes(node, state, char):
            stack.extend((target, slots) for target in reversed(state.out))
    return out
