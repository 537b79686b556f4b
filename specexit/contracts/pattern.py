r"""Parse a regular expression into a Thompson automaton.

The syntax is the part of RE2's that has a meaning under leftmost-*longest* matching: literals,
`.`, classes, `\d \w \s \D \W \S`, `\n \t \r \f \v \xHH \uHHHH`, groups, `|`, `* + ? {m} {m,}
{m,n}`, `^ $` (text), `\A \z \b \B`, and the flags `(?i)`, `(?s)`, `(?m)` in front. `\d \w \s` are
ASCII, as in RE2. Back references and look-around have no linear-time automaton and are refused;
lazy quantifiers mean nothing here. One extension serves the built-in contracts: `(?=[...])` and
`(?![...])` look at exactly one character (the end of the text satisfies both).
"""

from __future__ import annotations

from .build import Builder, TooManyStatesError
from .errors import ContractError
from .program import Program, Ranges, State, fold, negate, normal

MAX_REPEAT = 1_000
MAX_GROUP_DEPTH = 64

_NAMED: dict[str, Ranges] = {
    "d": ((48, 57),),
    "w": ((48, 57), (65, 90), (95, 95), (97, 122)),
    "s": ((9, 10), (12, 13), (32, 32)),
}
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}


class _Parser:
    """Reads a pattern into a tree `(kind, ...)`, so that a repeat can be built several times."""

    def __init__(self, pattern: str, where: str, ignore_case: bool) -> None:
        self.pattern = pattern
        self.where = where
        self.at = 0
        self.depth = 0
        self.groups = 0
        self.names: dict[str, int] = {}
        self.classes: dict[str, Ranges] = {}
        self.ignore_case = ignore_case
        self.dot_all = False
        self.multi_line = False

    def fail(self, message: str) -> ContractError:
        return ContractError(
            f"{self.where}: {message} (at character {self.at} of {self.pattern!r})"
        )

    def peek(self) -> str:
        return self.pattern[self.at] if self.at < len(self.pattern) else ""

    def take(self, text: str) -> bool:
        if self.pattern.startswith(text, self.at):
            self.at += len(text)
            return True
        return False

    def parse(self) -> tuple:
        while self.pattern.startswith("(?", self.at):
            end = self.pattern.find(")", self.at)
            flags = self.pattern[self.at + 2 : end]
            if end < 0 or not flags or not set(flags) <= set("ism"):
                break
            self.ignore_case |= "i" in flags
            self.dot_all |= "s" in flags
            self.multi_line |= "m" in flags
            self.at = end + 1
        tree = self.alternatives()
        if self.at < len(self.pattern):
            raise self.fail("unmatched ')'")
        return tree

    def alternatives(self) -> tuple:
        self.depth += 1
        if self.depth > MAX_GROUP_DEPTH:
            raise self.fail(f"groups nested deeper than {MAX_GROUP_DEPTH}")
        branches = [self.sequence()]
        while self.take("|"):
            branches.append(self.sequence())
        self.depth -= 1
        return branches[0] if len(branches) == 1 else ("or", branches)

    def sequence(self) -> tuple:
        items = []
        while self.peek() not in ("", "|", ")"):
            items.append(self.repeat(self.atom()))
        return ("seq", items)

    def repeat(self, item: tuple) -> tuple:
        while True:
            char = self.peek()
            if char == "*":
                low, high = 0, None
            elif char == "+":
                low, high = 1, None
            elif char == "?":
                low, high = 0, 1
            elif char == "{":
                bounds = self.bounds()
                if bounds is None:
                    return item
                low, high = bounds
            else:
                return item
            if char != "{":
                self.at += 1
            if self.peek() in ("?", "+"):
                raise self.fail("lazy and possessive quantifiers mean nothing for longest matches")
            item = ("repeat", item, low, high)

    def bounds(self) -> tuple[int, int | None] | None:
        end = self.pattern.find("}", self.at)
        low, comma, high = self.pattern[self.at + 1 : max(end, self.at)].partition(",")
        if end < 0 or not low.isascii() or not low.isdigit() or (high and not high.isdigit()):
            raise self.fail("'{' is not a repeat; write \\{ for the character")
        bounds = (int(low), int(high) if high else None if comma else int(low))
        if max(bounds[0], bounds[1] or 0) > MAX_REPEAT:
            raise self.fail(f"repeats more than {MAX_REPEAT} times")
        if bounds[1] is not None and bounds[1] < bounds[0]:
            raise self.fail("repeat bounds in the wrong order")
        self.at = end + 1
        return bounds

    def atom(self) -> tuple:
        char = self.peek()
        if char in "*+?{":
            raise self.fail(f"nothing to repeat before {char!r}")
        self.at += 1
        if char == "(":
            return self.group()
        if char == "[":
            return ("char", self.char_class())
        if char == ".":
            return ("char", negate(() if self.dot_all else ((10, 10),)))
        if char == "^":
            return ("line_start",) if self.multi_line else ("text_start",)
        if char == "$":
            return ("line_end",) if self.multi_line else ("text_end",)
        if char == "\\":
            return self.escape()
        return ("char", self.one(ord(char)))

    def one(self, code: int) -> Ranges:
        ranges: Ranges = ((code, code),)
        return fold(ranges) if self.ignore_case else ranges

    def group(self) -> tuple:
        slot = None
        if self.take("?:"):
            pass
        elif self.take("?P<") or (self.pattern.startswith("?<", self.at) and self.named()):
            end = self.pattern.find(">", self.at)
            name = self.pattern[self.at : max(end, self.at)]
            if not name.isidentifier() or name in self.names:
                raise self.fail(f"bad group name {name!r}")
            self.at = end + 1
            self.groups += 1
            slot = self.names[name] = self.groups
        elif self.take("?=[") or self.take("?!["):
            negated = self.pattern[self.at - 2] == "!"
            ranges = self.char_class()
            item: tuple = ("look", negate(ranges) if negated else ranges)
            if not self.take(")"):
                raise self.fail("look-ahead reads one character class only")
            return item
        elif self.peek() == "?":
            raise self.fail("look-around, inline flags and other (?...) groups are not supported")
        else:
            self.groups += 1
            slot = self.groups
        inner = self.alternatives()
        if not self.take(")"):
            raise self.fail("missing ')'")
        return inner if slot is None else ("group", inner, slot)

    def named(self) -> bool:
        if self.pattern[self.at + 2 : self.at + 3] in ("=", "!"):
            return False
        return self.take("?<")

    def escape(self) -> tuple:
        char = self.peek()
        self.at += 1
        special = {"A": "text_start", "z": "text_end", "b": "word", "B": "not_word"}
        if char in special:
            return (special[char],)
        if char.lower() in _NAMED and char:
            ranges = _NAMED[char.lower()]
            return ("char", ranges if char.islower() else negate(ranges))
        return ("char", self.one(self.escaped(char)))

    def escaped(self, char: str) -> int:
        """The code point of a simple escape whose letter has been read."""
        if char in _CONTROL:
            return ord(_CONTROL[char])
        width = {"x": 2, "u": 4}.get(char)
        if width:
            digits = self.pattern[self.at : self.at + width]
            try:
                code = int(digits, 16) if len(digits) == width else -1
            except ValueError:
                code = -1
            if code < 0:
                raise self.fail(f"\\{char} needs {width} hexadecimal digits")
            self.at += width
            return code
        if not char or char.isalnum():
            raise self.fail(f"escape \\{char} is not supported")
        return ord(char)

    def char_class(self) -> Ranges:
        """A class, behind its `[`; the same simple ones come again and again."""
        end = self.pattern.find("]", self.at + 1)
        text = self.pattern[self.at : end]
        if end < 0 or "\\" in text or "[" in text:
            return self.read_class()
        found = self.classes.get(text)
        if found is None:
            return self.classes.setdefault(text, self.read_class())
        self.at = end + 1
        return found

    def read_class(self) -> Ranges:
        negated = self.take("^")
        ranges: list[tuple[int, int]] = []
        first = True
        while first or self.peek() != "]":
            first = False
            if not self.peek():
                raise self.fail("missing ']'")
            low = self.class_item(ranges)
            if low is None or self.peek() != "-" or self.pattern[self.at + 1 : self.at + 2] == "]":
                if low is not None:
                    ranges.append((low, low))
                continue
            self.at += 1
            high = self.class_item(ranges)
            if high is None or high < low:
                raise self.fail("bad range in a class")
            ranges.append((low, high))
        self.at += 1
        found = normal(ranges)
        if self.ignore_case:
            found = fold(found)
        return negate(found) if negated else found

    def class_item(self, ranges: list[tuple[int, int]]) -> int | None:
        """One character of a class; a shorthand goes straight to `ranges` and gives None."""
        char = self.peek()
        self.at += 1
        if char == "[" and self.peek() == ":":
            raise self.fail("POSIX classes are not supported")
        if char != "\\":
            if not char:
                raise self.fail("missing ']'")
            return ord(char)
        char = self.peek()
        self.at += 1
        if char and char.lower() in _NAMED:
            named = _NAMED[char.lower()]
            ranges.extend(named if char.islower() else negate(named))
            return None
        return self.escaped(char)


def compile_pattern(
    pattern: str, *, where: str = "pattern", max_states: int = 20_000, ignore_case: bool = False
) -> Program:
    """Compile `pattern`; errors are `ContractError`s that begin with `where`."""
    parser = _Parser(pattern, where, ignore_case)
    builder = Builder(max_states)
    try:
        start = builder.build(parser.parse(), builder.add(State("match")))
    except TooManyStatesError:
        raise parser.fail(f"the pattern needs more than {max_states} automaton states") from None
    return Program(builder.states, start, parser.groups, parser.names)
