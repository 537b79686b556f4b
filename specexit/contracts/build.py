"""Build a pattern's automaton from its tree, backwards: each part towards what follows it."""

from __future__ import annotations

from .program import State


class TooManyStatesError(Exception):
    """The automaton would be larger than allowed."""


class Builder:
    """Collects the states; `build` gives the first one of a tree."""

    def __init__(self, max_states: int) -> None:
        self.states: list[State] = []
        self._max_states = max_states

    def add(self, state: State) -> int:
        """The index of a new state."""
        if len(self.states) >= self._max_states:
            raise TooManyStatesError
        self.states.append(state)
        return len(self.states) - 1

    def build(self, tree: tuple, then: int) -> int:
        """Add the states of `tree`, which lead to the state `then`."""
        kind = tree[0]
        if kind == "seq":
            for item in reversed(tree[1]):
                then = self.build(item, then)
            return then
        if kind == "or":
            return self.add(State("split", [self.build(branch, then) for branch in tree[1]]))
        if kind == "group":
            end = self.add(State("save", [then], slot=2 * tree[2] + 1))
            return self.add(State("save", [self.build(tree[1], end)], slot=2 * tree[2]))
        if kind == "repeat":
            return self._build_repeat(tree, then)
        if kind in ("char", "look"):
            return self.add(State(kind, [then], ranges=tree[1]))
        return self.add(State(kind, [then]))

    def _build_repeat(self, tree: tuple, then: int) -> int:
        _, item, low, high = tree
        if high is None:
            loop = self.add(State("split"))
            body = self.build(item, loop)
            self.states[loop].out = [body, then]
            then = loop
            # x+ needs no copy of x: enter through its first state.
            if low:
                then, low = body, low - 1
        else:
            for _ in range(high - low):
                then = self.add(State("split", [self.build(item, then), then]))
                # Each optional copy leads to the next one, or straight out.
        for _ in range(low):
            then = self.build(item, then)
        return then
