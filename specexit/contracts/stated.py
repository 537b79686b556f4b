r"""Patterns for an answer that is *stated*: a cue, perhaps some dress, the value, what ends it.

`Answer: B`, `**Answer:** (b)`, `The correct option is \text{B}`, `<answer> B </answer>`,
`\boxed{B}`, `故选B`, or an answer that stands alone on the first or last line. Written for
`specexit.contracts.pattern`; every alternative has exactly one group, the value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# What may stand between a cue and the value, and right behind the value.
OPEN = (
    r"(?:[\s*_`\"'“”‘’$(\[{（【「『《:：=>→]|->|--|[–—]"
    r"|\\(?:boxed|fbox|text|textbf|textrm|mathbf|mathrm|bf|rm)\s*|\\[(\[])*"
)
# The same for numbers: a bracket must close behind the value, or it opens a pair or an interval.
OPEN_NUMBER = (
    r"(?:[\s*_`\"'“”‘’$「『《:：=>→]|->|--|[–—]"
    r"|\\(?:boxed|fbox|text|textbf|textrm|mathbf|mathrm|bf|rm)\s*\{?|\\[(\[])*"
)
CLOSE = r"[*_`\"'”’$)\]}）】」』》]*"
# What ends a value: no character with which a word (or a term, `B+1`) goes on; a quote or an
# underscore only closes it where no letter follows.
WORD = r"0-9A-Za-z_０-９Ａ-Ｚａ-ｚ"
CLOSED = rf"['’_]+(?![{WORD}'’])"
TERM = rf"{WORD}'’+#=&/\-"

_FILL = "option choice letter answer number label definitely clearly therefore thus indeed simply"
_FILL_MORE = "still probably likely most the value approximately about exactly"
_LINKS = "is are was be equals seems appears " + " ".join(
    rf"{verb}\s+be" for verb in (r"seems\s+to", r"appears\s+to", "should", "must", "would")
)


def any_case(text: str, *, wide: bool = False) -> str:
    """`text` in any case (`wide`: full-width too); blanks match any run of blanks."""
    out = []
    for char in text:
        if char.isspace():
            out.append(r"\s+")
        elif char.isalpha() and len(char.lower()) == len(char.upper()) == 1:
            forms = sorted({char.lower(), char.upper()})
            if wide and char.isascii():
                forms += [chr(ord(form) + 0xFEE0) for form in forms]
            out.append(f"[{''.join(forms)}]" if len(forms) > 1 else char)
        else:
            out.append(re.escape(char) if char.isascii() else char)
    return re.sub(r"(?:\\s\+)+", r"\\s+", "".join(out))


def words(text: str) -> str:
    """An alternative of blank-separated words, in any case."""
    forms = ("\\s+".join(map(any_case, word.split("\\s+"))) for word in text.split())
    return f"(?:{'|'.join(forms)})"


# "answer is", "answer:", "answer** =": the link is needed, or every "answer" would be a cue.
LINK = rf"[\s*_`\"')\]]*(?:[:：=→]|->|\s[-–—]\s|\b{words(_LINKS)}\b)"
FILL = rf"(?:{OPEN}\b{words(_FILL + ' ' + _FILL_MORE)}\b)*"


def cue(nouns: str) -> str:
    """A noun such as "answer" (blank-separated list), what links it to a value, and fillers."""
    asked = rf"\s+to\s+{words('the this')}\s+{words('question problem')}"
    return rf"\b{words(nouns)}(?:\s+{words('choice option letter')}|{asked})?{LINK}{FILL}"


def literal_cues(cues: Sequence[str]) -> str:
    """The user's own cues, taken literally but for case and blanks."""
    return f"(?:{'|'.join(any_case(text.strip()) for text in cues)})"


# 答案：, **答案**：, 【答案】, 正确答案是
CHINESE_LINK = r"[是为為应應该該：:はの\s】」』*_]*"
TAGS = rf"<(?:{any_case('answer')}|{any_case('final')}|{any_case('label')})>"
BOX = r"\\(?:boxed|fbox)\s*\{"


def several(value: str, other: str) -> str:
    """`value` and another one (`B or C`, `yes/no`, `A, B.`): neither is the answer.

    It matches more than `value` alone, so it wins where both match; it has no group.
    """
    joint = rf"[ \t]*(?:[/&、和或与與]|还是|還是|或者)[ \t]*|\||[ \t]+{words('or')}[ \t]+"
    listed = rf"[ \t]*[,，][ \t]*(?:{words('or and')}[ \t]+)?|[ \t]+{words('and')}[ \t]+"
    over = rf"{CLOSE}[ \t]*[\n\r.,;:)}}\]。，；]"  # "C, and D is wrong" states C
    between = r"[*_`\"'”’)\]）】」]*"  # not \boxed{B}: that is over at its brace
    return rf"{value}{between}(?:(?:{joint}){OPEN}{other}|(?:{listed}){OPEN}{other}{over})"


def alternatives(*patterns: str) -> str:
    """One pattern out of several."""
    return "|".join(f"(?:{pattern})" for pattern in patterns)


def alone(value: str) -> tuple[str, ...]:
    """`value` as the whole first line, or as the last line of the output.

    The last line is known at the end of the output only.
    """
    return (
        rf"\A{OPEN}({value}){CLOSE}[.。]?[ \t]*(?=[\n\r])",
        rf"\n{OPEN}({value}){CLOSE}[.。]?\s*\z",
    )
