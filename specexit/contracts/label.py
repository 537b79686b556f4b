"""`label`: one of a closed set of labels, where one may begin another.

- V: `labels`; the answer is the label as the contract writes it.
- pi and evaluator: the first stated label after the thinking: behind a cue ("label:", "the answer
  is", `<answer>`, a box), or alone on the first or the last line. The longest label counts.
- Several labels ("positive or negative", "yes/no") state none.
- commit: once no longer label can follow ("safe" waits while "safe for work" is possible), so at
  the character that rules it out. Sound under that evaluator.
- `case_sensitive` (default false), `cues` (own cues instead of the built-in ones).
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from .base import Acceptor, Searching, check_bool
from .choice import check_cues
from .errors import ContractError
from .pattern_acceptor import Groups, PatternAcceptor, automaton, only_group
from .stated import (
    BOX,
    CHINESE_LINK,
    CLOSED,
    OPEN,
    TAGS,
    WORD,
    alone,
    alternatives,
    any_case,
    cue,
    literal_cues,
    several,
)

MAX_LABELS = 500
MAX_LABEL_CHARS = 200
MAX_ALL_CHARS = 5_000
_ENDS = rf"(?:(?![{WORD}'’\-])|{CLOSED})"
_NOUNS = (
    "answer label class classification category verdict decision result prediction sentiment "
    "output judgment judgement conclusion"
)


@dataclass(frozen=True, kw_only=True)
class Label(Searching):
    """A label of a closed set."""

    name: ClassVar[str] = "label"

    labels: tuple[str, ...]
    case_sensitive: bool = False
    cues: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bool("case_sensitive", self.case_sensitive)
        check_cues(self.cues)
        if not isinstance(self.labels, tuple) or not 0 < len(self.labels) <= MAX_LABELS:
            raise ContractError(f"labels: not a list of 1 to {MAX_LABELS} texts")
        size = sum(len(label) for label in self.labels if isinstance(label, str))
        if size > MAX_ALL_CHARS:
            raise ContractError(
                f"labels: {size} characters together, at most {MAX_ALL_CHARS} allowed"
            )
        seen: set[str] = set()
        for index, label in enumerate(self.labels):
            if not isinstance(label, str) or not 0 < len(label.strip()) <= MAX_LABEL_CHARS:
                raise ContractError(
                    f"labels[{index}]: not a text of 1 to {MAX_LABEL_CHARS} characters"
                )
            key = self._key(label)
            if key in seen:
                raise ContractError(f"labels[{index}]: {label!r} is there twice")
            seen.add(key)

    def _key(self, text: str) -> str:
        text = re.sub(r"\s+", " ", unicodedata.normalize("NFKC", text)).strip()
        return text if self.case_sensitive else text.casefold()

    def first(self) -> Acceptor:
        return self._machine(fresh=True)

    def again(self) -> Acceptor:
        return self._machine(fresh=False)

    def _machine(self, fresh: bool) -> Acceptor:
        pattern = _pattern(self.labels, self.case_sensitive, self.cues)
        machine = automaton(pattern, 4 * MAX_LABEL_CHARS)
        return PatternAcceptor(machine, self._read, fresh=fresh)

    def _read(self, groups: Groups) -> str | None:
        return self.normalise(only_group(groups))

    def normalise(self, answer: Any) -> str | None:
        if isinstance(answer, bool):
            answer = "true" if answer else "false"
        if not isinstance(answer, str):
            return None
        key = self._key(answer[: 4 * MAX_LABEL_CHARS])
        for text in (key, key.strip("*_`\"'$()[]{}.:")):
            for label in self.labels:
                if self._key(label) == text:
                    return label
        return None


@lru_cache(maxsize=64)
def _pattern(labels: tuple[str, ...], case_sensitive: bool, cues: tuple[str, ...]) -> str:
    blanks = re.compile(r"\s+")
    forms = [
        blanks.sub(r"\\s+", re.escape(label.strip()).replace("\\ ", " "))
        if case_sensitive
        else any_case(label.strip(), wide=True)
        for label in labels
    ]
    value = f"(?:{'|'.join(forms)})"
    stated = f"{OPEN}(?:({value}){_ENDS}|{several(value, value + _ENDS)})"
    if cues:
        return literal_cues(cues) + stated
    before = alternatives(
        cue(_NOUNS), f"(?:答案|标签|標籤|分类|分類|结论|結論){CHINESE_LINK}", TAGS, BOX
    )
    return alternatives(f"(?:{before}){stated}", *alone(value))
