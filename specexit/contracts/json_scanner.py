"""Find where a JSON value ends, reading it once.

A push-down machine for RFC 8259: it knows the grammar only, and keeps one bit per open bracket.
The value itself is made by `json.loads` when the machine says that it is complete.
"""

from __future__ import annotations

import copy
import re
from enum import Enum, auto
from typing import Self

_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_LITERALS = {"t": "rue", "f": "alse", "n": "ull"}
_SPACE = " \t\n\r"


class Step(Enum):
    """What a run of the scanner came to."""

    MORE = auto()
    DONE = auto()
    BROKEN = auto()


class _At(Enum):
    VALUE = auto()
    FIRST_ITEM = auto()  # after [
    FIRST_KEY = auto()  # after {
    KEY = auto()
    COLON = auto()
    AFTER = auto()  # after a value inside a bracket
    STRING = auto()
    ESCAPE = auto()
    UNICODE = auto()
    LITERAL = auto()
    MINUS = auto()
    ZERO = auto()
    INTEGER = auto()
    POINT = auto()
    FRACTION = auto()
    EXPONENT = auto()
    EXPONENT_SIGN = auto()
    EXPONENT_DIGITS = auto()


_NUMBER_MAY_END = (_At.ZERO, _At.INTEGER, _At.FRACTION, _At.EXPONENT_DIGITS)


