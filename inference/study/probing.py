"""Baselines that ask for a trial answer at each boundary, live: DEER-style and repeated answers.

One request per paragraph (stopped at its blank line) and one per trial answer, on an engine with
prefix caching, which is how these methods are served. All their time is theirs: a question's
latency runs from its submission to the last token of its answer.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inference.study.compare import Question
from inference.study.systems import Engines, System
from inference.study.timed import Timed, run_timed
from specexit import contract as make_contract
from specexit.think import ThinkFormat


@dataclass(frozen=True)
class Trial:
    """One trial answer: its projected value (None: invalid), mean log-probability, and tokens."""

    answer: Any
    mean_logprob: float
    tokens: int


Rule = Callable[[Sequence[Trial]], bool]
"""Whether to exit, given the trial answers at boundaries 1..k."""


def deer_rule(threshold: float) -> Rule:
    """Exit when the trial answer's geometric mean probability is above `threshold`."""

    def rule(trials: Sequence[Trial]) -> bool:
        return math.exp(trials[-1].mean_logprob) > threshold

    return rule


def repeated_rule(times: float) -> Rule:
    """Exit when the same valid answer came more than `times` times in a row."""

    def rule(trials: Sequence[Trial]) -> bool:
        last, run = trials[-1].answer, 0
        if last is None:
            return False
        for trial in reversed(trials):
            if trial.answer != last:
                break
            run += 1
        return run > times

    return rule


@dataclass
class _Question:
    question: Question
    ids: list[int]
    output: list[int] = field(default_factory=list)
    text: str = ""
    trials: list[Trial] = field(default_factory=list)
    spent: int = 0
    finished: float | None = None
    deltas: list[tuple[float, str]] = field(default_factory=list)
    steps: int = 0


class ProbingRunner:
    """A rule on trial answers, run live.

    Args:
        head: draft head, so that the baseline too decodes speculatively.
        boundary_ids: ids of the tokens that end a paragraph (one-token blank lines).
        trial_tokens: longest trial answer.
    """

    def __init__(
        self,
        name: str,
        rule: Rule,
        engines: Engines,
        *,
        head: Path,
        think: ThinkFormat,
        boundary_ids: Sequence[int],
        max_tokens: int,
        trial_tokens: int,
    ) -> None:
        self.name = name
        self._rule, self._think = rule, think
        self._llm = engines.of(System(name, head=head))
        self._boundary_ids = list(boundary_ids)
        self._max_tokens, self._trial_tokens = max_tokens, trial_tokens

    def answer(self, questions: Sequence[Question]) -> list[Timed]:
        """Questions advance together, one paragraph and one trial at a time."""
        started = time.perf_counter()
        rows = [_Question(q, list(q.prompt_ids)) for q in questions]
        while active := [r for r in rows if r.finished is None]:
            self._advance(active, started)
            thinking = [r for r in active if r.finished is None]
            if thinking:
                self._try(thinking, started)
        return [self._timed(r) for r in rows]

    def _advance(self, rows: Sequence[_Question], started: float) -> None:
        """Think one paragraph on; a natural think end goes on to the answer's end."""
        stops = [*self._boundary_ids, self._think.end_ids[-1]]
        begun = time.perf_counter() - started
        budget = [self._max_tokens - len(r.output) for r in rows]
        found = run_timed(
            self._llm, [r.ids for r in rows], [self._params(n, stops) for n in budget]
        )
        closing = []
        for row, piece in zip(rows, found, strict=True):
            self._append(row, piece, begun)
            if piece.finish_reason == "length" or piece.stop_reason is None:
                row.finished = begun + piece.seconds
            elif piece.stop_reason == self._think.end_ids[-1]:
                closing.append(row)
        if closing:
            self._finish(closing, started)

    def _try(self, rows: Sequence[_Question], started: float) -> None:
        """Ask for a trial answer; rows whose rule fires keep it as their answer."""
        ends = list(self._think.end_ids)
        begun = time.perf_counter() - started
        found = run_timed(
            self._llm,
            [[*r.ids, *ends] for r in rows],
            [self._params(self._trial_tokens, [], trial=r.question.contract) for r in rows],
        )
        for row, piece in zip(rows, found, strict=True):
            rule = make_contract(json.loads(row.question.contract))
            tokens = len(piece.token_ids)
            mean = sum(piece.logprobs) / len(piece.logprobs) if piece.logprobs else 0.0
            row.trials.append(Trial(rule.project(piece.text, thinking=False), mean, tokens))
            if self._rule(row.trials):
                row.output += ends
                row.text += "</think>"
                row.deltas.append((begun, "</think>"))
                self._append(row, piece, begun)
                row.finished = begun + piece.seconds
            else:
                row.spent += tokens + len(ends)

    def _finish(self, rows: Sequence[_Question], started: float) -> None:
        begun = time.perf_counter() - started
        params = [self._params(max(1, self._max_tokens - len(r.output)), []) for r in rows]
        for row, piece in zip(
            rows, run_timed(self._llm, [r.ids for r in rows], params), strict=True
        ):
            self._append(row, piece, begun)
            row.finished = begun + piece.seconds

    def _append(self, row: _Question, piece: Timed, begun: float) -> None:
        row.ids += piece.token_ids
        row.output += piece.token_ids
        row.text += piece.text
        row.deltas += [(begun + seconds, text) for seconds, text in piece.deltas]
        row.steps += piece.steps

    def _params(self, tokens: int, stops: Sequence[int], *, trial: str | None = None) -> Any:
        """Greedy; a trial answer ends where its contract commits, as in the replay table."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            temperature=0.0,
            max_tokens=max(1, tokens),
            stop_token_ids=list(stops),
            include_stop_str_in_output=True,
            logprobs=None if trial is None else 0,
            extra_args=None if trial is None else {"contract": trial},
            output_kind=RequestOutputKind.DELTA,
            skip_special_tokens=False,
        )

    def _timed(self, row: _Question) -> Timed:
        return Timed(
            token_ids=row.output,
            text=row.text,
            finish_reason="stop",
            seconds=row.finished or 0.0,
            steps=row.steps,
            deltas=row.deltas,
            probe_tokens=row.spent,
        )
