r"""Read a unified diff line by line, as `git apply` does.

Lines end at `\n` only (a lone `\r` is content). Checked: the order of headers, `---`/`+++` pairs
and their agreement with `diff --git`, hunk counts, that every hunk changes something, that a new
file has no old lines and a deleted one no new lines, and git's binary blocks down to their size.
`Binary files ... differ` cannot be applied and is broken.
"""

from __future__ import annotations

import copy
import re
from enum import Enum, auto

from .git_binary import inflates

_HUNK = re.compile(r"@@ -([0-9]{1,9})(?:,([0-9]{1,9}))? \+([0-9]{1,9})(?:,([0-9]{1,9}))? @@")
_BLOCK = re.compile(r"(literal|delta) ([0-9]{1,9})\Z")
_EXTENDED = (
    "index ",
    "similarity index ",
    "dissimilarity index ",
    "old mode ",
    "new mode ",
    "new file mode ",
    "deleted file mode ",
    "rename from ",
    "rename to ",
    "copy from ",
    "copy to ",
)
# Extended headers that are a change without any hunk.
_CHANGES = (
    {"old mode ", "new mode "},
    {"rename from ", "rename to "},
    {"copy from ", "copy to "},
    {"new file mode "},
    {"deleted file mode "},
)
_MOVED = {"rename from ": "from", "copy from ": "from", "rename to ": "to", "copy to ": "to"}
NULL = "/dev/null"
SIGNATURE = "-- "
"""The line with which `git format-patch` ends a diff."""
_NO_DATA = "Binary files "
_SEPARATORS = ("Index: ", "=====")  # between the files of older tools
_NEXT = ("diff --git ", "--- ", *_SEPARATORS)


class Verdict(Enum):
    """What a line does to the diff."""

    MORE = auto()  # belongs to it
    END = auto()  # does not, and the diff is complete without it
    BROKEN = auto()


class _At(Enum):
    START = auto()
    HEADER = auto()
    OLD_NAME = auto()
    NAMES = auto()
    HUNK = auto()
    COMPLETE = auto()  # the last hunk or file is complete
    GAP = auto()  # the same, after a blank line
    BINARY = auto()
    BINARY_DATA = auto()
    BINARY_END = auto()


