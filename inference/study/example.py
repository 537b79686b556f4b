"""One trace for the report: its signals, and where SpecExit ended it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inference.study.compare import Question, is_right
from inference.study.systems import Answered
from specexit.checkpoint import HeadMetadata
from specexit.dataset import Trace
from specexit.policy import SIGNALS, ExitPolicy, ExitTracker
from specexit.replay import ReplayTable
from specexit.think import ThinkFormat


def make_example(
    table: ReplayTable,
    traces: Sequence[Trace],
    answered: Sequence[Answered],
    metadata: HeadMetadata,
    target: Path,
) -> dict[str, Any]:
    """The JSON of `example.json`: the longest self-corrected trace that was cut, else the longest.

    Args:
        table: the head's replay table, which holds the raw signals of the full trace.
        traces, answered: the full traces and SpecExit's answers to the same questions.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(target))
    row_of = {trace_id: i for i, trace_id in enumerate(table.ids)}
    think = metadata.think
    chosen = max(range(len(traces)), key=lambda i: _merit(traces[i], answered[i], row_of, think))
    trace, answer = traces[chosen], answered[chosen]
    raw = table.signals[table.tokens_of(row_of[trace.id])].tolist()
    smoothed = _smooth(metadata.policy, raw, trace.boundaries)
    cut = _cut_at(answer)
    policy = metadata.policy
    return {
        "question": trace.question,
        "gold": trace.gold,
        "signals": {name: [s[i] for s in smoothed] for i, name in enumerate(SIGNALS)},
        "boundaries": trace.boundaries[1:],
        "enabled": list(policy.signals),
        "thresholds": policy.thresholds.model_dump(),
        "oracle": trace.t_star,
        "exit": cut,
        "parts": _parts(trace, answer, cut, tokenizer),
    }


def _merit(
    trace: Trace, answer: Answered, row_of: dict[str, int], think: ThinkFormat
) -> tuple[bool, bool, int]:
    """Prefer right, cut, self-corrected traces; among those, long ones."""
    usable = (
        trace.t_star is not None
        and trace.id in row_of
        and _cut_at(answer) is not None
        and is_right(Question.from_trace(trace), answer, think)
    )
    return usable, bool(json.loads(trace.meta).get("slip")), trace.think_end - trace.think_start


def _cut_at(answer: Answered) -> int | None:
    """Thinking tokens before the injected think end; None if the thinking ended by itself."""
    record = answer.record or {}
    return record.get("think_tokens") if record.get("exit") == "injected" else None


def _smooth(
    policy: ExitPolicy, raw: Sequence[Sequence[float]], boundaries: Sequence[int]
) -> list[tuple[float, float, float]]:
    tracker, marks, out = ExitTracker(policy), set(boundaries), []
    for t, (confidence, progress, remain) in enumerate(raw, start=1):
        tracker.update((confidence, progress, remain), t in marks)
        assert tracker.smoothed is not None
        out.append(tracker.smoothed)
    return out


def _parts(trace: Trace, answer: Answered, cut: int | None, tokenizer: Any) -> list[dict[str, str]]:
    """Paragraphs of the full thinking with the oracle's and the exit's place between them."""
    ids = trace.thinking_ids
    ends = [*trace.boundaries[1:], len(ids)]
    parts: list[dict[str, str]] = []
    begin = 0
    for end in ends:
        text = tokenizer.decode(ids[begin:end]).strip("\n")
        if text:
            kind = "kept" if cut is None or end <= cut else "cut"
            parts.append({"kind": kind, "text": text})
        if end == trace.t_star:
            parts.append(
                {"mark": "oracle", "text": "▲ sufficient: the answer stays the same from here"}
            )
        if end == cut:
            parts.append({"mark": "exit", "text": "■ SpecExit puts </think> here"})
            final = answer.text.rpartition("</think>")[2].strip()
            parts.append({"kind": "answer", "text": final})
        begin = end
    return parts
