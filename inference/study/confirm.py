"""Replay against live vLLM: a policy must exit at the replayed boundary, with that answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inference.study.systems import Answered, Engines, System, answer, sampling_params
from specexit import contract as make_contract
from specexit.checkpoint import load_metadata
from specexit.dataset import Trace, read_traces
from specexit.policy import ExitPolicy
from specexit.replay import NATURAL, Replay, ReplayTable
from specexit.think import ThinkFormat

_BATCH = 32


@dataclass(frozen=True)
class Confirmed:
    """One policy, replayed and run.

    Attributes:
        n: questions.
        same_exit: of them, exits after the same number of thinking tokens.
        same_answer: answers equal to the recorded trial answer (or the full output's).
        exits: questions that exit in the replay.
        differences: the first ten that differ: id, replayed and live tokens and answers.
    """

    policy: dict[str, Any]
    n: int
    same_exit: int
    same_answer: int
    exits: int
    differences: list[dict[str, Any]]

    def as_json(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)


def confirm_live(
    table: ReplayTable,
    policies: Sequence[ExitPolicy],
    *,
    target: str,
    head: str,
    data: str,
    split: Any,
    questions: int,
    dtype: str = "float32",
    num_speculative_tokens: int = 3,
    max_tokens: int = 1400,
    quiet: bool = False,
) -> list[Confirmed]:
    """Run `policies` on the table's first `questions` traces and compare with the replay.

    Args:
        table: of the split; its traces are looked up in `data`.
    """
    from tqdm import tqdm

    from inference.study.replay_cli import target_folder

    rows = list(range(min(questions, len(table))))
    by_id = {t.id: t for t in read_traces(data, split)}
    traces = [by_id[table.ids[i]] for i in rows]
    exits = Replay(table.select(rows)).exits(list(policies))
    engines = Engines(
        target_folder(target), num_speculative_tokens=num_speculative_tokens, dtype=dtype
    )
    think = load_metadata(head).think
    results = []
    try:
        for p, policy in enumerate(tqdm(policies, desc="live", unit="policy", disable=quiet)):
            system = System(
                f"policy {p}", head=Path(head), exits=True, policy=policy.model_dump(mode="json")
            )
            params = sampling_params(system, max_tokens=max_tokens)
            live: list[Answered] = []
            for start in range(0, len(traces), _BATCH):
                prompts = [t.prompt_ids for t in traces[start : start + _BATCH]]
                live += answer(engines.of(system), prompts, [params] * len(prompts))
            results.append(_compare(policy, traces, live, exits, p, think))
    finally:
        engines.close()
    return results


def _compare(
    policy: ExitPolicy,
    traces: Sequence[Trace],
    live: Sequence[Answered],
    exits: Any,
    p: int,
    think: ThinkFormat,
) -> Confirmed:
    same_exit = same_answer = 0
    differences: list[dict[str, Any]] = []
    for i, (trace, answered) in enumerate(zip(traces, live, strict=True)):
        at, tokens = int(exits.boundary[p, i]), int(exits.tokens[p, i])
        span = think.locate(trace.prompt_ids, answered.token_ids)
        end = len(answered.token_ids) if span is None or span.end is None else span.end
        live_tokens = end - (span.start if span else 0)
        rule = make_contract(json.loads(trace.contract))
        expected = trace.answer if at == NATURAL else trace.trial_answers[at]
        opened = think.is_thinking(trace.prompt_ids)
        found = rule.project(answered.text, thinking=opened or "auto")
        wanted = None if expected is None else json.loads(expected)
        agrees = found == wanted or (
            found is not None and wanted is not None and bool(rule.equal(found, wanted))
        )
        same_exit += live_tokens == tokens
        same_answer += agrees
        if (live_tokens != tokens or not agrees) and len(differences) < 10:
            differences.append(
                {
                    "id": trace.id,
                    "replayed_tokens": tokens,
                    "live_tokens": live_tokens,
                    "replayed_answer": expected,
                    "live_answer": None if found is None else str(found),
                }
            )
    return Confirmed(
        policy=policy.model_dump(mode="json"),
        n=len(traces),
        same_exit=same_exit,
        same_answer=same_answer,
        exits=int((exits.boundary[p] != NATURAL).sum()),
        differences=differences,
    )
