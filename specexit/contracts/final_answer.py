"""`final_answer`: a number behind a marker.

- V: decimal numbers and fractions; the answer is plain text (`"1234.5"`, `"3/4"`).
- pi and evaluator: the first number after the thinking that is stated: "final answer: 12", "the
  answer is $1,200", "FINAL: 7", "#### 18", `<answer>12</answer>`, a box. A number that goes on as
  an expression ("the answer is 5 + 7 = 12") is read at its end; a time or a range is none.
- commit: at the character that shows that the number is over: "12" waits, "12." waits, since "12.5"
  may come. Sound under that evaluator.
- `cues`: own markers instead of the built-in ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar

from .base import Acceptor, Searching
from .choice import check_cues
from .latex import number_text, tidy
from .pattern_acceptor import Groups, PatternAcceptor, automaton, only_group
from .stated import (
    BOX,
    CHINESE_LINK,
    OPEN_NUMBER,
    TAGS,
    alone,
    alternatives,
    any_case,
    cue,
    literal_cues,
)

MAX_CHARS = 500
_FRACTION = re.compile(
    r"(?P<sign>[+-]?)\s*(?:\\[dt]?frac\s*\{\s*(?P<a>-?[0-9]+)\s*\}\s*\{\s*(?P<b>[0-9]+)\s*\}"
    r"|(?P<c>[0-9]+)\s*/\s*(?P<d>[0-9]+))\Z"
)

_DIGIT = "[0-9０-９]"
_SEPARATOR = r"(?:[,，]|\{,\}|\\,)"
_NUMBER = (
    rf"[+\-−]?[$€£¥]?(?:\\\$)?[+\-−]?(?:{_DIGIT}{{1,3}}(?:{_SEPARATOR}{_DIGIT}{{3}})+|{_DIGIT}+)"
    rf"(?:\.{_DIGIT}+)?|[+\-−]?\.{_DIGIT}+"
    rf"|[+\-−]?{_DIGIT}+\s?/\s?{_DIGIT}+"
    r"|[+\-−]?\\[dt]?frac\{-?[0-9]+\}\{[0-9]+\}"
)
_NO_MORE = r"0-9０-９A-Za-z_^+*×÷=(\\/,.:\-−~½⅓⅔¼¾⅕⅙⅛⅜⅝⅞⁰¹²³⁴-⁹ⁿ"
_UNITS = "km cm mm kg mg ml g m s h min hours minutes seconds days dollars cents units percent"
_OVER = "|".join(
    (
        rf"(?![{_NO_MORE}\s])",
        r"[ \t]*(?=[\n\r])",
        r"(?:\*\*?|__?)(?![\s0-9A-Za-z({\\*_])",
        r"\*\*\s",
        r"[,.:](?![0-9０-９])",
        r"[ \t]+(?![\s0-9+*×÷=^/\\\-−])",
        r"[ \t]+[\-−]+[ \t]*(?![\s0-9$\-−])",
        r"[ \t]*\\(?:[)\]%,;!$ \\}]|text|mathrm|quad|circ)",
        rf"(?:{'|'.join(_UNITS.split())})\b",
    )
)
_EXPRESSION = r"(?:[0-9+\-−*×÷/().,$€£ ]+=\s*|[A-Za-z](?:_[0-9A-Za-z])?\s*=\s*)*"


@dataclass(frozen=True, kw_only=True)
class FinalAnswer(Searching):
    """A number stated as the final answer."""

    name: ClassVar[str] = "final_answer"

    cues: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_cues(self.cues)

    def first(self) -> Acceptor:
        return self._machine(fresh=True)

    def again(self) -> Acceptor:
        return self._machine(fresh=False)

    def _machine(self, fresh: bool) -> Acceptor:
        machine = automaton(_pattern(self.cues), MAX_CHARS)
        return PatternAcceptor(machine, self._read, fresh=fresh)

    def _read(self, groups: Groups) -> str | None:
        return self.normalise(only_group(groups))

    def normalise(self, answer: Any) -> str | None:
        if isinstance(answer, bool) or answer is None:
            return None
        text = str(answer)[:MAX_CHARS]
        fraction = _FRACTION.match(tidy(text))
        if fraction is None:
            return number_text(text)
        above, below = fraction["a"] or fraction["c"], fraction["b"] or fraction["d"]
        if int(below) == 0:
            return None
        value = Fraction(int(fraction["sign"] + "1") * int(above), int(below))
        return str(value)

    def equal(self, a: Any, b: Any) -> bool:
        left, right = self.normalise(a), self.normalise(b)
        return left is not None and right is not None and Fraction(left) == Fraction(right)


@lru_cache(maxsize=64)
def _pattern(cues: tuple[str, ...]) -> str:
    stated = (
        f"{OPEN_NUMBER}{_EXPRESSION}{OPEN_NUMBER}"
        rf"(?:({_NUMBER})(?:{_OVER})|[(\[{{（]\s*({_NUMBER})\s*[)\]}}）])"
    )
    if cues:
        return literal_cues(cues) + stated
    before = alternatives(
        cue("answer result"),
        rf"\b{any_case('final')}[*_ ]*[:：]",
        "####",
        rf"(?:答案|答え){CHINESE_LINK}",
        TAGS,
        BOX,
    )
    return alternatives(f"(?:{before}){stated}", *alone(_NUMBER))
