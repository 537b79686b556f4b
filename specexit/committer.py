"""The committer: tells, while an output streams, when its answer is final.

    committer = Committer(contract("boxed_integer"), thinking=True)
    for delta in stream:
        commit = committer.feed(delta)
        if commit is not None:
            break                      # keep text[:commit.position]; the rest changes nothing

What holds, for every contract that is not marked heuristic:

- *Chunk invariance*: the commit is the same for every way of cutting the text.
- *Soundness*: no continuation changes what the contract's evaluator (`contract.project`) returns.
- *Nothing is taken back*: `position` is at or after the start of the delta that decided (but for
  the few characters of a possible think start that turned out to be none), and
  `contract.project(text[:position])` is the committed answer.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from specexit.contracts import Contract, contract
from specexit.contracts.base import Match
from specexit.contracts.thinking import gate


@dataclass(frozen=True, slots=True)
class Commit:
    """A final answer.

    `answer`: the projected answer; `position`: how many characters of the stream are kept (the
    text up to there has this answer); `contract`: the contract's name.
    """

    answer: Any
    position: int
    contract: str


class Committer:
    """Feed one output's text deltas to a contract.

    `thinking`: True when the prompt opened the thinking, False when there is none, `"auto"` to go
    by the tags (see `specexit.contracts.thinking`). Nothing commits inside the thinking.
    """

    __slots__ = ("_closed", "_machine", "_settings", "commit", "consumed", "contract")

    def __init__(
        self,
        contract_: Contract | str | dict[str, Any],
        *,
        thinking: bool | str = "auto",
        think_start: str = "<think>",
        think_end: str = "</think>",
    ) -> None:
        self.contract = contract(contract_)
        self._settings = (thinking, think_start, think_end)
        self.reset()

    def reset(self) -> None:
        """Start over for another output."""
        self._machine = gate(self.contract.acceptor, *self._settings)
        self._closed = False
        self.consumed = 0
        self.commit: Commit | None = None

    def feed(self, delta: str) -> Commit | None:
        """Read a delta; return the commit if the answer became final in it.

        The commit is returned once (and kept in `commit`); what is fed afterwards is ignored.
        """
        if self.commit is not None or self._closed:
            return None
        match = self._machine.feed(delta)
        if match is None:
            self.consumed += len(delta)
            return None
        return self._keep(match)

    def close(self) -> Commit | None:
        """End of the output: accept an answer that only lacked a terminator."""
        if self.commit is not None or self._closed:
            return None
        self._closed = True
        match = self._machine.close()
        return None if match is None else self._keep(match)

    def _keep(self, match: Match) -> Commit:
        self.commit = Commit(match.answer, self.consumed + match.end, self.contract.name)
        self.consumed = self.commit.position
        return self.commit

    @property
    def is_completed(self) -> bool:
        """Could stop: if the output ended here, there would be an answer."""
        if self.commit is not None:
            return True
        return not self._closed and self._machine.fork().close() is not None

    @property
    def is_terminated(self) -> bool:
        """Has stopped: the answer is committed, or the output was closed."""
        return self.commit is not None or self._closed

    def fork(self) -> Committer:
        """An independent copy of the state (for beams, drafts and look-ahead)."""
        other = copy.copy(self)
        other._machine = self._machine.fork()
        return other
