r"""Find `\boxed{...}` in a stream.

The first box that is complete and whose content the contract accepts wins. TeX gives the rules:

- `\boxed{...}`, `\fbox{...}`, `\framebox{...}`, blanks allowed before the brace; `\{`, `\}` and
  `\\` inside do not count as braces; inner braces nest.
- An argument cannot hold a blank line, so a box that is still open at one was never a box. The
  same holds at `max_chars`, which bounds the memory, and at the end of the output. What was
  complete *inside* such a box then counts, and so it does inside a box that is not accepted.
- `\boxed 12` (no brace) boxes the number, and waits for a character that ends it.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any, Self

from .base import Acceptor, Match

_COMMANDS = ("\\boxed", "\\fbox", "\\framebox")
_LONGEST = max(map(len, _COMMANDS))
_COMMAND_START = re.compile(r"\\(?=[bf]|\Z)")
_OPENS_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*\{\Z")
_MAX_NESTED = 16
_BARE = frozenset("0123456789.,/+-")


class BoxAcceptor(Acceptor):
    r"""Incremental search for a box whose content `read` turns into an answer (None: go on)."""

    __slots__ = (
        "_blank",
        "_complete",
        "_depth",
        "_escaped",
        "_max_chars",
        "_opened",
        "_parts",
        "_read",
        "_state",
    )

    def __init__(self, read: Callable[[str], Any | None], max_chars: int) -> None:
        self._read = read
        self._max_chars = max_chars
        self._parts: list[str] = []
        self._leave()

    def _leave(self) -> None:
        self._state = "idle"
        self._parts.clear()
        self._depth = 0
        self._escaped = False
        self._blank = False
        self._opened: list[tuple[int, int]] = []  # inner boxes: depth, start of their content
        self._complete: list[tuple[int, Any]] = []  # answers of complete inner boxes, with start

    def feed(self, text: str) -> Match | None:
        if self._state == "idle" and "\\" not in text:
            return None
        at, size = 0, len(text)
        while at < size:
            state = self._state
            if state == "idle":
                found = _COMMAND_START.search(text, at)
                if found is None:
                    return None
                self._state = "command"
                self._parts = ["\\"]
                at = found.end()
                continue
            if state == "box":
                match = self._in_box(text[at])
            elif state == "command":
                match = self._in_command(text[at])
            elif state == "argument":
                match = self._in_argument(text[at])
            else:
                match = self._in_bare(text[at])
            if match is None:
                at += 1
            elif match is not _AGAIN:
                return Match(match.answer, at + match.end)
        return None

    def _in_command(self, char: str) -> Match | None:
        """After a backslash: collect letters while they may still become a box command."""
        self._parts.append(char)
        name = "".join(self._parts)
        if name in _COMMANDS:
            self._state = "argument"
            self._parts = []
        elif not any(command.startswith(name) for command in _COMMANDS):
            self._leave()
            return _AGAIN if char == "\\" else None
        return None

    def _in_argument(self, char: str) -> Match | None:
        """Between the command and its argument."""
        if char == "{":
            self._state = "box"
            self._depth = 1
        elif char in "0123456789+-":
            self._state = "bare"
            self._parts = [char]
        elif char in " \t\n" and len(self._parts) < 8:
            if char == "\n" and "\n" in self._parts:
                self._leave()
            else:
                self._parts.append(char)
        else:
            self._leave()
            return _AGAIN if char == "\\" else None
        return None

    def _in_bare(self, char: str) -> Match | None:
        if char in _BARE and len(self._parts) < self._max_chars:
            self._parts.append(char)
            return None
        answer = self._bare_answer()
        if answer is not None:
            return Match(answer, 0)
        self._leave()
        return _AGAIN

    def _bare_answer(self) -> Any | None:
        return self._read("".join(self._parts).rstrip(".,+-/"))

    def _in_box(self, char: str) -> Match | None:
        parts = self._parts
        if char == "\n":
            if self._blank:
                return self._abandon()
            self._blank = True
        elif char not in " \t\r":
            self._blank = False
        if len(parts) >= self._max_chars:
            return self._abandon() or _AGAIN
        parts.append(char)
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == "{":
            self._depth += 1
            tail = "".join(parts[-_LONGEST - 9 :])
            if len(self._opened) < _MAX_NESTED and _OPENS_BOX.search(tail):
                self._opened.append((self._depth, len(parts)))
        elif char == "}":
            return self._close_brace()
        return None

    def _close_brace(self) -> Match | None:
        parts = self._parts
        if self._opened and self._opened[-1][0] == self._depth:
            _, start = self._opened.pop()
            answer = self._read("".join(parts[start:-1]))
            if answer is not None:
                self._complete = [c for c in self._complete if c[0] < start]
                self._complete.append((start, answer))
        self._depth -= 1
        if self._depth:
            return None
        answer = self._read("".join(parts[:-1]))
        if answer is None:
            inner = self._abandon()
            return None if inner is None else Match(inner.answer, 1)
        self._leave()
        return Match(answer, 1)

    def _abandon(self) -> Match | None:
        """The box was none: the first complete one inside it counts, if there is one."""
        complete = self._complete
        self._leave()
        return Match(complete[0][1], 0) if complete else None

    def close(self) -> Match | None:
        if self._state == "bare":
            answer = self._bare_answer()
            return None if answer is None else Match(answer, 0)
        return self._abandon()

    def fork(self) -> Self:
        other = copy.copy(self)
        other._parts = self._parts.copy()
        other._opened = self._opened.copy()
        other._complete = self._complete.copy()
        return other


_AGAIN = Match(None, 0)  # the state changed: read the same character again
