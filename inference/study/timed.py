"""Answers with the time of every delta, so that the time to a valid answer can be read off."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from inference.study.compare import Question
from inference.study.systems import Answered, Engines, System, sampling_params
from specexit import Committer
from specexit import contract as make_contract


@dataclass
class Timed(Answered):
    """One answer.

    Attributes:
        deltas: (seconds since submission, text) of each step that gave text.
        probe_tokens: tokens generated for trial answers that were thrown away.
        logprobs: of the generated tokens, where they were asked for.
    """

    deltas: list[tuple[float, str]] = field(default_factory=list)
    probe_tokens: int = 0
    logprobs: list[float] = field(default_factory=list)


class Runner(Protocol):
    """A way of answering, ready to be timed."""

    name: str

    def answer(self, questions: Sequence[Question]) -> list[Timed]:
        """Answer questions that arrive together."""
        ...


class EngineRunner:
    """A `System` on its engine.

    Args:
        suffix: ids put after each prompt, such as a think end for "no thinking".
    """

    def __init__(
        self, system: System, engines: Engines, *, max_tokens: int, suffix: Sequence[int] = ()
    ) -> None:
        self.name = system.name
        self._system, self._engines = system, engines
        self._max_tokens, self._suffix = max_tokens, list(suffix)

    def answer(self, questions: Sequence[Question]) -> list[Timed]:
        """One request a question, all submitted at once."""
        params = [
            sampling_params(self._system, max_tokens=self._max_tokens, contract=q.contract)
            for q in questions
        ]
        prompts = [[*q.prompt_ids, *self._suffix] for q in questions]
        found = run_timed(self._engines.of(self._system), prompts, params)
        for answered in found:
            answered.suffix = tuple(self._suffix)
        return found


def run_timed(llm: Any, prompts: Sequence[Sequence[int]], params: Sequence[Any]) -> list[Timed]:
    """Run prompts (token ids) together through one engine, step by step, until all are done."""
    engine = llm.llm_engine
    results = [Timed() for _ in prompts]
    started = time.perf_counter()
    for i, (prompt, each) in enumerate(zip(prompts, params, strict=True)):
        engine.add_request(str(i), {"prompt_token_ids": list(prompt)}, each.clone())
    while engine.has_unfinished_requests():
        for output in engine.step():
            _take(results[int(output.request_id)], output, time.perf_counter() - started)
    return results


def seconds_to_valid(
    question: Question, answered: Timed, tags: tuple[str, str], thinking: bool | str = "auto"
) -> float | None:
    """Seconds until the stream held an answer that nothing can change; None if it never did.

    Args:
        tags: think start and end as text.
        thinking: `compare.begins`.
    """
    rule = make_contract(json.loads(question.contract))
    committer = Committer(rule, thinking=thinking, think_start=tags[0], think_end=tags[1])
    for seconds, text in answered.deltas:
        if committer.feed(text) is not None:
            return seconds
    return answered.seconds if committer.close() is not None else None


def _take(result: Timed, output: Any, seconds: float) -> None:
    completion = output.outputs[0]
    if completion.token_ids:
        result.steps += bool(result.token_ids)
        result.token_ids.extend(completion.token_ids)
        result.seconds = seconds
        if completion.logprobs:
            chosen = zip(completion.token_ids, completion.logprobs, strict=False)
            result.logprobs.extend(each[token].logprob for token, each in chosen)
    if completion.text:
        result.text += completion.text
        result.deltas.append((seconds, completion.text))
    if output.finished:
        result.seconds = seconds
        result.finish_reason = completion.finish_reason
        result.stop_reason = completion.stop_reason
        record = (output.kv_transfer_params or {}).get("specexit")
        result.record = record if isinstance(record, dict) else None
