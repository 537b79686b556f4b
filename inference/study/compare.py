"""Systems side by side on one set of questions: interleaved runs, and the rows of the table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from inference.study.systems import (
    Answered,
    Engines,
    System,
    acceptance_length,
    answer,
    sampling_params,
)
from specexit import contract as make_contract
from specexit.dataset import Trace
from specexit.statistics import bootstrap_mean, clopper_pearson, wilson
from specexit.think import ThinkFormat

Runs = dict[str, list[Answered]]


@dataclass(frozen=True)
class Question:
    """One question of a comparison.

    Attributes:
        prompt_ids: the prompt, as the data builder rendered it.
        gold: the reference answer.
        contract: the answer contract as JSON.
        oracle_tokens: thinking tokens up to the minimal sufficient boundary; the full thinking
            where no boundary suffices.
    """

    id: str
    text: str
    prompt_ids: list[int]
    gold: str
    contract: str
    oracle_tokens: int

    @classmethod
    def from_trace(cls, trace: Trace) -> Question:
        """A row of the data set; traces without a sufficient boundary are kept."""
        full = trace.think_end - trace.think_start
        return cls(
            id=trace.id,
            text=trace.question,
            prompt_ids=trace.prompt_ids,
            gold=trace.gold or "",
            contract=trace.contract,
            oracle_tokens=full if trace.t_star is None else trace.t_star,
        )


def run_interleaved(
    engines: Engines,
    systems: Sequence[System],
    questions: Sequence[Question],
    *,
    batch_size: int,
    max_tokens: int,
    quiet: bool = False,
    label: str = "",
) -> Runs:
    """Every system answers every question, block by block in rotating order.

    The order rotates because the machine's speed drifts: only ratios within one run count.

    Returns:
        For each system its answers, in the order of `questions`.
    """
    runs: Runs = {system.name: [] for system in systems}
    blocks = [questions[i : i + batch_size] for i in range(0, len(questions), batch_size)]
    for system in systems:  # load, and warm up on one short request
        warm = sampling_params(system, max_tokens=8)
        answer(engines.of(system), [questions[0].prompt_ids], [warm])
    with tqdm(total=len(blocks) * len(systems), desc=label, unit="batch", disable=quiet) as bar:
        for i, block in enumerate(blocks):
            for j in range(len(systems)):
                system = systems[(i + j) % len(systems)]
                bar.set_postfix_str(system.name)
                params = [
                    sampling_params(system, max_tokens=max_tokens, contract=q.contract)
                    for q in block
                ]
                prompts = [q.prompt_ids for q in block]
                runs[system.name] += answer(engines.of(system), prompts, params)
                bar.update()
    return runs


def make_row(
    name: str,
    questions: Sequence[Question],
    answered: Sequence[Answered],
    full: Sequence[Answered],
    think: ThinkFormat,
    seed: int,
) -> dict[str, Any]:
    """Quality figures of one system; `full` are the answers with full thinking, same order."""
    n = len(questions)
    right = [is_right(q, a, think) for q, a in zip(questions, answered, strict=True)]
    right_full = [is_right(q, a, think) for q, a in zip(questions, full, strict=True)]
    lost = sum(f and not r for f, r in zip(right_full, right, strict=True))
    thought = [think_tokens(q, a, think) for q, a in zip(questions, answered, strict=True)]
    thought_full = [think_tokens(q, a, think) for q, a in zip(questions, full, strict=True)]
    output = [len(a.token_ids) for a in answered]
    possible = sum(thought_full) - sum(q.oracle_tokens for q in questions)
    return {
        "system": name,
        "source": "live",
        "n": n,
        "accuracy": sum(right) / n,
        "accuracy_ci": list(wilson(sum(right), n)),
        "lost": lost / n,
        "lost_ci": list(clopper_pearson(lost, n)),
        "think_tokens": sum(thought) / n,
        "think_tokens_ci": list(bootstrap_mean(thought, seed)),
        "output_tokens": sum(output) / n,
        "oracle_share": (sum(thought_full) - sum(thought)) / possible if possible else None,
        "acceptance_length": acceptance_length(answered),
        "latency_s": None,
        "latency_n": None,
        "latency_batch_s": None,
        "tokens_per_s": None,
    }


def latency_columns(alone: Sequence[Answered], batched: Sequence[Answered]) -> dict[str, Any]:
    """Time figures of one system: requests run one by one, and in batches."""
    seconds = sum(a.seconds for a in alone)
    return {
        "latency_s": seconds / len(alone),
        "latency_n": len(alone),
        "latency_batch_s": sum(a.seconds for a in batched) / len(batched),
        "tokens_per_s": sum(len(a.token_ids) for a in alone) / seconds,
        "latency_output_tokens": sum(len(a.token_ids) for a in alone) / len(alone),
    }


def answer_lines(questions: Sequence[Question], runs: Runs, think: ThinkFormat) -> Iterator[str]:
    """One JSON line for each system and question: what the table's means are made of."""
    for name, answered in runs.items():
        for question, a in zip(questions, answered, strict=True):
            rule = make_contract(json.loads(question.contract))
            line = {
                "system": name,
                "id": question.id,
                "answer": rule.project(a.text, thinking=begins(question, a, think)),
                "gold": question.gold,
                "right": is_right(question, a, think),
                "think_tokens": think_tokens(question, a, think),
                "output_tokens": len(a.token_ids),
                "finish_reason": a.finish_reason,
                "stop_reason": a.stop_reason,
                "record": a.record,
            }
            yield json.dumps(line, ensure_ascii=False)


def begins(question: Question, answered: Answered, think: ThinkFormat) -> bool | str:
    """Whether an output's text begins inside the thinking; `auto` where its own tags must tell."""
    if think.is_thinking([*question.prompt_ids, *answered.suffix]):
        return True
    return False if answered.suffix else "auto"


def is_right(question: Question, answered: Answered, think: ThinkFormat) -> bool:
    """Whether the answer after the thinking scores against gold, by the question's contract."""
    rule = make_contract(json.loads(question.contract))
    found = rule.project(answered.text, thinking=begins(question, answered, think))
    return found is not None and bool(rule.score(found, question.gold))


def think_tokens(question: Question, answered: Answered, think: ThinkFormat) -> int:
    """Thinking tokens of an output; an unclosed thinking counts to its end."""
    span = think.locate([*question.prompt_ids, *answered.suffix], answered.token_ids)
    if span is None:
        return 0
    return (len(answered.token_ids) if span.end is None else span.end) - span.start
