r"""Read plain values out of LaTeX and typography: `$9{,}500`, `\text{12}`, `35 cm`, `073`."""

from __future__ import annotations

import re
import unicodedata

_WRAPPER = re.compile(
    r"\\(?:boxed|fbox|framebox|text|textbf|textit|textrm|textsf|texttt|mathrm|mathbf|mathit|mathsf"
    r"|mathtt|mathnormal|boldsymbol|bm|mbox|hbox|emph|underline|bf|rm)\s*\{"
)
_STYLE = re.compile(
    r"\\(?:displaystyle|textstyle|scriptstyle|bf|rm|it|large|Large|huge|Huge|left|right|bigl|bigr"
    r"|Bigl|Bigr|big|Big)(?![A-Za-z])"
)
_SPACE = re.compile(r"\\[ ,;:!>]|\\(?:quad|qquad|thinspace|enspace|hspace\{[^{}]*\})(?![A-Za-z])|~")
_THIN_SEPARATOR = re.compile(r"(?<=[0-9])(?:\\[,;:! ]|~)(?=[0-9]{3}(?![0-9]))")
_BLANKS = re.compile(r"\s+")
_MAX_DRESS = 20  # layers that are taken off
_MINUS = str.maketrans({"\u2212": "-", "\u2013": "-", "\u00a0": " ", "\u202f": " ", "\u2009": " "})
_NUMBER = r"[+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|[+-]?\.[0-9]+"
_UNIT = (
    r"\s*(?:\\?%|\^?\s*\{?\s*\\(?:circ|degree|degrees)\s*\}?(?:\s*[CF])?|°\s*[CF]?"
    r"|\\text\{[^{}0-9]*\}(?:\s*\^\s*(?:\{[23]\}|[23]))?"
    r"|\\mathrm\{[^{}0-9]*\}(?:\s*\^\s*(?:\{[23]\}|[23]))?"
    r"|(?<=\s)(?!pi\b|or\b|and\b|to\b|mod\b)[A-Za-z]{2,}[A-Za-z ./]*(?:\^?\{?[23]\}?)?"
    r"|(?:cm|mm|km|kg|mg|ml|mL|cm2|cm3|dollars|degrees|units)\b)"
)
_VALUE = re.compile(rf"(?:[A-Za-z](?:_\{{?\w+\}}?)?\s*=\s*)?(?P<number>{_NUMBER})(?:{_UNIT})?\Z")


def tidy(text: str) -> str:
    """Undo typography: compatibility forms (full-width digits), dashes, LaTeX spacing, `{,}`."""
    text = unicodedata.normalize("NFKC", text).translate(_MINUS)
    text = _THIN_SEPARATOR.sub("", text)
    text = text.replace("{,}", ",").replace("\\$", "").replace("\\!", "")
    text = _SPACE.sub(" ", text)
    return _STYLE.sub("", text).strip()


def unwrap(text: str) -> str:
    r"""Take off what only dresses the whole text: `$..$`, `\(..\)`, `\text{..}`, `**..**`."""
    for _ in range(_MAX_DRESS):
        before = text
        text = text.strip()
        if re.search(r"(?<!\\)(?:\\\\)*\\\Z", text):  # what is left of a control space
            text = text[:-1].rstrip()
        for opening, closing in (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")):
            dressed = text.startswith(opening) and text.endswith(closing)
            if dressed and len(text) >= len(opening) + len(closing):
                text = text[len(opening) : -len(closing)].strip()
        wrapper = _WRAPPER.match(text)
        opened = wrapper.end() if wrapper else 1 if text.startswith("{") else 0
        if opened and closing_brace(text, opened) == len(text) - 1:
            text = text[opened:-1].strip()
        for mark in ("**", "__", "`", "*"):
            if len(text) > 2 * len(mark) and text.startswith(mark) and text.endswith(mark):
                text = text[len(mark) : -len(mark)].strip()
        if text == before:
            break
    return text


def closing_brace(text: str, at: int) -> int:
    """Index of the brace that closes the one opened just before `at`, or -1."""
    depth, escaped = 1, False
    for index in range(at, len(text)):
        char = text[index]
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                return index
    return -1


def number_text(text: str) -> str | None:
    """The number that `text` states, in plain decimal form without separators, or None.

    A leading `x =`, a currency sign and a unit are allowed: `n = 1{,}234`, `$5`, `35 cm`. Leading
    zeros are dropped; so is a fraction of zeros.
    """
    text = unwrap(tidy(text)).replace("\\ ", " ").rstrip(".").strip()
    text = _BLANKS.sub(" ", tidy(text)).lstrip("$€£¥").rstrip("$").strip()
    found = _VALUE.match(text)
    return plain_decimal(found["number"]) if found else None


def plain_decimal(number: str) -> str:
    """`+007.50` -> `7.5`, `1,234` -> `1234`, `-0` -> `0`."""
    number = number.replace(",", "")
    sign = "-" if number.startswith("-") else ""
    whole, _, fraction = number.lstrip("+-").partition(".")
    whole, fraction = whole.lstrip("0") or "0", fraction.rstrip("0")
    value = f"{whole}.{fraction}" if fraction else whole
    return value if value == "0" else sign + value


def plain_math(text: str) -> str:
    r"""A text form for cheap comparison: no blanks, no style, `\dfrac` and `\tfrac` as `\frac`."""
    text = unwrap(tidy(text)).rstrip(".")
    text = re.sub(r"\\[dt]frac(?![A-Za-z])", r"\\frac", text)
    text = re.sub(r"\^\s*\{?\s*\\circ\s*\}?", "", text)
    return re.sub(r"\s+", "", text)