class JsonScanner:
    """Reads one JSON value from its first character on.

    `lenient`: take control characters in strings, and backslashes that escape nothing (LaTeX), as
    they are; `repaired` then holds a text that `json.loads(strict=False)` accepts.
    """

    __slots__ = (
        "_at",
        "_escape",
        "_is_key",
        "_max_depth",
        "_rest",
        "_stack",
        "lenient",
        "members",
        "parts",
        "too_deep",
    )

    def __init__(self, max_depth: int, lenient: bool) -> None:
        self._max_depth = max_depth
        self.lenient = lenient
        self._at = _At.VALUE
        self._stack: list[bool] = []  # True: object, False: array
        self._is_key = False
        self._rest = ""
        self._escape = ""
        self.members = 0  # keys with their colon: more than prose with a brace
        self.parts: list[str] = []  # the text so far (repaired, if lenient)
        self.too_deep = False

    def plain(self, text: str) -> bool:
        """Take all of `text` if it lies inside a string and changes nothing; False: use `feed`."""
        inside = (
            self._at is _At.STRING and text.isprintable() and '"' not in text and "\\" not in text
        )
        if inside:
            self.parts.append(text)
        return inside

    def feed(self, text: str, at: int, size: int) -> tuple[Step, int]:
        """Read `text[at:size]`; what it came to, and the index behind the last character used."""
        begin = at
        while at < size:
            state = self._at
            if state is _At.STRING:
                end = _PLAIN.match(text, at, size).end()  # type: ignore[union-attr]
                if end == size:
                    at = end
                    break
                char = text[end]
                at = end
                if char == '"':
                    self._at = _At.COLON if self._is_key else _At.AFTER
                    at += 1
                    if not self._stack:
                        return self._done(text, begin, at)
                elif char == "\\":
                    self._keep(text, begin, at)
                    begin = at = at + 1
                    self._at, self._escape = _At.ESCAPE, "\\"
                elif self.lenient:
                    at += 1
                else:
                    return Step.BROKEN, at
                continue
            if state is _At.ESCAPE or state is _At.UNICODE:
                at = begin = self._read_escape(text, at)
                if at < 0:
                    return Step.BROKEN, -at - 1
                continue
            char = text[at]
            if state in _NUMBER_MAY_END and char not in "0123456789.eE+-":
                self._at = _At.AFTER
                if not self._stack:
                    return self._done(text, begin, at) if char in _SPACE else (Step.BROKEN, at)
                continue
            if not self._step(char):
                return Step.BROKEN, at
            at += 1
            if not self._stack and self._at is _At.AFTER:
                return self._done(text, begin, at)
        self._keep(text, begin, size)
        return Step.MORE, size

    def _keep(self, text: str, begin: int, end: int) -> None:
        if end > begin:
            self.parts.append(text[begin:end])

    def _done(self, text: str, begin: int, end: int) -> tuple[Step, int]:
        self._keep(text, begin, end)
        return Step.DONE, end

    def _read_escape(self, text: str, at: int) -> int:
        """Read on inside an escape; the next index, or -index - 1 where it is broken."""
        char = text[at]
        if self._at is _At.ESCAPE:
            if char == "u":
                self._at, self._escape = _At.UNICODE, "\\u"
                return at + 1
            if char in '"\\/bfnrt':
                return self._end_escape("\\" + char, at + 1)
        elif char in "0123456789abcdefABCDEF":
            self._escape += char
            if len(self._escape) == 6:
                return self._end_escape(self._escape, at + 1)
            return at + 1
        if not self.lenient:
            return -at - 1
        # The backslash escapes nothing: it stands for itself, and so does what followed it.
        return self._end_escape("\\" + self._escape, at)

    def _end_escape(self, text: str, at: int) -> int:
        self.parts.append(text)
        self._at = _At.STRING
        return at

    def _step(self, char: str) -> bool:
        """One character outside strings; False where the grammar has no place for it."""
        state = self._at
        if state is _At.LITERAL:
            if char != self._rest[0]:
                return False
            self._rest = self._rest[1:]
            if not self._rest:
                self._at = _At.AFTER
            return True
        if char in _SPACE and state in _BETWEEN:
            return True
        if state is _At.AFTER:
            return self._after(char)
        if state is _At.COLON:
            self._at = _At.VALUE
            self.members += char == ":"
            return char == ":"
        if state in (_At.KEY, _At.FIRST_KEY):
            if char == "}" and state is _At.FIRST_KEY:
                return self._pop(True)
            self._at, self._is_key = _At.STRING, True
            return char == '"'
        if state in (_At.VALUE, _At.FIRST_ITEM):
            if char == "]" and state is _At.FIRST_ITEM:
                return self._pop(False)
            return self._begin(char)
        following = _NUMBER[state].get(char)
        if following is None:
            return False
        self._at = following
        return True

    def _after(self, char: str) -> bool:
        if not self._stack:
            return False
        if char == ",":
            self._at = _At.KEY if self._stack[-1] else _At.VALUE
            return True
        return char in "}]" and self._pop(char == "}")

    def _pop(self, is_object: bool) -> bool:
        if self._stack[-1] is not is_object:
            return False
        self._stack.pop()
        self._at = _At.AFTER
        return True

    def _begin(self, char: str) -> bool:
        if char in "{[":
            if len(self._stack) >= self._max_depth:
                self.too_deep = True
                return False
            self._stack.append(char == "{")
            self._at = _At.FIRST_KEY if char == "{" else _At.FIRST_ITEM
        elif char == '"':
            self._at, self._is_key = _At.STRING, False
        elif char in _LITERALS:
            self._at, self._rest = _At.LITERAL, _LITERALS[char]
        elif char in _NUMBER[_At.MINUS]:
            self._at = _NUMBER[_At.MINUS][char]
        elif char == "-":
            self._at = _At.MINUS
        else:
            return False
        return True

    def number_may_end(self) -> bool:
        """Whether a number at the top level would be complete if the text ended here."""
        return not self._stack and self._at in _NUMBER_MAY_END

    def text(self) -> str:
        """What was read."""
        return "".join(self.parts)

    def fork(self) -> Self:
        other = copy.copy(self)
        other._stack = self._stack.copy()
        other.parts = self.parts.copy()
        return other


_BETWEEN = frozenset((_At.VALUE, _At.FIRST_ITEM, _At.FIRST_KEY, _At.KEY, _At.COLON, _At.AFTER))


def _digits(state: _At, **others: _At) -> dict[str, _At]:
    return {**dict.fromkeys("0123456789", state), **others}


_EXP = {"e": _At.EXPONENT, "E": _At.EXPONENT}
_NUMBER: dict[_At, dict[str, _At]] = {
    _At.MINUS: {**_digits(_At.INTEGER), "0": _At.ZERO},
    _At.ZERO: {".": _At.POINT, **_EXP},
    _At.INTEGER: {**_digits(_At.INTEGER), ".": _At.POINT, **_EXP},
    _At.POINT: _digits(_At.FRACTION),
    _At.FRACTION: {**_digits(_At.FRACTION), **_EXP},
    _At.EXPONENT: {**_digits(_At.EXPONENT_DIGITS), "+": _At.EXPONENT_SIGN, "-": _At.EXPONENT_SIGN},
    _At.EXPONENT_SIGN: _digits(_At.EXPONENT_DIGITS),
    _At.EXPONENT_DIGITS: _digits(_At.EXPONENT_DIGITS),
}
