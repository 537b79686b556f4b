"""`choice`: one letter out of a set.

- V: the letters of `letters` (`"ABCD"`, `"A-J"`, digits too); the answer is the upper-case letter.
- pi and evaluator: the first *stated* letter after the thinking: behind a cue ("answer is", "故选",
  `<answer>`, a box), or alone on the first or the last line; without one, the letter that begins
  an output of one line ("C. Planetary days ..."). Markdown, brackets, LaTeX and
  full-width forms are read through; a letter that only begins a word is none ("Answer seems ...",
  "the answer is a car", "Answer: I think").
- commit: at the character that ends the letter. Sound under that evaluator.
- `cues`: own cues instead of the built-in ones, e.g. `["FINAL ANSWER:"]`.
- Several letters ("B or C", "A/B", "B, C.") state none, and neither does "not B".
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from .base import Acceptor, Searching
from .errors import ContractError
from .pattern_acceptor import Groups, PatternAcceptor, automaton, only_group
from .stated import (
    BOX,
    CHINESE_LINK,
    CLOSE,
    CLOSED,
    OPEN,
    TAGS,
    TERM,
    alone,
    alternatives,
    cue,
    literal_cues,
    several,
    words,
)

MAX_CHARS = 2_000
MAX_CUES = 32
MAX_CUE_CHARS = 100


@dataclass(frozen=True, kw_only=True)
class Choice(Searching):
    """A letter of a closed set."""

    name: ClassVar[str] = "choice"

    letters: str = "ABCD"
    cues: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.letters, str):
            raise ContractError(f"letters: {self.letters!r} is not a text such as 'ABCD' or 'A-J'")
        letters = self.letters.upper()
        if len(letters) == 3 and letters[1] == "-" and letters[0] < letters[2]:
            letters = "".join(map(chr, range(ord(letters[0]), ord(letters[2]) + 1)))
        if not letters.isalnum() or not letters.isascii() or len(set(letters)) < len(letters):
            raise ContractError(f"letters: {self.letters!r} is not a set of letters or digits")
        object.__setattr__(self, "letters", letters)
        check_cues(self.cues)

    def first(self) -> Acceptor:
        return self._machine(fresh=True)

    def again(self) -> Acceptor:
        return self._machine(fresh=False)

    def _machine(self, fresh: bool) -> Acceptor:
        machine = automaton(_pattern(self.letters, self.cues), MAX_CHARS)
        whole = None if self.cues else automaton(_line(self.letters), MAX_CHARS)
        return PatternAcceptor(machine, self._read, fresh=fresh, whole=whole)

    def _read(self, groups: Groups) -> str | None:
        return self.normalise(only_group(groups))

    def normalise(self, answer: Any) -> str | None:
        if not isinstance(answer, str | int) or isinstance(answer, bool):
            return None
        text = (
            unicodedata.normalize("NFKC", str(answer)[:200]).strip(" \t\n*_`\"'$()[]{}.:").upper()
        )
        letter, rest = text[:1], text[1:2]
        return letter if letter and letter in self.letters and not rest.isalnum() else None


def check_cues(cues: Any) -> None:
    """Refuse cues that are no list of short texts."""
    if not isinstance(cues, tuple) or len(cues) > MAX_CUES:
        raise ContractError(f"cues: not a list of at most {MAX_CUES} texts")
    for index, text in enumerate(cues):
        if not isinstance(text, str) or not 0 < len(text.strip()) <= MAX_CUE_CHARS:
            raise ContractError(f"cues[{index}]: not a text of 1 to {MAX_CUE_CHARS} characters")


def _class(letters: str, *, lower: bool = True) -> str:
    """ASCII letters or digits, their full-width forms, and (`lower`) those in lower case."""
    forms = {form for letter in letters for form in (letter, letter.lower() if lower else letter)}
    return "[" + "".join(sorted(forms | {chr(ord(form) + 0xFEE0) for form in forms})) + "]"


@lru_cache(maxsize=64)
def _pattern(letters: str, cues: tuple[str, ...]) -> str:
    # "a" and "I" are words too: a blank and an ordinary word behind them means that.
    words_too = "".join(letter for letter in letters if letter in "AI")
    plain = "".join(letter for letter in letters if letter not in words_too)
    value = _class(letters)
    values = []
    if plain:
        values.append(f"({_class(plain)})(?:(?![{TERM}])|{CLOSED})")
    if words_too:
        after = words("because since as due which for given")
        values.append(
            rf"({_class(words_too)})(?:(?![{TERM}\s])|{CLOSED}|[ \t]*(?=[\n\r])"
            rf"|[ \t]+(?:{after}\b|(?![\s0-9A-Za-z_])))"
        )
    others = [rf"[(\[（]{value}[)\]）]"]
    if letters != "I":
        others.append(f"{_class(letters.replace('I', ''), lower=False)}(?![{TERM}])")
    values.append(several(value, f"(?:{'|'.join(others)})"))
    stated = f"{OPEN}(?:{'|'.join(values)})"
    if cues:
        return literal_cues(cues) + stated
    before = alternatives(
        cue("answer"),
        # A bare "option:" may begin a list of the options.
        rf"\b{words('correct right best final chosen')}\s+" + cue("option choice solution"),
        rf"(?:答案|回答|正解|答え|正确选项|正確選項){CHINESE_LINK}(?:[选選][项項]?)?",
        r"[选選][择擇]?[：:\s]*",
        TAGS,
        BOX,
    )
    return alternatives(
        f"(?:{before}){stated}",
        rf"只有(?:[选選][项項])?{OPEN}({value}){CLOSE}[项項]?(?:才?是)?(?:正确|正確|对|對)",
        *alone(value),
    )


def _line(letters: str) -> str:
    """A single line such as "C. Planetary days get shorter."."""
    return rf"\A{OPEN}({_class(letters)}){CLOSE}[.):：、][^\n]*\s*\z"
