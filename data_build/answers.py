"""Answers of full outputs and of trials: decode, let the contract commit, count its tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from data_build.engine import Completion
from specexit import Committer
from specexit.contracts import Contract


@dataclass(frozen=True)
class Answer:
    """A projected answer.

    Attributes:
        value: the answer; None where the text has none.
        tokens: tokens up to its commit (all of them where there is none).
        mean_logprob: mean log-probability of these tokens.
    """

    value: Any | None
    tokens: int
    mean_logprob: float

    @property
    def json(self) -> str | None:
        """The value as JSON; None where there is none."""
        if self.value is None:
            return None
        return json.dumps(self.value, ensure_ascii=False, sort_keys=True, default=str)


def read_answer(
    contract: Contract,
    tokenizer: Any,
    completion: Completion,
    tags: tuple[str, str] = ("<think>", "</think>"),
) -> Answer:
    """The answer of a text that starts right after the think end; `tags` as decoded.

    A text that was cut off by `max_tokens` only has an answer if it committed before: what lacks
    its terminator there might have gone on.
    """
    start, end = tags
    committer = Committer(contract, thinking=True, think_start=start, think_end=end)
    committer.feed(end)
    count = 0
    for count, delta in enumerate(deltas(tokenizer, completion.token_ids), start=1):  # noqa: B007
        if committer.feed(delta) is not None:
            break
    if committer.commit is None and completion.finish_reason == "stop":
        committer.close()
    value = None if committer.commit is None else committer.commit.answer
    logprobs = completion.logprobs[:count]
    mean = sum(logprobs) / len(logprobs) if logprobs else 0.0
    return Answer(value, count, mean)


def deltas(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text that each id adds; ids that end inside a character add nothing yet.

    The concatenation is the decoded text without special tokens (but for an incomplete character
    at its end).
    """
    out: list[str] = []
    start, shown = 0, ""  # ids[start:] decodes to text whose prefix `shown` was given out
    for end in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[start:end], skip_special_tokens=True)
        if text.endswith("�") or not text.startswith(shown):
            out.append("")
            continue
        out.append(text[len(shown) :])
        shown = text
        if end - start >= 16:  # keep the window short: cost stays linear
            start = end - 4
            shown = tokenizer.decode(ids[start:end], skip_special_tokens=True)
    return out
