"""A full output taken apart: thinking, boundaries, answer; or the reason why it cannot be used."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from data_build.answers import Answer, read_answer
from data_build.engine import Completion
from specexit.contracts import Contract
from specexit.split import StepSplitter
from specexit.think import ThinkFormat, first_index

REASONS = {
    "no_thinking": "the output never opens a thinking",
    "no_think_end": "the thinking is never closed (the output was cut off, or it loops)",
    "empty_thinking": "there is nothing between think start and think end",
    "empty_answer": "nothing but blanks follows the think end",
    "unfinished_answer": "the answer was cut off before it was final",
    "no_contract": "imported without a contract: no answer is looked for",
    "no_valid_answer": "the contract finds no answer in the finished output",
    "never_agrees": "no probed boundary gives the full output's answer",
    "unstable_end": "some boundary agrees, but the last one does not",
    "wrong_answer": "the full output's answer is wrong (require_correct)",
    "too_long": "prompt and output do not fit into the model's context",
    "engine_error": "the engine gave no completion",
    "not_probed": "imported without an engine: no trial answers",
}
"""Why a trace is kept for the statistics only."""


@dataclass(frozen=True)
class Parsed:
    """What is known of an output before any probe.

    `start`, `end`: as in the schema (`end` is the output's length where the thinking is open).
    `reason` is a key of `REASONS`, or None. `several` counts think starts after the first end:
    later blocks belong to the answer's text, where contracts do not look into them.
    """

    start: int
    end: int
    boundaries: list[int] = field(default_factory=list)
    answer: Answer = field(default_factory=lambda: Answer(None, 0, 0.0))
    reason: str | None = None
    several: int = 0


@dataclass(frozen=True)
class OutputReader:
    """Takes outputs apart for one tokenizer."""

    tokenizer: Any
    think: ThinkFormat
    splitter: StepSplitter

    def answer(self, contract: Contract, completion: Completion) -> Answer:
        """The answer of a text that starts right after the think end; later think blocks in it
        are not read."""
        return read_answer(contract, self.tokenizer, completion, self._tags)

    @cached_property
    def _tags(self) -> tuple[str, str]:
        start, end = (
            str(self.tokenizer.decode(list(ids), skip_special_tokens=False))
            for ids in (self.think.start_ids, self.think.end_ids)
        )
        return start or "<think>", end

    def read(
        self, prompt_ids: list[int], completion: Completion, contract: Contract | None
    ) -> Parsed:
        """Parse an output.

        Args:
            completion: the output; its logprobs may be empty (imported text).
        """
        ids = completion.token_ids
        span = self.think.locate(prompt_ids, ids)
        if span is None:
            return Parsed(0, 0, reason="no_thinking")
        end = len(ids) if span.end is None else span.end
        thinking = ids[span.start : end]
        before = [*prompt_ids, *ids[: span.start]][-1:]
        boundaries = self.splitter.boundaries(thinking, previous=before[0] if before else -1)
        if span.end is None:
            return Parsed(span.start, end, boundaries, reason="no_think_end")
        after = end + len(self.think.end_ids)
        tail = Completion(ids[after:], completion.logprobs[after:], completion.finish_reason)
        if contract is None:
            return Parsed(span.start, end, boundaries, reason="no_contract")
        answer = self.answer(contract, tail)
        several = _occurrences(tail.token_ids, self.think.start_ids)
        fault = self._fault(thinking, tail, answer)
        return Parsed(span.start, end, boundaries, answer, fault, several)

    def _fault(self, thinking: list[int], tail: Completion, answer: Answer) -> str | None:
        if answer.value is None:
            if not self._text(tail.token_ids):
                return "empty_answer"
            return "unfinished_answer" if tail.finish_reason == "length" else "no_valid_answer"
        return None if self._text(thinking) else "empty_thinking"

    def _text(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True)).strip()


def _occurrences(ids: list[int], pattern: tuple[int, ...]) -> int:
    count, at = 0, first_index(ids, pattern)
    while at >= 0:
        count, at = count + 1, first_index(ids, pattern, at + 1)
    return count
