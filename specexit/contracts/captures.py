"""What the groups of a match hold, once it is known where the match lies."""

from __future__ import annotations

from .automaton import Automaton, Threads

Groups = list[str | None]


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
    """Group boundaries on the preferred way through the match."""
    threads: Threads = (automaton.program.start,)
    slots: list[dict[int, int]] = [{}]
    for at in range(start, end + 1):
        before = text[at - 1 : at] if at else ""
        char = before if at > start else ""
        threads, origins = automaton.advance(
            automaton.root(before), threads, char, text[at : at + 1]
        )
        slots = [
            {**slots[source], **dict.fromkeys(saved, at)} if saved else slots[source]
            for source, saved in origins
        ]
    states = automaton.program.states
    ways = zip(threads, slots, strict=True)
    return next((way for thread, way in ways if states[thread].kind == "match"), {})
