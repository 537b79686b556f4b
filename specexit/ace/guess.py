"""Which contract a record's task asks for, and the grader that is usual for it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

from specexit.contracts import Contract, contract

from .records import Record

ANSWER_TAG = {"type": "final_tag", "open": "<answer>", "close": "</answer>"}
ZEROEVAL = {
    "type": "json",
    "schema": {
        "type": "object",
        "required": ["reasoning", "answer"],
        "properties": {"answer": {"not": {"const": "___"}}},  # the prompt's template
    },
    "field": "answer",
}
MATH_TASKS = {"math500", "gsm8k", "mawps", "svamp", "olympiadbench", "aime", "amc"}

Grader = Callable[[str], Any]


@cache
def _made(spec: str) -> Contract:
    return contract(json.loads(spec))


def guess(record: Record) -> tuple[str, Contract] | None:
    """A short name and the contract for a record's kind and task; None where it asks for none."""
    spec = guess_spec(record)
    if spec is None:
        return None
    name, value = spec
    return name, _made(json.dumps(value))


def guess_spec(record: Record) -> tuple[str, Any] | None:
    """As `guess`, before the contract is made."""
    kind, task = record.kind, record.task.split("/")[0]
    choices = re.match(r"mcq(\d+)", kind)
    if choices:
        letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: int(choices[1])]
        if task.startswith("mmlu_pro"):
            # The prompt asks for this line.
            return "choice", {"type": "choice", "letters": letters, "cues": ["FINAL ANSWER:"]}
        return "choice", {"type": "choice", "letters": letters}
    if task.startswith("aime"):
        return "boxed_integer", "boxed_integer"
    if kind.startswith("math") or task in MATH_TASKS:
        return "boxed_math", "boxed_math"
    if kind.startswith("final_line"):
        return "final_answer", {"type": "final_answer", "cues": ["FINAL:"]}
    if kind == "answer_tag":
        return "final_tag", ANSWER_TAG
    if kind == "json_answer":
        return "json", ZEROEVAL
    if kind == "unified_diff":
        return "patch", "patch"
    return None


def usual_grader(name: str, letters: str = "ABCDEFGHIJ") -> Grader | None:
    """A plain grader of the kind in use, on the full visible text: the *last* match of a regex.

    Independent of the contracts' machines; a contract without one gives None.
    """
    graders: dict[str, Grader] = {
        "boxed_integer": last_box,
        "boxed_math": last_box,
        "choice": lambda text: last_letter(text, letters),
        "final_answer": last_number,
        "final_tag": last_tag,
        "json": last_json,
        "patch": lambda text: whole_diff(text),
    }
    return graders.get(name)


def visible(text: str, think_start: str, think_end: str) -> str:
    """What stands behind the last think end; nothing where a thinking block is left open."""
    head, tag, tail = text.rpartition(think_end)
    if think_start in tail or (not tag and think_start in text):
        return (tail if tag else "").split(think_start)[0]
    return tail if tag else head or text


def last_box(text: str) -> str | None:
    r"""The content of the last `\boxed{...}` or `\fbox{...}` that closes and is not empty."""
    found = None
    for start in re.finditer(r"\\(?:boxed|fbox)\s*\{", text):
        depth, at = 1, start.end()
        while at < len(text) and depth:
            if text[at] == "\\":
                at += 1
            elif text[at] in "{}":
                depth += 1 if text[at] == "{" else -1
            at += 1
        content = text[start.end() : at - 1]
        if depth == 0 and re.sub(r"\\text\{\s*\}|\s", "", content):
            found = content
    return found


def last_letter(text: str, letters: str) -> str | None:
    """The last letter behind an answer phrase, in a box, or in an answer tag."""
    one = rf"[\s*(\[{{$]*(?:\\text\{{)?[\s(]*([{letters}{letters.lower()}])(?![A-Za-z0-9])"
    phrases = (
        rf"(?i:final answer|answer is|answer|correct option is)\s*(?:\*\*)?\s*[:：]?(?:\*\*)?{one}",
        rf"\\boxed\s*\{{{one}",
        rf"<answer>{one}",
    )
    found = [match for phrase in phrases for match in re.finditer(phrase, text)]
    last = max(found, key=lambda match: match.start(), default=None)
    return None if last is None else last[1].upper()


def last_number(text: str) -> str | None:
    """The last number behind `FINAL:` or an answer phrase."""
    found = re.findall(
        r"(?i:final\s*:|final answer\s*:?|answer is|####)[\s*$]*(-?[0-9][0-9,]*(?:\.[0-9]+)?)", text
    )
    return found[-1].replace(",", "") if found else None


def last_tag(text: str) -> str | None:
    """The content of the last closed `<answer>` tag, else of an open one."""
    found = re.findall(r"<answer>(.*?)</answer>", text, re.S)
    if found:
        return found[-1].strip()
    _, tag, tail = text.rpartition("<answer>")
    return tail.strip() if tag and tail.strip() else None


def last_json(text: str) -> Any:
    """`answer` of what stands between the first and the last brace, strictly read."""
    begin, end = text.find("{"), text.rfind("}")
    try:
        value = json.loads(text[begin : end + 1])
    except ValueError:
        return None
    return value.get("answer") if isinstance(value, dict) else None


def whole_diff(text: str) -> str | None:
    """The text itself, from the first diff line on."""
    found = re.search(r"^(?:diff --git |--- )", text, re.M)
    return text[found.start() :] if found else None
