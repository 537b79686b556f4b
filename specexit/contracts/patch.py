r"""`patch`: a unified diff, of one or more files.

- V: texts that parse as a diff (see `specexit.contracts.diff_parser`); the answer is its lines.
- pi and evaluator: the first block after the thinking that is a whole diff. In a code fence the
  block is what the fence holds (prose before the first file is passed over; a broken file breaks
  all of it). Outside, it goes from `diff --git` or `--- ` to the first line that is neither diff
  nor blank.
- commit: at the terminator, never before: in a fence its closing line, outside the first character
  that shows that the line is no diff line. A complete hunk alone decides nothing, since another
  may follow; at the end of the output a block whose hunks are complete counts. Sound under that
  evaluator.
- A block that breaks (wrong counts, a cut hunk) is no answer, and neither is what is left of it:
  the next block begins after a line of prose.
- `fenced`: only blocks in fences count. `max_chars` bounds a block.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from .base import Acceptor, Match, Searching, check_bool, check_int
from .diff_parser import SIGNATURE, DiffParser, Verdict

_FENCE = re.compile(r"(`{3,}|~{3,})([^`]*)\Z")
_DIFF_LIKE = re.compile(
    r"[ +\-@\\]|diff |index |(?:old|new) mode |(?:new|deleted) file |(?:dis)?similarity "
    r"|rename |copy "
)
_HEAD = 24  # characters of a line that can decide that it is no diff line
_LINE = 5_000  # characters of a line outside blocks that are looked at


class PatchAcceptor(Acceptor):
    """Follows fences and diff blocks, line by line."""

    __slots__ = (
        "_fence",
        "_fenced_only",
        "_kept",
        "_left",
        "_lines",
        "_max_chars",
        "_may_end",
        "_most",
        "_parser",
        "_parts",
        "_skipping",
    )

    def __init__(self, fenced_only: bool, max_chars: int) -> None:
        self._fenced_only = fenced_only
        self._max_chars = max_chars
        self._left = max_chars
        self._parts: list[str] = []  # the current line
        self._kept = 0  # its characters so far
        self._most = _LINE  # how many of them are looked at
        self._may_end = False  # whether this line can show that the block is over
        self._fence = ""  # the marks that opened the fence we are in
        self._skipping = False  # behind a broken block
        self._parser: DiffParser | None = None
        self._lines: list[str] = []  # of the block

    def feed(self, text: str) -> Match | None:
        if "\n" not in text and (not self._may_end or self._kept >= _HEAD):
            if self._kept < self._most:  # nearly every delta
                self._parts.append(text)
                self._kept += len(text)
            return None
        at = 0
        while True:
            cut = text.find("\n", at)
            piece = text[at:] if cut < 0 else text[at:cut]
            early = self._early(piece) if self._may_end else None
            if early is not None:
                return Match(self._answer(), at + early)
            self._keep(piece)
            if cut < 0:
                return None
            match = self._end_line()
            if match is not None:
                return Match(match, cut)
            at = cut + 1

    def _keep(self, piece: str) -> None:
        if self._kept < self._most:
            self._parts.append(piece)
            self._kept += len(piece)

    def _early(self, piece: str) -> int | None:
        """Where in `piece` an unfenced, complete block turns out to be over."""
        parser = self._parser
        assert parser is not None
        continues = parser.continues
        begun = "".join(self._parts)[:_HEAD]
        before = len(begun)
        head = begun + piece[:_HEAD]
        for size in range(before + 1, min(len(head), _HEAD) + 1):
            start = head[:size]
            if any(prefix.startswith(start) or start.startswith(prefix) for prefix in continues):
                continue
            if not start.strip() or start == SIGNATURE:  # the rest of the line decides
                continue
            probe = parser.fork()
            if probe.line(start) is Verdict.END:
                return size - 1 - before
        return None

    def _end_line(self) -> str | None:
        """A line is over; the answer if a whole diff is."""
        line = "".join(self._parts)[: self._most]
        self._parts = []
        self._kept = 0
        answer = self._read_line(line)
        parser = self._parser
        self._may_end = parser is not None and not self._fence and parser.complete
        self._most = _LINE if parser is None else self._max_chars
        return answer

    def _read_line(self, line: str) -> str | None:
        fence = _FENCE.match(line.rstrip())
        if self._fence and fence and fence[1].startswith(self._fence) and not fence[2].strip():
            return self._close_fence()
        if fence is not None and not self._fence:
            # A whole block would have ended at the first mark: what there is, is broken.
            self._drop()
            self._skipping = False
            self._fence = fence[1]
        elif self._fence or not self._fenced_only:
            return self._diff_line(line)
        return None

    def _close_fence(self) -> str | None:
        whole = self._parser is not None and self._parser.complete
        answer = self._answer() if whole else None
        self._fence = ""
        self._skipping = False
        self._drop()
        return answer

    def _diff_line(self, line: str) -> str | None:
        if self._skipping:
            if self._fence or not line.strip() or _DIFF_LIKE.match(line):
                return None
            self._skipping = False
        if self._parser is None:
            if not line.startswith(("diff --git ", "--- ")):
                return None
            self._parser = DiffParser()
        self._left -= len(line) + 1
        verdict = Verdict.BROKEN if self._left < 0 else self._parser.line(line)
        if verdict is Verdict.MORE:
            self._lines.append(line)
        elif verdict is Verdict.BROKEN:
            self._break(line)
        elif not self._fence:  # in a fence it is prose between files
            return self._answer()
        return None

    def _break(self, line: str) -> None:
        """The block is no diff. A single `--- ` line may have been prose."""
        lines = self._lines
        began = self._left < 0 or len(lines) > 1 or "".join(lines).startswith("diff ")
        self._drop()
        if began:
            self._skipping = bool(self._fence) or not line.strip() or bool(_DIFF_LIKE.match(line))
        elif lines and line.startswith(("diff --git ", "--- ")):
            self._diff_line(line)

    def _drop(self) -> None:
        self._parser = None
        self._lines = []
        self._left = self._max_chars

    def _answer(self) -> str:
        assert self._parser is not None
        return "\n".join(self._lines[: self._parser.whole_lines]) + "\n"

    def close(self) -> Match | None:
        answer = self._end_line() if self._parts else None
        if answer is None and self._parser is not None and self._parser.complete:
            answer = self._answer()
        return None if answer is None else Match(answer, 0)

    def fork(self) -> Self:
        other = copy.copy(self)
        other._parts = self._parts.copy()
        other._lines = self._lines.copy()
        other._parser = None if self._parser is None else self._parser.fork()
        return other


@dataclass(frozen=True, kw_only=True)
class Patch(Searching):
    """A unified diff."""

    name: ClassVar[str] = "patch"

    fenced: bool = False
    max_chars: int = 500_000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bool("fenced", self.fenced)
        check_int("max_chars", self.max_chars, 1, 100_000_000)

    def first(self) -> Acceptor:
        return PatchAcceptor(self.fenced, self.max_chars)

    def normalise(self, answer: Any) -> str | None:
        """The diff's lines, if it is one: no fence, no prose, blank lines around dropped."""
        if not isinstance(answer, str):
            return None
        parser = DiffParser()
        lines = answer.lstrip("\n").removesuffix("\n").split("\n")
        for line in lines:
            if parser.line(line) is not Verdict.MORE:
                return None
        return "\n".join(lines[: parser.whole_lines]) + "\n" if parser.complete else None
