"""What a watched stream came to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from specexit.committer import Commit
from specexit.errors import SpecExitError


class StreamError(SpecExitError):
    """The server refused the request, sent an error, or broke the stream off."""


@dataclass(frozen=True, kw_only=True)
class StreamResult:
    """One watched request.

    `text`: the content up to the commit (all of it without one); `reasoning`: what the server sent
    as reasoning; `commit`: the commit or None; `stopped_early`: the stream was closed at the
    commit; `overshoot`: characters that had arrived beyond it; `finish_reason`: the server's, None
    where we closed; `events`: stream events read; `ttva_s`: seconds to the commit; `elapsed_s`: to
    the end; `usage`: the server's token counts, where it sent them.
    """

    text: str
    reasoning: str = ""
    commit: Commit | None = None
    stopped_early: bool = False
    overshoot: int = 0
    finish_reason: str | None = None
    events: int = 0
    ttva_s: float | None = None
    elapsed_s: float = 0.0
    usage: dict[str, Any] = field(default_factory=dict)

    @property
    def answer(self) -> Any:
        """The committed answer, or None."""
        return None if self.commit is None else self.commit.answer