class DiffParser:
    """Fed with the lines of a diff; `complete` says whether it could end here."""

    def __init__(self) -> None:
        self._at = _At.START
        self._git = ""
        self._seen: set[str] = set()
        self._moved: dict[str, str] = {}  # what a rename or copy header says: "from", "to"
        self._old = self._new = ""
        self._old_left = self._new_left = 0
        self._changed = False
        self._size = 0
        self._data: list[str] = []
        self._data_size = 0
        self._lines = 0
        self.whole_lines = 0  # lines up to where the diff was last complete

    @property
    def complete(self) -> bool:
        """Whether what was read is a whole diff."""
        if self._at is _At.HEADER:
            return self._is_change()
        return self._at in (_At.COMPLETE, _At.GAP, _At.BINARY_END)

    @property
    def continues(self) -> tuple[str, ...]:
        """How a line can begin that goes on with the diff, when it is complete."""
        if self._at is _At.HEADER:
            return (*_NEXT, *_EXTENDED, "GIT binary patch", _NO_DATA)
        if self._at is _At.BINARY_END:
            return (*_NEXT, "literal ", "delta ")
        return (*_NEXT, "@@ -", "\\ ") if self._at is _At.COMPLETE else _NEXT

    def line(self, line: str) -> Verdict:
        """Read one line (without its newline)."""
        verdict = self._read(line)
        if verdict is Verdict.MORE:
            self._lines += 1
            if self.complete and self._at is not _At.GAP:
                self.whole_lines = self._lines
        elif verdict is Verdict.END:
            self._at = _At.GAP
        return verdict

    def _read(self, line: str) -> Verdict:
        if self._at is _At.HUNK:
            return self._in_hunk(line)
        if self._at is _At.BINARY_DATA:
            return self._in_data(line)
        head = line.rstrip("\r")
        if head.startswith("diff --git "):
            return self._begin(head) if self._at is _At.START or self.complete else Verdict.BROKEN
        return {
            _At.START: self._at_start,
            _At.HEADER: self._in_header,
            _At.OLD_NAME: self._after_old,
            _At.NAMES: self._after_names,
            _At.COMPLETE: self._after_hunk,
            _At.GAP: self._after_gap,
            _At.BINARY: self._in_binary,
            _At.BINARY_END: self._after_binary,
        }[self._at](head)

    def _begin(self, line: str) -> Verdict:
        self._git = line[len("diff --git ") :]
        self._seen = set()
        self._moved = {}
        self._at = _At.HEADER
        return Verdict.MORE

    def _at_start(self, line: str) -> Verdict:
        if not line.startswith("--- "):
            return Verdict.BROKEN
        self._git = ""
        self._seen = set()
        self._moved = {}
        return self._old_line(line)

    def _is_change(self) -> bool:
        return any(change <= self._seen for change in _CHANGES)

    def _in_header(self, line: str) -> Verdict:
        for prefix in _EXTENDED:
            if line.startswith(prefix):
                self._seen.add(prefix)
                if prefix in _MOVED:
                    self._moved[_MOVED[prefix]] = line[len(prefix) :].rstrip().strip('"')
                return Verdict.MORE
        if line.startswith("--- "):
            return self._old_line(line)
        if line == "GIT binary patch":
            self._at = _At.BINARY
            return Verdict.MORE
        if not self._is_change() or line.startswith(_NO_DATA):
            return Verdict.BROKEN
        if not line:
            self._at = _At.GAP
            return Verdict.MORE
        return Verdict.END

    def _old_line(self, line: str) -> Verdict:
        self._old = _path(line)
        self._at = _At.OLD_NAME
        known = not self._git or self._old == NULL or self._git.startswith(self._old + " ")
        known = known and self._agrees("from", self._old)
        return Verdict.MORE if known and self._old else Verdict.BROKEN

    def _agrees(self, end: str, path: str) -> bool:
        """Whether a path is the one that a rename or copy header names."""
        named = self._moved.get(end)
        return named is None or path.strip('"').partition("/")[2] == named

    def _after_old(self, line: str) -> Verdict:
        if not line.startswith("+++ "):
            return Verdict.BROKEN
        self._new = _path(line)
        self._at = _At.NAMES
        known = not self._git or self._new == NULL or self._git.endswith(" " + self._new)
        known = known and self._agrees("to", self._new)
        both_null = self._old == self._new == NULL
        return Verdict.MORE if known and self._new and not both_null else Verdict.BROKEN

    def _after_names(self, line: str) -> Verdict:
        found = _HUNK.match(line)
        if found is None:
            return Verdict.BROKEN
        self._old_left = 1 if found[2] is None else int(found[2])
        self._new_left = 1 if found[4] is None else int(found[4])
        if (self._old == NULL and self._old_left) or (self._new == NULL and self._new_left):
            return Verdict.BROKEN
        self._changed = False
        self._at = _At.HUNK
        return Verdict.MORE if self._old_left or self._new_left else Verdict.BROKEN

    def _in_hunk(self, line: str) -> Verdict:
        kind = line[:1]
        if kind == "\\":
            return Verdict.MORE if _no_newline(line) else Verdict.BROKEN
        if kind not in ("", " ", "-", "+"):
            return Verdict.BROKEN
        self._old_left -= kind != "+"
        self._new_left -= kind != "-"
        self._changed = self._changed or kind in ("-", "+")
        if self._old_left < 0 or self._new_left < 0:
            return Verdict.BROKEN
        if self._old_left or self._new_left:
            return Verdict.MORE
        self._at = _At.COMPLETE
        return Verdict.MORE if self._changed else Verdict.BROKEN

    def _after_hunk(self, line: str) -> Verdict:
        if line.startswith("@@ -"):
            return self._after_names(line)
        if line.startswith("--- "):
            return self._at_start(line)
        if not line.strip() or line.startswith(_SEPARATORS):
            self._at = _At.GAP
            return Verdict.MORE
        if line == SIGNATURE:
            return Verdict.END
        if line[0] == "\\":
            return Verdict.MORE if _no_newline(line) else Verdict.BROKEN
        # One more line of the hunk than its header says: the counts are wrong.
        return Verdict.BROKEN if line[0] in " +-" else Verdict.END

    def _after_gap(self, line: str) -> Verdict:
        if line.startswith("--- "):
            return self._at_start(line)
        if not line.strip() or line.startswith(_SEPARATORS):
            return Verdict.MORE
        return Verdict.BROKEN if line.startswith(("@@ -", "+++ ")) else Verdict.END

    def _in_binary(self, line: str) -> Verdict:
        found = _BLOCK.match(line)
        if found is None:
            return Verdict.BROKEN
        self._size = int(found[2])
        self._data = []
        self._data_size = 0
        self._at = _At.BINARY_DATA
        return Verdict.MORE

    def _in_data(self, line: str) -> Verdict:
        line = line.rstrip("\r")
        if line:
            self._data.append(line)
            self._data_size += len(line)
            # Deflate expands by less than 0.1 %, base85 by 5/4 and a length for every 65 letters.
            too_long = self._data_size > 2 * self._size + 1_000
            return Verdict.BROKEN if too_long else Verdict.MORE
        self._at = _At.BINARY_END
        return Verdict.MORE if inflates(self._data, self._size) else Verdict.BROKEN

    def _after_binary(self, line: str) -> Verdict:
        if _BLOCK.match(line):  # the way back
            return self._in_binary(line)
        self._at = _At.GAP
        return self._after_gap(line)

    def fork(self) -> DiffParser:
        """An independent copy."""
        other = copy.copy(self)
        other._seen = self._seen.copy()
        other._moved = self._moved.copy()
        other._data = self._data.copy()
        return other


def _path(line: str) -> str:
    """The path of a `---` or `+++` line, without the time stamp behind a tab."""
    return line[4:].split("\t", 1)[0].rstrip()


def _no_newline(line: str) -> bool:
    r"""`\ No newline at end of file`, in whatever language: git asks for 12 characters."""
    return line.startswith("\\ ") and len(line) >= 12
