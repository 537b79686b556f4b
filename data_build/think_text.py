"""An output as text, without a tokenizer: where its thinking lies, and what is odd about it."""

from __future__ import annotations

from dataclasses import dataclass

from specexit.split import text_boundaries

TREATMENT = {
    "no_thinking": "no think tag at all: the whole text is the answer; dropped",
    "no_think_end": "the thinking is never closed: no answer; dropped",
    "no_think_start": "only the closing tag: all before it is thinking (the prompt opened it); "
    "used",
    "several": "further think blocks after the first: they are not read as answer; used",
    "unclosed": "a further block is opened and never closed: nothing in it is read; used",
    "empty_thinking": "nothing between the tags; dropped",
    "empty_answer": "nothing after the think end; dropped",
    "no_contract": "no contract for this record: no answer is looked for; dropped",
    "no_valid_answer": "the contract finds no answer after the thinking; dropped",
}
"""What is done with each oddity. A record may have several."""


@dataclass(frozen=True)
class TextOutput:
    """An output taken apart.

    `start`, `end`: character offsets of the thinking in the text (`end` is the text's length
    where it is open); `answer`: the text after the think end; `oddities`: keys of `TREATMENT`.
    """

    start: int
    end: int
    answer: str
    oddities: tuple[str, ...]

    def boundaries(self, text: str) -> list[int]:
        """Paragraph ends of the thinking, in characters from its start."""
        return text_boundaries(text[self.start : self.end])


def take_apart(text: str, start_tag: str = "<think>", end_tag: str = "</think>") -> TextOutput:
    """Find the first thinking of an output's text."""
    opened, closed = text.find(start_tag), text.find(end_tag)
    if opened < 0 and closed < 0:
        return TextOutput(0, 0, text, ("no_thinking",))
    oddities: list[str] = []
    if opened < 0 or 0 <= closed < opened:  # the prompt opened it
        oddities.append("no_think_start")
        start = 0
    else:
        start = opened + len(start_tag)
        closed = text.find(end_tag, start)
        if closed < 0:
            return TextOutput(start, len(text), "", ("no_think_end",))
    answer = text[closed + len(end_tag) :]
    if not text[start:closed].strip():
        oddities.append("empty_thinking")
    if start_tag in answer:
        oddities.append("several")
        if answer.rfind(start_tag) > answer.rfind(end_tag):
            oddities.append("unclosed")
    if not answer.strip():
        oddities.append("empty_answer")
    return TextOutput(start, closed, answer, tuple(oddities))
